"""Predictions as a DataTree: group ``predictions``, with the labels of the user's model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from pymc_augconj.errors import AugmentationError
from pymc_augconj.prediction.cdf_moments import moments_of_y
from pymc_augconj.prediction.mixtures import GroupedMixture, Mixture, Predictive, quantiles
from pymc_augconj.recognition.prediction.new_inputs import NewPredictors

__all__ = ["Request", "posterior_draws", "predictions_tree"]


# Dims and values of variables, by name.
Variables = Mapping[str, tuple[Sequence[str], np.ndarray]]
# Coordinates of chain and draw.
Sampled = tuple[np.ndarray, np.ndarray]


def posterior_draws(
    tree: xr.DataTree, names: Sequence[str]
) -> tuple[dict[str, np.ndarray], Sampled]:
    """Return variables with chains and draws on one axis, and the coordinates of the two.

    Raises
    ------
    KeyError
        If a variable is missing; its name is the error's argument.
    """
    posterior = tree["posterior"].to_dataset()
    found = {}
    for name in names:
        if name not in posterior:
            raise KeyError(name)
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
    """Return a DataTree of one group.

    Parameters
    ----------
    variables : mapping
        Dims and values of each variable. A dim ``"sample"`` stands for chains and draws together.
    coords : mapping
        Labels of dims.
    attrs : mapping
    sampled : tuple of ndarray, optional
        Coordinates of chain and draw, if a variable has the dim ``"sample"``.
    group : str
        Its name.
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
class Request:
    """The predictions that a user asked for, and the names and labels of their axes.

    Attributes
    ----------
    name : str
        The process.
    dim, coords : str, sequence, optional
        Name and labels of the axis of the new inputs.
    quantile : tuple of float
    ynew : array_like, optional
    size : int
        Number of new inputs.
    outputs : tuple, optional
        Name and labels (or None) of the axis of a process with several outputs.
    """

    name: str
    dim: str | None
    coords: Sequence | None
    quantile: tuple[float, ...]
    ynew: Any
    size: int
    outputs: tuple[str, Any] | None = None

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
        coords = {dim: labels, f"{dim}_bis": labels, "quantile": np.array(self.quantile)}
        if self.outputs is not None and self.outputs[1] is not None:
            coords[self.outputs[0]] = np.asarray(self.outputs[1])
        return predictions_tree(named, coords, attrs, sampled)

    def of_y(self, mixture: Mixture | GroupedMixture, read: NewPredictors) -> Variables:
        """Return the predictions of y, with their dims."""
        y, likelihood = read.site.name, mixture.likelihood
        mean, var = moments_of_y(mixture, self.size)
        unknown = np.count_nonzero(np.isnan(var))
        if unknown and not likelihood.has_moments:
            warnings.warn(
                f"{y}_mean, {y}_std: NaN at {unknown} of {self.size} inputs, where the density of "
                f"{y!r} has no variance or could not be integrated; use quantile=[0.5] instead",
                RuntimeWarning,
                stacklevel=4,
            )
        found: dict[str, tuple[Sequence[str], np.ndarray]] = {
            f"{y}_mean": (("*",), mean),
            f"{y}_std": (("*",), np.sqrt(var)),
        }
        if self.quantile:
            levels = np.array(self.quantile)
            if not ((levels > 0.0) & (levels < 1.0)).all():
                raise AugmentationError(f"quantile: expected levels in (0, 1), got {self.quantile}")
            values = quantiles(mixture, levels, self.size)
            found[f"{y}_quantile"] = (("quantile", "*"), values)
        return {**found, **self.log_density_of_y(mixture, y)}

    def log_density_of_y(self, mixture: Predictive | GroupedMixture, y: str) -> Variables:
        """Return the log predictive density of ``ynew``, if that was given."""
        if self.ynew is None:
            return {}
        ynew = np.asarray(self.ynew, dtype=float)
        if ynew.shape not in ((), (self.size,)):
            raise AugmentationError(
                f"ynew: expected one number, or one for each of {self.size} inputs, got shape "
                f"{ynew.shape}"
            )
        ynew = np.broadcast_to(ynew, (self.size,))
        log_density = mixture.log_density(ynew)
        _check_possible(mixture, ynew, log_density)
        return {f"{y}_log_density": (("*",), log_density)}


def _check_possible(
    mixture: Predictive | GroupedMixture, ynew: np.ndarray, log_density: np.ndarray
) -> None:
    """Refuse values outside the likelihood's support, such as half a count or a class 3.

    Values with a log density of −∞ are allowed.
    """
    if isinstance(mixture, GroupedMixture):
        for which, part in mixture.parts:
            _check_possible(part, ynew[which], log_density[which])
        return
    first = {name: np.ravel(value)[0] for name, value in mixture.params.items()}
    sentence = mixture.likelihood.check(ynew, first)
    rest = ynew[log_density != -np.inf]
    if sentence is not None and rest.size and mixture.likelihood.check(rest, first) is not None:
        raise AugmentationError(f"ynew ({mixture.likelihood.name}): {sentence}")
