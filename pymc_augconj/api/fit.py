"""``pac.fit``: an approximation of the posterior."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pymc.model import Model, modelcontext
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pymc_augconj.engines.base import FitOutcome, FitProblem, FitState, LogPrior
from pymc_augconj.engines.options import COMMON, InducingOptions, Options, SVIOptions
from pymc_augconj.engines.registry import ENGINES, Engine, given_options
from pymc_augconj.engines.sparse.chunks import ChunkedData
from pymc_augconj.errors import AugmentationError
from pymc_augconj.linalg.dense import SMALL_ERROR
from pymc_augconj.model import Hyperparameter, LatentGaussianModel
from pymc_augconj.parallel.client import executor_of
from pymc_augconj.parallel.executor import blas_limit
from pymc_augconj.point import Point
from pymc_augconj.recognition.graph.dependence import static_shape
from pymc_augconj.recognition.prediction.evaluate import (
    DensityOfPrior,
    constrained,
    unconstrained_function,
)
from pymc_augconj.recognition.processes.other_graphs import (
    batch_size_of,
    in_linear_time,
    with_all_data,
)
from pymc_augconj.recognition.processes.other_rows import OtherRows
from pymc_augconj.recognition.processes.process import name_of
from pymc_augconj.recognition.recognizer import Recognition, read_model
from pymc_augconj.recognition.roles.structure import improper_variables
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.results.approximation.nested import NestedApproximation
from pymc_augconj.results.approximation.sparse import approximation_of
from pymc_augconj.results.approximation.summary import Fit

from .chains import signs_of_impropriety
from .chunks import chunks_of
from .sample import sample
from .sparsify import listed, sparse_problem

# Draws that show whether hyperparameters have a scale.
_DRAWS = 400
_HYPER = ("map", "ml", "fixed")

# Largest number of components of a hyperparameter for which a point estimate is made.
_LARGEST_OPTIMISED = 20

# Number of calls from which compiling a function of the model pays off.
_FIRST_CALLS = 30
# Relative rounding error of the log evidence below which no warning is given.
_RELATIVE_ERROR = 1e-9
_DEFAULT_BATCH_SIZE = 256


def fit(
    method: str = "cavi",
    *,
    model: Model | None = None,
    gp: Any = None,
    hyper: Literal["map", "ml", "fixed"] = "map",
    start: Mapping[str, Any] | Fit | None = None,
    max_iter: int = 1000,
    tol: float = 1e-6,
    random_seed: int | None = None,
    progressbar: bool = True,
    callback: Callable[[FitState], object] | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    client: Any = None,
    **options: Any,
) -> Approximation:
    """Approximate the posterior of a model's latents by a Gaussian.

    Parameters
    ----------
    method : {"cavi", "vgp", "svi", "ep", "qp", "nested"}
        ``"cavi"``: coordinate ascent on the augmented model, in closed form. ``"vgp"``: the
        Gaussian closest to the posterior in Kullback–Leibler divergence, by quadrature; its bound
        is tighter. ``"svi"``: either of these through inducing points, from minibatches, for many
        observations; augmented if every likelihood is. ``"ep"``: expectation propagation, whose
        evidence is the most accurate but no bound; it can take many times as long for densities
        that are not log-concave. ``"qp"``: quantile propagation, started from EP's solution at EP's
        hyperparameters. ``"nested"``: an integral over at most forty hyperparameters, by a design
        of points with an approximation of ``"ep"`` at each. All but ``"cavi"`` need only the
        density of a likelihood.
    model : pymc.Model, optional
        By default the model of the context.
    gp : pm.gp.Latent, or sequence of them, optional
        The Gaussian process to approximate through inducing points. Dense methods do not need
        ``gp``, but check that it belongs to the model.
    hyper : {"map", "ml", "fixed"}
        Whether hyperparameters maximise the evidence times their prior density (``"map"``; as in
        ``pm.find_MAP`` without the Jacobian of transforms) or the evidence alone (``"ml"``), or
        stay at ``start`` (``"fixed"``). ``"nested"`` integrates over them for ``"map"``.
    start : mapping or Approximation, optional
        Initial hyperparameters, by name and on the scale of the user's model; by default PyMC's
        initial point. Or an earlier fit of the model to continue: its hyperparameters, its
        inducing inputs (unless ``inducing`` has others), and with ``data`` or ``"svi"`` its
        posterior of the weights and the number of its iterations.
    max_iter : int
        Largest number of iterations: in all for ``"svi"``; otherwise at each value of the
        hyperparameters, and of their optimiser.
    tol : float
        Tolerance on the change by one more step: of means in standard deviations and of variances
        relatively, as the root of the sum of squares over observations.
    random_seed : int, optional
        Seed of the draws from the result, of minibatches and of k-means++.
    progressbar : bool
        Whether to show iterations, the bound (or EP's evidence), the residual and the time.
    callback : callable, optional
        Called after every iteration with a :class:`~pymc_augconj.engines.base.FitState`. If it
        raises ``StopIteration``, ``"svi"`` returns its current result; other exceptions, and any
        exception with the other methods, propagate.
    compile_kwargs : dict, optional
        As for :func:`~pymc_augconj.recognize`.
    data : mapping from str to array, optional
        With inducing points: all the data, by the names of the ``pm.Data`` that hold a sample of
        them in the model. The arrays are the observations and all other data that differ between
        rows, and have the same number of rows. They are Dask or Zarr arrays (any object with
        ``shape`` and slices), memory maps or arrays. Every iteration reads them a chunk at a time:
        persist a Dask array first. ``"svi"`` reads random rows of four chunks an iteration.
    client : distributed.Client or concurrent.futures pool, optional
        With ``data``: computes on the chunks, and returns only sums of M² numbers. By default this
        process computes the same numbers.
    **options
        Options of the method: ``inducing`` (``"cavi"``, ``"vgp"``, ``"svi"``), the number of
        inducing points or their inputs, and those of
        :class:`~pymc_augconj.engines.options.VGPOptions`,
        :class:`~pymc_augconj.engines.options.SVIOptions`,
        :class:`~pymc_augconj.engines.options.EPOptions` and
        :class:`~pymc_augconj.engines.options.NestedOptions`.

    Returns
    -------
    Approximation
        For :func:`~pymc_augconj.predict` and :meth:`Approximation.sample`. For ``"nested"`` a
        :class:`~pymc_augconj.NestedApproximation`, unless hyperparameters are absent or fixed.

    Raises
    ------
    AugmentationError
        If the model cannot be recognised, a hyperparameter to be optimised is discrete, or an
        option is out of its range or not one of the method's.
    NotSuperGaussianError
        If a likelihood stated by its φ has no augmentation at the final hyperparameters.
    TypeError
        If no method has an option of that name.

    Warns
    -----
    RuntimeWarning
        If the method did not converge; ``message`` of the result has the reason.

    References
    ----------
    Galy-Fajou, Wenzel & Opper (2020), Automated augmented conjugate inference. AISTATS.
    Opper & Archambeau (2009), The variational Gaussian approximation revisited. Neural
    Computation 21.

    Examples
    --------
    >>> with model:  # doctest: +SKIP
    ...     vi = pac.fit(method="cavi")
    >>> vi.log_evidence, vi.theta, vi.mean["f"]  # doctest: +SKIP
    """
    earlier = start if isinstance(start, Approximation) else None
    chosen = _checked(method, hyper, max_iter, tol, options, earlier)
    engine = ENGINES[method]
    sparse = engine.minibatches or InducingOptions.of(chosen).inducing is not None
    _check_chunked(method, data, client, sparse=sparse)
    written = modelcontext(model)
    begin = time.perf_counter()
    with ExitStack() as stack:
        stack.enter_context(blas_limit(1))
        model = _with_all_data(written, engine, data)
        if not sparse:
            model = in_linear_time(model)
        recognition = read_model(model, compile_kwargs=compile_kwargs, first_calls=_FIRST_CALLS)
        lgm = recognition.model
        lgm.require_latents()
        if data is None:
            recognition.require_proper()
        if not sparse:
            for process in listed(gp):
                name_of(process, lgm)
        values = start.theta if isinstance(start, Fit) else start
        first = _start(model, recognition, values, fixed=hyper == "fixed")
        for sentence in lgm.cautions(first):
            warnings.warn(sentence, RuntimeWarning, stacklevel=2)
        recognised = time.perf_counter()
        log_prior: LogPrior = lambda point: (0.0, {})  # noqa: E731
        if hyper == "map" and lgm.hyperparameters:
            log_prior = DensityOfPrior(model, lgm, recognition.factors, first_calls=_FIRST_CALLS)
        starts = constrained(model, [h.name for h in lgm.hyperparameters], first)
        report = _progress(stack, engine, max_iter, callback) if progressbar else callback
        if isinstance(chosen, SVIOptions) and chosen.batch_size is None:
            batch_size = batch_size_of(written) or _DEFAULT_BATCH_SIZE
            chosen = replace(chosen, batch_size=batch_size)
        chunked = None
        if data is not None:
            read = _reader(written, lgm, gp, data, first, chosen, compile_kwargs)
            run = stack.enter_context(executor_of(client))
            chunked = ChunkedData(run, read, chunks_of(data, run), read.follows)
        problem = FitProblem(
            lgm, first, recognition.probes, () if hyper == "fixed" else _members(lgm), log_prior,
            max_iter, tol, report, chosen,
            sparse_problem(written, lgm, gp, method, chosen, random_seed, chunked, earlier)
            if sparse else None,
        )  # fmt: skip
        solve = engine.sparse if sparse else engine.dense
        assert solve is not None  # given_options refuses inducing points where they are not taken
        outcome = solve(problem)
        optimised = time.perf_counter()
        result: Any = approximation_of(method, model, lgm, outcome, random_seed, problem.sparse)
        result.model = written
        if model is written:
            result.keep_recognition(recognition)
    result.timings.update(
        recognition=recognised - begin,
        optimisation=optimised - recognised,
        total=time.perf_counter() - begin,
    )
    sentences = [*_warnings(outcome), *_signs(result, written)]
    if isinstance(result, Approximation) and not sparse:
        sentences += result.signs_of_singularity(lgm, starts)
    for sentence in sentences:
        warnings.warn(f"pac.fit(method={method!r}): {sentence}", RuntimeWarning, stacklevel=2)
    return result


NestedApproximation.sampler = staticmethod(sample)


def _checked(
    method: str,
    hyper: str,
    max_iter: int,
    tol: float,
    options: dict[str, Any],
    earlier: Approximation | None,
) -> Options:
    """Return the options, with inducing points of an earlier fit by default; refuse wrong ones."""
    if method not in ENGINES:
        raise AugmentationError(f"method: expected one of {list(ENGINES)}, got {method!r}")
    if earlier and options.get("inducing") is None and ENGINES[method].takes("inducing"):
        options["inducing"] = earlier.inducing or None
    if method == "nested" and hyper == "ml":
        raise AugmentationError(
            "hyper: expected 'map', with the prior that hyperparameters are integrated over, or "
            "'fixed' with method='nested', got 'ml'; use method='ep'"
        )
    if hyper not in _HYPER:
        raise AugmentationError(f"hyper: expected one of {list(_HYPER)}, got {hyper!r}")
    COMMON["max_iter"].check("max_iter", max_iter)
    COMMON["tol"].check("tol", tol)
    return given_options(method, options)


def _warnings(outcome: FitOutcome) -> list[str]:
    """Return sentences about a fit that did not converge, or whose evidence has few digits."""
    sentences, error = [] if outcome.converged else [outcome.message], outcome.evidence_error
    if error > max(SMALL_ERROR, _RELATIVE_ERROR * abs(outcome.evidence)):
        sentences.append(
            f"the log evidence has a rounding error of about {error:.1g} nats, in whichever way it "
            "is computed; bring priors and data to similar scales before comparing it, or "
            "hyperparameters optimised by it"
        )
    return sentences


def _signs(result: Any, model: Model) -> list[str]:
    """Return sentences about an improper posterior, where hyperparameters have a distribution."""
    if not isinstance(result, NestedApproximation) or not improper_variables(model):
        return []
    return signs_of_impropriety(result.sample(_DRAWS, random_seed=0), model)


def _check_chunked(method: str, data: Any, client: Any, *, sparse: bool) -> None:
    if data is None and client is not None:
        raise AugmentationError(
            "client: expected data=…, arrays in chunks for its workers, with it; fit without "
            "client=…, or submit the fit itself: client.submit(pac.fit, …)"
        )
    if data is not None and not sparse:
        raise AugmentationError(
            "data: expected method='svi', or 'cavi' or 'vgp' with inducing=…, through which data "
            f"are seen a chunk at a time, got method={method!r}"
        )
    if data is not None and not (isinstance(data, Mapping) and data):
        raise AugmentationError(
            f"data: expected a mapping from names of pm.Data to arrays, got {type(data).__name__}"
        )


def _with_all_data(written: Model, engine: Engine, data: Any) -> Model:
    """Return the model of all the data, for a model with minibatches."""
    model = with_all_data(written)
    if model is not written and data is not None:
        raise AugmentationError(
            "data: expected a model of pm.Data that hold a sample, found pm.Minibatch; write "
            "the model with pm.Data, and pass batch_size=…"
        )
    if model is not written and not engine.minibatches:
        raise AugmentationError(
            f"method={engine.name!r}: expected all the data in the model, found pm.Minibatch; use "
            "method='svi', or write the model with the data themselves"
        )
    return model


def _reader(
    written: Model, lgm: LatentGaussianModel, gp: Any, data: Mapping[str, Any], first: Point,
    options: Options, compile_kwargs: Any,
) -> OtherRows:  # fmt: skip
    """Return the model at the rows of a chunk."""
    if not lgm.is_of_one_predictor:
        raise AugmentationError(
            "data: expected likelihoods of one predictor and processes of one output, "
            "found several; fit without data=…, by minibatches of arrays or memory maps"
        )
    moves = SVIOptions.of(options).optimize_inducing
    return OtherRows(
        written, listed(gp), tuple(data), first, compile_kwargs, gradient_of_inducing=moves
    )


def _members(lgm: LatentGaussianModel) -> tuple[Hyperparameter, ...]:
    discrete = [h.name for h in lgm.hyperparameters if not h.continuous]
    if discrete:
        raise AugmentationError(
            f"hyperparameters {discrete}: expected continuous variables, found discrete ones, "
            "which have no gradient; use hyper='fixed' with start={…}, or pac.sample"
        )
    for h in lgm.hyperparameters:
        why = h.why_not_optimised
        if why is None and h.size > _LARGEST_OPTIMISED:
            why = f"it has {h.size} components and is no Gaussian latent of the model"
        if why is not None:
            raise AugmentationError(
                f"variable {h.name!r}: expected a hyperparameter with a meaningful point estimate, "
                f"of at most {_LARGEST_OPTIMISED} components, but {why}; use pac.sample, or "
                "hyper='fixed' with start={…} to hold it at a given value"
            )
    return lgm.hyperparameters


def _start(
    model: Model, recognition: Recognition, start: Mapping[str, Any] | None, *, fixed: bool
) -> dict[str, np.ndarray]:
    point = {name: np.asarray(value) for name, value in recognition.start.items()}
    if not start:
        return point
    by_name = {h.name: h for h in recognition.model.hyperparameters}
    unknown = [name for name in start if name not in by_name]
    if unknown:
        raise AugmentationError(
            f"start: expected hyperparameters among {list(by_name)}, got {unknown}"
        )
    given = {name: _value_of(model[name], value) for name, value in start.items()}
    # The bounds of one may depend on others.
    values = constrained(model, list(by_name), point) | given
    for name, value in given.items():
        (moved,) = unconstrained_function(model, [name]).uncompiled(values)
        inside = np.isfinite(value).all() and not np.isnan(moved).any()
        # On PyMC's unconstrained scale bounds are infinite.
        if not (inside and (fixed or np.isfinite(moved).all())):
            raise AugmentationError(
                f"start: expected a value of {name!r} inside its prior's support, got "
                f"{start[name]!r}"
            )
        point[by_name[name].value_name] = np.asarray(moved)
    return point


def _value_of(rv: Any, value: Any) -> np.ndarray:
    """Return a given value of a variable, in the variable's type and shape."""
    shape, given = static_shape(rv), np.asarray(value)
    try:
        if not np.can_cast(given.dtype, rv.dtype, casting="same_kind"):
            raise TypeError
        return np.broadcast_to(given.astype(rv.dtype), shape)
    except (TypeError, ValueError):
        raise AugmentationError(
            f"start: expected {rv.dtype} values of shape {shape} for {rv.name!r}, got {value!r}"
        ) from None


def _progress(
    stack: ExitStack, engine: Engine, max_iter: int, callback: Callable[[FitState], object] | None
) -> Callable[[FitState], None]:
    """Show a progress bar until ``stack`` ends; return its update, which calls ``callback``."""
    last = f" of {max_iter}" if engine.minibatches else ""
    value = "bound" if engine.bound else "evidence"
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("iteration {task.fields[count]}" + last),
        TextColumn(value + " {task.fields[bound]:.4f}"),
        TextColumn("residual {task.fields[residual]:.1e}"),
        TimeElapsedColumn(),
    )
    progress = stack.enter_context(Progress(*columns))
    # Not visible yet, so that a refused model leaves no line of NaN.
    task = progress.add_task(
        engine.name, total=None, visible=False, count=0, bound=np.nan, residual=np.nan
    )

    def report(state: FitState) -> None:
        bound, residual = state.iteration.bound, state.iteration.residual
        progress.update(task, visible=True, count=state.count, bound=bound, residual=residual)
        if callback is not None:
            callback(state)

    return report
