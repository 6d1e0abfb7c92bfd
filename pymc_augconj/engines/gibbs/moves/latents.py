"""Draws of ω, of the latents of a part, and of what depends on no observation, given the rest."""

from __future__ import annotations

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.conditioning import draw
from pymc_augconj.engines.gibbs.evidence_check import check_log_evidence
from pymc_augconj.engines.gibbs.parts import Part
from pymc_augconj.engines.gibbs.state import State
from pymc_augconj.errors import AugmentationError, UncertainEvidenceError
from pymc_augconj.linalg.rounding import SMALL_ERROR

__all__ = ["draw_auxiliary", "draw_forward", "draw_latents"]


def draw_auxiliary(rng: np.random.Generator, chain: Chain, state: State, part: Part) -> None:
    """Draw ω of the part's observed variables, given all predictors as they are."""
    eta, omegas = chain.predictor(state.point), []
    for data, group in part.members:
        data.params = data.site.params(state.point)
        data.eta = data.site.select(eta)
        omegas.append(data.how.draw_auxiliary(rng, data.y, data.eta, data.params, group))
    part.sites.condition(omegas)


def draw_latents(
    rng: np.random.Generator, chain: Chain, state: State, part: Part, *, relax: bool
) -> None:
    """Draw the part's latents; ``relax`` says whether the present ones are a draw at this θ.

    Where rounding leaves no digits the latents stay as they are, as does their distribution.
    """
    point, info = state.point, state.info
    whitened = part.select(chain.whitened(point)) if relax or part.tilted is not None else []
    try:
        # ν is that of one space: another one is taken with other sites alone.
        posterior, prior, constant = part.posterior(
            point, settle=part.tilted is None, for_draws=True
        )
    except UncertainEvidenceError:
        info.stays += 1
        info.log_evidence = np.nan
        part.keep(
            part.priors.at(point).factorized(), part.select(chain.innovations(point)),
            part.select(chain.whitened(point)),
        )  # fmt: skip
        return
    current = posterior.coordinates(np.concatenate(whitened)) if whitened else None
    if part.tilted is None:
        x = draw(posterior, rng, current)
    else:
        assert current is not None
        x = part.tilted.draw(rng, prior, posterior, current, info)
    info.log_evidence += posterior.log_evidence + constant
    v = posterior.whitened(x)
    if chain.verifies and posterior.error <= SMALL_ERROR:
        sites, coupling = part.sites.at(prior.offset), part.priors.groups.merged
        check_log_evidence(prior, sites, coupling, v, posterior.log_evidence)
    innovations, whitened = posterior.innovations(prior, x), prior.split(v)
    part.keep(prior, innovations, whitened)
    state.point = chain.replaced(point, part, innovations, whitened)


def draw_forward(rng: np.random.Generator, chain: Chain, state: State) -> None:
    """Draw them, and add their log densities to the step's."""
    forward, point = chain.model.forward, state.point
    values = chain.latent_values(point, chain.priors.at(point)) if forward else {}
    for variable in forward:
        try:
            draw = variable.draw(rng, {**point, **values})
        except ValueError as error:
            raise AugmentationError(
                f"variable {variable.name!r}: expected parameters that it can be drawn with, "
                f"found some that overflow ({error}); give the predictor priors that keep it "
                "in range"
            ) from error
        point[variable.value_name] = draw.reshape(np.shape(point[variable.value_name]))
    state.info.log_density += sum(float(v.log_density({**point, **values})) for v in forward)
