"""The joint-space inertia matrix and forward dynamics with it, against differences, Pinocchio, MuJoCo and energy."""

from __future__ import annotations

import functools
import importlib

import mujoco
import numpy as np
import pinocchio as pin
import pytest
from counting import Counted, all_nodes, counted, live
from hypothesis import given
from hypothesis import strategies as st
from kernels import run_llvm
from oracles import MuJoCo, Pinocchio, icub, icub_urdf
from robots import ROBOTS, load_robot

from sysdyn.errors import InvalidInput, SingularState
from sysdyn.model import JOINTS, Model, auto_tree, chain, joint_transforms, random_tree, velocities
from sysdyn.model.inertia import inertia
from sysdyn.program.autodiff import evaluate
from sysdyn.program.graph import Expr, Graph
from sysdyn.program.opcodes import Flops
from sysdyn.program.program import Program
from sysdyn.reference import aba, rnea
from sysdyn.reference.crba import crba, forward_dynamics_crba
from sysdyn.reference.flops import count_flops
from sysdyn.reference.ltdl import expanded_parent, ltdl, sparsity

trees = st.builds(random_tree, st.integers(1, 8), st.integers(0, 10**6))
seeds = st.integers(0, 10**6)


def relative_error(x, reference) -> float:
    """∞-norm of the difference over the ∞-norm of the reference."""
    return float(np.max(np.abs(x - reference), initial=0.0) / np.max(np.abs(reference), initial=1e-300))


def with_armature(model: Model, seed: int) -> Model:
    return model.replace(armature=np.random.default_rng(seed).uniform(0.0, 0.5, model.nv))


def wrenches(model: Model, seed: int, batch: tuple[int, ...] = ()) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-5.0, 5.0, (*batch, model.nb, 6))


def by_differences(model: Model, q) -> np.ndarray:
    """H, column k of which is ID(q, 0, δ_k) − ID(q, 0, 0). RBDA Table 6.1, with `rnea`."""
    zero = np.zeros(model.nv)
    return rnea(model, q, zero, np.eye(model.nv)).T - rnea(model, q, zero, zero)[:, None]


# ---- the inertia matrix --------------------------------------------------------------------------------------------


@given(trees, seeds, st.booleans())
def test_inertia_matrix_is_that_of_the_method_of_differences(model, seed, geared):
    if geared:
        model = with_armature(model, seed)
    q, _, _ = model.random_state(seed)
    H = crba(model, q)
    assert H.shape == (model.nv, model.nv) and np.array_equal(H, H.T)
    assert relative_error(H, by_differences(model, q)) < 1e-12


@pytest.mark.parametrize("kind", JOINTS)
@pytest.mark.parametrize("seed", range(4))
def test_every_joint_type_between_revolute_and_prismatic_ones(kind, seed):
    """A chain, so that a force and an inertia cross each joint; its axes, and those that X_tree turns about, lie
    along the coordinates or do not.
    """
    model = random_tree(5, seed, joints=(kind, "revolute", "prismatic")).replace(parent=(-1, 0, 1, 2, 3))
    q, _, _ = model.random_state(seed)
    for X_tree in (model.X_tree, auto_tree(5, 1, 1.5, 0.9).X_tree, chain(5).X_tree, auto_tree(5).X_tree):
        placed = model.replace(X_tree=X_tree)
        assert relative_error(crba(placed, q), by_differences(placed, q)) < 1e-12


@given(trees, seeds)
def test_quadratic_form_of_velocities_is_twice_the_kinetic_energy(model, seed):
    model = with_armature(model, seed)
    q, qd, _ = model.random_state(seed)
    v, _ = velocities(model, joint_transforms(model, q), qd)
    energy = sum(v_i @ I @ v_i for v_i, I in zip(v, model.inertias, strict=True)) + model.armature @ qd**2
    assert qd @ crba(model, q) @ qd == pytest.approx(energy, rel=1e-10, abs=1e-12)


@given(trees, seeds)
def test_entries_vanish_where_the_tree_has_none(model, seed):
    H = crba(model, model.random_state(seed)[0])
    related = np.eye(model.nv, dtype=bool)
    parent = expanded_parent(model)
    for k in range(model.nv):
        if parent[k] >= 0:
            related[k] |= related[parent[k]]
    related |= related.T
    assert not np.any(H[~related])
    assert np.count_nonzero(related) == sparsity(model).nonzeros


def test_no_entry_vanishes_that_the_tree_has():
    for seed in range(5):
        model = random_tree(8, seed, joints=("revolute", "helical", "spherical"))
        graph = Graph()
        H = crba(model, graph.inputs("q", model.nq))
        assert sum(type(x) is Expr or x != 0.0 for x in H.flat) == sparsity(model).nonzeros


@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_inertia_matrix_of_icub_agrees_with_pinocchio(base):
    model = icub(base)
    other = Pinocchio(model, icub_urdf())
    theirs_to_ours = other.ours(np.arange(model.nv, dtype=float)).astype(int)
    q, _, _ = model.random_state(seed=1, batch=100)
    H = crba(model, q)
    for k in range(len(q)):
        pin.crba(other.pin, other.data, other.position(q[k]))
        upper = np.triu(other.data.M)
        M = upper + np.triu(upper, 1).T
        assert relative_error(H[k], M[np.ix_(theirs_to_ours, theirs_to_ours)]) < 1e-12


@pytest.mark.parametrize("base", ["fixed", "floating"])
@pytest.mark.parametrize("fixed_joints", ["lump", "keep"])
def test_inertia_matrix_of_icub_agrees_with_mujoco(base, fixed_joints):
    model = with_armature(icub(base, fixed_joints), seed=2)
    other = MuJoCo(model, icub_urdf())
    other.mj.dof_armature[:] = other.vector_to(model.armature) if base == "fixed" else 0.0
    if base == "floating":  # their velocity of a free joint is another one, and so is an armature of it
        model = model.replace(armature=np.zeros(model.nv))
    q, qd, _ = model.random_state(seed=3, batch=20)
    H = crba(model, q)
    M = np.zeros((model.nv, model.nv))
    for k in range(len(q)):
        other.put(q[k], qd[k])
        mujoco.mj_fwdPosition(other.mj, other.data)
        mujoco.mj_fullM(other.mj, other.data, M)
        theirs = np.array([other.force_from(M @ other.vector_to(e)) for e in np.eye(model.nv)]).T
        assert relative_error(H[k], theirs) < 1e-10


@pytest.mark.parametrize("name", ROBOTS)
def test_inertia_matrix_of_robots_computed_elsewhere(name):
    """Their published torques are H q̈ + C."""
    model, test = load_robot(name)
    q, qd, qdd, tau = (np.array(test[key]) for key in ("q", "qd", "qdd", "tau"))
    assert relative_error(crba(model, q) @ qdd + rnea(model, q, qd, np.zeros(model.nv)), tau) < 1e-10
    assert relative_error(forward_dynamics_crba(model, q, qd, tau), qdd) < 1e-8


def test_armature_is_added_to_the_diagonal():
    model = random_tree(6, seed=4)
    geared = with_armature(model, seed=4)
    q, _, _ = model.random_state(seed=4)
    assert relative_error(crba(geared, q), crba(model, q) + np.diag(geared.armature)) < 1e-14


# ---- forward dynamics ----------------------------------------------------------------------------------------------


@given(trees, seeds, st.booleans())
def test_forward_dynamics_is_that_of_articulated_bodies(model, seed, geared):
    if geared:
        model = with_armature(model, seed)
    q, qd, tau = model.random_state(seed, scale=3.0)
    fx = wrenches(model, seed)
    expected = aba(model, q, qd, tau, fx)
    assert np.max(np.abs(forward_dynamics_crba(model, q, qd, tau, fx) - expected), initial=0.0) <= 1e-9 * (
        1.0 + np.max(np.abs(expected), initial=0.0)
    )


@functools.cache
def icub_states(base: str):
    model = icub(base)
    q, qd, tau = model.random_state(seed=len(base), batch=1000, scale=3.0)
    return model, q, qd, 10.0 * tau, wrenches(model, 1, (1000,))


@pytest.mark.slow
@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_forward_dynamics_of_icub_agrees_with_aba_and_pinocchio(base):
    model, q, qd, tau, fx = icub_states(base)
    other = Pinocchio(model, icub_urdf())
    qdd = forward_dynamics_crba(model, q, qd, tau, fx)
    articulated = aba(model, q, qd, tau, fx)
    assert max(relative_error(*pair) for pair in zip(qdd, articulated, strict=True)) < 1e-9
    assert max(relative_error(qdd[k], other.aba(q[k], qd[k], tau[k], fx[k])) for k in range(len(q))) < 1e-9


@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_factors_of_icub_have_no_fill_in_and_the_apparent_inertias_of_its_freedoms(base):
    """D_k: the inertia moved by k while all before it stand still and all after it are free, a Schur complement."""
    model, q, _, _, _ = icub_states(base)
    parent, H = expanded_parent(model), crba(model, q[0])
    L, D, _ = ltdl(H, parent)
    assert np.count_nonzero(L) == model.nv + sparsity(model).D1 < model.nv * (model.nv + 1) // 2
    assert relative_error(L.T @ (D[:, None] * L), H) < 1e-13
    after: list[list[int]] = [[] for _ in parent]
    for k in reversed(range(model.nv)):
        column = H[after[k], k]
        assert D[k] == pytest.approx(
            H[k, k] - column @ np.linalg.solve(H[np.ix_(after[k], after[k])], column), rel=1e-9
        )
        if parent[k] >= 0:
            after[parent[k]] += [k, *after[k]]


@pytest.mark.parametrize("kind", JOINTS)
def test_batches_are_the_single_states(kind):
    model = random_tree(4, seed=2, joints=(kind, "revolute"))
    q, qd, tau = model.random_state(seed=1, batch=6)
    q, qd, tau = q.reshape(3, 2, -1), qd.reshape(3, 2, -1), tau[0]
    fx = wrenches(model, 2, (3, 1))
    H, qdd = crba(model, q), forward_dynamics_crba(model, q, qd, tau, fx)
    for i, j in np.ndindex(3, 2):
        np.testing.assert_allclose(H[i, j], crba(model, q[i, j]), rtol=1e-12, atol=1e-12)
        one = forward_dynamics_crba(model, q[i, j], qd[i, j], tau, fx[i, 0])
        np.testing.assert_allclose(qdd[i, j], one, rtol=1e-10, atol=1e-10)


def test_batches_longer_than_a_piece_and_empty_batches():
    model = chain(2, seed=0)
    q, qd, tau = model.random_state(seed=0, batch=1030)
    H, qdd = crba(model, q), forward_dynamics_crba(model, q, qd, tau)
    for k in (0, 1023, 1024, 1029):
        np.testing.assert_allclose(H[k], crba(model, q[k]), rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(qdd[k], forward_dynamics_crba(model, q[k], qd[k], tau[k]), rtol=1e-12, atol=1e-12)
    assert crba(model, q[:0]).shape == (0, 2, 2)
    assert forward_dynamics_crba(model, q[:0], qd[:0], tau[:0]).shape == (0, 2)


def test_one_state_under_many_forces():
    model = chain(3)
    q, qd, _ = model.random_state(seed=0)
    tau = np.random.default_rng(0).uniform(-1.0, 1.0, (4, 5, 3))
    assert relative_error(forward_dynamics_crba(model, q, qd, tau), aba(model, q, qd, tau)) < 1e-11


# ---- programs and counts -------------------------------------------------------------------------------------------


@given(trees, seeds)
def test_symbolic_programs_give_what_floats_give(model, seed):
    graph = Graph()
    symbols = [graph.inputs(name, n) for name, n in (("q", model.nq), ("qd", model.nv), ("tau", model.nv))]
    numbers = model.random_state(seed)
    inputs = {
        graph.input_names[x.id]: float(value)
        for array, values in zip(symbols, numbers, strict=True)
        for x, value in zip(array, values, strict=True)
    }
    for symbolic, expected in (
        (crba(model, symbols[0]), crba(model, numbers[0])),
        (forward_dynamics_crba(model, *symbols), forward_dynamics_crba(model, *numbers)),
    ):
        assert symbolic.shape == expected.shape
        if expected.size:
            assert np.max(np.abs(evaluate(symbolic, inputs) - expected)) <= 1e-9 * (1.0 + np.max(np.abs(expected)))


@pytest.mark.slow
@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_compiled_programs_of_icub(base):
    model, q, qd, tau, _ = icub_states(base)
    graph = Graph()
    symbols = [graph.inputs(name, n) for name, n in (("q", model.nq), ("qd", model.nv), ("tau", model.nv))]
    H, qdd = crba(model, symbols[0]), forward_dynamics_crba(model, *symbols)
    groups = list(zip(("q", "qd", "tau"), symbols, strict=True))
    program = Program.from_graph(graph, groups, [("H", H.ravel()), ("qdd", qdd)])
    result = run_llvm(4, 1)(program, {"q": q[:20], "qd": qd[:20], "tau": tau[:20]}, 20)
    assert relative_error(result["H"].reshape(20, model.nv, model.nv), crba(model, q[:20])) < 1e-12
    assert relative_error(result["qdd"], aba(model, q[:20], qd[:20], tau[:20])) < 1e-9


COUNTED_MODELS = {
    "paper's chain": lambda: auto_tree(6, 1, 1.5, 0.9),
    "branched": lambda: auto_tree(5, 2, 0.7, 0.8),
    "planar chain": lambda: auto_tree(4),
    **{f"{kind} joints": lambda kind=kind: random_tree(3, seed=5, joints=(kind, "revolute")) for kind in JOINTS},
    "all joints": lambda: random_tree(8, seed=1),
    "armature": lambda: with_armature(auto_tree(3, 1, 1.5, 0.9), seed=0),
}


@pytest.mark.parametrize("name", COUNTED_MODELS)
def test_counts_are_those_of_an_instrumented_run(name):
    """As in test_reference.py: all that was executed, and what of it the result depends on."""
    model = COUNTED_MODELS[name]()
    algorithm = importlib.import_module("sysdyn.reference.crba")
    q = model.random_state(seed=12)[0]
    Counted.log.clear()
    # below what makes floats of its arguments
    (H,) = algorithm.recursion(model, np.vectorize(Counted, otypes=[object])(q) if q.size else q.astype(object))
    executed = counted(Counted.log)
    plain = np.array([x.value if isinstance(x, Counted) else x for x in H.flat]).reshape(H.shape)
    np.testing.assert_allclose(plain, crba(model, q), rtol=1e-12, atol=1e-12)
    graph = Graph("none")
    crba(model, graph.inputs("q", model.nq))
    assert executed == all_nodes(graph)
    assert counted(live(H.flat)) == count_flops(crba, model, sharing="none")


@pytest.mark.parametrize("model", [chain(6), chain(7, seed=3), auto_tree(6, 1, 1.5, 0.9)], ids=lambda m: m.name)
def test_forward_dynamics_costs_the_sum_of_its_parts(model):
    """Inverse dynamics without accelerations, H, and Table 6.6; the parts share only sines and cosines."""
    graph = Graph("none")
    symbols = [graph.inputs(name, model.nv) for name in ("q", "qd", "tau")]
    H, zero = crba(model, symbols[0]), np.zeros(model.nv)
    n, D1, D2 = model.nv, sparsity(model).D1, sparsity(model).D2
    parts = [graph.count(H.flat), graph.count(rnea(model, symbols[0], symbols[1], zero))]
    found = count_flops(forward_dynamics_crba, model, sharing="none")
    assert found.mul == sum(p.mul for p in parts) + D2 + 2 * D1
    assert found.add == sum(p.add for p in parts) + n + D2 + 2 * D1  # n: τ − C
    assert found.div == D1 + n


def test_count_flops_takes_what_is_made_of_the_inertia_matrix():
    def factors(model, q):
        return ltdl(crba(model, q), expanded_parent(model))

    model = chain(5)
    H, both = count_flops(crba, model), count_flops(factors, model)
    D1, D2 = sparsity(model).D1, sparsity(model).D2
    assert both == Flops(mul=H.mul + D2, add=H.add + D2, div=D1, trig=H.trig) and (D1, D2) == (10, 20)


def test_counts_of_known_robots():
    """Pinned, so that a change of the cost is seen."""
    assert count_flops(crba, auto_tree(6, 1, 1.5, 0.9)) == Flops(mul=860, add=637, trig=5)
    assert count_flops(crba, icub("fixed")).total == 10730
    assert count_flops(forward_dynamics_crba, chain(6)) == Flops(mul=1701, add=1394, div=21, trig=5)


def test_cost_follows_depth_where_the_tree_branches():
    """Arms of three joints on the base: each costs the same."""
    totals = []
    for arms in (1, 2, 5):
        model = chain(3 * arms)
        model = model.replace(
            parent=tuple(k - 1 if k % 3 else -1 for k in range(3 * arms)),
            X_tree=np.tile(model.X_tree[:3], (arms, 1, 1)), inertias=np.tile(model.inertias[:3], (arms, 1, 1)),
        )  # fmt: skip
        totals.append(count_flops(forward_dynamics_crba, model).total)
    assert totals[1] == 2 * totals[0] and totals[2] == 5 * totals[0]


# ---- bad input -----------------------------------------------------------------------------------------------------


def test_bad_input_is_named():
    model = chain(3)
    q, qd, tau = model.random_state(seed=0, batch=5)
    with pytest.raises(InvalidInput, match=r"q has shape \(2,\), but \(…, 3\) is needed"):
        crba(model, np.zeros(2))
    with pytest.raises(InvalidInput, match=r"q is nan at state 1, entry 0"):
        crba(model, np.where(np.arange(5)[:, None] == 1, np.nan, q))
    with pytest.raises(InvalidInput, match=r"tau has shape \(4,\), but \(…, 3\) is needed"):
        forward_dynamics_crba(model, q, qd, np.zeros(4))
    with pytest.raises(InvalidInput, match=r"tau \(2,\), C\(q, qd, fx\) \(5,\)"):
        forward_dynamics_crba(model, q, qd, tau[:2])
    with pytest.raises(InvalidInput, match=r"fx has shape \(3,\), but \(…, 3, 6\) is needed"):
        forward_dynamics_crba(model, q, qd, tau, np.zeros(3))
    with pytest.raises(InvalidInput, match="the quaternion of joint 'joint0' has norm"):
        crba(random_tree(1, seed=0, joints=("spherical",)), np.full(4, 0.6))


def test_a_joint_that_moves_no_inertia_is_named():
    model = chain(3)
    inertias = model.inertias.copy()
    inertias[2] = 0.0
    model = model.replace(inertias=inertias)
    q, qd, tau = model.random_state(seed=0, batch=3)
    for states, found in ((0, ()), (slice(None), (0, 1, 2))):
        with pytest.raises(SingularState, match="'joint2' moves no inertia.*body 'body2'") as error:
            forward_dynamics_crba(model, q[states], qd[states], tau[states])
        assert (error.value.equation, error.value.unknown) == ("tau[joint2]", "qdd[joint2]")
        assert error.value.states == found
    graph = Graph()
    with pytest.raises(SingularState, match="joint2"):
        forward_dynamics_crba(model, *(graph.inputs(name, 3) for name in ("q", "qd", "tau")))
    armed = model.replace(armature=np.array([0.0, 0.0, 0.1]))
    assert relative_error(forward_dynamics_crba(armed, q, qd, tau), aba(armed, q, qd, tau)) < 1e-9


def test_a_freedom_of_several_that_moves_no_inertia_is_named():
    """A point mass on the z axis of a ball joint, behind a fixed joint, which has no rows of its own."""
    model = random_tree(2, seed=0, joints=("fixed",))
    ball = random_tree(1, seed=0, joints=("spherical",)).joints[0]
    point = inertia(2.0, np.array([0.0, 0.0, 0.3]), np.zeros((3, 3)))
    model = model.replace(
        joints=(model.joints[0], ball), parent=(-1, 0), inertias=np.stack([model.inertias[0], point]),
        **dict.fromkeys(("armature", "lower", "upper", "velocity_limit", "effort_limit")),
    )  # fmt: skip
    with pytest.raises(SingularState, match=r"'joint1\[2\]' moves no inertia"):
        forward_dynamics_crba(model, *model.random_state(seed=0))
