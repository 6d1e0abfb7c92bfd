"""Variables that only predictions need: imputed observations, ``gp.conditional``.

No observation depends on them. Given all other variables they are drawn exactly from their own
distribution, in one block with the latents, whose update integrates them out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.random.type import RandomGeneratorType
from pytensor.tensor.variable import TensorConstant

from pymc_augconj.errors import RecognitionError
from pymc_augconj.model import ForwardVariable
from pymc_augconj.point import Argument, Point
from pymc_augconj.recognition.graph.derive import log_density_of
from pymc_augconj.recognition.graph.functions import PointFunction
from pymc_augconj.recognition.graph.rewrite import substitute
from pymc_augconj.recognition.graph.space import ValueSpace

from .structure import Structure


def read_forward(
    structure: Structure, space: ValueSpace, point: Point
) -> tuple[ForwardVariable, ...]:
    """Return the variables that only predictions need, in an order in which to draw them.

    ``point`` may be any: it gives the shapes of its entries.
    """
    values = space.model.rvs_to_values
    inputs = {}
    for latent in structure.latents:
        inputs[Argument("value", latent.name)] = latent.value_input
    for rv in structure.forward:
        inputs[values[rv].name] = values[rv]
    # From random variables to graphs of values; these variables may depend on each other.
    replacements = {
        **space.model.given_data,
        **{latent.replaced: latent.shaped(latent.value_input) for latent in structure.latents},
    }
    found = []
    for rv in structure.forward:
        arguments = space.model.in_values(substitute(rv.owner.inputs, replacements))
        node = rv.owner.clone_with_new_inputs(arguments)
        draw = node.outputs[rv.owner.outputs.index(rv)]
        value, transform = values[rv], space.model.rvs_to_transforms[rv]
        if transform is None:
            natural, drawn_value = value, draw
            log_jacobian = 0.0
        else:
            natural = transform.backward(value, *node.inputs)
            drawn_value = transform.forward(draw, *node.inputs)
            log_jacobian = transform.log_jac_det(value, *node.inputs).sum()
        # These include the generators of the components of a compound distribution.
        leaves = [v for v in graph_inputs([draw]) if isinstance(v.type, RandomGeneratorType)]
        generators = {Argument(f"generator {i}"): leaf.type() for i, leaf in enumerate(leaves)}
        own = dict(zip(leaves, generators.values(), strict=True)) | _copies_of_numbers(draw)
        (drawn_value,) = substitute([drawn_value], own)
        log_density = log_density_of(space.model, draw, natural)
        if log_density is None:
            raise RecognitionError(
                f"variable {rv.name!r}: expected a distribution with a log density, found "
                f"{type(rv.owner.op).__name__.removesuffix('RV')}, for which PyMC has none; give "
                "it one (logp=), or remove the variable, which nothing observed depends on"
            )
        log_density = log_density.sum() + log_jacobian
        replacements[rv] = pt.specify_shape(natural, rv.type.shape).astype(rv.dtype)
        found.append(
            ForwardVariable(
                name=rv.name,
                value_name=value.name,
                shape=tuple(point[value.name].shape),
                draw=_ForwardDraw(
                    space.function(drawn_value.astype(value.dtype), {**inputs, **generators}),
                    tuple(generators),
                ),
                log_density=space.function(log_density.astype("float64"), inputs),
            )
        )
    return tuple(found)


def _copies_of_numbers(graph: Variable) -> dict[Variable, Variable]:
    """Return constants equal to those of a graph that are a number.

    PyTensor makes the array of such a constant read-only when another graph with it is rewritten;
    SciPy then fails to broadcast what was computed from it before.
    """
    return {
        leaf: type(leaf)(leaf.type, np.array(leaf.data))
        for leaf in graph_inputs([graph])
        if isinstance(leaf, TensorConstant) and leaf.data.size == 1
    }


class _ForwardDraw:
    """Draws from a graph whose generators are inputs."""

    def __init__(self, function: PointFunction, generators: tuple[Argument, ...]) -> None:
        self._function, self._generators = function, generators

    def __call__(self, rng: np.random.Generator, point: Point) -> np.ndarray:
        children: dict[Argument, Any] = dict(
            zip(self._generators, rng.spawn(len(self._generators)), strict=True)
        )
        return np.array(self._function({**point, **children}))
