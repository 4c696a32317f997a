"""A sensor class of a user: solved, stored, stated in problem files and suggested."""

from __future__ import annotations

import json

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.app.problem_files import load_job
from sysdyn.errors import UnknownName
from sysdyn.measurements.linear import zeros
from sysdyn.measurements.sensor import FrameSensor
from sysdyn.measurements.state_sensors import FrameStateSensor

TIP = ("body1", np.array([[1.0, 0, 0, 0.3], [0, 1, 0, 0.2], [0, 0, 1, 0.5], [0, 0, 0, 1]]))


class Lift(FrameSensor):
    """Proper spatial acceleration of a frame [m/s²] along the vertical and one horizontal axis of the world."""

    scalars = ("up", "ahead")
    unit_of = dict.fromkeys(scalars, "m/s²")
    references = ("local",)

    def __init__(self, frame, components="all", name=None, noise=None):
        super().__init__(frame, components, name, noise)

    def equations(self, ctx):
        return {("a", ctx.body(self.frame)): ctx.R(self.frame)[[2, 0]] @ ctx.X(self.frame)[3:]}, zeros(2)


class Tilt(FrameStateSensor):
    """Cosine of the angle between an axis of a frame and the vertical."""

    scalars = ("x", "y", "z")
    unit_of = dict.fromkeys(scalars, "1")
    references = ("local",)

    def __init__(self, frame, components="all", name=None, noise=None, bias=None):
        super().__init__(frame, components, name, noise, bias)

    def all_values(self, ctx):
        return ctx.R(self.frame)[2]


def measured() -> sd.Problem:
    """Forward dynamics of an arm whose two torques are unknown."""
    model = sd.random_tree(2, seed=4, joints=("revolute",))
    return sd.forward_dynamics(model) - sd.JointTorque("all") + Lift(TIP, name="lift")


def test_it_is_solved_for_and_stored(tmp_path):
    problem = measured()
    solver = sd.compile(problem, level="fast", backend="python")
    model = problem.model
    q, qd, qdd = model.random_state(seed=3)
    y = sd.predict(problem, q, qd, qdd)
    solution = solver(q, qd, y=y)
    np.testing.assert_allclose(solution["qdd"], qdd, atol=1e-9)
    solver.save(tmp_path / "solver.npz")
    again = sd.load_solver(tmp_path / "solver.npz")
    np.testing.assert_array_equal(again(q, qd, y=y)["qdd"], solution["qdd"])
    assert sd.Problem.from_dict(json.loads(json.dumps(problem.to_dict()))).digest == problem.digest


def test_a_problem_file_states_it(tmp_path):
    path = tmp_path / "problem.toml"
    path.write_text(
        'robot = "chain:2"\n[[measurement]]\ntype = "ExternalWrench"\n'
        '[[measurement]]\ntype = "Lift"\nframe = "body1"\ncomponents = "up"\nnoise = 0.1\nswitchable = true\n'
    )
    (_, switchable) = load_job(path).problem.measurements
    assert switchable.switchable and isinstance(switchable, Lift)
    assert (switchable.chosen, switchable.units, switchable.noise) == (("up",), ("m/s²",), 0.1)


def test_a_sensor_of_the_state_is_stored_stated_and_predicted(tmp_path):
    problem = measured() + Tilt(TIP, ["z"], name="tilt", noise=0.1, bias=sd.RandomWalk(0.01))
    again = sd.Problem.from_dict(json.loads(json.dumps(problem.to_dict())))
    assert again.digest == problem.digest and again.biased[0].drift == sd.RandomWalk(0.01)
    q, qd, qdd = problem.model.random_state(seed=1)
    shown = sd.predict(again, q, qd, qdd, state_sensors=True)["tilt"]
    direction = sd.predict(problem + sd.Direction(TIP, (0, 0, 1), noise=1.0, name="up"), q, qd, qdd, state_sensors=True)
    np.testing.assert_allclose(shown, direction["up"][2:], atol=1e-15)
    path = tmp_path / "problem.toml"
    path.write_text('robot = "chain:2"\n[[measurement]]\ntype = "Tilt"\nframe = "body1"\nnoise = 0.1\n')
    (stated,) = load_job(path).problem.state_sensors
    assert isinstance(stated, Tilt) and stated.units == ("1",) * 3


def test_it_is_suggested_component_by_component():
    incomplete = measured() - Lift(TIP, ["ahead"])
    found = sd.diagnose(incomplete, [Lift(TIP, name="more")])
    assert found.missing == 1
    (added,) = found.additions
    assert isinstance(added, Lift) and added.name == "more" and len(added.chosen) == 1


def test_a_class_that_is_not_defined_yet_is_named_with_what_to_do(monkeypatch):
    data = json.loads(json.dumps(measured().to_dict()))
    monkeypatch.delitem(sd.Measurement.kinds, "Lift")
    with pytest.raises(UnknownName, match="'Lift'.*defined, or imported"):
        sd.Problem.from_dict(data)


@pytest.mark.parametrize("name", ["LoadCells", "JointTorque", "Contact"])
def test_a_class_with_the_name_of_another_is_not_stored_as_that(name):
    namesake = type(name, (Lift,), {})(TIP, name="namesake")
    assert sd.Measurement.kinds[name] is getattr(sd, name)
    problem = sd.inverse_dynamics(sd.chain(2)) + namesake
    assert problem.digest is None
    with pytest.raises(sd.ProblemError, match="'namesake'.*cannot be stored"):
        problem.to_dict()
