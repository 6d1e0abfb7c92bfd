"""The site's pages keep up with the package."""

from __future__ import annotations

import ast
import importlib.util
import pickle
import re
from pathlib import Path

import pytest

import pymc_augconj as pac
from benchmarks.harness import Row, Settings, write_json
from pymc_augconj import errors

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EXECUTED = [
    path
    for path in sorted(DOCS.rglob("*.md"))
    if "_build" not in path.parts and "{code-cell}" in path.read_text(encoding="utf-8")
]
SCRIPTS = sorted((DOCS / "gallery").rglob("*.py"))


def cells_of(page):
    return re.findall(r"```\{code-cell\}.*?\n(.*?)```", page, re.S)


def test_reference_lists_every_public_name():
    page = (DOCS / "reference" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^   (\w+)$", page, flags=re.MULTILINE)
    assert sorted([*listed, "__version__"]) == sorted(pac.__all__)


@pytest.mark.parametrize("path", EXECUTED, ids=lambda path: path.stem)
def test_executed_pages_assert_and_describe_their_figures(path):
    cells = cells_of(path.read_text(encoding="utf-8"))
    assert any(re.search(r"^ *assert |assert_", cell, re.MULTILINE) for cell in cells)
    for cell in cells:
        if re.search(r"plt\.(subplots|figure)|plot_", cell):
            assert "    alt: " in cell, f"expected an alt text of the figure in\n{cell}"


@pytest.mark.parametrize("path", [*EXECUTED, *SCRIPTS], ids=lambda path: path.stem)
def test_examples_of_refusals_end_the_build_where_nothing_is_refused(path):
    text = path.read_text(encoding="utf-8")
    cells = [text] if path.suffix == ".py" else cells_of(text)
    for cell in cells:
        code = re.sub(r"\A---\n.*?\n---\n", "", cell, flags=re.S)
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Try):
                assert any(isinstance(last, ast.Raise) for last in node.orelse), cell


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_gallery_scripts_assert_and_title_their_figures(path):
    source = path.read_text(encoding="utf-8")
    compile(source, str(path), "exec")
    assert re.search(r"^ *assert ", source, re.MULTILINE)
    # sphinx-gallery takes the alt text from the title.
    assert source.count("plt.subplots(") <= len(re.findall(r"title", source.partition('"""\n')[2]))


def test_readme_is_short_and_its_links_lead_somewhere():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count("\n") <= 75
    assert re.search(r"^make demo .*\nmake test ", readme, re.MULTILINE)
    links = re.findall(r"\]\(([^)]+)\)", readme)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_error_links_to_a_section_of_the_guide():
    guide = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", guide, re.MULTILINE)
    sections = {heading.lower().replace(" ", "-") for heading in headings}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert len(kinds) > 5
    for kind in kinds:
        assert kind.section in sections
        assert kind("no").__notes__[0].endswith(f"docs/troubleshooting.md#{kind.section}")
    assert pickle.loads(pickle.dumps(kinds[0]("no"))).__notes__ == kinds[0]("no").__notes__


@pytest.fixture(scope="module")
def performance():
    spec = importlib.util.spec_from_file_location("performance", DOCS / "performance.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_of_benchmarks(path, ours, *, quick=False):
    """Write what ``make bench`` writes, with one row beside NUTS and one with an absolute bar."""
    rows = [
        Row("coins: least ESS/s", ours, 5.0, "ESS/s", 3.0, "at least", {"long": [0.0] * 1000}),
        Row("a step", 2.0, None, "ms", 1.0, "at most"),
    ]
    write_json(rows, Settings(path.parent, quick), path)
    return path


def test_each_measurement_is_shown_as_last_made(performance, tmp_path, monkeypatch):
    monkeypatch.setattr(performance, "RUNS", tmp_path / "kept")
    for day, ours in ((1, 20.0), (2, 40.0)):
        kept = performance.keep(run_of_benchmarks(tmp_path / f"2026010{day}-000000.json", ours))
        assert len(kept.read_text()) < 2000
    (nuts, step), machines = performance.read_rows(performance.RUNS.iterdir())
    assert len(machines) == 2
    assert "| coins | 40 | 5 | **8** | – | 2 |" in performance.rate_table([nuts])
    assert "| a step | 2 ms | – | – | ≤ 1 | **no** | 2 |" in performance.other_table([step])
    (tmp_path / "gallery").mkdir()
    performance.write(tmp_path / "parts", tmp_path / "gallery")
    assert (tmp_path / "parts" / "ratios.png").stat().st_size > 1000
    assert "| coins | 40 |" in (tmp_path / "parts" / "rates.md").read_text(encoding="utf-8")


def test_quick_runs_are_not_shown(performance, tmp_path):
    with pytest.raises(SystemExit, match="--quick"):
        performance.keep(run_of_benchmarks(tmp_path / "20260101-000000.json", 1.0, quick=True))


def test_kept_results_are_those_of_benchmarks(performance):
    rows, _ = performance.read_rows(performance.RUNS.glob("*.json"))
    for row in rows:
        if row["floor"]:
            assert row["ratio"] == pytest.approx(row["ours"] / row["floor"])
