"""Expressions: folding, sharing, counts, values and derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest
from counting import Counted, all_nodes, counted, live
from hypothesis import assume, given
from hypothesis import strategies as st

from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.program import graph as elementary
from sysdyn.program.autodiff import derivative, evaluate, gradient
from sysdyn.program.graph import Expr, Graph, cos, is_constant, is_zero, sin, sqrt
from sysdyn.program.opcodes import Flops

SHARING = ("none", "structural", "algebraic")


@pytest.fixture(params=SHARING)
def graph(request) -> Graph:
    return Graph(request.param)


def xyz(graph: Graph) -> tuple[Expr, Expr, Expr]:
    return graph.input("x"), graph.input("y"), graph.input("z")


def same(a, b) -> bool:
    """True for one node of one graph, and for equal floats."""
    if type(a) is float or type(b) is float:
        return type(a) is type(b) and a == b
    return a.graph is b.graph and a.id == b.id


# ---- folding -------------------------------------------------------------------------------------------------------

# x, y → (result, what it folds to without an operation)
FOLDED = {
    "x + 0": lambda x, y: (x + 0.0, x),
    "0 + x": lambda x, y: (0.0 + x, x),
    "x + int 0": lambda x, y: (x + 0, x),
    "x − 0": lambda x, y: (x - 0.0, x),
    "0 − x": lambda x, y: (0.0 - x, -x),
    "x · 1": lambda x, y: (x * 1.0, x),
    "1 · x": lambda x, y: (1.0 * x, x),
    "x · −1": lambda x, y: (x * -1.0, -x),
    "−1 · x": lambda x, y: (-1.0 * x, -x),
    "x / 1": lambda x, y: (x / 1.0, x),
    "x / −1": lambda x, y: (x / -1.0, -x),
    "x · (2 · ½)": lambda x, y: (x * (2.0 * 0.5), x),
    "−−x": lambda x, y: (-(x.__neg__()), x),
    "+x": lambda x, y: (+x, x),
    "−x + 0": lambda x, y: (-x + 0.0, -x),
    "0 − −x": lambda x, y: (0.0 - (-x), x),
    "x · 0": lambda x, y: (x * 0.0, 0.0),
    "0 · x": lambda x, y: (0.0 * x, 0.0),
    "x · int 0": lambda x, y: (x * 0, 0.0),
    "0 / x": lambda x, y: (0.0 / x, 0.0),
    "x − x": lambda x, y: (x - x, 0.0),
    "x + −x": lambda x, y: (x + (-x), 0.0),
    "−x + x": lambda x, y: (-x + x, 0.0),
    "x / x": lambda x, y: (x / x, 1.0),
    "x / −x": lambda x, y: (x / (-x), -1.0),
    "−x / x": lambda x, y: (-x / x, -1.0),
}
# x, y → (result, ± the operation with which it shares a node)
SHARED = {
    "x + (−y)": lambda x, y: (x + (-y), x - y),
    "(−x) + y": lambda x, y: ((-x) + y, y - x),
    "(−x) + (−y)": lambda x, y: ((-x) + (-y), -(x + y)),
    "x − (−y)": lambda x, y: (x - (-y), x + y),
    "(−x) − y": lambda x, y: ((-x) - y, -(x + y)),
    "(−x) − (−y)": lambda x, y: ((-x) - (-y), y - x),
    "y − x": lambda x, y: (y - x, -(x - y)),
    "(−x) y": lambda x, y: ((-x) * y, -(x * y)),
    "x (−y)": lambda x, y: (x * (-y), -(x * y)),
    "(−x)(−y)": lambda x, y: ((-x) * (-y), x * y),
    "y x": lambda x, y: (y * x, x * y),
    "y + x": lambda x, y: (y + x, x + y),
    "(−x) / y": lambda x, y: ((-x) / y, -(x / y)),
    "x / (−y)": lambda x, y: (x / (-y), -(x / y)),
    "(−x) / (−y)": lambda x, y: ((-x) / (-y), x / y),
    "x · −2": lambda x, y: (x * -2.0, -(x * 2.0)),
    "x / −2": lambda x, y: (x / -2.0, -(x / 2.0)),
    "−2 / x": lambda x, y: (-2.0 / x, -(2.0 / x)),
    "x + −2": lambda x, y: (x + -2.0, x - 2.0),
    "x − −2": lambda x, y: (x - -2.0, x + 2.0),
    "−2 − x": lambda x, y: (-2.0 - x, -(x + 2.0)),
    "2 − x": lambda x, y: (2.0 - x, -(x - 2.0)),
    "sin −x": lambda x, y: ((-x).sin(), -(x.sin())),
    "cos −x": lambda x, y: ((-x).cos(), x.cos()),
}


@pytest.mark.parametrize("name", [*FOLDED, *SHARED])
def test_equal_results_are_one_node_with_the_same_value(name):
    make, operations = (FOLDED[name], 0) if name in FOLDED else (SHARED[name], 1)
    for sharing in SHARING:
        graph = Graph(sharing)
        result, expected = make(graph.input("x"), graph.input("y"))
        if sharing != "none" or not operations:
            assert same(result, expected)
            assert all_nodes(graph).total + all_nodes(graph).trig == operations
            assert graph.count([result]) == all_nodes(graph)
        values = evaluate([result, expected], {"x": 0.7, "y": -1.3})
        direct = make(Counted(0.7), Counted(-1.3))[0]
        assert values[0] == values[1] == (direct.value if isinstance(direct, Counted) else direct)
        assert is_constant(result) == (type(expected) is float)
        assert is_zero(result) == (type(expected) is float and expected == 0.0)


@pytest.mark.parametrize(
    ("sharing", "flops"),
    [("none", Flops(mul=2, add=4, div=2, sqrt=2)), ("structural", Flops(mul=1, add=2, div=1, sqrt=1))],
)
def test_sharing_counts_equal_operations_once(sharing, flops):
    graph = Graph(sharing)
    x, y, _ = xyz(graph)
    outputs = [x * y, y * x, x + y, x + y, x - y, y - x, x / y, x / y, graph.input("x").sqrt(), x.sqrt()]
    assert graph.count(outputs) == flops


def test_changes_of_sign_become_nodes_where_they_are_used(graph):
    x, y, _ = xyz(graph)
    before = len(graph)
    opposite = -x
    assert same(-opposite, x) and len(graph) == before
    assert opposite.id == (-x).id == before and len(graph) == before + 1
    assert same(graph.at(opposite.id), opposite) and same(graph.at(x.id), x)
    assert evaluate([opposite, opposite * y], {"x": 2.0, "y": 3.0}).tolist() == [-2.0, -6.0]


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


A = np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 0.0]])
ARRAYS = {
    "A @ v": lambda v: A @ v,
    "v @ A": lambda v: v @ A.T,
    "A * x": lambda v: A * v[0],
    "x * A": lambda v: v[0] * A,
    "A - y": lambda v: A - v[1],
    "y - A": lambda v: v[1] - A,
    "A + v": lambda v: A + v,
    "A / z": lambda v: A / v[2],
    "2 / v": lambda v: 2.0 / v,
    "z / a": lambda v: v[2] / np.array([2.0, 4.0]),
    "sin": lambda v: np.sin(v),
    "cos": lambda v: np.cos(v),
    "sqrt": lambda v: np.sqrt(v * v),
    "square": lambda v: v**2,
    "cross": lambda v: np.cross(v, np.array([0.0, 0.0, 1.0])),
    "outer": lambda v: np.outer(v, v),
    "sum": lambda v: v.sum(),
    "broadcast": lambda v: v[None, :] * v[:, None],
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_floats_and_expressions_mix(graph, name):
    at = np.array([0.3, -0.8, 1.9])
    result, expected = ARRAYS[name](np.array(xyz(graph), dtype=object)), ARRAYS[name](at)
    assert np.shape(result) == np.shape(expected)
    np.testing.assert_allclose(evaluate(result, dict(zip("xyz", at, strict=True))), expected, rtol=1e-15)


@pytest.mark.parametrize("name", ["sin", "cos", "sqrt"])
def test_elementary_functions_take_floats_arrays_and_expressions(graph, name):
    function, at = getattr(elementary, name), np.array([0.4, 1.7])
    np.testing.assert_array_equal(function(at), getattr(np, name)(at))
    assert function(0.4) == getattr(math, name)(0.4) == evaluate(function(graph.input("x")), {"x": 0.4})


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
    assert graph.count([x, 1.0, 0.0, -y]) == graph.count([]) == Flops()
    assert repr(graph.count([used])) == "3 mul + 3 add + 1 div + 1 sqrt = 8 (and 1 sin/cos pairs)"
    product = x * y
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
    """All results of the random program."""
    values = list(leaves)
    for name, i, j in program:
        values.append(OPERATIONS[name](values[i % len(values)], values[j % len(values)]))
    return values[len(leaves) :]


def named(point) -> dict[str, float]:
    return dict(zip("xyz", point, strict=True))


def floats(outputs, inputs) -> np.ndarray:
    return np.array(evaluate(outputs, inputs), dtype=float)


@given(steps, points)
def test_values_are_those_of_a_float_run(program, point):
    """To the last bit, unless algebraic identities replace results."""
    expected = np.array(execute(program, point))
    assume(np.all(np.abs(expected) < 1e6))
    counts = []
    for sharing in SHARING:
        graph = Graph(sharing)
        outputs = execute(program, list(xyz(graph)))
        counts.append(graph.count(outputs))
        scale = max(1.0, float(np.max(np.abs(expected)))) if sharing == "algebraic" else 0.0
        np.testing.assert_allclose(floats(outputs, named(point)), expected, rtol=0.0, atol=1e-9 * scale**2)
    assert counts[0].total >= counts[1].total >= counts[2].total
    assert counts[0].trig >= counts[1].trig >= counts[2].trig


@given(steps)
def test_counts_without_sharing_are_those_of_an_instrumented_run(program):
    """Counts of all operations, and of those that the last result needs, at generic values."""
    graph = Graph("none")
    results = execute(program, list(xyz(graph)))
    Counted.log.clear()
    values: list = [Counted(x) for x in (0.37, -1.21, 0.83)]
    for name, i, j in program:
        a, b = values[i % len(values)], values[j % len(values)]
        assume(isinstance(a, Counted) and isinstance(b, Counted))  # the float run covers constants
        values.append(OPERATIONS[name](a, b))
    assert counted(Counted.log) == all_nodes(graph)
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
    np.testing.assert_array_equal(floats(moved, named(point)), expected)
    assert other.count(moved) == graph.count(outputs)
    fixed = evaluate(outputs, {"x": x, "y": point[1], "z": point[2]})
    np.testing.assert_allclose(floats(fixed, named(point)), expected, rtol=1e-9, atol=1e-9)


def test_evaluation_keeps_the_shape_and_takes_arrays(graph):
    x, y, _ = xyz(graph)
    values = evaluate(np.array([[x + y, 1.0], [x * y, x]], dtype=object), {"x": 2.0, "y": 3.0, "unused": 1.0})
    assert values.dtype == float and values.tolist() == [[5.0, 1.0], [6.0, 2.0]]
    np.testing.assert_array_equal(evaluate(x * y, {"x": np.arange(4.0), "y": 2.0}), 2.0 * np.arange(4.0))
    assert evaluate(x, {"x": 7.0}) == 7.0
    assert evaluate([1.0, 2.0], {}) == [1.0, 2.0]


# ---- derivatives ---------------------------------------------------------------------------------------------------


@given(steps, points, points)
def test_derivatives_agree_with_complex_steps_and_with_each_other(program, point, direction):
    """Im f(x + i h ẋ)/h has neither truncation nor cancellation at h = 1e-30."""
    values = np.array(execute(program, point))
    assume(np.all(np.abs(values) < 1e3))
    at = [np.array([x + 1e-30j * d]) for x, d in zip(point, direction, strict=True)]
    expected = np.array([np.asarray(v).imag.item() * 1e30 for v in execute(program, at)])
    assume(np.all(np.abs(expected) < 1e6))
    size = max(1.0, float(np.max(np.abs(values)))) * max(1.0, float(np.max(np.abs(expected))))
    for sharing in SHARING:
        inputs = list(xyz(Graph(sharing)))
        outputs = execute(program, inputs)
        rates = floats(derivative(outputs, named(direction)), named(point))
        np.testing.assert_allclose(rates, expected, rtol=1e-9, atol=1e-10 * size)
        slopes = floats(gradient(outputs[-1:], [1.0], inputs), named(point))
        np.testing.assert_allclose(slopes @ direction, expected[-1], rtol=1e-9, atol=1e-10 * size)


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


@pytest.mark.parametrize(("sharing", "distinct"), [("algebraic", 6), ("structural", 9)])
def test_congruence_of_a_symmetric_matrix_is_symmetric(sharing, distinct):
    """XᵀIX has n(n + 1)/2 different entries, though its sums differ."""
    graph = Graph(sharing)
    X = graph.inputs("X", 9).reshape(3, 3)
    I = np.empty((3, 3), dtype=object)
    I[np.triu_indices(3)] = I.T[np.triu_indices(3)] = graph.inputs("I", 6)
    assert len({x.id for x in (X.T @ I @ X).flat}) == distinct


# x, y, z → (result, what it is for all inputs)
IDENTITIES = {
    "difference of squares": lambda x, y, z: ((x + y) * (x - y) - (x * x - y * y), 0.0),
    "quotients": lambda x, y, z: (x * y / z - y * (x / z), 0.0),
    "distributed": lambda x, y, z: (((x + y) * z - x * z) - z * y, 0.0),
    "constants": lambda x, y, z: ((x + 0.5) * 2.0 - 2.0 * x - 1.0, 0.0),
    "difference": lambda x, y, z: ((x + y) - y, x),
    "negative difference": lambda x, y, z: (y - (x + y), -x),
    "quotient": lambda x, y, z: (x * y / y, x),
    "circle": lambda x, y, z: (x.sin() * x.sin() + x.cos() * x.cos(), 1.0),
    "sine": lambda x, y, z: (y.sin() * y.sin() - (1.0 - y.cos() * y.cos()), 0.0),
    "rotation": lambda x, y, z: ((x.cos() * y - x.sin() * z) * x.cos() + (x.sin() * y + x.cos() * z) * x.sin(), y),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_algebraic_sharing_finds_identities(name):
    assert same(*IDENTITIES[name](*xyz(Graph("algebraic"))))
    assert not same(*IDENTITIES[name](*xyz(Graph("structural"))))


def test_algebraic_sharing_merges_no_different_results():
    graph = Graph("algebraic")
    x, y, _ = xyz(graph)
    assert type(x.sin() * x.sin() + y.cos() * y.cos()) is Expr
    powers = [x * 2.0**k for k in range(-200, 201)]  # 2 has a large order modulo the prime
    assert len({x.id for x in powers}) == len(powers)


def test_exact_constants_keep_their_value_through_folding():
    graph = Graph("algebraic")
    x = graph.input("x")
    a, b = graph.exact_constant(0.1), graph.exact_constant(0.3)
    assert type(a) is Expr and is_constant(a) and is_constant(-a)
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
def test_exact_constants_evaluate_like_floats(constants):
    graph = Graph("algebraic")
    total, expected = graph.input("x"), 0.7
    for k, c in enumerate(constants):
        total = total * graph.exact_constant(c) + 1.0 if k % 2 else total - graph.exact_constant(c)
        expected = expected * c + 1.0 if k % 2 else expected - c
    assert evaluate(total, {"x": 0.7}) == pytest.approx(expected, rel=1e-9, abs=1e-9)


# ---- errors --------------------------------------------------------------------------------------------------------


def overflow(x):
    large = Graph("algebraic").exact_constant(1e200)
    return large * large


ERRORS = {
    "sum of two graphs": (lambda x: x + Graph().input("y"), InvalidInput, "two different graphs"),
    "product of two graphs": (lambda x: x * Graph().input("y"), InvalidInput, "two different graphs"),
    "difference of two graphs": (lambda x: x - Graph().input("y"), InvalidInput, "two different graphs"),
    "quotient of two graphs": (lambda x: x / Graph().input("y"), InvalidInput, "two different graphs"),
    "outputs of two graphs": (lambda x: evaluate([x, Graph().input("y")], {"x": 1.0}), InvalidInput, "two different"),
    "value missing": (lambda x: evaluate(x, {"y": 1.0}), UnknownName, "'x'"),
    "branch": (lambda x: bool(x * 2.0), InvalidInput, "branch"),
    "float": (lambda x: float(x), InvalidInput, "evaluate"),
    "comparison": (lambda x: x < 1.0, TypeError, "<"),
    "power": (lambda x: x**3, InvalidInput, "power 2"),
    "x / 0": (lambda x: x / 0.0, ZeroDivisionError, "constant 0"),
    "x / int 0": (lambda x: x / 0, ZeroDivisionError, "constant 0"),
    "x / (x − x)": (lambda x: x / (x - x), ZeroDivisionError, "constant 0"),
    "x + inf": (lambda x: x + math.inf, InvalidInput, "constant .* inf"),
    "nan · x": (lambda x: math.nan * x, InvalidInput, "constant .* nan"),
    "x − inf": (lambda x: x - math.inf, InvalidInput, "constant .* inf"),
    "x / −inf": (lambda x: x / -math.inf, InvalidInput, "constant .* inf"),
    "nan / x": (lambda x: math.nan / x, InvalidInput, "constant .* nan"),
    "overflow": (overflow, InvalidInput, "inf"),
    "sharing": (lambda x: Graph("structual"), UnknownName, "structural"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_what_is_wrong(graph, name):
    make, error, message = ERRORS[name]
    with pytest.raises(error, match=message):
        make(graph.input("x"))


def test_expressions_are_shown_as_formulas(graph):
    x, y, _ = xyz(graph)
    assert repr(x) == "x" and repr(-x) == "-x" and repr(x.sin()) == "sin(x)" and repr(-(x + y)) == "-(x + y)"
    assert repr(x * 2.0 - y) in ("((x * 2) - y)", "-(y - (x * 2))")
    deep = x
    for _ in range(50):
        deep = (deep + y) * deep
    assert len(repr(deep)) < 200
