"""SKO models of robots against other code; symbols, counts and errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pinocchio as pin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import Pinocchio, icub, icub_urdf
from sko_models import abstract, check, freedoms, geared, random_tasks

import sysdyn as sd
from sysdyn.errors import InvalidInput, ModelError, SingularState, UnknownName
from sysdyn.model import Model, Revolute, auto_tree, chain, random_tree
from sysdyn.program.autodiff import evaluate
from sysdyn.program.graph import Graph
from sysdyn.reference import aba, rnea
from sysdyn.reference.crba import crba
from sysdyn.reference.flops import count_flops
from sysdyn.reference.ltdl import ltdl
from sysdyn.reference.operators import (
    SPO,
    BackwardLyapunov,
    BlockDiagonal,
    ForwardLyapunov,
    SKOModel,
    segment_tree,
    task_frames,
)

counts, seeds = st.integers(1, 8), st.integers(0, 10**6)


# ---- robots --------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(counts, seeds)
def test_robots_have_the_dynamics_of_the_textbook_algorithms(n, seed):
    """All joint types, external wrenches, gravity, armature."""
    model = geared(n, seed)
    q, qd, qdd = model.random_state(seed)
    fx = np.random.default_rng(seed).standard_normal((n, 6))
    sko = SKOModel.from_model(model, q, qd, fx)
    tau = rnea(model, q, qd, qdd, fx)
    check(sko.inverse_dynamics(qdd), tau)
    check(sko.mass_matrix(), crba(model, q))
    check(sko.C, rnea(model, q, qd, 0.0 * qdd, fx))
    check(sko.forward_dynamics(tau), aba(model, q, qd, tau, fx))


def test_without_velocities_only_gravity_is_left():
    model = geared(6, seed=2)
    q, _, qdd = model.random_state(0)
    sko = SKOModel.from_model(model, q)
    check(sko.C, rnea(model, q, 0.0 * qdd, 0.0 * qdd))


def test_rotors_make_nodes_of_more_than_six_components():
    model = random_tree(3, seed=4, joints=("revolute", "cylindrical"))
    model = model.replace(armature=np.r_[0.3, np.zeros(model.nv - 1)])
    sko = SKOModel.from_model(model, model.random_state(0)[0])
    assert sko.phi.sizes == (7, 6, 6) and sko.M[0][6, 6] == 0.3
    assert all(not np.any(weight[6:]) for k, weight in enumerate(sko.phi.weights) if model.parent[k] == 0)


def test_the_innovations_factor_is_that_of_ltdl():
    """H = L^T D L (RBDA Table 6.3) and ℳ = [1 + H φ K] D [1 + H φ K]* are one for single degrees of freedom."""
    model = random_tree(7, seed=3, joints=("revolute", "prismatic", "helical"))
    q, _, _ = model.random_state(3)
    sko, factor = SKOModel.from_model(model, q), ltdl(crba(model, q), model.parent)
    check(sko.innovations.to_dense().T, factor.L)
    check(np.concatenate([block.ravel() for block in sko.riccati.D.blocks]), factor.D)


def test_noris_block_rows_are_operators():
    """c(a): −φ⁻* α + H* θ̈ + a = 0;  c(f): M α − φ⁻¹ f + b = 0;  c(τ): H f − T = 0."""
    model = random_tree(6, seed=5)
    q, qd, _ = model.random_state(1)
    sko, system = SKOModel.from_model(model, q, qd), sd.assemble(sd.forward_dynamics(model))
    D, b = system.D(q).toarray(), system.b(q, qd, tau=np.zeros(model.nv))
    rows = {x: [i for i, block in enumerate(system.row_blocks) if block[0] == x] for x in ("a", "f", "tau")}
    cols = {x: [i for i, block in enumerate(system.col_blocks) if block[0] == x] for x in ("a", "f", "tau", "qdd")}
    blocks = {
        ("a", "a"): -sko.phi.inv.T.to_dense(), ("a", "qdd"): sko.H.T.to_dense(),
        ("f", "a"): sko.M.to_dense(), ("f", "f"): -sko.phi.inv.to_dense(), ("tau", "f"): sko.H.to_dense(),
    }  # fmt: skip
    for x in rows:
        for y in cols:
            zero = -np.eye(model.nv) if (x, y) == ("tau", "tau") else np.zeros((len(rows[x]), len(cols[y])))
            check(D[np.ix_(rows[x], cols[y])], blocks.get((x, y), zero))
    check(b[rows["a"]], sko.a)
    check(b[rows["f"]], sko.b)


@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_icub_against_pinocchio(base):
    """Mass matrix, its inverse, accelerations, and operational-space inertia of four frames."""
    model = icub(base)
    other = Pinocchio(model, icub_urdf())
    q, qd, tau = model.random_state(seed=3)
    sko, position = SKOModel.from_model(model, q, qd), other.position(q)
    to_pin = np.column_stack([other.theirs(column) for column in np.eye(model.nv)])

    def symmetric(upper: np.ndarray) -> np.ndarray:
        return np.triu(upper) + np.triu(upper, 1).T

    check(sko.mass_matrix(), to_pin.T @ symmetric(pin.crba(other.pin, other.data, position)) @ to_pin)
    inverse = symmetric(pin.computeMinverse(other.pin, other.data, position))
    check(sko.mass_inv.to_dense(), to_pin.T @ inverse @ to_pin)
    check(sko.forward_dynamics(tau), other.aba(q, qd, tau))

    names = ["l_foot", "r_foot", "l_hand", "head"]
    tasks = task_frames(model, *names)
    linear_first = np.kron(np.eye(len(names)), np.roll(np.eye(6), 3, axis=0))
    contacts, data = pin.StdVec_RigidConstraintModel(), pin.StdVec_RigidConstraintData()
    for name in names:
        frame = other.pin.frames[other.pin.getFrameId(name)]
        contacts.append(
            pin.RigidConstraintModel(
                pin.ContactType.CONTACT_6D, other.pin, frame.parentJoint, frame.placement, pin.LOCAL
            )
        )
        data.append(contacts[-1].createData())
    delassus = pin.computeDelassusMatrix(other.pin, other.data, position, contacts, data)
    check(sko.operational_space_compliance(tasks), linear_first.T @ delassus @ linear_first)
    cholesky = pin.ContactCholeskyDecomposition(other.pin, other.data, contacts, data)
    cholesky.compute(other.pin, other.data, contacts, data)
    check(
        sko.operational_space_inertia(tasks),
        linear_first.T @ cholesky.getOperationalSpaceInertiaMatrix() @ linear_first,
    )


# ---- Expr ----------------------------------------------------------------------------------------------------------


def symbolic(sko: SKOModel) -> tuple[SKOModel, Graph, dict[str, float]]:
    """The model with every entry of every block an input, the graph, and the values of the inputs."""
    graph, values = Graph(), {}

    def inputs(name: str, array: np.ndarray) -> np.ndarray:
        result = graph.inputs(name, array.size).reshape(array.shape)
        values.update((graph.input_names[x.id], value) for x, value in zip(result.flat, array.flat, strict=True))
        return result

    def blocks(name: str, arrays) -> list[np.ndarray]:
        return [inputs(f"{name}{k}", array) for k, array in enumerate(arrays)]

    phi, H, M = blocks("phi", sko.phi.weights), blocks("H", sko.H.blocks), blocks("M", sko.M.blocks)
    return SKOModel(sko.parent, phi, H, M, inputs("a", sko.a), inputs("b", sko.b)), graph, values


@settings(max_examples=10)
@given(st.builds(abstract, st.integers(1, 5), seeds), seeds)
def test_symbolic_models_give_what_floats_give(sko, seed):
    T = np.random.default_rng(seed).standard_normal(sum(sko.H.rows))
    tasks = random_tasks(sko, seed)
    model, graph, values = symbolic(sko)
    forces = graph.inputs("T", len(T))
    values.update((f"T[{k}]", value) for k, value in enumerate(T))
    order = np.argsort(freedoms(sko, sorted(segment_tree(sko.parent))))
    for ours, reference in (
        (model.forward_dynamics(forces), sko.forward_dynamics(T)),
        (model.inverse_dynamics(forces), sko.inverse_dynamics(T)),
        (model.mass_matrix(), sko.mass_matrix()),
        (model.mass @ forces, sko.mass @ T),
        (model.operational_space_compliance(tasks), sko.operational_space_compliance(tasks)),
        (model.aggregated().forward_dynamics(forces[np.argsort(order)])[order], sko.forward_dynamics(T)),
        (np.array([model.determinant()]), np.array([sko.determinant()])),
    ):
        check(np.asarray(evaluate(ours, values), dtype=float), reference)


# ---- counts --------------------------------------------------------------------------------------------------------


def uniform(n: int) -> tuple[SKOModel, Graph]:
    """A chain of n equal bodies at a symbolic state."""
    model, graph = auto_tree(n, 1, 1.5, 1.0), Graph()
    return SKOModel.from_model(model, graph.inputs("q", n), graph.inputs("qd", n)), graph


def phi_x(sko: SKOModel, graph: Graph) -> list:
    return list(sko.phi @ graph.inputs("x", sum(sko.phi.sizes)))


def phi_transposed_x(sko: SKOModel, graph: Graph) -> list:
    return list(sko.phi.T @ graph.inputs("x", sum(sko.phi.sizes)))


def diagonal_of_omega(sko: SKOModel, graph: Graph) -> list:
    return [entry for block in sko.Omega.Y.blocks for entry in block.flat]


def inverse_dynamics(sko: SKOModel, graph: Graph) -> list:
    return list(sko.inverse_dynamics(graph.inputs("qdd", sum(sko.H.rows))))


def forward_dynamics(sko: SKOModel, graph: Graph) -> list:
    return list(sko.forward_dynamics(graph.inputs("T", sum(sko.H.rows))))


def compliance_of_both_ends(sko: SKOModel, graph: Graph) -> list:
    return list(sko.operational_space_compliance([(0, np.eye(6)), (len(sko.parent) - 1, np.eye(6))]).flat)


LINEAR = (phi_x, phi_transposed_x, inverse_dynamics, forward_dynamics, diagonal_of_omega, compliance_of_both_ends)


def operations(n: int, quantity) -> int:
    sko, graph = uniform(n)
    return graph.count(quantity(sko, graph)).total


@pytest.mark.parametrize("quantity", LINEAR)
@pytest.mark.parametrize("n", [30, pytest.param(90, marks=pytest.mark.slow)])
def test_counts_grow_by_the_same_for_each_body(quantity, n):
    ten, eleven = operations(10, quantity), operations(11, quantity)
    assert eleven > ten
    assert operations(n, quantity) == ten + (n - 10) * (eleven - ten)


def test_the_documented_cost_of_a_body():
    """Inverse dynamics costs what the RNEA costs."""

    def body(count) -> int:
        return count(11) - count(10)

    text = (Path(__file__).parents[2] / "docs" / "operators.md").read_text(encoding="utf-8")
    names = ("φ x", "φ* x", "inverse dynamics", "forward dynamics", "diagonal of Ω")
    for name, quantity in zip(names, LINEAR, strict=False):
        assert f"| {name} | {body(lambda n, quantity=quantity: operations(n, quantity))} |" in text
    book = {f: body(lambda n, f=f: count_flops(f, auto_tree(n, 1, 1.5, 1.0)).total) for f in (rnea, aba)}
    assert f"| inverse dynamics | {book[rnea]} |" in text and f"The ABA needs {book[aba]}" in text


@pytest.mark.parametrize("n", [10, 20, 40])
def test_lambda_costs_n_k_and_n_k_squared(n):
    """Ω's diagonal: n; a frame: its path, at most n; a pair: the same for any n. Then Λ is the inverse, (6 k)³."""
    for k in (1, 2, 5):
        sko, graph = uniform(n)
        tasks = [(n - 1 - (i * n) // k, np.eye(6)) for i in range(k)]
        compliance = graph.count(sko.operational_space_compliance(tasks).flat).total
        assert compliance <= 1060 * n + 250 * n * k + 450 * k * k
        inertia = graph.count(sko.operational_space_inertia(tasks).flat).total
        assert inertia <= compliance + 2 * (6 * k) ** 3


# ---- bad input -----------------------------------------------------------------------------------------------------

CHAIN = (-1, 0, 1)  # of nodes "a", "b", "c" with 2, 3 and 2 components and a degree of freedom each


def made(**changes) -> SKOModel:
    """A small model with some arguments changed; a dict changes single blocks."""
    rng = np.random.default_rng(0)
    sizes = (2, 3, 2)
    arguments = {
        "parent": CHAIN,
        "phi": [None, rng.standard_normal((2, 3)), rng.standard_normal((3, 2))],
        "H": [rng.standard_normal((1, m)) for m in sizes],
        "M": [np.eye(m) for m in sizes],
        "names": ("a", "b", "c"),
    }
    for name, value in changes.items():
        if isinstance(value, dict):
            value = [value.get(k, block) for k, block in enumerate(arguments[name])]
        arguments[name] = value
    return SKOModel(**arguments)


BAD_MODELS = {
    "cycle": ({"parent": (-1, 2, 1)}, "the parent of node 1 ('b') is 2"),
    "its own parent": ({"parent": (-1, 1, 0)}, "the parent of node 1 ('b') is 1"),
    "two parents": ({"parent": (-1, 0, (0, 1))}, "the parent of node 2 ('c') is (0, 1); each node of a tree has one"),
    "no such node": ({"parent": (-1, 0, 7)}, "the parent of node 2 ('c') is 7; valid: −1 (the inertial node) to 2"),
    "child first": ({"parent": (1, -1, 1)}, "is 1: number the nodes so that parents come first"),
    "no node": ({"parent": (), "phi": [], "H": [], "M": [], "names": None}, "at least one node"),
    "names": ({"names": ("a", "b")}, "2 names, but parent has 3 nodes"),
    "blocks of H": ({"H": [np.eye(2)]}, "H has 1 blocks, but parent has 3 nodes"),
    "weights": ({"phi": [None, np.ones((2, 3))]}, "2 weights, but parent has 3 nodes"),
    "shape of a weight": (
        {"phi": {2: np.ones((2, 2))}},
        "the weight φ(1, 2) of the edge from node 2 ('c') to its parent node 1 ('b') has shape (2, 2), but with blocks "
        "of 3 and 2 it has to be (3, 2)",
    ),
    "no weight": (
        {"phi": {1: None}},
        "the weight φ(0, 1) of the edge from node 1 ('b') to its parent node 0 ('a') has",
    ),
    "nan in a weight": ({"phi": {1: np.full((2, 3), np.nan)}}, "φ(0, 1)"),
    "text": ({"phi": {1: np.full((2, 3), "x")}}, "has dtype <U1; real numbers"),
    "columns of H": ({"H": {1: np.ones((1, 2))}}, "H of node 1 ('b') has shape (1, 2); its M is 3×3"),
    "rank of H": ({"H": {1: np.ones((2, 3))}}, "H of node 1 ('b'), of shape (2, 3), has rank 1"),
    "too many degrees of freedom": ({"H": {0: np.eye(3)[:, :2]}}, "H of node 0 ('a'), of shape (3, 2), has rank 2"),
    "square M": ({"M": {2: np.ones((2, 3))}}, "M of node 2 ('c') has shape (2, 3); a square matrix is needed"),
    "symmetric M": ({"M": {2: np.array([[1.0, 0.5], [0.4, 1.0]])}}, "M of node 2 ('c') is not symmetric"),
    "a": ({"a": np.zeros(6)}, "a has shape (6,)"),
    "b of one state": ({"b": np.zeros((2, 7))}, "b has shape (2, 7); an SKO model is of one state"),
    "nan in b": ({"b": np.full(7, np.nan)}, "b is nan at entry 0"),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_what_is_wrong_with_a_model_is_named(name):
    changes, message = BAD_MODELS[name]
    with pytest.raises((ModelError, InvalidInput)) as error:
        made(**changes)
    assert message in str(error.value)


def test_the_small_model_itself_is_right():
    made()


def test_inertia_that_does_not_suffice_names_the_node():
    for M, pivot in ((np.zeros((2, 2)), "0"), (-np.eye(2), "-")):
        with pytest.raises(
            SingularState, match=r"H P H\* of node 2 \('c'\) is not positive definite: pivot 0 is"
        ) as error:
            _ = made(M={2: M}).riccati
        assert error.value.unknown == "qdd(c)[0]" and f"pivot 0 is {pivot}" in str(error.value)


def test_massless_tip_is_named_for_floats_and_symbols_and_armature_helps():
    model = chain(3)
    inertias = model.inertias.copy()
    inertias[2] = 0.0
    model = model.replace(inertias=inertias)
    q, qd, tau = model.random_state(0)
    for state in (q, Graph().inputs("q", 3)):
        with pytest.raises(SingularState, match=r"node 2 \('body2'\)"):
            SKOModel.from_model(model, state).forward_dynamics(tau)
    armed = model.replace(armature=np.array([0.0, 0.0, 0.1]))
    check(SKOModel.from_model(armed, q, qd).forward_dynamics(tau), aba(armed, q, qd, tau))


def test_freedoms_that_coincide_at_a_state_are_found_though_rounding_hides_them():
    """Massless rings whose outer axis is the inner one when the middle angle is 0."""
    axis = np.array([0.48, 0.6, 0.64])
    rotor = random_tree(1, seed=3).inertias
    model = Model(
        name="gimbals",
        body_names=("ring", "disc", "rotor"),
        joint_names=("outer", "middle", "inner"),
        joints=(Revolute(axis), Revolute(np.cross(axis, np.eye(3)[0])), Revolute(axis)),
        parent=(-1, 0, 1),
        X_tree=np.broadcast_to(np.eye(6), (3, 6, 6)),
        inertias=np.concatenate([np.zeros((2, 6, 6)), rotor]),
    )
    for inner in np.linspace(-3.0, 3.0, 30):
        with pytest.raises(SingularState, match="'ring'"):
            SKOModel.from_model(model, np.array([0.7, 0.0, inner])).determinant()
    assert SKOModel.from_model(model, np.array([0.7, 0.6, -0.4])).determinant() > 0.0


def test_operators_and_vectors_that_do_not_fit():
    sko, other = made(), robot_of_two()
    A = BlockDiagonal([np.eye(2), np.eye(3), np.eye(2)])
    with pytest.raises(InvalidInput, match=r"SPO \[2, 3, 2\] × \[2, 3, 2\] @ an array of shape \(6,\); \(7,\)"):
        sko.phi @ np.zeros(6)
    with pytest.raises(InvalidInput, match="do not compose"):
        sko.H @ other.phi
    with pytest.raises(InvalidInput, match="do not compose"):
        sko.H @ sko.H
    with pytest.raises(InvalidInput, match="cannot be added"):
        sko.phi + sko.H
    with pytest.raises(TypeError):
        np.zeros(7) @ sko.phi
    with pytest.raises(ModelError, match=r"block 1 has shape \(2,\)"):
        BlockDiagonal([np.eye(2), np.ones(2)])
    for product in (ForwardLyapunov, BackwardLyapunov):
        with pytest.raises(InvalidInput, match="X is BlockDiagonal"):
            product(sko.phi, sko.H)
        with pytest.raises(InvalidInput, match="different trees"):
            product(sko.phi, A, SPO((-1, 0, 0), (2, 3, 2), [None, np.ones((2, 3)), np.ones((2, 2))]))
    for call, name in ((sko.forward_dynamics, "T"), (sko.inverse_dynamics, "qdd")):
        for wrong in (np.zeros(4), np.zeros((3, 3)), np.array([0.0, np.nan, 0.0])):
            with pytest.raises(InvalidInput, match=f"^{name}"):
                call(wrong)


def robot_of_two() -> SKOModel:
    model = chain(2)
    return SKOModel.from_model(model, np.zeros(2))


def test_components_given_twice_have_no_operational_space_inertia():
    model = random_tree(3, seed=0, joints=("free",))
    for seed in range(20):
        q, _, _ = model.random_state(seed)
        again = np.random.default_rng(seed).standard_normal((6, 2))
        with pytest.raises(SingularState, match=r"component \d of task \d, on node 2 \('body2'\)"):
            SKOModel.from_model(model, q).operational_space_inertia([(2, np.eye(6)), (2, again)])


def test_groups_tasks_and_states_that_do_not_fit():
    sko, model = made(), random_tree(3, seed=0, joints=("revolute",))
    for groups, message in (
        ([[0, 2], [1]], r"group \[0, 2\] is not connected: the parent of node 2 is 1"),
        ([[0, 1]], "see node 2"),
        ([[0, 1], [1, 2]], "see node 1"),
        ([[0, 1, 2, 3]], "see node 3"),
    ):
        with pytest.raises(InvalidInput, match=message):
            sko.aggregated(groups)
    for task in ((3, np.eye(2)), (-1, np.eye(2)), (1, np.eye(2)), (0, np.ones(2))):
        with pytest.raises(InvalidInput, match="task 1 is on node"):
            sko.operational_space_compliance([(0, np.eye(2)), task])
    with pytest.raises(SingularState, match=r"component \d of task 0, on node 0 \('a'\)"):
        sko.operational_space_inertia([(0, np.eye(2))])  # one degree of freedom
    with pytest.raises(UnknownName, match="body1"):
        task_frames(model, "bodi1")
    with pytest.raises(InvalidInput, match="fixed to the base"):
        task_frames(model, "base")
    with pytest.raises(InvalidInput, match="of one state"):
        SKOModel.from_model(model, np.zeros((2, 3)))
    with pytest.raises(InvalidInput, match=r"q has shape \(2,\)|\(3,\)"):
        SKOModel.from_model(model, np.zeros(2))
    with pytest.raises(InvalidInput, match="no moving bodies"):
        SKOModel.from_model(Model("none", (), (), (), (), np.zeros((0, 6, 6)), np.zeros((0, 6, 6))), np.zeros(0))
