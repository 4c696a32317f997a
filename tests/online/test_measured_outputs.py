"""Values of measurements as outputs of a solver: what they are, what they cost, how they are called."""

from __future__ import annotations

import functools
import inspect
import pickle
from dataclasses import replace

import numpy as np
import pytest
from estimates import dense, dense_inverse
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import icub
from programs import executed
from systems import kinds

import sysdyn as sd
from sysdyn.measurements.measurement import Measurement
from sysdyn.model import Free, Model
from sysdyn.model.quantities import QUANTITIES
from sysdyn.model.se3 import X_motion, rotx, roty
from sysdyn.online.solution import Solution
from sysdyn.program.opcodes import WEAK_PIVOT
from sysdyn.reference import newton_euler

QUICK = {"level": "fast", "effort": 0.0}


@functools.cache
def robot(base: str = "fixed") -> Model:
    """A tree of five bodies with frames "tool" on one and "wall" on the base; the first joint is fixed or free."""
    model = sd.random_tree(5, seed=4, joints=("revolute", "prismatic"))
    limits = dict.fromkeys(("armature", "lower", "upper", "velocity_limit", "effort_limit"))
    first = Free() if base == "floating" else model.joints[0]
    model = model.replace(joints=(first, *model.joints[1:]), parent=(-1, 0, 1, 1, 3), **limits)
    tool = sd.Frame("tool", 4, X_motion(rotx(0.7) @ roty(-0.4), np.array([0.2, 0.1, -0.3])))
    return model.replace(frames={**model.frames, "tool": tool, "wall": sd.Frame("wall", -1)})


class Drift(Measurement):
    """A measurement of one's own: a wrench less what depends on velocities, and a torque."""

    name = "drift"
    units = ("N", "N m")

    def components(self, model):
        return ("x", "y")

    def rows(self, ctx):
        block = np.array([[ctx.q[0] * 0.5, 0, 0, 1.0, 0, 0], [0.0] * 6], dtype=object)
        name = ctx.model.joint_names[2]
        return {("f", ctx.model.body_names[3]): block, ("tau", name): np.array([[0.0], [2.0]])}

    def bias(self, ctx):
        return np.array([ctx.qd[1] * ctx.v("tool")[4], 3.0], dtype=object)


# An output of every class, by the class; the completeness test below tells of a new one.
OUTPUTS: dict[str, list[Measurement]] = {
    "ForceTorqueSensor": [
        sd.ForceTorqueSensor("joint2", name="ft"), sd.ForceTorqueSensor("joint4", "tool", side="parent", name="ft tool")
    ],
    "LoadCells": [sd.LoadCells("tool", name="cells"), sd.LoadCells("tool", "fz", reference="space", name="cell")],
    "PointContact": [sd.PointContact("tool", name="point")],
    "ForceDirection": [sd.ForceDirection("tool", [0.3, -1.0, 2.0], name="direction")],
    "NetWrench": [sd.NetWrench("body1", name="net"), sd.NetWrench("tool", gravity=False, name="net tool")],
    "FrameAcceleration": [
        sd.FrameAcceleration("tool", name="frame"),
        sd.FrameAcceleration("body2", classical=False, reference="space", name="frame in space"),
    ],
    "Accelerometer": [
        sd.Accelerometer("tool", name="imu"), sd.Accelerometer("body2", reference="world", name="imu in the world")
    ],
    "AngularAccelerometer": [sd.AngularAccelerometer("tool", "alpha_y", name="angular")],
    "CentreOfMassAcceleration": [sd.CentreOfMassAcceleration(name="com")],
    "MomentumRate": [sd.MomentumRate(name="h"), sd.MomentumRate(gravity=True, reference="local", name="h local")],
    "Linear": [
        sd.Linear({("tau", "joint2"): [[2.0]], ("f", "joint1"): [[0.1, 0, 0, 0.2, 0, 0]]}, bias=[3.0], name="linear"),
        sd.Linear({("qdd", "joint3"): lambda q, qd: [[np.sin(q[1])]]}, components=["s"], name="function"),
    ],
    "MotorTorque": [sd.MotorTorque(["joint1", "joint3"], [[0.5, 0.5], [1.0, -1.0]], name="motors")],
    "JointTorque": [sd.JointTorque(["joint1", "joint3"], name="torques")],
    "JointAcceleration": [sd.JointAcceleration("all", name="accelerations")],
    "ExternalWrench": [sd.ExternalWrench("body2", ["fz", "nx"], name="wrench")],
    "BodyAcceleration": [sd.BodyAcceleration("body3", name="body")],
    "JointWrench": [sd.JointWrench("body3", "fz", name="transmitted")],
    "Contact": [sd.Contact("tool", "point", name="contact")],
    "LoopJoint": [sd.LoopJoint("body2", "tool", name="loop")],
    "JointCoupling": [sd.JointCoupling("joint1", "joint3", (0.1, -2.0, 0.3), name="coupling")],
    "custom": [Drift()],
}  # fmt: skip


def test_every_class_is_an_output():
    unknown = sd.ContactWrench("tool", noise=1.0)
    classes = {name for name, cls in kinds().items() if not cls.of_state}
    assert {*OUTPUTS, "ContactWrench"} == {"custom"} | classes - {"Known", "ModelNoise"}
    with pytest.raises(sd.ProblemError, match="whose output 'w' has its value"):
        sd.compile(sd.forward_dynamics(robot("fixed")), outputs=["qdd", unknown])


@functools.cache
def known(base: str, batch: int = 6):
    """(model, q, q̇, {quantity: …}) of random motions."""
    model = robot(base)
    q, qd, qdd = model.random_state(seed=6, batch=batch)
    fx = np.random.default_rng(6).uniform(-3.0, 3.0, (batch, model.nb, 6))
    tau, a, f, _ = newton_euler(model, q, qd, qdd, fx)
    return model, q, qd, {"tau": tau, "qdd": qdd, "fx": fx, "a": a, "f": f}


def problem_of(kind: str, model: Model) -> sd.Problem:
    return {"id": sd.inverse_dynamics, "fd": sd.forward_dynamics}[kind](model)


@functools.cache
def solved(kind: str, base: str, formulation: str) -> tuple[sd.Solver, Solution, dict[str, np.ndarray]]:
    """(solver of every output at once, its solution, the values by `predict`)."""
    model, q, qd, values = known(base)
    outputs = [m for members in OUTPUTS.values() for m in members]
    solver = sd.compile(problem_of(kind, model), outputs=outputs, formulation=formulation, backend="python", **QUICK)
    given = {x: values[x] for x in solver.problem.known_quantities}
    expected = sd.predict(sd.Problem(model, [m for m in outputs if not m.name.startswith(tuple(QUANTITIES_STATED))]),
                          q, qd, values["qdd"], values["fx"])  # fmt: skip
    for members in (OUTPUTS[name] for name in QUANTITIES_STATED.values()):
        for m in members:
            expected |= sd.predict(sd.Problem(model, [m]), q, qd, values["qdd"], values["fx"])
    return solver, solver(q, qd, **given), expected


# Raw measurements are predicted one by one: a problem states a scalar once.
QUANTITIES_STATED = {
    "torques": "JointTorque", "accelerations": "JointAcceleration", "wrench": "ExternalWrench",
    "body": "BodyAcceleration", "transmitted": "JointWrench",
}  # fmt: skip


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-10) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


# ---- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize(
    ("kind", "base", "formulation"),
    [("fd", "fixed", "elimination"), ("id", "floating", "elimination"), ("fd", "floating", "recursive")],
)
def test_an_output_is_what_the_sensor_shows(kind, base, formulation, name):
    solver, solution, expected = solved(kind, base, formulation)
    for m in OUTPUTS[name]:
        close(solution[m.name], expected[m.name])
        for k, component in enumerate(m.components(solver.model)):
            np.testing.assert_array_equal(solution[m.name, component], solution[m.name][..., k])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "outputs"),
    [
        ("fixed", ["qdd", sd.Accelerometer("head", name="imu"), sd.MomentumRate(), "fx"]),
        ("floating", [sd.ForceTorqueSensor("l_ankle_roll", "l_sole", reference="world", name="foot")]),
    ],
)
def test_outputs_of_icub(base, outputs):
    model = icub(base)
    q, qd, qdd = model.random_state(seed=2, batch=3)
    fx = np.random.default_rng(2).uniform(-5.0, 5.0, (3, model.nb, 6))
    sensors = [m for m in outputs if isinstance(m, Measurement)]
    solver = sd.compile(sd.inverse_dynamics(model), ordering="rnea", outputs=outputs, backend="python", **QUICK)
    solution = solver(q, qd, qdd, fx=fx)
    for name, y in sd.predict(sd.Problem(model, sensors), q, qd, qdd, fx).items():
        close(solution[name], y)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["id", "fd"]), data=st.data())
def test_outputs_of_random_trees(seed, kind, data):
    model = sd.random_tree(data.draw(st.integers(1, 4)), seed=seed)
    body = data.draw(st.sampled_from(model.body_names))
    sensors = [
        sd.Accelerometer(body, name="imu"), sd.NetWrench(body, reference="world", name="net"),
        sd.ForceTorqueSensor(data.draw(st.sampled_from(model.joint_names)), name="ft"), sd.MomentumRate(name="h"),
        sd.FrameAcceleration(body, classical=False, name="frame"),
    ]  # fmt: skip
    chosen = data.draw(st.lists(st.sampled_from(sensors), min_size=1, unique=True))
    known = data.draw(st.sampled_from(["rows", "substituted"]))
    problem = problem_of(kind, model)
    solver = sd.compile(problem, outputs=chosen, known=known, backend="python", **QUICK)
    q, qd, qdd = model.random_state(seed=seed, batch=2)
    fx = np.random.default_rng(seed).uniform(-1.0, 1.0, (2, model.nb, 6))
    moved = newton_euler(model, q, qd, qdd, fx)
    solution = solver(q, qd, moved.tau if kind == "fd" else qdd, fx=fx)
    for name, y in sd.predict(sd.Problem(model, chosen), q, qd, qdd, fx).items():
        close(solution[name], y, 1e-7)


def test_outputs_of_a_problem_with_parameters():
    """Gravity and an inertia that are handed in are those of the outputs, too."""
    model, q, qd, values = known("fixed")
    outputs = [sd.MomentumRate(gravity=True, name="h"), sd.NetWrench("body2", name="net")]
    solver = sd.compile(
        sd.inverse_dynamics(model), outputs=outputs, inputs=["gravity", "inertia:body2"], backend="python", **QUICK
    )
    numbers = sd.inertial_parameters(model)[20:30] * 1.5
    solution = solver(q, qd, values["qdd"], parameters={"gravity": [1.0, 2.0, -3.0], "inertia:body2": numbers})
    inertias = model.inertias.copy()
    inertias[2] *= 1.5
    changed = model.replace(gravity=np.array([1.0, 2.0, -3.0]), inertias=inertias)
    for name, y in sd.predict(sd.Problem(changed, outputs), q, qd, values["qdd"]).items():
        close(solution[name], y)


# ---- what they cost ----------------------------------------------------------------------------------------------


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("formulation", ["elimination", "recursive", "auto"])
def test_counts_are_those_of_an_execution(formulation):
    model, q, qd, values = known("floating")
    outputs = ["qdd", sd.Accelerometer("tool", name="imu"), sd.LoadCells("tool", name="cells")]
    solver = sd.compile(sd.forward_dynamics(model), outputs=outputs, formulation=formulation, backend="python", **QUICK)
    groups = {"q": q[0], "qd": qd[0], "tau": values["tau"][0], "fx": values["fx"][0]}
    numbers = [x for name in solver.program.inputs for x in groups[name].ravel().tolist()]
    flops, results = executed(solver.program, numbers)
    assert flops == solver.flops.end_to_end
    assert list(solver.program.outputs.sizes.items()) == [("qdd", model.nv), ("imu", 3), ("cells", 6)]
    np.testing.assert_allclose(
        results[-9:-6], solver(q[0], qd[0], values["tau"][0], fx=values["fx"][0])["imu"], rtol=1e-9
    )


def test_only_what_an_output_needs_is_computed():
    model = robot()
    problem = sd.forward_dynamics(model)
    count = lambda outputs: sd.compile(problem, "aba", outputs, backend="python", **QUICK).flops  # noqa: E731
    qdd, imu, every = count("qdd"), count(["qdd", sd.Accelerometer("tool", name="imu")]), count("all")
    assert qdd.end_to_end.total < imu.end_to_end.total < every.end_to_end.total
    assert qdd.solve.total < imu.solve.total < every.solve.total
    again = count(["qdd", sd.JointAcceleration("all", name="again")])
    assert again.end_to_end == qdd.end_to_end and again.solve == qdd.solve


class Drag(Measurement):
    """The acceleration of a body along x, less a force of the air that grows with its velocity."""

    def __init__(self, body: str):
        self.name, self._body = "drag", body

    def components(self, model):
        return ("x",)

    def rows(self, ctx):
        return {("a", self._body): np.array([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0]])}

    def bias(self, ctx):
        v = ctx.v(self._body)
        return np.array([0.3 * v[3] * v[3]], dtype=object)


def test_classical_accelerations_serve_outputs_without_linear_velocities():
    """An accelerometer is the same to observers in uniform motion, a spatial acceleration is not; both are right."""
    model = sd.random_tree(6, seed=3, joints=("revolute",))
    q, qd, qdd = model.random_state(seed=1, batch=4)
    body = model.body_names[-1]
    outputs = [
        sd.Accelerometer(body, name="imu"), sd.NetWrench(body, name="net"),
        sd.FrameAcceleration(body, classical=False, name="spatial"), Drag(body),
    ]  # fmt: skip
    problem = sd.inverse_dynamics(model)
    solver = sd.compile(problem, outputs=outputs, formulation="elimination", backend="python", **QUICK)
    assert {"canonical_frames", "classical_accelerations"} <= set(solver.passes)
    system = sd.assemble(problem, passes=solver.passes, outputs=solver.options.outputs)
    assert system.form.galilean_outputs == (True, True, False, False)
    solution = solver(q, qd, qdd)
    for name, y in sd.predict(sd.Problem(model, outputs), q, qd, qdd).items():
        close(solution[name], y)
    spatial, classical = (
        sd.compile(problem, "rnea", outputs[0], passes=x, formulation="elimination", backend="python", **QUICK)
        for x in (["canonical_frames"], ["canonical_frames", "classical_accelerations"])
    )
    assert classical.flops.end_to_end.total < spatial.flops.end_to_end.total


# ---- names and bad input -----------------------------------------------------------------------------------------


def test_names_and_order_of_outputs():
    model, q, qd, values = known("fixed")
    imu, h = sd.Accelerometer("tool", name="imu"), sd.MomentumRate()
    solver = sd.compile(sd.inverse_dynamics(model), outputs=[h, "fx", imu, "tau"], backend="python", **QUICK)
    assert solver.outputs == ("tau", "fx", "MomentumRate(all)", "imu")
    assert list(solver.program.outputs) == list(solver.outputs)
    assert solver.measured == {"MomentumRate(all)": h, "imu": imu} and solver.measured["imu"].units == ("m/s²",) * 3
    solution = solver(q, qd, values["qdd"], fx=values["fx"])
    assert solution["imu"].shape == (6, 3)
    assert solver(q[0], qd[0], values["qdd"][0])["imu"].shape == (3,)
    with pytest.raises(sd.UnknownName, match=r"output 'imo'.*Did you mean 'imu'"):
        solution["imo"]
    with pytest.raises(sd.UnknownName, match=r"component of 'imu': 'ax'.*a_x, a_y, a_z"):
        solution["imu", "ax"]
    alone = sd.compile(sd.inverse_dynamics(model), outputs=imu, backend="python", **QUICK)
    assert alone.outputs == ("imu",)
    everything = sd.compile(sd.inverse_dynamics(model), "rnea", ["all", imu], backend="python", **QUICK)
    assert everything.outputs == (*QUANTITIES, "imu")
    assert everything(q, qd, values["qdd"], fx=values["fx"]).backward_error().max() < 1e-12


@pytest.mark.parametrize(
    ("outputs", "kind", "text"),
    [
        ([sd.Accelerometer("tool", name="x"), sd.MomentumRate(name="x")], sd.ProblemError, "two outputs .* 'x'.*name="),
        ([sd.Accelerometer("tool", name="qdd")], sd.ProblemError, "called 'qdd', which means something else.*name="),
        ([sd.Accelerometer("tool", name="q")], sd.ProblemError, "called 'q'"),
        ([sd.Accelerometer("toll")], sd.UnknownName, r"frame 'toll'.*Did you mean 'tool'"),
        ([sd.Accelerometer("wall")], sd.InvalidInput, "'wall' is fixed to the base"),
        ([sd.JointTorque("joint9", name="x")], sd.UnknownName, "joint in 'x':.*'joint9'.*joint4"),
        ([sd.Prior(sd.JointTorque("all", noise=1.0))], sd.ProblemError, "is a Prior.*the measurement itself"),
        ([sd.Switchable(sd.MomentumRate(noise=1.0))], sd.ProblemError, "is a Switchable"),
        ([sd.ModelNoise(noise=1.0)], sd.ProblemError, "noise of the equations of motion, which has no value"),
        (["qdd", "imu"], sd.UnknownName, "output 'imu'.*tau, qdd, fx, a, f"),
        (["qdd", 3], sd.InvalidInput, r"3 is no output.*tau, qdd.*Accelerometer"),
        ([], sd.InvalidInput, "no output"),
        ([sd.Accelerometer], sd.InvalidInput, "is no output"),
    ],
)  # fmt: skip
def test_outputs_that_are_wrong(outputs, kind, text):
    with pytest.raises(kind, match=text):
        sd.compile(sd.forward_dynamics(robot()), outputs=outputs)


class Short(Measurement):
    """A measurement whose bias has too few entries."""

    name = "short"

    def components(self, model):
        return ("x", "y")

    def rows(self, ctx):
        return {("f", "body1"): np.zeros((2, 6))}

    def bias(self, ctx):
        return np.zeros(1)


def test_custom_outputs_that_are_wrong():
    with pytest.raises(sd.ProblemError, match=r"bias of shape \(1,\), but \(2,\)"):
        sd.compile(sd.forward_dynamics(robot()), "aba", outputs=Short(), **QUICK)


# ---- calls and files ---------------------------------------------------------------------------------------------


def test_a_bound_call_writes_outputs_in_place():
    model, q, qd, values = known("fixed")
    imu = sd.Accelerometer("tool", name="imu")
    solver = sd.compile(sd.inverse_dynamics(model), "rnea", ["tau", imu], level="fast")
    given = {"q": q, "qd": qd, "qdd": values["qdd"], "fx": values["fx"]}
    given = {name: np.ascontiguousarray(x) for name, x in given.items()}
    out = np.full((6, 3), np.nan)
    step = solver.bind(**given, out={"imu": out})
    step()
    expected = solver(**given)
    np.testing.assert_array_equal(out, expected["imu"])
    np.testing.assert_array_equal(step.out["tau"], expected.tau)
    with pytest.raises(sd.InvalidInput, match=r"out\['imu'\] must be .* of shape \(6, 3\)"):
        solver.bind(**given, out={"imu": np.zeros((6, 2))})
    alone = sd.compile(sd.inverse_dynamics(model), "rnea", imu, level="fast")
    single = np.zeros(3)
    alone.bind(**{name: x[0].copy() for name, x in given.items()}, out=single)()
    np.testing.assert_allclose(single, out[0], rtol=1e-12)


@pytest.mark.slow(after=7)
@pytest.mark.parametrize("name", OUTPUTS)
def test_saved_solvers_keep_their_outputs(name, tmp_path):
    model, q, qd, values = known("fixed")
    outputs = ["tau", *OUTPUTS[name]]
    solver = sd.compile(sd.inverse_dynamics(model), "rnea", outputs, backend="python", **QUICK)
    given = {"q": q, "qd": qd, "qdd": values["qdd"], "fx": values["fx"]}
    functions = any(callable(C) for m in outputs[1:] for C in getattr(m, "blocks", {}).values())
    if name == "custom" or functions:
        with pytest.raises(sd.ProblemError, match="is custom and cannot be stored in a file"):
            solver.save(tmp_path / "s.npz")
        loaded = pickle.loads(pickle.dumps(solver)) if name == "custom" else solver
    else:
        loaded = sd.load_solver(solver.save(tmp_path / "s.npz"))
        assert pickle.loads(pickle.dumps(solver)).outputs == solver.outputs
    assert loaded.outputs == solver.outputs and loaded.program.digest == solver.program.digest
    for m in OUTPUTS[name]:
        np.testing.assert_array_equal(loaded(**given)[m.name], solver(**given)[m.name])
        assert loaded.measured[m.name].components(model) == m.components(model)


def test_the_cache_tells_outputs_apart(tmp_path, monkeypatch):
    monkeypatch.setenv("SYSDYN_CACHE", str(tmp_path))
    problem = sd.inverse_dynamics(robot())
    compiled = lambda m: sd.compile(problem, "rnea", m, backend="python", **QUICK)  # noqa: E731
    first = compiled(sd.Accelerometer("tool", name="imu"))
    assert len(list(tmp_path.iterdir())) == 1
    assert compiled(sd.Accelerometer("tool", name="imu")).program.digest == first.program.digest
    assert len(list(tmp_path.iterdir())) == 1
    assert compiled(sd.Accelerometer("body1", name="imu")).program.digest != first.program.digest
    assert len(list(tmp_path.iterdir())) == 2
    compiled(Drift())
    assert len(list(tmp_path.iterdir())) == 2


def test_states_at_which_only_the_order_fails_have_outputs():
    """Guards that take every state for a weak one: all of them are solved with pivoting, by `shown`."""
    model = robot()
    imu, net = sd.Accelerometer("tool", name="imu"), sd.NetWrench("tool", name="net")
    solver = sd.compile(sd.forward_dynamics(model), "aba", ["qdd", imu, net], backend="python", **QUICK)
    guards = tuple(replace(x, threshold=np.inf, weak=np.inf) for x in solver.program.guards)
    assert guards
    compiled = replace(solver.compiled, program=replace(solver.program, guards=guards))
    failing = sd.Solver(solver.problem, solver.options, compiled)
    _, q, qd, values = known("fixed")
    expected, found = (x(q, qd, values["tau"], fx=values["fx"]) for x in (solver, failing))
    assert found.ok.all()
    for name in solver.outputs:
        close(found[name], expected[name])
        assert (found[name] != expected[name]).any()
    nan = failing(q, qd, values["tau"], fx=values["fx"], on_singular="nan")
    assert nan.ok.all() and (nan["imu"] == found["imu"]).all()


def test_states_solved_with_pivoting_have_outputs():
    """States whose outputs were lost get them from the unknowns that pivoting finds; the others keep theirs."""
    model = robot()
    imu, net = sd.Accelerometer("tool", name="imu"), sd.NetWrench("tool", name="net")
    solver = sd.compile(sd.forward_dynamics(model), "aba", [imu, net], backend="python", **QUICK)
    _, q, qd, values = known("fixed")
    # no state loses its outputs alone: they are taken away between the run and what mends it
    run = solver._calls.run(sd.online.arguments.Arguments(q, qd, (), {"tau": values["tau"], "fx": values["fx"]}))
    expected = {name: x.copy() for name, x in run.outputs.items()}
    run.outputs["imu"][2:4], run.outputs["net"][2:4] = np.nan, np.nan
    run.status[2:4] = WEAK_PIVOT
    solver.resolve(run, "nan")
    assert not run.status.any()
    for name, x in expected.items():
        close(run.outputs[name], x)


def test_signatures_speak_of_outputs():
    assert "Measurement" in inspect.signature(sd.compile).parameters["outputs"].annotation


# ---- derivatives -------------------------------------------------------------------------------------------------


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("base", ["fixed", pytest.param("floating", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["fd", "id"])
def test_derivatives_are_those_of_finite_differences(kind, base):
    model, q, qd, values = known(base)
    outputs = [
        sd.Accelerometer("tool", reference="world", name="imu"), sd.LoadCells("tool", ["fz", "nx"], name="cells"),
        Drift(), "tau" if kind == "id" else "qdd",
    ]  # fmt: skip
    solver = sd.compile(problem_of(kind, model), outputs=outputs, backend="python", **QUICK)
    of = [m.name for m in outputs[:3]]
    given = "tau" if kind == "fd" else "qdd"
    J = solver.derivatives(of=of, wrt=("q", "qd", given, "fx"))
    assert J.of == tuple(of) and J.method.startswith("implicit")
    state = {"q": q[0], "qd": qd[0], given: values[given][0], "fx": values["fx"][0]}
    found = J(**state)

    def moved(name: str, column: int, step: float) -> dict[str, np.ndarray]:
        change = np.zeros(model.nv if name == "q" else state[name].size)
        change[column] = step
        new = model.integrate(q[0], change) if name == "q" else state[name] + change.reshape(state[name].shape)
        return {**state, name: new}

    for name in ("q", "qd", given, "fx"):
        columns = range(model.nv if name == "q" else state[name].size)
        ahead, behind = ([solver(**moved(name, k, step)) for k in columns] for step in (1e-5, -1e-5))
        for x in of:
            expected = np.stack([(a[x] - b[x]) / 2e-5 for a, b in zip(ahead, behind, strict=True)], axis=-1)
            close(found[x, name].reshape(expected.shape), expected, 1e-6)
    everything = solver.derivatives(wrt="q")
    assert everything.of == solver.outputs
    with pytest.raises(sd.UnknownName, match=r"output 'imo'.*Did you mean 'imu'"):
        solver.derivatives(of="imo")


def test_derivatives_of_a_recursion_say_what_to_do():
    solver = sd.compile(
        sd.forward_dynamics(robot()), outputs=sd.Accelerometer("tool", name="imu"), formulation="recursive", **QUICK
    )
    with pytest.raises(sd.ProblemError, match="derivatives of imu need an elimination"):
        solver.derivatives()


def test_derivatives_of_quantities_that_passes_changed_are_refused():
    """Without a and f among the outputs the equations may have classical a, and f of other inertial parameters."""
    problem = sd.forward_dynamics(sd.random_tree(4, seed=3, joints=("revolute",)))
    solver = sd.compile(problem, outputs="qdd", formulation="elimination", **QUICK)
    assert {"classical_accelerations", "base_parameters"} <= set(solver.passes)
    for x in ("a", "f"):
        with pytest.raises(sd.ProblemError, match=rf"another {x} in the equations.*outputs=\['qdd', '{x}'\]"):
            solver.derivatives(of=x)
    assert solver.derivatives(of="qdd", wrt="qd").of == ("qdd",)


# ---- estimates ---------------------------------------------------------------------------------------------------


@functools.cache
def estimated(passes: str = "all"):
    """(solver, state, y) of an estimation with measured outputs, one of them a measurement of the problem."""
    model = robot()
    ft = sd.ForceTorqueSensor("joint3", noise=0.1, name="ft")
    problem = sd.Problem(model, [
        sd.Prior(sd.ExternalWrench("all", noise=2.0), name="push"),
        sd.JointTorque("all", noise=0.3, name="torque"), sd.JointAcceleration("all", noise=0.2, name="acc"), ft,
    ])  # fmt: skip
    outputs = [
        "qdd", sd.Accelerometer("tool", reference="world", name="imu"),
        sd.LoadCells("tool", ["fz", "nx"], name="cells"), Drift(), sd.ForceTorqueSensor("joint3", name="ft"),
    ]  # fmt: skip
    solver = sd.compile(problem, outputs=outputs, backend="python", passes=passes, **QUICK)
    q, qd, qdd = model.random_state(seed=3, batch=2)
    y = sd.predict(problem, q, qd, qdd, seed=1)
    return solver, q, qd, y


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("passes", ["all", ()])
def test_standard_deviations_are_those_of_dense_least_squares(passes):
    solver, q, qd, y = estimated(passes)
    problem, names = solver.problem, [m.name for m in solver.options.measured]
    solution = solver(q, qd, y=y)
    system = sd.assemble(problem, outputs=(*QUANTITIES, *solver.options.measured))
    for k in range(2):
        expected = dense(problem, q[k], qd[k], {name: x[k] for name, x in y.items()})
        d = np.zeros((1, system.layout.n))
        d[0, : len(expected["d"])] = expected["d"]
        state = {"q": q[k], "qd": qd[k]}
        shown, coefficients = system.output_values(state, d), system.output_rows(state)
        rows = {}
        for name in names:
            Y = np.zeros((len(coefficients[name].rows), len(expected["d"])))
            for i, row in enumerate(coefficients[name].rows):
                for c, x in row.items():
                    Y[i, c] = np.broadcast_to(x, 1)[0]
            rows[name] = Y
            close(solution[name][k], shown[name][0][0], 1e-8)
            close(solution.std(name)[k], np.sqrt(np.diag(Y @ expected["C"] @ Y.T)), 1e-8)
            close(solution.covariance(name)[k], Y @ expected["C"] @ Y.T, 1e-8)
        close(solution.covariance("imu", "ft")[k], rows["imu"] @ expected["C"] @ rows["ft"].T, 1e-8)
        chosen = system.layout.quantity_columns("qdd")
        close(solution.covariance("qdd", ("imu", "a_y"))[k], expected["C"][chosen] @ rows["imu"][1:2].T, 1e-8)
    np.testing.assert_array_equal(solution.std("imu", "a_z"), solution.std("imu")[:, 2])


@pytest.mark.slow
def test_standard_deviations_keep_their_digits_where_variances_are_far_apart():
    """Against Y C Y^T of the inverse in 80 digits; 14 decades between variances, measured outputs as well."""
    solver, q, qd, y = estimated()
    problem, usual = solver.problem, solver(q, qd, y=y)
    noise = {"torque": 1e-4, "acc": 1e2, "ft": 1e-5}
    solution = solver(q, qd, y=y, noise=noise)
    system = sd.assemble(problem, outputs=(*QUANTITIES, *solver.options.measured))
    for k in range(2):
        state = {"q": q[k], "qd": qd[k]}
        given = {n.group: n.numbers(noise[n.name]) for n, _ in system.noise_numbers if n.name in noise}
        entries, b = system.values({**state, **given})
        C, _, _ = dense_inverse(system.matrix(entries[0]).toarray(), b[0])
        for name in ("imu", "ft"):
            for row, std in zip(system.output_rows(state)[name].rows, solution.std(name)[k], strict=True):
                x = {c: float(np.broadcast_to(v, 1)[0]) for c, v in row.items()}
                variance = sum(x[i] * x[j] * C[i, j] for i in x for j in x)
                assert abs(std - np.sqrt(variance)) <= 1e-9 * std
    assert (solution.std("ft") < 1e-4).all() and (usual.std("ft") > 1e-3).all()


def test_what_an_estimate_has_no_such_part_of():
    """It is said before anything is eliminated."""
    solver, q, qd, y = estimated()
    said: list[tuple] = []
    outputs, options = solver.options.measured, {"backend": "python", **QUICK}
    solution = sd.compile(solver.problem, outputs=outputs, progress=lambda *x: said.append(x), **options)(q, qd, y=y)
    said.clear()
    with pytest.raises(sd.UnknownName, match=r"component of 'imu': 'ax'"):
        solution.covariance("imu", ("imu", "ax"))
    with pytest.raises(sd.UnknownName, match=r"quantity 'imo'.*Did you mean 'imu'"):
        solution.std("imo")
    assert not said
    assert solution.std("f").shape == (2, 5, 6) and said[-1] == ("done", 1.0)  # an unrequested quantity


def test_noise_of_a_sensor_in_axes_of_the_world_is_of_its_own_components():
    """Residuals are those of the output of the same name, and their squares over the variances sum up to χ²."""
    model = sd.chain(3, seed=1)
    imu = sd.Accelerometer("body2", reference="world", name="imu", noise=[0.1, 0.5, 2.0])
    problem = sd.Problem(model, [sd.JointAcceleration("all", noise=0.3, name="joints"), sd.ExternalWrench("all"), imu])
    q, qd, qdd = model.random_state(seed=2)
    read = sd.predict(problem, q, qd, qdd, seed=1)
    y = {"joints": read["joints"], "imu": read["imu"]}
    estimate = sd.compile(problem, outputs=["qdd", imu], level="fast", backend="python")(q, qd, y=y)
    residuals = {"joints": y["joints"] - estimate.qdd, "imu": y["imu"] - estimate["imu"]}
    for name, x in residuals.items():
        np.testing.assert_allclose(estimate.residuals()[name], x, atol=1e-12)
    whitened = np.concatenate([residuals["joints"] / 0.3, residuals["imu"] / [0.1, 0.5, 2.0]])
    assert estimate.chi2() == pytest.approx(whitened @ whitened, rel=1e-12)
