"""Writing auxiliary variables into a model, for :meth:`.base.Likelihood.joint`, without PyMC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from pymc_augconj.typing import Array

_LOG_2PI = np.log(2.0 * np.pi)

#: The auxiliary variables in the order in which they are written, and log p(y | ω, η), a function
#: of y, η, each auxiliary variable, and the parameters by name.
Joint = tuple[Sequence[Any], Callable[..., Any]]


class JointWriter(Protocol):
    """Writes auxiliary variables with the shape of y into a model.

    Every method returns the new variable; ``name`` is appended to the name of y.
    """

    @property
    def math(self) -> Any:
        """A module with NumPy's elementwise functions and ``gammaln``, for variables."""
        ...

    def gamma(self, name: str, shape: Any, rate: Any) -> Any:
        """Write a gamma variable."""
        ...

    def inverse_gamma(self, name: str, shape: Any, scale: Any) -> Any:
        """Write an inverse gamma variable."""
        ...

    def normal(self, name: str, mean: Any, std: Any, start: Any) -> Any:
        """Write a normal variable with initial value ``start``."""
        ...

    def poisson(self, name: str, rate: Any) -> Any:
        """Write a Poisson variable."""
        ...

    def polya_gamma(self, name: str, h: Any) -> Any:
        """Write a PG(h, 0) variable."""
        ...

    def numerical(
        self,
        name: str,
        distribution: str,
        logpdf: Callable[..., Array],
        random: Callable[..., Array],
        parameters: Sequence[Any],
        *,
        positive: bool,
    ) -> Any:
        """Write a variable whose density NumPy computes, without derivatives.

        ``logpdf`` is ``(value, *parameters)``, which broadcast, ``random`` is ``(rng, shape,
        *parameters)``; a graph of the model shows ``distribution``. With ``positive`` the support
        is the positive half-line.
        """
        ...

    def evaluate(self, function: Callable[..., Array], *arguments: Any) -> Any:
        """Return an elementwise NumPy function of variables, without derivatives."""
        ...


def normal_factor(math: Any, precision: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Return log N(y | η, 1/λ), λ = precision(ω, params), as a function (y, η, ω, params)."""

    def log_factor(y: Any, eta: Any, omega: Any, params: Any) -> Any:
        lam = precision(omega, params)
        return 0.5 * (math.log(lam) - _LOG_2PI - lam * (y - eta) ** 2)

    return log_factor
