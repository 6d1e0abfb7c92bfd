"""``pac.recognize``: read a model, and say how it will be sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymc.model import Model, modelcontext
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import AugmentationError
from pymc_augconj.recognition.processes.linear_time import in_linear_time

from .alternation import alternating
from .pilot import CHAINS, TUNE, WHOLE, expected_time
from .report import RecognitionReport, report_of


def recognize(
    model: Model | None = None,
    *,
    vars: Sequence[TensorVariable] | None = None,
    compile_kwargs: dict[str, Any] | None = None,
    pilot: float | None = None,
) -> RecognitionReport:
    """Read a PyMC model as a latent Gaussian model with augmented likelihoods.

    Of a likelihood without an augmentation only the density is used, given one affine predictor or
    several (a mean and a standard deviation, or one predictor for each class). That is enough for
    :func:`~pymc_augconj.sample`, which then approximates it by held Gaussian sites and corrects
    for them, and for the engines ``"vgp"``, ``"ep"``, ``"qp"`` and ``"svi"`` of
    :func:`~pymc_augconj.fit`. Nothing is sampled without ``pilot``, and the model is not changed.
    Print the result to see the latents, how each observed variable is treated and how each variable
    will be sampled.

    Parameters
    ----------
    model : pymc.Model, optional
        Taken from the context where omitted.
    vars : sequence of variables, optional
        The variables that a sampler is to update; Gaussian variables that are not among them are
        read as hyperparameters. By default every Gaussian variable is a latent.
    compile_kwargs : dict, optional
        ``{"mode": …}``: a PyTensor mode for the functions extracted from the model. By default
        they run without compilation; ``"NUMBA"`` evaluates a kernel matrix about twice as fast,
        after 10 s or more of compilation the first time.
    pilot : float, optional
        Make short runs of :func:`~pymc_augconj.sample`, of about so many seconds each, and print
        the time that a step and a run of the whole model are expected to take.

    Returns
    -------
    RecognitionReport
        Its ``model`` is the :class:`~pymc_augconj.model.LatentGaussianModel` for the engines.

    Notes
    -----
    How a latent enters the predictors (column *enters through*): ``identity``, one entry per
    observation, in order; ``selection``, one entry per observation, perhaps times data, such as an
    intercept, a slope or a group effect; ``design matrix``, several entries per observation. A
    predictor is the sum over all latents.

    A ``pm.Potential`` that depends on latents is read like an observed variable without an
    augmentation, if it is a sum of terms of which each entry depends on one affine predictor. A
    Normal variable in a potential is a hyperparameter instead where other latents remain. A
    potential of hyperparameters alone is part of their prior.

    Raises
    ------
    NotAffineError
        A predictor is not affine in the Gaussian latents, or a potential is no such sum.
    UnknownLikelihoodError
        An observed variable has neither a likelihood with a known augmentation nor a density
        whose parameters depend on one affine predictor.
    DataError
        An observation is out of its likelihood's range, or an input is not finite.
    RecognitionError
        There is no Gaussian latent variable, nothing is observed, the model is one of single
        precision, or the reading disagrees with PyMC's own log density.
    TypeError
        One of ``vars`` is no variable.
    """
    given = modelcontext(model)
    linear = in_linear_time(given)
    if linear is not given and vars is not None:
        vars = [linear[var.name] if isinstance(var, TensorVariable) else var for var in vars]
    report = report_of(linear, vars=vars, compile_kwargs=compile_kwargs)
    if report.alternates and (names := alternating(report, report.plan)):
        try:
            report_of(linear, vars=[linear[n] for n in names], compile_kwargs=compile_kwargs)
        except AugmentationError as error:
            report.refusal = str(error)
    if pilot is not None:
        a_step, run = expected_time(given, pilot)
        report.expected = (
            f"Expected time: {1e3 * a_step:.2g} ms a step; {run:.2g} s for {CHAINS} chains of "
            f"{TUNE} + {WHOLE:,} steps, one after the other"
        )
    return report
