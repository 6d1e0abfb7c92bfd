"""Whether sites are held where there is an auxiliary variable too.

Given ω the latents have the precision M_ω = I + Φᵀ Λ_ω Φ, where the posterior has about
M = I + Φᵀ Λ Φ, Λ = −∂² log p: what ω knows of the latents is missing from a step. In the direction
in which M is smallest beside M_ω, draws with auxiliary variables have the autocorrelation 1 − γ,

    γ = min_v (vᵀ M v) / (vᵀ M_ω v),

before over-relaxation. Classes that are rare make it small, and the more observations there are of
each latent, the less the prior mends it. Held sites do not know of it, at the price of a step that
takes two to four times as long. Measured on one chain: effective samples a draw, the least over all
variables and their squares, with auxiliary variables and with held sites; then those a second, held
sites over auxiliary variables. Regressions have four coefficients; kernels are learned.

==========================================  ====  ====  =========  ====  ========
model                                          n     γ  auxiliary  held  a second
==========================================  ====  ====  =========  ====  ========
Bernoulli regression                          20  0.60       0.54  0.81       0.6
Bernoulli regression                         100  0.40       0.30  0.76       1.5
Bernoulli regression                        1000  0.65       0.59  0.75       0.9
Bernoulli regression                        5000  0.65       0.87  0.62       0.6
Bernoulli regression, rare class              20  0.34       0.31  0.62       0.8
Bernoulli regression, rare class             100  0.32       0.28  0.32       0.6
Bernoulli regression, rare class            1000  0.09       0.07  0.61       3.8
Bernoulli regression, rare class            5000  0.09       0.12  0.60       3.1
Binomial regression, 50 trials                20  0.60       0.74  0.82       0.6
Binomial regression, 500 trials               20  0.64       0.64  0.67       0.5
Binomial regression, 500 trials, rare         20  0.05       0.06  0.76       6.1
Binomial regression, 500 trials, rare        200  0.05       0.01  0.86        30
20 groups, their scale learned, rare class  1000  0.17       0.14  0.12       0.5
Student-t regression                        1000  0.93       0.32  0.57       0.9
Student-t regression, outliers              1000  0.93       0.43  0.55       0.7
Laplace regression                          1000  0.34       0.18  0.25       0.7
Laplace regression, outliers                1000  0.33       0.22  0.52       1.2
negative binomial regression                1000  0.60       0.27  0.37       0.3
Gaussian process, Bernoulli                  100     –       0.48  0.40       0.7
Gaussian process, Bernoulli                  300     –       0.24  0.19       1.2
Gaussian process, Bernoulli, rare class      100     –       0.39  0.19       0.4
Gaussian process, Bernoulli, rare class      300     –       0.18  0.27       2.4
Gaussian process, Binomial, 500 trials       200     –       0.49  0.40       1.0
Gaussian process, Student-t                   20     –       0.09  0.23       1.3
Gaussian process, Student-t, outliers         20     –       0.23  0.27       0.7
Gaussian process, Laplace                     20     –       0.15  0.14       0.5
==========================================  ====  ====  =========  ====  ========

So ``sites="auto"`` holds the sites of counts and classes where nothing but the latents is learned,
γ is below 0.3, and latents are fewer than observations and so few that γ costs next to nothing.

Several classes have a predictor each, and auxiliary variables draw one given the others, which
adds slowness of its own. The same measurement:

====================================  =====  =========  ====  ========
model of three classes                    n  auxiliary  held  a second
====================================  =====  =========  ====  ========
softmax regression                      100       0.03  0.85        26
softmax regression                     1000      0.002  0.87       106
softmax, processes, kernel fixed        100       0.10  0.75       5.1
softmax, processes, kernel learned      100      0.005  0.58        80
softmax, processes, kernel learned      250       0.03  0.57       7.8
softmax, processes, kernel learned      500      0.006  0.28       6.4
softmax, the same of eight classes       60       0.06  0.47       3.1
logistic-softmax, kernel fixed          100       0.07  0.28       1.0
logistic-softmax, kernel learned        100       0.08  0.12       1.1
logistic-softmax, iris, kernel learned  150       0.01  0.17        16
====================================  =====  =========  ====  ========

So they are held too. And so are several groups of predictors that a latent or a held site ties
together, a common part of a mean and of a scale, say, for which there is no Gaussian conditional.

References
----------
Johndrow, Smith, Pillai & Dunson (2019), MCMC for imbalanced categorical data. JASA 114.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from scipy.linalg import eigh

from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError
from pymc_augconj.latents.choice import condition
from pymc_augconj.latents.components import find_components
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.plan import held_names
from pymc_augconj.point import Point

from .held_sites import HeldSites

__all__ = ["choose_held", "share_of_information"]

# Below this γ sites are held.
_SMALL_SHARE = 0.3
# Latents for which γ is computed.
_MANY_LATENTS = 100


def choose_held(
    model: LatentGaussianModel,
    point: Point,
    sites: str = "auto",
    probes: Sequence[Point] = (),
) -> tuple[str, ...]:
    """Return the observed variables whose sites are held.

    Parameters
    ----------
    model : LatentGaussianModel
    point : mapping
        Where a chain starts.
    sites : {"auto", "augmented", "held"}
        As for :func:`pymc_augconj.plan.held_names`; "auto" is the choice of the module's docstring.
    probes : sequence of mapping
        Other values of θ, at which a latent may enter other predictors.
    """
    held = held_names(model, sites)
    if sites != "auto":
        return held
    classes = {
        s.name for s in model.sites if s.likelihood.discrete and s.likelihood.n_predictors > 1
    }
    held = tuple(s.name for s in model.sites if s.name in {*held, *classes})
    # Groups of predictors are sampled one after the other only where no latent ties them.
    grouped = {s.name for s in model.sites if len(s.likelihood.groups) > 1}
    if grouped and _is_tied(model, held, [point, *probes]):
        return tuple(s.name for s in model.sites if s.name in grouped.union(held))
    if held or model.latent_size >= min(model.n_rows, _MANY_LATENTS + 1):
        return held
    kinds = [site.likelihood for site in model.sites]
    if not all(k.discrete and k.has_auxiliary and k.n_predictors == 1 for k in kinds):
        return held
    if model.hyperparameters:
        return held
    small = share_of_information(model, point) < _SMALL_SHARE
    return tuple(site.name for site in model.sites) if small else ()


def _is_tied(model: LatentGaussianModel, held: Collection[str], points: Sequence[Point]) -> bool:
    """Return whether latents enter, or held sites tie, two groups of predictors."""
    groups = [
        (tuple(range(site.shape[0])),) if site.name in held else site.likelihood.groups
        for site in model.sites
    ]
    try:
        find_components(model, groups, [[read(p) for read in model.maps] for p in points])
    except AugmentationError:
        return True
    return False


def share_of_information(model: LatentGaussianModel, point: Point) -> float:
    """Return γ at ``point`` and the variational Gaussian approximation there.

    One where there is none.
    """
    sites = HeldSites(model, [site.name for site in model.sites], ())
    try:
        sites.choose(point)
        priors = LatentPriors(model, [point])
        prior = priors.at(point).factorized()
    except NotPositiveDefiniteError:
        return 1.0
    posterior = condition(prior, priors.groups, *sites.chosen, solver="weight")
    design = prior.predictor(prior.innovations(np.eye(model.latent_size))) - prior.offset
    expected = []
    for site in model.sites:
        mean, var = site.select(posterior.mean), site.select(posterior.var)
        y = site.y(point)
        expected.append(site.likelihood.expected_sites(y, mean, var, site.params(point))[1].ravel())
    held, augmented = (
        np.eye(model.latent_size) + (design * lam) @ design.T
        for lam in (sites.chosen[1], np.concatenate(expected))
    )
    share = eigh(held, augmented, eigvals_only=True, subset_by_index=[0, 0])[0]
    return float(share) if np.isfinite(share) else 1.0
