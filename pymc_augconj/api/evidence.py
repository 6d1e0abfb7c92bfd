"""``pac.log_evidence``: the marginal likelihood of a model, with its standard error."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from pymc.model import Model, modelcontext
from scipy.special import logsumexp

from pymc_augconj.errors import AugmentationError
from pymc_augconj.parallel.executor import blas_limit
from pymc_augconj.recognition.roles.structure import improper_variables
from pymc_augconj.results.approximation.approximation import Approximation
from pymc_augconj.results.approximation.leave_one_out import pareto_k
from pymc_augconj.results.approximation.nested import NestedApproximation
from pymc_augconj.typing import Array, Generator

from .fit import fit

# k̂ above which a standard error means little.
_LARGEST_K = 0.7


@dataclass(frozen=True)
class LogEvidence:
    """The log evidence of a model.

    Attributes
    ----------
    value : float
        log p(y), in nats.
    standard_error : float
        Of ``value``, by the delta method.
    pareto_k : float
        k̂ of the importance ratios; above 0.7 their mean converges too slowly for the error.
    """

    value: float
    standard_error: float
    pareto_k: float

    def __float__(self) -> float:
        return self.value


def log_evidence(
    model: Model | NestedApproximation | Approximation | None = None,
    *,
    draws: int = 1000,
    pairs: int = 8,
    random_seed: int | None = None,
    **options: Any,
) -> LogEvidence:
    """Estimate the log marginal likelihood of a model by importance sampling.

    Hyperparameters θ are drawn from Student-t densities about the points of the design of
    ``pac.fit("nested")``, which are wider than the posterior, and latents u given θ from the site
    approximation q(u | θ). The mean of p(y, u, θ) / (q(u | θ) q(θ)) estimates p(y) without bias,
    however good the approximation is; averages over u come first. The fit's density of θ over
    q(θ), whose integral is known, is a control variate. The prior has PyMC's normalisation: a
    transform that removes part of a prior, such as ``ordered``, does not normalise it again, and
    a potential counts as it is written.

    Parameters
    ----------
    model : pymc.Model or approximation, optional
        By default the model of the context. Or a result of ``pac.fit``: for ``"nested"`` the
        function estimates the evidence of its model, for another method log p(y | θ), the log
        evidence given its point estimates.
    draws : int
        Number of draws of θ.
    pairs : int
        Number of pairs of draws of the latents at each θ.
    random_seed : int, optional
    **options
        As for :func:`~pymc_augconj.fit` with ``"nested"``.

    Returns
    -------
    LogEvidence
        Differences of ``value`` are log Bayes factors. Numbers of latents beyond some hundred,
        each with little data, make the ratios vary too much: then ``pareto_k`` is large.

    Raises
    ------
    AugmentationError
        If a prior is improper, or the model cannot be fitted.

    Warns
    -----
    RuntimeWarning
        If k̂ is above 0.7.

    Examples
    --------
    >>> with model:  # doctest: +SKIP
    ...     pac.log_evidence(random_seed=1)
    """
    if draws < 2 or pairs < 1:
        raise AugmentationError(f"draws, pairs: expected at least 2 and 1, got {draws} and {pairs}")
    fitted = model if isinstance(model, Approximation | NestedApproximation) else None
    written = fitted.model if fitted is not None else modelcontext(model)
    if written is not None and (names := improper_variables(written)):
        raise AugmentationError(
            f"variables {names}: expected proper priors, without which a model has no evidence "
            "(it is arbitrary up to a factor), found improper ones; give them proper priors"
        )
    if fitted is None:
        options = {"progressbar": False, **options}
        fitted = fit("nested", model=written, random_seed=random_seed, **options)
    with blas_limit(1):
        log_ratios, log_known, points = _log_ratios(
            fitted, draws, pairs, np.random.default_rng(random_seed)
        )
    # The control variate has the mean one, by a sum over so many points.
    ratios, known = (np.exp(x - logsumexp(x, b=1 / len(x))) for x in (log_ratios, log_known))
    total = float(logsumexp(log_ratios) - logsumexp(log_known))
    var = np.var(ratios - known, ddof=1) / len(ratios) + np.var(known) / points
    found = LogEvidence(total, float(np.sqrt(var)), pareto_k(log_ratios))
    if found.pareto_k > _LARGEST_K:
        warnings.warn(
            f"pac.log_evidence: k̂ = {found.pareto_k:.2f} of the importance ratios, expected at "
            f"most {_LARGEST_K}: the standard error is too small; increase draws and pairs, and "
            "where that does not help the model has too many latents for it",
            RuntimeWarning,
            stacklevel=2,
        )
    return found


def _log_ratios(fitted: Any, draws: int, pairs: int, rng: Generator) -> tuple[Array, Array, int]:
    """Return independent log ratios, whose exponentials have the mean p(y), and a control variate.

    See :meth:`.NestedApproximation.log_ratios`. The variate is constant without hyperparameters.
    """
    if isinstance(fitted, NestedApproximation):
        return fitted.log_ratios(draws, pairs, rng)
    found = fitted.log_ratios(draws * 2 * pairs, rng).reshape(draws, -1)
    log_means = logsumexp(found, axis=1) - np.log(found.shape[1])
    return np.asarray(log_means), np.zeros(draws), draws
