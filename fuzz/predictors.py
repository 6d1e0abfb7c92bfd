"""Affine expressions in the latents: what a likelihood sees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .hyperparameters import positive, positives, probability, real
from .latents import latent, scalar_latent
from .source import Source, literal

__all__ = ["predictor"]


def predictor(source: Source, size: int, scale: float) -> str:
    """Return the code of a predictor of shape (size,), of prior standard deviation ``scale``."""
    count = source.pick((1, 1, 1, 1, 2, 2, 2, 3) if not source.is_tiny else (1, 1, 2))
    terms = [_term(source, size, scale) for _ in range(count)]
    if source.wild and source.chance(0.3):
        wide = source.number(10.0 ** int(source.rng.integers(3, 10)))
        terms.append(source.free("wide", "pm.Normal", f"0.0, {wide!r}"))
    if source.chance(0.3):
        terms.append(_offset(source, size, scale))
    if all("(" not in term and "_" not in term for term in terms):
        terms.append(_slope(source, size, scale))  # numbers alone
    total = terms[0]
    for term in terms[1:]:
        total += source.pick((f" + {term}", f" + {term}", f" - {term}"))
    if source.chance(0.1):
        total = f"{positive(source)} * ({total})"
    return f"({total})"


def _term(source: Source, size: int, scale: float) -> str:
    kinds = _TINY if source.is_tiny else _KINDS
    return source.pick(kinds)(source, size, scale)


def _offset(source: Source, size: int, scale: float) -> str:
    if source.chance(0.5):
        return source.data("offset", source.normal(size, scale), shared=0.3)
    if source.chance(0.5):
        return real(source, scale)
    if source.chance(0.1) and not source.is_tiny:
        return f"{literal(0.1 * scale)} * {source.free('count', 'pm.Poisson', '2.0')}"
    # A function of a hyperparameter that is not linear in it.
    x = source.data("x", source.normal(size))
    return f"{literal(source.number(scale))} * pt.tanh({real(source)} * {x})"


# -- one coefficient ------------------------------------------------------------------------------


def _intercept(source: Source, size: int, scale: float) -> str:
    return scalar_latent(source, scale)


def _slope(source: Source, size: int, scale: float) -> str:
    unit = source.unit()
    x = source.data("x", source.normal(size, unit), shared=0.2)
    b = scalar_latent(source, scale / unit)
    return source.pick((f"{b} * {x}", f"{x} * {b}", f"pt.as_tensor({x}) * {b}"))


# -- vectors --------------------------------------------------------------------------------------


def _identity(source: Source, size: int, scale: float) -> str:
    return latent(source, size, scale)


def _selected(source: Source, size: int, scale: float) -> str:
    groups = int(source.rng.integers(1, max(size, 2)))
    groups = min(groups, 2) if source.is_tiny else groups
    v = latent(source, groups, scale)
    idx = source.data("idx", source.rng.integers(0, groups, size), shared=0.2)
    if source.chance(0.05):
        share = f"np.full({groups}, {1.0 / groups!r})"
        idx = source.free("group", "pm.Categorical", f"{share}, observed={idx}")
    code = f"{v}[{idx}]"
    if source.chance(0.3):
        unit = source.unit()
        x = source.data("x", source.normal(size, unit))
        code = f"{literal(1.0 / unit)} * {code} * {x}"
    return code


def _regression(source: Source, size: int, scale: float) -> str:
    count = 2 if source.is_tiny else int(source.rng.integers(1, 5))
    units = np.array([source.unit() for _ in range(count)])
    X = source.normal((size, count)) * units
    if source.chance(0.2):
        X[:, 0] = units[0]
    if source.chance(0.15):
        X[source.rng.random((size, count)) < 0.3] = 0.0
    if source.chance(0.3):
        # Entries of very different sizes within a column.
        X = X * 10.0 ** source.rng.integers(-6, 1, (size, count))
    v = latent(
        source, count, scale / units if source.chance(0.4 if source.wild else 0.8) else scale
    )
    design = source.data("X", np.array([[float(f"{x:.5g}") for x in row] for row in X]), shared=0.3)
    forms = (
        f"pt.as_tensor({design}) @ {v}",
        f"pm.math.dot({design}, {v})",
        f"({design} * {v}).sum(axis=1)",
        f"pt.dot({design}, {v})",
        f"({v} @ pt.as_tensor({design}).T)",
    )
    return source.pick(forms)


def _by_columns(source: Source, size: int, scale: float) -> str:
    """A regression whose columns depend on hyperparameters, each in its own unit."""
    unit = source.unit()
    first = source.data("x", source.normal(size, unit))
    second = source.data("x", np.abs(source.normal(size)))
    v = latent(source, 2, np.array([scale / unit, scale]))
    rate = positive(source)
    columns = f"pt.stack([pt.as_tensor({first}), pt.exp(-{rate} * {second})], axis=1)"
    return f"{columns} @ {v}"


def _lagged(source: Source, size: int, scale: float) -> str:
    if source.is_tiny:
        return _selected(source, size, scale)
    v = source.temporary("v", latent(source, size + 1, scale))
    forms = (
        f"({v}[1:] - {v}[:-1])",
        f"pt.diff({v})",
        f"({v}[1:] - {v}[0])",
        f"({v} - {v}.mean())[1:]",
        f"(0.5 * {v}[:-1] + 0.25 * {v}[1:])",
        f"{v}[::-1][1:]",
        f"pt.cumsum({v})[1:] / {float(np.sqrt(size))!r}",
    )
    return source.pick(forms)


def _assembled(source: Source, size: int, scale: float) -> str:
    """Parts put together: joined, stacked, chosen by data, set into an array."""
    half = max(size // 2, 1)
    rest = max(size - half, 1)
    first = source.temporary("part", latent(source, half, scale))
    second = source.temporary("part", latent(source, rest, scale))
    if half + rest != size:
        return f"({first} + {second})"
    idx = source.data("idx", source.rng.permutation(size))
    mask = source.data("mask", source.rng.random(size) < 0.5)
    both = f"pt.concatenate([{first}, {second}])"
    forms = (
        both,
        f"{both}[{idx}]",
        f"pt.where({mask}, {both}, 0.5 * {first}[0])",
        f"pt.set_subtensor({both}[:{half}], 2.0 * {first})",
        f"pt.inc_subtensor(({both})[{half}:], {first}[0])",
        f"(pt.zeros({size})[{idx}].set({both}))",
        f"pt.switch({mask}, {both}, {both}[::-1])",
    )
    return source.pick(forms)


def _outer(source: Source, size: int, scale: float) -> str:
    rows = 2
    columns = max(-(-size // rows), 1)
    first = source.temporary("part", latent(source, rows, scale))
    second = source.temporary("part", latent(source, columns, scale))
    forms = (
        f"({first}[:, None] + {second}[None, :]).ravel()[:{size}]",
        f"pt.add.outer({second}, {first}).T.ravel()[:{size}]",
        f"(pt.repeat({first}, {columns})[:{size}] - pt.tile({second}, {rows})[:{size}])",
        f"({first}[:, None] * np.linspace(0.1, 1.0, {columns}) + {second}).flatten()[:{size}]",
    )
    return source.pick(forms)


def _scaled(source: Source, size: int, scale: float) -> str:
    """A latent times a hyperparameter, or times one for each entry."""
    unit = source.unit()
    v = _plain(source, size, scale / unit)
    forms = (
        lambda: f"{positive(source, unit)} * {v}",
        lambda: f"{v} / {positive(source, 1.0 / unit)}",
        lambda: f"{positives(source, size, unit)} * {v}",
        lambda: f"pt.sqrt({positive(source, unit**2)}) * {v}",
        lambda: f"(1.0 - {probability(source)}) * {unit!r} * {v}",
        lambda: f"{real(source, unit)} * {v}",
    )
    return source.pick(forms)()


def _weighted(source: Source, size: int, scale: float) -> str:
    """Two latents with weights that add up to one."""
    first, second = _plain(source, size, scale), _plain(source, size, scale)
    if source.afford(1):
        weights = source.free("weights", "pm.Dirichlet", "np.array([2.0, 1.5])")
        return f"({weights}[0] * {first} + {weights}[1] * {second})"
    return f"(0.3 * {first} + 0.7 * {second})"


def _of_a_matrix(source: Source, size: int, scale: float) -> str:
    """Latents of several axes."""
    spread = positive(source, scale)
    distribution, arguments = source.pick(
        (
            ("pm.Normal", f"0.0, {spread}, shape=(2, {size})"),
            ("pm.Normal", f"np.array([[0.1], [-0.2]]), {spread}, shape=(2, {size})"),
            (
                "pm.MvNormal",
                f"np.zeros({size}), cov={spread} ** 2 * (0.5 + 0.5 * np.eye({size})), "
                f"shape=(2, {size})",
            ),
        )
    )
    B = source.free("B", distribution, arguments)
    idx = source.data("idx", source.rng.integers(0, 2, size))
    forms = (
        f"{B}[{idx}, np.arange({size})]",
        f"({B}[0] - 0.4 * {B}[1])",
        f"{B}.sum(axis=0)",
        f"{B}.T[:, 1]",
        f"({literal(source.normal((2, size)))} * {B}).sum(axis=0)",
        f"(np.array([0.3, -0.6]) @ {B})",
    )
    return source.pick(forms)


def _plain(source: Source, size: int, scale: float) -> str:
    kind = source.pick((_intercept, _slope, _identity, _selected))
    code = kind(source, size, scale)
    return f"({code})"


def _mapped(source: Source, size: int, scale: float) -> str:
    """Any matrix of data on a vector: an operator, an integral, an interpolation."""
    count = 2 if source.is_tiny else int(source.rng.integers(2, 7))
    operator = source.data("operator", source.normal((size, count), 1.0 / np.sqrt(count)))
    return f"pt.as_tensor({operator}) @ {latent(source, count, scale)}"


Term = Callable[[Source, int, float], str]

_TINY: tuple[Term, ...] = (
    *(_intercept, _slope, _slope, _selected, _regression, _scaled, _scaled, _by_columns, _mapped),
)
_KINDS: tuple[Term, ...] = (
    *(_intercept, _slope, _slope, _identity, _identity, _identity, _selected, _selected),
    *(_regression, _regression, _by_columns, _lagged, _assembled, _outer, _scaled, _scaled),
    *(_mapped, _weighted, _of_a_matrix),
)
