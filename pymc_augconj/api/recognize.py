"""``pac.recognize``: how a model will be sampled; ``pac.advise``: what each engine costs on it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pymc.model import Model, modelcontext
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.choice import cheapest_solver
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.recognition.recognizer import read_model

from .fit import fit
from .report import RecognitionReport, in_best_form, report_of
from .sample import sample
from .step import PythonGibbs
from .step_choices import alternating


def recognize(
    model: Model | None = None,
    *,
    vars: Sequence[TensorVariable] | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    pilot: float | None = None,
) -> RecognitionReport:
    """Parse a PyMC model as a latent Gaussian model with augmented likelihoods.

    A likelihood without an augmentation enters by its density, given one affine predictor or
    several (a mean and a standard deviation, or one predictor for each class). The density is
    enough for :func:`~pymc_augconj.sample`, which approximates it by held Gaussian sites and
    corrects for them, and for the engines ``"vgp"``, ``"ep"``, ``"qp"`` and ``"svi"`` of
    :func:`~pymc_augconj.fit`. Without ``pilot`` the function does not sample, and it never changes
    the model. Print the result to see the latents, the observed variables and the moves.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the model of the context.
    vars : sequence of variables, optional
        The variables that a sampler updates; all other Gaussian variables count as
        hyperparameters. By default every Gaussian variable is a latent.
    compile_kwargs : dict, optional
        ``{"mode": …}``: a PyTensor mode for the functions extracted from the model. By default
        they run without compilation; ``"NUMBA"`` evaluates a kernel matrix about twice as fast,
        after 10 s or more of compilation the first time.
    pilot : float, optional
        Length of short runs of :func:`~pymc_augconj.sample`, about so many seconds each; the
        report then has the expected time of a step and of a whole run.

    Returns
    -------
    RecognitionReport
        Its ``model`` is the :class:`~pymc_augconj.model.LatentGaussianModel` for the engines.

    Notes
    -----
    The column *enters through* shows how a latent enters the predictors: ``identity``, one entry
    for each observation, in order; ``selection``, one entry for each observation, perhaps times
    data, such as an intercept, a slope or a group effect; ``design matrix``, several entries for
    each observation. A predictor is the sum over all latents.

    A ``pm.Potential`` that depends on latents counts as an observed variable without an
    augmentation, if it is a sum of terms whose entries each depend on one affine predictor. If
    other latents remain, a Normal variable in a potential is a hyperparameter instead. A
    potential of hyperparameters alone is part of their prior.

    Raises
    ------
    NotAffineError
        A predictor is not affine in the Gaussian latents, or a potential is not such a sum.
    UnknownLikelihoodError
        An observed variable has neither a likelihood with a known augmentation nor a density
        whose parameters depend on one affine predictor.
    DataError
        An observation is out of its likelihood's range, or an input is not finite.
    RecognitionError
        The model has no Gaussian latent or no observed variable, has single precision, or the
        parsed model disagrees with PyMC's own log density.
    TypeError
        One of ``vars`` is not a variable.
    """
    given = modelcontext(model)
    linear = in_best_form(given, grids=vars is None)
    if linear is not given and vars is not None:
        vars = [linear[var.name] if isinstance(var, TensorVariable) else var for var in vars]
    report = report_of(linear, vars=vars, compile_kwargs=compile_kwargs)
    if report.alternates and (names := alternating(report, report.plan)):
        try:
            report_of(linear, vars=[linear[n] for n in names], compile_kwargs=compile_kwargs)
        except AugmentationError as error:
            report.refusal = str(error)
    if pilot is not None:
        a_step, run = (float(f"{value:.2g}") for value in expected_time(given, pilot))
        report.expected = (
            f"Expected time: {1e3 * a_step:g} ms a step; {run:g} s for {CHAINS} chains of "
            f"{TUNE} + {WHOLE:,} steps, one after the other"
        )
    return report


# Draws of the first runs, and of one that is long enough for the compiled loop; the most that are
# added to it.
_PILOT, _SHORT, _MOST = 25, 300, 5_000
# Tuning steps and draws of a whole run, and its chains.
TUNE, WHOLE, CHAINS = PythonGibbs.default_tune_steps, 1000, 4


def expected_time(model: Model, seconds: float, seed: int | None = None) -> tuple[float, float]:
    """Return the seconds of a step, and of a run of four chains one after the other.

    Longer runs follow if each takes at most about ``seconds``.
    """
    options: dict[str, Any] = {"chains": 1, "quiet": True, "compute_convergence_checks": False}
    options |= {"progressbar": False, "random_seed": seed, "model": model}

    def timed(draws: int, tune: int) -> float:
        """Return the seconds of the steps alone."""
        return float(sample(draws, tune=tune, **options)["posterior"].attrs["sampling_time"])

    start = time.perf_counter()
    a_step = timed(_PILOT, _PILOT) / (2 * _PILOT)
    begin = time.perf_counter() - start
    if a_step * (TUNE + _SHORT) > seconds:
        return a_step, begin + CHAINS * (TUNE + WHOLE) * a_step
    timed(_SHORT, TUNE)  # what is compiled is loaded
    short = timed(_SHORT, TUNE)
    further = int(np.clip(seconds * (TUNE + _SHORT) / short, _SHORT, _MOST))
    a_draw = max(timed(_SHORT + further, TUNE) - short, 0.0) / further
    return a_draw, begin + CHAINS * (short + (WHOLE - _SHORT) * a_draw)


# Matrices of the largest order that an engine holds.
_MATRICES = 3
_ERRORS = {
    "sample": "nothing but Monte Carlo error, which az.summary reports",
    "nested": "the form of the latents given hyperparameters; k is of the hyperparameters",
    "ep": "hyperparameters at a point, so intervals are too narrow; k is of the latents given it",
    "vgp": "as 'ep', and deviations of the latents are too small",
    "cavi": "as 'vgp', more so, and its evidence is the loosest bound",
}


class _OutOfTimeError(Exception):
    pass


def advise(
    model: Model | None = None, *, seconds: float = 5.0, random_seed: int | None = None
) -> pd.DataFrame:
    """Return the cost and the typical errors of each engine on a model.

    The function makes every fit, and stops it after ``seconds``. The time of four chains of 1200
    steps of :func:`~pymc_augconj.sample` follows from 50 steps, or from 1300 where these are fast.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the model of the context.
    seconds : float
        Time limit of each fit. A single iteration is not interrupted.
    random_seed : int, optional

    Returns
    -------
    DataFrame
        By engine: ``seconds`` (NaN for a stopped or refused fit), ``pareto_k`` (below 0.7 is
        good), ``megabytes`` of the largest matrices, and ``wrong``: typical errors, or the reason
        for the NaN.

    Raises
    ------
    AugmentationError
        If the model cannot be recognised.

    Examples
    --------
    >>> pac.advise(model)  # doctest: +SKIP
    """
    model = modelcontext(model)
    read = read_model(model)
    groups = LatentPriors(read.model, (read.start, *read.probes)).groups
    order = cheapest_solver(read.model.blocks, groups).largest_order(read.model.blocks, groups)
    rows: dict[str, dict[str, Any]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for engine, wrong in _ERRORS.items():
            row: dict[str, Any] = {"seconds": np.nan, "pareto_k": np.nan}
            try:
                if engine == "sample":
                    row["seconds"] = expected_time(model, seconds, random_seed)[1]
                else:
                    row |= _fitted(engine, model, seconds, random_seed)
                row["wrong"] = wrong
            except _OutOfTimeError:
                row["wrong"] = f"stopped after {seconds:g} s"
            except AugmentationError as error:
                row["wrong"] = f"refused: {error}"
            rows[engine] = row | {"megabytes": 8e-6 * _MATRICES * order**2}
    table = pd.DataFrame.from_dict(rows, "index").rename_axis("engine")
    return table[["seconds", "pareto_k", "megabytes", "wrong"]]


def _fitted(method: str, model: Model, seconds: float, seed: int | None) -> dict[str, Any]:
    """Return time and k̂ of a fit."""
    start = time.perf_counter()

    def stop(_: object) -> None:
        if time.perf_counter() > start + seconds:
            raise _OutOfTimeError

    found = fit(method, model=model, random_seed=seed, progressbar=False, callback=stop)
    return {"seconds": time.perf_counter() - start, "pareto_k": found.pareto_k}
