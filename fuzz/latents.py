"""Latent blocks: Gaussian variables of every kind, as vectors of a given size and scale."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .hyperparameters import positive, positives, real
from .source import Source, identifier, literal

__all__ = ["latent", "scalar_latent"]

Scale = float | NDArray[np.float64]


def scalar_latent(source: Source, scale: float) -> str:
    """Return a Gaussian scalar: an intercept, or a coefficient."""
    if not source.afford(1):
        return literal(source.number(scale))
    scale = source.wild_scale(scale)
    mean = real(source, scale) if source.chance(0.3) else "0.0"
    return source.free("b", "pm.Normal", f"{mean}, {_spread(source, scale)}")


def latent(source: Source, size: int, scale: Scale) -> str:
    """Return a Gaussian vector of this size; standard deviations are about ``scale``."""
    if source.is_tiny:
        return _tiny(source, size, scale)
    if np.ndim(scale):
        return source.pick((_normal, _normal, _non_centred, _multivariate))(source, size, scale)
    kinds = _STRUCTURED if source.wild and source.chance(0.4) else _KINDS
    return source.pick(kinds)(source, size, source.wild_scale(float(scale)))


def _tiny(source: Source, size: int, scale: Scale) -> str:
    """Take what few scalars are left."""
    if source.afford(size):
        kinds = (_normal, _normal, _non_centred, _multivariate)
        if np.ndim(scale) == 0:
            kinds += (_not_normal, _not_normal)
        if np.ndim(scale) == 0 and size > 1:
            kinds += (_process, _process)
        return source.pick(kinds)(source, size, scale)
    if np.ndim(scale) == 0:
        return f"pt.full(({size},), {scalar_latent(source, float(scale))})"
    return source.data("fixed", source.normal(size, scale))


def _spread(source: Source, scale: Scale) -> str:
    """Return an argument for a standard deviation, in one of the spellings."""
    if np.ndim(scale):
        code = source.data("sds", np.asarray(scale))
        unit = positive(source) if source.chance(0.3) else "1.0"
        code = code if unit == "1.0" else f"{unit} * {code}"
        return f"sigma={code}" if source.chance(0.7) else f"tau=1.0 / ({code}) ** 2"
    spelling = source.pick(("sigma", "sigma", "tau", "precision"))
    if spelling == "sigma":
        return f"sigma={positive(source, float(scale), random=0.4)}"
    if spelling == "tau":
        return f"tau={positive(source, float(scale) ** -2, random=0.4)}"
    return f"tau={positive(source, float(scale), random=0.4)} ** -2"


# -- normal vectors -------------------------------------------------------------------------------


def _normal(source: Source, size: int, scale: Scale) -> str:
    mean = "0.0"
    if source.chance(0.2):
        mean = source.data("means", source.normal(size, scale))
    elif source.chance(0.1) and np.ndim(scale) == 0:
        mean = real(source, float(scale))
    if source.chance(0.2) and np.ndim(scale) == 0 and not source.is_tiny:
        return source.free(
            "beta",
            "pm.Normal",
            f"{mean}, {positives(source, size, float(scale))}, {source.dims(size)}",
        )
    spread = _spread(source, scale)
    return source.free("beta", "pm.Normal", f"{mean}, {spread}, {source.dims(size)}")


def _not_normal(source: Source, size: int, scale: Scale) -> str:
    """Return coefficients of another prior, of about this scale."""
    unit = float(scale)
    mean = real(source, unit) if source.chance(0.2) else "0.0"
    spread = positive(source, unit, random=0.3)
    fixed = repr(unit)
    name, arguments = source.pick(
        (
            ("StudentT", f"nu={positive(source, 4.0, random=0.2)}, mu={mean}, sigma={spread}"),
            ("Laplace", f"mu={mean}, b={spread}"),
            ("Cauchy", f"alpha={mean}, beta={spread}"),
            ("Logistic", f"mu={mean}, s={spread}"),
            ("AsymmetricLaplace", f"b=1.0 / {spread}, kappa=1.3, mu={mean}"),
            ("SkewNormal", f"mu={mean}, sigma={spread}, alpha=2.0"),
            ("Uniform", f"lower=-2.0 * {fixed}, upper=3.0 * {fixed}"),
            ("TruncatedNormal", f"mu={mean}, sigma={spread}, lower=-{fixed}"),
            ("NormalMixture", f"w=[0.3, 0.7], mu=[0.0, {fixed}], sigma=[0.3 * {fixed}, {fixed}]"),
        )
    )
    return source.free("beta", f"pm.{name}", f"{arguments}, {source.dims(size)}")


def _non_centred(source: Source, size: int, scale: Scale) -> str:
    z = source.free("z", "pm.Normal", f"0.0, 1.0, {source.dims(size)}")
    if np.ndim(scale):
        unit = source.data("sds", np.asarray(scale))
    else:
        unit = positive(source, float(scale))
    code = source.pick((f"{unit} * {z}", f"{z} * {unit}", f"{z} / (1.0 / {unit})"))
    return source.temporary("effect", code)


def _centred(source: Source, size: int, scale: Scale) -> str:
    """A hierarchy: a mean that is a latent itself, one for all or one for each group."""
    scale = float(scale)
    if source.chance(0.3):
        groups = int(source.rng.integers(1, 4))
        idx = source.data("idx", source.rng.integers(0, groups, size))
        mean = f"{_normal(source, groups, scale)}[{idx}]"
    else:
        mean = scalar_latent(source, scale)
        if source.chance(0.3):
            mean = f"{mean} + {scalar_latent(source, scale)} * {literal(source.number())}"
    spread = _spread(source, source.pick((scale, scale, 0.01 * scale)))
    return source.free("alpha", "pm.Normal", f"{mean}, {spread}, {source.dims(size)}")


def _multivariate(source: Source, size: int, scale: Scale) -> str:
    root = np.diag(np.broadcast_to(scale, size)) @ (
        np.eye(size) + 0.4 * np.tril(source.normal((size, size)), -1)
    )
    how = source.pick(("cov", "chol", "tau", "scaled") if np.ndim(scale) == 0 else ("cov", "chol"))
    mean = f"np.zeros({size})"
    if source.chance(0.3):
        mean = source.data("means", source.normal(size, scale))
    if how == "chol":
        argument = f"chol={source.data('root', root)}"
    elif how == "cov":
        argument = f"cov={source.data('cov', root @ root.T)}"
    elif how == "tau":
        inverse = np.linalg.inv(root)
        argument = f"tau={source.data('precision', inverse.T @ inverse)}"
    else:
        unit = root / float(scale)
        cov = source.data("cov", unit @ unit.T)
        argument = f"cov={positive(source, float(scale))} ** 2 * {cov}"
    return source.free("u", "pm.MvNormal", f"{mean}, {argument}, shape={size}")


def _correlated(source: Source, size: int, scale: Scale) -> str:
    """A random covariance: Cholesky factor with an LKJ prior."""
    name, chol = source.name("packed"), identifier(source.name("chol"))
    # Of one row PyMC has none.
    asked, size = size, 3 if size > 2 else 2
    source.statement(
        f"{chol}_, *_ = pm.LKJCholeskyCov({name!r}, eta=2.0, n={size}, "
        f"sd_dist=pm.Exponential.dist({1.0 / float(scale)!r}, size={size}))"
    )
    if source.chance(0.5):
        u = source.free("u", "pm.MvNormal", f"np.zeros({size}), chol={chol}_, shape={size}")
    else:
        u = f"({chol}_ @ {source.free('z', 'pm.Normal', f'0.0, 1.0, shape={size}')})"
    return f"{u}[np.arange({asked}) % {size}]"


def _walk(source: Source, size: int, scale: Scale) -> str:
    """A random walk as a cumulative sum of its steps."""
    step = positive(source, float(scale) / np.sqrt(size))
    z = source.free("steps", "pm.Normal", f"0.0, 1.0, {source.dims(size)}")
    return source.temporary("walk", f"pt.cumsum({step} * {z})")


def _solved(source: Source, size: int, scale: Scale) -> str:
    """An autoregression as the solution of a system of equations."""
    system = np.eye(size) - 0.5 * np.eye(size, k=-1)
    z = source.pick((_normal, _centred))(source, size, scale)
    return f"pt.linalg.solve({source.data('system', system)}, {z})"


def _random_walk_of_pymc(source: Source, size: int, scale: Scale) -> str:
    step = positive(source, float(scale) / np.sqrt(size))
    start = f"init_dist=pm.Normal.dist(0.0, {source.wild_scale(float(scale))!r})"
    length = max(size, 2)
    walk = source.free("rw", "pm.GaussianRandomWalk", f"sigma={step}, {start}, shape={length}")
    return f"{walk}[:{size}]"


def _autoregression(source: Source, size: int, scale: Scale) -> str:
    noise = positive(source, float(scale))
    rho = source.free("rho", "pm.Uniform", "-0.9, 0.9") if source.chance(0.5) else "0.6"
    if source.wild:
        rho = _wild_coefficient(source)
    order = source.pick(("one", "one", "constant", "two"))
    start = f"init_dist=pm.Normal.dist(0.0, {float(scale)!r})"
    # Powers of a coefficient beyond one are the larger, the longer the series is.
    length = max(size, 3) if not source.wild else source.pick((max(size, 3), 30))
    if order == "two":
        coefficients = f"rho=pt.stack([{rho}, -0.2])"
        start = f"init_dist=pm.Normal.dist(0.0, {float(scale)!r}, shape=2)"
    elif order == "constant":
        coefficients = f"rho=pt.stack([{0.3 * float(scale)!r}, {rho}]), constant=True"
    else:
        coefficients = f"rho=pt.stack([{rho}])"
    series = source.free("ar", "pm.AR", f"{coefficients}, sigma={noise}, {start}, shape={length}")
    return f"{series}[:{size}]"


def _wild_coefficient(source: Source) -> str:
    """Return an autoregression's coefficient around one and beyond."""
    if source.chance(0.3):
        return source.pick(("0.999999", "1.0", "-1.0", "1.3", "-2.0", "5.0"))
    arguments = source.pick(
        (
            *(("pm.Normal", "0.5, 0.5"), ("pm.Normal", "0.0, 3.0"), ("pm.Normal", "1.0, 0.01")),
            ("pm.Uniform", "-1.5, 1.5"),
        )
    )
    return source.free("rho", *arguments)


def _map(source: Source, size: int, scale: Scale) -> str:
    """Areas in a row, or in a ring, with neighbours that are alike."""
    areas = max(size, 3)
    W = np.eye(areas, k=1) + np.eye(areas, k=-1)
    W[0, -1] = W[-1, 0] = float(source.chance(0.5))
    neighbours = source.data("W", W)
    if source.chance(0.5):
        field = source.free("phi", "pm.ICAR", f"W={neighbours}")
        return f"({positive(source, float(scale))} * {field}[:{size}])"
    tau = positive(source, float(scale) ** -2)
    arguments = f"mu=np.zeros({areas}), W={neighbours}, alpha=0.7, tau={tau}"
    field = source.free("phi", "pm.CAR", arguments)
    return f"{field}[:{size}]"


def _zero_sum(source: Source, size: int, scale: Scale) -> str:
    # Beyond that PyMC's own condition, a mean of zero within 1e-9, does not hold for rounding.
    spread = min(float(scale), 1e4)
    effect = source.free("zs", "pm.ZeroSumNormal", f"sigma={spread!r}, shape={size + 1}")
    return f"{effect}[:-1]"


# -- processes ------------------------------------------------------------------------------------


def _process(source: Source, size: int, scale: Scale) -> str:
    unit = source.unit(0.25)
    n_dims = source.pick((1, 1, 2))
    inputs = source.data("X", source.normal((size, n_dims), unit), shared=0.2)
    amplitude = positive(source, float(scale))
    covariance = f"{amplitude} ** 2 * {_kernel(source, n_dims, unit)}"
    if source.chance(0.25):
        more = _kernel(source, n_dims, unit)
        covariance += f" + {positive(source, 0.5 * float(scale))} ** 2 * {more}"
    mean = ""
    if source.chance(0.3):
        level = real(source, float(scale))
        constant = f"pm.gp.mean.Constant({level})"
        slopes = literal(source.normal(n_dims, float(scale) / unit))
        linear = f"pm.gp.mean.Linear(coeffs={slopes}, intercept={level})"
        mean = f", mean_func={source.pick((constant, linear))}"
    process = f"pm.gp.Latent(cov_func={covariance}{mean})"
    # A jitter must be of the covariance's own size.
    options = f", jitter={1e-6 * float(scale) ** 2!r}"
    options += source.pick(("", "", ", reparameterize=False"))
    if source.chance(0.12) and not mean and not source.is_tiny:
        options += ", n_outputs=2"
        both = source.free("f", f"{process}.prior", f"X={inputs}{options}")
        return source.pick((f"{both}[1]", f"({both}[0] - 0.5 * {both}[1])", f"{both}.sum(axis=0)"))
    return source.free("f", f"{process}.prior", f"X={inputs}{options}")


def _kernel(source: Source, n_dims: int, unit: float) -> str:
    if n_dims == 2 and source.chance(0.3):
        length = positives(source, 2, source.wild_scale(unit))
        return f"pm.gp.cov.Matern52(2, ls={length})"
    length = positive(source, source.wild_scale(unit))
    kind = source.pick(("ExpQuad", "Matern52", "Matern32", "Exponential", "RatQuad", "Periodic"))
    if kind == "RatQuad":
        return f"pm.gp.cov.RatQuad({n_dims}, alpha={positive(source)}, ls={length})"
    if kind == "Periodic":
        period = literal(source.number(3.0 * unit))
        return f"pm.gp.cov.Periodic({n_dims}, period={period}, ls={literal(source.number())})"
    if kind == "Exponential" and source.chance(0.3):
        linear = f"pm.gp.cov.Linear({n_dims}, c=0.0)"
        return f"(pm.gp.cov.{kind}({n_dims}, ls={length}) + {unit**-2!r} * {linear})"
    return f"pm.gp.cov.{kind}({n_dims}, ls={length})"


def _basis_functions(source: Source, size: int, scale: Scale) -> str:
    unit = source.unit(0.2)
    inputs = source.data("X", np.sort(source.normal((size, 1), unit), axis=0))
    kind = source.pick(("ExpQuad", "Matern52"))
    covariance = f"{positive(source, float(scale))} ** 2 * pm.gp.cov.{kind}(1, ls={unit!r})"
    process = f"pm.gp.HSGP(m=[4], L=[{4.0 * unit!r}], cov_func={covariance}"
    process += source.pick((")", ", parametrization='noncentered')", ", drop_first=True)"))
    return source.free("f", f"{process}.prior", f"X={inputs}")


_KINDS: tuple[Callable[[Source, int, Scale], str], ...] = (
    *(_not_normal, _not_normal),
    *(_normal, _normal, _normal, _normal, _normal, _non_centred, _non_centred, _non_centred),
    *(_centred, _centred, _centred, _multivariate, _multivariate, _multivariate, _walk, _solved),
    *(_process, _process, _process, _process, _process, _process, _basis_functions, _correlated),
    *(_random_walk_of_pymc, _autoregression, _map, _zero_sum),
)
# What conditioning is hard for.
_STRUCTURED = (
    *(_process, _process, _process, _autoregression, _autoregression, _random_walk_of_pymc),
    *(_walk, _centred, _basis_functions, _map),
)
