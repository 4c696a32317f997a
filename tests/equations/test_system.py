"""D d + b = 0: layouts, names, blocks, known quantities, pattern, numbers as expressions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import icub
from robots import ROBOTS
from systems import PROBLEMS, built, check_reference_solves, cross_force, reference

import sysdyn as sd
from sysdyn.equations.assembly import Assembly, with_entry_inputs
from sysdyn.equations.formulation import KNOWN
from sysdyn.equations.newton_euler import newton_euler as assembled
from sysdyn.measurements.classical import forward_dynamics, inverse_dynamics
from sysdyn.measurements.variables import LAYOUTS, Layout
from sysdyn.model import JOINTS, chain, random_tree
from sysdyn.model.generate import RANDOM_JOINTS
from sysdyn.program.autodiff import evaluate
from sysdyn.program.graph import Graph, is_constant, is_zero


@pytest.mark.parametrize(("layout", "size"), [("paper", 20), ("net_force", 26)])
def test_scalars_a_body_with_one_freedom(layout, size):
    for n in (1, 2, 5):
        model = chain(n)
        system = sd.assemble(forward_dynamics(model), layout)
        assert system.layout.n == size * n == len(system.col_names) == len(set(system.col_names))
        assert system.shape == (size * n, size * n)
        own = [name for name in system.row_names if name.startswith("c:")]
        assert len(own) == (size - 7) * n  # 13 of the paper, 19 of its published code
        assert len(system.row_names) == len(set(system.row_names)) == size * n


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scalars_of_joints_with_other_freedoms(layout):
    model = random_tree(9, seed=1)
    system = sd.assemble(forward_dynamics(model), layout)
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
    check_reference_solves(sd.assemble(PROBLEMS[problem](model), layout, known), seed)


def test_every_type_of_joint_is_among_those_trees():
    kinds = {type(joint) for seed in range(20) for joint in random_tree(6, seed=seed).joints}
    assert kinds == {JOINTS[kind] for kind in RANDOM_JOINTS}


def test_armature_is_in_the_torque_rows():
    model = chain(2).replace(armature=(0.5, 0.0))
    system = sd.assemble(forward_dynamics(model))
    D = system.D([0.1, 0.2]).toarray()
    column = [system.col_names.index(f"qdd(joint{i})") for i in range(2)]
    row = [system.row_names.index(f"c:tau(joint{i})") for i in range(2)]
    assert D[row[0], column[0]] == 0.5
    assert D[row[1], column[1]] == 0.0
    assert D[row[0], system.col_names.index("tau(joint0)")] == -1.0


def test_blocks_are_those_of_the_paper():
    """Nori eqs. (5), (6), block by block, on a tree at a random state."""
    model = random_tree(5, seed=11)
    system = sd.assemble(forward_dynamics(model))
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
    system = sd.assemble(inverse_dynamics(model))
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
    several = sd.assemble(forward_dynamics(random_tree(1, seed=0, joints=("planar",))))
    assert [x for x in several.col_names if x.startswith("tau")] == [f"tau(joint0)[{k}]" for k in range(3)]
    assert "640 equations, 640 unknowns" in repr(system)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["icub fixed", "icub floating", *ROBOTS, "tree 0", "tree 1", "tree 2", "tree 3"])
def test_worst_case_pattern_contains_all_sampled_ones_and_is_tight(name, layout):
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
    system = sd.assemble(inverse_dynamics(random_tree(nb, seed=seed)))
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


def test_assembly_over_any_graph_is_the_same_system():
    system = built("tree 2", "hybrid", "net_force", "substituted")
    q, qd, answer = reference(system.model, 3)
    flat = {"q": q, "qd": qd, **{x: np.ravel(answer[x]) for x in system.problem.known_quantities}}
    entries, b = system.values(flat)
    for sharing in ("none", "structural"):
        assembly = system.build(Graph(sharing))
        named = {f"{name}[{k}]": float(x) for name, values in flat.items() for k, x in enumerate(values)}
        r, c = system.coordinates
        symbolic = [assembly.rows[i].get(j, 0.0) for i, j in zip(r.tolist(), c.tolist(), strict=True)]
        found = [float(x) if is_constant(x) and not hasattr(x, "graph") else x for x in symbolic]
        numbers = [x if isinstance(x, float) else evaluate(x, named) for x in found]
        np.testing.assert_allclose(numbers, entries[0], rtol=0, atol=1e-12)
        bias = [x if isinstance(x, float) else evaluate(x, named) for x in assembly.b]
        np.testing.assert_allclose(np.array(bias, dtype=float), b[0], rtol=0, atol=1e-10)


def test_definitions_of_unknowns():
    """Exact rows of one unknown, then those of each body from the leaves, forces first; noisy ones define nothing."""
    noise = [sd.ModelNoise("f", "body1", noise=1.0), sd.JointAcceleration("all", noise=1.0)]
    known = [sd.ExternalWrench("body0"), sd.ExternalWrench("body1", noise=1.0), sd.BodyAcceleration("body1", ["a_x"])]
    system = sd.assemble(sd.Problem(chain(3), [*noise, *known])).plain
    D = system.D(np.full(3, 0.3)).toarray()
    pairs = system.unit_pivots()
    rows, columns = zip(*pairs, strict=True)
    assert len(set(rows)) == len(set(columns)) == len(pairs) and not set(rows) & set(system.noise_by_row)
    np.testing.assert_array_equal(np.abs(D[rows, columns]), 1.0)
    single = [(D[r] != 0.0).sum() == 1 for r in rows]
    assert single == sorted(single, reverse=True)
    blocks = dict.fromkeys(system.col_blocks[c] for c, alone in zip(columns, single, strict=True) if not alone)
    forces = {0: ("f", "tau"), 1: ("tau",), 2: ("f", "tau")}
    assert list(blocks) == [(x, i) for i in (2, 1, 0) for x in (*forces[i], "a")]
    left = {block for c, block in enumerate(system.col_blocks) if c not in columns}
    assert left == {("f", 1), ("fx", 1), ("fx", 2), ("qdd", 0), ("qdd", 1), ("qdd", 2)}


def test_equations_are_cut_into_pieces_if_asked():
    """With each body, of its transforms, its velocity and its rows; not by themselves."""
    system = built("tree 2")
    pieces = []
    for segmented in (False, True):
        graph = Graph("structural")
        system.build(graph, segmented=segmented)
        pieces.append(len(graph.cuts))
    assert pieces[0] == 0 and pieces[1] > 2 * system.model.nb


def test_entries_as_inputs():
    """Values that are equal or opposite share one, constants are none."""
    graph, other = Graph("structural"), Graph("structural")
    x, y = graph.inputs("x", 2)
    values = x * y, -(x * y), x + 1.0, 2.5, x * y, -(x * x)
    system = with_entry_inputs(Assembly(graph, (), [dict(enumerate(values))], [0.0]), other)
    ((_, inputs),) = system.inputs
    numbers = {"entry[0]": -1.5, "entry[1]": 4.0, "entry[2]": 9.0}
    assert len(inputs) == len(numbers)
    row = np.array(list(system.rows[0].values()), dtype=object)
    assert np.array_equal(evaluate(row, numbers), [-1.5, 1.5, 4.0, 2.5, -1.5, -9.0])
