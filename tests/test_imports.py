"""Imports go one way through the package's folders, and each folder's docstring lists its modules.

The sources are read with :mod:`ast`, not imported, so an import inside a function or under
``TYPE_CHECKING`` counts as well.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "pymc_augconj"
ROOT = Path(__file__).parents[1] / PACKAGE

# A folder may import from itself and from any folder of an earlier line; folders on one line do
# not import each other. A module of the package's root counts as a folder.
ORDER: tuple[tuple[str, ...], ...] = (
    ("errors", "typing"),
    ("linalg", "point", "quadrature", "parallel"),
    ("block",),
    ("auxiliary", "gaussian"),
    ("likelihoods",),
    ("model",),
    ("plan",),
    ("latents", "prediction"),
    ("python_mode",),
    ("distributions",),
    ("recognition",),
    ("engines",),
    ("results",),
    ("api",),
    ("__init__",),
    ("__main__",),
)
RANK = {folder: rank for rank, folders in enumerate(ORDER) for folder in folders}

# Who may import what from outside; a module is matched with its submodules.
ARVIZ = ("xarray", "arviz", "arviz_base", "arviz_stats", "arviz_plots")
RESERVED: dict[str, tuple[str, ...]] = {
    "pymc": ("distributions", "recognition", "api"),
    "pymc.step_methods": ("api",),
    "pymc.sampling": ("api",),
    "pytensor": ("python_mode", "distributions", "recognition", "api"),
    "pytensor.graph": ("python_mode", "distributions", "recognition"),
} | dict.fromkeys(ARVIZ, ("results",))


def folder_of(module: str) -> str:
    """Return the folder that a module of the package lies in: ``a.b.c`` lies in ``b``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported_names(source: str, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute dotted name) for every import in ``source``.

    ``from a import b`` gives ``a.b``, which is right for a submodule b and harmless for a
    function b: both lie in a's folder, or are a folder.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                kept = len(parents) - node.level + is_package
                base = ".".join([*parents[:kept], *filter(None, [base])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Return a sentence for every import of ``source`` that goes against the order."""
    folder = folder_of(module)
    if folder not in RANK:
        return [f"{module}: expected one of the folders {list(RANK)}, found {folder!r}"]
    found = []
    for line, name in imported_names(source, module, is_package=is_package):
        where = f"{module}, line {line}"
        if name == PACKAGE or name.startswith(f"{PACKAGE}."):
            target = folder_of(name)
            # A name taken from the package itself rather than from one of its folders.
            target = target if target in RANK else "__init__"
            if target != folder and RANK[target] >= RANK[folder]:
                found.append(f"{where}: {folder} must not import {target} ({name})")
        else:
            for reserved, folders in RESERVED.items():
                of_it = name == reserved or name.startswith(f"{reserved}.")
                if of_it and folder not in folders:
                    found.append(f"{where}: only {', '.join(folders)} may import {reserved}")
    return found


def circle(imports: Mapping[str, set[str]]) -> list[str]:
    """Return modules that import one another in a circle, or nothing."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def unlisted(docstring: str, names: set[str]) -> set[str]:
    """Return the names that are not listed in ``docstring``, and listed ones that do not exist.

    A line of a list begins with the name as a literal: two backquotes on each side.
    """
    return names ^ set(re.findall(r"^``(\w+)``", docstring, re.MULTILINE))


def modules() -> dict[str, Path]:
    """Return every module of the package, by its dotted name."""
    paths = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


MODULES = modules()
PACKAGES = [name for name, path in MODULES.items() if path.name == "__init__.py"]


def imports_of(module: str) -> set[str]:
    """Return the modules of the package that ``module`` imports."""
    path = MODULES[module]
    source = path.read_text(encoding="utf-8")
    found = set()
    for _, name in imported_names(source, module, is_package=path.name == "__init__.py"):
        target = name if name in MODULES else name.rpartition(".")[0]
        if target in MODULES and target != module:
            found.add(target)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module):
    path = MODULES[module]
    source = path.read_text(encoding="utf-8")
    found = violations(source, module, is_package=path.name == "__init__.py")
    assert not found, "\n".join(found)


def test_no_circle_of_modules():
    assert circle({module: imports_of(module) for module in MODULES}) == []


@pytest.mark.parametrize("parent", ["recognition", "engines", "auxiliary", "results"])
def test_no_circle_of_folders(parent):
    """Modules beside the folders, such as a registry, may be on either side of these."""
    prefix = f"{PACKAGE}.{parent}."

    def inner(module: str) -> str | None:
        parts = module.removeprefix(prefix).split(".")
        return parts[0] if module.startswith(prefix) and len(parts) > 1 else None

    graph: dict[str, set[str]] = {}
    for module in MODULES:
        folder = inner(module)
        if folder is not None:
            targets = {inner(target) for target in imports_of(module)} - {None, folder}
            graph.setdefault(folder, set()).update(targets)
    assert circle(graph) == []


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_docstring_lists_the_modules(package):
    folder = MODULES[package].parent
    names = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    names |= {path.parent.name for path in folder.glob("*/__init__.py")}
    docstring = ast.get_docstring(ast.parse(MODULES[package].read_text(encoding="utf-8"))) or ""
    assert not unlisted(docstring, names)


def test_every_folder_is_read():
    """A wrong path would make the tests above pass without reading anything."""
    assert {folder_of(module) for module in MODULES} == set(RANK)


def test_circles_and_unlisted_modules_are_found():
    """Negative controls."""
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert unlisted("A list.\n\n``a``  this\n``b``  that", {"a", "c"}) == {"b", "c"}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gaussian.a", "from pymc_augconj.engines import gibbs"),
        ("gaussian.a", "import pymc_augconj.auxiliary.polya_gamma"),
        ("auxiliary.a", "from ..gaussian import weight_space"),
        ("auxiliary.a", "from .. import likelihoods"),
        ("likelihoods.a", "def f():\n    from ..model import LatentGaussianModel"),
        ("likelihoods.a", "import pymc as pm"),
        ("model", "from .recognition import recognizer"),
        ("model", "from . import recognition"),
        ("recognition.a", "from pymc_augconj.engines.gibbs import sampler"),
        ("engines.a", "from pytensor.tensor import exp"),
        ("engines.a", "if TYPE_CHECKING:\n    from ..results.comparison.fits import Fits"),
        ("recognition.a", "import arviz_stats"),
        ("recognition.a", "from pymc.step_methods.slicer import Slice"),
        ("results.a", "from pymc_augconj.api.step import AugmentedGibbs"),
        ("results.a", "from pymc_augconj import recognize as r, sample"),
        ("api.step", "from pytensor.graph.traversal import ancestors"),
        ("api.step", "from pytensor import graph"),
        ("api.step", "import arviz as az"),
        ("api.step", "from pymc_augconj import AugmentedGibbs"),
        ("engines.fit", "from pymc import step_methods"),
        ("errors", "from . import auxiliary"),
        ("nowhere", "import numpy"),
    ],
)
def test_import_against_the_order_is_found(module, source):
    """Negative control: each of these must fail."""
    assert len(violations(source, f"{PACKAGE}.{module}")) >= 1


def test_package_docstring_module_is_resolved_from_its_own_folder():
    assert violations("from ..engines import gibbs", f"{PACKAGE}.gaussian", is_package=True)
    assert not violations("from . import weight_space", f"{PACKAGE}.gaussian", is_package=True)
    assert not violations("from .api.step import A", PACKAGE, is_package=True)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gaussian.a", "from pymc_augconj.errors import DataError\nfrom .sites import merge"),
        ("likelihoods.a", "from pymc_augconj.auxiliary.polya_gamma import kernels"),
        ("engines.a", "from pymc_augconj.model import LatentGaussianModel\nimport numba"),
        ("recognition.a", "import pymc\nfrom pytensor.graph.basic import Variable"),
        ("results.a", "import arviz as az\nimport xarray as xr"),
        ("api.sample", "from .step import AugmentedGibbs\nimport pymc as pm"),
        ("api.step", "from pymc.step_methods.compound import BlockedStep\nimport pytensor.tensor"),
    ],
)
def test_import_along_the_order_passes(module, source):
    assert violations(source, f"{PACKAGE}.{module}") == []
