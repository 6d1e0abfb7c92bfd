"""Processes and inducing inputs as a user gives them, for the sparse engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_augconj.engines.base import FirstWeights, SparseProblem
from pymc_augconj.engines.options import InducingOptions, Options, SVIOptions
from pymc_augconj.engines.sparse.chunks import ChunkedData
from pymc_augconj.engines.sparse.inducing import inducing_inputs
from pymc_augconj.errors import AugmentationError
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.recognition.processes.process import LatentProcess
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.results.approximation.layout import inducing_name
from pymc_augconj.results.approximation.sparse import SparseApproximation

__all__ = ["inducing_of", "listed", "processes_of", "sparse_problem"]

# Inducing points of a process.
_DEFAULT_NUMBER = 100


def listed(gp: Any) -> list[Any]:
    """Return the processes that were given: none, one or several."""
    return [] if gp is None else list(gp) if isinstance(gp, Sequence) else [gp]


def sparse_problem(
    model: Model,
    lgm: LatentGaussianModel,
    gp: Any,
    method: str,
    options: Options,
    seed: Any,
    data: ChunkedData | None = None,
    earlier: Approximation | None = None,
) -> SparseProblem:
    """Return the problem for the sparse engines; AugmentationError if ``gp`` does not fit it."""
    rng, moves = np.random.default_rng(seed), SVIOptions.of(options).optimize_inducing
    processes = processes_of(model, lgm, gp, f"method={method!r}", gradient_of_inducing=moves)
    inducing = inducing_of(rng, processes, InducingOptions.of(options).inducing, data)
    first = None if earlier is None else _weights_of(earlier, lgm, processes, inducing)
    return SparseProblem(processes, inducing, rng, data, first)


def _weights_of(
    earlier: Approximation,
    lgm: LatentGaussianModel,
    processes: Sequence[LatentProcess],
    inducing: Sequence[np.ndarray],
) -> FirstWeights | None:
    """Return the posterior of the weights of an earlier fit; None if it has other ones.

    With several predictors there is one for each of them, and the fit starts anew.
    """
    if not lgm.is_of_one_predictor:
        return None
    names = [process.name for process in processes]
    if not isinstance(earlier, SparseApproximation):
        return None
    if list(earlier.inducing) != names or not all(
        np.array_equal(earlier.inducing[name], Z) for name, Z in zip(names, inducing, strict=True)
    ):
        return None
    count = len(earlier.history) if earlier.method == "svi" else 0
    return FirstWeights(*earlier.natural_weights(), count)


def processes_of(
    model: Model,
    lgm: LatentGaussianModel,
    gp: Any,
    what: str,
    *,
    gradient_of_inducing: bool = False,
) -> list[LatentProcess]:
    """Return the processes to approximate through inducing points.

    AugmentationError is raised if there is none, one occurs twice, or the name of its values there
    is taken.
    """
    if not listed(gp):
        raise AugmentationError(
            f"gp: expected the pm.gp.Latent (or a list of several) to approximate through "
            f"inducing points with {what}, got none; pass gp=gp"
        )
    processes = [
        LatentProcess(model, one, lgm, gradient_of_inducing=gradient_of_inducing)
        for one in listed(gp)
    ]
    names = [process.name for process in processes]
    if len(set(names)) < len(names):
        raise AugmentationError(f"gp: expected different processes, got {names}")
    for name in names:
        if (reserved := inducing_name(name)) in model.named_vars:
            raise AugmentationError(
                f"variable {reserved!r} of the model: expected a different name, since results "
                f"have the values of {name!r} at its inducing inputs under it; rename it"
            )
    return processes


def inducing_of(
    rng: np.random.Generator,
    processes: Sequence[LatentProcess],
    given: Any,
    data: ChunkedData | None = None,
) -> list[np.ndarray]:
    """Return the inducing inputs of each process: by number, by inputs, or by its name.

    With ``data`` numbers are placed among the inputs of these.
    """
    names = [process.name for process in processes]
    if isinstance(given, Mapping):
        if set(given) != set(names):
            raise AugmentationError(
                f"inducing: expected an entry for each of the processes {names}, got {list(given)}"
            )
    elif len(names) > 1 and np.ndim(given) == 2:
        raise AugmentationError(
            "inducing: expected a number, or inputs for each process, got one array for "
            "several processes; use inducing={name: Z}"
        )
    else:
        given = dict.fromkeys(names, _DEFAULT_NUMBER if given is None else given)
    found = []
    for i, process in enumerate(processes):
        inputs: Any = process.inputs
        if data is not None and data.follows[i]:
            inputs = data.inputs(i)
        found.append(_inducing(rng, process, inputs, given[process.name]))
    return found


def _inducing(
    rng: np.random.Generator, process: LatentProcess, inputs: Any, given: Any
) -> np.ndarray:
    width = process.inputs.shape[1]
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        if given < 1:
            raise AugmentationError(f"inducing: expected a positive number, got {given}")
        return inducing_inputs(rng, inputs, int(given))
    try:
        Z = np.array(given, dtype=float)
    except (TypeError, ValueError):
        Z = np.empty(0)
    if Z.ndim != 2 or Z.shape[1] != width or len(Z) == 0:
        raise AugmentationError(
            f"inducing: expected a number, or inputs of shape (M, {width}) as those of "
            f"{process.name!r}, got {f'shape {Z.shape}' if Z.size else repr(given)}"
        )
    if not np.isfinite(Z).all():
        raise AugmentationError("inducing: expected finite inputs, found a NaN or an infinity")
    return Z
