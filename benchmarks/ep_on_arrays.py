"""EP and QP of f ~ N(m, C) with one site for each entry of f, for benchmarks and tests."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.engines.ep.objective import EPObjective, ModelPrior, SiteGroup
from pymc_augconj.engines.ep.solve import solve, solve_qp
from pymc_augconj.latents.joint import LatentPrior, block_prior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.linalg.linear_map import RowSelection
from pymc_augconj.point import FixedValue


def dense_prior(C, m):
    """Return f ~ N(m, C), C perhaps singular, as the prior of N predictors."""
    size = len(m)
    C = np.asfortranarray(C, dtype=float)
    block = LatentBlock(
        name="f", value_name="f", form="multivariate normal", shape=(size,), size=size, copies=1,
        whitened=False, kind="dense", scale=FixedValue(C),
    )  # fmt: skip
    maps = (RowSelection(np.arange(size), None, size),)
    latents = LatentPrior(np.asarray(m, dtype=float), (block_prior(block, C),), maps, maps)
    return ModelPrior(latents, RowGroups.apart(size), solver="observation")


def run_ep(C, m, sites, start=None, *, power=1.0, solver=solve, **options):
    """Return sites and diagnostics of EP; ``sites`` are a density, or groups of these."""
    groups = sites if isinstance(sites, Sequence) else (SiteGroup(slice(None), sites),)
    end = solver(EPObjective(dense_prior(C, m), groups, power), start, **options)
    return end.evaluation, SimpleNamespace(**end.diagnostics)


def run_qp(*args, **options):
    """Return sites and diagnostics of QP, like :func:`run_ep`."""
    return run_ep(*args, solver=solve_qp, **options)
