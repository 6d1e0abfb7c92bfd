"""Messages for a model without a Gaussian latent variable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from pytensor.graph.basic import Variable

from pymc_augconj.errors import AugmentationError, RecognitionError
from pymc_augconj.recognition.graph.dependence import (
    ModelIndex,
    distribution_name,
    distribution_parameters,
)
from pymc_augconj.recognition.observed.errors import about_joint_normal

# PyMC's name for the potential of a process that it has integrated out.
_OF_MARGINAL_APPROX = "marginalapprox_loglik_"


def has_integrated_process(model: ModelIndex, outcomes: Iterable[Variable]) -> bool:
    """Return whether the model has integrated a process out, as ``pm.gp.Marginal`` does.

    Its covariance depends on hyperparameters, which are sampled as for a latent process.
    ``outcomes`` are further observed variables.
    """
    every = [*model.observed_RVs, *outcomes]
    vectors = [rv for rv in every if getattr(rv.owner.op, "ndim_supp", 0)]
    joint = [rv for rv in vectors if about_joint_normal(rv) is not None]
    return any(model.parents_of(distribution_parameters(rv)[1:]) for rv in joint) or any(
        potential.name.startswith(_OF_MARGINAL_APPROX) for potential in model.potentials
    )


def no_latent(
    model: ModelIndex,
    demoted: Mapping[str, str],
    chosen: Collection[str] | None,
    refused: Callable[[], AugmentationError | None],
) -> RecognitionError:
    """Return the error of a model without a Gaussian latent variable.

    ``demoted`` has the reasons why Gaussian variables are not latents, by name; ``refused()`` the
    reason why the model would also be refused without transforms.
    """
    if demoted:
        listed = "; ".join(f"variable {n!r} is Gaussian, but {why}" for n, why in demoted.items())
        return RecognitionError(
            f"{listed}: expected a Gaussian variable that enters the model only through predictors "
            "and means; sample this model with pm.sample's NUTS"
        )
    if chosen is not None:
        return RecognitionError(
            "expected at least one Gaussian latent variable among the variables to sample, found "
            f"{sorted(chosen)}; name one (vars=[f, …]), or leave vars out"
        )
    for rv in model.free_RVs:
        op_name = type(rv.owner.op).__name__
        if op_name in ("NormalRV", "MvNormalRV") and model.rvs_to_transforms[rv] is not None:
            what = (
                f"variable {rv.name!r} is Gaussian but has a transform, so that its distribution "
                "is a truncated or ordered one, and none without is in a predictor; "
            )
            why = str(refused() or "").split(";")[0]
            if not why:
                return RecognitionError(
                    f"{what}if that is not meant, remove the transform= argument; otherwise "
                    "sample this model with pm.sample's NUTS"
                )
            return RecognitionError(
                f"{what}sample this model with pm.sample's NUTS (without the transform it would be "
                f"refused, too: {why})"
            )
        if op_name in ("RandomWalkRV", "AutoRegressiveRV"):
            return RecognitionError(
                f"variable {rv.name!r} ({distribution_name(rv)}) is no Gaussian latent "
                "variable: expected normal innovations and a normal init_dist, of a random walk "
                "or an AR that is not transformed; a Gaussian random walk can also be written as "
                "z0 + sigma * pm.Normal('e', 0, 1, shape=n).cumsum(); or sample this model with "
                "pm.sample's NUTS"
            )
    listed = ", ".join(f"{rv.name!r} ({distribution_name(rv)})" for rv in model.free_RVs)
    return RecognitionError(
        "the model has no Gaussian latent variable: expected a pm.gp.Latent prior, an MvNormal, a "
        "Normal or another real coefficient in the predictor, found "
        f"{listed or 'no free variable'}; sample this model with pm.sample's NUTS"
    )
