"""Tables of a parsed model, and of the moves that will sample it."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any

from pymc.model import Model
from pytensor.tensor.variable import TensorVariable
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pymc_augconj.block import LatentBlock
from pymc_augconj.engines.gibbs.choice import choose_held
from pymc_augconj.engines.gibbs.factors import choose_factors
from pymc_augconj.engines.variational.bound import is_sum_over_predictors
from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.choice import cheapest_solver
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.latents.rows import RowGroups
from pymc_augconj.likelihoods.generic import GenericLikelihood
from pymc_augconj.model import Site
from pymc_augconj.plan import Plan, describe, make_plan
from pymc_augconj.recognition.processes.other_graphs import in_linear_time
from pymc_augconj.recognition.recognizer import Recognition, read_model

from .step_choices import alternating, not_in_turn, uses_gradient

_TEXT_WIDTH = 100
# Predictors of an observed variable that are listed one by one.
_MOST_LISTED = 3
# Columns with scales of their own from which NUTS has more effective draws a second.
_MANY_COLUMNS = 80
# Predictors of an observation, and of all, from which expectations over densities take seconds.
_MANY_PREDICTORS, _MANY_ROWS = 4, 1_000
# Correlated factors, drawn in turn with their loadings, from which NUTS is faster.
_MANY_FACTORS = 3
# Other hyperparameters from which it often has, if there are fewer latents; and with any latents.
_MANY_SLICED, _MOST_SLICED = 12, 30
_HTML = '<pre style="line-height: normal; font-family: monospace">{code}</pre>'


def in_best_form(model: Model, *, grids: bool, keywords: Mapping[str, Any] | None = None) -> Model:
    """Return the model in linear time, with ``grids`` if these leave no matrix of their size.

    Otherwise they save nothing, and the draws would lack the whitened values. They stay, too, where
    ``keywords`` of ``pm.sample`` name these.
    """
    found = in_linear_time(model, grids=grids)
    if found.named_vars.keys() <= model.named_vars.keys():
        return found
    keywords = keywords or {}
    starts = keywords.get("initvals") or ()
    points = [starts] if isinstance(starts, Mapping) else starts
    needed = {getattr(key, "name", key) for point in points for key in point or ()}
    needed.update(keywords.get("var_names") or ())
    if needed & (model.named_vars.keys() - found.named_vars.keys()):
        return in_linear_time(model)
    try:
        report = report_of(found, vars=None, compile_kwargs=None)
    except AugmentationError:
        return in_linear_time(model)
    blocks = report.model.blocks
    cells = min((block.total_size for block in blocks if block.grid), default=0)
    order = cheapest_solver(blocks, report._groups).order(blocks, report._groups)
    return found if 2 * order < cells else in_linear_time(model)


def report_of(
    model: Model, *, vars: Sequence[TensorVariable] | None, compile_kwargs: dict[str, Any] | None
) -> RecognitionReport:
    """Return the report of a model as it is written."""
    found = read_model(model, vars=vars, compile_kwargs=compile_kwargs)
    found.require_proper()
    return RecognitionReport(**{field.name: getattr(found, field.name) for field in fields(found)})


class RecognitionReport(Recognition):
    """The result of :func:`recognize`: print it to see the tables."""

    #: The time of a step and of a run, in words, after a pilot run.
    expected: str | None = None
    #: Reason why variables that multiply the latents cannot be drawn in turn with these.
    refusal: str | None = None

    @cached_property
    def _held(self) -> tuple[str, ...]:
        return choose_held(self.model, self.start, probes=self.probes)

    @cached_property
    def _groups(self) -> RowGroups:
        return LatentPriors(self.model, (self.start, *self.probes)).groups

    @cached_property
    def plan(self) -> Plan:
        """The moves of the step."""
        factors = choose_factors(self.model, self._held, self.start, self._groups)
        return make_plan(self.model, self._held, factors)

    def __rich__(self) -> Group:
        held, plan = self._held, self.plan
        model, of_latents = self.model, zip(self.model.blocks, self.kinds, strict=True)
        forms = {block.name: block.form for block in model.blocks}
        tables: list[Table | Text] = [
            _table(
                "Gaussian latents",
                ("variable", "size", "form", "enters through"),
                [(block.name, _size(block), block.form, kind) for block, kind in of_latents],
            ),
            _table(
                "Observed",
                ("variable", "size", "likelihood", "link", "sites"),
                [_row(s, forms, self._link(s), _kind(s, held)) for s in model.sites],
            ),
        ]
        multiplying = alternating(self, plan)
        in_turn = () if self.refusal else multiplying
        if model.hyperparameters:
            nuts = uses_gradient(model, plan, held, cheapest_solver(model.blocks, self._groups))
            rows = []
            for h in model.hyperparameters:
                how = "drawn jointly, in turn with the latents that it multiplies"
                if h.name not in in_turn:
                    how = describe(plan, h, by_gradient=nuts, held=bool(held))
                rows.append((h.name, _shape(h.shape), how))
            tables.append(_table("Hyperparameters", ("variable", "shape", "sampled by"), rows))
            others = {h.name for h in (*plan.by_entry, *plan.left_to_pymc)}.union(in_turn)
            sliced = sum(h.size for h in model.hyperparameters if h.name not in others)
            enough = max(_MANY_SLICED, min(model.latent_size, _MOST_SLICED))
            if sliced > enough and not (plan.by_column or nuts):
                text = f"{sliced} numbers are sampled by slices, beside {model.latent_size} latents"
                tables.append(Text(f"{text}: NUTS (pm.sample, nutpie) may be faster"))
        if not model.blocks:
            tables.append(Text("No latents: slices sample the hyperparameters alone"))
        left = sum(h.size for h in plan.left_to_pymc if h.name not in in_turn)
        ours = model.latent_size + sum(h.size for h in model.hyperparameters) - left
        if left > ours:
            text = f"{left:,} of {left + ours:,} unknown numbers are left to PyMC's own steps: "
            text += "NUTS alone (pm.sample, nutpie) is probably the better sampler"
            tables.append(Text(text))
        for why in self._slow(in_turn):
            text = f"{why}: NUTS alone (pm.sample, nutpie) is probably the faster sampler"
            tables.append(Text(text))
        if self.refusal:
            tables.append(Text(not_in_turn(multiplying, self.refusal)))
        if plan.factors is not None:
            names = [[self.model.blocks[i].name for i in own] for own in plan.factors.blocks]
            listed = "; ".join(" and ".join(own) for own in names)
            tables.append(Text(f"Latents are drawn one factor after another: {listed}"))
        for variable in self.model.forward:
            tables.append(Text(f"{variable.name}: drawn from its distribution given the rest"))
        for name in self.factors:
            tables.append(Text(f"{name}: depends on hyperparameters alone, part of their prior"))
        if self.expected is not None:
            tables.append(Text(self.expected))
        return Group(*tables)

    def _slow(self, in_turn: Sequence[str]) -> list[str]:
        """Return the reasons why steps are slower than those of NUTS."""
        found, plan = [], self.plan
        if sum(h.size for h in plan.by_column) >= _MANY_COLUMNS:
            vectors = ", ".join(h.name for h in plan.by_column)
            found.append(f"{vectors}: one update for every column, in milliseconds a step")
        factors = [b for b in self.model.blocks if b.is_correlated and b.copies > b.size]
        if in_turn and any(b.size >= _MANY_FACTORS for b in factors):
            found.append(f"{', '.join(in_turn)}: drawn in turn with many correlated latents")
        for site in self.model.sites:
            P, many = site.likelihood.n_predictors, site.row_numbers.size >= _MANY_ROWS
            if not (isinstance(site.likelihood, GenericLikelihood) and P >= _MANY_PREDICTORS):
                continue
            if many and not is_sum_over_predictors(site, self.start):
                found.append(f"{site.name}: held sites of {P} predictors, chosen in many seconds")
        return found

    def _link(self, site: Site) -> str:
        """Return the link; for several predictors also the latents in each."""
        P = site.likelihood.n_predictors
        if P == 1:
            return site.likelihood.link
        maps = [read(self.start) for read in self.model.maps]
        entering = []
        for rows in site.row_numbers:
            pairs = zip(self.model.blocks, maps, strict=True)
            own = [block.name for block, A in pairs if A.rows(rows).largest_entries().any()]
            entering.append(", ".join(own))
        if P > _MOST_LISTED and len(set(entering)) == 1:
            return f"{P} predictors, each: {entering[0]}"
        names = self.predictors.get(site.name, ("",) * P)
        return "\n".join(
            f"{name or f'η{i}'}: {latents or 'no latent'}"
            for i, (name, latents) in enumerate(zip(names, entering, strict=True), 1)
        )

    def __str__(self) -> str:
        text = io.StringIO()
        # In a notebook Rich would display the table, and write no text.
        console = Console(file=text, width=_TEXT_WIDTH, color_system=None, force_jupyter=False)
        console.print(self)
        return text.getvalue().rstrip()

    def _repr_html_(self) -> str:
        console = Console(file=io.StringIO(), width=_TEXT_WIDTH, record=True, force_jupyter=False)
        console.print(self)
        return console.export_html(inline_styles=True, code_format=_HTML)

    def __repr__(self) -> str:
        blocks = ", ".join(block.name for block in self.model.blocks)
        sites = ", ".join(site.name for site in self.model.sites)
        return f"<Recognition: latents {blocks}; observed {sites}>"


def _row(site: Site, forms: Mapping[str, str], link: str, kind: str) -> tuple[str, ...]:
    """Return the row of an observed variable, or of a latent's prior."""
    if site.is_prior:
        return site.label, f"{site.size:,}", forms[site.name], link, kind
    return site.name, f"{site.size:,}", site.likelihood.name, link, kind


def _kind(site: Site, held: Collection[str]) -> str:
    if site.name in held:
        return "held sites (density alone)"
    written = site.likelihood.augmentation
    return f"augmented: {written}" if site.likelihood.has_auxiliary else written


def _table(title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column == "size" else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _size(block: LatentBlock) -> str:
    return f"{block.copies} × {block.size:,}" if block.copies > 1 else f"{block.size:,}"


def _shape(shape: tuple[int, ...]) -> str:
    return "scalar" if shape == () else " × ".join(str(length) for length in shape)
