"""The roles of the hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytensor.graph.basic import Variable

from pymc_augconj.model import EntryDensities, Hyperparameter
from pymc_augconj.point import Point
from pymc_augconj.recognition.graph.affine import depends_on
from pymc_augconj.recognition.graph.space import ValueSpace
from pymc_augconj.recognition.latents.innovations import GaussianVariable
from pymc_augconj.recognition.observed.observed_graph import ObservedGraph

__all__ = ["read_hyperparameters"]


def read_hyperparameters(
    latents: Sequence[GaussianVariable],
    matched: Sequence[ObservedGraph],
    predictors: Variable,
    space: ValueSpace,
    point: Point,
    held: Mapping[str, str],
    entries: Mapping[str, EntryDensities],
) -> tuple[Hyperparameter, ...]:
    """Return the hyperparameters, each with its role.

    ``predictors`` is the graph of the stacked η in value variables; ``held`` says why some must not
    be optimised, by their names; ``entries`` has the densities of the entries of vectors, by their
    names in the point, which may be any.
    """
    in_values = space.model.in_values
    covariances = in_values([latent.scale for latent in latents])
    # A latent's value depends on its mean even if no predictor does: if no observation uses an
    # entry, or if means cancel in a difference.
    means = [latent.mean for latent in latents if latent.mean is not None]
    affine = [predictors, *in_values(means)]
    augmented: list[Variable] = []
    plain: list[Variable] = []
    for observed in matched:
        likelihood = observed.likelihood
        exact = likelihood.can_augment and not likelihood.has_auxiliary
        group = plain if exact else augmented
        group.extend(observed.params.values())
    augmented, plain = in_values(augmented), in_values(plain)
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
                entries=entries.get(value.name),
            )
        )
    return tuple(found)
