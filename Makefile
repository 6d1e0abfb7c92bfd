# make demo · make test · make lint · make types · make fuzz · make dist · make docs · make docs-check · make bench DATA=<folder> · make peers · make sbom · make clean
#
# Nothing needs to be installed beforehand but Python >= 3.12 and make: every target makes the
# environment it needs in $(VENV), and later runs reuse it.

VENV    ?= .venv
DATA    ?=
WORKERS ?= 2
# Appended to pytest's and the benchmark's command lines, for instance ARGS="-k gibbs" or
# ARGS="--quick".
ARGS    ?=
# make fuzz: how many random models, and the seed of the first. With ARGS=--moments small ones are
# sampled and compared with importance sampling; with ARGS=--chains models of wild scales are sampled.
N       ?= 200
SEED    ?= 0

PYTHON   := $(VENV)/bin/python
# GPy, a peer of the benchmarks, does not go with PyMC: it gets an environment of its own. To use
# another one, or to do without: make bench GPY_PYTHON=<its python, or nothing>.
GPY_VENV   := .venv-gpy
GPY_PYTHON ?= $(GPY_VENV)/bin/python
BENCH_JSON_DIR := benchmark-output
# A fresh environment in which make dist tries the wheel, of which interpreter, and with which
# extras: make dist DIST_PYTHON=python3.14 EXTRAS=[all].
DIST_VENV   := .venv-dist
DIST_PYTHON ?= $(PYTHON)
EXTRAS      ?=
# Each peer's environment, and the table's JSON. GPflow needs Python 3.12: PEERS_PYTHON=python3.12.
PEERS_VENV ?= .venv-peers
PEERS_JSON ?= docs/peers.json
# Each worker and each chain is a process of its own: more BLAS threads than one would fight over
# the cores.
ONE_BLAS_THREAD := OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 OMP_NUM_THREADS=1 \
	VECLIB_MAXIMUM_THREADS=1

.PHONY: help demo test fuzz imports lint types format dist sbom docs docs-check bench peers has-data gpy clean

help:
	@sed -n 1p Makefile | cut -c3-

demo: $(VENV)/.installed-demo
	$(PYTHON) examples/breast_cancer.py

# With COVERAGE=1 the lines and branches that the tests execute are counted, which takes longer; with
# COMPILED=1 PyMC's own functions are compiled, as they are for users, which takes hours.
test: $(VENV)/.installed-test
	$(ONE_BLAS_THREAD) $(PYTHON) -m pytest -n $(WORKERS) --dist worksteal $(if $(COVERAGE),--cov) $(ARGS)

fuzz: $(VENV)/.installed-test
	$(ONE_BLAS_THREAD) $(PYTHON) -m fuzz --models $(N) --seed $(SEED) $(ARGS)

imports: $(VENV)/.installed-test
	$(PYTHON) -m pytest -q tests/test_imports.py

lint: $(VENV)/.installed-lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.installed-lint
	$(VENV)/bin/mypy

format: $(VENV)/.installed-lint
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# The wheel is built from the source distribution, so a file that the latter lacks is missed here.
dist: $(VENV)/.installed-dist
	rm -rf dist
	$(PYTHON) -m build
	$(PYTHON) -m twine check --strict dist/*
	$(DIST_PYTHON) -m venv --clear $(DIST_VENV)
	$(DIST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check "$$(echo dist/*.whl)$(EXTRAS)"
	cd $(DIST_VENV) && bin/python -I "$(CURDIR)/.ci/smoke.py"

# What an installation of the wheel consists of, with versions and licences (CycloneDX).
sbom: dist
	$(PYTHON) -m cyclonedx_py environment --output-file sbom.cdx.json $(DIST_VENV)/bin/python

# Every page is executed, with warnings as errors; what has not changed since the last build is not
# run again. Open docs/_build/html/index.html afterwards.
docs: $(VENV)/.installed-docs
	$(ONE_BLAS_THREAD) $(PYTHON) -m sphinx -W --keep-going -j $(WORKERS) -b html $(ARGS) docs docs/_build/html

# The built site in the system's Chromium: errors, alt texts, narrow windows, search, screenshots.
# Without a network: ARGS="--cdn <folder of node packages with mathjax>".
docs-check: $(VENV)/.installed-docs-check
	$(PYTHON) docs/browser_check.py $(ARGS)

bench: has-data $(VENV)/.installed-test gpy
	GPY_PYTHON="$(GPY_PYTHON)" $(ONE_BLAS_THREAD) $(PYTHON) -m benchmarks --data "$(DATA)" --output $(BENCH_JSON_DIR) $(ARGS)

# Standard problems by this package and by every peer that can be had; R's need Rscript and lme4,
# glmmTMB, mgcv and jsonlite. Results replace those of the same problem and peer: for some,
# ARGS="--peers lme4 --problems linear_mixed".
peers: $(VENV)/.installed-test
	$(ONE_BLAS_THREAD) $(PYTHON) -m benchmarks.peers --environments $(PEERS_VENV) --output $(PEERS_JSON) $(ARGS)

has-data:
	@if [ ! -d "$(DATA)" ]; then \
		echo "make bench: expected a folder with housing.csv and heart.csv, found none at" >&2; \
		echo "'$(DATA)'; use make bench DATA=../shared/data" >&2; \
		exit 2; \
	fi

# Never a failure: where GPy cannot be installed, the table says so.
gpy: | $(PYTHON)
	@if [ "$(GPY_PYTHON)" = "$(GPY_VENV)/bin/python" ] && \
		! "$(GPY_PYTHON)" -W ignore -c 'import GPy' >/dev/null 2>&1; then \
		echo "Installing GPy into $(GPY_VENV) …"; \
		{ $(PYTHON) -m venv --clear "$(GPY_VENV)" && \
			"$(GPY_PYTHON)" -m pip install --quiet --disable-pip-version-check GPy; } || \
			echo "GPy cannot be installed; its rows will say so."; \
	fi

clean:
	rm -rf $(VENV) $(GPY_VENV) $(DIST_VENV) $(PEERS_VENV) .venv-gpflow sbom.cdx.json demo-output $(BENCH_JSON_DIR) \
		docs/_build docs/_generated docs/auto_gallery docs/reference/generated build dist .pytest_cache .ruff_cache .mypy_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is remade when the requirements change; the package itself is installed in editable
# form, so its code needs no reinstalling.
$(VENV)/.installed-%: pyproject.toml | $(PYTHON)
	@echo "Installing the package and what 'make $*' needs into $(VENV) (a minute the first time) …"
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	@touch $@

# The first interpreter that is new enough and can make an environment; uv, where there is one, is
# the last resort because it may have to download Python. A candidate may be a pyenv shim without
# a version behind it, hence the trial run.
$(PYTHON):
	@for python in python3 python3.13 python3.12 python3.14 /usr/bin/python3; do \
		if "$$python" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 12))' \
			>/dev/null 2>&1; then \
			echo "Making $(VENV) with $$("$$python" --version) ($$(command -v "$$python")) …"; \
			exec "$$python" -m venv --clear "$(VENV)"; \
		fi; \
	done; \
	if command -v uv >/dev/null 2>&1; then \
		echo "Making $(VENV) with uv …"; \
		exec uv venv --quiet --seed --clear --python ">=3.12" "$(VENV)"; \
	fi; \
	echo "make: expected Python 3.12 or newer with its venv module, found none of" >&2; \
	echo "python3, python3.13, python3.12, python3.14 fit, and no uv; install one of them" >&2; \
	echo "(on Debian and Ubuntu also python3-venv) and run make again." >&2; \
	exit 1
