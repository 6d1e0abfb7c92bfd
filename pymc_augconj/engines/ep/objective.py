"""Expectation propagation at one state of the sites: cavities, tilted moments, targets, evidence.

With q(f) ∝ N(f | m, C) Πᵢ exp(hᵢfᵢ − ½λᵢfᵢ²), marginals N(μᵢ, Σᵢᵢ) and power η, the cavity takes η
of a site out of its marginal, and the tilted distribution puts p(yᵢ|f)^η in its place:

    1/vᵢ = 1/Σᵢᵢ − ηλᵢ,    mᵢ = μᵢ − η vᵢ (hᵢ − λᵢμᵢ),
    λ̂ᵢ = λᵢ + (1/tilted varᵢ − 1/Σᵢᵢ)/η,    ĥᵢ = hᵢ + (tilted meanᵢ/tilted varᵢ − μᵢ/Σᵢᵢ)/η.

λ̂ < 0 is a legitimate site of a likelihood that is not log-concave: nothing is clamped. With Ẑᵢ the
tilted normaliser under the normalised cavity, the evidence is

    log Z = log ∫ N(f | m, C) Πᵢ site_i + (1/η) Σᵢ [ log Ẑᵢ − log ∫ N(f | mᵢ, vᵢ) siteᵢ^η df ],

which needs 1 + ηλᵢvᵢ > 0 only, that is Σᵢᵢ > 0. At a fixed point it is stationary in the sites and
the cavities (Opper & Winther 2005, Seeger 2005), so that the derivatives of :mod:`.bound` apply,
with ∂ log Z/∂θᵢ = E_tilted[∂ log p(yᵢ | f, θᵢ)/∂θᵢ] for any power.

References
----------
Minka, T. (2004). Power EP. Microsoft Research TR-2004-149.
Seeger, M. (2005). Expectation propagation for exponential families.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from pymc_augconj.engines.base import Climb, Evaluation, Iteration
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.latents.choice import condition
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.likelihoods.contract import LikelihoodDensity, site_moments
from pymc_augconj.quadrature.tilted import Panels, Tilted, tilted_moments
from pymc_augconj.typing import Array

# First sites of a flat prior are widened by this factor in precision, so many times at most, while
# the tilted variance is more than a share of the cavity's.
_WIDENING, _WIDENINGS, _INFORMATIVE = 1e-3, 7, 0.99


class ModelPrior:
    """The predictors of a recognised model at one θ, conditioned by the cheapest solver."""

    def __init__(self, prior: LatentPrior, groups: RowGroups, *, solver: str) -> None:
        self.prior, self.groups, self.solver = prior, groups, solver

    @property
    def size(self) -> int:
        """Number of predictors, before equal ones are merged."""
        return self.prior.offset.size

    def condition(self, h: Array, lam: Array) -> Posterior:
        """Return the posterior given sites of either sign, or raise NotPositiveDefiniteError."""
        return condition(self.prior, self.groups, h, lam, solver=self.solver)


@dataclass(frozen=True)
class SiteGroup:
    """One observed variable: its rows of the stacked predictors, and its density."""

    rows: slice
    density: LikelihoodDensity


def all_moments(
    groups: Sequence[SiteGroup], cavity_mean: Array, cavity_var: Array, **asked: Any
) -> Tilted:
    """Return the tilted moments of all predictors; ``asked`` as for ``site_moments``."""
    own = [(g.density, cavity_mean[g.rows], cavity_var[g.rows]) for g in groups]
    parts = [site_moments(*given, **asked) for given in own]
    if len(groups) == 1 and parts[0].mean.size == cavity_mean.size:
        return parts[0]
    fields: dict[str, Any] = {}
    for name in ("log_Z", "mean", "var", "third", "fourth", "delta", "error"):
        values = [getattr(part, name) for part in parts]
        if all(value is None for value in values):
            continue
        fields[name] = np.zeros(cavity_mean.shape)
        for group, value in zip(groups, values, strict=True):
            fields[name][group.rows] = 0.0 if value is None else value
    return Tilted(**fields)


@dataclass(frozen=True)
class EPEvaluation(Evaluation):
    """EP at one set of sites, whose targets match the tilted moments; ``bound`` is log Z."""

    posterior: Posterior = field(repr=False)
    cavity_mean: Array
    cavity_var: Array
    tilted: Tilted
    #: The variances to match.
    matched_var: Array

    @cached_property
    def residual(self) -> float:
        """Relative moment mismatch between the tilted distributions and q, as in the base class."""
        d_mean = (self.tilted.mean - self.mean) / np.sqrt(self.var)
        d_var = self.matched_var / self.var - 1.0
        return float(np.sqrt(d_mean @ d_mean + d_var @ d_var))


class EPObjective:
    """EP as a function of the sites, for one prior; groups have every predictor once."""

    def __init__(
        self,
        prior: ModelPrior,
        groups: Sequence[SiteGroup],
        power: float = 1.0,
        *,
        shrink: Array | float = 1.0,
    ) -> None:
        self.prior, self.groups, self.power, self.shrink = prior, tuple(groups), power, shrink

    def evaluate(self, h: Array, lam: Array) -> EPEvaluation:
        """Return EP at the sites (h, λ)."""
        power = self.power
        posterior = self.prior.condition(h, lam)
        mean, var = posterior.mean, posterior.var
        if not (var > 0.0).all():
            raise NotPositiveDefiniteError("a marginal variance is not positive")
        remaining = 1.0 - power * lam * var
        if not (remaining > 0.0).all():
            raise NotPositiveDefiniteError(
                f"{np.count_nonzero(~(remaining > 0.0))} cavities are not proper; damp the update"
            )
        cavity_var = var / remaining
        cavity_mean = mean - power * cavity_var * (h - lam * mean)
        tilted = all_moments(self.groups, cavity_mean, cavity_var, power=power)
        matched = tilted.var * self.shrink**2
        target_h, target_lam = self._targets(tilted, matched, cavity_mean, cavity_var)
        normalizer = posterior.log_normalizer
        with np.errstate(invalid="ignore", over="ignore"):
            site = log_gaussian_site(power * h, power * lam, cavity_mean, cavity_var)
            expected = float(np.sum(tilted.log_Z - site)) / power
        if not np.isfinite(np.concatenate([[normalizer, expected], target_h, target_lam])).all():
            raise NotPositiveDefiniteError("the tilted moments are not finite; damp the update")
        return EPEvaluation(
            h, lam, target_h, target_lam, mean, var, expected, -normalizer, 0.0,
            self.prior.groups.coupling, posterior, cavity_mean, cavity_var, tilted, matched,
        )  # fmt: skip

    def _targets(
        self, tilted: Tilted, matched: Array, cavity_mean: Array, cavity_var: Array
    ) -> tuple[Array, Array]:
        lam = (1.0 / matched - 1.0 / cavity_var) / self.power
        # Relative to λ̂ times the cavity mean, where little cancels.
        return (tilted.mean - cavity_mean) / (matched * self.power) + lam * cavity_mean, lam

    def rematched(self, at: EPEvaluation, shrink: Array | float) -> EPEvaluation:
        """Return an evaluation with targets for other factors of the standard deviations."""
        matched = at.tilted.var * shrink**2
        h, lam = self._targets(at.tilted, matched, at.cavity_mean, at.cavity_var)
        return replace(at, target_h=h, target_lam=lam, matched_var=matched)

    def shrunk(self, shrink: Array | float) -> EPObjective:
        """Return the objective with other factors of the standard deviations."""
        return EPObjective(self.prior, self.groups, self.power, shrink=shrink)

    def at_prior(self) -> EPEvaluation:
        """Return EP at sites (0, 0), or at the first ones of an improper prior.

        The first sites have unit precision, which may be so high that the likelihood does not
        change within a cavity: such sites are widened until it does.
        """
        h, lam = self.prior.prior.first_sites(self.prior.groups.coupling)
        at = self.evaluate(h, lam)
        for _ in range(_WIDENINGS if lam.any() else 0):
            narrow = at.tilted.var > _INFORMATIVE * at.cavity_var
            if not narrow.any():
                break
            scale = np.where(narrow, _WIDENING, 1.0)
            try:
                at = self.evaluate(scale * at.h, scale * at.lam)
            except (NotPositiveDefiniteError, FloatingPointError):
                break
        return at


def log_gaussian_site(h: Array, lam: Array, mean: Array, var: Array) -> Array:
    """Return log ∫ N(f | mean, var) exp(h f − ½ λ f²) df for 1 + λ·var > 0, elementwise."""
    r = h - lam * mean
    growth = lam * var
    return mean * (r + 0.5 * lam * mean) + 0.5 * (r**2 * var / (1.0 + growth) - np.log1p(growth))


def tilted_panels(objective: EPObjective, at: EPEvaluation) -> list[Panels]:
    """Return the panels of the tilted distributions, one object for each group."""
    if at.tilted.panels is not None:
        return [at.tilted.panels]
    found = []
    for group in objective.groups:
        mean, var = at.cavity_mean[group.rows], at.cavity_var[group.rows]
        panels = tilted_moments(group.density, mean, var, power=objective.power).panels
        assert panels is not None  # only a closed form has none
        found.append(panels)
    return found


#: Called after every sweep.
Report = Callable[[Iteration, EPEvaluation], object]


class Recorder:
    """History of a run, and its number of evaluations."""

    def __init__(
        self, objective: EPObjective, max_iter: int, tol: float, report: Report | None
    ) -> None:
        self.objective, self.max_iter, self.tol, self._report = objective, max_iter, tol, report
        self.history: list[Iteration] = []
        #: Sweeps, and outer steps without an evidence; sets of tilted moments, those of rejected
        #: sweeps included.
        self.sweeps = self.evaluations = 0

    @property
    def left(self) -> int:
        """Number of remaining sweeps."""
        return self.max_iter - self.sweeps

    def attempt(self, h: Array, lam: Array) -> EPEvaluation | None:
        """Return the evaluation at these sites, or None if it fails."""
        if not (np.isfinite(h).all() and np.isfinite(lam).all()):
            return None
        self.evaluations += 1
        try:
            return self.objective.evaluate(h, lam)
        except (NotPositiveDefiniteError, FloatingPointError):
            return None

    def accept(self, at: EPEvaluation, damping: float | None) -> None:
        """Record one sweep; ``damping`` is None for an extrapolation or an outer step."""
        self.sweeps += 1
        sweep = Iteration(
            len(self.history) + 1, at.bound, at.expected, at.divergence, at.residual,
            damping or 1.0, damping is None,
        )  # fmt: skip
        self.history.append(sweep)
        if self._report is not None:
            self._report(sweep, at)

    def result(self, at: EPEvaluation, method: str, failure: str) -> Climb[EPEvaluation]:
        """Return the end of the run: "parallel" or "sequential" sweeps, or a "double loop"."""
        converged = at.residual <= self.tol
        message = f"converged: residual {at.residual:.1e} ≤ {self.tol:.1e}"
        if not converged:
            message = f"{failure}; the residual is {at.residual:.1e} > {self.tol:.1e}"
        damping = min((s.rate for s in self.history if not s.extrapolated), default=1.0)
        error = 0.0 if at.tilted.error is None else float(at.tilted.error.max())
        n_negative = int(np.count_nonzero(at.lam < 0.0))
        precision = float(1.0 / at.cavity_var.max())
        diagnostics: dict[str, float | str] = {
            "converged": converged,
            "message": message,
            "method": method,
            "residual": at.residual,
            "evidence": at.bound,
            "sweeps": self.sweeps,
            "evaluations": self.evaluations,
            "damping": damping,
            "n_negative": n_negative,
            "smallest_cavity_precision": precision,
            "quadrature_error": error,
        }
        message += (
            f" ({method}, {self.sweeps} sweeps, damping {damping:.2g}, {n_negative} negative "
            f"sites, smallest cavity precision {precision:.1e})"
        )
        return Climb(at, converged, message, self.history, diagnostics)
