"""What recognition found, as a table a person can read."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.latents.space import cheapest_space
from pymc_augconj.model import LatentBlock, LatentGaussianModel
from pymc_augconj.plan import Plan, can_use_gradient, describe, has_many, make_plan

__all__ = ["Recognition"]

_TEXT_WIDTH = 100
_HTML = '<pre style="line-height: normal; font-family: monospace">{code}</pre>'


@dataclass(frozen=True)
class Recognition:
    """The result of :func:`~pymc_augconj.recognition`; print it.

    Attributes
    ----------
    model : LatentGaussianModel
        What the engines work on.
    kinds : tuple of str
        How each latent block enters the predictors.
    factors : tuple of str
        Observed variables and potentials that depend on hyperparameters alone.
    start : mapping
        PyMC's default initial point.
    probes : tuple of mapping
        Other values of the hyperparameters, at which structure is examined.
    """

    model: LatentGaussianModel
    kinds: tuple[str, ...]
    factors: tuple[str, ...] = ()
    start: Mapping[str, np.ndarray] = field(default_factory=dict)
    probes: tuple[Mapping[str, np.ndarray], ...] = ()

    def __rich__(self) -> Group:
        plan = make_plan(self.model)
        augmented = all(site.likelihood.can_augment for site in self.model.sites)
        tables = [self._latents(), self._sites()]
        if self.model.hyperparameters:
            table = _table(
                "Hyperparameters", "variable", "shape", "sampled by" if augmented else "set by"
            )
            nuts = augmented and self._by_gradient(plan)
            how = "pac.fit, which optimises it"
            for hyper in self.model.hyperparameters:
                if augmented:
                    how = describe(plan, hyper, by_gradient=nuts)
                table.add_row(hyper.name, _shape(hyper.shape), how)
            tables.append(table)
        for variable in self.model.forward:
            tables.append(Text(f"{variable.name}: drawn from its distribution given the rest"))
        for name in self.factors:
            tables.append(Text(f"{name}: depends on hyperparameters alone, part of their prior"))
        return Group(*tables)

    def _by_gradient(self, plan: Plan) -> bool:
        """Return whether the sampler's own choice is NUTS, as ``AugmentedGibbs`` makes it."""
        if not (has_many(plan) and can_use_gradient(self.model, plan)):
            return False
        groups = LatentPriors(self.model, (self.start, *self.probes)).groups
        return cheapest_space(self.model, groups).has_cheap_gradient

    def _latents(self) -> Table:
        table = _table("Gaussian latents", "variable", "size", "form", "enters through")
        for block, kind in zip(self.model.blocks, self.kinds, strict=True):
            table.add_row(block.name, _size(block), block.form, kind)
        return table

    def _sites(self) -> Table:
        table = _table("Observed", "variable", "size", "likelihood", "link", "augmentation")
        for site in self.model.sites:
            likelihood = site.likelihood
            table.add_row(
                site.name,
                f"{site.size:,}",
                likelihood.name,
                likelihood.link,
                likelihood.augmentation,
            )
        return table

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=_TEXT_WIDTH, color_system=None)
        console.print(self)
        return console.file.getvalue().rstrip()

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        console = Console(file=io.StringIO(), width=_TEXT_WIDTH, record=True, force_jupyter=False)
        console.print(self)
        return console.export_html(inline_styles=True, code_format=_HTML)

    def __repr__(self) -> str:
        blocks = ", ".join(block.name for block in self.model.blocks)
        sites = ", ".join(site.name for site in self.model.sites)
        return f"<Recognition: latents {blocks}; observed {sites}>"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column == "size" else "left")
    return table


def _size(block: LatentBlock) -> str:
    return f"{block.copies} × {block.size:,}" if block.copies > 1 else f"{block.size:,}"


def _shape(shape: tuple[int, ...]) -> str:
    return "scalar" if shape == () else " × ".join(str(length) for length in shape)
