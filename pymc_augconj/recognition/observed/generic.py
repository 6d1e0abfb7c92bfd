"""Reading an observed variable of any distribution through PyMC's own log density.

Its parameters must depend on the latents through one affine predictor η with one entry per
observation; observations of several axes are taken in C order. Then log p(y | η) is PyMC's density
with symbols for y and η, and with its hyperparameters as ``params``, see :mod:`.row_parameters`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from pymc.distributions.distribution import PartialObservedRV
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Sign, Switch
from pytensor.tensor.random.op import RNGConsumerOp
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.likelihoods.censored import CensoredLikelihood
from pymc_augconj.likelihoods.generic import GenericLikelihood
from pymc_augconj.recognition.graph.affine import (
    depends_on,
    descendants,
    has_misleading_derivative,
    is_affine,
)
from pymc_augconj.recognition.graph.complements import with_exact_complements
from pymc_augconj.recognition.graph.constants import constant_number, is_tensor
from pymc_augconj.recognition.graph.dependence import distribution_parameters, static_shape
from pymc_augconj.recognition.graph.derive import log_cdf_of, log_density_of
from pymc_augconj.recognition.graph.names import distribution_name
from pymc_augconj.recognition.graph.rewrite import simplify, substitute
from pymc_augconj.recognition.graph.signs import has_fixed_sign
from pymc_augconj.recognition.latents.normal import GaussianVariable, variable_in_innovations

from .censoring import censored_base, read_censoring
from .indices import with_indices_inside
from .link_probe import without_number
from .links import peel
from .row_parameters import RowParameters
from .rows import RowFunction, rebuild

__all__ = ["GenericReading", "read_generic"]


@dataclass(frozen=True, eq=False)
class GenericReading:
    """A likelihood, with the graphs of its predictor and of its parameters."""

    likelihood: GenericLikelihood
    predictor: TensorVariable
    params: dict[str, TensorVariable]


def read_generic(
    model: Model, rv: Variable, latents: Sequence[GaussianVariable]
) -> GenericReading | None:
    """Return the density of an observed variable given one predictor, or None if it has none.

    Parameters
    ----------
    model : pymc.Model
    rv : Variable
        The observed variable.
    latents : sequence of GaussianVariable
    """
    shape = static_shape(rv)
    inputs = [latent.input for latent in latents]
    if not shape or getattr(rv.owner.op, "ndim_supp", 0) != 0:
        return None
    if isinstance(rv.owner.op, PartialObservedRV):
        return None  # one variable for observed and missing entries
    within = variable_in_innovations(model, rv, latents)
    found = _read(model, rv, within, inputs, shape)
    return found or _read(model, rv, with_indices_inside(within, inputs), inputs, shape)


def _read(
    model: Model,
    rv: Variable,
    within: Variable,
    inputs: Sequence[Variable],
    shape: tuple[int, ...],
) -> GenericReading | None:
    """Read a random variable, in terms of innovations, as it is written."""
    offsets = _predictors(within, inputs, shape)
    if offsets is None:
        return None
    # PyMC derives some densities in a changed copy of the graph, in which η and parameters could
    # not be found: they are replaced by inputs.
    held = {var: pt.tensor(var.name, dtype=var.dtype, shape=static_shape(var)) for var in offsets}
    (apart,) = substitute([within], held)
    censoring = read_censoring(apart)
    parameters = RowParameters(shape, model)
    if censoring is not None:
        apart = censoring.rv
        for name, (bound, graph) in censoring.bounds.items():
            parameters.add(name, bound, graph)
    etas = {held[var]: offset for var, offset in offsets.items()}
    parameters.collect(distribution_parameters(apart), [*etas, *parameters.symbols])
    (apart,) = substitute([apart], parameters.hold())
    value = apart.type()
    density, log_cdf = log_density_of(model, apart, value), log_cdf_of(model, apart, value)
    if density is None or density.ndim != len(shape):
        return None
    reader = _RowReader(value, etas, parameters)
    log_density = reader.read(with_exact_complements(density))
    if log_density is None:
        return None
    log_cdf = None if log_cdf is None else reader.read(log_cdf)
    censored = censored_base(within)
    base = within if censoring is None or censored is None else censored
    name, kind = distribution_name(rv), GenericLikelihood
    if censoring is not None:
        name, kind = f"Censored {distribution_name(censored_base(rv))}", CensoredLikelihood
    likelihood = kind(
        name,
        _link(base, list(offsets), inputs),
        log_density,
        log_cdf,
        discrete=not base.dtype.startswith("float"),
    )
    return GenericReading(likelihood, next(iter(offsets)), parameters.graphs())


class _RowReader:
    """Rebuilds graphs of an observed variable as functions of rows, with common parameters."""

    def __init__(
        self, value: Variable, offsets: dict[Variable, Variable | None], parameters: RowParameters
    ) -> None:
        self._value, self._offsets, self.parameters = value, offsets, parameters
        self._y = pt.vector("y", dtype=value.dtype)
        self._eta = pt.vector("eta", dtype="float64")
        added = [offset for offset in offsets.values() if not _is_zero(offset)]
        parameters.collect(added, [])

    def read(self, graph: Variable) -> RowFunction | None:
        """Return the function, or None if rows cannot be separated."""
        parameters = self.parameters
        parameters.collect([graph], [self._value, *self._offsets, *parameters.symbols])
        if not parameters.possible:
            return None
        try:
            standing = parameters.standing
            symbols = {self._value: standing(self._y), **parameters.symbols}
            for var, offset in self._offsets.items():
                eta = standing(self._eta)
                if not _is_zero(offset):
                    eta = eta + rebuild(offset, parameters.symbols)
                symbols[var] = eta.astype(var.dtype)
            rebuilt = rebuild(graph, symbols)
            function = RowFunction(rebuilt, self._y, self._eta, parameters.scalars, parameters.rows)
            # Try other numbers of rows; the values do not matter.
            params = dict.fromkeys((*parameters.scalars, *parameters.rows), np.array(0.5))
            for size in (1, 3):
                function(np.zeros(size), np.full(size, 0.1), params)
        except Exception:
            # Rebuilding an op can fail in any way.
            return None
        return function


# -- the predictor --------------------------------------------------------------------------------


def _predictors(
    within: Variable, latents: Sequence[Variable], shape: tuple[int, ...]
) -> dict[Variable, Variable | None] | None:
    """Return the affine variables through which ``within`` depends on the latents.

    Each is returned as η, the first, plus a term without latents.
    """
    found: dict[Variable, None] = {}
    seen: set[Variable] = set()
    stack = distribution_parameters(within)
    while stack:
        var = stack.pop()
        if var in seen or not depends_on(var, latents):
            continue
        seen.add(var)
        if _has_rows(var, shape) and is_affine(pt.as_tensor(var), latents):
            # From −f/√2, as in Φ(f), to f.
            plain = without_number(var, latents)
            found[plain if _has_rows(plain, shape) else var] = None
        elif var.owner is None:
            return None
        elif isinstance(var.owner.op, RNGConsumerOp):
            stack.extend(distribution_parameters(var))
        else:
            stack.extend(filter(is_tensor, var.owner.inputs))
    offsets = _one_predictor(list(found), latents, shape)
    if offsets is None or any(_has_steps(v, list(offsets)) for v in _between(within, offsets)):
        return None
    return offsets


def _one_predictor(
    found: Sequence[Variable], latents: Sequence[Variable], shape: tuple[int, ...]
) -> dict[Variable, Variable | None] | None:
    if not found:
        return None
    chains = [_chain(var, latents, shape) for var in found]
    # Of f and f − c, the one that the other is made of.
    bases = [var for var in found if all(var in chain for chain in chains)]
    first = bases[0] if bases else found[0]
    offsets: dict[Variable, Variable | None] = {first: None}
    for other in found:
        (difference,) = simplify([other - first])
        if depends_on(difference, latents):
            break
        offsets.setdefault(other, difference)
    else:
        return offsets
    # Multiples of η, say: what all of them are made of.
    for var in chains[0]:
        if all(var in chain for chain in chains) and is_affine(var, latents):
            return {var: None}
    return None


def _chain(var: Variable, latents: Sequence[Variable], shape: tuple[int, ...]) -> list[Variable]:
    """Return what ``var`` is a function of, and what that is one of, and so on."""
    chain = []
    while True:
        if _has_rows(var, shape):
            chain.append(var)
        parts = [] if var.owner is None else var.owner.inputs
        parts = {part for part in parts if depends_on(part, latents)}
        if len(parts) != 1:
            return chain
        (var,) = parts


def _is_zero(offset: Variable | None) -> bool:
    number = None if offset is None else constant_number(offset)
    return offset is None or (number is not None and not number.any())


def _between(within: Variable, found: Collection[Variable]) -> list[Variable]:
    return [
        var
        for parameter in distribution_parameters(within)
        for var in descendants(parameter, list(found))
        if not isinstance(var.owner.op, RNGConsumerOp)
    ]


def _has_steps(var: Variable, predictors: Sequence[Variable]) -> bool:
    """Return whether ``var`` is constant in η, piece by piece."""
    scalar_op = getattr(var.owner.op, "scalar_op", None)
    if isinstance(scalar_op, Switch):
        return not depends_on(var.owner.inputs[1:], predictors)
    if isinstance(scalar_op, Sign) and has_fixed_sign(var.owner.inputs[0], predictors):
        return False  # the mark of a positive scale, as PyMC writes Gamma(mu, sigma)
    return var.dtype.startswith("float") and has_misleading_derivative(var)


def _has_rows(var: Variable, shape: tuple[int, ...]) -> bool:
    """Return whether ``var`` has one number an observation, or one for all along an axis."""
    if not (isinstance(var, TensorVariable) and var.dtype.startswith("float")):
        return False
    if var.ndim != len(shape):
        return False
    found = static_shape(var)
    along = len(shape) > 1 and all(a in (1, b) for a, b in zip(found, shape, strict=True))
    return found == shape or along


def _link(within: Variable, predictors: Sequence[Variable], latents: Sequence[Variable]) -> str:
    parameters = [p for p in distribution_parameters(within) if depends_on(p, latents)]
    if set(parameters).intersection(predictors):
        return "identity"
    links = {_named_link(graph, latents) for graph in simplify(parameters)}
    return links.pop() if len(links) == 1 else "its own"


def _named_link(graph: Variable, latents: Sequence[Variable]) -> str:
    for link in ("logit", "probit", "log", "scaled_logit", "scaled_square"):
        peeled = peel(graph, link, latents)
        if peeled is not None and is_affine(pt.as_tensor(peeled[0]), latents):
            return link.removeprefix("scaled_")
    return "its own"
