"""Search beyond the usual: what a seed and a time decide, what is kept, and what is stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.offline import stages
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.formulations import eliminated_system
from sysdyn.offline.options import Options
from sysdyn.offline.sampling import order_samples
from sysdyn.offline.search import Search
from sysdyn.offline.stages import Stages
from sysdyn.offline.verdict import may_replace
from sysdyn.recursions.plan import Plan, tuned, tuning
from sysdyn.sparse import umfpack
from sysdyn.sparse.lu import Pivots
from sysdyn.sparse.markowitz import markowitz
from sysdyn.sparse.orderings import natural
from sysdyn.sparse.sampled import Sampled

STEP = 1e-3  # seconds that the clock of the tests goes on each time it is read


class Clock:
    """Reads of it are what passes the time: the search sees the same times in every run."""

    def __init__(self):
        self.read = 0

    def __call__(self) -> float:
        self.read += 1
        return self.read * STEP


@pytest.fixture
def clock(monkeypatch, tmp_path) -> Clock:
    monkeypatch.setenv("SYSDYN_CACHE", str(tmp_path))
    monkeypatch.setattr(stages, "clock", found := Clock())
    return found


def forward() -> sd.Problem:
    return sd.forward_dynamics(sd.chain(3))


def compiled(problem: sd.Problem, **options) -> sd.Solver:
    return sd.compile(problem, backend="python", **{"formulation": "paper", **options})


def found(solver: sd.Solver) -> tuple:
    return solver.choice.row_perm, solver.choice.col_perm, solver.compiled.considered


# ---- orders --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_more_time_finds_fewer_operations(clock):
    """That solve the problem, by an order as safe as the usual one."""
    usual, longer, longest = (compiled(forward(), seconds=seconds) for seconds in (None, 3.0, 8.0))
    totals = [x.flops.end_to_end.total for x in (usual, longer, longest)]
    assert totals[0] > totals[1] >= totals[2]
    assert longest.safety.firm and longest.flops.solve.total > 0
    assert longest.ordering.endswith(("(restart)", "reordered"))
    q, qd, tau = longest.model.random_state(seed=0, batch=20)
    np.testing.assert_allclose(longest(q, qd, tau).qdd, sd.aba(longest.model, q, qd, tau), rtol=1e-9, atol=1e-9)


def test_an_order_that_comes_back_unchanged_is_not_eliminated_again(monkeypatch):
    best = compiled(forward(), level="fast").choice
    system = eliminated_system(forward(), Options(), best.passes)
    search = Search(system, order_samples(system, 8), ("qdd",), {"reordered": ()}, Stages(None, None), 0)
    search.best, windows = best, []

    def unchanged(a: Sampled, order: Pivots, window: slice, rng: np.random.Generator) -> Pivots:
        windows.append(window)
        return Pivots([*order.rows], [*order.columns], dict(order.joined))

    monkeypatch.setattr("sysdyn.offline.search.reordered", unchanged)
    monkeypatch.setattr(Search, "attempt", lambda *_: pytest.fail("the same order is eliminated again"))
    stream = search._streams()["reordered"]
    assert [next(stream) for _ in range(3)] == [search.least] * 3 and len(windows) == 3


@pytest.mark.slow
def test_a_seed_decides_what_is_tried(clock, monkeypatch):
    """And in which order: with less time, the beginning of the same."""
    monkeypatch.setenv("SYSDYN_CACHE", "")

    def searched(seconds: float, seed: int) -> tuple[list, int, tuple]:
        """(the orders that were the cheapest so far, or not safe; number of orders tried; the one taken)."""
        clock.read = 0
        *considered, (name, tried) = (solver := compiled(forward(), seconds=seconds, seed=seed)).considered
        assert name == "search"
        return considered, int(tried.split()[0]), found(solver)

    first, tried, taken = searched(4.0, 1)
    assert tried > 5
    assert searched(4.0, 1) == (first, tried, taken)
    assert searched(4.0, 2)[2] != taken
    shorter, fewer, _ = searched(2.0, 1)
    assert 0 < fewer < tried and shorter == first[: len(shorter)]


@pytest.mark.slow
def test_the_search_ends_when_the_time_is_over(clock):
    """Nothing is begun after it, and what had begun gives up."""
    spent = []
    for seconds in (2.0, 6.0):
        clock.read = 0
        compiled(forward(), seconds=seconds)
        spent.append(clock.read * STEP)
    assert 2.0 <= spent[0] < 2.2 and 6.0 <= spent[1] < 6.2


@pytest.mark.slow
def test_progress_is_the_time_that_has_passed(clock):
    """While it searches; then come the program and the machine code."""
    reported: list[tuple[float, float]] = []
    compiled(forward(), seconds=5.0, progress=lambda what, share: reported.append((clock.read * STEP, share)))
    shares = [share for _, share in reported]
    assert shares == sorted(shares) and shares[-1] == 1.0
    searching = [(t, share) for t, share in reported if 0.5 < t < 5.0]
    assert len(searching) > 10
    for t, share in searching:
        assert share == pytest.approx(0.9 * t / 5.0, abs=0.01)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("ordering", "seconds"),
    [
        ("colamd", 4.0),
        ("mixed", 0.1),
        *(pytest.param(x, 4.0, marks=pytest.mark.slow) for x in ("markowitz", "umfpack")),
    ],
)
def test_a_named_order_stays_what_it_is(ordering, seconds, clock):
    if ordering == "umfpack" and not umfpack.available():
        pytest.skip("scikit-umfpack is not installed")
    problem = sd.forward_dynamics(sd.chain(4))
    usual, longer = (compiled(problem, ordering=ordering, seconds=x) for x in (None, seconds))
    tried = {name.split(" (")[0] for name, _ in longer.compiled.considered[len(usual.compiled.considered) :]}
    assert tried <= {ordering, "search"}
    assert longer.ordering.split(" (")[0] == ordering
    assert longer.flops.end_to_end.total <= usual.flops.end_to_end.total


@pytest.mark.parametrize("ordering", ["natural", "aba", "crba"])
def test_orders_of_one_kind_only_have_nothing_to_search(ordering, clock):
    solver = compiled(forward(), ordering=ordering, seconds=1e6)
    assert solver.ordering == ordering
    assert solver.compiled.considered[-1][0] == "search" and "0 more orders" in solver.compiled.considered[-1][1]


def test_a_triangular_order_has_nothing_to_save(clock):
    solver = compiled(sd.inverse_dynamics(sd.auto_tree(6, 1, 1.5, 0.9)), seconds=1e6)
    assert solver.triangular and "search" not in dict(solver.compiled.considered)


@pytest.mark.slow
def test_orders_of_an_estimate_are_searched_too(clock):
    problem = sd.forward_dynamics(sd.auto_tree(3, 2, 1.1, 0.9))
    problem = problem + sd.JointAcceleration("all", noise=0.1, name="encoders")
    usual, longer = (compiled(problem, seconds=seconds) for seconds in (None, 10.0))
    assert longer.flops.end_to_end.total <= usual.flops.end_to_end.total
    assert longer.safety.ok
    assert int(longer.compiled.considered[-1][1].split()[0]) > 5
    rng = np.random.default_rng(0)
    q, qd, tau = problem.model.random_state(seed=1)
    y = {"encoders": rng.standard_normal(problem.model.nv)}
    np.testing.assert_allclose(longer(q, qd, tau, y=y).qdd, usual(q, qd, tau, y=y).qdd, rtol=1e-8)


@pytest.mark.slow
def test_an_order_that_is_not_safe_is_not_taken():
    """Cheaper than the one there is, from pivots that were looked at in one state only."""
    problem = sd.forward_dynamics(sd.chain(4))
    system = eliminated_system(problem, Options(), ())
    sampled = order_samples(system, 32)
    elimination = Elimination(system, *natural(sampled))
    choice = elimination.choice("natural", ("tau", "qdd", "fx", "a", "f"))
    choice = replace(choice, safety=elimination.assess()[0])

    careless, states = replace(sampled, values=sampled.values[:1], least_variation=1e-9), len(sampled.values)
    for order, better in ((natural(careless), False), (markowitz(sampled), True)):
        doing = Search(system, sampled, ("tau", "qdd", "fx", "a", "f"), {}, Stages(0.0, None), 0)
        assert doing.improve(choice) is choice
        assert np.isfinite(doing.attempt("it", order)) == (doing.elimination is not None) == better
        assert any("not safe" in what for _, what in doing.considered) != better
        assert (len(doing.sampled.values) > states) != better  # where it failed guides what comes next
    assert doing.least == doing.best.end_to_end.total < choice.end_to_end.total


@pytest.mark.parametrize(("weak", "before", "taken"), [(0, 0, True), (9, 0, False), (9, 9, True)])
def test_an_order_that_is_often_weak_replaces_no_better_one(weak, before, taken):
    """Weak at 9 % of the states."""
    system = eliminated_system(forward(), Options(), ())
    sampled = order_samples(system, 32)
    safety, _ = Elimination(system, *natural(sampled)).assess()
    judged = replace(safety, states=91, weak=weak, crossing=0, least_pivot=1.0)
    assert may_replace(judged, replace(safety, states=91, weak=before), definite=False) == taken


# ---- recursions ----------------------------------------------------------------------------------------------------


def test_recursions_are_searched_beyond_the_first_optimum(clock):
    problem = sd.inverse_dynamics(sd.auto_tree(4, 1, 1.5, 0.9))
    totals = []
    for seconds in (None, 0.05, 0.15):
        clock.read = 0
        solver = compiled(problem, outputs="tau", formulation="auto", effort=0.0, seconds=seconds)
        totals.append(solver.flops.end_to_end.total)
        assert solver.ordering == "newton-euler"
    assert totals[0] > totals[1] >= totals[2]
    q, qd, qdd = solver.model.random_state(seed=0)
    np.testing.assert_allclose(solver(q, qd, qdd).tau, sd.rnea(solver.model, q, qd, qdd), rtol=1e-9)


def landscape(seed: int, n: int = 12):
    """A cost with many local optima: each decision's best form depends on two others."""
    table = np.random.default_rng(seed).integers(1, 1000, (n, 2, 2, 2))

    def cost(plan: Plan) -> int:
        x = [plan.pick("force", k) for k in range(n)]
        return int(sum(table[k, x[k], x[(k + 1) % n], x[(k + 5) % n]] for k in range(n)))

    def least() -> int:
        return min(cost(Plan({("force", k): b >> k & 1 for k in range(n)})) for b in range(2**n))

    return cost, least


@pytest.mark.parametrize("seed", [0, 4, 6, 12])
def test_perturbed_plans_reach_the_least_cost(seed):
    """Of all 4096, where one change at a time stops above it."""
    cost, least = landscape(seed)
    plans = 0

    def more() -> bool:
        nonlocal plans
        plans += 1
        return plans < 3000

    _, local = tuned(cost, [Plan()], 1e9)
    plan, best = tuned(cost, [Plan()], 0.0, more, seed=0)
    assert plans == 3000
    assert local > best == cost(plan) == least()


def test_plans_are_fixed_by_the_seed():
    cost, _ = landscape(0)

    def costs(seed: int) -> list[int]:
        seen: list[int] = []
        steps = tuning(lambda plan: (seen.append(cost(plan)), seen[-1])[1], [Plan()], seed)
        for _, best in (next(steps) for _ in range(300)):
            assert best == min(seen)
        return seen

    assert costs(0) == costs(0) != costs(1)


def test_a_plan_without_decisions_is_found_at_once():
    plan, best = tuned(lambda plan: 7, [Plan()], 0.0, lambda: True)
    assert (plan.choices, best) == ({}, 7)


# ---- storing it ----------------------------------------------------------------------------------------------------


def test_what_was_found_is_cached(clock, tmp_path):
    """By time and seed; without a time the seed is nothing to look at."""
    asked = {"seconds": 2.0, "seed": 1}
    first = compiled(forward(), **asked)
    usual = compiled(forward())
    kept = first.save(tmp_path / "kept.sysdyn")

    def never(what: str, share: float) -> None:
        assert share == 1.0, "it was compiled again"

    again = compiled(forward(), **asked, progress=never)
    assert found(again) == found(first) == found(sd.load_solver(kept))
    assert again.program.flops == first.program.flops
    assert found(compiled(forward(), seed=5, progress=never)) == found(usual)
    for other in ({"seconds": 2.0, "seed": 2}, {"seconds": 3.0, "seed": 1}):
        with pytest.raises(AssertionError, match="compiled again"):
            compiled(forward(), **other, progress=never)


@pytest.mark.parametrize("options", [{"seconds": 0.0}, {"seconds": -1.0}, {"seconds": float("inf")}, {"seconds": "60"},
                                     {"seed": -1}, {"seed": 1.5}])  # fmt: skip
def test_times_and_seeds_are_checked(options):
    (name,) = options
    with pytest.raises(sd.InvalidInput, match=name):
        compiled(forward(), **options)
