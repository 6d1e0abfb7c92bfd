"""Mixtures of augmented likelihoods, with an allocation of each observation to a component.

    p(y | η) = Σ_k w_k p_k(y | η_k),
    z | y, η  with  P(z = k) ∝ w_k p_k(y | η_k),    ω | z, y, η ~ p_z(ω | y, η_z),
    λ and h of predictor η_z come from component z given ω; for the other predictors they are zero.

The auxiliary variable is the pair (z, ω). Components may share a predictor, or have none: then η_k
is a parameter. With b_k(m, v) the bound of component k, the bound of the mixture is
log Σ w_k exp(b_k); its sites are the components' sites times responsibilities r_k ∝ w_k exp(b_k).

References
----------
Diebolt & Robert (1994), Estimation of finite mixture distributions through Bayesian sampling.
Journal of the Royal Statistical Society B 56.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.typing import Array, Generator, Index

from .base import Joint, JointWriter, Likelihood, Params, Sites
from .contract import MultiLikelihood, select_params


@dataclass(frozen=True)
class MixtureComponent:
    """One component, of one predictor or none.

    Its weight is ``params["log_weight_k"]``, k its ``number``; its η is the mixture's predictor
    number ``predictor``, or ``params["eta_k"]``. ``names`` maps its own names of parameters to
    names in ``params``.
    """

    likelihood: Likelihood
    number: int
    predictor: int | None
    names: Mapping[str, str]

    def params(self, params: Params) -> dict[str, Array]:
        return {name: params[given] for name, given in self.names.items()}

    def eta(self, eta: Array, params: Params) -> Array:
        if self.predictor is not None:
            return eta[self.predictor]
        return np.broadcast_to(params[f"eta_{self.number}"], eta.shape[1:])


class MixtureLikelihood(MultiLikelihood):
    """A mixture of likelihoods of one predictor each."""

    patterns = ()
    augmentation = "allocation, then that of its component"

    def __init__(self, components: Sequence[MixtureComponent]) -> None:
        self._components = tuple(components)
        kinds = [component.likelihood for component in components]
        links = {kind.link for kind in kinds}
        self.name = f"mixture of {' and '.join(dict.fromkeys(kind.name for kind in kinds))}"
        self.link = links.pop() if len(links) == 1 else "its own"
        self.discrete = all(kind.discrete for kind in kinds)
        self.n_predictors = len({c.predictor for c in components} - {None})
        reasons = [kind.why_no_bound for kind in kinds if kind.why_no_bound is not None]
        self.why_no_bound = reasons[0] if reasons else None

    def check(self, y: Array, params: Params) -> str | None:
        found = [c.likelihood.check(y, c.params(params)) for c in self._components]
        return None if None in found else found[0]

    def check_augmentation(self, params: Params) -> str | None:
        found = (c.likelihood.check_augmentation(c.params(params)) for c in self._components)
        return next((sentence for sentence in found if sentence is not None), None)

    def log_density(self, y: Array, eta: Array, params: Params) -> Array:
        return _log_sum(self._log_joint(y, eta, params))

    def moments(self, eta: Array, params: Params) -> tuple[Array, Array] | None:
        mean, square = np.zeros(eta.shape[1:]), np.zeros(eta.shape[1:])
        for one in self._components:
            found = one.likelihood.moments(one.eta(eta, params), one.params(params))
            if found is None:
                return None
            weight = np.exp(params[f"log_weight_{one.number}"])
            mean, square = mean + weight * found[0], square + weight * (found[1] + found[0] ** 2)
        return mean, square - mean**2

    def cdf(self, y: Array, eta: Array, params: Params) -> Array:
        parts = [
            np.exp(params[f"log_weight_{one.number}"])
            * one.likelihood.cdf(y, one.eta(eta, params), one.params(params))
            for one in self._components
        ]
        return np.sum(parts, axis=0)

    def as_normal_components(self, y: Array, params: Params) -> list[tuple[Any, ...]] | None:
        found: list[tuple[Any, ...]] = []
        for one in self._components:
            own, kind = one.params(params), one.likelihood
            normal = None if one.predictor is None else kind.as_normal(y, own)
            if normal is None:
                return None
            log_peak = params[f"log_weight_{one.number}"] + kind.log_density(y, normal[0], own)
            found.append((one.predictor, *normal, log_peak))
        return found

    def draw_auxiliary(
        self, rng: Generator, y: Array, eta: Array, params: Params, group: int
    ) -> tuple[Index, list[Any]]:
        log_joint = self._log_joint(y, eta, params)
        with np.errstate(invalid="ignore"):
            bounds = np.exp(log_joint - log_joint.max(axis=0)).cumsum(axis=0)
        z = (bounds[:-1] <= rng.random(y.shape) * bounds[-1]).sum(axis=0)

        def draw(one: MixtureComponent, at: Index) -> Any:
            return one.likelihood.draw_auxiliary(rng, *_at(one, at, y, eta, params))

        return z, [draw(one, np.flatnonzero(z == k)) for k, one in enumerate(self._components)]

    def sites(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Sites:
        h, lam = np.zeros((2, self.n_predictors, y.size))
        for one, at, own in self._allocated(omega):
            if one.predictor is not None:
                y_at, _, params_at = _at(one, at, y, eta, params)
                h[one.predictor, at], lam[one.predictor, at] = one.likelihood.sites(
                    y_at, own, params_at
                )
        return h, lam

    def expected_sites(self, y: Array, mean: Array, var: Array, params: Params) -> Sites:
        bounds = self._bounds(y, mean, var, params)
        weights = np.exp(bounds - _log_sum(bounds))
        h, lam = np.zeros((2, *mean.shape))
        for one, weight in zip(self._components, weights, strict=True):
            p = one.predictor
            if p is not None:
                found = one.likelihood.expected_sites(y, mean[p], var[p], one.params(params))
                h[p] += weight * found[0]
                lam[p] += weight * found[1]
        return h, lam

    def expected_log_bound(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        return _log_sum(self._bounds(y, mean, var, params))

    def log_base(self, y: Array, omega: Any, params: Params, eta: Array, group: int) -> Array:
        def base(one: MixtureComponent, y: Array, eta: Array, own: Params, omega: Any) -> Array:
            found = one.likelihood.log_base(y, omega, own)
            if one.predictor is None:
                h, lam = one.likelihood.sites(y, omega, own)
                found = found + h * eta - 0.5 * lam * eta**2
            return found

        return self._of_allocated(base, y, eta, params, omega) + self._log_weight(omega, y, params)

    def log_conditional(
        self, omega: Any, y: Array, eta: Array, params: Params, group: int
    ) -> Array:
        def conditional(
            one: MixtureComponent, y: Array, eta: Array, own: Params, omega: Any
        ) -> Array:
            return one.likelihood.log_conditional(omega, y, eta, own)

        log_joint = self._log_joint(y, eta, params)
        own = np.take_along_axis(log_joint, omega[0][None], axis=0)[0]
        allocation = own - _log_sum(log_joint)
        return allocation + self._of_allocated(conditional, y, eta, params, omega)

    def joint(self, write: JointWriter, y: Any, eta: Any, params: Mapping[str, Any]) -> Joint:
        raise AugmentationError(
            f"expected a likelihood whose ω can be written into a model, found a {self.name}; "
            "sample the model itself with pac.sample"
        )

    def _log_joint(self, y: Array, eta: Array, params: Params) -> Array:
        """Return log w_k + log p_k(y | η_k), shape (K, …)."""
        parts = [
            params[f"log_weight_{one.number}"]
            + one.likelihood.log_density(y, one.eta(eta, params), one.params(params))
            for one in self._components
        ]
        return np.stack(np.broadcast_arrays(*parts))

    def _bounds(self, y: Array, mean: Array, var: Array, params: Params) -> Array:
        """Return log w_k + b_k, shape (K, N)."""
        parts = []
        for one in self._components:
            own = one.params(params)
            if one.predictor is None:
                bound = one.likelihood.log_density(y, one.eta(mean, params), own)
            else:
                of, p = one.likelihood, one.predictor
                bound = of.expected_log_bound(y, mean[p], var[p], own)
            parts.append(params[f"log_weight_{one.number}"] + bound)
        return np.stack(np.broadcast_arrays(*parts))

    def _allocated(self, omega: Any) -> list[tuple[MixtureComponent, Index, Any]]:
        """Return the components, their observations, and ω of these."""
        z, every = omega
        pairs = zip(self._components, every, strict=True)
        return [(one, np.flatnonzero(z == k), own) for k, (one, own) in enumerate(pairs)]

    def _of_allocated(
        self, function: Callable[..., Array], y: Array, eta: Array, params: Params, omega: Any
    ) -> Array:
        found = np.empty(y.shape)
        for one, at, own in self._allocated(omega):
            found[at] = function(one, *_at(one, at, y, eta, params), own)
        return found

    def _log_weight(self, omega: Any, y: Array, params: Params) -> Array:
        weights = [params[f"log_weight_{one.number}"] for one in self._components]
        stacked = np.stack([np.broadcast_to(weight, y.shape) for weight in weights])
        return np.take_along_axis(stacked, omega[0][None], axis=0)[0]


def _log_sum(parts: Array) -> Array:
    """Return log Σ exp along the first axis; SciPy's own takes longer than a density."""
    top = parts.max(axis=0)
    shift = np.where(np.isneginf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        return shift + np.log(np.exp(parts - shift).sum(axis=0))


def _at(
    one: MixtureComponent, at: Index, y: Array, eta: Array, params: Params
) -> tuple[Array, Array, dict[str, Array]]:
    """Return y, η and the parameters of a component at some observations."""
    own = select_params(one.params(params), at, y.size)
    return y[at], one.eta(eta, params)[at], own
