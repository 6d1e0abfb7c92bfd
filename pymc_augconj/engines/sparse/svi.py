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
Kingma, D. P. & Ba, J. (2015). Adam: a method for stochastic optimization. ICLR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing
from typing import Any

import numpy as np

from pymc_augconj.engines.base import FitOutcome, FitProblem, FitState, Iteration
from pymc_augconj.engines.options import SVIOptions
from pymc_augconj.engines.variational.ascent import LEAST_WEIGHT, NARROW, WILD
from pymc_augconj.engines.variational.bound import CoordinateAscent, VariationalGaussian
from pymc_augconj.errors import NotPositiveDefiniteError
from pymc_augconj.typing import Array

from .chunks import ChunkedData, RowsInChunks
from .component import inducing_entry
from .fit import outcome_of
from .inducing import WeightsPosterior
from .model import SparseModel, SparseSites, mean_field_rule
from .rows import Batch, Rows, RowsInMemory, State, all_slopes, expected_sums, start_sums

# Robbins and Monro's (delay, forgetting): nearly the average over all minibatches so far. Measured
# on 180 000 logistic observations with M = 200, distance of the bound from the best one after 400
# iterations of 1000 observations: 50 nats, and 50 to 90 with a forgetting of 1 and delays from 1 to
# 2; 300 with a rate that stays above 0.05. Of 100 observations, 3000 iterations: 300.
RATE = (1.0, 0.9)
# Where hyperparameters are learned and the data gone through several times, minibatches of other
# hyperparameters are to be forgotten sooner. Measured after 1000 iterations of 256 or 500 of 5000
# to 20 000 observations (Student-t, Poisson, logistic in one and two dimensions), nats below the
# best bound: 54, 39, 2, 39 with the former, 11, 7, 1, 13 with this.
FORGETFUL_RATE = (10.0, 0.75)
_SEVERAL = 5.0

# Largest improvement by the last iterations that counts as converged, in nats. A factor of e
# between two hypotheses is "not worth more than a bare mention" (Kass & Raftery 1995, Bayes
# factors), and smaller steps alone give some tenths, as the noise of the weights falls with them.
_TOLERABLE = 1.0
# Fewest iterations for a check; of more, one in _FEWEST is evaluated again: as many observations
# are compared, in _GROUPS groups from which the standard error is estimated.
_FEWEST, _GROUPS = 10, 16

_SMALLEST_RATE = 1e-6
# Natural-gradient steps per step of Adam, which costs more. After the same number of iterations the
# bound with 4 is as high as with 1; with 8 it is, from a poor start, 700 nats lower after 400.
_HYPER_EVERY = 4
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


def fit_stochastic(problem: FitProblem) -> FitOutcome:
    """Fit by ``"svi"``, augmented where all likelihoods are; raises as :func:`.fit_sparse`."""
    problem.model.require_support()
    return _Run(problem).run()


class _Run:
    def __init__(self, problem: FitProblem) -> None:
        assert problem.sparse is not None
        self.problem, self.sparse = problem, problem.sparse
        self.options = options = SVIOptions.of(problem.options)
        self.point = {name: np.array(value) for name, value in problem.point.items()}
        self.model = SparseModel.of(problem)
        likelihoods = [site.likelihood for site in problem.model.sites]
        augmented = all(one.can_augment and one.why_no_bound is None for one in likelihoods)
        rule = mean_field_rule(
            CoordinateAscent if augmented else VariationalGaussian, problem.model
        )
        # All predictors move at once, also where coordinate ascent would take them in turn.
        in_turn = any(len(site.likelihood.groups) > 1 for site in problem.model.sites)
        self.overshoots = in_turn or not rule.monotone
        self.warms_up = self.sparse.first is None and problem.model.has_bounded_densities
        self.rule, data = rule, self.sparse.data
        self.rows: Rows[Any]
        if data is None:
            self.rows = RowsInMemory(self.model, SparseSites(problem.model, rule, self.point))
        else:
            assert isinstance(data, ChunkedData)
            self.rows = RowsInChunks(data, rule)
        self.inducing = [np.array(Z) for Z in self.sparse.inducing]
        sizes = self.model.sizes(self.inducing)
        self.q = WeightsPosterior.prior(sizes)
        self.before_first = 0
        if (first := self.sparse.first) is not None:
            self.q = WeightsPosterior(first.precision.ravel(order="F"), first.linear, sizes)
            self.before_first = first.count
        self.members = tuple(problem.members)
        self.adam = Adam(options.hyper_rate)
        self.adam_moves = bool(self.members) or options.optimize_inducing
        self.n_rows = self.rows.n_rows
        self.batch_size = min(options.batch_size or self.n_rows, self.n_rows)
        passes = problem.max_iter * self.batch_size / self.n_rows
        self.rate = options.rate or default_rate(passes, learned=self.adam_moves)
        self.iterations: list[Iteration] = []
        self.failures = 0
        self.divergence = 0.0
        self.before: tuple[int, State] | None = None

    def run(self) -> FitOutcome:
        problem = self.problem
        stopped = ""
        # Far out there are infinities, which every step is checked for.
        ignored = np.errstate(over="ignore", invalid="ignore", divide="ignore")
        with closing(self.rows), ignored:
            if self.sparse.first is None and (
                not self.rule.monotone or self.problem.model.is_improper
            ):
                self._narrow()
            batches = self.rows.batches(self.sparse.rng, self.batch_size)
            self.q.prepare()
            first = self.q
            batch: Batch | None
            batch = self.rows.start(self.point, self.inducing, next(batches), lambda: first)
            for count in range(problem.max_iter):
                following = next(batches) if count + 1 < problem.max_iter else None
                if count == int((1.0 - _WINDOW) * problem.max_iter):
                    self.before = self._state()
                assert batch is not None
                done, batch = batch, self._iterate(count, batch, following)
                if problem.callback is not None:
                    state = FitState(count + 1, self.iterations[-1], *done.moments())
                    try:
                        problem.callback(state)
                    except StopIteration:
                        stopped = f"stopped by the callback after {count + 1} iterations; "
                        break
                # The next minibatch takes its memory.
                del done
            if batch is not None:
                batch.leave()
            bound, errors = self._last_bound()
            converged, message = judge_convergence(
                self.rows, problem, self.before, self._state(), self.batch_size
            )
        if self.rule.augmented:
            problem.model.require_augmentation(self.point)
        left_out = f"; {self.failures} steps had to be left out" if self.failures else ""
        return outcome_of(
            self.model, self.point, self.inducing, self.q, bound,
            bound + problem.log_prior(self.point)[0], converged and not stopped,
            stopped + message + left_out, self.iterations, diagnostics=errors,
        )  # fmt: skip

    def _last_bound(self) -> tuple[float, dict[str, float]]:
        """Return the bound on all the data, or its mean over minibatches if these were fewer."""
        if self.n_rows <= len(self.iterations) * self.batch_size:
            return self._bound(None, self.q), {"evidence_error": 0.0}
        bounds = np.array([iteration.bound for iteration in self.iterations])
        last = bounds[-max(int(_WINDOW * bounds.size), 1) :]
        return float(last.mean()), {"evidence_error": float(last.std() / np.sqrt(last.size))}

    def _narrow(self) -> None:
        """Start near the prior mean where log densities under the prior are no start."""
        rows, prior = self.rows.spread(self.batch_size), self.q
        prior.prepare()
        sums = self.rows.total(start_sums, State(self.point, self.inducing, prior), rows)
        if np.isfinite(sums.value) and np.sqrt(sums.squares) <= WILD:
            return
        best = -np.inf
        for std in NARROW:
            scale = self.n_rows / sums.count * std**-2
            q = prior.towards(sums.gram, np.zeros_like(prior.linear), 1.0, scale)
            bound = _finite(self._bound(rows, q))
            if bound > best:
                self.q, best = q, bound

    def _bound(self, rows: Any, q: WeightsPosterior, weight: float = 1.0) -> float:
        """Return the bound on all the data, of this weight, as estimated from some rows."""
        q.prepare()
        sums = self.rows.total(expected_sums, State(self.point, self.inducing, q), rows)
        return weight * self.n_rows / sums.count * sums.value - q.divergence

    def _iterate(self, count: int, batch: Batch, following_rows: Any) -> Batch | None:
        """Make a step; return the next minibatch."""
        batch.wait()
        q, scale = batch.q, self.n_rows / batch.sums.count
        expected = scale * batch.sums.value
        if count % _EVERY == 0:
            self.divergence = q.divergence
        rate, weight = rate_at(self.rate, self.before_first + count), 1.0
        if self.warms_up:
            grown = count / (_WARM_UP * self.problem.max_iter)
            weight = min(LEAST_WEIGHT ** (1.0 - grown), 1.0)
        moves = self.adam_moves and (count + 1) % _HYPER_EVERY == 0
        accepts = None
        if self.overshoots and (count < _CAREFUL or not np.isfinite(expected)):
            before = weight * expected - q.divergence

            def accepts(new: WeightsPosterior) -> bool:
                return _finite(self._bound(batch.rows, new, weight)) >= before

        # The other threads wait for q(w) when they have begun with the next minibatch.
        early = not moves and accepts is None
        posterior: Future[WeightsPosterior] = Future()
        following: Batch | None = None

        def start() -> Batch | None:
            if following_rows is None:
                return None
            return self.rows.start(self.point, self.inducing, following_rows, posterior.result)

        try:
            if moves:
                slopes = batch.begin_slopes()
            if early:
                following = start()
            self.q, rate = _moved(batch, rate, weight * scale, accepts)
            posterior.set_result(self.q)
        finally:
            # Whatever happened, no thread waits for ever.
            posterior.cancel()
        if moves:
            state, sums = State(self.point, self.inducing, q), batch.sums
            total = all_slopes(self.model, state, slopes, (sums.gram, sums.linear))
            self._move_hyperparameters(count + 1, scale, total)
        if not early:
            following = start()
        self.failures += rate == 0.0
        residual = self.q.scaled_norm(self.q.mean - q.mean)
        bound = expected - self.divergence
        self.iterations.append(
            Iteration(count + 1, bound, expected, self.divergence, residual, rate)
        )
        return following

    def _state(self) -> tuple[int, State]:
        inducing = [*map(np.copy, self.inducing)]
        return len(self.iterations), State(dict(self.point), inducing, self.q)

    def _move_hyperparameters(self, iteration: int, scale: float, slopes: dict[str, Array]) -> None:
        """Take a step of Adam on the bound's derivatives, estimated from one minibatch."""
        prior = self.problem.log_prior(self.point)[1]
        gradient = {}
        for member in self.members:
            name = member.value_name
            slope = scale * np.asarray(slopes.get(name, 0.0)) + prior.get(name, 0.0)
            gradient[name] = np.broadcast_to(slope, member.shape)
        if self.options.optimize_inducing:
            entries = map(inducing_entry, self.model.priors)
            gradient |= {entry: scale * slopes[entry] for entry in entries}
        if not all(np.isfinite(slope).all() for slope in gradient.values()):
            self.failures += 1
            return
        # Shorter steps towards the end, for θ to settle.
        share = 1.0 - _SETTLING * iteration / self.problem.max_iter
        steps = self.adam.step(gradient)
        for member in self.members:
            name = member.value_name
            self.point[name] = self.point[name] + share * steps[name]
        if self.options.optimize_inducing:
            for process, Z in zip(self.model.priors, self.inducing, strict=True):
                Z += share * steps[inducing_entry(process)]


def _finite(bound: float) -> float:
    return bound if np.isfinite(bound) else -np.inf


def _moved(
    batch: Batch, rate: float, scale: float, accepts: Callable[[WeightsPosterior], bool] | None
) -> tuple[WeightsPosterior, float]:
    """Return q after a step, and its rate, which is reduced until q exists and is accepted."""
    while rate > _SMALLEST_RATE:
        try:
            q = batch.q.towards(batch.sums.gram, batch.sums.linear, rate, scale)
        except NotPositiveDefiniteError:
            rate *= 0.5
            continue
        if batch.is_divided:
            q.prepare()
        if accepts is None or accepts(q):
            return q, rate
        rate *= 0.5
    return batch.q, 0.0


def rate_at(rate: float | tuple[float, float], iteration: int) -> float:
    """Return ρ_t for iteration t = 0, 1, …."""
    if not isinstance(rate, tuple):
        return rate
    delay, forgetting = rate
    return (1.0 + iteration / delay) ** -forgetting


def default_rate(passes: float, *, learned: bool) -> tuple[float, float]:
    """Return (delay, forgetting) for so many passes; ``learned``: hyperparameters or Z move."""
    return FORGETFUL_RATE if learned and passes >= _SEVERAL else RATE


class Adam:
    """Stochastic gradient ascent; ``rate`` is approximately the longest step of a coordinate."""

    def __init__(self, rate: float, decay: tuple[float, float] = (0.9, 0.999)) -> None:
        self.rate, self.decay, self._count = rate, decay, 0
        self._means: dict[str, tuple[Array | float, Array | float]] = {}

    def step(self, gradient: Mapping[str, Array]) -> dict[str, Array]:
        """Return what to add to the arrays, which are the same at every call."""
        first, second = self.decay
        self._count += 1
        steps = {}
        for name, slope in gradient.items():
            mean, square = self._means.get(name, (0.0, 0.0))
            mean = first * mean + (1.0 - first) * slope
            square = second * square + (1.0 - second) * slope**2
            self._means[name] = mean, square
            std = np.sqrt(square / (1.0 - second**self._count))
            steps[name] = self.rate * (mean / (1.0 - first**self._count)) / (std + 1e-8)
        return steps


def judge_convergence(
    data: Rows[Any],
    problem: FitProblem,
    before: tuple[int, State] | None,
    last: tuple[int, State],
    batch_size: int,
) -> tuple[bool, str]:
    """Return whether the objective rises no more from ``before`` to ``last``, and a sentence.

    Noise hides a slow rise between minibatches; bounds of the same observations tell it far better.
    """
    count, end = last
    if before is None or count < _FEWEST:
        return False, (
            f"{count} iterations are too few to tell whether the bound still rises; "
            "increase max_iter"
        )
    earlier, start = before
    step = max(data.n_rows // (batch_size * max(count // _FEWEST, 1)), 1)
    groups = data.groups(step, _GROUPS)
    sums = [[data.total(expected_sums, at, rows) for at in (end, start)] for rows in groups]
    differences = np.array([after.value - before.value for after, before in sums])
    scale = data.n_rows / sum(after.count for after, _ in sums)
    rise = scale * differences.sum() + _of_prior(problem, end) - _of_prior(problem, start)
    if not np.isfinite(rise):
        return False, (
            "the bound is not finite: log densities are rounded to infinity where the "
            "approximation has mass; give the process a prior of smaller variance"
        )
    # All the data leave no error of sampling.
    error = scale * np.sqrt(len(groups)) * differences.std() if step > 1 else 0.0
    found = f"{rise:+.2g}" + (f" ± {error:.2g}" if error else "")
    message = f"{found} nats in the last {count - earlier} iterations"
    what = "the objective" if problem.members else "the bound"
    if rise > 3.0 * error + _TOLERABLE:
        return False, f"{what} is still rising: {message}; increase max_iter"
    within = ", within its error" if error else ""
    return True, f"{what} no longer rises by more than a nat{within}: {message}"


def _of_prior(problem: FitProblem, state: State) -> float:
    """Return what the objective has besides the expectations of log densities."""
    return problem.log_prior(state.point)[0] - state.q.divergence
