"""Free variables that nothing observed depends on: imputed observations, ``gp.conditional``.

Given everything else they are drawn from their own distribution, exactly, which is a block draw
together with the latents: those are updated with the forward variables integrated out.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
from pymc.model import Model
from pytensor.graph.basic import Variable
from pytensor.tensor.random.type import RandomGeneratorType
from pytensor.tensor.random.variable import RandomGeneratorSharedVariable

from ..model import ForwardVariable
from .compile import PointFunction
from .rewrite import substitute
from .structure import Structure

__all__ = ["read_forward"]


def read_forward(
    model: Model, structure: Structure, hyper_inputs: dict[str, Variable], mode
) -> tuple[ForwardVariable, ...]:
    """Return the forward variables in an order in which they can be drawn."""
    values = model.rvs_to_values
    inputs = dict(hyper_inputs)
    for latent in structure.latents:
        inputs[f"latent:{latent.name}"] = latent.value_input
    for rv in structure.forward:
        inputs[values[rv].name] = values[rv]
    replacements = {
        latent.replaced: latent.shaped(latent.value_input) for latent in structure.latents
    }
    found = []
    for rv in structure.forward:
        arguments = substitute(list(rv.owner.inputs), replacements)
        arguments = model.replace_rvs_by_values(arguments)
        generators = {}
        for i, argument in enumerate(arguments):
            if isinstance(argument.type, RandomGeneratorType) or isinstance(
                argument, RandomGeneratorSharedVariable
            ):
                generators[f"generator {i}"] = argument.type(f"generator {i}")
                arguments[i] = generators[f"generator {i}"]
        node = rv.owner.clone_with_new_inputs(arguments)
        value, transform = values[rv], model.rvs_to_transforms[rv]
        draw = node.outputs[rv.owner.outputs.index(rv)]
        natural = value
        log_density_extra = None
        if transform is not None:
            natural = transform.backward(value, *node.inputs)
            log_density_extra = transform.log_jac_det(value, *node.inputs).sum()
            drawn_value = transform.forward(draw, *node.inputs)
        else:
            drawn_value = draw
        log_density = pm.logp(draw, natural).sum()
        if log_density_extra is not None:
            log_density = log_density + log_density_extra
        found.append(
            ForwardVariable(
                name=rv.name,
                value_name=value.name,
                shape=tuple(draw.type.shape),
                draw=_ForwardDraw(
                    PointFunction(drawn_value.astype(value.dtype), {**inputs, **generators}, mode),
                    tuple(generators),
                ),
                log_density=PointFunction(log_density.astype("float64"), inputs, mode),
            )
        )
    return tuple(found)


class _ForwardDraw:
    """Draws from a graph whose generators are inputs."""

    def __init__(self, function: PointFunction, generators: tuple[str, ...]):
        self._function, self._generators = function, generators

    def __call__(self, rng: np.random.Generator, point) -> np.ndarray:
        children = dict(zip(self._generators, rng.spawn(len(self._generators)), strict=True))
        return np.array(self._function({**point, **children}))


