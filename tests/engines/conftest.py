"""The joint distribution test: a Gibbs step alternated with new observations leaves the prior.

Geweke, J. (2004). Getting it right: joint distribution tests of posterior simulators. Journal of
the American Statistical Association 99.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.distributions.continuous import AsymmetricLaplaceRV
from pytensor.graph.replace import _vectorize_node, graph_replace, vectorize_graph
from pytensor.tensor.random.op import RandomVariable

import pymc_augconj as pac
from pymc_augconj.api import report
from pymc_augconj.engines.gibbs import parts
from pymc_augconj.latents import choice
from pymc_augconj.latents.by_gram import GramPattern
from pymc_augconj.python_mode import python_mode
from tests.api.conftest import recalling
from tests.modes import STRAIGHT

LARGEST_SHOWN = 6  # entries of each variable that enter the statistics


@pytest.fixture(scope="module", autouse=True)
def _once() -> Iterator[None]:
    """Read a model once, and find the pattern of the same maps once.

    A joint distribution test starts a hundred chains.
    """
    known: dict[bytes, GramPattern] = {}

    def pattern(maps):
        key = pickle.dumps(maps)
        return known[key] if key in known else known.setdefault(key, GramPattern(maps))

    with pytest.MonkeyPatch.context() as patch:
        for module in (parts, choice):
            patch.setattr(module, "GramPattern", pattern)
        patch.setattr(report, "read_model", recalling(report.read_model))
        yield


class JointDistribution:
    """One model, its prior and its forward simulation, and the step under test.

    Everything but the step comes from PyMC alone: prior draws, new observations given the free
    variables, and the log density of the observations. The observations must be ``pm.Data``
    named after their variable, ``"y data"`` for ``"y"``.

    Parameters
    ----------
    build : callable
        Writes the model.
    seed : int
    reweigh : callable, optional
        Corrects the prior draws, by name, where a potential makes the prior another one.
    **step_options
        For :class:`~pymc_augconj.AugmentedGibbs`.
    """

    def __init__(self, build: Callable[[], None], seed: int, reweigh=None, **step_options):
        with pm.Model() as self.model:
            build()
        model = self.model
        self.rng = np.random.default_rng(seed)
        self.step = pac.AugmentedGibbs(model=model, **step_options)
        self.reweigh = reweigh

        values = {rv: model.rvs_to_values[rv] for rv in model.free_RVs}
        self.names = [value.name for value in values.values()]
        transforms = {rv: model.rvs_to_transforms[rv] for rv in model.free_RVs}
        unconstrained = [
            rv if t is None else t.forward(rv, *rv.owner.inputs) for rv, t in transforms.items()
        ]
        constrained = {
            rv: values[rv] if t is None else t.backward(values[rv], *rv.owner.inputs)
            for rv, t in transforms.items()
        }
        self._data = [model[f"{rv.name} data"] for rv in model.observed_RVs]
        observed = graph_replace(
            [_without_size(rv) for rv in model.observed_RVs], constrained, strict=False
        )
        log_likelihood = model.logp(vars=model.observed_RVs)

        def compiled(inputs, graphs, mode=STRAIGHT, seed=None):
            return pm.pytensorf.compile(
                inputs, graphs, random_seed=seed, mode=mode, on_unused_input="ignore"
            )

        def over_many(variables):
            return {v: pt.tensor(dtype=v.dtype, shape=(None, *v.type.shape)) for v in variables}

        # Draws gain nothing by rewriting, which takes as long as hundreds of them.
        self._prior = compiled([], unconstrained, seed=seed)
        # Of many points in one call: uncompiled, what a call costs is its number of operations.
        points, data = over_many(values.values()), over_many(self._data)
        self._forward = compiled(
            [*points.values()], vectorize_graph(observed, replace=points), seed=seed + 1
        )
        self._log_likelihood = compiled(
            [*points.values(), *data.values()],
            vectorize_graph(log_likelihood, replace={**points, **data}),
            python_mode(),
        )

    def prior(self, draws: int) -> list[dict[str, np.ndarray]]:
        """Draw points from the prior, in the order of PyMC's points."""
        drawn = [self._prior() for _ in range(draws)]
        columns = [np.array(column) for column in zip(*drawn, strict=True)]
        by_name = dict(zip(self.names, columns, strict=True))
        if self.reweigh is not None:
            self.reweigh(by_name)
        order = [value.name for value in self.model.value_vars]
        return [{name: np.asarray(by_name[name][i]) for name in order} for i in range(draws)]

    def _stacked(self, points) -> list[np.ndarray]:
        return [np.array([point[name] for point in points]) for name in self.names]

    def observe(self, points) -> list[list[np.ndarray]]:
        """Draw observations given each of ``points``."""
        drawn = self._forward(*self._stacked(points))
        columns = [np.asarray(y, dtype=d.dtype) for y, d in zip(drawn, self._data, strict=True)]
        return [list(row) for row in zip(*columns, strict=True)]

    def put(self, observed) -> None:
        """Put observations into the model."""
        for data, y in zip(self._data, observed, strict=True):
            data.set_value(y)

    def labels(self, point) -> list[str]:
        """Return the names of the entries of :meth:`statistics`."""
        shown = [
            f"{name}[{i}]"
            for name in self.names
            for i in range(min(LARGEST_SHOWN, np.size(point[name])))
        ]
        return [
            "log likelihood",
            *shown,
            *(f"mean y · {label}" for label in shown),
            *(f"{a} · {b}" for a, b in pairwise(shown)),
        ]

    def statistics(self, points, observed) -> np.ndarray:
        """Return functions of the free variables and the observations, a row for each point."""
        columns, data = self._stacked(points), [np.array(y) for y in zip(*observed, strict=True)]
        n = len(points)
        shown = np.hstack([column.reshape(n, -1)[:, :LARGEST_SHOWN] for column in columns])
        mean = np.mean([y.reshape(n, -1).mean(axis=1) for y in data], axis=0)[:, None]
        log_likelihood = self._log_likelihood(*columns, *data)[:, None]
        return np.hstack([log_likelihood, shown, mean * shown, shown[:, :-1] * shown[:, 1:]])

    def simulate(self, draws: int) -> np.ndarray:
        """Return the statistics of independent draws of everything, shape (draws, statistics)."""
        points = self.prior(draws)
        return self.statistics(points, self.observe(points))

    def alternate(self, chains: int, steps: int) -> np.ndarray:
        """Return the statistics along short chains, shape (chains, 1 + steps, statistics).

        Every chain starts with a draw from the prior, hence in the joint distribution, and stays
        there if a step leaves the posterior invariant.
        """
        learned = self.tuned()
        points, rows = self.prior(chains), []
        for k in range(steps):
            if k == 1:
                # Each step starts a chain, and would compare its density with PyMC's.
                self.step._pymc = SimpleNamespace(check=lambda *_: None)
            observed = self.observe(points)
            if k == 0:
                rows.append(self.statistics(points, observed))
            points = [self._moved(*pair, learned) for pair in zip(points, observed, strict=True)]
            rows.append(self.statistics(points, observed))
        return np.stack(rows, axis=1)

    def _moved(self, point, observed, learned) -> dict[str, np.ndarray]:
        self.put(observed)
        # A chain reads the observations when it starts.
        self.step.setup_chain(self.rng, 0, 1)
        self.step.learned = learned
        return self.step.step(point)[0]

    def tuned(self, tune: int = 60) -> dict:
        """Return what the updates learn on one data set; fixed from then on."""
        points = self.prior(1)
        self.put(self.observe(points)[0])
        self.step.setup_chain(self.rng, tune, 0)
        (point,) = points
        for _ in range(tune):
            point, _ = self.step.step(point)
        return self.step.learned

    def z_scores(self, chains: int, steps: int = 6, draws: int = 500) -> dict[str, float]:
        """Compare first and second moments of the ranks of the statistics within the prior's.

        Ranks, because they have moments whatever the prior's tails. The chains are independent,
        so the spread of their means is the standard error: no effective sample size is estimated.
        A chain's start, whose distribution is known, is a control variate of its later states.
        """
        reference = self.simulate(draws)
        found = self.alternate(chains, steps)
        labels = self.labels(self.prior(1)[0])
        z = {}
        for k, label in enumerate(labels):
            ordered = np.sort(reference[:, k])
            for moment in (1, 2):
                start, *later = (_centred_rank(ordered, found[:, :, k]) ** moment).T
                b = _centred_rank(ordered, reference[:, k]) ** moment
                means = np.mean(later, axis=0)
                squares = max(float(((start - start.mean()) ** 2).sum()), np.finfo(float).tiny)
                slope = float((start - start.mean()) @ means) / squares
                means = means - slope * start
                rest = (1.0 - slope) * b
                # The slope is estimated too.
                share = 1.0 / chains + (start.mean() - b.mean()) ** 2 / squares
                error = np.sqrt(means.var(ddof=2) * share + rest.var(ddof=1) / draws)
                difference = means.mean() - rest.mean()
                # Statistics that never move differ by rounding.
                z[f"{label} ^{moment}"] = float(difference / error) if error > 1e-12 else 0.0
        return z


@_vectorize_node.register(AsymmetricLaplaceRV)
def _over_many_points(op, node, rng, size, *parameters):
    """PyTensor leaves this out: the axis of the points comes first, and scalars are padded."""
    ndim = node.outputs[1].ndim
    padded = [
        pt.expand_dims(many, range(1, 1 + ndim - one.ndim)) if many.ndim > one.ndim else many
        for many, one in zip(parameters, node.inputs[2:], strict=True)
    ]
    return op.rv_op(*padded, rng=rng).owner


def _without_size(rv):
    """Return a draw whose size is that of its parameters, however many points these are of."""
    if not isinstance(rv.owner.op, RandomVariable):
        return rv
    rng, _, *parameters = rv.owner.inputs
    return rv.owner.op.make_node(rng, None, *parameters).out


def _centred_rank(ordered: np.ndarray, x: np.ndarray) -> np.ndarray:
    below = np.searchsorted(ordered, x, side="left") + np.searchsorted(ordered, x, side="right")
    return 0.5 * below / ordered.size - 0.5


@pytest.fixture
def joint_distribution() -> type[JointDistribution]:
    """The class of the joint distribution test."""
    return JointDistribution


@pytest.fixture
def wrong() -> SimpleNamespace:
    """Ways to make a step wrong, for negative controls: each takes the step and breaks it."""

    def scale_precision(step, factor):
        for site in step.recognition.model.sites:
            sites = site.likelihood.sites

            def scaled(*args, _sites=sites, **kwargs):
                h, lam = _sites(*args, **kwargs)
                return h, factor * lam

            site.likelihood.sites = scaled

    def tilt(step, factor):
        # ω given factor · η: the auxiliary variable of another posterior.
        for site in step.recognition.model.sites:
            draw = site.likelihood.draw_auxiliary

            def tilted(rng, y, eta, params, group, _draw=draw):
                return _draw(rng, y, factor * eta, params, group)

            site.likelihood.draw_auxiliary = tilted

    return SimpleNamespace(scale_precision=scale_precision, tilt=tilt)
