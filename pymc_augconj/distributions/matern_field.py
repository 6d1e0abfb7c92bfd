"""A Matérn field on a lattice or a triangulation, with a sparse precision."""

from __future__ import annotations

from math import comb, gamma, pi
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.typing import ArrayLike
from pymc.distributions.distribution import Continuous
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import coo_array, csr_array, diags_array, kron
from scipy.spatial import Delaunay, cKDTree

from pymc_augconj.errors import DataError
from pymc_augconj.typing import Array

from .sparse_normal import SparseNormal, precision_block

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
