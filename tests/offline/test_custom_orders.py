"""Orders of the caller's own: permutations, or a function that makes them of the pattern."""

from __future__ import annotations

import numpy as np
import pytest
from nori.problems import load_cells

import sysdyn as sd
from sysdyn.codegen.interpreter import guarded
from sysdyn.equations.recursive_orders import aba
from sysdyn.errors import InvalidInput, NoSafeOrdering, ProblemError
from sysdyn.model import chain


def careless(problem):
    """Columns as they come, rows by partial pivoting at one state: useless at others."""
    A = sd.assemble(problem).D(np.full(problem.model.nq, 0.3)).toarray()
    rows = list(range(len(A)))
    for k in range(len(A)):
        p = k + int(np.argmax(np.abs(A[k:, k])))
        A[[k, p]], rows[k], rows[p] = A[[p, k]], rows[p], rows[k]
        A[k + 1 :] -= np.outer(A[k + 1 :, k] / A[k, k], A[k])
    return rows, list(range(len(A)))


def states(problem, n=40):
    q, qd, _ = problem.model.random_state(seed=4, batch=n)
    q[::2] = np.round(q[::2] / (np.pi / 2)) * (np.pi / 2)
    return q, qd, {m.name: np.ones((n, len(m.components(problem.model)))) for m in problem.measurements}


def test_a_safe_order_gives_what_its_name_gives():
    problem = sd.forward_dynamics(chain(4))
    order = aba(sd.assemble(problem))
    custom = sd.compile(problem, ordering=order)
    assert custom.ordering == "custom" and custom.stability.acceptable
    assert custom.flops == sd.compile(problem, ordering="aba", formulation="paper").flops
    shapes = []
    made = sd.compile(problem, ordering=lambda pattern: shapes.append(pattern.shape) or order)
    assert shapes == [sd.assemble(problem).shape] and made.flops == custom.flops


@pytest.mark.slow
def test_an_order_that_is_not_safe_is_refused_or_states_at_which_it_fails_are_solved_again():
    problem = load_cells(6)
    order = careless(problem)
    with pytest.raises(NoSafeOrdering, match="allow_unsafe=True"):
        sd.compile(problem, ordering=order)
    solver = sd.compile(problem, ordering=order, allow_unsafe=True)
    q, qd, y = states(problem)
    found = solver(q, qd, y=y, on_singular="raise")  # which no regular state is reason for
    inputs = {name: np.reshape(x, (len(q), -1)) for name, x in found.inputs.items()}
    sizes = np.abs(guarded(solver.program, inputs))
    failed = (sizes < [guard.threshold for guard in solver.program.guards]).any(axis=1)
    assert 10 < failed.sum() < len(q) and found.ok.all()
    assert found.backward_error().max() < 1e-11
    system = sd.assemble(problem)
    entries, b = system.values(inputs)
    for k in range(len(q)):
        d = np.zeros(system.layout.n)
        d[system.columns] = np.linalg.solve(system.matrix(entries[k]).toarray(), -b[k])
        for name in ("tau", "qdd", "fx", "a", "f"):
            expected = d[system.layout.quantity_columns(name)]
            np.testing.assert_allclose(found[name][k].ravel(), expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def test_files_keep_the_order(tmp_path):
    problem = sd.forward_dynamics(chain(3))
    order = aba(sd.assemble(problem))
    solver = sd.compile(problem, ordering=order)
    solver.save(tmp_path / "custom.sysdyn")
    loaded = sd.load_solver(tmp_path / "custom.sysdyn")
    assert loaded.options == solver.options and loaded.choice == solver.choice


@pytest.mark.parametrize("order", [([0, 1], [1, 0]), 3, ([0.5], [1]), (), lambda pattern: None])
def test_what_is_no_order_is_refused(order):
    with pytest.raises(InvalidInput, match="the row and the column of each pivot"):
        sd.compile(sd.forward_dynamics(chain(2)), ordering=order)


def test_an_order_is_one_of_the_system_as_stated():
    problem = sd.forward_dynamics(chain(2))
    with pytest.raises(ProblemError, match=r"of sd\.assemble\(problem\)"):
        sd.compile(problem, ordering=aba(sd.assemble(problem)), formulation="elimination")
