"""Contacts, loops and couplings in recursions, against the system eliminated and against dense equations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from robots import floating_tree

import sysdyn as sd
from sysdyn.errors import ProblemError
from sysdyn.measurements.constraints import CONTACTS, Contact
from sysdyn.measurements.input_names import value_group
from sysdyn.model.closures import Coupling
from sysdyn.model.joints import Revolute
from sysdyn.model.se3 import X_motion, rotx, roty
from sysdyn.offline.recursion_constraints import acceleration_rows
from sysdyn.passes import ALL as PASSES
from sysdyn.recursions.generate import generate

R = rotx(0.7) @ roty(-0.4)
LEG = 4  # joints of a leg: enough for two feet that hold
STATES = 4
OUTPUTS = ("qdd", "tau", "w")


def legged(seed: int = 0, leg: int = LEG) -> sd.Model:
    """A floating trunk with two legs of so many joints and feet "l" and "r", and a tail of two with a frame "tail"."""
    parent = (-1, 0, *range(1, leg), 0, *range(leg + 1, 2 * leg), 0, 2 * leg + 1)
    model = floating_tree(len(parent), seed=seed, parent=parent)
    ends = {"l": (leg, R), "r": (2 * leg, np.eye(3)), "tail": (2 * leg + 2, R.T)}
    frames = {name: sd.Frame(name, i, X_motion(E, np.array([0.02, -0.01, 0.05]))) for name, (i, E) in ends.items()}
    return model.replace(frames={**model.frames, **frames})


def forward(model: sd.Model, *constraints: sd.Measurement) -> sd.Problem:
    return sd.Problem(model, [sd.JointTorque("all", name="tau"), sd.ExternalWrench("all", name="fx"), *constraints])


def state(problem: sd.Problem, seed: int = 0) -> dict:
    """Moving feet: nothing makes the velocities agree with the constraints."""
    model, rng = problem.model, np.random.default_rng(seed)
    q, qd, qdd = model.random_state(seed=seed, batch=STATES)
    given = {"q": q, "qd": qd, "tau": rng.standard_normal((STATES, model.nv)), "qdd": qdd,
             "fx": rng.standard_normal((STATES, model.nb, 6)) if problem.knows("fx") else None}  # fmt: skip
    y = {m.name: rng.standard_normal((STATES, len(m.components(model)))) for m in problem.constraints}
    known = {"q", "qd", *problem.known_quantities}
    return {name: x for name, x in given.items() if name in known} | {"y": y}


def agree(problem: sd.Problem, ordering: str | None = None, **options) -> sd.Solver:
    """The recursion's outputs are those of the dense equations, solved with pivoting."""
    quick = {"formulation": "recursive", "level": "fast", "effort": 0.0, "backend": "python"}
    outputs = OUTPUTS if problem.constraints else OUTPUTS[:2]
    solver = sd.compile(problem, outputs=outputs, **quick, **options)
    given = state(problem)
    if options.get("external_wrenches") is False:
        given["fx"] = np.zeros_like(given["fx"])
    found = solver(**given)
    system = sd.assemble(problem)
    entries, b = system.values({**{k: x.reshape(STATES, -1) for k, x in given.items() if k != "y"}, **{
        value_group(m.name): given["y"][m.name] for m in problem.custom}})  # fmt: skip
    entries, b = (np.broadcast_to(x, (STATES, x.shape[1])) for x in (entries, b))
    for k in range(STATES):
        d = np.linalg.solve(system.matrix(entries[k]).toarray(), -b[k])
        for x in outputs:
            expected = d[list(system.layout.quantity_columns(x))]
            tolerance = 1e-9 * max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(found[x][k], expected, rtol=0, atol=tolerance, err_msg=x)
    assert ordering is None or solver.ordering == ordering
    return solver


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", [*CONTACTS, ("a_x",), ("alpha_z", "a_y", "a_z")])
def test_contacts_of_each_kind(kind):
    agree(forward(legged(), Contact("l", kind, name="left")))


@pytest.mark.slow
@pytest.mark.parametrize("names", [("l", "r"), ("r", "tail"), ("l", "r", "tail")])
@pytest.mark.parametrize("kind", ["fixed", "point"])
def test_several_contacts(names, kind):
    if kind == "fixed" and "tail" in names:
        kind = ("a_x", "a_z")
    agree(forward(legged(1), *(Contact(x, kind, name=x) for x in names)))


def walker(seed: int = 0) -> sd.Model:
    """Legs of five joints: the ankle's axes meet at a right angle, and the knee's is parallel to the upper one."""
    model = legged(seed, leg=5)
    X, joints = model.X_tree.copy(), list(model.joints)
    for first in (1, 6):
        for k, (axis, down) in enumerate(zip("xyyyx", (0.1, 0.0, 0.3, 0.3, 0.0), strict=True), start=first):
            X[k] = X_motion(np.eye(3), np.array([0.0, 0.1 if k == first else 0.0, -down]))
            joints[k] = Revolute((1.0, 0.0, 0.0) if axis == "x" else (0.0, 1.0, 0.0))
    frames = {x: sd.Frame(x, i, X_motion(np.eye(3), np.array([0.1, 0.02, -0.4]))) for x, i in (("l", 5), ("r", 10))}
    return model.replace(X_tree=X, joints=tuple(joints), frames={**model.frames, **frames})


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("kind", "remaining"), [("fixed", 6), ("point", 4)])
def test_constant_pivots_eliminate_rows_early(kind, remaining):
    """Both axes of the ankle and the knee eliminate rows at any angles; `remaining` rows of Ω remain."""
    problem = forward(walker(), *(Contact(x, kind, name=x) for x in "lr"))
    found = generate(problem.model, frozenset(range(problem.model.nv)), OUTPUTS, False, "articulated",
                  constraints=acceleration_rows(problem) or ())  # fmt: skip
    assert sum(k >= problem.model.nv for _, k in found.pivots) == remaining
    agree(problem)


def test_small_pivots_do_not_eliminate_rows():
    """A foot nearly on the axis of its joint."""
    model = walker(1)
    near = np.array([0.0, 0.0, 1e-3])
    frames = {**model.frames, "r": sd.Frame("r", 10, X_motion(np.eye(3), near))}
    problem = forward(model.replace(frames=frames), Contact("r", "point", name="near"))
    graph = generate(problem.model, frozenset(range(problem.model.nv)), ("qdd",), False, "articulated",
                  constraints=acceleration_rows(problem) or ())  # fmt: skip
    assert sum(k >= problem.model.nv for _, k in graph.pivots) in (0, 3)
    agree(problem)


@pytest.mark.slow
def test_stabilised_contacts_and_those_in_axes_of_the_world():
    T = np.eye(4)
    T[:3, 3] = 0.1, 0.2, 0.3
    held = Contact("l", "fixed", name="held", at=T, stabilise=0.1)
    agree(forward(legged(2), held), "articulated")
    agree(forward(legged(2), Contact("r", "point", name="world", reference="world"), held))
    agree(forward(legged(2), Contact("l", "point", name="world", reference="world")), "articulated")


def test_loops_couplings_and_contacts():
    model = legged(3)
    first, second = model.joint_names[-2:]
    loop = sd.LoopJoint("r", "tail", "spherical", name="loop", stabilise=0.2)
    coupling = sd.JointCoupling(second, first, (0.1, 0.5), name="gear", stabilise=0.2)
    agree(forward(model, coupling), "articulated")
    agree(forward(model, loop, coupling, Contact("l", "fixed", name="left")))
    fixed = sd.chain(6, seed=0)
    agree(forward(fixed, sd.LoopJoint("body1", "body5", ("a_x", "a_y"), name="loop")), "composite")
    agree(forward(fixed, Contact("body5", "point", name="tip")), "composite")


@pytest.mark.slow
def test_a_loop_alone():
    agree(forward(legged(3), sd.LoopJoint("r", "tail", "spherical", name="loop", stabilise=0.2)))


@pytest.mark.slow
@pytest.mark.parametrize("passes", [(), ("classical_accelerations",), ("canonical_frames", "base_parameters"),
                                    tuple(x for x in PASSES if x != "symmetric_elimination")])  # fmt: skip
def test_constraints_with_some_of_the_passes(passes):
    model = legged(5, leg=6)
    some = (Contact("l", name="left"), Contact("r", "point", name="right", reference="world"),
            sd.LoopJoint("tail", "r", ("a_z",), name="loop"))  # fmt: skip
    solver = agree(forward(model, *some), passes=list(passes))
    assert solver.vjp(of="qdd", wrt="q").program.flops.total


@pytest.mark.slow
def test_rotors_and_links_welded_to_the_base():
    """Armatures of joints that turn the other way, and a loop to a link that a fixed joint holds to the base."""
    model = legged(6)
    model = model.replace(armature=np.concatenate([np.zeros(6), np.linspace(0.1, 1.0, model.nv - 6)]))
    agree(forward(model, *(Contact(x, name=x) for x in "lr")))
    arm = sd.load(
        """<robot name="arm"><link name="world"/><link name="post">{0}</link>
        <link name="a">{0}</link><link name="b">{0}</link>
        <joint name="weld" type="fixed"><parent link="world"/><child link="post"/><origin xyz="0.3 0 0.5"/></joint>
        <joint name="j" type="continuous"><parent link="world"/><child link="a"/><axis xyz="0 1 0"/></joint>
        <joint name="k" type="continuous"><parent link="a"/><child link="b"/><axis xyz="0 1 0"/>
        <origin xyz="0.4 0 0"/></joint></robot>""".format(
            '<inertial><origin xyz="0.1 0 0"/><mass value="1"/><inertia ixx="0.1" iyy="0.1" izz="0.1" '
            'ixy="0" ixz="0" iyz="0"/></inertial>'
        ),
        fixed_joints="keep",
    )
    for wrenches in (True, False):
        agree(forward(arm, sd.LoopJoint("post", "b", ("a_x",), name="rail")), external_wrenches=wrenches)


def test_coupling_of_heavy_links_behind_light_ones():
    """States that lose digits are checked by the textbook's tree, whose couplings are torques."""
    model = sd.chain(6)
    coupled = Coupling(model.joint_names[5], model.joint_names[4], (0.0, 1.0))
    inertias = np.concatenate([model.inertias[:4], 1e4 * model.inertias[4:]])
    problem = sd.forward_dynamics(model.replace(inertias=inertias, closures=(coupled,)))
    solver = sd.compile(problem, outputs=["qdd"], level="fast")
    assert solver.ordering in ("articulated", "composite") and solver.stability.backward_error < 1e-10


@pytest.mark.slow
def test_hybrid_dynamics_with_contacts():
    """Which torques hold a motion: q̈ of the joints is known, τ of the free base, and a foot holds."""
    model = legged(4)
    base, *joints = model.joint_names
    known = [sd.JointTorque((base,), name="tau"), sd.JointAcceleration(tuple(joints), name="qdd"),
             sd.ExternalWrench("all", name="fx")]  # fmt: skip
    agree(sd.Problem(model, [*known, Contact("l", "fixed", name="left")]))
    known = [sd.JointTorque((base, *joints[3:9]), name="tau"), sd.ExternalWrench("all", name="fx"),
             sd.JointAcceleration((*joints[:3], *joints[9:]), name="qdd")]  # fmt: skip
    agree(sd.Problem(model, [*known, Contact("l", "point", name="left"), Contact("tail", ("a_z",), name="tail")]))


@pytest.mark.slow
@settings(max_examples=10)
@given(st.integers(1, 7), st.integers(0, 10**6), st.sampled_from(["fixed", "point", "line", "edge"]))
def test_random_floating_trees(n, seed, kind):
    model = floating_tree(n, seed=seed)
    body = model.body_names[seed % n]
    agree(forward(model, Contact(body, kind, name="held")))


class Sliding(Contact):
    """A contact whose normal force drags along x: its loads are not the transpose of its rows."""

    def loads(self, ctx):
        found = super().loads(ctx)
        (body,) = found
        normal = found[body][:, -1]
        return {body: np.column_stack([*found[body].T[:-1], normal + 0.3 * found[body][:, 0]])}


def test_constraints_without_a_recursion():
    model = legged()
    rubbing = forward(model, Sliding("l", "point", name="rubs"))
    assert acceleration_rows(rubbing) is None
    assert not sd.compile(rubbing, outputs=["qdd"], level="fast", backend="python").ordering.startswith("articulated")
    held = forward(model, Contact("l", name="left"))
    with pytest.raises(ProblemError, match="contacts and loops the outputs are tau, qdd, w"):
        sd.compile(held, formulation="recursive", outputs="all")
    with pytest.raises(ProblemError, match="neither a nor f"):
        generate(model, "tau", ["a"], constraints=acceleration_rows(held))


@pytest.mark.slow
def test_derivatives_and_products_on_two_feet():
    """A directional difference of the solution, its product with a vector, and the Jacobian agree."""
    problem = forward(legged(), *(Contact(x, name=x) for x in "lr"))
    solver = sd.compile(problem, outputs=["qdd"], level="fast", effort=0.0, backend="python")
    given = state(problem)
    rng = np.random.default_rng(0)
    v = {"q": rng.standard_normal((STATES, problem.model.nv)), "qd": rng.standard_normal((STATES, problem.model.nv))}
    push = solver.jvp(wrt=["q", "qd"])
    assert push.method == "inverse dynamics"
    rates = push(**given, tangents=v)["qdd"]
    step = 1e-6
    ends = [
        solver(**given | {"q": problem.model.integrate(given["q"], s * v["q"]), "qd": given["qd"] + s * v["qd"]})["qdd"]
        for s in (step, -step)
    ]
    np.testing.assert_allclose(rates, (ends[0] - ends[1]) / (2 * step), rtol=0, atol=1e-6 * np.abs(rates).max())
    w = {"qdd": rng.standard_normal(rates.shape)}
    pull = solver.vjp(wrt=["q", "qd"])(**given, cotangents=w)
    np.testing.assert_allclose(
        sum((pull[x] * v[x]).sum(axis=1) for x in v), (w["qdd"] * rates).sum(axis=1), rtol=1e-9, atol=1e-6
    )


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("held", [("l",), ("r", "tail"), ()])
def test_measurements_among_the_outputs(held):
    """Accelerations of bodies and joints, by a sweep, beside those of the system eliminated."""
    model = legged(2)
    problem = forward(model, *(Contact(x, "point", name=x) for x in held))
    outputs = ["qdd", sd.Accelerometer("tail", name="imu"), sd.FrameAcceleration("r", name="foot", reference="world"),
               sd.JointAcceleration(model.joint_names[2:4], name="knees")]  # fmt: skip
    quick = {"level": "fast", "effort": 0.0, "backend": "python", "outputs": outputs}
    solver = sd.compile(problem, **quick)
    assert solver.ordering.startswith(("articulated", "composite"))
    eliminated = sd.compile(problem, formulation="elimination", **quick)
    assert solver.flops.end_to_end.total < 0.9 * eliminated.flops.end_to_end.total
    given = state(problem)
    found, expected = solver(**given), eliminated(**given)
    for name in ("qdd", "imu", "foot", "knees"):
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-9 * np.abs(expected[name]).max())


def test_a_foot_that_is_fixed_twice():
    """Redundant rows are evaluated: their errors are the inconsistency."""
    toe = np.eye(4)
    toe[0, 3] = 0.1
    model = legged(4)
    problem = forward(model, Contact("l", name="sole"), Contact((model.body_names[LEG], toe), "point", name="toe"))
    solver = sd.compile(problem, outputs=["qdd", "w"], level="fast", effort=0.0, backend="python", on_singular="nan")
    assert solver.ordering == "articulated" and [m.name for m, _ in solver.left_out] == ["toe"]
    q, qd, _ = model.random_state(seed=0)
    still = solver(q, 0.0 * qd, np.zeros(model.nv))
    assert still.ok and np.abs(still.inconsistency()["toe"]).max() < 1e-9
    assert not solver(q, qd, np.zeros(model.nv)).ok
