"""Each joint type: S, transform, manifold and genericity agree."""

import numpy as np
import pytest
from scipy.linalg import expm

from sysdyn.errors import InvalidInput, ModelError
from sysdyn.model import JOINTS, Cylindrical, Fixed, Free, Helical, Planar, Prismatic, Revolute, Spherical
from sysdyn.model.se3 import X_motion, crm, quaternion_to_E
from sysdyn.program.autodiff import evaluate
from sysdyn.program.graph import Expr, Graph
from sysdyn.program.opcodes import COS, SIN

GENERIC = (0.3, -0.5, 0.9)
EXAMPLES = {
    "revolute": [Revolute(), Revolute((0, -1, 0)), Revolute(GENERIC)],
    "prismatic": [Prismatic(), Prismatic((-2, 0, 0)), Prismatic(GENERIC)],
    "helical": [Helical((0, 0, 1), 0.2), Helical((-1, 0, 0), -0.3), Helical(GENERIC, 0.15)],
    "cylindrical": [Cylindrical(), Cylindrical((0, -1, 0)), Cylindrical(GENERIC)],
    "planar": [Planar(), Planar((1, 0, 0)), Planar((0, 1, 0)), Planar((0, 0, -1)), Planar(GENERIC)],
    "spherical": [Spherical()],
    "free": [Free()],
    "fixed": [Fixed()],
}
ALL = [pytest.param(joint, id=f"{kind}{k}") for kind in JOINTS for k, joint in enumerate(EXAMPLES.get(kind, ()))]
SIZES = {"revolute": (1, 1), "prismatic": (1, 1), "helical": (1, 1), "cylindrical": (2, 2), "planar": (3, 3),
         "spherical": (4, 3), "free": (7, 6), "fixed": (0, 0)}  # fmt: skip


def X_J(joint, q):
    return X_motion(*joint.transform(q))


def test_every_joint_type_has_an_example():
    for kind, cls in JOINTS.items():
        assert kind in EXAMPLES, f"add joints of type {kind!r} to EXAMPLES of this file, so that its tests run on them"
        assert kind in SIZES, f"add (nq, nv) of joint type {kind!r} to SIZES of this file"
        assert cls.kind == kind and (cls.nq, cls.nv) == SIZES[kind]
    assert set(EXAMPLES) == set(SIZES) == set(JOINTS), "EXAMPLES or SIZES has a joint type that JOINTS has not"


@pytest.mark.parametrize("joint", ALL)
def test_subspace_is_constant_and_normalised(joint):
    assert joint.S.shape == (6, joint.nv) and joint.S.dtype == float
    assert joint.S is joint.S
    with pytest.raises(ValueError, match="read-only"):
        joint.S[...] = 0.0
    assert np.linalg.matrix_rank(joint.S) == joint.nv if joint.nv else True
    if joint.kind != "helical":
        np.testing.assert_allclose(joint.S.T @ joint.S, np.eye(joint.nv), atol=1e-15)


@pytest.mark.parametrize("joint", ALL)
def test_neutral_position_is_the_identity(joint):
    q = joint.neutral()
    assert q.shape == (joint.nq,)
    np.testing.assert_array_equal(X_J(joint, q), np.eye(6))


@pytest.mark.parametrize("joint", ALL)
def test_transform_is_a_plucker_transform(joint):
    E, r = joint.transform(joint.random(np.random.default_rng(1)))
    assert E.shape == (3, 3) and r.shape == (3,) and E.dtype == r.dtype == float
    np.testing.assert_allclose(E @ E.T, np.eye(3), atol=1e-15)
    assert np.linalg.det(E) == pytest.approx(1.0)


@pytest.mark.parametrize("joint", ALL)
def test_transform_derivative_along_integrate_is_S_v(joint):
    """dX/dt = −(S v)× X for the body velocity S v."""
    rng = np.random.default_rng(2)
    q, v, h = joint.random(rng), rng.uniform(-1, 1, joint.nv), 1e-5
    rate = (X_J(joint, joint.integrate(q, h * v)) - X_J(joint, joint.integrate(q, -h * v))) / (2 * h)
    np.testing.assert_allclose(rate, -crm(joint.S @ v) @ X_J(joint, q), atol=1e-9)


@pytest.mark.parametrize("scale", [0.0, 1e-9, 1e-4, 0.15, 0.17, 1.0, 3.0])
@pytest.mark.parametrize("joint", ALL)
def test_integrate_is_the_exact_exponential(joint, scale):
    """X(q ⊕ v) = exp(−(S v)×) X(q), also on both sides of where series take over."""
    rng = np.random.default_rng(3)
    for _ in range(5):
        q, v = joint.random(rng), scale * rng.uniform(-1, 1, joint.nv)
        np.testing.assert_allclose(
            X_J(joint, joint.integrate(q, v)), expm(-crm(joint.S @ v)) @ X_J(joint, q), atol=2e-14
        )


@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e-6, 0.17, 1.0, 1.8])
@pytest.mark.parametrize("joint", ALL)
def test_difference_inverts_integrate(joint, scale):
    """|ω| < π holds for v in the cube of half-width 1.8."""
    rng = np.random.default_rng(4)
    q, v = joint.random(rng, (50,)), scale * rng.uniform(-1, 1, (50, joint.nv))
    np.testing.assert_allclose(joint.difference(q, joint.integrate(q, v)), v, atol=2e-14)


@pytest.mark.parametrize("joint", ALL)
def test_integrate_inverts_difference(joint):
    rng = np.random.default_rng(5)
    q0, q1 = joint.random(rng, (50,)), joint.random(rng, (50,))
    found = joint.integrate(q0, joint.difference(q0, q1))
    if joint.quaternion is not None:
        part = joint.quaternion
        found[:, part] *= np.sign(np.sum(found[:, part] * q1[:, part], axis=1, keepdims=True))
    np.testing.assert_allclose(found, q1, atol=1e-12)


@pytest.mark.parametrize("joint", ALL)
def test_states_broadcast_over_leading_axes(joint):
    rng = np.random.default_rng(6)
    q, v = joint.random(rng, (2, 3)), rng.uniform(-1, 1, (2, 3, joint.nv))
    assert q.shape == (2, 3, joint.nq)
    stepped = joint.integrate(q, v)
    back = joint.difference(q, stepped)
    assert stepped.shape == q.shape and back.shape == v.shape
    for k in np.ndindex(2, 3):
        np.testing.assert_array_equal(stepped[k], joint.integrate(q[k], v[k]))
        np.testing.assert_array_equal(back[k], joint.difference(q[k], stepped[k]))


@pytest.mark.parametrize("sharing", ["none", "structural", "algebraic"])
@pytest.mark.parametrize("joint", ALL)
def test_expr_and_float_transforms_agree(joint, sharing):
    q = joint.random(np.random.default_rng(7))
    E, r = joint.transform(Graph(sharing).inputs("q", joint.nq))
    assert E.dtype == r.dtype == object
    assert {type(x) for x in [*E.flat, *r]} <= {float, Expr}
    values = {f"q[{k}]": x for k, x in enumerate(q)}
    for symbolic, numeric in zip((E, r), joint.transform(q), strict=True):
        np.testing.assert_allclose(np.asarray(evaluate(symbolic, values), dtype=float), numeric, atol=1e-15)


@pytest.mark.parametrize("joint", ALL)
def test_batches_inside_object_arrays_agree(joint):
    q = joint.random(np.random.default_rng(8), (4,))
    packed = np.empty(joint.nq, dtype=object)
    packed[:] = list(q.T.copy())
    E, r = joint.transform(packed)
    assert E.shape == (3, 3) and r.shape == (3,) and E.dtype == r.dtype == object
    for n in range(4):
        E_n, r_n = joint.transform(q[n])
        for whole, one in ((E, E_n), (r, r_n)):
            np.testing.assert_allclose([np.broadcast_to(x, 4)[n] for x in whole.flat], one.ravel(), atol=1e-15)


@pytest.mark.parametrize("joint", ALL)
def test_attitudes_are_those_of_transforms(joint):
    """Of numbers, expressions and batches; at steps of a tenth of a radian quaternions do not jump."""
    rng = np.random.default_rng(8)
    q = joint.random(rng, (4,))
    packed = np.empty(joint.nq, dtype=object)
    packed[:] = list(q.T.copy())
    batch, symbols = joint.attitude(packed), joint.attitude(Graph().inputs("q", joint.nq))
    for n in range(4):
        p = joint.attitude(q[n])
        np.testing.assert_allclose(quaternion_to_E(p), joint.transform(q[n])[0], atol=1e-15)
        np.testing.assert_allclose([np.broadcast_to(x, 4)[n] for x in batch], p, atol=1e-15)
        values = {f"q[{k}]": x for k, x in enumerate(q[n])}
        np.testing.assert_allclose(np.asarray(evaluate(symbols, values), dtype=float), p, atol=1e-15)
        v, at = rng.uniform(-1, 1, joint.nv), q[n]
        for _ in range(100):
            before, at = joint.attitude(at), joint.integrate(at, 0.1 * v)
            assert np.linalg.norm(joint.attitude(at) - before) < 0.1


@pytest.mark.parametrize("joint", ALL)
def test_angles_are_the_variables_only_under_sin_and_cos(joint):
    graph = Graph()
    q = graph.inputs("q", joint.nq)
    E, r = joint.transform(q)
    nodes = [i for i in graph.live([*E.flat, *r]).tolist()]
    outputs = {x.id for x in [*E.flat, *r] if type(x) is Expr}
    for k in range(joint.nq):
        users = {graph.kind[i] for i in nodes if q[k].id in (graph.lhs[i], graph.rhs[i])}
        only_trigonometric = bool(users) and users <= {SIN, COS} and q[k].id not in outputs
        assert only_trigonometric == (k in joint.angles)


@pytest.mark.parametrize("joint", ALL)
def test_random_positions_are_valid_and_reproducible(joint):
    q = joint.random(np.random.default_rng(9), (200,))
    np.testing.assert_array_equal(q, joint.random(np.random.default_rng(9), (200,)))
    assert np.all(np.abs(q) <= np.pi)
    if joint.quaternion is not None:
        np.testing.assert_allclose(np.linalg.norm(q[:, joint.quaternion], axis=1), 1.0, atol=1e-15)


@pytest.mark.parametrize("axis", [(1, 0, 0), (0, -1, 0), (0, 0, 1)])
def test_axes_along_coordinates_cost_nothing(axis):
    graph = Graph("none")
    for k, joint in enumerate([Revolute(axis), Prismatic(axis), Cylindrical(axis)]):
        E, r = joint.transform(graph.inputs(f"q{k}", joint.nq))
        assert graph.count([*E.flat, *r]).total == 0
    E, r = Planar(axis).transform(graph.inputs("p", 3))
    assert graph.count([*E.flat, *r]).total == 0


def test_axes_are_normalised_and_snapped():
    assert Revolute((-2.220446049250313e-16, -0.9999999999999998, 0.0)).axis == (0.0, -1.0, 0.0)
    assert Revolute((0, 0, 5)).axis == (0.0, 0.0, 1.0)
    assert Prismatic((1e-200, 0, 0)).axis == (1.0, 0.0, 0.0)
    assert Prismatic((3e200, 4e200, 0)).axis == pytest.approx((0.6, 0.8, 0.0))
    a = Revolute(GENERIC).axis
    assert np.linalg.norm(a) == pytest.approx(1.0, abs=1e-15) and Revolute(a).axis == a
    assert Revolute((0, 0, 2)) == Revolute() and hash(Revolute((0, 0, 2))) == hash(Revolute())


@pytest.mark.parametrize("cls", [Revolute, Prismatic, Helical, Cylindrical, Planar])
@pytest.mark.parametrize(
    ("axis", "message"),
    [
        ((0, 0, 0), "is zero"),
        ((0, np.nan, 1), "a joint axis is nan"),
        ((np.inf, 0, 0), "a joint axis is inf"),
        ((0, 1), r"\(3,\) is needed"),
        ("up", "a joint axis has type"),
    ],
)
def test_bad_axes_raise(cls, axis, message):
    with pytest.raises(ModelError, match=message):
        cls(axis)


def test_bad_pitch_raises():
    with pytest.raises(ModelError, match="pitch"):
        Helical((0, 0, 1), np.nan)


@pytest.mark.parametrize("normal", [(0, 0, 1), (1, 0, 0), (0, 1, 0), (0, 0, -1), GENERIC])
def test_plane_axes_are_right_handed(normal):
    joint = Planar(normal)
    x, y = (np.array(a) for a in joint.plane)
    np.testing.assert_allclose(np.cross(x, y), joint.normal, atol=1e-15)


def test_plane_axes_of_coordinate_normals():
    assert Planar((0, 0, 1)).plane == ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
    assert Planar((1, 0, 0)).plane == ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    assert Planar((0, 1, 0)).plane == ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0))


def test_planar_difference_over_whole_turns():
    joint = Planar()
    same_place = joint.difference([0.5, 0.2, 0.3], [0.5, 0.2, 0.3 + 2 * np.pi])
    np.testing.assert_allclose(same_place, [0.0, 0.0, 2 * np.pi], atol=1e-12)
    with pytest.raises(InvalidInput, match="whole turns"):
        joint.difference([0.0, 0.0, 0.0], [1.0, 0.0, 2 * np.pi])


def test_quaternion_stays_normalised_over_many_steps():
    joint, rng = Spherical(), np.random.default_rng(10)
    q = joint.random(rng)
    for _ in range(2000):
        q = joint.integrate(q, rng.uniform(-1, 1, 3))
    assert np.linalg.norm(q) == pytest.approx(1.0, abs=1e-15)


def test_difference_of_opposite_quaternions_is_zero():
    q = Spherical().random(np.random.default_rng(11))
    np.testing.assert_allclose(Spherical().difference(q, -q), 0.0, atol=1e-15)


def test_half_turn():
    v = np.array([0.0, 0.0, np.pi, 0.3, -0.2, 0.5])
    q = Free().neutral()
    np.testing.assert_allclose(np.abs(Free().difference(q, Free().integrate(q, v))), np.abs(v), atol=1e-14)
