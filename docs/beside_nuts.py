"""Measures each model of the gallery beside NUTS while the site is built.

Sphinx-gallery calls :func:`scrape` after each block of a script, as it calls what collects figures.
After the last block the script's model is sampled by NUTS too, and the page gets a line about it.
Two scripts run at a time, each in its own process, so both samplers share the cores with another.
"""

from __future__ import annotations

import functools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import nutpie
import pymc as pm
from performance import number
from sphinx_gallery.py_source_parser import split_code_and_text_blocks

import pymc_augconj as pac
from benchmarks.sampling import diagnose

#: The last call of ``pac.sample``: the model, its draws, and the seconds from call to return.
_last: tuple[pm.Model, Any, float] | None = None
_sample = pac.sample

DRAWS: dict[str, Any] = {"draws": 200, "tune": 300, "chains": 2, "cores": 2, "seed": 1}
LIMIT = 20.0  # seconds of sampling, after which NUTS is stopped


@functools.wraps(_sample)
def _timed_sample(*arguments: Any, **options: Any) -> Any:
    global _last
    model = pm.modelcontext(options.get("model"))
    start = time.perf_counter()
    idata = _sample(*arguments, **options)
    _last = model, idata, time.perf_counter() - start
    return idata


pac.sample = _timed_sample


def run_nuts(model: pm.Model) -> dict[str, float]:
    """Sample with nutpie; return seconds of compilation and sampling, least ESS and R-hat."""
    start = time.perf_counter()
    compiled = nutpie.compile_pymc_model(model)
    ready = time.perf_counter()
    running = nutpie.sample(
        compiled, **DRAWS, blocking=False, progress_bar=False, save_warmup=False
    )
    try:
        trace = running.wait(timeout=LIMIT)
        seconds = time.perf_counter() - ready
        ess, r_hat = diagnose(trace, [v.name for v in model.free_RVs])
    except TimeoutError:
        running.cancel()
        seconds, ess, r_hat = LIMIT, {"": 0.0}, np.inf
    return {
        "compilation": ready - start,
        "sampling": seconds,
        "ess": min(ess.values()),
        "r_hat": r_hat,
    }


def measure(model: pm.Model, idata: Any, seconds: float) -> dict[str, Any]:
    """Return what both samplers achieved, and the quotients of least ESS a second."""
    names = [v.name for v in model.free_RVs]
    ess = min(diagnose(idata, names)[0].values())
    sampling = float(idata["posterior"].attrs["sampling_time"])
    nuts = run_nuts(model)
    result: dict[str, Any] = {"seconds": seconds, "sampling": sampling, "ess": ess, "nuts": nuts}
    if nuts["ess"] > 0:
        times = ess / nuts["ess"]
        result["ratio"] = times * (nuts["compilation"] + nuts["sampling"]) / seconds
        result["ratio_of_sampling"] = times * nuts["sampling"] / sampling
    return result


def sentence(result: dict[str, Any]) -> str:
    """Return the page's line."""
    nuts = result["nuts"]
    ours = (
        "Smallest effective sample size of all variables, two chains: "
        f"{result['ess']:.0f} in {result['seconds']:.1f} s, of which {result['sampling']:.1f} s "
        "are sampling"
    )
    if "ratio" not in result:
        return f"**× NUTS:** {ours}; NUTS (nutpie) was stopped after {nuts['sampling']:.0f} s."
    mixed = "" if nuts["r_hat"] < 1.05 else f", which had not mixed (R-hat {nuts['r_hat']:.2f}),"
    return (
        f"**× NUTS: {number(result['ratio'])}**, and {number(result['ratio_of_sampling'])} when "
        f"sampling alone is timed. {ours}; NUTS (nutpie){mixed} {nuts['ess']:.0f} in "
        f"{nuts['compilation'] + nuts['sampling']:.1f} s, of which {nuts['sampling']:.1f} s. "
        "Measured when this page was built, another one beside it."
    )


def scrape(block: tuple[str, str, int], block_vars: dict[str, Any], gallery_conf: Any) -> str:
    """Return the line of a page after its last block, and nothing after the others."""
    global _last
    blocks = split_code_and_text_blocks(block_vars["src_file"])[1]
    if block[2] != max(line for kind, _, line in blocks if kind == "code") or _last is None:
        return ""
    (model, idata, _), last, _last = _last, _last, None
    if not {v.name for v in model.free_RVs}.issubset(idata["posterior"]):
        # Variables were added for predictions, which NUTS would sample too.
        return ""
    result = measure(*last)
    target = Path(block_vars["target_file"])
    target.with_suffix(".nuts.json").write_text(json.dumps(result))
    return f"\n\n{sentence(result)}\n\n"
