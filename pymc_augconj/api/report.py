"""``pac.recognize``: what was found in a model and how it will be sampled, as tables."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

from pymc.model import Model, modelcontext
from pytensor.tensor.variable import TensorVariable
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pymc_augconj.block import LatentBlock
from pymc_augconj.engines.gibbs.choice import choose_held
from pymc_augconj.engines.gibbs.factors import choose_factors
from pymc_augconj.errors import AugmentationError
from pymc_augconj.latents.choice import cheapest_solver
from pymc_augconj.latents.joint import LatentPriors
from pymc_augconj.model import Site
from pymc_augconj.plan import Plan, describe, make_plan
from pymc_augconj.recognition.processes.linear_time import in_linear_time
from pymc_augconj.recognition.recognition import Recognition
from pymc_augconj.recognition.recognizer import read_model

from .alternation import alternating, not_in_turn
from .step_choices import uses_gradient

_TEXT_WIDTH = 100
# Predictors of an observed variable that are listed one by one.
_MOST_LISTED = 3
_HTML = '<pre style="line-height: normal; font-family: monospace">{code}</pre>'


def recognize(
    model: Model | None = None,
    *,
    vars: Sequence[TensorVariable] | None = None,
    compile_kwargs: dict[str, Any] | None = None,
) -> RecognitionReport:
    """Read a PyMC model as a latent Gaussian model with augmented likelihoods.

    Of a likelihood without an augmentation only the density is used, given one affine predictor or
    several (a mean and a standard deviation, or one predictor for each class). That is enough for
    :func:`~pymc_augconj.sample`, which then approximates it by held Gaussian sites and corrects
    for them, and for the engines ``"vgp"``, ``"ep"``, ``"qp"`` and ``"svi"`` of
    :func:`~pymc_augconj.fit`. Nothing is sampled, and the model is not changed. Print the result to
    see the latents, how each observed variable is treated and how each variable will be sampled.

    Parameters
    ----------
    model : pymc.Model, optional
        Taken from the context where omitted.
    vars : sequence of variables, optional
        The variables that a sampler is to update; Gaussian variables that are not among them are
        read as hyperparameters. By default every Gaussian variable is a latent.
    compile_kwargs : dict, optional
        ``{"mode": …}``: a PyTensor mode for the functions extracted from the model. By default
        they run without compilation; ``"NUMBA"`` evaluates a kernel matrix about twice as fast,
        after 10 s or more of compilation the first time.

    Returns
    -------
    RecognitionReport
        Its ``model`` is the :class:`~pymc_augconj.model.LatentGaussianModel` for the engines.

    Notes
    -----
    How a latent enters the predictors (column *enters through*): ``identity``, one entry per
    observation, in order; ``selection``, one entry per observation, perhaps times data, such as an
    intercept, a slope or a group effect; ``design matrix``, several entries per observation. A
    predictor is the sum over all latents.

    A ``pm.Potential`` that depends on latents is read like an observed variable without an
    augmentation, if it is a sum of terms of which each entry depends on one affine predictor. A
    Normal variable in a potential is a hyperparameter instead where other latents remain. A
    potential of hyperparameters alone is part of their prior.

    Raises
    ------
    NotAffineError
        A predictor is not affine in the Gaussian latents, or a potential is no such sum.
    UnknownLikelihoodError
        An observed variable has neither a likelihood with a known augmentation nor a density
        whose parameters depend on one affine predictor.
    DataError
        An observation is out of its likelihood's range, or an input is not finite.
    RecognitionError
        There is no Gaussian latent variable, nothing is observed, the model is one of single
        precision, or the reading disagrees with PyMC's own log density.
    TypeError
        One of ``vars`` is no variable.
    """
    given = modelcontext(model)
    linear = in_linear_time(given)
    if linear is not given and vars is not None:
        vars = [linear[var.name] if isinstance(var, TensorVariable) else var for var in vars]
    found = report_of(linear, vars=vars, compile_kwargs=compile_kwargs)
    if found.alternates and (names := alternating(found, found.plan())):
        try:
            read_model(linear, vars=[linear[name] for name in names], compile_kwargs=compile_kwargs)
        except AugmentationError as error:
            return replace(found, refusal=str(error))
    return found


def report_of(
    model: Model, *, vars: Sequence[TensorVariable] | None, compile_kwargs: dict[str, Any] | None
) -> RecognitionReport:
    """Return what was read of a model as it is written."""
    found = read_model(model, vars=vars, compile_kwargs=compile_kwargs)
    found.require_proper()
    return RecognitionReport(**{field.name: getattr(found, field.name) for field in fields(found)})


class RecognitionReport(Recognition):
    """The result of :func:`recognize`: print it to see the tables."""

    @cached_property
    def _held(self) -> tuple[str, ...]:
        return choose_held(self.model, self.start, probes=self.probes)

    def plan(self) -> Plan:
        """Return the moves of the step."""
        groups = LatentPriors(self.model, (self.start, *self.probes)).groups
        factors = choose_factors(self.model, self._held, self.start, groups)
        return make_plan(self.model, self._held, factors)

    def __rich__(self) -> Group:
        held, plan = self._held, self.plan()
        groups = LatentPriors(self.model, (self.start, *self.probes)).groups
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
            nuts = uses_gradient(model, plan, held, cheapest_solver(model.blocks, groups))
            rows = [
                (
                    h.name,
                    _shape(h.shape),
                    "drawn jointly, in turn with the latents that it multiplies"
                    if h.name in in_turn
                    else describe(plan, h, by_gradient=nuts, held=bool(held)),
                )
                for h in model.hyperparameters
            ]
            tables.append(_table("Hyperparameters", ("variable", "shape", "sampled by"), rows))
        if not model.blocks:
            tables.append(Text("No latents: slices sample the hyperparameters alone"))
        left = sum(h.size for h in plan.left_to_pymc if h.name not in in_turn)
        ours = model.latent_size + sum(h.size for h in model.hyperparameters) - left
        if left > ours:
            tables.append(
                Text(
                    f"{left:,} of {left + ours:,} unknown numbers are left to PyMC's own steps: "
                    "NUTS alone (pm.sample, nutpie) is probably the better sampler"
                )
            )
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
        return Group(*tables)

    def _link(self, site: Site) -> str:
        """Return the link; of several predictors, which latents enter each."""
        P = site.likelihood.n_predictors
        if P == 1:
            return site.likelihood.link
        maps = [read(self.start) for read in self.model.maps]
        entering = [
            ", ".join(
                block.name
                for block, A in zip(self.model.blocks, maps, strict=True)
                if A.rows(rows).largest_entries().any()
            )
            for rows in site.row_numbers
        ]
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
        """Return the table for a notebook."""
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
