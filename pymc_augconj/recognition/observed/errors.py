"""Messages for observed variables without an augmentation, and models without a latent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pymc.distributions.censored import CensoredRV
from pymc.distributions.distribution import PartialObservedRV
from pymc.distributions.transforms import Interval
from pymc.logprob.transforms import Transform
from pytensor.graph.basic import Variable
from pytensor.scan.op import Scan
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.errors import RecognitionError
from pymc_augconj.likelihoods.base import Pattern
from pymc_augconj.likelihoods.registry import known_likelihoods
from pymc_augconj.recognition.graph.affine import (
    depends_on,
    descendants,
    first_nonlinear_op,
    is_affine,
)
from pymc_augconj.recognition.graph.dependence import (
    ModelIndex,
    distribution_name,
    distribution_parameters,
    name_of_op,
)
from pymc_augconj.recognition.latents.innovations import Latents
from pymc_augconj.recognition.latents.normal import MOST_ORDERED

from .links import bound_of, describe_link

#: Largest order of a matrix parameter, which is read entry by entry.
LARGEST_MATRIX = 16
_ENGINES = (
    'pac.sample (sites="auto" or "held") samples this very model exactly, and pac.fit with method '
    "{} approximates it: {} an augmentation"
)
#: What works without an augmentation.
DENSITY_ENGINES = _ENGINES.format('"vgp", "ep", "qp" or "svi"', "none of them needs")
#: Likewise for latents within bounds.
BOUNDED_ENGINES = _ENGINES.format('"ep" or "qp"', "none of them needs")
#: Likewise with several predictors.
SEVERAL_ENGINES = _ENGINES.format('"vgp"', "neither needs")
#: What remains where latents multiply each other.
BY_TURNS = (
    "; draw the factors of a product by turns, naming one: pac.sample(vars=[latent]), or sample "
    "this model with pm.sample's NUTS"
)
_MISSING = (
    ", the missing entries of a masked array, which PyMC keeps together with the observed ones "
    "(leave the missing entries out instead; if they are of a series, let the whole series be "
    "latent, and observe it with noise)"
)
#: About potentials.
JOINT_DENSITY = (
    ", as in a joint normal density (observed distributions are read, also with missing entries: "
    "pm.MvNormal('y', mu, chol=chol, observed=y), y a masked array)"
)
_CENSORED = (
    ", a normal within bounds (if these are outcomes beyond a limit, they are read without values "
    "for them: pm.Censored('y', pm.Normal.dist(mu, sigma), lower, upper, observed=y))"
)
_WALKS = "pm.GaussianRandomWalk, x0 + (sigma * e).cumsum() or pm.AR, as scan is not read"


def about_prior(rv: Variable, transform: Transform | None) -> str:
    """Return advice on a variable whose prior depends on a latent; empty if there is none."""
    if isinstance(rv.owner.op, PartialObservedRV):
        return _MISSING
    if isinstance(transform, Interval) and distribution_name(rv) == "Normal":
        return _CENSORED
    return f" (write it as {_WALKS})" if _has_scan(rv) else ""


def _has_scan(rv: Variable) -> bool:
    """Return whether a custom distribution draws one value after another."""
    graph = getattr(rv.owner.op, "fgraph", None)
    return graph is not None and any(isinstance(node.op, Scan) for node in graph.apply_nodes)


def total_size(rv: Variable) -> str:
    """Return the message for ``total_size=…``."""
    return (
        f"observed variable {rv.name!r}: expected each observation to count once, found "
        "total_size=…, which multiplies the log density; pass all observations without "
        "total_size, or fit minibatches with pac.fit(method='svi')"
    )


def about_joint_normal(rv: Variable) -> str | None:
    """Return the message for a joint distribution of the noise and the latents."""
    if distribution_name(rv) not in ("MvNormal", "KroneckerNormal"):
        return None
    return (
        f"expected one distribution for each observation, found one {distribution_name(rv)} of "
        "all; write what they share as a latent variable, f = pm.MvNormal('f', mean, cov), or f = "
        "gp.prior('f', X=X) of a pm.gp.Latent in place of a pm.gp.Marginal, and the noise as a "
        "separate likelihood, pm.Normal('y', f, sigma, observed=y), or sample this model with "
        "pm.sample's NUTS"
    )


def unknown_distribution(rv: Variable) -> str:
    """Return the message for a distribution without an augmentation."""
    augmented = [cls for cls in known_likelihoods().values() if cls.can_augment]
    patterns = [pattern for cls in augmented for pattern in cls.patterns]
    if isinstance(rv.owner.op, CensoredRV):
        return (
            f"observed variable {rv.name!r}: no augmentation is known for censored observations, "
            f"here of {distribution_name(rv.owner.inputs[0])}, even if there is one without "
            "censoring. Sample this model with pm.sample's NUTS instead"
        )
    if isinstance(rv.owner.op, PartialObservedRV):
        return (
            f"observed variable {rv.name!r}: expected a plain distribution for masked "
            "observations, found a mixture or another compound distribution, whose observed and "
            "missing entries PyMC keeps together; leave the missing entries out (index the "
            "predictor by the observed ones), or sample this model with pm.sample's NUTS"
        )
    if (advice := about_joint_normal(rv)) is not None:
        return (
            f"observed variable {rv.name!r}: {advice}. An MvNormal is read as it is if latents "
            f"enter its mean alone, affinely, and vectors of more than {LARGEST_MATRIX} entries "
            "have one covariance"
        )
    name = distribution_name(rv)
    several = [p for p in patterns if p.several and name_of_op(p.rv) == name]
    if several:
        links = " or ".join(
            f"{own.name} = {own.link}(…)" for pattern in several for own in pattern.predictors
        )
        return (
            f"observed variable {rv.name!r}: no augmentation is known for {name} with these "
            f"parameters; expected {links} of affine predictors. Sample this model with "
            "pm.sample's NUTS instead"
        )
    known = sorted({name_of_op(pattern.rv) for pattern in patterns})
    walks = f", or {_WALKS}" if _has_scan(rv) else ""
    return (
        f"observed variable {rv.name!r}: no augmentation is known for the distribution "
        f"{name}; expected one of {', '.join(known)}{walks}. "
        "Sample this model with pm.sample's NUTS instead"
    )


def unknown_link(
    rv: Variable,
    candidates: Sequence[tuple[object, Pattern]],
    params: Sequence[Variable],
    inputs: Sequence[Variable],
) -> str:
    """Return the message for a link without an augmentation."""
    links = ", ".join(sorted({pattern.link for _, pattern in candidates}))
    moving = [graph for graph in params if depends_on(graph, inputs)]
    if not moving:
        return (
            f"observed variable {rv.name!r}: expected a predictor that contains a Gaussian latent "
            "variable, found one in which the latent variables cancel (as in f - f); leave them "
            "out of it, or sample this model with pm.sample's NUTS"
        )
    link = describe_link(moving[0], inputs)
    distribution = distribution_name(rv)
    sentence = (
        f"observed variable {rv.name!r}: no augmentation is known for {distribution} with "
        f"{link if link.startswith('a link') else link + ' link'}; expected the link "
        f"{links.replace('scaled_logit', 'scaled logit')}. "
    )
    if distribution == "Poisson" and link == "log":
        return sentence + (
            "A Poisson with a log link has no conjugate augmentation: use "
            "pm.Poisson(mu=rate * pm.math.invlogit(f)) with an upper bound on the rate, "
            "or pm.NegativeBinomial(mu=pm.math.exp(f), alpha=alpha), which are augmented exactly"
        )
    guards = {g for var in descendants(moving[0], inputs) if (g := bound_of(var)) is not None}
    if guards:
        sentence += (
            f"Remove {' and '.join(sorted(guards))} if used only against overflow, as logit_p "
            "needs none. "
        )
    return sentence + "Sample this model with pm.sample's NUTS instead, or change the link"


def not_affine(rv: Variable, eta: TensorVariable, latents: Latents) -> str:
    """Return the message for a predictor that is not affine in the latents."""
    inputs = [latent.input for latent in latents]
    op = first_nonlinear_op(eta, inputs)
    alone = [latent.name for latent in latents if not is_affine(eta, [latent.input])]
    names = alone or [latent.name for latent in latents if depends_on(eta, latent.input)]
    listed = " and ".join(repr(name) for name in names)
    how = (
        _WALKS if op == "Scan" else "a sum of latents with coefficients that do not depend on them"
    )
    return (
        f"observed variable {rv.name!r}: expected a predictor that is affine in the Gaussian "
        f"latent variables, but it is not in {listed} (through the operation {op}); "
        f"write it as {how}{BY_TURNS}"
    )


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
) -> RecognitionError:
    """Return the error of a model without a Gaussian latent variable.

    ``demoted`` has the reasons why Gaussian variables are not latents, by name.
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
            return RecognitionError(
                f"variable {rv.name!r} is Gaussian but has a transform, so that its distribution "
                "is another one (vectors within fixed bounds, and orders of at most "
                f"{MOST_ORDERED} entries, are read in a predictor); if that is not meant, remove "
                "the transform= argument; otherwise sample this model with pm.sample's NUTS"
            )
        if op_name in ("RandomWalkRV", "AutoRegressiveRV"):
            return RecognitionError(
                f"variable {rv.name!r} ({distribution_name(rv)}) is no Gaussian latent "
                "variable: expected normal innovations and a normal init_dist, of a random walk "
                "or an AR that is not transformed; a Gaussian random walk can also be written as "
                "z0 + sigma * pm.Normal('e', 0, 1, shape=n).cumsum(); or sample this model with "
                "pm.sample's NUTS"
            )
    listed = ", ".join(
        f"{rv.name!r} ({distribution_name(rv)})"
        + _MISSING * isinstance(rv.owner.op, PartialObservedRV)
        for rv in model.free_RVs
    )
    return RecognitionError(
        "the model has no Gaussian latent variable: expected a pm.gp.Latent prior, an MvNormal, a "
        "Normal or, where densities have no augmentation, two other real coefficients in the "
        f"predictor, found {listed or 'no free variable'}; sample this model with pm.sample"
    )
