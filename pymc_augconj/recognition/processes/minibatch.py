"""From a model of ``pm.Minibatch`` data to the model of all the data.

Stochastic engines draw minibatches themselves, from a seed, and need all the data.
"""

from __future__ import annotations

import pymc as pm
from pymc.data import MinibatchOp
from pymc.model import Model
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, toposort

from pymc_augconj.errors import RecognitionError

from .copies import register


def _is_minibatch(var: Variable) -> bool:
    return var.owner is not None and isinstance(var.owner.op, MinibatchOp)


def all_data_of(var: Variable) -> Variable:
    """Return the data that a minibatch is taken from; any other variable unchanged."""
    return var.owner.inputs[var.owner.outputs.index(var)] if _is_minibatch(var) else var


def _minibatches(model: Model) -> list[Variable]:
    roots = [*model.basic_RVs, *model.deterministics, *model.potentials]
    roots += [model.rvs_to_values[rv] for rv in model.observed_RVs]
    return [var for var in ancestors(roots) if _is_minibatch(var)]


def batch_size_of(model: Model) -> int | None:
    """Return the size of the model's minibatches; None if it has none."""
    found = _minibatches(model)
    return found[0].type.shape[0] if found else None


def with_all_data(model: Model) -> Model:
    """Return the model with all the data instead of minibatches; unchanged if it has none.

    Raises RecognitionError if an observed variable's ``total_size`` is not the number of its data,
    or the graph of its distribution has a fixed size.
    """
    minibatches = _minibatches(model)
    if not minibatches:
        return model
    replaced: dict[Variable, Variable] = {var: all_data_of(var) for var in minibatches}
    # Without dims, since their sizes change.
    full = pm.Model(model=None)
    variables = set(model.basic_RVs) | set(model.deterministics) | set(model.potentials)
    with full:
        # In the order of definition every variable comes after those that it depends on.
        for var in [v for v in model.named_vars.values() if v in variables]:
            new = _replace(_without_total_size(var), replaced)
            more = {}
            if var in model.potentials and any(map(_is_minibatch, ancestors([var]))):
                raise RecognitionError(
                    f"potential {var.name!r}: expected no pm.Minibatch data, as PyMC has no "
                    "total_size for a potential; write the model with the arrays themselves, "
                    "and pass batch_size=… to pac.fit"
                )
            if var in model.observed_RVs:
                more["observed"] = _replace(model.rvs_to_values[var], replaced)
                _check_total_size(var, more["observed"])
            replaced[var] = register(model, var, new, {}, **more)
    return full


def _replace(var: Variable, replaced: dict[Variable, Variable]) -> Variable:
    """Return the graph on the replaced variables, whose shapes may differ; nodes are cached."""
    for node in toposort([var], blockers=list(replaced)):
        inputs = [replaced.get(v, v) for v in node.inputs]
        if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
            if isinstance(node.op, OpFromGraph) and any(map(_differ, inputs, node.inputs)):
                raise RecognitionError(
                    f"{type(node.op).__name__.removesuffix('RV')} of pm.Minibatch data: expected "
                    "a distribution whose graph does not contain the size of a minibatch (the "
                    "graphs of Weibull, mixtures and Censored do); write the model with the arrays "
                    "themselves, and pass batch_size=… to pac.fit"
                )
            rebuilt = node.clone_with_new_inputs(inputs, strict=False)
            replaced.update(zip(node.outputs, rebuilt.outputs, strict=True))
    return replaced.get(var, var)


def _differ(new: Variable, old: Variable) -> bool:
    """Return whether known lengths differ."""
    lengths = zip(getattr(new.type, "shape", ()), getattr(old.type, "shape", ()), strict=False)
    return any(None not in pair and pair[0] != pair[1] for pair in lengths)


def _without_total_size(var: Variable) -> Variable:
    scaled = var.owner is not None and isinstance(var.owner.op, MinibatchRandomVariable)
    return var.owner.inputs[0] if scaled else var


def _check_total_size(var: Variable, observed: Variable) -> None:
    op = var.owner.op
    total = var.owner.inputs[1].data if isinstance(op, MinibatchRandomVariable) else None
    size = observed.type.shape[0]
    if total is None or (size is not None and int(total) != size):
        raise RecognitionError(
            f"observed variable {var.name!r}: expected total_size={size}, the number of data that "
            f"its minibatches are taken from, found {None if total is None else int(total)}"
        )
