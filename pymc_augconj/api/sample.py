"""``pac.sample``: ``pm.sample`` with the Gibbs step, without a long compilation."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, Literal

import pymc as pm
from pymc.model import Model, modelcontext

from pymc_augconj.errors import RecognitionError
from pymc_augconj.parallel.settings import blas_limit
from pymc_augconj.python_mode import without_compilation
from pymc_augconj.results.comparison.fits import DataTree

from .step import AugmentedGibbs
from .trace import Recorder

__all__ = ["sample"]


def sample(
    draws: int = 1000,
    *,
    model: Model | None = None,
    vars: Sequence | None = None,
    hyper_sampler: Literal["auto", "slice", "elliptical", "nuts"] = "auto",
    sweeps: int | None = None,
    sites: Literal["auto", "augmented", "held"] = "auto",
    blas_threads: int = 1,
    compile_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> DataTree:
    """Draw from the posterior with :class:`~pymc_augconj.AugmentedGibbs`.

    Equivalent to ``pm.sample(step=pac.AugmentedGibbs())``, but faster: if the step samples every
    variable, PyMC's own functions run without compilation, which saves 10 s or more before the
    first draw; and BLAS uses one thread in the process that records the draws, so that it does not
    compete with the chains.

    Parameters
    ----------
    draws : int
        Number of draws of each chain after tuning.
    model : pymc.Model, optional
        By default the model of the context.
    vars : sequence of variables or of their names, optional
        Variables that the Gibbs step samples, by default all; PyMC assigns step methods to others.
    hyper_sampler, sweeps, sites, blas_threads
        Options of the step, see :class:`~pymc_augconj.AugmentedGibbs`.
    compile_kwargs : dict, optional
        ``{"mode": …}``: a PyTensor mode for all compiled functions.
    **kwargs
        Other arguments of ``pymc.sample`` except ``step`` and ``nuts_sampler``: ``chains``,
        ``cores``, ``random_seed``, ``progressbar``, … ``tune`` is 200 by default.

    Returns
    -------
    DataTree
        As from ``pm.sample``; see :class:`~pymc_augconj.AugmentedGibbs` for its statistics.

    Raises
    ------
    AugmentationError
        If the model cannot be augmented; see :func:`~pymc_augconj.recognize`.
    TypeError
        If ``step`` or ``nuts_sampler`` is given.
    RuntimeError
        If the process of a chain was killed.
    """
    for name in ("step", "nuts_sampler"):
        if name in kwargs:
            raise TypeError(
                f"pac.sample chooses its own step method: expected no {name!r}; use "
                "pm.sample(step=[pac.AugmentedGibbs(...), ...]) to combine steps"
            )
    model = modelcontext(model)
    step = AugmentedGibbs(
        vars,
        model=model,
        hyper_sampler=hyper_sampler,
        sweeps=sweeps,
        sites=sites,
        blas_threads=blas_threads,
        compile_kwargs=compile_kwargs,
    )
    with ExitStack() as stack:
        stack.enter_context(blas_limit(1))
        # An interrupted chain has not released its own limit.
        stack.callback(step._release_blas)
        if compile_kwargs is not None:
            kwargs["compile_kwargs"] = compile_kwargs
        elif set(step.vars) == set(model.value_vars):
            stack.enter_context(without_compilation())
            if kwargs.get("trace") is None:
                # Random numbers drawn by a Deterministic are left to PyMC.
                with suppress(RecognitionError):
                    start = step.recognition.start
                    kwargs["trace"] = Recorder.of(model, kwargs.get("var_names"), start)
        try:
            return pm.sample(draws, step=step, model=model, **kwargs)
        except (ConnectionError, EOFError) as error:
            raise RuntimeError(
                f"the process of a chain ended before its last draw ({error or 'no message'}): it "
                "was killed, most often because memory ran out; use fewer processes at a time, "
                "cores=…, or sample again"
            ) from error
