"""Observations of the likelihoods that PyMC lacks."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20_261_121)


@pytest.fixture
def y(rng) -> np.ndarray:
    return 1.5 * rng.standard_normal(7)
