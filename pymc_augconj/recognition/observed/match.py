"""Matches of observed variables to likelihoods, by simplified graphs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from enum import IntEnum
from functools import cached_property

from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Variable

from pymc_augconj.distributions.super_gaussian import Family, SuperGaussianRV
from pymc_augconj.errors import (
    NotAffineError,
    RecognitionError,
    UnknownLikelihoodError,
)
from pymc_augconj.likelihoods.base import Pattern
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.dependence import (
    ModelIndex,
    distribution_name,
    distribution_parameters,
)
from pymc_augconj.recognition.graph.rewrite import simplify
from pymc_augconj.recognition.latents.innovations import GaussianVariable, in_innovations

from .affine_parts import PRODUCT
from .errors import (
    BY_TURNS,
    DENSITY_ENGINES,
    SEVERAL_ENGINES,
    total_size,
    unknown_distribution,
    unknown_link,
)
from .generic import read_generic
from .mixtures import read_mixture
from .observed_graph import ObservedGraph
from .patterns import Candidate, candidates_of, match_patterns
from .super_gaussian import is_custom, likelihood_of, parameters_of_family, read_custom


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

    def depends(self, rv: Variable, latents: Sequence[GaussianVariable]) -> bool:
        """Return whether the distribution of an observed variable depends on one of the latents."""
        return self._reading(rv, latents).depends

    def match(
        self, rv: Variable, latents: Sequence[GaussianVariable], scope: Scope
    ) -> ObservedGraph:
        """Match one observed variable to a likelihood of the first scope that has one.

        Raises
        ------
        UnknownLikelihoodError
            If no likelihood of this distribution and link is registered, or a parameter other than
            the predictor depends on a latent variable.
        NotAffineError
            If the predictor is not affine in the latents.
        RecognitionError
            If the observations count more than once.
        """
        if isinstance(rv.owner.op, MinibatchRandomVariable):
            raise RecognitionError(total_size(rv))
        reading = self._reading(rv, latents)
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
                if found == PRODUCT:
                    raise NotAffineError(f"observed variable {rv.name!r}: {expected}{BY_TURNS}")
                raise type(error)(
                    f"{str(error).rstrip('.')}; its density cannot be used either: {expected}"
                )
        if isinstance(found, str):
            raise error
        engines = DENSITY_ENGINES if len(found.predictors) == 1 else SEVERAL_ENGINES
        refusal = type(error)(f"{str(error).rstrip('.')}. {engines}")
        # What to say where the density turns out to be of no use either.
        refusal.__cause__ = error
        return replace(found, refusal=refusal)

    def _reading(self, rv: Variable, latents: Sequence[GaussianVariable]) -> _Reading:
        key = (rv, *(latent.input for latent in latents))
        if key not in self._readings:
            self._readings[key] = _Reading(self.model, rv, latents)
        return self._readings[key]


class _Reading:
    """One observed variable in the innovations of some latents, with the likelihoods it matches."""

    def __init__(
        self, model: ModelIndex, rv: Variable, latents: Sequence[GaussianVariable]
    ) -> None:
        self._model, self._rv, self._latents = model, rv, latents
        self._inputs = [latent.input for latent in latents]
        self.graphs = in_innovations(model, distribution_parameters(rv), latents)

    @property
    def depends(self) -> bool:
        """Whether the variable depends on one of the latents."""
        return depends_on(self.graphs, self._inputs)

    @cached_property
    def augmented(self) -> ObservedGraph | NotAffineError | UnknownLikelihoodError:
        """A likelihood with an augmentation, or the reason why there is none."""
        op = self._rv.owner.op
        try:
            if isinstance(op, SuperGaussianRV):
                return self._super_gaussian(op.family, self._params)
            if is_custom(self._rv):
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
        self, params: Sequence[Variable], candidates: Sequence[Candidate]
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

    def _super_gaussian(self, family: Family, params: Sequence[Variable]) -> ObservedGraph:
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
