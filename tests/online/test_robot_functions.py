"""Compiled functions of the robot's state: the same as the reference algorithms, Pinocchio's, and what physics says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pinocchio as pin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Pinocchio, icub, icub_urdf
from robots import load_robot
from solvers import in_threads

import sysdyn as sd
from sysdyn.errors import InvalidInput, ProblemError, UnknownName
from sysdyn.model.kinematics import REFERENCES
from sysdyn.model.se3 import quaternion_rates, quaternion_to_E
from sysdyn.online.robot_functions import ROBOT_FUNCTIONS, RobotFunction

# Every joint type, some of them on a branch of their own, with an armature.
ZOO = sd.random_tree(9, seed=3).replace(
    joints=(
        sd.model.Free(), sd.model.Revolute((0.6, 0.0, 0.8)), sd.model.Prismatic(), sd.model.Helical(),
        sd.model.Cylindrical(), sd.model.Planar(), sd.model.Spherical(), sd.model.Fixed(), sd.model.Revolute(),
    ),
    parent=(-1, 0, 1, 0, 3, 4, 2, 6, 7), armature=np.linspace(0.0, 0.3, 18),
    lower=None, upper=None, velocity_limit=None, effort_limit=None,
)  # fmt: skip
ARM = load_robot("iiwa7")[0]
trees = st.builds(sd.random_tree, st.integers(1, 6), st.integers(0, 10**6))


def everything(frame: str) -> list[str]:
    """Every name of a function of q, q̇ and fx in the table, functions of a frame in each of their references."""
    names = []
    for name, function in ROBOT_FUNCTIONS.items():
        if not set(function.inputs) <= {"q", "qd", "fx"}:
            continue
        if function.of_frame:
            names += [f"{name}:{frame}:{x}" for x in function.references] or [f"{name}:{frame}"]
        else:
            names.append(name)
    return names


def state(model: sd.Model, seed: int, *batch: int) -> tuple[np.ndarray, ...]:
    """(q, q̇, q̈, fx) with leading axes."""
    count = int(np.prod(batch))
    q, qd, qdd = (x.reshape(*batch, x.shape[-1]) for x in model.random_state(seed, batch=count))
    fx = np.random.default_rng(seed).standard_normal((*batch, model.nb, 6))
    return q, qd, qdd, fx


def agree(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-11) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=tolerance * (1.0 + np.abs(expected).max(initial=0.0)))


def rate(model: sd.Model, value, q, qd, qdd, h: float = 1e-4) -> np.ndarray:
    """d/dt value(q, q̇) by a difference of fourth order along a motion with these accelerations."""

    def at(t: float):
        return np.asarray(value(model.integrate(q, t * qd + t * t / 2 * qdd), qd + t * qdd))

    return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)


# ---- against the reference algorithms, and physics ------------------------------------------------------------------


def check_state(model: sd.Model, frame: str, all_of: dict, q, qd, fx) -> None:
    """What the reference algorithms say at one state."""
    still = np.zeros(model.nv)
    agree(all_of["mass_matrix"], sd.crba(model, q))
    agree(all_of["bias"], sd.rnea(model, q, qd, still))
    agree(all_of["gravity"], sd.rnea(model, q, still, still))
    agree(all_of["coriolis"], all_of["bias"] - all_of["gravity"])
    agree(all_of["bias"] - all_of["external"], sd.rnea(model, q, qd, still, fx))
    agree(all_of[f"pose:{frame}"], sd.frame_pose(model, q, frame))
    agree(quaternion_to_E(all_of[f"quaternion:{frame}"]).T, sd.frame_pose(model, q, frame)[:3, :3])
    for reference in REFERENCES:
        J = sd.frame_jacobian(model, q, frame, reference)
        J_rate = all_of[f"jacobian_rate:{frame}:{reference}"]
        agree(all_of[f"jacobian:{frame}:{reference}"], J)
        agree(all_of[f"velocity:{frame}:{reference}"], J @ qd)
        agree(all_of[f"bias_acceleration:{frame}:{reference}"], J_rate @ qd)

        def jacobian(q, _, reference=reference):
            return sd.frame_jacobian(model, q, frame, reference)

        agree(J_rate, rate(model, jacobian, q, qd, still), 1e-8)
    h, A = all_of["momentum"], all_of["momentum_matrix"]
    agree(A @ qd, h)
    agree(h[3:], model.mass * all_of["com_velocity"])
    agree(all_of["com_jacobian"] @ qd, all_of["com_velocity"])
    kinetic = 0.5 * qd @ sd.crba(model, q) @ qd
    agree(all_of["kinetic_energy"], kinetic)
    agree(all_of["potential_energy"], -model.mass * model.gravity @ all_of["com"])
    agree(all_of["energy"], all_of["kinetic_energy"] + all_of["potential_energy"])


def check_motion(model: sd.Model, function: sd.Kinematics, q, qd, qdd, fx) -> None:
    """What is conserved, and what changes it: forces do."""

    def of(name: str):
        return lambda q, qd: function(q, qd, fx)[name]

    now = function(q, qd, fx)
    still = np.zeros(model.nv)
    for name in (x for x in function.names if x.startswith("quaternion:")):
        turning = now[f"{name.replace('quaternion', 'velocity')}:local"][:3]
        agree(quaternion_rates(now[name]) @ turning, rate(model, of(name), q, qd, still), 1e-8)
    agree(now["com_velocity"], rate(model, of("com"), q, qd, still), 1e-8)
    agree(now["momentum_bias"], rate(model, of("momentum"), q, qd, still), 1e-8)
    # power of the joint forces and of the external wrenches
    tau = sd.rnea(model, q, qd, qdd, fx)
    power = rate(model, of("energy"), q, qd, qdd)
    agree(power, np.asarray((tau + now["external"]) @ qd), 1e-7)
    # rate of momentum, A q̈ + Ȧ q̇: weight, and what the base hands to the bodies at the root
    total = now["momentum_matrix"] @ qdd + now["momentum_bias"]
    agree(total, rate(model, of("momentum"), q, qd, qdd), 1e-7)
    newton_euler = sd.reference.newton_euler(model, q, qd, qdd)
    force = model.mass * model.gravity
    for i in (i for i, parent in enumerate(model.parent) if parent < 0):
        force = force + sd.frame_pose(model, q, model.body_names[i])[:3, :3] @ newton_euler.f[i][3:]
    agree(total[3:], force, 1e-10)


@settings(max_examples=10)
@given(trees, st.integers(0, 10**6))
def test_random_robots_agree_with_the_reference_algorithms(model, seed):
    frame = model.body_names[-1]
    function = sd.kinematics(model, everything(frame), backend="python")
    q, qd, qdd, fx = state(model, seed)
    check_state(model, frame, function(q, qd, fx), q, qd, fx)
    check_motion(model, function, q, qd, qdd, fx)


@pytest.fixture(scope="module")
def zoo() -> sd.Kinematics:
    """Machine code of everything there is, for a robot with every joint type."""
    return sd.kinematics(ZOO, everything("body8"), level=0)


@pytest.mark.slow
def test_every_joint_type_agrees_with_the_reference_algorithms(zoo):
    q, qd, qdd, fx = state(ZOO, 5)
    check_state(ZOO, "body8", zoo(q, qd, fx), q, qd, fx)
    check_motion(ZOO, zoo, q, qd, qdd, fx)


@pytest.mark.slow
def test_results_have_the_shapes_of_the_table(zoo):
    for batch in ((), (1,), (3,), (2, 5), (0,)):
        q, qd, _, fx = state(ZOO, 1, *batch)
        found = zoo(q, qd, fx)
        assert list(found) == everything("body8") == list(zoo.names)
        for name, x in found.items():
            assert x.shape == (*batch, *ROBOT_FUNCTIONS[name.split(":")[0]].sizes(ZOO)), name
            assert x.dtype == np.float64 and x.flags.writeable


def test_functions_of_the_table_run_on_floats(zoo):
    """Each is written once: what they compute over float is what the machine code of them over Expr gives."""
    q, qd, _, fx = state(ZOO, 2)
    found, given = zoo(q, qd, fx), {"q": q, "qd": qd, "fx": fx}
    for name, x in found.items():
        what, *place = name.split(":")
        function = ROBOT_FUNCTIONS[what]
        agree(x, np.asarray(function.compute(ZOO, *(given[y] for y in function.inputs), *place)))


@pytest.mark.slow
def test_batches_are_as_many_single_calls_on_either_back_end(zoo):
    q, qd, _, fx = state(ZOO, 7, 2, 3)
    many = zoo(q, qd, fx)
    shared = zoo(q, qd[0, 0], fx[0, 0], threads=2)
    slow = sd.kinematics(ZOO, everything("body8"), backend="python")(q, qd, fx)
    for at in np.ndindex(2, 3):
        one = zoo(q[at], qd[at], fx[at])
        other = zoo(q[at], qd[0, 0], fx[0, 0])
        for name, x in one.items():
            agree(many[name][at], x)
            agree(slow[name][at], x)
            agree(shared[name][at], other[name])


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_icub_agrees_with_pinocchio(base):
    model, frame = icub(base), "l_hand"
    other = Pinocchio(model, icub_urdf())
    function = sd.kinematics(model, everything(frame), backend="python")
    m, data, id = other.pin, other.data, other.pin.getFrameId(frame)
    ours = other.ours(np.arange(model.nv, dtype=float)).astype(int)
    views = dict(zip(("local", "world", "space"), (pin.LOCAL, pin.LOCAL_WORLD_ALIGNED, pin.WORLD), strict=True))
    swap = [3, 4, 5, 0, 1, 2]
    for seed in range(3):
        q, qd, _, fx = state(model, seed)
        now, p, v = function(q, qd, fx), other.position(q), other.theirs(qd)
        M = pin.crba(m, data, p).copy()
        agree(now["mass_matrix"], (np.triu(M) + np.triu(M, 1).T)[np.ix_(ours, ours)])
        agree(now["bias"], other.ours(pin.nonLinearEffects(m, data, p, v)))
        agree(now["gravity"], other.ours(pin.computeGeneralizedGravity(m, data, p)))
        static = other.ours(pin.computeStaticTorque(m, data, p, other.wrenches(fx)))
        agree(now["external"], now["gravity"] - static)
        pin.computeJointJacobiansTimeVariation(m, data, p, v)
        pin.forwardKinematics(m, data, p, v, np.zeros(m.nv))
        pin.updateFramePlacements(m, data)
        agree(now[f"pose:{frame}"], data.oMf[id].homogeneous)
        attitude = pin.Quaternion(data.oMf[id].rotation).coeffs()  # of either sign
        agree(now[f"quaternion:{frame}"] * np.sign(now[f"quaternion:{frame}"] @ attitude), attitude)
        for name, view in views.items():
            agree(now[f"jacobian:{frame}:{name}"], pin.getFrameJacobian(m, data, id, view)[swap][:, ours])
            J_rate = pin.getFrameJacobianTimeVariation(m, data, id, view)[swap][:, ours]
            agree(now[f"jacobian_rate:{frame}:{name}"], J_rate)
            agree(now[f"velocity:{frame}:{name}"], pin.getFrameVelocity(m, data, id, view).vector[swap])
            kind = pin.getFrameClassicalAcceleration if name == "world" else pin.getFrameAcceleration
            agree(now[f"bias_acceleration:{frame}:{name}"], kind(m, data, id, view).vector[swap])
        pin.dccrba(m, data, p, v)
        agree(now["momentum_matrix"], data.Ag[swap][:, ours])
        agree(now["momentum"], pin.computeCentroidalMomentum(m, data, p, v).vector[swap])
        agree(now["momentum_bias"], (data.dAg @ v)[swap], 1e-10)
        agree(now["com"], pin.centerOfMass(m, data, p, v))
        agree(now["com_velocity"], data.vcom[0])
        agree(now["com_jacobian"], pin.jacobianCenterOfMass(m, data, p)[:, ours])
        agree(now["kinetic_energy"], np.asarray(pin.computeKineticEnergy(m, data, p, v)))
        agree(now["potential_energy"], np.asarray(pin.computePotentialEnergy(m, data, p)))


# ---- calls ----------------------------------------------------------------------------------------------------------


def test_a_single_name_gives_its_array_and_names_can_be_chosen():
    q, qd, _ = ARM.random_state(1)
    H = sd.kinematics(ARM, "mass_matrix", level=0)
    agree(H(q), sd.crba(ARM, q))
    function = sd.kinematics(ARM, {"M": "mass_matrix", "tip": "pose:dh6", "tip twice": "pose:dh6"}, level=0)
    found = function(q)
    assert list(found) == ["M", "tip", "tip twice"]
    agree(found["tip"], sd.frame_pose(ARM, q, "dh6"))
    assert found["tip"] is not found["tip twice"]
    assert "M, tip, tip twice from q" in repr(function) and function.flops.total > H.flops.total
    lines = function.report().splitlines()
    assert lines[1].startswith("  M          (7, 7)  mass_matrix: H of H q̈ + C = τ")
    assert lines[3].startswith("  tip twice  (4, 4)  pose:dh6: T = [R p; 0 1]")
    world = sd.kinematics(ARM, ["jacobian:dh6", "jacobian:dh6:local"], reference="world", backend="python")(q)
    agree(world["jacobian:dh6"], sd.frame_jacobian(ARM, q, "dh6", "world"))
    agree(world["jacobian:dh6:local"], sd.frame_jacobian(ARM, q, "dh6", "local"))


def test_a_frame_may_have_a_colon_in_its_name():
    names = ("arm::tip", "tip:world")
    X = ARM.frame("dh6").X
    model = ARM.replace(frames={**ARM.frames, **{name: sd.Frame(name, 5, X) for name in names}})
    q = ARM.random_state(1)[0]
    found = sd.kinematics(
        model, ["jacobian:arm::tip", "jacobian:arm::tip:space", "jacobian:tip:world", "pose:arm::tip"], backend="python"
    )(q)
    agree(found["jacobian:arm::tip"], sd.frame_jacobian(model, q, "arm::tip"))
    agree(found["jacobian:arm::tip:space"], sd.frame_jacobian(model, q, "arm::tip", "space"))
    agree(found["jacobian:tip:world"], sd.frame_jacobian(model, q, "tip:world"))
    agree(found["pose:arm::tip"], sd.frame_pose(model, q, "arm::tip"))


def test_a_further_function_is_a_line_of_the_table(monkeypatch):
    """It needs no more than what computes it over numbers and symbols."""

    def height(model, q, frame):
        return sd.frame_pose(model, q, frame)[2, 3]

    row = RobotFunction("height of a frame [m]", ("q",), (), height, of_frame=True)
    monkeypatch.setitem(ROBOT_FUNCTIONS, "height", row)
    q = ARM.random_state(1, batch=4)[0]
    found = sd.kinematics(ARM, ["height:dh6", "pose:dh6"], backend="python")(q)
    np.testing.assert_array_equal(found["height:dh6"], found["pose:dh6"][:, 2, 3])
    with pytest.raises(UnknownName, match="height:FRAME"):
        sd.kinematics(ARM, "heigth:FRAME")


def test_frames_of_the_base_stand_still():
    q, qd, _ = ARM.random_state(1)
    names = [x for x in everything("base") if "base" in x]
    found = sd.kinematics(ARM, names, backend="python")(q, qd)
    agree(found.pop("pose:base"), np.eye(4))
    agree(found.pop("quaternion:base"), np.array([0.0, 0.0, 0.0, 1.0]))
    assert not any(x.any() for x in found.values())


def test_results_stay_what_they_are_after_further_calls(zoo):
    q, qd, _, fx = state(ZOO, 1)
    first = zoo(q, qd, fx)
    kept = {name: x.copy() for name, x in first.items()}
    other = zoo(q, 2.0 * qd, fx)
    for name, x in first.items():
        np.testing.assert_array_equal(x, kept[name])
        assert not np.shares_memory(x, other[name])
        x[...] = np.nan  # what a caller writes into a result stays there
    for name, x in zoo(q, qd, fx).items():
        np.testing.assert_array_equal(x, kept[name])


def test_arguments_of_other_types_are_taken_the_long_way():
    function = sd.kinematics(ARM, ["com", "bias"], level=0)
    q, qd, _ = ARM.random_state(1)
    expected = function(q, qd)
    for p, v in (
        (q.tolist(), tuple(qd)),
        (np.repeat(q, 2)[::2], np.asfortranarray(qd)),
        (q.astype(">f8"), qd.astype(np.longdouble)),
    ):
        for name, x in function(p, v).items():
            np.testing.assert_array_equal(x, expected[name])
    counted = function(np.arange(7), np.zeros(7, dtype=np.float32))
    agree(counted["com"], function(np.arange(7.0), np.zeros(7))["com"])


def test_threads_get_their_own_results():
    function = sd.kinematics(ARM, ["mass_matrix", "com"], level=0)
    q = ARM.random_state(1, batch=40)[0]
    expected = function(q)
    wrong = []

    def work(n: int) -> None:
        for k in [*range(10 * n, 40), *range(10 * n)] * 20:
            found = function(q[k])
            if not np.allclose(found["mass_matrix"], expected["mass_matrix"][k], rtol=1e-12, atol=1e-12):
                wrong.append(k)

    in_threads(work, 4)
    assert not wrong


def test_a_prepared_call_reads_its_arrays_as_they_are_then():
    function = sd.kinematics(ARM, ["pose:dh6", "energy"], level=0)
    q, qd, _ = ARM.random_state(1)
    step = function.bind(q, qd)
    for _ in range(2):
        step()
        assert not step.status.any()
        for name, x in function(q, qd).items():
            np.testing.assert_array_equal(step.out[name], x)
        q += 0.1
    with pytest.raises(InvalidInput, match="no value was given for 'qd': pass qd="):
        function.bind(q)
    with pytest.raises(ProblemError, match="bind needs machine code"):
        sd.kinematics(ARM, "pose:dh6", backend="python").bind(q)


# ---- what is wrong is named -----------------------------------------------------------------------------------------


def test_names_that_do_not_exist_are_answered_with_those_that_do():
    for outputs, error, words in (
        ("mas_matrix", UnknownName, "unknown function of the robot 'mas_matrix'. Did you mean 'mass_matrix'"),
        (["jacobain:dh6"], UnknownName, "jacobian:FRAME"),
        ("pose:dh7", UnknownName, "unknown frame 'dh7'. Did you mean 'dh"),
        ("jacobian:dh7:world", UnknownName, "unknown frame 'dh7'"),
        ("jacobian:dh6:wrld", UnknownName, "unknown reference 'wrld'. Did you mean 'world'"),
        ("jacobian:a:b", UnknownName, "unknown frame 'a:b'"),
        ("pose:dh6:world", InvalidInput, "pose has no reference: ask for 'pose:dh6'"),
        ("jacobian", InvalidInput, "jacobian is of a frame: ask for 'jacobian:FRAME', such as 'jacobian:body6'"),
        ("com:dh6", InvalidInput, "com is of the whole robot: ask for 'com', not for 'com:dh6'"),
        (["com", "com"], InvalidInput, "'com' is asked for twice"),
        ([], InvalidInput, "outputs is empty: name some of mass_matrix, bias"),
    ):
        with pytest.raises(error) as caught:
            sd.kinematics(ARM, outputs)
        assert words in str(caught.value)
    with pytest.raises(UnknownName, match="unknown reference 'locl'"):
        sd.kinematics(ARM, "com", reference="locl")
    with pytest.raises(UnknownName, match="backend"):
        sd.kinematics(ARM, "com", backend="fortran")
    weightless = ARM.replace(inertias=np.zeros((7, 6, 6)), strict=None)
    with pytest.raises(InvalidInput, match="'iiwa7' has no mass"):
        sd.kinematics(weightless, "com")


@pytest.mark.parametrize("backend", ["llvm", "python"])
def test_bad_arguments_are_named(backend):
    function = sd.kinematics(ARM, ["com", "bias"], level=0, backend=backend)
    q, qd, _ = ARM.random_state(1, batch=3)
    for arguments, words in (
        ((q[0],), "no value was given for 'qd': pass qd="),
        ((q[0], qd[0], np.zeros((7, 6))), "unknown argument of com, bias: 'fx'. Valid names: q, qd"),
        ((q[0, :6], qd[0]), "q has shape (6,), but (…, 7) is needed"),
        ((q, qd[:2]), "do not fit together: q (3,), qd (2,)"),
        ((["a"] * 7, qd[0]), "q has type <U1, but real numbers are needed"),
    ):
        with pytest.raises(InvalidInput) as caught:
            function(*arguments)
        assert words in str(caught.value)
    for value in (np.nan, np.inf):
        qd[1, 4] = value
        with pytest.raises(InvalidInput, match=r"qd is (nan|inf) at entry 4"):
            function(q[1], qd[1])
        with pytest.raises(InvalidInput, match=r"qd is (nan|inf) at state 1, entry 4"):
            function(q, qd)
    if backend == "llvm":
        q[2, 3] = -2e9
        for at in (2, slice(None)):
            with pytest.raises(InvalidInput, match="the angle of joint 'joint3' is 2e[+]09 rad"):
                function(q[at], np.zeros(7))
    agree(function(q[0], qd[0])["com"], function(q[:1], qd[:1])["com"][0])  # an error leaves nothing behind
    first = sd.kinematics(ARM, "pose:body0", level=0, backend=backend)
    expected = first(q[0])
    q[0, 6] = np.nan  # of a joint that does not move body0
    for p in (q[0], q[:1], q):
        np.testing.assert_array_equal(first(p).reshape(-1, *expected.shape)[0], expected)


def test_quaternions_are_normalised_or_refused(zoo):
    q, qd, _, fx = state(ZOO, 1)
    expected = zoo(q, qd, fx)
    free = ZOO.q_slice(0)
    for size in (1.0 + 1e-8, 1.0 - 5e-7):
        near = q.copy()
        near[free][3:] *= size
        before = near.copy()
        for p, at in ((near, ...), (near[None], 0), (near.tolist(), ...)):
            for name, x in zoo(p, qd, fx).items():
                agree(x[at], expected[name], 1e-13)
        np.testing.assert_array_equal(near, before)
    far = q.copy()
    far[free][3:] *= 1.001
    for p in (far, far[None]):
        with pytest.raises(InvalidInput, match="the quaternion of joint 'joint0'.* has norm 1.001"):
            zoo(p, qd, fx)
    far[free.start + 4] = np.nan
    with pytest.raises(InvalidInput, match="q is nan at entry 4"):
        zoo(far, qd, fx)
    with pytest.raises(InvalidInput, match="q has shape"):
        zoo(q[:-1], qd, fx)
    with pytest.raises(InvalidInput, match="q has type <U1, but real numbers are needed"):
        zoo(np.array(["a"] * ZOO.nq), qd, fx)


# ---- elsewhere ------------------------------------------------------------------------------------------------------


def test_casadi_computes_the_same():
    casadi = pytest.importorskip("casadi")
    function = sd.kinematics(ARM, ["jacobian:dh6", "energy"], backend="python")
    q, qd, _ = ARM.random_state(1)
    other = function.to_casadi("arm")
    assert other.name_in() == ["q", "qd"] and isinstance(other, casadi.Function)
    J, energy = other(q, qd)
    agree(np.asarray(J).reshape(6, 7), sd.frame_jacobian(ARM, q, "dh6"))
    agree(np.asarray(energy).reshape(()), function(q, qd)["energy"])


@pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler")
def test_the_exported_c_passes_its_own_check(tmp_path):
    model = sd.random_tree(4, seed=1, joints=("free", "revolute"))
    function = sd.kinematics(model, ["pose:body3", "quaternion:body3", "bias", "external", "energy"], level=0)
    folder = function.export_c(tmp_path / "arm", "arm")
    build = ["gcc", "-std=c99", "-Wall", "-Werror", "arm.c", "main.c", "-o", "main", "-lm"]
    subprocess.run(build, cwd=folder, check=True, timeout=120)
    run = subprocess.run([folder / "main"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0 and run.stdout.endswith("all checks passed\n"), run.stdout


@pytest.mark.parametrize("size", [0.0, 1e-12, 1e-6, 1e-3, 0.1, 1.0, 9.0])
def test_steps_in_manifolds_are_those_of_the_model(size):
    """Of joints of every kind, from no step at all to one beyond a turn."""
    model = sd.random_tree(6, seed=9, joints=("free", "spherical", "planar", "revolute", "prismatic"))
    q, v, _ = model.random_state(seed=0, batch=50)
    v *= size / np.abs(v).max()
    step = sd.kinematics(model, "integrate", level=0)
    np.testing.assert_allclose(step(q, v), model.integrate(q, v), rtol=0, atol=2e-14)


MANIFOLDS = ("free", "spherical", "planar", "revolute", "prismatic")


@pytest.mark.parametrize("size", [0.0, 1e-12, 1e-6, 1e-3, 0.1, 1.0, 1.8])
def test_differences_are_those_of_the_model_and_undo_steps(size):
    """From no turn at all to nearly half a one; the second quaternions may have the other sign, and any length."""
    model = sd.random_tree(6, seed=9, joints=MANIFOLDS)
    q, v, _ = model.random_state(seed=0, batch=50)
    v *= size / np.abs(v).max()
    q1 = model.integrate(q, v)
    difference = sd.kinematics(model, "difference", level=0)
    np.testing.assert_allclose(difference(q, q1=q1), v, rtol=0, atol=2e-14)
    np.testing.assert_allclose(model.difference(q, q1), v, rtol=0, atol=2e-14)
    for _, part in model.quaternions:
        q1[:, part] *= -0.7
    np.testing.assert_allclose(difference(q, q1=q1), v, rtol=0, atol=2e-14)


def test_differences_between_any_positions_lead_there():
    model = sd.random_tree(6, seed=9, joints=MANIFOLDS)
    q, q1 = (model.random_state(seed=k, batch=500)[0] for k in (1, 2))
    v = sd.kinematics(model, "difference", level=0)(q, q1=q1)
    reached = model.integrate(q, v)
    for name, part in model.quaternions:
        reached[:, part] *= np.sign((reached[:, part] * q1[:, part]).sum(axis=1, keepdims=True))
        turn = v[:, model.v_slice(model.joint_index(name))][:, :3]
        assert np.linalg.norm(turn, axis=1).max() <= np.pi + 1e-12
    np.testing.assert_allclose(reached, q1, rtol=0, atol=1e-11)


def test_derivatives_of_differences_have_no_exception_where_positions_agree():
    """Under CasADi: the derivative by v of the difference from q to q ⊕ v is the identity, and the second one is 0."""
    casadi = pytest.importorskip("casadi")
    model = sd.random_tree(4, seed=9, joints=MANIFOLDS)
    step, difference = (sd.kinematics(model, x, level=0).to_casadi(x) for x in ("integrate", "difference"))
    q, v = model.random_state(seed=3)[0], casadi.SX.sym("v", model.nv)
    slope = casadi.jacobian(difference(q, step(q, v)), v)
    at = casadi.Function("at", [v], [slope, casadi.jacobian(slope, v)])
    for size in (0.0, 1e-9, 0.3):
        first, second = (x.full() for x in at(np.full(model.nv, size)))
        np.testing.assert_allclose(first, np.eye(model.nv), rtol=0, atol=1e-12)
        np.testing.assert_allclose(second, 0.0, rtol=0, atol=1e-10)


def test_the_documentation_lists_the_table():
    """docs/kinematics.md and the docstring have every function, with its arguments and its shape."""
    text = (Path(__file__).parents[2] / "docs" / "kinematics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)(:FRAME)?` \| ([^|]+) \| \(([^|]*)\) \|", text, flags=re.MULTILINE)
    letters = {"q": "q", "qd": "q̇", "fx": "fx", "q1": "q1"}
    listed = {name: (bool(frame), needs, shape.rstrip(",")) for name, frame, needs, shape in rows}
    assert listed == {
        name: (f.of_frame, ", ".join(letters[x] for x in f.inputs), ", ".join(map(str, f.shape)))
        for name, f in ROBOT_FUNCTIONS.items()
    }
    assert all(name in sd.kinematics.__doc__ for name in ROBOT_FUNCTIONS)
