"""EP and QP as fitting engines: on a recognised model, hyperparameters on EP's evidence.

θ is optimised by the L-BFGS of the variational engines; each value of θ takes a run of EP, started
at the sites of the best θ so far. QP has no objective: it starts from EP's solution at EP's θ.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from pymc_augconj.engines.base import Climb, FitOutcome, FitProblem
from pymc_augconj.engines.hyperparameters import Search
from pymc_augconj.engines.options import EPOptions
from pymc_augconj.engines.variational.bound import Bound, BoundFamily, bound_gradient
from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.likelihoods.base import Params
from pymc_augconj.likelihoods.contract import LikelihoodDensity
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import Point
from pymc_augconj.quadrature.tilted import Panels
from pymc_augconj.typing import Array

from .objective import EPEvaluation, EPObjective, ModelPrior, SiteGroup, tilted_panels
from .solve import solve, solve_qp

# The part of a precision that is not the own site's, below which it is rounding.
_ALONE = 1e-12


class EPFamily(BoundFamily):
    """EP of one model for every θ."""

    def __init__(self, model: LatentGaussianModel, points: Sequence[Point], power: float) -> None:
        super().__init__(model, None, points)
        self.power = power

    def at(self, point: Point, *, factorized: bool = False) -> _EPBound:
        return _EPBound(self, point, self.prior_at(point, factorized=factorized))


class _EPBound(Bound):
    """EP at one θ; evaluated through ``objective`` alone."""

    def __init__(self, family: EPFamily, point: Point, prior: LatentPrior) -> None:
        super().__init__(family, point, prior)
        sites = zip(family.model.sites, family.y, self.params, strict=True)
        groups = [SiteGroup(s.rows, LikelihoodDensity(s.likelihood, y, p)) for s, y, p in sites]
        given = ModelPrior(prior, family.priors.groups, solver=family.preferred.name)
        self.objective = EPObjective(given, groups, family.power)


class _FixedTilted:
    """A site's part of the evidence as a function of its parameters: E_tilted[log p].

    Its derivative is that of log Ẑ (:mod:`.objective`); nodes and weights stay where they are, or
    log Ẑ itself stands for it where it has a closed form.
    """

    def __init__(self, bound: _EPBound, evaluation: EPEvaluation) -> None:
        self._bound, self._evaluation = bound, evaluation

    @cached_property
    def _panels(self) -> dict[str, Panels]:
        # On demand, as many likelihoods have no parameters.
        names = [site.name for site in self._bound.family.model.sites]
        found = tilted_panels(self._bound.objective, self._evaluation)
        return dict(zip(names, found, strict=True))

    def value(self, site: Site, y: Array, mean: Array, var: Array, params: Params) -> Array:
        # The bounds of a prior may move with θ, and panels do not: there log Ẑ is differentiated.
        evaluation, power = self._evaluation, self._bound.objective.power
        cavity = evaluation.cavity_mean[site.rows], evaluation.cavity_var[site.rows]
        closed = site.likelihood.tilted_moments(y, *cavity, params, power=power, delta=False)
        if closed is not None:
            return closed.log_Z / power
        return self._panels[site.name].expect(LikelihoodDensity(site.likelihood, y, params))


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
            limits: Any = {"tol": problem.tol, "max_iter": problem.max_iter}
            end = solve_qp(bound.objective, (last.h, last.lam), report=search.report, **limits)
            last, diagnostics = end.evaluation, end.diagnostics
            iterations = [*iterations, *end.iterations]
            converged = converged and end.converged
            message = f"EP: {message}; QP: {end.message}"
        return FitOutcome(
            point, last.h, last.lam, evidence, optimum.objective, bound.prior,
            family.priors.groups, family.preferred.name, converged, message, iterations,
            optimum.gradient, diagnostics, evidence_error=last.posterior.error,
        )  # fmt: skip


def _climb(
    bound: _EPBound,
    start: tuple[Array, Array] | None = None,
    *,
    callback: Any = None,
    **options: Any,
) -> Climb[EPEvaluation]:
    """Run EP as an inner optimiser run; ``options`` are those of ``solve``."""
    return solve(bound.objective, start, report=callback, **options)
