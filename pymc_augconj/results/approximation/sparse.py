"""A Gaussian approximation through inducing points; approximations of any engine's outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from arviz_base import from_dict
from scipy.linalg import solve_triangular

from pymc_augconj.engines.base import FitOutcome, Iteration, ProcessPrior, SparseProblem
from pymc_augconj.engines.nested.importance import NestedPosterior
from pymc_augconj.engines.sparse.inducing import process_cov
from pymc_augconj.engines.sparse.rows import few_rows
from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.dense import DensePrior
from pymc_augconj.latents.joint import LatentPrior, block_prior
from pymc_augconj.likelihoods.base import are_vectors
from pymc_augconj.linalg.dense import cholesky_with_jitter
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.point import FixedValue, Point
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.prediction.evaluate import constrained
from pymc_augconj.recognition.prediction.latent_draws import (
    AffineMean,
    LatentDraws,
    LatentMeans,
)
from pymc_augconj.recognition.processes.other_graphs import checksums
from pymc_augconj.typing import Array, Generator

from .approximation import Approximation
from .fitted_model import (
    Fingerprint,
    FittedLatents,
    Labels,
    LazyMeans,
    PointwiseLogLikelihood,
    inducing_inputs_name,
    inducing_name,
)
from .nested import NestedApproximation
from .summary import DEFAULT_DRAWS

# Largest number n of inputs for joint draws of a process, which take an n × n matrix.
LARGEST_JOINT = 2000


@dataclass(repr=False, kw_only=True)
class SparseApproximation(Approximation):
    """An approximation whose processes act through their values at inducing inputs.

    ``h`` and ``lam`` have one site for each rotated latent. A process ``f`` has values ``f_u`` at
    its inducing inputs. Draws of values at its own inputs, and of deterministics, need a square
    matrix: they exist for up to 2000 inputs. :func:`pymc_augconj.predict` has no such limit.
    """

    # The processes, by name; need the model, so they are not saved.
    _processes: dict[str, ProcessPrior] = field(default_factory=dict)
    # Names of the processes' entries in PyMC's point.
    _value_names: dict[str, str] = field(default_factory=dict)
    _deterministics: LatentDraws | None = None

    @property
    def mean(self) -> xr.Dataset:
        """Posterior means of the latents, and of the processes at their own inputs."""
        return self._with_processes(super().mean, lambda mean, var: mean)

    @property
    def std(self) -> xr.Dataset:
        """Posterior standard deviations of the latents, and of the processes."""
        return self._with_processes(super().std, lambda mean, var: np.sqrt(np.maximum(var, 0.0)))

    def _with_processes(self, found: xr.Dataset, of: Callable[[Array, Array], Array]) -> xr.Dataset:
        for name in self._processes:
            values = np.concatenate([of(*moments) for moments in self._at_inputs(name)], axis=-1)
            found[name] = self._labels.array(name, values)
        return found

    @property
    def predictor_mean(self) -> Array:
        """Not available: sites belong to latents, not to observations."""
        raise AugmentationError(
            "predictor_mean, predictor_std: expected a dense fit, got an approximation through "
            "inducing points, which has no moments of every predictor; use pac.predict"
        )

    predictor_std = predictor_mean

    def natural_weights(self) -> tuple[Array, Array]:
        """Return B, (D, D), and b, (D,), of q(w) ∝ N(w | 0, I) exp(bᵀw − ½ wᵀBw).

        The weights are the whitened values at the inducing inputs, and all other whitened latents.
        """
        prior = self._latents.prior.factorized()
        inner = [self._latents.index(inducing_name(name)) for name in self.inducing]
        order = [*inner, *(i for i in range(len(prior.blocks)) if i not in inner)]
        V = np.hstack([prior.blocks[i].whitened_design(prior.maps[i]) for i in order]).T
        return np.asfortranarray((V * self.lam) @ V.T), V @ self.h

    def _chol(self, name: str) -> Array:
        """Return chol(K(Z, Z)) of a process."""
        block = self._latents.blocks[self._latents.index(inducing_name(name))]
        assert isinstance(block, DensePrior)
        return block.chol

    def _weights(self, name: str) -> tuple[Array, Array, Array]:
        """Return chol(K(Z, Z)), and mean and covariance of w, u = m + chol w, of every output."""
        index, chol = self._latents.index(inducing_name(name)), self._chol(name)
        means = self._posterior.innovation_means()[index].reshape(-1, len(chol))
        whole = self._posterior.innovation_cov(index, index)
        covs = []
        for start in range(0, len(whole), len(chol)):
            own = slice(start, start + len(chol))
            half = solve_triangular(chol, whole[own, own], lower=True)
            covs.append(solve_triangular(chol, half.T, lower=True))
        return chol, solve_triangular(chol, means.T, lower=True).T, np.array(covs)

    def _at_inputs(self, name: str) -> Iterator[tuple[Array, Array]]:
        """Yield means and variances of a process at its own inputs, a chunk at a time."""
        process, Z = self._processes[name], self.inducing[name]
        chol, means, covs = self._weights(name)
        for rows in few_rows(len(process.inputs), len(Z)):
            X = np.asarray(process.inputs[rows], dtype=float)
            xz, diagonal = process.cross(self.point, X, Z)
            half = solve_triangular(chol, xz.T, lower=True)
            explained = [np.einsum("ij,ij->j", half, half - cov @ half) for cov in covs]
            found = process.mean(self.point, X) + means @ half, diagonal - np.array(explained)
            yield found if self._copies(name) else (found[0][0], found[1][0])

    def _copies(self, name: str) -> tuple[int, ...]:
        """Return the axes of a process before the axis of its inputs."""
        block = self._latents.blocks[self._latents.index(inducing_name(name))].block
        return block.shape[:-1]

    def draws_at_inducing(self, random_seed: Any = None) -> xr.DataTree:
        """Return 1000 draws of latents, processes at inducing inputs, and hyperparameters."""
        rng = np.random.default_rng(self.random_seed if random_seed is None else random_seed)
        found = super()._drawn(rng, self._drawn_from.draw(rng, DEFAULT_DRAWS))
        inputs = {inducing_inputs_name(name): np.asarray(Z) for name, Z in self.inducing.items()}
        posterior = {name: value[None] for name, value in found.items()}
        return from_dict({"posterior": posterior, "constant_data": inputs})

    def _drawn(self, rng: Generator, whitened: list[Array]) -> dict[str, Array]:
        drawn = super()._drawn(rng, whitened)
        if any(len(process.inputs) > LARGEST_JOINT for process in self._processes.values()):
            return drawn
        entries = {}
        for name, process in self._processes.items():
            value = self._draw_process(rng, name, drawn[inducing_name(name)])
            drawn[name] = value
            entries[self._value_names[name]] = value
            if self._value_names[name] != name:
                # The model's own variable is v with f = m + chol(K) v.
                X = np.asarray(process.inputs, dtype=float)
                cov = process_cov(process, self.point, X)
                chol, _ = cholesky_with_jitter(cov, name=f"the covariance of {name!r}")
                centred = (value - process.mean(self.point, X)).reshape(-1, len(X)).T
                innovation = solve_triangular(chol, centred, lower=True).T
                entries[self._value_names[name]] = innovation.reshape(value.shape)
        if self._deterministics is not None:
            inducing = {inducing_name(name) for name in self.inducing}
            for block in (b.block for b in self._latents.blocks):
                if block.value_name in drawn and block.value_name not in inducing:
                    entries[block.value_name] = drawn[block.value_name]
            drawn = {**self._deterministics(entries, rng), **entries, **drawn}
        return {name: drawn[name] for name in self._variables if name in drawn}

    def _draw_process(self, rng: Generator, name: str, values: Array) -> Array:
        """Return joint draws of a process at its own inputs, given draws at inducing inputs."""
        process, Z = self._processes[name], self.inducing[name]
        X = np.asarray(process.inputs, dtype=float)
        chol, copies = self._chol(name), values.shape[1:-1]
        values = values.reshape(-1, len(Z))
        weights = solve_triangular(chol, (values - process.mean(self.point, Z)).T, lower=True)
        half = solve_triangular(chol, process.cross(self.point, X, Z)[0].T, lower=True)
        left = process_cov(process, self.point, X) - half.T @ half
        chol_left, _ = cholesky_with_jitter(
            left, name=f"the covariance of {name!r} given {inducing_name(name)}"
        )
        noise = rng.standard_normal((len(values), len(X))) @ chol_left.T
        found = np.asarray(process.mean(self.point, X) + weights.T @ half + noise)
        return found.reshape(-1, *copies, len(X))


def approximation_of(
    method: str,
    model: Any,
    lgm: LatentGaussianModel,
    outcome: FitOutcome,
    random_seed: int | None,
    sparse: SparseProblem | None,
) -> Approximation | NestedApproximation:
    """Return the result of a fit of ``model``, parsed as ``lgm``; ``sparse`` is None if dense."""
    point = outcome.point
    processes = {process.name: process for process in sparse.priors} if sparse else {}
    observed = {
        site.name: _observed(model, site, point)
        for site in lgm.sites
        if site.has_observations and site.name in model.named_vars
    }
    facts: dict[str, Any] = {
        "method": method,
        "theta": constrained(model, [h.name for h in lgm.hyperparameters], point),
        "point": {h.value_name: np.array(point[h.value_name]) for h in lgm.hyperparameters},
        "log_evidence": outcome.evidence,
        "objective": outcome.objective,
        "history": _history(outcome),
        "converged": outcome.converged,
        "message": outcome.message,
        "timings": {},
        "diagnostics": outcome.diagnostics,
        "observed": observed,
        "random_seed": random_seed,
        "_labels": Labels.of_model(model),
        "_data": checksums(model.data_vars),
        "_variables": tuple(rv.name for rv in model.unobserved_RVs),
    }
    nested = outcome.nested
    if isinstance(nested, NestedPosterior) and nested.members:
        means_at = LatentMeans(model, lgm, point)
        return NestedApproximation(**facts, _posterior=nested, _means=means_at)
    means = LazyMeans(partial(_means, model, lgm, outcome, processes))
    # The model's data may change before the means are read.
    now = tuple(means) if model.data_vars else means
    latents = FittedLatents(_without_graphs(outcome.prior), outcome.groups, outcome.space, now)
    fingerprint = Fingerprint.of(lgm, point, observed)
    facts |= {"h": outcome.h, "lam": outcome.lam, "_latents": latents, "_fingerprint": fingerprint}
    facts["_variables"] += tuple(inducing_name(name) for name in processes)
    evaluate = LatentDraws(model, lgm, point)
    if processes:
        facts |= {
            "inducing": outcome.inducing,
            "_processes": processes,
            "_deterministics": evaluate,
        }
        names = {b.name: b.value_name for b in lgm.blocks if b.name in processes}
        return SparseApproximation(**facts, _value_names=names)
    pointwise = PointwiseLogLikelihood(lgm, point, observed)
    return Approximation(**facts, _evaluate=evaluate, _pointwise=pointwise)


def _means(
    model: Any, lgm: LatentGaussianModel, outcome: FitOutcome, processes: Mapping[str, ProcessPrior]
) -> list[AffineMean]:
    """Return the prior mean of each latent; of a process, at its inducing inputs."""
    found = LatentMeans(model, lgm, outcome.point, processes).affine(outcome.point)
    for i, block in enumerate(lgm.blocks):
        if block.name in processes:
            Z = outcome.inducing[block.name]
            mean = processes[block.name].mean(outcome.point, Z)
            found[i] = AffineMean(np.tile(mean, block.copies))
    return found


def _history(outcome: FitOutcome) -> pd.DataFrame:
    done = outcome.iterations
    # No rows if the sites were at their targets from the start.
    columns = {one.name: [getattr(each, one.name) for each in done] for one in fields(Iteration)}
    # The count restarts at every value of θ.
    starts = np.diff(columns["iteration"], prepend=np.inf) <= 0
    return pd.DataFrame({"theta": np.cumsum(starts) - 1, **columns})


def _observed(model: Any, site: Site, point: Point) -> np.ndarray:
    value = model.rvs_to_values[model[site.name]]
    if site.likelihood.unpredictable is not None or are_vectors(site.params(point)):
        # The site's y may be numbers that stand for a vector.
        return np.array(PointFunction(value, {})({}))
    shape = value.type.shape
    y = np.array(site.y(point))
    return y if None in shape else y.reshape(shape)


def _without_graphs(prior: LatentPrior) -> LatentPrior:
    """Return the prior with all functions of the model's graph removed."""
    blocks = []
    for b in prior.blocks:
        own = replace(b.block, scale=FixedValue(b.array), scale_pullback=None, mean=None)
        blocks.append(block_prior(own, b.array, b.jitter))
    return LatentPrior(prior.offset, tuple(blocks), prior.full_maps, prior.maps)
