"""Effective samples a second against NUTS where the kernel is fixed."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import Row, Settings
from benchmarks.sampling import against_nuts

BAR = 15.0
PROBLEMS = (("housing", "student_t"), ("housing", "laplace"), ("heart", "logit"))


def rows(settings: Settings) -> Iterator[Row]:
    """Yield a row per problem; both samplers make 1000 draws after their default tuning."""
    gibbs = {"draws": 100, "tune": 50} if settings.quick else {"draws": 1000, "tune": None}
    nuts = {"draws": 100, "tune": 100} if settings.quick else {"draws": 1000, "tune": 1000}
    for name, noise in PROBLEMS:
        label = f"kernel fixed, {name}, {noise}: least ESS/s"
        yield against_nuts(
            settings, label, BAR, gibbs=gibbs, nuts=nuts, name=name, noise=noise, learned=False
        )
