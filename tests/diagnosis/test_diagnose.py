"""The diagnosis of problems against dense singular values of their systems, at states that it has not seen."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.linalg
from nori.problems import load_cells
from oracles import icub, icub_urdf

import sysdyn as sd
from sysdyn.diagnosis.diagnose import sampled_states
from sysdyn.diagnosis.remedies import removals
from sysdyn.diagnosis.structure import structure
from sysdyn.equations.system import BlockSystem
from sysdyn.errors import InvalidInput, ProblemError, StructurallySingular, UnknownName
from sysdyn.measurements.classical import forward_dynamics, inverse_dynamics
from sysdyn.measurements.predict import predict
from sysdyn.measurements.problem import Problem
from sysdyn.measurements.variables import Layout
from sysdyn.model import Free, Model, auto_tree, chain, forward_kinematics, random_tree
from sysdyn.model.quantities import WRENCH
from sysdyn.model.se3 import rotation
from sysdyn.reference import newton_euler

FEET = ("l_ankle_2", "r_ankle_2")
ZERO = 1e-8  # singular values and shares of null vectors below this are zero in these models
QUIET = dict.fromkeys(("armature", "lower", "upper", "velocity_limit", "effort_limit"))


# ---- random robots with random sensors -------------------------------------------------------------------------------


@functools.cache
def robot(seed: int) -> Model:
    """Two to four bodies on a fixed base or on a free one."""
    rng = np.random.default_rng(seed)
    model = random_tree(int(rng.integers(2, 5)), seed=seed, joints=("revolute", "prismatic"))
    if rng.random() < 0.4:
        joints, parent = (Free(), *model.joints[1:]), (-1, *(max(p, 0) for p in model.parent[1:]))
        model = model.replace(joints=joints, parent=parent, **QUIET)
    return model


def sensors(model: Model, rng, count: int, prefix: str, noise) -> list[sd.Measurement]:
    """Random ones of every kind; noise: standard deviation of each, None for exact, by a function."""
    axes, result = ("x", "y", "z"), []
    for k in range(count):
        body, joint = rng.choice(model.body_names), rng.choice(model.joint_names)
        several = rng.random() < 0.3
        six = [c for c in WRENCH if several and rng.random() < 0.4] or [rng.choice(WRENCH)]
        three = [f"a_{x}" for x in axes if several and rng.random() < 0.5] or [f"a_{rng.choice(axes)}"]
        common = {"name": f"{prefix}{k}", "noise": noise()}
        result.append([
            sd.LoadCells(body, six, **common),
            sd.ForceTorqueSensor(joint, components=six, **common),
            sd.Accelerometer(body, three, **common),
            sd.AngularAccelerometer(body, [x.replace("a_", "alpha_") for x in three], **common),
            sd.FrameAcceleration(body, three, reference="world", **common),
            sd.NetWrench(body, six, **common),
            sd.PointContact(body, [x.replace("a_", "n") for x in three], **common),
            sd.ForceDirection(body, (0.3, -0.2, 0.9), **common),
            sd.CentreOfMassAcceleration(components=three, **common),
            sd.MotorTorque([joint], np.ones((1, model.joints[model.joint_index(joint)].nv)), **common),
            sd.Linear({("f", body): rng.standard_normal((2, 6))}, **common),
        ][rng.integers(11)])  # fmt: skip
    return result


def random_problem(seed: int, noisy: bool = False) -> tuple[Problem, list[sd.Measurement]]:
    """One of τ and q̈ of each joint or, rarely, none or both; most wrenches; sensors. And what could be added."""
    model, rng = robot(seed % 40), np.random.default_rng(seed)

    def noise():
        return float(rng.uniform(0.1, 2.0)) if noisy and rng.random() < 0.5 else None

    known: list[sd.Measurement] = []
    for joint in model.joint_names:
        choice = rng.choice(4, p=(0.5, 0.4, 0.05, 0.05))
        if choice in (0, 3):
            known.append(sd.JointTorque(joint, name=f"tau {joint}", noise=noise()))
        if choice in (1, 3):
            known.append(sd.JointAcceleration(joint, name=f"qdd {joint}", noise=noise()))
    for body in model.body_names:
        gone = [c for c in WRENCH if rng.random() < 0.04]
        kept = [c for c in WRENCH if c not in gone]
        if kept:
            known.append(sd.ExternalWrench(body, kept, name=f"fx {body}", noise=noise()))
    missing = Layout(model).n - sd.assemble(Problem(model, known)).plain.shape[0]  # by their number alone
    known += sensors(model, rng, max(0, missing - int(rng.random() < 0.3)), "sensor ", noise)
    available = sensors(model, rng, int(rng.integers(2, 6)), "spare ", noise)
    available.append(sd.JointTorque(list(model.joint_names[:2]), name="spare torque"))
    return Problem(model, known), available


@functools.lru_cache(maxsize=4)
def assembled(problem: Problem) -> BlockSystem:
    return sd.assemble(problem).plain


def dense(problem: Problem, q, qd) -> tuple[np.ndarray, np.ndarray]:
    """(the matrix of all equations, which of them are exact), from the assembled system."""
    system = assembled(problem)
    entries, _ = system.values({"q": q, "qd": qd})
    return system.matrix(entries[0]).toarray(), ~np.isin(np.arange(system.shape[0]), list(system.noise_by_row))


def rank(A: np.ndarray) -> int:
    return int(np.sum(np.linalg.svd(A, compute_uv=False) > ZERO)) if A.size else 0


def shares(A: np.ndarray) -> np.ndarray:
    """(columns,): how much of each unknown is in the null space of A."""
    _, s, Vt = np.linalg.svd(A)
    return np.linalg.norm(Vt[np.sum(s > ZERO) :], axis=0)


def well_posed(problem: Problem, q, qd) -> bool:
    A, exact = dense(problem, q, qd)
    return rank(A) == A.shape[1] and rank(A[exact]) == exact.sum()


def fresh(model: Model, count: int = 2):
    q, qd, _ = model.random_state(seed=991, batch=count)
    return list(zip(q, qd, strict=True))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("block", range(4))
@pytest.mark.parametrize("noisy", [False, True], ids=["exact", "noisy"])
def test_against_dense_singular_values(noisy, block):
    """200 problems: rank, what is undetermined and determined, what is redundant, and the null space described."""
    ill = 0
    for seed in range(25 * block + 10_000 * noisy, 25 * (block + 1) + 10_000 * noisy):
        problem, _ = random_problem(seed, noisy)
        diagnosis, names = sd.diagnose(problem), assembled(problem).col_names
        number = {name: k for k, name in enumerate(names)}
        ill += not diagnosis.well_posed
        assert sorted(
            (*diagnosis.undetermined, *diagnosis.undetermined_at_some_states, *diagnosis.determined)
        ) == sorted(names), seed
        undetermined, determined = ([number[x] for x in y] for y in (diagnosis.undetermined, diagnosis.determined))
        for q, qd in fresh(problem.model):
            A, exact = dense(problem, q, qd)
            assert diagnosis.rank == rank(A) == diagnosis.unknowns - diagnosis.missing, seed
            assert diagnosis.excess == exact.sum() - rank(A[exact]), seed
            assert diagnosis.well_posed == well_posed(problem, q, qd), seed
            part = shares(A)
            assert (part[undetermined] > ZERO).all() and (part[determined] < ZERO).all(), seed
            rows = {name: k for k, name in enumerate(assembled(problem).row_names)}
            keep = exact.copy()
            keep[[rows[x] for x in diagnosis.removals]] = False
            assert len(diagnosis.removals) == diagnosis.excess and rank(A[keep]) == keep.sum() == rank(A[exact]), seed
        for state in diagnosis.states:
            A, _ = dense(problem, state.q, state.qd)
            part = shares(A)
            assert state.missing == A.shape[1] - rank(A), (seed, state.kind)
            assert {names[k] for k in np.flatnonzero(part > ZERO)} == set(state.undetermined), (seed, state.kind)
        check_directions(problem, diagnosis, number)
    assert 4 < ill < 21, ill


def check_directions(problem: Problem, diagnosis: sd.Diagnosis, number: dict[str, int]) -> None:
    """Each is the part in one quantity of a vector of the null space at the first state, and together they span it."""
    assert len(diagnosis.directions) == diagnosis.missing
    if not diagnosis.missing:
        return
    state = next(s for s in diagnosis.states if s.missing == diagnosis.missing)
    A, _ = dense(problem, state.q, state.qd)
    _, s, Vt = np.linalg.svd(A)
    basis = Vt[np.sum(s > ZERO) :].T
    vectors = []
    for direction in diagnosis.directions:
        quantity = direction.terms[0].name.split("(")[0]
        rows = [k for name, k in number.items() if name.startswith(f"{quantity}(")]
        wanted = np.zeros(len(number))
        for term in direction.terms:
            wanted[number[term.name]] = term.amount
        place = rows + [number[other.terms[0].name] for other in diagnosis.directions if other is not direction]
        weights, *_ = np.linalg.lstsq(basis[place], wanted[place], rcond=None)
        vector = basis @ weights
        np.testing.assert_allclose(vector[place], wanted[place], rtol=0, atol=1e-6 * np.abs(vector).max())
        for other, count in direction.others:
            named = [k for name, k in number.items() if name.startswith(f"{other}(")]
            assert count <= len(named)
        vectors.append(vector / np.linalg.norm(vector))
    assert rank(np.array(vectors)) == diagnosis.missing


@pytest.mark.slow
@pytest.mark.parametrize("noisy", [False, True], ids=["exact", "noisy"])
def test_additions_suffice_and_are_minimal(noisy):
    did = refused = 0
    for seed in range(500, 540):
        problem, available = random_problem(seed, noisy)
        diagnosis = sd.diagnose(problem, available=available)
        (q, qd), *_ = fresh(problem.model)
        if diagnosis.additions is None:
            refused += 1
            A, _ = dense(problem, q, qd)
            custom = [m for m in available if not isinstance(m, sd.JointTorque)]
            B, _ = dense(problem + custom, q, qd)
            stated = [k for m in problem.raw for k in m.pairs(problem.model) if m.quantity == "tau"]
            torques = [p for p in available[-1].pairs(problem.model) if p not in stated]
            layout = Layout(problem.model)
            extra = np.eye(layout.n)[[layout.columns("tau", i)[k] for i, k in torques]]
            linear = any(isinstance(m, sd.Linear) and m.noise is None for m in available)
            assert rank(np.vstack([B, extra])) < A.shape[1] or linear, seed
            assert "are not enough" in diagnosis.suggestions[-1]
            continue
        if not diagnosis.missing:
            assert diagnosis.additions == ()
            continue
        did += 1
        whole = problem + list(diagnosis.additions)
        A, exact = dense(whole, q, qd)
        assert rank(A) == A.shape[1], seed
        assert exact.sum() - rank(A[exact]) == diagnosis.excess, seed  # nothing more is redundant
        for m in diagnosis.additions:
            rest = problem + [x for x in diagnosis.additions if x is not m]
            assert rank(dense(rest, q, qd)[0]) < A.shape[1], (seed, m.name)
        if not diagnosis.excess:
            assert sd.diagnose(whole).well_posed
    assert did >= 10 and refused >= 1


@pytest.mark.slow
def test_least_norm_has_the_determined_values():
    """Values of a known motion come back where they are determined, and masks say where that is, at any state."""
    partial = 0
    for seed in range(700, 760):
        problem, _ = random_problem(seed)
        model = problem.model
        q, qd, qdd = model.random_state(seed=seed, batch=3)
        q[2] = model.neutral()
        fx = np.random.default_rng(seed).uniform(-3.0, 3.0, (3, model.nb, 6))
        motion = newton_euler(model, q, qd, qdd, fx)
        truth = {"tau": motion.tau, "qdd": qdd, "fx": fx, "a": motion.a, "f": motion.f}
        custom = {m.name for m in problem.custom}
        y = {name: x for name, x in predict(problem, q, qd, qdd, fx).items() if name in custom}
        known = {x: truth[x] for x in problem.known_quantities}
        # PointContact and ForceDirection hold with any value here: it is that of the motion
        solution = sd.least_norm(problem, q, qd, y=y, **known)
        layout = Layout(model)
        for k in range(3):
            part = shares(dense(problem, q[k], qd[k])[0])
            for name, x in truth.items():
                got, lost = solution[name][k].reshape(-1), part[layout.quantity_columns(name)] > ZERO
                assert (solution.determined[name][k].reshape(-1) == ~lost).all(), (seed, k, name)
                scale = 1.0 + np.abs(x[k]).max()
                np.testing.assert_allclose(got[~lost], x[k].reshape(-1)[~lost], rtol=0, atol=1e-7 * scale)
                partial += bool(lost.any() and not lost.all())
        assert solution.residual().max() < 1e-7 * (1.0 + np.abs(motion.f).max())
    assert partial > 30


WEIGHTS = [None, {"qdd": 1.0, "fx": 1 / 30}, {"tau": 1.0}, {"tau": [1.0, 0.5, 2.0], "a": 0.1}, {"f": np.eye(3, 6)}]


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_least_norm_is_least(seed, weights):
    """Against the dense solution, by a pseudo-inverse in weighted unknowns and one in natural ones for what is left."""
    model = random_tree(3, seed=seed, joints=("revolute", "prismatic"))
    body, joint = model.body_names[2], model.joint_names[1]
    cells = sd.LoadCells(body, ["fx", "ny"], name="cells")
    problem = Problem(model, [sd.JointTorque(joint), cells, sd.ExternalWrench("all")]) - sd.ExternalWrench(body)
    q, qd, tau = model.random_state(seed=seed, batch=2)
    solution = sd.least_norm(problem, q, qd, tau, y={"cells": [3.0, -1.0]}, weights=weights)
    layout, system = Layout(model), assembled(problem)
    assert solution.undetermined and f"fx({body}).fz" in solution.undetermined
    for k in range(2):
        given = {
            "q": q[[k]],
            "qd": qd[[k]],
            "tau": tau[[k]],
            "fx": np.zeros((1, 18)),
            "y:cells": np.array([[3.0, -1.0]]),
        }
        entries, b = system.values(given)
        A, b = system.matrix(entries[0]).toarray(), b[0]
        particular, N = -np.linalg.pinv(A) @ b, scipy.linalg.null_space(A, rcond=1e-10)
        natural = np.zeros(layout.n)
        natural[layout.quantity_columns("qdd")], natural[layout.quantity_columns("fx")] = 1.0, 1.0 / model.mass
        W = np.zeros(layout.n)
        for name, x in (weights or {}).items():
            shape = (3, 6) if name in ("fx", "a", "f") else (3,)
            W[layout.quantity_columns(name)] = np.broadcast_to(x, shape).reshape(-1)
        if not weights:
            W = natural
        N_natural = N @ np.linalg.inv(np.linalg.qr(natural[:, None] * N)[1])
        particular = particular - N_natural @ (N_natural.T @ (natural**2 * particular))
        expected = particular - N_natural @ (np.linalg.pinv(W[:, None] * N_natural, rcond=1e-9) @ (W * particular))
        smallest = np.zeros(layout.n)
        for name in ("tau", "qdd", "fx", "a", "f"):
            smallest[layout.quantity_columns(name)] = solution[name][k].reshape(-1)
        np.testing.assert_allclose(smallest, expected, rtol=0, atol=1e-8 * np.abs(expected).max())
        for direction in N.T:  # nothing that may be added makes it smaller
            assert np.linalg.norm(W * (smallest + 1e-3 * direction)) >= np.linalg.norm(W * smallest) - 1e-12


def test_weights_that_are_none():
    model = chain(2)
    problem = forward_dynamics(model) - sd.JointTorque("joint1")
    q, qd, tau = model.random_state(seed=0)
    with pytest.raises(UnknownName, match="quantity with a weight 'qd'.*'qdd'"):
        sd.least_norm(problem, q, qd, tau, weights={"qd": 1.0})
    for wrong in ({"fx": np.ones(5)}, {"qdd": -1.0}, {"tau": np.nan}, {"tau": "much"}, [1.0]):
        with pytest.raises(InvalidInput, match="weights"):
            sd.least_norm(problem, q, qd, tau, weights=wrong)
    with pytest.raises(InvalidInput, match=r"weights\['tau'\] has shape \(4, 3\).*\(2,\)"):
        sd.least_norm(problem, q, qd, tau, weights={"tau": np.ones((4, 3))})


# ---- two feet --------------------------------------------------------------------------------------------------------


def feet_on_load_cells(unknown, base) -> Problem:
    model = icub("floating")
    known = inverse_dynamics(model) - sd.ExternalWrench(FEET, unknown)
    return known + sd.JointTorque(model.joint_names[0], base, name="free base")


def test_feet_on_load_cells_push_each_other_along_the_intersection_of_the_soles():
    """Nori, Property 3: at every state the force along that line is not observed, in parallel soles three are not."""
    problem = feet_on_load_cells(["nz", "fx", "fy"], "all")
    model, diagnosis = problem.model, sd.diagnose(problem)
    assert not diagnosis.well_posed and not diagnosis.structural and (diagnosis.missing, diagnosis.excess) == (1, 1)
    assert diagnosis.equations == diagnosis.unknowns == diagnosis.rank + 1
    with pytest.raises(StructurallySingular, match=r"(?s)singular at every sampled state.*undetermined.*fx\(l_ank"):
        sd.compile(problem, "umfpack", level="fast")
    (direction,) = diagnosis.directions
    state = diagnosis.states[0]
    X = dict(zip(model.body_names, forward_kinematics(model, state.q), strict=True))
    normals = [rotation(X[foot]).T[:, 2] for foot in FEET]
    wrench = {foot: np.zeros(6) for foot in FEET}
    for term in direction.terms:
        name, component = term.name.removeprefix("fx(").split(").")
        place = WRENCH.index(component)
        assert term.unit == ("N m" if place < 3 else "N")
        wrench[name][place] = term.amount
    one, other = (X[foot].T @ wrench[foot] for foot in FEET)
    np.testing.assert_allclose(one, -other, rtol=0, atol=1e-9 * np.abs(one).max())
    line = np.cross(*normals)
    np.testing.assert_allclose(np.cross(one[3:] / np.linalg.norm(one[3:]), line), 0.0, atol=1e-9)
    assert abs(one[:3] @ one[3:]) < 1e-9 * np.linalg.norm(one) ** 2  # a force, no moment along it
    text = str(diagnosis)
    assert "by value, at every sampled state" in text

    neutral = next(k for k, s in enumerate(diagnosis.states) if s.kind == "neutral")
    assert neutral in diagnosis.worse_states and diagnosis.states[neutral].missing == 3
    assert "fx(r_ankle_2).nz [N m] and fx(l_ankle_2).nz [N m] in opposite sense" in text
    assert {"tau(l_elbow)", "qdd(l_knee)", "fx(l_ankle_2).fz"} <= set(diagnosis.determined)
    assert {"tau(l_knee)", *(f"fx({foot}).{c}" for foot in FEET for c in ("nz", "fx", "fy"))} <= set(
        diagnosis.undetermined
    )

    added = sd.diagnose(problem, available=[sd.LoadCells("l_sole", name="cells"), sd.JointTorque("l_knee")])
    (torque,) = added.additions
    (removed,) = added.removals
    assert torque.name == "JointTorque(l_knee)" and removed.startswith("y:free base: ")
    component = int(removed[-2])
    fixed = problem + torque - sd.JointTorque(model.joint_names[0], component)
    assert sd.diagnose(fixed).well_posed


def test_a_slippery_floor_is_solvable_only_while_the_soles_are_not_parallel():
    """Both n_z unknown, two components of the base: on level ground only their sum is seen. Nori, eq. (24)."""
    diagnosis = sd.diagnose(feet_on_load_cells(["nz"], [0, 2]))
    assert diagnosis.well_posed and diagnosis.undetermined == diagnosis.suggestions == ()
    neutral = next(k for k, s in enumerate(diagnosis.states) if s.kind == "neutral")
    assert neutral in diagnosis.worse_states
    assert not any(diagnosis.states[k].kind == "random" for k in diagnosis.worse_states)
    (direction,) = diagnosis.states[neutral].directions
    assert str(direction).startswith("fx(r_ankle_2).nz [N m] and fx(l_ankle_2).nz [N m] in opposite sense")
    text = str(diagnosis)
    assert text.startswith("well posed: ") and "singular at" in text and "neutral" in text
    assert (
        "fx(l_ankle_2).nz" in diagnosis.undetermined_at_some_states and "fx(l_ankle_2).nz" not in diagnosis.determined
    )
    assert "tau(l_elbow)" in diagnosis.determined


# ---- what is said ----------------------------------------------------------------------------------------------------


def advised(text: str, problem: Problem) -> Problem:
    """The problem with the measurements that a suggestion names as example."""
    example = text.split("for example ")[1]
    names = {name: getattr(sd, name) for name in ("JointTorque", "JointAcceleration", "ExternalWrench")}
    added = eval(f"[{example}]", names)  # the test's own program, of the words that a user would copy
    return problem + added


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("case", ["wrench", "base", "two knees", "nothing", "accelerometers"])
def test_examples_in_suggestions_do(case):
    model = icub("floating")
    base, known = model.joint_names[0], inverse_dynamics(model)
    problem = {
        "wrench": lambda: known - sd.ExternalWrench("l_ankle_2", ["fx", "fz"]) - sd.JointAcceleration("l_knee"),
        "base": lambda: known - sd.JointAcceleration(base),
        "two knees": lambda: forward_dynamics(model) - sd.JointTorque(["l_knee", "r_knee"]),
        "nothing": lambda: Problem(model, []),
        "accelerometers": lambda: known - sd.JointAcceleration(base)
        + sd.Accelerometer("head", name="imu1") + sd.Accelerometer("chest", name="imu2"),
    }[case]()  # fmt: skip
    diagnosis = sd.diagnose(problem)
    assert not diagnosis.well_posed and diagnosis.missing
    assert sd.diagnose(advised(diagnosis.suggestions[0], problem)).missing == 0


def test_the_cause_is_named_first():
    model = icub("floating")
    base = model.joint_names[0]
    diagnosis = sd.diagnose(inverse_dynamics(model) - sd.JointAcceleration(base))
    assert [d.terms[0].name for d in diagnosis.directions] == [f"qdd({base})[{k}]" for k in range(6)]
    assert [d.terms[0].unit for d in diagnosis.directions] == ["rad/s²"] * 3 + ["m/s²"] * 3
    assert "for example JointAcceleration('root_joint')" in diagnosis.suggestions[0]
    diagnosis = sd.diagnose(forward_dynamics(model) - sd.JointTorque("l_knee"))
    assert str(diagnosis.directions[0]).startswith("tau(l_knee) [N m]; with it change ")
    assert "(by structure, whatever the state)" in str(diagnosis) and repr(diagnosis) == str(diagnosis)


def test_two_accelerometers_on_one_body_are_redundant_along_their_line():
    """They do not see the rotation about the line between them, and one component along it is too many."""
    model = icub("floating")
    base = model.joint_names[0]
    T = np.eye(4)
    T[:3, 3] = (0.1, 0.2, 0.3)
    problem = inverse_dynamics(model) - sd.JointAcceleration(base)
    problem += [sd.Accelerometer("head", name="imu1"), sd.Accelerometer(("head", T), name="imu2")]
    diagnosis = sd.diagnose(problem)
    assert not diagnosis.structural and (diagnosis.missing, diagnosis.excess) == (1, 1)
    assert set(diagnosis.redundant) == {f"y:imu{k}: a_{x}" for k in (1, 2) for x in "xyz"}
    assert diagnosis.suggestions[1].startswith("leave out 1 of: y:imu2")
    more = sd.diagnose(problem, available=[sd.Accelerometer("chest", name="third"), sd.AngularAccelerometer("head")])
    (added,) = more.additions
    assert len(added.components(model)) == 1  # only a part of it is needed
    assert f"add {added.name}: {added.components(model)[0]}" in more.suggestions[-1]


def test_additions_are_split_into_components():
    model = chain(3)
    problem = inverse_dynamics(model) - sd.ExternalWrench("body2", ["fx", "fy", "fz"])
    cells = sd.LoadCells("body2", name="cells")
    (added,) = sd.diagnose(problem, available=[cells]).additions
    assert added.components(model) == ("fx", "fy", "fz") and added.name == "cells"
    assert sd.diagnose(problem + added).well_posed

    exact = sd.Linear({("fx", "body2"): np.eye(6)}, name="whole")  # three of its equations are known: it cannot be used
    refused = sd.diagnose(problem, available=[exact])
    assert refused.additions is None and refused.suggestions[-1].startswith("the available measurements are not enough")
    noisy = sd.Linear({("fx", "body2"): np.eye(6)}, name="whole", noise=1.0)
    assert sd.diagnose(problem, available=[noisy]).additions == (noisy,)
    fits = sd.Linear({("fx", "body2"): np.eye(6)[3:]}, name="fits")
    assert sd.diagnose(problem, available=[exact, fits]).additions == (fits,)
    assert (
        sd.diagnose(problem, available=[cells, sd.ExternalWrench("body2", ["fx", "fy", "fz"])]).additions[0].name
        != "cells"
    )

    raw = sd.diagnose(problem, available=[sd.ExternalWrench("all", name="all wrenches")])
    assert [m.name for m in raw.additions] == ["ExternalWrench(body2.fx,fy,fz)"]
    assert sd.diagnose(inverse_dynamics(model), available=[cells]).additions == ()
    noise = np.arange(1.0, 19.0)
    guessed = sd.diagnose(problem, available=[sd.ExternalWrench("all", name="guess", noise=noise)])
    (added,) = guessed.additions
    assert added.components(model) == ("fx(body2).fx", "fx(body2).fy", "fx(body2).fz") and added.name == "guess"
    assert np.array_equal(added.noise, noise[15:]) and sd.diagnose(problem + added).well_posed
    assert guessed.suggestions[-1] == "add guess: fx(body2).fx, fx(body2).fy, fx(body2).fz"
    with pytest.raises(InvalidInput, match="a list"):
        sd.diagnose(problem, available=cells)
    with pytest.raises(InvalidInput, match="not a measurement that could be added"):
        sd.diagnose(problem, available=[sd.ModelNoise("f", noise=1.0)])
    with pytest.raises(ProblemError, match="two measurements are called"):
        sd.diagnose(problem, available=[cells, sd.Accelerometer("body2", name="cells")])


def test_available_sensors_are_a_list():
    problem = inverse_dynamics(chain(2)) - sd.JointAcceleration("joint1")
    torque = sd.JointTorque("joint1")
    assert sd.diagnose(problem, [torque]).additions == sd.diagnose(problem, available=[torque]).additions == (torque,)
    assert sd.diagnose(problem, []) == sd.diagnose(problem, ()) == sd.diagnose(problem)
    with pytest.raises(InvalidInput, match="sysdyn.observability"):
        sd.diagnose(problem, {"t": [0.0]})
    with pytest.raises(InvalidInput, match="not a measurement"):
        sd.diagnose(problem, [1.0, 2.0])


def test_noise_makes_redundancy_welcome():
    model = chain(3)
    problem = inverse_dynamics(model) + sd.JointTorque("all", name="torques")
    assert sd.diagnose(problem).excess == 3
    noisy = inverse_dynamics(model) + sd.JointTorque("all", name="torques", noise=0.1)
    diagnosis = sd.diagnose(noisy)
    assert diagnosis.well_posed and diagnosis.equations == diagnosis.unknowns + 3 and diagnosis.redundant == ()
    assert structure(sd.assemble(noisy)).sound
    # an inexact equation of motion no longer contradicts what is measured twice
    soft = problem + sd.ModelNoise("tau", noise=0.1)
    assert sd.diagnose(soft).well_posed
    few = noisy - sd.ExternalWrench("body1", ["fx"]) - sd.JointAcceleration("joint1")
    assert sd.diagnose(few).well_posed
    with pytest.raises(sd.StructurallySingular, match="undetermined"):
        sd.compile(noisy - sd.ExternalWrench("all"), level="fast")


def test_sampled_states_have_all_kinds():
    model = robot(3)
    kinds, q, qd = sampled_states(model)
    assert {kinds[k] for k in range(4)} == {"random"} and kinds[4] == "neutral"
    np.testing.assert_array_equal(q[4], model.neutral())
    assert not qd[4].any() and "every joint at π/2" in kinds and "joints at multiples of π/2" in kinds
    quarter = kinds.index("every joint at π/2")
    np.testing.assert_allclose(model.difference(model.neutral(), q[quarter]) % (np.pi / 2), 0.0, atol=1e-12)


# ---- values that are determined all the same -------------------------------------------------------------------------


def test_contradictions_are_named():
    model = chain(3)
    problem = inverse_dynamics(model) + sd.JointTorque("joint1", name="sensor")
    q, qd, qdd = model.random_state(seed=1, batch=4)
    tau = newton_euler(model, q, qd, qdd).tau
    agreed = sd.least_norm(problem, q, qd, qdd=qdd, tau=tau)
    np.testing.assert_allclose(agreed.tau, tau, rtol=0, atol=1e-9 * np.abs(tau).max())
    assert agreed.ok.shape == (4,)
    wrong = tau.copy()
    wrong[2, 1] += 0.01
    with pytest.raises(ProblemError, match=r"at state 2: .*y:sensor: tau\(joint1\) \(off by 0\.0") as error:
        sd.least_norm(problem, q, qd, qdd=qdd, tau=wrong)
    assert "state 0" not in str(error.value)
    alone = sd.least_norm(problem, q[0], qd[0], qdd=qdd[0], tau=tau[0])
    np.testing.assert_array_equal(alone.tau, agreed.tau[0])
    with pytest.raises(ProblemError, match="noisy"):
        sd.least_norm(problem + sd.Accelerometer("body2", noise=0.1), q, qd, qdd=qdd, tau=tau)


def test_rest_is_no_contradiction():
    """All zero, without gravity: nothing to be measured against."""
    model = chain(2).replace(gravity=(0.0, 0.0, 0.0))
    problem = inverse_dynamics(model) + sd.JointTorque("all", name="sensor")
    solution = sd.least_norm(problem, np.zeros(2), np.zeros(2), qdd=np.zeros(2), tau=np.zeros(2))
    assert not solution.tau.any()


# ---- size ------------------------------------------------------------------------------------------------------------


# Seeds of problems that are singular at every state though their pattern is sound: exact ones, and ones with noise.
SINGULAR = (6, 312, 322, 876, 1145, 1581, 1603, 2503, 2567, 2859, 2865)
SINGULAR_WITH_NOISE = (160, 509, 1014, 1181, 1353, 1377, 1459, 1600, 2236, 2410)


def by_count(seed: int, noisy: bool) -> Problem:
    """τ or q̈ of each joint of five to ten bodies, most wrenches, and about as many sensors as are needed."""
    rng = np.random.default_rng(seed % 50)
    model = random_tree(int(rng.integers(5, 11)), seed=seed % 50, joints=("revolute", "prismatic"))
    if rng.random() < 0.4:
        joints, parent = (Free(), *model.joints[1:]), (-1, *(max(p, 0) for p in model.parent[1:]))
        model = model.replace(joints=joints, parent=parent, **QUIET)
    rng = np.random.default_rng(seed)

    def noise():
        return float(rng.uniform(0.1, 2.0)) if noisy and rng.random() < 0.5 else None

    known: list[sd.Measurement] = []
    for joint in model.joint_names:
        kind = sd.JointTorque if rng.random() < 0.6 else sd.JointAcceleration
        known.append(kind(joint, name=f"known {joint}", noise=noise()))
    gone = 0
    for body in model.body_names:
        kept = [c for c in WRENCH if rng.random() > 0.06]
        gone += 6 - len(kept)
        known.append(sd.ExternalWrench(body, kept, name=f"fx {body}", noise=noise()))
    return Problem(model, known + sensors(model, rng, 1 + gone // 2, "sensor ", noise))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("seed", "noisy"), [*((seed, False) for seed in SINGULAR), *((seed, True) for seed in SINGULAR_WITH_NOISE)]
)
def test_compile_names_what_is_singular_at_every_state(seed, noisy):
    problem = by_count(seed, noisy)
    system = sd.assemble(problem).plain
    assert structure(system).sound
    with pytest.raises(
        StructurallySingular, match="singular at every sampled state, though not by its struct"
    ) as error:
        sd.compile(problem, level="fast")
    missing, unknowns, equations = set(), [], []
    for q, qd in fresh(problem.model, 3):
        A = system.scaled(system.values({"q": q, "qd": qd})[0][0]).toarray()
        missing.add(A.shape[1] - rank(A))
        unknowns.append(shares(A) > ZERO)
        equations.append(shares(A[~system.noisy_mask].T) > ZERO)
    assert len(missing) == 1 and min(missing) > 0
    named = np.array(system.col_names)[np.all(unknowns, axis=0)]
    assert set(error.value.undetermined) == set(named.tolist())
    rows = np.array(system.row_names)[~system.noisy_mask][np.all(equations, axis=0)]
    assert set(error.value.equations) == {x for x in rows.tolist() if x.startswith("y:")}


def test_removals_avoid_nearly_independent_rows():
    """At one state or at another one; else those stated last are."""
    W = [
        np.array([[0.6, 0.0], [0.8, 0.0], [0.0, 1.0], [0.0, 0.0]]),
        np.array([[0.8, 0.0], [0.6, 0.0], [0.0, 1e-3], [0.0, 1.0]]),
    ]
    W[0][3, 1] = 0.9
    assert removals([W[0]], [2, 1, 0, 3]) == [2, 1] and removals([W[0]], [3, 0, 1, 2]) == [3, 0]
    assert removals(W, [2, 1, 0, 3]) == [1, 3]  # the other state tells against the third row


@pytest.mark.parametrize("name", ["iCubNancy01", "iCubGenova03"])
def test_links_without_inertia(name):
    """A past failure: twelve directions at q = 0, where the massless neck leaves one."""
    model = sd.load(icub_urdf(name), strict=None)
    forward = forward_dynamics(model)
    diagnosis = sd.diagnose(forward)
    (neutral,) = (s for s in diagnosis.states if s.kind == "neutral")
    assert diagnosis.well_posed and (neutral.missing, neutral.excess) == (1, 1)
    assert [term.name for term in neutral.directions[0].terms][0] == "qdd(neck_roll)"
    assert "undetermined there: qdd(neck_roll), qdd(neck_pitch), qdd(neck_yaw)" in str(diagnosis)
    H = sd.crba(model, neutral.q)
    scale = 1.0 / np.sqrt(np.diag(H))
    assert np.sum(np.linalg.eigvalsh(scale[:, None] * H * scale) < 1e-12) == 1
    for problem, expected in [
        (forward - sd.JointTorque("r_knee"), (1, 0)),
        (forward + sd.JointAcceleration("r_knee", name="encoder"), (0, 1)),
        (forward - sd.ExternalWrench("l_forearm"), (6, 0)),
    ]:
        diagnosis = sd.diagnose(problem)
        assert {(s.missing, s.excess) for s in diagnosis.states if s.kind == "random"} == {expected}
        assert (diagnosis.missing, diagnosis.excess) == expected


@pytest.mark.slow
def test_large_problems_are_diagnosed_by_their_pattern():
    """6,400 unknowns: a torque that is missing, and a link whose inertia about its joint vanishes by value alone."""
    model = auto_tree(320, 1, 1.5, 1)
    problem = forward_dynamics(model)
    assert sd.diagnose(problem).well_posed
    diagnosis = sd.diagnose(problem - sd.JointTorque(model.joint_names[7]))
    assert diagnosis.missing == 1 and diagnosis.excess == 0 and "tau(joint7)" in diagnosis.undetermined
    inertias = model.inertias.copy()
    inertias[-1] = 0.0
    inertias[-1, 0, 0] = 0.1
    massless = sd.diagnose(forward_dynamics(model.replace(inertias=inertias, strict=None)))
    assert (massless.missing, massless.excess) == (1, 1) and "qdd(joint319)" in massless.undetermined
    unnamed = sd.diagnose(Problem(model, [sd.JointTorque("all"), sd.JointAcceleration("all")]))
    assert not unnamed.well_posed and unnamed.missing == 320 * 5 and unnamed.rank == unnamed.unknowns - 320 * 5
    assert "too many" in unnamed.suggestions[0] and "fx(body0).nx" in unnamed.undetermined


def test_long_chains_on_load_cells():
    """The problem of Fig. 2 with 2,000 unknowns; matching its pattern was a matter of minutes."""

    assert sd.diagnose(load_cells(100)).well_posed
    assert sd.diagnose(load_cells(100, skew=0.0)).missing == 3
