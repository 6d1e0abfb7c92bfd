"""The engine of nested approximations, and log p(θ) + log Z(θ) with the sites at each θ tried.

The mode of p(θ) Z(θ) in the unconstrained scale, its Hessian, and a design about it; Z by
expectation propagation with the leading correction for skewness, or by the variational Gaussian
where an observation has several predictors. p(θ) includes the Jacobian of the transforms, as in the
Gibbs sampler. The Hessian is by central differences of exact gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.interpolate import RBFInterpolator

from pymc_augconj.engines.base import FitOutcome, FitProblem
from pymc_augconj.engines.ep.fit import ExpectationPropagation
from pymc_augconj.engines.hyperparameters import HyperClimb, Search
from pymc_augconj.engines.options import NestedOptions
from pymc_augconj.engines.variational.ascent import SiteFit
from pymc_augconj.engines.variational.bound import VariationalGaussian
from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.typing import Array, Index

from .density import (
    LARGEST_DESIGN,
    LARGEST_INTERPOLATED,
    LARGEST_LATTICE,
    REFERENCE,
    Scaling,
    density_of,
    lattice,
    proposals,
    scattered,
)
from .importance import NestedPosterior

# Step of the differences, in standard deviations of a first guess or of the unconstrained scale.
_STEP = 0.05
# Largest standard deviation along an axis that the Hessian may give: widths follow the density.
_LARGEST_STD = 5.0
# How often widths are tried.
_MOST_TRIES = 8
# Tolerances of the sites: log Z has an error of second order in it, its gradient of first order.
_TOL, _TOL_OF_GRADIENT = 1e-3, 1e-6
# Functions of θ are computed at so many points for each coefficient of a quadratic, checked at so
# many, and interpolated at the others if the largest error there is below so many nats.
_PER_COEFFICIENT, _CHECKED, _INTERPOLATED = 3, 8, 0.02


@dataclass(frozen=True)
class Node:
    """The approximation at one θ."""

    #: θ, flat, on the unconstrained scale, shape (p,).
    x: Array
    #: log p(θ) + log Z(θ); −∞ where there is no approximation.
    log_density: float
    #: Sites of all predictors, stacked.
    h: Array
    lam: Array
    converged: bool


class Surface:
    """The log density as a function of θ, and every θ where it was computed; from a ``search``."""

    def __init__(self, search: Search[Any]) -> None:
        self.search = search
        self.tol = max(_TOL, search.problem.tol)
        best = search.known_best
        self.mode = search.flatten(best.point)
        self.nodes: dict[bytes, Node] = {}
        self._precision = np.eye(self.mode.size)
        end = best.climb.evaluation
        self._add(Node(self.mode, best.objective, end.h, end.lam, best.climb.converged))

    def _add(self, node: Node) -> Node:
        self.nodes[node.x.tobytes()] = node
        return node

    def at(self, x: Array) -> Node:
        """Return the approximation at ``x``, begun at the sites of the nearest known one."""
        if x.tobytes() in self.nodes:
            return self.nodes[x.tobytes()]
        usable = [node for node in self.nodes.values() if np.isfinite(node.log_density)]
        away = np.array([x - node.x for node in usable])
        near = usable[int(np.argmin(np.einsum("ij,jk,ik->i", away, self._precision, away)))]
        try:
            run = self.search.run(x, self.tol, (near.h, near.lam), differentiate=False)
        except (NotPositiveDefiniteError, FloatingPointError):
            return self._add(Node(x, -np.inf, near.h, near.lam, True))
        end = run.climb.evaluation
        return self._add(Node(x, run.objective, end.h, end.lam, run.climb.converged))

    def scaling(self) -> Scaling:
        """Return coordinates in which the density is about N(0, I)."""
        values, axes = np.linalg.eigh(self._hessian())
        self._precision = axes @ np.diag(np.maximum(values, _LARGEST_STD**-2)) @ axes.T
        std = 1.0 / np.sqrt(np.maximum(values, _LARGEST_STD**-2))
        pairs = list(zip(axes.T, std, strict=True))
        widths = [[self._width(sign * axis, s) for axis, s in pairs] for sign in (-1.0, 1.0)]
        return Scaling.of_widths(self.mode, axes, np.array(widths[0]), np.array(widths[1]))

    def _hessian(self) -> Array:
        """Return minus the matrix of second derivatives at the mode."""
        p, rows = self.mode.size, []
        for j in range(p):
            slopes = []
            for sign in (-1.0, 1.0):
                x = self.mode + sign * _STEP * np.eye(p)[j]
                slopes.append(self.search.flatten(self.search.run(x, _TOL_OF_GRADIENT).gradient))
            rows.append((slopes[0] - slopes[1]) / (2.0 * _STEP))
        return 0.5 * (np.array(rows) + np.array(rows).T)

    def _width(self, direction: Array, std: float) -> float:
        """Return the standard deviation of the normal density that falls as this one does."""
        peak = self.at(self.mode).log_density
        for _ in range(_MOST_TRIES):
            fall = peak - self.at(self.mode + REFERENCE * std * direction).log_density
            if not np.isfinite(fall):
                std *= 0.5
                continue
            # By at most a factor of two, as a density may have a shoulder.
            factor = np.clip(1.0 / np.sqrt(max(fall, 1e-3)), 0.5, 2.0)
            std *= factor
            if 0.8 < factor < 1.25:
                break
        return std


def everywhere(function: Callable[[Index], Array], points: Array) -> Array:
    """Return a smooth function of θ, in nats, at each of the ``points``, (n, p).

    ``function`` is of the numbers of points. It is computed at some and interpolated between them,
    once that agrees at others, which are as far from the former as any.
    """
    x, first, which = np.unique(points, axis=0, return_index=True, return_inverse=True)
    scale = x.std(axis=0)
    x = ((x - x.mean(axis=0)) / np.where(scale > 0.0, scale, 1.0))[:, scale > 0.0]
    order, p = _farthest_first(x), x.shape[1]
    found, done = np.full(len(x), np.nan), 0
    count = _PER_COEFFICIENT * (p + 1) * (p + 2) // 2 + _CHECKED
    while done < len(order):
        more = order[done:count]
        found[more] = function(first[more])
        known, rest = order[:count], order[count:]
        done, count = count, 2 * count
        if rest.size and np.isfinite(found[known]).all():
            near, others = np.split(known, [-_CHECKED])
            error = _interpolated(x[near], found[near], x[others]) - found[others]
            if np.abs(error).max() < _INTERPOLATED:
                found[rest] = _interpolated(x[known], found[known], x[rest])
                break
    return found[np.ravel(which)]


def _interpolated(x: Array, values: Array, at: Array) -> Array:
    return np.asarray(RBFInterpolator(x, values, kernel="cubic", degree=1)(at))


def _farthest_first(x: Array) -> Index:
    """Return the order of distinct points in which each is as far from those before as any is."""
    away, order = np.sum(x**2, axis=1), np.empty(len(x), dtype=int)
    for k in range(len(x)):
        order[k] = np.argmax(away)
        away = np.minimum(away, np.sum((x - x[order[k]]) ** 2, axis=1))
        away[order[: k + 1]] = -1.0
    return order


_ENGINES: dict[str, ExpectationPropagation | SiteFit] = {
    "ep": ExpectationPropagation(),
    "vgp": SiteFit(VariationalGaussian),
}

# Points of smaller weight are no components of the mixture.
_SMALLEST_WEIGHT = 1e-6
# Different predictors up to which Z is corrected, which takes all their correlations.
_MOST_CORRELATED = 1000


def fit_nested(problem: FitProblem) -> FitOutcome:
    """Fit by ``"nested"``; the sites of the result are those at the mode.

    Raises AugmentationError if there are too many hyperparameters for a design.
    """
    sizes = {h.name: h.size for h in problem.members}
    if sum(sizes.values()) > LARGEST_DESIGN:
        raise AugmentationError(
            f"hyperparameters: expected at most {LARGEST_DESIGN} components, over which "
            f"points integrate, found {sum(sizes.values())} ({sizes}); use pac.sample, "
            "method='ep' with point estimates, or give some of them fixed values"
        )
    # On the unconstrained scale, in which they are integrated over.
    lgm = problem.model
    problem = replace(
        problem, log_prior=lambda at: (float(lgm.log_prior(at)), dict(lgm.log_prior_gradient(at)))
    )
    name, search, best = _maximise(problem)
    surface = Surface(search)
    family: Any = search.family
    nested, log_mass, corrected = _nested(surface, problem, name)
    end = best.climb.evaluation
    failed = Counter(node.converged for node in surface.nodes.values())[False]
    message = f"{len(nested.x)} points, sites by {name!r}; mode: {best.message}"
    if failed:
        message = f"sites did not converge at {failed} points; {message}"
    posterior = end.posterior
    return FitOutcome(
        best.point, end.h, end.lam, log_mass, best.objective, family.at(best.point).prior,
        family.priors.groups, family.preferred.name, best.converged and not failed, message,
        search.iterations, best.gradient,
        {"points": len(nested.x), "sites": name, **corrected,
         "evaluations": search.evaluations},
        evidence_error=posterior.error if isinstance(posterior, Posterior) else 0.0,
        nested=nested,
    )  # fmt: skip


def _maximise(problem: FitProblem) -> tuple[str, Search[Any], HyperClimb[Any]]:
    """Return the method of the sites, the search and its maximum."""
    chosen = NestedOptions.of(problem.options).sites
    several = any(site.shape[0] > 1 for site in problem.model.sites)
    names = [chosen] if chosen else ["vgp"] if several else ["ep", "vgp"]
    for name in names:
        search: Search[Any] = _ENGINES[name].search(problem)
        try:
            best = search.ascend()
        except (NotPositiveDefiniteError, FloatingPointError):
            if name == names[-1]:
                raise
            continue
        search.best = best
        break
    return name, search, best


def _nested(
    surface: Surface, problem: FitProblem, name: str
) -> tuple[NestedPosterior, float, dict[str, float]]:
    """Return the approximations at a design, and log ∫ p(θ) Z(θ) dθ; log Z without members.

    Third are mean and standard deviation over θ of what skewness adds to log Z, if it does.
    """
    search, p = surface.search, surface.mode.size
    nodes = list(surface.nodes.values())
    if p:
        scaling = surface.scaling()
        z = _design(surface, scaling)
        nodes = [surface.at(scaling.theta(row)) for row in z]
        usable = np.isfinite([node.log_density for node in nodes])
        z, nodes = z[usable], [node for node, keep in zip(nodes, usable, strict=True) if keep]
    family: Any = search.family
    nested = NestedPosterior(
        problem.model, family.priors, family.preferred.name, tuple(problem.members),
        dict(problem.point), np.array([node.x for node in nodes]),
        np.array([node.log_density for node in nodes]), np.ones(1),
        np.array([node.h for node in nodes]), np.array([node.lam for node in nodes]), None,
    )  # fmt: skip
    if not p:
        return nested, search.known_best.climb.evaluation.bound, {}
    is_corrected = name == "ep" and nested.priors.groups.size <= _MOST_CORRELATED
    correction = everywhere(nested.corrections, z) if is_corrected else np.zeros(len(z))
    nested.log_density = nested.log_density + correction
    density = nested.density = density_of(scaling, z, nested.log_density)
    nested.weights = np.where(np.abs(density.weights) < _SMALLEST_WEIGHT, 0.0, density.weights)
    mean = float(density.weights @ correction)
    var = float(density.weights @ (correction - mean) ** 2)
    found = {"correction": mean, "correction_sd": float(np.sqrt(max(var, 0.0)))}
    return nested, density.log_mass, found if is_corrected else {}


def _design(surface: Surface, scaling: Scaling) -> Array:
    """Return the points z at which θ is tried."""
    p = surface.mode.size
    if p > LARGEST_LATTICE:
        return scattered(p) if p <= LARGEST_INTERPOLATED else proposals(p)
    return lattice(lambda z: surface.at(scaling.theta(z)).log_density, p)
