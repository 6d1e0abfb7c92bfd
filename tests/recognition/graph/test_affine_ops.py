"""What operations alone tell of a graph, against what its derivatives tell."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest

from pymc_augconj.recognition.graph import affine
from pymc_augconj.recognition.graph.affine import affine_by_its_ops

DESIGN = np.arange(12.0).reshape(4, 3) - 3.5
INDEX = np.array([2, 0, 0, 1])
LOWER = np.tril(DESIGN[:3])

AFFINE = {
    "itself": lambda f, b, s: f,
    "design": lambda f, b, s: 0.3 + DESIGN @ f,
    "row times design": lambda f, b, s: pt.dot(f, DESIGN.T) * s,
    "batch of designs": lambda f, b, s: pt.as_tensor(np.stack([DESIGN, DESIGN])) @ f[:, None],
    "indexed": lambda f, b, s: s * f[INDEX] - b,
    "slice, stacked": lambda f, b, s: pt.stack([f[:2], -f[1:]]).reshape((4,)),
    "joined": lambda f, b, s: pt.concatenate([f, b[None]]) / pt.exp(s),
    "numbers": lambda f, b, s: pt.stack([f[0], b, s, f[2] + b]),
    "sum": lambda f, b, s: f.sum() + pt.alloc(b, 3),
    "switch": lambda f, b, s: pt.switch(s > 0.0, f, b),
    "shape": lambda f, b, s: f * f.shape[0],
    "difference": lambda f, b, s: f - f + s,
    "solved": lambda f, b, s: pt.linalg.solve_triangular(LOWER, f, lower=True, b_ndim=1),
    "curved in another": lambda f, b, s: s**2 * f + pt.exp(s),
}
CURVED = {
    "exp": lambda f, b, s: pt.exp(f + b),
    "sigmoid of indexed": lambda f, b, s: pt.sigmoid(f[INDEX] * s),
    "Gumbel": lambda f, b, s: -(0.2 - f) / s - pt.exp(-(0.2 - f) / s),
    "square": lambda f, b, s: -0.5 * pt.sqr((f - b) / s),
    "minus log": lambda f, b, s: pt.log(f)[:, None] - b,
}
UNKNOWN = {
    # Affine as well, which takes more than the ops to see.
    "log of exp": lambda f, b, s: pt.log(pt.exp(f)),
    "one over one over": lambda f, b, s: 1.0 / (1.0 / f),
    "curved times zeros": lambda f, b, s: f + pt.exp(f) * np.zeros(3),
}
NEITHER = {
    "product": lambda f, b, s: f * b,
    "index": lambda f, b, s: f[pt.argmax(f)],
    "condition": lambda f, b, s: pt.switch(f > 0.0, f, b),
    "quotient": lambda f, b, s: s / f,
    "quadratic form": lambda f, b, s: f @ f,
    "solved with it": lambda f, b, s: pt.linalg.solve_triangular(pt.diag(f), LOWER[0], b_ndim=1),
    "rounded": lambda f, b, s: pt.floor(f),
    "single precision": lambda f, b, s: pt.cast(f, "int64") * 1.0,
    "absolute": lambda f, b, s: pt.abs(f) + b,
    # Affine, which simplified derivatives do not show either.
    "part of curved": lambda f, b, s: pt.concatenate([pt.exp(f), f])[3:],
    "cancelled": lambda f, b, s: (pt.exp(f) + b) - pt.exp(f),
}


@pytest.mark.parametrize("name", [*AFFINE, *CURVED, *UNKNOWN, *NEITHER])
def test_ops_tell_what_derivatives_tell(name, monkeypatch):
    f, b, s = pt.vector("f", shape=(3,)), pt.scalar("b"), pt.scalar("s")
    graph = pt.as_tensor((AFFINE | CURVED | UNKNOWN | NEITHER)[name](f, b, s))
    told = affine_by_its_ops(graph, [f, b])
    assert told is (True if name in AFFINE else False if name in CURVED else None)
    found = affine.is_affine(graph, [f, b])
    monkeypatch.setattr(affine, "affine_by_its_ops", lambda *_: None)
    assert found is affine.is_affine(graph, [f, b]) is (name in AFFINE | UNKNOWN)
    # Values show what is curved where they are; derivatives alone tell the same.
    bends = affine._bends(graph, [f, b])
    assert not (found and bends)
    assert bends or name not in {*CURVED, "product", "quotient", "quadratic form", "solved with it"}
    monkeypatch.setattr(affine, "_bends", lambda *_: False)
    assert found is affine.is_affine(graph, [f, b]) is (name in AFFINE | UNKNOWN)


@pytest.mark.parametrize("large", [1e3, 1e9, 1e15])
def test_rounding_bends_nothing(large):
    f, s = pt.vector("f", shape=(3,)), pt.scalar("s")
    for graph in (
        pt.log(pt.exp(f) * pt.constant(large**9, dtype="float64")) * s,
        pt.sqrt(large * f) ** 2 - large * f,
    ):
        assert not affine._bends(graph, [f])
    assert affine._bends(f + pt.exp(s) * f**2 / large, [f]) == (large == 1e3)
