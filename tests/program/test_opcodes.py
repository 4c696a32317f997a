"""The table of operations: its entries, and a new operation by an entry alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from kernels import run_kernel

import sysdyn as sd
from sysdyn.codegen import interpreter
from sysdyn.codegen.c99 import CSource, Description
from sysdyn.codegen.llvm.compile import compile_kernel
from sysdyn.errors import FileError
from sysdyn.frameworks import casadi
from sysdyn.program.autodiff import derivative, evaluate, gradient
from sysdyn.program.graph import Graph, copysign, sqrt, strip_sign
from sysdyn.program.opcodes import (
    ANGULAR,
    CONST,
    COPYSIGN,
    INPUT,
    NEG,
    OPERATIONS,
    WRAP,
    Flops,
    Operation,
    scalar_function,
)
from sysdyn.program.program import Program
from sysdyn.program.simplify import simplify

EXECUTED = [kind for kind, operation in OPERATIONS.items() if operation.executed]
POINTS = ((0.7, 1.9), (2.5, 0.3), (1.1, 1.1))
each = pytest.mark.parametrize("kind", EXECUTED, ids=[OPERATIONS[kind].name for kind in EXECUTED])


def test_numbers_of_kinds_are_those_of_stored_programs():
    names = {kind: operation.name for kind, operation in OPERATIONS.items()}
    assert (INPUT, CONST) == (0, 1)
    assert names == {
        2: "add", 3: "sub", 4: "mul", 5: "div", 6: "neg", 7: "sin", 8: "cos", 9: "sqrt", 10: "opaque",
        11: "copysign", 12: "wrap",
    }  # fmt: skip


@each
def test_entries_agree_with_each_other(kind):
    operation, functions = OPERATIONS[kind], interpreter.numpy_functions()
    for point in POINTS:
        x = point[: operation.arity]
        value = operation.number(*x)
        assert type(value) is float and functions[kind](*x) == pytest.approx(value, rel=1e-15)
        np.testing.assert_array_equal(operation.number(*(np.array([a, a]) for a in x)), [functions[kind](*x)] * 2)
        if operation.commutes:
            assert operation.number(*x[::-1]) == value
        if operation.parity:
            assert operation.number(*x[:-1], -x[-1]) == operation.parity * value
        partials = operation.partials(value, *x)
        assert len(partials) == operation.arity
        for k, partial in enumerate(partials):
            low, high = (operation.number(*(a + s * 1e-6 * (n == k) for n, a in enumerate(x))) for s in (-1.0, 1.0))
            assert partial == pytest.approx((high - low) / 2e-6, abs=1e-8)
    assert operation.c.count("{}") == operation.arity
    assert bool(operation.llvm) == (kind not in ANGULAR)
    graph = Graph("none")
    y = graph.apply(kind, *graph.inputs("x", operation.arity))
    assert graph.count([y]) == Flops(**({operation.counted: 1} if operation.counted else {}))
    assert all(f"x[{k}]" in repr(y) for k in range(operation.arity))
    assert (operation.symbol or operation.name) in repr(y)


def test_what_is_executed_and_not_counted():
    """Changes of sign, and the reduction of angles."""
    assert [kind for kind in EXECUTED if not OPERATIONS[kind].counted] == [NEG, COPYSIGN, WRAP]
    arm = sd.chain(5, seed=1)
    program = sd.compile(sd.inverse_dynamics(arm), outputs=["tau"], backend="python").program
    found = {kind: int((program.kind == kind).sum()) for kind in EXECUTED}
    assert found[WRAP] > 0
    executed = sum(found.values()) - found[NEG] - found[COPYSIGN] - found[WRAP]
    assert executed == program.flops.total + 2 * program.flops.trig


# ---- a new operation -----------------------------------------------------------------------------------------------

SIZE = max(OPERATIONS) + 1
ABSOLUTE = Operation(
    "abs", 1, scalar_function(SIZE, math.fabs, np.abs), np.abs,
    lambda y, a: (copysign(1.0, a),), "fabs({})", "@llvm.fabs", casadi="fabs", parity=1,
)  # fmt: skip


@pytest.fixture
def one_more(monkeypatch):
    """A new entry of the table; its machine code is not cached."""
    monkeypatch.setenv("SYSDYN_CACHE", "")
    monkeypatch.setitem(OPERATIONS, SIZE, ABSOLUTE)


def reflection(x, y):
    """α = −sign(x₀) √(x₀² + x₁²), as in a Householder reflection, and |y₀| x₁."""
    return [-copysign(sqrt(x[0] * x[0] + x[1] * x[1]), x[0]), ABSOLUTE.number(y[0]) * x[1]]


STATES = {"x": np.array([[3.0, 4.0], [-3.0, 4.0], [-0.5, 0.2]]), "y": np.array([[2.0], [-2.0], [-0.1]])}
EXPECTED = np.array([[-5.0, 8.0], [5.0, 8.0], [math.hypot(0.5, 0.2), 0.02]])


def program_of(graph: Graph, outputs: list) -> Program:
    inputs = [("x", graph.inputs("x", 2)), ("y", graph.inputs("y", 1))]
    return Program.from_graph(graph, inputs, [("z", outputs)])


@pytest.fixture(params=["none", "structural", "algebraic"])
def program(request, one_more) -> Program:
    graph = Graph(request.param)
    return program_of(graph, reflection(graph.inputs("x", 2), graph.inputs("y", 1)))


def test_a_new_operation_is_an_entry_for_programs_and_back_ends(program):
    assert program.flops == Flops(mul=3, add=1, sqrt=1)
    restored = Program.from_arrays(program.to_arrays())
    assert restored.digest == program.digest
    np.testing.assert_allclose(interpreter.run_groups(program, STATES)["z"], EXPECTED, rtol=1e-15)
    for width, level in ((1, 0), (1, 2), (2, 0), (4, 2), (8, 2)):
        outputs, status = run_kernel(compile_kernel(program, width, level), program, STATES, 3)
        np.testing.assert_allclose(outputs["z"], EXPECTED, rtol=1e-15)
        assert not status.any()
    source = CSource("reflection", program, Description("a reflection")).source()
    assert "copysign(" in source and "fabs(" in source
    for k, expected in enumerate(EXPECTED):
        found = casadi.function(program, "f")(*(x[k] for x in STATES.values()))
        np.testing.assert_allclose(found.full().ravel(), expected, rtol=1e-15)


@pytest.mark.parametrize(("a", "b"), [(2.0, 3.0), (-2.0, 3.0), (2.0, -3.0), (-2.0, -3.0)])
def test_derivative_of_copysign_has_the_signs_of_both_arguments(a, b):
    x, y = Graph("algebraic").inputs("x", 2)
    slope = evaluate(derivative([copysign(x, y)], {"x[0]": 1.0, "x[1]": 1.0}), {"x[0]": a, "x[1]": b})
    assert slope[0] == np.sign(a) * np.sign(b)  # |a| sgn(b)


def test_a_new_operation_is_an_entry_for_graphs(one_more):
    graph = Graph("algebraic")
    x, y = graph.inputs("x", 2), graph.inputs("y", 1)
    outputs = reflection(x, y)
    for k, expected in enumerate(EXPECTED):
        point = {f"{name}[{j}]": float(a) for name, rows in STATES.items() for j, a in enumerate(rows[k])}
        np.testing.assert_allclose(evaluate(outputs, point), expected, rtol=1e-15)
        direction = {"x[0]": 0.3, "x[1]": -0.2, "y[0]": 0.7}
        slopes = [float(v) for v in evaluate(derivative(outputs, direction), point)]
        low, high = (
            evaluate(outputs, {name: a + s * 1e-6 * direction[name] for name, a in point.items()}) for s in (-1.0, 1.0)
        )
        np.testing.assert_allclose(slopes, (high - low) / 2e-6, atol=1e-8)
        by_x = [float(v) for v in evaluate(gradient(outputs[:1], [1.0], list(x)), point)]
        np.testing.assert_allclose(by_x, expected[0] * STATES["x"][k] / np.sum(STATES["x"][k] ** 2), rtol=1e-12)
    assert "copysign(sqrt(" in repr(outputs[0]) and "abs(y[0])" in repr(outputs[1])
    assert graph.apply(COPYSIGN, 2.0, -1.0) == -2.0  # of numbers, a number
    assert graph.apply(SIZE, -y[0]).id == graph.apply(SIZE, y[0]).id  # an even function
    assert graph.apply(COPYSIGN, x[0], y[0]).id == graph.apply(COPYSIGN, x[0], y[0]).id  # computed once
    assert graph.apply(COPYSIGN, x[0], y[0]).id != graph.apply(COPYSIGN, y[0], x[0]).id
    mirrored = graph.apply(COPYSIGN, x[0], -y[0])
    assert mirrored.negative and strip_sign(mirrored).id == x[0].id  # odd in the sign, free of it in size
    new, results = simplify(graph, outputs)
    np.testing.assert_allclose(interpreter.run_groups(program_of(new, results), STATES)["z"], EXPECTED, rtol=1e-15)


def test_programs_with_operations_that_are_not_in_the_table_are_refused(program, monkeypatch):
    monkeypatch.delitem(OPERATIONS, SIZE)
    with pytest.raises(FileError, match="damaged"):
        Program.from_arrays(program.to_arrays())
