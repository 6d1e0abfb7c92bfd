"""What pyproject.toml declares is what the package imports."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pymc_augconj as pac

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def imported_distributions(sources: list[str]) -> set[str]:
    """Return the distributions that ``sources`` import, the standard library left out."""
    names: set[str] = set()
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(str(node.module).partition(".")[0])
    names -= {"pymc_augconj", *sys.stdlib_module_names}
    return {name.replace("_", "-") for name in names}


def declared_distributions(lines: list[str]) -> set[str]:
    """Return the names of declared requirements, without versions and extras."""
    return {re.split(r"[^A-Za-z0-9_-]", line)[0] for line in lines}


# Files that need an extra, by its name.
OPTIONAL = {"dask": "parallel/dask*.py", "zarr": "results/draw_store.py"}


def test_dependencies_are_the_imported_ones():
    package = ROOT / "pymc_augconj"
    optional = {extra: set(package.glob(pattern)) for extra, pattern in OPTIONAL.items()}
    files = set(package.rglob("*.py")).difference(*optional.values())
    sources = [path.read_text(encoding="utf-8") for path in files]
    required = declared_distributions(PROJECT["dependencies"])
    assert required == imported_distributions(sources)
    for extra, own in optional.items():
        declared = declared_distributions(PROJECT["optional-dependencies"][extra])
        of_extra = imported_distributions([path.read_text(encoding="utf-8") for path in own])
        assert declared == of_extra - required


def test_undeclared_import_is_found():
    """Negative control."""
    source = "import os.path\ndef f():\n    from some_library.part import g\n    from . import h"
    assert imported_distributions([source]) == {"some-library"}


def test_version_is_in_the_changelog():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {pac.__version__}" in changelog


def test_the_conda_recipe_has_the_same_requirements():
    recipe = (ROOT / "packaging" / "conda-forge.yaml").read_text(encoding="utf-8")
    _, _, run = recipe.partition("  run:\n")
    found = re.findall(r"^    - ([a-z-]+) ([><=].*)$", run.partition("tests:")[0], re.MULTILINE)
    # Without what only applications need.
    smaller = {"pymc-base": "pymc", "matplotlib-base": "matplotlib"}
    listed = {smaller.get(name, name) + version for name, version in found if name != "python"}
    assert listed == set(PROJECT["dependencies"])
