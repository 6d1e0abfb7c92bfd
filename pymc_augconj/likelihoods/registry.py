"""The registry of likelihoods: the mechanism here, the entries in the files beside it."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from .base import DensityLikelihood

__all__ = ["known_likelihoods", "register"]

_REGISTRY: dict[str, type[DensityLikelihood]] = {}


def register(cls: type[DensityLikelihood]) -> type[DensityLikelihood]:
    """Enter a likelihood class; a class decorator.

    Raises
    ------
    ValueError
        If another class of the same name and link is registered already.
    """
    key = f"{cls.name} ({cls.link})"
    if key in _REGISTRY:
        raise ValueError(
            f"likelihood {key!r} is registered already, by {_REGISTRY[key].__module__}; "
            f"{cls.__module__} must take another name or link"
        )
    _REGISTRY[key] = cls
    return cls


@cache
def _load_all() -> None:
    # Importing the folder's modules registers them, so that a new likelihood is one new file.
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{__package__}.{module.name}")


def known_likelihoods() -> dict[str, type[DensityLikelihood]]:
    """Return every registered likelihood, by ``"name (link)"``."""
    _load_all()
    return dict(_REGISTRY)
