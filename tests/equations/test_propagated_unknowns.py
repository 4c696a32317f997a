"""Propagated unknowns: which joints have them, and that answers stay the same."""

from __future__ import annotations

import numpy as np
import pytest
from robots import floating_tree
from systems import DistantWrench

import sysdyn as sd
from sysdyn.equations.propagated_unknowns import Block, propagated_blocks
from sysdyn.model.quantities import QUANTITIES
from sysdyn.passes import PAPER

# A free base, a leg of three hinges, and an arm on the first link of the leg.
MODEL = floating_tree(5, seed=1, parent=(-1, 0, 1, 2, 1))
ROOT, *HINGES = MODEL.joint_names
BODIES = MODEL.body_names
FOOT, ARM = BODIES[3], BODIES[4]
STANDING = sd.inverse_dynamics(MODEL)
LOOSE = STANDING - sd.JointAcceleration(ROOT)
PUSHED = STANDING - sd.ExternalWrench(FOOT)
HELD = LOOSE + sd.JointTorque(ROOT)


class Sum(sd.Measurement):
    """The sum of one quantity of several joints or bodies."""

    def __init__(self, quantity: str, *owners: str):
        self.name, self.quantity, self.owners = f"sum of {quantity}", quantity, owners

    def components(self, model):
        return tuple("abcdef")

    def rows(self, ctx):
        return {(self.quantity, owner): np.eye(6) for owner in self.owners}


def imu(frame: str) -> list[sd.Measurement]:
    return [sd.Accelerometer(frame), sd.AngularAccelerometer(frame)]


def force(k: int, **more) -> sd.Measurement:
    return sd.ForceTorqueSensor(HINGES[k], **more)


ACCELERATION_PATHS: dict[str, tuple[sd.Problem, list[int]]] = {
    "nothing is missing": (STANDING + imu(FOOT), []),
    "a sensor at the base": (LOOSE + imu(BODIES[0]), []),
    "a sensor at the foot": (LOOSE + imu(FOOT), [3, 2, 1]),
    "an acceleration that is known": (LOOSE + sd.BodyAcceleration(FOOT), [3, 2, 1]),
    "in part known, in part sensed": (
        LOOSE + sd.BodyAcceleration(FOOT, ["a_x", "a_y", "a_z"]) + sd.AngularAccelerometer(FOOT), [3, 2, 1]
    ),
    "axes of the world": (LOOSE + sd.FrameAcceleration(FOOT, reference="world"), [3, 2, 1]),
    "the nearer one": (LOOSE + imu(FOOT) + imu(ARM), [4, 1]),
    "the nearer one, said first": (LOOSE + imu(ARM) + imu(FOOT), [4, 1]),
    "three of six": (LOOSE + sd.Accelerometer(FOOT), []),
    "the base in part": (LOOSE + sd.JointAcceleration(ROOT, [0]) + imu(FOOT), []),
    "the base in a sensor": (LOOSE + Sum("qdd", ROOT) + imu(FOOT), []),
    "a base on a hinge": (sd.inverse_dynamics(sd.chain(3)) - sd.JointAcceleration("joint0") + imu("body2"), []),
}  # fmt: skip
WRENCH_PATHS: dict[str, tuple[sd.Problem, list[int]]] = {
    "nothing is missing": (STANDING + force(0), []),
    "nothing measures it": (PUSHED, []),
    "a sensor at the foot": (PUSHED + force(2), []),
    "a sensor at the hip": (PUSHED + force(0), [3, 2]),
    "a wrench that is known": (PUSHED + sd.JointWrench(HINGES[0]), [3, 2]),
    "axes of the world": (PUSHED + force(0, reference="world"), [3, 2]),
    "a free base": (PUSHED + sd.JointTorque(ROOT), [3, 2, 1]),
    "a base in part free": (PUSHED + sd.JointTorque(ROOT, range(5)), []),
    "the nearer one": (PUSHED + force(0) + force(1), [3]),
    "three of six": (PUSHED + force(0, components=["nx", "ny", "nz"]), []),
    "another limb": (PUSHED + force(3), []),
    "the wrench in part": (PUSHED + sd.ExternalWrench(FOOT, ["fz"]) + force(0), []),
    "the wrench in a sensor": (PUSHED + Sum("fx", FOOT, ARM) + force(0), []),
    "one sensor for one of two": (PUSHED - sd.ExternalWrench(ARM) + force(0), [3, 2]),
    "coefficients that vary": (PUSHED + DistantWrench(FOOT, BODIES[1]), []),
    "several in one row": (PUSHED + Sum("f", HINGES[0], HINGES[3]), []),
    "a base on a hinge": (
        sd.inverse_dynamics(sd.chain(3)) - sd.ExternalWrench("body2") + sd.JointTorque("joint0"), []
    ),
}  # fmt: skip
# Both ways with a contact that holds the foot, else none.
ON_FOOT: dict[str, tuple[sd.Problem, bool]] = {
    "on one foot": (HELD + sd.Contact(FOOT), True),
    "on its point": (HELD + sd.Contact(FOOT, "point"), False),
    "on two": (HELD + sd.Contact(FOOT) + sd.Contact(ARM), False),
    "loose hinge": (HELD - sd.JointAcceleration(HINGES[3]) + sd.JointTorque(HINGES[3]) + sd.Contact(FOOT), False),
    "forward dynamics": (sd.forward_dynamics(MODEL) + sd.Contact(FOOT), False),
    "in flight": (sd.forward_dynamics(MODEL), False),
    "a base that is moved": (STANDING + sd.Contact(FOOT), False),
}  # fmt: skip


def cases() -> dict[str, tuple[sd.Problem, list[Block]]]:
    found = {f"acceleration: {x}": (p, [("Xa", i) for i in way]) for x, (p, way) in ACCELERATION_PATHS.items()}
    found |= {f"wrench: {x}": (p, [("Xf", i) for i in way]) for x, (p, way) in WRENCH_PATHS.items()}
    both = [(x, i) for x in ("Xa", "Xf") for i in (3, 2, 1)]
    return found | {f"contact: {x}": (p, both if stands else []) for x, (p, stands) in ON_FOOT.items()}


CASES = cases()


@pytest.mark.parametrize("case", CASES)
def test_joints_between_the_sensor_and_the_unknown(case):
    problem, expected = CASES[case]
    assert list(propagated_blocks(problem)) == expected


# Cases with as many equations as unknowns.
SOLVED = (
    "acceleration: a sensor at the foot", "acceleration: axes of the world", "wrench: a sensor at the hip",
    "wrench: a free base", "contact: on one foot",
)  # fmt: skip


@pytest.mark.parametrize("passes", [PAPER, "all"], ids=["as stated", "passes"])
@pytest.mark.parametrize("case", SOLVED)
def test_propagated_unknowns_leave_the_answer_unchanged(case, passes):
    """By dense solutions, at random values of all that is known."""
    problem, blocks = CASES[case]
    q, qd, _ = MODEL.random_state(seed=3)
    found = []
    for propagate in (False, True):
        system = sd.assemble(problem, propagate=propagate, passes=passes)
        rng, sizes = np.random.default_rng(3), system.program.inputs.sizes
        given = {x: rng.standard_normal(sizes[x]) for x in sorted(sizes)} | {"q": q, "qd": qd}
        entries, b = system.values(given)
        d = np.linalg.solve(system.matrix(entries[0]).toarray(), -b[0])
        found.append(
            [sum(x * d[c] for c, x in row.items()) for name in QUANTITIES for row in system.output_terms(name)]
        )
    assert len(d) == len(sd.assemble(problem, passes=passes).columns) + 6 * len(blocks)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-9)
