"""Contacts that switch by state in exact problems: each mode against its own problem, batches, and bad input."""

from __future__ import annotations

import itertools
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import pinocchio as pin
import pytest
from pinocchio_models import Twin
from recursions.test_constraints import forward, legged
from typer.testing import CliRunner

import sysdyn as sd
from sysdyn.app.cli import app
from sysdyn.app.problem_files import load_job
from sysdyn.data.sensor_log import Log
from sysdyn.errors import (
    Inconsistent,
    InvalidInput,
    LogWarning,
    ProblemError,
    SingularState,
    StructurallySingular,
    UnknownName,
)
from sysdyn.model.se3 import rotation, translation
from sysdyn.online.switching import MAX_MODES

MODEL = legged()
TIP = np.eye(4)
TIP[0, 3] = 1.0
GEAR = sd.JointCoupling(MODEL.joint_names[-1], MODEL.joint_names[-2], (0.1, 0.5), name="gear")
LOOP = sd.LoopJoint("r", "tail", "spherical", name="loop")
# Problems by name: the constraints that switch, and those that hold always.
SWITCHED = {
    "one of three": ((sd.Contact("r", "fixed", name="right"),), (sd.Contact("l", "point", name="left"), GEAR)),
    "feet": ((sd.Contact("l", "fixed", name="left"), sd.Contact("r", "point", name="right")), ()),
    "loop and coupling": ((LOOP, GEAR), ()),
}
OPTIONS: dict = {"effort": 0.0, "level": "fast", "progress": False}


def stated(name: str) -> sd.Problem:
    switched, always = SWITCHED[name]
    return forward(MODEL, *map(sd.Switchable, switched), *always)


@cache
def solver(name: str, outputs: tuple[str, ...] = ("qdd", "w"), **options) -> sd.SwitchingSolver:
    made = sd.compile(stated(name), outputs=list(outputs), **OPTIONS, **options)
    assert isinstance(made, sd.SwitchingSolver)
    return made


def states(n: int, seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    q, qd, _ = MODEL.random_state(seed=seed, batch=n)
    return {"q": q, "qd": qd, "tau": rng.standard_normal((n, MODEL.nv)), "fx": rng.standard_normal((n, MODEL.nb, 6))}


def modes(name: str) -> list[dict[str, bool]]:
    names = [m.name for m in SWITCHED[name][0]]
    return [dict(zip(names, on, strict=True)) for on in itertools.product((False, True), repeat=len(names))]


def of_mode(name: str, on: dict[str, bool]) -> sd.Problem:
    """The problem of a mode, stated without switches."""
    switched, always = SWITCHED[name]
    return forward(MODEL, *(m for m in switched if on[m.name]), *always)


def assert_of_own(solution, own, problem: sd.Problem, whole: sd.Problem, which) -> None:
    """Outputs are those of the mode's own solution, bit for bit, and wrenches of what is off are zero."""
    np.testing.assert_array_equal(solution.qdd[which], own.qdd)
    there = {m.name for m in problem.constraints}
    for m in whole.constraints:
        found = solution["w", m.name][which]
        np.testing.assert_array_equal(found, own["w", m.name] if m.name in there else np.zeros_like(found))


def arm() -> sd.Problem:
    """Two links in a plane, whose tip may be pinned: singular if the arm is stretched."""
    pins = [sd.Switchable(sd.Contact(("body1", TIP), ["a_x", "a_y"], name="tip"))]
    return sd.forward_dynamics(sd.auto_tree(2)) + pins


def of_arm(n: int) -> dict:
    rng = np.random.default_rng(0)
    return {"q": rng.uniform(0.3, 1.3, (n, 2)), **{x: rng.standard_normal((n, 2)) for x in ("qd", "tau")}}


@pytest.mark.slow
@pytest.mark.parametrize("name", SWITCHED)
def test_each_mode_is_its_own_problem(name):
    """Mixed batches, sorted and scattered, give the bits of solvers of the modes' own problems; y is handed in, too."""
    every, rng, n = modes(name), np.random.default_rng(1), 23
    pick = rng.integers(0, len(every), n)
    given = states(n)
    y = {m.name: rng.standard_normal((n, len(m.components(MODEL)))) for m in stated(name).constraints}
    active = {x: np.array([every[k][x] for k in pick]) for x in every[0]}
    made = solver(name)
    found = made(**given, y=y, active=active)
    assert found.ok.all() and found.ok.shape == (n,)
    assert sorted(made.modes) == sorted(tuple(x for x in on if on[x]) for on in every)
    for k, on in enumerate(every):
        which, problem = np.flatnonzero(pick == k), of_mode(name, on)
        here = {x: value[which] for x, value in given.items()}
        own_y = {m.name: y[m.name][which] for m in problem.constraints}
        own = sd.compile(problem, outputs=["qdd", "w"] if own_y else ["qdd"], **OPTIONS)
        assert made.mode(on).outputs == own.outputs
        assert_of_own(found, own(**here, y=own_y or None), problem, made.problem, which)
        np.testing.assert_array_equal(found.parts[tuple(x for x in on if on[x])].states, which)
        one = made(**{x: v[which[0]] for x, v in given.items()}, y={x: v[which[0]] for x, v in y.items()}, active=on)
        assert one.ok and one.qdd.shape == (MODEL.nv,)
        np.testing.assert_allclose(one.qdd, found.qdd[which[0]], rtol=1e-12, atol=1e-9)


@pytest.mark.slow
def test_feet_against_pinocchio():
    """At rest: of a foot that moves Pinocchio holds the spatial acceleration."""
    twin, n = Twin(MODEL), 4
    given = states(n, seed=3)
    active = {"left": np.array([True, False, True, False]), "right": np.array([True, True, False, False])}
    found = solver("feet")(given["q"], np.zeros((n, MODEL.nv)), tau=given["tau"], active=active)
    kinds = {"left": ("l", pin.ContactType.CONTACT_6D), "right": ("r", pin.ContactType.CONTACT_3D)}
    for k in range(n):
        contacts, datas = pin.StdVec_RigidConstraintModel(), pin.StdVec_RigidConstraintData()
        for name, (frame, kind) in kinds.items():
            if active[name][k]:
                f = MODEL.frame(frame)
                place = pin.SE3(rotation(f.X).T, translation(f.X))
                contacts.append(pin.RigidConstraintModel(
                    kind, twin.pin, twin.joint[f.body], place, pin.ReferenceFrame.LOCAL))  # fmt: skip
                datas.append(contacts[len(contacts) - 1].createData())
        data = twin.pin.createData()
        pin.initConstraintDynamics(twin.pin, data, contacts, datas)
        expected = twin.T.T @ pin.constraintDynamics(
            twin.pin, data, twin.position(given["q"][k]), np.zeros(twin.pin.nv), twin.T @ given["tau"][k],
            contacts, datas, pin.ProximalSettings(1e-15, 0.0, 1),
        )  # fmt: skip
        np.testing.assert_allclose(found.qdd[k], expected, rtol=0, atol=1e-9 * np.abs(expected).max())


@pytest.mark.slow
def test_switches_of_every_shape():
    made, n = solver("feet"), 6  # as many states as components of the left foot: switches are those of states
    given, on = states(n), np.array([True, False, True, True, False, False])
    found = made(**given, active={"left": on, "right": False})
    for same in (on.astype(int), on.astype(float).tolist(), np.repeat(on[:, None], 6, axis=1)):
        again = made(**given, active={"left": same, "right": 0})
        np.testing.assert_array_equal(again.w, found.w)
    folded = {x: v.reshape(2, 3, *v.shape[1:]) for x, v in given.items()}
    several = made(**folded, active={"left": on.reshape(2, 3), "right": np.False_})
    np.testing.assert_array_equal(several.w, found.w.reshape(2, 3, -1))
    assert several.ok.shape == (2, 3) and several.wrench("left", reference="world").shape == (2, 3, 6)
    np.testing.assert_array_equal(made(**given).qdd, made(**given, active={"left": True, "right": [1] * n}).qdd)
    # the same state in two modes; lists, which are converted; no state
    one = {x: v[0] for x, v in given.items()}
    twice = made(np.tile(one["q"], (2, 1)), one["qd"], tau=one["tau"], fx=one["fx"], active={"left": [1, 0]})
    np.testing.assert_array_equal(twice.qdd[0], made(**{x: v.tolist() for x, v in one.items()}).qdd)
    assert made(**{x: v[:0] for x, v in given.items()}, active={"left": on[:0]}).w.shape == (0, 9)


def test_values_of_what_is_off_do_not_count():
    made, n = solver("feet"), 5
    given, on = states(n), np.array([True, False, True, True, False])
    y = np.ones((n, 6))
    found = made(**given, y={"left": y}, active={"left": on})
    y[~on] = np.nan
    np.testing.assert_array_equal(made(**given, y={"left": y}, active={"left": on}).w, found.w)
    y[3] = np.nan
    with pytest.raises(InvalidInput, match=r"left.* is nan at state 3, entry 0"):
        made(**given, y={"left": y}, active={"left": on})
    given["q"][4, 3] = np.nan
    with pytest.raises(InvalidInput, match="q is nan at state 4, entry 3"):
        made(**given, active={"left": on})


def test_residuals_conditions_pickles_and_threads():
    made, on = sd.compile(arm(), **OPTIONS), np.array([True, False, True, True])
    given = of_arm(4)
    found = made(**given, active={"tip": on})
    assert found.backward_error().shape == (4,) and (found.backward_error() < 1e-12).all()
    own = made.mode({"tip": False})(**{x: v[1] for x, v in given.items()})
    assert found.reciprocal_condition()[1] == pytest.approx(own.reciprocal_condition(), rel=1e-6)
    assert (found.forward_error()["qdd"] < 1e-8).all() and found.forward_error()["w"][1] == 0.0
    for asked in (found.residual, found.inconsistency):
        with pytest.raises(ProblemError, match="equations differ by mode: solution.parts"):
            asked()
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.w, found.w)
    np.testing.assert_array_equal(again.inputs["q"], given["q"])
    assert list(again.to_pandas().columns) == list(found.to_pandas().columns)
    kept = pickle.loads(pickle.dumps(made))
    assert list(kept.modes) == list(made.modes)
    np.testing.assert_array_equal(kept(**given, active={"tip": on}).w, found.w)
    fresh = sd.compile(arm(), outputs=["qdd", "w"], **OPTIONS)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: fresh(**given, active={"tip": on}).qdd, range(8)))
    assert len(fresh.modes) == 2 and all(np.array_equal(x, results[0]) for x in results)


def test_one_state_keeps_its_inputs():
    given = {x: v[0].copy() for x, v in states(1).items()}
    found = solver("feet")(**given, active={"right": False})
    before = given["q"].copy()
    given["q"][:] = 0.0
    np.testing.assert_array_equal(found.inputs["q"], before)
    np.testing.assert_array_equal(found.inputs["y:right"], np.zeros(3))


def test_members_of_a_solver_are_those_of_the_mode_with_all_on(tmp_path):
    made, given = solver("feet"), states(1)
    every = made.mode()
    for name in ("flops", "program", "stability", "choice", "ordering", "passes", "fill_in", "considered"):
        assert getattr(made, name) == getattr(every, name), name
    one = {x: v[0] for x, v in given.items()}
    assert np.array_equal(made.derivatives("qdd", "tau")(**one)["qdd", "tau"],
                          every.derivatives("qdd", "tau")(**one)["qdd", "tau"])  # fmt: skip
    assert made.jvp("qdd", "tau").flops == every.jvp("qdd", "tau").flops
    assert np.array_equal(sd.load_solver(made.save(tmp_path / "all.npz"))(**one).w, every(**one).w)
    for active in ({}, {"right": False}):
        step, own = made.bind(**one, active=active), made.mode(active)
        step()
        np.testing.assert_array_equal(step.out["qdd"], own(**one).qdd)
        assert own.flops.end_to_end.total <= made.flops.end_to_end.total
    assert "'left' on and 'right' off" in repr(made)
    assert "orders considered" in made.report() and "right" in made._repr_html_()


def test_wrenches_alone_of_a_robot_that_is_free():
    """Nothing of what is asked for exists where all is off; such a state is solved, and its wrenches are zero."""
    made = sd.compile(stated("feet"), outputs="w", backend="python", **OPTIONS)
    given = states(2)
    found = made(**given, active={"left": [True, False], "right": False})
    assert found.keys() == {"w"} and found.w[0].any() and not found.w[1].any()


def test_gravity_as_an_input():
    made = sd.compile(arm(), outputs=["qdd"], inputs=["gravity"], **OPTIONS)
    given, on = of_arm(3), np.array([True, False, True])
    g = np.array([[0.0, -1.62, 0.0], [0.0, -9.81, 0.0], [1.0, 0.0, 0.0]])
    found = made(**given, parameters={"gravity": g}, active={"tip": on})
    for k in range(3):
        own = made.mode({"tip": on[k]})(**{x: v[k] for x, v in given.items()}, parameters={"gravity": g[k]})
        np.testing.assert_allclose(found.qdd[k], own.qdd, rtol=1e-12, atol=1e-9)


@cache
def three() -> sd.SwitchingSolver:
    """Three contacts that may each be off, so that wrenches of a mode are not always next to each other."""
    tips = [sd.Switchable(sd.Contact("body3", [x], name=x)) for x in ("a_x", "a_y", "a_z")]
    return sd.compile(sd.forward_dynamics(sd.chain(4, seed=0)) + tips, outputs=["qdd", "w"], **OPTIONS)


def of_three(n: int) -> dict:
    rng = np.random.default_rng(2)
    q, qd, _ = three().model.random_state(seed=2, batch=n)
    return {"q": q, "qd": qd, "tau": rng.standard_normal((n, 4)), "fx": rng.standard_normal((n, 4, 6))}


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3, None])
def test_batches_over_all_modes(threads):
    """All of the modes, in no order; arrays that are converted, repeated, or read backwards, on some threads."""
    made, n = three(), 3 * 8 * 64 + 5
    given, number = of_three(n), np.random.default_rng(0).permutation(np.arange(n) % 8)
    active = {x: number >> k & 1 for k, x in enumerate(("a_x", "a_y", "a_z"))}
    found = made(**given, active=active, threads=threads)
    for k in range(8):
        on = {x: bool(k >> j & 1) for j, x in enumerate(active)}
        own, which = made.mode(on), np.flatnonzero(number == k)
        expected = own(**{x: v[which] for x, v in given.items()})
        np.testing.assert_array_equal(found.qdd[which], expected.qdd)
        for x in active:
            mine = expected["w", x] if on[x] else np.zeros((len(which), 1))
            np.testing.assert_array_equal(found["w", x][which], mine)
    others = [
        {x: np.asfortranarray(v) for x, v in given.items()},
        {x: v.repeat(2, axis=0)[::2] for x, v in given.items()},
        {**given, "fx": given["fx"].reshape(n, 24)},
        {x: v.tolist() for x, v in given.items()},
    ]
    for other in others:
        np.testing.assert_array_equal(made(**other, active=active, threads=threads).w, found.w)
    np.testing.assert_array_equal(
        made(**given | {"tau": given["tau"][0]}, active=active, threads=threads).w[0], found.w[0]
    )


def test_quaternions_that_are_nearly_normalised():
    made, n = solver("feet"), 5
    given, on = states(n), np.array([True, False, True, True, False])
    expected = made(**given, active={"left": on})
    part = MODEL.quaternions[0][1]
    given["q"][3, part] *= 1.0 + 1e-9
    found = made(**given, active={"left": on})
    np.testing.assert_allclose(found.w, expected.w, rtol=0, atol=1e-9 * np.abs(expected.w).max())
    given["q"][3, part] *= 2.0
    with pytest.raises(InvalidInput, match="quaternion"):
        made(**given, active={"left": on})


# ---- states and modes that cannot be solved --------------------------------------------------------------------------


def test_singular_states_are_named_with_their_mode():
    made = sd.compile(arm(), outputs=["qdd", "w"], **OPTIONS)
    q = np.array([[0.5, 0.0], [0.5, 1.0], [0.3, 0.0], [0.2, 0.7]])
    on = np.array([False, True, True, True])
    given = {"q": q, "qd": np.ones((4, 2)), "tau": np.zeros((4, 2))}
    with pytest.raises(SingularState, match="with 'tip' on, state 2: the system cannot be solved") as caught:
        made(**given, active={"tip": on})
    assert caught.value.states == (2,)
    found = made(**given, active={"tip": on}, on_singular="nan")
    np.testing.assert_array_equal(found.ok, [True, True, False, True])
    assert np.isnan(found.qdd[2]).all() and np.isfinite(found.qdd[[0, 1, 3]]).all()
    with pytest.raises(SingularState, match="^with 'tip' on: the system"):
        made(**{x: v[2] for x, v in given.items()})


def test_a_straight_arm_at_rest_is_held_by_the_smallest_wrench():
    made = sd.compile(arm(), outputs=["qdd", "w"], **OPTIONS)
    q, zero = np.array([[0.5, 0.0], [0.5, 1.0], [0.3, 0.0]]), np.zeros((3, 2))
    found = made(q, zero, tau=zero, active={"tip": [True, True, False]})
    alone = made.mode()(q[0], zero[0], tau=zero[0])
    assert found.ok.all() and "w(tip).fx" in found.undetermined == alone.undetermined
    np.testing.assert_array_equal(found.qdd[0], alone.qdd)


def test_a_mode_that_no_state_makes_solvable_is_named():
    """A last link without inertia moves as its contact says, or by nothing."""
    chain = sd.chain(3, seed=0)
    model = chain.replace(inertias=[*chain.inertias[:2], np.zeros((6, 6))])
    grip = sd.Switchable(sd.Contact("body2", ["alpha_z"], name="grip"))
    made = sd.compile(sd.forward_dynamics(model) + grip, outputs=["qdd"], progress=False)
    zero = np.zeros((2, 3))
    q = model.random_state(seed=0, batch=2)[0]
    assert made(q, zero, tau=zero).ok.all()
    with pytest.raises((StructurallySingular, ProblemError), match="^with 'grip' off: ") as caught:
        made(q, zero, tau=zero, active={"grip": [True, False]}, on_singular="nan")
    assert "joint2" in str(caught.value)
    assert list(made.modes) == [("grip",)]


def test_contacts_that_hold_the_same_twice():
    """Where both are on, the second exerts nothing; values that contradict each other are named with their mode."""
    second = sd.Switchable(sd.Contact(("body1", TIP), ["a_x", "a_y"], name="second"))
    made = sd.compile(arm() + second, outputs=["qdd", "w"], **OPTIONS)
    given, on = of_arm(3), np.array([True, False, True])
    found = made(**given, active={"second": on})
    alone = made.mode({"second": False})(**given)
    np.testing.assert_allclose(found.qdd, alone.qdd, rtol=0, atol=1e-9)
    assert found["w", "tip"].all() and not found["w", "second"].any()
    y = {"second": np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])}
    with pytest.raises(Inconsistent, match="with 'tip', 'second' on, state 2: measurements contradict") as caught:
        made(**given, y=y, active={"second": on})
    assert caught.value.states == (2,)
    made.tolerance = 1.0
    assert made(**given, y=y, active={"second": on}).ok.all()


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_switches_that_cannot_be():
    made, given = solver("feet"), states(4)
    held = np.ones((4, 6))
    held[2, 5] = 0.0
    for active, error, message in (
        ({"lef": True}, UnknownName, "switchable constraint 'lef'. Did you mean 'left'"),
        ({"left": held}, InvalidInput, r"\(4, 6\), but 'left' is exact and switches as a whole.*shape \(4,\)"),
        ({"left": [True, False]}, InvalidInput, r"active\['left'\] has shape \(2,\)"),
        ({"left": "no"}, InvalidInput, r"active\['left'\] must be made of true and false"),
        ({"left": [0.5] * 4}, InvalidInput, "must be made of true and false"),
        ({"left": [np.nan] * 4}, InvalidInput, "must be made of true and false"),
        (["left"], InvalidInput, r"active is \{name: true or false\}"),
    ):
        with pytest.raises(error, match=message):
            made(**given, active=active)
    with pytest.raises(InvalidInput, match="of one mode is true or false"):
        made.mode({"left": [True, False]})
    with pytest.raises(UnknownName, match="'lef'"):
        stated("feet").mode({"lef": True})
    with pytest.raises(InvalidInput, match="one value is needed$"):
        made(**{x: v[0] for x, v in given.items()}, active={"left": [True, True]})


def test_more_modes_than_a_solver_holds():
    legs = [sd.Switchable(sd.Contact(x, ["a_z"], name=x)) for x in MODEL.body_names[2:9]]
    made, n = sd.compile(forward(MODEL, *legs), outputs=["qdd"], **OPTIONS), 2 * MAX_MODES
    on = {m.name: np.arange(n) >> k & 1 for k, m in enumerate(legs)}
    with pytest.raises(InvalidInput, match=f"{n} modes are asked for.*a solver holds {MAX_MODES} at most"):
        made(**states(n), active=on)
    assert not made.modes


def test_problems_whose_contacts_cannot_switch():
    grip = sd.Switchable(sd.Contact("body1", "point", name="grip"))
    problem = sd.forward_dynamics(sd.chain(2)) + grip
    noisy = problem + sd.Accelerometer("body0", noise=0.1)
    with pytest.raises(ProblemError, match=r"'grip' is exact.*Switchable\(FrameAcceleration\(…, noise=…\)\).*mode\("):
        sd.compile(noisy)
    with pytest.raises(ProblemError, match="permutations are those of one mode"):
        sd.compile(problem, ([0], [0]))
    with pytest.raises(ProblemError, match="'grip' is exact, and what is exact holds along a whole trajectory"):
        log = {"t": np.arange(9.0), "q": np.zeros((9, 2)), "tau": np.zeros((9, 2))}
        sd.smooth(problem + sd.JointPosition("all", noise=1e-3), log)
    with pytest.raises(ProblemError, match="Switchable needs noise, but 'tau' is exact"):
        sd.Switchable(sd.JointTorque("all", name="tau"))


# ---- problems, files and simulations ---------------------------------------------------------------------------------


def test_statements_with_switches():
    problem = stated("feet")
    assert [m.name for m in problem.constraints] == ["left", "right"] and not problem.switchable
    assert (
        sd.diagnose(problem, active={"right": False}).equations
        == sd.diagnose(of_mode("feet", modes("feet")[2])).equations
    )
    assert sd.diagnose(problem).equations == sd.diagnose(of_mode("feet", modes("feet")[3])).equations
    with pytest.raises(UnknownName, match="switchable constraint 'rigth'.*Did you mean 'right'"):
        sd.diagnose(problem, active={"rigth": False})
    stored = sd.Problem.from_dict(json.loads(json.dumps(problem.to_dict())))
    assert stored.digest == problem.digest != of_mode("feet", modes("feet")[3]).digest
    assert [m.name for m in stored.switchable_constraints] == ["left", "right"]
    assert problem.mode({"left": False}).digest == of_mode("feet", modes("feet")[1]).digest
    assert problem.mode() is problem.mode({}) and of_mode("feet", modes("feet")[0]).mode().noisy == ()
    renamed = forward(MODEL, sd.Switchable(sd.Contact("l", name="sole"), name="left"))
    assert [m.name for m in (*renamed.constraints, *renamed.mode().constraints)] == ["left", "left"]
    assert "exact, switchable" in problem._repr_html_()
    assert not (problem - sd.Contact("l", name="left")).mode({"right": False}).constraints


TOML = """
robot = "auto_tree:3"
outputs = ["qdd", "w"]
[[measurement]]
type = "JointTorque"
targets = "all"
[[measurement]]
type = "ExternalWrench"
targets = "all"
[[measurement]]
type = "Contact"
frame = "body2"
kind = ["a_x"]
name = "tip"
switchable = true
"""


def test_problem_files_and_logs(tmp_path):
    path, table = tmp_path / "arm.toml", tmp_path / "log.csv"
    path.write_text(TOML)
    task = load_job(path)
    model, n = task.problem.model, 7
    q, qd, tau = (np.random.default_rng(k).uniform(0.2, 1.0, (n, 3)) for k in range(3))
    on = np.arange(n) % 3 == 0
    columns = {"t": np.arange(n) * 0.1, "q": q, "qd": qd, "tau": tau}
    names = [f"{x}:{joint}" for x in ("q", "qd", "tau") for joint in model.joint_names]
    rows = np.column_stack([columns["t"], q, qd, tau, on])
    np.savetxt(table, rows, delimiter=",", header=",".join(["t", *names, "active: tip"]), comments="")
    made = sd.compile(task.problem, outputs=task.outputs, **OPTIONS)
    expected = made(q, qd, tau=tau, active={"tip": on})
    found = np.concatenate([x.values["w"] for x in Log(table, made).estimates(made)])
    np.testing.assert_allclose(found, expected.w, rtol=1e-9, atol=1e-9)
    assert not found[~on].any() and found[on].all()
    with pytest.warns(LogWarning, match="no columns of 'tip': off in all its states"):
        log = Log(columns, made)
    assert not np.concatenate([x.values["w"] for x in log.estimates(made)]).any()
    for option, out in (("--log", "out.csv"), ("--states", "out.npz")):
        result = CliRunner().invoke(app, ["solve", str(path), option, str(table), "--out", str(tmp_path / out)])
        assert result.exit_code == 0, result.output
    np.testing.assert_allclose(np.load(tmp_path / "out.npz")["w"], expected.w, rtol=1e-9, atol=1e-9)
    header, *lines = (tmp_path / "out.csv").read_text().splitlines()
    w = [float(line.split(",")[header.split(",").index("w:tip.fx")]) for line in lines]
    np.testing.assert_allclose(w, expected.w[:, 0], rtol=1e-9, atol=1e-9)
    result = CliRunner().invoke(app, ["solve", str(path), "--random", "3"])
    assert result.exit_code == 0 and "SwitchingSolver" in result.output, result.output
    result = CliRunner().invoke(app, ["export", str(path), "--out", str(tmp_path / "c")])
    assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_simulations_are_of_one_mode():
    problem = arm()
    q, qd = np.array([0.5, -1.0]), np.zeros(2)
    for on in (True, False):
        plain = sd.simulate(problem.mode({"tip": on}), q, qd, None, 0.02, 1e-3)
        for switched in (problem, sd.compile(problem, outputs=["qdd", "w"], **OPTIONS)):
            moved = sd.simulate(switched, q, qd, None, 0.02, 1e-3, stabilise=None, active={"tip": on})
            np.testing.assert_allclose(moved.q, plain.q, rtol=0, atol=1e-6)
    free = sd.simulate(problem, q, qd, None, 0.02, 1e-3, active={"tip": False})
    assert np.abs(free.q[-1] - q).max() > 1e-4
    with pytest.raises(UnknownName, match="switchable constraint 'tp'"):
        sd.simulate(problem, q, qd, None, 0.02, 1e-3, active={"tp": False})
