"""Statements of what is known: adding, removing, components, units, dictionaries."""

from __future__ import annotations

import json

import numpy as np
import pytest
from oracles import icub
from systems import PROBLEMS, Accelerometer, kinds

from sysdyn.equations.problem_system import assemble
from sysdyn.errors import ProblemError
from sysdyn.measurements.bias_models import Constant
from sysdyn.measurements.classical import inverse_dynamics
from sysdyn.measurements.known_quantities import (
    ExternalWrench,
    JointAcceleration,
    JointTorque,
    JointWrench,
    RawMeasurement,
)
from sysdyn.measurements.measurement import Context
from sysdyn.measurements.problem import Problem
from sysdyn.model import chain, random_tree
from sysdyn.model.quantities import WRENCH


def test_adding_and_removing_measurements():
    model = icub("fixed")
    problem = inverse_dynamics(model)
    smaller = problem - ExternalWrench("l_ankle_2", ["fz", "nx"]) - JointAcceleration("l_knee")
    assert smaller.ny == problem.ny - 3
    assert problem.ny == 7 * 32  # and the old one is as it was
    gone = {"fx: fx(l_ankle_2).fz", "fx: fx(l_ankle_2).nx", "qdd: qdd(l_knee)"}
    assert set(problem.y_names) - set(smaller.y_names) == gone
    again = smaller + ExternalWrench("l_ankle_2", ["nx", "fz"], name="cell")
    again = again + JointAcceleration("l_knee", name="encoder")
    assert again.ny == problem.ny
    assert again.y_names[-3:] == ("cell: fx(l_ankle_2).nx", "cell: fx(l_ankle_2).fz", "encoder: qdd(l_knee)")
    both = smaller + [ExternalWrench("l_ankle_2", ["nx"]), JointTorque("l_knee")]
    assert both.ny == smaller.ny + 2
    assert both.known_quantities == ("tau", "qdd", "fx")
    nothing = problem - ExternalWrench("all") - JointAcceleration("all")
    assert nothing.measurements == () and nothing.ny == 0 and nothing.known_quantities == ()
    assert "qdd: 31 equations" in repr(smaller)


def test_components_and_targets():
    model = random_tree(3, seed=4, joints=("planar", "free", "spherical"))
    one = Problem(model, [JointTorque("joint1", [1, 0]), ExternalWrench(["body2", "body0"], ["fz", "nx"], name="w")])
    block = f"({model.joint_names[1]})"
    assert one.y_names == (
        f"JointTorque(joint1.1,0): tau{block}[1]", f"JointTorque(joint1.1,0): tau{block}[0]",
        "w: fx(body2).fz", "w: fx(body2).nx", "w: fx(body0).fz", "w: fx(body0).nx",
    )  # fmt: skip
    assert one.knows("tau") == {(1, 0), (1, 1)}
    by_joint = Problem(model, [JointWrench("joint2", name="f")])
    assert by_joint.y_names == tuple(f"f: f(body2).{c}" for c in WRENCH)
    assert by_joint.knows("f") == {(2, k) for k in range(6)}


RAW = {name: cls for name, cls in kinds(RawMeasurement).items() if name != "Known"}


@pytest.mark.parametrize("kind", RAW.values(), ids=RAW)
def test_default_names_and_units(kind):
    model = chain(2)
    m = kind("all")
    assert m.name == kind.__name__
    assert len(m.components(model)) == (2 if kind in (JointTorque, JointAcceleration) else 12)
    assert m.units and all(isinstance(x, str) for x in m.units)
    rows = m.rows(None if kind is None else Context(model, [], []))
    total = sum(np.asarray(block).sum() for block in rows.values())
    assert total == len(m.components(model))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_problems_as_dictionaries(problem):
    original = PROBLEMS[problem](random_tree(4, seed=3))
    if problem != "bodies":
        original = original - ExternalWrench("body1", ["fz"])
    text = json.dumps(original.to_dict())
    again = Problem.from_dict(json.loads(text))
    assert again.digest == original.digest
    assert again.y_names == original.y_names
    assert again.known_quantities == original.known_quantities
    q, qd, _ = original.model.random_state(seed=1)
    assert (assemble(again).D(q) != assemble(original).D(q)).nnz == 0
    assert Problem.from_dict(again.to_dict()).digest == original.digest
    other = original + JointTorque("joint0", name="z") if problem == "inverse" else original - original.measurements[0]
    assert other.digest != original.digest
    assert original.model.replace(gravity=(0.0, 0.0, -1.0)).digest != original.model.digest


def stored(m) -> object:
    """The measurement of a problem that was stored and loaded."""
    return Problem.from_dict(Problem(chain(2), [m]).to_dict()).measurements[0]


NOISE = np.array([0.1, 0.2])
# Measurements, and others, which are equal or not.
COMPARED = {
    "same": (JointTorque("joint0"), JointTorque("joint0"), True),
    "other joint": (JointTorque("joint0", name="a"), JointTorque("joint1", name="a"), False),
    "other quantity": (JointTorque("all", name="a"), JointAcceleration("all", name="a"), False),
    "stored": (stored(JointTorque("joint0", name="a")), stored(JointTorque("joint0", name="a")), True),
    "stored, other joint": (stored(JointTorque("joint0", name="a")), stored(JointTorque("joint1", name="a")), False),
    "arrays": (JointTorque(noise=NOISE), JointTorque(noise=NOISE.copy()), True),
    "arrays and lists": (JointTorque(noise=NOISE), JointTorque(noise=[0.1, 0.2]), True),
    "other arrays": (JointTorque(noise=NOISE), JointTorque(noise=2.0 * NOISE), False),
    "covariances": (JointTorque(noise=np.diag(NOISE)), JointTorque(noise=np.diag(NOISE)), True),
    "stored arrays": (stored(JointTorque(noise=NOISE)), stored(JointTorque(noise=NOISE)), True),
    "biases": (JointTorque(noise=1.0, bias=Constant(NOISE)), JointTorque(noise=1.0, bias=Constant(NOISE)), True),
    "other biases": (JointTorque(noise=1.0, bias=Constant(1.0)), JointTorque(noise=1.0, bias=Constant(2.0)), False),
}


@pytest.mark.parametrize("case", COMPARED)
def test_known_quantities_compare_by_what_they_state(case):
    a, b, equal = COMPARED[case]
    assert (a == b) is equal and (a != b) is not equal and len({a, b}) == 2 - equal
    assert (repr(a) == repr(b)) is equal or case in ("arrays and lists", "biases", "other biases")


def test_custom_measurements_have_no_description():
    problem = inverse_dynamics(chain(2)) + Accelerometer("body1")
    assert problem.digest is None
    with pytest.raises(ProblemError, match="'accelerometer' is custom and cannot be stored"):
        problem.to_dict()
