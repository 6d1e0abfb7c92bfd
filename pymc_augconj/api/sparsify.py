"""Models through inducing points: ``pac.sparsify``, and the sparse problems of ``pac.fit``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pymc.model import Model, modelcontext
from pymc.stats.convergence import SamplerWarning, WarningType

from pymc_augconj.engines.base import FirstWeights, SparseProblem
from pymc_augconj.engines.options import InducingOptions, Options, SVIOptions
from pymc_augconj.engines.sparse.chunks import ChunkedData, ChunkedInputs
from pymc_augconj.engines.sparse.inducing import inducing_inputs
from pymc_augconj.engines.sparse.weights import (
    SMALLEST_VAR,
    ExpectedDensity,
    WithResidual,
    residual_name,
    weights_model,
)
from pymc_augconj.errors import AugmentationError
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.quadrature.expectation import normal_nodes
from pymc_augconj.recognition.checks.checks import WholeDensity
from pymc_augconj.recognition.prediction.evaluate import unconstrained_function
from pymc_augconj.recognition.processes.other_graphs import batch_size_of
from pymc_augconj.recognition.processes.process import (
    LARGEST_SUM,
    LatentProcess,
    SparseNames,
    nodes_of,
    write_sparse,
)
from pymc_augconj.recognition.recognizer import Recognition, read_model
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.results.approximation.fitted_model import (
    Labels,
    inducing_inputs_name,
    inducing_name,
)
from pymc_augconj.results.approximation.sparse import SparseApproximation
from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.predictions import needed_draws, predictions_tree

from .step import PythonGibbs

# Inducing points of a process.
_DEFAULT_NUMBER = 100

# Relative difference of a closed form from quadrature that is rounding, and of one rule from
# another, up to the error of fixed points.
_ROUNDING, _BY_RULE = 1e-9, 1e-2


def sparsify(
    model: Model | None = None, *, gp: Any, inducing: Any = None, random_seed: Any = None
) -> Model:
    """Return a new model in which a process acts through its values at inducing inputs.

    With R = chol(K(Z, Z)), A = K(X, Z) R⁻ᵀ and v ~ N(0, I) the process's values at its inputs are
    N(m + A v, r) a priori, r = diag(K(X, X) − A Aᵀ), and each observation's log density is
    replaced by its expectation over r (by Gauss–Hermite quadrature; for more than three predictors
    an observation by quasi-Monte Carlo). The posterior of v and the hyperparameters is the
    free-form variational approximation of the model's posterior; with Z = X the two are equal.
    ``pac.sample(gp=gp, inducing=…)`` samples it, and so can NUTS.

    For a process ``f`` the new model has ``f_u_rotated_`` (v), the values ``f_u`` at the inducing
    inputs, and the inputs ``f_u_inputs``; it has neither ``f`` nor deterministics that depend on
    ``f``. :func:`~pymc_augconj.predict` predicts ``f`` from draws.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the model of the context; it is not changed.
    gp : pm.gp.Latent, or sequence of them
        The process, or several.
    inducing : int, array_like of shape (M, d), mapping or Approximation, optional
        The number of inducing points, placed by k-means++ (100 by default), or their inputs; or a
        fit through inducing points, whose inputs and hyperparameters are the start of chains.
    random_seed : int, optional
        Seed of k-means++.

    Returns
    -------
    pymc.Model

    Raises
    ------
    AugmentationError
        If the model cannot be recognised; if quadrature misses the closed form of a likelihood's
        expectation, as for the Laplace distribution; or as for ``pac.fit`` with inducing points.

    References
    ----------
    Hensman, Matthews, Filippone & Ghahramani (2015), MCMC for variationally sparse Gaussian
    processes. NIPS.

    Examples
    --------
    >>> with pac.sparsify(model, gp=gp, inducing=50):  # doctest: +SKIP
    ...     idata = pm.sample()
    """
    found = sparsified(modelcontext(model), gp, inducing, random_seed)
    if found.inexact:
        raise AugmentationError(
            f"observed variables {list(found.inexact)}: expected log densities whose expectation "
            "quadrature finds, but theirs have a kink, a jump or a singularity, or depend on "
            f"more than {LARGEST_SUM} processes; use pac.sample(gp=gp, inducing=…)"
        )
    return found.model


@dataclass(frozen=True)
class Sparsified:
    """A model through inducing points, for PyMC and for the Gibbs sampler."""

    model: Model
    recognition: Recognition
    # Observed variables whose expected log density the PyMC model does not have exactly.
    inexact: tuple[str, ...]


def sparsified(
    model: Model,
    gp: Any,
    inducing: Any,
    random_seed: Any = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> Sparsified:
    """Return the model through inducing points; arguments as for :func:`sparsify`."""
    if batch_size_of(model) is not None:
        raise AugmentationError(
            "expected all the data in the model for sampling through inducing points, found "
            "pm.Minibatch; write the model with the arrays themselves"
        )
    recognition = read_model(model, compile_kwargs=compile_kwargs)
    recognition.require_proper()
    lgm = recognition.model
    processes = _processes_of(model, lgm, gp, "pac.sample or pac.sparsify")
    theta: Mapping[str, Any] = {}
    if isinstance(inducing, Approximation):
        inducing, theta = _of_fit(inducing, [process.name for process in processes])
    inputs = _inducing_of(np.random.default_rng(random_seed), processes, inducing)
    own = {process.name: inducing_name(process.name) for process in processes}
    names = [SparseNames(u, f"{u}_rotated_", inducing_inputs_name(f)) for f, u in own.items()]
    weights = [own.weights for own in names]
    sparse = weights_model(lgm, processes, inputs, weights, recognition.start)
    n_predictors = {site.name: site.shape[0] for site in sparse.sites}
    triples = list(zip(listed(gp), inputs, names, strict=True))
    written = write_sparse(model, triples, theta, n_predictors, SMALLEST_VAR)
    start = written.initial_point(0)
    replaced = {process.name for process in processes}
    pairs = zip(lgm.blocks, recognition.kinds, strict=True)
    kinds = tuple("matrix" if block.name in replaced else kind for block, kind in pairs)
    return Sparsified(
        written,
        Recognition(sparse, kinds, recognition.factors, start),
        tuple(site.name for site in sparse.sites if not _is_exact(sparse, site, start)),
    )


def _of_fit(fit: Approximation, names: Sequence[str]) -> tuple[Any, Mapping[str, Any]]:
    missing = [name for name in names if name not in fit.inducing]
    if missing:
        raise AugmentationError(
            f"inducing: expected a fit of {missing} through inducing points, got a fit "
            f"(method={fit.method!r}) with inducing points of {list(fit.inducing)}; use "
            "pac.fit(method='svi', gp=gp, inducing=…)"
        )
    return {name: fit.inducing[name] for name in names}, fit.theta


def _is_exact(lgm: LatentGaussianModel, site: Site, start: Mapping[str, np.ndarray]) -> bool:
    """Return whether the PyMC model has the expectation of an observed variable exactly."""
    assert isinstance(site.likelihood, ExpectedDensity)
    assert isinstance(site.params, WithResidual)
    P, outputs = site.shape[0], site.params.outputs
    if (outputs > LARGEST_SUM) if P == 1 else (outputs != P):
        return False
    y = site.y(start)
    mean = np.array(site.select(lgm.offset(start)), dtype=float)
    density, params, nodes = site.likelihood, site.params(start), normal_nodes(P)
    tolerance = _BY_RULE if density.terms.traits.expected_by_rule else _ROUNDING
    for std in (0.1, 1.0):
        params |= {residual_name(p): np.full(y.size, std**2) for p in range(P)}
        closed = density.closed(y, mean, params)
        if closed is None:
            return True
        sums = density.summed(y, mean, params, *nodes)
        if not np.allclose(sums, closed, rtol=tolerance, atol=tolerance):
            return False
    return True


def listed(gp: Any) -> list[Any]:
    """Return the given processes: none, one or several."""
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
    processes = _processes_of(model, lgm, gp, f"method={method!r}", gradient_of_inducing=moves)
    inducing = _inducing_of(rng, processes, InducingOptions.of(options).inducing, data)
    first = None if earlier is None else _weights_of(earlier, lgm, processes, inducing)
    return SparseProblem(processes, inducing, rng, data, first)


def _weights_of(
    earlier: Approximation,
    lgm: LatentGaussianModel,
    processes: Sequence[LatentProcess],
    inducing: Sequence[np.ndarray],
) -> FirstWeights | None:
    """Return the posterior of the weights of an earlier fit; None if the weights differ."""
    if not (lgm.is_of_one_predictor and isinstance(earlier, SparseApproximation)):
        return None
    same = map(np.array_equal, earlier.inducing.values(), inducing)
    if list(earlier.inducing) != [process.name for process in processes] or not all(same):
        return None
    count = len(earlier.history) if earlier.method == "svi" else 0
    return FirstWeights(*earlier.natural_weights(), count)


def _processes_of(
    model: Model,
    lgm: LatentGaussianModel,
    gp: Any,
    what: str,
    *,
    gradient_of_inducing: bool = False,
) -> list[LatentProcess]:
    """Return the processes to approximate through inducing points; refuse reserved names."""
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


def _inducing_of(
    rng: np.random.Generator,
    processes: Sequence[LatentProcess],
    given: Any,
    data: ChunkedData | None = None,
) -> list[np.ndarray]:
    """Return the inducing inputs of each process; numbers are placed among those of ``data``."""
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
            inputs = ChunkedInputs(data, i)
        found.append(_inputs_of(rng, process, inputs, given[process.name]))
    return found


def _inputs_of(
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


_GROUP = "log_likelihood"
_OPTION = f"idata_kwargs[{_GROUP!r}]"

# Entries of the largest array from which PyMC's log density, with many such, is not evaluated.
_LARGEST_COMPARED = 2_000_000

# Error of the log density by quadrature from which a warning is given.
_LARGEST = 0.1


class SparseGibbs(PythonGibbs):
    """:class:`.AugmentedGibbs` for ``sparsified.model``, with all sites held."""

    def __init__(self, *, sparsified: Sparsified, **kwargs: Any) -> None:
        self._given: Sparsified | None = sparsified
        super().__init__(**kwargs)
        # Has been read; the graphs of a model need not go to worker processes.
        self._given = None

    def _read(
        self, model: Model, vars: Sequence[Any] | None, sites: str, compile_kwargs: Any
    ) -> tuple[Recognition, tuple[str, ...], WholeDensity | None]:
        given = self._given
        assert given is not None  # in the constructor
        lgm = given.recognition.model
        largest, by_rule = lgm.n_rows * lgm.latent_size, False
        for site in lgm.sites:
            assert isinstance(site.likelihood, ExpectedDensity)
            assert isinstance(site.params, WithResidual)
            # That of PyMC's model is another one.
            by_rule |= site.likelihood.terms.traits.expected_by_rule
            _, weights = nodes_of(max(site.params.outputs, 1), site.shape[0])
            largest = max(largest, weights.size * site.row_numbers.size)
        large = largest > _LARGEST_COMPARED
        density = None if given.inexact or by_rule or large else WholeDensity(model)
        return given.recognition, tuple(site.name for site in lgm.sites), density

    def _warn(self, trials: float) -> SamplerWarning | None:
        first = not (self.tune or self._warned)
        found = super()._warn(trials)
        return self._warn_of_quadrature() if first and found is None else found

    def _warn_of_quadrature(self) -> SamplerWarning | None:
        """Return a warning if sums by quadrature differ from the expectations."""
        assert self._sampler is not None  # in a step
        inexact = []
        (part,) = self._sampler.parts
        for data, _ in part.members:
            density, eta = data.site.likelihood, data.site.select(part.eta)
            assert isinstance(density, ExpectedDensity)
            if density.error(data.y, eta, data.params) > _LARGEST:
                inexact.append(data.site.name)
        if not inexact:
            return None
        return SamplerWarning(
            WarningType.BAD_PARAMS,
            f"The expected log densities of {inexact}: their quadrature has an error of "
            f"more than {_LARGEST} in their sum, since the process varies between the inducing "
            "points by more than the width of the densities. Use more inducing points.",
            "warn",
        )


def observed_names(
    model: Model, sparse: Model, asked: bool | Collection[str], kwargs: Mapping[str, Any]
) -> list[str]:
    """Return the observed variables that ``idata_kwargs={"log_likelihood": …}`` asks for."""
    known = [rv.name for rv in model.observed_RVs]
    if isinstance(asked, bool):
        names = known if asked else []
    elif unknown := set(asked) - set(known):
        raise AugmentationError(
            f"{_OPTION}: expected True or names among {known}, got {sorted(unknown)}"
        )
    else:
        names = [name for name in known if name in asked]
    if names and not kwargs.get("return_inferencedata", True):
        raise AugmentationError(
            f"{_OPTION}: expected a DataTree to add to, got return_inferencedata=False; leave out "
            "one of them"
        )
    free = [rv.name for rv in sparse.free_RVs]
    if names and (missing := set(free) - set(kwargs.get("var_names") or free)):
        raise AugmentationError(
            f"{_OPTION}: expected the draws of all free variables to be kept, found no "
            f"{sorted(missing)} in var_names; add them, or leave out var_names"
        )
    return names


def add_log_likelihood(
    tree: DataTree, step: PythonGibbs, sparse: Model, model: Model, names: Collection[str]
) -> DataTree:
    """Return draws of ``sparse`` with the group ``log_likelihood``.

    Its entries are E log p(y_i | f_i) given the values at the inducing inputs and the
    hyperparameters, the log factors of the draws' own distribution: leaving an observation out
    divides by its factor.
    """
    draws, sampled = needed_draws(tree, [rv.name for rv in sparse.free_RVs])
    variables = {rv.name: sparse.rvs_to_values[rv].name for rv in sparse.free_RVs}
    entries = unconstrained_function(sparse, list(variables))
    sampler = step.make_sampler(step.recognition.start, by_observation=True)
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for i in range(len(sampled[0]) * len(sampled[1])):
        point = entries({name: draws[name][i] for name in entries.names})
        point = dict(zip(variables.values(), map(np.asarray, point), strict=True))
        for name, densities in sampler.log_densities(point).items():
            if name in found:
                found[name].append(densities)
    labels = Labels.of_model(model)
    dimmed = {}
    for name, rows in found.items():
        # Observations are flat here, whatever axes the variable has.
        dims = labels.of(name, 1)
        dim = dims[0] if len(dims) == 1 else f"{name}_dim_0"
        dimmed[name] = ("sample", dim), np.array(rows)
    tree.update(predictions_tree(dimmed, labels.coords, {}, sampled, _GROUP))
    return tree
