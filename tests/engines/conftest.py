"""The joint distribution test: a Gibbs step alternated with new observations leaves the prior.

Geweke, J. (2004). Getting it right: joint distribution tests of posterior simulators. Journal of
the American Statistical Association 99.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from pytensor.graph.replace import graph_replace

import pymc_augconj as pac
from pymc_augconj.python_mode import python_mode

LARGEST_SHOWN = 6  # entries of each variable that enter the statistics


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
        self._unconstrained = [
            rv if t is None else t.forward(rv, *rv.owner.inputs) for rv, t in transforms.items()
        ]
        constrained = {
            rv: values[rv] if t is None else t.backward(values[rv], *rv.owner.inputs)
            for rv, t in transforms.items()
        }
        compiled = {"mode": python_mode(), "on_unused_input": "ignore"}
        self._forward = pm.pytensorf.compile(
            list(values.values()),
            graph_replace(model.observed_RVs, constrained, strict=False),
            random_seed=seed + 1,
            **compiled,
        )
        self._log_likelihood = pm.pytensorf.compile(
            list(values.values()), model.logp(vars=model.observed_RVs), **compiled
        )

    def prior(self, draws: int) -> list[dict[str, np.ndarray]]:
        """Draw points from the prior, in the order of PyMC's points."""
        # Of a single draw pm.draw returns no axis of draws.
        columns = pm.draw(
            self._unconstrained, draws=max(draws, 2), random_seed=self.rng, mode=python_mode()
        )
        by_name = dict(zip(self.names, columns, strict=True))
        if self.reweigh is not None:
            self.reweigh(by_name)
        order = [value.name for value in self.model.value_vars]
        return [{name: np.asarray(by_name[name][i]) for name in order} for i in range(draws)]

    def observe(self, point) -> list[np.ndarray]:
        """Draw observations given ``point`` and put them into the model."""
        observed = self._forward(*[point[name] for name in self.names])
        for rv, y in zip(self.model.observed_RVs, observed, strict=True):
            data = self.model[f"{rv.name} data"]
            data.set_value(np.asarray(y, dtype=data.dtype))
        return observed

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

    def statistics(self, point, observed) -> np.ndarray:
        """Return functions of the free variables and the observations."""
        shown = np.concatenate([np.ravel(point[n])[:LARGEST_SHOWN] for n in self.names])
        mean = np.mean([np.mean(y) for y in observed])
        log_likelihood = self._log_likelihood(*[point[name] for name in self.names])
        return np.concatenate(
            [[log_likelihood], shown, mean * shown, shown[:-1] * shown[1:]], dtype=float
        )

    def simulate(self, draws: int) -> np.ndarray:
        """Return the statistics of independent draws of everything, shape (draws, statistics)."""
        return np.array([self.statistics(p, self.observe(p)) for p in self.prior(draws)])

    def alternate(self, chains: int, steps: int) -> np.ndarray:
        """Return the statistics along short chains, shape (chains, steps, statistics).

        Every chain starts with a draw from the prior, hence in the joint distribution, and stays
        there if a step leaves the posterior invariant.
        """
        learned = self.tuned()
        rows = []
        for point in self.prior(chains):
            rows.append([])
            for _ in range(steps):
                observed = self.observe(point)
                # A chain reads the observations when it starts.
                self.step.setup_chain(self.rng, 0, 1)
                self.step.learned = learned
                point, _ = self.step.step(point)
                rows[-1].append(self.statistics(point, observed))
        return np.array(rows)

    def tuned(self, tune: int = 60) -> dict:
        """Return what the updates learn on one data set; fixed from then on."""
        (point,) = self.prior(1)
        self.observe(point)
        self.step.setup_chain(self.rng, tune, 0)
        for _ in range(tune):
            point, _ = self.step.step(point)
        return self.step.learned

    def z_scores(self, chains: int, steps: int = 8, draws: int = 2000) -> dict[str, float]:
        """Compare first and second moments of the ranks of the statistics within the prior's.

        Ranks, because they have moments whatever the prior's tails. The chains are independent,
        so the spread of their means is the standard error: no effective sample size is estimated.
        """
        reference = self.simulate(draws)
        found = self.alternate(chains, steps)
        labels = self.labels(self.prior(1)[0])
        z = {}
        for k, label in enumerate(labels):
            ordered = np.sort(reference[:, k])
            for moment in (1, 2):
                a = _centred_rank(ordered, found[:, :, k]) ** moment
                b = _centred_rank(ordered, reference[:, k]) ** moment
                means = a.mean(axis=1)
                error = np.sqrt(means.var(ddof=1) / chains + b.var(ddof=1) / draws)
                difference = means.mean() - b.mean()
                z[f"{label} ^{moment}"] = float(difference / error) if error > 0.0 else 0.0
        return z


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

            def tilted(rng, y, eta, params, _draw=draw, **kwargs):
                return _draw(rng, y, factor * eta, params, **kwargs)

            site.likelihood.draw_auxiliary = tilted

    return SimpleNamespace(scale_precision=scale_precision, tilt=tilt)
