"""Nothing is compiled: these tests look at values, not at speed."""

from __future__ import annotations

import numpy as np
import pytensor
import pytest

from pymc_augconj.python_mode import python_mode


@pytest.fixture(autouse=True)
def without_compilation():
    with pytensor.config.change_flags(mode=python_mode(), cxx=""):
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20_261_121)


@pytest.fixture
def y(rng) -> np.ndarray:
    return 1.5 * rng.standard_normal(7)
