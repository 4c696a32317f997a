"""One answer for every order, layout and back end: that of the recursive Newton-Euler algorithm."""

from __future__ import annotations

import numpy as np
import pytest
from robots import ROBOTS, load_robot
from solvers import (
    ALL_JOINTS,
    ORDERINGS,
    TABLE,
    TOLERANCE,
    check_against_reference,
    compiled,
    icub_or,
    model_of,
    relative_error,
    wrenches,
)

import sysdyn as sd
from sysdyn.equations.formulation import KNOWN
from sysdyn.measurements.variables import LAYOUTS
from sysdyn.model import (
    JOINTS,
    Fixed,
    random_tree,
)
from sysdyn.model.generate import RANDOM_JOINTS


def test_the_random_trees_here_have_every_type_of_joint():
    kinds = {type(joint) for name in (ALL_JOINTS, "random 9 1") for joint in model_of(name).joints}
    assert kinds == {JOINTS[kind] for kind in RANDOM_JOINTS}


def full_table():
    """Every (kind, ordering, layout, known); the crossed pairs of the last two for three orders: they share code."""
    for kind, ordering in TABLE:
        for layout in LAYOUTS:
            for known in KNOWN:
                crossed = (layout == "paper") != (known == "rows")
                if kind != "hybrid" and (not crossed or ordering in ("auto", "aba", "umfpack")):
                    yield pytest.param(kind, ordering, layout, known, marks=[pytest.mark.slow] * crossed)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("kind", "ordering", "layout", "known"), list(full_table()))
def test_every_order_layout_and_backend_gives_the_reference_answer(kind, ordering, layout, known):
    solver = compiled(ALL_JOINTS, kind, ordering, layout=layout, known=known, level="fast")
    assert solver.ordering.split(" (")[0] == ordering or ordering == "auto"
    check_against_reference(solver)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("kind", "ordering"),
    [pytest.param(*row, marks=[pytest.mark.slow] * (row[0] == "fd")) for row in TABLE if row[0] != "id"],
)
@pytest.mark.filterwarnings("ignore::sysdyn.errors.AccuracyWarning")  # of q̈ far out, where pivoting loses more
def test_every_order_on_a_larger_tree(kind, ordering):
    check_against_reference(compiled("random 9 1", kind, ordering, known="substituted", level="fast"))


def robots_table():
    for name in ROBOTS:
        for ordering in ORDERINGS:
            if ordering in ("auto", "aba") or (name == "puma560" and ordering != "rnea"):
                yield name, ordering


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("name", "ordering"), list(robots_table()))
def test_every_order_on_robots_with_published_torques(name, ordering):
    solver = compiled(name, "fd", ordering, level="fast")
    check_against_reference(solver)
    test = load_robot(name)[1]
    q, qd, qdd, tau = (np.array(test[x], dtype=float) for x in ("q", "qd", "qdd", "tau"))
    assert relative_error(solver(q, qd, tau).qdd[None], qdd[None]) <= 1e-8
    assert relative_error(compiled(name, "id", "rnea", level="fast")(q, qd, qdd).tau[None], tau[None]) <= TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize(("n", "ordering"), [(30, "auto"), (30, "umfpack"), (20, "crba"), (10, "markowitz")])
def test_a_tapered_tree_with_every_order(n, ordering):
    check_against_reference(compiled(f"auto_tree {n} 1 1.5 0.9", "fd", ordering, level="fast"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ordering", "layout", "known", "base"),
    [
        *((ordering, "paper", "rows", "fixed") for ordering in ("umfpack", "markowitz", "crba")),
        ("tearing", "net_force", "substituted", "fixed"),
        ("aba", "net_force", "substituted", "floating"),
    ],
)
def test_icub_with_every_order(ordering, layout, known, base):
    """On the fixed base all but those of UMFPACK have pivots on one side of zero.

    One of both signs came near it at one of 20,000 states.
    """
    solver = compiled(f"icub {base}", "fd", ordering, level="fast", layout=layout, known=known)
    check_against_reference(solver)
    if base == "fixed":
        assert solver.stability.acceptable
        assert ordering == "umfpack" or (solver.stability.sign_changes == 0 and solver.stability.good)


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "known"), [("net_force", "rows"), ("paper", "substituted")])
@pytest.mark.parametrize("kind", ["id", "hybrid"])
def test_icub_with_every_layout(kind, layout, known):
    ordering = "umfpack" if kind == "id" else "aba"
    check_against_reference(compiled("icub floating", kind, ordering, level="fast", layout=layout, known=known))


def test_armature_and_gravity_are_honoured():
    model = random_tree(4, seed=8).replace(gravity=(1.0, -2.0, 3.0))
    model = model.replace(armature=np.linspace(0.1, 2.0, model.nv))
    for problem in (sd.forward_dynamics(model), sd.inverse_dynamics(model)):
        check_against_reference(sd.compile(problem, level="fast"))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", [ALL_JOINTS, "random 9 1", "puma560", "icub fixed"])
def test_forward_dynamics_inverts_inverse_dynamics(name):
    model = model_of(name)
    forward, inverse = icub_or(name, "fd"), icub_or(name, "id")
    q, qd, qdd = model.random_state(seed=11, batch=64, scale=5.0)
    fx = wrenches(model, 64, seed=12)
    tau = inverse(q, qd, qdd, fx=fx).tau
    assert relative_error(forward(q, qd, tau, fx=fx).qdd, qdd) <= TOLERANCE
    assert (
        relative_error(inverse(q, qd, forward(q, qd, qdd, fx=fx).qdd, fx=fx).tau, qdd) <= 1e-8
    )  # any numbers as torques


def test_fixed_joints_transmit_forces():
    model = random_tree(5, seed=12, joints=("revolute", "fixed"))
    assert any(isinstance(joint, Fixed) for joint in model.joints)
    check_against_reference(sd.compile(sd.forward_dynamics(model), level="fast"))
