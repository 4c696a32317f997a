"""Bad input to problems and solvers: one error that says what is wrong, where, and what to do; nothing half-done."""

from __future__ import annotations

import functools
import pickle
import re
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
from disk import no_room

import sysdyn as sd
from sysdyn.diagnosis.diagnose import require_sound_structure
from sysdyn.errors import (
    CacheWarning,
    FileError,
    InvalidInput,
    NoSafeOrdering,
    ProblemError,
    SingularState,
    StructurallySingular,
    SysdynError,
    UnknownName,
)
from sysdyn.measurements.classical import forward_dynamics, hybrid_dynamics, inverse_dynamics
from sysdyn.measurements.known_quantities import (
    BodyAcceleration,
    ExternalWrench,
    JointAcceleration,
    JointTorque,
    JointWrench,
)
from sysdyn.measurements.problem import Problem
from sysdyn.model import chain, random_tree
from sysdyn.offline import sampling


class Fails:
    """with fails(Kind, "part", …): raises exactly `Kind`, a SysdynError, and the message has each of the parts."""

    def __init__(self, kind: type[SysdynError], *parts: str):
        self.kind, self.parts = kind, parts

    def __enter__(self):
        self.context = pytest.raises(self.kind)
        self.info = self.context.__enter__()
        return self.info

    def __exit__(self, *args):
        __tracebackhide__ = True
        handled = self.context.__exit__(*args)
        assert type(self.info.value) is self.kind
        message = str(self.info.value)
        for part in self.parts:
            assert part in message, f"{part!r} is not in {message!r}"
        assert "\\n" not in message and len(message.split()) >= 4
        return handled


@functools.cache
def robot():
    return random_tree(4, seed=9, joints=("free", "revolute", "cylindrical"))


@functools.cache
def forward() -> sd.Solver:
    return sd.compile(forward_dynamics(robot()), "aba", level="fast")


@functools.cache
def partial() -> sd.Solver:
    """Some joints by torque, some by acceleration, some wrenches by component; several measurements."""
    model = robot()
    parts = [
        JointTorque(model.joint_names[:2], name="motors"), JointAcceleration(model.joint_names[2:], name="encoders"),
        ExternalWrench(model.body_names[:3], name="loads"), ExternalWrench(model.body_names[3], name="tip"),
    ]  # fmt: skip
    return sd.compile(Problem(model, parts), "aba", level="fast")


def state(count: int | None = None) -> dict[str, np.ndarray]:
    model = robot()
    q, qd, tau = model.random_state(seed=1, batch=count)
    lead = () if count is None else (count,)
    return {"q": q, "qd": qd, "tau": tau, "fx": np.zeros((*lead, model.nb, 6))}


def test_the_robot_is_what_the_tests_below_take_it_for():
    assert "free" in [joint.kind for joint in robot().joints]
    assert forward()(**state()).ok and forward()(**state(3)).ok.all()


ARGUMENTS = ("q", "qd", "tau", "fx")


# ---- values of a call ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("count", [None, 5])
def test_wrong_shapes(name, count):
    given = state(count)
    for wrong in (given[name][..., :-1], np.concatenate([given[name]] * 2, axis=-1), np.float64(1.0)):
        with Fails(InvalidInput, f"{name} has shape {wrong.shape}", "(…, " + ("4, 6)" if name == "fx" else "")):
            forward()(**{**given, name: wrong})


@pytest.mark.parametrize("name", ARGUMENTS)
def test_leading_axes_that_do_not_fit(name):
    given = state(5)
    with Fails(InvalidInput, "leading (batch) axes do not fit together", f"{name} (3,)", "(5,)"):
        forward()(**{**given, name: given[name][:3]})


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize(
    ("wrong", "type_name"),
    [(lambda x: x.astype(complex), "complex128"), (lambda x: x.astype(str), "<U"),
     (lambda x: x.astype(object), "object"),
     (lambda x: x > 0, "bool"), (lambda x: "zero", "<U4"), (lambda x: {"a": 1}, "object"),
     (lambda x: x.astype("datetime64[s]"), "datetime64")],
)  # fmt: skip
def test_wrong_types(name, wrong, type_name):
    for count in (None, 4):
        given = state(count)
        with Fails(InvalidInput, f"{name} has type {type_name}", "real numbers are needed"):
            forward()(**{**given, name: wrong(given[name])})


@pytest.mark.parametrize("name", ARGUMENTS)
def test_ragged_lists_and_nothing(name):
    with Fails(InvalidInput, f"{name} is not a regular array"):
        forward()(**{**state(), name: [[1.0, 2.0], [3.0]]})
    with Fails(InvalidInput, f"{name} is None", "an array is needed"):
        forward()(**{**state(), name: None})


class Tracer:
    """As those of jax.jit, which have a shape and no numbers."""

    shape = (3,)

    def __array__(self, *args, **kwargs):
        raise TypeError("a tracer was asked for its numbers")


@pytest.mark.parametrize("name", ARGUMENTS)
def test_symbols_and_tracers(name):
    with Fails(InvalidInput, f"{name} is a {Tracer.__module__}.Tracer without numbers", "solver.to_jax()", "to_casadi"):
        forward()(**{**state(), name: Tracer()})
    function = sd.compile_function(lambda x: x * 2.0, {"x": (3,)})
    with Fails(InvalidInput, f"x is a {Tracer.__module__}.Tracer without numbers"):
        function(Tracer())


@pytest.mark.parametrize("name", ["integrate", "difference", "normalise"])
def test_symbols_and_tracers_of_steps_and_positions(name):
    model = forward().model
    given = [Tracer()] if name == "normalise" else [model.neutral(), Tracer()]
    with Fails(InvalidInput, f"is a {Tracer.__module__}.Tracer without numbers", "sd.kinematics(model, 'integrate')"):
        getattr(model, name)(*given)


def test_a_solver_inside_jax_jit():
    jax = pytest.importorskip("jax")
    given = state()
    with Fails(InvalidInput, "tau is a jax", "solver.to_jax()"):
        jax.jit(lambda tau: forward()(**{**given, "tau": tau}).qdd)(given["tau"])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("policy", ["raise", "nan"])
def test_nan_and_infinity_in_any_argument(name, bad, policy):
    given = state(20)
    flat = given[name].reshape(20, -1)
    read = np.flatnonzero(forward().program.used_inputs[forward().program.inputs.slices[name]])
    for entry in read[[-2, -1]].tolist():
        changed = flat.copy()
        changed[13, entry] = bad
        where = f"{name} is {bad} at state 13, entry {entry}: every input must be finite"
        with Fails(InvalidInput, where):
            forward()(**{**given, name: changed.reshape(given[name].shape)}, on_singular=policy)
        with Fails(InvalidInput, f"{name} is {bad} at entry {entry}"):
            forward()(**{**state(), name: changed[13].reshape(given[name].shape[1:])}, on_singular=policy)
        shared = {**given, name: changed[13].reshape(given[name].shape[1:])}  # one row for all states
        with Fails(InvalidInput, f"{name} is {bad} at entry {entry}"):
            forward()(**shared, on_singular=policy)


@pytest.mark.parametrize("backend", ["llvm", "python"])
def test_inputs_that_the_program_does_not_read_are_not_checked(backend):
    """Here a known quantity, where only other ones are computed."""
    solver = sd.compile(inverse_dynamics(robot()), "rnea", "fx", level="fast", backend=backend)
    given = state(3)
    given["qdd"] = given.pop("tau")
    expected = solver(**given).fx
    given["qdd"] = np.full_like(given["qdd"], np.nan)
    np.testing.assert_array_equal(solver(**given).fx, expected)


@pytest.mark.parametrize("norm", [1.01, 0.0, 1.0 - 2e-6])
def test_quaternions_that_are_not_of_unit_norm(norm):
    model = robot()
    i = [joint.kind for joint in model.joints].index("free")
    part = slice(model.q_slice(i).start + 3, model.q_slice(i).stop)
    given = state(6)
    given["q"][4, part] *= norm
    name = model.joint_names[i]
    with Fails(InvalidInput, f"the quaternion of joint {name!r} of state 4", f"norm {norm:.9g}"[:9], "divide it"):
        forward()(**given)
    single = {**state(), "q": given["q"][4]}
    with Fails(InvalidInput, f"the quaternion of joint {name!r} has norm"):
        forward()(**single)
    with Fails(InvalidInput, f"the quaternion of joint {name!r} has norm"):
        sd.assemble(forward().problem).D(given["q"][4])


def test_quaternions_of_nearly_unit_norm_are_normalised():
    model = robot()
    i = [joint.kind for joint in model.joints].index("free")
    part = slice(model.q_slice(i).start + 3, model.q_slice(i).stop)
    given = state(6)
    q = given["q"].copy()
    q[:, part] *= 1.0 + 5e-7
    before = q.copy()
    found = forward()(**{**given, "q": q}).qdd
    np.testing.assert_allclose(found, forward()(**given).qdd, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(q, before)  # the caller's array stays as it is


# ---- which values --------------------------------------------------------------------------------------------------


def test_missing_values():
    given = state()
    del given["tau"]
    with Fails(InvalidInput, "no value was given for 'tau'", "pass tau="):
        forward()(**given)
    model = robot()
    sizes = [len(m.components(model)) for m in partial().problem.measurements]
    y = {"motors": np.zeros(sizes[0]), "loads": np.zeros(sizes[2])}
    with Fails(InvalidInput, "'qdd'", "known entries count, or y={'encoders': …}"):
        partial()(given["q"], given["qd"], y=y)
    halves = Problem(model, [JointTorque(model.joint_names[:2], name="a"), JointTorque(model.joint_names[2:], name="b"),
                             ExternalWrench("all", name="fx")])  # fmt: skip
    solver = sd.compile(halves, "aba", level="fast")
    with Fails(InvalidInput, "no value for measurement 'b'", "tau"):
        solver(given["q"], given["qd"], y={"a": np.zeros(len(halves.measurements[0].components(model)))})


def test_values_given_twice():
    given = state()
    q, qd, tau = given["q"], given["qd"], given["tau"]
    with Fails(InvalidInput, "tau is given twice", "by position and by keyword"):
        forward()(q, qd, tau, tau=tau)
    with Fails(InvalidInput, "tau is given twice", "tau= and in y['tau']"):
        forward()(q, qd, tau, y={"tau": tau})
    with Fails(InvalidInput, "4 values were given by position", "(q, qd, tau, fx=…)"):
        forward()(q, qd, tau, given["fx"])


def test_unknown_names_of_values():
    given = state()
    q, qd, tau = given["q"], given["qd"], given["tau"]
    with Fails(UnknownName, "argument of the problem: 'tua'", "Did you mean 'tau'?"):
        forward()(q, qd, tua=tau)
    with Fails(UnknownName, "argument of the problem: 'qdd'", "tau, fx"):
        forward()(q, qd, tau, qdd=tau)
    with Fails(UnknownName, "measurement 'moters'", "Did you mean 'motors' or", "encoders"):
        partial()(q, qd, y={"moters": tau})
    with Fails(UnknownName, "unknown ordering 'ABA'. Did you mean 'aba'? Valid"):
        sd.compile(forward_dynamics(chain(2)), "ABA")
    with Fails(UnknownName, "'al'. Did you mean 'all'? Valid"):
        Problem(chain(2), [JointTorque("al")])
    with Fails(ProblemError, "Prior(FrameAcceleration(…, noise=…))", "ContactWrench(…, noise=…) for the wrench"):
        sd.Prior(sd.Contact("body1", name="grip"))
    with Fails(UnknownName, "on_singular 'nann'", "Did you mean 'nan'?"):
        forward()(q, qd, tau, on_singular="nann")
    for threads in (0, -1, "two", 1.5):
        with Fails(InvalidInput, f"threads is {threads!r}"):
            forward()(q, qd, tau, threads=threads)


def test_measured_values_of_wrong_shape_or_type():
    given = state()
    q, qd, model = given["q"], given["qd"], robot()
    sizes = {m.name: len(m.components(model)) for m in partial().problem.measurements}
    y = {name: np.zeros(size) for name, size in sizes.items()}
    assert partial()(q, qd, y=y).ok
    for name, size in sizes.items():
        with Fails(InvalidInput, f"y[{name!r}] has shape ({size + 1},)", f"(…, {size}) is needed"):
            partial()(q, qd, y={**y, name: np.zeros(size + 1)})
        with Fails(InvalidInput, f"y[{name!r}] has type", "real numbers"):
            partial()(q, qd, y={**y, name: np.zeros(size, dtype=complex)})
        with pytest.raises(InvalidInput, match="is nan at entry"):
            partial()(q, qd, y={**y, name: np.full(size, np.nan)})
    ny = partial().problem.ny
    with Fails(InvalidInput, f"y has shape ({ny - 1},)", f"(…, {ny}) is needed"):
        partial()(q, qd, y=np.zeros(ny - 1))
    with Fails(InvalidInput, "y has type", "real numbers"):
        partial()(q, qd, y="motors")
    with pytest.raises(InvalidInput, match=r"loads|leading"):
        partial()(q, qd, y={**y, "loads": np.zeros((2, sizes["loads"])), "tip": np.zeros((3, 6))})


def test_nothing_is_changed_by_a_failed_call():
    given = state(4)
    given["tau"][2, 1] = np.nan
    before = {name: x.copy() for name, x in given.items()}
    with pytest.raises(InvalidInput):
        forward()(**given)
    for name, x in given.items():
        np.testing.assert_array_equal(x, before[name])
    given["tau"][2, 1] = 0.0
    assert forward()(**given).ok.all()


# ---- bind ----------------------------------------------------------------------------------------------------------


def test_arrays_that_cannot_be_bound():
    given = state(4)
    q, qd, tau, nv = given["q"], given["qd"], given["tau"], robot().nv
    for name, wrong in (
        ("q", q.tolist()), ("qd", qd.astype(np.float32)), ("tau", np.asfortranarray(tau)),
        ("fx", given["fx"].astype(int)),
    ):  # fmt: skip
        with Fails(InvalidInput, f"bind keeps {name}", "C-contiguous float64"):
            forward().bind(**{**given, name: wrong})
    with Fails(InvalidInput, f"qd has shape (4, {nv - 1})", f"(…, {nv}) is needed"):
        forward().bind(q, np.zeros((4, nv - 1)), tau)
    with Fails(InvalidInput, "different numbers of states", "q (4,), qd (3,), tau (4,)"):
        forward().bind(q, qd[:3].copy(), tau)
    with Fails(InvalidInput, "no value was given for 'tau'"):
        forward().bind(q, qd)
    with Fails(UnknownName, "argument of the problem: 'tauu'"):
        forward().bind(q, qd, tauu=tau)


def test_outputs_that_cannot_be_bound():
    given, nv = state(), robot().nv
    with Fails(InvalidInput, "out must be a dict with", "several outputs"):
        forward().bind(**given, out=np.zeros(nv))
    with Fails(UnknownName, "output 'qd'", "Did you mean 'qdd'?"):
        forward().bind(**given, out={"qd": np.zeros(nv)})
    read_only = np.zeros(nv)
    read_only.flags.writeable = False
    for wrong in (np.zeros(nv + 1), np.zeros((1, nv)), np.zeros(nv, dtype=np.float32), read_only, [0.0] * nv):
        with Fails(InvalidInput, "out['qdd']", f"float64 array of shape ({nv},)"):
            forward().bind(**given, out={"qdd": wrong})


# ---- options of compile --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"ordering": "umfpak"}, ("ordering 'umfpak'", "Did you mean 'umfpack'?", "auto")),
        ({"outputs": "torque"}, ("output 'torque'", "tau")),
        ({"outputs": ["tau", "qd"]}, ("output 'qd'", "Did you mean 'qdd'?")),
        ({"layout": "papers"}, ("layout 'papers'", "Did you mean 'paper'?", "net_force")),
        ({"known": "row"}, ("'row'", "Did you mean 'rows'?", "substituted")),
        ({"level": "bst"}, ("level 'bst'", "Did you mean 'best' or", "fast")),
        ({"backend": "numba"}, ("backend 'numba'", "llvm", "python")),
        ({"on_singular": "ignore"}, ("on_singular 'ignore'", "raise, nan")),
    ],
)
def test_unknown_options_of_compile(options, parts):
    with Fails(UnknownName, *parts):
        sd.compile(forward_dynamics(chain(2)), **options)


def test_things_that_are_no_problem_or_no_outputs():
    for wrong in (chain(2), "robot.urdf", None, forward()):
        with Fails(InvalidInput, "compile needs a Problem", type(wrong).__name__, "forward_dynamics"):
            sd.compile(wrong)
    for wrong in ([], (), None):
        with Fails(InvalidInput, "no output", "tau, qdd, fx, a, f"):
            sd.compile(forward_dynamics(chain(2)), outputs=wrong)


def test_orders_that_do_not_apply():
    with Fails(ProblemError, "ordering 'rnea' is for inverse dynamics", "'aba' or 'auto'"):
        sd.compile(forward_dynamics(chain(2)), "rnea")
    model = chain(3)
    problem = forward_dynamics(model) - ExternalWrench("body2", ["fz"]) + JointAcceleration("joint2")
    for name in ("aba", "crba", "rnea"):
        with Fails(ProblemError, f"ordering {name!r} needs exact values of all external wrenches", "markowitz"):
            sd.compile(problem, name)


# ---- problems ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("measurement", "parts"),
    [
        (lambda: JointTorque("jont1"), ("joint in 'JointTorque(jont1)'", "'jont1'", "'joint1'")),
        (lambda: JointAcceleration(["joint0", "body1"]), ("joint in", "'body1'", "joint0, joint1, joint2")),
        (lambda: ExternalWrench("bdy1"), ("body in 'ExternalWrench(bdy1)'", "'body1'")),
        (lambda: JointWrench("join1"), ("body in", "'join1'")),
        (lambda: BodyAcceleration("body1", ["fx"]), ("component", "'fx'", "alpha_x")),
        (lambda: ExternalWrench("body1", ["fw"]), ("component in", "'fw'", "Did you mean", "nx, ny, nz, fx, fy, fz")),
        (lambda: JointTorque("joint1", [1]), ("component in", "1", "Valid names: 0")),
    ],
)
def test_unknown_names_in_measurements(measurement, parts):
    with Fails(UnknownName, *parts):
        Problem(chain(3), [measurement()])


def test_measurements_that_are_none():
    model = chain(3)
    with Fails(InvalidInput, "not a measurement: 'tau'", "JointTorque('all')"):
        Problem(model, ["tau"])
    with Fails(InvalidInput, "not a measurement", "JointTorque"):
        Problem(model, [JointTorque])
    with Fails(InvalidInput, "measurements of a Problem are a list", "[JointTorque(…), …]"):
        Problem(model, JointTorque("all"))
    with Fails(InvalidInput, "a Problem needs a Model first", "str", "sysdyn.load"):
        Problem("robot.urdf", [])
    for wrong in (3, None, [1, 2]):
        with Fails(InvalidInput, "JointTorque", "targets", repr(wrong)):
            JointTorque(wrong)
    with Fails(InvalidInput, "standard deviation of component 1 of 'tau' is -1.0", "leave out noise="):
        Problem(model, [JointTorque("all", noise=[1.0, -1.0, 1.0], name="tau")])
    with Fails(InvalidInput, "covariance of 'tau' is not symmetric", "entry (0, 1) is 0.5"):
        Problem(model, [JointTorque("all", noise=[[1.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], name="tau")])
    with Fails(InvalidInput, "covariance of 'tau' is not positive definite", "eigenvalue"):
        Problem(model, [JointTorque("all", noise=np.ones((3, 3)), name="tau")])
    with Fails(InvalidInput, "covariance of 'tau' has shape (2, 2)", "(…, 3, 3)"):
        Problem(model, [JointTorque("all", noise=np.eye(2), name="tau")])


def test_duplicate_measurements():
    model = chain(3)
    with Fails(ProblemError, "tau(joint1) is stated twice by 'JointTorque(joint1,joint1)'", "remove one"):
        Problem(model, [JointTorque(["joint1", "joint1"])])
    with Fails(ProblemError, "two measurements are called 'x'", "another name="):
        Problem(model, [JointTorque("all", name="x"), JointAcceleration("all", name="x")])


def test_removing_what_is_not_there():
    problem = forward_dynamics(chain(3))
    with Fails(ProblemError, "qdd(joint0) cannot be removed", "no measurement of the problem states it"):
        _ = problem - JointAcceleration("all")
    with Fails(ProblemError, "fx(body1).fz cannot be removed"):
        _ = problem - ExternalWrench("body1", ["fz"]) - ExternalWrench("body1", ["nx", "fz"])
    with Fails(UnknownName, "joint", "'joint7'"):
        _ = problem - JointTorque("joint7")


def test_unknown_names_elsewhere():
    model = chain(3)
    with Fails(UnknownName, "joint 'jnt1'", "Did you mean 'joint1'"):
        hybrid_dynamics(model, ["jnt1"])
    with Fails(UnknownName, "layout 'net'", "net_force"):
        sd.assemble(forward_dynamics(model), "net")
    with Fails(UnknownName, "'row'", "Did you mean 'rows'?"):
        sd.assemble(forward_dynamics(model), known="row")


def test_numbers_handed_to_the_system():
    model = chain(3)
    system = sd.assemble(forward_dynamics(model))
    zero = np.zeros(3)
    for wrong, needed in ((np.zeros(2), "(…, 3)"), (np.zeros((2, 3)), "(3,)"), (np.zeros((1, 3)), "(3,)")):
        with Fails(InvalidInput, f"q has shape {wrong.shape}", f"{needed} is needed"):
            system.D(wrong)
        with Fails(InvalidInput, f"qd has shape {wrong.shape}"):
            system.b(zero, wrong)
    with Fails(InvalidInput, "q is nan at entry 1", "finite"):
        system.D([0.0, np.nan, 0.0])
    with Fails(InvalidInput, "q has type <U4, but real numbers are needed"):
        system.D("zero")
    with Fails(InvalidInput, "tau has shape (2,), but (…, 3) is needed"):
        system.b(zero, zero, tau=np.zeros(2))
    with Fails(InvalidInput, "fx is inf at entry 7"):
        system.b(zero, zero, fx=np.where(np.arange(18) == 7, np.inf, 0.0).reshape(3, 6))
    with Fails(UnknownName, "argument of the problem: 'qdd'", "tau, fx"):
        system.b(zero, zero, qdd=zero)


@pytest.mark.parametrize(
    "change",
    [lambda d: d.clear(), lambda d: d.pop("model"), lambda d: d["measurements"][0].update(quantity="taux"),
     lambda d: d["measurements"][0].update(selection=[99]), lambda d: d["measurements"][0].pop("type"),
     lambda d: d.update(measurements=3), lambda d: d["measurements"][0].update(selection=["a"])],
)  # fmt: skip
def test_descriptions_that_are_damaged(change):
    data = forward_dynamics(chain(2)).to_dict()
    assert Problem.from_dict(data).digest == forward_dynamics(chain(2)).digest
    change(data)
    with pytest.raises(SysdynError, match="does not describe a problem|unknown|scalars"):
        Problem.from_dict(data)


# ---- too few, too many, singular -----------------------------------------------------------------------------------


def names_in(message: str) -> set[str]:
    return set(re.findall(r"(?:tau|qdd|fx|a|f)\([a-z0-9]+\)(?:\.\w+|\[\d+\])?", message))


def test_too_few_equations():
    problem = forward_dynamics(chain(3)) - JointTorque("joint1")
    with Fails(StructurallySingular, "too few equations", "59 equations, 60 unknowns, rank 59", "state 1 of",
               "JointTorque") as found:  # fmt: skip
        sd.compile(problem)
    assert {"tau(joint1)", "qdd(joint1)"} <= names_in(str(found.value))
    assert "tau(joint1)" in found.value.undetermined
    with Fails(StructurallySingular, "39 equations, 60 unknowns, rank 39", "state 21 of"):
        sd.compile(Problem(chain(3), []))
    with Fails(StructurallySingular, "fx(body2).fx"):
        sd.compile(forward_dynamics(chain(3)) - ExternalWrench("body2", ["fx"]))


def test_too_many_equations():
    """One component of a measurement too many, whatever its kind, is a check; the pattern says what else could go."""

    class Pair(sd.Measurement):
        name = "pair"

        def components(self, model):
            return ("first", "second")

        def rows(self, ctx):
            return {("qdd", "joint1"): np.array([[1.0], [0.0]]), ("qdd", "joint2"): np.array([[0.0], [1.0]])}

    problem = forward_dynamics(chain(3)) - JointTorque("joint2") + Pair()
    wanted = ("too many equations", "61 equations, 60 unknowns", "leave out 1 of", "y:pair: first")
    with Fails(ProblemError, *wanted) as found:
        require_sound_structure(sd.assemble(problem))
    assert not isinstance(found.value, StructurallySingular)
    q, qd, qdd = problem.model.random_state(seed=1)
    y, solver = sd.predict(problem, q, qd, qdd), sd.compile(problem, level="fast")
    solution = solver(q, qd, y=y)
    np.testing.assert_allclose(solution.qdd, qdd, rtol=0, atol=1e-12 * np.abs(qdd).max())
    assert np.abs(solution.inconsistency()["pair"]).max() < 1e-12 * np.abs(qdd).max()
    with Fails(sd.Inconsistent, "'pair' is off by 1 at second"):
        solver(q, qd, y={**y, "pair": y["pair"] + [0.0, 1.0]})


def test_as_many_equations_as_unknowns_but_in_the_wrong_places():
    """Both torque and acceleration of one leg, neither of another: the legs stand on the base, nothing couples them."""
    model = random_tree(3, seed=2, joints=("revolute",)).replace(parent=(-1, -1, -1))
    problem = hybrid_dynamics(model, ["joint0"]) - JointAcceleration("joint1")
    wrong = problem + JointAcceleration("joint0", name="encoder")
    with Fails(StructurallySingular, "structurally singular", "60 equations, 60 unknowns, rank 59", "state 1 of",
               "tau(joint1)", "leave out 1 of", "y:encoder: qdd(joint0)") as found:  # fmt: skip
        sd.compile(wrong)
    assert {"tau(joint1)", "qdd(joint1)"} <= set(found.value.undetermined)
    assert not {"tau(joint0)", "qdd(joint2)"} & set(found.value.undetermined)


def massless_tip():
    """A chain whose last body has no inertia about its joint, through numbers only: the pattern does not show it."""
    model = chain(3, seed=1)
    inertias = model.inertias.copy()
    inertias[2] = 0.0
    inertias[2, 0, 0] = 0.1  # about x, where the joint turns about z
    return model.replace(inertias=inertias, strict=None)


def test_singular_by_value_at_every_state():
    problem = forward_dynamics(massless_tip())
    assert not sd.diagnose(problem).well_posed
    with pytest.raises((NoSafeOrdering, StructurallySingular), match=r"(?s)qdd\(joint2\)"):
        sd.compile(problem)


def test_singular_at_this_state():
    X = sd.chain(3).X_tree.copy()
    X[:] = np.eye(6)
    inertias = np.zeros((3, 6, 6))
    inertias[2] = sd.chain(3).inertias[2]
    joints = (sd.model.Prismatic(), sd.model.Revolute((1.0, 0.0, 0.0)), sd.model.Prismatic())
    model = sd.chain(3).replace(joints=joints, X_tree=X, inertias=inertias, strict=None)
    solver = sd.compile(forward_dynamics(model), "aba", level="fast")
    q, qd, tau = model.random_state(seed=0, batch=3)
    q[:, 1] = (1.0, 0.0, 2.0)  # at 0 the two sliders are parallel
    with Fails(SingularState, "state 1", "equation c:", "does not give", "nothing determines qdd(joint0), qdd(joint2)",
               "body 'body0' has no inertia", "on_singular='nan'", "diagnose") as found:  # fmt: skip
        solver(q, qd, tau)
    assert found.value.states == (1,)
    singular = sampling.is_singular(sd.assemble(solver.problem), {"q": q, "qd": qd})
    assert singular.tolist() == [False, True, False]


# ---- files ---------------------------------------------------------------------------------------------------------


def test_solver_files(tmp_path):
    path = tmp_path / "robot.solver"
    with Fails(FileError, "robot.solver cannot be read", "No such file"):
        sd.load_solver(path)
    for content in (b"", b"\x00" * 100, b"PK\x03\x04" + b"x" * 500, pickle.dumps({"a": 1}), b"<robot/>"):
        path.write_bytes(content)
        with Fails(FileError, "robot.solver is not a sysdyn solver file of this version"):
            sd.load_solver(path)
    forward().save(path)
    with Fails(UnknownName, "on_singular 'ignore'"):
        sd.load_solver(path, on_singular="ignore")
    whole = path.read_bytes()
    for length in (1, 10, len(whole) // 3, len(whole) - 5):
        path.write_bytes(whole[:length])
        with Fails(FileError, "robot.solver is not a sysdyn solver file"):
            sd.load_solver(path)
    with Fails(FileError, "missing/robot.solver cannot be written", "No such file"):
        forward().save(tmp_path / "missing" / "robot.solver")
    assert [x.name for x in tmp_path.iterdir()] == ["robot.solver"]


# ---- cache ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", ["a file", "below a file", "full", "read-only"])
def test_a_cache_folder_that_cannot_be_used_warns_once(tmp_path, monkeypatch, kind):
    folder = tmp_path / "cache"
    if kind in ("a file", "below a file"):
        folder.write_text("in the way")
        folder = folder / "deeper" if kind == "below a file" else folder
    elif kind == "read-only":

        def refuse(*args, **kwargs):
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr("os.replace", refuse)
    monkeypatch.setenv("SYSDYN_CACHE", str(folder))
    problem = forward_dynamics(chain(2, seed=77))
    q, qd, tau = problem.model.random_state(batch=5)
    with warnings.catch_warnings(record=True) as caught, no_room() if kind == "full" else nullcontext():
        warnings.simplefilter("always")
        first = sd.compile(problem, level="fast")
        second = sd.compile(problem, level="fast")
        np.testing.assert_array_equal(first(q, qd, tau).qdd, second(q, qd, tau).qdd)
    ours = [w for w in caught if issubclass(w.category, CacheWarning)]
    assert len(ours) == 1
    message = str(ours[0].message)
    assert str(folder) in message and "compiling without it" in message and "SYSDYN_CACHE" in message
    if kind in ("full", "read-only"):
        monkeypatch.undo()
        assert list(folder.iterdir()) == []


COUNTED = (
    "bodies", "threads", "every", "iterations of a contact", "newton_steps", "rows of a point", "max_iter",
    "iterations of learning",
)  # fmt: skip


@functools.cache
def _counting():
    """{what is counted: (the least number, a function of it)}."""
    model = chain(2)
    problem = forward_dynamics(model)
    touching = problem + sd.Contact("body1", "point", name="tip")
    solver, zero, target = sd.compile(problem, backend="python"), np.zeros(2), np.eye(4)
    noisy = inverse_dynamics(model) + sd.JointTorque("all", noise=0.1, name="motors")
    estimator, q, y = sd.compile(noisy, backend="python"), np.zeros((5, 2)), np.arange(10.0).reshape(5, 2)
    return {
        "bodies": (1, chain),
        "threads": (1, lambda n: solver(q, q, q, threads=n)),
        "every": (1, lambda n: sd.simulate(problem, zero, zero, None, 4e-3, 1e-3, every=n)),
        "iterations of a contact": (1, lambda n: sd.unilateral(touching, 0.5, iterations=n)),
        "newton_steps": (0, lambda n: sd.Coulomb([3], newton_steps=n)),
        "rows of a point": (1, lambda n: sd.Coulomb([n])),
        "max_iter": (1, lambda n: sd.inverse_kinematics(model, "body1", target, zero, max_iter=n)),
        "iterations of learning": (1, lambda n: sd.learn_noise(estimator, q, q, q, y={"motors": y}, iterations=n)),
    }


@pytest.mark.parametrize("what", COUNTED)
def test_numbers_of_things_are_integers(what):
    assert {*_counting()} == {*COUNTED}
    least, call = _counting()[what]
    for wrong in (least - 1, True, least + 0.5, np.float64(least + 1), "2"):
        with pytest.raises(InvalidInput):
            call(wrong)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call(np.int64(max(least, 1)))
