"""A Gaussian approximation of the posterior, stored as its sites and θ.

Whatever engine made it, two numbers for every observation and a value of the hyperparameters say
all there is to say: means, variances, covariances, draws and predictions are derived from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import arviz as az
import cloudpickle
import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from pymc_augconj.engines.registry import ENGINES
from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.posterior import SitePosterior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.latents.space import condition

from .fingerprint import Fingerprint
from .layout import AffineMean, Labels, in_order
from .pointwise import PointwiseLogLikelihood
from .storage import load_state, save_state
from .summary import summarize

__all__ = ["Approximation"]

Array = NDArray[np.float64]

DEFAULT_DRAWS = 1000


@dataclass(repr=False)
class Approximation:
    """A Gaussian approximation of the posterior, from :func:`pymc_augconj.fit`.

    Attributes
    ----------
    method : str
        As given to :func:`pymc_augconj.fit`.
    h, lam : ndarray, shape (N,)
        Sites exp(h η − ½ λ η²), one for every predictor.
    theta : dict of str to ndarray
        Hyperparameters at their point estimates, on the scale the user wrote them on.
    point : dict
        The same on PyMC's unconstrained scale.
    log_evidence : float
        The method's value of log p(y | θ), in nats; :attr:`is_bound` says whether it is a lower
        bound.
    objective : float
        What was maximised: the evidence, plus the log prior density of θ for ``hyper="map"``.
    history : DataFrame
        A row for every iteration: ``theta`` counts the values of the hyperparameters that were
        tried, ``iteration`` from 0 at each of them; ``bound``, its terms ``expected`` (Σ E[log p]
        or its augmented bound) and ``divergence`` (KL(q‖p)), ``residual``, and how the step was
        made.
    converged : bool
        Whether ``tol`` was met, or, with ``"svi"``, no rise of the bound stands out of its noise.
    message : str
        How it ended.
    timings : dict
        Seconds: ``recognition``, ``optimisation``, ``total``.
    inducing : dict
        Inducing inputs by process; empty but for a
        :class:`~pymc_augconj.results.approximation.sparse.SparseApproximation`.
    diagnostics : dict
        What the engine says about its state besides. Of ``"ep"`` and ``"qp"``: ``residual``
        (relative moment mismatch), ``sweeps``, ``evaluations``, ``damping`` (the smallest that was
        used), ``n_negative`` (sites of negative precision), ``smallest_cavity_precision``,
        ``quadrature_error``, ``method`` (``"parallel"``, ``"sequential"`` or ``"double loop"``),
        ``converged``, ``message`` and ``evidence`` of the last run, that at θ; for ``"qp"`` of
        QP's own run after EP's. Where ``n_negative`` is not 0 several fixed points may exist. Of
        ``"svi"``: ``evidence_error``, 0 where the evidence is the bound on all the data, else the
        standard error of a mean over the last fifth of the minibatches: where these have not seen
        as many observations as there are.
    """

    method: str
    h: Array
    lam: Array
    theta: dict[str, np.ndarray]
    point: dict[str, np.ndarray]
    log_evidence: float
    objective: float
    history: pd.DataFrame
    converged: bool
    message: str
    timings: dict[str, float]
    prior: LatentPrior
    groups: RowGroups
    space: str
    means: Sequence[AffineMean]
    labels: Labels
    variables: tuple[str, ...]
    observed: dict[str, np.ndarray]
    random_seed: int | None = None
    inducing: dict[str, Array] = field(default_factory=dict)
    diagnostics: dict[str, float | str] = field(default_factory=dict)
    # Checksums of the model's data, by name: tells whether they are still those of the fit.
    data: dict[str, int] = field(default_factory=dict)
    fingerprint: Fingerprint = field(default_factory=Fingerprint)
    # The user's model, neither pickled nor saved.
    model: Any = None
    # Variables of the model from draws of its latents; needs the model, so it is not saved.
    evaluate: Callable[[Mapping[str, Array], np.random.Generator], dict] | None = None
    # Log likelihoods of single observations at draws of the predictors; not saved.
    pointwise: PointwiseLogLikelihood | None = None

    def __repr__(self) -> str:
        return summarize(self)

    @property
    def is_bound(self) -> bool:
        """Whether :attr:`log_evidence` is a lower bound of log p(y | θ)."""
        return ENGINES[self.method].bound

    # -- the Gaussian ---------------------------------------------------------------------------

    @property
    def posterior(self) -> SitePosterior:
        """The prior conditioned on the sites; factorised when first asked for."""
        cached = self.__dict__.get("_posterior")
        if cached is None:
            cached = condition(self.prior, self.groups, self.h, self.lam, space=self.space)
            self.__dict__["_posterior"] = cached
        return cached

    @property
    def names(self) -> tuple[str, ...]:
        """The Gaussian latents, as the user knows them."""
        return tuple(b.block.name for b in self.prior.blocks)

    @property
    def mean(self) -> xr.Dataset:
        """Posterior means of the latents, by name, with their dims; computed at each access."""
        innovations = dict(zip(self.names, self.posterior.innovation_means(), strict=True))
        found: dict[str, Array] = {}
        for i in self._order():
            name, affine = self.names[i], self.means[i]
            value = innovations[name] + affine.constant
            for other, matrix in affine.matrices.items():
                value = value + matrix @ found[other]
            found[name] = value
        return self._dataset([found[name] for name in self.names])

    @property
    def std(self) -> xr.Dataset:
        """Posterior standard deviations of the latents, as ``mean``."""
        variances = []
        for i, name in enumerate(self.names):
            if self.means[i].matrices:
                variances.append(np.diagonal(self.cov(name)))
            else:
                variances.append(self.posterior.innovation_var(i))
        return self._dataset([np.sqrt(np.maximum(var, 0.0)) for var in variances])

    def cov(self, name: str | None = None) -> Array:
        """Return the posterior covariance of one latent's entries, flattened.

        Parameters
        ----------
        name : str, optional
            By default the first one, which is the largest.

        Returns
        -------
        ndarray, shape (size, size)
        """
        index = self._index(self.names[0] if name is None else name)
        maps = self._in_innovations(index)
        total = np.zeros((self._size(index),) * 2)
        for first, left in maps.items():
            for second, right in maps.items():
                part = self.posterior.innovation_cov(first, second)
                part = part if left is None else left @ part
                total += part if right is None else part @ right.T
        return total

    @property
    def predictor_mean(self) -> Array:
        """Posterior means of the predictors η of every observation, shape (N,)."""
        return self.posterior.mean

    @property
    def predictor_std(self) -> Array:
        """Posterior standard deviations of the predictors, shape (N,)."""
        return np.sqrt(np.maximum(self.posterior.var, 0.0))

    # -- draws ----------------------------------------------------------------------------------

    def sample(
        self,
        draws: int = DEFAULT_DRAWS,
        *,
        random_seed: int | None = None,
        log_likelihood: bool = False,
    ) -> xr.DataTree:
        """Draw from the approximation, exactly.

        Parameters
        ----------
        draws : int
        random_seed : int or Generator, optional
            By default the seed of the fit; where that was none, every call draws anew.
        log_likelihood : bool
            Add the group ``log_likelihood`` and, in ``sample_stats``, ``log_p`` and ``log_q``: the
            log densities of the posterior given θ and of the approximation, both without the same
            constant, as ``az.loo_approximate_posterior`` takes them.

        Returns
        -------
        DataTree
            Group ``posterior`` of shape (1, draw, …) with the variables of the user's model,
            deterministics included; hyperparameters are at their point estimates. An approximation
            that was loaded from a file has no model to compute deterministics with, other than
            the latents themselves: use ``pm.compute_deterministics`` for these.
        """
        if not (isinstance(draws, Integral) and draws >= 1):
            raise AugmentationError(f"expected draws to be a positive integer, got {draws!r}")
        rng = np.random.default_rng(self.random_seed if random_seed is None else random_seed)
        start = time.perf_counter()
        whitened = self._draw_whitened(rng, draws)
        posterior = self._drawn(rng, whitened)
        labels = {name: dims for name, dims in self.labels.dims.items() if name in posterior}
        used = {dim for dims in labels.values() for dim in dims}
        groups = {"posterior": {name: value[None] for name, value in posterior.items()}}
        if log_likelihood:
            groups |= self._log_likelihood(whitened)
        if self.observed:
            groups["observed_data"] = self.observed
            observed_dims = {n: d for n, d in self.labels.dims.items() if n in self.observed}
            labels |= observed_dims
            used |= {dim for dims in observed_dims.values() for dim in dims}
        coords = {dim: c for dim, c in self.labels.coords.items() if dim in used}
        tree = az.from_dict(groups, coords=coords, dims=labels)
        tree["posterior"].attrs.update(
            {
                "inference_library": "pymc_augconj",
                "method": self.method,
                "log_evidence": self.log_evidence,
                "converged": int(self.converged),
                "sampling_time": self.timings["total"] + time.perf_counter() - start,
            }
        )
        return tree

    def to_datatree(self) -> xr.DataTree:
        """Return 1000 draws, those of :meth:`sample`, for :func:`pymc_augconj.compare` and ArviZ.

        Log likelihoods are among them where the approximation has these.

        Returns
        -------
        DataTree
        """
        return self.sample(log_likelihood=self.pointwise is not None)

    def _draw_whitened(self, rng: np.random.Generator, draws: int) -> list[Array]:
        """Return draws of every block's v, u = S v, each of shape (draws, size)."""
        prior = self.prior.factorized()
        posterior = self.posterior
        if prior is not self.prior:
            posterior = condition(prior, self.groups, self.h, self.lam, space=self.space)
        return posterior.draw(rng, draws)

    def _log_likelihood(self, whitened: list[Array]) -> dict[str, dict[str, Array]]:
        """Return the groups that leave-one-out cross-validation needs."""
        if self.pointwise is None:
            raise AugmentationError(
                "log_likelihood: expected a dense fit of this session, whose model is known; got "
                "one through inducing points, or one that was loaded from a file"
            )
        prior = self.prior.factorized()
        eta = np.tile(prior.offset, (len(whitened[0]), 1))
        for A, block, v in zip(prior.full_maps, prior.blocks, whitened, strict=True):
            eta += A.apply_rows(block.scale(v))
        log_likelihood = self.pointwise(eta)
        log_p = sum(value.reshape(len(eta), -1).sum(axis=1) for value in log_likelihood.values())
        # q is the prior times the sites.
        log_q = eta @ self.h - 0.5 * eta**2 @ self.lam
        return {
            "log_likelihood": {name: value[None] for name, value in log_likelihood.items()},
            "sample_stats": {"log_p": log_p[None], "log_q": log_q[None]},
        }

    def _drawn(self, rng: np.random.Generator, whitened: list[Array]) -> dict[str, Array]:
        prior, draws = self.prior.factorized(), len(whitened[0])
        latents: dict[str, Array] = {}
        entries: dict[str, Array] = {}
        for i in self._order():
            block, affine = prior.blocks[i].block, self.means[i]
            value = prior.blocks[i].scale(whitened[i]) + affine.constant
            for other, matrix in affine.matrices.items():
                value = value + latents[other] @ matrix.T
            latents[block.name] = value
            entry = whitened[i] if block.whitened else value
            entries[block.value_name] = entry.reshape(draws, *block.shape)
        known = {
            name: np.broadcast_to(value, (draws, *np.shape(value)))
            for name, value in self.theta.items()
        }
        known |= {
            b.block.name: latents[b.block.name].reshape(draws, *b.block.shape) for b in prior.blocks
        }
        known |= {b.block.value_name: entries[b.block.value_name] for b in prior.blocks}
        if self.evaluate is not None:
            known = {**self.evaluate(entries, rng), **known}
        return {name: np.asarray(known[name]) for name in self.variables if name in known}

    # -- keeping --------------------------------------------------------------------------------

    def __getstate__(self) -> dict:
        state = dict(self.__dict__)
        state.pop("_posterior", None)
        state["model"] = None
        # Graphs of the model go by cloudpickle, as in PyMC's own worker processes.
        for name in ("evaluate", "pointwise"):
            state[name] = cloudpickle.dumps(state[name])
        return state

    def __setstate__(self, state: dict) -> None:
        for name in ("evaluate", "pointwise"):
            state[name] = cloudpickle.loads(state[name])
        self.__dict__.update(state)

    def save(self, path: str | Path) -> None:
        """Write the approximation to a NumPy archive; nothing in it is executable.

        Parameters
        ----------
        path : str or Path
            ``.npz`` is added where it does not end so.
        """
        save_state({name: getattr(self, name) for name in self.__dataclass_fields__}, path)

    @classmethod
    def load(cls, path: str | Path) -> Approximation:
        """Read what :meth:`save` has written.

        It serves :func:`pymc_augconj.predict` with the model it was fitted to, and draws the
        latents without it.

        Parameters
        ----------
        path : str or Path
            As given to :meth:`save`.

        Returns
        -------
        Approximation

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        AugmentationError
            If the file is no saved approximation, or not what was saved.
        """
        state = load_state(path)
        # Every kind of approximation says which states it holds.
        kinds = [kind for kind in Approximation.__subclasses__() if kind._holds(state)]
        return (kinds or [Approximation])[0](**state)

    @classmethod
    def _holds(cls, state: Mapping[str, Any]) -> bool:
        """Return whether ``state`` is one of this class rather than of its base."""
        return True

    # -- helpers --------------------------------------------------------------------------------

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise AugmentationError(
                f"expected the name of a Gaussian latent, got {name!r}; use one of "
                f"{list(self.names)}"
            )
        return self.names.index(name)

    def _size(self, index: int) -> int:
        return self.prior.blocks[index].block.total_size

    def _order(self) -> list[int]:
        return in_order(self.names, self.means)

    def _in_innovations(self, index: int) -> dict[int, Array | None]:
        """Return what multiplies each innovation in a latent's value; None is the identity."""
        maps: dict[int, Array | None] = {index: None}
        for other, matrix in self.means[index].matrices.items():
            for i, inner in self._in_innovations(self._index(other)).items():
                found = matrix if inner is None else matrix @ inner
                known = maps.get(i)
                maps[i] = found if known is None else known + found
        return maps

    def in_innovations(self, name: str) -> tuple[Array, dict[int, Array]]:
        """Return a latent's value besides its innovation as constant + Σ matrix @ innovation."""
        index = self._index(name)
        constants: dict[str, Array] = {}
        for i in self._order():
            affine = self.means[i]
            constants[self.names[i]] = affine.constant + sum(
                matrix @ constants[other] for other, matrix in affine.matrices.items()
            )
        maps = self._in_innovations(index)
        del maps[index]
        return constants[name], {
            i: np.eye(self._size(i)) if matrix is None else matrix for i, matrix in maps.items()
        }

    def _dataset(self, values: Sequence[Array]) -> xr.Dataset:
        return xr.Dataset(
            {
                name: self.labels.array(name, value.reshape(b.block.shape))
                for name, b, value in zip(self.names, self.prior.blocks, values, strict=True)
            }
        )

    @property
    def blocks(self) -> tuple[BlockPrior, ...]:
        """The latents' priors at θ."""
        return self.prior.blocks
