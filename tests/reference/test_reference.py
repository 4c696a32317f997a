"""RNEA and ABA against Pinocchio, MuJoCo, published torques, each other, and the laws of mechanics."""

from __future__ import annotations

import functools
import importlib

import numpy as np
import pytest
from counting import Counted, all_nodes, counted, live
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import MuJoCo, Pinocchio, icub, icub_urdf
from robots import ROBOTS, load_robot

from sysdyn.errors import InvalidInput, SingularState
from sysdyn.model import (
    JOINTS,
    Cylindrical,
    Fixed,
    Free,
    Helical,
    Model,
    Planar,
    Prismatic,
    Revolute,
    Spherical,
    auto_tree,
    chain,
    forward_kinematics,
    from_dh,
    joint_transforms,
    random_tree,
    velocities,
)
from sysdyn.model.inertia import inertia
from sysdyn.model.se3 import cross_motion, rotation, translation
from sysdyn.program.autodiff import evaluate
from sysdyn.program.graph import Graph
from sysdyn.program.opcodes import Flops
from sysdyn.reference import aba, newton_euler, rnea
from sysdyn.reference.aba import articulated_bodies
from sysdyn.reference.flops import count_flops

STATES = 1000  # random states a base, for each algorithm and oracle


def relative_error(x, reference) -> float:
    """∞-norm of the difference over the ∞-norm of the reference."""
    return float(np.max(np.abs(x - reference)) / np.max(np.abs(reference)))


def random_wrenches(model: Model, count: int, seed: int, chosen: float = 0.3) -> np.ndarray:
    """fx (count, nb, 6), nonzero on a random part of the bodies."""
    rng = np.random.default_rng(seed)
    on = rng.random((count, model.nb, 1)) < chosen
    return on * rng.uniform(-1.0, 1.0, (count, model.nb, 6)) * (5.0, 5.0, 5.0, 50.0, 50.0, 50.0)


# ---- Pinocchio and MuJoCo on the iCub ------------------------------------------------------------------------------


@functools.cache
def icub_states(base: str):
    model = icub(base)
    q, qd, x = model.random_state(seed=len(base), batch=STATES, scale=3.0)
    return model, q, qd, 10.0 * x, random_wrenches(model, STATES, seed=1)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("base", ["fixed", "floating"])
@pytest.mark.parametrize("oracle", [Pinocchio, MuJoCo])
def test_rnea_agrees_with_oracle_on_icub(base, oracle):
    model, q, qd, qdd, fx = icub_states(base)
    other = oracle(model, icub_urdf())
    reference = other.rnea if oracle is Pinocchio else other.inverse
    tau = rnea(model, q, qd, qdd, fx)
    errors = [relative_error(tau[k], reference(q[k], qd[k], qdd[k], fx[k])) for k in range(STATES)]
    assert max(errors) < 1e-9
    without = rnea(model, q[0], qd[0], qdd[0])
    assert relative_error(without, reference(q[0], qd[0], qdd[0])) < 1e-9
    assert relative_error(without, tau[0]) > 1e-3  # the wrenches do matter


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("base", ["fixed", "floating"])
@pytest.mark.parametrize("oracle", [Pinocchio, MuJoCo])
def test_aba_agrees_with_oracle_on_icub(base, oracle):
    model, q, qd, tau, fx = icub_states(base)
    other = oracle(model, icub_urdf())
    reference = other.aba if oracle is Pinocchio else other.forward
    qdd = aba(model, q, qd, tau, fx)
    errors = [relative_error(qdd[k], reference(q[k], qd[k], tau[k], fx[k])) for k in range(STATES)]
    assert max(errors) < 1e-9


@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_accelerations_forces_and_velocities_of_bodies_agree_with_pinocchio(base):
    model, q, qd, qdd, fx = icub_states(base)
    other = Pinocchio(model, icub_urdf())
    ours = newton_euler(model, q[:50], qd[:50], qdd[:50], fx[:50])
    for k in range(50):
        a, f, v = other.bodies(q[k], qd[k], qdd[k], fx[k])
        assert relative_error(ours.a[k], a) < 1e-9
        assert relative_error(ours.f[k], f) < 1e-9
        assert relative_error(ours.v[k], v) < 1e-9
    back = articulated_bodies(model, q[:50], qd[:50], ours.tau, fx[:50])
    for found, expected in ((back.qdd, qdd[:50]), (back.a, ours.a), (back.f, ours.f)):
        assert relative_error(found, expected) < 1e-9


@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_wrenches_on_bodies_behind_kept_fixed_joints_agree_with_mujoco(base):
    model = icub(base, fixed_joints="keep")
    assert any(isinstance(joint, Fixed) for joint in model.joints)
    q, qd, qdd = model.random_state(seed=5, batch=5)
    fx = random_wrenches(model, 5, seed=6)
    other = MuJoCo(model, icub_urdf())
    tau = rnea(model, q, qd, qdd, fx)
    back = aba(model, q, qd, tau, fx)
    for k in range(5):
        assert relative_error(tau[k], other.inverse(q[k], qd[k], qdd[k], fx[k])) < 1e-9
        assert relative_error(back[k], other.forward(q[k], qd[k], tau[k], fx[k])) < 1e-9


# ---- robots with published torques -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROBOTS)
def test_torques_of_robots_computed_elsewhere(name):
    model, test = load_robot(name)
    q, qd, qdd, tau = (np.array(test[key]) for key in ("q", "qd", "qdd", "tau"))
    assert relative_error(rnea(model, q, qd, qdd), tau) < 1e-10
    assert relative_error(aba(model, q, qd, tau), qdd) < 1e-8


def test_puma_560_of_another_library():
    """Denavit-Hartenberg's standard convention: SymPyBotics, tests/test_results.py (0a91733), after Corke's toolbox."""
    turn = np.pi / 2
    mass = np.array([0.0, 17.4, 4.8, 0.82, 0.34, 0.09])
    moment = np.array([
        [0, 0, 0], [-6.33012, 0.1044, 3.9585], [-0.09744, -0.06768, 0.336], [0, 0.01558, 0], [0, 0, 0], [0, 0, 0.00288],
    ])  # fmt: skip
    inertia = np.array([  # about the origins of the frames: xx, xy, xz, yy, yz, zz
        [0, 0, 0, 0.35, 0, 0],
        [1.03118515, 0.03798072, 1.4401023, 3.727456406, -0.023751, 2.842524056],
        [0.090474288, -0.001373904, 0.0068208, 0.111498032, 0.0047376, 0.01543232],
        [0.00209602, 0, 0, 0.0013, 0, 0.00209602],
        [0.0003, 0, 0, 0.0004, 0, 0.0003],
        [0.00024216, 0, 0, 0.00024216, 0, 4e-05],
    ])  # fmt: skip
    com = moment / np.where(mass, mass, 1.0)[:, None]
    rows = inertia[:, [0, 1, 2, 1, 3, 4, 2, 4, 5]].reshape(6, 3, 3)
    about_com = rows - [m * (c @ c * np.eye(3) - np.outer(c, c)) for m, c in zip(mass, com, strict=True)]
    model = from_dh(
        [turn, 0, -turn, turn, -turn, 0], [0, 0.4318, 0.0203, 0, 0, 0], [0, 0, 0.15005, 0.4318, 0, 0], mass, com,
        about_com, convention="standard", strict=None,
    )  # fmt: skip
    q = [0.7504516826728697, 0.8395156106908136, 0.16851233582594916, 0.3849629637427072, 0.5252993946810777,
         0.6701207256444748]  # fmt: skip
    qd = [0.24721855939629367, 0.9805915670454258, 0.9895299755642817, 0.7861135739668947, 0.273842245476577,
          0.17182358900767503]  # fmt: skip
    qdd = [0.707405815485141, 0.25295715193420953, 0.9763909835998361, 0.8412822676113918, 0.4867768296473465,
           0.11480270540937143]  # fmt: skip
    tau = [0.986185688341252, 16.1055550633721, -6.54839494827661, 0.00626452648190803, -0.0208972707132494,
           5.59805923645945e-5]  # fmt: skip
    still = [0.0, 16.8135891283022, -7.29033633567802, 0.00449992182015992, -0.026719893613902, 0.0]
    q, qd, qdd = map(np.array, (q, qd, qdd))
    np.testing.assert_allclose(rnea(model, q, qd, qdd), tau, rtol=0, atol=1e-10)
    np.testing.assert_allclose(rnea(model, q, 0 * q, 0 * q), still, rtol=0, atol=1e-10)


# ---- identities on random trees of all joint types -----------------------------------------------------------------

trees = st.builds(random_tree, st.integers(1, 8), st.integers(0, 10**6))
seeds = st.integers(0, 10**6)


def with_armature(model: Model, seed: int) -> Model:
    return model.replace(armature=np.random.default_rng(seed).uniform(0.0, 0.5, model.nv))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(trees, seeds, st.booleans())
def test_forward_dynamics_inverts_inverse_dynamics(model, seed, geared):
    if geared:
        model = with_armature(model, seed)
    q, qd, qdd = model.random_state(seed)
    fx = random_wrenches(model, 1, seed)[0]
    tau = rnea(model, q, qd, qdd, fx)
    again = aba(model, q, qd, tau, fx)
    assert np.max(np.abs(again - qdd), initial=0.0) < 1e-8 * (1.0 + np.max(np.abs(tau), initial=0.0))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(trees, seeds)
def test_symbolic_program_gives_what_floats_give(model, seed):
    graph = Graph()
    symbols = [graph.inputs("q", model.nq), graph.inputs("qd", model.nv), graph.inputs("x", model.nv)]
    fx = np.array([graph.inputs(f"fx{i}", 6) for i in range(model.nb)], dtype=object)
    numbers = (*model.random_state(seed), random_wrenches(model, 1, seed)[0])
    inputs = {
        graph.input_names[x.id]: value
        for array, values in zip((*symbols, fx), numbers, strict=True)
        for x, value in zip(array.flat, values.flat, strict=True)
    }
    for algorithm in (newton_euler, aba):
        program, result = algorithm(model, *symbols, fx), algorithm(model, *numbers)
        pairs = zip(program, result, strict=True) if algorithm is newton_euler else [(program, result)]
        for symbolic, values in pairs:
            assert symbolic.shape == values.shape
            if values.size:
                assert np.max(np.abs(evaluate(symbolic, inputs) - values)) <= 1e-10 * (1.0 + np.max(np.abs(values)))


@pytest.mark.parametrize("kind", JOINTS)
def test_batches_are_the_single_states(kind):
    model = random_tree(4, seed=2, joints=(kind, "revolute"))
    q, qd, x = model.random_state(seed=1, batch=6)
    q, qd, x = q.reshape(3, 2, -1), qd.reshape(3, 2, -1), x[0]  # x is one vector for all states
    fx = random_wrenches(model, 3, seed=2)[:, None]  # one wrench a row
    ours = (*newton_euler(model, q, qd, x, fx), aba(model, q, qd, x, fx))
    for i in range(3):
        for j in range(2):
            single = (*newton_euler(model, q[i, j], qd[i, j], x, fx[i, 0]), aba(model, q[i, j], qd[i, j], x, fx[i, 0]))
            for many, one in zip(ours, single, strict=True):
                np.testing.assert_allclose(many[i, j], one, rtol=1e-11, atol=1e-11)


def test_batches_longer_than_a_piece_and_empty_batches():
    model = chain(2, seed=0)
    q, qd, qdd = model.random_state(seed=0, batch=2500)
    tau = rnea(model, q, qd, qdd)
    for k in (0, 1023, 1024, 2047, 2048, 2499):
        np.testing.assert_allclose(tau[k], rnea(model, q[k], qd[k], qdd[k]), rtol=1e-12, atol=1e-12)
    assert rnea(model, q[:0], qd[:0], qdd[:0]).shape == (0, 2)
    assert aba(model, q[:0], qd[:0], qdd[:0]).shape == (0, 2)


def test_armature_is_an_inertia_of_the_joint_itself():
    model = random_tree(5, seed=11, joints=("revolute", "prismatic", "cylindrical"))
    geared = with_armature(model, seed=0)
    q, qd, qdd = model.random_state(seed=0)
    np.testing.assert_allclose(
        rnea(geared, q, qd, qdd), rnea(model, q, qd, qdd) + geared.armature * qdd, rtol=1e-12, atol=1e-12
    )
    np.testing.assert_allclose(aba(geared, q, qd, rnea(geared, q, qd, qdd)), qdd, rtol=1e-9, atol=1e-9)


def energy(model: Model, q, qd) -> float:
    """Kinetic energy ½ Σ v^T I v plus potential energy −Σ m g · (com in the world)."""
    total = 0.0
    v, _ = velocities(model, joint_transforms(model, q), qd)
    for X, v_i, I in zip(forward_kinematics(model, q), v, model.inertias, strict=True):
        E, r, m = rotation(X), translation(X), I[5, 5]
        moment = np.array([I[2, 4], I[0, 5], I[1, 3]])  # m c
        total += 0.5 * v_i @ I @ v_i - model.gravity @ (m * r + E.T @ moment)
    return float(total)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(trees, seeds)
def test_power_of_the_joints_is_the_rate_of_energy(model, seed):
    q, qd, tau = model.random_state(seed)
    tau = 5.0 * tau
    qdd = aba(model, q, qd, tau)
    # Along q ⊕ (t q̇ + t²/2 q̈), q̇ + t q̈ the energy has the true first derivative; t suits its speed.
    t = 1e-4 / (1.0 + np.sqrt(np.max(np.abs(qdd), initial=0.0)))
    ahead = energy(model, model.integrate(q, t * qd + 0.5 * t * t * qdd, 1.0), qd + t * qdd)
    behind = energy(model, model.integrate(q, -t * qd + 0.5 * t * t * qdd, 1.0), qd - t * qdd)
    scale = 1.0 + abs(tau @ qd) + abs(energy(model, q, qd))
    assert abs((ahead - behind) / (2.0 * t) - tau @ qd) < 1e-4 * scale


def test_energy_along_a_simulated_motion_is_the_work_done():
    model = random_tree(4, seed=8, joints=("revolute", "spherical", "planar"))
    q, qd, _ = model.random_state(seed=3)
    tau = np.random.default_rng(0).uniform(-1.0, 1.0, model.nv)
    steps, dt = 200, 1e-3
    start, work = energy(model, q, qd), 0.0
    for _ in range(steps):  # the midpoint rule
        half = qd + 0.5 * dt * aba(model, q, qd, tau)
        middle = model.integrate(q, qd, 0.5 * dt)
        after = qd + dt * aba(model, middle, half, tau)
        work += dt * tau @ half
        q, qd = model.integrate(q, half, dt), after
    assert abs(work) > 1e-2
    assert abs(energy(model, q, qd) - start - work) < 1e-3 * abs(work)


# ---- joints of several degrees of freedom against chains of simple ones
# ------------------------------------------------------


def between(joints) -> Model:
    """A fixed-base chain: a revolute link, then `joints` of which the last moves a link, then a prismatic link.

    What lies between the joints of the middle is massless, so that any two middles of the same motion are one robot.
    """
    n = len(joints)
    ends = random_tree(3, seed=4, joints=("revolute",))
    massless = np.zeros((n - 1, 6, 6))
    X_middle = np.broadcast_to(np.eye(6), (n - 1, 6, 6))
    return Model(
        name="between",
        body_names=("first", *(f"massless{k}" for k in range(n - 1)), "middle", "last"),
        joint_names=tuple(f"joint{k}" for k in range(n + 2)),
        joints=(Revolute((0.6, 0.0, 0.8)), *joints, Prismatic((0.0, 1.0, 0.0))),
        parent=tuple(range(-1, n + 1)),
        X_tree=np.concatenate([ends.X_tree[:2], X_middle, ends.X_tree[2:]]),
        inertias=np.concatenate([ends.inertias[:1], massless, ends.inertias[1:]]),
    )


def euler_quaternion(q) -> np.ndarray:
    """(x, y, z, w) of the attitude after turning by q[0], q[1], q[2] about z, y, x."""
    half = 0.5 * np.asarray(q)
    (sz, sy, sx), (cz, cy, cx) = np.sin(half), np.cos(half)
    return np.array(
        [
            cz * cy * sx - sz * sy * cx,
            cz * sy * cx + sz * cy * sx,
            sz * cy * cx - cz * sy * sx,
            cz * cy * cx + sz * sy * sx,
        ]
    )


X_AXIS, Y_AXIS, Z_AXIS = np.eye(3)
TRANSLATIONS = (Prismatic(X_AXIS), Prismatic(Y_AXIS), Prismatic(Z_AXIS))
EQUIVALENTS = {  # joint, a chain of the same motion, and the joint's position from the chain's
    "cylindrical": (Cylindrical(Z_AXIS), (Revolute(Z_AXIS), Prismatic(Z_AXIS)), lambda q: q),
    "planar": (Planar(Z_AXIS), (Prismatic(X_AXIS), Prismatic(Y_AXIS), Revolute(Z_AXIS)), lambda q: q),
    "spherical": (Spherical(), (Revolute(Z_AXIS), Revolute(Y_AXIS), Revolute(X_AXIS)), euler_quaternion),
    "free": (
        Free(),
        (*TRANSLATIONS, Revolute(Z_AXIS), Revolute(Y_AXIS), Revolute(X_AXIS)),
        lambda q: np.concatenate([q[:3], euler_quaternion(q[3:])]),
    ),
    "free as ball on a table": (Free(), (*TRANSLATIONS, Spherical()), lambda q: q),
}


@pytest.mark.parametrize("name", EQUIVALENTS)
def test_joint_of_several_freedoms_is_the_chain_of_simple_ones(name):
    joint, parts, position = EQUIVALENTS[name]
    one, many = between((joint,)), between(parts)
    q, qd, qdd = many.random_state(seed=7)
    fx = random_wrenches(one, 1, seed=8, chosen=1.0)[0]
    fx_many = np.zeros((many.nb, 6))
    fx_many[[0, -2, -1]] = fx
    reference = newton_euler(many, q, qd, qdd, fx_many)

    # The joint's own velocity and acceleration are what the chain does between its two ends.
    end = many.nq - 1
    q_one = np.concatenate([q[:1], position(q[1:end]), q[end:]])
    X = joint_transforms(one, q_one)[1]
    inverse = joint.S.T  # of orthonormal columns
    rate = inverse @ (reference.v[-2] - X @ reference.v[0])
    turning = cross_motion(reference.v[-2], joint.S @ rate)
    acceleration = inverse @ (reference.a[-2] - X @ reference.a[0] - turning)
    qd_one = np.concatenate([qd[:1], rate, qd[-1:]])
    qdd_one = np.concatenate([qdd[:1], acceleration, qdd[-1:]])
    result = newton_euler(one, q_one, qd_one, qdd_one, fx)
    for ours, theirs in ((result.v, reference.v), (result.a, reference.a), (result.f, reference.f)):
        np.testing.assert_allclose(ours, theirs[[0, -2, -1]], rtol=1e-9, atol=1e-9)

    # Equal power for every motion: τ_chain = J^T τ_joint, where J q̇_chain = q̇_joint.
    columns = []
    for k in range(1, many.nv - 1):
        v, _ = velocities(many, joint_transforms(many, q), np.eye(many.nv)[k])
        columns.append(inverse @ v[-2])
    J = np.array(columns).T
    np.testing.assert_allclose(reference.tau[1:-1], J.T @ result.tau[1:-1], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(reference.tau[[0, -1]], result.tau[[0, -1]], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(aba(one, q_one, qd_one, result.tau, fx), qdd_one, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(aba(many, q, qd, reference.tau, fx_many), qdd, rtol=1e-8, atol=1e-8)


def test_helical_joint_is_a_cylindrical_one_whose_slide_follows_its_turn():
    pitch = 0.3
    one, two = between((Helical(Z_AXIS, pitch),)), between((Cylindrical(Z_AXIS),))
    q, qd, qdd = one.random_state(seed=2)
    follow = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, pitch, 0.0], [0.0, 0.0, 1.0]])
    tau = rnea(one, q, qd, qdd)
    np.testing.assert_allclose(tau, follow.T @ rnea(two, follow @ q, follow @ qd, follow @ qdd), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_kept_fixed_joints_change_nothing(base):
    lumped, kept = icub(base), icub(base, fixed_joints="keep")
    assert kept.nb > lumped.nb and set(kept.dof_names) == set(lumped.dof_names)
    order = [lumped.dof_names.index(name) for name in kept.dof_names]
    positions = np.concatenate([np.arange(*lumped.q_slice(i).indices(lumped.nq)) for i in _same_joints(kept, lumped)])
    q, qd, qdd = lumped.random_state(seed=9)
    tau = rnea(lumped, q, qd, qdd)
    tau_kept = rnea(kept, q[positions], qd[order], qdd[order])
    assert relative_error(tau_kept, tau[order]) < 1e-11
    assert relative_error(aba(kept, q[positions], qd[order], tau_kept), qdd[order]) < 1e-8


def _same_joints(kept: Model, lumped: Model) -> list[int]:
    return [lumped.joint_index(n) for n, joint in zip(kept.joint_names, kept.joints, strict=True) if joint.nv]


# ---- bad input -----------------------------------------------------------------------------------------------------


def _bad_inputs():
    """What is wrong, the arguments that are, and what the message has to name."""
    nan, word = np.array([0.0, np.nan, 0.0]), np.array(["a", "b", "c"])
    yield "short q", {"q": np.zeros(2)}, ("q has shape (2,)", "(…, 3)")
    yield "long qd", {"qd": np.zeros((5, 4))}, ("qd has shape (5, 4)", "(…, 3)")
    yield "scalar third", {"x": 1.0}, ("has shape ()", "(…, 3)")
    yield "short fx", {"fx": np.zeros(17)}, ("fx has shape (17,)", "(…, 3, 6)")
    yield "nan", {"qd": nan}, ("qd is nan at entry 1", "finite")
    yield "inf in a batch", {"x": np.array([[0.0] * 3, [0.0, 0.0, np.inf]])}, ("is inf at state 1, entry 2", "finite")
    yield "complex", {"q": np.zeros(3, dtype=complex)}, ("q has type complex128",)
    yield "boolean", {"qd": np.zeros(3, dtype=bool)}, ("qd has type bool",)
    yield "text", {"q": word}, ("q has type <U1",)
    yield "objects", {"qd": np.array([1.0, "two"], dtype=object)}, ("qd holds something that is not a real number",)
    yield "ragged", {"q": [[0.0, 1.0, 2.0], [0.0]]}, ("q is not a regular array of numbers",)
    yield "axes", {"q": np.zeros((2, 3)), "qd": np.zeros((5, 3))}, ("q (2,)", "qd (5,)")
    yield "symbolic batch", {"q": np.array([Graph().inputs("q", 3)] * 2)}, ("q has shape (2, 3)", "no batch axes")


BAD_INPUTS = {name: (arguments, named) for name, arguments, named in _bad_inputs()}


@pytest.mark.parametrize("algorithm", [rnea, newton_euler, aba])
@pytest.mark.parametrize("name", BAD_INPUTS)
def test_bad_input_is_named(algorithm, name):
    arguments, named = BAD_INPUTS[name]
    values = {"q": np.zeros(3), "qd": np.zeros(3), "x": np.zeros(3), "fx": None, **arguments}
    with pytest.raises(InvalidInput) as error:
        algorithm(chain(3), *values.values())
    for part in named:
        assert part in str(error.value)
    if "x" in arguments:
        assert str(error.value).startswith("tau" if algorithm is aba else "qdd")


def test_quaternions_are_checked_and_normalised():
    model = random_tree(2, seed=0, joints=("spherical",))
    q, qd, qdd = model.random_state(seed=0)
    nearly = q * (1.0 + 1e-7)
    np.testing.assert_allclose(rnea(model, nearly, qd, qdd), rnea(model, q, qd, qdd), rtol=1e-12, atol=1e-12)
    with pytest.raises(InvalidInput, match="joint0"):
        aba(model, 1.01 * q, qd, qdd)


def massless(model: Model, i: int) -> Model:
    inertias = model.inertias.copy()
    inertias[i] = 0.0
    return model.replace(inertias=inertias)


def test_massless_leaf_is_a_singular_state_that_names_its_joint():
    model = massless(chain(3), 2)
    q, qd, tau = model.random_state(seed=0, batch=3)
    with pytest.raises(SingularState, match="'joint2' moves no inertia") as error:
        aba(model, q[0], qd[0], tau[0])
    assert (error.value.unknown, error.value.equation, error.value.states) == ("qdd[joint2]", "tau[joint2]", ())
    with pytest.raises(SingularState) as error:
        aba(model, q, qd, tau)
    assert error.value.unknown == "qdd[joint2]"
    graph = Graph()
    with pytest.raises(SingularState, match="joint2"):
        aba(model, graph.inputs("q", 3), graph.inputs("qd", 3), graph.inputs("tau", 3))
    assert np.all(np.isfinite(rnea(model, q, qd, tau)))
    armed = model.replace(armature=np.array([0.0, 0.0, 0.1]))
    np.testing.assert_allclose(rnea(armed, q, qd, aba(armed, q, qd, tau)), tau, rtol=1e-9, atol=1e-9)


def test_point_mass_on_its_axis_is_singular_in_one_freedom_of_three():
    model = random_tree(1, seed=0, joints=("spherical",))
    point = inertia(2.0, np.array([0.3, 0.0, 0.0]), np.zeros((3, 3)))
    model = model.replace(inertias=point[None], X_tree=np.eye(6)[None])
    with pytest.raises(SingularState, match=r"joint0\[0\]"):
        aba(model, *model.random_state(seed=0))


def test_states_where_two_axes_meet_are_found_in_a_batch():
    """Gimbals of massless rings: at the middle angle 0 the outer axis is the inner one and has nothing of its own.

    The axes are such that S^T I^A S is then rounding, not 0.
    """
    axis = np.array([0.48, 0.6, 0.64])
    rotor = random_tree(1, seed=3).inertias[0]
    model = Model(
        name="gimbals",
        body_names=("ring", "disc", "rotor"),
        joint_names=("outer", "middle", "inner"),
        joints=(Revolute(axis), Revolute(np.cross(axis, X_AXIS)), Revolute(axis)),
        parent=(-1, 0, 1),
        X_tree=np.broadcast_to(np.eye(6), (3, 6, 6)),
        inertias=np.stack([np.zeros((6, 6)), np.zeros((6, 6)), rotor]),
    )
    locked = [3, 1500, 2499]
    q = np.random.default_rng(0).uniform(0.5, 1.0, (2500, 3))
    q[locked, 1] = 0.0
    qd = tau = np.zeros(3)
    for k in locked:
        with pytest.raises(SingularState, match="'outer' moves no inertia: S"):
            aba(model, q[k], qd, tau)
    with pytest.raises(SingularState, match="'outer' moves no inertia in 1 of the states") as error:
        aba(model, q, qd, tau)
    assert error.value.states == (3,)
    with pytest.raises(SingularState) as error:
        aba(model, q[4:], qd, tau)
    assert error.value.states == (1496,)
    assert np.all(np.isfinite(aba(model, np.delete(q, locked, axis=0), qd, tau)))


# ---- counts --------------------------------------------------------------------------------------------------------


COUNTED_MODELS = {
    "paper's chain": lambda: auto_tree(6, 1, 1.5, 0.9),
    "branched": lambda: auto_tree(5, 2, 0.7, 0.8),
    "planar chain": lambda: auto_tree(4),
    **{f"{kind} joints": lambda kind=kind: random_tree(3, seed=5, joints=(kind, "revolute")) for kind in JOINTS},
    "all joints": lambda: random_tree(8, seed=1),
    "armature": lambda: with_armature(auto_tree(3, 1, 1.5, 0.9), seed=0),
}


@pytest.mark.parametrize("name", COUNTED_MODELS)
@pytest.mark.parametrize("algorithm", [rnea, newton_euler, aba])
def test_counts_are_those_of_an_instrumented_run(name, algorithm):
    """Two comparisons of one float run, at generic values, with the symbolic run without sharing.

    All operations that were executed, with all nodes of the graph; and those of them that the result depends on (at the
    base and at the leaves some are not: only one component of f_0 is used), with what `count_flops` says.
    """
    model = COUNTED_MODELS[name]()
    # below what makes floats of its arguments
    recursion = importlib.import_module(f"sysdyn.reference.{'aba' if algorithm is aba else 'rnea'}").recursion
    outputs = {rnea: slice(0, 1), newton_euler: slice(0, 4), aba: slice(0, 1)}[algorithm]
    numbers = (*model.random_state(seed=12), random_wrenches(model, 1, seed=13, chosen=1.0)[0])
    Counted.log.clear()
    inputs = [np.vectorize(Counted, otypes=[object])(x) if x.size else x.astype(object) for x in numbers]
    results = recursion(model, *inputs)[outputs]
    executed = counted(Counted.log)

    values = algorithm(model, *numbers)
    for result, value in zip(results, values if algorithm is newton_euler else [values], strict=True):
        plain = np.array([x.value if isinstance(x, Counted) else x for x in result.flat]).reshape(value.shape)
        np.testing.assert_allclose(plain, value, rtol=1e-10, atol=1e-10)

    graph = Graph("none")
    symbols = [graph.inputs("q", model.nq), graph.inputs("qd", model.nv), graph.inputs("x", model.nv)]
    fx = np.array([graph.inputs(f"fx{i}", 6) for i in range(model.nb)], dtype=object)
    recursion(model, *symbols, fx)
    assert executed == all_nodes(graph)

    needed = counted(live(x for result in results for x in result.flat))
    assert needed == count_flops(algorithm, model, sharing="none", fx=True)


def test_counts_of_the_papers_chain_of_six():
    """Pinned, so that a change of the cost is seen."""
    model = auto_tree(6, 1, 1.5, 0.9)
    assert count_flops(rnea, model) == Flops(mul=537, add=388, trig=6)
    assert count_flops(aba, model) == Flops(mul=1219, add=947, div=28, trig=6)


def test_sharing_only_removes_operations():
    for algorithm in (rnea, aba):
        none, structural, algebraic = (
            count_flops(algorithm, auto_tree(6, 1, 1.5, 0.9), sharing=sharing)
            for sharing in ("none", "structural", "algebraic")
        )
        assert algebraic.total < structural.total < none.total
        assert none.trig == structural.trig == algebraic.trig == 6


@pytest.mark.parametrize("algorithm", [rnea, aba])
def test_count_grows_by_the_same_for_each_body_of_a_chain(algorithm):
    totals = [count_flops(algorithm, auto_tree(n, 1, 1.5, 0.9)).total for n in (6, 7, 8, 20)]
    body = totals[1] - totals[0]
    assert totals[2] == totals[1] + body and totals[3] == totals[0] + 14 * body


def test_external_wrenches_cost_one_subtraction_a_component():
    model = chain(4)
    without, wrenches = count_flops(newton_euler, model), count_flops(newton_euler, model, fx=True)
    assert (wrenches.add - without.add, wrenches.mul) == (6 * model.nb, without.mul)


def test_count_flops_takes_any_function_of_the_model_and_the_state():
    def twist(model, q, qd, frame, scale=1.0):
        v, _ = velocities(model, joint_transforms(model, q), qd)
        return {"v": [scale * x for x in v[frame]], "zero": 0.0}

    model = auto_tree(2)  # v_1 = (0, 0, q̇_0 + q̇_1, s_1 q̇_0, c_1 q̇_0, 0)
    assert count_flops(twist, model, frame=1) == Flops(mul=2, add=1, trig=1)
    assert count_flops(twist, model, frame=1, scale=3.0) == Flops(mul=5, add=1, trig=1)
    with pytest.raises(InvalidInput, match="twist needs the argument 'frame'"):
        count_flops(twist, model)
    with pytest.raises(InvalidInput, match="twist takes no external wrenches"):
        count_flops(twist, model, fx=True, frame=1)
