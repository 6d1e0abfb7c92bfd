"""Recognition checks itself against PyMC, and refuses data that no engine could use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import graph_inputs

from ..errors import DataError, RecognitionError
from ..model import Point, Site
from .structure import Structure

if TYPE_CHECKING:
    from .recognizer import _Recognizer
    from .sites import ObservedGraph

__all__ = ["check_data", "check_inputs", "check_log_density"]

# Standard deviations of the innovations at which the two log densities are compared.
_SCALES = (0.0, 0.03, 0.3, 1.0)

# PyMC computes some log probabilities as log(1 − p): below this value its own rounding, not the
# reading of the model, decides the digits.
_LOWEST_COMPARED = -13.0

_TOLERANCE = 1e-6


def check_inputs(model: Model, structure: Structure) -> None:
    """Refuse a model whose kernel inputs or designs hold a value that is not finite."""
    for latent in structure.latents:
        _refuse_non_finite([latent.scale], f"an input of the covariance of {latent.name!r}")
    for rv in structure.observed:
        _refuse_non_finite(
            [parent for parent in rv.owner.inputs if parent.owner is not None],
            f"an input of the predictor of {rv.name!r}",
        )


def _refuse_non_finite(graphs: list[Variable], what: str) -> None:
    for leaf in graph_inputs(graphs):
        if isinstance(leaf, Constant):
            value = leaf.data
        elif isinstance(leaf, SharedVariable):
            value = leaf.get_value(borrow=True)
        else:
            continue
        # Infinite scalars are bounds (of a clip, say), and belong to PyMC's own graphs.
        if not isinstance(value, np.ndarray) or value.ndim == 0 or value.dtype.kind != "f":
            continue
        bad = np.argwhere(np.isnan(value) | (np.isinf(value) & (value.size > 1)))
        if bad.size:
            where = tuple(int(i) for i in bad[0])
            name = f" ({leaf.name!r})" if leaf.name else ""
            raise DataError(
                f"{what}{name} has the value {value[where]} at position {where}: expected finite "
                "numbers; drop or impute the rows with missing inputs"
            )


def check_data(site: Site, point: Point) -> None:
    """Refuse observations that the likelihood cannot produce."""
    y = site.y(point)
    if y.shape != (site.size,):
        raise DataError(
            f"observed variable {site.name!r}: expected {site.size} observations, as when the "
            f"model was recognised, found {y.size}; build the step again after pm.set_data"
        )
    bad = np.flatnonzero(~np.isfinite(y))
    if bad.size:
        raise DataError(
            f"observed variable {site.name!r} has the value {y[bad[0]]} at position {bad[0]}: "
            "expected finite numbers; pass a masked array to have PyMC impute missing observations"
        )
    sentence = site.likelihood.check(y, site.params(point))
    if sentence is not None:
        raise DataError(
            f"observed variable {site.name!r} ({site.likelihood.name}): {sentence}; correct the "
            "data or choose another likelihood"
        )


def check_log_density(reading: _Recognizer, site: Site, observed: ObservedGraph) -> None:
    """Compare the site's log density with PyMC's, at several hyperparameters and latents.

    Raises
    ------
    RecognitionError
        If they differ: the model was misread, and nothing may be sampled from the reading.
    """
    theirs = reading.function(reading.log_density_graph(observed), reading.innovations)
    rng = np.random.default_rng(1)
    blocks = reading.structure.latents
    compared = 0
    for point in reading.points:
        offset = None
        for scale in _SCALES:
            latents = {b.name: scale * rng.standard_normal(b.size * b.copies) for b in blocks}
            eta = np.array(reading.predictor(point, latents))
            if offset is None:
                offset = np.array(reading.offset_function(point))
            maps = [read(point) for read in reading.maps]
            affine = offset + sum(
                (A.apply(latents[b.name]) for A, b in zip(maps, blocks, strict=True)),
                start=np.zeros_like(offset),
            )
            if not np.allclose(eta, affine, rtol=1e-7, atol=1e-7 * (1 + np.abs(eta).max())):
                raise RecognitionError(
                    f"observed variable {site.name!r}: the predictor read from the model differs "
                    "from the model's own; please report this model"
                )
            ours = site.likelihood.log_density(site.y(point), site.select(eta), site.params(point))
            named = {f"innovation:{name}": u for name, u in latents.items()}
            expected = theirs({**point, **named})
            use = np.isfinite(expected) & (expected > _LOWEST_COMPARED)
            compared += int(use.sum())
            difference = np.abs(ours - expected)[use]
            if np.any(difference > _TOLERANCE * (1.0 + np.abs(expected[use]))):
                raise RecognitionError(
                    f"observed variable {site.name!r}: read as {site.likelihood.name} with "
                    f"{site.likelihood.link} link, but its log density differs from PyMC's by "
                    f"{difference.max():.3g}; nothing can be sampled from this reading; please "
                    "report this model"
                )
    if compared == 0:
        raise RecognitionError(
            f"observed variable {site.name!r}: PyMC's log density is below {_LOWEST_COMPARED} or "
            "not finite for every observation at every point tried, so that the reading could not "
            "be checked; rescale the data or the priors so that the model can have produced it"
        )
