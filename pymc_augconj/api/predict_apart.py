"""Classes at new inputs by their integrals, where an approximation has independent predictors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_augconj.prediction.several import IndependentMixture
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
    mean = np.tile(np.array(offsets)[:, None], len(Xnew))
    var = np.zeros_like(mean)
    terms = np.zeros(len(offsets), dtype=int)
    for gp in gps:
        f_mean, f_std = (np.atleast_2d(moment) for moment in moments_of(gp))
        for p, found in enumerate(through):
            coef = found[gp.f.name].coef
            terms[p] += np.count_nonzero(coef)
            mean[p] += coef @ f_mean
            var[p] += coef**2 @ f_std**2
    if (terms > 1).any():
        return None  # which are correlated
    params = {**common_parameters(read.site, point, read.overrides), **read.varying}
    return IndependentMixture(read.likelihood, mean, var, params)
