"""Rigid contacts: q̈ and wrenches against Pinocchio's constrained dynamics and dense KKT systems."""

from __future__ import annotations

import functools
import json
from functools import partial

import numpy as np
import pinocchio as pin
import pytest
from oracles import Pinocchio, constrained, icub, icub_urdf
from robots import floating_tree

import sysdyn as sd
from sysdyn.app.matrix_plot import plot_matrix
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.errors import (
    InvalidInput,
    PlausibilityWarning,
    ProblemError,
    SingularState,
    StructurallySingular,
    UnknownName,
)
from sysdyn.measurements.acceleration_sensors import FrameAcceleration
from sysdyn.measurements.classical import forward_dynamics
from sysdyn.measurements.constraints import CONTACTS, Contact
from sysdyn.measurements.known_quantities import ExternalWrench, JointTorque
from sysdyn.measurements.measurement import Constraint
from sysdyn.measurements.problem import Problem
from sysdyn.model.quantities import ACCELERATION
from sysdyn.model.se3 import X_motion, rotx, roty

FEET = ("l_sole", "r_sole")
R = rotx(0.7) @ roty(-0.4)
POSE = np.block([[R, np.array([[0.1], [-0.2], [0.3]])], [np.zeros((1, 3)), np.ones((1, 1))]])


@functools.cache
def tree() -> sd.Model:
    """A free body with two arms of three joints; the frame "tool" is at the end of one, "wall" on the base."""
    model = floating_tree(7, seed=3, parent=(-1, 0, 1, 2, 0, 4, 5))
    frames = {"tool": sd.Frame("tool", 6, X_motion(R, np.array([0.2, 0.1, -0.3]))), "wall": sd.Frame("wall", -1)}
    return model.replace(frames={**model.frames, **frames})


@functools.cache
def feet_solver(kind: str = "fixed") -> sd.Solver:
    problem = forward_dynamics(icub("floating")) + [Contact(f, kind, name=f) for f in FEET]
    return sd.compile(problem, level="fast", backend="python")


def state(model: sd.Model, seed: int, batch: int | None = None):
    """(q, q̇, τ, fx) at random."""
    q, qd, _ = model.random_state(seed=seed, batch=batch)
    rng = np.random.default_rng(seed)
    fx = rng.uniform(-10.0, 10.0, (*qd.shape[:-1], model.nb, 6))
    return q, qd, rng.uniform(-20.0, 20.0, qd.shape), fx


def close(found, expected, tolerance) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


# ---- against Pinocchio ---------------------------------------------------------------------------------------------


def placed(oracle: Pinocchio, frame: str):
    found = oracle.pin.frames[oracle.pin.getFrameId(frame, pin.BODY)]
    return found.parentJoint, found.placement


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_both_feet_of_icub_on_the_ground(seed):
    """Six-dimensional contacts; feet at rest, all else moving, under torques and wrenches on every body."""
    model = icub("floating")
    oracle = Pinocchio(model, icub_urdf())
    q, qd, tau, fx = state(model, seed)
    J = np.concatenate([sd.frame_jacobian(model, q, f) for f in FEET])
    qd = qd - np.linalg.pinv(J) @ (J @ qd)
    solution = feet_solver()(q, qd, tau, fx=fx)
    contacts = [(pin.ContactType.CONTACT_6D, *placed(oracle, f)) for f in FEET]
    qdd, wrenches = constrained(oracle, contacts, q, qd, tau, fx)
    close(solution.qdd, qdd, 1e-10)
    for foot, expected in zip(FEET, wrenches, strict=True):
        close(solution.wrench(foot), expected, 1e-10)
    assert solution.backward_error() <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_point_feet_of_icub(seed):
    """Three-dimensional contacts at any velocity: the classical acceleration of the points is zero."""
    model = icub("floating")
    oracle = Pinocchio(model, icub_urdf())
    q, qd, tau, fx = state(model, seed)
    solution = feet_solver("point")(q, qd, tau, fx=fx)
    contacts = [(pin.ContactType.CONTACT_3D, *placed(oracle, f)) for f in FEET]
    qdd, wrenches = constrained(oracle, contacts, q, qd, tau, fx)
    close(solution.qdd, qdd, 1e-10)
    for foot, expected in zip(FEET, wrenches, strict=True):
        close(solution.wrench(foot)[3:], expected[3:], 1e-10)
        assert not solution.wrench(foot)[:3].any()


@pytest.mark.slow
def test_contacts_of_icub_cost_little():
    """Every pivot but those of w is one of the articulated-body algorithm, and those of w are positive."""
    free = sd.compile(forward_dynamics(icub("floating")), "aba", outputs=["qdd"], level="fast")
    problem = forward_dynamics(icub("floating")) + [Contact(f, name=f) for f in FEET]
    solver = sd.compile(problem, "aba", outputs=["qdd", "w"], level="fast")
    assert free.flops.end_to_end.total < solver.flops.end_to_end.total <= 1.3 * free.flops.end_to_end.total
    assert solver.stability.sign_changes == 0 and solver.stability.backward_error <= 1e-10
    assert feet_solver().ordering == "aba"


# ---- every kind, against a dense KKT system ------------------------------------------------------------------------


def drift(model: sd.Model, frame, q, qd, reference: str) -> np.ndarray:
    """Classical acceleration (6,) of the frame at q̈ = 0."""
    sensor = FrameAcceleration(frame, reference=reference, name="a")
    return sd.predict(Problem(model, [sensor]), q, qd, np.zeros(model.nv))["a"]


KINDS = [(kind, "local") for kind in CONTACTS] + [("plane", "world"), (("a_z", "alpha_x", "a_x"), "world")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "reference"), KINDS, ids=str)
def test_every_kind_of_contact(kind, reference):
    """[H −A^T; A 0] (q̈, w) = (τ − C, y − Ȧ q̇), with fx known beside the wrench of the contact."""
    model = tree()
    problem = forward_dynamics(model) + Contact("tool", kind, reference, name="tool")
    q, qd, tau, fx = state(model, 5)
    held = [ACCELERATION.index(c) for c in (CONTACTS[kind] if isinstance(kind, str) else kind)]
    y = np.random.default_rng(1).standard_normal(len(held))
    solver = sd.compile(problem, level="fast", backend="python")
    solution = solver(q, qd, tau, fx=fx, y={"tool": y})
    A = sd.frame_jacobian(model, q, "tool", reference)[held]
    m = len(held)
    kkt = np.block([[sd.crba(model, q), -A.T], [A, np.zeros((m, m))]])
    bias = sd.rnea(model, q, qd, np.zeros(model.nv), fx)
    expected = np.linalg.solve(kkt, [*(tau - bias), *(y - drift(model, "tool", q, qd, reference)[held])])
    close(solution.qdd, expected[: model.nv], 1e-9)
    close(solution["w", "tool"], expected[model.nv :], 1e-9)
    close(solution.wrench("tool", reference)[held], expected[model.nv :], 1e-9)
    close(solution.acceleration("tool", classical=True, reference=reference)[held], y, 1e-9)
    assert solver.ordering in ("aba", "crba")
    # the wrench in the axes of the frame balances the motion
    loads = fx.copy()
    loads[6] += model.frame("tool").X.T @ solution.wrench("tool")
    close(sd.rnea(model, q, qd, solution.qdd, loads), tau, 1e-9)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("order", "layout", "known"),
    [("crba", "paper", "rows"), ("aba", "net_force", "substituted"), ("markowitz", "net_force", "rows")],
)
def test_layouts_and_orders_agree(order, layout, known):
    model = tree()
    contacts = [Contact("tool", "point", name="a"), Contact(("body3", POSE), "normal", name="b")]
    problem = forward_dynamics(model) + contacts
    q, qd, tau, fx = state(model, 2, 3)
    options = {"level": "fast", "backend": "python"}
    solution = sd.compile(problem, order, layout=layout, known=known, **options)(q, qd, tau, fx=fx)
    reference = sd.compile(problem, "aba", **options)(q, qd, tau, fx=fx)
    close(solution.qdd, reference.qdd, 1e-9)
    close(solution.w, reference.w, 1e-9)
    assert solution.w.shape == (3, 4) and solution["w", "b"].shape == (3, 1)
    assert solution.wrench("b", "world").shape == (3, 6)
    close(np.linalg.norm(solution.wrench("b", "world"), axis=-1), np.abs(solution["w", "b"][:, 0]), 1e-9)


@pytest.mark.slow
def test_bound_calls_and_chosen_outputs():
    problem = forward_dynamics(tree()) + Contact("tool", "point")
    q, qd, tau, fx = state(tree(), 4)
    y = np.array([0.1, 0.2, -0.3])
    expected = sd.compile(problem, level="fast")(q, qd, tau, fx=fx, y={"Contact(tool)": y})
    solver = sd.compile(problem, outputs=["w"], level="fast")
    step = solver.bind(q, qd, tau, fx=fx, y={"Contact(tool)": y})
    step()
    close(step.out["w"], expected["w"], 1e-12)
    only = sd.compile(problem, outputs=["qdd"], level="fast")(q, qd, tau, fx=fx)
    with pytest.raises(AttributeError, match="w was not asked for"):
        _ = only.w
    with pytest.raises(UnknownName, match="output 'w'"):
        only.wrench("Contact(tool)")
    with pytest.raises(UnknownName, match=r"output 'w'.*tau, qdd, fx, a, f"):
        sd.compile(forward_dynamics(tree()), outputs=["w"])


def test_custom_constraints_have_their_own_wrench():
    """A rope from the tool to the world that keeps its length: one row, one tension."""

    class Rope(Constraint):
        name = "rope"
        optional = True

        def components(self, model):
            return ("length",)

        def wrench(self, model):
            return ("tension",)

        def rows(self, ctx):
            direction = np.array([[0.0, 0.0, 0.0, 0.0, 0.6, 0.8]])
            return {("a", ctx.body("tool")): direction @ ctx.X("tool")}

        def loads(self, ctx):
            return {body: block.T for (_, body), block in self.rows(ctx).items()}

    model = tree()
    problem = forward_dynamics(model) + Rope()
    q, qd, tau, fx = state(model, 8)
    solution = sd.compile(problem, level="fast")(q, qd, tau, fx=fx)
    loads = fx.copy()
    loads[6] += model.frame("tool").X.T @ np.array([0, 0, 0, 0, 0.6, 0.8]) * solution["w", "rope"]
    close(sd.rnea(model, q, qd, solution.qdd, loads), tau, 1e-9)
    assert sd.assemble(problem).col_names[-1] == "w(rope).tension"
    with pytest.raises(InvalidInput, match=r"'rope' has no frame: its components are solution\['w', 'rope'\]"):
        solution.wrench("rope")
    assert problem.digest is None


@pytest.mark.slow
def test_estimates_keep_contacts():
    """Noisy torques and accelerations under an exact contact: weighted least squares on its null space."""
    model = tree()
    noisy = [
        JointTorque("all", name="tau", noise=2.0), sd.JointAcceleration("all", name="qdd", noise=0.5),
        ExternalWrench("all", name="fx"), Contact("tool", "point", name="tool"),
    ]  # fmt: skip
    q, qd, tau, fx = state(model, 6)
    qdd = np.random.default_rng(6).standard_normal(model.nv)
    solution = sd.compile(Problem(model, noisy), level="fast")(q, qd, fx=fx, y={"tau": tau, "qdd": qdd})
    H, C = sd.crba(model, q), sd.rnea(model, q, qd, np.zeros(model.nv), fx)
    A = sd.frame_jacobian(model, q, "tool")[3:]
    n = model.nv
    # minimise |(H q̈ + C − A^T w − τ)/2|² + |(q̈ − q̈_y)/0.5|² with A q̈ = −Ȧ q̇
    T = np.hstack([H, -A.T])
    P = T.T @ T / 4.0
    P[:n, :n] += np.eye(n) / 0.25
    G = np.hstack([A, np.zeros((3, 3))])
    g = T.T @ (tau - C) / 4.0 + np.concatenate([qdd / 0.25, np.zeros(3)])
    kkt = np.block([[P, G.T], [G, np.zeros((3, 3))]])
    found = np.linalg.solve(kkt, np.concatenate([g, -drift(model, "tool", q, qd, "local")[3:]]))
    close(solution.qdd, found[:n], 1e-9)
    close(solution["w", "tool"], found[n : n + 3], 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [["qdd", "w"], ["w"]], ids=str)
def test_derivatives_in_contact(outputs):
    """Against central differences of the solution, in the tangent space of q."""
    model = tree()
    problem = forward_dynamics(model) + Contact("tool", "point", name="tool")
    solver = sd.compile(problem, outputs=outputs, level="fast", backend="python")
    q, qd, tau, fx = state(model, 9)
    found = solver.derivatives(wrt=("q", "qd", "tau"))(q, qd, tau, fx=fx)
    h = 1e-6
    for name in ("q", "qd", "tau"):
        for k, e in enumerate(np.eye(model.nv)):
            at = {"q": lambda s, e=e: (model.integrate(q, s * e), qd, tau), "qd": lambda s, e=e: (q, qd + s * e, tau),
                  "tau": lambda s, e=e: (q, qd, tau + s * e)}[name]  # fmt: skip
            plus, minus = (solver(*at(s), fx=fx) for s in (h, -h))
            for x in outputs:
                close(found[x, name][:, k], (plus[x] - minus[x]) / (2 * h), 1e-6)


@pytest.mark.slow
def test_exported_code_names_the_wrench(tmp_path):
    solver = sd.compile(forward_dynamics(tree()) + Contact("tool", "point", name="tool"), level="fast")
    solver.export_c(tmp_path)
    text = "".join(path.read_text() for path in tmp_path.rglob("*.h"))
    assert "components of the wrenches of contacts" in text and "w:tool.fz" in text


# ---- diagnosis, singular states, storing ---------------------------------------------------------------------------


@pytest.mark.slow
def test_diagnosis_names_contacts():
    model = tree()
    twice = forward_dynamics(model) + [Contact("tool", name="first"), Contact("body6", "point", name="second")]
    found = sd.diagnose(twice)
    assert not found.well_posed
    assert any("w(second)" in name for name in found.undetermined)
    assert any("y:second" in name for name in found.redundant)
    assert [m.name for m, _ in sd.compile(twice, level="fast").left_out] == ["second"]
    # joint accelerations known, too: the contact says again what they say, and its wrench is unknown
    moving = sd.inverse_dynamics(model) + Contact("tool", name="held")
    found = sd.diagnose(moving)
    assert any(name.startswith("w(held)") for name in found.undetermined + found.redundant) or not found.well_posed
    with pytest.raises(StructurallySingular):
        sd.compile(moving)
    fewer = forward_dynamics(model) - JointTorque("joint2") + Contact("tool", name="held")
    assert any("tau(joint2)" in name for name in sd.diagnose(fewer).undetermined)
    assert (forward_dynamics(model) + Contact("tool", name="held") - Contact("tool", name="held")).constraints == ()
    assert "w(held).nx" in sd.assemble(forward_dynamics(model) + Contact("tool", name="held")).col_names


def test_a_singular_state_names_the_contact():
    """A straight arm that is held at its end along itself: no joint can give that acceleration."""
    model = sd.from_dh([0.0] * 2, [0.0, 1.0], [0.0] * 2, [1.0] * 2, np.array([[0.5, 0, 0]] * 2), [np.eye(3) * 0.1] * 2)
    tip = np.eye(4)
    tip[0, 3] = 1.0
    problem = forward_dynamics(model) + Contact((model.body_names[1], tip), ("a_x", "a_y"), name="tip")
    solver = sd.compile(problem, level="fast")
    assert np.isfinite(solver([0.3, 0.9], [1.0, 2.0], [0.1, 0.2]).qdd).all()
    with pytest.raises(SingularState) as error:
        solver([0.3, 0.0], [1.0, 2.0], [0.1, 0.2])
    assert error.value.unknown.startswith("w(tip)") and error.value.equation.startswith("y:tip")
    mixed = solver([[0.3, 0.9], [0.3, 0.0]], [1.0, 2.0], [0.1, 0.2], on_singular="nan")
    assert mixed.ok.tolist() == [True, False]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", ["plane", ("a_z", "alpha_y")], ids=str)
def test_stored_problems_and_solvers_are_the_same(kind, tmp_path):
    model = tree()
    problem = forward_dynamics(model) + [Contact("tool", kind, "world", name="a"), Contact(("body3", POSE), "point")]
    again = Problem.from_dict(json.loads(json.dumps(problem.to_dict())))
    assert again.digest == problem.digest is not None
    assert again.constraints[1].name == "Contact(body3+pose)"
    moved = model.replace(frames={**model.frames, "tool": sd.Frame("tool", 6)})
    assert len({problem.digest, Problem(moved, problem.measurements).digest, forward_dynamics(model).digest}) == 3
    solver = sd.compile(problem, level="fast")
    q, qd, tau, fx = state(model, 3)
    loaded = sd.load_solver(solver.save(tmp_path / "contact.solver"))
    np.testing.assert_array_equal(loaded(q, qd, tau, fx=fx).w, solver(q, qd, tau, fx=fx).w)
    np.testing.assert_array_equal(loaded(q, qd, tau, fx=fx).wrench("a"), solver(q, qd, tau, fx=fx).wrench("a"))


@pytest.mark.slow
def test_a_contact_is_drawn():
    figure = plot_matrix(sd.compile(forward_dynamics(tree()) + Contact("tool"), level="fast"))
    assert "constraint wrench $w$" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_units_are_those_of_accelerations():
    assert Contact("tool", "plane").units == ("rad/s²", "rad/s²", "m/s²")
    assert Contact("tool", "plane").wrench(tree()) == ("nx", "ny", "fz")
    problem = forward_dynamics(tree()) + Contact("tool", "plane", name="sole")
    assert problem.y_names[-3:] == ("sole: alpha_x", "sole: alpha_y", "sole: a_z")
    assert problem.quantities == ("tau", "qdd", "fx", "a", "f", "w")


BAD = [
    (lambda: Contact("wall"), InvalidInput, "frame 'wall' is fixed to the base"),
    (lambda: Contact("tol"), UnknownName, "frame 'tol'.*Did you mean 'tool'"),
    (lambda: Contact("tool", "planar"), UnknownName, "kind of a Contact: 'planar'.*Did you mean 'plane'"),
    (lambda: Contact("tool", ("a_q",)), UnknownName, "component of 'Contact.*'a_q'"),
    (lambda: Contact("tool", ()), InvalidInput, "has no components"),
    (lambda: Contact("tool", reference="space"), UnknownName, "reference of .*'space'.*local, world"),
    (lambda: Contact("tool", ("a_z", "a_z")), ProblemError, "states a_z twice"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "text"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_said_when_the_problem_is_made(make, kind, text):
    with pytest.raises(kind, match=text):
        Problem(tree(), [make()])


def test_frames_that_no_joint_moves():
    model = sd.chain(3)
    welded = model.replace(
        joints=(sd.model.Fixed(), *model.joints[1:]), armature=None, lower=None, upper=None, velocity_limit=None,
        effort_limit=None,
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="frame 'body0' cannot move: no joint carries it"):
        Problem(welded, [Contact("body0")])


def test_recursive_orders_that_do_not_apply_to_contacts():
    problem = forward_dynamics(tree()) + Contact("tool")
    with pytest.raises(ProblemError, match="'rnea' is for inverse dynamics"):
        RECURSIVE["rnea"](sd.assemble(sd.inverse_dynamics(tree()) + Contact("tool")))
    with pytest.raises(ProblemError, match="no sensors but constraints"):
        RECURSIVE["aba"](sd.assemble(problem + sd.Accelerometer("body1")))


def test_a_point_far_off_its_body_is_told():
    """Millimetres in place of metres, as far as the links of the robot can tell."""
    model, T = sd.auto_tree(4, 1, 1.5, 0.9), np.eye(4)
    T[:3, 3] = 0.0, 60.0, 0.0
    with pytest.warns(PlausibilityWarning, match="'tip' holds a point 60 m off the origin of 'body3', but all links"):
        forward_dynamics(model) + Contact(("body3", T), "point", name="tip")
    T[:3, 3] = 0.0, 0.06, 0.0
    assert (forward_dynamics(model) + Contact(("body3", T), "point", name="tip")).constraints


# ---- wheels ----------------------------------------------------------------------------------------------------------

CART, WHEEL, SPIN, RADIUS = 3.0, 2.0, 0.05, 0.25  # masses [kg], inertia about the axle [kg m²], radius [m]


@pytest.mark.parametrize("make", [Contact, partial(sd.ContactWrench, noise=1.0), partial(sd.Stance, noise=1e-3)])
def test_a_kind_that_rolls_names_what_does(make):
    for kind in ("rolling", "roll"):
        with pytest.raises(UnknownName, match="JointCoupling") as error:
            make("tool", kind)
        assert "point" in error.value.valid
    with pytest.raises(UnknownName) as error:
        make("tool", "flat")
    assert "JointCoupling" not in str(error.value)


def test_a_wheel_rolls_in_a_plane_by_a_coupling():
    """(M + m + I / r²) ẍ = τ / r, and the ground pushes by F = (M + m) ẍ."""
    body = """<link name="{0}"><inertial><mass value="{1}"/>
      <inertia ixx="0.1" ixy="0" ixz="0" iyy="{2}" iyz="0" izz="0.1"/></inertial></link>"""
    model = sd.load(
        f"""<robot name="cart"><link name="rail"/>{body.format("cart", CART, 0.1)}{body.format("wheel", WHEEL, SPIN)}
        <joint name="slide" type="prismatic"><parent link="rail"/><child link="cart"/><axis xyz="1 0 0"/>
          <limit effort="1" velocity="1" lower="-9" upper="9"/></joint>
        <joint name="axle" type="continuous"><parent link="cart"/><child link="wheel"/><axis xyz="0 1 0"/></joint>
        </robot>"""
    )
    rolling = sd.JointCoupling("slide", "axle", (0.0, RADIUS), name="rolling")
    solution = sd.compile(forward_dynamics(model) + rolling, backend="python")([0.1, 0.4], [0.5, 2.0], [0.0, 1.3])
    x = 1.3 / RADIUS / (CART + WHEEL + SPIN / RADIUS**2)
    np.testing.assert_allclose(solution.qdd, [x, x / RADIUS], rtol=1e-12)
    np.testing.assert_allclose(solution["w", "rolling"], [(CART + WHEEL) * x], rtol=1e-12)
