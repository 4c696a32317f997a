"""The problems of the paper's section VI, literally: (19) … (24), and the script of Figure 2 beside the text."""

from __future__ import annotations

import numpy as np
import pytest
from nori.problems import (
    FORCE_FIRST,
    LOAD_CELLS,
    SLIPPERY_FLOOR,
    components,
    feet,
    floating_chain,
    load_cells,
)

import sysdyn as sd
from sysdyn.errors import Inconsistent
from sysdyn.model.quantities import WRENCH
from sysdyn.model.se3 import adjoint, pose_inverse

MODEL = floating_chain(4)
BASE = slice(0, 6)


def motion(model, count: int = 20):
    """(q, q̇, q̈, fx, τ) of random motions that need no force at the base, wrenches on every body."""
    q, qd, qdd = model.random_state(seed=1, batch=count)
    fx = np.random.default_rng(1).uniform(-5.0, 5.0, (count, model.nb, 6))
    for k in range(count):
        held = sd.rnea(model, q[k], qd[k], qdd[k], fx[k])[BASE]
        qdd[k, BASE] -= np.linalg.solve(sd.crba(model, q[k])[BASE, BASE], held)
    return q, qd, qdd, fx, sd.rnea(model, q, qd, qdd, fx)


def test_the_matrices_of_the_feet():
    """As printed, the force first; Y and H together hold every component once."""
    assert components(LOAD_CELLS[0]) == ("nx", "ny", "fz") and components(LOAD_CELLS[1]) == ("fx", "fy", "nz")
    assert components(SLIPPERY_FLOOR[1]) == ("nz",)
    for Y, H in (LOAD_CELLS, SLIPPERY_FLOOR):
        both = np.concatenate([Y, H], axis=1)
        np.testing.assert_array_equal(both.sum(axis=0), 1.0)
        np.testing.assert_array_equal(both.sum(axis=1), 1.0)
    assert sorted(FORCE_FIRST) == sorted(WRENCH)


def test_equation_21():
    """H q̈ + C is what joints and wrenches give, six zeros at the base."""
    q, qd, qdd, fx, tau = motion(MODEL, 1)
    jacobians = [sd.frame_jacobian(MODEL, q[0], name, "local") for name in MODEL.body_names]
    inertial = sd.crba(MODEL, q[0]) @ qdd[0] + sd.rnea(MODEL, q[0], qd[0], np.zeros(MODEL.nv))
    outer = sum(J.T @ f for J, f in zip(jacobians, fx[0], strict=True))
    np.testing.assert_allclose(inertial, tau[0] + outer, rtol=0, atol=1e-9)
    np.testing.assert_allclose(tau[0, BASE], 0.0, atol=1e-11)


@pytest.mark.parametrize("sensors", [LOAD_CELLS, SLIPPERY_FLOOR], ids=["load cells", "slippery floor"])
def test_equation_23_has_the_rank_that_the_system_lacks(sensors):
    H = sensors[1]
    turned = np.concatenate([H[3:], H[:3]])  # the couple first
    q = MODEL.random_state(seed=3)[0]
    poses = [sd.frame_pose(MODEL, q, MODEL.body_names[k]) for k in (0, -1)]
    X = adjoint(pose_inverse(poses[1]) @ poses[0]).T  # a wrench on the last body, as one on the first
    J = [sd.frame_jacobian(MODEL, q, MODEL.body_names[k], "local")[:, 6:].T for k in (0, -1)]
    n = MODEL.nv - 6
    left = np.concatenate([np.eye(n), np.zeros((6, n))])
    right = [np.concatenate([J[0] @ turned, turned]), np.concatenate([J[1] @ turned, X @ turned])]
    printed = np.concatenate([left, *right], axis=1)
    lacking = printed.shape[1] - np.linalg.matrix_rank(printed, 1e-10)
    D = sd.assemble(feet(MODEL, sensors)).D(q).toarray()
    assert lacking == D.shape[1] - np.linalg.matrix_rank(D, 1e-10) == (1 if sensors is LOAD_CELLS else 0)


def test_the_problem_on_load_cells_lacks_one_equation():
    found = sd.diagnose(feet(MODEL, LOAD_CELLS))
    assert found.equations == found.unknowns == found.rank + 1 and not found.well_posed
    assert {f"fx({name}).nz" for name in (MODEL.body_names[0], MODEL.body_names[-1])} <= set(found.undetermined)


def test_the_slippery_floor_as_written_is_solved():
    """Four equations more than unknowns, which hold at every state of a motion; they are looked at."""
    problem = feet(MODEL, SLIPPERY_FLOOR)
    found = sd.diagnose(problem)
    assert found.equations == found.unknowns + 4 == found.rank + 4
    q, qd, qdd, fx, tau = motion(MODEL)
    solver = sd.compile(problem, level="fast", backend="python")
    solution = solver(q, qd, qdd=qdd, fx=fx, tau=np.zeros_like(tau))
    assert solution.ok.all()
    np.testing.assert_allclose(solution.tau, tau, rtol=0, atol=1e-10 * np.abs(tau).max())
    np.testing.assert_allclose(solution.fx, fx, rtol=0, atol=1e-10 * np.abs(tau).max())
    held = np.zeros_like(tau)
    held[:, 0] = 1.0
    with pytest.raises(Inconsistent, match="'free base' is off"):  # no such motion
        solver(q, qd, qdd=qdd, fx=fx, tau=held)


def test_script_and_text_differ():
    text, script = feet(MODEL, SLIPPERY_FLOOR), load_cells(4)
    assert sd.diagnose(script).equations == sd.diagnose(script).unknowns
    assert (text.model.base, script.model.base) == ("floating", "fixed")
    assert "f" in script.known_quantities and "f" not in text.known_quantities
    assert len(text.knows("qdd")) == MODEL.nv and len(load_cells(8).knows("qdd")) == 8 - 4
