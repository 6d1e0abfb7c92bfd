"""Graphs on a tape give what PyTensor gives, for every opcode and every way of moving entries."""

from __future__ import annotations

import mpmath
import numpy as np
import pytensor.tensor as pt
import pytest
from pymc.distributions.dist_math import i0e
from scipy import special

from pymc_augconj.python_mode import elementary
from pymc_augconj.python_mode.registers import _FORMULAS, _UFUNCS
from pymc_augconj.python_mode.tape import (
    _OPCODES,
    _SAME,
    FACTORIZE,
    NAMES,
    RUN,
    NoTapeError,
    Registers,
    TapeBuilder,
    depending,
    in_runs,
)
from pymc_augconj.python_mode.tape_kernel import run_rows, run_tape
from pymc_augconj.recognition.graph.functions import PointFunction

VALUES = {
    "s": np.array(0.7),
    "v": np.array([0.3, 1.9, 0.8]),
    "m": np.array([[0.2, 0.9], [1.4, 0.6]]),
}


def arguments():
    return pt.dscalar("s"), pt.vector("v", shape=(3,)), pt.matrix("m", shape=(2, 2))


def on_tape(graph, inputs, at):
    """Return the graph's value by a tape, and its instructions."""
    function, tape = PointFunction(graph, {var.name: var for var in inputs}), TapeBuilder()
    entries = {name: tape.inputs(value.shape) for name, value in at.items()}
    index = function.on_tape(tape, entries)
    code, registers = tape.finish()
    for name, value in at.items():
        registers[entries[name]] = value
    run_tape(code, registers)
    return registers[index], code, function


ELEMENTWISE = {
    "Add": lambda x, y: x + y + 2.0,
    "Mul": lambda x, y: x * y * 3.0,
    "Sub": lambda x, y: x - y,
    "TrueDiv": lambda x, y: x / (y - 0.8),
    "Neg": lambda x, y: -x,
    "Sqr": lambda x, y: x**2,
    "Reciprocal": lambda x, y: 1.0 / x,
    "Exp": lambda x, y: pt.exp(x),
    "Log": lambda x, y: pt.log(x),
    "ArcTan2": lambda x, y: pt.arctan2(x - 1.0, y),
    "Trunc": lambda x, y: pt.trunc(3.0 * x),
    "Log1p": lambda x, y: pt.log1p(x),
    "Expm1": lambda x, y: pt.expm1(x),
    "Sqrt": lambda x, y: pt.sqrt(x),
    "Pow": lambda x, y: x**y,
    "Abs": lambda x, y: pt.abs(x - 1.0),
    "GT": lambda x, y: pt.gt(x, y).astype("float64"),
    "GE": lambda x, y: pt.ge(x, y).astype("float64"),
    "LT": lambda x, y: pt.lt(x, y).astype("float64"),
    "LE": lambda x, y: pt.le(x, y).astype("float64"),
    "EQ": lambda x, y: pt.eq(x, pt.maximum(x, y)).astype("float64"),
    "NEQ": lambda x, y: pt.neq(x, pt.maximum(x, y)).astype("float64"),
    "AND": lambda x, y: pt.and_(x > 0.5, y > 0.5).astype("float64"),
    "OR": lambda x, y: pt.or_(x > 0.8, y > 0.8).astype("float64"),
    "Invert": lambda x, y: pt.invert(pt.isnan(pt.log(x - 0.5))).astype("float64"),
    "Switch": lambda x, y: pt.switch(x > y, x, -np.inf),
    "Maximum": lambda x, y: pt.maximum(pt.log(x - 0.5), y),
    "Minimum": lambda x, y: pt.minimum(pt.log(x - 0.5), y),
    "GammaLn": lambda x, y: pt.gammaln(x),
    "Erf": lambda x, y: pt.erf(x),
    "Erfc": lambda x, y: pt.erfc(x + y),
    "Tanh": lambda x, y: pt.tanh(x),
    "Sin": lambda x, y: pt.sin(x),
    "Cos": lambda x, y: pt.cos(x),
    "Sigmoid": lambda x, y: pt.sigmoid(x - y),
    "Softplus": lambda x, y: pt.softplus(x - y),
    "Log1mexp": lambda x, y: pt.log1mexp(-x * 0.9),
    "Sign": lambda x, y: pt.sign(x - 0.8),
    "IsNan": lambda x, y: pt.isnan(pt.log(x - y)).astype("float64"),
    "Erfcx": lambda x, y: pt.erfcx(x),
    "I0e": lambda x, y: i0e(x),
    "IsInf": lambda x, y: pt.isinf(pt.log(pt.maximum(x - 0.8, 0.0))).astype("float64"),
}


@pytest.mark.parametrize("name", [*_UFUNCS, *_FORMULAS])
def test_ufuncs(name):
    function = getattr(np, name, None) or getattr(special, name)
    x = np.array([-30.0, -3.0, -1.2, -0.5, 0.0, 0.4, 1.0, 3.9, 4.1, 25.0, 300.0])
    if name in ("log", "sqrt", "power", "gammaln", "xlogy", "betaln", "log1p", "xlog1py"):
        x = np.abs(x) + 0.1
    pair = (x, x[::-1] + 0.5) if function.nin == 2 else (x,)
    if name.startswith(("bitwise", "logical", "invert")):
        pair = tuple(part > 0.0 for part in pair)
    tape = TapeBuilder()
    inputs = [tape.inputs(x.shape) for _ in pair]
    found = function(*(Registers(tape, index) for index in inputs))
    code, registers = tape.finish()
    for index, values in zip(inputs, pair, strict=True):
        registers[index] = values
    run_tape(code, registers)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(registers[found.index], function(*pair), rtol=2e-13, atol=1e-300)


def test_rows():
    """A row tape gives for every row what a tape does."""
    rng, tape = np.random.default_rng(0), TapeBuilder()
    x, y = (Registers(tape, tape.inputs(())) for _ in range(2))
    found = np.where(x > y, np.exp(x - y) * x, np.logaddexp(x, y) + 2.0)
    code, start = tape.finish()
    file = np.repeat(start[:, None], 9, axis=1)
    file[x.index], file[y.index] = rng.normal(size=(2, 9))
    run_rows(code, 0, len(code), file)
    for k in range(9):
        registers = start.copy()
        registers[[x.index, y.index]] = file[[x.index, y.index], k]
        run_tape(code, registers)
        # Exponentials and logarithms are not the C library's.
        assert registers[found.index] == pytest.approx(file[found.index, k], rel=1e-15)


_ODD = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1e-310, 1e-17, -1e-17, -1.0, -2.5, 1.0, 1e308]
_BOUNDS = [709.7, 709.8, -708.5, -744.9, -745.2, -800.0, 800.0, 10.0, 9.999]


@pytest.mark.parametrize("opcode", range(len(NAMES)))
def test_every_operation_of_rows(opcode):
    """Rows have the numbers that a tape has, up to two units in the last place."""
    rng = np.random.default_rng(opcode)
    x = np.concatenate([_ODD, _BOUNDS, rng.normal(size=200) * np.exp(rng.uniform(-30, 6, 200))])
    file = np.stack([np.zeros(x.size), x, rng.permutation(x), rng.permutation(x)])
    code = np.array([[opcode, 0, 1, 2, 3]])
    registers = file.copy()
    with np.errstate(all="ignore"):
        run_rows(code, 0, 1, file)
        for k in range(x.size):
            run_tape(code, registers[:, k])
        digits = 4e-15 if NAMES[opcode] in ("GammaLn", "BetaLn") else 0.0
        bound = 4.5e-16 * np.abs(registers[0]) + digits * (1.0 + np.abs(registers[0])) + 5e-324
        same = np.abs(file[0] - registers[0]) <= bound
    assert (same | (file[0] == registers[0]) | (np.isnan(file[0]) & np.isnan(registers[0]))).all()


_POSITIVE = np.exp(np.random.default_rng(1).uniform(-40.0, 40.0, 500))
_EITHER_SIGN = np.concatenate([_POSITIVE[_POSITIVE < 700.0], -_POSITIVE[_POSITIVE < 700.0]])
ELEMENTARY = {
    "exp": (mpmath.exp, np.random.default_rng(1).uniform(-700.0, 700.0, 500), 1.5),
    "log": (mpmath.log, _POSITIVE, 1.5),
    "log1p": (lambda x: mpmath.log(1 + x), _POSITIVE, 1.5),
    "gammaln": (mpmath.loggamma, _POSITIVE, None),
    "softplus": (lambda x: mpmath.log1p(mpmath.exp(x)), _EITHER_SIGN, 3.0),
    "expm1": (mpmath.expm1, _EITHER_SIGN, 3.0),
    "log1mexp": (lambda x: mpmath.log1p(-mpmath.exp(x)), -_POSITIVE[_POSITIVE < 700.0], 3.0),
    "tanh": (mpmath.tanh, _EITHER_SIGN, 3.0),
    "erf": (mpmath.erf, _EITHER_SIGN, 3.0),
    "erfc": (mpmath.erfc, _EITHER_SIGN[_EITHER_SIGN < 26.0], 8.0),
    "erfcx": (lambda x: mpmath.exp(x * x) * mpmath.erfc(x), _EITHER_SIGN[_EITHER_SIGN > -26], 8.0),
}


@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions_beside_many_digits(name):
    exact, x, units = ELEMENTARY[name]
    function = getattr(elementary, name)
    with mpmath.workdps(50):
        true = [exact(mpmath.mpf(value)) for value in x.tolist()]
        error = [float(abs(function(v) - t)) for v, t in zip(x.tolist(), true, strict=True)]
    true = np.abs(np.array(true, dtype=float))
    bound = 7e-15 * (1.0 + true) if units is None else units * np.spacing(true)
    assert (error <= bound).all()


def test_a_beta_function_of_large_numbers_beside_many_digits():
    rng = np.random.default_rng(1)
    x, ratio = np.exp(rng.uniform(-25.0, 35.0, 500)), np.exp(rng.normal(size=500))
    y = np.concatenate([np.exp(rng.uniform(-25.0, 35.0, 250)), (x * ratio)[250:]])
    with mpmath.workdps(50):
        for pair in zip(x.tolist(), y.tolist(), strict=True):
            a, b = map(mpmath.mpf, pair)
            true = mpmath.loggamma(a) + mpmath.loggamma(b) - mpmath.loggamma(a + b)
            assert abs(elementary.betaln(*pair) - true) < 2e-14 * (1 + abs(true))


def test_runs_of_instructions_give_what_single_ones_give():
    """Vectors are runs, with constants as arguments; not sums that read what they have written."""
    rng, tape = np.random.default_rng(2), TapeBuilder()
    x, y, s = tape.inputs((6,)), tape.inputs((6,)), tape.inputs(())
    scaled = tape.apply("Mul", tape.constants([2.0, 0.5, 2.0, 0.0, 1.0, 3.0]), tape.apply("Exp", x))
    chosen = tape.apply("Switch", tape.apply("GE", y, tape.constants(0.0)), scaled, y)
    total = np.concatenate([chosen[:1], x[1:]])
    for i in range(1, 6):
        total[i] = tape.apply("Add", total[i - 1], total[i])
    of_one = tape.apply("Sub", tape.apply("Log", scaled), s)
    matrix = tape.apply("Add", tape.constants(np.eye(2).tolist()), tape.constants(np.ones((2, 2))))
    root = tape.factorize(tape.apply("Mul", matrix, tape.apply("Mul", s, s)))
    written = tape.finish()
    (one, first, none), start = in_runs(written, [written.code, written.code[:9], written.code[:0]])
    names = [NAMES[k % RUN] for k in one[one[:, 0] >= RUN, 0]]
    assert names == ["Exp", "Mul", "GE", "Switch", "Log"]
    # Three of the products are a run, as they are in one of the first part.
    assert (len(none), first[0, 0] // RUN, first[6, 0] // RUN) == (0, 6, 3)
    given = np.concatenate([x, y, s[None]])
    plain, runs = written.start.copy(), start.copy()
    plain[given] = runs[given] = rng.normal(size=given.size)
    run_tape(written.code, plain)
    run_tape(one, runs)
    again = runs.copy()
    run_tape(first, again)
    np.testing.assert_array_equal(again, runs)
    found = np.concatenate([chosen, total, of_one, root[np.tril_indices(2)]])
    assert np.isfinite(plain[np.setdiff1d(found, of_one)]).all()
    np.testing.assert_allclose(runs[found], plain[found], rtol=1e-15, atol=1e-15)


def test_an_index_that_is_not_constant():
    k, (_, v, m) = pt.vector("k", dtype="int64", shape=(2,)), arguments()
    graph = pt.stack([v, 2.0 * v])[[0, 1], k]
    at = {"v": VALUES["v"], "k": np.array([2, 0])}
    found, _, _ = on_tape(graph, (v, k), at)
    np.testing.assert_allclose(found, [VALUES["v"][2], 2.0 * VALUES["v"][0]])
    with pytest.raises(NoTapeError):
        on_tape(m[k, pt.constant([0, 1])], (m, k), {"m": VALUES["m"], "k": np.array([1, 0])})


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
# PyTensor writes log B as a sum; and has nothing that multiplies and subtracts.
@pytest.mark.parametrize("name", sorted({*_OPCODES, *_SAME} - {"BetaLn", "SubMul"}))
def test_opcodes(name):
    s, v, m = arguments()
    graph = ELEMENTWISE[name](v, s)
    found, code, function = on_tape(graph, [s, v, m], VALUES)
    assert _OPCODES[_SAME.get(name, name)] in code[:, 0]  # rewriting has not replaced it
    np.testing.assert_allclose(found, function(VALUES), rtol=1e-14)
    assert np.unique(found).size > 1


MOVED = {
    "alloc": lambda s, v, m: pt.alloc(pt.exp(s), 4, 3),
    "broadcast": lambda s, v, m: v[:, None] * pt.stack([s, s])[None, :],
    "cholesky": lambda s, v, m: pt.linalg.cholesky(pt.dot(m, m.T) + s * np.eye(2)),
    "join": lambda s, v, m: pt.concatenate([v, pt.exp(v[:2]), np.array([4.0])]),
    "index": lambda s, v, m: pt.exp(v)[np.array([2, 0, 0, 1])],
    "pairs": lambda s, v, m: pt.exp(m)[np.array([1, 0]), np.array([0, 1])],
    "set": lambda s, v, m: pt.set_subtensor(pt.zeros(5)[1:4], pt.exp(v)),
    "set some": lambda s, v, m: pt.set_subtensor(pt.exp(v)[np.array([2, 0])], s),
    "add to some": lambda s, v, m: pt.inc_subtensor(pt.exp(v)[1:], s),
    "add to one again": lambda s, v, m: pt.inc_subtensor(pt.exp(v)[np.array([0, 2, 0])], v),
    "add a diagonal": lambda s, v, m: pt.exp(m) + pt.diag(v[:2]),
    "counts of zero": lambda s, v, m: pt.gammainc(1.0, v) + pt.exp(pt.gammaincc(1.0, v)),
    "one event": lambda s, v, m: pt.betainc(1.0, v, s) + pt.exp(pt.betainc(v, 1.0, s)),
    "diagonal": lambda s, v, m: pt.diag(pt.exp(v)),
    "of a matrix": lambda s, v, m: pt.diagonal(pt.exp(m)),
    "constants": lambda s, v, m: pt.switch(v > 0.5, np.float32(0.1), -np.inf) + s,
    "reshape": lambda s, v, m: pt.exp(m).reshape((4,))[::-1],
    "transpose": lambda s, v, m: pt.exp(m).T,
    "sum": lambda s, v, m: pt.exp(v).sum() + pt.exp(m).sum(axis=0),
    "product": lambda s, v, m: pt.prod(pt.exp(v), axis=0) + pt.max(m, axis=1),
    "all": lambda s, v, m: pt.switch(pt.all(v > 0.0), s, -1.0),
    "softmax": lambda s, v, m: pt.special.softmax(m, axis=1) + pt.special.softmax(m),
    "log of softmax": lambda s, v, m: pt.special.log_softmax(pt.exp(m), axis=0),
    "cumulated": lambda s, v, m: pt.cumsum(pt.exp(v)) + pt.cumprod(v),
    "matrix, vector": lambda s, v, m: pt.exp(m) @ v[:2],
    "vector, matrix": lambda s, v, m: v[:2] @ pt.exp(m),
    "matrices": lambda s, v, m: pt.exp(m) @ m,
    "length": lambda s, v, m: pt.exp(s) * v.shape[0].astype("float64"),
}


@pytest.mark.parametrize("name", MOVED)
def test_entries_are_moved(name):
    inputs = arguments()
    found, _, function = on_tape(MOVED[name](*inputs), inputs, VALUES)
    np.testing.assert_allclose(found, function(VALUES), rtol=1e-14)


@pytest.mark.parametrize("size", [1, 9])
def test_a_factor_by_one_instruction(size):
    A = np.random.default_rng(1).normal(size=(size, size))
    matrix, tape = A @ A.T + 0.1 * np.eye(size), TapeBuilder()
    index = tape.inputs(matrix.shape)
    factor = tape.factorize(index)
    code, registers = tape.finish()
    registers[index] = np.where(np.tri(size), matrix, np.nan)
    run_tape(code, registers)
    np.testing.assert_allclose(registers[factor], np.linalg.cholesky(matrix), rtol=1e-12)
    registers[index[-1, -1]] = -1.0
    run_tape(code, registers)
    assert np.isnan(registers[factor[-1, -1]])


@pytest.mark.parametrize("of_rows", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_triangular_systems(of_rows, lower):
    rng = np.random.default_rng(3)
    s, root, right = pt.dscalar("s"), rng.normal(size=(9, 9)), rng.normal(size=(9, 2))
    chol = pt.linalg.cholesky(pt.set_subtensor(pt.eye(9)[5, 3], s) + root @ root.T)
    if lower:
        graph = pt.linalg.solve_triangular(chol, s * right, lower=True)
    else:
        graph = pt.linalg.solve_triangular(chol.T, s * right[:, 0], lower=False, b_ndim=1)
    function, tape = PointFunction(graph, {"s": s}), TapeBuilder(of_rows=of_rows)
    x = tape.inputs(())
    index = function.on_tape(tape, {"s": x})
    # All entries of a factor depend on one of the matrix, and are needed for one of them.
    tape.drop(0, index)
    code, registers = tape.finish()
    assert (FACTORIZE in code[:, 0]) != of_rows
    for value, own in ((0.5, code), (-0.3, depending(code, x.reshape(1)))):
        registers[x] = value
        run_tape(own, registers)
        expected = function({"s": np.array(value)})
        np.testing.assert_allclose(registers[index], expected, rtol=1e-11)


def test_only_what_depends_on_some_registers_runs_again():
    tape = TapeBuilder()
    x, y = tape.inputs((2, 1))
    total = tape.apply("Add", tape.apply("Exp", x), tape.apply("Mul", tape.apply("Log", y), x))
    of_y = depending(tape.finish().code, y)
    assert [NAMES[code] for code in of_y[:, 0]] == ["Log", "Mul", "Add"]
    code, registers = tape.finish()
    registers[np.concatenate([x, y])] = 0.4, 2.0
    run_tape(code, registers)
    registers[y] = 3.0
    run_tape(of_y, registers)
    assert registers[total] == np.exp(0.4) + np.log(3.0) * 0.4


def test_equal_instructions_are_one():
    s, v, m = arguments()
    graph = pt.exp(pt.alloc(s, 100)) + pt.exp(s)
    found, code, _ = on_tape(graph, [s, v, m], VALUES)
    assert len(code) == 2
    np.testing.assert_allclose(found, 2.0 * np.exp(0.7))


def test_a_condition_of_groups_is_there_once_for_each():
    s, v, m = arguments()
    graph = pt.switch(pt.all(pt.gt(v[np.arange(60) % 3], 0.0)), s, -1.0)
    found, code, _ = on_tape(graph, [s, v, m], VALUES)
    assert len(code) == 3 + 2 + 1
    assert found == 0.7


def test_what_has_no_tape():
    s, v, m = arguments()
    single = pt.fscalar("single")
    for graph, inputs in [
        (pt.linalg.inv(m), [m]),
        (v[pt.cast(s, "int64")], [s, v]),
        (pt.digamma(s), [s]),
        (single + np.float32(1.0), [single]),
        (pt.alloc(s, 80_000) * np.arange(80_000.0), [s]),
    ]:
        at = {**VALUES, "single": np.float32(0.5)}
        with pytest.raises(NoTapeError):
            on_tape(graph, inputs, {var.name: at[var.name] for var in inputs})
