"""Small dense problems with brute-force answers, in the plainest formulas."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import pytest

# Processes of tests are forked from one that has imported all, which takes seconds each.
get_context("forkserver").set_forkserver_preload(["pymc_augconj"])


def pytest_collection() -> None:
    """Collect no garbage, of which imports make little."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what is imported out of the collections of garbage, of which graphs make much.

    Collections of all that is left took 8 % of the time: they come after ten times as many others.
    """
    gc.enable()
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], 100)


@pytest.fixture(scope="session", autouse=True)
def _without_compilation() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Let PyMC's own functions run uncompiled: compiling them takes longer than all the tests.

    With COMPILED=1 in the environment they are compiled, as they are for users.
    """
    # Imported here, as the process that hands out the tests would take seconds before it begins.
    import pytensor

    from pymc_augconj.python_mode import python_mode

    change = pytensor.config.change_flags
    names = ("mode", "cxx", "traceback__limit")
    as_users_have_it = {name: getattr(pytensor.config, name) for name in names}
    # Nor does a node record where it was made, a third of the time of making it.
    ours = {"mode": python_mode(), "cxx": "", "traceback__limit": 0}
    with change(**(as_users_have_it if os.environ.get("COMPILED") == "1" else ours)):
        yield lambda: change(**as_users_have_it)


@pytest.fixture(scope="session")
def compiled(_without_compilation) -> Callable[[], AbstractContextManager[None]]:
    """A context in which PyMC's own functions are compiled, as they are for users."""
    return _without_compilation


@dataclass(frozen=True)
class Problem:
    """A prior N(m, K), K = chol_K chol_Kᵀ, and sites (h, λ), with the dense answers."""

    K: np.ndarray
    chol_K: np.ndarray
    m: np.ndarray
    h: np.ndarray
    lam: np.ndarray

    def cov(self) -> np.ndarray:
        """Σ = (K⁻¹ + Λ)⁻¹."""
        return np.linalg.inv(np.linalg.inv(self.K) + np.diag(self.lam))

    def mean(self) -> np.ndarray:
        """μ = Σ (h + K⁻¹m)."""
        return self.cov() @ (self.h + np.linalg.solve(self.K, self.m))

    def log_normalizer(self) -> float:
        """log ∫ exp(hᵀη − ½ ηᵀΛη) N(η | m, K) dη, by completing the square."""
        prior_term = np.linalg.solve(self.K, self.m)
        log_dets = np.linalg.slogdet(self.cov())[1] - np.linalg.slogdet(self.K)[1]
        quadratic = (self.h + prior_term) @ self.mean() - self.m @ prior_term
        return 0.5 * float(log_dets + quadratic)


PRECISIONS: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "ordinary": lambda rng, i: rng.uniform(0.05, 3.0, i.size),
    "some zero": lambda rng, i: rng.uniform(0.05, 3.0, i.size) * (i % 3 != 0),
    "all zero": lambda rng, i: np.zeros(i.size),
    "some 1e-200": lambda rng, i: np.where(i % 2, 1e-200, rng.uniform(size=i.size)),
    "some 1e-5": lambda rng, i: np.where(i % 2, 1e-5, rng.uniform(size=i.size)),
    "some 1e8": lambda rng, i: np.where(i % 4, rng.uniform(size=i.size), 1e8),
}


def build_problem(kind: str, size: int = 9) -> Problem:
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 3.0, size)
    K = np.asfortranarray(1.7 * np.exp(-np.abs(x[:, None] - x) / 0.8))
    lam = PRECISIONS[kind](rng, np.arange(size))
    # A site of high precision λ has h = λ times its datum.
    h = rng.normal(size=size) * np.maximum(1.0, lam)
    return Problem(K, np.asfortranarray(np.linalg.cholesky(K)), rng.normal(size=size), h, lam)


@pytest.fixture(params=PRECISIONS)
def problem(request: pytest.FixtureRequest) -> Problem:
    """A problem for each kind of site precision."""
    return build_problem(request.param)


@pytest.fixture
def ordinary() -> Problem:
    """A problem with moderate site precisions."""
    return build_problem("ordinary")


@pytest.fixture
def large() -> Problem:
    """A problem of more columns than one block of the triangle walks."""
    return build_problem("some zero", size=300)


@pytest.fixture
def finite_difference() -> Callable[..., np.ndarray]:
    """The gradient of a scalar function by central differences, of the shape of `x`."""

    def gradient_of(func: Callable[[np.ndarray], float], x: np.ndarray, step: float = 1e-5):
        gradient = np.empty_like(x)
        for index in np.ndindex(x.shape):
            shift = np.zeros_like(x)
            shift[index] = step
            gradient[index] = (func(x + shift) - func(x - shift)) / (2.0 * step)
        return gradient

    return gradient_of
