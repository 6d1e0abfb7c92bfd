"""Tables and figures of the page on performance, from the JSON that ``make bench`` writes.

The site has results of several runs; each measurement is shown as it was last made. To add a run::

    python docs/performance.py benchmark-output/20261122-120000.json
"""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

HERE = Path(__file__).parent
RUNS = HERE / "benchmarks"
KEPT = ("benchmark", "ours", "floor", "unit", "ratio", "bar", "bar_is", "met")
SIGNS = {"at least": "≥", "at most": "≤"}
#: What the figure and the first table show; the other units are in the second.
RATE = "ESS/s"
_RATE_SUFFIX = ": least ESS/s"


def keep(path: Path) -> Path:
    """Copy what the page needs of a run to ``docs/benchmarks``; return the new file."""
    record = json.loads(path.read_text(encoding="utf-8"))
    if record["settings"]["quick"]:
        raise SystemExit(f"{path}: expected a whole run, found one with --quick")
    rows = []
    for row in record["rows"]:
        alone = row["details"].get("ratio_without_compilation")
        rows.append({key: row[key] for key in KEPT} | {"sampling_alone": alone})
    target = RUNS / path.name
    target.parent.mkdir(exist_ok=True)
    text = json.dumps({"machine": record["machine"], "rows": rows}, indent=1, ensure_ascii=False)
    target.write_text(text + "\n", encoding="utf-8")
    return target


def read_rows(paths: Iterable[Path]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows, each the last of its name and with its ``run``, and the machines of runs."""
    latest: dict[str, dict[str, Any]] = {}
    machines = []
    for path in sorted(paths, key=lambda path: path.name):
        record = json.loads(path.read_text(encoding="utf-8"))
        machines.append(record["machine"])
        for row in record["rows"]:
            latest[row["benchmark"]] = row | {"run": len(machines)}
    return list(latest.values()), machines


def number(value: float | None) -> str:
    """Return three digits, or all before the point."""
    if value is None:
        return "–"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] + ["--:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rate_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of effective draws a second beside NUTS."""
    header = ("model", "this package", "NUTS", "ratio", "sampling alone", "run")
    return _table(
        header,
        (
            (
                row["benchmark"].removesuffix(_RATE_SUFFIX),
                number(row["ours"]),
                number(row["floor"]),
                f"**{number(row['ratio'])}**",
                number(row["sampling_alone"]),
                str(row["run"]),
            )
            for row in rows
        ),
    )


def other_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of everything else, with its bars."""
    return _table(
        ("measured", "ours", "theirs, or floor", "ratio", "bar", "met", "run"),
        (
            (
                row["benchmark"],
                f"{number(row['ours'])} {row['unit']}",
                "–" if row["floor"] is None else f"{number(row['floor'])} {row['unit']}",
                number(row["ratio"]),
                f"{SIGNS[row['bar_is']]} {row['bar']:g}",
                "yes" if row["met"] else "**no**",
                str(row["run"]),
            )
            for row in rows
        ),
    )


def machine_list(machines: Sequence[dict[str, Any]]) -> str:
    """Return one line for each run."""
    lines = []
    for i, machine in enumerate(machines, start=1):
        versions = ", ".join(f"{k} {v}" for k, v in machine["packages"].items() if v)
        notes = [f"load {machine['load'][0]:.1f} at its end"] if machine["load"] else []
        notes += [machine["note"]] if "note" in machine else []
        lines.append(
            f"* Run {i}, {machine['time'][:16].replace('T', ' ')}: {machine['processor']}, "
            f"{machine['cores_used']} of {machine['cores']} cores; Python {machine['python']}, "
            f"{versions}; {'; '.join(notes)}."
        )
    return "\n".join(lines)


def draw_ratios(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the ratios of effective draws a second, end to end and of sampling alone."""
    rows = sorted((row for row in rows if row["ratio"]), key=lambda row: row["ratio"])
    place, ratios = np.arange(len(rows)), np.array([row["ratio"] for row in rows])
    fig, ax = plt.subplots(figsize=(7, 1.2 + 0.34 * len(rows)), layout="constrained")
    # A bar begins where both are equally fast; its name is above it.
    ax.barh(place, ratios - 1, 0.4, left=1, color="C0", alpha=0.6, label="end to end")
    alone = [row["sampling_alone"] or np.nan for row in rows]
    ax.plot(alone, place, "o", color="C1", label="sampling alone")
    ax.axvline(1, color="k", lw=0.8)
    for y, row in zip(place, rows, strict=True):
        name = row["benchmark"].removesuffix(_RATE_SUFFIX)
        at, white = ax.get_yaxis_transform(), {"fc": "w", "ec": "none", "pad": 0.5}
        ax.text(0.01, y + 0.22, name, transform=at, fontsize=8, va="bottom", bbox=white)
    ax.set(xscale="log", yticks=[], ylim=(-0.6, len(rows)))
    ax.set_xlabel("times the effective draws a second of NUTS")
    fig.legend(loc="outside upper center", ncols=2)
    fig.savefig(path, dpi=120)
    plt.close(fig)


def gallery_table(folder: Path) -> str:
    """Return the table of the gallery's models, measured when the site was built."""
    rows = []
    for path in sorted(folder.rglob("*.nuts.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        page = path.name.removesuffix(".nuts.json")
        address = f"/{path.parent.relative_to(HERE).as_posix()}/{page}.rst"
        nuts = found["nuts"]
        rows.append(
            (
                f"[{page.replace('_', ' ')}]({address})",
                number(found["ess"] / found["seconds"]),
                number(nuts["ess"] / (nuts["compilation"] + nuts["sampling"])),
                f"**{number(found.get('ratio'))}**",
                number(found.get("ratio_of_sampling")),
            )
        )
    return _table(("model", "this package", "NUTS", "ratio", "sampling alone"), rows)


def peer_table(path: Path) -> str:
    """Return the table of peers: processor seconds, and errors against a long exact run."""
    record = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for problem, answers in record["answers"].items():
        mean, sd = (np.array(answers["reference"][key]) for key in ("mean", "sd"))
        solved = {peer: answer for peer, answer in answers.items() if peer != "reference"}
        for peer in sorted(solved, key=lambda peer: solved[peer].get("seconds", np.inf)):
            answer = solved[peer]
            title = record["titles"][problem]
            name = f"**{peer}**" if peer.startswith("pymc-augconj") else peer
            if "missing" in answer:
                rows.append((title, name, html.escape(answer["missing"]), "–", "–"))
                continue
            error = np.abs(np.array(answer["mean"]) - mean) / sd
            ratio = np.array(answer["sd"]) / sd
            rows.append(
                (
                    title,
                    name,
                    number(answer["seconds"]),
                    f"{error.max():.2f}",
                    f"{ratio.min():.2f} to {ratio.max():.2f}",
                )
            )
    return _table(("problem", "by", "seconds", "largest error", "deviations"), rows)


def peer_machine(path: Path) -> str:
    """Return the machine, the peers' versions, and how exact the exact runs are."""
    record = json.loads(path.read_text(encoding="utf-8"))
    answers = record["answers"].values()
    versions = {
        peer: answer["version"]
        for of in answers
        for peer, answer in of.items()
        if "version" in answer and not peer.startswith(("pymc-augconj", "reference"))
    }
    least = min(of["reference"]["ess"] for of in answers)
    listed = ", ".join(f"{peer} {version}" for peer, version in sorted(versions.items()))
    return (
        f"{machine_list([record['machine']])}\n* Peers: {listed}.\n"
        f"* Least effective sample size of the exact runs: {number(least)}, so that each "
        f"mean has a Monte Carlo error of at most {1 / np.sqrt(least):.2f} standard deviations."
    )


def write(folder: Path, gallery: Path) -> None:
    """Write the parts that ``performance.md`` and ``peers.md`` include, and their figure."""
    folder.mkdir(exist_ok=True)
    rows, machines = read_rows(RUNS.glob("*.json"))
    rates = [row for row in rows if row["unit"] == RATE and row["floor"] is not None]
    others = [row for row in rows if row not in rates]
    draw_ratios(rates, folder / "ratios.png")
    parts = {
        "rates": rate_table(rates),
        "others": other_table(others),
        "machines": machine_list(machines),
        "gallery": gallery_table(gallery),
        "peers": peer_table(HERE / "peers.json"),
        "peers_machine": peer_machine(HERE / "peers.json"),
    }
    for name, text in parts.items():
        (folder / f"{name}.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(keep(Path(argument)))
