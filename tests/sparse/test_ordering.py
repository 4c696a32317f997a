"""Elimination orders: every start of every entry of ORDERINGS, the search for safe pivots, and life without UMFPACK."""

from __future__ import annotations

import functools
import subprocess
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from robots import load_robot

import sysdyn as sd
from sysdyn.errors import BackendUnavailable, NoSafeOrdering, SingularState
from sysdyn.offline.check import SampledStates
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.sampling import sample_matrix, sample_states
from sysdyn.sparse import umfpack
from sysdyn.sparse.lu import Pivots, eliminate
from sysdyn.sparse.markowitz import choose_rows, markowitz
from sysdyn.sparse.orderings import ORDERINGS
from sysdyn.sparse.quasidefinite import quasidefinite
from sysdyn.sparse.sampled import MIN_COLUMN_RATIO, MIN_VARIATION, SampledElimination, SampledMatrix, Tree

STATES = 48
EXACT = [name for name in ORDERINGS if name != "symmetric"]  # The orders of systems without noise.
STARTS = [(name, k) for name in EXACT for k in range(len(ORDERINGS[name]))]
MODELS = {
    "tree": lambda: sd.auto_tree(4, 2, 1.1, 0.9),
    "chain": lambda: sd.chain(4),
    "all joints": lambda: sd.random_tree(5, seed=2),
}
PROBLEMS = {
    "inverse": sd.inverse_dynamics,
    "forward": sd.forward_dynamics,
    "hybrid": lambda model: sd.hybrid_dynamics(model, torque=model.joint_names[::2]),
}

needs_umfpack = pytest.mark.skipif(not umfpack.available(), reason="scikit-umfpack is not installed")


@functools.cache
def sampled_system(model: str, problem: str) -> tuple[SampledMatrix, np.ndarray]:
    """The sampled matrix of a problem and its right-hand sides (states, rows)."""
    made = PROBLEMS[problem](MODELS[model]())
    system, states = sd.assemble(made), sample_states(made, STATES)
    _, b = system.values(states)
    return sample_matrix(system, states), np.broadcast_to(b, (STATES, system.shape[0]))


def matrix(a: SampledMatrix, k: int) -> np.ndarray:
    return scipy.sparse.csr_matrix((a.values[k], (a.row, a.col)), shape=(a.n, a.n)).toarray()


def solve(a: SampledMatrix, b: np.ndarray, k: int, order) -> np.ndarray:
    rows: list[dict] = [{} for _ in range(a.n)]
    for i, j, x in zip(a.row.tolist(), a.col.tolist(), a.values[k].tolist(), strict=True):
        rows[i][j] = x
    return np.array(eliminate(rows, b[k].tolist(), *order).solution)


def worst_error(a: SampledMatrix, b: np.ndarray, order) -> float:
    """Greatest backward error over the states at which joints stand at right angles; infinite for a zero pivot."""
    try:
        return max(backward_error(a, b, k, solve(a, b, k, order)) for k in range(1, STATES, 2))
    except SingularState:
        return np.inf


def backward_error(a: SampledMatrix, b: np.ndarray, k: int, x: np.ndarray) -> float:
    A = matrix(a, k)
    scale = np.abs(A).sum(axis=1).max() * np.abs(x).max() + np.abs(b[k]).max()
    return float(np.abs(A @ x + b[k]).max() / scale)


# ---- the table -----------------------------------------------------------------------------------------------------


# Each robot with one of the problems first, each problem with one of the robots.
SYSTEMS = [
    (m, list(PROBLEMS)[(k + turn) % len(PROBLEMS)]) for turn in range(len(PROBLEMS)) for k, m in enumerate(MODELS)
]


@pytest.mark.parametrize(("name", "start"), STARTS)
@pytest.mark.parametrize(("model", "problem"), SYSTEMS)
def test_orders_are_permutations_whose_pivots_stay_away_from_zero(name, start, model, problem):
    """At every sampled state, multiples of π/2 among them."""
    if name == "umfpack" and not umfpack.available():
        pytest.skip("scikit-umfpack is not installed")
    a, b = sampled_system(model, problem)
    order = ORDERINGS[name][start](a)
    for permutation in order[:2]:
        assert sorted(permutation) == list(range(a.n))
        assert all(type(i) is int for i in permutation)
    for k in range(STATES):
        assert backward_error(a, b, k, solve(a, b, k, order)) < 1e-12


@needs_umfpack
def test_an_order_for_one_state_is_not_acceptable():
    """Forward dynamics of a chain in UMFPACK's own order: precise where it was made, useless at right angles."""
    a, b = sampled_system("chain", "forward")
    order = Pivots(*umfpack.permutations(a.weighted(1.0)))
    assert worst_error(a, b, order) > 1e-6
    system = sd.assemble(PROBLEMS["forward"](MODELS["chain"]()))
    assert not Elimination(system, *order).check(SampledStates.of(system, 256)).report.acceptable


@pytest.mark.parametrize(("name", "start"), STARTS)
def test_orders_are_the_same_each_time(name, start):
    if name == "umfpack" and not umfpack.available():
        pytest.skip("scikit-umfpack is not installed")
    a, _ = sampled_system("all joints", "forward")
    assert ORDERINGS[name][start](a) == ORDERINGS[name][start](a)


@pytest.mark.parametrize("name", ["tearing", "markowitz"])
def test_searches_give_up_beyond_their_budget(name):
    a, _ = sampled_system("chain", "forward")
    with pytest.raises(NoSafeOrdering, match="more expensive"):
        ORDERINGS[name][0](replace(a, budget=10))
    assert ORDERINGS[name][0](replace(a, budget=1e6)) == ORDERINGS[name][0](a)


# ---- choose_rows ---------------------------------------------------------------------------------------------------


def small(*rows: dict[int, object]) -> SampledMatrix:
    """A sampled matrix from rows of constants and arrays of samples."""
    entries = [(i, j, x) for i, row in enumerate(rows) for j, x in sorted(row.items())]
    states = max((np.size(x) for _, _, x in entries), default=1)
    return SampledMatrix(
        len(rows),
        np.array([i for i, _, _ in entries], dtype=np.int32),
        np.array([j for _, j, _ in entries], dtype=np.int32),
        np.array([np.broadcast_to(x, states) for _, _, x in entries], dtype=float).T,
        np.array([np.ndim(x) == 0 for _, _, x in entries]),
        np.ones(len(rows), dtype=bool),
    )


X = np.linspace(-1.5, 1.5, 13)  # 0, 1 and −1 among them
ANGLE = np.arange(8) * np.pi / 4


def test_a_column_without_a_safe_entry_waits_until_it_has_one():
    """Both entries of column 0 vanish at some x; once column 1 is eliminated by row 0, 1 − x² − (−x) x = 1 is left."""
    a = small({0: X, 1: 1.0}, {0: 1.0 - X**2, 1: -X})
    assert choose_rows(a, [0, 1]) == Pivots([0, 1], [1, 0])
    assert markowitz(a) == Pivots([0, 1], [1, 0])


SIGN_CHANGE, ONE_SIGN = np.array([1.0, -1.0, 1.0, 1.0]), np.array([0.2, 0.5, 1.0, 1.0])
NEGLIGIBLE, LARGE = np.array([7.0, 1e-3, 7.0, 7.0]), np.array([7.0, 7.0, 7.0, 7.1])
# In each matrix row 1 is the better pivot row of column 0.
SECOND_ROW = {
    "±1 costs no division": ({0: 3.0, 1: 1.0}, {0: -1.0, 1: X}),
    "does not vanish": ({0: X, 1: 1.0}, {0: 5.0 + X, 1: 1.0}),
    "not negligible in its column": ({0: NEGLIGIBLE, 1: 2.0}, {0: LARGE, 1: 3.0, 2: 2.0}, {1: X[:4] + 4.0, 2: 2.0}),
    "of one sign": ({0: SIGN_CHANGE, 1: 3.0}, {0: ONE_SIGN, 1: 1.0}),
}


@pytest.mark.parametrize("case", SECOND_ROW)
def test_safe_rows_are_preferred(case):
    a = small(*SECOND_ROW[case])
    assert choose_rows(a, range(a.n)).rows[0] == 1


def test_columns_keep_their_order_if_their_pivots_are_safe():
    a = small({0: 1.0, 2: X}, {1: 2.0 + X}, {1: X, 2: -1.0})
    assert choose_rows(a, [2, 0, 1]).columns == [2, 0, 1]
    assert choose_rows(a, [1, 0, 2]).columns == [1, 0, 2]


def test_without_a_safe_entry_the_best_one_is_the_pivot():
    """Entries that vary by a factor of 100 or 10,000, and entries that all change their sign."""
    weak, weaker = np.array([0.01, 1.0, 0.5]), np.array([1e-4, 1.0, 0.5])
    rows, columns, _ = choose_rows(small({0: weaker, 1: weak}, {0: weak, 1: weaker * 2.0}), [0, 1])
    assert (rows[0], columns[0]) in ((1, 0), (0, 1))
    a = small({0: SIGN_CHANGE, 1: SIGN_CHANGE[::-1]}, {0: 2.0 * SIGN_CHANGE[::-1], 1: SIGN_CHANGE})
    assert sorted(choose_rows(a, [0, 1]).rows) == [0, 1]


SIN, COS = np.round(np.sin(ANGLE), 15), np.round(np.cos(ANGLE), 15)
ROTATION = ({0: COS, 1: -SIN}, {0: SIN, 1: COS})
SINGULAR = ({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0})


@pytest.mark.parametrize("name", ["markowitz", "tearing"])
def test_a_singular_matrix_runs_out_of_entries(name):
    with pytest.raises(NoSafeOrdering, match="without an entry"):
        ORDERINGS[name][0](small(*SINGULAR))


@pytest.mark.parametrize("name", ["markowitz", "tearing"])
def test_columns_without_a_safe_entry_are_orthogonalised(name):
    """A rotation has no entry that does not vanish at some multiple of π/2."""
    a = small(*ROTATION)
    order = ORDERINGS[name][0](a)
    assert set(order.rotated_with) == {0} and len(order.rotated_with[0]) == 1
    for k in range(len(ANGLE)):
        b = np.zeros((len(ANGLE), 2))
        b[:, 0] = -1.0
        np.testing.assert_allclose(solve(a, b, k, order), [COS[k], -SIN[k]], atol=1e-15)


@needs_umfpack
@pytest.mark.parametrize("start", range(len(ORDERINGS["umfpack"])))
def test_umfpack_is_silent_about_singular_matrices(start):
    """Its order is there or is refused; the zero pivot is found when somebody eliminates."""
    a = small(*SINGULAR)
    try:
        order = ORDERINGS["umfpack"][start](a)
    except NoSafeOrdering:
        return
    with pytest.raises(SingularState):
        solve(a, np.ones((1, 2)), 0, order)


def test_a_cancelled_entry_is_no_fill_in():
    """Row 1 loses its entry in column 1 for every x, so that column 1 must take row 2."""
    a = small({0: 1.0, 1: X}, {0: X, 1: X**2, 2: 1.0}, {1: 2.0 + X / 2.0, 2: X})
    assert choose_rows(a, [0, 1, 2]) == Pivots([0, 2, 1], [0, 1, 2])


def test_entries_that_are_zero_at_a_state_stay_in_the_pattern():
    a = small({0: np.array([0.0, 1.0]), 1: 1.0}, {0: 1.0, 1: np.array([0.0, 2.0])})
    made = a.weighted(1e-3)
    assert made.nnz == 4 and np.all(made.data != 0.0)
    assert a.with_values(np.ones((3, 4))).values.shape == (5, 4)


# ---- look-ahead ----------------------------------------------------------------------------------------------------


@st.composite
def matrices(draw) -> SampledMatrix:
    """Nonsingular with a full diagonal: constants, units and state-dependent entries, some of which cancel."""
    n = draw(st.integers(3, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows: list[dict] = []
    for i in range(n):
        row = {int(j): (1.0, -1.0, 2.5, X, 2.0 + X)[rng.integers(5)] for j in np.flatnonzero(rng.random(n) < 0.4)}
        rows.append(row | {i: (1.0, 3.0, 5.0 + X)[rng.integers(3)]})
    return replace(small(*rows), rhs=rng.random(n) < 0.5)


def contents(state: SampledElimination) -> tuple:
    """Everything an elimination changes, by value."""
    rows = [{j: x.tolist() for j, x in row.items()} for row in state.rows]
    columns, unit = ([set(x) for x in sets] for sets in (state.columns, state.unit_columns))
    return rows, columns, unit, list(state.rhs), set(state.deferred_columns), state.budget


@settings(max_examples=60, deadline=None)
@given(matrices(), st.integers(0, 2**32 - 1))
def test_a_trial_leaves_no_trace(a, seed):
    """At every step of an elimination pivots are tried and undone; the next one is what it was tried as."""
    rng = np.random.default_rng(seed)
    state = SampledElimination(a)

    def take(left: set[int]) -> None:
        j = int(rng.choice(sorted(left)))
        i = max(state.columns[j], key=lambda i: (np.abs(state.rows[i][j]).min(), i), default=None)
        if i is not None and np.abs(state.rows[i][j]).min() > 0.0:
            state.eliminate(i, j)
            left.discard(j)

    left = set(range(a.n))
    state.deferred_columns = {0}
    for _ in range(a.n):
        before, arrays = contents(state), [dict(row) for row in state.rows]
        with state.trial():
            trying = set(left)
            for _ in range(rng.integers(1, len(left) + 1)):
                if trying:
                    take(trying)
        assert contents(state) == before
        assert all(now[j] is x for now, row in zip(state.rows, arrays, strict=True) for j, x in row.items())
        with pytest.raises(KeyError), state.trial():
            take(set(left))
            raise KeyError
        assert contents(state) == before
        fresh = rng.bit_generator.state
        with state.trial():
            take(set(left))
            tried = contents(state)[:4]
        rng.bit_generator.state = fresh
        take(left)
        assert contents(state)[:4] == tried
        if not left:
            break


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("robot", ["puma560", "rx90", "gen6R"])
def test_looking_ahead_saves_operations(robot):
    """The cheapest of the starts that do, end to end, compared to that of the others."""
    problem = sd.forward_dynamics(load_robot(robot)[0])
    system = sd.assemble(problem)
    a = sample_matrix(system, sample_states(problem, STATES))
    starts = ORDERINGS["markowitz"]
    greedy, ahead = (
        min(Elimination(system, *start(a)).choice("", problem.quantities).end_to_end.total for start in part)
        for part in (starts[:2], starts[2:])
    )
    assert ahead < greedy


def quasidefinite_matrix(seed: int) -> SampledMatrix:
    """[H A^T; A −G] of 14 unknowns and 12 equations, every third of them noisy, sparse, at six states."""
    rng, n, m = np.random.default_rng(seed), 14, 12
    there = rng.random((m, n)) < 0.3
    there[np.arange(m), np.arange(m)] = True
    A = there * rng.choice((-1.0, 1.0), (6, m, n)) ** (rng.random((m, n)) < 0.2) * rng.uniform(0.2, 2.0, (6, m, n))
    values = np.zeros((6, n + m, n + m))
    values[:, n:, :n], values[:, :n, n:] = A, A.transpose(0, 2, 1)
    values[:, range(n), range(n)], values[:, range(n, n + m, 3), range(n, n + m, 3)] = 1.0, -0.5
    row, col = np.nonzero(np.abs(values).max(axis=0))
    tree = Tree((-1,) * (n + m), (), (True,) * n + (False,) * m)
    fixed, rhs = np.zeros(len(row), dtype=bool), np.ones(n + m, dtype=bool)
    return SampledMatrix(
        n + m, row, col, values[:, row, col], fixed, rhs, units=(np.ones(n + m), np.ones(n + m)), tree=tree
    )


@pytest.mark.parametrize("seed", range(20))
def test_pairs_of_quasidefinite_matrices_are_safe_when_they_are_taken(seed):
    """In what is left of the matrix then, by a dense elimination."""
    a = quasidefinite_matrix(seed)
    rows, columns, _ = quasidefinite(a, by_node=False)
    left = np.array([matrix(a, k) for k in range(len(a.values))])
    done: list[int] = []
    for i, j in zip(rows, columns, strict=True):
        entry, column = np.abs(left[:, i, j]), np.abs(np.delete(left[:, :, j], [*done, i], axis=1))
        if i != j and i not in columns[: len(done)]:  # the first of a pair
            assert entry.min() >= 0.99 * MIN_VARIATION * entry.max()
            assert (entry[:, None] >= 0.99 * MIN_COLUMN_RATIO * column).all()
        left = left - left[:, :, [j]] * left[:, [i]] / left[:, [[i]], [[j]]]
        done.append(i)


# ---- UMFPACK -------------------------------------------------------------------------------------------------------


@needs_umfpack
def test_umfpack_triangularises_what_is_triangular():
    """A permuted triangular matrix: every order is found again without fill-in."""
    rng = np.random.default_rng(0)
    n = 20
    L = np.tril(rng.random((n, n)) < 0.3) * rng.uniform(1.0, 2.0, (n, n)) + 3.0 * np.eye(n)
    A = L[rng.permutation(n)][:, rng.permutation(n)]
    P, Q = umfpack.permutations(scipy.sparse.csc_matrix(A))
    rows = [{int(j): float(A[i, j]) for j in np.flatnonzero(A[i])} for i in range(n)]
    factors = eliminate(rows, [1.0] * n, P, Q)
    assert factors.triangular and factors.fill_in == 0


@pytest.fixture
def no_umfpack(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "scikits.umfpack", None)  # importing it raises ImportError
    monkeypatch.setenv("SYSDYN_CACHE", str(tmp_path))


def test_without_umfpack_asking_for_it_names_the_remedy(no_umfpack):
    assert not umfpack.available()
    problem = sd.forward_dynamics(sd.auto_tree(2, 1, 1.5, 0.9))
    with pytest.raises(BackendUnavailable, match="pip install --no-build-isolation scikit-umfpack") as error:
        sd.compile(problem, ordering="umfpack", backend="python")
    assert "libsuitesparse-dev" in str(error.value) and "markowitz" in str(error.value)
    with pytest.raises(BackendUnavailable):
        umfpack.permutations(scipy.sparse.eye(2).tocsc())
    assert isinstance(error.value, ImportError)


@pytest.mark.parametrize("ordering", ["auto", "markowitz", "aba"])
def test_without_umfpack_the_other_orders_work(no_umfpack, ordering):
    model = sd.auto_tree(3, 1, 1.5, 0.9)
    solver = sd.compile(sd.forward_dynamics(model), ordering=ordering, backend="python")
    q, qd, tau = model.random_state(seed=0)
    np.testing.assert_allclose(solver(q, qd, tau).qdd, sd.aba(model, q, qd, tau), rtol=1e-9)
    if ordering == "auto":
        assert "UMFPACK is not available" in solver.report()


def test_a_library_that_is_broken_is_unavailable(monkeypatch):
    """The wrapper is there, SuiteSparse's shared library is not."""

    def context(family: str):
        raise OSError("libumfpack.so.5: cannot open shared object file")

    module = types.ModuleType("scikits.umfpack")
    module.UmfpackContext = context
    monkeypatch.setitem(sys.modules, "scikits.umfpack", module)
    if "scikits" in sys.modules:
        monkeypatch.setattr(sys.modules["scikits"], "umfpack", module, raising=False)
    assert not umfpack.available()
    with pytest.raises(BackendUnavailable, match="libumfpack.so.5"):
        umfpack.permutations(scipy.sparse.eye(2).tocsc())


def test_the_package_imports_without_umfpack():
    """In a fresh interpreter."""
    code = (
        "import sys; sys.modules['scikits.umfpack'] = None\n"
        "import sysdyn\n"
        "print(len(sysdyn.assemble(sysdyn.inverse_dynamics(sysdyn.auto_tree(2))).columns))"
    )
    found = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "40"
