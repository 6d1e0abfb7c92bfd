"""Steps of one factor after another for normal observations, from their cross products alone.

With η = o + Σ_b B_b t_b, where t_b are the latents of a block times a factor that depends on θ, the
sites of a factor f have, given all other latents, the sums

    B_fᵀΛ(z − o) − Σ_b B_fᵀΛB_b t_b,        b not in f,

so that no observation is read again: in :class:`.Problem` t takes the place of ω. The last factor,
with which parameters of the likelihood are updated, is given Σ λ (z − o − Σ_b B_b t_b)² too.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csr_array, hstack

from pymc_augconj.engines.gibbs.chain import Chain
from pymc_augconj.engines.gibbs.coordinates import flatten, values_of
from pymc_augconj.engines.gibbs.moves.latents import OVERRELAXATION
from pymc_augconj.engines.gibbs.parts import Part
from pymc_augconj.engines.gibbs.sampler import GibbsSampler
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.linalg.linear_map import LinearMap, RowSelection, times
from pymc_augconj.plan import Plan
from pymc_augconj.point import Point
from pymc_augconj.python_mode.tape import NoTapeError, OnTape
from pymc_augconj.typing import Array, Index

from .loop import Block, NativeLoop, of_all_steps
from .problem import N_STATS, make_layout, make_problem
from .rows import Rows


class FactorLoop(NativeLoop):
    """Makes such steps; raises like :class:`.NativeLoop`."""

    def __init__(self, sampler: GibbsSampler, point: Point, recorded: OnTape | None = None) -> None:
        if not any(part.factors for part in sampler.parts):
            raise NoTapeError("latents that are drawn at once")
        chain, part = sampler.chain, sampler.parts[0]
        model, plan = chain.model, chain.plan
        of_factors = {move for factor in part.factors for move in factor.collapsed}
        others = any(own for move, own in plan.moves.items() if move not in of_factors)
        others = others or sampler.sweeps > 1 or not chain.is_whole
        if others or part.joint_share:
            raise NoTapeError("moves that the loop does not make")
        self.layout = make_layout(plan, model.blocks, np.arange(model.latent_size))
        self._size = max(span.stop for span, _ in self.layout.entries.values())
        self._recorded = of_all_steps(recorded, self.layout.entries, self._size)
        moved = {**point, **{h.value_name: point[h.value_name] + 0.1 for h in plan.updated}}
        B, there = (
            hstack([_fixed(read(at)) for read in model.maps], format="csr")
            for at in (point, moved)
        )  # fmt: skip
        if model.offset.names or (there != B).nnz:
            raise NoTapeError("predictors that hyperparameters do not only scale")
        from . import kernel, slices, work  # which import Numba

        self._kernel, self._slices, self._make_work = kernel, slices, work.make_work
        stops = np.cumsum([0, *(b.total_size for b in model.blocks)]).tolist()
        self._blocks = [np.arange(*span) for span in pairwise(stops)]
        # t; and the sum of squares.
        self._omega = np.zeros(stops[-1] + 1)
        # The sampler is not kept: it has the rows once more, and a chain has its own.
        self._factors = [self._read(chain, factor, point, B) for factor in part.factors]
        # The last factor is given the squares too, from the products of the others.
        others, _, lam = self._others
        self._gram = others.T.multiply(lam) @ others
        self._v, self._block = np.zeros(stops[-1]), None

    def _read(self, chain: Chain, factor: Part, point: Point, B: csr_array) -> tuple[Any, ...]:
        """Return the latents of a factor, and what the kernel reads of it."""
        given, model, plan = copy.copy(chain), factor.priors.model, chain.plan
        # Values are those of innovations.
        blocks = tuple(replace(b, mean=None, transform=None) for b in model.blocks)
        given.model, given.order = replace(model, blocks=blocks), list(range(len(blocks)))
        given.priors, given.parts = factor.priors, [factor]
        (move,) = factor.collapsed or ["collapsed"]
        others = [h for h in plan.updated if h not in plan.moves[move]]
        given.plan = Plan((), (), (), (*plan.moves[move], *others), (), ())
        own = np.concatenate([self._blocks[i] for i in factor.blocks])
        offset = chain.model.offset(point)
        change = partial(self._given_others, offset, B, own)
        p, entries, layout = make_problem(given, point, change)
        n_moved = sum(h.size for h in plan.moves[move])
        w = self._make_work(p)._replace(omega=self._omega)
        arrays = p._replace(theta=p.theta[:n_moved], outputs=own[:0]), entries, w
        return own[layout.order], move, layout, p.theta, arrays

    def _given_others(self, offset: Array, B: csr_array, own: Index, sites: Rows) -> Rows:
        """Return the sites, with h a function of the other latents."""
        every, c, lam = np.arange(B.shape[0]), sites.factor[0], sites.lam
        is_known = np.array_equal(sites.first, every) and np.array_equal(sites.second, every)
        if not is_known or (sites.of >= 0).any() or (sites.factor != c).any():
            raise NoTapeError("observations of several precisions")
        h = sites.h - lam * offset
        others = B.multiply(np.isin(np.arange(B.shape[1]), own, invert=True)).tocoo()
        others.eliminate_zeros()
        self._others = others.tocsr(), h, lam
        (row, of), no = others.coords, np.full(others.nnz, -1)
        first = np.append(every, row)
        return sites._replace(
            first=first, second=first, factor=np.full(first.size, c),
            h=np.append(h, -lam[row] * others.data), lam=np.append(lam, 0 * no),
            of=np.append(sites.of, no), h_of=np.append(sites.h_of, of),
            base=[(c, np.array([-0.5]), self._omega.size - 1), *sites.base[1:]],
        )  # fmt: skip

    def check_evidence(self, *given: Any) -> None:
        """Do nothing: log evidences of factors do not add up to one."""

    def _made(
        self, rng: np.random.Generator, sampler: GibbsSampler, point: Point,
        updates: Mapping[str, Any], steps: int, tune: bool, beside: Any = (),
    ) -> Block:  # fmt: skip
        part, v, t, state = sampler.parts[0], self._v.copy(), self._omega[:-1], dict(point)
        # Another start may ask for joint draws.
        steps = 0 if part.joint_share else steps
        learned = {
            move: self._learned(updates[move], p.theta.size, tune)
            for _, move, _, _, (p, *_) in self._factors
        }
        nothing = self._learned(updates["level"], 0, tune), np.empty(0)
        outputs, stats, found = (
            np.empty((steps, self._size)),
            np.zeros((N_STATS, steps)),
            np.empty((N_STATS, 1)),
        )
        stats[1], gram, (others, h, lam) = np.nan, self._gram, self._others
        for step in range(steps):
            self._multiply(part.priors.at(state), range(len(self._blocks)), v)
            if not step:
                # Squares about the first residuals, of which rounding leaves digits.
                first, rest = t.copy(), h - lam * (others @ t)
                right, square = others.T @ rest, float(rest @ (rest / lam))
            for factor, of_factor in zip(part.factors, self._factors, strict=True):
                own, move, layout, registers, arrays = of_factor
                if factor is part.factors[-1]:
                    away = t - first
                    self._omega[-1] = square - away @ (2.0 * right - gram @ away)
                members = layout.members["collapsed"]
                theta, of_own = flatten(members, state), v[own]
                arrays[-1].registers[registers], x = theta, theta[: arrays[0].theta.size]
                if not self._kernel.run_steps(
                    rng, *arrays, learned[move], x, *nothing, *nothing, *nothing, nothing[0],
                    own[:0], x[:0], own[:0], of_own, 1, 0, OVERRELAXATION, False,
                    outputs[:1, :0], found,
                ):  # fmt: skip
                    return self._block_of(outputs[:step], stats[:, :step], point)
                v[own], stats[2, step] = of_own, stats[2, step] + found[2, 0]
                state |= values_of(members, theta)[0]
                self._multiply(factor.priors.at(state), factor.blocks, v)
            prior = part.priors.at(state)
            of_blocks = [v[own] for own in self._blocks]
            u = [b.scale(x) for b, x in zip(prior.blocks, of_blocks, strict=True)]
            stats[0, step] = found[0, 0]
            stats[0, step] -= sum(prior.blocks[i].log_density(of_blocks[i]) for i in factor.blocks)
            for shift in part.shifts:
                shift.draw(rng, prior, u)
            whitened = [b.unscale(x) for b, x in zip(prior.blocks, u, strict=True)]
            part.keep(prior, t, whitened)
            stats[0, step] += part.log_prior
            state, v = sampler.chain.point_of(state, u, whitened), np.concatenate(whitened)
            outputs[step] = np.concatenate([np.ravel(state[name]) for name in self.layout.entries])
        self._v = v
        if tune:
            self._take(updates, learned)
        return self._block_of(outputs, stats, point)

    def _multiply(self, prior: LatentPrior, numbers: Iterable[int], v: Array) -> None:
        """Write t of the blocks with some numbers, given their prior."""
        for i, b, A in zip(numbers, prior.blocks, prior.full_maps, strict=True):
            factors: Any = A.multiple_of[0] if isinstance(A, RowSelection) else A.columns
            self._omega[self._blocks[i]] = times(b.scale(v[self._blocks[i]]), factors)


def _fixed(A: LinearMap) -> csr_array:
    """Return what θ leaves of a map."""
    return A.multiple_of[1].sparse() if isinstance(A, RowSelection) else csr_array(A.matrix)
