"""The regressor of inverse dynamics against Pinocchio's and against inverse dynamics itself."""

from __future__ import annotations

import numpy as np
import pinocchio as pin
import pytest
from oracles import icub
from pinocchio_models import Twin
from robots import load_robot

import sysdyn as sd
from sysdyn.errors import InvalidInput

MODELS = {
    "pin_joints": lambda: sd.random_tree(7, seed=5, joints=("revolute", "prismatic", "spherical", "free")),
    "puma560": lambda: load_robot("puma560")[0],
    "icub_floating": lambda: icub("floating"),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", MODELS)
def test_the_regressor_is_that_of_pinocchio(name):
    model = MODELS[name]()
    twin, Y = Twin(model), sd.compile_regressor(model)
    q, qd, qdd = model.random_state(seed=1, batch=4)
    found = Y(q, qd, qdd)
    assert found.shape == (4, model.nv, 10 * model.nb)
    for k in range(4):
        args = (twin.position(q[k]), twin.T @ qd[k], twin.T @ qdd[k])
        expected = twin.T.T @ pin.computeJointTorqueRegressor(twin.pin, twin.data, *args)
        for i in range(model.nb):
            at = 10 * (twin.joint[i] - 1)
            np.testing.assert_allclose(found[k][:, 10 * i : 10 * i + 10], expected[:, at : at + 10], atol=1e-10)


def test_parameters_are_those_of_pinocchio():
    model = icub("fixed")
    twin, parameters = Twin(model), sd.inertial_parameters(model)
    for i in range(model.nb):
        expected = twin.pin.inertias[twin.joint[i]].toDynamicParameters()
        np.testing.assert_allclose(parameters[10 * i : 10 * i + 10], expected, atol=1e-12)


def test_torques_of_every_joint_type_are_linear_in_the_parameters():
    model = sd.random_tree(9, seed=3)
    model = model.replace(armature=np.linspace(0.0, 0.3, model.nv))
    q, qd, qdd = model.random_state(seed=2, batch=3)
    Y = sd.joint_torque_regressor(model, q, qd, qdd)
    tau = Y @ sd.inertial_parameters(model) + model.armature * qdd
    np.testing.assert_allclose(tau, sd.rnea(model, q, qd, qdd), atol=1e-12)
    np.testing.assert_allclose(sd.compile_regressor(model)(q, qd, qdd), Y, atol=1e-12)
    # other parameters of the same robot
    other = model.replace(inertias=model.inertias[::-1].copy(), strict=None)
    tau = Y @ sd.inertial_parameters(other) + model.armature * qdd
    np.testing.assert_allclose(tau, sd.rnea(other, q, qd, qdd), atol=1e-12)


def test_bodies_that_a_joint_does_not_carry_have_zeros():
    model = sd.auto_tree(6, 2, 1.5, 0.9)
    Y = sd.compile_regressor(model)
    blocks = ~Y.program.zero_outputs.reshape(model.nv, model.nb, 10).all(axis=2)
    for i in range(model.nb):
        carried = {i}
        for j in range(i + 1, model.nb):
            carried |= {j} if model.parent[j] in carried else set()
        assert set(np.flatnonzero(blocks[i]).tolist()) == carried


def test_bad_states_are_named():
    Y = sd.compile_regressor(sd.chain(2))
    with pytest.raises(InvalidInput, match="qdd has shape"):
        Y(np.zeros(2), np.zeros(2), np.zeros(3))
    with pytest.raises(InvalidInput, match="qd has shape"):
        sd.joint_torque_regressor(sd.chain(2), np.zeros(2), np.zeros(1), np.zeros(2))
