"""What every measurement offers its callers, names of groups of inputs, and the classical problems."""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest
from systems import kinds

import sysdyn as sd
from sysdyn.errors import InvalidInput
from sysdyn.measurements import classical, input_names
from sysdyn.measurements.variables import Layout
from sysdyn.model.quantities import QUANTITY


def robot() -> sd.Model:
    return sd.random_tree(4, seed=0, joints=("revolute", "prismatic", "spherical"))


def test_units_of_components_are_those_of_each_freedom_and_number():
    model = robot()
    for cls, quantity in ((sd.JointTorque, "tau"), (sd.JointAcceleration, "qdd")):
        m = cls("all")
        assert m.component_units(model) == QUANTITY[quantity].units(model)
        assert sd.Switchable(cls("all", noise=1.0)).component_units(model) == m.component_units(model)
    assert set(QUANTITY["tau"].units(model)) == {"N m", "N"}  # there are turns and slides
    assert sd.ExternalWrench("all", ("fz", "nx")).component_units(model)[:2] == ("N", "N m")
    assert sd.BodyAcceleration(("body1",), ("alpha_x", "a_z")).component_units(model) == ("rad/s²", "m/s²")
    assert sd.LoadCells("body1", ["nz"]).component_units(model) == ("N m",)


def test_the_place_of_a_scalar_is_that_of_the_layout():
    model = robot()
    layout = Layout(model)
    for quantity in ("tau", "qdd", "fx", "a", "f"):
        columns = layout.quantity_columns(quantity)
        for i in range(model.nb):
            for k, column in enumerate(layout.columns(quantity, i)):
                assert columns[QUANTITY[quantity].part(model, i).start + k] == column


@pytest.mark.parametrize("noise", [None, 0.5, (1.0, 2.0, 3.0), np.diag([1.0, 4.0, 9.0])])
def test_a_part_of_a_sensor_has_its_name_components_units_and_noise(noise):
    whole = sd.LoadCells("body1", ["nx", "ny", "fz"], name="cells", noise=noise)
    part = whole.select([2, 0])
    assert (part.name, part.chosen, part.units) == ("cells", ("fz", "nx"), ("N", "N m"))
    assert (whole.chosen, whole.units) == (("nx", "ny", "fz"), ("N m", "N m", "N"))
    assert part.identity() == whole.identity() == sd.LoadCells("body1", name="other").identity()
    expected = noise if np.ndim(noise) == 0 else np.asarray(noise)[np.ix_(*[[2, 0]] * np.ndim(noise))]
    np.testing.assert_array_equal(part.noise, expected)
    model = robot()
    left = sd.Problem(model, [whole]) - sd.LoadCells("body1", ["ny"])
    assert left.measurements[0].chosen == ("nx", "fz")


def test_what_cannot_be_divided_says_so():
    motor = sd.MotorTorque(["joint0"], name="motor")
    assert not motor.selectable and motor.identity() is None
    assert sd.Contact("body1").identity() is None and not sd.Contact("body1").selectable
    for whole in (sd.MotorTorque(["joint0", "joint1"], name="x", noise=1.0), sd.JointCoupling("joint1", name="x")):
        with pytest.raises(InvalidInput, match="'x' cannot be divided"):
            whole.select([0])


def test_the_value_of_wrenches_and_of_optional_measurements_is_zero_by_default():
    assert sd.ExternalWrench("all").has_default and sd.PointContact("body1").has_default
    assert sd.Prior(sd.JointTorque("all", noise=1.0)).has_default
    assert not sd.JointTorque("all").has_default and not sd.LoadCells("body1").has_default


@pytest.mark.parametrize("text", ["q", "tau", "gravity", "y:a: b", "noise:x", "active:x", "inertia:l_foot", "z:x"])
def test_a_group_reads_as_it_is_written(text):
    assert str(input_names.group_of(text)) == text
    assert input_names.label_of(text) == text.removeprefix("y:")


def test_groups_of_a_problem_have_the_roles_that_they_are_for():
    model = robot()
    known = [sd.JointTorque("all", name="tau", noise=1.0), sd.ExternalWrench("all", name="fx"),
             sd.Switchable(sd.JointAcceleration("all", noise=1.0), name="still")]  # fmt: skip
    problem = sd.Problem(model, known).varying("gravity", "inertia:body1", "armature:joint0")
    assert [input_names.group_of(name) for name, _ in problem.input_sizes] == [
        ("", "q"), ("", "qd"), ("", "fx"), ("y", "tau"), ("y", "still"), ("noise", "tau"), ("noise", "still"),
        ("active", "still"), ("", "gravity"), ("inertia", "body1"), ("armature", "joint0"),
    ]  # fmt: skip


def test_classical_problems_are_told_apart():
    model = robot()
    inverse, forward = sd.inverse_dynamics(model), sd.forward_dynamics(model)
    hybrid = sd.hybrid_dynamics(model, [model.joint_names[1]])
    everything = frozenset(range(model.nv))
    some = model.v_slice(1)
    for problem, torque, name in (
        (inverse, frozenset(), "inverse_dynamics"), (forward, everything, "forward_dynamics"),
        (hybrid, frozenset(range(some.start, some.stop)), "hybrid_dynamics"),
    ):  # fmt: skip
        assert classical.torque_freedoms(problem) == torque and classical.is_classical(problem)
        assert classical.dynamics_name(problem) == name
        for more in (sd.Accelerometer("body1"), sd.Contact("body3"), sd.ModelNoise(noise=1.0)):
            assert not classical.is_classical(problem + more)
            assert classical.torque_freedoms(problem + more) == torque
        assert not classical.is_classical(problem.varying("gravity"))
    partly = forward - sd.ExternalWrench(("body1",), ("fz",))
    assert classical.torque_freedoms(partly) is None and classical.driven_freedoms(partly) == everything
    assert classical.driven_freedoms(forward - sd.JointTorque(("joint0",))) is None
    assert classical.driven_freedoms(forward + sd.JointAcceleration(("joint0",))) is None
    assert classical.dynamics_name(forward + sd.Accelerometer("body1")) == "dynamics"


# ---- arguments of wrong types ----------------------------------------------------------------------------------------

FRAME = {"frame": "body1"}
# Arguments of each class of measurements: those that it needs.
NEEDED = {
    **dict.fromkeys(["JointTorque", "JointAcceleration", "ExternalWrench", "BodyAcceleration", "JointWrench"], {}),
    **dict.fromkeys(["CentreOfMassAcceleration", "MomentumRate", "JointPosition", "JointVelocity"], {}),
    "Known": {"quantity": "tau"}, "ForceTorqueSensor": {"joint": "joint1"}, "MotorTorque": {"joints": "joint0"},
    "Linear": {"blocks": {("tau", "joint0"): [[1]]}}, "ForceDirection": {**FRAME, "direction": [0, 0, 1]},
    "ModelNoise": {"noise": 1.0}, "ContactWrench": {**FRAME, "noise": 1.0}, "JointCoupling": {"joint": "joint0"},
    **dict.fromkeys(["FrameDistance", "LoopJoint"], {"frame_a": "body0", "frame_b": "body1"}),
}  # fmt: skip
WRONG = ({}, {"a": 1}, object(), b"joint0", [None], [["joint0"]], np.zeros((2, 2)))


@pytest.mark.parametrize("name", kinds())
def test_arguments_of_wrong_types_are_refused_at_once(name):
    """By the class, or by the problem, which knows how many scalars noise and blocks are of; and never later."""
    cls, needed = kinds()[name], NEEDED.get(name, FRAME)
    noise = {"noise": 1e-3} if cls.of_state else {}
    sd.Problem(robot(), [cls(**{**needed, **noise})])
    arguments = list(inspect.signature(cls).parameters)
    assert "name" in arguments
    for argument in arguments:
        for wrong in WRONG:
            with pytest.raises((InvalidInput, sd.ProblemError)) as error:
                m = cls(**{**needed, **noise, argument: wrong})
                assert argument in ("noise", "matrix", "blocks"), (argument, wrong)
                sd.Problem(robot(), [m])
            assert error.value.args
    for wrong in ("yes", 1, None):
        for flag in {"gravity", "classical", "passive", "optional"} & set(arguments):
            with pytest.raises(InvalidInput, match=flag):
                cls(**{**needed, **noise, flag: wrong})


def test_wrappers_and_functions_refuse_names_that_are_none():
    torque = sd.JointTorque("all", noise=1.0)
    for make in (sd.Prior, sd.Switchable):
        with pytest.raises(InvalidInput, match="name"):
            make(torque, name={})
    with pytest.raises(InvalidInput, match="name"):
        sd.StateFunction({}, lambda ctx: ctx.q, noise=1.0)


def test_measurements_of_ones_own_are_checked_by_their_annotations():
    class Own(sd.LoadCells):
        def __init__(self, side: str, strong: bool = False, other=None, *more: str, **named: str):
            super().__init__("body1", name=side)

    class Bare(sd.Measurement):
        name = "bare"

    assert Own("left", False, {}, "more", named=1).name == "left" and Bare().name == "bare"
    for arguments in (({},), ("left", 3)):
        with pytest.raises(InvalidInput, match="Own: s"):
            Own(*arguments)
    with pytest.raises(TypeError):
        Own()
    with pytest.raises(InvalidInput, match="leader"):
        sd.JointCoupling("joint0", "joint0")
    again = pickle.loads(pickle.dumps(sd.JointCoupling("joint0", "joint1")))
    assert again.coupling == sd.JointCoupling("joint0", "joint1").coupling
