"""Matches of observed variables to likelihoods, by simplified graphs.

Formulas of super-Gaussian likelihoods, ``pac.SuperGaussian`` or ``pm.CustomDist``, become plain
functions of NumPy arrays. A user's log density ψ(|y − f|) is written with y = f + e. If
simplification removes f, it is a location family; if it is equal for e and −e, it is a function of
r = e², log C + log φ(r); and if φ is completely monotone, it has an augmentation.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from enum import IntEnum
from functools import cached_property, partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.simulator import SimulatorRV
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky

from pymc_augconj.distributions.formula import Formula
from pymc_augconj.distributions.normalizer import (
    check_integrable,
    check_phi,
    distinct,
    initial_values,
)
from pymc_augconj.distributions.super_gaussian import Family, SuperGaussianRV
from pymc_augconj.errors import (
    AugmentationError,
    NotAffineError,
    RecognitionError,
    UnknownLikelihoodError,
)
from pymc_augconj.likelihoods.base import Pattern
from pymc_augconj.likelihoods.super_gaussian import Phi, SuperGaussian
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.dependence import (
    ModelIndex,
    distribution_name,
    distribution_parameters,
)
from pymc_augconj.recognition.graph.rewrite import Variables, simplify, substitute
from pymc_augconj.recognition.latents.innovations import Latents, in_innovations

from .affine_parts import PRODUCT, with_factors_inside
from .errors import (
    BY_TURNS,
    DENSITY_ENGINES,
    SEVERAL_ENGINES,
    total_size,
    unknown_distribution,
    unknown_link,
)
from .generic import read_generic
from .observed_graph import ObservedGraph
from .patterns import Candidate, candidates_of, match_patterns, read_mixture
from .potentials import read_potential

# Values of r at which a log density is compared with its mirror image.
_GRID = np.geomspace(1e-6, 1e6, 25)
_TOLERANCE = 1e-9


def phi_of(formula: Formula) -> Phi:
    """Return log φ with its derivatives as functions of NumPy arrays."""
    names = _names(formula.parameters)
    return Phi(names=names, log_phi=formula.evaluate, slope=partial(formula.evaluate, order=1))


def likelihood_of(model: ModelIndex, rv: Variable, family: Family) -> SuperGaussian:
    """Return the likelihood; raise RecognitionError if a requested closed form does not exist."""
    phi = phi_of(family.log_phi)
    if not family.closed_form:
        return SuperGaussian(phi, family.is_location)
    _, *parameters = distribution_parameters(rv)
    values = distinct(initial_values(family.select("log_phi", parameters), model.model))[0]
    known = SuperGaussian.find_known(phi, values)
    if known is None:
        raise RecognitionError(
            f"observed variable {rv.name!r}: expected, with closed_form=True, a log_phi of a known "
            "family, found none that agrees with it; tried Laplace, Matérn (3/2 and 5/2), "
            "Student-t and logistic; leave closed_form=True out to draw ω by inversion of φ"
        )
    return SuperGaussian(phi, family.is_location, known)


def parameters_of_family(family: Family, y: Variable, parameters: Variables) -> dict[str, Variable]:
    """Return the graphs of the likelihood's parameters, by their names in ``params``."""
    names = _names(family.log_phi.parameters)
    named = dict(zip(names, family.select("log_phi", parameters), strict=True))
    return {**named, **family.constants(pt.as_tensor(y), parameters)}


def _names(parameters: Variables) -> tuple[str, ...]:
    # Numbered, because names need be neither given nor distinct.
    return tuple(f"phi_{i}" for i in range(len(parameters)))


# -- pm.CustomDist --------------------------------------------------------------------------------


def read_custom(
    model: ModelIndex, rv: Variable, params: Variables, latents: Variables
) -> tuple[Family, list[Variable]]:
    """Return the family of a ``pm.CustomDist``, and f and its parameters for it.

    ``params`` are its parameters, in terms of the innovations. Raises UnknownLikelihoodError with
    the reason if it is not a super-Gaussian location family.
    """
    tried = (
        f"observed variable {rv.name!r}: its pm.CustomDist was tried as a super-Gaussian "
        "location family, log p(y | f) = log C + log φ((y − f)²), but "
    )
    advice = (
        "; state it by pac.SuperGaussian if it is one, or sample this model with pm.sample's NUTS"
    )
    where = [i for i, parameter in enumerate(params) if depends_on(parameter, latents)]
    if len(where) != 1:
        raise UnknownLikelihoodError(
            f"{tried}{len(where)} of its parameters depend on Gaussian latent variables, expected "
            f"one{advice}"
        )
    (position,) = where
    symbols = [_symbol(p, i, i == position) for i, p in enumerate(params)]
    f = symbols[position]
    e = pt.vector("e")
    try:
        log_density = _log_density(rv, symbols, f + e)
    except Exception as error:
        # A user's function can fail in any way.
        raise UnknownLikelihoodError(
            f"{tried}its logp could not be evaluated for vectors ({error}){advice}"
        ) from error
    if depends_on(log_density, f):
        raise UnknownLikelihoodError(
            f"{tried}simplifying its log density at y = f + e leaves f in it, expected a function "
            f"of y − f alone{advice}"
        )

    def psi(r: Variable, sign: float = 1.0) -> Variable:
        return substitute([log_density], {e: sign * pt.sqrt(r)})[0]

    others, start = (
        {s: _flat(p, s) for s, p in zip(symbols, graphs, strict=True) if s is not f}
        for graphs in (params, distribution_parameters(rv))
    )
    try:
        log_c = Formula(lambda y: psi(pt.zeros((1,))), "log_c")
        phi = Formula(lambda r: psi(r) - psi(pt.zeros((1,))), "log_phi")
        values = _values(phi, start, model)
        mirrored = Formula(lambda r: psi(r, -1.0) - psi(pt.zeros((1,))), "log_phi")
        if not np.isfinite(log_c.evaluate(np.zeros(1), _values(log_c, start, model))).all():
            raise AugmentationError("its density is zero or infinite at y = f")
        if not np.allclose(
            _on_grid(phi, values),
            _on_grid(mirrored, _values(mirrored, start, model)),
            rtol=_TOLERANCE,
            atol=_TOLERANCE,
        ):
            raise AugmentationError("its density is not the same at f + e and f − e")
        check_phi(phi, values)
        check_integrable(phi, values)
    except AugmentationError as error:
        raise UnknownLikelihoodError(f"{tried}{str(error).rstrip('.')}{advice}") from None
    family = Family(phi, None, log_c)
    parameters = substitute(family.parameters, others)
    return family, [params[position], *parameters]


def _symbol(parameter: Variable, i: int, is_predictor: bool) -> Variable:
    scalar = all(parameter.type.broadcastable) and not is_predictor
    return pt.tensor(f"parameter {i}", dtype=parameter.dtype, shape=() if scalar else (None,))


def _flat(parameter: Variable, symbol: Variable) -> Variable:
    return parameter.reshape(()) if symbol.ndim == 0 else parameter.ravel()


def _log_density(rv: Variable, symbols: Variables, y: Variable) -> Variable:
    rng = rv.owner.inputs[0]
    outputs = rv.owner.op.make_node(rng, None, *symbols).outputs
    return simplify([pm.logp(outputs[1], y)])[0]


def _values(
    formula: Formula, start: dict[Variable, Variable], model: ModelIndex
) -> list[np.ndarray]:
    return initial_values(substitute(formula.parameters, start), model.model)


def _on_grid(formula: Formula, values: Sequence[np.ndarray]) -> np.ndarray:
    # Parameters may differ between observations: a row a value, a column a point of the grid.
    columns = [np.reshape(v, (-1, 1)) if np.size(v) > 1 else v for v in values]
    return formula.evaluate(_GRID, columns)


class Scope(IntEnum):
    """Which likelihoods an observed variable may have; each includes those before."""

    #: With an augmentation.
    AUGMENTED = 0
    #: Known by their density, given one predictor.
    DENSITIES = 1
    #: Given several predictors.
    SEVERAL = 2


class Matcher:
    """Matches the observed variables of a model to likelihoods, once for each set of latents."""

    def __init__(self, model: ModelIndex) -> None:
        self.model = model
        self._readings: dict[tuple[Variable, ...], _Reading] = {}
        self._potentials: dict[tuple[Variable, ...], ObservedGraph | str | None] = {}

    def match(self, rv: Variable, latents: Latents, scope: Scope) -> ObservedGraph:
        """Match one observed variable to a likelihood of the first scope that has one.

        Raises UnknownLikelihoodError if no likelihood of this distribution and link is registered,
        or a parameter other than the predictor depends on a latent variable; NotAffineError if the
        predictor is not affine in the latents; RecognitionError if the observations count more than
        once.
        """
        if isinstance(rv.owner.op, MinibatchRandomVariable):
            raise RecognitionError(total_size(rv))
        if isinstance(rv.owner.op, SimulatorRV):
            raise UnknownLikelihoodError(
                f"observed variable {rv.name!r}: expected a distribution with a density, found a "
                "pm.Simulator, whose density is unknown; sample this model with pm.sample_smc"
            )
        reading = self.reading(rv, latents)
        if isinstance(reading.augmented, ObservedGraph):
            return reading.augmented
        error = reading.augmented
        # The declared density is wrong; re-raise.
        if scope == Scope.AUGMENTED or isinstance(rv.owner.op, SuperGaussianRV):
            raise error
        found = reading.density
        if isinstance(found, str) and scope == Scope.SEVERAL:
            found = reading.several
            if isinstance(found, str):
                expected = (
                    "expected parameters that are functions of affine predictors with one entry "
                    f"for each observation, found {found}"
                )
                if found == PRODUCT and isinstance(error, UnknownLikelihoodError):
                    raise NotAffineError(f"observed variable {rv.name!r}: {expected}{BY_TURNS}")
                raise type(error)(
                    f"{str(error).rstrip('.')}; its density cannot be used either: {expected}"
                )
        if isinstance(found, str):
            raise error
        engines = DENSITY_ENGINES if len(found.predictors) == 1 else SEVERAL_ENGINES
        # Without the advice to use NUTS, which other engines make needless.
        reason = str(error).partition(". Sample this model")[0].rstrip(".")
        refusal = type(error)(f"{reason}. {engines}")
        # What to say where the density turns out to be of no use either.
        refusal.__cause__ = error
        return replace(found, refusal=refusal)

    def reading(self, rv: Variable, latents: Latents) -> _Reading:
        """Return an observed variable in the innovations of some latents."""
        key = (rv, *(latent.input for latent in latents))
        if key not in self._readings:
            self._readings[key] = _Reading(self.model, rv, latents)
        return self._readings[key]

    def potential(self, potential: Variable, latents: Latents) -> ObservedGraph | str | None:
        """Read a potential, see :func:`.read_potential`."""
        key = (potential, *(latent.input for latent in latents))
        if key not in self._potentials:
            self._potentials[key] = read_potential(self.model, potential, latents)
        return self._potentials[key]


class _Reading:
    """One observed variable in the innovations of some latents, with the likelihoods it matches."""

    def __init__(self, model: ModelIndex, rv: Variable, latents: Latents) -> None:
        self._model, self._rv, self._latents = model, rv, latents
        self._inputs = [latent.input for latent in latents]
        graphs = in_innovations(model, distribution_parameters(rv), latents)
        self.graphs = with_factors_inside(model, graphs, self._inputs)

    @property
    def depends(self) -> bool:
        """Whether the distribution depends on one of the latents."""
        return depends_on(self.graphs, self._inputs)

    @property
    def factorises(self) -> bool:
        """Whether the distribution has a Cholesky factor that depends on the latents."""
        nodes = [var.owner for var in ancestors(self.graphs) if var.owner is not None]
        factors = [n for n in nodes if isinstance(getattr(n.op, "core_op", n.op), Cholesky)]
        return depends_on([n.inputs[0] for n in factors], self._inputs)

    @cached_property
    def augmented(self) -> ObservedGraph | NotAffineError | UnknownLikelihoodError:
        """A likelihood with an augmentation, or the reason why there is none."""
        op = self._rv.owner.op
        try:
            if isinstance(op, SuperGaussianRV):
                return self._super_gaussian(op.family, self._params)
            if isinstance(op, CustomDistRV):
                found = read_custom(self._model, self._rv, self._params, self._inputs)
                return self._super_gaussian(*found)
            return self._augmented()
        except (NotAffineError, UnknownLikelihoodError) as error:
            return error

    @cached_property
    def density(self) -> ObservedGraph | str:
        """A likelihood of one predictor without an augmentation, or the obstacle."""
        return self._by_density(several=False)

    @cached_property
    def several(self) -> ObservedGraph | str:
        """A likelihood of several predictors without an augmentation, or the obstacle."""
        return self._by_density(several=True)

    @cached_property
    def _params(self) -> list[Variable]:
        return simplify(self.graphs)

    def _match(
        self, params: Variables, candidates: Sequence[Candidate]
    ) -> ObservedGraph | str | None:
        return match_patterns(self._model, self._rv, params, self._latents, candidates)

    def _by_density(self, *, several: bool) -> ObservedGraph | str:
        known = candidates_of(self._rv, len(self._params), augmented=False)
        with suppress(NotAffineError):
            found = self._match(self._params, [own for own in known if own[1].several == several])
            if isinstance(found, ObservedGraph):
                return found
        return read_generic(self._model, self._rv, self._latents, several=several)

    def _augmented(self) -> ObservedGraph:
        rv, params = self._rv, self._params
        mixture = read_mixture(self._model, rv, self._latents)
        if mixture is not None:
            return mixture
        candidates = candidates_of(rv, len(params), augmented=True)
        found = self._match(params, candidates)
        if isinstance(found, ObservedGraph):
            return found
        candidates = [own for own in candidates if not own[1].several]
        if not candidates:
            raise UnknownLikelihoodError(unknown_distribution(rv))
        if found is not None:
            raise UnknownLikelihoodError(
                f"observed variable {rv.name!r}: expected only the predictor to depend on a latent "
                f"Gaussian variable, but so does the parameter {found!r} of "
                f"{distribution_name(rv)}; give that parameter a separate prior, or sample "
                "this model with pm.sample's NUTS"
            )
        raise UnknownLikelihoodError(unknown_link(rv, candidates, params, self._inputs))

    def _super_gaussian(self, family: Family, params: Variables) -> ObservedGraph:
        model, rv = self._model, self._rv
        graph, *parameters = params
        named = parameters_of_family(family, model.rvs_to_values[rv], parameters)
        pattern = Pattern(type(rv.owner.op).__name__, ("f", *named), "f")
        candidates = [(lambda: likelihood_of(model, rv, family), pattern)]
        found = self._match([graph, *named.values()], candidates)
        if isinstance(found, ObservedGraph):
            return found
        if found is None:
            raise UnknownLikelihoodError(unknown_link(rv, candidates, params, self._inputs))
        raise UnknownLikelihoodError(
            f"observed variable {rv.name!r}: expected only the predictor f of SuperGaussian to "
            "depend on a latent Gaussian variable, but so does a parameter of log_phi or of the "
            "general form; give that parameter a separate prior, or sample this model with "
            "pm.sample's NUTS"
        )
