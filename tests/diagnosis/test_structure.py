"""What the pattern and the rank of the equations say of a problem."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import icub
from systems import PROBLEMS, model_with

import sysdyn as sd
from sysdyn.diagnosis.diagnose import require_sound_structure
from sysdyn.diagnosis.structure import equation_names, structure, unknown_names
from sysdyn.measurements.classical import inverse_dynamics
from sysdyn.measurements.known_quantities import ExternalWrench, JointAcceleration, JointTorque
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model, auto_tree, chain, random_tree


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("problem", ["inverse", "forward", "hybrid"])
def test_the_classical_problems_are_well_posed(problem):
    tapered = auto_tree(100, 1.5, 1.5, 0.9)  # inertias over 23 orders of magnitude
    for model in (*map(model_with, ("icub fixed", "icub floating", "puma560", "tree 2")), tapered):
        diagnosis = sd.diagnose(PROBLEMS[problem](model))
        assert diagnosis.well_posed
        assert diagnosis.undetermined == diagnosis.redundant == diagnosis.suggestions == ()
        assert str(diagnosis).startswith("well posed: ")


def test_a_missing_equation_is_named_with_what_to_state():
    problem = inverse_dynamics(icub("floating")) - ExternalWrench("l_ankle_2", ["fz"])
    diagnosis = sd.diagnose(problem)
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
    assert sd.diagnose(problem + JointTorque("l_knee")).well_posed


def test_an_equation_too_many_is_named():
    problem = inverse_dynamics(chain(3)) + JointTorque("joint1", name="torque sensor")
    diagnosis = sd.diagnose(problem)
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
    with pytest.raises(sd.StructurallySingular, match="273 equations, 270 unknowns, rank 269"):
        require_sound_structure(sd.assemble(problem))


def parts(problem: Problem) -> tuple[set[str], set[str]]:
    """Names of (undetermined unknowns, redundant equations) by the pattern."""
    plain = sd.assemble(problem).plain
    blocks = structure(plain)
    return set(unknown_names(plain, blocks.undetermined)), set(equation_names(plain, blocks.redundant))


def test_one_leg_has_too_much_and_another_too_little():
    """Neither τ nor q̈ of joint 1 is known, both of joint 2: the numbers agree, the structure does not."""
    problem = inverse_dynamics(legs(2)) - JointAcceleration("joint1") + JointTorque("joint2", name="sensor")
    system = sd.assemble(problem)
    assert system.shape[0] == system.shape[1]
    assert structure(system)[:2] == (1, 1)
    undetermined, redundant = parts(problem)
    assert {"qdd(joint1)", "tau(joint1)", "tau(joint0)"} <= undetermined
    assert "y:sensor: tau(joint2)" in redundant
    assert not any("joint2" in name or "body2" in name for name in undetermined)
    diagnosis = sd.diagnose(problem)
    assert not diagnosis.well_posed and len(diagnosis.suggestions) == 2
    with pytest.raises(sd.StructurallySingular, match=r"structurally singular(?s:.)*tau\(joint0\)|tau\(joint1\)"):
        sd.compile(problem)


def test_a_leaf_wrench_that_no_equation_sees():
    """The wrench on the end of one leg unknown, the torque of another leg too much: structurally singular."""
    model = legs(2)
    problem = inverse_dynamics(model) - ExternalWrench("body3", ["fx"])
    undetermined, redundant = parts(problem + JointTorque("joint0", name="sensor"))
    assert "fx(body3).fx" in undetermined and "y:sensor: tau(joint0)" in redundant
    # on its own leg the torque of the joint before tells the wrench; its own does not: the force goes through its axis
    assert structure(sd.assemble(problem + JointTorque("joint2"))).sound
    assert not structure(sd.assemble(problem + JointTorque("joint3"))).sound


def test_structural_rank_bounds_the_rank():
    model = random_tree(6, seed=5)
    rng = np.random.default_rng(0)
    names = [name for name, joint in zip(model.joint_names, model.joints, strict=True) if joint.nv]
    for _ in range(6):
        known = [JointTorque(x, name=f"t{x}") for x in names if rng.random() < 0.5]
        known += [JointAcceleration(x, name=f"q{x}") for x in names if rng.random() < 0.5]
        known += [ExternalWrench(x, name=f"w{x}") for x in model.body_names if rng.random() < 0.8]
        system = sd.assemble(Problem(model, known))
        blocks, (equations, unknowns) = structure(system), system.shape
        assert unknowns - equations == blocks.missing - blocks.excess
        rank = np.linalg.matrix_rank(system.D(model.random_state(seed=1)[0]).toarray())
        assert rank <= unknowns - blocks.missing


@pytest.mark.parametrize("make", ["two contacts", "two loops"])
def test_constraints_that_fix_the_same_motion_are_named(make):
    arm = chain(6, seed=1)
    free = inverse_dynamics(arm) - ExternalWrench("body5")
    if make == "two contacts":
        problem = free + [sd.Contact("body5", name=name) for name in "ab"]
    else:
        problem = sd.Problem(arm, [*free.measurements, *(sd.LoopJoint("body1", "body4", name=name) for name in "ab")])
    diagnosis = sd.diagnose(problem)
    assert {x[:4] for x in diagnosis.redundant} >= {"y:a:", "y:b:"} and {"w(a)", "w(b)"} <= {
        x.partition(".")[0] for x in diagnosis.undetermined
    }
    with pytest.raises(sd.StructurallySingular, match="'a', 'b'") as error:
        sd.compile(problem, level="fast")
    assert set(error.value.undetermined) == set(diagnosis.undetermined)
