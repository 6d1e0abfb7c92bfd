import numpy as np
import pytest

from pymc_augconj.auxiliary.laplace_transform.complete_monotonicity import check_completely_monotone

ACCEPTED = {
    "Laplace": lambda s: -np.sqrt(s) / 0.3,
    "Laplace, small scale": lambda s: -np.sqrt(s) / 1e-6,
    "Student": lambda s: -2.5 * np.log1p(s / (4 * 0.3)),
    "Student as a power": lambda s: np.log((1 + s / (4 * 0.3)) ** -2.5),
    "Student, many degrees of freedom": lambda s: -500 * np.log1p(s / 999),
    "Matérn-3/2": lambda s: np.log1p(np.sqrt(2 * s)) - np.sqrt(2 * s),
    "Matérn-3/2, plainly": lambda s: np.log((1 + np.sqrt(2 * s)) * np.exp(-np.sqrt(2 * s))),
    "logit": lambda s: np.log(2) - np.sqrt(s) / 2 - np.log1p(np.exp(-np.sqrt(s))),
    "logit, which overflows": lambda s: -np.log(np.cosh(np.sqrt(s) / 2)),
    "exp(1 − (1 + r)^0.3)": lambda s: 1 - (1 + s) ** 0.3,
    "stable 0.1": lambda s: -(s**0.1),
    "stable 0.9": lambda s: -(s**0.9),
    "point mass": lambda s: -s,
    "point mass at zero": lambda s: 0 * s,
    "atom": lambda s: np.log(0.3 + 0.7 / (1 + s)),
    "heavy atom": lambda s: np.log(0.95 + 0.05 / (1 + s)),
    "logarithm": lambda s: -np.log1p(np.log1p(s)),
    "shifted": lambda s: -s - 0.5 * np.log1p(s),
    "Poisson": lambda s: 5 * np.expm1(-s),
    "difference of exponentials": lambda s: np.log(1.3 / (1 + s) - 0.3 / (1 + s / 2)),
    "Bayesian SVM": lambda s: -2 * np.sqrt(s),
}
#: log φ, and the order at which it must fail (None: by its density; 0: by its values).
REFUSED = {
    "1/(1 + r²)": (lambda s: -np.log1p(s * s), 2),
    "1/(1 + (r/1e-8)²)": (lambda s: -np.log1p((s * 1e8) ** 2), 2),
    "increasing": (lambda s: np.log1p(s), 1),
    "exponentially increasing": (lambda s: 0.1 * s, 1),
    "exp(−r²)": (lambda s: -s * s, 2),
    "cos √r": (lambda s: np.log(np.cos(np.sqrt(s))), 0),
    "exp(−r^1.2)": (lambda s: -(s**1.2), 2),
    "exp(−r^1.01)": (lambda s: -(s**1.01), 2),
    "φ(0) = 1/e": (lambda s: -1 - s, 0),
    "φ(0) = 0.7": (lambda s: np.log(0.7 / (1 + s)), 0),
    "NaN": (lambda s: s * np.nan, 0),
    "NaN from 3 on": (lambda s: np.where(s.real > 3, np.nan, -s), 0),
    "negative atom": (lambda s: np.log(1.01 / (1 + s) - 0.01), 0),
    "rational": (lambda s: np.log((1 + s / 10) / (1 + s + s * s)), 2),
    "density e^{−ω}(1 + 1.05 cos 2ω)": (
        lambda s: np.log((1 / (1 + s) + 1.05 * (1 + s) / ((1 + s) ** 2 + 4)) / 1.21),
        None,
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_completely_monotone_is_accepted(name):
    assert check_completely_monotone(ACCEPTED[name]) is None


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_with_where_and_why(name):
    log_phi, order = REFUSED[name]
    reason = check_completely_monotone(log_phi)
    assert reason.startswith("expected a density" if order is None else "expected")
    assert (f"its derivative of order {order} not" in reason) == bool(order)
    assert "found" in reason


def test_reasons():
    reason = check_completely_monotone(lambda s: -1.0 - s)
    assert reason == "expected φ(0) = 1, that is log φ(0) = 0, found log φ(0) = -1"
    reason = check_completely_monotone(lambda s: -np.log1p(s * s))
    assert "its derivative of order 2 not negative, found a negative one" in reason


def test_a_late_failure_is_placed():
    """φ = 0.999 exp(−√r) + 0.001 cos(r): fails far out, where the first part has died."""
    reason = check_completely_monotone(
        lambda s: np.log(0.999 * np.exp(-np.sqrt(s)) + 0.001 * np.cos(s))
    )
    assert float(reason.rpartition("r = ")[2]) > 1.0
