"""Spellings of likelihoods in PyMC models: declarative, without an import of PyMC."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal, get_args

Link = Literal[
    "identity", "logit", "probit", "log", "scaled_logit", "scaled_square", "scaled_log", "softmax"
]


@dataclass(frozen=True)
class PredictorInput:
    """One input of a :class:`Pattern` through which latents act.

    Parameters
    ----------
    name : str
        The entry of ``inputs``.
    link : str
        Dependence of that entry on the predictor η: ``"identity"``, ``"logit"`` (it is σ(η)),
        ``"probit"`` (Φ(η)), ``"log"`` (exp(η)), ``"scaled_logit"`` (r·σ(η)), ``"scaled_square"``
        (r·η²) or ``"scaled_log"`` (r·exp(η)); or ``"softmax"``, over the last axis, the axis of
        classes.
    power : float
        The entry is this power of the link's value: PyMC's σ of a normal distribution with
        precision r·σ(η) has the power −½.
    scale : str, optional
        For the scaled links: the name of r among the parameters of the likelihood.
    classes : bool
        Whether the entry has an axis of classes, the last one, with one predictor for each class.
    negate : bool
        True where PyMC's parametrisation has σ(−η).
    """

    name: str
    link: Link = "identity"
    power: float = 1.0
    scale: str | None = None
    classes: bool = False
    negate: bool = False

    def __post_init__(self) -> None:
        if self.link not in get_args(Link):
            raise ValueError(f"expected a link in {get_args(Link)}, found {self.link!r}")
        if (self.scale is not None) != self.link.startswith("scaled_"):
            raise ValueError(
                f"expected a scale for the links 'scaled_…' and for no other, found link "
                f"{self.link!r} with scale {self.scale!r}"
            )
        if self.classes and self.link not in ("identity", "softmax"):
            raise ValueError(
                f"expected the link 'identity' or 'softmax' of an input with classes, found "
                f"{self.link!r}"
            )
        if self.link == "softmax" and not self.classes:
            raise ValueError("expected classes=True with the link 'softmax', found False")


@dataclass(frozen=True)
class Pattern:
    """One spelling of a likelihood in PyMC models.

    With ``predictors`` in place of ``predictor`` there are as many predictors as entries, in that
    order: the rows of η. Or there is one entry, with an axis of K classes, and as many predictors
    as classes. Only the model has K, so that recognition constructs such a likelihood as
    ``likelihood(n_predictors=K)``. With the link ``"softmax"``, if the logit of one class does not
    depend on the latents, it constructs ``likelihood(n_predictors=K - 1, reference=k)``: class k
    has the logit zero and no predictor, the others follow in order (their predictors are
    differences from that logit).

    If an observation is a vector, such as the counts of a multinomial distribution, the likelihood
    gets its entries as ``params["entry_0"]``, ``params["entry_1"]`` and so on, each of shape (N,),
    and ``y`` is their sum. It gets a symmetric matrix, such as ``cov`` of a multivariate normal
    distribution, by its lower triangle, ``params["cov_0_0"]``, ``params["cov_1_0"]``,
    ``params["cov_1_1"]`` and so on.

    Parameters
    ----------
    rv : str
        Class name of the random variable's op, for instance ``"BernoulliRV"``.
    inputs : tuple of str
        Names for the op's distribution parameters, in PyMC's order.
    predictor, link, negate, scale
        The entry of ``inputs`` that depends on the latents, as for :class:`PredictorInput`.
    rename : mapping, optional
        From a name in ``inputs`` to the likelihood's name in ``params``.
    predictors : tuple of PredictorInput
        The entries of ``inputs`` that depend on the latents, if there are several.
    """

    rv: str
    inputs: tuple[str, ...]
    predictor: str | None = None
    link: Link = "identity"
    negate: bool = False
    scale: str | None = None
    rename: tuple[tuple[str, str], ...] = ()
    predictors: tuple[PredictorInput, ...] = ()

    def __post_init__(self) -> None:
        if self.predictor is not None:
            own = PredictorInput(self.predictor, self.link, scale=self.scale, negate=self.negate)
            object.__setattr__(self, "predictors", (own, *self.predictors))
        names = tuple(predictor.name for predictor in self.predictors)
        for name in names:
            if name not in self.inputs:
                raise ValueError(f"expected a predictor in inputs {self.inputs}, found {name!r}")
        if not names or len(set(names)) < len(names):
            raise ValueError(
                f"expected different predictors in inputs {self.inputs}, found {names}"
            )
        if len(names) > 1 and any(predictor.classes for predictor in self.predictors):
            raise ValueError(f"expected no other predictor beside classes, found {names}")

    @property
    def several(self) -> bool:
        """Whether an observation has several predictors."""
        return len(self.predictors) > 1 or self.predictors[0].classes

    def parameter_names(self) -> tuple[str, ...]:
        """Return the names of the entries of ``params``, in the order of ``inputs``.

        The entries ``entry_…`` are omitted.
        """
        renamed = dict(self.rename)
        moving = {predictor.name for predictor in self.predictors}
        names = [renamed.get(name, name) for name in self.inputs if name not in moving]
        scales = [p.scale for p in self.predictors if p.scale is not None]
        return (*names, *scales)


class MultiPattern(Pattern):
    """Former name of a :class:`Pattern` with ``predictors``."""

    def __init__(
        self,
        rv: str,
        inputs: tuple[str, ...],
        predictors: tuple[PredictorInput, ...],
        rename: tuple[tuple[str, str], ...] = (),
    ) -> None:
        warnings.warn(
            "MultiPattern: use Pattern(rv, inputs, predictors=…) instead; the name MultiPattern "
            "will be removed",
            FutureWarning,
            stacklevel=2,
        )
        super().__init__(rv, inputs, rename=rename, predictors=predictors)
