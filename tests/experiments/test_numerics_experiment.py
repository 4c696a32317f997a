"""Numerical behaviour of fixed orders: what the files claim, and the parts they are made of."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from nori.harness import FOLDER, load_experiment, read_csv, reproduce, write_csv
from nori.problems import load_cells

import sysdyn as sd
from sysdyn.equations.backward_error import residual_at
from sysdyn.offline.check import ZERO
from sysdyn.offline.sampling import is_singular, sample_matrix, sample_states
from sysdyn.sparse import umfpack

needs_umfpack = pytest.mark.skipif(not umfpack.available(), reason="scikit-umfpack is not installed")
NUMERICS = load_experiment(FOLDER / "numerics.py")
PROBLEM = sd.forward_dynamics(sd.auto_tree(4, 1, 1.5, 0.9))
ORDERS = ("aba", pytest.param("paper", marks=needs_umfpack))
FEW = 12


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    reproduce(["numerics"], folder, quick=True)
    return folder


@pytest.fixture(scope="module")
def matrix():
    return NUMERICS.Matrix(sd.assemble(PROBLEM))


@pytest.fixture(scope="module")
def sampled(matrix):
    states = sample_states(PROBLEM, 2 * FEW)
    return sample_matrix(matrix.system, {name: x[::2] for name, x in states.items()})


@pytest.fixture(scope="module")
def states():
    return sample_states(PROBLEM, 2 * FEW, seed=5)


def rows(results: Path, name: str = "numerics", **values) -> list[dict]:
    found = [row for row in read_csv(results / f"{name}.csv") if all(row[key] == x for key, x in values.items())]
    assert found, values
    return found


def dense_factors(A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(L, U) of A without pivoting, L with a unit diagonal."""
    U, L = A.copy(), np.eye(len(A))
    for k in range(len(A)):
        L[k + 1 :, k] = U[k + 1 :, k] / U[k, k]
        U[k + 1 :] -= np.outer(L[k + 1 :, k], U[k])
        U[k + 1 :, k] = 0.0
    return L, U


# ---- what the files claim --------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_umfpack
def test_the_order_of_one_state_meets_zero_pivots_at_right_angles(results):
    for problem in dict.fromkeys(row["problem"] for row in rows(results)):
        random, right = rows(results, problem=problem, order="paper")
        assert (random["at"], right["at"]) == NUMERICS.KINDS
        assert random["zero_pivot"] == 0 < right["zero_pivot"] and right["error"] == math.inf
        assert right["error_median"] > 1e-3 and random["error_median"] < 1e-14
        assert 0 < random["crossing"] <= random["pivots"] and random["growth"] > 1e4
    for row in rows(results, "numerics_one"):
        assert row["zero_pivot"] > row["of"] / 2 and row["crossing"] > 0


@pytest.mark.slow
def test_safe_orders_do_not(results):
    safe = [row for row in rows(results, problem="forward, 4 bodies") if row["order"] in NUMERICS.SAFE]
    assert len(safe) >= 2
    for row in safe:
        assert row["zero_pivot"] == row["crossing"] == row["unsolved"] == row["guarded"] == row["singular"] == 0
        assert row["least_pivot"] > 0.01 and row["growth"] < 100 and row["error"] < 1e-14
        assert row["determinant_crosses"] == 0


@pytest.mark.slow
@needs_umfpack
def test_safety_has_its_price(results):
    ones = [row for row in rows(results, "numerics_one") if row["problem"] == "forward, 4 bodies"]
    for row in rows(results, problem="forward, 4 bodies", order="umfpack"):
        assert all(row[x] > one[x] for one in ones for x in ("fill_in", "end_to_end"))
    share = row["end_to_end"] / np.median([one["end_to_end"] for one in ones]) - 1
    assert f"{100 * share:+.0f} % and" in NUMERICS.findings(results)


@pytest.mark.slow
def test_the_load_cells_have_singular_states_and_zero_pivots_only_there(results):
    random, right = rows(results, problem="load cells, 8 bodies", order="tearing")
    assert random["determinant_crosses"] and random["crossing"] > 0
    assert random["singular"] == 0 < right["singular"] and right["states"] + right["singular"] == random["states"]
    assert random["zero_pivot"] == right["zero_pivot"] == right["guarded"] == 0
    assert right["error"] < 1e-12


def test_rows_tell_how_many_states_the_compiled_solver_answers():
    problem = load_cells(8)
    states = sample_states(problem, 2 * FEW)
    found = NUMERICS.guarded_solver(problem, "tearing", [states])
    assert found["guarded"] == 2 * FEW >= found["guarded_solved"] > FEW and float(found["guarded_error"]) < 1e-12


@pytest.mark.slow
def test_pivoting_at_each_state_always_works(results):
    assert all(row["error"] < 1e-14 for row in rows(results, order="pivoted"))


@pytest.mark.slow
def test_shares_fall_with_the_error(results):
    for row in rows(results):
        part = rows(results, "numerics_error", problem=row["problem"], order=row["order"], at=row["at"])
        assert part[-1]["share"] == 1.0 and part[0]["share"] == pytest.approx(1 / row["states"], rel=1e-3)
        assert part[0]["error"] == pytest.approx(row["error"], rel=1e-2)
        assert all(a["share"] < b["share"] and a["error"] >= b["error"] for a, b in zip(part, part[1:], strict=False))


@pytest.mark.slow
@needs_umfpack
def test_pivots_vanish_along_a_path(results):
    """At the points found a leading minor of P D Q is zero, which at their neighbours it is not."""
    path = rows(results, "numerics_path")
    assert not any(row["pivot_is_zero"] for row in path if row["order"] != "paper")
    assert max(row["error"] for row in path if row["order"] == "aba") < 1e-14
    zero = sorted({row["t"] for row in path if row["pivot_is_zero"]})
    assert zero and all(row["error"] > 1e-9 for row in path if row["pivot_is_zero"])
    system = sd.assemble(PROBLEM)
    generic = sample_states(PROBLEM, 2 * NUMERICS.ONE_STATES)
    sampled = sample_matrix(system, {name: x[::2] for name, x in generic.items()})
    P, Q, _ = NUMERICS.pivots(PROBLEM, sampled, "paper")
    a, b = sample_states(PROBLEM, 4, seed=1)["q"][:4:2]

    def least(t: float) -> float:
        A = system.D(a + t * (b - a)).toarray()[P][:, Q]
        return min(np.linalg.svd(A[:k, :k], compute_uv=False)[-1] for k in range(1, len(A) + 1))

    for t in zero:
        assert least(t) < 1e-12 < 1e-7 < least(t + 1e-4)


@pytest.mark.slow
def test_findings_follow_the_files(results, tmp_path):
    for name in ("_error", "_one", "_path"):
        if (results / f"numerics{name}.csv").exists():
            write_csv(tmp_path / f"numerics{name}.csv", rows(results, f"numerics{name}"))
    changed = rows(results)
    for row in changed:
        if row["order"] == "aba":
            row |= {"zero_pivot": 1, "growth": 12345.0}
    write_csv(tmp_path / "numerics.csv", changed)
    before, after = NUMERICS.findings(results), NUMERICS.findings(tmp_path)
    assert "chosen to be safe: a zero pivot at 0 of" in before and "chosen to be safe: a zero pivot at 2 of" in after
    assert "growth up to 1.23e+04" in after
    assert (results / "numerics.png").stat().st_size > 20_000


@pytest.mark.slow
def test_without_umfpack_the_other_orders_remain(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "scikits.umfpack", None)
    monkeypatch.setattr(NUMERICS, "problems", lambda quick: [("forward", lambda: PROBLEM, ("umfpack", "aba"))])
    write_csv(tmp_path / "numerics_one.csv", [{"problem": "of a run before"}])
    NUMERICS.compute(tmp_path, True)
    NUMERICS.plot(tmp_path)
    assert {row["order"] for row in rows(tmp_path)} == {"aba", "pivoted"}
    assert "a zero pivot at 0 of 2,000 states" in NUMERICS.findings(tmp_path)
    assert not (tmp_path / "numerics_one.csv").exists()


# ---- their parts -----------------------------------------------------------------------------------------------------


def test_backward_errors_are_those_of_the_system(matrix, states):
    rng = np.random.default_rng(3)
    d = rng.standard_normal((2 * FEW, matrix.system.shape[1]))
    assembled = matrix.kernel(states)
    full = np.zeros((2 * FEW, matrix.system.layout.n))
    full[:, matrix.system.columns] = d
    expected = residual_at(matrix.system, states, full).normwise
    np.testing.assert_allclose(matrix.backward_error(assembled["D"], assembled["b"], d), expected, rtol=1e-12)
    d[3, 5] = math.nan
    assert matrix.backward_error(assembled["D"], assembled["b"], d)[3] == math.inf


def test_pivoting_solves_the_system(matrix, states):
    assembled = matrix.kernel(states)
    d = matrix.pivoted(states, assembled["D"], assembled["b"])
    for k in range(2 * FEW):
        A = matrix.system.matrix(assembled["D"][k]).toarray()
        np.testing.assert_allclose(d[k], np.linalg.solve(A, -assembled["b"][k]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ORDERS)
def test_pivots_and_growth_are_those_of_dense_elimination(name, matrix, sampled, states):
    order = NUMERICS.Order(name, PROBLEM, matrix, sampled)
    rows_, columns = sampled.scaling
    P, Q = (list(x) for x in NUMERICS.pivots(PROBLEM, sampled, name)[:2])
    random = {x: array[::2] for x, array in states.items()}
    out = order.kernel(random)
    largest, growths = [], []
    for k, q in enumerate(random["q"]):
        A = matrix.system.D(q).toarray()
        pivots = np.diag(dense_factors(A[P][:, Q])[1])
        for x in out["pivots"][k]:
            assert np.abs(np.abs(pivots) - abs(x)).min() <= 1e-7 * abs(x)
        scaled = (A * rows_[:, None] * columns)[P][:, Q]
        L, U = dense_factors(scaled)
        largest.append(np.abs(scaled).max())
        growths.append((np.abs(L).max(axis=0) * np.abs(U).max(axis=1)).max() / largest[-1])
    np.testing.assert_allclose(order.growth(out, np.array(largest)), growths, rtol=1e-6)


def test_what_is_seen_of_pivots():
    begun = np.array([[1.0, 2.0, -4.0, 3.0]] * 3)
    seen = NUMERICS.Seen(begun)
    noise = 0.5 * ZERO
    values = np.array([
        [1.0, 2.0, -4.0, 3.0],
        [-0.5, 2.0, -4.0, 3.0],  # the first takes both signs
        [1.0, -noise, -4.0, 3.0],  # rounding, and zero
        [1.0, 2.0, -4.0, math.nan],  # after a division by zero
        [1.0, 2.0, -8.0, math.inf],
    ])  # fmt: skip
    assert seen.see(values[:2]).tolist() == [False, False]
    assert seen.see(values[2:]).tolist() == [True, True, False]
    assert seen.crossing == 1
    np.testing.assert_allclose(seen.least, [0.5, noise / 2, 1.0, 0.0])


@pytest.mark.slow
def test_the_determinant_tells_singular_states():
    """As the condition number does, at ten times the cost."""
    problem = load_cells(8)
    matrix = NUMERICS.Matrix(sd.assemble(problem))
    sampled = sample_matrix(matrix.system, {x: array[::2] for x, array in sample_states(problem, 2 * FEW).items()})
    order = NUMERICS.Order("tearing", problem, matrix, sampled)
    typical = np.log(np.abs(order.begun)).sum(axis=1).mean()
    states = sample_states(problem, 400, seed=9)
    regular = NUMERICS.is_regular(matrix.system, states, order.kernel(states)["pivots"], typical)
    assert (regular == ~is_singular(matrix.system, states)).all() and 0 < (~regular).sum() < 100
