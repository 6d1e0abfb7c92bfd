"""``pac.sparsify``: the target of sparse sampling as an ordinary PyMC model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pymc.model import Model, modelcontext

from pymc_augconj.engines.sparse.expected import SMALLEST_VAR, ExpectedDensity, residual_name
from pymc_augconj.engines.sparse.weights import WithResidual, weights_model
from pymc_augconj.errors import AugmentationError
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.quadrature.nodes import normal_nodes
from pymc_augconj.recognition.processes.minibatch import batch_size_of
from pymc_augconj.recognition.processes.through_inducing import (
    LARGEST_SUM,
    SparseNames,
    write_sparse,
)
from pymc_augconj.recognition.recognition import Recognition
from pymc_augconj.recognition.recognizer import read_model
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.results.approximation.layout import inducing_inputs_name, inducing_name

from .inducing import inducing_of, processes_of

__all__ = ["Sparsified", "sparsified", "sparsify"]

# Relative difference of a closed form from quadrature that is rounding, and of one rule from
# another, up to the error of fixed points.
_ROUNDING, _BY_RULE = 1e-9, 1e-2


def sparsify(
    model: Model | None = None,
    *,
    gp: Any,
    inducing: Any = None,
    random_seed: Any = None,
) -> Model:
    """Return a new model in which a process acts through its values at inducing inputs.

    With R = chol(K(Z, Z)), A = K(X, Z) R⁻ᵀ and v ~ N(0, I) the process's values at its inputs are
    N(m + A v, r) a priori, r = diag(K(X, X) − A Aᵀ), and each observation's log density is
    replaced by its expectation over r (by Gauss–Hermite quadrature; for more than three predictors
    an observation by quasi-Monte Carlo). The posterior of v and the hyperparameters is the
    free-form variational approximation of the model's own; with Z = X it is the model's own. It is
    what ``pac.sample(gp=gp, inducing=…)`` samples, and can be sampled by NUTS.

    Of a process ``f`` the new model has ``f_u_rotated_`` (v), the values ``f_u`` at the inducing
    inputs and these inputs ``f_u_inputs``; it has neither ``f`` nor deterministics that depend on
    it. :func:`~pymc_augconj.predict` predicts ``f`` from draws.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the model of the context; it is not changed.
    gp : pm.gp.Latent, or sequence of them
        The process, or several.
    inducing : int, array_like of shape (M, d), mapping or Approximation, optional
        The number of inducing points, placed by k-means++ (100 by default), or their inputs; or a
        fit through inducing points, of which inputs and hyperparameters are where chains start.
    random_seed : int, optional
        Seed of k-means++.

    Returns
    -------
    pymc.Model

    Raises
    ------
    AugmentationError
        If the model cannot be recognised; if a likelihood's expectation has a closed form that
        quadrature misses, such as that of the Laplace distribution; or as for ``pac.fit`` with
        inducing points.

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
    """A model through inducing points, for PyMC and for the Gibbs sampler.

    Attributes
    ----------
    model : pymc.Model
    recognition : Recognition
        The same as arrays.
    inexact : tuple of str
        Observed variables whose expected log density the PyMC model does not have exactly.
    """

    model: Model
    recognition: Recognition
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
    processes = processes_of(model, lgm, gp, "pac.sample or pac.sparsify", several_outputs=True)
    theta: Mapping[str, Any] = {}
    if isinstance(inducing, Approximation):
        inducing, theta = _of_fit(inducing, [process.name for process in processes])
    inputs = inducing_of(np.random.default_rng(random_seed), processes, inducing)
    names = [_names(process.name) for process in processes]
    weights = [own.weights for own in names]
    sparse = weights_model(lgm, processes, inputs, weights, recognition.start)
    given = [gp] if not isinstance(gp, Sequence) else gp
    n_predictors = {site.name: site.shape[0] for site in sparse.sites}
    triples = list(zip(given, inputs, names, strict=True))
    written = write_sparse(model, triples, theta, n_predictors, SMALLEST_VAR)
    start = written.initial_point(0)
    replaced = {process.name for process in processes}
    kinds = tuple(
        "matrix" if block.name in replaced else kind
        for block, kind in zip(lgm.blocks, recognition.kinds, strict=True)
    )
    return Sparsified(
        written,
        Recognition(sparse, kinds, recognition.factors, start),
        _inexact(sparse, start),
    )


def _names(name: str) -> SparseNames:
    own = inducing_name(name)
    return SparseNames(own, f"{own}_rotated_", inducing_inputs_name(name))


def _of_fit(fit: Approximation, names: Sequence[str]) -> tuple[Any, Mapping[str, Any]]:
    missing = [name for name in names if name not in fit.inducing]
    if missing:
        raise AugmentationError(
            f"inducing: expected a fit of {missing} through inducing points, got one "
            f"(method={fit.method!r}) with those of {list(fit.inducing)}; use "
            "pac.fit(method='svi', gp=gp, inducing=…)"
        )
    return {name: fit.inducing[name] for name in names}, fit.theta


def _inexact(lgm: LatentGaussianModel, start: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """Return the observed variables whose expectation the PyMC model does not have exactly."""
    return tuple(site.name for site in lgm.sites if not _is_exact(lgm, site, start))


def _is_exact(lgm: LatentGaussianModel, site: Site, start: Mapping[str, np.ndarray]) -> bool:
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
