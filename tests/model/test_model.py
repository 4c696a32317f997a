"""The Model: validation, names, states, copies, and its kinematics over float and Expr."""

import copy
import json
import math
import pickle

import numpy as np
import pytest

from sysdyn.errors import InvalidInput, ModelError, PlausibilityWarning, UnknownName
from sysdyn.model import (
    DeclaredSensor,
    Fixed,
    Frame,
    Free,
    Model,
    Prismatic,
    Revolute,
    Spherical,
    joint_transforms,
    load,
    random_tree,
)
from sysdyn.model.inertia import inertia
from sysdyn.model.se3 import X_motion, rotx, rotz, skew

I_BALL = inertia(2.0, np.array([0.1, 0.0, 0.2]), np.diag([0.1, 0.1, 0.1]))


def model(**changes):
    """Three bodies: 0 on the base, 1 and 2 on 0."""
    fields = {
        "name": "test",
        "body_names": ("hub", "left", "right"),
        "joint_names": ("j_hub", "j_left", "j_right"),
        "joints": (Revolute(), Prismatic((1, 0, 0)), Spherical()),
        "parent": (-1, 0, 0),
        "X_tree": np.array([np.eye(6), X_motion(rotx(0.3), np.array([0.1, 0.2, 0.3])), np.eye(6)]),
        "inertias": np.array([I_BALL] * 3),
    }
    return Model(**{**fields, **changes})


def changed(index, value, base=None):
    A = np.array([I_BALL] * 3 if base is None else base, dtype=float)
    A[index] = value
    return A


# ---- names, sizes, properties -------------------------------------------------------------------------------------


def test_sizes_slices_and_names():
    m = model()
    assert (m.nb, m.nq, m.nv) == (3, 6, 5)
    assert [m.q_slice(i) for i in range(3)] == [slice(0, 1), slice(1, 2), slice(2, 6)]
    assert [m.v_slice(i) for i in range(3)] == [slice(0, 1), slice(1, 2), slice(2, 5)]
    assert m.dof_names == ("j_hub", "j_left", "j_right[0]", "j_right[1]", "j_right[2]")
    assert m.children == ((1, 2), (), ())
    assert m.body_index("right") == 2 and m.joint_index("j_left") == 1
    assert m.mass == pytest.approx(6.0)
    np.testing.assert_array_equal(m.a0, [0, 0, 0, 0, 0, 9.81])
    np.testing.assert_array_equal(m.armature, np.zeros(5))
    assert np.all(m.lower == -math.inf) and np.all(m.upper == math.inf)
    assert set(m.frames) == {"base", "hub", "left", "right"} and m.frames["base"].body == -1


def test_unknown_names_list_near_matches():
    m = model()
    with pytest.raises(UnknownName, match="Did you mean 'left'"):
        m.body_index("lefft")
    with pytest.raises(UnknownName, match="j_hub"):
        m.joint_index("hub")
    with pytest.raises(UnknownName, match="frame"):
        m.frame("tool")
    with pytest.raises(UnknownName, match="field of Model"):
        m.replace(gravitas=1)


def test_arrays_are_read_only_copies():
    X = np.array([np.eye(6)] * 3)
    m = model(X_tree=X)
    X[0, 0, 0] = 7.0
    assert m.X_tree[0, 0, 0] == 1.0
    for A in (m.X_tree, m.inertias, m.gravity, m.armature, m.lower, m.a0, m.frames["hub"].X):
        with pytest.raises(ValueError, match="read-only"):
            A[...] = 0.0
    with pytest.raises(TypeError):
        m.frames["x"] = m.frames["hub"]


def test_repr_is_a_short_table():
    text = repr(model())
    for part in ("'test'", "3 on a fixed base", "nq = 6", "nv = 5", "6 kg", "1 revolute, 1 prismatic, 1 spherical"):
        assert part in text
    assert len(text.splitlines()) < 8


def test_models_without_bodies_are_allowed():
    m = Model("empty", (), (), (), (), np.zeros((0, 6, 6)), np.zeros((0, 6, 6)))
    q, qd, qdd = m.random_state()
    assert (m.nb, m.nq, m.nv) == (0, 0, 0) and q.shape == qd.shape == qdd.shape == (0,)
    assert joint_transforms(m, q) == [] and m.neutral().shape == (0,)
    assert Model.from_dict(m.to_dict()).digest == m.digest


# ---- validation ---------------------------------------------------------------------------------------------------

REFLECTION = np.diag([1.0, 1.0, -1.0, 1.0, 1.0, -1.0])
INVALID = [
    ({"parent": (-1, 2, 0)}, r"parent\[1\] = 2: bodies must be numbered so that parents come first"),
    ({"parent": (-1, 1, 0)}, r"parent\[1\] = 1: bodies must be numbered so that parents come first"),
    ({"parent": (-2, 0, 0)}, r"parent\[0\] = -2: the base is −1"),
    ({"parent": (-1, 0.0, 0)}, r"parent\[1\] = 0.0: a body number"),
    ({"parent": (-1, 0)}, "body_names has 3 entries, but parent has 2"),
    ({"body_names": ("a", "a", "b")}, "body names must be unique; used more than once: a"),
    ({"joint_names": ("a", "b", "b")}, "joint names must be unique; used more than once: b"),
    (
        {"joint_names": ("a", "b", "a[3]"), "joints": (Spherical(), Revolute(), Revolute())},
        r"'a\[3\]' is a joint, and a",
    ),
    ({"body_names": ("a", "", "b")}, "non-empty string"),
    ({"joints": (Revolute(), "prismatic", Fixed())}, r"joints\[1\] is 'prismatic', not a Joint"),
    ({"X_tree": np.eye(6)}, r"X_tree has shape \(6, 6\), but \(3, 6, 6\)"),
    ({"X_tree": changed(1, np.nan, [np.eye(6)] * 3)}, "X_tree is nan"),
    ({"X_tree": changed(1, 2 * np.eye(6), [np.eye(6)] * 3)}, "X_tree of body 'left' is not a motion transform"),
    ({"X_tree": changed(1, REFLECTION, [np.eye(6)] * 3)}, "X_tree of body 'left' is not a motion transform"),
    ({"X_tree": changed((2, 0, 3), 0.1, [np.eye(6)] * 3)}, "X_tree of body 'right' is not a motion transform"),
    ({"X_tree": "abc"}, "X_tree has type"),
    ({"inertias": changed((1, 0, 1), 0.5)}, "inertia of body 'left' is not symmetric"),
    ({"inertias": changed(2, inertia(-1.0, np.zeros(3), np.eye(3)))}, "body 'right' has mass -1 kg"),
    ({"inertias": changed((2, 3, 3), 5.0)}, "inertia of body 'right' does not have the form"),
    ({"inertias": changed((0, 5, 5), np.inf)}, "inertias is inf"),
    ({"gravity": (0, 9.81)}, r"gravity has shape \(2,\)"),
    ({"armature": np.full(5, -0.1)}, "armature of 'j_hub' is -0.1"),
    ({"armature": np.zeros(3)}, r"armature has shape \(3,\), but \(5,\)"),
    ({"lower": [1, 0, 0, 0, 0]}, "'j_right' has 3 degrees of freedom: position limits"),
    ({"lower": [1, *[-math.inf] * 4], "upper": [0, *[math.inf] * 4]}, "'j_hub' are lower 1.0 > upper 0.0"),
    ({"upper": np.full(5, np.nan)}, "upper is nan"),
    ({"base": "flying"}, "base is 'flying'"),
    ({"base": "floating"}, "must have a Free joint as joint 0"),
    ({"base": "floating", "joints": (Free(), Fixed(), Fixed()), "parent": (-1, -1, 0)}, "is a child of the base"),
    ({"frames": {"a": Frame("b", 0)}}, "key and name must agree"),
    ({"frames": {"a": Frame("a", 3)}}, "frame 'a' is on body 3"),
    ({"frames": {"hub": Frame("hub", 1)}}, "has the name of a body"),
]


@pytest.mark.parametrize(("changes", "message"), INVALID, ids=[message[:40] for _, message in INVALID])
def test_invalid_models_raise(changes, message):
    with pytest.raises(ModelError, match=message):
        model(**changes)


IMPLAUSIBLE = {
    "negative": (inertia(1.0, np.zeros(3), np.diag([-0.1, 0.2, 0.2])), "< 0"),
    "triangle": (inertia(1.0, np.array([1.0, 2.0, 3.0]), np.diag([0.1, 0.1, 0.5])), "triangle inequality"),
    "massless": (np.kron([[0, 1], [-1, 0]], skew([0.0, 0.0, 1.0])) + np.diag([1, 1, 1, 0, 0, 0]), "its mass is 0"),
}


@pytest.mark.parametrize("case", IMPLAUSIBLE)
def test_implausible_inertias_warn_once_and_raise_if_strict(case):
    I, why = IMPLAUSIBLE[case]
    inertias = np.array([I_BALL, I, I])
    with pytest.warns(PlausibilityWarning, match=f"'left'.*{why}.*'right'") as caught:
        m = model(inertias=inertias)
    assert len(caught) == 1
    with pytest.raises(ModelError, match=f"'left'.*{why}.*strict=False"):
        model(inertias=inertias, strict=True)
    m.replace(gravity=(0, 0, 0))  # does not warn again
    copy.deepcopy(m)


def test_massless_bodies_and_thin_rods_are_plausible():
    rod = inertia(1.0, np.array([0.3, 0, 0]), np.diag([0.0, 0.1, 0.1]))
    model(inertias=np.array([np.zeros((6, 6)), rod, inertia(3.0, np.array([1.0, 2.0, 3.0]), np.zeros((3, 3)))]))


def test_placements_are_snapped_and_exact_ones_kept_bit_for_bit():
    X = X_motion(rotx(math.pi / 2) + 3e-16, np.array([0.4, 1e-17, 1.0 + 2e-16]))
    m = model(X_tree=np.array([X, np.eye(6), np.eye(6)]))
    np.testing.assert_array_equal(m.X_tree[0, :3, :3], [[1, 0, 0], [0, 0, 1], [0, -1, 0]])
    r_cross = np.array([[0, -1, 0], [1, 0, -0.4], [0, 0.4, 0]])
    expected = -m.X_tree[0, :3, :3] @ r_cross
    np.testing.assert_allclose(m.X_tree[0, 3:, :3], expected, rtol=2e-15)
    np.testing.assert_array_equal(m.X_tree[0, 3:, :3] == 0.0, expected == 0.0)
    generic = X_motion(rotx(0.3) @ rotz(1.1), np.array([0.1, -0.2, 0.3]))
    np.testing.assert_array_equal(model(X_tree=np.array([generic] * 3)).X_tree, [generic] * 3)


def test_snapping_does_not_touch_small_inertias():
    tiny = inertia(1e-6, np.zeros(3), 1e-14 * np.eye(3))
    assert model(inertias=np.array([tiny] * 3)).inertias[0, 0, 0] == 1e-14


# ---- states -------------------------------------------------------------------------------------------------------


def test_random_state_is_deterministic_and_has_batch_axes():
    m = model()
    for a, b in zip(m.random_state(seed=3), m.random_state(seed=3), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(m.random_state(seed=3)[0], m.random_state(seed=4)[0])
    q, qd, qdd = m.random_state(seed=1, batch=7, scale=2.0)
    assert q.shape == (7, 6) and qd.shape == qdd.shape == (7, 5)
    assert 1.0 < np.abs(qd).max() <= 2.0 and 1.0 < np.abs(qdd).max() <= 2.0
    assert m.normalise(q) is q


def test_integrate_and_difference_are_inverse_with_batch_axes():
    m = random_tree(12, seed=2)
    q, v, _ = m.random_state(seed=5, batch=6)
    stepped = m.integrate(q, v, 0.5)
    np.testing.assert_allclose(m.difference(q, stepped), 0.5 * v, atol=1e-13)
    np.testing.assert_array_equal(m.integrate(q[2], v[2], 0.5), stepped[2])
    np.testing.assert_array_equal(m.integrate(q[0], v, 0.5).shape, stepped.shape)
    np.testing.assert_array_equal(m.integrate(m.neutral(), np.zeros(m.nv)), m.neutral())


def test_state_shapes_are_checked():
    m = model()
    with pytest.raises(InvalidInput, match=r"q has shape \(5,\), but \(…, 6\) is needed"):
        m.integrate(np.zeros(5), np.zeros(5))
    with pytest.raises(InvalidInput, match="v has shape"):
        m.integrate(m.neutral(), np.zeros(6))
    with pytest.raises(InvalidInput, match="q1 has shape"):
        m.difference(m.neutral(), np.zeros((6, 1)))
    with pytest.raises(InvalidInput, match="q has type <U1, but real numbers are needed"):
        m.normalise(["a"] * 6)
    with pytest.raises(InvalidInput, match=r"q has shape \(2, 6\).*object array"):
        joint_transforms(m, np.zeros((2, 6)))


def test_normalise():
    m = model()
    q = m.neutral()
    assert m.normalise(q) is q
    near = q.copy()
    near[5] += 5e-7
    fixed = m.normalise(near)
    assert near[5] == 1 + 5e-7 and np.linalg.norm(fixed[2:]) == pytest.approx(1.0, abs=1e-15)
    far = q.copy()
    far[5] = 1.1
    with pytest.raises(InvalidInput, match="joint 'j_right' has norm 1.1, not 1 within 1e-6"):
        m.normalise(far)
    with pytest.raises(InvalidInput, match="'j_right' of state 2 has norm 1.1"):
        m.normalise(np.array([q, near, far]))
    with pytest.raises(InvalidInput, match=r"of state \(1, 0\)"):
        m.normalise(np.array([[q], [far]]))
    bad = q.copy()
    bad[3] = np.nan
    with pytest.raises(InvalidInput, match="norm nan"):
        m.normalise(bad)


# ---- copies -------------------------------------------------------------------------------------------------------


def test_dict_is_exact_json():
    sensor = DeclaredSensor("imu", "accelerometer", "link", "hub", np.eye(6), {"type": "accelerometer"}, 7, "<sensor/>")
    m = random_tree(15, seed=4).replace(sensors=(sensor,), armature=None)
    m = m.replace(upper=[1.0 if name.count("[") == 0 else math.inf for name in m.dof_names])
    back = Model.from_dict(json.loads(json.dumps(m.to_dict(), allow_nan=False)))
    assert back.to_dict() == m.to_dict() and back.digest == m.digest and back.joints == m.joints
    for name in ("X_tree", "inertias", "gravity", "armature", "lower", "upper"):
        np.testing.assert_array_equal(getattr(back, name), getattr(m, name))
    assert back.sensors[0].attributes == sensor.attributes and back.sensors[0].line == 7


def test_from_dict_rejects_foreign_data():
    data = model().to_dict()
    with pytest.raises(ModelError, match=r"missing fields \['parent'\], unknown fields \['mother'\]"):
        Model.from_dict({**{k: v for k, v in data.items() if k != "parent"}, "mother": []})
    data["joints"][0]["type"] = "hinge"
    with pytest.raises(UnknownName, match="joint type 'hinge'"):
        Model.from_dict(data)


def test_pickle_and_deepcopy():
    m = model()
    for other in (pickle.loads(pickle.dumps(m)), copy.deepcopy(m)):
        assert other.to_dict() == m.to_dict()


def test_digest_is_of_the_dynamics_only():
    m = model()
    assert len(m.digest) == 64 and m.digest == model().digest
    assert m.replace(name="other", body_names=("a", "b", "c"), frames=None).digest == m.digest
    for change in (
        {"gravity": (0, 0, 0)},
        {"armature": np.ones(5)},
        {"parent": (-1, 0, 1)},
        {"inertias": 2 * m.inertias},
        {"joints": (Revolute((0, 0, -1)), *m.joints[1:])},
    ):
        assert m.replace(**change).digest != m.digest


def test_load_dispatches_on_the_suffix(tmp_path):
    with pytest.raises(ModelError, match="MJCF file is <mujoco>, but it is <robot>: read a URDF with load_urdf"):
        (tmp_path / "robot.xml").write_text("<robot/>")
        load(tmp_path / "robot.xml")
    with pytest.raises(ModelError, match="suffix '.sdf'; readable: .urdf"):
        load("robot.sdf")
    path = tmp_path / "robot.URDF"
    path.write_text('<robot name="r"><link name="a"/></robot>')
    assert load(path, base="floating").nb == 1
