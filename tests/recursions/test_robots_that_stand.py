"""Accelerations and contact wrenches of humanoids and quadrupeds beside MuJoCo's matrices and Pinocchio's solver."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import mujoco
import numpy as np
import pinocchio as pin
import pytest
from mujoco_models import path
from oracles import Pinocchio, constrained, icub_urdf, mujoco_model

import sysdyn as sd
from sysdyn.model.se3 import rotation, translation

PROBLEMS = Path(__file__).parents[2] / "problems"
ATTITUDES = {"fixed": pin.ContactType.CONTACT_6D, "point": pin.ContactType.CONTACT_3D}


def installed(name: str) -> str:
    """A URDF file of the package example-robot-data; the test is skipped without it."""
    try:
        found = files("example-robot-data") or []
    except PackageNotFoundError:
        found = []
    for x in found:
        if str(x).endswith(name):
            return str(x.locate())
    pytest.skip("example-robot-data is not installed: pip install --no-deps example-robot-data")


def points(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((x, "point") for x in names)


# (file, (frame, kind) of each contact); robots of packages beside those that are here
ROBOTS: dict[str, tuple[Callable[[], object], tuple[tuple[str, str], ...]]] = {
    "quadruped that trots": (lambda: PROBLEMS / "quadruped.urdf", points("lf_foot", "rh_foot")),
    "iCub on two feet": (icub_urdf, (("l_sole", "fixed"), ("r_sole", "fixed"))),
    "iCub on a foot and a point": (icub_urdf, (("l_sole", "fixed"), ("r_sole", "point"))),
    "biped": (lambda: PROBLEMS / "biped.urdf", (("l_sole", "fixed"), ("r_sole", "fixed"))),
    "MuJoCo's humanoid": (lambda: path("humanoid"), (("right_foot", "point"), ("left_foot", "point"))),
    "Talos": (
        lambda: installed("talos_data/robots/talos_reduced.urdf"),
        (("left_sole_link", "fixed"), ("right_sole_link", "fixed")),
    ),
    "quadruped": (lambda: PROBLEMS / "quadruped.urdf", points("lf_foot", "rf_foot", "lh_foot", "rh_foot")),
    "HyQ": (lambda: installed("hyq_no_sensors.urdf"), points("lf_foot", "rf_foot", "lh_foot", "rh_foot")),
    "ANYmal": (lambda: installed("anymal_b_simple_description/robots/anymal.urdf"),
               points("LF_FOOT", "RF_FOOT", "LH_FOOT", "RH_FOOT")),
}  # fmt: skip
TOLERANCE = 1e-10  # of the greatest entry


def solved(model: sd.Model, contacts, q, qd, tau) -> sd.Solution:
    problem = sd.forward_dynamics(model) + [sd.Contact(x, kind, "world", name=x) for x, kind in contacts]
    return sd.compile(problem, outputs=["qdd", "w"], backend="python", level="fast", effort=0.0)(q, qd, tau)


def close(found, expected) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("robot", [x for x in ROBOTS if x not in ("HyQ", "ANYmal")])
def test_feet_beside_the_matrices_of_mujoco(robot):
    """M q̈ + c = τ + J^T w, J q̈ + J̇ q̇ = 0 with all of MuJoCo's, and a dense solve.

    MuJoCo refuses the base links of HyQ and ANYmal, whose inertias are not positive definite.
    """
    make, contacts = ROBOTS[robot]
    file = str(make())
    mj = mujoco.MjModel.from_xml_path(file) if file.endswith(".xml") else mujoco_model(file, "floating")
    model, state, data = sd.from_mujoco(mj), sd.MujocoState(mj), mujoco.MjData(mj)
    rng = np.random.default_rng(1)
    q, qd, _ = model.random_state(seed=4)
    tau = 10.0 * rng.standard_normal(model.nv)
    found = solved(model, contacts, q, qd, tau)
    data.qpos[:], data.qvel[:] = state.to_mujoco(q, qd)
    mujoco.mj_fwdPosition(mj, data)
    mujoco.mj_fwdVelocity(mj, data)
    M, bias = np.zeros((mj.nv, mj.nv)), np.zeros(mj.nv)
    mujoco.mj_fullM(mj, M, data.qM) if hasattr(data, "qM") else mujoco.mj_fullM(mj, data, M)
    mujoco.mj_rne(mj, data, 0, bias)
    rows, drift = [], []
    for frame, kind in contacts:
        J, rate = np.zeros((2, 3, mj.nv)), np.zeros((2, 3, mj.nv))
        body = mj.body(frame).id
        mujoco.mj_jac(mj, data, J[1], J[0], data.xpos[body], body)
        mujoco.mj_jacDot(mj, data, rate[1], rate[0], data.xpos[body], body)
        held = slice(0 if kind == "fixed" else 1, 2)
        rows.append(J[held].reshape(-1, mj.nv))
        drift.append(rate[held].reshape(-1, mj.nv) @ data.qvel)
    A, m = np.concatenate(rows), sum(map(len, drift))
    K = np.block([[M, -A.T], [A, np.zeros((m, m))]])
    x = np.linalg.solve(K, np.concatenate([state.force_to_mujoco(q, tau) - bias, *(-y for y in drift)]))
    close(found.w, x[mj.nv :])
    close(found.qdd, state.acceleration_to_sysdyn(data.qpos, data.qvel, x[: mj.nv]))


@pytest.mark.filterwarnings("ignore::sysdyn.errors.FormatWarning")  # grippers that follow fixed joints
@pytest.mark.filterwarnings("ignore::sysdyn.errors.IgnoredWarning")  # gears of Talos
@pytest.mark.slow(after=1)
@pytest.mark.parametrize("robot", [x for x in ROBOTS if x != "MuJoCo's humanoid"])
def test_feet_beside_pinocchio(robot):
    make, contacts = ROBOTS[robot]
    file = str(make())
    model = sd.load(file, base="floating")
    oracle = Pinocchio(model, file)
    q, qd, _ = model.random_state(seed=5)
    tau = 10.0 * np.random.default_rng(2).standard_normal(model.nv)
    if any(kind == "fixed" for _, kind in contacts):  # of which Pinocchio holds the spatial acceleration: feet at rest
        J = np.concatenate([sd.frame_jacobian(model, q, x) for x, _ in contacts])
        qd = qd - np.linalg.pinv(J) @ (J @ qd)
    found = solved(model, contacts, q, qd, tau)
    stated = []
    for name, kind in contacts:
        frame = model.frame(name)
        place = pin.SE3(rotation(frame.X).T, translation(frame.X))
        stated.append((ATTITUDES[kind], oracle.joint[frame.body], place))
    qdd, wrenches = constrained(oracle, stated, q, qd, tau)
    close(found.qdd, qdd)
    for (name, kind), expected in zip(contacts, wrenches, strict=True):
        if kind == "fixed":  # a point's force is told in other axes
            frame = model.frame(name)
            at = sd.frame_pose(model, q, model.body_names[frame.body])[:3, :3]
            force = at @ expected[3:]
            close(found.wrench(name, "world")[3:], force)
