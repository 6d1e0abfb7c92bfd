"""The Gibbs step of a model through inducing points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymc.model import Model
from pymc.stats.convergence import SamplerWarning, WarningType

from pymc_augconj.engines.sparse.expected import ExpectedDensity
from pymc_augconj.engines.sparse.weights import WithResidual
from pymc_augconj.recognition.checks.whole_density import WholeDensity
from pymc_augconj.recognition.processes.through_inducing import nodes_of
from pymc_augconj.recognition.recognition import Recognition

from .sparsify import Sparsified
from .step import AugmentedGibbs

__all__ = ["SparseGibbs"]

# Entries of the largest array from which PyMC's log density, with many such, is not evaluated.
_LARGEST_COMPARED = 2_000_000

# Error of the log density by quadrature from which a warning is given.
_LARGEST = 0.1


class SparseGibbs(AugmentedGibbs):
    """:class:`.AugmentedGibbs` of a sparsified model, every site of which is held.

    Parameters
    ----------
    vars, model
        As for every step method; ``model`` is ``sparsified.model``.
    sparsified : Sparsified
    **kwargs
        Other options of :class:`.AugmentedGibbs`, except ``sites``.
    """

    def __init__(
        self,
        vars: Sequence | None = None,
        *,
        model: Model | None = None,
        sparsified: Sparsified,
        **kwargs: Any,
    ) -> None:
        self._given: Sparsified | None = sparsified
        super().__init__(vars, model=model, **kwargs)
        # Has been read; the graphs of a model need not go to worker processes.
        self._given = None

    def _recognize(self, model: Model, vars: Sequence | None, compile_kwargs: Any) -> Recognition:
        assert self._given is not None  # in the constructor
        return self._given.recognition

    def _choose_held(self, sites: str) -> tuple[str, ...]:
        return tuple(site.name for site in self.recognition.model.sites)

    def _density_of(self, model: Model) -> WholeDensity | None:
        assert self._given is not None  # in the constructor
        lgm = self.recognition.model
        largest, by_rule = lgm.n_rows * lgm.latent_size, False
        for site in lgm.sites:
            assert isinstance(site.likelihood, ExpectedDensity)
            assert isinstance(site.params, WithResidual)
            # That of PyMC's model is another one.
            by_rule |= site.likelihood.terms.traits.expected_by_rule
            _, weights = nodes_of(max(site.params.outputs, 1), site.shape[0])
            largest = max(largest, weights.size * site.row_numbers.size)
        large = largest > _LARGEST_COMPARED
        return None if self._given.inexact or by_rule or large else WholeDensity(model)

    def _warn(self, trials: float) -> SamplerWarning | None:
        first = not (self.tune or self._warned)
        found = super()._warn(trials)
        return self._warn_of_quadrature() if first and found is None else found

    def _warn_of_quadrature(self) -> SamplerWarning | None:
        """Return a warning where the sums by quadrature are not the expectations."""
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
