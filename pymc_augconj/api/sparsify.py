"""``pac.sparsify``: the target of sparse sampling as an ordinary PyMC model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.model import Model, modelcontext
from pytensor.graph.basic import Variable
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.slinalg import solve_triangular

from pymc_augconj.engines.sparse.expected import (
    SMALLEST_VAR,
    ExpectedDensity,
    hermite,
)
from pymc_augconj.engines.sparse.weights import weights_model
from pymc_augconj.errors import AugmentationError
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.rewrite import substitute
from pymc_augconj.recognition.processes.minibatch import batch_size_of
from pymc_augconj.recognition.processes.process import JITTER, LatentProcess
from pymc_augconj.recognition.recognition import Recognition
from pymc_augconj.recognition.recognizer import read_model
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.results.approximation.layout import inducing_inputs_name, inducing_name

from .inducing import inducing_of

__all__ = ["Sparsified", "sparsify", "sparsified"]

# Relative difference of a closed form from quadrature that is rounding.
_ROUNDING = 1e-9


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
    replaced by its expectation over r (Gauss–Hermite quadrature with 32 nodes). The posterior of v
    and the hyperparameters is the free-form variational approximation of the model's own; with
    Z = X it is the model's own. It is what ``pac.sample(gp=gp, inducing=…)`` samples, and can be
    sampled by NUTS.

    Of a process ``f`` the new model has ``f_u_rotated_`` (v), the values ``f_u`` at the inducing
    inputs and these inputs ``f_u_inputs``; it has neither ``f`` nor deterministics that depend on
    it. :func:`~pymc_augconj.predict` predicts ``f`` from draws.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the model of the context; it is not changed.
    gp : pm.gp.Latent
        The process.
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
            "Gauss–Hermite quadrature finds, but theirs have a kink or a singularity; use "
            "pac.sample(gp=gp, inducing=…), which has them in closed form"
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
    if isinstance(gp, list | tuple):
        if len(gp) != 1:
            raise AugmentationError(
                f"gp: expected one pm.gp.Latent for sampling through inducing points, got "
                f"{len(gp)}; fit several with pac.fit(method='svi')"
            )
        (gp,) = gp
    if gp is None:
        raise AugmentationError(
            "gp: expected the pm.gp.Latent to approximate through inducing points, got none; "
            "pass gp=gp"
        )
    recognition = read_model(model, compile_kwargs=compile_kwargs)
    lgm = recognition.model
    process = LatentProcess(model, gp, lgm)
    theta: Mapping[str, Any] = {}
    if isinstance(inducing, Approximation):
        inducing, theta = _of_fit(inducing, process.name)
    Z = inducing_of(process, inducing, random_seed)
    written = _write(model, gp, process.name, Z, theta)
    weights = f"{inducing_name(process.name)}_rotated_"
    start = written.initial_point(0)
    sparse = weights_model(lgm, [process], [Z], [weights], {**recognition.start, **start})
    kinds = tuple(
        "matrix" if block.name == process.name else kind
        for block, kind in zip(lgm.blocks, recognition.kinds, strict=True)
    )
    return Sparsified(
        written,
        Recognition(sparse, kinds, recognition.factors, start),
        _inexact(sparse, start),
    )


def _of_fit(fit: Approximation, name: str) -> tuple[Any, Mapping[str, Any]]:
    if name not in fit.inducing:
        raise AugmentationError(
            f"inducing: expected a fit of {name!r} through inducing points, got one "
            f"(method={fit.method!r}) with those of {list(fit.inducing)}; use "
            "pac.fit(method='svi', gp=gp, inducing=…)"
        )
    return fit.inducing[name], fit.theta


def _inexact(lgm: LatentGaussianModel, start: Mapping[str, np.ndarray]) -> tuple[str, ...]:
    """Return the observed variables whose closed form quadrature does not find."""
    nodes, weights = hermite()
    found = []
    for site in lgm.sites:
        assert isinstance(site.likelihood, ExpectedDensity)
        terms, params = site.likelihood.terms, site.params(start)
        y = np.array(site.y(start), dtype=float)
        mean = np.array(site.select(lgm.offset(start)), dtype=float)
        for std in (0.1, 1.0):
            var = np.full((1, 1, y.size), std**2)
            closed = terms.expected_log_density(y, mean, var, params)
            if closed is None:
                break
            eta = mean[:, None] + std * nodes[:, None]
            sums = weights @ terms.log_density(y, eta, params)
            if not np.allclose(sums, closed[0], rtol=_ROUNDING, atol=_ROUNDING):
                found.append(site.name)
                break
    return tuple(found)


def _write(model: Model, gp: Any, name: str, Z: np.ndarray, theta: Mapping[str, Any]) -> Model:
    """Return the PyMC model through inducing points."""
    process = model[name]
    whitened = _whitened_of(model, process)
    for reserved in _names(name):
        if reserved in model.named_vars:
            raise AugmentationError(
                f"variable {reserved!r} of the model: expected a different name, since draws of "
                f"{name!r} through inducing points are stored under it; rename it"
            )
    # Names are those of the user's model, prefix included.
    sparse = pm.Model(coords=dict(model.coords), model=None)
    replaced: dict[Variable, Variable] = {}
    moments: tuple[Variable, Variable] | None = None
    with sparse:
        # In the order of definition every variable comes after those that it depends on.
        for var in model.named_vars.values():
            if var is whitened:
                continue
            dims = model.named_vars_to_dims.get(var.name)
            if var in model.data_vars:
                sparse.register_data_var(var, dims=dims)
                continue
            if var is process:
                moments = _through_inducing(gp, name, Z, replaced)
                replaced[var] = var.type(name=name)
                continue
            (new,) = substitute([var], replaced)
            moved = moments is not None and depends_on(new, [replaced[process]])
            if var in model.deterministics:
                if moved:
                    replaced[var] = new
                else:
                    replaced[var] = pm.Deterministic(var.name, new, dims=dims)
            elif var in model.potentials:
                term = _expected(new, replaced[process], *moments) if moved else new
                replaced[var] = pm.Potential(var.name, term, dims=None if moved else dims)
            elif var in model.observed_RVs:
                value = model.rvs_to_values[var]
                if moved:
                    density = pm.logp(new, value)
                    term = _expected(density, replaced[process], *moments)
                    replaced[var] = pm.Potential(var.name, term)
                else:
                    replaced[var] = sparse.register_rv(new, var.name, observed=value, dims=dims)
            else:
                start = theta.get(var.name, model.rvs_to_initial_values.get(var))
                replaced[var] = sparse.register_rv(
                    new, var.name, dims=dims, initval=start,
                    transform=model.rvs_to_transforms[var], default_transform=None,
                )  # fmt: skip
    return sparse


def _names(name: str) -> tuple[str, str, str]:
    own = inducing_name(name)
    return own, f"{own}_rotated_", inducing_inputs_name(name)


def _whitened_of(model: Model, process: Variable) -> Variable | None:
    """Return the free variable of which a reparameterised process is a function."""
    if process in model.free_RVs:
        return None
    by_name = {rv.name: rv for rv in model.free_RVs}
    return by_name.get(f"{process.name}_rotated_")


def _through_inducing(
    gp: Any, name: str, Z: np.ndarray, replaced: Mapping[Variable, Variable]
) -> tuple[Variable, Variable]:
    """Write the weights and return mean and residual standard deviations of a process."""
    u_name, v_name, z_name = _names(name)
    pm.Data(z_name, Z)
    v = pm.Normal(v_name, 0.0, 1.0, shape=len(Z))
    X = pt.as_tensor(gp.X)
    graphs = [
        gp.cov_func(Z),
        gp.cov_func(X, Z),
        gp.cov_func(X, diag=True),
        pt.broadcast_to(gp.mean_func(X), (X.shape[0],)),
        pt.broadcast_to(gp.mean_func(Z), (len(Z),)),
    ]
    zz, xz, diagonal, mean, mean_at = substitute([pt.as_tensor(g) for g in graphs], replaced)
    R = pt.linalg.cholesky(zz + JITTER * pt.eye(len(Z)))
    At = solve_triangular(R, xz.T, lower=True)
    pm.Deterministic(u_name, mean_at + R @ v)
    var = pt.maximum(diagonal - pt.sqr(At).sum(axis=0), SMALLEST_VAR)
    return mean + v @ At, pt.sqrt(var)


def _expected(density: Variable, process: Variable, mean: Variable, std: Variable) -> Variable:
    """Return Σ_q w_q of a sum of log densities with the process at its q-th nodes."""
    nodes, weights = hermite()
    at = mean + pt.constant(nodes[:, None]) * std
    (terms,) = vectorize_graph([density.astype("float64")], {process: at})
    return pt.dot(pt.constant(weights), terms.reshape((len(nodes), -1)).sum(axis=1))
