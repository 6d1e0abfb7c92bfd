"""The PyMC model in which processes that are Markov are computed in linear time."""

from __future__ import annotations

from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pymc_augconj.recognition.graph.dependence import static_shape
from pymc_augconj.recognition.graph.interpreter import NotInterpretedError
from pymc_augconj.recognition.graph.rewrite import substitute
from pymc_augconj.recognition.latents.markov import (
    inputs_of,
    is_product_with_cholesky,
    linear_product,
)

from .copies import empty_like, register

# Fewer values, times a tenth of the dimension of a large state, are faster by dense factorisations,
# which take fewer calls. Fewer unsorted inputs take these too: they define PyMC's whitened values.
_FEWEST, _FEWEST_UNORDERED = 200, 4000


def in_linear_time(model: Model) -> Model:
    """Return a model of the same variables without matrices of Markov processes.

    :class:`.MarkovRoot` replaces their products ``cholesky(K) @ v``. If no process gains from this,
    the model itself is returned.
    """
    replaced = _products(model)
    if not replaced:
        return model
    linear = empty_like(model)
    with linear:
        # In the order of definition every variable comes after those that it depends on.
        for var in model.named_vars.values():
            dims = model.named_vars_to_dims.get(var.name)
            if var not in model.data_vars:
                (new,) = substitute([var], replaced)
                starts = model.rvs_to_initial_values
                replaced[var] = register(model, var, new, starts, dims=dims)
            elif var not in model.rvs_to_values.values():
                linear.register_data_var(var, dims=dims)
    return linear


def _products(model: Model) -> dict[Variable, Variable]:
    """Return products in linear time, by the products that they replace."""
    found: dict[Variable, Variable] = {}
    for var in ancestors([*model.basic_RVs, *model.deterministics, *model.potentials]):
        node = var.owner
        if node is None or not is_product_with_cholesky(node):
            continue
        length = node.inputs[1].type.shape[0]
        if (static_shape(node.inputs[1])[0] if length is None else length) < _FEWEST:
            continue
        try:
            product = linear_product(node)
        except NotInterpretedError:
            continue
        inputs = inputs_of(product.owner)
        few = inputs.size < _FEWEST * max(1.0, inputs.dimension / 10)
        if not few and (inputs.order is None or inputs.size >= _FEWEST_UNORDERED):
            found[var] = product
    return found
