"""Messages for observed variables without an augmentation."""

from __future__ import annotations

from collections.abc import Sequence

from pymc.distributions.censored import CensoredRV
from pymc.distributions.distribution import PartialObservedRV
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_augconj.likelihoods.base import Pattern
from pymc_augconj.likelihoods.registry import known_likelihoods
from pymc_augconj.recognition.graph.affine import (
    depends_on,
    descendants,
    first_nonlinear_op,
    is_affine,
)
from pymc_augconj.recognition.graph.dependence import distribution_name, name_of_op
from pymc_augconj.recognition.latents.innovations import GaussianVariable

from .links import bound_of, describe_link

#: Largest order of a matrix parameter, which is read entry by entry.
LARGEST_MATRIX = 16
#: What works without an augmentation.
DENSITY_ENGINES = (
    'pac.sample (sites="auto" or "held") samples this very model exactly, and pac.fit with method '
    '"vgp", "ep", "qp" or "svi" approximates it: none of them needs an augmentation'
)
#: Likewise for latents within bounds.
BOUNDED_ENGINES = (
    'pac.sample (sites="auto" or "held") samples this very model exactly, and pac.fit with method '
    '"ep" or "qp" approximates it: none of them needs an augmentation'
)
#: Likewise with several predictors.
SEVERAL_ENGINES = (
    'pac.sample (sites="auto" or "held") samples this very model exactly, and pac.fit with method '
    '"vgp" approximates it: neither needs an augmentation'
)


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
    return (
        f"observed variable {rv.name!r}: no augmentation is known for the distribution "
        f"{name}; expected one of {', '.join(known)}. "
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


def not_affine(rv: Variable, eta: TensorVariable, latents: Sequence[GaussianVariable]) -> str:
    """Return the message for a predictor that is not affine in the latents."""
    inputs = [latent.input for latent in latents]
    op = first_nonlinear_op(eta, inputs)
    alone = [latent.name for latent in latents if not is_affine(eta, [latent.input])]
    names = alone or [latent.name for latent in latents if depends_on(eta, latent.input)]
    listed = " and ".join(repr(name) for name in names)
    return (
        f"observed variable {rv.name!r}: expected a predictor that is affine in the Gaussian "
        f"latent variables, but it is not in {listed} (through the operation {op}); "
        "write it as a sum of latents with coefficients that do not depend on them, or sample "
        "this model with pm.sample's NUTS"
    )
