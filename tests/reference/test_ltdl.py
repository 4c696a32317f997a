"""LTL and LTDL against dense algebra, planted factors and the counts of RBDA Table 6.6; the tree of freedoms."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from counting import Counted, all_nodes, counted
from hypothesis import given
from hypothesis import strategies as st
from kernels import run_llvm
from oracles import Pinocchio, icub, icub_urdf

from sysdyn.errors import InvalidInput, SingularState
from sysdyn.model import Fixed, Model, Revolute, Spherical, auto_tree, chain, random_tree
from sysdyn.program.autodiff import evaluate
from sysdyn.program.graph import Expr, Graph
from sysdyn.program.opcodes import Flops
from sysdyn.program.program import Program
from sysdyn.reference.ltdl import Factor, expanded_parent, ltdl, ltl, mul_H, sparsity

BOOK = (-1, 0, 1, 2, 0, 3, 3, 4)  # RBDA Table 6.4, counted from 0
METHODS = ("mul_L", "mul_Lt", "solve_L", "solve_Lt", "solve")
trees = st.integers(0, 10).flatmap(lambda n: st.tuples(*(st.integers(-1, k - 1) for k in range(n))))
seeds = st.integers(0, 10**6)


def ancestors(parent: Sequence[int], k: int) -> list[int]:
    found = []
    while parent[k] >= 0:
        k = parent[k]
        found.append(k)
    return found


def planted(parent: Sequence[int], seed: int, batch: tuple[int, ...] = ()) -> tuple[np.ndarray, np.ndarray]:
    """(L, H = L^T L) (*batch, n, n) with the zeros of the tree and a diagonal of L in 0.5 … 2."""
    rng = np.random.default_rng(seed)
    n = len(parent)
    L = np.zeros((*batch, n, n))
    for k in range(n):
        L[..., k, k] = rng.uniform(0.5, 2.0, batch)
        for j in ancestors(parent, k):
            L[..., k, j] = rng.uniform(-0.5, 0.5, batch)
    return L, transposed(L) @ L


def transposed(A: np.ndarray) -> np.ndarray:
    return np.swapaxes(A, -1, -2)


def symbols(graph: Graph, parent: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(symmetric H, lower triangular L, x) of inputs in the places that the tree leaves."""
    n = len(parent)
    H, L = np.full((2, n, n), 0.0, dtype=object)
    for k in range(n):
        for j in (k, *ancestors(parent, k)):
            H[k, j] = H[j, k] = graph.input(f"H{k},{j}")
            L[k, j] = graph.input(f"L{k},{j}")
    return H, L, graph.inputs("x", n)


# ---- the tree of freedoms ------------------------------------------------------------------------------------------


def model_of(joints, parent: Sequence[int]) -> Model:
    """A model of these joints and parents; the rest does not matter."""
    n = len(joints)
    like = chain(n)
    return Model(
        name="tree", body_names=like.body_names, joint_names=like.joint_names, joints=joints, parent=parent,
        X_tree=like.X_tree, inertias=like.inertias,
    )  # fmt: skip


def test_expanded_parents_of_the_book():
    """Joint 2 of 6 of three degrees of freedom: (0, 1, 1, 2, 2, 3) becomes (0, 1, 2, 3, 1, 4, 4, 5), counted from 1."""
    one = Revolute()
    model = model_of((one, Spherical(), one, one, one, one), (-1, 0, 0, 1, 1, 2))
    assert expanded_parent(model) == BOOK


def test_joints_without_freedom_are_passed():
    one, weld = Revolute(), Fixed()
    model = model_of((weld, one, weld, one, weld, one, weld), (-1, 0, 1, 2, 0, 4, 3))
    assert expanded_parent(model) == (-1, 0, -1)
    assert expanded_parent(model_of((weld,), (-1,))) == ()


@given(st.builds(random_tree, st.integers(1, 10), seeds))
def test_expanded_parent_is_the_freedom_before_on_the_way_to_the_base(model):
    parent = expanded_parent(model)
    assert len(parent) == model.nv
    for i in range(model.nb):
        way = [k for j in (i, *ancestors(model.parent, i)) for k in range(model.nv)[model.v_slice(j)]]
        for k in range(model.nv)[model.v_slice(i)]:
            assert parent[k] == max((l for l in way if l < k), default=-1)


@pytest.mark.parametrize("base", ["fixed", "floating"])
def test_expanded_parent_agrees_with_pinocchio(base):
    model = icub(base)
    other = Pinocchio(model, icub_urdf())
    theirs = list(other.data.parents_fromRow)
    row = {-1: -1}  # our degree of freedom → theirs
    for i, j in other.joint.items():
        row |= {model.v_slice(i).start + k: other.pin.joints[j].idx_v + k for k in range(model.joints[i].nv)}
    assert [theirs[row[k]] for k in range(model.nv)] == [row[p] for p in expanded_parent(model)]


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_sparsity_of_chains_and_stars(n):
    unbranched = sparsity(chain(n))
    assert (unbranched.D1, unbranched.D2) == ((n**2 - n) // 2, (n**3 - n) // 6)
    assert (unbranched.nonzeros, unbranched.density) == (n**2, 1.0)
    star = sparsity(model_of((Revolute(),) * n, (-1,) * n))
    assert (star.D1, star.D2, star.nonzeros, star.density) == (0, 0, n, 1 / n)


def test_sparsity_of_the_book_and_of_no_freedom():
    one = Revolute()
    found = sparsity(model_of((one, Spherical(), one, one, one, one), (-1, 0, 0, 1, 1, 2)))
    # depths 1 2 3 4 2 5 5 3
    assert (found.n, found.D1, found.D2, found.nonzeros) == (8, 17, 0 + 1 + 3 + 6 + 1 + 10 + 10 + 3, 42)
    assert found.density == 42 / 64
    assert sparsity(model_of((Fixed(),), (-1,))).density == 1.0


# ---- factors -------------------------------------------------------------------------------------------------------


@given(trees, seeds)
def test_planted_factors_are_found(parent, seed):
    L, H = planted(parent, seed)
    before = H.copy()
    full, unit = ltl(H, parent), ltdl(H, parent)
    assert np.array_equal(H, before) and unit.parent == parent
    d = np.diagonal(L)
    np.testing.assert_allclose(full, L, rtol=0, atol=1e-11)
    np.testing.assert_allclose(unit.D, d * d, rtol=0, atol=1e-11)
    np.testing.assert_allclose(unit.L, L / d[:, None], rtol=0, atol=1e-11)
    assert np.array_equal(np.diagonal(unit.L), np.ones(len(parent)))
    assert np.all((full != 0.0) <= (L != 0.0)) and np.all((unit.L != 0.0) <= (L != 0.0))


def test_factor_is_cholesky_from_the_last_row_up():
    parent = tuple(range(-1, 7))
    _, H = planted(parent, seed=3)
    dense = np.linalg.cholesky(H[::-1, ::-1])[::-1, ::-1].T
    np.testing.assert_allclose(ltl(H, parent), dense, rtol=1e-11, atol=1e-12)


def test_factors_of_very_different_rows():
    size = np.array([1e-12, 1e3, 1e9, 1e-6])
    _, H = planted((-1, 0, 1, 0), seed=4)
    H = H * size[:, None] * size
    L, D, _ = ltdl(H, (-1, 0, 1, 0))
    np.testing.assert_allclose(L.T @ (D[:, None] * L), H, rtol=1e-12)


@given(trees, seeds)
def test_products_and_solves_are_those_of_dense_matrices(parent, seed):
    L, H = planted(parent, seed)
    x = np.random.default_rng(seed).uniform(-1.0, 1.0, len(parent))
    assert_close(mul_H(H, parent, x), H @ x)
    factor = ltdl(H, parent)
    assert_close(factor.mul_L(x), factor.L @ x)
    assert_close(factor.mul_Lt(x), factor.L.T @ x)
    assert_close(factor.solve_L(x), np.linalg.solve(factor.L, x))
    assert_close(factor.solve_Lt(x), np.linalg.solve(factor.L.T, x))
    assert_close(H @ factor.solve(x), x)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * (1.0 + np.max(np.abs(expected), initial=0.0)))


def test_entries_outside_of_the_tree_are_never_used():
    """As RBDA allows: what is above the diagonal of L and where the tree is zero has no influence."""
    L, H = planted(BOOK, seed=0)
    noise = np.where(np.tril(L) == 0.0, 1e6, L)
    x = np.random.default_rng(0).uniform(-1.0, 1.0, 8)
    D = np.full(8, 2.0)
    for name in METHODS:
        assert np.array_equal(getattr(Factor(noise, D, BOOK), name)(x), getattr(Factor(L, D, BOOK), name)(x))
    rounding = np.where(H == 0.0, 1e-13, 0.0)
    assert np.array_equal(mul_H(H + rounding, BOOK, x), mul_H(H, BOOK, x))
    assert np.array_equal(ltdl(H + rounding, BOOK).L, ltdl(H, BOOK).L)


def test_batches_are_the_single_states():
    _, H = planted(BOOK, seed=1, batch=(3, 2))
    x = np.random.default_rng(1).uniform(-1.0, 1.0, (3, 1, 8))
    many, roots, product = ltdl(H, np.array(BOOK)), ltl(H, BOOK), mul_H(H, BOOK, x)
    for i, j in np.ndindex(3, 2):
        one = ltdl(H[i, j], BOOK)
        assert_close(many.L[i, j], one.L)
        assert_close(many.D[i, j], one.D)
        assert_close(roots[i, j], ltl(H[i, j], BOOK))
        for method in METHODS:
            assert_close(getattr(many, method)(x)[i, j], getattr(one, method)(x[i, 0]))
        assert_close(product[i, j], H[i, j] @ x[i, 0])
    assert ltdl(H[:0], BOOK).L.shape == (0, 2, 8, 8)
    assert many.solve(x[:1, 0]).shape == (3, 2, 8)


# ---- programs and counts -------------------------------------------------------------------------------------------

COUNTED = {
    "one": (-1,),
    "chain": tuple(range(-1, 6)),
    "star": (-1,) * 6,
    "star on a body": (-1, 0, 0, 0, 0),
    "book": BOOK,
    "forest": (-1, -1, 0, 1, 2, 2, 1, 6),
    **{f"random {seed}": expanded_parent(random_tree(9, seed, joints=("revolute",))) for seed in range(3)},
    **{f"all joints {seed}": expanded_parent(random_tree(7, seed)) for seed in range(3)},
    "floating": expanded_parent(random_tree(5, 3, joints=("free", "spherical", "planar"))),
    "paper's tree": expanded_parent(auto_tree(12, 2)),
}


def depths(parent: Sequence[int]) -> tuple[int, int, int]:
    """(n, D1, D2) of RBDA §6.5."""
    d = [1 + len(ancestors(parent, k)) for k in range(len(parent))]
    return len(d), sum(k - 1 for k in d), sum(k * (k - 1) // 2 for k in d)


def table(parent: Sequence[int]) -> dict[str, Flops]:
    """RBDA Table 6.6; products and solves with the unit L of H = L^T D L."""
    n, D1, D2 = depths(parent)
    return {
        "ltl": Flops(mul=D2, add=D2, div=D1, sqrt=n),
        "ltdl": Flops(mul=D2, add=D2, div=D1),
        "mul_H": Flops(mul=n + 2 * D1, add=2 * D1),
        **{name: Flops(mul=D1, add=D1) for name in METHODS[:4]},
        "solve": Flops(mul=2 * D1, add=2 * D1, div=n),
    }


@pytest.mark.parametrize("name", COUNTED)
def test_counts_are_those_of_the_book(name):
    parent = COUNTED[name]
    for sharing in ("none", "structural"):
        graph = Graph(sharing)
        H, L, x = symbols(graph, parent)
        factor = ltdl(H, parent)
        found = {
            "ltl": graph.count(ltl(H, parent).flat),
            "ltdl": graph.count([*factor.L.flat, *factor.D]),
            "mul_H": graph.count(mul_H(H, parent, x)),
        }
        factor = Factor(L, graph.inputs("D", len(parent)), parent)
        assert found | {method: graph.count(getattr(factor, method)(x)) for method in METHODS} == table(parent)


@pytest.mark.parametrize("name", COUNTED)
def test_an_instrumented_run_executes_what_the_book_counts(name):
    parent = COUNTED[name]
    algorithms = importlib.import_module("sysdyn.reference.ltdl")
    paths = [tuple(ancestors(parent, k)) for k in range(len(parent))]
    L, H = (np.vectorize(Counted, otypes=[object])(A) for A in planted(parent, seed=2))
    x, D = (np.array([Counted(1.0 + k) for k in range(len(parent))]) for _ in range(2))
    runs = {
        # below what makes floats of its arguments
        "ltl": lambda: algorithms.ltl_at_state(paths, None, H),
        "ltdl": lambda: algorithms.ltdl_at_state(paths, None, H),
        "mul_H": lambda: algorithms.mul_H_at_state(paths, H, x),
        **{m: partial(getattr(algorithms, f"{m}_at_state"), paths, x, L) for m in METHODS[:4]},
        "solve": lambda: algorithms.solve_at_state(paths, x, L, D),
    }
    found = {}
    for key, run in runs.items():
        Counted.log.clear()
        run()
        found[key] = counted(Counted.log)
    assert found == table(parent)


def test_structural_zeros_within_the_tree_cost_nothing():
    """A zero that H has for another reason is free too, for as long as nothing fills it in."""
    graph = Graph("none")
    H, _, _ = symbols(graph, (-1, 0, 1))
    H[2, 0] = H[0, 2] = 0.0
    ltdl(H, (-1, 0, 1))
    assert all_nodes(graph) == Flops(mul=2, add=2, div=2)  # two steps, each on one diagonal entry


@pytest.mark.parametrize("name", ["book", "all joints 0", "floating"])
def test_compiled_programs_give_what_floats_give(name):
    parent = COUNTED[name]
    graph = Graph()
    H, _, x = symbols(graph, parent)
    entries = [e for e in dict.fromkeys(H.flat) if type(e) is Expr]
    factor = ltdl(H, parent)
    results = {m: getattr(factor, m)(x) for m in METHODS}
    results |= {"mul_H": mul_H(H, parent, x), "ltl": ltl(H, parent).ravel()}
    program = Program.from_graph(graph, [("H", entries), ("x", x)], list(results.items()))

    _, numbers = planted(parent, seed=5, batch=(9,))
    vectors = np.random.default_rng(5).uniform(-1.0, 1.0, (9, len(parent)))
    places = [np.argwhere(H == e)[0] for e in entries]
    compiled = run_llvm(4, 2)(program, {"H": numbers[:, *np.transpose(places)], "x": vectors}, 9)
    numeric = ltdl(numbers, parent)
    for method in METHODS:
        assert_close(compiled[method], getattr(numeric, method)(vectors))
    assert_close(compiled["mul_H"], np.einsum("kij,kj->ki", numbers, vectors))
    assert_close(compiled["ltl"].reshape(numbers.shape), ltl(numbers, parent))


def test_factor_of_numbers_takes_symbolic_vectors():
    _, H = planted(BOOK, seed=6)
    graph = Graph()
    x = graph.inputs("x", 8)
    solution = ltdl(H, BOOK).solve(x)
    n, D1, _ = depths(BOOK)
    assert graph.count(solution) == Flops(mul=2 * D1, add=2 * D1, div=n)
    b = np.arange(8.0)
    values = evaluate(solution, {f"x[{k}]": b[k] for k in range(8)})
    assert_close(values, np.linalg.solve(H, b))


# ---- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [ltl, ltdl, lambda H, parent: mul_H(H, parent, np.zeros(len(parent)))])
@pytest.mark.parametrize(
    "parent, named",
    [
        ((0, 0, 1), r"parent\[0\] = 0: .* has to be −1 \(the base\)$"),
        ((-1, 2, 1), r"parent\[1\] = 2: .* one of the rows 0 … 0$"),
        ((-1, 0, -2), r"parent\[2\] = -2"),
        ((-1, 0, 1.0), r"parent\[2\] = 1.0: the number of a row"),
        ((-1, False, 0), r"parent\[1\] = False: the number of a row"),
        (("base", 0, 0), r"parent\[0\] = 'base'"),
        (np.zeros((3, 3), dtype=int), r"parent\[0\] = array"),
    ],
)
def test_a_parent_that_is_no_tree_is_named(function, parent, named):
    with pytest.raises(InvalidInput, match=named):
        function(np.eye(3), parent)


def _bad_matrices():
    _, H = planted(BOOK, seed=7)
    yield "shape", H[:3], r"H has shape \(3, 8\), but \(…, 8, 8\) is needed"
    yield "scalar", 1.0, r"H has shape \(\), but"
    yield "nan", np.where(np.eye(8) == 1.0, np.nan, H), r"H is nan at entry \(0, 0\)"
    yield "text", np.full((8, 8), "a"), "H has type"
    outside = H.copy()
    outside[1, 4] = outside[4, 1] = 0.01
    yield "outside", outside, r"H\[1, 4\] is 0.01, but neither of 1 and 4 .* ancestors of 4 are \[0\]"
    yield "outside in a batch", np.stack([H, outside]), r"H\[1, 4\] is 0.01 in state 1, "
    yield "outside in batches", np.stack([H, outside])[:, None], r"H\[1, 4\] is 0.01 in state \(1, 0\), "
    lopsided = H.copy()
    lopsided[3, 1] += 1e-3
    yield "lopsided", lopsided, r"H is not symmetric: H\[1, 3\] is .* but H\[3, 1\] is "
    yield "lower half only", np.tril(H), r"H is not symmetric: H\[0, 1\] is 0.0, "


BAD_MATRICES = {name: (H, named) for name, H, named in _bad_matrices()}


@pytest.mark.parametrize("function", [ltl, ltdl, lambda H, parent: mul_H(H, parent, np.zeros(8))])
@pytest.mark.parametrize("name", BAD_MATRICES)
def test_a_matrix_that_does_not_fit_is_named(function, name):
    H, named = BAD_MATRICES[name]
    with pytest.raises(InvalidInput, match=named):
        function(H, BOOK)


def test_a_symbolic_matrix_that_does_not_fit_is_named():
    graph = Graph()
    H, _, _ = symbols(graph, BOOK)
    H[6, 5] = graph.input("stray")
    with pytest.raises(InvalidInput, match=r"H\[6, 5\] is stray, but neither of 6 and 5"):
        ltdl(H, BOOK)


def test_constants_among_symbols_are_checked_too():
    graph = Graph()
    h = graph.input("h")
    assert graph.count(ltdl([[h, 1], [1, 2]], (-1, 0)).D) == Flops(add=1)  # h − 1/2 · 1
    with pytest.raises(SingularState, match="row 1 is 0 "):
        ltdl([[h, 0], [0, 0]], (-1, 0))
    with pytest.raises(InvalidInput, match=r"H is nan at entry \(1, 1\)"):
        ltdl([[h, 0], [0, np.nan]], (-1, 0))
    with pytest.raises(InvalidInput, match=r"H has shape \(\), but"):
        ltdl(h, (-1, 0))
    with pytest.raises(InvalidInput, match="H holds something that is not a real number"):
        ltdl([[h, 0], [0, "one"]], (-1, 0))


@pytest.mark.parametrize("method", METHODS)
def test_vectors_that_do_not_fit_are_named(method):
    _, H = planted(BOOK, seed=8, batch=(3,))
    factor = ltdl(H, BOOK)
    with pytest.raises(InvalidInput, match=r"x has shape \(7,\), but \(…, 8\) is needed"):
        getattr(factor, method)(np.zeros(7))
    with pytest.raises(InvalidInput, match=r"do not fit together: x \(2,\), L \(3,\)"):
        getattr(factor, method)(np.zeros((2, 8)))
    with pytest.raises(InvalidInput, match=r"x is inf at entry 2"):
        getattr(factor, method)(np.array([0.0, 0.0, np.inf, 0.0, 0.0, 0.0, 0.0, 0.0]))


@pytest.mark.parametrize("function", [ltl, ltdl])
def test_a_matrix_that_is_not_positive_definite_names_its_row(function):
    L, H = planted(BOOK, seed=9)
    broken = H.copy()
    broken[4, 4] -= 2.0 * L[4, 4] ** 2  # what is left of it is −L[4, 4]²
    with pytest.raises(SingularState, match=rf"row 4 is {-(L[4, 4] ** 2):.3g} ") as error:
        function(broken, BOOK)
    assert (error.value.equation, error.value.unknown, error.value.states) == ("H[4]", "x[4]", ())
    broken[4, 4] = H[4, 4] - L[4, 4] ** 2 * (1.0 - 1e-16)  # rounding is left
    with pytest.raises(SingularState, match="row 4 is "):
        function(broken, BOOK)
    with pytest.raises(SingularState, match=r"H is not positive definite: the pivot of row 2 is 0 "):
        function(np.diag([1.0, 1.0, 0.0]), (-1, 0, 1))


@pytest.mark.parametrize("function", [ltl, ltdl])
def test_the_states_of_a_batch_that_are_not_positive_definite_are_listed(function):
    _, H = planted((-1, 0, 0), seed=9, batch=(2500,))
    H[[3, 2499], 1, 1] = -1.0
    with pytest.raises(SingularState, match="in 1 of the states given: the pivot of row 1 ") as error:
        function(H, (-1, 0, 0))
    assert error.value.states == (3,)
    with pytest.raises(SingularState) as error:
        function(H[4:], (-1, 0, 0))
    assert error.value.states == (2495,)


def test_a_symbolic_matrix_whose_pivot_is_known_not_to_be_positive():
    graph = Graph()
    H, _, _ = symbols(graph, (-1, 0))
    H[1, 1] = 0.0
    with pytest.raises(SingularState, match="row 1 is 0 "):
        ltdl(H, (-1, 0))
    H[1, 1], H[0, 1], H[1, 0] = 1.0, 2.0, 2.0
    H[0, 0] = 4.0
    with pytest.raises(SingularState, match="row 0 is 0 "):
        ltl(np.block([[H, np.zeros((2, 1))], [np.zeros((1, 2)), np.array([[graph.input("h")]])]]), (-1, 0, -1))
