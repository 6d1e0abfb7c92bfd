"""The site's pages keep up with the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pymc_augconj as pac

DOCS = Path(__file__).parents[1] / "docs"
EXECUTED = [
    path
    for path in sorted(DOCS.rglob("*.md"))
    if "_build" not in path.parts and "{code-cell}" in path.read_text(encoding="utf-8")
]
SCRIPTS = sorted((DOCS / "gallery").rglob("*.py"))


def test_reference_lists_every_public_name():
    page = (DOCS / "reference" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^   (\w+)$", page, flags=re.MULTILINE)
    assert sorted([*listed, "__version__"]) == sorted(pac.__all__)


@pytest.mark.parametrize("path", EXECUTED, ids=lambda path: path.stem)
def test_executed_pages_assert_and_describe_their_figures(path):
    cells = re.findall(r"```\{code-cell\}.*?\n(.*?)```", path.read_text(encoding="utf-8"), re.S)
    assert any(re.search(r"^ *assert |assert_", cell, re.MULTILINE) for cell in cells)
    for cell in cells:
        if re.search(r"plt\.(subplots|figure)|plot_", cell):
            assert "    alt: " in cell, f"expected an alt text of the figure in\n{cell}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_gallery_scripts_assert_and_title_their_figures(path):
    source = path.read_text(encoding="utf-8")
    compile(source, str(path), "exec")
    assert re.search(r"^ *assert ", source, re.MULTILINE)
    # sphinx-gallery takes the alt text from the title.
    assert source.count("plt.subplots(") <= len(re.findall(r"title", source.partition('"""\n')[2]))
