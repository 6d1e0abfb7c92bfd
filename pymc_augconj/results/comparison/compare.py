"""One table for several fits of a model: cost, convergence, agreement with a reference, LOO."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import arviz_stats as azs
import numpy as np
import pandas as pd
import xarray as xr
from arviz_base import rcParams
from scipy.stats import wasserstein_distance

from pymc_augconj.errors import AugmentationError

from .fits import Fits, as_datatrees, common_posteriors, is_moving, scalar_draws

_AXES = {"chain_axis": 0, "draw_axis": 1}
_LOO_COLUMNS = ["elpd_loo", "elpd_se", "elpd_diff", "dse", "weight", "rank", "high_k"]
# Of a reference: chains that have not converged, and draws that are too few.
_LARGEST_R_HAT, _FEWEST = 1.05, 100
_COUNTS = ["chains", "draws", "entries", "constant", "nonfinite", "divergences", "rank", "high_k"]


def compare(
    fits: Fits,
    *,
    var_names: str | Sequence[str] | None = None,
    filter_vars: str | None = None,
    coords: Mapping[Hashable, Any] | None = None,
    reference: str | None = None,
    wall_time: Mapping[str, float] | None = None,
    loo: bool = True,
    loo_var_name: str | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Compare fits of one model in a table with one row per fit.

    Parameters
    ----------
    fits : mapping of str to DataTree
        Fits by name, each with a posterior group of dimensions (chain, draw, …): results of
        ``pm.sample``, ``nutpie.sample``, ``pm.fit(…).sample()`` and this package, or objects with
        a method ``to_datatree()``.
    var_names : str or sequence of str, optional
        Variables to compare; every fit must have them. ``"~name"`` leaves one out. By default
        all numeric variables that every fit has.
    filter_vars : {None, "like", "regex"}, optional
        How ``var_names`` match: whole names, substrings or regular expressions, as in ArviZ.
    coords : mapping of str to labels, optional
        Entries to compare, by dimension.
    reference : str, optional
        Name of the fit that the others are compared with, usually a long NUTS run.
    wall_time : mapping of str to float, optional
        Seconds by fit; overrides the recorded time (attribute ``sampling_time`` of the
        posterior). PyMC records tuning and sampling but not compilation; ``nutpie.sample`` and
        ``pm.fit`` record nothing. For a fair comparison, measure the whole call and pass its time.
    loo : bool, default True
        Whether to add the leave-one-out columns when a fit has a group ``log_likelihood``.
    loo_var_name : str, optional
        Observed variable to score by LOO. By default each observation of every observed variable
        is left out in turn.
    evidence : mapping of str to LogEvidence, optional
        Results of :func:`pymc_augconj.log_evidence` by fit, for Bayes factors.

    Returns
    -------
    DataFrame
        Indexed by fit. ``table.attrs`` holds the compared ``var_names`` and the ``reference``.
        *Entry* means a scalar component of a compared variable, such as one f[i].

        ==================================  ===================================================
        column                              meaning
        ==================================  ===================================================
        ``wall_time``                       seconds; NaN if neither recorded nor given
        ``chains``                          number of chains
        ``draws``                           number of draws, all chains together
        ``entries``                         number of entries compared
        ``constant``                        entries that are constant in this fit: deterministic
                                            ones in every fit; in one fit only, a stuck sampler
                                            or a point estimate
        ``nonfinite``                       entries with a NaN or infinite draw
        ``rhat_max``                        largest rank-normalised split R-hat; NaN for one chain
        ``ess_bulk_min``, ``…_median``      effective sample size for the centre, over entries
        ``ess_tail_min``, ``…_median``      effective sample size for the tail quantiles p and
                                            1 − p, p = ``rcParams["stats.ci_prob"]`` as in
                                            ``az.summary``
        ``ess_bulk_min_per_s``, ``…``       the four above divided by ``wall_time``, 1/s
        ``lag1_max``, ``lag1_median``       autocorrelation of successive draws, over entries
        ``divergences``                     divergent transitions; missing if not recorded
        ``mean_diff``                       max abs(mean − mean_ref) / sd_ref
        ``mean_diff_z``                     max abs(mean − mean_ref) / Monte Carlo standard error of
                                            that difference: below about 4 it is noise
        ``sd_diff``                         max abs(sd − sd_ref) / sd_ref
        ``wasserstein``                     max 1-Wasserstein distance of the marginals / sd_ref
        ``elpd_loo``, ``elpd_se``           expected log predictive density by PSIS-LOO, nats, and
                                            its standard error
        ``elpd_diff``, ``dse``              difference from the best fit and its standard error
        ``weight``, ``rank``                stacking weight; 0 is the best fit
        ``high_k``                          observations whose Pareto k is too large for LOO
        ``log_evidence``, ``evidence_se``   log p(y) in nats, and its standard error
        ``log_bf``, ``log_bf_se``           log Bayes factor against the fit of the largest evidence
                                            (0 or less), and its standard error
        ==================================  ===================================================

        The columns ``mean_diff`` to ``wasserstein`` need a ``reference``; those from ``elpd_loo``
        on need a fit with a log-likelihood (NaN for fits without).

    Raises
    ------
    AugmentationError
        If a fit is not a DataTree with draws, a variable is missing or differs in shape, or
        ``reference``, ``wall_time``, ``evidence`` or ``loo_var_name`` contains an unknown name.

    Warns
    -----
    RuntimeWarning
        If the reference has an R-hat above 1.05, or fewer than 100 effective draws of an entry.

    Notes
    -----
    Constant and non-finite entries are left out of R-hat, ESS and autocorrelation; entries that
    are constant or non-finite in the reference are left out of the differences. The columns
    ``constant`` and ``nonfinite`` count them.

    An approximation has point estimates of the hyperparameters: they are constant and their
    ``sd_diff`` is 1. Select the latents by ``var_names`` to compare only these.

    Maxima over many entries grow with their number: for 500 entries of equal fits
    ``mean_diff_z`` is about 3. The Wasserstein distance of two samples of one distribution is
    not zero either, but of order sqrt(1/ESS + 1/ESS_ref). ``az.wasserstein`` is not used: it
    adds the distances of unscaled marginals on 500 random draws.

    For an approximation from :func:`pymc_augconj.fit`, LOO corrects for the difference between
    the approximation and the posterior, given the hyperparameters
    (``az.loo_approximate_posterior``). ArviZ warns about high Pareto k.

    References
    ----------
    .. [1] Vehtari, Gelman, Simpson, Carpenter, Bürkner (2021). Rank-normalization, folding, and
       localization: an improved R-hat. Bayesian Analysis 16(2).
    .. [2] Vehtari, Gelman, Gabry (2017). Practical Bayesian model evaluation using leave-one-out
       cross-validation and WAIC. Statistics and Computing 27(5).

    Examples
    --------
    >>> table = pac.compare({"gibbs": idata, "nuts": idata2}, reference="nuts")  # doctest: +SKIP
    >>> print(table.T)  # one column per fit  # doctest: +SKIP
    """
    trees = as_datatrees(fits)
    if reference is not None and reference not in trees:
        raise AugmentationError(
            f"reference: expected the name of a fit, got {reference!r}; use one of {list(trees)}"
        )
    seconds = _wall_times(trees, wall_time or {})
    posteriors = common_posteriors(trees, var_names, filter_vars, coords)
    draws = {fit: scalar_draws(posterior) for fit, posterior in posteriors.items()}

    rows: dict[str, dict[str, float | None]] = {}
    for fit, tree in trees.items():
        rows[fit] = {"wall_time": seconds[fit], **_diagnostics(draws[fit], seconds[fit])}
        rows[fit]["divergences"] = _divergences(tree)
        if reference is not None:
            rows[fit] |= _differences(draws[fit], draws[reference])
    if reference is not None:
        _check_convergence(reference, rows[reference])
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("fit")
    if loo:
        table = table.join(_loo_columns(trees, loo_var_name))
    if evidence:
        table = table.join(_evidence_columns(trees, evidence))
    table = table.astype({name: "Int64" for name in _COUNTS if name in table})
    table.attrs = {"var_names": list(posteriors[next(iter(trees))]), "reference": reference}
    return table


def _check_convergence(reference: str, row: Mapping[str, float | None]) -> None:
    """Warn if the chains of the reference have not converged, or hardly moved."""
    r_hat, least = row["rhat_max"], row["ess_bulk_min"]
    if (r_hat is not None and r_hat > _LARGEST_R_HAT) or (least is not None and least < _FEWEST):
        warnings.warn(
            f"reference {reference!r}: expected R-hat of at most {_LARGEST_R_HAT} and {_FEWEST} "
            f"effective draws of every entry, found {r_hat:.3g} and {least:.0f}: differences from "
            "it are errors of the reference too; sample it longer, or leave entries out by "
            "var_names=…",
            RuntimeWarning,
            stacklevel=3,
        )


def _wall_times(trees: Mapping[str, xr.DataTree], given: Mapping[str, float]) -> dict[str, float]:
    """Return seconds by fit: the given ones, else the recorded ones, else NaN."""
    for fit, seconds in given.items():
        if fit not in trees or not seconds > 0:
            raise AugmentationError(
                "wall_time: expected positive seconds by name of fit, got "
                f"{fit!r}: {seconds!r}; the fits are {list(trees)}"
            )
    recorded = {fit: tree["posterior"].attrs.get("sampling_time") for fit, tree in trees.items()}
    return {
        fit: float(given.get(fit, np.nan if seconds is None else seconds))
        for fit, seconds in recorded.items()
    }


def _evidence_columns(trees: Mapping[str, Any], evidence: Mapping[str, Any]) -> pd.DataFrame:
    """Return log evidences and log Bayes factors with their errors."""
    if unknown := [fit for fit in evidence if fit not in trees]:
        raise AugmentationError(f"evidence: expected names of fits {list(trees)}, got {unknown}")
    pairs = {fit: (found.value, found.standard_error) for fit, found in evidence.items()}
    table = pd.DataFrame.from_dict(pairs, "index", columns=["log_evidence", "evidence_se"])
    best = table["log_evidence"].idxmax()
    table["log_bf"] = table["log_evidence"] - table["log_evidence"][best]
    table["log_bf_se"] = np.hypot(table["evidence_se"], table["evidence_se"][best])
    table.loc[best, "log_bf_se"] = 0.0
    return table


def _diagnostics(draws: np.ndarray, seconds: float) -> dict[str, float]:
    """Return convergence and cost of one fit from its draws, shape (chain, draw, entry)."""
    finite = np.isfinite(draws).all(axis=(0, 1))
    moving = np.zeros_like(finite)
    moving[finite] = is_moving(draws[:, :, finite])
    used = draws[:, :, moving]
    row = {
        "chains": draws.shape[0],
        "draws": draws.shape[0] * draws.shape[1],
        "entries": draws.shape[2],
        "constant": np.sum(finite & ~moving),
        "nonfinite": np.sum(~finite),
        "rhat_max": _over_entries(np.max, _rhat(used)),
    }
    for method, prob in (("bulk", None), ("tail", rcParams["stats.ci_prob"])):
        ess = azs.ess(used, method=method, prob=prob, **_AXES)
        row[f"ess_{method}_min"] = _over_entries(np.min, ess)
        row[f"ess_{method}_median"] = _over_entries(np.median, ess)
    row |= {f"{name}_per_s": row[name] / seconds for name in list(row) if name.startswith("ess")}
    lag1 = _lag1(used)
    return row | {
        "lag1_max": _over_entries(np.max, lag1),
        "lag1_median": _over_entries(np.median, lag1),
    }


def _over_entries(statistic: Any, values: np.ndarray) -> float:
    """Return ``statistic`` over entries; NaN when all entries are constant."""
    return float(statistic(values)) if np.size(values) else np.nan


def _rhat(draws: np.ndarray) -> np.ndarray:
    """Return R-hat by entry; NaN for one chain, huge or infinite if every chain is constant."""
    if draws.shape[0] == 1:
        return np.full(draws.shape[2], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        return azs.rhat(draws, **_AXES)


def _lag1(draws: np.ndarray) -> np.ndarray:
    """Return the lag-1 autocorrelation within chains, pooled over chains, shape (entry,).

    It is 1 where every chain is constant.
    """
    centred = draws - draws.mean(axis=1, keepdims=True)
    lagged = np.sum(centred[:, 1:] * centred[:, :-1], axis=(0, 1))
    total = np.sum(centred**2, axis=(0, 1))
    return np.divide(lagged, total, out=np.ones_like(total), where=total > 0)


def _divergences(tree: xr.DataTree) -> int | None:
    stats = tree.children.get("sample_stats")
    if stats is None or "diverging" not in stats.data_vars:
        return None
    return int(stats["diverging"].sum())


def _differences(draws: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """Return the largest differences of the marginals, in units of the reference's sd."""
    finite = np.isfinite(draws).all(axis=(0, 1)) & np.isfinite(reference).all(axis=(0, 1))
    draws, reference = draws[:, :, finite], reference[:, :, finite]
    moving = is_moving(reference)
    draws, reference = draws[:, :, moving], reference[:, :, moving]

    std = reference.std(axis=(0, 1), ddof=1)
    mean_diff = np.abs(draws.mean(axis=(0, 1)) - reference.mean(axis=(0, 1)))
    mcse = np.hypot(azs.mcse(draws, **_AXES), azs.mcse(reference, **_AXES))
    both = [(draws[:, :, k].ravel(), reference[:, :, k].ravel()) for k in range(std.size)]
    distance = [wasserstein_distance(*pair) / s for pair, s in zip(both, std, strict=True)]
    largest = {
        "mean_diff": mean_diff / std,
        "mean_diff_z": mean_diff / mcse,
        "sd_diff": np.abs(draws.std(axis=(0, 1), ddof=1) / std - 1),
        "wasserstein": np.array(distance),
    }
    return {name: _over_entries(np.max, values) for name, values in largest.items()}


def _loo_columns(trees: Mapping[str, xr.DataTree], var_name: str | None) -> pd.DataFrame:
    """Return LOO columns of the fits that have a log-likelihood; no columns when none has."""
    some = {fit: tree for fit, tree in trees.items() if "log_likelihood" in tree.children}
    elpds = {f: _loo(tree, _joint_log_likelihood(f, tree, var_name)) for f, tree in some.items()}
    if not elpds:
        return pd.DataFrame(index=list(trees))
    n_observations = {fit: elpd.n_data_points for fit, elpd in elpds.items()}
    if len(set(n_observations.values())) > 1:
        raise AugmentationError(
            "log_likelihood: expected the same observations in every fit, got these numbers of "
            f"observations: {n_observations}; use loo_var_name to choose one variable, or loo=False"
        )
    table = azs.compare(elpds, round_to="none").rename(
        columns={"elpd": "elpd_loo", "se": "elpd_se"}
    )
    table["high_k"] = pd.Series(
        {fit: int((elpd.pareto_k > elpd.good_k).sum()) for fit, elpd in elpds.items()}
    )
    return table[_LOO_COLUMNS]


def _loo(tree: xr.DataTree, joint: xr.DataTree) -> Any:
    """Return PSIS-LOO, corrected where the draws come from an approximation."""
    stats: Any = tree["sample_stats"] if "sample_stats" in tree.children else {}
    if "log_p" not in stats or "log_q" not in stats:
        return azs.loo(joint, pointwise=True)
    return azs.loo_approximate_posterior(
        joint, log_p=stats["log_p"], log_q=stats["log_q"], pointwise=True
    )


def _joint_log_likelihood(fit: str, tree: xr.DataTree, var_name: str | None) -> xr.DataTree:
    """Return the pointwise log-likelihoods as one variable (chain, draw, observation)."""
    log_likelihood = tree["log_likelihood"].to_dataset().transpose("chain", "draw", ...)
    if var_name is not None and var_name not in log_likelihood:
        raise AugmentationError(
            f"loo_var_name: expected an observed variable of {fit!r}, got {var_name!r}; use one "
            f"of {list(log_likelihood)}"
        )
    wanted = log_likelihood if var_name is None else log_likelihood[[var_name]]
    values = ("chain", "draw", "observation"), scalar_draws(wanted)
    joint = xr.Dataset({"observations": values})
    groups = {"posterior": tree["posterior"].to_dataset(), "log_likelihood": joint}
    return xr.DataTree.from_dict(groups)
