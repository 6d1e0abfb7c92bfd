"""The Gibbs step of a model through inducing points, and log densities at its draws."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from pymc.model import Model
from pymc.stats.convergence import SamplerWarning, WarningType

from pymc_augconj.engines.sparse.weights import ExpectedDensity, WithResidual
from pymc_augconj.errors import AugmentationError
from pymc_augconj.recognition.checks.whole_density import WholeDensity
from pymc_augconj.recognition.prediction.evaluate import unconstrained_function
from pymc_augconj.recognition.processes.through_inducing import nodes_of
from pymc_augconj.recognition.recognition import Recognition
from pymc_augconj.results.approximation.layout import Labels
from pymc_augconj.results.comparison.fits import DataTree
from pymc_augconj.results.predictions import needed_draws, predictions_tree

from .sparsify import Sparsified
from .step import AugmentedGibbs

_GROUP = "log_likelihood"
_OPTION = f"idata_kwargs[{_GROUP!r}]"

# Entries of the largest array from which PyMC's log density, with many such, is not evaluated.
_LARGEST_COMPARED = 2_000_000

# Error of the log density by quadrature from which a warning is given.
_LARGEST = 0.1


class SparseGibbs(AugmentedGibbs):
    """:class:`.AugmentedGibbs` for ``sparsified.model``, with all sites held."""

    def __init__(
        self,
        vars: Sequence[Any] | None = None,
        *,
        model: Model | None = None,
        sparsified: Sparsified,
        **kwargs: Any,
    ) -> None:
        self._given: Sparsified | None = sparsified
        super().__init__(vars, model=model, **kwargs)
        # Has been read; the graphs of a model need not go to worker processes.
        self._given = None

    def _read(
        self, model: Model, vars: Sequence[Any] | None, sites: str, compile_kwargs: Any
    ) -> tuple[Recognition, tuple[str, ...], WholeDensity | None]:
        given = self._given
        assert given is not None  # in the constructor
        lgm = given.recognition.model
        largest, by_rule = lgm.n_rows * lgm.latent_size, False
        for site in lgm.sites:
            assert isinstance(site.likelihood, ExpectedDensity)
            assert isinstance(site.params, WithResidual)
            # That of PyMC's model is another one.
            by_rule |= site.likelihood.terms.traits.expected_by_rule
            _, weights = nodes_of(max(site.params.outputs, 1), site.shape[0])
            largest = max(largest, weights.size * site.row_numbers.size)
        large = largest > _LARGEST_COMPARED
        density = None if given.inexact or by_rule or large else WholeDensity(model)
        return given.recognition, tuple(site.name for site in lgm.sites), density

    def _warn(self, trials: float) -> SamplerWarning | None:
        first = not (self.tune or self._warned)
        found = super()._warn(trials)
        return self._warn_of_quadrature() if first and found is None else found

    def _warn_of_quadrature(self) -> SamplerWarning | None:
        """Return a warning if sums by quadrature differ from the expectations."""
        assert self._sampler is not None  # in a step
        inexact = []
        (part,) = self._sampler.parts
        for data, _ in part.members:
            density, eta = data.site.likelihood, data.site.select(part.eta)
            assert isinstance(density, ExpectedDensity)
            if density.error(data.y, eta, data.params) > _LARGEST:
                inexact.append(data.site.name)
        if not inexact:
            return None
        return SamplerWarning(
            WarningType.BAD_PARAMS,
            f"The expected log densities of {inexact}: their quadrature has an error of "
            f"more than {_LARGEST} in their sum, since the process varies between the inducing "
            "points by more than the width of the densities. Use more inducing points.",
            "warn",
        )


def observed_names(
    model: Model, sparse: Model, asked: bool | Collection[str], kwargs: Mapping[str, Any]
) -> list[str]:
    """Return the observed variables that ``idata_kwargs={"log_likelihood": …}`` asks for."""
    known = [rv.name for rv in model.observed_RVs]
    if isinstance(asked, bool):
        names = known if asked else []
    elif unknown := set(asked) - set(known):
        raise AugmentationError(
            f"{_OPTION}: expected True or names among {known}, got {sorted(unknown)}"
        )
    else:
        names = [name for name in known if name in asked]
    if names and not kwargs.get("return_inferencedata", True):
        raise AugmentationError(
            f"{_OPTION}: expected a DataTree to add to, got return_inferencedata=False; leave out "
            "one of them"
        )
    free = [rv.name for rv in sparse.free_RVs]
    if names and (missing := set(free) - set(kwargs.get("var_names") or free)):
        raise AugmentationError(
            f"{_OPTION}: expected the draws of all free variables to be kept, found no "
            f"{sorted(missing)} in var_names; add them, or leave out var_names"
        )
    return names


def add_log_likelihood(
    tree: DataTree, step: AugmentedGibbs, sparse: Model, model: Model, names: Collection[str]
) -> DataTree:
    """Return draws of ``sparse`` with the group ``log_likelihood``.

    Its entries are E log p(y_i | f_i) given the values at the inducing inputs and the
    hyperparameters, the log factors of the draws' own distribution: leaving an observation out
    divides by its factor.
    """
    draws, sampled = needed_draws(tree, [rv.name for rv in sparse.free_RVs])
    variables = {rv.name: sparse.rvs_to_values[rv].name for rv in sparse.free_RVs}
    entries = unconstrained_function(sparse, list(variables))
    sampler = step.make_sampler(step.recognition.start, by_observation=True)
    found: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for i in range(len(sampled[0]) * len(sampled[1])):
        point = entries({name: draws[name][i] for name in entries.names})
        point = dict(zip(variables.values(), map(np.asarray, point), strict=True))
        for name, densities in sampler.log_densities(point).items():
            if name in found:
                found[name].append(densities)
    labels = Labels.of_model(model)
    dimmed = {
        name: (("sample", _dim(labels, name)), np.array(rows)) for name, rows in found.items()
    }
    tree.update(predictions_tree(dimmed, labels.coords, {}, sampled, _GROUP))
    return tree


def _dim(labels: Labels, name: str) -> str:
    """Return the dim of the observations of a variable with any number of axes."""
    dims = labels.of(name, 1)
    return dims[0] if len(dims) == 1 else f"{name}_dim_0"
