"""Products with a Kronecker product of Cholesky factors, as ``gp.LatentKron.prior`` writes them.

v is multiplied by one factor after another, with transposes and reshapes between. The result of
reading is compared with the graph at random factors and a random v.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.replace import clone_replace
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape

from pymc_augconj.latents.kronecker import kronecker_product
from pymc_augconj.recognition.graph.dependence import ModelIndex, static_shape
from pymc_augconj.recognition.graph.interpreter import NotInterpretedError, interpret

from .markov import is_product_with_cholesky

# Fewer values are faster by a dense factorisation.
_FEWEST = 200
_TOLERANCE = 1e-12


@dataclass(frozen=True)
class GridProduct:
    """(L₁ ⊗ L₂ ⊗ …) v, the ``covs`` Kᵢ = Lᵢ Lᵢᵀ, and the lengths of the axes."""

    product: Variable
    covs: tuple[Variable, ...]
    grid: tuple[int, ...]

    @property
    def scale(self) -> Variable:
        """Graph of the entries of all Kᵢ."""
        return pt.concatenate([K.ravel() for K in self.covs])


def grid_product(model: ModelIndex, rv: Variable) -> GridProduct | None:
    """Return the product that contains all uses of a standard normal vector, if it exists."""
    if rv.ndim != 1 or static_shape(rv)[0] < _FEWEST:
        return None
    variable, chols, product = rv, [], None
    while True:
        users = [
            node for node in model.users.get(variable, ())
            if not isinstance(node.op, Shape | Shape_i)
        ]  # fmt: skip
        step = users[0] if len(users) == 1 else None
        if step is None or not _goes_on(step, variable):
            break
        if is_product_with_cholesky(step):
            chols.append(step.inputs[0])
        variable = step.outputs[0]
        if variable.ndim == 1:
            product = variable
    if product is None or len(chols) < 2:
        return None
    covs = tuple(L.owner.inputs[0] for L in chols)
    grid = tuple(static_shape(K)[0] for K in covs)
    if int(np.prod(grid)) != static_shape(rv)[0] or not _agrees(rv, product, chols, grid):
        return None
    return GridProduct(product, covs, grid)


def _goes_on(node: Apply, variable: Variable) -> bool:
    """Return whether a node is a step of such a product."""
    if is_product_with_cholesky(node):
        return node.inputs[1] is variable
    is_move = isinstance(node.op, Reshape | DimShuffle | ViewOp | SpecifyShape)
    return is_move and node.inputs[0] is variable and variable not in node.inputs[1:]


def _agrees(rv: Variable, product: Variable, chols: list[Variable], grid: tuple[int, ...]) -> bool:
    rng = np.random.default_rng(0)
    factors = [np.tril(rng.uniform(0.5, 1.5, (n, n))) / n for n in grid]
    v = rng.standard_normal(static_shape(rv))
    given = {rv: pt.constant(v), **dict(zip(chols, map(pt.constant, factors), strict=True))}
    try:
        found = interpret(clone_replace([product], given, rebuild_strict=False))[0]
    except (NotInterpretedError, ValueError):
        return False
    expected = kronecker_product(factors, v)
    return found.shape == v.shape and bool(
        np.abs(found - expected).max() <= _TOLERANCE * np.abs(expected).max()
    )
