"""Reading super-Gaussian likelihoods: their formulas become plain functions of NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytensor.tensor as pt
from pymc.model import Model
from pytensor.graph.basic import Variable

from pymc_augconj.distributions.conditions import distinct, initial_values
from pymc_augconj.distributions.formula import Formula
from pymc_augconj.distributions.super_gaussian import Family
from pymc_augconj.errors import RecognitionError
from pymc_augconj.likelihoods.super_gaussian import Phi, SuperGaussian
from pymc_augconj.recognition.graph.dependence import distribution_parameters

__all__ = ["likelihood_of", "parameters_of_family", "phi_of"]


def phi_of(formula: Formula) -> Phi:
    """Return log φ with its derivatives as functions of NumPy arrays."""
    names = _names(formula.parameters)
    return Phi(names=names, log_phi=formula.evaluate, slope=partial(formula.derivative, 1))


def likelihood_of(model: Model, rv: Variable, family: Family) -> SuperGaussian:
    """Return the likelihood of an observed variable.

    Raises
    ------
    RecognitionError
        If a closed form was asked for and φ is none of the known ones.
    """
    phi = phi_of(family.log_phi)
    if not family.closed_form:
        return SuperGaussian(phi, family.is_location)
    _, *parameters = distribution_parameters(rv)
    values = distinct(initial_values(family.select("log_phi", parameters), model))[0]
    known = SuperGaussian.find_known(phi, values)
    if known is None:
        raise RecognitionError(
            f"observed variable {rv.name!r}: expected, with closed_form=True, a log_phi of a known "
            "family, found none that agrees with it; tried Laplace, Matérn (3/2 and 5/2), "
            "Student-t and logistic; leave closed_form=True out to draw ω by inversion of φ"
        )
    return SuperGaussian(phi, family.is_location, known)


def parameters_of_family(
    family: Family, y: Variable, parameters: Sequence[Variable]
) -> dict[str, Variable]:
    """Return the graphs of the likelihood's parameters, by their names in ``params``."""
    names = _names(family.log_phi.parameters)
    named = dict(zip(names, family.select("log_phi", parameters), strict=True))
    return {**named, **family.constants(pt.as_tensor(y), parameters)}


def _names(parameters: Sequence[Variable]) -> tuple[str, ...]:
    # Numbered, because names need be neither given nor distinct.
    return tuple(f"phi_{i}" for i in range(len(parameters)))
