"""`compile`: its cache, its progress, and what a solver says of itself."""

from __future__ import annotations

import numpy as np
import pytest
from estimates import small
from solvers import ORDERINGS, check_against_reference, compiled, reported

import sysdyn as sd
from sysdyn.files import cache
from sysdyn.model import (
    chain,
)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SYSDYN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def never(what: str, share: float) -> None:
    """Progress of what the cache has."""
    assert share == 1.0, "compiled again although the cache has it"


def test_second_compile_reads_the_cache(own_cache):
    problem = sd.forward_dynamics(chain(3, seed=4))
    first = sd.compile(problem, level="fast")
    assert sorted(x.suffix for x in own_cache.iterdir()) == [".o", ".solver"]  # no batch has been asked for
    q, qd, tau = problem.model.random_state(seed=1, batch=9)
    f = first(q, qd, tau).f
    assert sorted(x.suffix for x in own_cache.iterdir()) == [".o", ".o", ".solver"]
    second = sd.compile(sd.forward_dynamics(chain(3, seed=4)), level="fast", progress=never)
    assert second.program.digest == first.program.digest
    assert reported(second) == reported(first)
    # kernels are told apart from compiled ones by time alone
    assert second.executable.backend.kernel(True).cached and second.executable.backend.kernel(False).cached
    np.testing.assert_array_equal(f, second(q, qd, tau).f)
    for other in (
        {"ordering": "aba"},
        {"outputs": "qdd"},
        {"layout": "net_force"},
        {"known": "substituted"},
        {"level": "best"},
    ):
        with pytest.raises(AssertionError, match="compiled again"):
            sd.compile(problem, **{"level": "fast", "progress": never, **other})
    for model in (chain(3, seed=5), chain(3, seed=4).replace(gravity=(0.0, 0.0, -1.6))):
        with pytest.raises(AssertionError, match="compiled again"):
            sd.compile(sd.forward_dynamics(model), level="fast", progress=never)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty", "foreign payload"])
def test_damaged_cache_entries_are_compiled_again(own_cache, damage):
    problem = sd.forward_dynamics(chain(2, seed=4))
    q, qd, tau = problem.model.random_state(seed=1, batch=9)
    f = sd.compile(problem, level="fast")(q, qd, tau).f
    for entry in own_cache.iterdir():
        content = bytearray(entry.read_bytes())
        if damage == "flipped":
            content[len(content) // 2] ^= 1
        elif damage == "truncated":
            del content[len(content) // 2 :]
        elif damage == "empty":
            content.clear()
        elif entry.suffix == ".solver":  # an entry in good order that holds something else
            entry.unlink()
            cache.store(entry.name, b"not a solver")
            continue
        entry.write_bytes(content)
    second = sd.compile(problem, level="fast")
    np.testing.assert_array_equal(f, second(q, qd, tau).f)
    healed = [cache.load(entry.name) for entry in own_cache.iterdir()]
    assert len(healed) == 3 and all(healed)


def test_programs_of_estimates_are_kept_and_damaged_ones_made_again(own_cache):
    problem, said = small(), list[str]()
    q, qd, qdd = problem.model.random_state(seed=1)
    y = {x: v for x, v in sd.predict(problem, q, qd, qdd).items() if x != "ExternalWrench"}

    def std() -> np.ndarray:
        del said[:]
        progress = {"progress": lambda what, share: said.append(what)}
        return sd.compile(problem, outputs="tau", level="fast", backend="python", **progress)(q, qd, y=y).std("tau")

    expected, made = std(), "variances of tau: eliminating"
    assert made in said
    (entry,) = own_cache.glob("*.posterior")
    np.testing.assert_array_equal(std(), expected)
    assert made not in said
    cache.store(entry.name, b"not a program")
    np.testing.assert_array_equal(std(), expected)
    assert made in said
    assert len(entry.read_bytes()) > 100


def test_without_a_cache_everything_works(monkeypatch):
    monkeypatch.setenv("SYSDYN_CACHE", "")
    solver = sd.compile(sd.inverse_dynamics(chain(2, seed=4)), level="fast")
    check_against_reference(solver)


@pytest.mark.slow
def test_repr_and_report_say_what_was_decided():
    solver = compiled("puma560", "fd", "auto")
    assert repr(solver).startswith(
        "Solver for 'puma560' (6 bodies, 6 degrees of freedom): tau, qdd, fx, a, f from tau, fx; ordering "
    )
    text = solver.report()
    for piece in (
        "end to end",
        "solve",
        "fill-in",
        "backward error",
        "difference",
        "least pivot",
        "orders considered",
        "umfpack",
        "aba",
    ):
        assert piece in text
    assert str(solver.flops.end_to_end.total) in text
    least = min(int(what.split()[0]) for _, what in solver.compiled.considered if what.endswith("operations"))
    assert solver.flops.end_to_end.total == least or "not safe" in text
    assert "end to end" in repr(solver.flops)


def test_progress_is_told_and_ends():
    told = []
    sd.compile(
        sd.forward_dynamics(chain(2, seed=99)), level="fast", progress=lambda what, done: told.append((what, done))
    )
    shares = [done for _, done in told]
    assert shares[0] == 0.0 and shares[-1] == 1.0 and shares == sorted(shares)
    assert any("ordering" in what for what, _ in told)


def test_progress_of_what_an_estimate_is_first_asked_for():
    told = []
    problem = small()
    solver = sd.compile(problem, outputs="tau", level="fast", progress=lambda what, done: told.append((what, done)))
    q, qd, qdd = problem.model.random_state(seed=1)
    solution = solver(q, qd, y={x: v for x, v in sd.predict(problem, q, qd, qdd).items() if x != "ExternalWrench"})
    for name, ask in {"variances of tau": lambda: solution.std("tau"), "multipliers": solution.chi2}.items():
        told.clear()
        ask()
        shares = [done for _, done in told]
        assert shares[0] == 0.0 and shares[-1] == 1.0 and len(told) >= 3
        assert any(name in what for what, _ in told)
        told.clear()
        ask()
        assert not told


@pytest.mark.slow
def test_auto_is_no_dearer_than_any_order_by_name():
    auto = compiled("puma560", "fd", "auto").flops.end_to_end.total
    assert auto == min(compiled("puma560", "fd", x).flops.end_to_end.total for x in ORDERINGS if x != "rnea")
