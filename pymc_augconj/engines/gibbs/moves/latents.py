"""Draws of ω, of the latents of a part, and of what depends on no observation, given the rest.

References
----------
Adler, S. L. (1981). Over-relaxation method for the Monte Carlo evaluation of the partition
function for multiquadratic actions. Physical Review D 23.
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.evidence_check import check_log_evidence
from pymc_augconj.engines.gibbs.parts import Part
from pymc_augconj.engines.gibbs.state import State
from pymc_augconj.errors import AugmentationError, UncertainEvidenceError
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.linalg.rounding import SMALL_ERROR
from pymc_augconj.typing import Array

__all__ = ["OVERRELAXATION", "draw_auxiliary", "draw_forward", "draw_gaussian", "draw_latents"]


# Adler's (1981) a: given ω, the latents' deviation from their mean is reversed by this share of
# the previous one, which leaves their distribution unchanged and works against the positive
# correlation that ω carries from draw to draw. Measured, kernel fixed, smallest effective samples
# a draw over f, bulk / tail / of squares: heart, logit 0.58 / 0.71 / 0.81 at a = 0 and
# 1.11 / 0.87 / 0.72 at 0.4; housing, Student-t 0.58 / 0.69 / 0.77 and 0.97 / 0.86 / 0.61. At 0.6
# and beyond the squares lose more than the means gain.
OVERRELAXATION = 0.4


def draw_gaussian(
    posterior: Posterior, rng: np.random.Generator, current: Array | None = None
) -> Array:
    """Return one exact joint draw of the latents' coordinates, shape (D,).

    Where ``current`` is given, a draw from the same distribution at these sites, the result is
    over-relaxed with respect to it: see :data:`OVERRELAXATION`.
    """
    nu = rng.standard_normal(posterior.size)
    if current is None:
        return posterior.apply(nu)
    # With x = μ + e, e and e′ independent: μ − a e + √(1 − a²) e′ has the same distribution as x.
    # As T(ν) = μ + Gν, that is (1 + a) T(√(1 − a²)/(1 + a) ν) − a x: one solution, not two.
    a = OVERRELAXATION
    return (1.0 + a) * posterior.apply(np.sqrt((1.0 - a) / (1.0 + a)) * nu) - a * current


def draw_auxiliary(rng: np.random.Generator, chain: Chain, state: State, part: Part) -> Array:
    """Draw ω of the part's observed variables, given all predictors, which are returned."""
    eta, omegas = chain.predictor(state.point), []
    if not np.isfinite(eta).all():
        names = " and ".join(repr(data.site.name) for data, _ in part.members)
        raise AugmentationError(
            f"observed variables {names}: expected finite predictors, found some that overflow; "
            "bring priors and data to similar scales"
        )
    for data, group in part.members:
        data.params = data.site.params(state.point)
        data.eta = data.site.select(eta)
        omegas.append(data.how.draw_auxiliary(rng, data.y, data.eta, data.params, group))
    part.sites.condition(omegas)
    return eta


def draw_latents(
    rng: np.random.Generator, chain: Chain, state: State, part: Part, *, relax: bool
) -> None:
    """Draw the part's latents; ``relax`` says whether the present ones are a draw at this θ.

    Where rounding leaves no digits the latents stay as they are, as does their distribution.
    """
    point, info, tilted = state.point, state.info, part.tilted
    whitened = part.select(chain.whitened(point)) if relax or tilted is not None else []
    try:
        # ν is that of one solver: another one is taken with other sites alone.
        given = part.given_sites(point, settle=tilted is None, for_draws=True)
    except UncertainEvidenceError:
        info.stays += 1
        info.log_evidence = np.nan
        prior = part.priors.at(point).factorized()
        eta = prior.predictor(part.select(chain.innovations(point)))
        part.keep(prior, eta, part.select(chain.whitened(point)))
        return
    posterior, prior = given.posterior, given.prior
    current = given.coordinates(whitened) if whitened else None
    if tilted is None or current is None:
        x = draw_gaussian(posterior, rng, current)
    else:
        x = tilted.draw(rng, given, current, info)
    info.log_evidence += posterior.log_normalizer + given.constant
    if chain.verifies and posterior.error <= SMALL_ERROR:
        sites, coupling = part.sites.at(prior.offset), part.priors.groups.merged
        v = posterior.whitened(x)
        check_log_evidence(prior, sites, coupling, v, posterior.log_normalizer)
    innovations, whitened = given.latents(x)
    part.keep(prior, prior.predictor(innovations), whitened)
    state.point = chain.replaced(point, part, innovations, whitened)


def draw_forward(rng: np.random.Generator, chain: Chain, state: State) -> None:
    """Draw the variables that nothing observed depends on, and add their log densities."""
    point = state.point
    if not chain.model.forward:
        return
    values = chain.latent_values(point, chain.priors.at(point))
    for variable in chain.model.forward:
        try:
            draw = variable.draw(rng, {**point, **values})
            if not np.isfinite(draw).all():
                raise ValueError(f"a draw of {draw[~np.isfinite(draw)][0]}")
        except AugmentationError:
            raise
        except ValueError as error:
            raise AugmentationError(
                f"variable {variable.name!r}: expected parameters that it can be drawn with, "
                f"found some that overflow ({error}); give the predictor priors that keep it "
                "in range"
            ) from error
        point[variable.value_name] = draw.reshape(np.shape(point[variable.value_name]))
    for variable in chain.model.forward:
        state.info.log_density += float(variable.log_density({**point, **values}))
