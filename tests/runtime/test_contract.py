"""The contract of back ends: one table of tests for those of the package and for a third one, which is written here.

The third one is an interpreter that counts the operations it executes.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from programs import random_inputs, random_program

import sysdyn as sd
from sysdyn.codegen import interpreter
from sysdyn.codegen.interpreter import Interpreter
from sysdyn.codegen.registry import BACKENDS, backend_named
from sysdyn.errors import InvalidInput, ProblemError, SingularState, UnknownName
from sysdyn.program.opcodes import (
    ADD,
    BAD_INPUT,
    BAD_OUTPUT,
    BAD_PIVOT,
    COS,
    DIV,
    MUL,
    OUT_OF_RANGE,
    SIN,
    SQRT,
    SUB,
    WEAK_PIVOT,
)
from sysdyn.program.program import Program
from sysdyn.runtime.runner import Runner

MODEL = sd.random_tree(4, seed=3)
NAMES = ("llvm", "python", "counting")
every = pytest.mark.parametrize("backend", NAMES)
COUNTED = {ADD: "add", SUB: "add", MUL: "mul", DIV: "div", SQRT: "sqrt"}


class Counting(Interpreter):
    """executed: the counts of the last run, whatever its number of states."""

    name = "counting"

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        functions = interpreter.numpy_functions()
        self.functions = {kind: partial(self._counted, kind, run) for kind, run in functions.items()}

    def run(self, *arguments) -> None:
        self._counts = dict.fromkeys(("mul", "add", "div", "sqrt"), 0)
        self._angles: dict[int, np.ndarray] = {}  # by identity; held, so that each has its own
        super().run(*arguments)
        self.executed = sd.Flops(**self._counts, trig=len(self._angles))

    def _counted(self, kind: int, run, *operands):
        if kind in COUNTED:
            self._counts[COUNTED[kind]] += 1
        elif kind in (SIN, COS):
            self._angles[id(operands[0])] = operands[0]
        return run(*operands)


@pytest.fixture(autouse=True)
def table_of_three(monkeypatch):
    monkeypatch.setitem(BACKENDS, Counting.name, Counting)
    assert set(BACKENDS) == set(NAMES)


def compiled(backend: str, outputs=("qdd",), make=sd.forward_dynamics, **options) -> sd.Solver:
    return sd.compile(make(MODEL), outputs=outputs, backend=backend, level="fast", **options)


def close(found, expected) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max(initial=1e-300))


# ---- one table for all ---------------------------------------------------------------------------------------------


@every
def test_programs_give_what_the_oracle_gives(backend):
    """One state, few, many, and many on threads; with results that are zero, not asked for, or shared inputs."""
    for seed in range(4):
        program = random_program(seed)
        inputs = random_inputs(program, 23, seed)
        expected, status = Runner(Interpreter(program)).results(inputs, 23)
        made = Runner(backend_named(backend)(program, level=0))
        for n, threads in ((0, None), (1, None), (5, 1), (23, None), (23, 3)):
            part = {name: x[:n] if n != 1 else x[0] for name, x in inputs.items()}
            found, bits = made.results(part, n, threads)
            np.testing.assert_array_equal(bits, status[:n])
            assert list(found) == list(program.outputs)
            for name, x in found.items():
                assert x.shape == expected[name][:n].shape
                if n:
                    close(x, expected[name][:n])
        shared = inputs | {"u": inputs["u"][0]}
        repeated = inputs | {"u": np.repeat(inputs["u"][:1], 23, axis=0)}
        for name, x in made.results(shared, 23)[0].items():
            close(x, made.results(repeated, 23)[0][name])


@every
def test_the_status_says_what_went_wrong_at_which_state(backend):
    def body(graph):
        x = graph.inputs("x", 2)
        guards = [(x[0] - x[1], 1e-3, "row → column", 1e-1)]
        return Program.from_graph(graph, [("x", x)], [("y", [1.0 / (x[0] - x[1])])], guards)

    program = body(sd.program.graph.Graph())
    x = np.array([[2.0, 1.0], [1.0, 0.95], [1.0, 1.0], [np.nan, 1.0]])
    made = Runner(backend_named(backend)(program, level=0))
    expected = [0, WEAK_PIVOT, WEAK_PIVOT | BAD_PIVOT | BAD_OUTPUT, BAD_INPUT | WEAK_PIVOT | BAD_PIVOT | BAD_OUTPUT]
    assert made.results({"x": x}, 4)[1].tolist() == expected
    assert [int(made.results({"x": row}, 1)[1][0]) for row in x] == expected
    np.testing.assert_allclose(made.guarded({"x": x})[:3], [[1.0], [0.05], [0.0]], atol=1e-15)
    ranged = Runner(backend_named(backend)(replace(program, ranges=((1, 2.0),)), level=0))
    x = np.array([[1.0, 2.0], [5.0, -2.5], [1.0, 2.5], [3.0, 1.0]] * 3)
    expected = [0, OUT_OF_RANGE, OUT_OF_RANGE, 0] * 3
    assert ranged.results({"x": x}, 12)[1].tolist() == expected
    assert [int(ranged.results({"x": row}, 1)[1][0]) for row in x] == expected
    graph = sd.program.graph.Graph()
    read = graph.inputs("z", 3)
    unread = Program.from_graph(graph, [("z", read)], [("y", [read[0] * read[2]])])
    z = np.where(np.eye(3, dtype=bool), np.nan, 1.0)  # nothing reads the second entry
    expected = [BAD_INPUT | BAD_OUTPUT, 0, BAD_INPUT | BAD_OUTPUT]
    made = Runner(backend_named(backend)(unread, level=0))
    assert made.results({"z": z}, 3)[1].tolist() == expected
    assert [int(made.results({"z": row}, 1)[1][0]) for row in z] == expected
    unguarded = Runner(backend_named(backend)(replace(program, guards=()), level=0))
    assert unguarded.guarded({"x": x}).shape[1] == 0


@every
def test_solvers_give_the_textbook_answer(backend):
    solver = compiled(backend)
    q, qd, tau = MODEL.random_state(seed=1, batch=7)
    expected = sd.aba(MODEL, q, qd, tau)
    close(solver(q, qd, tau).qdd, expected)
    close(solver(q[0], qd[0], tau[0]).qdd, expected[0])
    with pytest.raises(InvalidInput, match="q"):
        solver(q * np.nan, qd, tau)


@every
def test_singular_states_are_found(backend):
    function = sd.compile_function(lambda x: 1.0 / x, {"x": (1,)}, level=0, backend=backend)
    with pytest.raises(SingularState, match="no finite value at 1 of 2 states, the first being 1"):
        function(np.array([[1.0], [0.0]]))


@every
def test_derivatives_run_on_the_backend_of_their_solver(backend):
    solver = compiled(backend)
    J = solver.derivatives(wrt=("q", "tau"))
    assert type(J.executable.backend) is BACKENDS[backend]
    q, qd, tau = MODEL.random_state(seed=2)
    close(J(q, qd, tau)["qdd", "tau"], np.linalg.inv(sd.crba(MODEL, q)))
    step = 1e-6
    for k in range(MODEL.nv):
        moved = [MODEL.integrate(q, s * step * np.eye(MODEL.nv)[k]) for s in (1.0, -1.0)]
        column = (solver(moved[0], qd, tau).qdd - solver(moved[1], qd, tau).qdd) / (2.0 * step)
        np.testing.assert_allclose(J(q, qd, tau)["qdd", "q"][:, k], column, atol=1e-4 * max(1.0, np.abs(column).max()))


@every
def test_functions_run_on_every_backend(backend):
    function = sd.compile_function(partial(sd.crba, MODEL), {"q": (MODEL.nq,)}, level=0, backend=backend)
    q, _, _ = MODEL.random_state(seed=0, batch=5)
    close(function(q), sd.crba(MODEL, q))
    close(function(q[2]), sd.crba(MODEL, q[2]))


@pytest.mark.slow(after=1)
@every
def test_estimates_have_standard_deviations(backend):
    """The mean of n equal measurements has their deviation divided by √n."""
    measured = [sd.JointAcceleration("all", noise=0.3, name=f"encoders {k}") for k in range(4)]
    problem = sd.Problem(MODEL, [*measured, sd.ExternalWrench("all")])
    solver = sd.compile(problem, outputs="qdd", backend=backend, level="fast")
    q, qd, _ = MODEL.random_state(seed=4, batch=3)
    y = {m.name: np.full((3, MODEL.nv), float(k)) for k, m in enumerate(measured)}
    estimate = solver(q, qd, y=y)
    close(estimate.qdd, np.full((3, MODEL.nv), 1.5))
    close(estimate.std("qdd"), np.full((3, MODEL.nv), 0.15))
    programs = estimate.posterior.programs
    assert programs.keys() == {"variances of qdd"}
    assert all(type(x.backend) is BACKENDS[backend] for x in programs.values())


@every
def test_prepared_calls_compute_or_are_refused(backend):
    q, qd, tau = MODEL.random_state(seed=5)
    solver = compiled(backend)
    function = sd.compile_function(partial(sd.crba, MODEL), {"q": (MODEL.nq,)}, level=0, backend=backend)
    prepared = (
        (partial(solver.bind, q, qd, tau), lambda out: out["qdd"], solver(q, qd, tau).qdd),
        (
            partial(solver.derivatives(wrt="tau").bind, q, qd, tau),
            lambda out: out["qdd", "tau"],
            np.linalg.inv(sd.crba(MODEL, q)),
        ),
        (partial(function.bind, q), lambda out: out, sd.crba(MODEL, q)),
    )
    for bind, result, expected in prepared:
        if backend == "llvm":
            step = bind()
            step()
            close(result(step.out), expected)
        else:
            with pytest.raises(ProblemError, match="bind needs machine code: compile with backend='llvm'"):
                bind()


@every
def test_solvers_are_saved_with_their_backend(backend, tmp_path):
    solver = compiled(backend)
    solver.save(tmp_path / "solver.npz")
    loaded = sd.load_solver(tmp_path / "solver.npz")
    assert type(loaded.executable.backend) is BACKENDS[backend]
    q, qd, tau = MODEL.random_state(seed=6)
    np.testing.assert_array_equal(loaded(q, qd, tau).qdd, solver(q, qd, tau).qdd)


def test_unknown_backends_are_named():
    for call in (
        partial(backend_named, "numba"),
        partial(sd.compile, sd.forward_dynamics(MODEL), backend="numba"),
        partial(sd.compile_function, lambda x: x, {"x": (1,)}, backend="numba"),
    ):
        with pytest.raises(UnknownName, match="unknown backend 'numba'.*llvm, python, counting"):
            call()


# ---- what the third one is for -------------------------------------------------------------------------------------


@pytest.mark.parametrize("formulation", ["paper", "recursive"])
@pytest.mark.parametrize("make", [sd.forward_dynamics, sd.inverse_dynamics])
def test_what_is_executed_is_what_is_counted(make, formulation):
    outputs = "qdd" if make is sd.forward_dynamics else "tau"
    solver = compiled("counting", outputs, make, formulation=formulation, effort=0)
    state = MODEL.random_state(seed=7)
    solver(*state)
    assert solver.executable.backend.executed == solver.flops.end_to_end
    J = solver.derivatives()
    J(*state)
    assert J.executable.backend.executed == J.flops


# ---- without llvmlite ----------------------------------------------------------------------------------------------

ABSENT = """
import sys
sys.modules["llvmlite"] = None  # as if it were not installed: importing it raises ImportError
"""

WORKS = """
from functools import partial
import numpy as np
import sysdyn as sd
from sysdyn.codegen import interpreter
from sysdyn.frameworks import casadi
from sysdyn.codegen.c99 import CSource, Description

model = sd.random_tree(3, seed=1)
q, qd, tau = model.random_state(seed=0, batch=4)
solver = sd.compile(sd.forward_dynamics(model), backend="python")
assert np.allclose(solver(q, qd, tau).qdd, sd.aba(model, q, qd, tau))
assert np.allclose(solver(q[0], qd[0], tau[0]).qdd, sd.aba(model, q[0], qd[0], tau[0]))
blocks = solver.derivatives("qdd")(q, qd, tau)
assert np.allclose(blocks["qdd", "tau"], np.linalg.inv(sd.crba(model, q)))
function = sd.compile_function(partial(sd.crba, model), {"q": (model.nq,)}, backend="python")
assert np.allclose(function(q), sd.crba(model, q))
noisy = sd.Problem(model, [sd.JointAcceleration("all", noise=0.5), sd.ExternalWrench("all")])
estimator = sd.compile(noisy, backend="python")
estimate = estimator(q, qd, y={m.name: tau for m in noisy.noisy})
assert np.allclose(estimate.std("qdd"), 0.5)
assert "model_run" in CSource("model", solver.program, Description("forward dynamics")).source()
solver.export_c("exported")
regressor = sd.compile_regressor(model, backend="python")
assert np.allclose(regressor(q, qd, tau), sd.joint_torque_regressor(model, q, qd, tau))
import pickle
assert np.allclose(pickle.loads(pickle.dumps(solver))(q, qd, tau).qdd, sd.aba(model, q, qd, tau))
"""

REFUSED = """
import sysdyn as sd
from sysdyn.codegen import interpreter
from sysdyn.errors import BackendUnavailable

model = sd.chain(2)
for call in (
    lambda: sd.compile(sd.forward_dynamics(model)),
    lambda: sd.compile_function(lambda x: x, {"x": (1,)}),
    lambda: sd.compile_regressor(model),
):
    try:
        call()
    except BackendUnavailable as error:
        assert "pip install llvmlite" in str(error) and "backend='python'" in str(error), error
    else:
        raise AssertionError("compiled without llvmlite")
"""


@pytest.mark.slow
@pytest.mark.parametrize("program", [WORKS, REFUSED], ids=["python works", "llvm is refused"])
def test_without_llvmlite(program, tmp_path):
    run = subprocess.run([sys.executable, "-c", ABSENT + program], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_importing_the_package_does_not_load_llvmlite():
    code = "import sys, sysdyn; assert not any(name.startswith('llvmlite') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
