"""The log density of a whole model, by PyMC: what a sampler's is compared with as it moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from pymc.logprob.basic import transformed_conditional_logp
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import walk
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import RecognitionError
from pymc_augconj.point import Point
from pymc_augconj.python_mode import untraced
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.graph.rewrite import is_random, substitute

__all__ = ["Sampler", "WholeDensity", "log_density_terms"]

Array = NDArray[np.float64]

# Rounding of two formulas of one number, relative to the magnitudes that it is the sum of.
_ROUNDING = 256.0 * np.finfo(float).eps

# A difference of log densities that changes no probability by more than this part of it.
_NEGLIGIBLE = 1e-6

# Of a log density in PyMC's compiled form, which tells no rounding.
_COMPILED = 1e-6

# Entries of the largest array that is worth a few evaluations: a covariance of 4096 latents.
_LARGEST_ARRAY = 2**24


class Sampler(Protocol):
    """Whose log density is compared."""

    def site_log_densities(self, point: Point) -> Mapping[str, float]:
        """Return the log density of every observed variable, by name."""
        ...

    def rounding(self, point: Point) -> float:
        """Return by how much rounding of the prior's covariances moves the log density."""
        ...


class WholeDensity:
    """PyMC's own log density of a model, executed without compiling it.

    Parameters
    ----------
    model : pymc.Model
    """

    def __init__(self, model: Model) -> None:
        variables = [*model.basic_RVs, *model.potentials]
        with untraced():
            terms = [term.astype("float64") for term in log_density_terms(model)]
        self._names = [var.name for var in variables]
        self._potentials = {potential.name for potential in model.potentials}
        inputs = {value.name: value for value in model.value_vars}
        self._density = PointFunction(terms, inputs, largest_array=_LARGEST_ARRAY)

    def check(self, point: Point, ours: float, sampler: Sampler, where: str) -> None:
        """Compare a sampler's log density with PyMC's.

        Parameters
        ----------
        point : mapping
        ours : float
            The sampler's log density there.
        sampler : Sampler
        where : str
            How the sampler got there, for the message.

        Raises
        ------
        RecognitionError
            If they differ by more than rounding.
        """
        differing = False
        for terms in self._readings(point):
            theirs, tolerance = _total(terms), _NEGLIGIBLE + _ROUNDING * _magnitude(terms)
            if np.isnan(theirs):
                continue  # PyMC's own Cholesky factor fails
            if abs(ours - theirs) <= tolerance:
                return
            tolerance += self._rounding(point, terms) + sampler.rounding(point)
            if abs(ours - theirs) <= tolerance:
                return
            differing = True
        if not differing:
            return
        parts = dict(zip(self._names, map(np.sum, terms), strict=True))
        wrong = [
            name
            for name, part in sampler.site_log_densities(point).items()
            # Of a vector outcome that is read in parts PyMC has no density of each.
            if name in parts and not abs(part - parts[name]) <= tolerance
        ]
        listed = " and ".join(
            f"{'potential' if name in self._potentials else 'observed variable'} {name!r}"
            for name in wrong
        )
        raise RecognitionError(
            f"{listed or 'the prior'}: expected the log density that PyMC gives {where}, "
            f"{theirs:.10g} in all, found {ours:.10g}; the model was misread and no draw of this "
            "chain can be trusted; sample this model with pm.sample's NUTS, and please report it"
        )

    def _readings(self, point: Point) -> Iterator[list[Array]]:
        """Yield PyMC's terms as they are written and, should these not do, as they are compiled."""
        terms = self._density.as_written(point)
        if terms is not None and all(np.isfinite(term).all() for term in terms):
            yield terms
        # What an unstable formula makes of it is not what PyMC computes.
        with suppress(np.linalg.LinAlgError):
            yield self._density(point)

    def _rounding(self, point: Point, terms: list[Array]) -> float:
        found = self._density.with_rounding(point)
        if found is None:
            return _COMPILED * _magnitude(terms)
        return sum(float(np.sum(bound)) for bound in found[1])


def log_density_terms(model: Model) -> list[Variable]:
    """Return PyMC's log densities of all random variables, and the potentials.

    PyMC rewrites the graph of what it derives densities of, covariances and their factors too. Of
    plain draws it is given the distributions alone, and the parameters are put in afterwards.
    """
    draws: dict[Variable, Variable] = {}
    parameters: dict[Variable, Variable] = {}
    for rv in model.basic_RVs:
        found = _apart(rv, model)
        if found is None:
            return model.logp([*model.basic_RVs, *model.potentials], sum=False)
        draws[rv], hidden = found
        parameters |= hidden
    terms = transformed_conditional_logp(
        list(draws.values()),
        rvs_to_values={draws[rv]: value for rv, value in model.rvs_to_values.items()},
        rvs_to_transforms={draws[rv]: how for rv, how in model.rvs_to_transforms.items()},
    )
    graphs = model.replace_rvs_by_values([*parameters.values(), *model.potentials])
    in_values = dict(zip(parameters, graphs, strict=False))
    return substitute(terms, in_values) + graphs[len(in_values) :]


def _apart(rv: Variable, model: Model) -> tuple[Variable, dict[Variable, Variable]] | None:
    """Return a draw of unnamed parameters, and the graphs of these; None if it is no plain draw."""
    if not is_random(rv):
        return None
    node, basic = rv.owner, set(model.basic_RVs)

    def expand(var: Variable) -> Sequence[Variable]:
        return () if var in basic or var.owner is None else var.owner.inputs

    given = []
    for var in node.inputs:
        drawn = {parent for parent in walk([var], expand) if is_random(parent)}
        # A mixture's components are draws too, and no values.
        if not drawn <= basic:
            return None
        given.append(var.type() if drawn and isinstance(var, TensorVariable) else var)
    draw = node.clone_with_new_inputs(given).outputs[node.outputs.index(rv)]
    return draw, {new: var for new, var in zip(given, node.inputs, strict=True) if new is not var}


def _total(terms: list[Array]) -> float:
    return float(sum(np.sum(term) for term in terms))


def _magnitude(terms: list[Array]) -> float:
    return 1.0 + sum(float(np.abs(term).sum()) for term in terms)
