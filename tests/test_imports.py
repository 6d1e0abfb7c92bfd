"""Imports go one way through the package's rooms, which CONTRIBUTING.md describes.

The sources are read with :mod:`ast`, not imported, so an import inside a function or under
``TYPE_CHECKING`` counts as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "pymc_augconj"
ROOT = Path(__file__).parents[1] / PACKAGE

# A room may import from itself and from any room of an earlier line; rooms on one line do not
# import each other, except in the front end, whose modules build on one another.
FRONT_END = ("updates", "step", "sample", "inducing", "fit_progress", "fit", "predict", "augment")
ORDER: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("auxiliary", "gaussian"),
    ("likelihoods",),
    ("model",),
    ("engines",),
    ("python_mode",),
    ("distributions",),
    ("recognize",),
    ("results",),
    FRONT_END,
    ("__init__",),
)
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}

# Who may import what from outside; a module is matched with its submodules.
ARVIZ = ("xarray", "arviz", "arviz_base", "arviz_stats", "arviz_plots")
RESERVED: dict[str, tuple[str, ...]] = {
    "pymc": ("distributions", "recognize", *FRONT_END),
    "pymc.step_methods": ("updates", "step", "sample"),
    "pymc.sampling": ("step", "sample"),
    "pytensor": ("python_mode", "distributions", "recognize", *FRONT_END),
    "pytensor.graph": ("python_mode", "distributions", "recognize"),
} | dict.fromkeys(ARVIZ, ("results",))


def room_of(module: str) -> str:
    """Return the room that a module of the package lies in: ``a.b.c`` lies in ``b``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported_modules(source: str, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute dotted name) for every import in ``source``.

    ``from a import b`` gives ``a.b``, which is right for a submodule b and harmless for a
    function b: both lie in a's room, or are a room.
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
    room = room_of(module)
    if room not in RANK:
        return [f"{module}: expected one of the rooms {list(RANK)}, found {room!r}"]
    found = []
    for line, name in imported_modules(source, module, is_package=is_package):
        where = f"{module}, line {line}"
        if name == PACKAGE or name.startswith(f"{PACKAGE}."):
            target = room_of(name)
            # A name taken from the package itself rather than from one of its rooms.
            target = target if target in RANK else "__init__"
            same = target == room or {target, room} <= set(FRONT_END)
            if not same and RANK[target] >= RANK[room]:
                found.append(f"{where}: {room} must not import {target} ({name})")
        else:
            for reserved, rooms in RESERVED.items():
                if (name == reserved or name.startswith(f"{reserved}.")) and room not in rooms:
                    found.append(f"{where}: only {', '.join(rooms)} may import {reserved} ({name})")
    return found


def modules() -> dict[str, Path]:
    """Return every module of the package, by its dotted name."""
    paths = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return paths


MODULES = modules()


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(module):
    path = MODULES[module]
    source = path.read_text(encoding="utf-8")
    found = violations(source, module, is_package=path.name == "__init__.py")
    assert not found, "\n".join(found)


def test_every_room_is_read():
    """A wrong folder would make the test above pass without reading anything."""
    rooms = {room_of(module) for module in MODULES}
    assert {"__init__", "errors", "auxiliary", "gaussian", "likelihoods", "results"} <= rooms


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gaussian.a", "from pymc_augconj.engines import gibbs"),
        ("gaussian.a", "import pymc_augconj.auxiliary.polya_gamma.distribution"),
        ("auxiliary.a", "from ..gaussian import quadrature"),
        ("auxiliary.a", "from .. import likelihoods"),
        ("likelihoods.a", "def f():\n    from ..model import LatentGaussianModel"),
        ("likelihoods.a", "import pymc as pm"),
        ("model", "from .recognize import recognize"),
        ("model", "from . import recognize"),
        ("engines.a", "from pytensor.tensor import exp"),
        ("engines.a", "if TYPE_CHECKING:\n    from ..results.fits import Fits"),
        ("recognize.a", "import arviz_stats"),
        ("recognize.a", "from pymc.step_methods.slicer import Slice"),
        ("results.a", "from ..step import AugmentedGibbs"),
        ("results.a", "from pymc_augconj import recognize as r, sample"),
        ("step", "from pytensor.graph.traversal import ancestors"),
        ("step", "from pytensor import graph"),
        ("step", "import arviz as az"),
        ("step", "from pymc_augconj import AugmentedGibbs"),
        ("fit", "from pymc import step_methods"),
        ("errors", "from . import auxiliary"),
        ("nowhere", "import numpy"),
    ],
)
def test_import_against_the_order_is_found(module, source):
    """Negative control: each of these must fail."""
    assert len(violations(source, f"{PACKAGE}.{module}")) >= 1


def test_package_docstring_module_is_resolved_from_its_own_folder():
    assert violations("from ..engines import gibbs", f"{PACKAGE}.gaussian", is_package=True)
    assert not violations("from . import cholesky", f"{PACKAGE}.gaussian", is_package=True)
    assert not violations("from .step import A", PACKAGE, is_package=True)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gaussian.a", "from ..errors import DataError\nfrom .cholesky import factorize"),
        ("likelihoods.a", "from ..auxiliary.polya_gamma import random_polya_gamma"),
        ("engines.a", "from ..model import LatentGaussianModel\nimport numba"),
        ("recognize.a", "import pymc\nfrom pytensor.graph.basic import Variable"),
        ("results.a", "import arviz as az\nimport xarray as xr"),
        ("sample", "from .step import AugmentedGibbs\nimport pymc as pm"),
        ("step", "from pymc.step_methods.compound import BlockedStep\nimport pytensor.tensor"),
    ],
)
def test_import_along_the_order_passes(module, source):
    assert violations(source, f"{PACKAGE}.{module}") == []
