"""F and the density at given x for a batch of tilts, each with its method of inversion.

The three methods are Euler summation (see `quantiles` for why, and for its error), Fourier
series and the nearly normal limit (`narrow`).
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import comb

from pymc_augconj.auxiliary.checks import refuse
from pymc_augconj.typing import Array, Index

from . import kernels
from .distribution import TiltedDistribution
from .narrow import (
    HALF_A,
    MAYBE_NORMAL,
    NARROW,
    FourierDistributions,
    NormalCumulants,
    fourier_distributions,
    normal_cumulants,
)

CAREFUL = 1  # the rule for densities, and for narrow distributions
UNCONVERGED = 3e-10  # last change of F that asks for the next rule


def _euler_weights(terms: int, averaged: int) -> Array:
    """Signed weights of ``terms`` + ``averaged`` + 1 nodes, and weights with one average less."""
    rows = []
    for count in (averaged, averaged - 1):
        tail = np.cumsum(comb(count, np.arange(count + 1))[::-1])[::-1] / 2.0**count
        row = np.ones(terms + averaged + 1)
        row[terms : terms + count + 1] = tail
        row[terms + count + 1 :] = 0.0
        row[0] = 0.5
        rows.append(row * (-1.0) ** np.arange(row.size))
    return np.array(rows)


# Each rule is for the sites that the previous one leaves unconverged.
WEIGHTS = [_euler_weights(*rule) for rule in ((22, 16), (40, 20), (150, 50), (600, 80))]


class Sites:
    """A batch of tilts, each with its method; everything relative to the distribution's origin."""

    def __init__(
        self, distribution: TiltedDistribution, r: Array, moments: Sequence[Array] | None = None
    ) -> None:
        self.distribution, self.r = distribution, r
        self.log_phi_r = distribution.real(r)
        refuse("r", r, np.isfinite(self.log_phi_r), "an r at which log φ is finite")
        if moments is None:
            self.mean, self.std = distribution.rough_moments(r)
        else:
            self.mean, self.std = moments[0] - distribution.origin, np.sqrt(moments[1])
        with np.errstate(all="ignore"):
            self.variation = np.where(self.mean > 0.0, self.std / self.mean, 0.0)
        # A heavy tail's infinite or missing moments make it wide.
        self.variation = np.where(np.isfinite(self.variation), self.variation, np.inf)
        with np.errstate(over="ignore"):
            self.atom = np.minimum(np.exp(distribution.log_atom - self.log_phi_r), 1.0)
        self.origin, self.floor = np.zeros((2, r.size))  # of Euler summation

        self.is_normal = self.variation < MAYBE_NORMAL
        self.normal = self._find_normal()
        self.is_fourier = (self.variation < NARROW) & ~self.is_normal & (self.std > 0.0)
        self.is_wide = ~self.is_fourier & ~self.is_normal
        self.is_euler_narrow = self.is_fourier.copy()
        self.fourier: FourierDistributions | None = None
        if self.is_fourier.any():
            tried = np.nonzero(self.is_fourier)[0]
            distributions = fourier_distributions(
                distribution, r[tried], self.std[tried], self.log_phi_r[tried]
            )
            self.fourier = distributions
            self.is_fourier[tried] = distributions.usable
            self.is_euler_narrow &= ~self.is_fourier
            self.origin[tried] = np.where(distributions.usable, 0.0, distributions.origin)
            self.floor[tried] = np.where(distributions.usable, 0.0, distributions.floor)

    def _find_normal(self) -> NormalCumulants | None:
        tried = np.nonzero(self.is_normal)[0]
        if tried.size == 0:
            return None
        found = normal_cumulants(
            self.distribution, self.r[tried], self.mean[tried], self.std[tried]
        )
        self.is_normal[tried] = found.near_normal
        return found[found.near_normal]

    def euler(self, which: Index, x: Array, rule: int) -> tuple[Array, Array, Array]:
        """F(x), x f(x) (x from the Euler origin) and their truncation errors, for some sites."""
        r, origin, weights = self.r[which], self.origin[which], WEIGHTS[rule]
        nodes = np.empty((x.size, weights.shape[1]), dtype=np.complex128)
        kernels.fill_nodes(r, x, origin, HALF_A, nodes)
        cdf, pdf, errors = np.empty(x.size), np.empty(x.size), np.empty((2, x.size))
        values = self.distribution(nodes)
        kernels.euler_sums(
            values, self.log_phi_r[which], x, origin, HALF_A, weights, cdf, pdf, errors
        )
        return cdf, pdf, errors

    def cdf_and_pdf(self, x: Array) -> tuple[Array, Array, Array]:
        """F(x), f(x) and an error of x f(x), x > 0 relative to the distribution's origin."""
        cdf, pdf, error = np.empty((3, x.size))
        which = self.is_normal
        if self.normal is not None and which.any():
            cdf[which], pdf[which] = self.normal.cdf_and_pdf(x[which])
            error[which] = 1e-8 * x[which] * pdf[which]
        which, distributions = self.is_fourier, self.fourier
        if distributions is not None and which.any():
            out = np.empty((2, distributions.low.size))
            kernels.fourier_sums(
                x[which],
                distributions.low,
                distributions.period,
                distributions.log_phi_r,
                distributions.values,
                distributions.tau,
                distributions.offsets,
                out[0],
                out[1],
            )
            cdf[which], pdf[which] = out
            rounding = 1e-12 + 1e-15 * np.abs(distributions.log_phi_r)
            error[which] = rounding * x[which] / self.std[which]
        index = np.nonzero(self.is_wide | self.is_euler_narrow)[0]
        below = x[index] <= self.floor[index]
        cdf[index[below]] = pdf[index[below]] = error[index[below]] = 0.0
        index = index[~below]
        for rule in range(CAREFUL, len(WEIGHTS)):
            if index.size == 0:
                break
            at = x[index]
            distance = at - self.origin[index]
            cdf[index], density, (missing, truncation) = self.euler(index, at, rule)
            pdf[index] = density / distance
            size = 1.0 + np.abs(self.log_phi_r[index]) + 60.0 * self.distribution.origin / distance
            rounding = np.exp(HALF_A) * 1e-16 * size
            error[index] = (truncation + np.exp(-2.0 * HALF_A) + rounding) * (at / distance)
            index = index[np.maximum(missing, 0.1 * truncation) > UNCONVERGED]
        return cdf, pdf, error
