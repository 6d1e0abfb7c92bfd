"""Stochastic variational inference through inducing points, a minibatch an iteration.

With q(w) = N(μ, S), S⁻¹ = I + B and S⁻¹μ = b, a minibatch of size |𝓑| estimates the natural
gradient of the bound: it points from (B, b) to

    B̂ = (N/|𝓑|) Φ Λ̂ Φᵀ,      b̂ = (N/|𝓑|) Φ (ĥ − Λ̂ offset),

with the target sites (ĥ, λ̂) of :mod:`.bound` at the minibatch's moments. A step of rate ρ moves q
that fraction of the way; ρ = 1 on all the data is one sweep of coordinate ascent. Hyperparameters
(and inducing inputs) take a step of Adam on the gradient of the same minibatch's bound at fixed
q(w). Minibatches walk through a random order of the data, a new one every time it is used up.

References
----------
Hoffman, M., Blei, D., Wang, C. & Paisley, J. (2013). Stochastic variational inference. JMLR 14.
Galy-Fajou, T., Wenzel, F. & Opper, M. (2020). Automated augmented conjugate inference for
non-conjugate Gaussian process models. AISTATS, algorithm 3.
Salimbeni, H., Eleftheriadis, S. & Hensman, J. (2018). Natural gradients in practice. AISTATS.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

from pymc_augconj.engines.base import FitOutcome, FitProblem, FitState, Iteration
from pymc_augconj.engines.variational.ascent import LEAST_WEIGHT, NARROW, WILD
from pymc_augconj.engines.variational.cavi import CoordinateAscent
from pymc_augconj.engines.variational.vgp import VariationalGaussian
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.typing import Array

from .adam import Adam
from .batch import DividedModel, Posterior
from .chunked_batch import ChunkedModel
from .convergence import AscentState, judge_ascent
from .inducing import default_rate, rate_at
from .model import SparseModel
from .outcome import outcome_of
from .posterior import WeightsPosterior
from .separate import sparse_model
from .sites import SparseSites, separable

__all__ = ["StochasticVariational"]

_SMALLEST_RATE = 1e-6
# Iterations between two evaluations of the divergence, which a bound in the history takes along.
_EVERY = 10
# What Adam's rate has lost at the end.
_SETTLING = 0.9
# Without an augmentation a natural-gradient step may overshoot, by orders of magnitude where log p
# is exponential in η: none of the first steps, and none while the bound is not finite, may lower
# the minibatch's bound.
_CAREFUL = 50
# Where log densities are bounded below: the share of the iterations in which weights grow to one.
_WARM_UP = 0.5
# Convergence is judged by what this share of all iterations, the last, was good for.
_WINDOW = 0.2


class StochasticVariational:
    """The engine ``method="svi"``: augmented updates where all likelihoods have them."""

    def __call__(self, problem: FitProblem) -> FitOutcome:
        """Return the fit; raises what the covariances at the start raise."""
        return _Ascent(problem).run()


class _Ascent:
    def __init__(self, problem: FitProblem) -> None:
        assert problem.sparse is not None
        self.problem, self.sparse = problem, problem.sparse
        self.point = {name: np.array(value) for name, value in problem.point.items()}
        self.model = sparse_model(problem)
        likelihoods = [site.likelihood for site in problem.model.sites]
        augmented = all(one.can_augment and one.why_no_bound is None for one in likelihoods)
        rule = separable(CoordinateAscent if augmented else VariationalGaussian, problem.model)
        # All predictors move at once, also where coordinate ascent would take them in turn.
        in_turn = any(len(site.terms.groups) > 1 for site in problem.model.sites)
        self.overshoots = in_turn or not rule.monotone
        self.warms_up = self.sparse.first is None and problem.model.has_bounded_densities
        self.sites = SparseSites(problem.model, rule, self.point)
        self.inducing = [np.array(Z) for Z in self.sparse.inducing]
        self.q: Posterior = self.model.prior_posterior(self.inducing)
        self.before_first = 0
        if (first := self.sparse.first) is not None:
            self.q = WeightsPosterior(first.precision, first.linear)
            self.before_first = first.count
        self.members = tuple(problem.members)
        moving = sum(h.size for h in self.members)
        if self.sparse.optimize_inducing:
            moving += sum(Z.size for Z in self.inducing)
        self.adam = Adam(moving, self.sparse.hyper_rate)
        data = self.sparse.data
        self.n_rows = self.model.n_observations if data is None else data.n_rows
        self.batch_size = min(self.sparse.batch_size or self.n_rows, self.n_rows)
        passes = problem.max_iter * self.batch_size / self.n_rows
        self.rate = self.sparse.rate or default_rate(passes, learned=self.adam_moves)
        self.iterations: list[Iteration] = []
        self.failures = 0
        self.divergence = 0.0
        self.before: AscentState | None = None

    def run(self) -> FitOutcome:
        problem = self.problem
        stopped = ""
        # Far out there are infinities, which every step is checked for.
        ignored = np.errstate(over="ignore", invalid="ignore", divide="ignore")
        with self._divided() as divided, ignored:
            if not self.sites.rule.monotone and self.sparse.first is None:
                self._narrow(divided)
            batches = divided.batches(self.sparse.rng, self.batch_size)
            self.q.prepare()
            first = self.q
            batch: Any
            batch = divided.start(self.point, self.inducing, next(batches), lambda: first)
            for count in range(problem.max_iter):
                following = next(batches) if count + 1 < problem.max_iter else None
                if count == int((1.0 - _WINDOW) * problem.max_iter):
                    self.before = self._state()
                assert batch is not None
                state, batch = self._iterate(divided, count, batch, following)
                if problem.callback is not None:
                    try:
                        problem.callback(state)
                    except StopIteration:
                        stopped = f"stopped by the callback after {count + 1} iterations; "
                        break
            if batch is not None:
                batch.leave()
            bound, errors = self._last_bound(divided)
            converged, message = judge_ascent(
                divided, problem, self.before, self._state(), self.batch_size
            )
        if self.sites.rule.augmented:
            problem.model.require_augmentation(self.point)
        return outcome_of(
            self.model, self.point, self.inducing, self.q, bound,
            bound + problem.log_prior(self.point)[0], converged and not stopped,
            stopped + message + self._left_out(), self.iterations, diagnostics=errors,
        )  # fmt: skip

    def _divided(self) -> Any:
        """Return what minibatches are taken from: a DividedModel, or a ChunkedModel."""
        if self.sparse.data is None:
            return DividedModel(self.model, self.sites)
        assert isinstance(self.model, SparseModel)  # of one predictor, as pac.fit has seen to
        return ChunkedModel(self.model, self.sites, self.sparse.data)

    def _last_bound(self, divided: Any) -> tuple[float, dict[str, float]]:
        """Return the bound on all the data, or its mean over the last minibatches, with its error.

        The latter where all the data are more than the minibatches so far together.
        """
        if self.n_rows <= len(self.iterations) * self.batch_size:
            whole = divided.full_bound(self.point, self.inducing, self.q)
            return whole, {"evidence_error": 0.0}
        bounds = np.array([iteration.bound for iteration in self.iterations])
        last = bounds[-max(int(_WINDOW * bounds.size), 1) :]
        return float(last.mean()), {"evidence_error": float(last.std() / np.sqrt(last.size))}

    def _narrow(self, divided: Any) -> None:
        """Start near the prior mean where log densities under the prior are no start."""
        rows = divided.spread(self.batch_size)
        prior = self.q
        prior.prepare()
        batch = divided.start(self.point, self.inducing, rows, lambda: prior)
        batch.wait()
        if np.isfinite(batch.value) and batch.length_of_step() <= WILD:
            return
        best = -np.inf
        for std in NARROW:
            gram = batch.gram_of(std**-2)
            q = prior.towards(gram, np.zeros_like(prior.linear), 1.0, self.n_rows / batch.size)
            q.prepare()
            bound = self._bound_of(divided, rows, q)
            if bound > best:
                self.q, best = q, bound

    def _bound_of(self, divided: Any, rows: Any, q: Posterior, weight: float = 1.0) -> float:
        """Return the bound on all the data, of this weight, as some rows tell it."""
        value, size = divided.expected(self.point, self.inducing, rows, q)
        bound = weight * self.n_rows / size * value - q.divergence
        return bound if np.isfinite(bound) else -np.inf

    def _weight_at(self, count: int) -> float:
        """Return the weight of the observations at an iteration."""
        if not self.warms_up:
            return 1.0
        return min(LEAST_WEIGHT ** (1.0 - count / (_WARM_UP * self.problem.max_iter)), 1.0)

    def _is_careful(self, count: int, expected: float) -> bool:
        early = count < _CAREFUL or not np.isfinite(expected)
        return early and self.overshoots

    def _iterate(
        self,
        divided: Any,
        count: int,
        batch: Any,
        following_rows: Any,
    ) -> tuple[FitState, Any]:
        """Return the state after an iteration, and the next minibatch."""
        batch.wait()
        q, scale = batch.q, self.n_rows / batch.size
        expected = scale * batch.value
        if count % _EVERY == 0:
            self.divergence = q.divergence
        mean, var = batch.moments()
        rate, weight = rate_at(self.rate, self.before_first + count), self._weight_at(count)
        climbs = self.adam_moves and (count + 1) % self.sparse.hyper_every == 0
        accepts = None
        if self._is_careful(count, expected):
            before = weight * expected - q.divergence

            def accepts(new: Posterior) -> bool:
                return self._bound_of(divided, batch.rows, new, weight) >= before

        # The other threads wait for q(w) when they have begun with the next minibatch.
        early = not climbs and accepts is None
        posterior: Future[Posterior] = Future()
        following: Any = None

        def start() -> Any:
            if following_rows is None:
                return None
            return divided.start(self.point, self.inducing, following_rows, posterior.result)

        try:
            if climbs:
                gradient = batch.gradient()
            if early:
                following = start()
            self.q, rate = _moved(batch, rate, weight * scale, accepts)
            posterior.set_result(self.q)
        finally:
            # Whatever happened, no thread waits for ever.
            posterior.cancel()
        if climbs:
            self._climb(count + 1, self._direction(batch, scale, *gradient()))
        if not early:
            following = start()
        self.failures += rate == 0.0
        residual = self.q.scaled_norm(self.q.mean - q.mean)
        self.iterations.append(
            Iteration(
                count + 1, expected - self.divergence, expected, self.divergence, residual, rate
            )
        )
        return FitState(count + 1, self.iterations[-1], mean, var), following

    @property
    def adam_moves(self) -> bool:
        return bool(self.members) or self.sparse.optimize_inducing

    def _direction(
        self,
        batch: Any,
        scale: float,
        by_theta: dict[str, Array],
        by_inducing: list[Array | None],
    ) -> Array:
        """Return the derivatives of the bound, as far as one minibatch tells, in Adam's order."""
        prior = self.problem.log_prior(self.point)[1]
        flat = []
        for member in self.members:
            name = member.value_name
            slope = scale * np.asarray(by_theta.get(name, 0.0)) + prior.get(name, 0.0)
            flat.append(np.ravel(np.broadcast_to(slope, member.shape)))
        if self.sparse.optimize_inducing:
            flat += [np.ravel(scale * moved) for moved in by_inducing if moved is not None]
        return np.concatenate(flat)

    def _left_out(self) -> str:
        return f"; {self.failures} steps had to be left out" if self.failures else ""

    def _state(self) -> AscentState:
        return AscentState(
            len(self.iterations), self.q, dict(self.point), [*map(np.copy, self.inducing)]
        )

    def _climb(self, iteration: int, direction: Array) -> None:
        if not np.isfinite(direction).all():
            self.failures += 1
            return
        # Shorter steps towards the end, for θ to settle.
        share = 1.0 - _SETTLING * iteration / self.problem.max_iter
        step, start = share * self.adam.step(direction), 0
        for member in self.members:
            part = step[start : start + member.size].reshape(member.shape)
            self.point[member.value_name] = self.point[member.value_name] + part
            start += member.size
        if self.sparse.optimize_inducing:
            for Z in self.inducing:
                Z += step[start : start + Z.size].reshape(Z.shape)
                start += Z.size


def _moved(
    batch: Any,
    rate: float,
    scale: float,
    accepts: Callable[[Posterior], bool] | None,
) -> tuple[Posterior, float]:
    """Return q after a step, and its rate, which is reduced until q exists and is accepted."""
    while rate > _SMALLEST_RATE:
        try:
            q = batch.q.towards(batch.gram, batch.linear, rate, scale)
        except NotPositiveDefiniteError:
            rate *= 0.5
            continue
        if batch.is_divided:
            q.prepare()
        if accepts is None or accepts(q):
            return q, rate
        rate *= 0.5
    return batch.q, 0.0
