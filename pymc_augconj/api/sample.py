"""``pac.sample``: ``pm.sample`` with the Gibbs step, without a long compilation."""

from __future__ import annotations

import inspect
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from difflib import get_close_matches
from functools import partial
from typing import Any, Literal, overload

import numpy as np
import pymc as pm
from pymc.backends.arviz import find_constants, find_observations
from pymc.backends.base import BaseTrace
from pymc.model import Model, modelcontext
from pymc.step_methods import STEP_METHODS

from pymc_augconj.errors import AugmentationError, RecognitionError
from pymc_augconj.parallel.executor import blas_limit
from pymc_augconj.python_mode import without_compilation
from pymc_augconj.results.approximation.fitted_model import fitting_dims
from pymc_augconj.results.comparison.fits import DataTree, without

from .chains import BackgroundRun, Chains, leave_out_whitened, sample_chains, warn_of_signs
from .native_step import AugmentedGibbs, Recorder
from .report import in_best_form
from .sparsify import SparseGibbs, add_log_likelihood, observed_names, sparsified
from .step import PythonGibbs
from .stored import StoredRun

# Options of PyMC's other steps, besides the names of these.
_OF_STEPS = ("target_accept",)


@overload
def sample(draws: int = ..., *, blocking: Literal[False], **kwargs: Any) -> BackgroundRun: ...


@overload
def sample(draws: int = ..., *, blocking: Literal[True] = ..., **kwargs: Any) -> DataTree: ...


def sample(
    draws: int = 1000,
    *,
    model: Model | None = None,
    gp: Any = None,
    inducing: Any = None,
    vars: Sequence[Any] | None = None,
    hyper_sampler: Literal["auto", "slice", "elliptical", "nuts"] = "auto",
    sweeps: int | None = None,
    sites: Literal["auto", "augmented", "held"] = "auto",
    blas_threads: int = 1,
    compile_kwargs: dict[str, Any] | None = None,
    client: Any = None,
    zarr_store: Any = None,
    resume: bool = False,
    blocking: bool = True,
    **kwargs: Any,
) -> DataTree | BackgroundRun:
    """Draw from the posterior with :class:`~pymc_augconj.AugmentedGibbs`.

    Equivalent to ``pm.sample(step=pac.AugmentedGibbs())``, but faster: if the step samples every
    variable, PyMC's own functions run without compilation, which saves 10 s or more, draws are
    recorded in blocks, and the process that records them uses one thread of BLAS. Where the step
    has a compiled loop, chains of 500 steps or more run one after the other in this process, for
    any ``cores``.

    Parameters
    ----------
    draws : int
        Number of draws of each chain after tuning.
    model : pymc.Model, optional
        By default the model of the context.
    gp : pm.gp.Latent, or sequence of them, optional
        Processes to sample through inducing points, for many observations: the result is the
        free-form variational posterior of :func:`~pymc_augconj.sparsify`, which is exact if the
        inducing inputs are a process's own. Draws of a process ``f`` have its values ``f_u`` at
        the inducing inputs; :func:`~pymc_augconj.predict` predicts the values at other inputs.
    inducing : int, array_like of shape (M, d), mapping or Approximation, optional
        With ``gp``: the number of inducing points, placed by k-means++ (100 by default), or their
        inputs; or a fit through inducing points, from whose inputs and hyperparameters chains
        start.
    vars : sequence of variables or of their names, optional
        Variables that the Gibbs step samples, by default all. PyMC assigns other step methods to
        the rest.
    hyper_sampler, sweeps, sites, blas_threads
        Options of the step, see :class:`~pymc_augconj.AugmentedGibbs`.
    compile_kwargs : dict, optional
        ``{"mode": …}``: a PyTensor mode for all compiled functions.
    client : distributed.Client or ProcessPoolExecutor, optional
        Samples each chain (4 by default) on one of its workers, with the same draws for the same
        seed. An interrupt stops the chains on a Dask cluster.
    zarr_store : path, URL, mapping or zarr store, optional
        Destination of the draws, written during sampling and read on demand: any argument of
        ``zarr.open_group``, or a URL for fsspec. Needs ``pip install 'pymc-augconj[zarr]'``, and
        an int as ``random_seed``, if any. The store has no tuning steps.
    resume : bool
        With ``zarr_store``: whether to continue the run in the store, after an interrupt or a
        crash, or for more ``draws``, with the same draws as an uninterrupted run. An empty store
        begins a run, a complete one is returned; another model, data or options are an error.
    blocking : bool
        Whether to wait for the draws. If false, a thread samples, and the result is a
        :class:`~pymc_augconj.api.chains.BackgroundRun`.
    **kwargs
        Other arguments of ``pymc.sample`` except ``step`` and ``nuts_sampler``: ``chains``,
        ``cores``, ``random_seed``, ``progressbar``, … ``tune`` is 200 by default. With ``gp``,
        ``idata_kwargs={"log_likelihood": True}`` keeps E log p(y | f) of each observation at each
        draw, for leave-one-out: an array of N × draws.

    Returns
    -------
    DataTree
        As from ``pm.sample``; see :class:`~pymc_augconj.AugmentedGibbs` for its statistics. An
        interrupt (Ctrl-C, or a KeyboardInterrupt of ``callback``) stops all chains. If chains then
        differ in length, the draws beyond the common length are in the group ``posterior_rest``,
        one after the other, with their numbers of chain and draw.

    Raises
    ------
    AugmentationError
        If the model cannot be augmented; see :func:`~pymc_augconj.recognize`.
    TypeError
        If ``step``, ``nuts_sampler`` or an argument unknown to ``pm.sample`` is given.
    RuntimeError
        If the process of a chain was killed.
    ImportError
        If ``zarr_store`` is given, and zarr is not installed.
    """
    if not blocking:
        given = {**locals(), **kwargs, "model": modelcontext(model), "blocking": True}
        del given["kwargs"]
        return BackgroundRun(sample, given)
    own = inspect.signature(sample).parameters.keys() - {"kwargs"}
    _check_keywords(kwargs, own)
    for name, least in {"draws": 1, "tune": 0, "chains": 1, "cores": 1}.items():
        value = {"draws": draws, **kwargs}.get(name)
        if value is not None and not (isinstance(value, int | np.integer) and value >= least):
            raise ValueError(f"{name}: expected an integer of at least {least}, got {value!r}")
    model = modelcontext(model)
    _check_names(model, {"vars": vars, "initvals": kwargs.get("initvals")})
    _check_shapes(model, kwargs.get("initvals"))
    if resume and zarr_store is None:
        raise TypeError(
            "pac.sample: expected zarr_store=…, the store to go on from, with resume; draws "
            "without one cannot go on: sample into zarr_store={}, or join a run of another seed"
        )
    stored = None
    if zarr_store is not None:
        if client is not None:
            raise TypeError("pac.sample: expected no 'client' with zarr_store=…; leave it out")
        own_options = {"hyper_sampler": hyper_sampler, "sweeps": sweeps, "sites": sites}
        stored = StoredRun(zarr_store, resume, own_options, kwargs)
        kwargs |= stored.arguments
    log_likelihood = (kwargs.get("idata_kwargs") or {}).get("log_likelihood", False)
    options: dict[str, Any] = {
        "hyper_sampler": hyper_sampler,
        "sweeps": sweeps,
        "blas_threads": blas_threads,
        "compile_kwargs": compile_kwargs,
    }
    step: PythonGibbs
    names: list[str] = []
    user = model
    if gp is None:
        if inducing is not None:
            raise AugmentationError(
                "inducing: expected gp=…, the pm.gp.Latent to approximate through inducing points, "
                "with it; pass gp=gp"
            )
        model, step = _with_step(user, vars, kwargs, {**options, "sites": sites})
    else:
        _check_sparse(model, vars, sites)
        found = sparsified(model, gp, inducing, kwargs.get("random_seed"), compile_kwargs)
        model = found.model
        step = SparseGibbs(model=model, sparsified=found, **options)
        # PyMC's own is of the model through inducing points, which has no observed variables.
        names = observed_names(user, model, log_likelihood, kwargs)
        if names:
            idata_kwargs = dict(kwargs["idata_kwargs"])
            del idata_kwargs["log_likelihood"]
            kwargs["idata_kwargs"] = idata_kwargs
    _check_names(user if gp is None else model, {"var_names": kwargs.get("var_names")})
    passing = leave_out_whitened(step, model, user if gp is None else model, kwargs)
    _check_keywords(kwargs, own, all_ours=step.is_alone)
    sites_read = [site.name for site in step.recognition.model.sites]
    _check_log_likelihood(user, sites_read, log_likelihood, sparse=gp is not None)
    if client is not None:
        run = partial(_run, step=step, model=model, compile_kwargs=compile_kwargs)
        tree = sample_chains(client, run, model, draws, kwargs)
    else:
        tree = _run(
            draws, step=step, model=model, compile_kwargs=compile_kwargs, stored=stored, **kwargs
        )
    tree = without(tree, passing)
    if kwargs.get("compute_convergence_checks", True):
        warn_of_signs(tree, step, user)
    return add_log_likelihood(tree, step, model, user, names) if names else tree


def _with_step(
    user: Model, vars: Sequence[Any] | None, kwargs: Mapping[str, Any], options: dict[str, Any]
) -> tuple[Model, AugmentedGibbs]:
    """Return the step and its model, in which processes take linear time where they can."""
    linear = in_best_form(user, grids=vars is None, keywords=kwargs)
    if linear is not user:
        names = None if vars is None else [getattr(var, "name", var) for var in vars]
        step = AugmentedGibbs(names, model=linear, **options)
        # PyMC's own steps may take derivatives of everything.
        if step.is_alone:
            return linear, step
    return user, AugmentedGibbs(vars, model=user, **options)


def _run(
    draws: int,
    *,
    step: PythonGibbs,
    model: Model,
    compile_kwargs: dict[str, Any] | None,
    stored: StoredRun | None = None,
    **kwargs: Any,
) -> DataTree:
    """Call ``pm.sample`` with as little compilation as possible."""
    # A step that was pickled has variables of its own.
    values = {var.name: var for var in model.value_vars}
    step.vars = [values[var.name] for var in step.vars]
    with ExitStack() as stack:
        stack.enter_context(blas_limit(1))
        # An interrupted chain has not released its own limit.
        stack.callback(step._release_blas)
        recorder = None
        # Random numbers drawn by a Deterministic are left to PyMC.
        with suppress(RecognitionError):
            recorder = Recorder.of(model, kwargs.get("var_names"), step.recognition.start)
        if compile_kwargs is not None:
            kwargs["compile_kwargs"] = compile_kwargs
        elif step.is_alone:
            stack.enter_context(without_compilation())
            if kwargs.get("trace") is None:
                kwargs["trace"] = recorder
                tune = kwargs.get("tune")
                steps = draws + (step.default_tune_steps if tune is None else tune)
                if isinstance(step, AugmentedGibbs) and recorder is not None:
                    # To start a process takes longer than a chain.
                    kwargs |= {"cores": 1} if step.prepare(recorder.fn, steps) else {}
        recorded = {var.name: var.type.shape for var in model.unobserved_RVs}
        if recorder is not None:
            recorded = recorder.var_shapes
        kwargs["idata_kwargs"] = _fitting(model, recorded, kwargs.get("idata_kwargs"))
        try:
            chains = Chains(kwargs.pop("callback", None))
            step.on_chain = chains.begin
            run = partial(chains.run, pm.sample, draws, step=step, model=model)
            if stored is not None:
                return stored.sample(run, step, model, recorder, draws, kwargs)
            return run(**kwargs)
        except (ConnectionError, EOFError) as error:
            raise RuntimeError(
                f"the process of a chain ended before its last draw ({error or 'no message'}): it "
                "was killed, most often because memory ran out; use fewer processes at a time, "
                "cores=…, or sample again"
            ) from error


def _fitting(
    model: Model, recorded: Mapping[str, Sequence[int | None]], options: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return ``idata_kwargs`` with dims that fit the variables, before anything is sampled."""
    options = dict(options or {})
    data = {**find_observations(model), **find_constants(model)}
    shapes = {**recorded, **{name: value.shape for name, value in data.items()}}
    dims = {**model.named_vars_to_dims, **options.get("dims", {})}
    coords = {**model.coords, **options.get("coords", {})}
    own = fitting_dims(dims, coords, shapes)
    return {**options, "dims": {**options.get("dims", {}), **own}}


def _check_names(model: Model, options: Mapping[str, Any]) -> None:
    """Raise ValueError for names that are not in the model, or none."""
    for option, given in options.items():
        # Starts may be of transformed variables.
        known = {*model.named_vars, *(v.name for v in model.value_vars if option == "initvals")}
        names = given if isinstance(given, list | tuple | dict) else [given]
        if not names and option != "initvals":
            raise ValueError(f"{option}: expected names of variables, got none; leave it out")
        for name in names:
            if isinstance(name, str) and known.isdisjoint([name, model.name_for(name)]):
                raise ValueError(f"{option}: expected names of variables, found {name!r}")


def _check_shapes(model: Model, initvals: Any) -> None:
    """Raise ValueError for a start whose shape is not its variable's."""
    if not initvals:
        return
    with without_compilation():
        shapes = model.eval_rv_shapes()
    for start in initvals if isinstance(initvals, list | tuple) else [initvals]:
        for name, value in (start or {}).items():
            name = getattr(name, "name", name)
            found, expected = np.shape(value), shapes.get(name)
            # Strings and expressions of PyTensor are evaluated by PyMC.
            is_number = (
                value is not None and not isinstance(value, str) and not hasattr(value, "type")
            )
            if is_number and expected is not None and found != tuple(expected):
                wanted = tuple(map(int, expected))
                raise ValueError(f"initvals: expected {name!r} of shape {wanted}, found {found}")


def _check_keywords(
    kwargs: Mapping[str, Any], own: Collection[str], *, all_ours: bool = False
) -> None:
    """Raise TypeError for arguments that ``pm.sample`` does not take, or that assign steps.

    ``own`` are the names of arguments of ``pac.sample``; ``all_ours``: no other step samples a
    variable.
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
            close = longer or get_close_matches(name, known, n=1, cutoff=0.7)
            raise TypeError(
                f"pac.sample: expected arguments of its own or of pm.sample, got {name!r}"
                + (f"; did you mean {close[0]!r}?" if close else "; leave it out")
            )
        if all_ours and name in of_steps - known:
            raise TypeError(
                f"pac.sample: expected no options of PyMC's own steps, which sample no variable "
                f"of this model, got {name!r}; leave it out"
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


def _check_log_likelihood(
    model: Model, sites: Collection[str], asked: Any, *, sparse: bool
) -> None:
    """Warn that PyMC's pointwise log likelihood lacks potentials; raise if there would be none."""
    if not asked:
        return
    starts = [rv.name for rv, start in model.rvs_to_initial_values.items() if start is not None]
    if starts and not sparse:
        raise AugmentationError(
            "idata_kwargs['log_likelihood']: expected no initval=… in the model, which PyMC's "
            f"function cannot copy, found one of {starts}; leave it out, and pass "
            "initvals={…} to pac.sample"
        )
    potentials = [potential.name for potential in model.potentials if potential.name in sites]
    what = (
        "expected densities of observed variables, since pm.compute_log_likelihood knows no other "
        f"data, found the potentials {potentials}"
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


def _check_sparse(model: Model, vars: Any, sites: str) -> None:
    """Refuse arguments that are incompatible with ``gp=…``."""
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


def warm_up() -> float:
    """Compile the kernels of ``pac.sample``, which Numba keeps on disk, and return the seconds.

    The kernels do not depend on the model. Without this call the first call of
    :func:`~pymc_augconj.sample` on a machine compiles them. ``python -m pymc_augconj`` calls this
    function, for a container image or a CI job. Numba keeps the kernels beside the package, or in
    the directory ``NUMBA_CACHE_DIR``, until a version of the package has others.

    Returns
    -------
    float
        Seconds: up to a minute on one core the first time, a few seconds later.
    """
    begin = time.perf_counter()
    x = np.arange(12) % 3
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1.0)
        a, b = pm.Normal("a", 0.0, tau, shape=3), pm.Normal("b", 0.0, 1.0)
        pm.Poisson("y", pm.math.exp(a[x] + b), observed=x)
        pm.Binomial("k", n=50, logit_p=b + a, observed=[1, 20, 3])
        pm.Normal("z", a, 1.0, observed=[0.0, 0.5, 1.0])
    with pm.Model() as fixed:
        pm.Poisson("y", pm.math.exp(pm.Normal("b", 0.0, 1.0, shape=2)), observed=[1, 2])
    with pm.Model() as shrunk:
        scales = pm.HalfNormal("tau", 1.0) * pm.HalfCauchy("lam", 1.0, shape=12)
        beta = pm.Normal("beta", 0.0, scales, shape=12)
        pm.Normal("z", np.ones((2, 12)) @ beta, 1.0, observed=[0.0, 1.0])
    options: dict[str, Any] = {"progressbar": False, "quiet": True, "random_seed": 1}
    # Enough steps for the loop, see :mod:`.native_step`.
    for each in (model, fixed, shrunk):
        sample(300, model=each, chains=1, compute_convergence_checks=False, **options)
    return time.perf_counter() - begin
