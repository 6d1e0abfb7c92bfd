"""Classes at new inputs by their integrals, where an approximation has independent predictors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_augconj.prediction.mixtures import IndependentMixture
from pymc_augconj.recognition.prediction.evaluate import kernel_function
from pymc_augconj.recognition.prediction.new_inputs import common_parameters
from pymc_augconj.recognition.prediction.several import SeveralNewPredictors
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.results.approximation.model_check import check_likelihood
from pymc_augconj.typing import Array

__all__ = ["independent_classes"]


def independent_classes(
    result: Approximation,
    model: Model,
    gps: Sequence[Any],
    Xnew: np.ndarray,
    read: SeveralNewPredictors,
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
    read : SeveralNewPredictors
    theta : mapping
        Hyperparameters as the model has them.
    moments_of : callable
        ``gp -> (mean, standard deviation)`` of its outputs at the new inputs, (K, P) or (P,).
    """
    if not read.likelihood.factorises or read.likelihood.n_classes is None or read.others:
        return None
    point = {**read.start, **result.point}
    check_likelihood(result, read.lgm, point, read.site.name)
    means_old = {}
    for gp in gps:
        mean_old = kernel_function(model, gp, Xnew, ["mean_old"])
        if not set(mean_old.names) <= set(theta):
            return None  # its mean depends on another latent
        (means_old[gp.f.name],) = mean_old(theta)
    through, offsets, _ = read.at(point, means_old)
    coefs = {gp.f.name: np.stack([each[gp.f.name].coef for each in through]) for gp in gps}
    if (sum(np.count_nonzero(coef, axis=1) for coef in coefs.values()) > 1).any():
        return None  # terms of one predictor, which are correlated
    mean = np.tile(np.array(offsets)[:, None], len(Xnew))
    var = np.zeros_like(mean)
    for gp in gps:
        f_mean, f_std = (np.atleast_2d(moment) for moment in moments_of(gp))
        mean += coefs[gp.f.name] @ f_mean
        var += coefs[gp.f.name] ** 2 @ f_std**2
    params = {**common_parameters(read.site, point, read.overrides), **read.varying}
    return IndependentMixture(read.likelihood, mean, var, params)
