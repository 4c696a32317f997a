"""Constraints that take out the error of their position: a + 2 ζ ω ė + ω² e = y, and what it does in a simulation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from measurements.test_contacts import POSE, close, state, tree
from measurements.test_loops import bar, branched, framed

import sysdyn as sd
from sysdyn.app.problem_files import load_job
from sysdyn.errors import InvalidInput
from sysdyn.measurements.classical import forward_dynamics
from sysdyn.measurements.constraints import CONTACTS, LOOPS, Contact, JointCoupling, LoopJoint, closures
from sysdyn.measurements.problem import Problem
from sysdyn.model.closures import Coupling, Loop
from sysdyn.model.quantities import ACCELERATION
from sysdyn.model.se3 import pose, se3_exp

ROOT = Path(__file__).parents[2]


def error(model: sd.Model, make, q, qd) -> tuple[np.ndarray, np.ndarray]:
    """(e, ė), out of what three stabilisations of the same constraint add to its value."""
    values = [
        sd.predict(Problem(model, [make(stabilise)]), q, qd, np.zeros(model.nv))["c"]
        for stabilise in (None, (1.0, 0.5), (2.0, 0.25))
    ]
    first, second = values[1] - values[0], values[2] - values[0]  # ė + e, ė + 4 e
    return (second - first) / 3, (4 * first - second) / 3


def is_the_rate(model: sd.Model, make, q, qd, expected) -> None:
    """e is what is expected where it is small, and ė its derivative there."""
    e, rate = error(model, make, q, qd)
    np.testing.assert_allclose(e, expected, atol=1e-8)
    h = 1e-5
    plus, minus = (error(model, make, model.integrate(q, s * qd), qd)[0] for s in (h, -h))
    np.testing.assert_allclose(rate, (plus - minus) / (2 * h), atol=2e-4 * np.abs(rate).max())


HELD = [("fixed", "local"), ("fixed", "world"), ("point", "local"), ("line", "world"), ("normal", "world"),
        ("plane", "local"), ("edge", "local"), (("alpha_x", "alpha_z", "a_y"), "world")]  # fmt: skip


@pytest.mark.parametrize(("kind", "reference"), HELD, ids=str)
def test_errors_of_contacts_are_small_poses(kind, reference):
    """A pose that differs by V from where the frame is, and what is free by far more."""
    model = tree()
    q, qd, _, _ = state(model, 5)
    held = [ACCELERATION.index(c) for c in (CONTACTS[kind] if isinstance(kind, str) else kind)]
    V = 1e-5 * np.array([1.0, -2.0, 0.5, 3.0, 1.0, -2.0])
    free = np.where(np.isin(range(6), held), 0.0, 2.0)
    turned, far = se3_exp(np.r_[-V[:3], np.zeros(3)])[:3, :3], np.eye(3)
    if len(held) > 3 or kind in ("plane", HELD[-1][0]):  # one turn is free
        far = se3_exp(np.r_[free[:3], np.zeros(3)])[:3, :3]
    at = sd.frame_pose(model, q, "tool")
    if reference == "local":
        at[:3, 3] -= at[:3, :3] @ V[3:]
        at[:3, :3] = at[:3, :3] @ turned @ far
    else:
        at[:3, 3] -= V[3:] + free[3:]
        at[:3, :3] = far @ turned @ at[:3, :3]
    is_the_rate(model, lambda x: Contact("tool", kind, reference, "c", x, None if x is None else at), q, qd, V[held])


@pytest.mark.parametrize("kind", LOOPS)
def test_errors_of_loops_are_small_poses(kind):
    """Also with a body that carries both, and turned far about what is free."""
    model = branched((3, 3), 11)
    q, qd, _ = model.random_state(seed=2)
    V = 1e-5 * np.array([1.0, -2.0, 0.5, 3.0, 1.0, -2.0])
    loop = LoopJoint("A", "B", kind, name="c")
    held = [ACCELERATION.index(c) for c in loop.chosen]
    turn, slide = (np.where(np.isin(range(6), held), 0.0, x) for x in ([0, 0, 1.5, 0, 0, 0], [0, 0, 0, 0, 0, 1.5]))
    T_b = np.linalg.inv(sd.frame_pose(model, q, "body6")) @ sd.frame_pose(model, q, "body3") @ POSE
    model = framed(model, 3, 6, POSE, T_b @ se3_exp(slide) @ se3_exp(V) @ se3_exp(turn))
    is_the_rate(model, lambda x: LoopJoint("A", "B", kind, name="c", stabilise=x), q, qd, V[held])


@pytest.mark.parametrize("leader", ["joint0", None])
def test_errors_of_coupled_joints(leader):
    model = sd.chain(3)
    q, qd, _ = model.random_state(seed=1)
    coefficients = (0.2, -1.5, 0.4) if leader else (0.2,)
    e = q[2] - sum(c * q[0] ** k for k, c in enumerate(coefficients))
    is_the_rate(model, lambda x: JointCoupling("joint2", leader, coefficients, "c", x), q, qd, [e])


def test_velocities_alone():
    """Without a pose to be kept e is not known, and counts as zero."""
    model = tree()
    q, qd, _, _ = state(model, 5)
    e, rate = error(model, lambda x: Contact("tool", "plane", name="c", stabilise=x), q, qd)
    np.testing.assert_allclose(e, 0.0, atol=1e-12)
    close(rate, (sd.frame_jacobian(model, q, "tool") @ qd)[[0, 1, 5]], 1e-12)


@pytest.mark.slow
def test_a_place_of_each_step_is_a_value():
    """A contact that is pulled to the origin of the world, with y = ω² p, is one that is pulled to p."""
    model = tree()
    q, qd, tau, fx = state(model, 5)
    p = np.array([0.3, -0.2, 0.1])
    found = []
    for at, y in ((pose(np.eye(3), p), np.zeros(3)), (np.eye(4), 100.0 * p)):
        foot = Contact("tool", "point", "world", "foot", stabilise=0.1, at=at)
        solver = sd.compile(forward_dynamics(model) + foot, outputs=["qdd"], level="fast", backend="python")
        found.append(solver(q, qd, tau, fx=fx, y={"foot": y}).qdd)
    close(*found, 1e-10)


def runge_kutta(solver: sd.Solver, q, qd, h: float, steps: int):
    """(q, q̇) after each step of the classical fourth order, from a state and without torques."""
    x, rate = q.copy(), qd.copy()
    step = solver.bind(x, rate, np.zeros(len(qd)))

    def slope(q, qd):
        x[:], rate[:] = q, qd
        step()
        return np.array([qd, step.out["qdd"]])

    s = np.array([q, qd])
    for _ in range(steps):
        k1 = slope(*s)
        k2 = slope(*(s + h / 2 * k1))
        k3 = slope(*(s + h / 2 * k2))
        k4 = slope(*(s + h * k3))
        s = s + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        yield s


def test_a_four_bar_stays_closed():
    """10 s at 2 ms, its crank turning at about 6 rad/s; without stabilisation the drift grows without end."""
    task = load_job(ROOT / "problems" / "four_bar.toml")
    model = task.problem.model
    rest, (loop,) = task.problem.measurements[:-1], task.problem.constraints

    def gap(q) -> float:
        return np.abs(sd.frame_pose(model, q, "pivot") - sd.frame_pose(model, q, "end"))[:3, 3].max()

    q = np.array([1.0, -0.3, 2.0])
    for _ in range(20):
        A, B = (sd.frame_jacobian(model, q, x, "world")[[3, 5]] for x in ("end", "pivot"))
        gaps = (sd.frame_pose(model, q, "end") - sd.frame_pose(model, q, "pivot"))[[0, 2], 3]
        q[1:] -= np.linalg.solve((A - B)[:, 1:], gaps)
    assert gap(q) <= 1e-14
    qd = np.array([6.0, *(6.0 * np.linalg.solve((A - B)[:, 1:], -(A - B)[:, 0]))])
    drift = {}
    for stabilise, steps in ((None, 1000), (0.1, 5000)):
        kept = LoopJoint(loop.frame, loop.frame_b, loop.chosen, name="pivot", stabilise=stabilise)
        solver = sd.compile(Problem(model, [*rest, kept]), outputs=["qdd"], level="fast")
        drift[stabilise] = max(gap(s[0]) for s in list(runge_kutta(solver, q, qd, 2e-3, steps))[::20])
    assert drift[0.1] <= 1e-9 < drift[None] / 10


def test_an_error_decays_as_an_oscillation_does():
    """A gripper that is let go 1 mm beside its place: e'' + 2 ζ ω e' + ω² e = 0 along each axis."""
    model = sd.auto_tree(4, 1, 1.5, 0.9)
    q, _, _ = model.random_state(seed=0)
    T = sd.frame_pose(model, q, "body3")
    at = T.copy()
    at[:3, 3] -= [1e-3, 0.0, -1e-3]
    grip = Contact("body3", "point", "world", stabilise=(20.0, 0.3), at=at)
    solver = sd.compile(forward_dynamics(model) + grip, outputs=["qdd"], level="fast")
    *_, (found, _) = runge_kutta(solver, q, np.zeros(4), 2e-3, 100)
    w = 20.0 * np.sqrt(1 - 0.3**2)
    decay = np.exp(-20.0 * 0.3 * 0.2) * (np.cos(w * 0.2) + 20.0 * 0.3 / w * np.sin(w * 0.2))
    np.testing.assert_allclose((sd.frame_pose(model, found, "body3") - at)[:3, 3], (T - at)[:3, 3] * decay, atol=1e-8)


@pytest.mark.slow
def test_derivatives_by_the_place_of_a_free_base():
    model = tree()
    q, qd, tau, fx = state(model, 9)
    at = sd.frame_pose(model, q, "tool") @ se3_exp(np.full(6, 0.1))
    solver = sd.compile(
        forward_dynamics(model) + Contact("tool", stabilise=0.5, at=at), outputs=["qdd"], level="fast", backend="python"
    )
    found = solver.derivatives(wrt=("q",))(q, qd, tau, fx=fx)["qdd", "q"]
    h, e = 1e-6, np.eye(model.nv)
    plus, minus = (np.array([solver(model.integrate(q, s * x), qd, tau, fx=fx).qdd for x in e]) for s in (h, -h))
    close(found, (plus - minus).T / (2 * h), 1e-6)


def test_they_are_stored():
    model = tree()
    at = se3_exp(np.full(6, 0.3))
    for contact in (Contact("tool", stabilise=0.1, at=at), LoopJoint("tool", "body3", stabilise=(10.0, 0.7)),
                    JointCoupling("joint1", "joint2", stabilise=0.1)):  # fmt: skip
        problem = forward_dynamics(model) + contact
        again = Problem.from_dict(json.loads(json.dumps(problem.to_dict())))
        assert again.digest == problem.digest is not None
        assert again.constraints[0].describe() == contact.describe()
        assert "stabilise" in contact.describe()
    assert "stabilise" not in Contact("tool").describe()
    loose = forward_dynamics(model) + Contact("tool", stabilise=0.1)
    assert len({(forward_dynamics(model) + x).digest for x in (Contact("tool"), Contact("tool", stabilise=0.2))} |
               {loose.digest}) == 3  # fmt: skip


def test_problem_files_say_it(tmp_path):
    (tmp_path / "held.toml").write_text(
        'robot = "chain:4,0"\nproblem = "forward"\n[[measurement]]\ntype = "Contact"\nname = "grip"\nframe = "body3"\n'
        'kind = "point"\nstabilise = [20, 1]\nat = [[1, 0, 0, 0.5], [0, 1, 0, 0], [0, 0, 1, 0.2], [0, 0, 0, 1]]\n'
    )
    (grip,) = load_job(tmp_path / "held.toml").problem.constraints
    assert grip.stabilise == (20.0, 1.0) and grip.at[:3, 3].tolist() == [0.5, 0.0, 0.2]


def test_closures_of_files_are_stabilised():
    model = bar(3).replace(closures=(Loop("pin", "A", "B", "spherical"), Coupling("joint1", "joint0", (0.0, 2.0))))
    assert [m.stabilise for m in closures(model, 0.1)] == [(10.0, 1.0)] * 2
    assert [m.stabilise for m in closures(model)] == [None, None]


BAD = [
    (lambda: Contact("tool", stabilise=0.0), "a time constant \\[s\\], or \\(ω \\[rad/s\\], ζ\\)"),
    (lambda: LoopJoint("tool", "body3", stabilise=(1.0, 2.0, 3.0)), "not \\(1.0, 2.0, 3.0\\)"),
    (lambda: JointCoupling("joint1", stabilise="fast"), "not 'fast'"),
    (lambda: Contact("tool", at=np.eye(4)), "add stabilise="),
    (lambda: Contact("tool", stabilise=0.1, at=np.ones((4, 4))), "pose at="),
    (lambda: Contact("tool", "normal", stabilise=0.1, at=np.eye(4)), "use reference='world'"),
]


@pytest.mark.parametrize(("make", "text"), BAD, ids=range(len(BAD)))
def test_what_is_wrong_is_said(make, text):
    with pytest.raises(InvalidInput, match=text):
        make()
