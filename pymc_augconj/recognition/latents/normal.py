"""Finds the Gaussian latent variables of a model by the names of their distributions.

* ``pm.Normal``, ``pm.MvNormal``, ``pm.KroneckerNormal``: value = mean + u, u ~ N(0, K(θ)); the mean
  may contain other latents, so hierarchies of Gaussians become jointly Gaussian;
* ``pm.Flat``: a normal variable with a standard deviation beyond all scales;
* ``pm.ZeroSumNormal``: its value on PyMC's unconstrained scale has independent normal entries;
* ``gp.Latent.prior`` in its default form: u = chol(K) v replaces the product with v ~ N(0, I), so
  that no graph contains a Cholesky factor;
* ``gp.LatentKron.prior``: u = (L₁ ⊗ L₂ ⊗ …) v likewise, where v is multiplied by one factor after
  another; the result is compared with the graph at random factors and a random v;
* ``pt.cumsum`` of standard normal variables likewise: a walk replaces the sums of its steps.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from typing import Any

import numpy as np
import pytensor.tensor as pt
from numpy.lib.array_utils import normalize_axis_tuple
from pymc.distributions.transforms import Interval, Ordered, ZeroSumTransform
from pymc.logprob.transforms import Transform
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape

from pymc_augconj.latents.dense import FLAT_STD, kronecker_product
from pymc_augconj.recognition.graph.dependence import ModelIndex, static_shape
from pymc_augconj.recognition.graph.interpreter import NotInterpretedError, interpret, op_name
from pymc_augconj.recognition.graph.rewrite import folded, is_number

from .innovations import GaussianVariable
from .markov import MarkovRoot, inputs_of, is_product_with_cholesky

#: Entries of the longest order. Of 30 levels with 7 observations each few candidates of a slice had
#: the right order: one effective draw of 46. Of 20 it is one of seven, half as many as with NUTS.
MOST_ORDERED = 20
# The factor behind chol(K): v as a vector or a column, or each row of v as a column.
_COLUMNS = ((0,), (0, "x"), (1, 0))


def find_gaussian_variables(model: ModelIndex) -> list[GaussianVariable]:
    """Return the free variables of the module's distributions."""
    found: list[GaussianVariable | None] = []
    for rv in model.free_RVs:
        name = type(rv.owner.op).__name__
        transform = model.rvs_to_transforms[rv]
        if name == "ZeroSumNormalRV" and isinstance(transform, ZeroSumTransform):
            found.append(_from_zero_sum(model, rv, transform))
        if transform is not None:
            continue
        if name == "NormalRV":
            found.append(_from_normal(model, rv))
        elif name == "FlatRV":
            found.append(_independent(model, rv, "flat", None, pt.constant(FLAT_STD), is_flat=True))
        elif name == "MvNormalRV":
            found.append(_from_multivariate_normal(model, rv))
        elif name == "KroneckerNormalRV":
            found.append(_from_kronecker_normal(model, rv))
        elif name == "SparseNormalRV" and rv.ndim == 1:
            found.append(_from_sparse_normal(model, rv))
    return [variable for variable in found if variable is not None]


def find_stand_ins(model: ModelIndex, without: Collection[Variable]) -> list[GaussianVariable]:
    """Return latents for other real variables of univariate distributions, the longest first.

    Their priors are observations without data, which engines treat as likelihoods: see
    :mod:`pymc_augconj.recognition.observed.potentials`. A normal variable whose transform has
    bounds or an order keeps its normal prior, and the observation is the constraint; all others
    are flat.
    """
    found = []
    for rv in model.free_RVs:
        transform, op = model.rvs_to_transforms[rv], rv.owner.op
        if rv in without or not rv.dtype.startswith("float") or getattr(op, "ndim_supp", True):
            continue
        more = {"has_prior": True, "entry_transform": transform}
        name, constrained = type(op).__name__.removesuffix("RV"), not model.covers_support(rv)
        if constrained and not (name == "Normal" and _is_constraint(transform, static_shape(rv))):
            continue
        bounded = isinstance(transform, Interval)
        if bounded and model.parents_of([transform.forward(rv.type(), *rv.owner.inputs)]):
            continue  # the bounds would move
        if constrained:
            mu, sigma = op.dist_params(rv.owner)
            mean = None if is_number(mu, 0.0) else mu
            form = "normal within bounds" if bounded else "ordered normal"
            found.append(_independent(model, rv, form, mean, sigma, **more))
        elif transform is None or bounded:
            std = pt.constant(FLAT_STD)
            found.append(_independent(model, rv, name, None, std, is_flat=True, **more))
    return sorted(
        found, key=lambda latent: (latent.entry_transform is not None, -latent.total_size)
    )


def _is_constraint(transform: Transform, shape: tuple[int, ...]) -> bool:
    """Return whether a transform has bounds, or an order of few values, and no other effect."""
    if not isinstance(transform, Ordered):
        return isinstance(transform, Interval)
    return int(np.prod(shape)) <= MOST_ORDERED and (transform.positive or shape[-1] > 1)


def _from_normal(model: ModelIndex, rv: Variable) -> GaussianVariable:
    mu, sigma = rv.owner.op.dist_params(rv.owner)
    if is_number(mu, 0.0) and is_number(sigma, 1.0):
        for read in (_from_whitened, _from_grid, _from_cumulative):
            if (whitened := read(model, rv)) is not None:
                return whitened
    return _independent(model, rv, "normal", None if is_number(mu, 0.0) else mu, sigma)


def _independent(
    model: ModelIndex, rv: Variable, form: str, mu: Variable | None, sigma: Variable, **more: Any
) -> GaussianVariable:
    """Return a variable of independent normal entries; ``more`` are further attributes."""
    shape = static_shape(rv)
    mean = None if mu is None else pt.broadcast_to(mu, shape)
    std = pt.broadcast_to(sigma, shape).ravel()
    return GaussianVariable.of(model, rv, form, "diagonal", std, mean=mean, **more)


def _from_zero_sum(
    model: ModelIndex, rv: Variable, transform: ZeroSumTransform
) -> GaussianVariable:
    (sigma, _) = rv.owner.op.dist_params(rv.owner)
    full = static_shape(rv)
    axes = normalize_axis_tuple(transform.zerosum_axes, len(full))
    shape = tuple(n - (axis in axes) for axis, n in enumerate(full))
    fields = {"name": model.rvs_to_values[rv].name, "shape": shape, "transform": transform}
    std = pt.broadcast_to(sigma, shape).ravel()
    return GaussianVariable.of(model, rv, "zero-sum normal", "diagonal", std, **fields)


def _from_multivariate_normal(model: ModelIndex, rv: Variable) -> GaussianVariable | None:
    mu, cov = rv.owner.op.dist_params(rv.owner)[:2]
    while op_name(mu) == "Second":
        # PyMC gives the mean the shape of a column of K, whose values it does not use.
        mu = mu.owner.inputs[1]
    return _multivariate(model, rv, mu, cov)


def _from_kronecker_normal(model: ModelIndex, rv: Variable) -> GaussianVariable | None:
    # PyMC's density has eigenvectors, whose derivatives are lost where eigenvalues are equal.
    mu, sigma, *covs = rv.owner.op.dist_params(rv.owner)
    if sigma.ndim != 0 or any(cov.ndim != 2 for cov in covs):
        return None
    noise = sigma**2 * pt.eye(static_shape(rv)[-1])
    return _multivariate(model, rv, mu, reduce(pt.linalg.kron, covs) + noise)


def _multivariate(
    model: ModelIndex, rv: Variable, mu: Variable, cov: Variable
) -> GaussianVariable | None:
    if not all(cov.type.broadcastable[:-2]):
        # A variable with several covariance matrices is recognised by its density.
        return None
    factor = _cholesky_factor(cov)
    scale = cov if factor is None else factor
    if scale.ndim > 2:
        scale = scale.squeeze(tuple(range(scale.ndim - 2)))
    mean = None if is_number(mu, 0.0) else pt.broadcast_to(mu, static_shape(rv))
    form, kind = "multivariate normal", "dense" if factor is None else "factor"
    return GaussianVariable.of(model, rv, form, kind, scale, mean=mean, of_vectors=True)


def _from_sparse_normal(model: ModelIndex, rv: Variable) -> GaussianVariable:
    """Return a variable of :class:`.SparseNormal`, the package's own."""
    block = rv.owner.op.block
    mu, entries = rv.owner.op.dist_params(rv.owner)
    form, mean = f"{rv.owner.op.label}, by its precision", None if is_number(mu, 0.0) else mu
    constant = rv.owner.op.log_factor
    return GaussianVariable.of(
        model, rv, form, block.kind, entries,
        shape=block.shape, mean=mean, entries=block.entries, order=block.order,
        log_factor=pt.constant(constant) if constant else None,
    )  # fmt: skip


def _cholesky_factor(cov: Variable) -> Variable | None:
    """Return L of cov = L Lᵀ if it is declared to be lower triangular, as ``chol=`` is.

    PyMC's compiled log density also uses L itself, which has digits that the product lacks.
    """
    # PyMC gives the covariance the dimensions of a batch.
    while cov.owner is not None and getattr(cov.owner.op, "is_left_expand_dims", False):
        cov = cov.owner.inputs[0]
    node = cov.owner
    if node is None or not isinstance(getattr(node.op, "core_op", node.op), Dot):
        return None
    factor, right = node.inputs
    is_transpose = (
        right.owner is not None
        and isinstance(right.owner.op, DimShuffle)
        and right.owner.op.is_matrix_transpose
        and right.owner.inputs[0] is factor
    )
    is_lower = getattr(factor.tag, "lower_triangular", False)
    if not (is_lower and is_transpose and factor.dtype == "float64"):
        return None
    factor = folded(factor)
    if isinstance(factor, Constant):
        # A constant product is computed, and factorised, whatever it is made of.
        L = factor.data
        if np.triu(L, 1).any() or not (np.diagonal(L, axis1=-2, axis2=-1) > 0.0).all():
            return None
    return factor


def _from_cumulative(model: ModelIndex, rv: Variable) -> GaussianVariable | None:
    """Return the variable as the steps of a random walk, if all its uses are in that walk.

    cumsum(v) = chol(K) v for the covariance K of a walk with unit steps from N(0, 1), whose
    precision has three diagonals. A scalar may multiply the steps.
    """
    shape = static_shape(rv)
    if len(shape) != 1 or shape[0] < 2:
        return None
    steps, factor, nodes = rv, None, model.users.get(rv, ())
    if len(nodes) == 1 and op_name(nodes[0].outputs[0]) == "Mul":
        others = [var for var in nodes[0].inputs if var is not rv]
        if len(others) == 1 and all(others[0].type.broadcastable):
            steps, factor = nodes[0].outputs[0], others[0]
            nodes = model.users.get(steps, ())
    if len(nodes) != 1 or not isinstance(nodes[0].op, CumOp) or nodes[0].op.mode != "add":
        return None
    size = shape[0]
    values = np.arange(size)
    rows = np.concatenate([values, values[1:], values[:-1]])
    cols = np.concatenate([values, values[:-1], values[1:]])
    diagonal = np.where(values < size - 1, 2.0, 1.0)
    Q = pt.constant(np.concatenate([diagonal, np.full(2 * size - 2, -1.0)]))
    return GaussianVariable.of(
        model, rv, "steps of a random walk", "precision", Q,
        product=nodes[0].outputs[0], entries=np.stack([rows, cols]), factor=factor,
    )  # fmt: skip


def _from_whitened(model: ModelIndex, rv: Variable) -> GaussianVariable | None:
    """Return the variable as the v of f = m + chol(K) v, if all its uses are in that product."""
    if rv.ndim not in (1, 2):
        return None
    # Follow v through the transposes that gp.prior applies, to the products it enters.
    axes = {rv: tuple(range(rv.ndim))}
    products = set()
    frontier = [rv]
    while frontier:
        variable = frontier.pop()
        for node in model.users.get(variable, ()):
            if _is_whitened_product(node, variable) and axes[variable] in _COLUMNS:
                products.add(node)
                continue
            moved = _moved_axes(node, axes[variable])
            if moved is None:
                return None
            if node.outputs[0] not in axes:
                axes[node.outputs[0]] = moved
                frontier.append(node.outputs[0])
    if len(products) != 1:
        return None
    node = products.pop()
    if isinstance(node.op, MarkovRoot):
        form, kind, scale = "GP (whitened), in linear time", "markov", node.inputs[1]
    else:
        form, kind, scale = "GP (whitened)", "dense", node.inputs[0].owner.inputs[0]
    inputs = inputs_of(node) if kind == "markov" else None
    return GaussianVariable.of(
        model, rv, form, kind, scale, name=rv.name.removesuffix("_rotated_"),
        of_vectors=True, product=node.outputs[0], inputs=inputs,
    )  # fmt: skip


def _is_whitened_product(node: Apply, variable: Variable) -> bool:
    if isinstance(node.op, MarkovRoot):
        return node.inputs[2] is variable
    return is_product_with_cholesky(node) and node.inputs[1] is variable


def _moved_axes(node: Apply, axes: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the axis of v for each axis of the node's output; None for other operations."""
    if isinstance(node.op, DimShuffle):
        return tuple("x" if axis == "x" else axes[axis] for axis in node.op.new_order)
    return axes if isinstance(node.op, ViewOp) else None


# Fewer values are faster by a dense factorisation.
_FEWEST = 200
_TOLERANCE = 1e-12


def _from_grid(model: ModelIndex, rv: Variable) -> GaussianVariable | None:
    """Return the variable as the v of (L₁ ⊗ L₂ ⊗ …) v, if all its uses are in that product."""
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
    covs = [L.owner.inputs[0] for L in chols]
    grid = tuple(static_shape(K)[0] for K in covs)
    if int(np.prod(grid)) != static_shape(rv)[0] or not _agrees(rv, product, chols, grid):
        return None
    entries = pt.concatenate([K.ravel() for K in covs])
    return GaussianVariable.of(
        model, rv, "GP on a grid (whitened)", "kronecker", entries,
        name=rv.name.removesuffix("_rotated_"), product=product, grid=grid,
    )  # fmt: skip


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
