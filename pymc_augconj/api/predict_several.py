"""Predictions of observed variables with several predictors: from draws, of every process at once.

An approximation is drawn from first, unless its predictors are independent and the probabilities of
classes are integrals over them, see :mod:`.predict_apart`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_augconj.errors import AugmentationError
from pymc_augconj.likelihoods.several import MultiDensity
from pymc_augconj.model import LatentGaussianModel, Site
from pymc_augconj.prediction.mixtures import DrawnMixture, GroupedMixture, IndependentMixture
from pymc_augconj.recognition.prediction.several import (
    NewProcess,
    SeveralNewPredictors,
    read_several_predictors,
)
from pymc_augconj.recognition.recognition import Recognition
from pymc_augconj.recognition.recognizer import read_model
from pymc_augconj.results.approximation.model_check import check_draws
from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.predictions import Request, Variables

from .process_draws import draw_process

__all__ = ["predict_several"]


def predict_several(
    draw: Callable[[], DataTree],
    apart: Callable[[SeveralNewPredictors], IndependentMixture | None],
    model: Model,
    everything: Model,
    gps: Sequence[Any],
    Xnew: np.ndarray,
    request: Request,
    observed: str | None,
    params: Mapping[str, np.ndarray],
    *,
    jitter: float,
    joint: bool,
    rng: np.random.Generator,
    recognition: Recognition | None = None,
) -> DataTree:
    """Predict an observed variable with several predictors at new inputs.

    Parameters
    ----------
    draw : callable
        Returns posterior draws.
    apart : callable
        Returns the distribution of a class without draws, where there is one.
    model, everything : pymc.Model
        The user's model; and with all observations, where that has minibatches of them.
    gps : sequence of pm.gp.Latent
        The processes in its predictors.
    Xnew : ndarray, shape (P, d)
    request : Request
    observed, params, jitter, joint
        As for :func:`pymc_augconj.predict`.
    rng : Generator
    recognition : Recognition, optional
        Of ``everything``, where it is known.
    """
    recognition = recognition or read_model(everything)
    lgm, names = recognition.model, [gp.f.name for gp in gps]
    site = _site(lgm, names, observed)
    unknown = [name for name in params if name not in site.params(recognition.start)]
    if unknown:
        raise AugmentationError(
            f"params: expected parameters of {site.likelihood.name} among "
            f"{list(site.params(recognition.start))}, got {unknown}"
        )
    read = read_several_predictors(lgm, recognition.start, site, names, params)
    attrs = {"inference_library": "pymc_augconj"}
    if (classes := apart(read)) is not None:
        return request.tree(_of_classes(classes, request, site.name), attrs, read)
    tree = draw()
    for name in names:
        check_draws(tree, everything, name)
    others = [lgm.blocks[i].value_name for i in read.others]
    wanted = [*(h.name for h in lgm.hyperparameters), *others]
    processes: list[NewProcess] = []
    draws: dict[str, np.ndarray] = {}
    for gp in gps:
        drawn = draw_process(tree, model, gp, Xnew, wanted, jitter=jitter, joint=joint, rng=rng)
        shape = (-1, drawn.outputs, len(Xnew))
        f_new = drawn.f_new.reshape(shape)
        means = [drawn.mean_old(s) for s in range(0, len(drawn.f_new), drawn.outputs)]
        processes.append(NewProcess(gp.f.name, f_new, np.array(means)))
        draws |= drawn.draws
    eta, values = read.of_draws(model, draws, processes)
    likelihood = site.likelihood
    assert isinstance(likelihood, MultiDensity)
    if likelihood.n_classes is None:
        mixture = DrawnMixture(likelihood, eta, values)
        whole = GroupedMixture(mixture, read.varying) if read.varying else mixture
        return request.tree(request.of_y(whole, read), attrs, read)
    mixture = DrawnMixture(likelihood, eta, {**values, **read.varying})
    return request.tree(_of_classes(mixture, request, site.name), attrs, read)


def _of_classes(mixture: DrawnMixture | IndependentMixture, request: Request, y: str) -> Variables:
    """Return the probabilities of classes, and of those that were asked for."""
    probabilities = mixture.class_probabilities()
    assert probabilities is not None
    found: Variables = {f"{y}_probability": (("*", f"{y}_class"), probabilities.T)}
    return {**found, **request.log_density_of_y(mixture, y)}


def _site(lgm: LatentGaussianModel, names: Sequence[str], observed: str | None) -> Site:
    """Return the observed variable with several predictors, or the one that is named."""
    sites = [
        site
        for site in lgm.sites
        if isinstance(site.likelihood, MultiDensity) and observed in (None, site.name)
    ]
    if len(sites) != 1:
        raise AugmentationError(
            f"observed: expected a process of one output, or one observed variable with several "
            f"predictors, for kind='y' with gp={names}, found {[site.name for site in sites]}; "
            "name it (observed=…), or predict kind='f' and combine processes as the model does"
        )
    return sites[0]
