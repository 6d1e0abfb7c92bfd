"""``pac.augment``: a model with its auxiliary variables written out, to look at and to check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.model import Model, modelcontext
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.distributions.auxiliary_variable import (
    POLYA_GAMMA,
    AuxiliaryDistribution,
    Distribution,
    NumPyFunction,
)
from pymc_augconj.errors import AugmentationError
from pymc_augconj.recognition.graph.dependence import ModelIndex
from pymc_augconj.recognition.graph.rewrite import substitute
from pymc_augconj.recognition.latents.innovations import in_variables
from pymc_augconj.recognition.observed.observed_graph import ObservedGraph
from pymc_augconj.recognition.processes.other_graphs import rewritten
from pymc_augconj.recognition.recognizer import read_model
from pymc_augconj.recognition.roles.choice import choose_structure


def augment(model: Model | None = None) -> Model:
    """Return a new model in which every auxiliary variable ω is a free variable.

    For an observed variable ``y`` the new model has ``y_omega`` with its prior density, and, under
    the name ``y``, the likelihood given ω, which is Gaussian in the predictor: exp(h η − ½ λ η²)
    times a factor without η. Integrating ω out gives the original model. Priors and normal
    likelihoods, which need no ω, do not change; the Poisson's count of thinned events is
    ``y_thinned``. Both models share their ``pm.Data``: what is set in one is set in the other.

    Plot it with ``pm.model_to_graphviz(pac.augment(model))``. The new model documents the
    augmentation, and is not meant for sampling: :func:`~pymc_augconj.sample` on the original
    model draws ω exactly and keeps it out of the trace. Simulated y are NaN. The densities of
    Pólya–Gamma priors, of priors known only by their φ, and the default of a registered
    likelihood have no derivative.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the model of the context; it is not changed.

    Returns
    -------
    pymc.Model

    Raises
    ------
    AugmentationError
        If the model cannot be augmented; see :func:`~pymc_augconj.recognize`.

    Examples
    --------
    >>> aug = pac.augment(model)  # doctest: +SKIP
    >>> pm.model_to_graphviz(aug)  # doctest: +SKIP
    """
    model = modelcontext(model)
    # Refuses, with a reason, what cannot be augmented or was misread.
    read_model(model).model.require_augmentation()
    structure, matched = choose_structure(ModelIndex(model))
    sites = [one for one in matched if one.likelihood.has_auxiliary and not one.is_prior]
    for observed in sites:
        if len(observed.predictors) > 1:
            raise AugmentationError(
                f"{observed.label} ({observed.likelihood.name}): expected a likelihood of one "
                f"predictor, found {len(observed.predictors)}; ω of several predictors cannot be "
                "written into the model; sample the model itself with pac.sample"
            )
    by_variable = {observed.variable: observed for observed in sites}

    def change(var: Any, replaced: dict[Any, Any]) -> Any:
        if (observed := by_variable.get(var)) is None:
            return substitute([var], replaced)[0]
        etas = in_variables(observed.predictors, structure.latents)
        eta, *params = substitute([*etas, *observed.params.values()], replaced)
        named = dict(zip(observed.params, params, strict=True))
        _write(observed, eta, named, model.named_vars_to_dims.get(var.name))
        return None

    return rewritten(model, change)


def _write(
    observed: ObservedGraph, eta: TensorVariable, given: Mapping[str, TensorVariable], dims: Any
) -> None:
    shape = observed.shape
    eta = eta.reshape(shape)
    params = {name: graph.reshape(shape) if graph.ndim else graph for name, graph in given.items()}
    names = list(params)
    y = observed.value.astype("float64")
    arguments = {"dims": dims} if dims is not None else {"shape": shape}
    write = _Writer(observed, arguments)
    auxiliary, log_factor = observed.likelihood.joint(write, y, eta, params)

    def logp(value: Any, eta: Any, *others: Any) -> Any:
        omegas, rest = others[: len(auxiliary)], others[len(auxiliary) :]
        named = dict(zip(names, rest, strict=True))
        return log_factor(value.astype("float64"), eta, *omegas, named)

    pm.CustomDist(
        observed.variable.name,
        eta,
        *auxiliary,
        *params.values(),
        logp=logp,
        random=_no_draw,
        class_name="GaussianSite",
        dtype="float64",
        observed=observed.value.data if hasattr(observed.value, "data") else observed.value,
        **arguments,
    )


def _no_draw(*args: Any, rng: np.random.Generator, size: Any) -> np.ndarray:
    """Return NaN: given ω, y has a density up to a factor only; PyMC draws to find a shape."""
    shape = np.broadcast_shapes(*map(np.shape, args)) if size is None else size
    return np.full(shape, np.nan)


class _Writer:
    """Writes the auxiliary variables of one observed variable; see ``JointWriter``."""

    math = pt

    def __init__(self, observed: ObservedGraph, arguments: dict[str, Any]) -> None:
        self._prefix, self._shape = observed.variable.name, observed.shape
        self._arguments = arguments

    def _write(self, distribution: Any, name: str, *parameters: Any, **more: Any) -> Any:
        # Arrays, because PyTensor computes with the float 0.5 in single precision: log Γ to 1e-8.
        exact = [np.array(p) if isinstance(p, float) else p for p in parameters]
        return distribution(f"{self._prefix}_{name}", *exact, **more, **self._arguments)

    def gamma(self, name: str, shape: Any, rate: Any) -> Any:
        return self._write(pm.Gamma, name, shape, rate)

    def inverse_gamma(self, name: str, shape: Any, scale: Any) -> Any:
        return self._write(pm.InverseGamma, name, shape, scale)

    def normal(self, name: str, mean: Any, std: Any, start: Any) -> Any:
        return self._write(pm.Normal, name, mean, std, initval=start.eval())

    def poisson(self, name: str, rate: Any) -> Any:
        return self._write(pm.Poisson, name, rate)

    def polya_gamma(self, name: str, h: Any) -> Any:
        return self._write(AuxiliaryDistribution, name, POLYA_GAMMA, [h + pt.zeros(self._shape)])

    def numerical(
        self,
        name: str,
        distribution: str,
        logpdf: Callable[..., Any],
        random: Callable[..., Any],
        parameters: Sequence[Any],
        *,
        positive: bool,
    ) -> Any:
        found = Distribution(distribution, logpdf, random, positive)
        more = {} if positive else {"default_transform": None}
        return self._write(AuxiliaryDistribution, name, found, list(parameters), **more)

    def evaluate(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return NumPyFunction(function, "the likelihood given ω")(*arguments)
