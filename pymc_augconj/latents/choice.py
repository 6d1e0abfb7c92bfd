"""Choosing the solver by its cost, and others where rounding leaves it no digits.

All solvers give the same numbers. Each estimates the rounding error of its log normaliser, and the
accurate one depends on θ: a covariance of 10⁵⁸ may have a well-scaled precision, and wide effects,
too many for a border, that dominate a covariance do not dominate the precision of weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from pymc_augconj.block import LatentBlock
from pymc_augconj.errors import AugmentationError, NotPositiveDefiniteError, UncertainEvidenceError
from pymc_augconj.linalg.dense import LARGEST_ERROR, SMALL_ERROR
from pymc_augconj.typing import Array

from .by_filter import FilterSolver
from .by_gram import GramPattern, GramSolver, can_sum_out, whitened_parts
from .by_grid import GridSolver
from .by_neighbours import IncompleteSolver
from .by_observations import ObservationSolver
from .by_precision import IndependentSolver, PrecisionSolver
from .by_weights import CopiesSolver, WeightSolver
from .joint import LatentPrior
from .posterior import Posterior, Solver
from .rows import RowGroups, SiteSum

_ALL: tuple[type[Solver], ...] = (
    *(ObservationSolver, WeightSolver, CopiesSolver),
    *(PrecisionSolver, IndependentSolver, FilterSolver),
)
#: Solvers by name; the first wins a tie in cost.
SOLVERS = {kind.name: kind for kind in _ALL}

#: Rows of the largest matrix that is allowed: 7 GB, of which a fit holds three.
LARGEST_MATRIX = 30_000
#: The same for solvers that are only tried for accuracy.
LARGEST_ALTERNATIVE = 5_000
# Order from which a factorisation takes seconds, by about so many n³ a second of one core.
_SLOW_MATRIX, _PER_SECOND = 8_000, 6e10
_INSTEAD = (
    "write a process as pac.Vecchia or pm.gp.HSGP, on a grid with a kernel for each axis, or use "
    "pac.fit(method='svi', gp=gp, inducing=…): these need none of that size"
)

# Below this number of multiplications call overhead dominates.
_FEW = 64.0**3 / 3.0

# Latents that take no longer in the precision of their weights than in the covariance of rows; and,
# in the compiled loop, than in a sparse precision with the sum of an intrinsic block.
_FEW_LATENTS, _FEW_INTRINSIC = 88, 128

# Multiplications of an incomplete factor from which no other one is looked for.
_MANY = 2e8

# A solver that is refused so many times, and in this share of times, is not preferred any more.
_FEWEST_REFUSED, _OFTEN = 5, 0.005
# But a sparse factor is, if the next takes so many times its multiplications: tuning tries values
# far out, whose refusal costs less than the steps of a map in dense matrices.
_COSTLY = 30.0


def cheapest_solver(
    blocks: Sequence[LatentBlock], groups: RowGroups, *, fit: bool = False
) -> type[Solver]:
    """Return the solver with the fewest multiplications; ``fit`` allows those of fits alone."""
    kinds = list(SOLVERS.values())
    if not fit:
        kinds = [kind for kind in kinds if kind is not IndependentSolver]
        kinds = [GridSolver, IncompleteSolver, *kinds]
        if _MANY < IncompleteSolver.multiplications(blocks, groups) < np.inf:
            # To find a pattern that fills in takes minutes.
            kinds.remove(PrecisionSolver)
    return min(kinds, key=lambda kind: kind.multiplications(blocks, groups))


def choose_solver(
    blocks: Sequence[LatentBlock], groups: RowGroups, *, fit: bool = False
) -> type[Solver]:
    """Return the cheapest solver.

    Raises AugmentationError if its matrices are too large to hold, and warns of slow ones.
    """
    kind = cheapest_solver(blocks, groups, fit=fit)
    _check_size(kind, blocks, groups)
    return kind


def _check_size(kind: type[Solver], blocks: Sequence[LatentBlock], groups: RowGroups) -> None:
    """Raise AugmentationError if matrices are too large to hold; warn where each takes long."""
    size = kind.largest_order(blocks, groups)
    if size > LARGEST_MATRIX:
        raise AugmentationError(
            f"{groups.size} distinct predictors of {sum(b.total_size for b in blocks)} latent "
            f"values take matrices of {size} × {size} numbers, {8e-9 * size**2:,.0f} GB each; "
            f"expected at most {LARGEST_MATRIX} × {LARGEST_MATRIX}; {_INSTEAD}"
        )
    if size > _SLOW_MATRIX:
        warnings.warn(
            f"{groups.size} distinct predictors: a factorisation of a {size} × {size} matrix takes "
            f"some {size**3 / _PER_SECOND:.0f} s, and a step several; {_INSTEAD}",
            UserWarning,
            stacklevel=2,
        )


class CertifiedSolver:
    """Conditions by one solver, and by others where its log normaliser has no digits.

    Each of ``ways`` makes a :class:`.Solver` when it is first used; the preferred one is first, and
    stays so unless it ``may_change``.
    """

    def __init__(self, ways: Sequence[Callable[[], Solver]], *, may_change: bool = True) -> None:
        self._may_change = may_change
        self._ways = tuple(ways)
        self._makers = list(ways)
        self._solvers: list[Solver] = []
        # Posteriors by the preferred solver alone since it is preferred, and those without digits.
        self._asked = self._refused = 0

    @property
    def preferred(self) -> Solver:
        """The solver that is tried first."""
        if not self._solvers:
            self._solvers.append(self._makers[0]())
        return self._solvers[0]

    @property
    def state(self) -> dict[str, Any]:
        """The order in which solvers are tried, and the counts that it depends on."""
        order = [self._ways.index(maker) for maker in self._makers]
        return {"order": order, "_asked": self._asked, "_refused": self._refused}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        makers = [self._ways[i] for i in state["order"]]
        if makers != self._makers:
            self._makers, self._solvers = makers, []
        self._asked, self._refused = state["_asked"], state["_refused"]

    def posterior(
        self,
        prior: LatentPrior,
        sites: SiteSum,
        *,
        alone: bool = False,
        settle: bool = False,
        for_draws: bool = False,
    ) -> Posterior:
        """Return the posterior of the latents; valid until another factorisation.

        ``alone`` takes the preferred solver only; ``settle`` prefers from now on the solver that
        made the posterior; ``for_draws`` asks for digits of the factor, not of the log normaliser.
        Raises UncertainEvidenceError if the estimated rounding error of the log normaliser is above
        one nat, or no solver has a posterior.
        """
        settle = settle and self._may_change
        if settle:
            self._reconsider()
        self._asked += alone
        tried = self._makers[:1] if alone else self._makers
        error = attrgetter("factor_error" if for_draws else "error")
        posterior, which, failure = self._best(prior, sites, len(tried), error)
        if settle and which and posterior is not None and error(posterior) <= SMALL_ERROR:
            self._makers.insert(0, self._makers.pop(which))
            self._solvers.insert(0, self._solvers.pop(which))
        if posterior is None or not error(posterior) <= LARGEST_ERROR:
            self._refused += alone
            found = failure or f"about {np.inf if posterior is None else error(posterior):.1g}"
            names = " and ".join(repr(b.block.name) for b in prior.blocks)
            raise UncertainEvidenceError(
                f"latent variables {names}: expected a log evidence with a rounding error of at "
                f"most {LARGEST_ERROR:g} nat, found {found}; give them priors of more similar "
                "scales, start elsewhere (initvals=…), or, where a prior is flat, replace it by a "
                "proper one: the posterior may be improper"
            ) from failure
        return posterior

    def of_fit(
        self, prior: LatentPrior, sites: SiteSum, keep: Posterior | None = None
    ) -> Posterior:
        """Return the posterior with accurate moments, or the most accurate there is.

        Raises NotPositiveDefiniteError if there is no posterior.
        """
        error, count = attrgetter("divergence_error"), len(self._makers)
        posterior, _, failure = self._best(prior, sites, count, error, keep)
        if posterior is None:
            assert failure is not None
            raise failure
        return posterior

    def _best(
        self,
        prior: LatentPrior,
        sites: SiteSum,
        count: int,
        error: Callable[[Posterior], float],
        keep: Posterior | None = None,
    ) -> tuple[Posterior | None, int, NotPositiveDefiniteError | None]:
        """Return the first accurate posterior, or the most accurate one; its solver's number.

        That of another solver than the preferred one has an error of at most one nat: beyond that
        it is made of rounding.
        """
        failure: NotPositiveDefiniteError | None = None
        best, number, least = None, 0, LARGEST_ERROR
        for which in range(count):
            if which == len(self._solvers):
                self._solvers.append(self._makers[which]())
            try:
                posterior = self._solvers[which].posterior(prior, sites, keep)
            except NotPositiveDefiniteError as refusal:
                failure = failure or refusal
                continue
            found = error(posterior)
            if found <= SMALL_ERROR:
                return posterior, which, failure
            if which == 0 or found < least:
                best, number, least = posterior, which, min(found, LARGEST_ERROR)
        return best, number, failure

    def _reconsider(self) -> None:
        """Try the preferred solver last from now on, where it often had no digits when alone."""
        often = self._refused >= _FEWEST_REFUSED and self._refused > _OFTEN * self._asked
        if often and len(self._makers) > 1:
            self._asked = self._refused = 0
            self._makers.append(self._makers.pop(0))
            # The others are made when they are asked.
            self._solvers = []


def solver_of_step(blocks: Sequence[LatentBlock], groups: RowGroups) -> CertifiedSolver:
    """Return the solver of the Gibbs sampler; raises like :func:`choose_solver`."""
    maps = groups.maps or ()
    ways: list[Callable[[], Solver]] = []
    cheapest, latents = cheapest_solver(blocks, groups), sum(b.total_size for b in blocks)
    # The compiled loop has steps of these solvers, and of few latents none takes long in Python.
    few = PrecisionSolver.multiplications(blocks, groups) < 2.0 * _FEW
    most = _FEW_LATENTS if cheapest is ObservationSolver else 0
    most = _FEW_INTRINSIC if any(b.is_intrinsic for b in blocks) else most
    structured = [b for b in blocks if b.entries is not None]
    if few and structured and all(b.is_sparse for b in structured):
        cheapest = PrecisionSolver
    elif latents <= most:
        cheapest = WeightSolver
    if cheapest.augments:
        # Alone: evidences of others are without its auxiliary variables.
        return CertifiedSolver([partial(cheapest, blocks, groups)])
    if not groups.coupling.rows and can_sum_out(blocks, maps):
        pattern = GramPattern(whitened_parts(blocks, maps))
        least = max(_FEW, cheapest.multiplications(blocks, groups))
        if pattern.multiplications <= least and pattern.pattern.corner <= LARGEST_MATRIX:
            ways.append(partial(GramSolver, groups, pattern))
    others = _alternatives(blocks, groups, cheapest)
    if not ways or cheapest.largest_order(blocks, groups) <= LARGEST_ALTERNATIVE:
        _check_size(cheapest, blocks, groups)
        kinds = [cheapest, *others]
        ways += [partial(kind, blocks, groups) for kind in kinds]
    may_change = True
    if cheapest is PrecisionSolver and others:
        least = max(_FEW, cheapest.multiplications(blocks, groups))
        may_change = others[0].multiplications(blocks, groups) <= _COSTLY * least
    return CertifiedSolver(ways, may_change=may_change)


def solver_of_fit(blocks: Sequence[LatentBlock], groups: RowGroups, name: str) -> CertifiedSolver:
    """Return the solver of a fit, the one of this name preferred."""
    kinds = [SOLVERS[name], *_alternatives(blocks, groups, SOLVERS[name])]
    return CertifiedSolver([partial(kind, blocks, groups) for kind in kinds])


def _alternatives(
    blocks: Sequence[LatentBlock], groups: RowGroups, preferred: type[Solver]
) -> list[type[Solver]]:
    """Return other solvers with matrices of a possible size."""
    # A structured prior is often accurate in its own precision where covariances are not.
    structured = any(b.entries is not None for b in blocks)
    kinds = [PrecisionSolver] * structured + [WeightSolver, ObservationSolver]
    kinds = [kind for kind in kinds if kind is not preferred]
    return [k for k in kinds if k.largest_order(blocks, groups) <= LARGEST_ALTERNATIVE]


def condition(
    prior: LatentPrior, groups: RowGroups, h: Array, lam: Array, *, solver: str
) -> Posterior:
    """Return the posterior given the sites (h, λ) of every row, which stays valid.

    ``solver`` is the name of the preferred one. Raises like :meth:`CertifiedSolver.of_fit`.
    """
    own = solver_of_fit([b.block for b in prior.blocks], groups, solver)
    return own.of_fit(prior, groups.sites(h, lam, prior.offset))
