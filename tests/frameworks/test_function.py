"""Compiled functions: the numbers of the algorithm, batches, bound calls, structures of results, errors."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from programs import executed

import sysdyn as sd
from sysdyn.errors import InvalidInput, SingularState, UnknownName
from sysdyn.program.graph import Graph

MODEL = sd.random_tree(5, seed=2)
SHAPES = {"x": (3,), "y": (3,)}
X, Y = np.array([1.0, 2.0, 3.0]), np.array([0.5, 4.0, -1.0])


def two_results(x, y):
    return x @ y, np.array([x[0] / y[1], 2.0, y[0]], dtype=object)


@pytest.fixture(scope="module")
def pair() -> sd.Function:
    return sd.compile_function(two_results, SHAPES)


@pytest.mark.parametrize("sharing", ["algebraic", "structural", "none"])
def test_a_compiled_algorithm_gives_what_the_algorithm_gives(sharing):
    function = sd.compile_function(partial(sd.crba, MODEL), {"q": (MODEL.nq,)}, sharing=sharing)
    q, _, _ = MODEL.random_state(seed=0, batch=20)
    expected = sd.crba(MODEL, q)
    for part in (slice(1), slice(3), slice(20), 4):
        np.testing.assert_allclose(function(q[part]), expected[part], rtol=1e-12, atol=1e-12)
    shaped = function(q.reshape(4, 5, -1), threads=2)
    np.testing.assert_allclose(shaped, expected.reshape(4, 5, MODEL.nv, MODEL.nv), rtol=1e-12, atol=1e-12)


def test_counts_are_those_of_the_program_that_runs():
    function = sd.compile_function(partial(sd.crba, MODEL), {"q": (MODEL.nq,)}, sharing="structural")
    assert function.flops == sd.count_flops(sd.crba, MODEL)
    q, _, _ = MODEL.random_state(seed=0)
    assert executed(function.program, q.tolist())[0] == function.flops
    assert repr(function).startswith(f"Function crba: q ({MODEL.nq},) → ({MODEL.nv}, {MODEL.nv}); ")


@pytest.mark.parametrize("n", [(), (7,), (0,)])
@pytest.mark.parametrize("backend", ["llvm", "python"])
def test_tuples_of_results_broadcast(backend, n):
    """One argument has batch axes, the other one is shared."""
    dot, rest = sd.compile_function(two_results, SHAPES, backend=backend)(np.broadcast_to(X, (*n, 3)), Y)
    np.testing.assert_allclose(dot, np.full(n, X @ Y), rtol=1e-15)
    np.testing.assert_allclose(rest, np.broadcast_to([0.25, 2.0, 0.5], (*n, 3)), rtol=1e-15)


def test_dicts_of_results_keep_their_names():
    function = sd.compile_function(lambda x: {"sum": x[0] + x[1], "double": 2.0 * x}, {"x": (2,)})
    results = function(np.array([1.0, 2.0]))
    assert list(results) == list(function.program.outputs) == ["sum", "double"] and results["sum"].shape == ()
    np.testing.assert_array_equal(results["double"], [2.0, 4.0])
    np.testing.assert_array_equal(function([[1.0, 2.0]])["sum"], [3.0])


def test_bound_calls_read_their_arrays_in_place(pair):
    x, y = X.copy(), Y.copy()
    step = pair.bind(x, y)
    for scale in (1.0, 2.0):
        x *= scale
        step()
        assert step.status.tolist() == [0]
        for result, expected in zip(step.out, pair(x, y), strict=True):
            np.testing.assert_array_equal(result, expected)
    y[1] = 0.0
    step()
    assert step.status[0] != 0
    single = sd.compile_function(lambda x: x * 2.0, {"x": (2,)}).bind(np.array([1.0, 3.0]))
    single()
    np.testing.assert_array_equal(single.out, [2.0, 6.0])


def test_arguments_of_other_types_and_strides_give_the_same(pair):
    expected, read_only = pair(X, Y), Y.copy()
    read_only.flags.writeable = False
    strided = np.stack([X, -X], axis=1)[:, 0]
    for arguments in ((strided, read_only), (X[::-1][::-1], Y), (list(X), Y), (X.astype(np.float32), Y), (X[None], Y)):
        for a, b in zip(pair(*arguments), expected, strict=True):
            np.testing.assert_array_equal(a.reshape(b.shape), b)
    first = pair(X, Y)
    pair(2.0 * X, Y)
    np.testing.assert_array_equal(first[1], expected[1])  # later calls do not overwrite results


def test_calls_are_reentrant():
    """An array may call the function while the function reads it."""
    function = sd.compile_function(lambda x, y: x + 10.0 * y, {"x": (1,), "y": (1,)})

    class Odd:
        def __array__(self, dtype=None, copy=None):
            assert function(np.array([5.0]), np.array([6.0])) == 65.0
            return np.array([2.0])

    assert function(np.array([1.0]), Odd()) == 21.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f(np.ones(2), Y), r"x has shape \(2,\), but \(…, 3\) is needed"),
        (lambda f: f(X), "no value was given for 'y': pass y="),
        (lambda f: f(["a", "b", "c"], Y), "x has type <U1, but real numbers are needed"),
        (lambda f: f(np.ones((2, 3)), np.ones((3, 3))), "do not fit together"),
        (lambda f: f(np.array([X, [1.0, 2.0, np.nan]]), Y), "x is nan at state 1, entry 2"),
        (lambda f: f.bind(X, [1.0, 2.0, 3.0]), "bind keeps y and reads it in place: .* C-contiguous float64"),
    ],
)
def test_wrong_arguments_are_named(pair, call, message):
    for function in (pair, sd.compile_function(two_results, SHAPES, backend="python")):
        with pytest.raises(InvalidInput, match=message):
            call(function)


def test_states_without_finite_results_are_named(pair):
    with pytest.raises(SingularState, match="two_results has no finite value at 1 of 3 states, the first being 2") as e:
        pair(np.ones(3), np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 0.0, 1.0]]))
    assert e.value.states == (2,)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: np.array(["text"], dtype=object), "the result of <lambda> holds 'text'"),
        (lambda x: (x, None), "result 1 of <lambda> holds None"),
        (lambda x: {"good": x, "bad": None}, "result 'bad' of <lambda> holds None"),
        (lambda x: np.array([Graph().input("other")]), "the result of <lambda> holds .*: only what comes from its arg"),
    ],
)
def test_results_that_cannot_be_compiled_are_named(function, message):
    with pytest.raises(InvalidInput, match=message):
        sd.compile_function(function, {"x": (1,)})
    with pytest.raises(UnknownName, match="unknown backend 'fortran'"):
        sd.compile_function(function, {"x": (1,)}, backend="fortran")
