"""Simulations of contacts that push, slide and open: against what mechanics says, MuJoCo, and themselves."""

from __future__ import annotations

import itertools
import warnings
from functools import cache

import mujoco
import numpy as np
import pytest
from robots import floating_tree
from scipy.integrate import solve_ivp

import sysdyn as sd
from sysdyn.errors import AccuracyWarning, InvalidInput, ProblemError

HIGH, FRICTION = 0.1, 0.4


CORNERS = (*itertools.product((0.2, -0.2), repeat=2),)
TRIPOD = ((0.25, 0.0), (-0.15, 0.2), (-0.1, -0.2))


@cache
def puck(points: tuple[tuple[float, float], ...] = CORNERS) -> sd.Unilateral:
    """A box of 0.4 m · 0.4 m · 0.2 m and 2 kg on these points."""
    model = sd.load(
        """<robot name="puck"><link name="puck"><inertial><mass value="2"/>
        <inertia ixx="0.0333" iyy="0.0333" izz="0.0533" ixy="0" ixz="0" iyz="0"/></inertial></link></robot>""",
        base="floating",
    )
    corners = []
    for x, y in points:
        T = np.eye(4)
        T[:3, 3] = x, y, -HIGH
        corners.append(sd.Contact((model.body_names[0], T), "point", reference="world", name=f"{x:+}{y:+}"))
    return sd.unilateral(sd.forward_dynamics(model) + corners, FRICTION)


LYING = np.array([0.0, 0.0, HIGH, 0.0, 0.0, 0.0, 1.0])


@pytest.mark.slow
def test_a_puck_slides_as_far_as_friction_lets_it_and_lands_without_gaining_energy():
    h, speed = 1e-3, 1.5
    slid = sd.simulate(puck(), LYING, [0, 0, 0, speed, 0, 0], None, 0.6, h, outputs=["w", "qdd"])
    far = speed**2 / (2.0 * FRICTION * 9.81)
    np.testing.assert_allclose(slid.q[-1, :3], [far, 0.0, HIGH], atol=speed * h)
    np.testing.assert_allclose(slid.qd[-1], 0.0, atol=1e-9)
    assert slid["w"].shape == (601, 12) and not slid.events
    np.testing.assert_allclose(slid["w"][:, 2::3].sum(axis=1), 2.0 * 9.81, atol=1e-6)
    np.testing.assert_allclose(slid["qdd"][100, 3], -FRICTION * 9.81, atol=1e-6)
    dropped = sd.simulate(puck(), LYING + [0, 0, 0.2, 0, 0, 0, 0], [0, 0.4, 1.0, 1.0, 0, 0], None, 2.0, h)
    assert np.diff(dropped.energy()).max() < 1e-9
    np.testing.assert_allclose(dropped.q[-1, 2], HIGH, atol=1e-5)
    assert {x.kind for x in dropped.events} == {"contact"} and "closes" in str(dropped.events[0])
    np.testing.assert_allclose(dropped.events[0].t, np.sqrt(2.0 * 0.2 / 9.81), atol=0.02)
    deep = sd.simulate(puck(), LYING - [0, 0, 0.01, 0, 0, 0, 0], np.zeros(6), None, 0.5, h)  # it comes out gently
    assert np.abs(deep.qd[:, 5]).max() < 0.3 and abs(deep.q[-1, 2] - HIGH) < 1e-4


def _stop(seconds: float, qd: np.ndarray) -> np.ndarray:
    """(x, y, heading) of the puck on its tripod, whose loads follow from moments: plane motion by SciPy."""
    feet, mass, spin, g = np.array([[*x, -HIGH] for x in TRIPOD]), 2.0, 0.0533, 9.81

    def slope(t, s):
        c, n, vx, vy, w = np.cos(s[2]), np.sin(s[2]), *s[3:]
        r = feet @ np.array([[c, n, 0.0], [-n, c, 0.0], [0.0, 0.0, 1.0]])
        v = np.array([vx, vy]) + w * np.c_[-r[:, 1], r[:, 0]]
        ways = np.c_[-FRICTION * v / np.maximum(np.linalg.norm(v, axis=1), 1e-4)[:, None], np.ones(3)]
        moments = np.cross(r, ways)
        loads = np.linalg.solve(np.array([np.ones(3), moments[:, 0], moments[:, 1]]), [mass * g, 0.0, 0.0])
        return [vx, vy, w, *(loads @ ways)[:2] / mass, loads @ moments[:, 2] / spin]

    start = [0.0, 0.0, 0.0, *qd[3:5], qd[2]]
    return solve_ivp(slope, (0.0, seconds), start, method="Radau", rtol=1e-8, atol=1e-10).y[:3, -1]


@pytest.mark.slow
def test_a_puck_that_spins_and_slides_stops_where_it_does_in_the_plane():
    """On three points, for the loads of four are not unique, and neither is what their friction does to the motion.

    MuJoCo, its contacts stiff, stops it 4 % off: its relaxed law lifts what slides.
    """
    qd, h = np.array([0.0, 0.0, 8.0, 1.2, 0.4, 0.0]), 5e-4
    found = sd.simulate(puck(TRIPOD), LYING, qd, None, 1.0, h, every=2000)
    ours = np.array([*found.q[-1, :2], 2.0 * np.arctan2(found.q[-1, 5], found.q[-1, 6])])
    assert np.linalg.norm(ours[:2]) > 0.3 and np.abs(found.qd[-1]).max() < 1e-9
    np.testing.assert_allclose(ours, _stop(1.0, qd), atol=2.5 * h)
    feet = "".join(f'<geom size="0.02" pos="{x} {y} {0.02 - HIGH}"/>' for x, y in TRIPOD)
    mj = mujoco.MjModel.from_xml_string(
        f'<mujoco><option cone="elliptic" timestep="{h}" tolerance="1e-12" iterations="300"/><default>'
        f'<geom friction="{FRICTION} 0 0" solref="0.005 1" solimp="0.999 0.999 0.0001"/></default><worldbody>'
        f'<geom type="plane" size="9 9 1"/><body pos="0 0 {HIGH}"><freejoint/><inertial pos="0 0 0" mass="2" '
        f'diaginertia="0.0333 0.0333 0.0533"/>{feet}</body></worldbody></mujoco>'
    )
    data = mujoco.MjData(mj)
    data.qvel[:] = [*qd[3:], *qd[:3]]
    while data.time < 1.0:
        mujoco.mj_step(mj, data)
    theirs = np.array([*data.qpos[:2], 2.0 * np.arctan2(data.qpos[6], data.qpos[3])])
    assert np.linalg.norm(theirs - ours) < 0.05 * np.linalg.norm(ours)


@pytest.mark.slow(after=3)
def test_many_robots_are_as_each_alone_with_all_kinds_of_torques():
    model = floating_tree(7, seed=3, parent=(-1, 0, 1, 2, 0, 4, 5))
    feet = [sd.Contact(x, "point", reference="world", name=x) for x in ("body3", "body6")]
    ground = sd.unilateral(sd.forward_dynamics(model) + feet, 0.6)
    n, count, h = 3, 40, 2e-3
    q, qd, _ = model.random_state(seed=0, batch=n)
    q[:, 2] += 0.5
    hold = sd.Feedback(kp=20.0, kd=1.0, q=q[0])
    steps = np.random.default_rng(0).standard_normal((count, model.nv))
    weights = {"gains": hold, "steps": steps, "function": lambda t, q, qd: 0.1 * np.sin(t) - 0.5 * qd}
    for tau in weights.values():
        many = sd.simulate(ground, q, qd, tau, count * h, h, outputs=["tau"])
        assert many.q.shape == (count + 1, n, model.nq) and many.ok.all()
        heights = [sd.frame_pose(model, x, "body3")[2, 3] for x in many.q[-1]]
        assert min(heights) > -2e-2
        for k in range(n):
            alone = sd.simulate(ground, q[k], qd[k], tau, count * h, h, outputs=["tau"])
            np.testing.assert_allclose(many.q[:, k], alone.q, atol=1e-6)
            np.testing.assert_allclose(many["tau"][:, k], alone["tau"], atol=1e-4)
            assert [x._replace(robot=0) for x in many.events if x.robot == k] == list(alone.events)


def test_friction_and_wrenches_of_each_robot():
    """Robots in a table of 2 · 3: friction by rows, a push on the body by columns."""
    mu, push = np.array([[0.2] * 3, [0.5] * 3]), np.zeros((2, 3, 1, 6))
    push[..., 0, 3] = [0.0, 3.0, 8.0]  # [N] along x, of a weight of 19.62 N
    found = sd.simulate(
        puck(TRIPOD), np.tile(LYING, (2, 3, 1)), np.zeros((2, 3, 6)), None, 0.1, 1e-3, fx=push, friction={
            f"{x:+}{y:+}": mu for x, y in TRIPOD
        },
    )  # fmt: skip
    expected = np.maximum(push[..., 0, 3] / 2.0 - mu * 9.81, 0.0)
    assert (expected > 0.0).sum() == 1
    np.testing.assert_allclose(found.qd[-1, ..., 3], 0.1 * expected, atol=1e-6)


def test_bad_input_is_named():
    model = puck().model
    start = LYING, np.zeros(6), None, 0.01, 1e-3
    for options, says in (
        ({"integrator": "rk4"}, "by 'euler', not by 'rk4'"), ({"outputs": ["a"]}, "outputs are qdd, tau, w"),
        ({"on_singular": "nan"}, "'raise' alone"), ({"y": {}}, "takes fx, friction and restitution, not 'y'"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=says):
            sd.simulate(puck(), *start, **options)
    turned = sd.unilateral(sd.forward_dynamics(model) + sd.Contact("puck", "point", name="p"), 0.5)
    with pytest.raises(ProblemError, match="normal of 'p' is that of its frame"):
        sd.simulate(turned, *start)
    with pytest.raises(InvalidInput, match="no robot"):
        sd.simulate(puck(), np.zeros((0, 7)), np.zeros((0, 6)), None, 0.01, 1e-3)
    rough = sd.unilateral(puck().problem, FRICTION, iterations=3, newton_steps=0)
    with pytest.warns(AccuracyWarning, match="beyond the tolerance"):
        sd.simulate(rough, LYING, [0, 0, 0, 1.0, 0, 0], None, 0.01, 1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sd.simulate(puck(), LYING, [0, 0, 0, 1.0, 0, 0], None, 0.01, 1e-3)
