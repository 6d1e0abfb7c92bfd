"""Model of a fit at its θ: the latents' prior, densities, and a fingerprint."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from arviz_base import from_dict

from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.base import BlockPrior
from pymc_augconj.latents.choice import condition
from pymc_augconj.latents.joint import LatentPrior
from pymc_augconj.latents.posterior import Posterior
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.model import LatentGaussianModel
from pymc_augconj.point import Point
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.prediction.latent_draws import AffineMean
from pymc_augconj.recognition.processes.other_graphs import checksums, sums_of_arrays
from pymc_augconj.typing import Array


@dataclass(frozen=True)
class Labels:
    """Dims and coords of the user's model."""

    dims: dict[str, list[str]] = field(default_factory=dict)
    coords: dict[str, Array] = field(default_factory=dict)

    @classmethod
    def of_model(cls, model: Any) -> Labels:
        """Return the labels of a PyMC model."""
        named = {
            name: [f"{name}_dim_{i}" if d is None else str(d) for i, d in enumerate(dims)]
            for name, dims in model.named_vars_to_dims.items()
        }
        # One label per entry, also where labels are tuples.
        given = {str(d): c for d, c in model.coords.items() if c is not None}
        labels = {d: pd.Index(c, tupleize_cols=False).to_numpy() for d, c in given.items()}
        return cls(named, labels)

    def of(self, name: str, ndim: int) -> list[str]:
        """Return the dims of a variable, with ArviZ's defaults where the model names none."""
        found = self.dims.get(name)
        return list(found) if found is not None else [f"{name}_dim_{i}" for i in range(ndim)]

    def array(self, name: str, values: Array) -> xr.DataArray:
        """Return ``values`` as a labelled array."""
        dims = self.of(name, np.ndim(values))
        pairs = zip(dims, np.shape(values), strict=True)
        coords = {dim: self.coords.get(dim, np.arange(size)) for dim, size in pairs}
        return xr.DataArray(values, dims=dims, coords=coords, name=name)

    def dataset(self, values: Mapping[str, Array]) -> xr.Dataset:
        """Return labelled arrays of variables."""
        return xr.Dataset({name: self.array(name, value) for name, value in values.items()})

    def tree(
        self,
        groups: Mapping[str, Mapping[str, Array]],
        observed: Mapping[str, Array],
        attrs: Mapping[str, Any],
    ) -> xr.DataTree:
        """Return groups of draws, of shape (chain, draw, …), and the observations."""
        shapes = {name: value.shape[2:] for name, value in groups["posterior"].items()}
        shapes |= {name: np.shape(value) for name, value in observed.items()}
        dims = fitting_dims(self.dims, self.coords, shapes)
        used = {dim for own in dims.values() for dim in own}
        coords = {dim: c for dim, c in self.coords.items() if dim in used}
        every = {**groups, "observed_data": observed} if observed else dict(groups)
        tree = from_dict(every, coords=coords, dims=dims)
        tree["posterior"].attrs.update({"inference_library": "pymc_augconj", **attrs})
        return tree


def fitting_dims(
    dims: Mapping[str, Sequence[str | None]],
    coords: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int | None]],
) -> dict[str, list[str | None]]:
    """Return dims with new names, and a warning, for axes of another length than a coordinate's."""
    lengths = {dim: len(labels) for dim, labels in coords.items() if labels is not None}
    fitting: dict[str, list[str | None]] = {}
    for name in filter(shapes.__contains__, dims):
        fitting[name] = list(dims[name])
        for axis, (dim, length) in enumerate(zip(dims[name], shapes[name], strict=False)):
            if dim is None or length is None:
                continue
            # A dim without labels has the first length that occurs.
            if length != lengths.setdefault(dim, length):
                fitting[name][axis] = own = f"{name}_dim_{axis}"
                warnings.warn(
                    f"variable {name!r}: expected {lengths[dim]} entries along its dim {dim!r}, "
                    f"as its coordinate has, found the shape {tuple(shapes[name])}; it is kept "
                    f"without the coordinate, along {own!r}",
                    UserWarning,
                    stacklevel=4,
                )
    return fitting


def require_data_of_fit(model: Any, sums: Mapping[str, Any]) -> None:
    """Raise AugmentationError if the model's data, of the given checksums, have changed."""
    now = checksums(model.data_vars)
    if changed := [name for name, total in sums.items() if now.get(name) != total]:
        raise AugmentationError(
            f"data {changed}: expected those of the fit, which its densities and means use, "
            "found changed data; restore them, or draw from the fit before the change: "
            "draws = fit.sample()"
        )


def inducing_name(name: str) -> str:
    """Return the name of a process's values at its inducing inputs."""
    return f"{name}_u"


def inducing_inputs_name(name: str) -> str:
    """Return the name of the inducing inputs of a process, in the data of draws."""
    return f"{inducing_name(name)}_inputs"


class LazyMeans(Sequence[AffineMean]):
    """Prior means, computed at the first access, which takes longer than a small fit."""

    def __init__(self, read: Callable[[], Sequence[AffineMean]]) -> None:
        self._read = read

    @cached_property
    def _known(self) -> tuple[AffineMean, ...]:
        return tuple(self._read())

    def __getitem__(self, index: Any) -> Any:
        return self._known[index]

    def __len__(self) -> int:
        return len(self._known)

    def __reduce__(self) -> tuple[type, tuple[tuple[AffineMean, ...]]]:
        return tuple, (self._known,)


@dataclass(frozen=True)
class FittedLatents:
    """The latents' prior at the θ of a fit."""

    prior: LatentPrior
    groups: RowGroups
    # The cheapest solver, see :mod:`pymc_augconj.latents.choice`.
    space: str
    # Prior means, as functions of other latents.
    means: Sequence[AffineMean]

    @property
    def blocks(self) -> tuple[BlockPrior, ...]:
        """The prior of each latent's innovation."""
        return self.prior.blocks

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the latents in the user's model."""
        return tuple(b.block.name for b in self.blocks)

    def index(self, name: str) -> int:
        """Return the index of a latent; raise AugmentationError for an unknown name."""
        if name not in self.names:
            raise AugmentationError(
                f"expected the name of a Gaussian latent, got {name!r}; use one of "
                f"{list(self.names)}"
            )
        return self.names.index(name)

    def size(self, index: int) -> int:
        """Return the number of entries of a latent."""
        return self.blocks[index].block.total_size

    def condition(self, h: Array, lam: Array, *, factorized: bool = False) -> Posterior:
        """Return the posterior given sites; ``factorized`` adds the jitter that draws need."""
        prior = self.prior.factorized() if factorized else self.prior
        return condition(prior, self.groups, h, lam, solver=self.space)

    def values(self, innovations: Sequence[Array]) -> list[Array]:
        """Return the latents for innovations of shape (…, size)."""
        values: dict[str, Array] = {}
        read: dict[str, Array] = {}
        parts = zip(self.blocks, innovations, self.means, strict=True)
        blocks = dict(zip(self.names, parts, strict=True))
        while blocks:
            # A mean needs the latents on which it depends; of a whitened one, the innovation.
            name = next(n for n, (_, _, mean) in blocks.items() if set(mean.matrices) <= set(read))
            prior, innovation, mean = blocks.pop(name)
            value = innovation + mean.constant
            for other, matrix in mean.matrices.items():
                value = value + read[other] @ matrix.T
            values[name] = value
            read[name] = innovation if prior.block.whitened else value
        return [values[name] for name in self.names]

    def coefficients(self, index: int) -> dict[int, Array | None]:
        """Return the coefficient of each innovation in a latent's value; None is the identity."""
        maps: dict[int, Array | None] = {index: None}
        for other, matrix in self.means[index].matrices.items():
            for i, inner in self.coefficients(self.index(other)).items():
                found = matrix if inner is None else matrix @ inner
                known = maps.get(i)
                maps[i] = found if known is None else known + found
        return maps

    def variances(self, posterior: Posterior) -> list[Array]:
        """Return the variances of every latent's entries."""
        found = []
        for i, mean in enumerate(self.means):
            own = np.diagonal(self.cov(posterior, i)) if mean.matrices else None
            found.append(np.maximum(posterior.innovation_var(i) if own is None else own, 0.0))
        return found

    def cov(self, posterior: Posterior, index: int) -> Array:
        """Return the covariance of a latent's entries."""
        maps = self.coefficients(index)
        total = np.zeros((self.size(index),) * 2)
        for first, left in maps.items():
            for second, right in maps.items():
                part = posterior.innovation_cov(first, second)
                part = part if left is None else left @ part
                total += part if right is None else part @ right.T
        return total

    def mean_in_innovations(self, name: str) -> tuple[Array, dict[int, Array]]:
        """Return a latent's prior mean as constant + Σ matrix @ innovation of another latent."""
        index = self.index(name)
        zeros = [np.zeros(self.size(i)) for i in range(len(self.blocks))]
        maps = self.coefficients(index)
        del maps[index]
        return self.values(zeros)[index], {
            i: np.eye(self.size(i)) if matrix is None else matrix for i, matrix in maps.items()
        }


@dataclass(frozen=True)
class PointwiseLogLikelihood:
    """log p(yᵢ | η) of every observation at the θ of a fit."""

    lgm: LatentGaussianModel
    point: Point
    # By observed variable; potentials are not among them.
    observed: Mapping[str, Array]

    def __call__(self, eta: Array) -> dict[str, Array]:
        """Return log densities, (S, …), at draws of the stacked predictors, (S, N), by variable."""
        densities = {}
        for site in self.lgm.sites:
            rows = site.log_densities(self.point, eta)
            shape: tuple[int, ...] = (site.size,)
            if (known := self.observed.get(site.name)) is not None:
                # A vector has one log density. Vectors with missing entries are flat.
                pair = known.shape, known.shape[:-1]
                shape = next((own for own in pair if np.prod(own) == site.size), shape)
            if site.is_part_of_vector:
                rows, shape = rows.sum(axis=1), ()
            densities[site.name] = np.reshape(rows, (len(eta), *shape))
        return densities


@dataclass(frozen=True)
class Fingerprint:
    """Numbers that identify the model of a fit."""

    # Log densities of observed variables at fixed innovations and the θ of the fit: they depend on
    # the likelihood, its parameters, offsets and designs.
    densities: dict[str, float]
    # Weighted sums over the arrays that the covariance of a latent is computed from, since many
    # kernels have the same covariance at different inputs.
    inputs: dict[str, list[float]]

    @classmethod
    def of(
        cls, lgm: LatentGaussianModel, point: Point, observed: Mapping[str, Array]
    ) -> Fingerprint:
        """Return the fingerprint of a model at θ with these observations."""
        read = [b for b in lgm.blocks if b.has_covariance]
        scales = {b.name: b.scale for b in read if isinstance(b.scale, PointFunction)}
        inputs = {name: sums_of_arrays(scale.graph) for name, scale in scales.items()}
        return cls(densities(lgm, point, observed), inputs)


def densities(
    lgm: LatentGaussianModel, point: Point, observed: Mapping[str, Array]
) -> dict[str, float]:
    """Return the log density of each variable of ``observed``, see :class:`Fingerprint`."""
    eta = np.array(lgm.offset(point), dtype=float)
    for block, read in zip(lgm.blocks, lgm.maps, strict=True):
        eta += read(point).apply(np.linspace(-1.0, 1.0, block.total_size))
    with np.errstate(all="ignore"):
        found = {}
        for site in lgm.sites:
            if np.size(observed.get(site.name, ())) == site.size:
                y, params = np.ravel(observed[site.name]).astype(float), site.params(point)
                log_density = site.likelihood.log_density(y, site.select(eta), params)
                found[site.name] = float(log_density.sum())
        return found
