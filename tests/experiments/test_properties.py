"""The properties that the paper proves, on robots of every kind, and the experiments that reproduce them."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from nori.counters import umfpack_pivots
from nori.curves import COUNTERS, END_TO_END, SOLVE, curve
from nori.harness import FOLDER, load_experiment, read_csv, reproduce
from nori.matrix_aba import matrix_aba, transformations
from nori.orders import torn
from nori.problems import load_cells
from PIL import Image

import sysdyn as sd
from sysdyn.codegen import interpreter
from sysdyn.equations.formulation import KNOWN
from sysdyn.errors import ProblemError, SingularState
from sysdyn.measurements.classical import forward_dynamics, hybrid_dynamics, inverse_dynamics
from sysdyn.measurements.variables import LAYOUTS
from sysdyn.model import Model, auto_tree, chain, random_tree
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline.elimination import Elimination
from sysdyn.reference import newton_euler
from sysdyn.sparse import umfpack

TREES = [chain(1), chain(6), auto_tree(9, 1.5, 1.5, 0.9), *(random_tree(9, seed=s) for s in range(4))]


def with_armature(model: Model) -> Model:
    data = model.to_dict()
    data["armature"] = np.linspace(0.1, 0.5, model.nv).tolist()
    return Model.from_dict(data)


# ---- Property 2: W^L and W^R ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", [*TREES, with_armature(random_tree(6, seed=9))], ids=repr)
def test_property_2_the_triangle_gives_what_the_aba_gives(model, layout, known):
    system = sd.assemble(forward_dynamics(model), layout, known)
    q, qd, _ = model.random_state(seed=1)
    rng = np.random.default_rng(2)
    tau, fx = rng.standard_normal(model.nv), rng.standard_normal((model.nb, 6))
    D, b, W = system.D(q), system.b(q, qd, tau=tau, fx=fx), matrix_aba(system, q)
    triangle = W.triangle(D)
    terms = abs(W.left[3]) @ abs(W.left[2]) @ abs(W.left[1]) @ abs(W.left[0]) @ abs(D) @ abs(W.right)
    above = abs(scipy.sparse.triu(triangle, 1)).max(axis=1).toarray()
    assert (above <= 1e-14 * terms.max(axis=1).toarray()[W.row_perm]).all()  # rounding
    # 1 for q̈ and known quantities, −1 for p and a, in either order of the torque rows
    np.testing.assert_allclose(np.abs(triangle.diagonal()), 1.0, rtol=0, atol=1e-12)
    d = np.zeros(system.layout.n)
    d[system.columns] = W.solve(D, b)
    qdd = d[system.layout.quantity_columns("qdd")]
    np.testing.assert_allclose(qdd, sd.aba(model, q, qd, tau, fx), rtol=1e-11, atol=1e-12)
    assert np.abs(D @ d[system.columns] + b).max() <= 1e-11 * np.abs(d).max() * abs(D).max()


def test_property_2_is_exact():
    """In rational arithmetic nothing at all is left above the diagonal, whatever X is."""
    model = random_tree(5, seed=11)
    assert {joint.nv for joint in model.joints} >= {1, 2}
    exact = np.vectorize(Fraction, otypes=[object])
    rational = SimpleNamespace(
        nb=model.nb, parent=model.parent, joint_names=model.joint_names, v_slice=model.v_slice,
        inertias=exact(model.inertias), armature=exact(model.armature),
        joints=[SimpleNamespace(S=exact(joint.S)) for joint in model.joints],
    )  # fmt: skip
    system = sd.assemble(forward_dynamics(model))
    q = model.random_state(seed=3)[0]
    W = matrix_aba(system, q)
    D = system.D(q)
    dense, columns = exact(D.toarray()), system.layout.columns
    rows = [[r for r, block in enumerate(system.row_blocks) if block == ("a", i)] for i in range(model.nb)]
    X = [exact(np.eye(6)) if p < 0 else dense[np.ix_(rows[i], columns("a", p))] for i, p in enumerate(model.parent)]
    right, left = transformations(rational, X)
    product = multiply(sparse(D), with_blocks(right, system.col_blocks))
    for blocks in left:
        product = multiply(with_blocks(blocks, system.row_blocks), product)
    row, col = np.argsort(W.row_perm), np.argsort(W.col_perm)
    above = {k: x for k, x in product.items() if col[k[1]] > row[k[0]]}
    assert len(product) > len(above) > 0 and not any(above.values())
    assert all(abs(product[k]) == 1 for k in zip(W.row_perm, W.col_perm, strict=True))


def test_matrix_aba_is_for_forward_dynamics():
    model = chain(3)
    for problem in (inverse_dynamics(model), hybrid_dynamics(model, model.joint_names[:1])):
        with pytest.raises(ProblemError, match="all joint torques known"):
            matrix_aba(sd.assemble(problem), np.zeros(3))
    loose = forward_dynamics(model) - sd.ExternalWrench(model.body_names[2])
    with pytest.raises(ProblemError, match="external wrenches"):
        matrix_aba(sd.assemble(loose), np.zeros(3))
    with pytest.raises(sd.InvalidInput, match=r"q has shape \(2,\)"):
        matrix_aba(sd.assemble(forward_dynamics(model)), np.zeros(2))


def test_matrix_aba_names_a_joint_without_inertia():
    data = chain(3).to_dict()
    data["inertias"][2] = np.zeros((6, 6)).tolist()
    system = sd.assemble(forward_dynamics(Model.from_dict(data)))
    with pytest.raises(SingularState, match=f"joint {data['joint_names'][2]!r} moves no inertia"):
        matrix_aba(system, np.zeros(3))


def sparse(matrix: scipy.sparse.spmatrix) -> dict:
    A = matrix.tocoo()
    return {(int(r), int(c)): Fraction(x) for r, c, x in zip(A.row, A.col, A.data, strict=True)}


def with_blocks(blocks: dict, labels: tuple) -> dict:
    """The identity with the blocks in it."""
    places: dict = {}
    for k, label in enumerate(labels):
        places.setdefault(label, []).append(k)
    A = {(k, k): Fraction(1) for k in range(len(labels))}
    for (row, column), block in blocks.items():
        A |= {(r, c): block[i, j] for i, r in enumerate(places[row]) for j, c in enumerate(places[column])}
    return A


def multiply(A: dict, B: dict) -> dict:
    rows: dict = {}
    for (k, c), x in B.items():
        rows.setdefault(k, []).append((c, x))
    product: dict = {}
    for (r, k), x in A.items():
        for c, y in rows.get(k, ()):
            product[r, c] = product.get((r, c), 0) + x * y
    return product


# ---- tearing -------------------------------------------------------------------------------------------------------

PROBLEMS = {
    "inverse": inverse_dynamics,
    "forward": forward_dynamics,
    "hybrid": lambda model: hybrid_dynamics(model, model.joint_names[::2]),
}


def border(system, q) -> tuple[np.ndarray, np.ndarray]:
    """(pivots that are ±1 in their order, what they leave of the block) at q."""
    (rows, columns), (rows_left, columns_left) = torn(system)
    assert sorted(rows + rows_left) == sorted(columns + columns_left) == list(range(system.shape[0]))
    D = system.D(q).toarray()
    A = D[np.ix_(rows, columns)]
    carried = np.linalg.solve(A, D[np.ix_(rows, columns_left)])
    return A, D[np.ix_(rows_left, columns_left)] - D[np.ix_(rows_left, columns)] @ carried


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("model", [chain(4), random_tree(7, seed=1), with_armature(random_tree(6, seed=9))], ids=repr)
def test_tearing_leaves_the_unknown_accelerations(model, problem, layout, known):
    system = sd.assemble(PROBLEMS[problem](model), layout, known)
    q = model.random_state(seed=4)[0]
    A, block = border(system, q)
    assert not np.triu(A, 1).any()
    np.testing.assert_array_equal(np.abs(np.diag(A)), 1.0)
    unknown = [k for k in range(model.nv) if (_joint_of(model, k), 0) not in _stated(system.problem, "qdd")]
    np.testing.assert_allclose(block, sd.crba(model, q)[np.ix_(unknown, unknown)], rtol=0, atol=1e-11)


def _joint_of(model: Model, k: int) -> int:
    return next(i for i in range(model.nb) if model.v_slice(i).start <= k < model.v_slice(i).stop)


def _stated(problem, quantity: str) -> set:
    return {(i, 0) for i, _ in problem.knows(quantity)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tearing_solves_the_load_cells(layout):
    problem = load_cells(7)
    model, system = problem.model, sd.assemble(problem, layout)
    (rows, columns), (rows_left, columns_left) = torn(system)
    assert len(rows_left) == 5
    unknown = [system.col_names[c] for c in columns_left]
    assert sorted(unknown) == sorted(["fx(body6).nz", *(f"qdd(joint{i})" for i in (0, 1, 5, 6))])
    elimination = Elimination(system, rows + rows_left, columns + columns_left)
    program = elimination.program(QUANTITIES)
    q, qd, qdd = model.random_state(seed=1, batch=50)
    fx = np.random.default_rng(1).uniform(-5.0, 5.0, (50, model.nb, 6))
    answer = newton_euler(model, q, qd, qdd, fx)
    inputs = {"q": q, "qd": qd, "qdd": qdd, "fx": fx.reshape(50, -1), "f": answer.f.reshape(50, -1)}
    found = interpreter.run_groups(program, inputs)
    error = np.abs(found["tau"] - answer.tau).max(axis=1) / np.abs(answer.tau).max(axis=1)
    assert np.median(error) <= 1e-11 and error.max() <= 1e-5  # some states are nearly singular


def test_tearing_is_for_raw_measurements():
    class Total(sd.Measurement):
        name = "sum of torques"

        def components(self, model):
            return ("sum",)

        def rows(self, ctx):
            return {("tau", joint): np.ones((1, 1)) for joint in ctx.model.joint_names}

    with pytest.raises(ProblemError, match="'tearing' is defined for raw measurements"):
        torn(sd.assemble(sd.Problem(chain(2), [Total()])))


def test_the_load_cells_of_the_paper():
    for n in (4, 5, 9):
        problem = load_cells(n)
        assert problem.ny == 7 * n and sd.diagnose(problem).well_posed
    assert not sd.diagnose(load_cells(6, skew=0.0)).well_posed


# ---- the experiments -----------------------------------------------------------------------------------------------

NAMES = ("property1", "property2", "property3", "fig2", "segments")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Folder of a quick run of the experiments."""
    if not umfpack.available():
        pytest.skip("scikit-umfpack is not installed")
    folder = tmp_path_factory.mktemp("results")
    page = reproduce(NAMES, folder, quick=True).read_text()
    assert all(f"## {name}: " in page for name in NAMES)
    return folder


def script(name: str):
    return load_experiment(FOLDER / f"{name}.py")


def csv(folder, name: str, **where) -> list[dict]:
    rows = [row for row in read_csv(folder / f"{name}.csv") if all(row[key] == x for key, x in where.items())]
    assert rows, (name, where)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_experiments_draw_and_report(results, name):
    with Image.open(results / f"{name}.png") as image:
        assert min(image.size) > 500 and len(image.getcolors(256) or ()) > 10
    assert (results / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    text = script(name).findings(results)
    assert len(text) > 300 and "nan" not in text and "inf" not in text.split()


@pytest.mark.slow
def test_property_1_experiment(results):
    for row in csv(results, "property1"):
        assert row["above_diagonal"] == row["pivots_not_1"] == 0
    tree = sd.auto_tree(10, 1.5, 1.5, 0.9)
    for row in csv(results, "property1_umfpack"):
        assert row["fill_at_a_state"] == row["fill_of_the_pattern"] == row["pivots_not_alone"] == 0
    (ten,) = csv(results, "property1_umfpack", tree="the paper's tree", bodies=10)
    assert ten["entries"] == sd.assemble(inverse_dynamics(tree)).nnz  # the first bodies are a tree of their own
    assert "Property 1 holds" in script("property1").findings(results)
    cells = csv(results, "property1_matrix")
    assert any(e["column"] > e["row"] for e in cells)
    assert all(e["permuted_column"] <= e["permuted_row"] for e in cells)


@pytest.mark.skipif(not umfpack.available(), reason="scikit-umfpack is not installed")
@pytest.mark.parametrize("seed", range(3))
def test_fill_in_is_that_of_the_pattern(seed):
    diagonal = np.random.default_rng(seed).uniform(1.0, 2.0, 40)
    A = (scipy.sparse.random(40, 40, 0.08, random_state=seed) + scipy.sparse.diags(diagonal)).tocsr()
    filled = (A.toarray() != 0.0)[np.ix_(*umfpack_pivots(A))]
    for k in range(40):
        filled[k + 1 :, k + 1 :] |= np.outer(filled[k + 1 :, k], filled[k, k + 1 :])
    fill, joined = script("property1").fill_in(A)
    assert fill == np.count_nonzero(filled) - A.nnz > 0 and joined > 0


@pytest.mark.slow
def test_property_2_experiment(results):
    for row in csv(results, "property2"):
        assert row["above_diagonal"] <= 1e-13
        assert row["qdd_error"] <= 1e-10
        assert row["above_as_printed"] > 0
        if row["bodies"] > 1 and "random" not in row["tree"]:
            assert row["qdd_error_as_printed"] > 0.1 and row["f_error_as_printed"] > 0.01


@pytest.mark.slow
def test_property_3_experiment(results):
    ranks = {
        pose: {(row["rank_cells"], row["rank_slippery"]) for row in csv(results, "property3_poses", pose=pose)}
        for pose in script("property3").POSES
    }
    assert ranks == {
        "any": {(5, 2)}, "parallel soles": {(5, 1)}, "aligned (the paper's proof)": {(5, 1)},
        "soles in one plane": {(3, 1)},
    }  # fmt: skip
    for row in csv(results, "property3_poses", pose="any"):
        assert row["direction_error"] <= 1e-9
        half = min(row["angle"], np.pi - row["angle"]) / 2
        np.testing.assert_allclose(row["condition_slippery"], 1.0 / np.tan(half), rtol=1e-9)
    missing = {(row["problem"], row["posture"]): row["missing"] for row in csv(results, "property3_biped")}
    assert missing["load cells", "at random"] == 1 and missing["load cells", "standing"] == 3
    assert missing["slippery floor", "at random"] == 0 and missing["slippery floor", "standing"] == 1
    assert missing["slippery floor, (24) as written", "at random"] == 0
    assert missing["slippery floor, (24) as written", "standing"] == 1
    P = script("property3")
    flat, *turned = csv(results, "property3_slippery", form=P.TWO)
    assert flat["ok"] == "False" and flat["message"]
    for row in turned:  # far below, the system counts as singular
        assert row["ok"] == "True" or row["angle"] < 1e-8
        assert row["ok"] == "False" or row["tau_error"] <= 1e-13 / row["angle"]
    assert turned[-1]["tau_error"] <= 1e-13 and turned[-1]["base_force"] <= 1e-11
    least_squares = csv(results, "property3_slippery", form=P.LEAST_SQUARES)
    assert least_squares[-1]["ok"] == "True" and least_squares[-1]["tau_error"] <= 1e-13
    assert all(row["ok"] == "False" or row["tau_error"] <= 1e-13 / row["angle"] for row in least_squares)
    stored = {(row["form"], row["roll"]): row["ok"] for row in read_csv(FOLDER / "results/property3_slippery.csv")}
    ends = [row for row in (flat, *turned, *least_squares) if (row["form"], row["roll"]) in stored]
    assert len(ends) >= 6 and all(row["ok"] == stored[row["form"], row["roll"]] for row in ends)


@pytest.mark.slow
def test_figure_2_experiment(results):
    F = script("fig2")
    found = {(counter, name): curve(csv(results, "fig2"), counter=counter, algorithm=name)
             for counter in COUNTERS for name in F.STYLES}  # fmt: skip
    for n in (4, 6):
        for counter in COUNTERS:
            assert found[counter, F.PERMUTED][n].greatest < found[counter, F.ROWS][n].least
            for name in (F.ROWS, F.PERMUTED):
                states = csv(results, "fig2", bodies=n, counter=counter, algorithm=name)
                assert [row["state"] for row in states] == list(range(F.QUICK_STATES))
        assert found[SOLVE, F.TORN][n].median < found[END_TO_END, F.TORN][n].median
        assert max(row["sqrt"] for row in csv(results, "fig2", bodies=n)) <= 5
        for name in (F.CERTIFIED, F.FOUND):
            assert list(found[SOLVE, name]) == list(found[END_TO_END, name]) == list(F.QUICK_COMPILED)
    plain = sd.assemble(load_cells(6))
    (known, left), system = torn(plain), plain
    elimination = Elimination(system, known[0] + left[0], known[1] + left[1])
    near = elimination.choice("tearing", QUANTITIES).end_to_end.total  # the block in another order
    assert abs(found[END_TO_END, F.TORN][6].median - near) < 0.1 * near
    for row in csv(results, "fig2_states", states="random"):
        assert row["failed"] == 0
    for row in csv(results, "fig2_states", states="multiples of π/2"):
        assert row["failed"] == (row["count"] if row["algorithm"] == F.PERMUTED else 0)
    script_, cells, floor = csv(results, "fig2_problems")
    assert script_["equations"] == script_["unknowns"] == script_["rank"] and script_["error"] < 1e-12
    assert cells["unknowns"] == cells["rank"] + 1 and cells["error"] == ""
    assert floor["equations"] == floor["unknowns"] + 4 and floor["error"] < 1e-12
