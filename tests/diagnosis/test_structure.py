"""What the pattern and the rank of the equations say of a problem."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import icub
from systems import PROBLEMS, model_with

import sysdyn as sd
from sysdyn.diagnosis.structure import structure
from sysdyn.measurements.raw import ExternalWrench, JointAcceleration, JointTorque
from sysdyn.model import Model, auto_tree, chain, random_tree
from sysdyn.problem import Problem, inverse_dynamics


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("problem", ["inverse", "forward", "hybrid"])
def test_the_classical_problems_are_well_posed(problem):
    tapered = auto_tree(100, 1.5, 1.5, 0.9)  # inertias over 23 orders of magnitude
    for model in (*map(model_with, ("icub fixed", "icub floating", "puma560", "tree 2")), tapered):
        diagnosis = PROBLEMS[problem](model).diagnose()
        assert diagnosis.well_posed
        assert diagnosis.undetermined == diagnosis.redundant == diagnosis.suggestions == ()
        assert str(diagnosis).startswith("well posed: ")


def test_a_missing_equation_is_named_with_what_to_state():
    problem = inverse_dynamics(icub("floating")) - ExternalWrench("l_ankle_2", ["fz"])
    diagnosis = problem.diagnose()
    assert not diagnosis.well_posed and diagnosis.structural and diagnosis.rank == diagnosis.unknowns - 1
    assert "fx(l_ankle_2).fz" in diagnosis.undetermined
    assert "f(l_ankle_2).fz" in diagnosis.undetermined
    assert diagnosis.redundant == ()
    assert not any("r_hip" in name or "arm" in name for name in diagnosis.undetermined)  # other limbs are not touched
    (suggestion,) = diagnosis.suggestions
    assert suggestion.startswith("state 1 of: ")
    text = str(diagnosis)
    assert "ill posed" in text and "undetermined (by structure, whatever the state)" in text and suggestion in text
    assert "tau(l_knee)" in diagnosis.undetermined  # stating that instead makes it well posed
    assert (problem + JointTorque("l_knee")).diagnose().well_posed


def test_an_equation_too_many_is_named():
    problem = inverse_dynamics(chain(3)) + JointTorque("joint1", name="torque sensor")
    diagnosis = problem.diagnose()
    assert not diagnosis.well_posed and diagnosis.structural
    assert "y:torque sensor: tau(joint1)" in diagnosis.redundant
    assert diagnosis.undetermined == ()
    assert "leave out 1 of: y:torque sensor: tau(joint1)" in diagnosis.suggestions[0]
    assert "redundant or contradictory" in str(diagnosis)


def legs(count: int, seed: int = 2) -> Model:
    """Legs of two bodies that stand on the base: nothing couples them."""
    model = random_tree(2 * count, seed=seed, joints=("revolute",))
    return model.replace(parent=tuple(-1 if i % 2 == 0 else i - 1 for i in range(2 * count)))


def test_sensors_that_say_the_same_are_not_called_too_many():
    """Accelerometers on one line tell no rotation about it, however many they are."""
    biped = sd.load("biped", base="floating")
    problem = inverse_dynamics(biped) - JointAcceleration("all") + JointAcceleration(biped.joint_names[1:], name="q")
    place = np.eye(4)
    for k in range(3):
        place[:3, 3] = (0.05 + 0.1 * k, 0.01 + 0.2 * k, 0.02 + 0.3 * k)
        problem = problem + sd.Accelerometer(("pelvis", place.copy()), name=f"acc{k}")
    with pytest.raises(sd.StructurallySingular, match="rank 269 of 270 unknowns by 273 equations"):
        structure(problem.system()).require_solvable()


def test_one_leg_has_too_much_and_another_too_little():
    """Neither τ nor q̈ of joint 1 is known, both of joint 2: the numbers agree, the structure does not."""
    model = legs(2)
    problem = inverse_dynamics(model) - JointAcceleration("joint1") + JointTorque("joint2", name="sensor")
    system = problem.system()
    assert system.shape[0] == system.shape[1]
    found = structure(system)
    assert (found.missing, found.excess) == (1, 1)
    assert {"qdd(joint1)", "tau(joint1)", "tau(joint0)"} <= set(found.undetermined)
    assert "y:sensor: tau(joint2)" in found.redundant
    assert not any("joint2" in name or "body2" in name for name in found.undetermined)
    assert not any("joint1" in name or "body1" in name for name in found.over_unknowns)
    diagnosis = problem.diagnose()
    assert not diagnosis.well_posed and len(diagnosis.suggestions) == 2
    with pytest.raises(sd.StructurallySingular, match=r"structurally singular.*tau\(joint0\)|tau\(joint1\)"):
        sd.compile(problem)


def test_a_leaf_wrench_that_no_equation_sees():
    """The wrench on the end of one leg unknown, the torque of another leg too much: structurally singular."""
    model = legs(2)
    problem = inverse_dynamics(model) - ExternalWrench("body3", ["fx"]) + JointTorque("joint0", name="sensor")
    found = structure(problem.system())
    assert "fx(body3).fx" in found.undetermined and "y:sensor: tau(joint0)" in found.redundant
    # on its own leg the torque of the joint before tells the wrench; its own does not: the force goes through its axis
    problem = inverse_dynamics(model) - ExternalWrench("body3", ["fx"])
    assert structure((problem + JointTorque("joint2")).system()).sound
    assert not structure((problem + JointTorque("joint3")).system()).sound


def test_blocks_of_the_structure_are_consistent():
    """Undetermined unknowns outnumber the equations that speak of them by what is missing; redundant ones likewise."""
    model = random_tree(6, seed=5)
    rng = np.random.default_rng(0)
    names = [name for name, joint in zip(model.joint_names, model.joints, strict=True) if joint.nv]
    for _ in range(6):
        known = [JointTorque(x, name=f"t{x}") for x in names if rng.random() < 0.5]
        known += [JointAcceleration(x, name=f"q{x}") for x in names if rng.random() < 0.5]
        known += [ExternalWrench(x, name=f"w{x}") for x in model.body_names if rng.random() < 0.8]
        system = Problem(model, known).system()
        found = structure(system)
        assert len(found.undetermined) - len(found.from_equations) == found.missing
        assert len(found.redundant) - len(found.over_unknowns) == found.excess
        assert found.unknowns - found.equations == found.missing - found.excess
        pattern = system.pattern().toarray()
        rank = np.linalg.matrix_rank(system.D(model.random_state(seed=1)[0]).toarray())
        assert rank <= found.unknowns - found.missing
        columns = [system.col_names.index(x) for x in found.undetermined]
        rows = {system.row_names.index(x) for x in found.from_equations}
        assert {r for c in columns for r in np.flatnonzero(pattern[:, c])} <= rows


def test_constraints_that_hold_the_same_motion_are_named():
    arm = chain(6, seed=1)
    tip = ("body5", np.eye(4))
    free = inverse_dynamics(arm) - ExternalWrench("body5")
    moved = np.eye(4)
    moved[0, 3] = 0.2
    for second, shared in (
        (sd.Contact(tip, name="b"), "alpha_x, alpha_y, "),
        (sd.Contact(("body5", moved), name="b"), ""),
    ):
        problem = free + sd.Contact(tip, name="a") + second
        with pytest.raises(sd.StructurallySingular, match=rf"'a' and 'b' fix the same motion of body5( \({shared}|:)"):
            sd.compile(problem, level="fast")
    points = [sd.Contact("body5", "point", name=name) for name in "ab"]
    found = (sd.forward_dynamics(arm) + points).diagnose()
    assert "'a' and 'b' fix the same motion of body5 (a_x, a_y, a_z): leave one" in found.suggestions[0]
    loops = [sd.LoopJoint("body1", "body4", name=name) for name in "cd"]
    with pytest.raises(sd.SysdynError, match="'c' and 'd' fix the same motion of body4 and body1"):
        sd.compile(sd.Problem(arm, [*free.measurements, *loops]), level="fast")
    assert "fix the same" not in str(structure((free + sd.Contact(tip, name="a")).system()))
