"""Expressions: folding, sharing, counts, values and derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest
from counting import Counted, all_nodes, counted, live
from hypothesis import assume, given
from hypothesis import strategies as st

from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.program import graph as operations
from sysdyn.program.autodiff import derivative, evaluate, gradient
from sysdyn.program.graph import Expr, Graph, cos, is_constant, is_zero, sin, sqrt
from sysdyn.program.opcodes import Flops

SHARING = ("none", "structural", "algebraic")
FREE = Flops()


@pytest.fixture(params=SHARING)
def graph(request) -> Graph:
    return Graph(request.param)


def xyz(graph: Graph) -> tuple[Expr, Expr, Expr]:
    return graph.input("x"), graph.input("y"), graph.input("z")


def same(a, b) -> bool:
    """One node of one graph."""
    return type(a) is Expr and type(b) is Expr and a.graph is b.graph and a.id == b.id


# ---- folding -------------------------------------------------------------------------------------------------------

IDENTITIES = {
    "x + 0": lambda x: (x + 0.0, x),
    "0 + x": lambda x: (0.0 + x, x),
    "x + int 0": lambda x: (x + 0, x),
    "x − 0": lambda x: (x - 0.0, x),
    "0 − x": lambda x: (-(0.0 - x), x),
    "x · 1": lambda x: (x * 1.0, x),
    "1 · x": lambda x: (1.0 * x, x),
    "x · −1": lambda x: (-(x * -1.0), x),
    "−1 · x": lambda x: (-(-1.0 * x), x),
    "x / 1": lambda x: (x / 1.0, x),
    "x / −1": lambda x: (-(x / -1.0), x),
    "−−x": lambda x: (x.__neg__().__neg__(), x),
    "+x": lambda x: (+x, x),
    "−x + 0": lambda x: (-(-x + 0.0), x),
    "0 − −x": lambda x: (0.0 - (-x), x),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_what_leaves_a_number_as_it_is_makes_no_node(graph, name):
    x = graph.input("x")
    result, expected = IDENTITIES[name](x)
    assert same(result, expected)
    assert graph.count([result]) == FREE == all_nodes(graph)


CONSTANTS = {
    "x · 0": (lambda x: x * 0.0, 0.0),
    "0 · x": (lambda x: 0.0 * x, 0.0),
    "x · int 0": (lambda x: x * 0, 0.0),
    "0 / x": (lambda x: 0.0 / x, 0.0),
    "x − x": (lambda x: x - x, 0.0),
    "x + −x": (lambda x: x + (-x), 0.0),
    "−x + x": (lambda x: -x + x, 0.0),
    "x / x": (lambda x: x / x, 1.0),
    "x / −x": (lambda x: x / (-x), -1.0),
    "−x / x": (lambda x: -x / x, -1.0),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_what_does_not_depend_on_the_input_is_a_float(graph, name):
    function, expected = CONSTANTS[name]
    result = function(graph.input("x"))
    assert type(result) is float and result == expected
    assert is_zero(result) == (expected == 0.0) and is_constant(result)
    assert all_nodes(graph) == FREE


SIGN_MOVES = {
    "a + (−b) = a − b": lambda a, b: (a + (-b), a - b, 1.0),
    "(−a) + b = b − a": lambda a, b: ((-a) + b, b - a, 1.0),
    "(−a) + (−b) = −(a + b)": lambda a, b: ((-a) + (-b), a + b, -1.0),
    "a − (−b) = a + b": lambda a, b: (a - (-b), a + b, 1.0),
    "(−a) − b = −(a + b)": lambda a, b: ((-a) - b, a + b, -1.0),
    "(−a) − (−b) = b − a": lambda a, b: ((-a) - (-b), b - a, 1.0),
    "b − a = −(a − b)": lambda a, b: (b - a, a - b, -1.0),
    "(−a) b = −(a b)": lambda a, b: ((-a) * b, a * b, -1.0),
    "a (−b) = −(a b)": lambda a, b: (a * (-b), a * b, -1.0),
    "(−a)(−b) = a b": lambda a, b: ((-a) * (-b), a * b, 1.0),
    "b a = a b": lambda a, b: (b * a, a * b, 1.0),
    "b + a = a + b": lambda a, b: (b + a, a + b, 1.0),
    "(−a) / b = −(a / b)": lambda a, b: ((-a) / b, a / b, -1.0),
    "a / (−b) = −(a / b)": lambda a, b: (a / (-b), a / b, -1.0),
    "(−a) / (−b) = a / b": lambda a, b: ((-a) / (-b), a / b, 1.0),
    "a · −2 = −(a · 2)": lambda a, b: (a * -2.0, a * 2.0, -1.0),
    "a / −2 = −(a / 2)": lambda a, b: (a / -2.0, a / 2.0, -1.0),
    "−2 / a = −(2 / a)": lambda a, b: (-2.0 / a, 2.0 / a, -1.0),
    "a + −2 = a − 2": lambda a, b: (a + -2.0, a - 2.0, 1.0),
    "a − −2 = a + 2": lambda a, b: (a - -2.0, a + 2.0, 1.0),
    "−2 − a = −(a + 2)": lambda a, b: (-2.0 - a, a + 2.0, -1.0),
    "2 − a = −(a − 2)": lambda a, b: (2.0 - a, a - 2.0, -1.0),
    "sin −a = −sin a": lambda a, b: ((-a).sin(), a.sin(), -1.0),
    "cos −a = cos a": lambda a, b: ((-a).cos(), a.cos(), 1.0),
}


@pytest.mark.parametrize("sharing", ["structural", "algebraic"])
@pytest.mark.parametrize("name", SIGN_MOVES)
def test_signs_are_moved_so_that_equal_results_are_one_node(name, sharing):
    graph = Graph(sharing)
    a, b, _ = xyz(graph)
    left, right, sign = SIGN_MOVES[name](a, b)
    assert same(left, right * sign)
    one = graph.count([left])
    assert one.total + one.trig == 1 and all_nodes(graph) == one


@pytest.mark.parametrize("name", SIGN_MOVES)
def test_sign_moves_keep_the_value(name):
    graph = Graph("none")
    a, b, _ = xyz(graph)
    left, right, sign = SIGN_MOVES[name](a, b)
    expected = SIGN_MOVES[name](Counted(0.7), Counted(-1.3))[0].value
    values = evaluate([left, right * sign], {"x": 0.7, "y": -1.3})
    assert values[0] == values[1] == expected


def test_without_sharing_each_operation_is_a_node():
    graph = Graph("none")
    x, y, _ = xyz(graph)
    outputs = [x * y, y * x, x + y, x + y, x - y, y - x, x / y, x / y, graph.input("x").sqrt(), x.sqrt()]
    assert graph.count(outputs) == Flops(mul=2, add=4, div=2, sqrt=2)
    shared = Graph("structural")
    x, y, _ = xyz(shared)
    outputs = [x * y, y * x, x + y, x + y, x - y, y - x, x / y, x / y, shared.input("x").sqrt(), x.sqrt()]
    assert shared.count(outputs) == Flops(mul=1, add=2, div=1, sqrt=1)


def test_signs_are_no_nodes_until_they_are_asked_for(graph):
    x, y, _ = xyz(graph)
    before = len(graph)
    opposite = -x
    assert same(-opposite, x) and len(graph) == before
    assert opposite.id == (-x).id == before and len(graph) == before + 1
    assert same(graph.at(opposite.id), opposite) and same(graph.at(x.id), x)
    assert evaluate([opposite, opposite * y], {"x": 2.0, "y": 3.0}).tolist() == [-2.0, -6.0]
    assert repr(-(x + y)) == "-(x + y)"


def test_float_constants_fold_among_themselves(graph):
    x = graph.input("x")
    assert same(x * (2.0 * 0.5), x)
    assert graph.count([x * (3.0 + 1.0)]) == Flops(mul=1)


# ---- NumPy ---------------------------------------------------------------------------------------------------------


def test_numbers_of_all_kinds_are_operands(graph):
    x = graph.input("x")
    for two in (2, 2.0, np.float64(2.0), np.float32(2.0), np.int64(2)):
        results = [two * x, x * two, two + x, x + two, two - x, x - two, two / x, x / two]
        assert all(type(r) is Expr for r in results), type(two)
        np.testing.assert_array_equal(evaluate(results, {"x": 4.0}), [8, 8, 6, 6, -2, 2, 0.5, 2])
    assert is_zero(np.float64(0.0) * x) and same(np.float64(1.0) * x, x) and same(x + np.int64(0), x)
    with pytest.raises(TypeError):
        x + "1"
    with pytest.raises(TypeError):
        None * x


def test_arrays_of_floats_and_expressions_mix(graph):
    x, y, z = xyz(graph)
    v = np.array([x, y, z], dtype=object)
    A = np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 0.0]])
    values = {"x": 0.3, "y": -0.8, "z": 1.9}
    at = np.array([0.3, -0.8, 1.9])
    for result, expected in (
        (A @ v, A @ at),
        (v @ A.T, A @ at),
        (A * x, A * 0.3),
        (x * A, A * 0.3),
        (A - y, A + 0.8),
        (y - A, -0.8 - A),
        (A + v, A + at),
        (A / z, A / 1.9),
        (2.0 / v, 2.0 / at),
        (z / np.array([2.0, 4.0]), 1.9 / np.array([2.0, 4.0])),
        (np.sin(v), np.sin(at)),
        (np.cos(v), np.cos(at)),
        (np.sqrt(v * v), np.abs(at)),
        (v**2, at**2),
        (np.cross(v, np.array([0.0, 0.0, 1.0])), np.cross(at, [0.0, 0.0, 1.0])),
        (np.outer(v, v), np.outer(at, at)),
        (v.sum(), at.sum()),
        (v[None, :] * v[:, None], np.outer(at, at)),
    ):
        assert np.shape(result) == np.shape(expected)
        np.testing.assert_allclose(evaluate(result, values), expected, rtol=1e-15)
    assert graph.count(A @ v) == Flops(mul=1, add=1)  # x + 2 z and −y


def test_elementary_functions_take_floats_arrays_and_expressions(graph):
    x = graph.input("x")
    for name in ("sin", "cos", "sqrt"):
        generic = getattr(operations, name)
        at = np.array([0.4, 1.7])
        np.testing.assert_array_equal(generic(at), getattr(np, name)(at))
        assert generic(0.4) == getattr(math, name)(0.4) == evaluate(generic(x), {"x": 0.4})


def test_inputs_are_found_by_name(graph):
    assert same(graph.input("x"), graph.input("x")) and not same(graph.input("x"), graph.input("y"))
    q = graph.inputs("q", 3)
    assert q.shape == (3,) and same(q[1], graph.input("q[1]"))
    assert graph.inputs("none", 0).shape == (0,)


# ---- counts --------------------------------------------------------------------------------------------------------


def test_counts_by_kind_of_what_is_live(graph):
    x, y, z = xyz(graph)
    dead = (x * y + z).sqrt() / x
    s, c = x.sin(), x.cos()
    used = (s * y + c * z) / (y - 2.0) + (x * x).sqrt()
    assert graph.count([used]) == Flops(mul=3, add=3, div=1, sqrt=1, trig=1)
    assert graph.count([used]).total == 8
    assert graph.count([used, dead]) == Flops(mul=4, add=4, div=2, sqrt=2, trig=1)
    assert graph.count([s]) == graph.count([s, c]) == graph.count([c, (-x).sin()]) == Flops(trig=1)
    assert graph.count([s, y.cos()]) == Flops(trig=2)
    assert graph.count([x, 1.0, 0.0, -y]) == graph.count([]) == FREE
    assert "3 mul + 3 add + 1 div + 1 sqrt = 8 (and 1 sin/cos pairs)" == repr(graph.count([used]))


def test_live_nodes_are_those_that_are_needed(graph):
    x, y, z = xyz(graph)
    product = x * y
    product + z
    assert graph.live([product]).tolist() == sorted([x.id, y.id, product.id])


# ---- values and sharing over random programs -----------------------------------------------------------------------

LEAVES = 3
OPERATIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a, b: -a,
    "div": lambda a, b: a / (b * b + 1.5),
    "sqrt": lambda a, b: sqrt(a * a + 0.5),
    "sin": lambda a, b: sin(a),
    "cos": lambda a, b: cos(a) * b,
    "scale": lambda a, b: a * -0.75 + 2.0,
    "reciprocal": lambda a, b: -3.0 / (a * a + 1.0),
}
steps = st.lists(
    st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 10**6), st.integers(0, 10**6)),
    min_size=1,
    max_size=14,
)
points = st.lists(st.floats(-2.0, 2.0).map(lambda x: round(x, 6)), min_size=LEAVES, max_size=LEAVES)


def execute(program, leaves: list) -> list:
    """Everything that the random program computes."""
    values = list(leaves)
    for name, i, j in program:
        values.append(OPERATIONS[name](values[i % len(values)], values[j % len(values)]))
    return values[len(leaves) :]


def named(point) -> dict[str, float]:
    return dict(zip("xyz", point, strict=True))


@given(steps, points)
def test_values_are_those_of_a_float_run(program, point):
    """To the last bit, where nothing is taken for equal that is not computed alike."""
    expected = np.array(execute(program, point))
    assume(np.all(np.abs(expected) < 1e6))
    found = {}
    for sharing in SHARING:
        graph = Graph(sharing)
        found[sharing] = np.array(evaluate(execute(program, list(xyz(graph))), named(point)), dtype=float)
    np.testing.assert_array_equal(found["none"], expected)
    np.testing.assert_array_equal(found["structural"], expected)
    scale = max(1.0, float(np.max(np.abs(expected))))
    np.testing.assert_allclose(found["algebraic"], expected, rtol=0.0, atol=1e-9 * scale**2)


@given(steps)
def test_sharing_never_adds_operations(program):
    counts = []
    for sharing in SHARING:
        graph = Graph(sharing)
        counts.append(graph.count(execute(program, list(xyz(graph)))))
    assert counts[0].total >= counts[1].total >= counts[2].total
    assert counts[0].trig >= counts[1].trig >= counts[2].trig


@given(steps)
def test_counts_without_sharing_are_those_of_an_instrumented_run(program):
    """All that was executed, and what the last result needs. At generic values."""
    graph = Graph("none")
    results = execute(program, list(xyz(graph)))
    Counted.log.clear()
    functions = {
        "sin": lambda a, b: a.sin(),
        "cos": lambda a, b: a.cos() * b,
        "sqrt": lambda a, b: (a * a + 0.5).sqrt(),
    }
    values: list = [Counted(x) for x in (0.37, -1.21, 0.83)]
    for name, i, j in program:
        a, b = values[i % len(values)], values[j % len(values)]
        if not (isinstance(a, Counted) and isinstance(b, Counted)):  # a constant: covered by the float run
            assume(False)
        values.append(functions.get(name, OPERATIONS[name])(a, b))
    executed = counted(Counted.log)
    assert executed == all_nodes(graph)
    assert counted(live(values[LEAVES:])) == graph.count(results)
    assert counted(live(values[-1:])) == graph.count(results[-1:])


@given(steps, points)
def test_substitution_is_evaluation_over_expressions(program, point):
    expected = np.array(execute(program, point))
    assume(np.all(np.abs(expected) < 1e6))
    graph, other = Graph(), Graph()
    outputs = execute(program, list(xyz(graph)))
    x, y, z = xyz(other)
    moved = evaluate(outputs, {"x": x, "y": y, "z": z})
    np.testing.assert_array_equal(np.array(evaluate(moved, named(point)), dtype=float), expected)
    assert other.count(moved) == graph.count(outputs)
    fixed = evaluate(outputs, {"x": x, "y": point[1], "z": point[2]})
    np.testing.assert_allclose(np.array(evaluate(fixed, named(point)), dtype=float), expected, rtol=1e-9, atol=1e-9)


def test_evaluation_keeps_the_shape_and_takes_arrays(graph):
    x, y, _ = xyz(graph)
    outputs = np.array([[x + y, 1.0], [x * y, x]], dtype=object)
    found = evaluate(outputs, {"x": 2.0, "y": 3.0, "unused": 1.0})
    assert found.dtype == float
    np.testing.assert_array_equal(found, [[5.0, 1.0], [6.0, 2.0]])
    batch = evaluate(x * y, {"x": np.arange(4.0), "y": 2.0})
    np.testing.assert_array_equal(batch, 2.0 * np.arange(4.0))
    assert evaluate(x, {"x": 7.0}) == 7.0
    assert evaluate([1.0, 2.0], {}) == [1.0, 2.0]
    with pytest.raises(UnknownName, match="value for input 'y'"):
        evaluate(x * y, {"x": 1.0})


# ---- derivatives ---------------------------------------------------------------------------------------------------


@given(steps, points, points)
def test_derivatives_agree_with_complex_steps_and_with_each_other(program, point, direction):
    """Of every result, along `direction`; Im f(x + i h ẋ)/h has neither truncation nor cancellation at h = 1e-30."""
    values = np.array(execute(program, point))
    assume(np.all(np.abs(values) < 1e3))
    at = [np.array([x + 1e-30j * d]) for x, d in zip(point, direction, strict=True)]
    expected = np.array([np.asarray(v).imag.item() * 1e30 for v in execute(program, at)])
    assume(np.all(np.abs(expected) < 1e6))
    size = max(1.0, float(np.max(np.abs(values)))) * max(1.0, float(np.max(np.abs(expected))))
    for sharing in SHARING:
        graph = Graph(sharing)
        inputs = list(xyz(graph))
        outputs = execute(program, inputs)
        forward = derivative(outputs, dict(zip("xyz", direction, strict=True)))
        reverse = gradient(outputs[-1:], [1.0], inputs)
        found = np.array(evaluate(forward, named(point)), dtype=float)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10 * size)
        slopes = np.array(evaluate(reverse, named(point)), dtype=float)
        np.testing.assert_allclose(slopes @ direction, expected[-1], rtol=1e-9, atol=1e-10 * size)


def test_derivatives_agree_with_finite_differences():
    graph = Graph()
    x, y, z = inputs = xyz(graph)
    f = (x.sin() * y / (z + 3.0) - (x * x + y * y).sqrt() * z.cos()) / (2.0 - x * 0.25)
    point, h = np.array([0.6, -0.9, 0.4]), 1e-6
    slopes = evaluate(gradient([f], [1.0], inputs), named(point))
    for k in range(3):
        step = h * np.eye(3)[k]
        difference = (evaluate(f, named(point + step)) - evaluate(f, named(point - step))) / (2.0 * h)
        (along,) = derivative([f], {"xyz"[k]: 1.0})
        assert evaluate(along, named(point)) == pytest.approx(difference, rel=1e-8)
        assert slopes[k] == pytest.approx(difference, rel=1e-8)


def test_derivatives_of_constants_and_inputs(graph):
    x, y, _ = xyz(graph)
    assert derivative([3.0, x, y, -x], {"x": 2.0})[:3] == [0.0, 2.0, 0.0]
    assert derivative([3.0], {"x": 1.0}) == [0.0]
    assert gradient([3.0], [1.0], [x, y]) == [0.0, 0.0]
    assert gradient([x], [1.0], [x, y]) == [1.0, 0.0]
    assert gradient([x * 2.5], [1.0], [x, y]) == [2.5, 0.0]
    assert gradient([(x * y) * x, x], [0.0, 3.0], [x, y]) == [3.0, 0.0]
    (rate,) = derivative([x * y], {"x": graph.input("dx")})  # rates may be expressions
    assert evaluate(rate, {"y": 3.0, "dx": 0.5}) == 1.5


# ---- algebraic sharing ---------------------------------------------------------------------------------------------


def test_congruence_of_a_symmetric_matrix_is_found_symmetric():
    """Xᵀ I X has n(n + 1)/2 different entries, which operation by operation it has not."""
    for sharing, distinct in (("algebraic", 6), ("structural", 9)):
        graph = Graph(sharing)
        X = graph.inputs("X", 9).reshape(3, 3)
        upper = graph.inputs("I", 6)
        I = np.empty((3, 3), dtype=object)
        I[np.triu_indices(3)] = upper
        I.T[np.triu_indices(3)] = upper
        C = X.T @ I @ X
        assert len({x.id for x in C.flat}) == distinct


def test_results_that_cancel_for_every_input_are_zero():
    graph = Graph("algebraic")
    x, y, z = xyz(graph)
    assert is_zero((x + y) * (x - y) - (x * x - y * y))
    assert is_zero(x * y / z - y * (x / z))
    assert is_zero(((x + y) * z - x * z) - z * y)
    assert is_zero((x + 0.5) * 2.0 - 2.0 * x - 1.0)
    assert same((x + y) - y, x) and same(-(y - (x + y)), x) and same(x * y / y, x)
    structural = Graph("structural")
    x, y, _ = xyz(structural)
    assert not is_zero((x + y) * (x - y) - (x * x - y * y))


def test_sines_and_cosines_lie_on_the_circle():
    graph = Graph("algebraic")
    x, y, z = xyz(graph)
    s, c = x.sin(), x.cos()
    assert s * s + c * c == 1.0
    assert same((s * y) * s + (c * y) * c, y)
    assert is_zero(y.sin() * y.sin() - (1.0 - y.cos() * y.cos()))
    assert type(s * s + y.cos() * y.cos()) is Expr
    # a rotation keeps the length
    R = np.array([[c, -s], [s, c]], dtype=object)
    v = np.array([y, z], dtype=object)
    assert same((R @ v) @ (R @ v), v @ v)


def test_exact_constants_keep_their_value_through_folding():
    graph = Graph("algebraic")
    x = graph.input("x")
    a, b = graph.exact_constant(0.1), graph.exact_constant(0.3)
    assert type(a) is Expr and is_constant(a) and is_constant(-a)
    # rounded, 0.1 + 0.3 − 0.3 is not 0.1
    assert same(a + b - b, a) and 0.1 + 0.3 - 0.3 != 0.1
    assert is_zero((a + b) * x - (a * x + b * x))
    assert is_constant(a * b) and evaluate(a * b, {}) == 0.1 * 0.3
    assert evaluate(graph.exact_constant(-0.1), {}) == -0.1 and same(graph.exact_constant(-0.1), -a)
    assert is_zero(a - 0.1) and a / 0.1 == 1.0
    assert graph.count([a * x + b]) == Flops(mul=1, add=1)
    for x in (0.0, 1.0, -1.0):
        assert graph.exact_constant(x) is x
    assert Graph("structural").exact_constant(0.1) == 0.1


@given(st.lists(st.floats(-50.0, 50.0).map(lambda x: round(x, 3)), min_size=2, max_size=6))
def test_exact_constants_are_the_floats_they_stand_for(constants):
    graph = Graph("algebraic")
    x = graph.input("x")
    total, expected = x, 0.7
    for k, c in enumerate(constants):
        total = total * graph.exact_constant(c) + 1.0 if k % 2 else total - graph.exact_constant(c)
        expected = expected * c + 1.0 if k % 2 else expected - c
    assert evaluate(total, {"x": 0.7}) == pytest.approx(expected, rel=1e-9, abs=1e-9)


# ---- errors --------------------------------------------------------------------------------------------------------


def test_operands_of_two_graphs_are_refused(graph):
    x, other = graph.input("x"), Graph().input("y")
    for operation in (lambda: x + other, lambda: x * other, lambda: x - other, lambda: x / other):
        with pytest.raises(InvalidInput, match="two different graphs"):
            operation()
    with pytest.raises(InvalidInput, match="two different graphs"):
        evaluate([x, other], {"x": 1.0, "y": 2.0})


def test_expressions_have_no_value_while_the_program_is_built(graph):
    x = graph.input("x")
    with pytest.raises(InvalidInput, match="without branching"):
        bool(x * 2.0)
    with pytest.raises(InvalidInput, match="evaluate"):
        float(x)
    with pytest.raises(TypeError):
        x < 1.0  # noqa: B015
    with pytest.raises(InvalidInput, match="power 2"):
        x**3


def test_division_by_the_constant_zero(graph):
    x = graph.input("x")
    for zero in (0.0, 0, np.float64(0.0), x - x):
        with pytest.raises(ZeroDivisionError):
            x / zero


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_constants_must_be_finite(graph, bad):
    x = graph.input("x")
    for operation in (lambda: x + bad, lambda: bad * x, lambda: x - bad, lambda: x / bad, lambda: bad / x):
        with pytest.raises(InvalidInput, match="constant of an expression is"):
            operation()


def test_exact_constants_that_overflow_are_refused():
    graph = Graph("algebraic")
    large = graph.exact_constant(1e200)
    with pytest.raises(InvalidInput, match="inf"):
        large * large


def test_unknown_sharing_is_named():
    with pytest.raises(UnknownName, match="structural"):
        Graph("structual")


def test_expressions_show_what_they_are(graph):
    x, y, _ = xyz(graph)
    assert repr(x) == "x" and repr(-x) == "-x" and repr(x.sin()) == "sin(x)"
    assert repr(x * 2.0 - y) in ("((x * 2) - y)", "-(y - (x * 2))")
    deep = x
    for _ in range(50):
        deep = (deep + y) * deep
    assert len(repr(deep)) < 200


def test_powers_of_two_are_no_ones():
    """The prime of the identity test is one modulo which 2 has a great order."""
    graph = Graph("algebraic")
    x = graph.input("x")
    found = [x * 2.0**k for k in range(-200, 201)]
    assert len({y.id for y in found}) == len(found)
