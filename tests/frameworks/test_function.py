"""Functions compiled to machine code: the same numbers as the algorithm, batches, prepared calls, errors."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from programs import executed

import sysdyn as sd
from sysdyn.errors import InvalidInput, SingularState, UnknownName
from sysdyn.program.graph import Graph

MODEL = sd.random_tree(5, seed=2)


def two_results(x, y):
    return x @ y, np.array([x[0] / y[1], 2.0, y[0]], dtype=object)


@pytest.fixture(scope="module")
def pair() -> sd.Function:
    return sd.compile_function(two_results, {"x": (3,), "y": (3,)})


@pytest.mark.parametrize("sharing", ["algebraic", "structural", "none"])
def test_a_compiled_algorithm_gives_what_the_algorithm_gives(sharing):
    function = sd.compile_function(partial(sd.crba, MODEL), {"q": (MODEL.nq,)}, sharing=sharing)
    q, _, _ = MODEL.random_state(seed=0, batch=20)
    expected = sd.crba(MODEL, q)
    for count in (1, 3, 20):
        np.testing.assert_allclose(function(q[:count]), expected[:count], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(function(q[4]), expected[4], rtol=1e-12, atol=1e-12)
    shaped = function(q.reshape(4, 5, -1), threads=2)
    assert shaped.shape == (4, 5, MODEL.nv, MODEL.nv)
    np.testing.assert_allclose(shaped.reshape(expected.shape), expected, rtol=1e-12, atol=1e-12)


def test_counts_are_those_of_the_program_that_runs():
    function = sd.compile_function(partial(sd.crba, MODEL), {"q": (MODEL.nq,)}, sharing="structural")
    assert function.flops == sd.count_flops(sd.crba, MODEL)
    q, _, _ = MODEL.random_state(seed=0)
    assert executed(function.program, q.tolist())[0] == function.flops
    assert repr(function).startswith(f"Function crba: q ({MODEL.nq},) → ({MODEL.nv}, {MODEL.nv}); ")


def test_several_results_and_constants_among_them(pair):
    x, y = np.array([1.0, 2.0, 3.0]), np.array([0.5, 4.0, -1.0])
    dot, rest = pair(x, y)
    assert dot.shape == () and dot == pytest.approx(x @ y)
    np.testing.assert_allclose(rest, [0.25, 2.0, 0.5])
    dot, rest = pair(np.tile(x, (7, 1)), y)  # what has no batch axis is shared
    assert dot.shape == (7,) and rest.shape == (7, 3)
    dot, rest = pair(np.empty((0, 3)), y)
    assert dot.shape == (0,) and rest.shape == (0, 3)


def test_a_prepared_call_reads_its_arrays_as_they_are_then(pair):
    x, y = np.array([1.0, 2.0, 3.0]), np.array([0.5, 4.0, -1.0])
    step = pair.bind(x, y)
    for scale in (1.0, 2.0):
        x *= scale
        step()
        assert step.status.tolist() == [0]
        for found, expected in zip(step.out, pair(x, y), strict=True):
            np.testing.assert_array_equal(found, expected)
    y[1] = 0.0
    step()
    assert step.status[0] != 0
    single = sd.compile_function(lambda x: x * 2.0, {"x": (2,)}).bind(np.array([1.0, 3.0]))
    single()
    np.testing.assert_array_equal(single.out, [2.0, 6.0])


def test_bad_input_is_named(pair):
    x, y = np.ones((2, 3)), np.ones(3)
    with pytest.raises(InvalidInput, match=r"x has shape \(2,\), but \(…, 3\) is needed"):
        pair(np.ones(2), y)
    with pytest.raises(InvalidInput, match="no value was given for 'y': pass y="):
        pair(x)
    with pytest.raises(InvalidInput, match="x has type <U1, but real numbers are needed"):
        pair(["a", "b", "c"], y)
    with pytest.raises(InvalidInput, match="do not fit together"):
        pair(x, np.ones((3, 3)))
    x[1, 2] = np.nan
    with pytest.raises(InvalidInput, match=r"x is nan at state 1, entry 2"):
        pair(x, y)
    with pytest.raises(InvalidInput, match="bind keeps y and reads it in place: it must be a C-contiguous float64"):
        pair.bind(np.ones(3), [1.0, 2.0, 3.0])
    with pytest.raises(SingularState, match="two_results has no finite value at 1 of 3 states, the first being 2") as e:
        pair(np.ones(3), np.array([[1.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.0, 0.0, 1.0]]))
    assert e.value.states == (2,)
    with pytest.raises(InvalidInput, match="the result of <lambda> holds 'text'"):
        sd.compile_function(lambda x: np.array(["text"], dtype=object), {"x": (1,)})
    with pytest.raises(InvalidInput, match="result 1 of <lambda> holds None"):
        sd.compile_function(lambda x: (x, None), {"x": (1,)})
    stranger = Graph().input("stranger")
    with pytest.raises(InvalidInput, match="the result of <lambda> holds .*: only what comes from its arguments"):
        sd.compile_function(lambda x: np.array([stranger]), {"x": (1,)})


def test_a_dict_of_results_comes_back_as_one():
    function = sd.compile_function(lambda x: {"sum": x[0] + x[1], "twice": 2.0 * x}, {"x": (2,)})
    found = function(np.array([1.0, 2.0]))
    assert list(found) == ["sum", "twice"] and found["sum"].shape == ()
    np.testing.assert_array_equal(found["twice"], [2.0, 4.0])
    np.testing.assert_array_equal(function([[1.0, 2.0]])["sum"], [3.0])
    assert list(function.program.outputs) == ["sum", "twice"]
    with pytest.raises(InvalidInput, match="result 'bad' of <lambda> holds None"):
        sd.compile_function(lambda x: {"good": x, "bad": None}, {"x": (1,)})


def test_the_short_way_gives_what_the_long_way_gives(pair):
    """Arrays of float64 of one state are handed over as they are, whatever their strides; all others are converted."""
    x, y = np.array([1.0, 2.0, 3.0]), np.array([0.5, 4.0, -1.0])
    expected = pair(x, y)
    odd = np.stack([x, -x], axis=1)[:, 0]
    read_only = y.copy()
    read_only.flags.writeable = False
    for arguments in ((odd, read_only), (x[::-1][::-1], y), (list(x), y), (x.astype(np.float32), y), (x[None], y)):
        found = pair(*arguments)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a.reshape(b.shape), b)
    assert not np.shares_memory(expected[1], pair(x, y)[1])
    again = pair(x, y)
    pair(2.0 * x, y)
    np.testing.assert_array_equal(again[1], expected[1])


def test_a_call_within_a_call_does_not_disturb_it():
    """What a thread is computing is its own: an array may run the function itself while it is read."""
    function = sd.compile_function(lambda x, y: x + 10.0 * y, {"x": (1,), "y": (1,)})

    class Odd:
        def __array__(self, dtype=None, copy=None):
            assert function(np.array([5.0]), np.array([6.0])) == 65.0
            return np.array([2.0])

    assert function(np.array([1.0]), Odd()) == 21.0


def test_the_interpreter_runs_the_same_program(pair):
    slow = sd.compile_function(two_results, {"x": (3,), "y": (3,)}, backend="python")
    x, y = np.array([[1.0, 2.0, 3.0], [0.1, 0.2, 0.3]]), np.array([0.5, 4.0, -1.0])
    for a, b in zip(slow(x, y), pair(x, y), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-15)
    with pytest.raises(InvalidInput, match="x is nan at entry 1"):
        slow(np.array([1.0, np.nan, 0.0]), y)
    with pytest.raises(UnknownName, match="unknown backend 'fortran'"):
        sd.compile_function(two_results, {"x": (3,), "y": (3,)}, backend="fortran")
