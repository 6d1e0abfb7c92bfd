"""Draws of a process at new inputs, from posterior draws of it at the old ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_augconj.errors import AugmentationError
from pymc_augconj.parallel.settings import blas_limit
from pymc_augconj.prediction.conditional import count_threads, draw_groups
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.prediction.draws import NewProcess, equal_draws
from pymc_augconj.recognition.prediction.evaluate import kernel_function
from pymc_augconj.results.approximation.data_check import inducing_inputs_of
from pymc_augconj.results.approximation.layout import inducing_name
from pymc_augconj.results.approximation.model_check import check_inducing_draws
from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.predictions import Sampled, posterior_draws
from pymc_augconj.typing import Array

__all__ = ["ProcessDraws", "draw_process", "needed_draws"]


@dataclass(frozen=True)
class ProcessDraws(NewProcess):
    """Draws of a process at new inputs, with what they were made from.

    Attributes
    ----------
    draws : dict
        Draws of the variables that were read, on the first axis.
    sampled : tuple
        Coordinates of chain and draw.
    """

    draws: dict[str, np.ndarray]
    sampled: Sampled


def draw_process(
    tree: DataTree,
    model: Model,
    gp: Any,
    Xnew: np.ndarray,
    names: Sequence[str],
    *,
    jitter: float,
    joint: bool,
    rng: np.random.Generator,
) -> ProcessDraws:
    """Return a draw of f* | f for every posterior draw.

    Parameters
    ----------
    tree : DataTree
        With the group ``posterior``: values of the process at its own inputs, or, of draws through
        inducing points, at these.
    model : pymc.Model
    gp : pm.gp.Latent
    Xnew : ndarray, shape (P, d)
    names : sequence of str
        Further variables to read.
    jitter, joint
        As for :func:`pymc_augconj.predict`.
    rng : Generator
    """
    process = gp.f.name
    Z = inducing_inputs_of(tree, process)
    latent, old = (process, "mean_old") if Z is None else (inducing_name(process), "mean_at")
    wanted = [old, "mean_new", "old", "cross", "new" if joint else "new_diagonal"]
    evaluate = kernel_function(model, gp, Xnew, wanted, Z)
    kernel = sorted(str(name) for name in evaluate.names)
    draws, sampled = needed_draws(tree, [latent, *kernel, *names])
    draws = {
        name: value if name == latent else value.astype(model[name].dtype)
        for name, value in draws.items()
    }
    # The outputs of one draw are treated as several draws with the same kernel.
    f = draws[latent]
    outputs = 1 if f.ndim == 2 else f.shape[1]
    f = f.reshape(-1, f.shape[-1])
    noise = rng.standard_normal((len(f), len(Xnew)))
    groups = [
        (outputs * members[:, None] + np.arange(outputs)).ravel()
        for members in equal_draws(draws, kernel)
    ]
    old_size, both = f.shape[1], f.shape[1] + len(Xnew)
    threads = count_threads(len(groups), both * (both if joint else old_size))
    functions = evaluate.copies(threads) if len(groups) > 1 else [evaluate]

    def evaluator(function: PointFunction) -> Callable[[int], dict[str, Array]]:
        def parts(draw: int) -> dict[str, np.ndarray]:
            values = function({name: np.asarray(draws[name][draw // outputs]) for name in kernel})
            return dict(zip(["mean_old", *wanted[1:]], values, strict=True))

        return parts

    # Several threads with a multithreaded BLAS would compete for the cores.
    several = len(functions) > 1
    with blas_limit(1) if several else nullcontext():
        f_new, mean_old = draw_groups(
            groups,
            f,
            noise,
            [evaluator(function) for function in functions],
            jitter=jitter,
            joint=joint,
        )
    f_new = f_new.reshape(-1, outputs, len(Xnew))
    if Z is None:
        return ProcessDraws(process, f_new, mean_old[::outputs].__getitem__, draws, sampled)
    check_inducing_draws(tree, process, evaluator(evaluate)(0), f[0], jitter)
    # Of the process's own inputs, which are many: one draw at a time.
    mean_at_inputs = kernel_function(model, gp, Xnew, ["mean_old"])
    read = [str(name) for name in mean_at_inputs.names]

    def mean_of(draw: int) -> Array:
        values = {name: np.asarray(draws[name][draw]) for name in read}
        (found,) = mean_at_inputs(values)
        return np.asarray(found)

    return ProcessDraws(process, f_new, mean_of, draws, sampled)


def needed_draws(tree: DataTree, names: list[str]) -> tuple[dict[str, np.ndarray], Sampled]:
    """Return variables with the draws on the first axis; AugmentationError where one is missing."""
    try:
        return posterior_draws(tree, list(dict.fromkeys(names)))
    except KeyError as missing:
        raise AugmentationError(
            f"posterior: expected the variable {missing.args[0]!r}, which the prediction needs, "
            "found none; sample with it among var_names"
        ) from None
