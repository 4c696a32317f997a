"""Which order wins where: what the file claims, and the parts it is made of."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from nori.harness import FOLDER, load_experiment, read_csv, reproduce, write_csv
from nori.problems import load_cells

import sysdyn as sd
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.offline.check import SampledStates
from sysdyn.offline.sampling import order_samples
from sysdyn.sparse import umfpack
from sysdyn.sparse.markowitz import choose_rows

needs_umfpack = pytest.mark.skipif(not umfpack.available(), reason="scikit-umfpack is not installed")
ORDERINGS = load_experiment(FOLDER / "orderings.py")
TREE = sd.auto_tree(3, 1, 1.5, 0.9)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    reproduce(["orderings"], folder, quick=True)
    return folder


def rows(results: Path, **values) -> list[dict]:
    found = [row for row in read_csv(results / "orderings.csv") if all(row[key] == x for key, x in values.items())]
    assert found, values
    return found


def one(results: Path, kind: str, order: str) -> dict:
    (row,) = rows(results, kind=kind, order=order)
    return row


# ---- what the file claims --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_order_is_tried_on_every_kind_of_problem(results):
    found = {(row["kind"], row["order"]) for row in rows(results)}
    assert found == {(kind, order) for kind in ORDERINGS.KINDS for order in ORDERINGS.SHOWN}
    assert set(ORDERINGS.SHOWN) == set(ORDERINGS.LABELS) == {*RECURSIVE, *ORDERINGS.SEARCHED}


@pytest.mark.slow
@pytest.mark.parametrize("order", RECURSIVE)
def test_recursive_orders_are_defined_where_the_compiler_takes_them(results, order):
    """And cost what its solvers do."""
    problems = {"inverse": sd.inverse_dynamics(TREE), "forward": sd.forward_dynamics(TREE), "load cells": load_cells(6)}
    for kind, problem in problems.items():
        row = one(results, kind, order)
        if row["status"] == ORDERINGS.IMPOSSIBLE:
            with pytest.raises(sd.ProblemError):
                sd.compile(problem, order)
            assert row["end_to_end"] == "" and f"ordering '{order}'" in row["why"]
        else:
            solver = sd.compile(problem, order, backend="python")
            flops = solver.flops.end_to_end
            assert (row["mul"], row["add"], row["div"]) == (flops.mul, flops.add, flops.div)
            assert (row["end_to_end"], row["solve"]) == (flops.total, solver.flops.solve.total)
            assert row["fill_in"] == solver.fill_in


@pytest.mark.slow
@needs_umfpack
def test_umfpack_finds_the_triangle_of_inverse_dynamics(results):
    inverse = {row["order"]: row for row in rows(results, kind="inverse")}
    for order in ("paper", "umfpack", "umfpack columns", "markowitz"):
        assert inverse[order]["fill_in"] == 0
        assert inverse[order]["end_to_end"] == inverse["rnea"]["end_to_end"]
    assert all(inverse[order]["fill_in"] > 0 for order in ("aba", "crba"))


@pytest.mark.slow
@needs_umfpack
def test_the_order_of_one_state_is_cheap_and_not_safe(results):
    for kind in ("forward", "load cells"):
        paper = one(results, kind, "paper")
        assert paper["status"] == ORDERINGS.UNSAFE and paper["end_to_end"] < one(results, kind, "umfpack")["end_to_end"]


@pytest.mark.slow
def test_counts_add_up(results):
    for row in rows(results):
        if row["end_to_end"] != "":
            assert row["mul"] + row["add"] + row["div"] == row["end_to_end"] > row["solve"] > 0


@pytest.mark.slow
def test_the_winners_named_are_those_of_the_file(results):
    text = ORDERINGS.findings(results)
    for kind in ORDERINGS.KINDS:
        safe = rows(results, kind=kind, status=ORDERINGS.SAFE)
        best = min(row["end_to_end"] for row in safe)
        for row in safe:
            line = next(x for x in text.splitlines() if x.startswith(f"| {ORDERINGS.LABELS[row['order']]} |"))
            cell = line.split("|")[2 + ORDERINGS.KINDS.index(kind)]
            assert cell.strip().startswith(f"{row['end_to_end'] / best:.2f} ")
    assert (results / "orderings.png").stat().st_size > 20_000


@pytest.mark.slow
def test_findings_follow_the_file(results, tmp_path):
    """Where another order is the cheapest and RNEA fills in, the text says so."""
    changed = rows(results)
    for row in changed:
        if row["kind"] == "forward" and row["order"] == "aba":
            row |= {"end_to_end": 7, "solve": 6}
        if row["kind"] == "inverse" and row["order"] == "rnea":
            row["fill_in"] = 3
    write_csv(tmp_path / "orderings.csv", changed)
    before, after = ORDERINGS.findings(results), ORDERINGS.findings(tmp_path)
    assert "by RNEA" in before and "by RNEA" not in after
    assert "ABA wins 0 of" in before and "ABA wins 1 of" in after


# ---- its parts -------------------------------------------------------------------------------------------------------


@needs_umfpack
def test_umfpack_with_its_own_method_is_what_the_library_uses():
    sampled = order_samples(sd.assemble(sd.forward_dynamics(sd.chain(5))), 8)
    for steer in (1e-3, 1.0):
        matrix = sampled.weighted(steer)
        permutations, used = ORDERINGS.umfpack_permutations(matrix, "AMD")
        assert used and permutations == umfpack.permutations(matrix)


@needs_umfpack
def test_metis_gives_permutations_of_its_own():
    """Other ones where the library has METIS, those of COLAMD where it has not."""
    sampled = order_samples(sd.assemble(sd.forward_dynamics(sd.chain(5))), 8)
    (P, Q), used = ORDERINGS.umfpack_permutations(sampled.weighted(1e-6), "METIS")
    assert sorted(P) == sorted(Q) == list(range(sampled.n))
    assert used == ORDERINGS.metis_available()
    assert ((P, Q) != umfpack.permutations(sampled.weighted(1e-6))) == used


def compute_tree(folder):
    """The results of one problem."""
    write_csv(folder / ORDERINGS.DATA, ORDERINGS.rows_of("forward", "tree", sd.forward_dynamics(TREE), True))


def test_without_metis_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(ORDERINGS, "metis_available", lambda: False)
    compute_tree(tmp_path)
    for order in ("metis", "metis columns"):
        (row,) = rows(tmp_path, order=order)
        assert row["status"] == ORDERINGS.IMPOSSIBLE and row["why"] == ORDERINGS.NO_METIS
    assert f"METIS was not tried: {ORDERINGS.NO_METIS}" in ORDERINGS.findings(tmp_path)


@pytest.mark.slow
def test_without_umfpack_the_other_orders_remain(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "scikits.umfpack", None)
    ORDERINGS.metis_available.cache_clear()
    compute_tree(tmp_path)
    ORDERINGS.metis_available.cache_clear()
    status = {row["order"]: row["status"] for row in rows(tmp_path)}
    assert {order for order, x in status.items() if x == ORDERINGS.SAFE} >= {"aba", "crba", "markowitz"}
    for order in ("paper", "umfpack", "umfpack columns", "metis"):
        assert status[order] == ORDERINGS.IMPOSSIBLE
    ORDERINGS.plot(tmp_path)
    assert "UMFPACK is missing" in ORDERINGS.findings(tmp_path)


def test_what_costs_too_much_is_given_up():
    system = sd.assemble(sd.forward_dynamics(TREE))
    sampled, states = order_samples(system, 8), SampledStates.of(system, ORDERINGS.QUICK_STATES)
    free = ORDERINGS.search(system, sampled, "markowitz", math.inf, states, quick=True)
    assert free.status == ORDERINGS.SAFE
    capped = ORDERINGS.search(system, sampled, "markowitz", 20.0, states, quick=True)
    assert capped.status == ORDERINGS.GIVEN_UP and capped.choice is None and "given up" in capped.why


def test_a_start_that_fails_is_made_again_with_the_states_at_which_it_did(monkeypatch):
    """An order that looks only at the last sampled state is safe once it has seen where it fails."""
    system = sd.assemble(sd.forward_dynamics(sd.chain(4)))
    generic = order_samples(system, 2)
    blind = ORDERINGS.replace(generic, values=generic.values[:1])
    states, seen = SampledStates.of(system, ORDERINGS.QUICK_STATES), []

    def start(a):
        seen.append(len(a.values))
        return choose_rows(a, range(a.n))

    monkeypatch.setitem(ORDERINGS.SEARCHED, "markowitz", ("markowitz", (start,), True))
    found = ORDERINGS.search(system, blind, "markowitz", math.inf, states, quick=True)
    monkeypatch.setitem(ORDERINGS.SEARCHED, "markowitz", ("markowitz", (start,), False))
    once = ORDERINGS.search(system, blind, "markowitz", math.inf, states, quick=True)
    assert once.status != ORDERINGS.SAFE and found.status == ORDERINGS.SAFE
    assert seen == [1, seen[1], 1] and seen[1] > 1


@pytest.mark.slow
def test_two_processes_find_what_one_does(results):
    assert ORDERINGS.side_by_side(quick=True) == rows(results)


def test_the_paper_takes_the_values_of_one_state():
    """Its pivots are those of UMFPACK there, whatever the other states are."""
    if not umfpack.available():
        pytest.skip("scikit-umfpack is not installed")
    sampled = order_samples(sd.assemble(sd.forward_dynamics(TREE)), 8)
    first = ORDERINGS.replace(sampled, values=sampled.values[:1])
    assert ORDERINGS.paper_permutations(sampled) == ORDERINGS.paper_permutations(first)
    P, Q = ORDERINGS.paper_permutations(sampled)
    A = scipy.sparse.csr_matrix((sampled.values[0], (sampled.row, sampled.col))).toarray()[P][:, Q]
    for k in range(len(A)):  # elimination without pivoting goes through there
        assert abs(A[k, k]) > 1e-9
        A[k + 1 :] -= np.outer(A[k + 1 :, k] / A[k, k], A[k])
