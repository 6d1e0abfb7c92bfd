"""Steps where nothing is learned and all sites are held: no factorisation is left.

Given the held sites the latents have one Gaussian distribution, v = m + B z with z ~ N(0, I), in
every step, and the predictors are c + R z. So the fresh vectors of a step are one matrix product.
Some are proposed as they are, with probability min(1, e^{r′ − r}); each of the others spans an
ellipse with the present latents, see :mod:`..elliptical`. Both leave N(m, BBᵀ) eʳ as it is: the
first forgets all where the sites fit, the second moves where they do not.

References
----------
Tierney (1994), Markov chains for exploring posterior distributions. Annals of Statistics 22.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pymc_augconj.engines.gibbs.held_sites import HeldSites
from pymc_augconj.engines.gibbs.observed import Held
from pymc_augconj.engines.gibbs.parts import Part
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.engines.gibbs.tilted import Tilted
from pymc_augconj.latents.by_gram import GramSolver
from pymc_augconj.point import Point
from pymc_augconj.python_mode.tape import NoTapeError, OnTape, TapeBuilder

from .loop import Block, NativeLoop, of_all_steps
from .problem import make_layout
from .row_tapes import join, read_row_tape
from .rows import read_params

# Numbers of all matrices together; and latents whose dense root costs no more than a sparse one.
_LARGEST, _FEW = 30_000_000, 64
# Fresh vectors that are proposed as they are, and the elliptical slices that they replace. Heart,
# where r has a standard deviation of 0.1: effective draws a step 0.9 of f and of its squares.
_PROPOSALS, _INSTEAD = 2, 3
# The standard deviation of r from which trajectories, which are Python's, may be needed; and draws
# that it is estimated from.
_LARGEST_STD, _DRAWS = 1.5, 64


class FixedLoop(NativeLoop):
    """Makes such steps; raises like :class:`.NativeLoop`."""

    def __init__(self, sampler: GibbsSampler, point: Point, recorded: OnTape | None = None) -> None:
        chain, model = sampler.chain, sampler.model
        plan, size = chain.plan, model.latent_size
        if plan.updated or plan.left_to_pymc or plan.factors:
            raise NoTapeError("hyperparameters")
        if not chain.is_whole or not all(isinstance(data.how, Held) for data in chain.data):
            raise NoTapeError("sites that are not held")
        if any(b.transform is not None or (b.mean and b.mean.names) for b in model.blocks):
            raise NoTapeError("latents that others depend on")
        is_sparse = isinstance(chain.parts[0].solver.preferred, GramSolver) and size > _FEW
        if is_sparse or size * (size + 2 * model.n_rows) > _LARGEST:
            raise NoTapeError("matrices that are too large")
        if not _spread(sampler, point) < _LARGEST_STD:
            raise NoTapeError("sites that fit badly")
        tape, tapes = TapeBuilder(), []
        for data, _ in chain.parts[0].members:
            params = read_params(data, tape, {})
            tapes.append(read_row_tape(data, params, data.site.params(point), tape))
        self._tapes, registers = join(tapes), tape.finish().start
        from . import held  # which imports Numba

        self._kernel = held
        for part in (0, 1):
            held.read_part(self._tapes, registers, self._tapes.file, part)
        self.layout = make_layout(plan, model.blocks, np.arange(size))
        recorded = None if model.forward else recorded
        self._recorded = of_all_steps(recorded, self.layout.entries, size)
        self._given: tuple[Any, Any, float] | None = None
        self._v, self._block = np.zeros(size), None

    def check_evidence(self, *given: Any) -> None:
        """Do nothing: the log evidence is Python's own."""

    def _conditioned(self, sampler: GibbsSampler, point: Point) -> tuple[Any, float]:
        """Return what the kernel is given, and the log evidence, at the present held sites."""
        part, tilted, sites = _held(sampler)
        if self._given is not None and self._given[0] is sites.h:
            return self._given[1:]
        part.sites.condition([None] * len(part.members))
        given = part.given_sites(point)
        posterior, prior = given.posterior, given.prior
        x = np.linalg.qr(posterior.root(np.eye(posterior.size)), mode="r")
        h, lam, *_ = tilted.record
        v = np.eye(self._v.size)
        design = given.predictor(posterior.coordinates(v)) - prior.offset
        zeros = prior.split(np.zeros(v.shape[0]))
        base = float(sampler.model.log_prior(point))
        base += sum(b.log_density(own) for b, own in zip(prior.blocks, zeros, strict=True))
        is_normal = np.concatenate(
            [np.full(b.total_size, 0.0 if b.is_flat else 1.0) for b in sampler.model.blocks]
        )
        arrays = (
            *(h[: design.shape[1]], lam, posterior.whitened(posterior.latent_mean)),
            given.predictor(posterior.latent_mean),
            *(posterior.whitened(x), given.predictor(x) - prior.offset, design, is_normal),
        )
        fields: Any = (self._tapes, *(np.array(a, order="C") for a in arrays), base)
        found = self._kernel.Given(*fields)
        evidence = posterior.log_normalizer + given.constant
        self._given = sites.h, found, evidence
        return found, evidence

    def _made(
        self, rng: np.random.Generator, sampler: GibbsSampler, point: Point,
        updates: Mapping[str, Any], steps: int, tune: bool, beside: Any = (),
    ) -> Block:  # fmt: skip
        outputs, stats = np.empty((steps, self._v.size)), np.empty((4, steps))
        if not steps or sampler.follows:
            return self._block_of(outputs[:0], np.empty((6, 0)), point)
        given, evidence = self._conditioned(sampler, point)
        v, slices = self._v.copy(), max(1, _held(sampler)[1].count - _INSTEAD)
        self._kernel.run_steps(rng, given, v, _PROPOSALS, slices, outputs, stats)
        self._v = v
        prior, stop = sampler.chain.priors.at(point).factorized(), 0
        for b in prior.blocks:
            own, stop = outputs[:, stop : stop + b.block.total_size], stop + b.block.total_size
            if not b.block.whitened:
                mean = 0.0 if b.block.mean is None else b.block.mean(point)
                # One after the other: rounding does not depend on how many there are.
                rows = (own,) if b.block.is_independent else own
                for row in rows:
                    row[:] = b.scale(row) + mean
        log_density, slices_made, trials, residual = stats
        same = np.full(steps, evidence), np.zeros(steps)
        columns = (log_density, *same, slices_made, trials, residual)
        return self._block_of(outputs, columns, point)


def _held(sampler: GibbsSampler) -> tuple[Part, Tilted, HeldSites]:
    """Return the one part, what its held sites leave, and these."""
    (part,), sites = sampler.parts, sampler.sites
    # All sites are held.
    assert part.tilted is not None
    assert sites is not None
    return part, part.tilted, sites


def _spread(sampler: GibbsSampler, point: Point) -> float:
    """Return the standard deviation of r, zero where no trajectories follow in any case."""
    part, tilted, sites = _held(sampler)
    if not tilted.can_follow:
        return 0.0
    if sites.h is None:
        sites.choose(point)
    given = part.approximation(point, sites)
    nu = np.random.default_rng(0).standard_normal((_DRAWS, given.posterior.size))
    eta = given.predictor(given.posterior.apply(nu))
    with np.errstate(invalid="ignore"):
        return float(np.std(tilted.residual(eta, point)))
