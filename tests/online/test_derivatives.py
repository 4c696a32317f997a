"""Derivatives against Pinocchio's, central differences and one another."""

from __future__ import annotations

import itertools
import subprocess

import numpy as np
import pinocchio as pin
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import icub
from pinocchio_models import Twin
from programs import executed
from robots import ROBOTS, floating_tree, load_robot
from solvers import ALIGNED, aligning, aligning_states
from values import random_groups

import sysdyn as sd
from sysdyn.codegen.partition import partition
from sysdyn.errors import InvalidInput, SingularState, UnknownName
from sysdyn.model.joints import JOINTS
from sysdyn.offline.compile import ordered_system
from sysdyn.offline.derivatives import SymbolicDerivatives, analytic, implicit
from sysdyn.offline.elimination import Elimination
from sysdyn.offline.sampling import sample_states
from sysdyn.program.autodiff import evaluate
from sysdyn.program.program import Program
from sysdyn.runtime.buffer_pool import MIN_BYTES
from sysdyn.sparse.lu import eliminate, solve, solve_transposed

PIN_JOINTS = ("revolute", "prismatic", "spherical", "free")
MODELS = {
    **{name: lambda name=name: load_robot(name)[0] for name in ROBOTS},
    "auto_tree": lambda: sd.auto_tree(7, 2, 1.5, 0.9),
    "pin_joints": lambda: sd.random_tree(7, seed=5, joints=PIN_JOINTS),
    "icub_floating": lambda: icub("floating"),
}
ALL_JOINTS = sd.random_tree(9, seed=3)


def close(found, expected, tolerance=1e-8):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max(initial=0.0)))


def fast(problem: sd.Problem, **options) -> sd.Solver:
    """A solver that is compiled in little time: nothing here depends on its order."""
    return sd.compile(problem, **({"level": "fast"} | options))


def whole(made: SymbolicDerivatives) -> Program:
    """The program of all blocks."""
    blocks = [("".join(key), list(block.flat)) for key, block in made.blocks.items()]
    return Program.from_graph(made.graph, made.inputs, blocks)


def beside(made: SymbolicDerivatives) -> float:
    """The share of operations that run side by side."""
    program = whole(made)
    segments = [s for s in partition(program, 8).segments if s.packed_with]
    return sum(len(s.template.kind) * len(s.instances) for s in segments) / len(program)


def differences(function, model: sd.Model, x: np.ndarray, position: bool, step: float = 1e-5) -> np.ndarray:
    """Central differences of an array function by x, in the tangent space where it is a position."""
    columns = []
    for e in step * np.eye(model.nv if position else x.size):
        ends = [model.integrate(x, s * e) if position else x + s * e.reshape(x.shape) for s in (1.0, -1.0)]
        columns.append((function(ends[0]) - function(ends[1])) / (2 * step))
    return np.stack(columns, axis=-1) if columns else np.zeros((*function(x).shape, 0))


# ---- against Pinocchio ---------------------------------------------------------------------------------------------


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "icub_floating")) for name in MODELS]
)
def test_derivatives_are_those_of_pinocchio(name):
    model = MODELS[name]()
    twin = Twin(model)
    rng = np.random.default_rng(1)
    q, qd, x = model.random_state(seed=1, batch=5)
    fx = rng.standard_normal((5, model.nb, 6))
    inverse = fast(sd.inverse_dynamics(model), outputs="tau", ordering="rnea").derivatives(wrt=("q", "qd", "qdd"))
    forward = fast(sd.forward_dynamics(model), outputs="qdd", ordering="aba").derivatives(wrt=("q", "qd", "tau"))
    assert inverse.method == forward.method == "analytic"
    found, solved = inverse(q, qd, x, fx=fx), forward(q, qd, x, fx=fx)
    for k in range(5):
        state = (twin.position(q[k]), twin.T @ qd[k], twin.T @ x[k], twin.wrenches(fx[k]))
        pin.computeRNEADerivatives(twin.pin, twin.data, *state)
        H = np.triu(twin.data.M) + np.triu(twin.data.M, 1).T
        for key, expected in (("q", twin.data.dtau_dq), ("qd", twin.data.dtau_dv), ("qdd", H)):
            close(found["tau", key][k], twin.ours(expected))
        pin.computeABADerivatives(twin.pin, twin.data, *state)
        Minv = np.triu(twin.data.Minv) + np.triu(twin.data.Minv, 1).T
        for key, expected in (("q", twin.data.ddq_dq), ("qd", twin.data.ddq_dv), ("tau", Minv)):
            close(solved["qdd", key][k], twin.ours(expected))
    for J, values in ((inverse, found), (forward, solved)):
        for key, value in J(q[2], qd[2], x[2], fx=fx[2]).items():  # by the kernel of one state
            close(value, values[key][2], 1e-10)


# ---- against differences -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", JOINTS)
def test_rates_are_the_derivative_of_integrate(kind):
    joint = JOINTS[kind]()
    rng = np.random.default_rng(0)
    q, v = joint.random(rng), rng.standard_normal(joint.nv)
    expected = (joint.integrate(q, 1e-6 * v) - joint.integrate(q, -1e-6 * v)) / 2e-6
    np.testing.assert_allclose(joint.rates(q) @ v, expected, atol=1e-9)


def test_every_joint_type_against_differences_of_the_reference():
    model = ALL_JOINTS.replace(armature=np.linspace(0.0, 0.3, ALL_JOINTS.nv))
    q, qd, qdd = model.random_state(seed=2)
    fx = np.random.default_rng(0).standard_normal((model.nb, 6))
    found = sd.rnea_derivatives(model, q, qd, qdd, fx)
    close(found.tau, sd.rnea(model, q, qd, qdd, fx), 1e-12)
    close(found.H, sd.crba(model, q), 1e-12)
    close(found.dtau_dq, differences(lambda x: sd.rnea(model, x, qd, qdd, fx), model, q, True))
    close(found.dtau_dqd, differences(lambda x: sd.rnea(model, q, x, qdd, fx), model, qd, False))
    by_fx = differences(lambda x: sd.rnea(model, q, qd, qdd, x), model, fx, False)
    close(found.dtau_dfx.reshape(model.nv, -1), by_fx)
    batch = sd.rnea_derivatives(model, np.tile(q, (3, 1)), qd, qdd, fx)
    for one, many in zip(found, batch, strict=True):
        np.testing.assert_allclose(many, np.broadcast_to(one, many.shape), atol=1e-12)


def sensors() -> sd.Problem:
    """An acceleration is unknown, an accelerometer on a leaf tells it."""
    model = sd.auto_tree(5, 2, 0.7, 0.9)
    problem = sd.inverse_dynamics(model) - sd.JointAcceleration([model.joint_names[1]])
    return problem + sd.Accelerometer(model.body_names[4], components=["a_x"], name="accelerometer")


def estimation() -> sd.Problem:
    model = sd.chain(3, seed=2)
    torques = sd.JointTorque("all", noise=0.1, name="torques")
    accelerations = sd.JointAcceleration("all", noise=0.5, name="accelerations")
    return sd.Problem(model, [sd.ExternalWrench("all", name="fx"), torques, accelerations])


CASES = {
    "hybrid": (lambda: sd.hybrid_dynamics(ALL_JOINTS, [ALL_JOINTS.joint_names[4], ALL_JOINTS.joint_names[6]]),
               ("tau", "qdd"), ("q", "qd", "tau", "qdd", "fx"), "analytic"),
    "wrenches": (lambda: sd.forward_dynamics(sd.random_tree(3, seed=4, joints=("free", "revolute", "planar"))),
                 ("qdd", "a", "f"), ("q", "qd", "tau"), "implicit"),
    "sensors": (sensors, ("tau", "qdd"), None, "implicit"),
    "one_sensor": (sensors, ("tau", "f"), ("accelerometer",), "implicit"),
    "estimation": (estimation, ("qdd", "tau"), None, "implicit"),
}  # fmt: skip


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_problem_against_differences_of_its_solver(case):
    make, of, wrt, method = CASES[case]
    problem = make()
    model = problem.model
    solver = fast(problem, outputs=of)
    J = solver.derivatives(of=of, wrt=wrt)
    assert J.method.startswith(method)
    if case == "sensors":
        assert J.wrt == ("q", "qd", "qdd", "accelerometer")
    if case == "estimation":
        assert J.wrt == ("q", "qd", "torques", "accelerations")
    state = {k: x[0] for k, x in random_groups(problem, 1, seed=3).items() if not k.startswith("noise:")}

    def arguments(changed=()):
        values = {**state, **dict(changed)}
        y = {k.removeprefix("y:"): x for k, x in values.items() if k.startswith("y:")}
        return {k: x for k, x in values.items() if k in ("q", "qd", "tau", "qdd", "fx")} | ({"y": y} if y else {})

    found = J(**arguments())
    for (x, name), value in found.items():
        group = name if name in state else f"y:{name}"
        expected = differences(
            lambda z, x=x, group=group: solver(**arguments({group: z}))[x].ravel(), model, state[group], name == "q"
        )
        assert value.shape[: solver(**arguments())[x].ndim] == solver(**arguments())[x].shape
        close(value.reshape(expected.shape), expected, 1e-7)


@pytest.mark.slow
@given(seed=st.integers(0, 1000), n=st.integers(1, 4), torques=st.integers(0, 15))
@settings(max_examples=8)
def test_the_forms_agree(seed, n, torques):
    """Recursions, and implicit differentiation by columns and by rows of the same system."""
    model = sd.random_tree(n, seed=seed)
    problem = sd.hybrid_dynamics(model, [name for k, name in enumerate(model.joint_names) if torques >> k & 1])
    choice = fast(problem, backend="python").choice
    of, wrt = ("tau", "qdd"), tuple(name for name, _ in problem.input_sizes)
    forms = []
    for inputs in (wrt, [name for name in wrt if name != "fx"]):
        forms.append(analytic(problem, of, inputs))
    for transposed in (False, True):
        elimination = Elimination(sd.assemble(problem), choice.row_perm, choice.col_perm)
        forms.append(implicit(elimination, (), of, wrt, transposed))
    state = {name: x[0] for name, x in random_groups(problem, 1, seed=seed).items()}
    results = []
    for form in forms:
        named = {f"{g}[{k}]": float(x) for g, v in form.inputs for k, x in enumerate(np.ravel(state[g]))}
        results.append({key: np.asarray(evaluate(block, named), dtype=float)
                        for key, block in form.blocks.items()})  # fmt: skip
    for key, value in results[0].items():
        for other in results[1:]:
            if key in other:
                close(other[key], value, 1e-9)


def test_most_operations_of_a_long_program_run_side_by_side():
    made = analytic(sd.forward_dynamics(icub("floating")), ("qdd",), ("q", "qd", "tau"), external_wrenches=False)
    assert beside(made) > 0.6


# Limbs of two and three on a trunk; limbs that a joint of the trunk moves as a whole, of which one carries two more.
TRUNKS = (-1, 0, 1, 2, 1, 4, 0), (-1, 0, 1, 2, 3, 3, 5, 2), (-1, 0, 1, 2, 3, 1, 5, 6, 7, 5, 0, 10, 11)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("rotors", [False, True])
@pytest.mark.parametrize("parent", TRUNKS)
def test_accelerations_of_a_floating_tree_by_torques_positions_and_velocities(parent, rotors):
    """By torques they are the inverse of the mass matrix, by others those of inverse dynamics."""
    model = floating_tree(len(parent), 3, parent)
    if rotors:
        model = model.replace(armature=np.linspace(0.0, 0.3, model.nv))
    form = analytic(sd.forward_dynamics(model), ("qdd",), ("q", "qd", "tau"), external_wrenches=False)
    state = dict(zip(("q", "qd", "tau"), model.random_state(seed=2), strict=True))
    named = {f"{group}[{k}]": x for group, values in state.items() for k, x in enumerate(values.tolist())}
    found = {by: np.asarray(evaluate(block, named), dtype=float) for (_, by), block in form.blocks.items()}
    close(found["tau"], np.linalg.inv(sd.crba(model, state["q"])))
    known = sd.rnea_derivatives(model, state["q"], state["qd"], sd.aba(model, **state))
    close(found["q"], -np.linalg.solve(known.H, known.dtau_dq))
    close(found["qd"], -np.linalg.solve(known.H, known.dtau_dqd))


def test_solutions_with_factors_and_their_transpose():
    rng = np.random.default_rng(3)
    A = rng.standard_normal((9, 9)) * (rng.random((9, 9)) < 0.5) + 4.0 * np.eye(9)
    rows = [{j: float(x) for j, x in enumerate(row) if x} for row in A]
    perm = rng.permutation(9).tolist()
    factors = eliminate(rows, [0.0] * 9, perm, perm)
    b = rng.standard_normal(9)
    np.testing.assert_allclose(A @ solve(factors, b.tolist()) + b, 0.0, atol=1e-12)
    np.testing.assert_allclose(A.T @ solve_transposed(factors, b.tolist()), b, atol=1e-12)


# ---- the compiled object -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree() -> sd.Derivatives:
    return fast(sd.forward_dynamics(sd.auto_tree(6, 2, 1.5, 0.9)), outputs="qdd").derivatives()


def test_the_pattern_holds_what_is_nonzero_and_no_more(tree):
    """Branches of a tree do not feel each other's positions by dynamics of the base alone: some entries are zero."""
    problem = sd.inverse_dynamics(tree.model)
    for J in (tree, fast(problem, outputs="tau").derivatives()):
        states = random_groups(J.problem, 50, seed=0)
        for key, value in J(**states).items():
            np.testing.assert_array_equal(J.sparsity[key], (value != 0.0).any(axis=0))
    assert not J.sparsity["tau", "q"].all()


def test_zeros_are_zeros_in_memory_that_was_used_before(tree):
    """In every call, bound or not, whatever was in memory."""
    J = fast(sd.inverse_dynamics(tree.model), outputs="tau").derivatives()
    q, qd, qdd = tree.model.random_state(seed=0, batch=40)
    expected = sd.rnea_derivatives(tree.model, q, qd, qdd).dtau_dq
    for _ in range(3):
        junk = [np.full((40, tree.model.nv**2), np.nan) for _ in range(8)]
        del junk
        np.testing.assert_allclose(J(q, qd, qdd)["tau", "q"], expected, atol=1e-12)
    for own, dtau_dq in (((q, qd, qdd), expected), ((q[3], qd[3], qdd[3]), expected[3])):
        step = J.bind(*own)
        for block in step.out.values():
            block[:] = np.nan
        step()
        np.testing.assert_allclose(step.out["tau", "q"], dtau_dq, atol=1e-12)


def test_memory_of_results_is_used_again_if_nobody_has_them(tree):
    """Not while a view of them is there; what a caller wrote into them is gone, zeros included."""
    J = fast(sd.inverse_dynamics(tree.model), outputs="tau").derivatives()
    q, qd, qdd = tree.model.random_state(seed=0, batch=2 * MIN_BYTES // (8 * tree.model.nv**2))
    first = J(q, qd, qdd)
    kept = {key: x.copy() for key, x in first.items()}
    held, place = first["tau", "q"][3:5], first["tau", "q"].ctypes.data
    del first
    again = J(q, qd, qdd)
    assert again["tau", "q"].ctypes.data != place
    np.testing.assert_array_equal(held, kept["tau", "q"][3:5])
    place = again["tau", "q"].ctypes.data
    for x in again.values():
        x[:] = np.nan
    del again, x
    third = J(q, qd, qdd)
    assert third["tau", "q"].ctypes.data == place
    for key, x in third.items():
        np.testing.assert_array_equal(x, kept[key])


def test_counts_are_those_of_the_program_that_runs(tree):
    n = tree.program.n_inputs
    assert executed(tree.program, np.linspace(0.1, 1.0, n).tolist())[0] == tree.flops
    assert repr(tree).endswith(f"qdd by q, qd, tau; analytic, {tree.flops.total} operations")


def test_batches_and_prepared_calls(tree):
    model = tree.model
    q, qd, tau = model.random_state(seed=0, batch=6)
    flat = tree(q, qd, tau)
    shaped = tree(q.reshape(2, 3, -1), qd.reshape(2, 3, -1), tau[0], threads=2)["qdd", "q"]
    assert shaped.shape == (2, 3, model.nv, model.nv)
    np.testing.assert_array_equal(shaped[0, 0], flat["qdd", "q"][0])
    step, many = tree.bind(q[0], qd[0], tau[0]), tree.bind(q, qd, tau)
    for scale in (1.0, 0.5):
        tau *= scale
        expected = tree(q, qd, tau)
        step(), many()
        assert not step.status.any() and not many.status.any()
        for key, value in expected.items():
            np.testing.assert_allclose(step.out[key], value[0], rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(many.out[key], value, rtol=1e-12, atol=1e-12)
    assert tree(np.empty((0, model.nq)), qd[0], tau[0])["qdd", "tau"].shape == (0, model.nv, model.nv)


def test_what_is_wrong_is_named(tree):
    solver = fast(sensors(), outputs="qdd")
    with pytest.raises(UnknownName, match=r"accelerometr.*Did you mean 'accelerometer'"):
        solver.derivatives(wrt="accelerometr")
    with pytest.raises(UnknownName, match="Valid names: tau, qdd, fx, a, f"):
        solver.derivatives(of="q")
    with pytest.raises(InvalidInput, match="no output is selected"):
        solver.derivatives(of=())
    q, qd, tau = tree.model.random_state(seed=0)
    with pytest.raises(InvalidInput, match="tau"):
        tree(q, qd)
    with pytest.raises(InvalidInput, match="qd has shape"):
        tree(q, qd[1:], tau)
    with pytest.raises(InvalidInput, match="every input must be finite"):
        tree(q, qd * np.nan, tau)
    with pytest.raises(InvalidInput, match="angle of joint"):
        tree(q + 1e12, qd, tau)
    with pytest.raises(UnknownName, match="on_singular"):
        tree(q, qd, tau, on_singular="skip")
    without = fast(tree.problem, outputs="qdd", external_wrenches=False).derivatives(wrt="q")
    fx = np.zeros((tree.model.nb, 6))
    close(without(q, qd, tau, fx=fx)["qdd", "q"], tree(q, qd, tau)["qdd", "q"], 1e-12)
    fx[2, 3] = 1.0
    for call in (without, without.bind):
        with pytest.raises(InvalidInput, match="external_wrenches=False"):
            call(q, qd, tau, fx=fx)


def test_inputs_are_named_once_and_those_that_are_usually_zero_are_left_out():
    """External wrenches and values of constraints have to be asked for."""
    problem = sd.forward_dynamics(sd.chain(3, seed=1)) + sd.Contact("body2", ["a_z"], name="tip")
    solver = fast(problem, outputs=("qdd", "w"), backend="python")
    assert solver.derivatives().wrt == ("q", "qd", "tau") and solver.derivatives().of == ("qdd", "w")
    J = solver.derivatives(of=("w", "qdd", "w"), wrt=("tip", "fx", "tip"))
    assert (J.of, J.wrt) == (("w", "qdd"), ("tip", "fx")) and J.shapes["w", "fx"] == (1, 3, 6)


@pytest.mark.slow
def test_quantities_that_passes_have_changed_are_refused():
    """a is that of origins if it is no output, f that of moved parameters."""
    problem = sd.forward_dynamics(sd.random_tree(3, seed=4)) + sd.Contact("body2", ["a_z"], name="tip")
    for x, named in (("a", "classical_accelerations"), ("f", "base_parameters")):
        solver = fast(problem, outputs="qdd", backend="python", passes="all")
        assert named in solver.choice.passes
        with pytest.raises(sd.ProblemError, match=f"the pass '{named}' leaves another {x} in the equations"):
            solver.derivatives(of=x)
        assert fast(problem, outputs=["qdd", x], backend="python", passes="all").derivatives(of=x).of == (x,)


def test_recursions_are_differentiated_as_such_if_constraints_leave_them():
    """Without constraints whatever solved the problem, since its recursion is known."""
    free = sd.forward_dynamics(sd.chain(3, seed=1))
    held = free + sd.Contact("body2", ["a_z"], name="tip")
    methods = {}
    for problem, formulation in itertools.product((free, held), ("auto", "paper")):
        solver = fast(problem, outputs="qdd", backend="python", formulation=formulation)
        methods[solver.choice.is_recursion, problem is held] = solver.derivatives().method
    assert methods.pop((False, True)).startswith("implicit")
    assert methods == dict.fromkeys([(True, False), (False, False), (True, True)], "analytic")


@pytest.mark.parametrize(
    ("of", "wrt", "transposed"),
    [("tau", "q", True), ("tau", ("qd", "fx"), True), ("a", "qd", False), (("tau", "a"), ("q", "qd"), False)],
)
def test_the_form_of_fewer_solutions_is_taken(of, wrt, transposed):
    """By rows if outputs have at most as many scalars as inputs have directions."""
    problem = sensors()
    solver = fast(problem, outputs=("tau", "a"), backend="python")
    J = solver.derivatives(of=of, wrt=wrt)
    system, counts = ordered_system(problem, solver.options, solver.choice), []
    for by_rows in (transposed, not transposed):
        elimination = Elimination(system, *solver.choice.pivots)
        counts.append(implicit(elimination, (), J.of, J.wrt, by_rows).operations)
    assert J.method == ("implicit, transposed" if transposed else "implicit")
    assert J.flops.total == counts[0] < 1.05 * counts[1]


@pytest.mark.slow
def test_singular_states_raise_or_are_nan():
    """Joints at multiples of π/2, where the accelerometer may not feel the one that it is to tell of."""
    problem = sensors()
    solver = fast(problem, outputs="qdd", on_singular="nan")
    J = solver.derivatives()
    states = sample_states(problem, 400, seed=11)
    y = {"accelerometer": states.pop("y:accelerometer")}
    expected = solver(**states, y=y).ok
    assert 0 < (~expected).sum() < 200
    with pytest.raises(SingularState, match="of 400 states") as caught:
        J(**states, y=y)
    assert set(np.flatnonzero(~expected)) <= set(caught.value.states)
    found = J(**states, y=y, on_singular="nan")["qdd", "q"]
    solved = np.isfinite(found).all(axis=(1, 2))
    assert np.isnan(found[~solved]).all() and not solved[~expected].any() and solved.sum() > 200
    # beside them, where pivots are weak but no rounding errors, there are derivatives
    singular = np.flatnonzero(~expected)[:20]
    states["q"] = states["q"] + 1e-5 * np.random.default_rng(0).standard_normal(states["q"].shape)
    beside = J(**{name: x[singular] for name, x in states.items()}, y={"accelerometer": y["accelerometer"][singular]})
    assert np.isfinite(beside["qdd", "q"]).all()
    [guard] = J.program.guards
    assert guard.threshold < 1e-5 < guard.weak


def test_pivots_of_recursions_are_guarded():
    """Sliders that come to lie in one line: no derivatives there, whatever numbers come out."""
    J = fast(sd.forward_dynamics(aligning()), outputs="qdd").derivatives(wrt="q")
    assert J.method == "analytic" and J.program.guards
    q, qd, tau, fx = aligning_states()
    found = J(q, qd, tau, fx=fx, on_singular="nan")["qdd", "q"]
    assert np.isnan(found).all(axis=(1, 2)).tolist() == ALIGNED


def test_derivatives_are_exported_as_c(tree, tmp_path):
    folder = tree.export_c(tmp_path / "c", "tree")
    command = "gcc -std=c99 -Wall -Wextra -pedantic -Werror tree.c main.c -o main -lm".split()
    try:
        subprocess.run(command, cwd=folder, check=True, timeout=120)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    run = subprocess.run([folder / "main"], capture_output=True, text=True)
    assert run.returncode == 0 and "dqdd_dq" in run.stdout
