"""Solvers of the iCub beside Pinocchio and MuJoCo."""

from __future__ import annotations

import numpy as np
import pinocchio as pin
import pytest
from oracles import MuJoCo, Pinocchio, icub, icub_urdf
from solvers import TOLERANCE, icub_or, oracle_states, relative_error

BASES = ["fixed", pytest.param("floating", marks=pytest.mark.slow)]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("oracle", [Pinocchio, MuJoCo])
@pytest.mark.parametrize("base", BASES)
def test_inverse_dynamics_of_icub_agrees_with_oracle(base, oracle):
    q, qd, qdd, fx = oracle_states(base)
    other = oracle(icub(base), icub_urdf())
    reference = other.rnea if oracle is Pinocchio else other.inverse
    tau = icub_or(f"icub {base}", "id")(q, qd, qdd, fx=fx).tau
    expected = np.array([reference(*state) for state in zip(q, qd, qdd, fx, strict=True)])
    assert relative_error(tau, expected) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("oracle", [Pinocchio, MuJoCo])
@pytest.mark.parametrize("base", BASES)
def test_forward_dynamics_of_icub_agrees_with_oracle(base, oracle):
    q, qd, tau, fx = oracle_states(base)
    other = oracle(icub(base), icub_urdf())
    reference = other.aba if oracle is Pinocchio else other.forward
    qdd = icub_or(f"icub {base}", "fd")(q, qd, tau, fx=fx).qdd
    expected = np.array([reference(*state) for state in zip(q, qd, tau, fx, strict=True)])
    assert relative_error(qdd, expected) <= TOLERANCE


@pytest.mark.parametrize("kind", [pytest.param("fd", marks=pytest.mark.slow), "id"])
@pytest.mark.parametrize("base", BASES)
def test_body_quantities_of_icub_agree_with_pinocchio(base, kind):
    model, (q, qd, x, fx) = icub(base), oracle_states(base)
    count = 200
    solution = icub_or(f"icub {base}", kind)(q[:count], qd[:count], x[:count], fx=fx[:count])
    oracle = Pinocchio(model, icub_urdf())
    a, f = np.empty((2, count, model.nb, 6))
    for k in range(count):
        qdd = x[k] if kind == "id" else oracle.aba(q[k], qd[k], x[k], fx[k])
        a[k], f[k], _ = oracle.bodies(q[k], qd[k], qdd, fx[k])
    assert relative_error(solution.a, a) <= TOLERANCE
    assert relative_error(solution.f, f) <= TOLERANCE
    np.testing.assert_array_equal(solution.fx, fx[:count])


@pytest.mark.parametrize("reference", ["local", "world"])
@pytest.mark.parametrize("classical", [False, True])
@pytest.mark.parametrize("base", BASES)
def test_acceleration_of_a_frame_agrees_with_pinocchio(base, classical, reference):
    model, (q, qd, x, fx) = icub(base), oracle_states(base)
    solution = icub_or(f"icub {base}", "fd")(q[:3], qd[:3], x[:3], fx=fx[:3])
    oracle = Pinocchio(model, icub_urdf())
    data = oracle.pin.createData()
    which = pin.LOCAL if reference == "local" else pin.LOCAL_WORLD_ALIGNED
    get = pin.getFrameClassicalAcceleration if classical else pin.getFrameAcceleration
    for frame in ("l_sole", "r_hand", "imu_frame"):  # lumped links and a body
        found = solution.acceleration(frame, classical=classical, reference=reference)
        proper = solution.acceleration(frame, classical=classical, gravity=True, reference=reference)
        assert found.shape == (3, 6)
        for k in range(3):
            pin.forwardKinematics(
                oracle.pin, data, oracle.position(q[k]), oracle.theirs(qd[k]), oracle.theirs(solution.qdd[k])
            )
            pin.updateFramePlacements(oracle.pin, data)
            number = oracle.pin.getFrameId(frame)
            linear_first = get(oracle.pin, data, number, which).vector
            expected = np.concatenate([linear_first[3:], linear_first[:3]])
            np.testing.assert_allclose(found[k], expected, rtol=0, atol=1e-9 * np.abs(expected).max())
            up = model.gravity if reference == "world" else data.oMf[number].rotation.T @ model.gravity
            np.testing.assert_allclose(
                proper[k] - found[k], np.concatenate([np.zeros(3), -up]), rtol=0, atol=1e-9 * np.abs(expected).max()
            )
