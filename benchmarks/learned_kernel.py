"""Effective samples a second against NUTS where the kernel is learned.

The least over f, ls and eta. NUTS is kept short because its every gradient goes through a
Cholesky factorisation: 100 + 100 draws take minutes at n = 506. A short run flatters neither side
much in ESS a second, but its ESS is itself uncertain by tens of per cent; ``--nuts-draws`` makes
it longer.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import Row, Settings
from benchmarks.sampling import against_nuts

# Data, noise, bar, and the draws of NUTS, as many again for tuning.
PROBLEMS = (("housing", "student_t", 50.0, 100), ("heart", "logit", 20.0, 200))
GIBBS_DRAWS = 1000


def rows(settings: Settings) -> Iterator[Row]:
    """Yield a row per problem."""
    gibbs = {"draws": 100, "tune": 50} if settings.quick else {"draws": GIBBS_DRAWS, "tune": None}
    for name, noise, bar, usual_draws in PROBLEMS:
        draws = settings.nuts_draws or (20 if settings.quick else usual_draws)
        label = f"kernel learned, {name}, {noise}: least ESS/s"
        yield against_nuts(
            settings,
            label,
            bar,
            gibbs=gibbs,
            nuts={"draws": draws, "tune": draws},
            name=name,
            noise=noise,
            learned=True,
        )
