"""Hyperparameters: priors in many spellings, at any scale, with and without transforms."""

from __future__ import annotations

import numpy as np

from .source import Source, literal

__all__ = ["positive", "positives", "probability", "real"]

# Each has the typical value {u}.
_POSITIVE = (
    "pm.HalfNormal({name}, {u}{more})",
    "pm.HalfNormal({name}, tau={per_u2}{more})",
    "pm.Exponential({name}, {per_u}{more})",
    "pm.Exponential({name}, scale={u}{more})",
    "pm.Gamma({name}, 3.0, {three_per_u}{more})",
    "pm.Gamma({name}, mu={u}, sigma={half_u}{more})",
    "pm.InverseGamma({name}, 4.0, {three_u}{more})",
    "pm.InverseGamma({name}, mu={u}, sigma={half_u}{more})",
    "pm.LogNormal({name}, {log_u}, 0.5{more})",
    "pm.Uniform({name}, {half_u}, {three_u}{more})",
    "pm.TruncatedNormal({name}, mu={u}, sigma={u}, lower={tenth_u}{more})",
    "pm.TruncatedNormal({name}, mu={u}, sigma={half_u}, lower=0.0, upper={three_u}{more})",
    "pm.HalfStudentT({name}, nu=4, sigma={u}{more})",
    "pm.HalfCauchy({name}, {u}{more})",
    "pm.Weibull({name}, 2.0, {u}{more})",
    "pm.ChiSquared({name}, 3{more}) * {u}",
    "pm.Beta({name}, 2.0, 2.0{more}) * {u}",
    "pm.LogNormal({name}, 0.0, 0.3{more}) * {u}",
    "pt.exp(pm.StudentT({name}, nu=5, mu={log_u}, sigma=0.3{more}))",
    "pt.exp(pm.Uniform({name}, {log_u} - 1.0, {log_u} + 1.0{more}))",
    "pm.Truncated({name}, pm.Gamma.dist(2.0, {per_u}), lower={tenth_u}{more})",
    "pm.Mixture({name}, w=[0.4, 0.6], comp_dists=[pm.HalfNormal.dist({u}), "
    "pm.Gamma.dist(3.0, {three_per_u})]{more})",
)
# Distributions whose own transform is to the logarithm may be given it, or none, by hand.
_OWN_TRANSFORM = ("pm.HalfNormal", "pm.Exponential", "pm.Gamma", "pm.LogNormal", "pm.Weibull")


def positive(source: Source, unit: float = 1.0, *, random: float = 0.5) -> str:
    """Return a positive scalar of the order of ``unit``: a number, a variable or a function."""
    if not source.chance(random) or not source.afford(1):
        return literal(source.number(unit))
    template = source.pick(_POSITIVE)
    if "Mixture" in template and not source.chance(0.3):
        template = _POSITIVE[0]
    code = _write(source, template, source.number(unit), "")
    return source.temporary("scale", code) if source.chance(0.3) else f"({code})"


def positives(source: Source, size: int, unit: float = 1.0) -> str:
    """Return a vector of positive values, as data or as a random vector."""
    if source.chance(0.4) or not source.afford(size):
        return source.data("scales", np.abs(source.normal(size, unit)) + 0.3 * unit, shared=0.2)
    template = source.pick(_POSITIVE[:6])
    return _write(source, template, source.number(unit), f", {source.dims(size)}")


def _write(source: Source, template: str, u: float, shape: str) -> str:
    more = shape
    if template.startswith(_OWN_TRANSFORM) and source.chance(0.15):
        # With transform= it would follow the logarithm that these have by default.
        more += f", default_transform={source.pick(('transforms.log', 'transforms.log_exp_m1'))}"
    values = {
        "u": u,
        "per_u": 1.0 / u,
        "per_u2": 1.0 / u**2,
        "three_per_u": 3.0 / u,
        "half_u": u / 2.0,
        "three_u": 3.0 * u,
        "tenth_u": u / 10.0,
        "log_u": float(np.log(u)),
    }
    filled = {key: repr(float(f"{value:.8g}")) for key, value in values.items()}
    name = source.name(source.pick(("s", "sd", "tau_", "ls", "amplitude", "theta", "kappa")))
    return template.format(name=repr(name), more=more, **filled)


def real(source: Source, scale: float = 1.0) -> str:
    """Return a real scalar that is no Gaussian latent: a number, or a variable."""
    if source.chance(0.6) or not source.afford(1):
        return f"({literal(float(source.normal((), scale)))})"
    u = source.number(scale)
    template = source.pick(
        (
            "pm.Uniform({name}, -{u}, {u})",
            "pm.StudentT({name}, nu=5, mu=0.0, sigma={u})",
            "pm.Laplace({name}, 0.0, {u})",
            "pm.Logistic({name}, {u}, {u})",
            "pm.SkewNormal({name}, mu=0.0, sigma={u}, alpha=2.0)",
            "pm.Triangular({name}, lower=-{u}, c=0.0, upper={u})",
        )
    )
    name = source.name("shift")
    return f"({template.format(name=repr(name), u=u)})"


def probability(source: Source) -> str:
    """Return a number between zero and one, or a random one."""
    if source.chance(0.5) or not source.afford(1):
        return literal(float(np.clip(source.number(0.3), 0.01, 0.95)))
    name = repr(source.name("share"))
    template = source.pick(
        (
            "pm.Beta({name}, 2.0, 3.0)",
            "pm.Beta({name}, mu=0.4, nu=6.0)",
            "pm.Uniform({name}, 0.05, 0.9)",
            "pm.LogitNormal({name}, 0.0, 1.0)",
            "pm.Kumaraswamy({name}, 2.0, 2.0)",
        )
    )
    return f"({template.format(name=name)})"
