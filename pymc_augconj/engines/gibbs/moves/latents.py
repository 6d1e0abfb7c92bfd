"""Draws of ω and latents given the rest, and of hyperparameters with the latents integrated out.

References
----------
Adler, S. L. (1981). Over-relaxation method for the Monte Carlo evaluation of the partition
function for multiquadratic actions. Physical Review D 23.
Chib (1995), Marginal likelihood from the Gibbs output. JASA 90.
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.factors import MOST_ITERATIONS, design, draw_iteratively
from pymc_augconj.engines.gibbs.held_sites import HeldSites
from pymc_augconj.engines.gibbs.parts import Part
from pymc_augconj.engines.gibbs.state import State
from pymc_augconj.engines.gibbs.tilted import Conditional
from pymc_augconj.errors import AugmentationError, UncertainEvidenceError
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.derivatives import log_evidence_and_gradient
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.latents.rows import SiteSum
from pymc_augconj.linalg.dense import EPS, SMALL_ERROR
from pymc_augconj.point import Point
from pymc_augconj.typing import Array

# Latents whose precision is formed.
_MANY_LATENTS = 300
# A difference, in nats, that is no rounding of either of two numbers with errors of SMALL_ERROR.
_WRONG = 10.0 * SMALL_ERROR


def check_log_evidence(
    prior: LatentPrior, sites: SiteSum, coupling: Coupling, v: Array, log_evidence: float
) -> None:
    """Compare a log evidence with that of another factorisation, where this has digits.

    The log density of a step does not show the log evidence that hyperparameters were accepted by.
    For any latents, here ``v``, a whitened draw given the sites,

        log Z = log p(sites | v) + log p(v) − log p(v | sites),        v | sites ~ N(M⁻¹Φᵀh, M⁻¹),

    by Gaussian elimination of M = I + ΦᵀΛΦ: with the factor that gave log Z errors would cancel.
    ``log_evidence`` has the sites' constant and the density one of flat latents. Raises
    AugmentationError if the two differ.
    """
    if v.size > _MANY_LATENTS:
        return
    h, lam = sites.h, sites.lam
    design = prior.whitened_product(np.eye(v.size))
    weighted = np.array([coupling.product(lam, column) for column in design])
    M = np.eye(v.size) + design @ weighted.T
    unit = 1.0 / np.sqrt(np.diagonal(M))
    scaled = M * np.multiply.outer(unit, unit)
    try:
        inverse = np.linalg.inv(scaled)
        # A product with the inverse would lose digits that elimination keeps.
        mean = unit * np.linalg.solve(scaled, unit * (design @ h))
    except np.linalg.LinAlgError:
        return
    log_det = float(np.linalg.slogdet(scaled)[1] - 2.0 * np.log(unit).sum())
    eta, away = v @ design, v - mean
    squares = np.array([v @ weighted @ eta, v @ v, log_det, -(away @ M @ away)])
    constant, size = sites.constants
    found = constant + prior.log_flat + float(h @ eta - 0.5 * squares.sum())
    # Of the terms before they cancel; M away has an error like that of M v − Φᵀh.
    terms, far = np.abs(v) @ np.abs(design), np.abs(M) @ np.abs(v) + np.abs(design) @ np.abs(h)
    magnitude = size + np.abs(h) @ terms + np.abs(v @ weighted) @ terms
    magnitude += np.abs(squares).sum() + np.abs(inverse).sum() + 2.0 * np.abs(away) @ far
    error = EPS * h.size * float(magnitude) + prior.scale_error
    if error < SMALL_ERROR and not abs(found - log_evidence) <= _WRONG:
        names = " and ".join(repr(b.block.name) for b in prior.blocks)
        raise AugmentationError(
            f"latent variables {names}: expected a log evidence of {found:.8g}, as another "
            f"factorisation gives it, found {log_evidence:.8g}; no draw of this chain can be "
            "trusted; sample this model with pm.sample's NUTS, and please report it"
        )


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


def draw_alternately(posterior: Posterior, rng: np.random.Generator, part: Part) -> Array:
    """Return such a draw with ν over-relaxed with respect to that of the last one.

    The latents are then those of a chain ν that nothing else depends on: it is as exact as if these
    were independent, whatever θ does, see :attr:`.Chain.alternates`.
    """
    nu = rng.standard_normal(posterior.size)
    if part.nu is not None and part.nu.size == nu.size:
        nu = np.sqrt(1.0 - OVERRELAXATION**2) * nu - OVERRELAXATION * part.nu
    part.nu = nu
    return posterior.apply(nu)


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
        part.take([data], state.point)
        data.eta = data.site.select(eta)
        omegas.append(data.how.draw_auxiliary(rng, data.y, data.eta, data.params, group))
    part.sites.condition(omegas)
    solver = part.solver.preferred
    if solver.augments:
        prior = part.priors.at(state.point).factorized()
        innovations = part.select(chain.innovations(state.point, prior.blocks))
        solver.augment(rng, prior, part.sites_at(prior), innovations)
    return eta


def _coordinates(chain: Chain, point: Point, part: Part, given: Conditional) -> Array:
    """Return the coordinates of the part's present latents."""
    if given.is_by_values:
        return given.posterior.coordinates_of(part.select(chain.innovations(point)))
    return given.coordinates(part.select(chain.whitened(point)))


def draw_latents(
    rng: np.random.Generator, chain: Chain, state: State, part: Part, *, relax: bool
) -> None:
    """Draw the part's latents; ``relax`` says whether the present ones are a draw at this θ.

    Where rounding leaves no digits the latents stay as they are, as does their distribution.
    """
    point, info, tilted = state.point, state.info, part.tilted
    relax = relax and not chain.alternates
    try:
        # ν is that of one solver: another one is taken with other sites alone.
        given = part.given_sites(point, settle=tilted is None, for_draws=True)
    except UncertainEvidenceError:
        info.stays += 1
        info.log_evidence = np.nan
        if tilted is not None:
            tilted.value = np.nan
        prior = part.priors.at(point).factorized()
        own, whitened = (part.select(x(point)) for x in (chain.innovations, chain.whitened))
        latents = zip(prior.blocks, own, whitened, strict=True)
        part.keep(prior, prior.predictor(own), [u if b.is_lazy else v for b, u, v in latents])
        return
    posterior, prior = given.posterior, given.prior
    needs = relax or tilted is not None
    current = _coordinates(chain, point, part, given) if needs else None
    if chain.alternates:
        x = draw_alternately(posterior, rng, part)
    elif tilted is None or current is None:
        x = draw_gaussian(posterior, rng, current)
    else:
        x = tilted.draw(rng, given, current, info)
    info.log_evidence += posterior.log_normalizer + given.constant
    verifies = chain.verifies and not part.solver.preferred.augments
    if verifies and posterior.error <= SMALL_ERROR:
        sites, coupling = part.sites_at(prior), part.priors.groups.merged
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
    values = chain.latent_values(point, chain.priors.at(point).blocks)
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


def update_collapsed(
    rng: np.random.Generator, chain: Chain, state: State, part: Part, value: float = np.nan
) -> None:
    """Make all updates of hyperparameters that integrate out the latents of a part, given ω.

    Where the part has held sites all but ν is, see :mod:`pymc_augconj.engines.gibbs.tilted`; with
    ``value`` their log ratio, if it is known. A gradient is then that of p(θ) Z(θ): a trajectory
    that follows it is reversible and keeps volume, and its points are weighed by the whole density.
    """
    tilted = part.tilted if part.collapsed else None
    if tilted is not None:
        try:
            given = part.given_sites(state.point, alone=True)
        except UncertainEvidenceError:
            state.info.stays += 1
            return
        current = _coordinates(chain, state.point, part, given)
        tilted.begin(rng, given, current, value)
    for move in part.collapsed:
        _update(rng, chain, state, part, move)
    if tilted is not None:
        given = part.given_sites(state.point, alone=True)
        latents = given.latents(tilted.choose(rng, given))
        state.point = chain.replaced(state.point, part, *latents)


def _update(rng: np.random.Generator, chain: Chain, state: State, part: Part, move: str) -> None:
    members, model, tilted = chain.plan.moves[move], chain.model, part.tilted
    names = {h.value_name for h in members}
    moving = [d for d, _ in part.members if not names.isdisjoint(d.site.params.names)]

    def log_density(candidate: Point) -> float:
        total = float(model.log_prior(candidate))
        if not np.isfinite(total):
            return -np.inf
        part.take(moving, candidate)
        prior = part.priors.at(candidate)
        if part.factorizes:
            prior = prior.factorized()
        sites = part.sites_at(prior)
        base = part.sites.log_base(sites, names)
        posterior = part.solver.posterior(prior, sites, alone=tilted is not None)
        total += base + posterior.log_normalizer
        if tilted is None:
            return total
        return total + tilted.log_sum(Conditional(posterior))

    def gradient(candidate: Point) -> tuple[float, dict[str, Array]]:
        stacked = *part.sites.stacked, part.sites.origin
        value, terms = log_evidence_and_gradient(model, part.priors, candidate, *stacked)
        slopes = model.log_prior_gradient(candidate)
        for name, term in terms.items():
            slopes[name] = slopes[name] + term if name in slopes else term
        if tilted is None:
            return value + float(model.log_prior(candidate)), slopes
        return log_density(candidate), slopes

    state.update(rng, move, members, log_density, gradient)


# Rounds at most in which a start is looked for, the log density that one must gain for another, and
# how often a move that climbs too far is halved.
_ROUNDS, _LEAST_GAIN, _HALVINGS = 20, 1.0, 10


def _draw_iteratively(
    rng: np.random.Generator, chain: Chain, state: State, part: Part, prior: LatentPrior
) -> bool:
    """Draw all latents by conjugate gradients; return whether these converged."""
    part.take([data for data, _ in part.members], state.point)
    sites, Phi = part.sites_at(prior), design(prior)
    assert Phi is not None  # see make_parts
    v, iterations = draw_iteratively(rng, Phi, sites.h, sites.lam)
    if iterations == MOST_ITERATIONS:
        return False
    innovations, whitened = prior.innovations(v), prior.split(v)
    part.keep(prior, prior.predictor(innovations), whitened)
    state.point = chain.replaced(state.point, part, innovations, whitened)
    return True


def draw_by_factor(rng: np.random.Generator, chain: Chain, state: State, part: Part) -> None:
    """Draw ω; then hyperparameters and effects of every factor, and the shifts between factors."""
    eta = draw_auxiliary(rng, chain, state, part)[part.rows]
    value = np.nan
    for factor in part.factors:
        _condition(chain, state, part, factor, eta)
        update_collapsed(rng, chain, state, factor, value)
        draw_latents(rng, chain, state, factor, relax=chain.relaxes and not factor.collapsed)
        # Sums with effects of a start that are large have lost digits.
        eta = factor.eta if chain.relaxes else chain.predictor(state.point)[part.rows]
        # The next factor begins with the same predictors.
        value = np.nan if factor.tilted is None else factor.tilted.value
    # Log evidences given the other factors do not add up to one.
    state.info.log_evidence = np.nan
    prior = part.priors.at(state.point).factorized()
    if part.joint_share and rng.random() < part.joint_share:
        if not part.iterations:
            state.info.log_evidence = 0.0
            draw_latents(rng, chain, state, part, relax=False)
            return
        if _draw_iteratively(rng, chain, state, part, prior):
            return
    innovations = [u.copy() for u in part.select(chain.innovations(state.point, prior.blocks))]
    for shift in part.shifts:
        shift.draw(rng, prior, innovations)
    whitened = [b.unscale(u) for b, u in zip(prior.blocks, innovations, strict=True)]
    part.keep(prior, eta, whitened)
    state.point = chain.replaced(state.point, part, innovations, whitened)


def _condition(chain: Chain, state: State, part: Part, factor: Part, eta: Array) -> None:
    """Condition a factor on the effects of the others."""
    others, maps = eta, factor.priors.at(state.point).full_maps
    for A, u in zip(maps, factor.select(chain.innovations(state.point)), strict=True):
        others = others - A.apply(u)
    factor.priors.set_offset(others)


def approach(
    rng: np.random.Generator, chain: Chain, state: State, part: Part, sites: HeldSites
) -> None:
    """Move the latents to where their density is high, given θ: a start for held sites.

    Sites are chosen at the present predictors and each factor moves to its mean given them; half as
    far while the density would fall.
    """
    for _ in range(_ROUNDS):
        gained = 0.0
        sites.predictor = chain.predictor(state.point)
        sites.choose(state.point)
        eta = draw_auxiliary(rng, chain, state, part)
        for factor in part.factors:
            _condition(chain, state, part, factor, eta[part.rows])
            given = factor.given_sites(state.point)
            current = given.coordinates(factor.select(chain.whitened(state.point)))
            move, there = given.posterior.latent_mean - current, eta.copy()
            before = chain.log_likelihood(eta, state.point) - 0.5 * float(current @ current)
            for _ in range(_HALVINGS):
                x = current + move
                there[part.rows] = given.predictor(x)
                gain = chain.log_likelihood(there, state.point) - 0.5 * float(x @ x) - before
                if gain >= 0.0:
                    gained += gain
                    state.point = chain.replaced(state.point, factor, *given.latents(x))
                    eta = there
                    break
                move = 0.5 * move
        if gained < _LEAST_GAIN:
            break
