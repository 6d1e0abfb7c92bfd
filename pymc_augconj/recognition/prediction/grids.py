"""A process on a grid at new inputs, given its values, through eigenvectors of small matrices.

With the eigenvectors Vᵢ and eigenvalues of the factors Kᵢ, V = V₁ ⊗ V₂ ⊗ …, and D those of K plus
the variance of the noise, f* given the values f has

    m* + W D^−½ Vᵀ (f − m),    K** − W Wᵀ,    W = K*ₓ V D^−½.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from pymc.model import Model

from pymc_augconj.latents.by_grid import product_over_axes
from pymc_augconj.latents.dense import kronecker_product
from pymc_augconj.linalg.dense import cholesky_with_jitter
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.latents.separable import GridProduct
from pymc_augconj.recognition.processes.other_graphs import grid_products
from pymc_augconj.typing import Array

from .evaluate import in_variables


class GridProcess:
    """A process of which every cell of a grid has one value.

    ``matrices`` has the factors and the variance of the noise as a function of variables of the
    model, by name.
    """

    def __init__(self, model: Model, product: GridProduct) -> None:
        graphs, inputs = in_variables(model, [*product.factors, product.noise])
        self.matrices = PointFunction(graphs, inputs, first_calls=1)
        self._order = np.argsort(product.cells)

    @classmethod
    def find(cls, model: Model, name: str) -> GridProcess | None:
        """Return the process ``name``, if it has values at all cells of a large grid."""
        for product in grid_products(model, ()).values():
            is_whole = np.array_equal(np.sort(product.cells), np.arange(np.prod(product.grid)))
            if is_whole and product.whitened.name == f"{name}_rotated_":
                return cls(model, product)
        return None

    def draw(
        self,
        values: Mapping[str, Array],
        deviation: Array,
        noise: Array,
        parts: Mapping[str, Array],
    ) -> Array:
        """Return a draw of f*, (S, P), for every f − m of ``deviation``, (S, n), of one kernel.

        ``noise`` and ``parts`` are as for :func:`.draw_conditional`; the covariance of the old
        inputs follows from ``values``.
        """
        *factors, variance = self.matrices(dict(values))
        eigenvalues, vectors = zip(*map(np.linalg.eigh, factors), strict=True)
        D = product_over_axes([np.maximum(d, 0.0) for d in eigenvalues]) + float(variance)
        transposed, roots = [V.T for V in vectors], np.sqrt(D)
        rows = np.concatenate([parts["cross"], deviation])[:, self._order]
        rows = kronecker_product(transposed, np.ascontiguousarray(rows)) / roots
        W, weights = np.split(rows, [len(parts["cross"])])
        mean = parts["mean_new"] + weights @ W.T
        if "new" not in parts:
            var = parts["new_diagonal"] - np.vecdot(W, W)
            return np.asarray(mean + np.sqrt(np.maximum(var, 0.0)) * noise)
        cov = parts["new"] - W @ W.T
        chol, _ = cholesky_with_jitter(cov, name="the covariance at the new inputs")
        return np.asarray(mean + noise @ np.tril(chol).T)
