"""Each term of the equations by itself: its sign, its frame and its factor, at states that are solved by hand.

A value is that of a dense solution of the system, in every form in which it can be written. Bodies have their masses
and centres of mass where the arithmetic is short; x, y, z are axes of the world unless they are said to be others.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.equations.formulation import KNOWN
from sysdyn.equations.whitened import whitened_system
from sysdyn.measurements.variables import LAYOUTS
from sysdyn.model import Free, Joint, Prismatic, Revolute
from sysdyn.model.inertia import inertia
from sysdyn.model.se3 import X_motion
from sysdyn.passes import PAPER

G = 9.81
QUARTER = math.pi / 2
# The axes of a frame that is rotated about z: its x is y of the body, its y is −x.
TURNED = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
FREE = Free().neutral()

FORMS = [
    {"layout": layout, "known": known, "passes": passes}
    for layout, known, passes in itertools.product(LAYOUTS, KNOWN, (PAPER, "all"))
]


def robot(*links: tuple[int, Joint, tuple], gravity=(0.0, 0.0, -G), **more) -> sd.Model:
    """Links (parent, joint, (mass, centre of mass, diagonal inertia there)), each 0.5, 0.2, 0.1 m from its parent."""
    places = [X_motion(np.eye(3), np.array([0.5, 0.2, 0.1]) * (p >= 0)) for p, _, _ in links]
    return sd.Model(
        name="robot", parent=tuple(p for p, _, _ in links), joints=tuple(joint for _, joint, _ in links),
        X_tree=np.array(places), inertias=np.array([inertia(m, np.array(c), np.diag(I)) for _, _, (m, c, I) in links]),
        body_names=tuple(f"b{k}" for k in range(len(links))), joint_names=tuple(f"j{k}" for k in range(len(links))),
        gravity=np.array(gravity), strict=None, **more,
    )  # fmt: skip


def groups(given: dict) -> dict[str, np.ndarray]:
    """Inputs as a system takes them."""
    return {name: np.asarray(x, dtype=float).ravel() for name, x in given.items()}


def dense(system: sd.BlockSystem, given: dict) -> tuple[np.ndarray, np.ndarray]:
    """(D, b) at one state; what is not given is zero."""
    assert given.keys() <= system.program.inputs.sizes.keys()
    entries, b = system.values(groups(given))
    return system.matrix(np.ravel(entries)).toarray(), np.ravel(b)


def output_terms(system: sd.BlockSystem, wanted: str, d: np.ndarray) -> np.ndarray:
    """A quantity of unknowns d in the frames of bodies; NaN for scalars that are known."""
    return np.array(
        [sum(x * d[c] for c, x in terms.items()) if terms else np.nan for terms in system.output_terms(wanted)]
    )


def solved(problem: sd.Problem, wanted: str, form: dict, **given) -> np.ndarray:
    """The wanted quantity, by a dense solution."""
    system = sd.assemble(problem, **form, outputs=(wanted,))
    D, b = dense(system, given)
    return output_terms(system, wanted, np.linalg.solve(D, -b))


def check(problem: sd.Problem, expected: dict, **given) -> None:
    """These values in every form."""
    for form, (wanted, value) in itertools.product(FORMS, expected.items()):
        found = solved(problem, wanted, form, **given)
        np.testing.assert_allclose(found, np.ravel(value), atol=1e-12, err_msg=f"{wanted}, {form}")


def shown(problem: sd.Problem, measurement: sd.Measurement, *others: sd.Measurement, **given) -> list[np.ndarray]:
    """The value of a measurement that is an output, beside others, in every form."""
    found = []
    for form in FORMS:
        system = sd.assemble(problem, **form, outputs=(measurement, *others))
        D, b = dense(system, given)
        d = np.zeros((1, system.layout.n))
        d[0, system.columns] = np.linalg.solve(D, -b)
        found.append(system.output_values(groups(given), d)[measurement.name][0][0])
    return found


def pose(R: np.ndarray, p) -> np.ndarray:
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, p
    return T


POINT = (2.0, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
NOTHING = (0.0, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
LEVER = (2.0, (0.5, 0.0, 0.0), (0.0, 0.0, 0.0))

TURNTABLE = (-1, Revolute((0, 0, 1)), NOTHING)
HEAVIER = (3.0, (0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
STILL = (0, 0, 0)  # without gravity


def sliders(gravity=STILL) -> sd.Model:
    """2 kg and 3 kg that slide along z."""
    return robot((-1, Prismatic((0, 0, 1)), POINT), (-1, Prismatic((0, 0, 1)), HEAVIER), gravity=gravity)


def crossed(others: tuple = NOTHING) -> sd.Model:
    """Axes z, y, x: the pass of canonical frames slides the second frame along y, to the foot of the third axis."""
    links = (-1, Revolute((0, 0, 1)), others), (0, Revolute((0, 1, 0)), LEVER), (1, Revolute((1, 0, 0)), others)
    return robot(*links)


def at_origin(model: sd.Model) -> sd.Model:
    return model.replace(X_tree=np.array([np.eye(6)] * model.nb))


ID, FD = sd.inverse_dynamics, sd.forward_dynamics
SLIDER = at_origin(robot(TURNTABLE, (0, Prismatic((1, 0, 0)), POINT), gravity=STILL))
CROSSED_AXES = at_origin(robot(TURNTABLE, (0, Revolute((1, 0, 0)), (1.0, (0, 0, 0), (1.0, 2.0, 5.0))), gravity=STILL))
HINGE = robot((-1, Revolute((0, 1, 0)), LEVER))
MOTOR = robot((-1, Revolute((0, 0, 1)), LEVER), gravity=STILL, armature=np.array([0.7]))
TOP = robot((-1, Free(), (1.0, (0.0, 0.0, 0.0), (1.0, 2.0, 4.0))), gravity=STILL)
HOLDING = np.array([0, -G, 0, 0, 0, 2 * G])  # of the lever at its hinge
ROPE = sd.LoopJoint("b0", "b1", ["a_z"], name="rope")
FOOT = pose(TURNED, [0.25, 0, 0])  # of a lever with its centre of mass at 0.5 m, rotated by a quarter
GAINS = {"stabilise": (2.0, 0.5)}
WEIGHT = robot((-1, Prismatic((0, 0, 1)), POINT))

# {term: (problem, expected quantities, state and known values)}
TERMS: dict[str, tuple[sd.Problem, dict, dict]] = {
    # 0.5 m along x of a turntable with ω = 2, sliding by 3: the spatial bias is ω × v, the force r m 2 ω v and −m ω² r
    "Coriolis force": (
        ID(SLIDER), {"a": [[0.0] * 6, [0, 0, 0, 0, 6.0, 0]], "tau": [12.0, -4.0]}, {"q": [0.0, 0.5], "qd": [2.0, 3.0]}
    ),
    # ω = (3, 0, 2) of axes x on z: ω × (3, 0, 0) = (0, 6, 0), and the moment J α + ω × J ω = (0, 12 − 24, 0)
    "crossed axes": (
        ID(CROSSED_AXES),
        {"a": [[0.0] * 6, [0, 6.0, 0, 0, 0, 0]], "f": [[0.0, -12.0, 0.0, 0.0, 0.0, 0.0]] * 2},
        {"qd": [2.0, 3.0]},
    ),
    # X a of α = 4 about z: E (α × r) = E (−0.8, 2, 0); X^T f of a force along x of the tip, so y: r × (0, 1, 0)
    "X and X^T of a rotated joint": (
        ID(robot(TURNTABLE, (0, Revolute((0, 0, 1)), NOTHING), gravity=STILL)),
        {
            "a": [[0, 0, 4.0, 0, 0, 0], [0, 0, 4.0, 2.0, 0.8, 0]],
            "f": [[0.1, 0, -0.5, 0, -1.0, 0], [0, 0, 0, -1.0, 0, 0]],
            "tau": [-0.5, 0.0],
        },
        {"q": [0.0, QUARTER], "qdd": [4.0, 0.0], "fx": [[0.0] * 6, [0, 0, 0, 1.0, 0, 0]]},
    ),
    # a is proper: 9.81 upwards, which is −x of a hinge about y rotated by a quarter
    "gravity": (ID(HINGE), {"a": [0, 0, 0, 0, 0, G], "f": [0, -G, 0, 0, 0, 2 * G], "tau": [-G]}, {"q": [0.0]}),
    "gravity, hanging": (
        ID(HINGE), {"a": [0, 0, 0, -G, 0, 0], "f": [0, 0, 0, -2 * G, 0, 0], "tau": [0.0]}, {"q": [QUARTER]}
    ),
    # −m ω² c = −2 · 9 · 0.5
    "centripetal force": (ID(MOTOR), {"f": [0, 0, 0, -9.0, 0, 0], "tau": [0.0]}, {"qd": [3.0]}),
    # ω × J ω of ω = (1, 2, 3), J = diag(1, 2, 4): (2 · 12 − 3 · 4, 3 · 1 − 1 · 12, 1 · 4 − 2 · 1)
    "gyroscopic moment": (ID(TOP), {"tau": [12.0, -9.0, 2.0, 0, 0, 0]}, {"q": FREE, "qd": [1.0, 2.0, 3.0, 0, 0, 0]}),
    # ω = 3 z, u = x, spatial acceleration 0: m (ω × u + ω × (ω × c)), and the moment c × that
    "momentum": (
        ID(robot((-1, Free(), LEVER), gravity=STILL)),
        {"tau": [0, 0, 3.0, -9.0, 6.0, 0]},
        {"q": FREE, "qd": [0, 0, 3.0, 1.0, 0, 0]},
    ),
    # τ = (m c² + A) q̈ = (0.5 + 0.7) · 2; f has nothing of it
    "armature": (ID(MOTOR), {"tau": [2.4], "f": [0, 0, 1.0, 0, 2.0, 0]}, {"qdd": [2.0]}),
    "armature, forward": (FD(MOTOR), {"qdd": [2.0]}, {"tau": [2.4]}),
    "external wrench": (ID(HINGE), {"f": 0.5 * HOLDING, "tau": [-0.5 * G]}, {"fx": 0.5 * HOLDING}),
    "external wrench, all of the load": (ID(HINGE), {"f": np.zeros(6), "tau": [0.0]}, {"fx": HOLDING}),
    # nothing accelerates, the hinge is loose
    "unknown external wrench": (
        sd.Problem(HINGE, [sd.JointAcceleration("all"), sd.JointWrench("b0")]), {"fx": HOLDING}, {}
    ),
    "contact": (
        FD(robot((-1, Free(), LEVER))) + sd.Contact(("b0", FOOT), "fixed", name="foot"),
        {"w": [-G / 2, 0, 0, 0, 0, 2 * G], "qdd": np.zeros(6)},
        {"q": FREE},
    ),
    # −m ω² 0.25 = −4.5 along x, with the velocity −ω × p of the origin; the moment is free
    "point contact": (
        FD(robot((-1, Free(), (2.0, (0.5, 0.0, 0.0), (1.0, 1.0, 1.0))), gravity=STILL))
        + sd.Contact(("b0", FOOT), "point", name="pin"),
        {"w": [0, 4.5, 0]},
        {"q": FREE, "qd": [0, 0, 3.0, 0, -0.75, 0]},
    ),
    # 10 N at the first of 2 kg and 3 kg: 2 m/s², the loop passes on 3 · 2 N; with 1 m/s² between them, more
    "loop": (FD(sliders()) + ROPE, {"qdd": [2.0, 2.0], "w": [6.0]}, {"tau": [10.0, 0.0]}),
    "loop with an acceleration": (
        FD(sliders()) + ROPE, {"qdd": [1.4, 2.4], "w": [7.2]}, {"tau": [10.0, 0.0], "y:rope": [1.0]}
    ),
    "loop to the base": (
        FD(sliders((0, 0, -G))) + sd.LoopJoint("base", ("b1", np.eye(4)), ["a_z"]), {"qdd": [-G, 0.0], "w": [3 * G]}, {}
    ),
    # q₁ = 2 q₀: 2 q̈₀ = 10 − 2 w, 3 · 2 q̈₀ = w
    "coupling": (
        FD(sliders()) + sd.JointCoupling("j1", "j0", (0.0, 2.0)),
        {"qdd": [10 / 14, 20 / 14], "w": [60 / 14]},
        {"tau": [10.0, 0.0]},
    ),
    # q₁ = q₀² at 0.5, 3/s: q̈₁ = q̈₀ + 18
    "nonlinear coupling": (
        FD(sliders()) + sd.JointCoupling("j1", "j0", (0.0, 0.0, 1.0)),
        {"qdd": [-8.8, 9.2], "w": [27.6]},
        {"q": [0.5, 0.25], "qd": [3.0, 3.0], "tau": [10.0, 0.0]},
    ),
    # the turntable and the axis x stand still; q₁ = 0 holds the weight of the lever
    "coupling in canonical frames": (
        FD(crossed((0.0, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))) + sd.JointCoupling("j1", None, (0.0,), name="lock"),
        {"qdd": [0.0] * 3, "w": [-G]},
        {},
    ),
    # ë = −2 ζ ω ė − ω² e = −2 · 0.5 · 2 · 3 − 4 · 0.1 of a slider, which is 0.1 m too far and leaves at 3 m/s
    "stabilised contact": (
        FD(WEIGHT) + sd.Contact("b0", ["a_z"], reference="world", at=np.eye(4), **GAINS),
        {"qdd": [-6.4], "w": [2 * (G - 6.4)]},
        {"q": [0.1], "qd": [3.0]},
    ),
    "stabilised coupling": (
        FD(WEIGHT) + sd.JointCoupling("j0", None, (0.0,), **GAINS),
        {"qdd": [-6.4], "w": [2 * (G - 6.4)]},
        {"q": [0.1], "qd": [3.0]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("term", TERMS)
def test_terms(term):
    problem, expected, state = TERMS[term]
    check(problem, expected, **state)


def test_centripetal_force_in_axes_of_a_rotated_link():
    """−m ω² r at r = (0.5, 0.2, 0.1) of a turntable with ω = 2, in the axes of a link that is rotated by a quarter."""
    model = robot(TURNTABLE, (0, Revolute((0, 0, 1)), POINT), gravity=STILL)
    state = {"q": [0.0, QUARTER], "qd": [2.0, 0.0]}
    forces = [solved(ID(model), "f", form, **state).reshape(2, 6)[1] for form in FORMS]
    np.testing.assert_allclose(forces, [[0, 0, 0, -8 * 0.2, 8 * 0.5, 0]] * len(FORMS), atol=1e-12)


def floating() -> sd.Model:
    """A free body and a link on it that is turned by a quarter, both without mass."""
    return robot((-1, Free(), NOTHING), (0, Revolute((0, 0, 1)), NOTHING), gravity=(0, 0, 0))


@pytest.mark.parametrize("kind", ["Xa", "Xf"])
def test_the_same_from_the_tip_to_the_root(kind):
    """X⁻¹ a of the tip, of which all is known, and X^{−T} f of the root: the joints of `propagated_unknowns`."""
    model, wrenches = floating(), sd.ExternalWrench("all", name="fx")
    if kind == "Xa":
        known = [sd.BodyAcceleration("b1", name="a"), sd.JointAcceleration("j1", name="qdd"), wrenches]
        given, wanted = {"a": [[0] * 6, [0, 0, 4.0, 2.0, 0.8, 0]], "fx": np.zeros((2, 6))}, ("a", 0)
        expected = [0, 0, 4.0, 0, 0, 0]
    else:
        known = [sd.JointAcceleration("all", name="qdd"), sd.JointTorque("j0", name="tau"), sd.ExternalWrench("b0")]
        given, wanted = {"tau": [0.1, 0, -0.5, 0, -1.0, 0, 0]}, ("f", 1)
        expected = [0, 0, 0, -1.0, 0, 0]  # and fx is the opposite
    problem = sd.Problem(model, known)
    for form, propagate in itertools.product(FORMS, (False, True)):
        system = sd.assemble(problem, **form, propagate=propagate, outputs=(wanted[0],))
        assert ((kind, 1) in system.col_blocks) == propagate
        D, b = dense(system, {"q": [*FREE, QUARTER], **given})
        found = output_terms(system, wanted[0], np.linalg.solve(D, -b)).reshape(2, 6)[wanted[1]]
        np.testing.assert_allclose(found, expected, atol=1e-12, err_msg=str(form))


# ---- sensors ---------------------------------------------------------------------------------------------------------


def hanging() -> sd.Model:
    """A lever on a hinge about y that is turned by a quarter: its centre of mass, along its z, is 0.5 m along x."""
    return robot((-1, Prismatic((0, 0, 1)), NOTHING), (0, Revolute((0, 1, 0)), (2.0, (0, 0, 0.5), (0, 0, 0))))


# The wrench at the hinge: 2 g upwards, and −g about y. Axes of the body: its −x points upwards.
FORCE_TORQUE = {
    "body": ({}, [0, -G, 0, -2 * G, 0, 0]),
    "opposite": ({"side": "parent"}, [0, G, 0, 2 * G, 0, 0]),
    "half way": ({"frame": ("b1", pose(np.eye(3), [0, 0, 0.25]))}, [0, -G / 2, 0, -2 * G, 0, 0]),
    "turned": ({"frame": ("b1", pose(TURNED, [0, 0, 0.5]))}, [0, 0, 0, 0, 2 * G, 0]),
    "world": ({"reference": "world"}, [0, -G, 0, 0, 0, 2 * G]),
    # about the origin of the parent: (0.5, 0.2, 0.1) × (0, 0, 2 g) more
    "parent": ({"frame": "b0"}, [0.4 * G, -2 * G, 0, 0, 0, 2 * G]),
    # about that of the world, 0.3 m below along z, which no force along z feels
    "space": ({"reference": "space"}, [0.4 * G, -2 * G, 0, 0, 0, 2 * G]),
}


@pytest.mark.parametrize("case", FORCE_TORQUE)
def test_force_torque_sensor(case):
    arguments, expected = FORCE_TORQUE[case]
    model, state = hanging(), {"q": np.array([0.3, QUARTER]), "qdd": np.zeros(2)}
    sensor = sd.ForceTorqueSensor("j1", **arguments, name="sensor")
    for found in shown(sd.inverse_dynamics(model), sensor, **state, fx=np.zeros(12)):
        np.testing.assert_allclose(found, expected, atol=1e-12)
    # as the equation of an unknown wrench: the sensor reads nothing, so the wrench holds the lever; or all, and it is 0
    known = [sd.JointAcceleration("all", name="qdd"), sd.ExternalWrench("b0", name="fx"), sensor]
    holding = np.array([0, -G, 0, -2 * G, 0, 0])
    for value, wrench in ((np.zeros(6), holding), (expected, np.zeros(6))):
        for form in FORMS:
            found = solved(sd.Problem(model, known), "fx", form, **state, **{"y:sensor": value})[6:]
            np.testing.assert_allclose(found, wrench, atol=1e-12, err_msg=str(form))


# At 0.5 m along x of a turntable with ω = 2 and α = 3, turned by a half, so that x of the body is −x.
ACCELERATIONS = {
    "accelerometer": (lambda place: sd.Accelerometer(place, name="y"), [1.5, 2.0, G]),
    "accelerometer, world": (lambda place: sd.Accelerometer(place, reference="world", name="y"), [2.0, -1.5, G]),
    "angular": (lambda place: sd.AngularAccelerometer(place, name="y"), [0, 0, 3.0]),
    "classical": (lambda place: sd.FrameAcceleration(place, name="y"), [0, 0, 3.0, 1.5, 2.0, 0]),
    "proper": (lambda place: sd.FrameAcceleration(place, gravity=True, name="y"), [0, 0, 3.0, 1.5, 2.0, G]),
    "spatial": (lambda place: sd.FrameAcceleration(place, classical=False, name="y"), [0, 0, 3.0, 1.5, 0, 0]),
    "space": (
        lambda place: sd.FrameAcceleration(place, classical=False, reference="space", name="y"), [0, 0, 3.0, 0, 0, 0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ACCELERATIONS)
def test_acceleration_sensors(case):
    """Outwards −ω² r, along the circle α r; the axes of the sensor are turned: along the circle is its x."""
    make, expected = ACCELERATIONS[case]
    problem = sd.inverse_dynamics(robot((-1, Revolute((0, 0, 1)), POINT)))
    sensor = make(("b0", pose(TURNED, [0.5, 0, 0])))
    other = sd.FrameAcceleration("b0", classical=False, name="of the velocity of the body")
    for found in shown(problem, sensor, other, q=[2 * QUARTER], qd=[2.0], qdd=[3.0]):
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(("gravity", "expected"), [(False, [0.0] * 6), (True, [0, 0, 0, -G, 0, 0])])
def test_gravity_is_taken_out_in_the_axes_of_a_frame_at_rest(gravity, expected):
    """Of a hinge about y that is turned by a quarter: −x of the body points upwards."""
    problem = sd.inverse_dynamics(robot((-1, Revolute((0, 1, 0)), POINT)))
    for found in shown(problem, sd.FrameAcceleration("b0", gravity=gravity, name="y"), q=[QUARTER]):
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_an_accelerometer_determines_the_acceleration_of_its_joint():
    """α r + the share of ω × v along the sensor's axis, which is turned half way from the radius: (1.5 − 2) / √2."""
    half = np.array([[1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, math.sqrt(2.0)]]) / math.sqrt(2.0)
    sensor = sd.Accelerometer(("b0", pose(half, [0.5, 0, 0])), components=["a_x"], name="y")
    problem = sd.Problem(robot((-1, Revolute((0, 0, 1)), POINT)), [sd.ExternalWrench("all", name="fx"), sensor])
    check(problem, {"qdd": [3.0]}, q=[QUARTER], qd=[2.0], **{"y:y": [-0.5 / math.sqrt(2.0)]})


# ---- frames that a pass moves ----------------------------------------------------------------------------------------


def test_accelerations_in_frames_that_are_moved():
    """α × r − ω² r at (1.0, 0.5, 0.1) of a turntable with ω = 2 and α = 3; and α by its y alone."""
    sensor = sd.Accelerometer(("b1", pose(np.eye(3), [0.5, 0.3, 0.0])), name="y")
    state = {"qd": [2.0, 0.0, 0.0]}
    for found in shown(sd.inverse_dynamics(crossed()), sensor, qdd=[3.0, 0.0, 0.0], **state):
        np.testing.assert_allclose(found, [-5.5, 1.0, G], atol=1e-12)
    rest = sd.inverse_dynamics(crossed()) - sd.JointAcceleration("j0")
    one = sd.Accelerometer(sensor.frame, components=["a_y"], name="y")
    for form in FORMS:
        assert solved(rest + one, "qdd", form, **state, **{"y:y": [1.0]})[0] == pytest.approx(3.0), form


def test_wrenches_in_frames_that_are_moved():
    """A foot at (1, 0.3, 0) of the lever takes half of its weight; its force has a moment of 0.3 about x."""
    foot = sd.Contact(("b1", pose(np.eye(3), [1.0, 0.3, 0.0])), "normal", name="foot")
    problem = sd.Problem(crossed(), [sd.JointTorque("j1", name="tau"), sd.ExternalWrench("all", name="fx"), foot])
    problem = problem + sd.JointAcceleration(["j0", "j2"], name="qdd")
    for form in FORMS:
        np.testing.assert_allclose(solved(problem, "w", form), [G], atol=1e-12, err_msg=str(form))
        found = solved(problem, "f", form).reshape(3, 6)[1]
        np.testing.assert_allclose(found, [-0.3 * G, 0, 0, 0, 0, G], atol=1e-12, err_msg=str(form))


def test_known_wrenches_are_stated_by_rows_of_one_entry():
    """What is known whole is turned, and not the unknowns."""
    for form in FORMS:
        system = sd.assemble(sd.inverse_dynamics(crossed()), **form)
        rows = [row for row, name in zip(system.assembly.rows, system.row_names, strict=True) if name.startswith("y:")]
        assert len(rows) == (21 if form["known"] == "rows" else 0) and all(len(row) == 1 for row in rows)
        # and reported unless it would be turned back
        stay = form["known"] == "rows" and "canonical_frames" not in system.passes
        assert [len(terms) for terms in system.output_terms("fx")] == [int(stay)] * 18


@pytest.mark.parametrize("prior", [False, True])
def test_a_noisy_wrench_in_frames_that_are_moved(prior):
    """f is what holds the lever less the wrench, whatever that is. Its rows have one entry, as the loads of others."""
    noisy = sd.ExternalWrench("b1", noise=1.0, name="noisy")
    exact = sd.JointAcceleration("all", name="qdd"), sd.ExternalWrench(["b0", "b2"])
    torque = sd.JointTorque("j2", noise=1.0, name="torque")  # of a link without mass: 0
    problem = sd.Problem(crossed(), [*exact, sd.Prior(noisy, name="noisy") if prior else noisy, torque])
    wrench, holding = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), np.array([0, -G, 0, 0, 0, 2 * G])
    for form in FORMS:
        found = solved(problem, "f", form, **{"y:noisy": wrench}).reshape(3, 6)[1]
        np.testing.assert_allclose(found, holding - wrench, atol=1e-12, err_msg=str(form))
        system = sd.assemble(problem, **form).plain
        entries = {name: len(row) for name, row in zip(system.row_names, system.assembly.rows, strict=True)}
        assert all(entries[name] == 1 for name in entries if name.startswith("y:"))
        loads = [(system.row_names[r], system.col_names[c]) for r, c in np.transpose(system.coordinates)]
        assert sum(row.startswith("c:f(b2)") and column.startswith("fx(b2)") for row, column in loads) in (0, 6)


# ---- noise -----------------------------------------------------------------------------------------------------------


def estimate(problem: sd.Problem, wanted: str, **given) -> list[np.ndarray]:
    """By the augmented system in every form, and by least squares of the whitened one."""
    found = [solved(problem, wanted, form, **given) for form in FORMS]
    return [*found, least_squares(problem, wanted, **given)]


def least_squares(problem: sd.Problem, wanted: str, **given) -> np.ndarray:
    """Least squares of the noisy rows of the whitened system, in the null space of the exact ones."""
    system = whitened_system(problem, "rows", problem.quantities)
    (D, b), noisy = dense(system, given), system.plain.noisy_mask
    d = np.linalg.lstsq(D[~noisy], -b[~noisy], rcond=None)[0]
    null = np.linalg.svd(D[~noisy])[2][np.linalg.matrix_rank(D[~noisy]) :].T
    d = d + null @ np.linalg.lstsq(D[noisy] @ null, -(D[noisy] @ d + b[noisy]), rcond=None)[0]
    return output_terms(system, wanted, d)


def weighed(*measurements: sd.Measurement) -> sd.Problem:
    """A slider of 2 kg without weight, of which these are known beside fx = 0."""
    return sd.Problem(
        robot((-1, Prismatic((0, 0, 1)), POINT), gravity=(0, 0, 0)),
        [sd.ExternalWrench("all", name="fx"), *measurements],
    )


def agree(found: list[np.ndarray], expected) -> None:
    np.testing.assert_allclose(found, [expected] * len(found), atol=1e-12)


def test_measurements_count_by_the_inverse_of_their_variances():
    """(τ − 10)²/4 + (q̈ − 2)² with τ = 2 q̈ is least at q̈ = 3.5; with equal variances at 4.4."""
    problem = weighed(sd.JointTorque("all", noise=2.0, name="tau"), sd.JointAcceleration("all", noise=1.0, name="qdd"))
    given = {"y:tau": [10.0], "y:qdd": [2.0]}
    agree(estimate(problem, "qdd", **given), [3.5])
    agree(estimate(problem, "tau", **given), [7.0])
    agree(estimate(problem, "qdd", **given, **{"noise:tau": [1.0]}), [4.4])


def test_multipliers_are_errors_over_variances():
    problem = weighed(sd.JointTorque("all", noise=2.0, name="tau"), sd.JointAcceleration("all", noise=1.0, name="qdd"))
    system = sd.assemble(problem)
    D, b = dense(system, {"y:tau": [10.0], "y:qdd": [2.0]})
    d = np.linalg.solve(D, -b)
    found = {name: x for name, x in zip(system.col_names, d, strict=True) if name.startswith("multiplier of y:")}
    # ε = τ − 10 = −3 and q̈ − 2 = 1.5; what is exact has a force for a multiplier, of whatever size
    assert found["multiplier of y:tau: tau(j0)"] == pytest.approx(-3.0 / 4.0)
    assert found["multiplier of y:qdd: qdd(j0)"] == pytest.approx(1.5)


def test_a_correlated_error_corrects_its_neighbour():
    """τ₁ is found to be 3 where 0 was measured: τ₀ = 10 + Σ₀₁/Σ₁₁ · 3 = 11.5."""
    torques = sd.JointTorque("all", noise=np.array([[4.0, 1.0], [1.0, 2.0]]), name="tau")
    exact = sd.JointAcceleration("j1", name="qdd")
    problem = sd.Problem(sliders(), [sd.ExternalWrench("all", name="fx"), torques, exact])
    given = {"y:tau": [10.0, 0.0], "qdd": [0.0, 1.0]}
    for found in estimate(problem, "tau", **given):
        np.testing.assert_allclose(found, [11.5, 3.0], atol=1e-12)


def test_errors_of_a_sensor_are_along_the_axes_of_its_value():
    """x of the world, with σ = 2, is −y of a body that is turned by a quarter; what is expected is 0, with σ = 1."""
    sensor = sd.Accelerometer("b2", reference="world", noise=np.array([2.0, 1.0, 1.0]), name="y")
    links = [(-1, Prismatic((1, 0, 0)), NOTHING), (0, Prismatic((0, 1, 0)), NOTHING), (1, Revolute((0, 0, 1)), POINT)]
    expected = sd.Prior(sd.JointAcceleration("all", noise=1.0), name="qdd")
    problem = sd.Problem(robot(*links, gravity=(0, 0, 0)), [sd.ExternalWrench("all", name="fx"), sensor, expected])
    agree(estimate(problem, "qdd", q=[0, 0, QUARTER], **{"y:y": [10.0, 10.0, 0.0]}), [2.0, 5.0, 0.0])


def test_what_is_switched_off_does_not_count():
    torque = sd.Switchable(sd.JointTorque("all", noise=2.0), name="tau")
    problem = weighed(torque, sd.Prior(sd.JointAcceleration("all", noise=1.0), name="qdd"))
    given = {"y:tau": [10.0], "y:qdd": [2.0]}
    agree(estimate(problem, "qdd", **given), [3.5])
    agree(estimate(problem, "qdd", **given, **{"active:tau": [0.0]}), [2.0])
    # its multiplier vanishes, and the matrix stays symmetric
    system = sd.assemble(problem)
    D, b = dense(system, given | {"active:tau": [0.0]})
    multiplier = system.col_names.index("multiplier of y:tau: tau(j0)")
    np.testing.assert_array_equal(D, D.T)
    assert D[multiplier, multiplier] == -1.0
    assert np.linalg.solve(D, -b)[multiplier] == pytest.approx(0.0)


@pytest.mark.parametrize(("active", "expected"), [((1, 1), 4.0), ((1, 0), 3.5), ((0, 1), 2.0), ((0, 0), 2.0)])
def test_a_component_that_is_switched_off_has_no_neighbours(active, expected):
    """τ₀ is 11.5 with a variance of 3.5, as τ₁ is found to be 3 where 0 was measured; alone it is 10, of variance 4."""
    torques = sd.Switchable(sd.JointTorque("all", noise=np.array([[4.0, 1.0], [1.0, 2.0]])), name="tau")
    known = [sd.JointAcceleration("j0", noise=1.0, name="qdd"), sd.JointAcceleration("j1", name="exact"), torques]
    problem = sd.Problem(sliders(), [sd.ExternalWrench("all", name="fx"), *known])
    given = {"y:tau": [10.0, 0.0], "y:qdd": [2.0], "qdd": [0.0, 1.0], "active:tau": active}
    agree([x[:1] for x in estimate(problem, "qdd", **given)], [expected])


def test_an_equation_of_motion_may_be_wrong():
    """2 q̈ − τ = ε with σ = 2 and τ = 10: as if τ were measured so. The wrench is that of the motion all the same."""
    noise = sd.ModelNoise("tau", noise=2.0, name="model")
    problem = weighed(sd.JointTorque("all", name="tau"), sd.JointAcceleration("all", noise=1.0, name="qdd"), noise)
    given = {"tau": [10.0], "y:qdd": [2.0]}
    agree(estimate(problem, "qdd", **given), [3.5])
    agree(estimate(problem, "f", **given), [0, 0, 0, 0, 0, 7.0])
