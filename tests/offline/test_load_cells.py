"""Load cells in place of known quantities, as in Nori, Fig. 2."""

from __future__ import annotations

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.measurements.known_quantities import ExternalWrench, JointAcceleration, JointWrench
from sysdyn.measurements.problem import Problem
from sysdyn.model import auto_tree
from sysdyn.reference import newton_euler

FIVE = ("nx", "ny", "fx", "fy", "fz")


def load_cells(n: int, skew: float = 1.5) -> Problem:
    """Nori, Fig. 2: fx_1 … fx_{n−1}, q̈_3 … q̈_{n−2}, and five components of f_1 and of fx_n are known."""
    model = auto_tree(n, 1, skew, 1)
    measurements = [
        ExternalWrench(model.body_names[:-1], name="fx"), JointWrench(model.body_names[0], FIVE, name="base cell"),
        ExternalWrench(model.body_names[-1], FIVE, name="tip cell"),
    ]  # fmt: skip
    if n > 4:
        measurements.append(JointAcceleration(model.joint_names[2 : n - 2], name="qdd"))
    return Problem(model, measurements)


@pytest.mark.parametrize("n", [4, 5, 6, 7, 8])
def test_load_cells_of_the_paper_are_well_posed(n):
    problem = load_cells(n)
    assert problem.ny == 7 * n
    diagnosis = sd.diagnose(problem)
    assert diagnosis.well_posed and diagnosis.rank == 20 * n
    assert str(diagnosis).startswith(f"well posed: {20 * n} equations, {20 * n} unknowns, rank {20 * n}")


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("n", [4, 6])
def test_load_cells_of_the_paper_compile_and_solve(n):
    problem = load_cells(n)
    model = problem.model
    solver = sd.compile(problem, level="fast")
    assert (
        solver.stability.singular > 0
    )  # at some multiples of π/2 the cells do not see everything: no fault of the order
    q, qd, qdd = model.random_state(seed=n, batch=200)
    fx = np.random.default_rng(n).uniform(-5.0, 5.0, (200, model.nb, 6))
    tau, a, f, _ = newton_euler(model, q, qd, qdd, fx)
    values = {"qdd": qdd, "fx": fx, "f": f}
    solution = solver(q, qd, **{x: values[x] for x in problem.known_quantities})
    assert solution.ok.all()
    assert solution.backward_error().max() <= 1e-12
    error = np.abs(solution.tau - tau).max(axis=1) / np.abs(tau).max(axis=1)
    assert np.median(error) <= 1e-11
    assert error.max() <= 1e-5  # some states are nearly singular


@pytest.mark.slow
def test_load_cells_without_skew_are_singular():
    problem = load_cells(6, skew=0.0)
    diagnosis = sd.diagnose(problem)
    assert diagnosis.equations == diagnosis.unknowns and not diagnosis.well_posed
    # all axes parallel: the pattern falls into the plane and what is across it
    assert diagnosis.structural and len(diagnosis.suggestions) == 2
    with pytest.raises(sd.StructurallySingular, match="120 equations, 120 unknowns, rank 117"):
        sd.compile(problem, level="fast")
    nearly = load_cells(4, skew=1e-11)  # poor in its units, regular once rows and columns are balanced
    assert sd.diagnose(nearly).well_posed
    with pytest.warns(sd.AccuracyWarning):
        assert sd.compile(nearly, level="fast").stability.acceptable
