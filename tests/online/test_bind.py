"""Bound calls: buffers that are read and written in place."""

from __future__ import annotations

import pickle

import numpy as np
from solvers import ALIGNED, ALL_JOINTS, aligning, aligning_states, compiled, small, small_states

import sysdyn as sd
from sysdyn.measurements.variables import QUANTITIES
from sysdyn.program.status import BAD_PIVOT


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
        expected = solver(*(x[k] for x in source))
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
        np.testing.assert_allclose(out, solver(q, qd, tau, fx).qdd, rtol=1e-12, atol=1e-12)
        assert step.out["qdd"] is out and step.status.shape == (count,)
        q[:] = q[::-1].copy()
        step()
        np.testing.assert_allclose(out, solver(q, qd, tau, fx).qdd, rtol=1e-12, atol=1e-12)
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
    expected = small()(q, qd, tau, fx).qdd
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
