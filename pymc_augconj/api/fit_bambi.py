"""``pac.fit_bambi``: :func:`~pymc_augconj.sample` for models written with bambi."""

from __future__ import annotations

from typing import Any

from pymc_augconj.results.comparison.fits import DataTree

from .sample import sample


def fit_bambi(
    model: Any,
    draws: int = 1000,
    *,
    omit_offsets: bool = True,
    include_response_params: bool = False,
    **kwargs: Any,
) -> DataTree:
    """Draw from the posterior of a bambi model by :func:`sample`, in place of ``model.fit()``.

    The result has bambi's form: its names and dims, the intercept for predictors that are not
    centred, and no parameters of the likelihood. ``model.predict(idata)`` and bambi's other
    functions take it.

    Parameters
    ----------
    model : bambi.Model
        The function builds the model if necessary.
    draws : int
        Number of draws of each chain after tuning.
    omit_offsets : bool
        Whether to leave out the offsets of group effects that are not centred.
    include_response_params : bool
        Whether to add the parameters of the likelihood at each observation.
    **kwargs
        Other arguments of :func:`sample`.

    Returns
    -------
    DataTree

    Raises
    ------
    TypeError
        If ``model`` is not a bambi model, or :func:`sample` does not know an argument.
    AugmentationError
        If the model cannot be augmented; see :func:`recognize`.

    Examples
    --------
    >>> model = bmb.Model("y ~ x + (1 | group)", data, family="bernoulli")  # doctest: +SKIP
    >>> idata = pac.fit_bambi(model)  # doctest: +SKIP
    """
    if not hasattr(model, "build") or not hasattr(model, "backend"):
        raise TypeError(
            f"pac.fit_bambi: expected a bambi.Model, got {type(model).__name__}; use "
            "pac.sample(model=…) for a model of PyMC"
        )
    for name in ("model", "var_names", "blocking", "return_inferencedata"):
        if name in kwargs:
            raise TypeError(f"pac.fit_bambi: expected no {name!r}; leave it out, or use pac.sample")
    if not model.built:
        model.build()
    backend, computed = model.backend, {var.name for var in model.backend.model.deterministics}
    # Parameters of the likelihood have a value for each observation.
    omitted = computed.intersection(model.family.likelihood.params)
    names = [var.name for var in backend.model.unobserved_RVs if var.name not in omitted]
    tree = sample(draws, model=backend.model, var_names=names, **kwargs)
    cleaned: DataTree = backend._clean_results(tree, omit_offsets, include_response_params)
    backend.fit = True
    return cleaned
