"""The input of expectation propagation: a Gaussian prior, and sites with tilted moments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.latents.choice import condition
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.latents.registry import block_prior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.likelihoods.density import site_moments
from pymc_augconj.linalg.linear_map import RowSelection
from pymc_augconj.quadrature.tilted import SiteDensity, Tilted
from pymc_augconj.typing import Array

__all__ = [
    "ModelPrior",
    "SiteGroup",
    "all_moments",
    "dense_prior",
]


class ModelPrior:
    """The predictors of a recognised model at one θ, conditioned by the cheapest solver."""

    def __init__(self, prior: LatentPrior, groups: RowGroups, *, solver: str) -> None:
        self.prior, self.groups, self.solver = prior, groups, solver

    @property
    def size(self) -> int:
        """Number of predictors, before equal ones are merged."""
        return self.prior.offset.size

    def condition(self, h: Array, lam: Array) -> Posterior:
        """Return the posterior given sites of either sign, or raise NotPositiveDefiniteError."""
        return condition(self.prior, self.groups, h, lam, solver=self.solver)


def dense_prior(C: Array, m: Array) -> ModelPrior:
    """Return f ~ N(m, C), C perhaps singular, as the prior of N predictors."""
    size = len(m)
    nowhere: Any = None  # the covariance is given
    block = LatentBlock(
        name="f", value_name="f", form="multivariate normal", shape=(size,), size=size, copies=1,
        whitened=False, kind="dense", scale=nowhere,
    )  # fmt: skip
    prior = block_prior(block, np.asfortranarray(C, dtype=float))
    maps = (RowSelection(np.arange(size), None, size),)
    latents = LatentPrior(np.asarray(m, dtype=float), (prior,), maps, maps)
    return ModelPrior(latents, RowGroups.apart(size), solver="observation")


@dataclass(frozen=True)
class SiteGroup:
    """One observed variable: its rows of the stacked predictors, and its density."""

    rows: slice
    density: SiteDensity


def all_moments(
    groups: Sequence[SiteGroup], cavity_mean: Array, cavity_var: Array, **asked: Any
) -> Tilted:
    """Return the tilted moments of all predictors; ``asked`` as for ``site_moments``.

    Panels of several groups stay separate.
    """
    parts = [
        site_moments(group.density, cavity_mean[group.rows], cavity_var[group.rows], **asked)
        for group in groups
    ]
    if len(groups) == 1 and parts[0].mean.size == cavity_mean.size:
        return parts[0]
    fields: dict[str, Any] = {}
    for name in ("log_Z", "mean", "var", "third", "fourth", "delta", "error"):
        values = [getattr(part, name) for part in parts]
        if all(value is None for value in values):
            continue
        fields[name] = np.zeros(cavity_mean.shape)
        for group, value in zip(groups, values, strict=True):
            fields[name][group.rows] = 0.0 if value is None else value
    return Tilted(**fields)
