"""Priors of maps: a value for each area, similar to the values of its neighbours.

The weights of neighbours are a SciPy sparse matrix or a list of edges; no n × n array is made. A
Matérn field on a lattice or a triangulation likewise has a sparse precision.
"""

from __future__ import annotations

from math import comb, gamma, pi
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pymc.distributions.distribution import Continuous
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import coo_array, csr_array, diags_array, issparse, kron
from scipy.sparse.csgraph import connected_components
from scipy.spatial import Delaunay, cKDTree

from pymc_augconj.errors import DataError
from pymc_augconj.latents.joint import block_prior
from pymc_augconj.typing import Array, Index

from .sparse_normal import SparseNormal, precision_block


class CAR(Continuous):
    r"""A proper conditional autoregression, with the precision τ (D − α W), D the row sums of W.

    The same distribution as ``pm.CAR``, with its normalising constant and without eigenvalues.

    Parameters
    ----------
    W : scipy.sparse array or array_like, shape (n, n) or (E, 2)
        Symmetric, positive weights of neighbours; or pairs of areas, numbered from 0, each once.
    alpha : tensor_like
        Dependence on the neighbours, a number between −1 and 1.
    tau : tensor_like
        Precision, a positive number.
    mu : tensor_like
        Mean, a number or shape (n,).

    Raises
    ------
    DataError
        If W is not as described, or an area has no neighbour.

    References
    ----------
    Besag (1974), Spatial interaction and the statistical analysis of lattice systems. JRSS B 36.
    """

    @classmethod
    def dist(
        cls, W: Any, alpha: Any, tau: Any = 1.0, mu: Any = 0.0, **kwargs: Any
    ) -> TensorVariable:
        """Return the variable outside a model; see the class."""
        n, entries, sums, weights = _graph(W, cls.__name__)
        if not sums[:n].all():
            raise DataError(
                f"CAR: expected every area to have a neighbour, found none of "
                f"area {int(sums[:n].argmin())}; use pac.Leroux"
            )
        alpha, tau = _numbers(alpha, tau)
        # Beyond ±1 there is no prior for any entries.
        tau = pt.switch(pt.abs(alpha) < 1.0, tau, np.nan)
        block = precision_block(n, entries)
        return SparseNormal.dist(block, tau * (sums - alpha * weights), mu, cls.__name__, **kwargs)


class Leroux(Continuous):
    r"""The prior of Leroux, Lei and Breslow: precision (ρ (D − W) + (1 − ρ) I) / σ².

    Parameters
    ----------
    W : scipy.sparse array or array_like, shape (n, n) or (E, 2)
        Symmetric, positive weights of neighbours; or pairs of areas, numbered from 0, each once.
    rho : tensor_like
        Share of the neighbours, from 0 (independent areas) to less than 1.
    sigma : tensor_like
        Scale, a positive number.
    mu : tensor_like
        Mean, a number or shape (n,).

    Raises
    ------
    DataError
        If W is not as described.

    References
    ----------
    Leroux, Lei & Breslow (2000), Estimation of disease rates in small areas. In Statistical Models
    in Epidemiology, the Environment, and Clinical Trials.
    """

    @classmethod
    def dist(
        cls, W: Any, rho: Any, sigma: Any = 1.0, mu: Any = 0.0, **kwargs: Any
    ) -> TensorVariable:
        """Return the variable outside a model; see the class."""
        n, entries, sums, weights = _graph(W, cls.__name__)
        rho, sigma = _numbers(rho, sigma)
        valid = (rho >= 0.0) & (rho < 1.0) & (sigma > 0.0)
        tau = pt.switch(valid, sigma**-2.0, np.nan)
        own = (entries[0] == entries[1]).astype(float)
        array = tau * (rho * (sums - weights) + (1.0 - rho) * own)
        return SparseNormal.dist(precision_block(n, entries), array, mu, cls.__name__, **kwargs)


class ICAR(Continuous):
    r"""The intrinsic autoregression, precision (D − W) / σ², with a sum near zero.

    The mean of the areas is N(0, ``zero_sum_stdev``²), so that the prior is proper and has a
    normalising constant. ``scaled`` multiplies W by a number that makes the geometric mean of the
    variances σ². The model of Riebler et al. (BYM2) is √ρ times a scaled ``ICAR`` plus √(1 − ρ)
    times a ``pm.Normal``.

    Parameters
    ----------
    W : scipy.sparse array or array_like, shape (n, n) or (E, 2)
        Symmetric, positive weights of neighbours; or pairs of areas, numbered from 0, each once.
    sigma : tensor_like
        Scale, a positive number.
    zero_sum_stdev : float
        Standard deviation of the mean of the areas, positive.
    scaled : bool
        Whether to scale W as above.

    Raises
    ------
    DataError
        If W is not as described, or the map has several parts.

    References
    ----------
    Besag, York & Mollié (1991), Bayesian image restoration. Annals of the ISM 43.
    Riebler, Sørbye, Simpson & Rue (2016), An intuitive Bayesian spatial model for disease mapping
    that accounts for scaling. Statistical Methods in Medical Research 25.
    """

    @classmethod
    def dist(
        cls,
        W: Any,
        sigma: Any = 1.0,
        zero_sum_stdev: float = 0.001,
        scaled: bool = False,
        **kwargs: Any,
    ) -> TensorVariable:
        """Return the variable outside a model; see the class."""
        n, entries, sums, weights = _graph(W, cls.__name__)
        present = weights != 0.0
        matrix = coo_array((weights[present], tuple(entries[:, present])), shape=(n, n))
        parts = connected_components(matrix)[0]
        if parts > 1:
            raise DataError(
                f"ICAR: expected a connected map, found {parts} parts; use pac.Leroux or pac.CAR, "
                "or an ICAR for each part"
            )
        block = precision_block(n, entries, "intrinsic")
        common = (zero_sum_stdev * n) ** -2.0
        B = sums - weights
        if scaled:
            prior = block_prior(block, np.append(B, common))
            B = B * np.exp(np.log(prior.var() - zero_sum_stdev**2).mean())
        (sigma,) = _numbers(sigma)
        tau = pt.switch(sigma > 0.0, sigma**-2.0, np.nan)
        array = pt.concatenate([tau * B, [common]])
        return SparseNormal.dist(block, array, 0.0, cls.__name__, **kwargs)


def _numbers(*values: Any) -> list[Variable]:
    return [pt.as_tensor(value).astype("float64").reshape(()) for value in values]


def _graph(W: Any, name: str) -> tuple[int, Index, Array, Array]:
    """Return n, the places of the entries of D − W, the diagonal's first, and those of D and W."""
    is_list = not issparse(W) and np.ndim(W) == 2 and np.shape(W)[1] == 2 != len(W)
    if not issparse(W):
        W = np.asarray(W)
        if is_list:
            W = W.astype(np.intp, casting="same_kind")
            n = int(W.max(initial=-1)) + 1
            if W.min(initial=0) < 0:
                raise DataError(f"{name}: expected areas numbered from 0, found {W.min()}")
            both = np.concatenate([W, W[:, ::-1]]).T
            W = coo_array((np.ones(both.shape[1]), tuple(both)), shape=(n, n))
    W = coo_array(W).astype(float)
    W.sum_duplicates()
    W.eliminate_zeros()
    rows, cols = W.coords
    n = W.shape[0]
    wrong = None
    if is_list and (W.data > 1.0).any():
        wrong = "a pair more than once"
    elif W.shape != (n, n) or n < 2:
        wrong = f"shape {W.shape}"
    elif not (np.isfinite(W.data).all() and (W.data > 0.0).all()):
        wrong = "weights that are negative or not finite"
    elif (rows == cols).any():
        wrong = f"area {int(rows[rows == cols][0])} beside itself"
    elif abs(W - W.T).sum() > 0.0:
        wrong = "weights that are not symmetric"
    if wrong is not None:
        raise DataError(
            f"{name}: expected W to have symmetric weights of neighbours, positive and finite, "
            f"shape (n, n), or pairs of areas, shape (E, 2); found {wrong}"
        )
    entries = np.concatenate([np.tile(np.arange(n), (2, 1)), [rows, cols]], axis=1).astype(np.intp)
    sums = np.bincount(rows, W.data, n)
    return n, entries, np.append(sums, np.zeros(rows.size)), np.append(np.zeros(n), W.data)


_SMOOTHNESS = (1, 2, 3)


class MaternField(Continuous):
    r"""A field over the plane with nearly a Matérn covariance and a sparse precision.

    The solution of a stochastic differential equation, linear on the triangles of a mesh, has the
    precision

    .. math:: τ² C (κ² + C^{-1} G)^{ν + 1}, \quad κ = \sqrt{2ν}/\ell, \quad
              τ² = \frac{1}{4π ν σ² κ^{2ν}},

    with C the area of each node and G the integrals of products of gradients. For a fine mesh and a
    distant border the covariance approaches ``sigma**2 * pm.gp.cov.Matern…`` with this ν and
    lengthscale. Variances are too large within a lengthscale of the border, by up to a factor of
    four in a corner.

    Parameters
    ----------
    lengthscale, sigma : tensor_like
        Positive numbers.
    nu : {1, 2, 3}
        Smoothness.
    grid : tuple of int, optional
        Rows and columns of a lattice with the distance ``spacing``. The first rows · columns
        values of the variable belong to the lattice, row by row.
    mesh : array_like, shape (n, 2), optional
        Distinct points. The nodes of the triangulation are these points, and a lattice with this
        ``spacing`` where no point is nearer. The first n values of the variable belong to the
        points.
    spacing : float
        For a lattice 1 by default; for points the distance of a lattice with n points.
    padding : float
        Distance from the points, or lattice, to the border of the field; with two lengthscales
        the border has little effect. Zero by default.

    Raises
    ------
    DataError
        If ν, the lattice, points or distances are not as described.

    References
    ----------
    Lindgren, Rue & Lindström (2011), An explicit link between Gaussian fields and Gaussian Markov
    random fields. JRSS B 73.
    """

    @classmethod
    def dist(
        cls,
        lengthscale: Any,
        sigma: Any,
        nu: int,
        grid: tuple[int, int] | None = None,
        mesh: ArrayLike | None = None,
        spacing: float | None = None,
        padding: float = 0.0,
        **kwargs: Any,
    ) -> TensorVariable:
        """Return the variable outside a model; see the class."""
        if nu not in _SMOOTHNESS:
            raise DataError(f"MaternField: expected nu of {_SMOOTHNESS}, found {nu}")
        if (grid is None) == (mesh is None) or not padding >= 0.0 or not (spacing or 1.0) > 0.0:
            raise DataError(
                "MaternField: expected either grid or mesh, a positive spacing and a padding of "
                f"at least 0, found grid={grid}, spacing={spacing}, padding={padding}"
            )
        if grid is not None:
            C, G = _of_lattice(grid, spacing or 1.0, padding)
        else:
            C, G = _of_nodes(_around(np.asarray(mesh, dtype=float), spacing, padding))
        # C (κ² + C⁻¹G)^α is a polynomial of κ² with matrices as its coefficients.
        terms = [csr_array(diags_array(C))]
        for _ in range(int(nu) + 1):
            terms.append(csr_array(terms[-1] @ diags_array(1.0 / C) @ G))
        pattern = sum((abs(term) for term in terms[1:]), abs(terms[0])).tocoo()
        places = pattern.row, pattern.col
        values = np.stack([comb(int(nu) + 1, k) * term[places] for k, term in enumerate(terms)])
        lengthscale, sigma = (pt.as_tensor(v).astype("float64") for v in (lengthscale, sigma))
        square = pt.switch((lengthscale > 0.0) & (sigma > 0.0), 2.0 * nu / lengthscale**2, np.nan)
        powers = square ** np.arange(nu + 1.0, -1.0, -1.0)
        tau = gamma(nu) / (gamma(nu + 1.0) * 4.0 * pi * sigma**2 * square**nu)
        block = precision_block(C.size, np.stack(places).astype(np.intp))
        return SparseNormal.dist(block, tau * pt.dot(powers, values), 0.0, cls.__name__, **kwargs)


def _of_lattice(grid: tuple[int, int], spacing: float, padding: float) -> tuple[Array, csr_array]:
    """Return the area of each node, and G, of a lattice, the nodes of its padding last."""
    if len(grid) != 2 or min(grid) < 2:
        raise DataError(
            f"MaternField: expected grid=(rows, columns), each at least 2, found {grid}"
        )
    more = int(np.ceil(padding / spacing))
    lengths, slopes, inside = [], [], []
    for n in grid:
        steps = diags_array([-1.0, 1.0], offsets=[0, 1], shape=(n + 2 * more - 1, n + 2 * more))
        slopes.append(steps.T @ steps / spacing)
        lengths.append(spacing * np.append(np.append(0.5, np.ones(n + 2 * more - 2)), 0.5))
        inside.append((np.arange(n + 2 * more) >= more) & (np.arange(n + 2 * more) < n + more))
    first, second = map(diags_array, lengths)
    G = kron(slopes[0], second) + kron(first, slopes[1])
    order = np.argsort(~np.outer(*inside).ravel(), kind="stable")
    return np.outer(*lengths).ravel()[order], csr_array(csr_array(G)[order][:, order])


def _around(points: Array, spacing: float | None, padding: float) -> Array:
    """Return points, and nodes of a lattice that covers them and the padding."""
    if points.ndim != 2 or points.shape[1] != 2 or len(points) < 3 or not np.isfinite(points).all():
        raise DataError(
            "MaternField: expected mesh to have points of the plane, shape (n, 2), three or more "
            f"and finite, found shape {points.shape}"
        )
    if len(np.unique(points, axis=0)) < len(points):
        raise DataError(
            "MaternField: expected distinct points, found some twice; pass each once, and use "
            "np.unique(points, axis=0, return_inverse=True) to index the field"
        )
    extent = np.ptp(points, axis=0)
    h = spacing or float(np.sqrt(max(extent.prod(), extent.max() ** 2 / len(points)) / len(points)))
    low, high = points.min(axis=0) - padding, points.max(axis=0) + padding
    across = [
        np.linspace(a, b, int(np.ceil((b - a) / h)) + 2) for a, b in zip(low, high, strict=True)
    ]
    nodes = np.stack(np.meshgrid(*across, indexing="ij"), axis=-1).reshape(-1, 2)
    return np.concatenate([points, nodes[cKDTree(points).query(nodes)[0] >= h]])


def _of_nodes(nodes: Array) -> tuple[Array, csr_array]:
    """Return the area of each node, and G, for linear functions on the triangles of Delaunay."""
    triangles = Delaunay(nodes).simplices
    corners = nodes[triangles]
    # The edge opposite to each corner.
    edges = np.roll(corners, -2, axis=1) - np.roll(corners, -1, axis=1)
    first, second = edges[:, 0], edges[:, 1]
    areas = 0.5 * np.abs(first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0])
    C = np.bincount(triangles.ravel(), np.repeat(areas / 3.0, 3), len(nodes))
    if not (C > 0.0).all():
        raise DataError(
            "MaternField: expected points that a triangulation takes, found some so "
            "near to others, or on one line, that it leaves them out"
        )
    products = np.einsum("tid,tjd->tij", edges, edges) / (4.0 * areas)[:, None, None]
    rows, cols = np.repeat(triangles, 3, axis=1).ravel(), np.tile(triangles, (1, 3)).ravel()
    return C, csr_array(coo_array((products.ravel(), (rows, cols)), shape=2 * (len(nodes),)))
