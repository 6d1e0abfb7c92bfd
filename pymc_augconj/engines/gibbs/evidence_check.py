"""The log evidence of the Gaussian move once more, by another factorisation.

A step's log density is the joint one, which does not know of the log evidence that hyperparameters
were accepted by. For any latents v,

    log Z = log p(sites | v) + log p(v) − log p(v | sites),

and p(v | sites) is N(M⁻¹Φᵀh, M⁻¹), M = I + ΦᵀΛΦ, whose factors here are those of Gaussian
elimination: with the factor that gave log Z errors would cancel.

References
----------
Chib (1995), Marginal likelihood from the Gibbs output. JASA 90.
"""

from __future__ import annotations

import numpy as np

from pymc_augconj.errors import AugmentationError
from pymc_augconj.gaussian.sites import Coupling
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.rows import SiteSum
from pymc_augconj.linalg.rounding import EPS, SMALL_ERROR
from pymc_augconj.typing import Array

__all__ = ["check_log_evidence"]

# Latents whose precision is formed.
_MANY_LATENTS = 300
# A difference, in nats, that is no rounding of either of two numbers with errors of SMALL_ERROR.
_WRONG = 10.0 * SMALL_ERROR


def check_log_evidence(
    prior: LatentPrior, sites: SiteSum, coupling: Coupling, v: Array, log_evidence: float
) -> None:
    """Compare a log evidence with that of another factorisation, where this has digits.

    ``v`` are the whitened latents, a draw given the sites; ``log_evidence`` has the sites' constant
    and the density one of flat latents. Raises AugmentationError if the two differ.
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
    except np.linalg.LinAlgError:
        return
    log_det = float(np.linalg.slogdet(scaled)[1] - 2.0 * np.log(unit).sum())
    eta, away = v @ design, v - unit * (inverse @ (unit * (design @ h)))
    squares = np.array([v @ weighted @ eta, v @ v, log_det, -(away @ M @ away)])
    constant, size = sites.constants
    found = constant + prior.log_flat + float(h @ eta - 0.5 * squares.sum())
    magnitude = size + abs(h @ eta) + np.abs(squares).sum() + np.abs(inverse).sum()
    error = EPS * h.size * float(magnitude) + prior.scale_error
    if error < SMALL_ERROR and not abs(found - log_evidence) <= _WRONG:
        names = " and ".join(repr(b.block.name) for b in prior.blocks)
        raise AugmentationError(
            f"latent variables {names}: expected a log evidence of {found:.8g}, as another "
            f"factorisation gives it, found {log_evidence:.8g}; no draw of this chain can be "
            "trusted; sample this model with pm.sample's NUTS, and please report it"
        )
