"""Probabilities that are kept from being exactly 0 or 1."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_augconj as pac
from pymc_augconj.recognition.graph.rewrite import without_guards

EPS = np.finfo(float).eps


def guarded(p, low=EPS, high=1 - EPS):
    """As bambi writes it."""
    p = pt.switch(pt.eq(p, 0), low, p)
    return pt.switch(pt.eq(p, 1), high, p)


def test_a_guard_is_what_it_guards():
    p = pt.sigmoid(pt.vector("eta"))
    assert without_guards([guarded(p)]) == [p]
    (log_p,) = without_guards([pt.log(guarded(p))])
    assert log_p.owner.inputs == [p]
    # A guard within what is guarded.
    (outer,) = without_guards([guarded(pt.sigmoid(guarded(p)))])
    assert outer.owner.inputs == [p]


def test_what_changes_more_than_rounding_stays():
    p, q = pt.sigmoid(pt.vector("eta")), pt.vector("q")
    for graph in (
        guarded(p, low=1e-3, high=1 - 1e-3),
        pt.switch(pt.eq(p, 1), 1 - EPS, q),
        pt.switch(pt.eq(p, q), EPS, p),
        pt.switch(pt.ge(p, 1), 1 - EPS, p),
    ):
        assert without_guards([graph]) == [graph]


def test_a_guarded_probability_is_augmented():
    # Far out, where the guard acts: PyMC's density there is that of the guard.
    with pm.Model() as model:
        b = pm.Normal("b", 0, 60, shape=2)
        eta = b[0] + b[1] * np.linspace(-1, 1, 30)
        pm.Bernoulli("y", p=guarded(pm.math.invlogit(eta)), observed=np.arange(30) % 2)
    (site,) = pac.recognize(model).model.sites
    assert "Pólya–Gamma" in site.likelihood.augmentation
