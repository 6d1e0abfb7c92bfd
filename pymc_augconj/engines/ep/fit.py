"""EP and QP as fitting engines: on a recognised model, hyperparameters on EP's evidence.

θ is optimised by the L-BFGS of the variational engines; each value of θ takes a run of EP, started
at the sites of the best θ so far. QP has no objective: it starts from EP's solution at EP's θ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cached_property, partial
from typing import Any

import numpy as np

from pymc_augconj.engines.base import Climb, FitOutcome, FitProblem, Iteration
from pymc_augconj.engines.hyperparameters import Search
from pymc_augconj.engines.options import EPOptions
from pymc_augconj.engines.variational.bound import BoundFamily, bound_gradient
from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.contract import LikelihoodDensity
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import Point
from pymc_augconj.quadrature.tilted import Quadrature
from pymc_augconj.typing import Array

from .objective import (
    EPEvaluation,
    EPInfo,
    EPObjective,
    EPResult,
    EPState,
    ModelPrior,
    SiteGroup,
    Sweep,
    tilted_quadratures,
)
from .solve import solve, solve_qp

Report = Callable[[Iteration, EPEvaluation], None]
# The part of a precision that is not the own site's, below which it is rounding.
_ALONE = 1e-12


class EPFamily:
    """EP of one model for every θ, with the interface of a family of bounds."""

    def __init__(self, model: LatentGaussianModel, points: Sequence[Point], power: float) -> None:
        self.base = BoundFamily(model, None, points)
        self.model, self.priors, self.y = model, self.base.priors, self.base.y
        self.layout, self.preferred = self.base.layout, self.base.preferred
        self.power = power
        self.rule: _FixedTilted | None = None

    def at(self, point: Point) -> _EPBound:
        return _EPBound(self, point)


class _EPBound:
    """EP at one θ."""

    def __init__(self, family: EPFamily, point: Point) -> None:
        self.family, self.point = family, point
        self.prior = family.base.at(point).prior
        pairs = zip(family.model.sites, family.y, strict=True)
        densities = [
            (s.rows, LikelihoodDensity(s.likelihood, y, s.params(point))) for s, y in pairs
        ]
        groups = [SiteGroup(rows, density) for rows, density in densities]
        prior = ModelPrior(self.prior, family.priors.groups, solver=family.preferred.name)
        self.objective = EPObjective(prior, groups, family.power)


class _FixedTilted:
    """A site's part of the evidence as a function of its parameters: E_tilted[log p].

    Its derivative is that of log Ẑ (:mod:`.objective`); nodes and weights stay where they are.
    """

    def __init__(self, bound: _EPBound, evaluation: EPEvaluation) -> None:
        self._bound, self._evaluation = bound, evaluation

    @cached_property
    def _quadratures(self) -> dict[str, Quadrature]:
        # On demand, as many likelihoods have no parameters.
        names = [site.name for site in self._bound.family.model.sites]
        found = tilted_quadratures(self._bound.objective, self._evaluation)
        return dict(zip(names, found, strict=True))

    def value(self, site: Site, y: Array, mean: Array, var: Array, params: Params) -> Array:
        return self._quadratures[site.name].expect(LikelihoodDensity(site.likelihood, y, params))


def _gradient(bound: _EPBound, evaluation: EPEvaluation) -> dict[str, Array]:
    """Return d log Z/dθ at a fixed point, by entry of the point."""
    bound.family.rule = _FixedTilted(bound, evaluation)
    return bound_gradient(bound, evaluation)


def _refuse_without_cavity(bound: _EPBound, error: Exception) -> None:
    """Refuse a predictor without variance, or that nothing else determines: it has no cavity."""
    prior = bound.objective.prior
    h, lam = prior.prior.first_sites(prior.groups.coupling)
    var = prior.condition(h, lam).var
    for bad, found in (
        (
            ~(var > 0.0),
            "predictors that are uncertain a priori, found the variance zero at position {}, where "
            "no latent variable enters it (a row of zeros in a design, say); add an intercept with "
            "a prior, leave such observations out, or use method='vgp'",
        ),
        (
            1.0 - lam * var <= _ALONE,
            "predictors that other observations or normal priors determine too, found none at "
            "position {} (a group without observations, say); give it a normal prior, leave the "
            "group out, or use pac.sample",
        ),
    ):
        for site in bound.family.model.sites:
            rows = np.flatnonzero(bad[site.rows])
            if rows.size:
                raise AugmentationError(
                    f"{site.label}: expected {found.format(rows[0])}"
                ) from error


class ExpectationPropagation:
    """The engine ``method="ep"``, or ``"qp"``."""

    def __init__(self, *, quantile: bool = False) -> None:
        self.quantile = quantile

    def search(self, problem: FitProblem) -> Search[EPEvaluation]:
        """Return EP's evidence and the log prior as a function of the hyperparameters."""
        several = [site.name for site in problem.model.sites if site.likelihood.n_predictors > 1]
        if several:
            raise AugmentationError(
                f"{several}: expected likelihoods of one predictor, whose moments are integrals "
                "over one η, found several; use method='vgp'"
            )
        options = EPOptions.of(problem.options)
        run = partial(_climb, schedule=options.schedule, damping=options.damping)
        family = EPFamily(problem.model, [problem.point, *problem.probes], options.power)
        return Search(family, problem, run, _gradient)

    def __call__(self, problem: FitProblem) -> FitOutcome:
        """Return the fit; raises the errors of the covariance at the start."""
        search = self.search(problem)
        family = search.family
        try:
            optimum = search.ascend()
        except NotPositiveDefiniteError as error:
            _refuse_without_cavity(family.at(problem.point), error)
            raise
        except FloatingPointError as error:
            # Later a failed step is taken back; at the start there is no earlier point.
            names = [site.name for site in problem.model.sites]
            raise AugmentationError(
                f"observed variables {names}: EP needs moments of every observation under its "
                f"cavity, and at the start they cannot be integrated ({error}); give other "
                "hyperparameters to begin with, start={…}, or use method='vgp'"
            ) from error
        point, end, iterations = optimum.point, optimum.climb, optimum.iterations
        converged, message = optimum.converged, optimum.message
        last, evidence, diagnostics = end.evaluation, end.evaluation.bound, end.diagnostics
        bound = family.at(point)
        if self.quantile:
            result = _record(
                iterations, search.report, solve_qp,
                bound.objective, EPState(last.h, last.lam), tol=problem.tol,
                max_iter=problem.max_iter,
            )  # fmt: skip
            last, diagnostics = result.evaluation, _diagnostics(result)
            converged = converged and result.info.converged
            message = f"EP: {message}; QP: {_describe(result)}"
        return FitOutcome(
            point, last.h, last.lam, evidence, optimum.objective, bound.prior,
            family.priors.groups, family.preferred.name, converged, message, iterations,
            optimum.gradient, diagnostics, evidence_error=last.posterior.error,
        )  # fmt: skip


def _diagnostics(result: EPResult) -> dict[str, float | str]:
    return {f.name: getattr(result.info, f.name) for f in fields(EPInfo) if f.name != "history"}


def _climb(
    bound: _EPBound,
    start: tuple[Array, Array] | None = None,
    *,
    max_iter: int,
    tol: float,
    callback: Report | None = None,
    **options: Any,
) -> Climb[EPEvaluation]:
    """Run EP as an inner optimiser run; ``options`` are those of ``solve``."""
    iterations: list[Iteration] = []
    state = None if start is None else EPState(*start)
    result = _record(
        iterations, callback, solve, bound.objective, state,
        tol=tol, max_iter=max_iter, **options,
    )  # fmt: skip
    return Climb(
        result.evaluation, result.info.converged, _describe(result), iterations,
        _diagnostics(result),
    )  # fmt: skip


def _record(
    iterations: list[Iteration],
    callback: Report | None,
    run: Callable[..., EPResult],
    objective: EPObjective,
    state: EPState | None,
    **options: Any,
) -> EPResult:
    start = len(iterations)

    def report(sweep: Sweep, at: EPEvaluation) -> None:
        done = Iteration(
            len(iterations) - start + 1, at.bound, at.expected, at.divergence, at.residual,
            sweep.damping or 1.0, sweep.damping is None,
        )  # fmt: skip
        iterations.append(done)
        if callback is not None:
            callback(done, at)

    return run(objective, state, report=report, **options)


def _describe(result: EPResult) -> str:
    info = result.info
    return (
        f"{info.message} ({info.method}, {info.sweeps} sweeps, damping {info.damping:.2g}, "
        f"{info.n_negative} negative sites, smallest cavity precision "
        f"{info.smallest_cavity_precision:.1e})"
    )
