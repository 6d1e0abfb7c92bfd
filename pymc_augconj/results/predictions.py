"""Predictions as a DataTree: group ``predictions``, with the labels of the user's model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import xarray as xr

from pymc_augconj.errors import AugmentationError
from pymc_augconj.likelihoods.contract import select_params
from pymc_augconj.prediction.mixtures import (
    Mixture,
    Predictive,
    moments_of_y,
    quantiles,
)
from pymc_augconj.recognition.prediction.new_inputs import NewPredictors

# Dims and values of variables, by name.
Variables = Mapping[str, tuple[Sequence[str], np.ndarray]]
# Coordinates of chain and draw.
Sampled = tuple[np.ndarray, np.ndarray]


def needed_draws(tree: xr.DataTree, names: Sequence[str]) -> tuple[dict[str, np.ndarray], Sampled]:
    """Return variables with chains and draws on one axis, and the coordinates of the two."""
    posterior = tree["posterior"].to_dataset()
    found = {}
    for name in dict.fromkeys(names):
        if name not in posterior:
            raise AugmentationError(
                f"posterior: expected the variable {name!r}, which the prediction needs, "
                "found none; sample with it among var_names"
            )
        values = posterior[name].transpose("chain", "draw", ...).values
        found[name] = values.reshape(-1, *values.shape[2:])
    return found, (posterior["chain"].values, posterior["draw"].values)


def predictions_tree(
    variables: Variables,
    coords: Mapping[str, Any],
    attrs: Mapping[str, Any],
    sampled: Sampled | None = None,
    group: str = "predictions",
) -> xr.DataTree:
    """Return a DataTree of one group, with the used ones of ``coords``.

    A dim ``"sample"`` stands for chains and draws together; ``sampled`` has their coordinates.
    """
    data, coords = {}, dict(coords)
    for name, (dims, values) in variables.items():
        if "sample" in dims and sampled is not None:
            chains, draws = sampled
            values = values.reshape(len(chains), len(draws), *values.shape[1:])
            dims = ("chain", "draw", *dims[1:])
            coords |= {"chain": chains, "draw": draws}
        data[name] = (tuple(dims), values)
    used = {dim for dims, _ in data.values() for dim in dims}
    dataset = xr.Dataset(data, coords={dim: c for dim, c in coords.items() if dim in used})
    dataset.attrs.update(attrs)
    return xr.DataTree.from_dict({group: dataset})


@dataclass(frozen=True)
class ObservationOptions:
    """Options of :func:`pymc_augconj.predict` about observations; for ``kind="y"`` only."""

    #: Observations at the new inputs, shape (P,) or (): adds their log predictive densities. With
    #: ``ynew=k`` these are the log probabilities of the class or count k.
    ynew: Any = None
    #: The terms of the predictor at the new inputs other than the process and other Gaussian
    #: latents, shape (P,) or (), if they differ between observations: for example the logarithm of
    #: an exposure. Refused where a hyperparameter is a term of the predictor: predict ``kind="f"``,
    #: and add it draw by draw.
    offset: Any = None
    #: Parameters of the likelihood at the new inputs, by name, if they differ between the
    #: observations: a number or an array of shape (P,), such as ``{"n": 20}`` for a binomial.
    params: Mapping[str, Any] | None = None
    #: The observed variable, if several depend on the process.
    observed: str | None = None
    #: Levels in (0, 1) at which to add quantiles of y.
    quantile: float | Sequence[float] | None = None

    @property
    def given(self) -> list[str]:
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return [
            name
            for name, value in found.items()
            if value is not None and not (name == "quantile" and np.size(value) == 0)
        ]

    @property
    def levels(self) -> np.ndarray:
        return np.ravel(np.asarray(() if self.quantile is None else self.quantile, dtype=float))

    def numbers(self, size: int) -> dict[str, np.ndarray]:
        """Return the parameters, each one number or one for each of ``size`` inputs."""
        given = self.params or {}
        return {name: _numbers(f"params[{name!r}]", value, size) for name, value in given.items()}

    def offsets(self, size: int) -> np.ndarray | None:
        """Return the offset at each of ``size`` inputs."""
        if self.offset is None:
            return None
        values = _numbers("offset", self.offset, size)
        if not np.isfinite(values).all():
            raise AugmentationError("offset: expected finite numbers, found an infinity")
        return np.broadcast_to(values, (size,))


def _numbers(name: str, given: Any, size: int) -> np.ndarray:
    values = np.asarray(given, dtype=float)
    if values.shape not in ((), (size,)) or np.isnan(values).any():
        raise AugmentationError(
            f"{name}: expected one number, or one for each of {size} inputs, got shape "
            f"{values.shape}{' with NaN' if np.isnan(values).any() else ''}"
        )
    return values


@dataclass(frozen=True)
class Request:
    """The requested predictions."""

    model: Any
    # With all observations, where the model has minibatches of them.
    whole: Any
    gps: Sequence[Any]
    Xnew: np.ndarray
    about_y: ObservationOptions
    full_cov: bool
    joint: bool
    jitter: float
    dim: str | None
    coords: Sequence[Any] | None
    rng: np.random.Generator
    # Name and labels (or None) of the axis of a process with several outputs.
    outputs: tuple[str, Any] | None = None

    @property
    def name(self) -> str:
        return str(self.gps[0].f.name)

    @property
    def size(self) -> int:
        """The number of new inputs."""
        return len(self.Xnew)

    @property
    def axes(self) -> tuple[str, ...]:
        """The dims of the process at the new inputs, of which ``"*"`` is that of the inputs."""
        return ("*",) if self.outputs is None else (self.outputs[0], "*")

    def tree(
        self,
        variables: Variables,
        attrs: Mapping[str, Any],
        read: NewPredictors | None = None,
        sampled: Sampled | None = None,
    ) -> xr.DataTree:
        """Return the DataTree of variables whose dims have ``"*"`` for the new inputs."""
        name = self.name if read is None else read.site.name
        dim = self.dim or f"{name}_dim_{len(self.axes) - 1}"
        named = {}
        for name, (dims, values) in variables.items():
            dims = tuple(dim + d[1:] if d.startswith("*") else d for d in dims)
            named[name] = dims, values
        labels = np.arange(self.size) if self.coords is None else np.asarray(self.coords)
        coords = {dim: labels, f"{dim}_bis": labels, "quantile": self.about_y.levels}
        if self.outputs is not None and self.outputs[1] is not None:
            coords[self.outputs[0]] = np.asarray(self.outputs[1])
        return predictions_tree(named, coords, attrs, sampled)

    def of_y(self, mixture: Mixture, read: NewPredictors) -> Variables:
        """Return the predictions of y, with their dims."""
        y = read.site.name
        mean, var = moments_of_y(mixture)
        unknown = np.count_nonzero(np.isnan(mean) | np.isnan(var))
        if unknown:
            warnings.warn(
                f"{y}_mean, {y}_std: NaN at {unknown} of {self.size} inputs, where the density of "
                f"{y!r} has no mean (Student-t at draws of nu ≤ 1, Cauchy) or no variance, or "
                "could not be integrated; use quantile=[0.5] instead",
                RuntimeWarning,
                stacklevel=4,
            )
        found: dict[str, tuple[Sequence[str], np.ndarray]] = {
            f"{y}_mean": (("*",), mean),
            f"{y}_std": (("*",), np.sqrt(var)),
        }
        levels = self.about_y.levels
        if levels.size:
            if not ((levels > 0.0) & (levels < 1.0)).all():
                raise AugmentationError(
                    f"quantile: expected levels in (0, 1), got {tuple(levels.tolist())}"
                )
            values = quantiles(mixture, levels, self.size)
            found[f"{y}_quantile"] = (("quantile", "*"), values)
        return {**found, **self.log_density_of_y(mixture, y)}

    def log_density_of_y(self, mixture: Predictive, y: str) -> Variables:
        """Return the log predictive density of ``ynew``, if given."""
        if self.about_y.ynew is None:
            return {}
        ynew = np.asarray(self.about_y.ynew, dtype=float)
        if ynew.shape not in ((), (self.size,)):
            raise AugmentationError(
                f"ynew: expected one number, or one for each of {self.size} inputs, got shape "
                f"{ynew.shape}"
            )
        ynew = np.broadcast_to(ynew, (self.size,))
        log_density = mixture.log_density(ynew)
        _check_possible(mixture, ynew, log_density)
        return {f"{y}_log_density": (("*",), log_density)}


def _check_possible(mixture: Predictive, ynew: np.ndarray, log_density: np.ndarray) -> None:
    """Refuse values outside the likelihood's support, such as half a count or a class 3."""
    # Of parameters that differ between draws, the first ones.
    given = {k: v if v.shape == ynew.shape else np.ravel(v)[0] for k, v in mixture.params.items()}
    sentence, rest = mixture.likelihood.check(ynew, given), np.flatnonzero(log_density != -np.inf)
    own = select_params(given, rest, ynew.size)
    if sentence is not None and rest.size and mixture.likelihood.check(ynew[rest], own) is not None:
        raise AugmentationError(f"ynew ({mixture.likelihood.name}): {sentence}")
