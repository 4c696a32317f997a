"""Calls at many states: arrays that the kernel reads in place or that are converted, on one thread or several."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import sysdyn as sd

ARM = sd.chain(3, seed=2)
FLOATING = sd.random_tree(4, 5, ("free", "revolute", "spherical", "prismatic"))
N = 39


@pytest.fixture(scope="module")
def inverse() -> sd.Solver:
    return sd.compile(sd.inverse_dynamics(ARM), level="fast")


@pytest.fixture(scope="module")
def forward() -> sd.Solver:
    return sd.compile(sd.forward_dynamics(FLOATING), level="fast")


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def threads(request) -> int:
    return request.param


def general(solver, *arguments, **named):
    """The same call with lists, which are converted."""
    listed = {name: np.asarray(x).tolist() if isinstance(x, np.ndarray) else x for name, x in named.items()}
    return solver(*(np.asarray(x).tolist() for x in arguments), **listed)


def test_arrays_as_they_are(inverse, threads):
    """Also those that all states share."""
    fx = np.ones((ARM.nb, 6))
    for n in (4, 8, N):
        q, qd, qdd = ARM.random_state(seed=n, batch=n)
        every = general(inverse, q, qd, qdd, fx=np.broadcast_to(fx, (n, ARM.nb, 6)))
        for shared in (fx, np.stack([fx] * n)):
            found = inverse(q, qd, qdd, fx=shared, threads=threads)
            assert np.array_equal(found.tau, every.tau) and found.ok.tolist() == [True] * n
            assert np.array_equal(found["tau"], every.tau)
            assert np.array_equal(inverse(q, qd, qdd, fx=shared, threads=2).tau, every.tau)
            assert np.array_equal(found.backward_error(), every.backward_error())
            assert np.array_equal(pickle.loads(pickle.dumps(found)).tau, every.tau)
        for one in (0, 1):
            mixed = [x[0] if k == one else x for k, x in enumerate((q, qd, qdd))]
            assert np.array_equal(inverse(*mixed, threads=threads).tau, general(inverse, *mixed).tau)


def test_the_first_call_may_share_the_position():
    solver = sd.compile(sd.inverse_dynamics(ARM), level="fast")
    q, qd, qdd = ARM.random_state(seed=0, batch=4)
    assert np.array_equal(solver(q[0], qd, qdd).tau, general(solver, q[0], qd, qdd).tau)
    assert solver(q[0], qd[0], qdd[0]).ok and solver(q, qd, qdd).ok.all()


def unaligned(x: np.ndarray) -> np.ndarray:
    return np.frombuffer(b"\0" + x.tobytes(), dtype=np.uint8)[1:].view(float).reshape(x.shape)


KINDS = {
    "columns of a table": lambda x: np.concatenate([x, x + 1.0, x], axis=-1)[..., x.shape[-1] : 2 * x.shape[-1]] - 1.0,
    "of a table": lambda x: np.repeat(x, 2, axis=-1).reshape(*x.shape[:-1], -1)[..., : x.shape[-1]],
    "every other state": lambda x: np.repeat(x, 2, axis=0)[::2],
    "backwards": lambda x: x[::-1].copy()[::-1],
    "broadcast": lambda x: np.broadcast_to(x[3], x.shape),
    "Fortran's order": np.asfortranarray,
    "every other entry": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "single precision": lambda x: x.astype(np.float32),
    "integers": lambda x: (4 * x).astype(int),
    "swapped bytes": lambda x: x.astype(x.dtype.newbyteorder()),
    "unaligned": unaligned,
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_arrays_give_what_their_values_give(inverse, kind, threads):
    fx = np.random.default_rng(1).standard_normal((N, ARM.nb, 6))
    arrays = [*ARM.random_state(seed=5, batch=N), fx]
    for changed in ((0,), (1, 3), range(4)):
        given = [KINDS[kind](x) if k in changed else x for k, x in enumerate(arrays)]
        found = inverse(*given[:3], fx=given[3], threads=threads)
        assert np.array_equal(found.tau, general(inverse, *given[:3], fx=given[3]).tau)


def test_other_arguments_have_their_errors(inverse, threads):
    q, qd, qdd = ARM.random_state(seed=0, batch=N)
    late = q.copy()
    late[N - 2, 1] = np.nan
    bad = {
        "do not fit together": q[:-1], "q has shape": q[:, :2], "q is nan at state 37, entry 1": late,
        "q is inf": (q * np.inf).astype(np.float32), "q has type bool": q > 0, "q has type complex": q + 0j,
        "the angle of joint 'joint0' is 1e[+]10": np.asfortranarray(q + 1e10), "masked": np.ma.masked_less(q, 0),
    }  # fmt: skip
    for message, x in bad.items():
        with pytest.raises(sd.InvalidInput, match=message):
            inverse(x, qd, qdd, threads=threads)
    assert np.array_equal(inverse([*q], qd, qdd).tau, inverse(q, qd, qdd, threads=threads).tau)


@pytest.mark.parametrize("scale", [1.0, 1.0 + 1e-15, 1.0 - 3e-9, 1.0 + 9e-7])
def test_quaternions_are_normalised(forward, scale, threads):
    q, qd, tau = FLOATING.random_state(seed=0, batch=N)
    exact = forward(q, qd, tau).qdd
    (name, part), *_ = FLOATING.quaternions
    off = q.copy()
    off[N - 5, part] *= scale
    given = off.copy()
    found = forward(off, qd, tau, threads=threads)
    assert np.array_equal(off, given)
    np.testing.assert_allclose(found.qdd, exact, rtol=1e-12, atol=1e-12 * np.abs(exact).max())
    assert found.backward_error().max() < 1e-12  # at the normalised ones
    for wrong, message in ((1.0 + 4e-6, f"quaternion of joint {name!r} of state 34"), (np.nan, "q is nan at state 34")):
        off[N - 5, part] *= wrong
        with pytest.raises(sd.InvalidInput, match=message):
            forward(off, qd, tau, threads=threads)


def test_parts_of_a_quantity_are_put_together(threads):
    """The first joints' values alone must not be read as those of all; sensors may share a packed array."""
    known = [sd.JointAcceleration(["joint0", "joint2"], name="first"), sd.JointAcceleration("joint1", name="last")]
    problem = sd.Problem(ARM, [*known, sd.ExternalWrench("all")])
    solver = sd.compile(problem, outputs="tau", level="fast")
    q, qd, qdd = ARM.random_state(seed=1, batch=N)
    parts = {"first": np.ascontiguousarray(qdd[:, ::2]), "last": qdd[:, 1:2].astype(float)}
    packed = np.concatenate([*parts.values(), np.zeros((N, 6 * ARM.nb))], axis=1)
    for y in (parts, packed, {"first": parts["first"][0], "last": parts["last"]}):
        expected = general(solver, q, qd, y=y if y is packed else {name: x.tolist() for name, x in y.items()})
        assert np.array_equal(solver(q, qd, y=y, threads=threads).tau, expected.tau)


# Entries out of every twelve that are always zero.
PATTERNS = {"nothing": range(0), "parts": range(5), "most": range(1, 12), "everything": range(12)}


@pytest.mark.parametrize("zeros", PATTERNS)
@pytest.mark.parametrize("n", [1001, 4096])
def test_zeros_are_written_into_memory_of_earlier_results(zeros, n):
    """Whatever callers have written there."""
    places = [k for k in range(240) if k % 12 not in PATTERNS[zeros]]

    def spread(x):
        y = np.zeros((20, 12), dtype=object)
        y.flat[places] = [x[k % 3] * (k + 1.0) for k in places]
        return {"y": y, "z": x[:1]}

    function = sd.compile_function(spread, {"x": (3,)}, level=0)
    x = np.random.default_rng(0).standard_normal((n, 3))
    expected = np.array([spread(row)["y"] for row in x[[0, 7, n - 1]]], dtype=float)
    for _ in range(3):
        found = function(x, threads=1)
        np.testing.assert_array_equal(found["y"][[0, 7, n - 1]], expected)
        assert np.count_nonzero(found["y"]) == n * len(places)
        place = found["y"].ctypes.data
        found["y"][:] = np.nan
        del found
    assert function(x, threads=1)["y"].ctypes.data == place  # the same memory
