"""The order and the size of the square-root form."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.equations.whitened import whitened_system
from sysdyn.offline import square_root as module
from sysdyn.offline.check import Check, check
from sysdyn.offline.sampling import NEAR
from sysdyn.offline.square_root import ANY, LARGEST_ERROR, SquareRoot, from_leaves, sampled_rows, square_root
from sysdyn.offline.stages import Stages

NOISY = (sd.JointAcceleration, sd.JointTorque, sd.ExternalWrench)


def form(measurements: list[sd.Measurement], bodies: int) -> SquareRoot:
    problem = sd.Problem(sd.chain(bodies, seed=1), measurements)
    return square_root(whitened_system(problem), Stages())


def test_noisy_wrenches_are_eliminated_from_the_leaves():
    """Joint wrenches in terms of all external ones beyond them, first as for exact wrenches, fill the matrix."""
    root = form([of("all", noise=0.1) for of in NOISY], 12)
    assert len(root.program) < 65_000  # 127,537 with all joint wrenches first


def test_columns_are_eliminated_body_by_body_from_the_leaves():
    """Forces of a body with what is at its parent, before the accelerations there; those of the first body are last."""
    system = whitened_system(sd.Problem(sd.chain(2), [of("all", noise=0.1) for of in NOISY]))
    found = [{system.col_blocks[c] for c in part} for part in from_leaves(system)]
    assert found == [
        {("tau", 1), ("fx", 1)}, {("qdd", 1), ("a", 1)}, {("tau", 0), ("fx", 0), ("f", 1)}, {("qdd", 0), ("a", 0)},
        {("f", 0)},
    ]  # fmt: skip


@pytest.mark.parametrize("heavier", [1.0, 1e9])
def test_orders_are_searched_in_natural_units(heavier):
    """The order is one for robots whose inertias differ by a factor: exact entries are near 1, whatever the robot."""
    model = sd.chain(3)
    problem = sd.Problem(
        model.replace(inertias=heavier * model.inertias),
        [sd.JointAcceleration("all", noise=0.1), sd.JointTorque("all", noise=0.1), sd.ExternalWrench("all")],
    )
    system = whitened_system(problem)
    rows = sampled_rows(system)
    exact = [x for i, row in enumerate(rows) if i not in system.plain.noise_by_row for x in row.values()]
    assert 1.0 < max(np.abs(x).max() for x in exact) < 100.0


@pytest.mark.slow
def test_redundant_rows_are_done_with_body_by_body():
    """Where all equations are noisy each body adds redundant ones, which would be carried to the base."""
    priors = [sd.Prior(of("all", noise=10.0)) for of in (sd.BodyAcceleration, sd.JointWrench)]
    measured = [*(of("all", noise=0.1) for of in NOISY), *priors, sd.ModelNoise("all", noise=0.01)]
    small, large = (len(form(measured, bodies).program) for bodies in (4, 8))
    assert large < 2.6 * small  # N times


def test_a_prior_and_a_measurement_of_one_quantity_are_one_row():
    """Two rows of one unknown: the other equations that hold it meet one of them only."""
    once = [of("all", noise=0.1) for of in NOISY]
    twice = [*once, *(sd.Prior(of("all", noise=10.0), name=f"prior {of.quantity}") for of in NOISY)]
    small, large = (len(form(measured, 6).program) for measured in (once, twice))
    assert large < 1.2 * small


@pytest.mark.parametrize(("shares", "pivot"), [((1e-5,), False), ((100, 1, 10), False), ((100, 1.1, 10), True)])
def test_the_most_accurate_order_is_taken_if_none_is_safe(shares, pivot, monkeypatch):
    """The first safe one ends the search; calls pivot at every state if the most accurate one is not accurate.

    shares: errors of the orders over the greatest of accurate ones.
    """
    said: list[tuple[str, float]] = []
    left = [x * LARGEST_ERROR for x in shares]

    def with_error(*asked) -> Check:
        checked = check(*asked)
        return checked._replace(report=replace(checked.report, backward_error=left.pop(0)))

    monkeypatch.setattr(module, "check", with_error)
    problem = sd.Problem(sd.chain(2, seed=1), [of("all", noise=0.1) for of in NOISY])
    root = square_root(whitened_system(problem), Stages(lambda *x: said.append(x)))
    assert not left and root.verdict.report.backward_error == min(shares) * LARGEST_ERROR
    for weak in ([weak for *_, weak in root.guards], [x.weak for x in root.program.guards]):
        assert weak and all((x == ANY) == pivot for x in weak)
    assert [share for _, share in said][:3] == [0.1, 0.3, 0.4]


def test_the_form_is_checked_as_far_as_digits_go():
    """States with lengths beyond 5 m do not count: calls pivot there."""
    model = sd.random_tree(3, 4, ("revolute", "prismatic"))
    root = square_root(whitened_system(sd.Problem(model, [of("all", noise=0.1) for of in NOISY])), Stages())
    assert root.verdict.report.states > 0 and {x for _, x in root.program.ranges} == {NEAR}
