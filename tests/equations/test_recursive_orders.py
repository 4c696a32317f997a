"""The orders of the recursive algorithms on the assembled system."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import icub
from robots import floating_tree
from systems import Accelerometer, built, reference, unknowns

from sysdyn.equations.formulation import KNOWN
from sysdyn.equations.problem_system import assemble
from sysdyn.equations.recursive_orders import RECURSIVE, Permutations
from sysdyn.equations.system import BlockSystem
from sysdyn.errors import ProblemError
from sysdyn.measurements.classical import forward_dynamics, inverse_dynamics
from sysdyn.measurements.constraints import Contact
from sysdyn.measurements.known_quantities import ExternalWrench, JointTorque
from sysdyn.measurements.variables import LAYOUTS
from sysdyn.model import auto_tree, chain, random_tree
from sysdyn.sparse.lu import Factors, eliminate


def permuted(system: BlockSystem, name: str, q: np.ndarray) -> np.ndarray:
    row_perm, col_perm = RECURSIVE[name](system)
    assert sorted(row_perm) == sorted(col_perm) == list(range(system.shape[0]))
    return system.D(q).toarray()[np.ix_(row_perm, col_perm)]


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "model", [chain(1), chain(6), auto_tree(9, 1.5, 1.5, 0.9), *(random_tree(7, seed=s) for s in range(4))], ids=repr
)
def test_property_1_inverse_dynamics_is_lower_triangular(model, layout, known):
    """Nori eqs. (11), (12)."""
    system = assemble(inverse_dynamics(model), layout, known)
    q, _, _ = model.random_state(seed=1)
    matrix = permuted(system, "rnea", q)
    assert not np.triu(matrix, 1).any()
    np.testing.assert_array_equal(np.abs(np.diag(matrix)), 1.0)


def test_property_1_on_icub():
    system = assemble(inverse_dynamics(icub("floating")))
    matrix = permuted(system, "rnea", system.model.random_state(seed=1)[0])
    assert not np.triu(matrix, 1).any()


def test_property_1_names_the_blocks_of_the_paper():
    """[fx_1, q̈_1, …, fx_n, q̈_n, a_1 … a_n, f_n, τ_n, …, f_1, τ_1]."""
    system = assemble(inverse_dynamics(chain(3)))
    columns = [system.col_blocks[c] for c in RECURSIVE["rnea"](system)[1]]
    order = [block for k, block in enumerate(columns) if k == 0 or block != columns[k - 1]]
    known = [(x, i) for i in range(3) for x in ("fx", "qdd")]
    assert order == [*known, ("a", 0), ("a", 1), ("a", 2), *((x, i) for i in (2, 1, 0) for x in ("f", "tau"))]


def eliminated(system: BlockSystem, entries: np.ndarray, b: np.ndarray, order: Permutations) -> Factors:
    """The factors of the numbers of one state, whose entries that are zero count for nothing."""
    rows: list[dict[int, float]] = [{} for _ in range(system.shape[0])]
    for r, c, x in zip(*(k.tolist() for k in system.coordinates), entries.tolist(), strict=True):
        if x != 0.0:
            rows[r][c] = x
    return eliminate(rows, b.tolist(), *order)


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("problem", ["inverse", "forward", "hybrid"])
@pytest.mark.parametrize("order", ["aba", "crba"])
def test_recursive_orders_solve_without_pivoting(order, problem, layout, known):
    """Elimination on floats, and the pivots of c(τ): the inertia that is left, S^T I^A S, positive."""
    system = built("tree 3", problem, layout, known)
    model = system.model
    for seed in range(3):
        q, qd, answer = reference(model, seed)
        values = {x: np.ravel(answer[x]) for x in system.problem.known_quantities}
        entries, b = system.values({"q": q, "qd": qd, **values})
        row_perm, col_perm = RECURSIVE[order](system)
        factors = eliminated(system, entries[0], b[0], (row_perm, col_perm))
        expected = unknowns(system, answer)
        np.testing.assert_allclose(factors.solution, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
        for pivot, c in zip(factors.pivots, col_perm, strict=True):
            if system.col_blocks[c][0] == "qdd" and abs(pivot) != 1.0:
                assert pivot > 1e-6
    if problem == "forward" and known == "substituted":
        accelerations = [system.col_blocks[c][1] for c in col_perm if system.col_blocks[c][0] == "qdd"]
        assert accelerations == sorted(accelerations, reverse=True)


@pytest.mark.parametrize("order", ["aba", "crba"])
def test_wrenches_of_constraints_are_last(order):
    model = floating_tree(4, 2)
    palm = np.eye(4)
    palm[:3, 3] = 0.1, 0.2, 0.3
    hand = Contact((model.body_names[-1], palm), "point", name="hand")
    contacts = [hand, Contact(model.body_names[0], ["a_z"], name="foot")]
    system = assemble(forward_dynamics(model) + contacts)
    found = RECURSIVE[order](system)
    assert [system.col_blocks[c] for c in found[1][-4:]] == [*[("w", 0)] * 3, ("w", 1)]
    q, qd, tau = model.random_state(seed=1)
    entries, b = (x[0] for x in system.values({"q": q, "qd": qd, "tau": tau}))
    expected = np.linalg.solve(system.matrix(entries).toarray(), -b)
    solution = eliminated(system, entries, b, found).solution
    np.testing.assert_allclose(solution, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def test_recursive_orders_say_where_they_do_not_apply():
    model = chain(3)
    with pytest.raises(ProblemError, match="'rnea' is for inverse dynamics"):
        RECURSIVE["rnea"](assemble(forward_dynamics(model)))
    partial = inverse_dynamics(model) - ExternalWrench("body2", ["fz"]) + JointTorque("joint0")
    with pytest.raises(ProblemError, match="'aba' needs exact values"):
        RECURSIVE["aba"](assemble(partial))
    with pytest.raises(ProblemError, match="'crba' needs exact values"):
        RECURSIVE["crba"](assemble(inverse_dynamics(model) + Accelerometer("body2")))
    by_force = [ExternalWrench("all", ["fz"]), ExternalWrench("all", ["nx", "ny", "nz", "fx", "fy"])]
    turned = forward_dynamics(random_tree(3, seed=1, joints=("revolute",))) - ExternalWrench("all") + by_force
    with pytest.raises(ProblemError, match="'aba' needs wrenches stated whole in canonical frames"):
        RECURSIVE["aba"](assemble(turned, passes="all"))
    assert len(RECURSIVE["aba"](assemble(turned))[0]) == 60
