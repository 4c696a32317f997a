"""Each joint type: S, transform, attitude and manifold agree, for floats, batches and expressions."""

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


def packed(q):
    """Batches q (n, nq) as an object array (nq,)."""
    result = np.empty(q.shape[1], dtype=object)
    result[:] = list(q.T.copy())
    return result


def test_every_joint_type_has_an_example():
    for kind, cls in JOINTS.items():
        assert kind in EXAMPLES, f"add joints of type {kind!r} to EXAMPLES of this file, so that its tests run on them"
        assert kind in SIZES, f"add (nq, nv) of joint type {kind!r} to SIZES of this file"
        assert cls.kind == kind and (cls.nq, cls.nv) == SIZES[kind]
    assert set(EXAMPLES) == set(SIZES) == set(JOINTS), "EXAMPLES or SIZES has a joint type that JOINTS has not"


@pytest.mark.parametrize("joint", ALL)
def test_subspace_and_transform(joint):
    """S is a read-only constant of full rank; X_J is a Plücker transform, at the neutral position the identity."""
    assert joint.S.shape == (6, joint.nv) and joint.S.dtype == float and joint.S is joint.S
    with pytest.raises(ValueError, match="read-only"):
        joint.S[...] = 0.0
    assert joint.nv == 0 or np.linalg.matrix_rank(joint.S) == joint.nv
    E, r = joint.transform(joint.random(np.random.default_rng(1)))
    assert E.shape == (3, 3) and r.shape == (3,) and E.dtype == r.dtype == float
    np.testing.assert_allclose(E @ E.T, np.eye(3), atol=1e-15)
    assert np.linalg.det(E) == pytest.approx(1.0)
    assert joint.neutral().shape == (joint.nq,)
    np.testing.assert_array_equal(X_J(joint, joint.neutral()), np.eye(6))


@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e-9, 1e-6, 1e-4, 0.15, 0.17, 1.0, 1.8, 3.0])
@pytest.mark.parametrize("joint", ALL)
def test_integrate_is_the_exact_exponential_and_difference_its_inverse(joint, scale):
    """X(q ⊕ v) = exp(−(S v)×) X(q), also where series take over; |ω| < π in the cube of half-width 1.8."""
    rng = np.random.default_rng(3)
    q, v = joint.random(rng, (5,)), scale * rng.uniform(-1, 1, (5, joint.nv))
    stepped = joint.integrate(q, v)
    for k in range(5):
        np.testing.assert_allclose(X_J(joint, stepped[k]), expm(-crm(joint.S @ v[k])) @ X_J(joint, q[k]), atol=2e-14)
    if scale < 2.0:
        np.testing.assert_allclose(joint.difference(q, stepped), v, atol=2e-14)


@pytest.mark.parametrize("joint", ALL)
def test_integrate_inverts_difference(joint):
    rng = np.random.default_rng(5)
    q0, q1 = joint.random(rng, (50,)), joint.random(rng, (50,))
    stepped = joint.integrate(q0, joint.difference(q0, q1))
    if joint.quaternion is not None:
        part = joint.quaternion
        stepped[:, part] *= np.sign(np.sum(stepped[:, part] * q1[:, part], axis=1, keepdims=True))
    np.testing.assert_allclose(stepped, q1, atol=1e-12)


@pytest.mark.parametrize("joint", ALL)
def test_random_positions_and_states_with_leading_axes(joint):
    rng = np.random.default_rng(6)
    q, v = joint.random(rng, (2, 3)), rng.uniform(-1, 1, (2, 3, joint.nv))
    stepped = joint.integrate(q, v)
    back = joint.difference(q, stepped)
    assert q.shape == stepped.shape == (2, 3, joint.nq) and back.shape == v.shape
    for k in np.ndindex(2, 3):
        np.testing.assert_array_equal(stepped[k], joint.integrate(q[k], v[k]))
        np.testing.assert_array_equal(back[k], joint.difference(q[k], stepped[k]))
    q = joint.random(np.random.default_rng(9), (200,))
    np.testing.assert_array_equal(q, joint.random(np.random.default_rng(9), (200,)))
    assert np.all(np.abs(q) <= np.pi)
    if joint.quaternion is not None:
        np.testing.assert_allclose(np.linalg.norm(q[:, joint.quaternion], axis=1), 1.0, atol=1e-15)


@pytest.mark.parametrize("sharing", ["none", "structural", "algebraic"])
@pytest.mark.parametrize("joint", ALL)
def test_expressions_batches_and_floats_agree(joint, sharing):
    """Transforms and attitudes; at steps of a tenth of a radian quaternions do not jump."""
    rng = np.random.default_rng(8)
    q = joint.random(rng, (4,))
    symbols, batch = Graph(sharing).inputs("q", joint.nq), packed(q)
    symbolic = [*joint.transform(symbols), joint.attitude(symbols)]
    batched = [*joint.transform(batch), joint.attitude(batch)]
    for x in symbolic[:2]:
        assert x.dtype == object and {type(entry) for entry in x.flat} <= {float, Expr}
    for n in range(4):
        numeric = [*joint.transform(q[n]), joint.attitude(q[n])]
        np.testing.assert_allclose(quaternion_to_E(numeric[2]), numeric[0], atol=1e-15)
        values = {f"q[{k}]": x for k, x in enumerate(q[n])}
        for x, whole, expected in zip(symbolic, batched, numeric, strict=True):
            np.testing.assert_allclose(np.asarray(evaluate(x, values), dtype=float), expected, atol=1e-15)
            found = [np.broadcast_to(entry, 4)[n] for entry in whole.flat]
            np.testing.assert_allclose(found, expected.ravel(), atol=1e-15)
    v, at = rng.uniform(-1, 1, joint.nv), q[0]
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


@pytest.mark.parametrize("axis", [(1, 0, 0), (0, -1, 0), (0, 0, 1)])
def test_axes_along_coordinates_cost_nothing(axis):
    graph = Graph("none")
    for k, joint in enumerate([Revolute(axis), Prismatic(axis), Cylindrical(axis), Planar(axis)]):
        E, r = joint.transform(graph.inputs(f"q{k}", joint.nq))
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


def test_plane_axes_are_right_handed():
    for normal in [(0, 0, 1), (1, 0, 0), (0, 1, 0), (0, 0, -1), GENERIC]:
        joint = Planar(normal)
        np.testing.assert_allclose(np.cross(*joint.plane), joint.normal, atol=1e-15)
    assert Planar((0, 0, 1)).plane == ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))
    assert Planar((1, 0, 0)).plane == ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    assert Planar((0, 1, 0)).plane == ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0))


def test_planar_difference_over_full_turns():
    joint = Planar()
    same_place = joint.difference([0.5, 0.2, 0.3], [0.5, 0.2, 0.3 + 2 * np.pi])
    np.testing.assert_allclose(same_place, [0.0, 0.0, 2 * np.pi], atol=1e-12)
    with pytest.raises(InvalidInput, match="whole turns"):
        joint.difference([0.0, 0.0, 0.0], [1.0, 0.0, 2 * np.pi])


def test_quaternions_of_many_steps_opposite_sign_and_half_turns():
    joint, rng = Spherical(), np.random.default_rng(10)
    q = joint.random(rng)
    for _ in range(2000):
        q = joint.integrate(q, rng.uniform(-1, 1, 3))
    assert np.linalg.norm(q) == pytest.approx(1.0, abs=1e-15)
    np.testing.assert_allclose(joint.difference(q, -q), 0.0, atol=1e-15)
    v, q = np.array([0.0, 0.0, np.pi, 0.3, -0.2, 0.5]), Free().neutral()
    np.testing.assert_allclose(np.abs(Free().difference(q, Free().integrate(q, v))), np.abs(v), atol=1e-14)
