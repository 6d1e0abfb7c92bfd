"""``pac.augment``: a model with its auxiliary variables written out, to look at and to check."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.model import Model, modelcontext
from pymc.model.fgraph import clone_model

from pymc_augconj.distributions.auxiliary_variable import (
    POLYA_GAMMA,
    AuxiliaryDistribution,
    Distribution,
)
from pymc_augconj.errors import RecognitionError
from pymc_augconj.likelihoods.super_gaussian import SuperGaussian
from pymc_augconj.recognition.observed.match import ObservedGraph
from pymc_augconj.recognition.prediction.variables import in_variables
from pymc_augconj.recognition.recognizer import read_model
from pymc_augconj.recognition.roles.choice import choose_structure

__all__ = ["augment"]

_LOG_2 = np.log(2.0)
_LOG_2PI = np.log(2.0 * np.pi)
# An array, because PyTensor computes with the float 0.5 in single precision: log Γ to 1e-8.
_HALF = np.array(0.5)

Tensors = Mapping[str, Any]


def augment(model: Model | None = None) -> Model:
    """Return a new model in which every auxiliary variable ω is a free variable.

    For an observed variable ``y`` the new model has ``y_omega`` with its prior density, and, under
    the name ``y``, the likelihood given ω, which is Gaussian in the predictor: exp(h η − ½ λ η²)
    times what does not depend on η. Integrating ω out gives the original model. Normal
    likelihoods, which need no ω, are left as they are; the Poisson's count of thinned events is
    ``y_thinned``.

    Draw it with ``pm.model_to_graphviz(pac.augment(model))``. It is a statement of the
    augmentation rather than a model to sample: :func:`~pymc_augconj.sample` on the original one
    draws ω exactly and keeps it out of the trace. y itself cannot be simulated from it: draws are
    NaN. Pólya–Gamma priors and those known only by their φ have no derivative.

    Parameters
    ----------
    model : pymc.Model, optional
        Taken from the context where omitted; it is not changed.

    Returns
    -------
    pymc.Model

    Raises
    ------
    AugmentationError
        If the model cannot be augmented; see :func:`~pymc_augconj.recognize`.

    Examples
    --------
    >>> aug = pac.augment(model)  # doctest: +SKIP
    >>> pm.model_to_graphviz(aug)  # doctest: +SKIP
    """
    model = modelcontext(model)
    # Refuses, with a reason, what cannot be augmented or was misread.
    read_model(model).model.require_augmentation()
    augmented = _clone(model)
    structure, matched = choose_structure(augmented)
    sites = [observed for observed in matched if observed.likelihood.has_auxiliary]
    known = [_joint_of(observed) for observed in sites]
    for observed, joint in zip(sites, known, strict=True):
        etas = in_variables(observed.predictors, structure.latents)
        dims = augmented.named_vars_to_dims.get(observed.rv.name)
        _remove(augmented, observed.rv)
        with augmented:
            _write(observed, joint, etas, dims)
    return augmented


def _clone(model: Model) -> Model:
    """Return a copy of a model, its initial values included, which PyMC's own copy refuses."""
    without = object.__new__(type(model))
    without.__dict__.update(model.__dict__)
    without.rvs_to_initial_values = dict.fromkeys(model.rvs_to_initial_values)
    with warnings.catch_warnings():
        # No GP object of the user's is used with the copy.
        warnings.filterwarnings("ignore", message="Detected variables likely created by GP")
        copy = clone_model(without)
    for rv, value in model.rvs_to_initial_values.items():
        if value is not None:
            copy.rvs_to_initial_values[copy[rv.name]] = value
    return copy


def _remove(model: Model, rv) -> None:
    """Take an observed variable out of a model."""
    (position,) = [i for i, other in enumerate(model.observed_RVs) if other is rv]
    del model.observed_RVs[position]
    value = model.rvs_to_values.pop(rv)
    model.values_to_rvs.pop(value)
    for registry in (model.rvs_to_transforms, model.rvs_to_initial_values):
        registry.pop(rv, None)
    model.named_vars.pop(rv.name)
    model.named_vars_to_dims.pop(rv.name, None)
    if getattr(model, rv.name, None) is rv:
        delattr(model, rv.name)


def _write(observed: ObservedGraph, joint: Callable, etas, dims) -> None:
    shape = observed.shape
    params = {
        name: graph.reshape(shape) if graph.ndim else graph
        for name, graph in observed.params.items()
    }
    names = list(params)
    y = observed.value.astype("float64")
    arguments = {"dims": dims} if dims is not None else {"shape": shape}
    auxiliary, log_factor = joint(observed, y, params, arguments, etas[0].reshape(shape))

    def logp(value, eta, *others):
        omegas, rest = others[: len(auxiliary)], others[len(auxiliary) :]
        named = dict(zip(names, rest, strict=True))
        return log_factor(value.astype("float64"), eta, *omegas, named)

    pm.CustomDist(
        observed.rv.name,
        etas[0].reshape(shape),
        *auxiliary,
        *params.values(),
        logp=logp,
        random=_no_draw,
        class_name="GaussianSite",
        dtype="float64",
        observed=observed.value.data if hasattr(observed.value, "data") else observed.value,
        **arguments,
    )


def _no_draw(*args, rng, size):
    """Return NaN: given ω, y has a density up to a factor only; PyMC draws to find a shape."""
    shape = np.broadcast_shapes(*map(np.shape, args)) if size is None else size
    return np.full(shape, np.nan)


# -- one function a likelihood: its ω, and log p(y | η, ω) ----------------------------------------


def _normal(y, eta, precision):
    return 0.5 * (pt.log(precision) - _LOG_2PI - precision * (y - eta) ** 2)


def _of_precision(prior: Callable[[Tensors, str, dict], Any], scale: float = 1.0):
    """y | ω ~ N(η, 1/(scale ω))."""

    def joint(observed, y, params, arguments, eta):
        omega = prior(params, f"{observed.rv.name}_omega", arguments)
        return [omega], lambda y, eta, omega, params: _normal(y, eta, scale * omega)

    return joint


def _asymmetric_laplace(observed, y, params, arguments, eta):
    def slopes(params):
        b, kappa = params["b"], params["kappa"]
        return 0.5 * b * (kappa + 1.0 / kappa), 0.5 * b * (kappa - 1.0 / kappa)

    a, _ = slopes(params)
    omega = pm.InverseGamma(f"{observed.rv.name}_omega", 1.0, 0.5 * a**2, **arguments)

    def log_factor(y, eta, omega, params):
        a, d = slopes(params)
        return _normal(y, eta, omega) + 2.0 * pt.log(params["b"] / a) - d * (y - eta)

    return [omega], log_factor


def _polya_gamma(
    shape: Callable[[Any, Tensors], Any], log_factor: Callable[[Any, Any, Any, Tensors], Any]
):
    def joint(observed, y, params, arguments, eta):
        h = shape(y, params) + pt.zeros(observed.shape)
        name = f"{observed.rv.name}_omega"
        omega = AuxiliaryDistribution(name, POLYA_GAMMA, [h], **arguments)
        return [omega], log_factor

    return joint


def _bernoulli_probit(observed, y, params, arguments, eta):
    start = pt.where(y > 0, 1.0, -1.0)
    z = pm.Normal(f"{observed.rv.name}_omega", eta, 1.0, initval=start.eval(), **arguments)
    return [z], lambda y, eta, z, params: pt.where(pt.eq(z > 0, y > 0), 0.0, -np.inf)


def _binomial(y, eta, omega, params):
    n = params["n"]
    lam = pt.where(n > 0, omega, 0.0)  # without trials as for the Poisson
    return _log_binomial(n, y) - n * _LOG_2 + (y - 0.5 * n) * eta - 0.5 * lam * eta**2


def _poisson(observed, y, params, arguments, eta):
    name = observed.rv.name
    n = pm.Poisson(f"{name}_thinned", params["rate"], **arguments)
    # PG(0, ·) is zero with certainty: there the site ignores ω, whose distribution is then any.
    h = pt.maximum(y + n, 1.0)
    omega = AuxiliaryDistribution(f"{name}_omega", POLYA_GAMMA, [h], **arguments)

    def log_factor(y, eta, n, omega, params):
        h = y + n
        lam = pt.where(h > 0, omega, 0.0)
        log_constant = y * pt.log(params["rate"]) - pt.gammaln(y + 1.0) - h * _LOG_2
        return log_constant + 0.5 * (y - n) * eta - 0.5 * lam * eta**2

    return [n, omega], log_factor


def _bayesian_svm(observed, y, params, arguments, eta):
    omega = pm.InverseGamma(f"{observed.rv.name}_omega", _HALF, _HALF, **arguments)
    return [omega], lambda y, eta, omega, params: y * eta - 1.0 - 0.5 * omega * (1.0 - y * eta) ** 2


def _super_gaussian(observed, y, params, arguments, eta):
    likelihood: SuperGaussian = observed.likelihood
    names = likelihood.phi.names

    def logpdf(omega, *values):
        omega, *values = np.broadcast_arrays(omega, *values)
        return likelihood.log_prior(omega, dict(zip(names, values, strict=True)))

    def random(rng, shape, *values):
        return likelihood.draw_prior(rng, shape, dict(zip(names, values, strict=True)))

    distribution = Distribution("InverseLaplace", logpdf, random)
    hyper = [params[name] for name in names]
    omega = AuxiliaryDistribution(f"{observed.rv.name}_omega", distribution, hyper, **arguments)

    def log_factor(y, eta, omega, params):
        if likelihood.is_location:
            return params["log_c"] - omega * (y - eta) ** 2
        square = params["alpha"] - params["beta"] * eta + params["gamma"] * eta**2
        return params["log_c"] + params["g"] * eta - omega * square

    return [omega], log_factor


def _log_binomial(n, y):
    return pt.gammaln(n + 1.0) - pt.gammaln(y + 1.0) - pt.gammaln(n - y + 1.0)


_JOINTS: dict[str, Callable] = {
    "StudentT": _of_precision(
        lambda p, name, kw: pm.Gamma(name, 0.5 * p["nu"], 0.5 * p["nu"] * p["sigma"] ** 2, **kw)
    ),
    "Cauchy": _of_precision(
        lambda p, name, kw: pm.Gamma(name, _HALF, _HALF * p["beta"] ** 2, **kw)
    ),
    "Laplace": _of_precision(
        lambda p, name, kw: pm.InverseGamma(name, 1.0, 0.5 / p["b"] ** 2, **kw)
    ),
    "MaternNoise": _of_precision(
        lambda p, name, kw: pm.InverseGamma(
            name, p["nu"] + 0.5, 0.5 * p["nu"] / p["rho"] ** 2, **kw
        ),
        scale=2.0,
    ),
    "AsymmetricLaplace": _asymmetric_laplace,
    "Logistic": _polya_gamma(
        lambda y, p: 2.0,
        lambda y, eta, w, p: -pt.log(4.0 * p["s"]) - 0.5 * w * ((y - eta) / p["s"]) ** 2,
    ),
    "BernoulliLogit": _polya_gamma(
        lambda y, p: 1.0, lambda y, eta, w, p: -_LOG_2 + (y - 0.5) * eta - 0.5 * w * eta**2
    ),
    "BinomialLogit": _polya_gamma(lambda y, p: pt.maximum(p["n"], 1.0), _binomial),
    "NegativeBinomial": _polya_gamma(
        lambda y, p: y + p["alpha"],
        lambda y, eta, w, p: (
            _log_binomial(y + p["alpha"] - 1.0, y)
            - (y + p["alpha"]) * _LOG_2
            + 0.5 * (y - p["alpha"]) * eta
            - 0.5 * w * eta**2
        ),
    ),
    "BernoulliProbit": _bernoulli_probit,
    "PoissonSigmoid": _poisson,
    "BayesianSVM": _bayesian_svm,
    "SuperGaussian": _super_gaussian,
}


def _joint_of(observed: ObservedGraph) -> Callable:
    name = type(observed.likelihood).__name__
    if name not in _JOINTS:
        raise RecognitionError(
            f"observed variable {observed.rv.name!r}: pac.augment can write out the auxiliary "
            f"variables of {', '.join(sorted(_JOINTS))}, found {name}; pac.sample augments it"
        )
    return _JOINTS[name]
