"""Sphinx builds the site from this: ``make docs``."""

from __future__ import annotations

import inspect
import logging
import math
import os
import re
import sys
import tempfile
import uuid
import warnings
from pathlib import Path
from typing import Any

import matplotlib as mpl
from nbclient import NotebookClient

import pymc_augconj as pac

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]
# Kernels and the gallery's scripts run with one BLAS thread a process and without a display.
for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(name, "1")
mpl.use("agg")

# Pages are run two at a time, and kernels that start at once may pick the same TCP port: they
# listen on files instead, in a folder whose path is short because such paths may have 107 letters.
SOCKETS = tempfile.TemporaryDirectory(prefix="docs-", ignore_cleanup_errors=True)
create_kernel_manager = NotebookClient.create_kernel_manager


def listen_on_files(client: NotebookClient) -> Any:
    """Return a manager of a kernel that needs no port."""
    manager = create_kernel_manager(client)
    manager.transport, manager.ip = "ipc", f"{SOCKETS.name}/{uuid.uuid4().hex}"
    return manager


NotebookClient.create_kernel_manager = listen_on_files

# Once the threads are set.
import beside_nuts  # noqa: E402
import performance  # noqa: E402

project = "pymc-augconj"
author = copyright = "pymc-augconj developers"
version = release = pac.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.linkcode",
    "numpydoc",
    "myst_nb",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
# The gallery's scripts become pages in auto_gallery, each also a notebook to download.
exclude_patterns = ["_build", "_generated", "paper", "gallery", "auto_gallery/**/*.ipynb"]
root_doc = "index"
nitpicky = False

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3

# Pages are run afresh unless their sources are what they were at the last build.
nb_execution_mode = "cache"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_execution_show_tb = True
# PyMC's lines about chains, and what compilers say.
nb_output_stderr = "remove"
nb_merge_streams = False

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

html_theme = "pydata_sphinx_theme"
html_title = "pymc-augconj"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_theme_options = {
    "github_url": "https://github.com/pymc-augconj/pymc-augconj",
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 5,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "show_prev_next": True,
}
html_context = {"default_mode": "auto"}
# Pages that stand alone.
html_sidebars = {
    page: []
    for page in (
        *("start", "models", "effects", "which_engine", "performance", "peers", "troubleshooting"),
        *("contributing", "security", "changelog"),
    )
}

sphinx_gallery_conf = {
    "examples_dirs": ["gallery"],
    "gallery_dirs": ["auto_gallery"],
    "filename_pattern": r"\.py$",
    # As many scripts at once as pages: -j.
    "parallel": True,
    "image_scrapers": ("matplotlib", beside_nuts.scrape),
    "abort_on_example_error": False,
    "min_reported_time": 1e9,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "plot_gallery": True,
    "reset_modules": ("matplotlib",),
    "remove_config_comments": True,
    # What a script prints, and no more.
    "capture_repr": (),
    "write_computation_times": False,
}
# sphinx-gallery gives Sphinx a function, which cannot be kept from build to build.
suppress_warnings = ["config.cache"]

logging.getLogger("pymc").setLevel(logging.ERROR)
logging.getLogger("pymc.sampling").setLevel(logging.ERROR)
# Matplotlib says so of every figure that a page shows.
warnings.filterwarnings("ignore", message=".*FigureCanvasAgg is non-interactive.*")


def linkcode_resolve(domain: str, info: dict[str, str]) -> str | None:
    """Return the address of an object's source."""
    if domain != "py" or not info["module"]:
        return None
    found = sys.modules.get(info["module"])
    try:
        for part in info["fullname"].split("."):
            found = getattr(found, part)
        found = inspect.unwrap(found)
        path = Path(inspect.getsourcefile(found) or "").resolve().relative_to(ROOT)
        lines, first = inspect.getsourcelines(found)
    except (AttributeError, TypeError, ValueError, OSError):
        return None
    base = "https://github.com/pymc-augconj/pymc-augconj/blob/main"
    return f"{base}/{path.as_posix()}#L{first}-L{first + len(lines) - 1}"


def describe_thumbnails(app: Any, page: str, source: list[str]) -> None:
    """Give thumbnails of the gallery the titles of their pages as texts: they come without."""
    if page.startswith("auto_gallery/") and page.endswith("index"):
        source[0] = re.sub(
            r"(:alt:)(\n\n  :doc:.*?sphx-glr-thumbnail-title\">)(.*?)(</div>)",
            r"\1 \3\2\3\4",
            source[0],
            flags=re.DOTALL,
        )


def spread(app: Any, env: Any, docnames: list[str]) -> None:
    """Reorder pages so that the long ones, neighbours by name, go to different processes."""
    step = max(1, math.isqrt(len(docnames)))
    docnames[:] = [name for first in range(step) for name in docnames[first::step]]


def setup(app: Any) -> None:
    """Write the tables of the page on performance once the gallery has been measured."""
    app.connect("env-before-read-docs", spread)
    app.connect("source-read", describe_thumbnails)
    app.connect(
        "builder-inited",
        lambda _: performance.write(HERE / "_generated", HERE / "auto_gallery"),
        priority=900,
    )
