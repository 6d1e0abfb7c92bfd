"""Coefficients whose prior is not normal, as flat latents: the prior is a density of its own.

A coefficient of any prior is a flat latent, and its prior an observation without data, which
engines handle as they handle likelihoods: see :mod:`pymc_augconj.recognition.observed.priors`.
"""

from __future__ import annotations

from collections.abc import Collection

import pytensor.tensor as pt
from pymc.distributions.transforms import Interval
from pytensor.graph.basic import Variable

from pymc_augconj.latents.diagonal import FLAT_STD
from pymc_augconj.recognition.graph.dependence import ModelIndex

from .innovations import GaussianVariable
from .normal import independent_latent

__all__ = ["find_flat_stand_ins"]


def find_flat_stand_ins(model: ModelIndex, without: Collection[Variable]) -> list[GaussianVariable]:
    """Return flat latents for real variables of univariate distributions, the longest first."""
    found = []
    for rv in model.free_RVs:
        transform, op = model.rvs_to_transforms[rv], rv.owner.op
        if rv in without or not rv.dtype.startswith("float") or getattr(op, "ndim_supp", True):
            continue
        bounded = isinstance(transform, Interval)
        if bounded and model.parents_of([transform.forward(rv.type(), *rv.owner.inputs)]):
            continue  # the bounds would move
        if transform is None or bounded:
            found.append(
                independent_latent(
                    model,
                    rv,
                    type(op).__name__.removesuffix("RV"),
                    None,
                    pt.constant(FLAT_STD),
                    is_flat=True,
                    has_prior=True,
                    entry_transform=transform,
                )
            )
    return sorted(
        found, key=lambda latent: (latent.entry_transform is not None, -latent.total_size)
    )
