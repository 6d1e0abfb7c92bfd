"""A Gaussian approximation through inducing points; what it says of a process at other inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from pymc_augconj.engines.sparse.model import process_cov
from pymc_augconj.errors import AugmentationError
from pymc_augconj.linalg.cholesky import cholesky_with_jitter
from pymc_augconj.model import ProcessLaw
from pymc_augconj.recognition.prediction.latent_draws import LatentDraws

from .approximation import Approximation

__all__ = ["SparseApproximation"]

Array = NDArray[np.float64]

# Values of a process at its inputs that are drawn jointly; it takes a matrix of their square.
LARGEST_JOINT = 2000
_CHUNK = 10_000_000


@dataclass(repr=False)
class SparseApproximation(Approximation):
    """An approximation whose processes act through their values at inducing inputs.

    ``h`` and ``lam`` are sites of as many rotations of all latents, so that their number is that
    of the latents, whatever the number of observations. A process ``f`` of the model has values
    ``f_u`` at its inducing inputs; those at its own inputs follow from them, and are computed when
    asked for. Draws of these, and of deterministics, are made for up to 2000 inputs, since they
    take a matrix of the square of that; :func:`pymc_augconj.predict` serves any number.

    """

    # Covariances at the model's own inputs; need the model, so they are not saved.
    laws: dict[str, ProcessLaw] = field(default_factory=dict)
    # The processes' entries of PyMC's point, by name; and the model's other variables from draws.
    value_names: dict[str, str] = field(default_factory=dict)
    deterministics: LatentDraws | None = None

    @classmethod
    def _holds(cls, state: Mapping[str, Any]) -> bool:
        return bool(state["inducing"])

    def inducing_name(self, name: str) -> str:
        """Return the name of a process's values at its inducing inputs."""
        return f"{name}_u"

    @property
    def mean(self) -> xr.Dataset:
        """Posterior means of the latents, and of the processes at their own inputs."""
        found = super().mean
        for name in self.laws:
            values = np.concatenate([mean for mean, _ in self._at_inputs(name)])
            found[name] = self.labels.array(name, values)
        return found

    @property
    def std(self) -> xr.Dataset:
        """Posterior standard deviations of the latents, and of the processes."""
        found = super().std
        for name in self.laws:
            values = np.concatenate([var for _, var in self._at_inputs(name)])
            found[name] = self.labels.array(name, np.sqrt(np.maximum(values, 0.0)))
        return found

    @property
    def predictor_mean(self) -> Array:
        """Not kept: there are as many sites as latents, not one an observation."""
        raise AugmentationError(
            "an approximation through inducing points keeps no predictor of every observation; "
            "use pac.predict at the inputs in question"
        )

    predictor_std = predictor_mean

    def __getstate__(self) -> dict:
        # Graphs of the model go by cloudpickle, as in PyMC's own worker processes.
        parts = cloudpickle.dumps((self.laws, self.deterministics))
        return super().__getstate__() | {"laws": parts, "deterministics": None}

    def __setstate__(self, state: dict) -> None:
        laws, deterministics = cloudpickle.loads(state["laws"])
        super().__setstate__(state | {"laws": laws, "deterministics": deterministics})

    def _weights(self, name: str) -> tuple[Array, Array, Array]:
        """Return chol(K(Z, Z)), and mean and covariance of w with u = m + chol w."""
        index = self._index(self.inducing_name(name))
        chol = self.blocks[index].chol
        mean = self.posterior.innovation_means()[index]
        cov = self.posterior.innovation_cov(index, index)
        half = solve_triangular(chol, cov, lower=True)
        return (
            chol,
            solve_triangular(chol, mean, lower=True),
            solve_triangular(chol, half.T, lower=True),
        )

    def _at_inputs(self, name: str) -> Iterator[tuple[Array, Array]]:
        """Yield means and variances of a process at its own inputs, a chunk at a time."""
        law, Z = self.laws[name], self.inducing[name]
        chol, mean, cov = self._weights(name)
        n, size = len(law.inputs), max(_CHUNK // len(Z), 1)
        for start in range(0, n, size):
            X = np.asarray(law.inputs[start : start + size], dtype=float)
            xz, diagonal = law.cross(self.point, X, Z)
            half = solve_triangular(chol, xz.T, lower=True)
            explained = np.einsum("ij,ij->j", half, half - cov @ half)
            yield law.mean(self.point, X) + mean @ half, diagonal - explained

    def _drawn(self, rng: np.random.Generator, whitened: list[Array]) -> dict[str, Array]:
        found = super()._drawn(rng, whitened)
        if any(len(law.inputs) > LARGEST_JOINT for law in self.laws.values()):
            return found
        entries = {}
        for name, law in self.laws.items():
            value = self._draw_process(rng, name, found[self.inducing_name(name)])
            found[name] = value
            entries[self.value_names[name]] = value
            if self.value_names[name] != name:
                # The model's own variable is v with f = m + chol(K) v.
                X = np.asarray(law.inputs, dtype=float)
                cov = process_cov(law, self.point, X)
                chol, _ = cholesky_with_jitter(cov, name=f"the covariance of {name!r}")
                centred = (value - law.mean(self.point, X)).T
                entries[self.value_names[name]] = solve_triangular(chol, centred, lower=True).T
        if self.deterministics is not None:
            for block in (b.block for b in self.blocks):
                if block.value_name in found and block.value_name not in self._inducing_names:
                    entries[block.value_name] = found[block.value_name]
            found = {**self.deterministics(entries, rng), **entries, **found}
        return {name: found[name] for name in self.variables if name in found}

    @property
    def _inducing_names(self) -> set[str]:
        return {self.inducing_name(name) for name in self.inducing}

    def _draw_process(self, rng: np.random.Generator, name: str, values: Array) -> Array:
        """Return joint draws of a process at its own inputs, given those at the inducing ones."""
        law, Z = self.laws[name], self.inducing[name]
        X = np.asarray(law.inputs, dtype=float)
        chol = self.blocks[self._index(self.inducing_name(name))].chol
        weights = solve_triangular(chol, (values - law.mean(self.point, Z)).T, lower=True)
        half = solve_triangular(chol, law.cross(self.point, X, Z)[0].T, lower=True)
        left = process_cov(law, self.point, X) - half.T @ half
        chol_left, _ = cholesky_with_jitter(left, name=f"the covariance of {name!r} given {name}_u")
        noise = rng.standard_normal((len(values), len(X))) @ chol_left.T
        return law.mean(self.point, X) + weights.T @ half + noise
