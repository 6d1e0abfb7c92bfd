"""PyMC's own log densities and their faults; refusal of improper posteriors.

Faults of PyMC and PyTensor that change a density cause a warning; the package's density is correct.

Flat coefficients b enter the predictors by a design X, η = Xb plus terms with a proper prior. Their
posterior is improper if every observation's likelihood stays away from zero along some b ≠ 0. If
p(yᵢ | η) vanishes for η → ±∞ this requires xᵢᵀb = 0; if it vanishes only for η → −∞ (a Bernoulli
variable that is one) it requires xᵢᵀb ≥ 0. Such a b exists if columns of X are linearly dependent,
or if the observations are separated (Albert & Anderson 1984, Biometrika 71), which a linear program
detects. For observations of several predictors the check is only for linearly dependent columns, of
the derivatives of log densities by b (Speckman, Lee & Sun 2009, Statistica Sinica 19).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.subtensor import Subtensor, indices_from_subtensor
from scipy.optimize import linprog

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import RecognitionError
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import Point
from pymc_augconj.python_mode import WRONG, python_mode
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.dependence import ModelIndex, ValueSpace, distribution_name
from pymc_augconj.recognition.graph.derive import log_densities_of
from pymc_augconj.recognition.graph.functions import OUT_OF_SUPPORT, PointFunction
from pymc_augconj.recognition.graph.interpreter import op_name, overflows
from pymc_augconj.recognition.graph.rewrite import Variables, is_random
from pymc_augconj.recognition.latents.innovations import Latents, in_innovations
from pymc_augconj.recognition.observed.links import split_number
from pymc_augconj.recognition.observed.observed_graph import ObservedGraph
from pymc_augconj.recognition.observed.rows import conjuncts
from pymc_augconj.recognition.roles.structure import Structure
from pymc_augconj.typing import Array, Mask


def log_densities(
    matched: Sequence[ObservedGraph], latents: Latents, space: ValueSpace
) -> list[pt.TensorVariable]:
    """Return graphs of the observed variables' log densities, each elementwise and flat."""
    model = space.model
    graphs = model.in_values([observed.log_density(model, latents) for observed in matched])
    return [
        pt.broadcast_to(graph, observed.shape).ravel()
        for graph, observed in zip(graphs, matched, strict=True)
    ]


def whole_potential(
    observed: ObservedGraph, latents: Latents, space: ValueSpace
) -> pt.TensorVariable | None:
    """Return the graph of a potential as PyMC adds it up, shape (1,); None for other variables.

    :func:`log_densities` has the entries of the terms in this graph.
    """
    if observed.density is None:
        return None
    (graph,) = space.model.in_values(in_innovations(space.model, [observed.variable], latents))
    return graph.astype("float64").sum().reshape((1,))


def prior_terms(structure: Structure, space: ValueSpace) -> dict[str, Variable]:
    """Return log densities of all variables that depend on hyperparameters alone, by name."""
    model = space.model
    potentials = [factor for factor in structure.factors if factor in model.potentials]
    variables = [factor for factor in structure.factors if factor not in potentials]
    variables += structure.hyperparameters
    terms = log_densities_of(model, variables) + model.in_values(potentials)
    names = [var.name for var in variables + potentials]
    factors = {
        latent.rv.name: latent.log_factor
        for latent in structure.latents
        if latent.log_factor is not None
    }
    terms += model.in_values(list(factors.values()))
    return dict(zip([*names, *factors], terms, strict=True))


def log_prior(
    terms: Variables, structure: Structure, space: ValueSpace, densities: Variables
) -> pt.TensorVariable:
    """Return the sum of :func:`prior_terms`.

    It is −∞ where PyMC's ``densities`` of the observed variables are −∞ because a parameter is out
    of range, which the package's own densities do not check.
    """
    total = sum((pt.sum(term) for term in terms), start=pt.constant(0.0)).astype("float64")
    conditions = _conditions(densities, space, [latent.input for latent in structure.latents])
    return pt.switch(pt.all(conditions), total, -pt.inf) if conditions else total


def _conditions(densities: Variables, space: ValueSpace, innovations: Variables) -> list[Variable]:
    """Return PyMC's conditions on parameters that depend on hyperparameters alone."""
    hyperparameters = list(space.inputs.values())
    demanded = [
        condition
        for var in ancestors(densities)
        if var.owner is not None
        and isinstance(var.owner.op, CheckParameterValue)
        and var.owner.op.can_be_replaced_by_ninf
        for condition in var.owner.inputs[1:]
    ]
    return [
        pt.all(pt.as_tensor(_shortened(part, hyperparameters)))
        for part in conjuncts(demanded)
        if depends_on(part, hyperparameters) and not depends_on(part, innovations)
    ]


def _shortened(condition: Variable, hyperparameters: Variables) -> Variable:
    """Return a condition x > a on the least and largest x, for one number times known ones."""
    if op_name(condition) == "GT" and all(condition.owner.inputs[1].type.broadcastable):
        x, bound = condition.owner.inputs
        if (split := split_number(x, hyperparameters)) is not None:
            number, known = split
            return number * pt.stack([known.min(), known.max()]) > bound.ravel()[0]
    return condition


# PyTensor has some constants in single precision.
_ROUNDING = 1e-6


def warn_of_faults(model: ModelIndex, densities: Mapping[str, Variable], start: Point) -> None:
    """Warn if PyMC's log density is wrong, as written or as compiled by PyTensor.

    ``densities`` are PyMC's log densities by the names of variables and potentials.
    """
    variables = [*model.basic_RVs, *model.potentials]
    last_entries = [var for var in ancestors(variables) if _is_last_entry(var)]
    for var in variables:
        density = densities.get(var.name)
        overflow = None if density is None else next(overflows([density]), None)
        if overflow is None and not depends_on(var, last_entries):
            continue
        right, compiled = _values(model, var, start)
        is_right = np.isclose(right, compiled, rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True)
        if overflow is not None:
            function = f"pm.{distribution_name(var)}'s logp" if is_random(var) else "the potential"
            fault = (
                f"{function} computes with whole numbers in eight to 64 bits, in which they "
                "overflow (write 10.0 rather than 10)"
            )
        elif not is_right:
            fault = (
                f"PyTensor's rewrite {WRONG[0]} takes the first entry for the last, x[:-2:-1] "
                "(write x[-1])"
            )
        else:
            continue
        outcome = (
            "PyMC's log density is wrong as it is written, and right as it is compiled"
            if is_right
            else "near the start PyMC's compiled log density, which pm.sample uses, is "
            f"{compiled:.4g}, and {right:.4g} is right"
        )
        warnings.warn(
            f"variable {var.name!r}: {fault}; {outcome}; this package computes the right one",
            RuntimeWarning,
            stacklevel=2,
        )


def _values(model: ModelIndex, var: Variable, start: Point) -> tuple[float, float]:
    """Return the correct log density near the start, and the one that PyTensor compiles."""
    rng = np.random.default_rng(0)
    # Entries that are equal there would hide that one is taken for the other.
    point = {name: value + 0.1 * rng.standard_normal(value.shape) for name, value in start.items()}
    density = model.model.logp(vars=[var]).astype("float64")
    inputs = model.inputs
    point = {name: np.asarray(point[name], inputs[name].dtype) for name in inputs}
    function = PointFunction(density, inputs)
    given = [inputs[name] for name in function.names]
    mode = python_mode(with_wrong=True).including(OUT_OF_SUPPORT)
    compiled = pytensor.function(given, density, mode=mode)
    with np.errstate(all="ignore"):
        return float(function(point)), float(compiled(*(point[name] for name in function.names)))


def _is_last_entry(var: Variable) -> bool:
    """Return whether a variable is one entry, from the end, as in x[:-2:-1]."""
    node = var.owner
    if node is None or not isinstance(node.op, Subtensor) or 1 not in var.type.shape:
        return False
    indices = indices_from_subtensor(node.inputs[1:], node.op.idx_list)
    steps = [i.step for i in indices if isinstance(i, slice) and i.start is None]
    return any(isinstance(step, Constant) and step.data < 0 for step in steps)


# Predictors at which a density that does not vanish has its limit, and beyond all scales of data;
# a power of the predictor falls by more than this logarithm between the two.
_FAR, _FARTHEST, _FALL = 1e10, 1e150, 1.0
# Largest design that is looked at, and the number of rows of the first linear program.
_LARGEST_DESIGN, _FIRST_ROWS = 50_000_000, 500
# Singular values of a design of unit columns that are zero: rounding, and that of differences of
# this step.
_SINGULAR, _OF_DIFFERENCES, _STEP = 1e-13, 1e-8, 1e-5
# Components of a direction that count.
_PART = 1e-6


def check_proper(model: LatentGaussianModel, points: Sequence[Point]) -> None:
    """Raise a RecognitionError if flat coefficients are improper at all ``points``."""
    flat = [i for i, block in enumerate(model.blocks) if block.is_flat]
    if not flat or model.n_rows * sum(model.blocks[i].size for i in flat) > _LARGEST_DESIGN:
        return
    # The factor of a coefficient may be zero at one of the points.
    for point in points:
        found = _improper(model, flat, point)
        if found is None:
            return
        direction, why = found
    names = _names([model.blocks[i] for i in flat], direction)
    several = len(names) > 1
    raise RecognitionError(
        f"{'variables' if several else 'variable'} {' and '.join(names)} (Flat): expected data "
        f"that make {'their' if several else 'its'} posterior proper, found {why}; give "
        f"{'one of them' if several else 'it'} a prior, pm.Normal of a sigma far above what you "
        "expect, or leave it out"
    )


def _improper(
    model: LatentGaussianModel, flat: Sequence[int], point: Point
) -> tuple[Array, str] | None:
    """Return a direction without a proper posterior, and the reason; None if there is none."""
    X = np.hstack([model.maps[i](point).dense() for i in flat])
    rows, up, down, tolerance = [], [], [], _SINGULAR
    for site in model.sites:
        own = X[site.rows]
        if site.shape[0] > 1:
            with np.errstate(all="ignore"):
                own, tolerance = _informative(site, own, point), _OF_DIFFERENCES
            vanishes = np.ones((2, len(own)), dtype=bool)
        else:
            vanishes = _vanishes(site, point)
            own, vanishes = own[vanishes.any(axis=0)], vanishes[:, vanishes.any(axis=0)]
        rows.append(own)
        down.append(vanishes[0])
        up.append(vanishes[1])
    X = np.vstack(rows)
    length = np.sqrt(np.einsum("ij,ij->j", X, X))
    if not length.all():
        return (length == 0.0).astype(float), "no observation that depends on it"
    X = X / length
    _, values, directions = np.linalg.svd(np.linalg.qr(X, mode="r"))
    if len(X) < X.shape[1] or values[-1] <= tolerance * np.sqrt(len(X)) * values[0]:
        return directions[-1], "predictors that stay the same in some direction"
    direction = _separating(X, np.concatenate(down), np.concatenate(up))
    if direction is None:
        return None
    return direction, "a direction in which no observation becomes less likely (they are separated)"


def _vanishes(site: Site, point: Point) -> Mask:
    """Return whether each observation's density vanishes for η → −∞ and η → ∞, shape (2, N)."""
    y, params = site.y(point), site.params(point)
    found = []
    for sign in (-1.0, 1.0):
        with np.errstate(all="ignore"):
            near, far = (
                np.broadcast_to(
                    site.likelihood.log_density(y, np.full((1, site.size), sign * at), params),
                    y.shape,
                )
                for at in (_FAR, _FARTHEST)
            )
            found.append(~(far > near - _FALL))
    return np.array(found)


def _informative(site: Site, X: Array, point: Point) -> Array:
    """Return the derivatives of log densities by b, at random predictors, one a row."""
    P, N = site.shape
    y, params = site.y(point), site.params(point)
    rng, rows, X = np.random.default_rng(0), [], X.reshape(P, N, -1)
    # As many as a density of P predictors may have directions, and one more.
    for _ in range(P + 1):
        eta, slopes = rng.standard_normal((P, N)), np.empty((P, N))
        for p, step in enumerate(_STEP * np.eye(P)[:, :, None]):
            up, down = (site.likelihood.log_density(y, eta + s * step, params) for s in (1.0, -1.0))
            slopes[p] = (up - down) / (2.0 * _STEP)
        rows.append(np.einsum("pn,pnk->nk", slopes, X))
    found = np.vstack(rows)
    return found[np.isfinite(found).all(axis=1)]


def _separating(X: Array, down: Mask, up: Mask) -> Array | None:
    """Return b ≠ 0 with xᵢᵀb ≤ 0 where a density vanishes upwards and ≥ 0 where downwards."""
    one_sided = down != up
    if not one_sided.any():
        return None
    X = np.where(down, 1.0, -1.0)[:, None] * X
    order = np.random.default_rng(0).permutation(len(X))
    count = _FIRST_ROWS + 10 * X.shape[1]
    while True:
        # Fewer observations are separated if all are.
        own = order[:count]
        # A cone: some Xb > 0 can be as large as the bounds allow.
        upper = one_sided[own].astype(float)
        end = linprog(
            -X[own].sum(axis=0),
            A_ub=np.vstack([X[own], -X[own]]),
            b_ub=np.concatenate([upper, np.zeros(own.size)]),
            bounds=(None, None),
        )
        overlap = end.status != 0 or -end.fun < 0.5
        if own.size == len(X):
            return None if overlap else np.asarray(end.x)
        if overlap and np.linalg.matrix_rank(X[own]) == X.shape[1]:
            return None
        count *= 8


def _names(blocks: Sequence[LatentBlock], direction: Array) -> list[str]:
    """Return the blocks that a direction moves, with the entry if it is one of several."""
    names, start = [], 0
    for block in blocks:
        own = np.abs(direction[start : start + block.size]) > _PART * np.abs(direction).max()
        start += block.size
        if own.any():
            alone = own.sum() == 1 and block.size > 1
            names.append(repr(block.name) + (f" at position {own.argmax()}" if alone else ""))
    return names
