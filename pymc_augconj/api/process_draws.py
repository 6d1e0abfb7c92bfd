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
from pymc_augconj.recognition.prediction.draws import equal_draws
from pymc_augconj.recognition.prediction.evaluate import kernel_function
from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.predictions import Sampled, posterior_draws
from pymc_augconj.typing import Array

__all__ = ["ProcessDraws", "draw_process"]


@dataclass(frozen=True)
class ProcessDraws:
    """Draws of a process at new inputs.

    Attributes
    ----------
    f_new : ndarray, shape (S · outputs, P)
        The outputs of one draw after each other.
    mean_old : ndarray, shape (S · outputs, n)
        The prior mean at the old inputs.
    outputs : int
    draws : dict
        Draws of the variables that were read, on the first axis.
    sampled : tuple
        Coordinates of chain and draw.
    """

    f_new: Array
    mean_old: Array
    outputs: int
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
        With the group ``posterior``.
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
    wanted = ["mean_old", "mean_new", "old", "cross", "new" if joint else "new_diagonal"]
    evaluate = kernel_function(model, gp, Xnew, wanted)
    kernel = sorted(str(name) for name in evaluate.names)
    draws, sampled = _needed(tree, [process, *kernel, *names])
    draws = {
        name: value if name == process else value.astype(model[name].dtype)
        for name, value in draws.items()
    }
    # The outputs of one draw are treated as several draws with the same kernel.
    f = draws[process]
    outputs = 1 if f.ndim == 2 else f.shape[1]
    f = f.reshape(-1, f.shape[-1])
    noise = rng.standard_normal((len(f), len(Xnew)))
    groups = [
        (outputs * members[:, None] + np.arange(outputs)).ravel()
        for members in equal_draws(draws, kernel)
    ]
    threads = count_threads(len(groups), f.shape[1] + len(Xnew))
    functions = evaluate.copies(threads)

    def evaluator(function: PointFunction) -> Callable[[int], dict[str, Array]]:
        def parts(draw: int) -> dict[str, np.ndarray]:
            values = function({name: np.asarray(draws[name][draw // outputs]) for name in kernel})
            return dict(zip(wanted, values, strict=True))

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
    return ProcessDraws(f_new, mean_old, outputs, draws, sampled)


def _needed(tree: DataTree, names: list[str]) -> tuple[dict[str, np.ndarray], Sampled]:
    try:
        return posterior_draws(tree, list(dict.fromkeys(names)))
    except KeyError as missing:
        raise AugmentationError(
            f"posterior: expected the variable {missing.args[0]!r}, which the prediction needs, "
            "found none; sample with it among var_names"
        ) from None
