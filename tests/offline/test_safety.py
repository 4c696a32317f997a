"""The judge: singular states, guards of every division, and errors that are not small."""

from __future__ import annotations

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.model import Model, Revolute
from sysdyn.model.spatial import X_motion, inertia
from sysdyn.program.operations import CONST, DIV, INPUT, MUL, NEG
from sysdyn.program.program import Program

OUTPUTS = ("qdd", ["qdd", "tau"], "a", "f", ["tau", "qdd", "f"], "all")


def neck(offset: float) -> Model:
    """Three joints, axes pairwise orthogonal, two links without mass, and a point mass; `offset` [m] of the second."""
    placements = [X_motion(np.eye(3), np.array([x, 0.0, 0.0])) for x in (0.0, offset, 0.0)]
    point = inertia(1.3, np.array([0.0185, 0.1108, 0.0]), np.zeros((3, 3)))
    return Model(
        name="neck", parent=(-1, 0, 1), joints=tuple(Revolute(a) for a in ((0, 0, 1), (1, 0, 0), (0, 1, 0))),
        X_tree=np.array(placements), inertias=np.array([np.zeros((6, 6)), np.zeros((6, 6)), point]),
        body_names=("link1", "link2", "load"), joint_names=("pitch", "roll", "yaw"), strict=None,
    )  # fmt: skip


@pytest.mark.parametrize("outputs", OUTPUTS, ids=str)
def test_a_neck_that_carries_a_point_mass_is_singular_at_zero(outputs):
    """At q = 0 two of its axes turn the mass about lines in one plane with it: H has rank 2."""
    solver = sd.compile(sd.forward_dynamics(neck(0.0095)), outputs=outputs, backend="python")
    zero = np.zeros(3)
    with pytest.raises(sd.SingularState, match=r"nothing determines qdd\(roll\), qdd\(yaw\)"):
        solver(zero, zero, np.ones(3))
    for policy in ("nan", "repivot"):
        assert not solver(zero, zero, np.ones(3), on_singular=policy).ok
    q, qd, tau = np.array([0.3, 0.4, 0.5]), zero, np.ones(3)
    solution, expected = solver(q, qd, tau), sd.aba(neck(0.0095), q, qd, tau)
    if "qdd" in solver.outputs:
        np.testing.assert_allclose(solution.qdd, expected, rtol=1e-9)
    assert solution.ok and solver.safety.singular > 0 and solver.safety.small


def test_how_near_a_state_is_to_a_singular_one():
    """At q = 0 two axes are in one plane with the mass: the condition grows as the inverse square of the distance."""
    solver = sd.compile(sd.forward_dynamics(neck(0.0095)), outputs="qdd", backend="python")
    distance = np.array([1e-1, 1e-2, 1e-3, 1e-4, 0.0])
    q = np.array([0.3, 0.4, 1.0]) * np.array([1.0, 1.0, 0.0]) + np.outer(distance, [0.0, 0.0, 1.0])
    found = solver(q, np.zeros((5, 3)), np.ones((5, 3)), on_singular="nan")
    nearness = found.reciprocal_condition()
    assert nearness.shape == (5,) and (np.diff(nearness) < 0.0).all()
    assert nearness[0] > 1e-6 and nearness[4] < 1e-15
    assert found.ok[:3].all() and not found.ok[4]
    assert (
        sd.compile(sd.forward_dynamics(sd.chain(3)), outputs="qdd", backend="python")(
            np.ones(3), np.ones(3), np.ones(3)
        ).reciprocal_condition()
        > 1e-4
    )


def test_what_is_singular_at_every_state_is_said_to_be_so():
    """Three axes that meet turn a point mass in two directions only."""
    for outputs in ("qdd", "all"):
        with pytest.raises(sd.StructurallySingular, match="singular at every sampled state") as error:
            sd.compile(sd.forward_dynamics(neck(0.0)), outputs=outputs, backend="python")
        assert {"qdd(pitch)", "qdd(roll)", "qdd(yaw)"} & set(error.value.undetermined)


def unguarded(program: Program) -> list[int]:
    """Divisors that are no constants, no guarded values, and no products or opposites of guarded ones."""
    guarded = {g.value for g in program.guards}
    first = program.first_op

    def safe(value: int) -> bool:
        if value in guarded or program.n_inputs <= value < first:
            return True
        if value < first:
            return False
        k = value - first
        kind, a, b = int(program.kind[k]), int(program.lhs[k]), int(program.rhs[k])
        return kind in (MUL, NEG) and safe(a) and (b < 0 or safe(b))

    assert INPUT < CONST < DIV
    divisors = program.rhs[program.kind == DIV]
    return [v for v in divisors.tolist() if not safe(v)]


@pytest.mark.parametrize("seed", range(2))
def test_every_divisor_is_guarded(seed):
    """Those of recursions, too, whose signs and products are rewritten."""
    tree = sd.random_tree(6, seed)
    some = [name for name, joint in zip(tree.joint_names, tree.joints, strict=True) if joint.nv][::2]
    problems = {"forward": sd.forward_dynamics(tree), "hybrid": sd.hybrid_dynamics(tree, some)}
    for problem in problems.values():
        for options in ({"outputs": "qdd"}, {"ordering": "colamd"}):
            solver = sd.compile(problem, backend="python", level="fast", **options)
            assert not unguarded(solver.program), options


def test_forward_dynamics_of_a_serial_arm_guards_all_pivots_but_the_constant_one():
    solver = sd.compile(sd.forward_dynamics(sd.chain(6, seed=1)), outputs="qdd", backend="python")
    assert not solver.choice.row_perm and len(solver.program.guards) >= 5
