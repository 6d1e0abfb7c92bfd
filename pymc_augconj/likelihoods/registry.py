"""The registry of likelihoods: the mechanism here, the entries in the files beside it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache

from .base import Density, DensityLikelihood, Pattern
from .contract import MultiDensity

_REGISTRY: dict[str, type[Density]] = {}


def register[Class: type[Density]](cls: Class) -> Class:
    """Register a likelihood, so that it is recognised in PyMC models; a class decorator.

    Recognition then uses the class for every observed variable that matches one of its
    ``patterns``. A subclass of :class:`Likelihood` (for several predictors
    :class:`MultiLikelihood`) works with auxiliary variables and with every engine; a subclass of
    :class:`DensityLikelihood` (:class:`MultiDensity`) works with held sites and with the engines
    that need only a density. Recognition compares ``log_density`` with PyMC's log density of the
    variable.

    Parameters
    ----------
    cls : type
        Its constructor takes no arguments, or the number of predictors if only the model has it,
        see :class:`Pattern`.

    Returns
    -------
    type
        ``cls``.

    Raises
    ------
    TypeError
        If ``cls`` is not such a subclass, or lacks a method or attribute of the contract.
    ValueError
        If another class has the same name and link, or one of the patterns.

    See Also
    --------
    unregister

    Examples
    --------
    Skew-normal noise is normal given a half-normal ω, but its density is enough to fit it:

    >>> import numpy as np, pymc as pm, pymc_augconj as pac
    >>> from scipy.special import log_ndtr
    >>> class SkewNormal(pac.DensityLikelihood):
    ...     name = "skew normal"
    ...     patterns = (pac.Pattern("SkewNormalRV", ("mu", "sigma", "alpha"), predictor="mu"),)
    ...
    ...     def log_density(self, y, eta, params):
    ...         e = (y - eta) / params["sigma"]
    ...         log_norm = np.log(params["sigma"]) + 0.5 * np.log(np.pi / 2)
    ...         return log_ndtr(params["alpha"] * e) - 0.5 * e**2 - log_norm
    >>> _ = pac.register(SkewNormal)
    >>> with pm.Model() as model:
    ...     f = pm.Normal("f", 0, 1)
    ...     y = pm.SkewNormal("y", mu=f, sigma=1, alpha=2, observed=[0.3, 1.2])
    >>> "skew normal" in str(pac.recognize(model))
    True
    >>> pac.unregister(SkewNormal)
    """
    if not (inspect.isclass(cls) and issubclass(cls, DensityLikelihood | MultiDensity)):
        raise TypeError(
            "expected a subclass of Likelihood, DensityLikelihood, MultiLikelihood or "
            f"MultiDensity, found {cls!r}"
        )
    missing = sorted(cls.__abstractmethods__)
    missing += [fact for fact in ("name", "patterns") if not hasattr(cls, fact)]
    if missing:
        raise TypeError(f"{cls.__name__}: expected {', '.join(missing)} to be defined, found none")
    if not cls.__module__.startswith(f"{__package__}."):
        _load_all()
    key = _key(cls)
    if key in _REGISTRY:
        raise ValueError(
            f"likelihood {key!r} is registered already, by {_REGISTRY[key].__module__}; "
            f"{cls.__module__} must take another name or link"
        )
    own = {_spelling(pattern) for pattern in cls.patterns}
    for other in _REGISTRY.values():
        shared = own & {_spelling(pattern) for pattern in other.patterns}
        if shared:
            raise ValueError(
                f"likelihood {key!r}: expected a pattern of its own, found {shared.pop()}, that of "
                f"{_key(other)!r}; unregister that one first"
            )
    _REGISTRY[key] = cls
    return cls


def unregister(cls: type[Density]) -> None:
    """Undo :func:`register`; earlier approximations and steps keep working.

    Parameters
    ----------
    cls : type

    Raises
    ------
    ValueError
        If ``cls`` is not registered.
    """
    if known_likelihoods().get(_key(cls)) is not cls:
        raise ValueError(f"expected a registered likelihood, found {cls!r}")
    del _REGISTRY[_key(cls)]


def known_likelihoods() -> dict[str, type[Density]]:
    """Return every registered likelihood, by ``"name (link)"``."""
    _load_all()
    return dict(_REGISTRY)


@cache
def _load_all() -> None:
    # Importing the folder's modules registers them, so that a new likelihood is one new file.
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{__package__}.{module.name}")


def _key(cls: type[Density]) -> str:
    return f"{cls.name} ({cls.link})"


def _spelling(pattern: Pattern) -> tuple[object, ...]:
    return pattern.rv, *((p.name, p.link, p.power, p.negate) for p in pattern.predictors)
