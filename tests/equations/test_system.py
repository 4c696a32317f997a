"""D d + b = 0: layouts, names, patterns, known quantities, measurements, recursive orders, diagnosis."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import icub
from robots import ROBOTS, load_robot

import sysdyn as sd
from sysdyn.diagnosis.structure import structure
from sysdyn.equations.block_system import KNOWN, BlockSystem
from sysdyn.equations.newton_euler import newton_euler as assembled
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.errors import ProblemError, UnknownName
from sysdyn.measurements.measurement import Context, Measurement
from sysdyn.measurements.raw import RAW, BodyAcceleration, ExternalWrench, JointAcceleration, JointTorque, JointWrench
from sysdyn.measurements.variables import COMPONENTS, LAYOUTS, QUANTITIES, Layout
from sysdyn.model import JOINTS, Model, auto_tree, chain, random_tree
from sysdyn.model.spatial import X_motion
from sysdyn.problem import Problem, forward_dynamics, hybrid_dynamics, inverse_dynamics
from sysdyn.program.evaluate import evaluate
from sysdyn.program.expr import Graph, is_constant, is_zero
from sysdyn.reference import newton_euler
from sysdyn.sparse.lu import eliminate

PROBLEMS = {
    "inverse": inverse_dynamics,
    "forward": forward_dynamics,
    "hybrid": lambda model: hybrid_dynamics(model, model.joint_names[::2]),
    "bodies": lambda model: Problem(
        model, [BodyAcceleration("all", name="a"), JointWrench("all", name="f")]
    ),  # not square: too many equations are assembled, too
}


def model_with(name: str) -> Model:
    if name.startswith("icub"):
        return icub(name.split()[1])
    return load_robot(name)[0] if name in ROBOTS else random_tree(7, seed=int(name.split()[1]))


@functools.cache
def built(name: str, problem: str = "forward", layout: str = "paper", known: str = "rows") -> BlockSystem:
    return PROBLEMS[problem](model_with(name)).system(layout, known)


def unknowns(system: BlockSystem, answer: dict[str, np.ndarray]) -> np.ndarray:
    """d (columns of the system,) filled from quantities by name; fB from I a + ν, that is f + fx − Σ X^T f."""
    d = np.zeros(system.layout.n)
    for quantity in QUANTITIES:
        d[system.layout.quantity_columns(quantity)] = np.ravel(answer[quantity])
    if system.layout.name == "net_force":
        for i in range(system.model.nb):
            d[list(system.layout.columns("fB", i))] = answer["fB"][i]
    return d[system.columns]


def reference(model: Model, seed: int, scale: float = 1.0):
    """(q, q̇, quantities by name) of the recursive Newton-Euler algorithm at a random state with random wrenches."""
    q, qd, qdd = model.random_state(seed=seed, scale=scale)
    fx = np.random.default_rng(seed).uniform(-10.0, 10.0, (model.nb, 6))
    tau, a, f, v = newton_euler(model, q, qd, qdd, fx)
    net = np.array([model.inertias[i] @ a[i] + cross_force(v[i]) @ model.inertias[i] @ v[i] for i in range(model.nb)])
    return q, qd, {"tau": tau, "qdd": qdd, "fx": fx, "a": a, "f": f, "fB": net}


def cross_force(v: np.ndarray) -> np.ndarray:
    """v ×* as a matrix, written out here once more (RBDA eq. 2.32)."""
    w, u = v[:3], v[3:]

    def skew(x):
        return np.array([[0.0, -x[2], x[1]], [x[2], 0.0, -x[0]], [-x[1], x[0], 0.0]])

    return np.block([[skew(w), skew(u)], [np.zeros((3, 3)), skew(w)]])


def check_reference_solves(system: BlockSystem, seed: int) -> None:
    """The reference answer leaves no residual in D d + b, nor does it in `residual`."""
    q, qd, answer = reference(system.model, seed)
    known = {x: answer[x] for x in system.problem.known_quantities}
    D, b, d = system.D(q), system.b(q, qd, **known), unknowns(system, answer)
    assert D.shape == system.shape == (len(b), len(d))
    scale = np.abs(D).sum(axis=1).max() * np.abs(d).max(initial=1.0) + np.abs(b).max()
    assert np.abs(D @ d + b).max() <= 1e-13 * scale
    wrong = d.copy()
    wrong[seed % len(d)] += 1.0 + np.abs(d).max()  # and every entry matters
    assert np.abs(D @ wrong + b).max() > 1e-3


# ---- layouts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layout", "size"), [("paper", 20), ("net_force", 26)])
def test_scalars_a_body_with_one_freedom(layout, size):
    for n in (1, 2, 5):
        model = chain(n)
        system = forward_dynamics(model).system(layout)
        assert system.layout.n == size * n == len(system.col_names) == len(set(system.col_names))
        assert system.shape == (size * n, size * n)
        own = [name for name in system.row_names if name.startswith("c:")]
        assert len(own) == (size - 7) * n  # 13 of the paper, 19 of its published code
        assert len(system.row_names) == len(set(system.row_names)) == size * n


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scalars_of_joints_with_other_freedoms(layout):
    model = random_tree(9, seed=1)
    system = forward_dynamics(model).system(layout)
    inner = 18 if layout == "paper" else 24
    assert system.shape[1] == model.nb * inner + 2 * model.nv
    assert {joint.nv for joint in model.joints} >= {1, 3, 6}


def test_columns_are_ordered_as_in_the_published_experiments():
    blocks = Layout(chain(3), "net_force").blocks
    assert blocks[:5] == (("a", 0), ("fB", 0), ("f", 0), ("tau", 0), ("a", 1))
    assert blocks[-6:] == (("fx", 0), ("qdd", 0), ("fx", 1), ("qdd", 1), ("fx", 2), ("qdd", 2))
    assert ("fB", 0) not in Layout(chain(3)).blocks


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_known_quantities_as_rows_or_substituted(problem, layout, known):
    system = built("tree 3", problem, layout, known)
    rows = built("tree 3", problem, layout, "rows")
    stated = sum(len(m.components(system.model)) for m in system.problem.measurements)
    if known == "rows":
        assert sum(name.startswith("y:") for name in system.row_names) == stated
        assert len(system.columns) == system.layout.n
    else:
        assert system.shape == (rows.shape[0] - stated, rows.shape[1] - stated)
        assert not any(name.startswith("y:") for name in system.row_names)
        gone = {c for m in system.problem.raw for c in m.components(system.model)}
        assert set(system.col_names) == set(rows.col_names) - gone
    check_reference_solves(system, 5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["icub fixed", "icub floating", *ROBOTS])
def test_reference_answer_leaves_no_residual_on_robots(name, layout):
    for seed in range(3):
        check_reference_solves(built(name, "forward", layout), seed)


@settings(max_examples=25)
@given(
    nb=st.integers(1, 6),
    seed=st.integers(0, 10_000),
    problem=st.sampled_from(sorted(PROBLEMS)),
    layout=st.sampled_from(LAYOUTS),
    known=st.sampled_from(KNOWN),
    armature=st.booleans(),
)
def test_reference_answer_leaves_no_residual_on_random_trees(nb, seed, problem, layout, known, armature):
    model = random_tree(nb, seed=seed)
    if armature:
        model = model.replace(armature=np.random.default_rng(seed).uniform(0.1, 3.0, model.nv))
    check_reference_solves(PROBLEMS[problem](model).system(layout, known), seed)


def test_every_type_of_joint_is_among_those_trees():
    kinds = {type(joint) for seed in range(20) for joint in random_tree(6, seed=seed).joints}
    assert kinds == set(JOINTS.values())


def test_armature_is_in_the_torque_rows():
    model = chain(2).replace(armature=(0.5, 0.0))
    system = forward_dynamics(model).system()
    D = system.D([0.1, 0.2]).toarray()
    column = [system.col_names.index(f"qdd(joint{i})") for i in range(2)]
    row = [system.row_names.index(f"c:tau(joint{i})") for i in range(2)]
    assert D[row[0], column[0]] == 0.5
    assert D[row[1], column[1]] == 0.0
    assert D[row[0], system.col_names.index("tau(joint0)")] == -1.0


# ---- blocks and names ----------------------------------------------------------------------------------------------


def test_blocks_are_those_of_the_paper():
    """Nori eqs. (5), (6), block by block, on a tree at a random state."""
    model = random_tree(5, seed=11)
    system = forward_dynamics(model).system()
    q, qd, _ = reference(model, 1)
    X = sd.model.joint_transforms(model, q)
    D, b = system.D(q).toarray(), system.b(q, qd)

    def block(row, column):
        r = [k for k, x in enumerate(system.row_blocks) if x == row]
        c = [k for k, x in enumerate(system.col_blocks) if x == column]
        return D[np.ix_(r, c)]

    v, c = sd.model.velocities(model, X, qd)
    for i, joint in enumerate(model.joints):
        p = model.parent[i]
        np.testing.assert_array_equal(block(("a", i), ("a", i)), -np.eye(6))
        np.testing.assert_array_equal(block(("a", i), ("qdd", i)), joint.S)
        np.testing.assert_array_equal(block(("f", i), ("f", i)), -np.eye(6))
        np.testing.assert_allclose(block(("f", i), ("a", i)), model.inertias[i], atol=1e-15)
        np.testing.assert_array_equal(block(("f", i), ("fx", i)), -np.eye(6))
        np.testing.assert_array_equal(block(("tau", i), ("tau", i)), -np.eye(joint.nv))
        np.testing.assert_array_equal(block(("tau", i), ("f", i)), joint.S.T)
        bias = c[i]
        if p >= 0:
            np.testing.assert_allclose(block(("a", i), ("a", p)), X[i], atol=1e-14)
            np.testing.assert_allclose(block(("f", p), ("f", i)), X[i].T, atol=1e-14)
        else:
            bias = c[i] + X[i] @ np.concatenate([np.zeros(3), -model.gravity])
        rows = [k for k, x in enumerate(system.row_blocks) if x == ("a", i)]
        np.testing.assert_allclose(b[rows], bias, atol=1e-12)
        rows = [k for k, x in enumerate(system.row_blocks) if x == ("f", i)]
        np.testing.assert_allclose(b[rows], cross_force(v[i]) @ model.inertias[i] @ v[i], atol=1e-12)


def test_names_of_rows_and_columns():
    model = icub("fixed")
    system = inverse_dynamics(model).system()
    knee, leg = "l_knee", model.body_names[model.joint_index("l_knee")]
    for name in (f"tau({knee})", f"qdd({knee})", f"f({leg}).nz", f"fx({leg}).fx", f"a({leg}).alpha_x", f"a({leg}).a_z"):
        assert name in system.col_names
        if name.startswith(("tau", "f(", "a(")):
            assert f"c:{name}" in system.row_names
    assert f"y:qdd: qdd({knee})" in system.row_names
    assert f"y:fx: fx({leg}).nx" in system.row_names
    i = model.joint_index("l_knee")
    assert system.col_blocks[system.col_names.index(f"tau({knee})")] == ("tau", i)
    assert system.row_blocks[system.row_names.index(f"c:f({leg}).nz")] == ("f", i)
    several = forward_dynamics(random_tree(1, seed=0, joints=("planar",))).system()
    assert [x for x in several.col_names if x.startswith("tau")] == [f"tau(joint0)[{k}]" for k in range(3)]
    assert "640 equations, 640 unknowns" in repr(system)


# ---- pattern -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["icub fixed", "icub floating", *ROBOTS, "tree 0", "tree 1", "tree 2", "tree 3"])
def test_worst_case_pattern_holds_all_sampled_ones_and_is_tight(name, layout):
    """Nori, Remark 4. Sampled numerically, by an assembly on floats that knows nothing of the pattern."""
    system = built(name, "forward", layout)
    model = system.model
    q, qd, _ = model.random_state(seed=1, batch=6)
    seen = np.zeros(system.shape, dtype=bool)
    pattern = system.pattern().toarray() != 0
    assert pattern.sum() == system.nnz == system.pattern().nnz
    for k in range(len(q)):
        rows, _, _ = assembled(model, system.layout, q[k], qd[k])
        for r, row in enumerate(rows.entries):
            for c, x in row.items():
                assert pattern[r, c] or abs(x) < 1e-12, (system.row_names[r], system.col_names[c], x)
        seen |= system.D(q[k]).toarray() != 0
    assert not (seen & ~pattern).any()
    missed = [(system.row_names[r], system.col_names[c]) for r, c in np.argwhere(pattern & ~seen)]
    assert missed == []


@settings(max_examples=15)
@given(nb=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_pattern_of_random_trees_is_tight(nb, seed):
    system = inverse_dynamics(random_tree(nb, seed=seed)).system()
    q, qd, _ = system.model.random_state(seed=seed, batch=4)
    entries, b = system.values({"q": q, "qd": qd})
    assert (np.abs(entries) > 1e-12).any(axis=0).all()
    silent = np.array([is_zero(x) for x in system.assembly.b])
    assert not np.broadcast_to(b, (4, len(silent)))[:, silent].any()


def test_fixed_entries_do_not_change_and_the_others_do():
    system = built("icub floating")
    q, qd, _ = system.model.random_state(seed=3, batch=8)
    entries, _ = system.values({"q": q, "qd": qd})
    fixed = system.fixed_entries()
    assert np.ptp(entries[:, fixed], axis=0).max() == 0.0
    assert np.ptp(entries[:, ~fixed], axis=0).min() > 0.0
    kinds = {(system.row_blocks[r][0], system.col_blocks[c][0]) for r, c in np.array(system.coordinates).T[~fixed]}
    assert kinds == {("a", "a"), ("f", "f")}  # only the blocks X depend on q


def test_pattern_does_not_depend_on_how_angles_happen_to_fall():
    """At q = 0 many entries vanish; they belong to the pattern all the same."""
    system = built("puma560")
    at_zero = (system.D(np.zeros(6)).toarray() != 0).sum()
    assert at_zero < system.nnz
    assert system.D(np.zeros(6)).nnz == system.nnz  # stored, with value 0


# ---- recursive orders ----------------------------------------------------------------------------------------------


def permuted(system: BlockSystem, name: str, q: np.ndarray) -> np.ndarray:
    row_perm, col_perm = RECURSIVE[name](system)
    assert sorted(row_perm) == sorted(col_perm) == list(range(system.shape[0]))
    return system.D(q).toarray()[np.ix_(row_perm, col_perm)]


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "model", [chain(1), chain(6), auto_tree(9, 1.5, 1.5, 0.9), *(random_tree(7, seed=s) for s in range(4))], ids=repr
)
def test_property_1_inverse_dynamics_is_lower_triangular(model, layout, known):
    """Nori eqs. (11), (12)."""
    system = inverse_dynamics(model).system(layout, known)
    q, _, _ = model.random_state(seed=1)
    matrix = permuted(system, "rnea", q)
    assert not np.triu(matrix, 1).any()
    np.testing.assert_array_equal(np.abs(np.diag(matrix)), 1.0)


def test_property_1_on_icub():
    system = inverse_dynamics(icub("floating")).system()
    matrix = permuted(system, "rnea", system.model.random_state(seed=1)[0])
    assert not np.triu(matrix, 1).any()


def test_property_1_names_the_blocks_of_the_paper():
    """[fx_1, q̈_1, …, fx_n, q̈_n, a_1 … a_n, f_n, τ_n, …, f_1, τ_1]."""
    system = inverse_dynamics(chain(3)).system()
    columns = [system.col_blocks[c] for c in RECURSIVE["rnea"](system)[1]]
    order = [block for k, block in enumerate(columns) if k == 0 or block != columns[k - 1]]
    known = [(x, i) for i in range(3) for x in ("fx", "qdd")]
    assert order == [*known, ("a", 0), ("a", 1), ("a", 2), *((x, i) for i in (2, 1, 0) for x in ("f", "tau"))]


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("problem", ["inverse", "forward", "hybrid"])
@pytest.mark.parametrize("order", ["aba", "crba"])
def test_recursive_orders_solve_without_pivoting(order, problem, layout, known):
    """Elimination on floats, and the pivots of c(τ): the inertia that is left, S^T I^A S, positive."""
    system = built("tree 3", problem, layout, known)
    model = system.model
    for seed in range(3):
        q, qd, answer = reference(model, seed)
        values = {x: np.ravel(answer[x]) for x in system.problem.known_quantities}
        entries, b = system.values({"q": q, "qd": qd, **values})
        rows: list[dict[int, float]] = [{} for _ in range(system.shape[0])]
        for r, c, x in zip(*(k.tolist() for k in system.coordinates), entries[0].tolist(), strict=True):
            if x != 0.0:
                rows[r][c] = x
        row_perm, col_perm = RECURSIVE[order](system)
        factors = eliminate(rows, b[0].tolist(), row_perm, col_perm)
        expected = unknowns(system, answer)
        np.testing.assert_allclose(factors.solution, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
        for pivot, c in zip(factors.pivots, col_perm, strict=True):
            if system.col_blocks[c][0] == "qdd" and abs(pivot) != 1.0:
                assert pivot > 1e-6
    if problem == "forward" and known == "substituted":
        accelerations = [system.col_blocks[c][1] for c in col_perm if system.col_blocks[c][0] == "qdd"]
        assert accelerations == sorted(accelerations, reverse=True)


def test_recursive_orders_say_where_they_do_not_apply():
    model = chain(3)
    with pytest.raises(ProblemError, match="'rnea' is for inverse dynamics"):
        RECURSIVE["rnea"](forward_dynamics(model).system())
    partial = inverse_dynamics(model) - ExternalWrench("body2", ["fz"]) + JointTorque("joint0")
    with pytest.raises(ProblemError, match="'aba' needs all external wrenches known"):
        RECURSIVE["aba"](partial.system())
    with pytest.raises(ProblemError, match="'crba' is defined for raw measurements and constraints"):
        RECURSIVE["crba"]((inverse_dynamics(model) + Accelerometer("body2")).system())


# ---- problems ------------------------------------------------------------------------------------------------------


def test_adding_and_removing_measurements():
    model = icub("fixed")
    problem = inverse_dynamics(model)
    smaller = problem - ExternalWrench("l_ankle_2", ["fz", "nx"]) - JointAcceleration("l_knee")
    assert smaller.ny == problem.ny - 3
    assert problem.ny == 7 * 32  # and the old one is as it was
    gone = {"fx: fx(l_ankle_2).fz", "fx: fx(l_ankle_2).nx", "qdd: qdd(l_knee)"}
    assert set(problem.y_names) - set(smaller.y_names) == gone
    again = smaller + ExternalWrench("l_ankle_2", ["nx", "fz"], name="cell")
    again = again + JointAcceleration("l_knee", name="encoder")
    assert again.ny == problem.ny
    assert again.y_names[-3:] == ("cell: fx(l_ankle_2).nx", "cell: fx(l_ankle_2).fz", "encoder: qdd(l_knee)")
    both = smaller + [ExternalWrench("l_ankle_2", ["nx"]), JointTorque("l_knee")]
    assert both.ny == smaller.ny + 2
    assert both.known_quantities == ("tau", "qdd", "fx")
    nothing = problem - ExternalWrench("all") - JointAcceleration("all")
    assert nothing.measurements == () and nothing.ny == 0 and nothing.known_quantities == ()
    assert "qdd: 31 equations" in repr(smaller)


def test_components_and_targets():
    model = random_tree(3, seed=4, joints=("planar", "free", "spherical"))
    one = Problem(model, [JointTorque("joint1", [1, 0]), ExternalWrench(["body2", "body0"], ["fz", "nx"], name="w")])
    block = f"({model.joint_names[1]})"
    assert one.y_names == (
        f"JointTorque(joint1.1,0): tau{block}[1]", f"JointTorque(joint1.1,0): tau{block}[0]",
        "w: fx(body2).fz", "w: fx(body2).nx", "w: fx(body0).fz", "w: fx(body0).nx",
    )  # fmt: skip
    assert one.knows("tau") == {(1, 0), (1, 1)}
    by_joint = Problem(model, [JointWrench("joint2", name="f")])
    assert by_joint.y_names == tuple(f"f: f(body2).{c}" for c in COMPONENTS["f"])
    assert by_joint.knows("f") == {(2, k) for k in range(6)}


@pytest.mark.parametrize("kind", RAW.values(), ids=RAW)
def test_default_names_and_units(kind):
    model = chain(2)
    m = kind("all")
    assert m.name == kind.__name__
    assert len(m.components(model)) == (2 if kind in (JointTorque, JointAcceleration) else 12)
    assert m.units and all(isinstance(x, str) for x in m.units)
    rows = m.rows(None if kind is None else Context(model, [], []))
    total = sum(np.asarray(block).sum() for block in rows.values())
    assert total == len(m.components(model))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_problems_as_dictionaries(problem):
    original = PROBLEMS[problem](random_tree(4, seed=3))
    if problem != "bodies":
        original = original - ExternalWrench("body1", ["fz"])
    text = json.dumps(original.to_dict())
    again = Problem.from_dict(json.loads(text))
    assert again.digest == original.digest
    assert again.y_names == original.y_names
    assert again.known_quantities == original.known_quantities
    q, qd, _ = original.model.random_state(seed=1)
    assert (again.system().D(q) != original.system().D(q)).nnz == 0
    assert Problem.from_dict(again.to_dict()).digest == original.digest
    other = original + JointTorque("joint0", name="z") if problem == "inverse" else original - original.measurements[0]
    assert other.digest != original.digest
    assert original.model.replace(gravity=(0.0, 0.0, -1.0)).digest != original.model.digest


def test_custom_measurements_have_no_description():
    problem = inverse_dynamics(chain(2)) + Accelerometer("body1")
    assert problem.digest is None
    with pytest.raises(ProblemError, match="'accelerometer' is custom and cannot be stored"):
        problem.to_dict()


# ---- custom measurements -------------------------------------------------------------------------------------------


class Accelerometer(Measurement):
    """Proper acceleration of the origin of a frame along axes of the frame: linear part of X a + ω × v."""

    def __init__(self, frame: str, axes: str = "xyz", name: str = "accelerometer"):
        self.frame, self.axes, self.name = frame, axes, name

    def components(self, model):
        return tuple(self.axes)

    def rows(self, ctx):
        return {("a", ctx.body(self.frame)): ctx.X(self.frame)[["xyz".index(axis) + 3 for axis in self.axes]]}

    def bias(self, ctx):
        v = ctx.v(self.frame)
        across = {"x": v[1] * v[5] - v[2] * v[4], "y": v[2] * v[3] - v[0] * v[5], "z": v[0] * v[4] - v[1] * v[3]}
        return np.array([across[axis] for axis in self.axes])


class TorqueSum(Measurement):
    """Motors that drive two joints through a differential: τ_i + τ_j."""

    def __init__(self, first: str, second: str):
        self.joints, self.name = (first, second), f"{first}+{second}"

    def components(self, model):
        return ("sum",)

    def rows(self, ctx):
        return {("tau", joint): [[1.0]] for joint in self.joints}


class DistantWrench(Measurement):
    """Rows that are X from an ancestor to a frame, with no meaning beyond that."""

    def __init__(self, frame: str, ancestor: str):
        self.frame, self.ancestor, self.name = frame, ancestor, "distant"

    def components(self, model):
        return tuple("abcdef")

    def rows(self, ctx):
        return {("f", self.ancestor): ctx.X(self.frame, self.ancestor)}


@functools.cache
def icub_with_accelerometer() -> Model:
    """iCub with an accelerometer on the left shin, 0.2 m below the knee, whose x axis is along the shin's."""
    model = icub("floating")
    shin = model.joint_index("l_knee")
    imu = sd.Frame("imu", shin, X_motion(np.eye(3), np.array([0.1, 0.0, -0.2])))
    return model.replace(frames={**model.frames, "imu": imu})


@pytest.mark.parametrize("backend", ["llvm", "python"])
def test_an_accelerometer_in_place_of_an_encoder(backend):
    """The knee's acceleration from one axis of an accelerometer on the shin, through the whole chain."""
    model = icub_with_accelerometer()
    problem = inverse_dynamics(model) - JointAcceleration("l_knee") + Accelerometer("imu", "x")
    solver = sd.compile(problem, "umfpack", ("tau", "qdd"), level="fast", backend=backend)
    assert problem.y_names[-1] == "accelerometer: x"
    q, qd, qdd = model.random_state(seed=4, batch=20)
    fx = np.random.default_rng(0).uniform(-10.0, 10.0, (20, model.nb, 6))
    full = sd.compile(inverse_dynamics(model), "rnea", level="fast")(q, qd, qdd, fx)
    y = full.acceleration("imu", classical=True, gravity=True)[:, [3]]
    known = qdd.copy()
    known[:, model.v_slice(model.joint_index("l_knee"))] = 1e6  # ignored
    found = solver(q, qd, qdd=known, fx=fx, y={"accelerometer": y})
    for x in ("qdd", "tau"):
        np.testing.assert_allclose(found[x], full[x], rtol=0, atol=1e-9 * np.abs(full[x]).max())
    with pytest.raises(sd.InvalidInput, match="'accelerometer', but no value was given"):
        solver(q, qd, known, fx)
    with pytest.raises(sd.InvalidInput, match="accelerometer is nan at state 3, entry 0"):
        solver(q, qd, known, fx, y={"accelerometer": np.where(np.arange(20) == 3, np.nan, 1.0)[:, None]})


def test_diagnosis_of_accelerometers():
    """Three axes at one point see three joints of a leg, but not those that do not move the point."""
    model = icub("fixed")
    problem = inverse_dynamics(model)
    leg = ["l_hip_pitch", "l_hip_roll", "l_knee"]
    assert (problem - JointAcceleration(leg) + Accelerometer("l_sole")).diagnose().well_posed
    arm = ["l_elbow", "l_shoulder_roll", "l_shoulder_yaw"]
    wrong = (problem - JointAcceleration(arm) + Accelerometer("l_sole")).diagnose()
    assert wrong.structural and {"qdd(l_elbow)", "qdd(l_shoulder_roll)"} <= set(wrong.undetermined)
    assert any(name.startswith("y:accelerometer") for name in wrong.redundant)


def test_a_sum_of_two_torques():
    model = chain(4, seed=2)
    problem = forward_dynamics(model) - JointTorque(["joint1"]) + TorqueSum("joint1", "joint3")
    solver = sd.compile(problem, level="fast")
    q, qd, tau = model.random_state(seed=4, batch=9)
    y = {"joint1+joint3": tau[:, [1]] + tau[:, [3]]}
    expected = sd.aba(model, q, qd, tau)
    np.testing.assert_allclose(solver(q, qd, tau, y=y).qdd, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    one = solver(q[0], qd[0], tau[0], y={"joint1+joint3": y["joint1+joint3"][0]})
    np.testing.assert_allclose(one.tau, tau[0], rtol=0, atol=1e-9)
    assert one.backward_error() <= 1e-12
    assert (problem - TorqueSum("joint1", "joint3")).ny == problem.ny - 1
    with pytest.raises(ProblemError, match="custom and cannot be stored"):
        solver.save("never.solver")


def test_context_transforms_to_ancestors():
    model = chain(4, seed=2)
    problem = Problem(model, [DistantWrench("body3", "body1")])
    system = problem.system()
    q, qd, _ = model.random_state(seed=1)
    X = sd.model.joint_transforms(model, q)
    rows = [k for k, block in enumerate(system.row_blocks) if block[0] == "y"]
    columns = [k for k, block in enumerate(system.col_blocks) if block == ("f", 1)]
    np.testing.assert_allclose(system.D(q).toarray()[np.ix_(rows, columns)], X[3] @ X[2], atol=1e-14)
    for wrong, text in ((("body1", "body3"), "must be on its path to the base"), (("body9", "body1"), "frame 'body9'")):
        with pytest.raises(sd.InvalidInput, match=text):
            Problem(model, [DistantWrench(*wrong)]).system().D(q)


class Broken(Measurement):
    def __init__(self, rows):
        self.name, self._rows = "broken", rows

    def components(self, model):
        return ("only",)

    def rows(self, ctx):
        return self._rows


@pytest.mark.parametrize(
    ("rows", "kind", "text"),
    [
        ({("a", "body1"): np.zeros((2, 6))}, ProblemError, r"block of shape \(2, 6\) for a\(body1\).*\(1, 6\)"),
        ({("tau", "joint1"): np.zeros((1, 6))}, ProblemError, r"block of shape \(1, 6\).*\(1, 1\)"),
        ({("acc", "body1"): np.zeros((1, 6))}, UnknownName, "quantity in the rows of 'broken'.*'acc'"),
        ({("a", "bodi1"): np.zeros((1, 6))}, UnknownName, "body 'bodi1'.*Did you mean 'body1'"),
        ({("tau", "body1"): np.zeros((1, 1))}, UnknownName, "joint 'body1'"),
    ],
)
def test_custom_measurements_that_are_wrong(rows, kind, text):
    with pytest.raises(kind, match=text):
        sd.compile(inverse_dynamics(chain(2)) + Broken(rows))


# ---- the load cells of the paper -----------------------------------------------------------------------------------

FIVE = ("nx", "ny", "fx", "fy", "fz")


def load_cells(n: int, skew: float = 1.5) -> Problem:
    """Nori, Fig. 2: fx_1 … fx_{n−1}, q̈_3 … q̈_{n−2}, and five components of f_1 and of fx_n are known."""
    model = auto_tree(n, 1, skew, 1)
    measurements = [
        ExternalWrench(model.body_names[:-1], name="fx"), JointWrench(model.body_names[0], FIVE, name="base cell"),
        ExternalWrench(model.body_names[-1], FIVE, name="tip cell"),
    ]  # fmt: skip
    if n > 4:
        measurements.append(JointAcceleration(model.joint_names[2 : n - 2], name="qdd"))
    return Problem(model, measurements)


@pytest.mark.parametrize("n", [4, 5, 6, 7, 8])
def test_load_cells_of_the_paper_are_well_posed(n):
    problem = load_cells(n)
    assert problem.ny == 7 * n
    diagnosis = problem.diagnose()
    assert diagnosis.well_posed and diagnosis.rank == 20 * n
    assert str(diagnosis).startswith(f"well posed: {20 * n} equations, {20 * n} unknowns, rank {20 * n}")


@pytest.mark.parametrize("n", [4, 5, *(pytest.param(n, marks=pytest.mark.slow) for n in (6, 7, 8))])
def test_load_cells_of_the_paper_compile_and_solve(n):
    problem = load_cells(n)
    model = problem.model
    solver = sd.compile(problem, on_singular="repivot", level="fast")
    assert solver.safety.singular > 0  # at some multiples of π/2 the cells do not see everything: no fault of the order
    q, qd, qdd = model.random_state(seed=n, batch=200)
    fx = np.random.default_rng(n).uniform(-5.0, 5.0, (200, model.nb, 6))
    tau, a, f, _ = newton_euler(model, q, qd, qdd, fx)
    values = {"qdd": qdd, "fx": fx, "f": f}
    solution = solver(q, qd, **{x: values[x] for x in problem.known_quantities})
    assert solution.ok.all()
    assert solution.backward_error().max() <= 1e-12
    error = np.abs(solution.tau - tau).max(axis=1) / np.abs(tau).max(axis=1)
    assert np.median(error) <= 1e-11
    assert error.max() <= 1e-5  # some states are nearly singular


def test_load_cells_without_skew_are_singular():
    problem = load_cells(6, skew=0.0)
    diagnosis = problem.diagnose()
    assert diagnosis.equations == diagnosis.unknowns and not diagnosis.well_posed
    # all axes parallel: the pattern falls into the plane and what is across it
    assert diagnosis.structural and len(diagnosis.suggestions) == 2
    with pytest.raises(sd.StructurallySingular, match=r"3 equation\(s\) missing.*3 equation\(s\) too many"):
        sd.compile(problem, level="fast")
    nearly = load_cells(4, skew=1e-11)
    found = nearly.diagnose()
    assert not found.structural and not found.well_posed and found.rank < found.unknowns
    with pytest.raises(sd.StructurallySingular, match="(?s)singular at every sampled state.*undetermined"):
        sd.compile(nearly, level="fast")


# ---- diagnosis -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", ["inverse", "forward", "hybrid"])
def test_the_classical_problems_are_well_posed(problem):
    tapered = auto_tree(100, 1.5, 1.5, 0.9)  # inertias over 23 orders of magnitude
    for model in (*map(model_with, ("icub fixed", "icub floating", "puma560", "tree 2")), tapered):
        diagnosis = PROBLEMS[problem](model).diagnose()
        assert diagnosis.well_posed
        assert diagnosis.undetermined == diagnosis.redundant == diagnosis.suggestions == ()
        assert str(diagnosis).startswith("well posed: ")


def test_a_missing_equation_is_named_with_what_to_state():
    problem = inverse_dynamics(icub("floating")) - ExternalWrench("l_ankle_2", ["fz"])
    diagnosis = problem.diagnose()
    assert not diagnosis.well_posed and diagnosis.structural and diagnosis.rank == diagnosis.unknowns - 1
    assert "fx(l_ankle_2).fz" in diagnosis.undetermined
    assert "f(l_ankle_2).fz" in diagnosis.undetermined
    assert diagnosis.redundant == ()
    assert not any("r_hip" in name or "arm" in name for name in diagnosis.undetermined)  # other limbs are not touched
    (suggestion,) = diagnosis.suggestions
    assert suggestion.startswith("state 1 of: ")
    text = str(diagnosis)
    assert "ill posed" in text and "undetermined (by structure, whatever the state)" in text and suggestion in text
    assert "tau(l_knee)" in diagnosis.undetermined  # stating that instead makes it well posed
    assert (problem + JointTorque("l_knee")).diagnose().well_posed


def test_an_equation_too_many_is_named():
    problem = inverse_dynamics(chain(3)) + JointTorque("joint1", name="torque sensor")
    diagnosis = problem.diagnose()
    assert not diagnosis.well_posed and diagnosis.structural
    assert "y:torque sensor: tau(joint1)" in diagnosis.redundant
    assert diagnosis.undetermined == ()
    assert "leave out 1 of: y:torque sensor: tau(joint1)" in diagnosis.suggestions[0]
    assert "redundant or contradictory" in str(diagnosis)


def legs(count: int, seed: int = 2) -> Model:
    """Legs of two bodies that stand on the base: nothing couples them."""
    model = random_tree(2 * count, seed=seed, joints=("revolute",))
    return model.replace(parent=tuple(-1 if i % 2 == 0 else i - 1 for i in range(2 * count)))


def test_one_leg_has_too_much_and_another_too_little():
    """Neither τ nor q̈ of joint 1 is known, both of joint 2: the numbers agree, the structure does not."""
    model = legs(2)
    problem = inverse_dynamics(model) - JointAcceleration("joint1") + JointTorque("joint2", name="sensor")
    system = problem.system()
    assert system.shape[0] == system.shape[1]
    found = structure(system)
    assert (found.free, found.excess) == (1, 1)
    assert {"qdd(joint1)", "tau(joint1)", "tau(joint0)"} <= set(found.undetermined)
    assert "y:sensor: tau(joint2)" in found.redundant
    assert not any("joint2" in name or "body2" in name for name in found.undetermined)
    assert not any("joint1" in name or "body1" in name for name in found.over_unknowns)
    diagnosis = problem.diagnose()
    assert not diagnosis.well_posed and len(diagnosis.suggestions) == 2
    with pytest.raises(sd.StructurallySingular, match=r"structurally singular.*tau\(joint0\)|tau\(joint1\)"):
        sd.compile(problem)


def test_a_leaf_wrench_that_no_equation_sees():
    """The wrench on the end of one leg unknown, the torque of another leg too much: structurally singular."""
    model = legs(2)
    problem = inverse_dynamics(model) - ExternalWrench("body3", ["fx"]) + JointTorque("joint0", name="sensor")
    found = structure(problem.system())
    assert "fx(body3).fx" in found.undetermined and "y:sensor: tau(joint0)" in found.redundant
    # on its own leg the torque of the joint before tells the wrench; its own does not: the force goes through its axis
    problem = inverse_dynamics(model) - ExternalWrench("body3", ["fx"])
    assert structure((problem + JointTorque("joint2")).system()).sound
    assert not structure((problem + JointTorque("joint3")).system()).sound


def test_blocks_of_the_structure_are_consistent():
    """Undetermined unknowns outnumber the equations that speak of them by what is missing; redundant ones likewise."""
    model = random_tree(6, seed=5)
    rng = np.random.default_rng(0)
    names = [name for name, joint in zip(model.joint_names, model.joints, strict=True) if joint.nv]
    for _ in range(6):
        known = [JointTorque(x, name=f"t{x}") for x in names if rng.random() < 0.5]
        known += [JointAcceleration(x, name=f"q{x}") for x in names if rng.random() < 0.5]
        known += [ExternalWrench(x, name=f"w{x}") for x in model.body_names if rng.random() < 0.8]
        system = Problem(model, known).system()
        found = structure(system)
        assert len(found.undetermined) - len(found.from_equations) == found.free
        assert len(found.redundant) - len(found.over_unknowns) == found.excess
        assert found.unknowns - found.equations == found.free - found.excess
        pattern = system.pattern().toarray()
        rank = np.linalg.matrix_rank(system.D(model.random_state(seed=1)[0]).toarray())
        assert rank <= found.unknowns - found.free
        columns = [system.col_names.index(x) for x in found.undetermined]
        rows = {system.row_names.index(x) for x in found.from_equations}
        assert {r for c in columns for r in np.flatnonzero(pattern[:, c])} <= rows


def test_two_feet_on_load_cells_are_singular_by_value():
    """Nori, Property 3: n_x, n_y, f_z of two feet measured; in the plane of the soles the forces are not observable."""
    model = icub("floating")
    feet = ["l_ankle_2", "r_ankle_2"]
    problem = inverse_dynamics(model) - ExternalWrench(feet, ["nz", "fx", "fy"]) + JointTorque(
        model.joint_names[0], name="free base"
    )  # fmt: skip
    diagnosis = problem.diagnose()
    assert diagnosis.equations == diagnosis.unknowns
    assert not diagnosis.well_posed and not diagnosis.structural
    assert diagnosis.rank == diagnosis.unknowns - 1  # rank 5 of 6 for every relative pose
    assert any(name.startswith("fx(l_ankle_2)") for name in diagnosis.undetermined)
    assert any(name.startswith("fx(r_ankle_2)") for name in diagnosis.undetermined)
    assert "by value, at every sampled state" in str(diagnosis)
    (suggestion,) = diagnosis.suggestions
    assert suggestion.startswith("state one of ") and "(1)" in suggestion
    with pytest.raises(sd.StructurallySingular, match=r"(?s)singular at every sampled state.*undetermined.*fx\(l_ank"):
        sd.compile(problem, "umfpack", level="fast")


# ---- numbers as expressions ----------------------------------------------------------------------------------------


def test_assembly_over_any_graph_is_the_same_system():
    system = built("tree 2", "hybrid", "net_force", "substituted")
    q, qd, answer = reference(system.model, 3)
    flat = {"q": q, "qd": qd, **{x: np.ravel(answer[x]) for x in system.problem.known_quantities}}
    entries, b = system.values(flat)
    for sharing in ("none", "structural"):
        assembly = system.assemble(Graph(sharing))
        named = {f"{name}[{k}]": float(x) for name, values in flat.items() for k, x in enumerate(values)}
        r, c = system.coordinates
        symbolic = [assembly.rows[i].get(j, 0.0) for i, j in zip(r.tolist(), c.tolist(), strict=True)]
        found = [float(x) if is_constant(x) and not hasattr(x, "graph") else x for x in symbolic]
        numbers = [x if isinstance(x, float) else evaluate(x, named) for x in found]
        np.testing.assert_allclose(numbers, entries[0], rtol=0, atol=1e-12)
        bias = [x if isinstance(x, float) else evaluate(x, named) for x in assembly.b]
        np.testing.assert_allclose(np.array(bias, dtype=float), b[0], rtol=0, atol=1e-10)
