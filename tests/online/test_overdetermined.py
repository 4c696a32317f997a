"""Exact measurements that follow from others: left out when a problem is compiled, and checked when it is solved."""

from __future__ import annotations

import functools
import json
import math
import pickle
from pathlib import Path
from types import SimpleNamespace

import estimates
import numpy as np
import pytest

import sysdyn as sd
from sysdyn.data.sensor_log import Log
from sysdyn.online import storage

MODEL = sd.chain(4, seed=2)
Q, QD, QDD = MODEL.random_state(seed=3, batch=5)
TAU = sd.rnea(MODEL, Q, QD, QDD)


def twice_a_torque() -> sd.Problem:
    """The torque of a joint as an input of forward dynamics, and measured at its motor."""
    return sd.forward_dynamics(MODEL) + sd.MotorTorque(["joint1"], [[1.0]], name="motor")


def torques_and_accelerations() -> sd.Problem:
    """τ and q̈ of one joint, and of another one."""
    return sd.inverse_dynamics(MODEL) + sd.JointTorque(("joint1", "joint3"), name="sensor")


def one_torque_again() -> sd.Problem:
    """One scalar that two raw measurements state."""
    return sd.forward_dynamics(MODEL) + sd.JointTorque("joint1", name="again")


def all_torques_again() -> sd.Problem:
    """One scalar first, and then that and others: these are known by the second one alone."""
    known = [sd.JointTorque("joint1", name="one"), sd.JointTorque("all", name="every"), sd.ExternalWrench("all")]
    return sd.Problem(MODEL, known)


def noisy_beside_twice_a_torque() -> sd.Problem:
    """The torques of all joints but one, of one of them twice, and noisy accelerations."""
    known = [sd.JointTorque(["joint0", "joint1", "joint3"], name="tau"), sd.ExternalWrench("all")]
    noisy = [sd.JointAcceleration("all", noise=0.2, name="acc"), sd.Accelerometer("body3", noise=0.1, name="imu")]
    return sd.Problem(MODEL, [*known, sd.MotorTorque(["joint1"], [[1.0]], name="motor"), *noisy])


def noisy_beside_two_contacts() -> sd.Problem:
    """A foot that two measurements hold, and noisy torques."""
    noisy = sd.JointTorque("all", noise=0.3, name="torque")
    return two_contacts() - sd.JointTorque("all") + sd.JointAcceleration("joint1", noise=0.2, name="acc") + noisy


def two_contacts() -> sd.Problem:
    """A foot that two measurements hold: its acceleration is known twice, its wrench is not."""
    held = {"frame": "body3", "components": ["a_x", "a_z"]}
    known = sd.forward_dynamics(MODEL) - sd.ExternalWrench("body3", ["fx", "fz"])
    return known + sd.FrameAcceleration(**held, name="contact") + sd.FrameAcceleration(**held, name="again")


def values(problem: sd.Problem) -> dict[str, np.ndarray]:
    """What all measurements read in one motion."""
    return sd.predict(problem, Q, QD, QDD, values_of_contacts(problem))


def values_of_contacts(problem: sd.Problem) -> np.ndarray:
    """External wrenches that the contacts allow."""
    fx = np.zeros((5, 4, 6))
    if "contact" in {m.name for m in problem.measurements}:
        fx[:, 3, 3::2] = np.random.default_rng(0).uniform(-5.0, 5.0, (5, 2))
    return fx


@functools.cache
def solver(make) -> sd.Solver:
    return sd.compile(make(), outputs=["qdd", "tau"], level="fast")


CASES = {
    twice_a_torque: ("motor", 1, "tau"),
    torques_and_accelerations: ("sensor", 2, "qdd"),
    two_contacts: ("again", 2, "contact"),
    one_torque_again: ("again", 1, "tau"),
    all_torques_again: ("every", 1, "one"),
    noisy_beside_twice_a_torque: ("motor", 1, "tau"),
    noisy_beside_two_contacts: ("again", 2, "contact"),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_agreeing_and_contradicting_values(make):
    name, count, against = CASES[make]
    problem, found, y = make(), solver(make), values(make())
    assert found.left_out and len(sd.diagnose(problem).removals) == count
    solution = found(Q, QD, y=y)
    assert solution.ok.all()
    np.testing.assert_allclose(solution.qdd, QDD, rtol=0, atol=1e-8 * np.abs(QDD).max())
    off = solution.inconsistency()
    assert list(off) == [name] and off[name].shape == (5, count) and np.abs(off[name]).max() < 1e-9 * np.abs(TAU).max()

    wrong = {**y, name: y[name].copy()}
    wrong[name][2, found.left_out[0][1][0]] += 0.01
    with pytest.raises(sd.Inconsistent, match=rf"at state 2: '{name}' is off by 0\.01 .* by .*'{against}'") as error:
        found(Q, QD, y=wrong)
    assert error.value.states == (2,) and error.value.measurements[0] == name and against in error.value.measurements
    going_on = found(Q, QD, y=wrong, on_singular="nan")
    assert going_on.ok.tolist() == [True, True, False, True, True]
    np.testing.assert_allclose(going_on.inconsistency()[name][2, 0], -0.01, rtol=1e-6)
    np.testing.assert_array_equal(going_on.qdd, solution.qdd)
    with pytest.raises(sd.Inconsistent, match=f"contradict each other: '{name}'"):
        found(Q[2], QD[2], y={x: v[2] for x, v in wrong.items()})
    copied = pickle.loads(pickle.dumps(found))
    copied.tolerance = 0.02
    assert copied(Q, QD, y=problem.pack(wrong)).ok.all()
    with pytest.raises(sd.ProblemError, match=f"{name!r} need: bind sd.compile"):
        found.bind(Q, QD)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("make", [noisy_beside_twice_a_torque, noisy_beside_two_contacts])
def test_estimates_beside_redundant_equations(make):
    """What they are worth is what they are without these; noise of a call and single states go through."""
    found, y = solver(make), sd.predict(make(), Q, QD, QDD, values_of_contacts(make()), seed=1)
    name = CASES[make][0]
    rest = sd.compile(found.problem, outputs=["qdd", "tau"], level="fast")
    for noise in ({}, {"acc": 0.7}):
        solution = found(Q[1], QD[1], y={x: v[1] for x, v in y.items()}, noise=noise)
        alone = rest(Q[1], QD[1], y={x: v[1] for x, v in y.items() if x != name}, noise=noise)
        assert solution.ok and (solution.std("tau") > 0.0).any() and solution.redundancy > 0
        for what in ("std", "covariance"):
            np.testing.assert_array_equal(getattr(solution, what)("qdd"), getattr(alone, what)("qdd"))
        assert solution.chi2() == alone.chi2() > 0.0 and solution.log_likelihood() == alone.log_likelihood()
    assert name not in solution.residuals() and set(solution.inconsistency()) == {name}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("grips", [["fixed"], ["fixed", "point"]])
def test_a_wrench_that_others_see_acts_though_its_equations_repeat_each_other(grips, tmp_path):
    """A hand with four joints, held in six directions, and force/torque sensors: nothing of it is open."""
    model, noisy = sd.auto_tree(5, 2, 0.3, 0.5), {"noise": 0.3}
    known = [sd.JointAcceleration("all", **noisy), sd.JointTorque("all", **noisy), sd.ExternalWrench("all")]
    held = [sd.Contact(f"body{4 - k}", kind, name=f"grip {k}") for k, kind in enumerate(grips)]
    seen = [sd.ForceTorqueSensor(f"joint{4 - k}", noise=0.1, name=f"ft {k}") for k in range(len(grips))]
    problem = sd.Problem(model, [*known, *held, *seen])
    found = sd.diagnose(problem)
    assert found.excess and not found.missing
    whole = sd.compile(problem, backend="python", level="fast")
    assert sum(len(k) for _, k in whole.left_out) == found.excess
    q, qd, qdd = model.random_state(seed=3)
    y = {m.name: 0.1 * np.arange(len(m.components(model))) for m in problem.noisy}
    y |= {m.name: sd.predict(problem, q, qd, qdd)[m.name] for m in held}
    expected = estimates.dense(problem, q, qd, y, repeated=found.excess)
    again = sd.load_solver(whole.save(tmp_path / "held.solver"))
    for solver in (whole, again):
        solution = solver(q, qd, y=y)
        std = np.sqrt(np.maximum(np.diagonal(expected["C"]), 0.0))
        for quantity in problem.quantities:
            columns = list(problem.layout().quantity_columns(quantity))
            for x, right in ((solution[quantity], expected["d"]), (solution.std(quantity), std)):
                size = np.abs(right[columns]).max(initial=1e-3)
                np.testing.assert_allclose(np.ravel(x), right[columns], rtol=0, atol=1e-8 * size, err_msg=quantity)
        assert np.abs(solution.wrench("grip 0")).min() > 0.0 and solution.chi2() > 1.0
        for name, x in solution.inconsistency().items():
            assert np.abs(x).max() < 1e-8, name
    wrong = y | {"grip 0": y["grip 0"] + np.eye(6)[whole.left_out[0][1][0]]}
    with pytest.raises(sd.Inconsistent, match="grip 0"):
        whole(q, qd, y=wrong)


def test_an_exact_wrench_acts_though_its_equations_repeat_each_other():
    """Also at a state at which those that were kept repeat each other, and the one that was left out does not."""
    model = sd.chain(5, seed=2)
    known = [sd.ExternalWrench("all"), sd.Contact("body4", name="grip"), sd.ForceTorqueSensor("joint4", name="ft")]
    whole = sd.compile(sd.Problem(model, known), backend="python", level="fast")
    assert sum(len(k) for _, k in whole.left_out) == 1
    q, qd, qdd = model.random_state(seed=3, batch=4)
    wrench = np.arange(1.0, 7.0)
    y = sd.predict(whole.whole, q, qd, qdd, np.zeros((4, 5, 6)))
    y["ft"] = y["ft"] - wrench
    solution = whole(q, qd, y=y)
    np.testing.assert_allclose(solution.wrench("grip"), np.tile(wrench, (4, 1)), rtol=0, atol=1e-9)
    np.testing.assert_allclose(solution.qdd, qdd, rtol=0, atol=1e-8 * np.abs(qdd).max())


def test_logs_have_the_redundant_measurements(tmp_path):
    found, y = solver(noisy_beside_twice_a_torque), values(noisy_beside_twice_a_torque())
    np.savez(tmp_path / "log.npz", t=np.arange(5.0), q=Q, qd=QD, **y)
    [estimates] = Log(tmp_path / "log.npz", found).estimates(found)
    np.testing.assert_allclose(estimates.values["qdd"], QDD, rtol=0, atol=1e-8 * np.abs(QDD).max())
    np.savez(tmp_path / "log.npz", t=np.arange(5.0), q=Q, qd=QD, **{**y, "motor": y["motor"] + 1.0})
    with pytest.raises(sd.Inconsistent, match="'motor' is off by 1"):
        list(Log(tmp_path / "log.npz", found).estimates(found))


def test_only_what_is_too_much():
    assert type(sd.compile(sd.forward_dynamics(MODEL), outputs="qdd", level="fast")) is sd.Solver
    assert solver(two_contacts)(Q[0], QD[0], y={x: v[0] for x, v in values(two_contacts()).items()}).inconsistency()[
        "again"
    ].shape == (2,)
    missing = sd.inverse_dynamics(MODEL) - sd.ExternalWrench("body0") + sd.JointTorque("all", name="a")
    with pytest.raises(sd.ProblemError, match="cannot be determined|undetermined"):
        sd.compile(missing + sd.MotorTorque(["joint1", "joint2", "joint3"], np.eye(3), name="b"))


def test_a_part_of_a_combination_is_stored(tmp_path):
    """One of two equations checks; solvers of the whole and of the rest give the same when they are loaded."""
    rows = {("qdd", "joint1"): [[1.0], [0.0]], ("qdd", "joint2"): [[0.0], [1.0]]}
    twice = sd.Linear(rows, bias=[0.5, 0.25], name="twice")
    whole = sd.compile(sd.forward_dynamics(MODEL) - sd.JointTorque("joint2") + twice, outputs="qdd", level="fast")
    rest = sd.compile(whole.problem, outputs="qdd", level="fast")
    assert [len(k) for _, k in whole.left_out] == [1]
    for solver in (whole, rest):
        y = sd.predict(solver.problem if solver is rest else whole.whole, Q, QD, QDD)
        loaded = sd.load_solver(solver.save(tmp_path / "stored.solver"))
        np.testing.assert_allclose(loaded(Q, QD, y=y).qdd, QDD, rtol=0, atol=1e-8 * np.abs(QDD).max())
        np.testing.assert_array_equal(loaded(Q, QD, y=y).qdd, solver(Q, QD, y=y).qdd)


def test_quantities_by_position_and_solutions_without_checks():
    found = solver(twice_a_torque)
    solution = found(Q, QD, TAU, y={"motor": TAU[:, 1:2]})
    assert solution.ok.all()
    plain = sd.compile(sd.forward_dynamics(MODEL), outputs="qdd", level="fast")(Q, QD, TAU)
    assert plain.inconsistency() == {}


@pytest.mark.slow
def test_two_constraints_of_one_foot():
    """The second exerts nothing, and is held to what the first does to the motion; `least_norm` shares the wrench."""
    model = sd.load(str(Path(__file__).parents[2] / "problems" / "leg.urdf"), base="floating")
    once = sd.forward_dynamics(model) + sd.Contact("sole", name="one")
    problem = once + sd.Contact("sole", name="two")
    found = sd.compile(problem, level="fast")
    assert [(m.name, len(k)) for m, k in found.left_out] == [("two", 6)]
    q, qd, tau = model.random_state(seed=1, batch=3)
    alone, solution = sd.compile(once, level="fast")(q, qd, tau), found(q, qd, tau)
    assert solution.ok.all() and np.abs(solution.inconsistency()["two"]).max() < 1e-9
    np.testing.assert_allclose(solution.qdd, alone.qdd, rtol=0, atol=1e-9)
    np.testing.assert_allclose(solution["w", "one"], alone["w", "one"], rtol=0, atol=1e-8)
    shared = sd.least_norm(problem, q, qd, tau)
    np.testing.assert_allclose(shared.qdd, alone.qdd, rtol=0, atol=1e-9)
    np.testing.assert_allclose(shared["w", "one"], alone["w", "one"] / 2, rtol=0, atol=1e-8)
    assert shared.determined["qdd"].all() and not shared.determined["w"].any()


@functools.cache
def slippery_feet(fixed_joints: str | tuple[str, ...]) -> sd.Solver:
    """Nori eq. (24), without noise: three load cells on each sole, no friction there, and no motor at the base."""
    path = str(Path(__file__).parents[2] / "problems" / "biped.urdf")
    model = sd.load(path, base="floating", fixed_joints=fixed_joints)
    touching = {model.frame(f"{side}_sole").body for side in "lr"}
    free = [body for i, body in enumerate(model.body_names) if i not in touching]
    known = [
        sd.JointAcceleration("all", name="motion"),
        sd.ExternalWrench(free, name="no contact"),
        sd.JointTorque("root_joint", name="no motor"),
    ]
    for side in "lr":
        known.append(sd.LoadCells(f"{side}_sole", ["nx", "ny", "fz"], name=f"{side} cells"))
        known.append(sd.LoadCells(f"{side}_sole", ["fx", "fy"], name=f"{side} slip"))
    return sd.compile(sd.Problem(model, known), outputs=["tau", "fx"], level="fast")


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("kept", "equations"), [pytest.param("lump", 274, marks=pytest.mark.slow), (("l_sole",), 292)], ids=str
)
def test_slippery_feet(kept, equations):
    """Four equations too many: at every random state contacts that fit the motion come back, and others are named."""
    found = slippery_feet(kept)
    problem, model = found.whole, found.model
    assert sd.assemble(problem).plain.shape == (equations, equations - 4)
    q, qd, qdd = model.random_state(seed=2, batch=200)
    fx = np.zeros((200, model.nb, 6))
    for side in "lr":
        wrench = np.random.default_rng(1).uniform(-3.0, 3.0, (200, 6)) * [1, 1, 1, 0, 0, 40]
        fx[:, model.frame(f"{side}_sole").body] = wrench @ model.frame(f"{side}_sole").X
    for k in range(200):  # the base moves as the wrenches want it
        H, force = sd.crba(model, q[k])[:6, :6], sd.rnea(model, q[k], qd[k], qdd[k], fx[k])[:6]
        qdd[k, :6] -= np.linalg.solve(H, force)
    y = sd.predict(problem, q, qd, qdd, fx)
    solution = found(q, qd, y=y)
    assert solution.ok.all() and sum(x.shape[-1] for x in solution.inconsistency().values()) == 4
    np.testing.assert_allclose(solution.fx, fx, rtol=0, atol=1e-8)
    np.testing.assert_allclose(solution.tau, sd.rnea(model, q, qd, qdd, fx), rtol=0, atol=1e-8)
    y["l cells"] = y["l cells"] + np.where(np.arange(200) == 3, 1.0, 0.0)[:, None]
    with pytest.raises(sd.Inconsistent, match="at state 3: .*'l cells'"):
        found(q, qd, y=y)


# ---- one choice of equations is singular where all of them are not ---------------------------------------------------


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("n", [3, 4])
def test_states_that_are_regular_by_all_equations_are_solved(n):
    """Of two components of an accelerometer one sees q̈ at a right angle, and the other one step further."""
    model = sd.auto_tree(n, 1, 0.0, 0.9)
    sensors = [sd.Accelerometer(f"body{k}", components=["a_x", "a_y"], name=f"imu{k}") for k in range(1, n)]
    problem = sd.Problem(model, [sd.ExternalWrench("all"), sd.JointAcceleration(f"joint{n - 1}", name="enc"), *sensors])
    found = sd.compile(problem, outputs=["qdd", "a", sd.JointAcceleration("joint0", name="first")], level="fast")
    assert len(found.left_out) > 1
    q, qd, qdd = model.random_state(seed=1, batch=60)
    q[:40] = np.round(q[:40] / (np.pi / 2)) * np.pi / 2
    y = sd.predict(problem, q, qd, qdd)
    alone = sd.compile(found.problem, outputs=["qdd"], level="fast", on_singular="nan")
    gone = {m.name: components for m, components in found.left_out}
    kept = {m.name: np.delete(y[m.name], gone.get(m.name, ()), axis=-1) for m in found.problem.custom if m.name in y}
    assert not alone(q, qd, y={**kept, "enc": y["enc"]}).ok.all(), "the choice is never singular: nothing is tested"
    for policy in ("raise", "nan"):
        solution = found(q, qd, y=y, on_singular=policy)
        assert solution.ok.all()
        np.testing.assert_allclose(solution.qdd, qdd, rtol=0, atol=1e-11 * np.abs(qdd).max())
        np.testing.assert_allclose(solution["first"][:, 0], qdd[:, 0], rtol=0, atol=1e-11 * np.abs(qdd).max())
        assert max(np.abs(x).max() for x in solution.inconsistency().values()) < 1e-9
    one = found(q[0], qd[0], y={name: x[0] for name, x in y.items()})
    np.testing.assert_allclose(one.qdd, qdd[0], rtol=0, atol=1e-11 * np.abs(qdd).max())
    wrong = {**y, f"imu{n - 1}": y[f"imu{n - 1}"] + [0.3, 0.2]}
    with pytest.raises(sd.Inconsistent, match="imu"):
        found(q, qd, y=wrong)
    assert not found(q, qd, y=wrong, on_singular="nan").ok.any()


def accelerometers() -> sd.Problem:
    """Two components of each of three accelerometers on a planar arm of four joints, and the last joint's encoder."""
    sensors = [sd.Accelerometer(f"body{k}", components=["a_x", "a_y"], name=f"imu{k}") for k in range(1, 4)]
    known = [sd.ExternalWrench("all"), sd.JointAcceleration("joint3", name="enc"), *sensors]
    return sd.Problem(sd.auto_tree(4, 1, 0.0, 0.9), known)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("slow", [1.0, 1e-5])
def test_states_near_those_at_which_the_choice_is_singular_are_solved_by_all_equations(slow):
    """By the choice alone they would be off by 1e-7 and `ok`; values that disagree by as much are left as they are.

    Slow motions without gravity have readings of 1e-5, and errors are relative to these.
    """
    problem = accelerometers()
    model = problem.model.replace(gravity=problem.model.gravity * (slow == 1.0))
    problem = sd.Problem(model, problem.measurements)
    found = sd.compile(problem, outputs=["qdd"], level="fast", backend="python")
    q, qd, qdd = model.random_state(seed=1, batch=40)
    q, qd, qdd = np.round(q / (np.pi / 2)) * np.pi / 2 + 1e-6 * q, math.sqrt(slow) * qd, slow * qdd
    y = sd.predict(problem, q, qd, qdd)
    alone = sd.compile(found.problem, outputs=["qdd"], level="fast", backend="python")
    gone = {m.name: components for m, components in found.left_out}
    kept = {m.name: np.delete(y[m.name], gone.get(m.name, ()), axis=-1) for m in found.problem.custom if m.name in y}
    by_choice = alone(q, qd, y={**kept, "enc": y["enc"]}, on_singular="nan").qdd
    size = np.abs(qdd).max()
    assert np.nanmax(np.abs(by_choice - qdd)) > 1e-9 * size, "the choice is well-conditioned: nothing is tested"
    solution = found(q, qd, y=y)
    np.testing.assert_allclose(solution.qdd, qdd, rtol=0, atol=1e-10 * size)
    off = max(np.abs(x).max() for x in solution.inconsistency().values())
    assert off < 1e-11 * max(np.abs(x).max() for x in y.values())

    q, qd, qdd = model.random_state(seed=2, batch=40)
    qd, qdd = math.sqrt(slow) * qd, slow * qdd
    y = sd.predict(problem, q, qd, qdd)
    y = {name: x + 1e-8 * slow * np.sin(np.arange(x.size)).reshape(x.shape) for name, x in y.items()}
    kept = {m.name: np.delete(y[m.name], gone.get(m.name, ()), axis=-1) for m in found.problem.custom if m.name in y}
    by_choice = alone(q, qd, y={**kept, "enc": y["enc"]}).qdd
    np.testing.assert_allclose(found(q, qd, y=y).qdd, by_choice, rtol=0, atol=1e-13 * np.abs(qdd).max())


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("near", [1e-2, 1e-4, 1e-6, 1e-8])
def test_the_forward_error_is_that_of_all_equations_where_they_solve_a_state(near):
    """By the chosen equations alone it would say up to 300."""
    problem = accelerometers()
    found = sd.compile(problem, outputs=["qdd"], level="fast", backend="python")
    q, qd, qdd = problem.model.random_state(seed=1, batch=40)
    q = np.round(q / (np.pi / 2)) * np.pi / 2 + near * q
    solution = pickle.loads(pickle.dumps(found(q, qd, y=sd.predict(problem, q, qd, qdd))))
    errors, size = solution.forward_error()["qdd"], np.abs(qdd).max(axis=1)
    true = np.abs(solution.qdd - qdd).max(axis=1) / size
    assert (true <= 10.0 * errors).all() and (errors <= 1e3 * np.maximum(true, 1e-16)).all()


@pytest.mark.parametrize("policy", ["nan", "raise"])
def test_states_that_all_equations_solve_stay_so_beside_one_that_nothing_solves(policy):
    """Of which velocities overflow."""
    problem = accelerometers()
    found = sd.compile(problem, outputs=["qdd"], level="fast", backend="python")
    q, qd, qdd = problem.model.random_state(seed=1, batch=40)
    q = np.round(q / (np.pi / 2)) * np.pi / 2 + 1e-6 * q
    y = sd.predict(problem, q, qd, qdd)
    alone = found(q, qd, y=y).qdd
    qd[0] *= 1e200
    if policy == "raise":
        with pytest.raises(sd.SingularState) as caught:
            found(q, qd, y=y)
        assert caught.value.states == (0,) and "state 0" in str(caught.value) and "more" not in str(caught.value)
        return
    solution = found(q, qd, y=y, on_singular=policy)
    assert not solution.ok[0] and solution.ok[1:].all()
    np.testing.assert_array_equal(solution.qdd[1:], alone[1:])


def test_readings_of_their_own_size_where_wrenches_are_open():
    """Of a straight leg, whose foot and trunk are held, the knee hardly accelerates: by others alone 1e-7 of that."""
    model = sd.load(str(Path(__file__).parents[2] / "problems" / "leg.urdf"), base="floating")
    held = [sd.Contact("sole", name="foot"), sd.Contact("trunk", "normal", name="seat")]
    problem = sd.forward_dynamics(model) + held + sd.JointAcceleration("knee", name="enc")
    found = sd.compile(problem, outputs="all", level="fast", backend="python")
    assert [m.name for m, _ in found.left_out] == ["enc"]
    q, qd, qdd = model.random_state(seed=1, batch=20)
    q, knee = np.broadcast_to(model.neutral(), q.shape), model.v_slice(model.joint_names.index("knee"))
    qdd[:, knee] *= 1e-6
    y = {m.name: sd.predict(problem, q, qd, qdd)[m.name] for m in held} | {"enc": qdd[:, knee]}
    solution = found(q, qd, tau=sd.rnea(model, q, qd, qdd), y=y)
    assert solution.ok.all() and "w(seat).fz" in solution.undetermined
    np.testing.assert_allclose(solution.qdd[:, knee], qdd[:, knee], rtol=1e-12)
    np.testing.assert_allclose(solution.qdd, qdd, rtol=0, atol=1e-12 * np.abs(qdd).max())
    assert solution.backward_error().max() < 1e-12
    np.testing.assert_allclose(solution.wrench("seat"), 0.0, rtol=0, atol=1e-9)


def test_what_all_equations_determine_is_not_named_as_open():
    """Near right angles, where the chosen equations leave accelerations open, and with them a contact's force."""
    problem, turned = accelerometers(), np.eye(4)
    turned[:3, :3] = [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]  # its normal lies in the arm's plane
    problem += [sd.JointTorque("joint0", name="torque"), sd.Contact(("body3", turned), "normal", name="tip")]
    found = sd.compile(problem, outputs=["qdd"], level="fast", backend="python")
    q, qd, qdd = problem.model.random_state(seed=1, batch=40)
    q = np.round(q / (np.pi / 2)) * np.pi / 2 + 1e-6 * q
    y = sd.predict(problem, q, qd, qdd)
    solution = found(q, qd, y=y | {"torque": sd.rnea(problem.model, q, qd, qdd)[:, :1]})
    assert solution.ok.all() and solution.undetermined == ()


def test_the_wrench_of_a_constraint_that_is_left_out_is_zero():
    model = sd.load(str(Path(__file__).parents[2] / "problems" / "leg.urdf"), base="floating")
    problem = sd.forward_dynamics(model) + sd.Contact("sole", name="one") + sd.Contact("sole", name="two")
    solution = sd.compile(problem, level="fast")(*model.random_state(seed=1, batch=3))
    for reference in ("local", "world"):
        np.testing.assert_array_equal(solution.wrench("two", reference), np.zeros((3, 6)))
        assert np.abs(solution.wrench("one", reference)).max() > 0.0
    np.testing.assert_array_equal(solution["w", "two"], np.zeros((3, 6)))
    with pytest.raises(sd.UnknownName, match="'three'.*one.*two"):
        solution.wrench("three")


# ---- all that a Solver can do ----------------------------------------------------------------------------------------


def frameworks(found: sd.Solver, y: dict, make) -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    known = {k: x for k, x in arguments(found.problem, make).items() if k != "y" or x}
    np.testing.assert_allclose(found.to_jax()(**known)["qdd"], found(Q, QD, y=y).qdd, rtol=1e-7, atol=1e-7)


def arguments(problem: sd.Problem, make) -> dict:
    """The motion as arguments of a solver of the problem."""
    fx, custom = values_of_contacts(make()), {m.name for m in problem.custom}
    known = {"tau": sd.rnea(MODEL, Q, QD, QDD, fx), "qdd": QDD, "fx": fx}
    y = {m: x for m, x in sd.predict(problem, Q, QD, QDD, fx).items() if m in custom}
    return {"q": Q, "qd": QD, "y": y, **{x: known[x] for x in problem.known_quantities}}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_derivatives_files_and_exports(make, tmp_path):
    """Derivatives and loaded solvers take the values of all measurements, exports those of the reduced problem."""
    found, y, name = solver(make), values(make()), CASES[make][0]
    rest = sd.compile(found.problem, outputs=["qdd", "tau"], level="fast", formulation="paper")
    tangents, cotangents = {"tangents": np.cos(QD)}, {"cotangents": np.sin(QD)}
    for kind, vectors in (("jvp", tangents), ("vjp", cotangents), ("hvp", tangents | cotangents), ("derivatives", {})):
        own, other = (getattr(x, kind)(of="qdd", **({"wrt": "qd"} if vectors else {})) for x in (found, rest))
        expected = other(**arguments(rest.problem, make), **vectors)
        for one in (own, pickle.loads(pickle.dumps(own))):
            for key, x in one(Q, QD, y=y, **vectors).items():
                np.testing.assert_allclose(x, expected[key], rtol=0, atol=1e-9 * (1.0 + np.abs(expected[key]).max()))
        with pytest.raises(sd.ProblemError, match=rf"{name!r} need: bind sd\.compile\(solver\.problem\)"):
            own.bind(Q, QD)
        if name not in {m.name for m in found.problem.measurements}:
            with pytest.raises(sd.ProblemError, match=f"{name!r} is left out: it only checks"):
                getattr(found, kind)(wrt=name)
    loaded = sd.load_solver(found.save(tmp_path / "checked.solver"))
    assert [(m.name, k) for m, k in loaded.left_out] == [(m.name, k) for m, k in found.left_out]
    np.testing.assert_array_equal(loaded(Q, QD, y=y).qdd, found(Q, QD, y=y).qdd)
    with pytest.raises(sd.Inconsistent, match=f"{name!r}"):
        loaded(Q, QD, y={**y, name: y[name] + 0.01})
    header = next(found.export_c(tmp_path / "c").glob("*.h")).read_text()
    assert f"known_{name}" not in header and f"y_{name}" not in header
    assert set(found.framework_function("nan").groups) == set(rest.framework_function("nan").groups)
    frameworks(found, y, make)


@pytest.mark.parametrize("make", [twice_a_torque, noisy_beside_twice_a_torque])
def test_calls_of_any_shape(make):
    """Empty batches and batches of batches as of a Solver, and policies that there are none of."""
    found, y = solver(make), values(make())
    whole = found(Q, QD, y=y).qdd
    for states, lead in ((slice(0, 0), (0,)), (slice(0, 4), (2, 2)), (slice(0, 3), (3, 1))):
        part = {name: x[states].reshape(*lead, -1) if lead != (0,) else x[states] for name, x in y.items()}
        q, qd = (x[states].reshape(*lead, x.shape[-1]) for x in (Q, QD))
        solution = found(q, qd, y=part)
        np.testing.assert_array_equal(solution.qdd.reshape(-1, 4), whole[states])
        assert solution.ok.shape == lead and solution.inconsistency()["motor"].shape == (*lead, 1)
    with pytest.raises(sd.UnknownName, match="on_singular 'never'"):
        found(Q, QD, y=y, on_singular="never")


@pytest.mark.parametrize(
    "gone", [{"nobody": [0]}, {"motor": [1]}, {"motor": [-1]}, {"motor": ["x"]}, {"motor": 0}, ["motor"], {}], ids=str
)
def test_a_file_that_leaves_out_what_is_not_there_is_refused(gone, tmp_path):
    """And one that says nothing of it: its program is not one of the whole problem."""
    found = solver(twice_a_torque)
    head = SimpleNamespace(omitted=[], keeps_wrenches=False)
    payload = storage.pack(found.compiled, found.options, found.whole, head)
    text = json.loads(bytes(storage.unpacked(payload)["solver"]).decode()) | {"left_out": gone}
    arrays = storage.unpacked(payload) | {"solver": np.frombuffer(json.dumps(text).encode(), dtype=np.uint8)}
    arrays.pop("digest")
    digest = np.frombuffer(storage.digest_of(arrays), dtype=np.uint8)
    (tmp_path / "x.solver").write_bytes(storage.packed(arrays | {"digest": digest}))
    with pytest.raises(sd.FileError, match="x.solver is not a sysdyn solver file"):
        sd.load_solver(tmp_path / "x.solver")


def test_a_motion_that_the_joints_do_not_have_is_named_without_others():
    """Held in three directions by two joints that are left: the third is off, whatever else is measured."""
    model = sd.auto_tree(4, 2, 1.5, 0.9)
    foot = sd.Contact("body3", "point", reference="world", name="foot")
    loop = sd.LoopJoint("body0", "body2", ["alpha_z"], name="loop")
    solver = sd.compile(sd.forward_dynamics(model) + [foot, loop], outputs=["qdd"], level="fast", backend="python")
    q, qd, _ = model.random_state(seed=2)
    with pytest.raises(sd.Inconsistent, match=r"'foot' is off by \S+ m/s² at a_z, as the joints alone move it\."):
        solver(q, qd, np.zeros(4))
