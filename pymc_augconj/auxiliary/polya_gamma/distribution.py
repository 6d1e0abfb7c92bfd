"""The Pólya–Gamma distribution PG(h, c): draws, mean and density.

PG(h, c) is the distribution of ω = (1/2π²) Σ_{k≥1} g_k / ((k − ½)² + c²/4π²), g_k ~ Gamma(h, 1),
and E exp(−tω) = ( cosh(c/2) / cosh √(c²/4 + t/2) )ʰ. By it, e^{af} / (1 + e^f)^b = 2^{−b} e^{(a −
b/2)f} E exp(−f²ω/2) with ω ~ PG(b, 0), and ω | f ~ PG(b, f): the logistic family given ω is
Gaussian in f. PG(0, c) is an atom at ω = 0: an observation with h = 0 has no factor, and its site
is (0, 0).

Throughout, x = 4ω, z = |c|/2, and u is the argument of cosh √u: c²/4 + t/2 in the transform. For
negative u, cosh √u = cos √−u.

PG(1, c), the auxiliary variable of a Bernoulli, is drawn in NumPy without compilation, by the
thinned inverse Gaussian of :mod:`.kernels` at h = 1. Its acceptance probability has two rapidly
convergent series, one on each side of `SWITCH` (Jacobi's theta function, Devroye 2009):

    R(x) = Σ_{n≥0} (−1)ⁿ (2n + 1) exp(−2n(n + 1)/x)
         = (πx/2)^{3/2} exp(1/(2x) − π²x/8) Σ_{n≥0} (−1)ⁿ (2n + 1) exp(−π² n(n + 1) x/2).

The Numba kernel takes less than a fifth of the time, but a second or two to compile on a first run.

References
----------
Polson, Scott & Windle (2013), Bayesian inference for logistic models using Pólya–Gamma latent
variables, JASA 108. Biane, Pitman & Yor (2001), Probability laws related to the Jacobi theta and
Riemann zeta functions, and Brownian excursions, Bull. AMS 38. Devroye (2009), On exact simulation
algorithms for some distributions related to Jacobi theta functions, Statistics & Probability
Letters 79.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from pymc_augconj.errors import refuse
from pymc_augconj.typing import Array, ComplexArray, Generator, Mask

EDGE = np.pi**2 / 4  # cosh √u = 0 at u = −EDGE: where the Laplace transform ceases to exist
CONTOUR_NODES = 48
CONTOUR_EXPONENT = 40.0  # the inversion contour ends where its factor exp(−v²x) is exp(−40)


def random_polya_gamma(rng: Generator, h: ArrayLike, c: ArrayLike) -> Array:
    """Draw independent ω ~ PG(h, c), exactly, at a cost that stays flat in h.

    For every real h up to 1e8 the distribution is exact to the rounding of float64 (of h log cosh,
    where h is large); above, it is within 1/h of it in total variation. Where h log(1 + exp(−|c|))
    ≤ 2 a draw is a thinned inverse Gaussian, elsewhere a corrected saddlepoint rejection: see
    :mod:`.kernels`. The first use of each compiles it (Numba, cached on disk); h ≤ 2 needs only the
    first, and a single h = 1 for fewer than a thousand tilts none.

    Raises ValueError unless h ≥ 0 (PG(0, c) is the point mass at zero) and c are finite.

    References
    ----------
    Windle, Polson & Scott (2014), Sampling Pólya–Gamma random variates, arXiv:1405.0506.
    """
    h, c = _checked(h, c)
    shape = np.broadcast_shapes(h.shape, c.shape)
    if h.ndim == 0 and h == 1.0 and c.size < MANY:
        return random_unit_polya_gamma(rng, c.ravel()).reshape(shape)
    # Imported here, as PG(1, c), moments and densities need no Numba.
    from . import kernels

    h_flat, c_flat = _flat(h, shape), _flat(c, shape)
    out = np.empty(h_flat.shape)
    few = h.size == 0 or h.max() * kernels.LOG_2 <= kernels.MAX_JUMPS_BY_THINNING
    fill = kernels.fill_by_thinning if few else kernels.fill_by_both
    fill(rng, h_flat, c_flat, out)
    return out.reshape(shape)


def mean_polya_gamma(h: ArrayLike, c: ArrayLike) -> Array:
    """E ω = h tanh(c/2) / (2c); h/4 at c = 0."""
    h, c = _checked(h, c)
    z = 0.5 * np.abs(c)
    # tanh z/z is accurate at every z > 0.
    safe = np.where(z > 0.0, z, 1.0)
    return 0.25 * h * np.where(z > 0.0, np.tanh(safe) / safe, 1.0)


def logpdf_polya_gamma(x: ArrayLike, h: ArrayLike, c: ArrayLike) -> Array:
    """Log density of PG(h, c), at any real h > 0, and in both tails; −∞ for x ≤ 0.

    The alternating series for the density loses all digits in the right tail; here the transform is
    inverted instead, along a parabola through the saddlepoint, where the midpoint rule with 48
    nodes has a relative error below 1e-11 at h ≥ 0.3 (1e-9 at h = 0.01), plus the rounding of the
    exponent. h = 0 has no density, and is refused.
    """
    h, c = _checked(h, c)
    refuse("h", h, h > 0.0, "a shape > 0")
    x, h, c = np.broadcast_arrays(np.asarray(x, dtype=float), h, c)
    inside = (x > 0.0) & (x < np.inf)
    value = np.full(x.shape, -np.inf)
    value[np.isnan(x)] = np.nan
    x, h, z = 4.0 * x[inside], h[inside], 0.5 * np.abs(c[inside])
    # Far in the left tail the first term of the alternating series, an inverse Gaussian, suffices.
    with np.errstate(over="ignore"):
        first = np.log(4.0 * h) - 0.5 * np.log(2.0 * np.pi) - 1.5 * np.log(x) - 0.5 * (h / x) * h
    first += h * (np.log(2.0) + _log_cosh(z)) - 0.5 * z * z * x
    in_left_tail = x < (1.0 + h) / 25.0
    value[inside] = np.where(
        in_left_tail, first, _logpdf_by_contour(np.where(in_left_tail, h, x), h, z)
    )
    return value


def _logpdf_by_contour(x: Array, h: Array, z: Array) -> Array:
    # f(x) = 1/(2πi) ∫ exp(s x) cosh(√(2s))⁻ʰ ds on s = −EDGE/2 + (a + iv)², ds = 2i(a + iv) dv.
    # a² is half the saddle's distance Δ from the edge, but at least 1/x: nearer to the edge the
    # integrand is too sharp for the nodes.
    a = np.sqrt(np.maximum(0.5 * _solve_saddle(x / h), 1.0 / x))
    width = np.sqrt(CONTOUR_EXPONENT / x) / CONTOUR_NODES
    top = _log_cosh_sqrt(2.0 * a * a - EDGE + 0j).real
    total = np.zeros_like(x)
    for node in range(CONTOUR_NODES):
        v = (node + 0.5) * width
        point = a + 1j * v
        # The exponent less its value at v = 0.
        exponent = (2j * a - v) * v * x - h * (_log_cosh_sqrt(2.0 * point**2 - EDGE) - top)
        total += (np.exp(exponent) * point).real
    log_density = (a * a - 0.5 * EDGE - 0.5 * z * z) * x + h * (_log_cosh(z) - top)
    return log_density + np.log(8.0 / np.pi * width * total)


def _checked(h: ArrayLike, c: ArrayLike) -> tuple[Array, Array]:
    h, c = np.asarray(h, dtype=float), np.asarray(c, dtype=float)
    refuse("h", h, (h >= 0.0) & (h < np.inf), "a finite shape ≥ 0")
    refuse("c", c, np.isfinite(c), "a finite tilt")
    return h, c


def _flat(values: Array, shape: tuple[int, ...]) -> Array:
    """Contiguous and one-dimensional: the only type the kernels are compiled for."""
    if values.shape != shape:
        values = np.broadcast_to(values, shape)
    return np.ascontiguousarray(values).reshape(-1)


def _log_cosh(z: Array) -> Array:
    small = np.minimum(z, 1.0)  # there log1p keeps the digits of z²/2
    return np.where(
        z < 1.0,
        np.log1p(2.0 * np.sinh(0.5 * small) ** 2),
        z + np.log1p(np.exp(-2.0 * z)) - np.log(2.0),
    )


def _log_cosh_sqrt(u: ComplexArray) -> ComplexArray:
    """Return log cosh √u on the plane cut along u < −EDGE, real for real u."""
    q = np.sqrt(u)  # Re q ≥ 0, so |exp(−2q)| ≤ 1 and the principal logarithm is the right one
    return q + np.log(1.0 + np.exp(-2.0 * q)) - np.log(2.0)


def _solve_saddle(xi: Array) -> Array:
    """Δ = u + EDGE > 0 at which tanh(√u)/√u = xi, to about eight digits."""
    delta = (1.0 / xi) ** 2 + 2.0 / xi  # right in both limits
    for _ in range(6):
        u = delta - EDGE
        u = np.where(np.abs(u) < 1e-3, 1e-3, u)  # the closed forms below are 0/0 at u = 0
        q = np.sqrt(np.abs(u))
        # tan q = cot(π/2 − q), from Δ itself: no digit is lost at the edge.
        tangent = 1.0 / np.tan(np.minimum(delta / (0.5 * np.pi + q), 1.57))
        value = np.where(u > 0.0, np.tanh(q), tangent) / q
        derivative = -0.5 * (value**2 + (value - 1.0) / u)
        # Newton in log–log, where the curve is nearly straight.
        delta = delta * np.exp((np.log(xi) - np.log(value)) * value / (derivative * delta))
    return delta


def log_polya_gamma(omega: np.ndarray, h: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Return log PG(ω | h, c), h ≥ 0, with respect to Lebesgue measure plus the atom at ω = 0."""
    omega, h, c = np.broadcast_arrays(omega, h, c)
    atom = h == 0
    density = logpdf_polya_gamma(omega, np.where(atom, 1.0, h), c)
    return np.where(atom, np.where(omega == 0, 0.0, -np.inf), density)


# From this number on the kernel is worth its compilation.
MANY = 1000

# Both series have an error of 1e-16 after four terms here.
SWITCH = 0.64
# Fewer remaining draws than this get several candidates at once, so that few rounds remain.
FEW, CANDIDATES = 64, 8


def random_unit_polya_gamma(rng: Generator, c: Array) -> Array:
    """Draw ω ~ PG(1, c) for a vector of finite c, exactly."""
    z = 0.5 * np.abs(c)
    out = np.empty(z.size)
    left = np.arange(z.size)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
        while left.size:
            count = 1 if left.size > FEW else CANDIDATES
            x, accepted = _candidates(rng, np.repeat(z[left], count))
            accepted = accepted.reshape(-1, count)
            first = accepted.argmax(axis=1)
            done = accepted[np.arange(left.size), first]
            out[left[done]] = x.reshape(-1, count)[np.arange(left.size), first][done]
            left = left[~done]
    return 0.25 * out


def _candidates(rng: Generator, z: Array) -> tuple[Array, Mask]:
    """Return inverse Gaussian draws x, of mean 1/z and shape 1, and whether each is accepted."""
    half = 0.5 * np.square(rng.standard_normal(z.size))
    x = 1.0 / (z + half + np.sqrt(half * (2.0 * z + half)))
    ratio = z * x
    uniform = rng.random(z.size) * (1.0 + ratio)
    # The larger root; the rescaled uniform is uniform again.
    larger = uniform > 1.0
    x = np.where(larger, x / np.square(ratio), x)
    uniform = np.where(larger, (uniform - 1.0) / ratio, uniform)
    # NaN, from an infinite x, means rejection.
    return x, uniform <= acceptance(x)


def acceptance(x: Array) -> Array:
    """Return R(x), the probability that x is kept, for x > 0."""
    # The factor of the second series overflows where the first series is used.
    with np.errstate(all="ignore"):
        q = np.exp(np.where(x < SWITCH, -4.0 / x, -(np.pi**2) * x))
        cube = q * q * q
        series = 1.0 - 3.0 * q + 5.0 * cube - 7.0 * cube * cube
        scaled = 0.5 * np.pi * x
        factor = scaled * np.sqrt(scaled) * np.exp(0.5 / x - (np.pi**2 / 8.0) * x)
        return np.where(x < SWITCH, series, factor * series)
