"""Models that Pinocchio has loaded or built, and their states, against Pinocchio's own algorithms."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import icub_models
import numpy as np
import pinocchio as pin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sysdyn as sd
from sysdyn.errors import InvalidInput, ModelError

# Relative differences of sums of products in other orders.
SAME = 1e-12
FREE = pin.JointModelFreeFlyer
# A leg whose joints are continuous about axes of their own.
UNBOUNDED = "<robot name='leg'><link name='base'/>" + "".join(f"""
<link name="l{k}"><inertial><origin xyz="0.1 0 {k}"/><mass value="2"/>
<inertia ixx="0.1" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.1"/></inertial></link>
<joint name="j{k}" type="continuous"><parent link="{'base' if k == 0 else f'l{k - 1}'}"/><child link="l{k}"/>
<origin xyz="0 0.1 -0.3"/><axis xyz="{axis}"/></joint>""" for k, axis in enumerate(["0 1 1", "-1 0 0", "0.3 0.4 -0.5"])
) + "</robot>"  # fmt: skip
ROBOTS = sorted(Path(icub_models.get_models_path()).rglob("model.urdf"))
BRANCHED = Path(__file__).parents[1] / "models" / "branched.urdf"


def composite() -> pin.JointModelComposite:
    found = pin.JointModelComposite()
    found.addJoint(pin.JointModelRX())
    found.addJoint(pin.JointModelSphericalZYX(), pin.SE3.Random())
    found.addJoint(pin.JointModelPY(), pin.SE3.Random())
    return found


AXIS = np.array([0.0, 0.6, 0.8])
JOINTS = {
    "RX": pin.JointModelRX, "RZ": pin.JointModelRZ, "RevoluteUnaligned": lambda: pin.JointModelRevoluteUnaligned(AXIS),
    "RUBY": pin.JointModelRUBY, "PX": pin.JointModelPX,
    "PrismaticUnaligned": lambda: pin.JointModelPrismaticUnaligned(AXIS), "HY": lambda: pin.JointModelHY(0.3),
    "HelicalUnaligned": lambda: pin.JointModelHelicalUnaligned(AXIS, -0.2), "FreeFlyer": FREE,
    "Spherical": pin.JointModelSpherical, "Planar": pin.JointModelPlanar, "SphericalZYX": pin.JointModelSphericalZYX,
    "Translation": pin.JointModelTranslation,
    "Universal": lambda: pin.JointModelUniversal(np.array([1.0, 0.0, 0.0]), np.array([0.0, 0.6, 0.8])),
    "Composite": composite,
}  # fmt: skip


def built(kinds: list[str], seed: int, mimic: bool = False) -> pin.Model:
    """A random tree with joints of these types; mimic: and two that follow the first."""
    rng = np.random.default_rng(seed)
    pin.seed(seed)
    m = pin.Model()
    m.name = "built"

    def add(parent: int, joint, name: str) -> int:
        number = m.addJoint(parent, joint, pin.SE3.Random(), name)
        m.appendBodyToJoint(number, pin.Inertia.FromBox(*rng.uniform(0.2, 1.0, 4)), pin.SE3.Random())
        m.addJointFrame(number, 0)
        m.addBodyFrame(f"body of {name}", number, pin.SE3.Identity(), 0)
        m.addFrame(pin.Frame(f"tip of {name}", number, pin.SE3.Random(), pin.FrameType.OP_FRAME))
        return number

    for k, kind in enumerate(kinds):
        add(int(rng.integers(0, m.njoints)), JOINTS[kind](), f"j{k}")
    if mimic:
        add(1, pin.JointModelMimic(m.joints[1], -1.5, 0.3), "follower")
        add(m.njoints - 1, pin.JointModelMimic(m.joints[1], 0.5, 0.0), "other")
    m.armature = rng.uniform(0.0, 0.1, m.nv)
    return m


def state(m: pin.Model, seed: int):
    """(q, v, a) of Pinocchio, random."""
    rng = np.random.default_rng(seed)
    q = pin.integrate(m, pin.neutral(m), rng.standard_normal(m.nv))
    return q, rng.standard_normal(m.nv), rng.standard_normal(m.nv)


def inertia(m: pin.Model, q: np.ndarray) -> np.ndarray:
    """The joint-space inertia by columns of inverse dynamics: crba of 4.1 differs from them for trees of composites."""
    data, still = m.createData(), np.zeros(m.nv)
    bias = pin.rnea(m, data, q, still, still).copy()
    return np.array([pin.rnea(m, data, q, still, one) - bias for one in np.eye(m.nv)]).T


def off(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max(initial=0.0) / max(1.0, np.abs(expected).max(initial=0.0)))


def compare(m: pin.Model, seed: int = 0) -> sd.Model:
    """The model, after a comparison of everything that both have at a random state."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sd.PlausibilityWarning)  # of files, and of Pinocchio's samples
        model = sd.load(m)
    own, data = sd.PinocchioState(m), m.createData()
    q, v, a = state(m, seed)
    x, xd = own.to_sysdyn(q, v)
    xdd = own.acceleration_to_sysdyn(a)
    back = own.to_pinocchio(x, xd)
    assert np.abs(pin.difference(m, back[0], q)).max(initial=0.0) < SAME
    np.testing.assert_allclose(back[1], v, atol=SAME)
    np.testing.assert_allclose(own.acceleration_to_pinocchio(xdd), a, atol=SAME)

    fx = np.random.default_rng(seed).standard_normal((model.nb, 6))
    fx[[i for i in range(model.nb) if i not in own.bodies]] = 0.0
    forces = own.wrenches_to_pinocchio(fx)
    np.testing.assert_allclose(own.wrenches_to_sysdyn(forces), fx, atol=0.0)
    tau = sd.rnea(model, x, xd, xdd, fx)
    assert off(own.force_to_pinocchio(tau), pin.rnea(m, data, q, v, a, forces)) < SAME
    M = inertia(m, q)
    assert off(own.inertia_to_pinocchio(sd.crba(model, x)), M) < SAME
    if not own.follows:
        assert off(own.inertia_to_sysdyn(M), sd.crba(model, x)) < SAME
        np.testing.assert_allclose(own.force_to_pinocchio(own.force_to_sysdyn(v)), v, atol=0.0)

    pin.forwardKinematics(m, data, q, v, a)
    pin.updateFramePlacements(m, data)
    pin.computeJointJacobians(m, data, q)
    once = [f for f in m.frames if [x.name for x in m.frames].count(f.name) == 1]
    names = [f for f in once if f.type == pin.FrameType.OP_FRAME][:6] or once[-4:]
    for frame in names:
        number = m.getFrameId(frame.name, frame.type)
        T = sd.frame_pose(model, x, frame.name)
        assert off(T, data.oMf[number].homogeneous) < SAME
        J = pin.getFrameJacobian(m, data, number, pin.LOCAL)  # (6,) of one degree of freedom
        ours = sd.frame_jacobian(model, x, frame.name)
        assert off(own.jacobian_to_pinocchio(ours), J.reshape(6, -1)) < SAME
        if not own.follows:
            assert off(own.jacobian_to_sysdyn(J), ours) < SAME
    return model


@pytest.mark.slow(after=8)
@pytest.mark.parametrize("root", [None, FREE], ids=["fixed", "floating"])
@pytest.mark.parametrize("path", ROBOTS[::-1], ids=lambda x: x.parent.name)
def test_robots_of_files(path, root):
    m = pin.buildModelFromUrdf(str(path)) if root is None else pin.buildModelFromUrdf(str(path), root())
    model = compare(m)
    assert model.base == ("fixed" if root is None else "floating")
    assert list(model.joint_names) == list(m.names)[1:]


def test_continuous_joints_about_any_axis():
    m = pin.buildModelFromXML(UNBOUNDED)
    assert {j.shortname() for j in list(m.joints)[1:]} == {"JointModelRevoluteUnboundedUnaligned"}
    assert m.nq == 6 and compare(m).nq == 3


@pytest.mark.parametrize("make", [pin.buildSampleModelHumanoidRandom, pin.buildSampleModelManipulator])
def test_samples_of_pinocchio(make):
    compare(make())


def test_joints_that_mimic_others():
    compare(pin.buildModelFromUrdf(str(BRANCHED)))
    for seed, kind in enumerate(["RX", "PX", "RevoluteUnaligned", "RUBY", "PrismaticUnaligned"]):
        m = built([kind, "RZ", "PX"], seed, mimic=True)
        compare(m, seed)
        model, own = sd.load(m), sd.PinocchioState(m)
        assert {(c.joint, c.leader, c.coefficients) for c in model.closures} == {
            ("follower", "j0", (0.3, -1.5)), ("other", "j0", (0.0, 0.5)),
        }  # fmt: skip
        x, xd = own.to_sysdyn(*state(m, seed)[:2])
        np.testing.assert_allclose(model.imposed(x, xd, None)[:2], (x, xd), atol=1e-14)
        for method in (own.inertia_to_sysdyn, own.jacobian_to_sysdyn):
            with pytest.raises(InvalidInput, match="mimic"):
                method(np.zeros((6, 6)))


@settings(max_examples=25)
@given(
    kinds=st.lists(st.sampled_from(sorted(JOINTS)), min_size=1, max_size=5), seed=st.integers(0, 10_000),
)  # fmt: skip
def test_joints_of_every_type(kinds, seed):
    compare(built(kinds, seed), seed)


def test_batches_and_classical_accelerations():
    m = built(["FreeFlyer", "RX", "Planar", "RUBY", "Spherical"], 3)
    own, data = sd.PinocchioState(m), m.createData()
    many = [state(m, k) for k in range(4)]
    q, v, a = (np.array(x) for x in zip(*many, strict=True))
    x, xd = own.to_sysdyn(q, v)
    for k in range(4):
        one = own.to_sysdyn(q[k], v[k])
        np.testing.assert_array_equal(x[k], one[0])
        np.testing.assert_array_equal(xd[k], one[1])
    classical = own.acceleration_to_pinocchio(own.acceleration_to_sysdyn(a), xd)
    for k in range(4):
        pin.forwardKinematics(m, data, q[k], v[k], a[k])
        body = pin.getFrameClassicalAcceleration(m, data, m.getFrameId("body of j0"), pin.LOCAL)
        gone = pin.getFrameAcceleration(m, data, m.getFrameId("body of j0"), pin.LOCAL)
        np.testing.assert_allclose(classical[k, :6] - a[k, :6], (body - gone).vector, atol=1e-12)
        np.testing.assert_array_equal(own.exchanged(own.exchanged(gone.vector)), gone.vector)
    np.testing.assert_allclose(own.acceleration_to_sysdyn(classical, v), own.acceleration_to_sysdyn(a), atol=1e-12)


def test_what_a_model_is_said_to_have():
    m = built(["FreeFlyer", "RX", "RUBY", "Universal", "PX"], 1)
    own = {name: np.arange(1.0, 1.0 + m.nv) * k for k, name in enumerate(("damping", "friction", "velocityLimit"), 1)}
    for name, x in own.items():
        setattr(m, name, x)
    m.effortLimit = 50.0 * np.arange(1.0, 1.0 + m.nv)
    lower, upper = np.array(m.lowerPositionLimit), np.array(m.upperPositionLimit)
    lower[7], upper[7] = -1.0, 2.0
    m.lowerPositionLimit, m.upperPositionLimit = lower, upper
    m.gravity = pin.Motion(np.array([0.0, 1.0, -3.0, 0.0, 0.0, 0.0]))
    model = sd.load(m)
    assert model.joint_names == ("j0", "j1", "j2", "j3_0", "j3_1", "j4") and model.name == "built"
    assert model.body_names[1] == "body of j1" and model.body_names[3] == "body of j3@j3_0"
    assert {"universe", "tip of j4", "body of j2"} <= set(model.frames) and {"j0", "j4"} <= set(model.frames)
    np.testing.assert_array_equal(model.gravity, [0.0, 1.0, -3.0])
    state_ = sd.PinocchioState(m)
    np.testing.assert_array_equal(state_.velocity_to_pinocchio(model.damping), own["damping"])
    np.testing.assert_array_equal(state_.velocity_to_pinocchio(model.friction), own["friction"])
    np.testing.assert_array_equal(state_.velocity_to_pinocchio(model.velocity_limit), own["velocityLimit"])
    np.testing.assert_array_equal(state_.velocity_to_pinocchio(model.effort_limit), m.effortLimit)
    assert model.lower[6] == -1.0 and model.upper[6] == 2.0
    assert np.isinf(np.delete(model.lower, 6)).all() and np.isinf(np.delete(model.upper, 6)).all()


def one(kind: str = "RX") -> pin.Model:
    return built([kind], 0)


def turning() -> pin.Model:
    m = one()
    m.gravity = pin.Motion(np.array([0.0, 0.0, -9.8, 0.0, 0.0, 1.0]))
    return m


BAD = {
    "no model": (lambda: sd.from_pinocchio(3), InvalidInput, "pinocchio.Model is needed, not int"),
    "a file for a state": (lambda: sd.PinocchioState("robot.urdf"), InvalidInput, "needed, not str"),
    "data": (lambda: sd.load(one().createData()), InvalidInput, "not Data"),
    "turning gravity": (lambda: sd.load(turning()), ModelError, "angular part"),
    "ellipsoid": (lambda: sd.load(_with(pin.JointModelEllipsoid(0.1, 0.2, 0.3))), ModelError, "'e' is a .*Ellipsoid"),
    "base": (lambda: sd.load(one(), base="floating"), ModelError, "has a fixed base, not 'floating'"),
    "mappings": (lambda: sd.load(one(), mappings={"a": 1}), InvalidInput, "mappings"),
    "shape of q": (lambda: sd.PinocchioState(one()).to_sysdyn([0.0, 1.0], [0.0]), InvalidInput, r"q has shape \(2,\)"),
    "NaN": (lambda: sd.PinocchioState(one()).to_pinocchio([np.nan], [0.0]), InvalidInput, "nan"),
    "quaternion": (lambda: sd.PinocchioState(one("Spherical")).to_sysdyn(np.zeros(4), np.zeros(3)), InvalidInput,
                   r"quaternion q\[0:4\] is zero"),
    "angle": (lambda: sd.PinocchioState(one("RUBY")).to_sysdyn(np.zeros(2), np.zeros(1)), InvalidInput,
              "zero and gives no angle"),
    "wrenches": (lambda: sd.PinocchioState(one()).wrenches_to_sysdyn([pin.Force.Zero()]), InvalidInput,
                 "1 forces were given for 2 joints"),
    "batch of wrenches": (lambda: sd.PinocchioState(one()).wrenches_to_pinocchio(np.zeros((2, 1, 6))), InvalidInput,
                          "wrenches of one state"),
}  # fmt: skip


def _with(joint) -> pin.Model:
    m = one()
    m.addJoint(1, joint, pin.SE3.Identity(), "e")
    return m


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said(case):
    call, error, words = BAD[case]
    with pytest.raises(error, match=words):
        call()


def test_without_pinocchio_a_message_says_how_to_get_it():
    code = "import sys; sys.modules['pinocchio'] = None; import sysdyn as sd; sd.from_pinocchio(3)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.search(r"BackendUnavailable: Pinocchio is not available.*pin", found.stderr), found.stderr


def test_a_model_of_mujoco_is_loaded_too():
    import mujoco

    mj = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body name="b"><joint name="j"/><geom size="0.1"/></body></worldbody></mujoco>'
    )
    assert sd.load(mj).joint_names == sd.from_mujoco(mj).joint_names == ("j",)
