"""Predictions of observations: from draws, or of classes by integrals.

An approximation of several predictors is drawn from, unless these are independent and the
probabilities of classes are integrals over them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_augconj.prediction.mixtures import (
    DrawnMixture,
    GroupedMixture,
    IndependentMixture,
    Mixture,
)
from pymc_augconj.recognition.prediction.draws import predictors_of_draws
from pymc_augconj.recognition.prediction.evaluate import kernel_function
from pymc_augconj.recognition.prediction.new_inputs import NewPredictors
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.results.approximation.model_check import check_draws, check_likelihood
from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.predictions import Request, Variables
from pymc_augconj.typing import Array

from .process_draws import draw_process

__all__ = ["by_inputs", "classes_of", "independent_classes", "y_from_draws"]


def y_from_draws(
    tree: DataTree,
    model: Model,
    everything: Model,
    gps: Sequence[Any],
    Xnew: np.ndarray,
    request: Request,
    read: NewPredictors,
    *,
    jitter: float,
    joint: bool,
    rng: np.random.Generator,
) -> Variables:
    """Return the predictions of an observed variable, from draws of the processes in it.

    Parameters
    ----------
    tree : DataTree
        With the group ``posterior``.
    model, everything : pymc.Model
        The user's model; and with all observations, where that has minibatches of them.
    gps : sequence of pm.gp.Latent
    Xnew : ndarray, shape (P, d)
    request : Request
    read : NewPredictors
    jitter, joint
        As for :func:`pymc_augconj.predict`.
    rng : Generator
    """
    for gp in gps:
        check_draws(tree, everything, gp.f.name)
    wanted = [*(h.name for h in read.lgm.hyperparameters), *read.other_entries()]
    processes = [
        draw_process(tree, model, gp, Xnew, wanted, jitter=jitter, joint=joint, rng=rng)
        for gp in gps
    ]
    draws = {name: value for drawn in processes for name, value in drawn.draws.items()}
    eta, params = predictors_of_draws(model, read, draws, processes)
    mixture = DrawnMixture(read.likelihood, eta, params)
    if read.site.likelihood.n_classes is None:
        return request.of_y(by_inputs(mixture, read), read)
    mixture = DrawnMixture(read.likelihood, eta, {**params, **read.varying})
    return classes_of(mixture, request, read.site.name)


def by_inputs(mixture: Mixture, read: NewPredictors) -> Mixture | GroupedMixture:
    """Return the mixture with the parameters that were given for each new input."""
    return GroupedMixture(mixture, read.varying) if read.varying else mixture


def classes_of(mixture: DrawnMixture | IndependentMixture, request: Request, y: str) -> Variables:
    """Return the probabilities of classes, and of those that were asked for."""
    probabilities = mixture.class_probabilities()
    assert probabilities is not None
    found: Variables = {f"{y}_probability": (("*", f"{y}_class"), probabilities.T)}
    return {**found, **request.log_density_of_y(mixture, y)}


def independent_classes(
    result: Approximation,
    model: Model,
    gps: Sequence[Any],
    Xnew: np.ndarray,
    read: NewPredictors,
    theta: Mapping[str, np.ndarray],
    moments_of: Callable[[Any], tuple[Array, Array]],
) -> IndependentMixture | None:
    """Return the distribution of a class at new inputs, or None where draws have to tell it.

    Parameters
    ----------
    result : Approximation
    model : pymc.Model
    gps : sequence of pm.gp.Latent
        The processes in the predictors.
    Xnew : ndarray, shape (P, d)
    read : NewPredictors
    theta : mapping
        Hyperparameters as the model has them.
    moments_of : callable
        ``gp -> (mean, standard deviation)`` of its outputs at the new inputs, (K, P) or (P,).
    """
    terms = read.site.likelihood
    if not terms.traits.factorises or terms.n_classes is None or read.other_entries():
        return None
    point = {**read.start, **result.point}
    check_likelihood(result, read.lgm, point, read.site.name)
    means_old = {}
    for gp in gps:
        mean_old = kernel_function(model, gp, Xnew, ["mean_old"])
        if not set(mean_old.names) <= set(theta):
            return None  # its mean depends on another latent
        (means_old[gp.f.name],) = mean_old(theta)
    predictors = read.at(point, means_old)
    coefs = {
        gp.f.name: np.stack([each.through[gp.f.name].coef for each in predictors]) for gp in gps
    }
    if (sum(np.count_nonzero(coef, axis=1) for coef in coefs.values()) > 1).any():
        return None  # terms of one predictor, which are correlated
    mean = np.tile(np.array([[each.offset] for each in predictors]), len(Xnew))
    var = np.zeros_like(mean)
    for gp in gps:
        f_mean, f_std = (np.atleast_2d(moment) for moment in moments_of(gp))
        mean += coefs[gp.f.name] @ f_mean
        var += coefs[gp.f.name] ** 2 @ f_std**2
    return IndependentMixture(terms, mean, var, {**read.params(point), **read.varying})
