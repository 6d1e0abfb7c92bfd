"""Latent blocks, and the roles of the hyperparameters, as the waist has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable

from pymc_augconj.latents.precision import CovarianceOfPrecision
from pymc_augconj.model import Hyperparameter, LatentBlock, Point
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.functions import Gradient
from pymc_augconj.recognition.graph.space import ValueSpace
from pymc_augconj.recognition.observed.match import ObservedGraph

from .normal import GaussianVariable, in_innovations
from .precision import read_precision

__all__ = ["read_block", "read_hyperparameters"]

_DIRECTION = "direction"


def read_block(
    latent: GaussianVariable, latents: Sequence[GaussianVariable], space: ValueSpace
) -> LatentBlock:
    """Return one of the ``latents`` with its covariance and mean as functions of the point."""
    mean = None
    if latent.mean is not None:
        others = [other for other in latents if other is not latent]
        graph = latent.mean.ravel().astype("float64")
        (graph,) = space.in_values(in_innovations([graph], others, of_values=True))
        mean = space.function(graph, {f"latent:{o.name}": o.value_input for o in others})
    scale, pullback, precision = _scale(latent, space)
    return LatentBlock(
        name=latent.name,
        value_name=latent.value.name,
        form=latent.form,
        shape=latent.shape,
        size=latent.size,
        copies=latent.copies,
        whitened=latent.whitened,
        diagonal=latent.diagonal,
        scale=scale,
        scale_pullback=pullback,
        mean=mean,
        precision=precision,
        log_factor=_log_factor(latent, space),
    )


def _scale(latent: GaussianVariable, space: ValueSpace) -> tuple:
    """Return the scale as a function of the point, its pullback, and the precision if known."""
    if latent.precision is not None:
        precision = read_precision(latent.precision, space, latent.name)
        covariance = CovarianceOfPrecision(precision, latent.name)
        return covariance, covariance.pull, precision
    (scale,) = space.in_values([latent.scale.astype("float64")])
    return space.function(scale), _ScalePullback(scale, space), None


def _log_factor(latent: GaussianVariable, space: ValueSpace) -> _LogFactor | None:
    if latent.log_factor is None or isinstance(latent.log_factor, Constant):
        return None
    (graph,) = space.in_values([latent.log_factor])
    return _LogFactor(graph, space)


class _LogFactor:
    """``point -> (value, {name: derivative})`` of a scalar."""

    def __init__(self, graph: Variable, space: ValueSpace):
        self._value, self._gradient = space.function(graph), space.gradient(graph)

    def __call__(self, point: Point) -> tuple[float, dict[str, np.ndarray]]:
        return float(self._value(point)), self._gradient(point)


class _ScalePullback:
    """``(point, G) -> {name: derivative}`` of ⟨G, scale(θ)⟩."""

    def __init__(self, scale: Variable, space: ValueSpace):
        self._scale, self._space = scale, space

    @cached_property
    def _gradient(self) -> Gradient:
        direction = pt.tensor(_DIRECTION, dtype="float64", shape=(None,) * self._scale.ndim)
        return self._space.gradient((direction * self._scale).sum(), {_DIRECTION: direction})

    def __call__(self, point: Point, direction):
        return self._gradient({**point, _DIRECTION: direction})


def read_hyperparameters(
    latents: Sequence[GaussianVariable],
    matched: Sequence[ObservedGraph],
    predictors: Variable,
    space: ValueSpace,
    point: Point,
    held: Mapping[str, str],
) -> tuple[Hyperparameter, ...]:
    """Return the hyperparameters, each with its role.

    Parameters
    ----------
    latents, matched
        The latents and the observed variables of the model.
    predictors : Variable
        The graph of the stacked η, in terms of value variables.
    space : ValueSpace
    point : mapping
        Any point, for the shapes of its entries.
    held : mapping
        Why some of them must not be optimised, by their names.
    """
    covariances = space.in_values([latent.scale for latent in latents])
    # A latent's value moves with its mean even where no predictor does: where no observation uses
    # an entry, or where means cancel in a difference.
    means = [latent.mean for latent in latents if latent.mean is not None]
    affine = [predictors, *space.in_values(means)]
    augmented: list[Variable] = []
    plain: list[Variable] = []
    for observed in matched:
        likelihood = observed.likelihood
        exact = likelihood.can_augment and not likelihood.has_auxiliary
        group = plain if exact else augmented
        group.extend(observed.params.values())
    augmented, plain = space.in_values(augmented), space.in_values(plain)
    found = []
    for rv in space.hyperparameters:
        value = space.model.rvs_to_values[rv]
        in_prior = depends_on([*covariances, *plain], value)
        if depends_on(augmented, value):
            role = "both" if in_prior else "likelihood"
        elif in_prior or depends_on(affine, value):
            role = "prior"
        else:
            role = "none"
        found.append(
            Hyperparameter(
                name=rv.name,
                value_name=value.name,
                shape=tuple(point[value.name].shape),
                continuous=value.dtype.startswith("float"),
                role=role,
                why_not_optimised=held.get(rv.name),
            )
        )
    return tuple(found)
