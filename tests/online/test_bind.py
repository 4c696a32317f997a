"""Bound calls: buffers that are read and written in place."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from solvers import ALIGNED, ALL_JOINTS, aligning, aligning_states, compiled, small, small_states

import sysdyn as sd
from sysdyn.errors import InvalidInput, SysdynError
from sysdyn.model.quantities import QUANTITIES
from sysdyn.program.opcodes import BAD_PIVOT


def test_bind_reads_and_writes_in_place():
    solver = small()
    q, qd, tau, fx = (np.array(x[0]) for x in small_states(3))
    step = solver.bind(q, qd, tau, fx=fx)
    assert set(step.out) == set(QUANTITIES)
    held = step.out["qdd"]
    for k in range(3):
        source = small_states(3)
        q[:], qd[:], tau[:], fx[:] = (x[k] for x in source)
        assert step() is None
        expected = solver(*(x[k] for x in source[:3]), fx=source[3][k])
        for quantity in QUANTITIES:
            np.testing.assert_array_equal(step.out[quantity], expected[quantity])
        assert step.out["qdd"] is held
        assert step.status.tolist() == [0]


def test_bind_a_batch_into_own_buffers():
    solver = compiled(ALL_JOINTS, "fd", "aba", "qdd")
    for count in (1, 7, 16):
        q, qd, tau, fx = small_states(count)
        out = np.full((count, solver.model.nv), np.nan)
        step = solver.bind(q, qd, tau, fx=fx, out=out)
        step()
        np.testing.assert_allclose(out, solver(q, qd, tau, fx=fx).qdd, rtol=1e-12, atol=1e-12)
        assert step.out["qdd"] is out and step.status.shape == (count,)
        q[:] = q[::-1].copy()
        step()
        np.testing.assert_allclose(out, solver(q, qd, tau, fx=fx).qdd, rtol=1e-12, atol=1e-12)
    several = small()
    out = {"tau": np.zeros(several.model.nv)}
    q, qd, tau, fx = (np.array(x[0]) for x in small_states(1))
    step = several.bind(q, qd, tau, out=out)
    step()
    assert step.out["tau"] is out["tau"] and set(step.out) == set(QUANTITIES)
    np.testing.assert_array_equal(out["tau"], tau)
    np.testing.assert_array_equal(step.out["fx"], np.zeros((several.model.nb, 6)))


def test_bind_survives_its_solver_and_arrays():
    q, qd, tau, fx = (np.array(x[0]) for x in small_states(1))
    expected = small()(q, qd, tau, fx=fx).qdd
    solver = pickle.loads(pickle.dumps(small()))
    step = solver.bind(q, qd, tau, fx=fx)
    del solver, q, qd, tau, fx
    np.empty(10_000)
    step()
    np.testing.assert_array_equal(step.out["qdd"], expected)


def test_bind_reports_a_singular_state_in_its_status():
    solver = sd.compile(sd.forward_dynamics(aligning()))
    q, qd, tau, fx = aligning_states()
    step = solver.bind(q, qd, tau, fx=fx)
    step()
    assert (step.status != 0).tolist() == ALIGNED
    assert step.status[ALIGNED.index(True)] & BAD_PIVOT
    for k, singular in enumerate(ALIGNED):
        single = solver.bind(*(np.array(x[k]) for x in (q, qd, tau)), fx=np.array(fx[k]))
        single()
        assert (single.status[0] != 0) == singular


def arrays() -> dict[str, np.ndarray]:
    return {name: x.copy() for name, x in zip(("q", "qd", "tau", "fx"), small_states(3), strict=True)}


def test_arrays_that_share_memory_are_refused():
    solver, given = small(), arrays()
    n, nv = given["tau"].shape
    shared = np.zeros(n * nv + 1)
    pairs = {
        "one array twice": {"qd": given["tau"]},
        "overlapping inputs": {"qd": shared[:-1].reshape(n, nv), "tau": shared[1:].reshape(n, nv)},
        "an output over an input": {"out": {"qdd": given["tau"]}},
        "one output twice": {"out": {"qdd": shared[1:].reshape(n, nv), "tau": shared[1:].reshape(n, nv)}},
    }
    for name, changes in pairs.items():
        with pytest.raises(InvalidInput, match="share memory: bind reads and writes in place"):
            solver.bind(**{**given, **changes})
            pytest.fail(name)
    whole = np.zeros((2, n, nv))  # neighbours share none
    solver.bind(**{**given, "tau": whole[0]}, out={"qdd": whole[1]})()
    function = sd.compile_function(lambda x, y: x + y, {"x": (3,), "y": (3,)})
    x = np.ones(3)
    with pytest.raises(InvalidInput, match="x and y share memory"):
        function.bind(x, x)


def test_masked_and_unaligned_arrays_are_refused():
    solver, given = small(), arrays()
    masked = np.ma.masked_invalid(given["tau"])
    odd = np.zeros(given["tau"].nbytes + 1, dtype=np.uint8)[1:].view(np.float64).reshape(given["tau"].shape)
    for wrong in (masked, odd):
        with pytest.raises(InvalidInput, match="bind keeps tau .* not masked"):
            solver.bind(**{**given, "tau": wrong})
        with pytest.raises(InvalidInput, match=r"out\['qdd'\] must be .* not masked"):
            solver.bind(**given, out={"qdd": wrong})


def test_a_step_is_not_pickled_or_copied():
    for step in (small().bind(**arrays()), small().derivatives("qdd", "tau").bind(**arrays())):
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(SysdynError, match="pickle the solver, and bind it where it is needed"):
                attempt(step)


def test_a_step_says_what_it_writes():
    model = sd.chain(2, seed=1)
    solver = sd.compile(sd.forward_dynamics(model), outputs=["qdd", "tau"], level="fast")
    assert repr(solver.bind(*model.random_state())) == "Bound call of 1 state: step() writes tau (2,), qdd (2,)"
    doubled = sd.compile_function(lambda x: 2.0 * x, {"x": (3,)})
    assert repr(doubled.bind(np.zeros(3))) == "Bound call of 1 state: step() writes out (3,)"


def test_derivatives_go_to_arrays_of_the_caller():
    model = sd.chain(3)
    solver = sd.compile(sd.forward_dynamics(model), outputs="qdd", level="fast")
    q, qd, tau = model.random_state(seed=0, batch=5)
    J, pull = solver.derivatives(wrt=("q", "qd")), solver.vjp(wrt="q")
    out = {("qdd", "q"): np.full((5, 3, 3), np.nan)}
    step = J.bind(q, qd, tau, out=out)
    step()
    assert step.out["qdd", "q"] is out["qdd", "q"]
    for key, x in J(q, qd, tau).items():
        np.testing.assert_array_equal(step.out[key], x)
    row, w = np.full((5, 3), np.nan), np.ones(3)
    pull.bind(q, qd, tau, cotangents={"qdd": w}, out={"q": row})()
    np.testing.assert_array_equal(row, pull(q, qd, tau, cotangents=w)["q"])
    with pytest.raises(InvalidInput):
        J.bind(q, qd, tau, out={("qdd", "q"): np.zeros((5, 3))})
