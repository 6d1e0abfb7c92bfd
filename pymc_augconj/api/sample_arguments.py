"""Checks of the arguments of ``pac.sample``, before anything is read or sampled."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

import pymc as pm
from pymc.backends.base import BaseTrace
from pymc.model import Model
from pymc.step_methods import STEP_METHODS

from pymc_augconj.errors import AugmentationError

__all__ = ["check_keywords", "check_log_likelihood", "check_sparse"]

# Options of PyMC's other steps, besides the names of these.
_OF_STEPS = ("target_accept",)


def check_keywords(
    kwargs: Mapping[str, Any], own: Collection[str], *, all_ours: bool = False
) -> None:
    """Refuse arguments that ``pm.sample`` would not take, or would assign steps by.

    Parameters
    ----------
    kwargs : mapping
        Those to hand on.
    own : collection of str
        Names of the arguments of ``pac.sample`` itself.
    all_ours : bool
        Whether no other step method samples a variable.

    Raises
    ------
    TypeError
    """
    for name in ("step", "nuts_sampler"):
        if name in kwargs:
            raise TypeError(
                f"pac.sample chooses its own step method: expected no {name!r}; use "
                "pm.sample(step=[pac.AugmentedGibbs(...), ...]) to combine steps"
            )
    known = {*own, *inspect.signature(pm.sample).parameters} - {"step", "nuts_sampler", "kwargs"}
    of_steps = {*_OF_STEPS, *(method.name for method in STEP_METHODS)}
    for name in kwargs:
        if name not in known | of_steps:
            longer = [other for other in sorted(known) if name in other]
            close = longer or get_close_matches(name, known, n=1)
            raise TypeError(
                f"pac.sample: expected arguments of its own or of pm.sample, got {name!r}"
                + (f"; did you mean {close[0]!r}?" if close else "; leave it out")
            )
        if all_ours and name in of_steps - known:
            raise TypeError(
                f"pac.sample: expected no options of PyMC's own steps, as all variables are "
                f"sampled without these, got {name!r}; leave it out"
            )
    trace = kwargs.get("trace")
    # Of Zarr or McBackend, which need not be installed.
    stored = hasattr(trace, "init_trace") or hasattr(trace, "init_run")
    if trace is not None and not stored and not isinstance(trace, BaseTrace):
        raise TypeError(
            f"trace: expected what draws are recorded in, such as pm.backends.ZarrTrace(), got "
            f"{type(trace).__name__}; leave it out, or use var_names=[…] to record some variables "
            "and initvals={…} to go on from earlier draws"
        )


def check_log_likelihood(model: Model, sites: Collection[str], asked: Any) -> None:
    """Say that PyMC's pointwise log likelihood has no densities that are written as potentials.

    Parameters
    ----------
    model : pymc.Model
    sites : collection of str
        Names of what depends on latents.
    asked : bool or collection of str
        ``idata_kwargs["log_likelihood"]``.

    Raises
    ------
    AugmentationError
        If there is no observed variable.
    """
    if not asked:
        return
    potentials = [potential.name for potential in model.potentials if potential.name in sites]
    what = (
        "expected densities of observed variables, of which alone pm.compute_log_likelihood knows "
        f"the data, found the potentials {potentials}"
    )
    instead = "write data as observed=, with pm.Censored or pm.CustomDist, say"
    if not model.observed_RVs:
        raise AugmentationError(
            f"idata_kwargs['log_likelihood']: {what} and no observed variable, so that it would be "
            f"empty; {instead}, or leave it out"
        )
    if potentials:
        warnings.warn(
            f"idata_kwargs['log_likelihood']: {what} too, which are left out; if they are densities"
            f" of data, comparisons of models lack these: {instead}",
            UserWarning,
            stacklevel=3,
        )


def check_sparse(model: Model, vars: Any, sites: str) -> None:
    """Refuse arguments that do not go with ``gp=…``."""
    if vars is not None:
        raise AugmentationError(
            "vars: expected none with inducing points, which replace the process for all "
            f"variables, got {vars!r}; sample pac.sparsify(…) by several steps instead"
        )
    if sites == "augmented":
        raise AugmentationError(
            "sites='augmented': expected held sites with inducing points, since an expected log "
            "density has no auxiliary variable; leave sites out"
        )
