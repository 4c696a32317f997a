"""Outputs of solvers: the requested outputs, values by name, accelerations of frames, residuals."""

from __future__ import annotations

import numpy as np
import pytest
from solvers import ALL_JOINTS, compiled, icub_or, oracle_states, small, small_states, states

import sysdyn as sd
from sysdyn.errors import InvalidInput
from sysdyn.model.quantities import QUANTITIES


def test_acceleration_of_one_state_and_of_the_base():
    solver = compiled(ALL_JOINTS, "id")
    q, qd, qdd, fx, expected = (x[0] if isinstance(x, np.ndarray) else x for x in states(solver.model))
    solution = solver(q, qd, qdd, fx=fx)
    body = solver.model.body_names[3]
    np.testing.assert_allclose(solution.acceleration(body, gravity=True), expected.a[0][3], rtol=1e-9)
    np.testing.assert_array_equal(solution.acceleration("base"), np.zeros(6))
    np.testing.assert_array_equal(
        solution.acceleration("base", gravity=True), np.concatenate([np.zeros(3), -solver.model.gravity])
    )
    with pytest.raises(sd.UnknownName, match=r"frame 'bodi3'.*Did you mean 'body3'"):
        solution.acceleration("bodi3")
    with pytest.raises(sd.UnknownName, match="reference 'wrld'.*'world'"):
        solution.acceleration(body, reference="wrld")


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "outputs", ["tau", ("qdd",), ["f", "tau"], *(pytest.param(x, marks=pytest.mark.slow) for x in (("a", "f"), "all"))]
)
def test_outputs_are_those_asked_for_and_need_fewer_operations(outputs):
    name = "random 9 1"
    solver, full = (
        compiled(name, "fd", "aba", tuple(outputs) if isinstance(outputs, list) else outputs),
        compiled(name, "fd", "aba"),
    )
    q, qd, _, fx, expected = states(solver.model)
    solution, reference = solver(q, qd, expected.tau, fx=fx), full(q, qd, expected.tau, fx=fx)
    wanted = QUANTITIES if outputs == "all" else (outputs,) if isinstance(outputs, str) else outputs
    assert set(solver.outputs) == set(wanted)
    for quantity in QUANTITIES:
        if quantity in wanted:
            np.testing.assert_allclose(
                solution[quantity], reference[quantity], rtol=1e-11, atol=1e-12 * np.abs(reference[quantity]).max()
            )
        else:
            with pytest.raises(AttributeError, match=f"{quantity} was not asked for"):
                getattr(solution, quantity)
    if outputs != "all":
        less = full.flops.end_to_end.total - solver.flops.end_to_end.total
        assert less >= 0 if "f" in wanted else less > 0  # f needs all of them
        with pytest.raises(InvalidInput, match="compile with outputs='all'"):
            solution.residual()


def test_a_known_quantity_as_the_only_output_costs_nothing():
    solver = compiled("random 9 1", "fd", "aba", "tau")
    q, qd, _, fx, expected = states(solver.model)
    assert solver.flops.end_to_end.total == 0
    np.testing.assert_array_equal(solver(q, qd, expected.tau, fx=fx).tau, expected.tau)


@pytest.mark.slow
def test_solution_by_name():
    solver = icub_or("icub floating", "fd")
    q, qd, tau, fx = (x[:5] for x in oracle_states("floating"))
    solution, model = solver(q, qd, tau, fx=fx), solver.model
    knee = model.joint_index("l_knee")
    np.testing.assert_array_equal(solution["qdd", "l_knee"], solution.qdd[:, model.v_slice(knee).start])
    free = solution["tau", model.joint_names[0]]
    np.testing.assert_array_equal(free, tau[:, :6])
    ankle = model.body_index("l_ankle_2")
    np.testing.assert_array_equal(solution["f", "l_ankle_2"], solution.f[:, ankle])
    np.testing.assert_array_equal(solution["a"], solution.a)
    with pytest.raises(sd.UnknownName, match=r"joint 'l_kne'.*Did you mean 'l_knee'"):
        solution["tau", "l_kne"]
    with pytest.raises(sd.UnknownName, match="output 'torque'"):
        solution["torque"]
    with pytest.raises(AttributeError, match="no attribute 'taus'"):
        solution.taus  # noqa: B018
    assert "(5,) states" in repr(solution) and "qdd (5, 38)" in repr(solution)


def test_residual_is_that_of_the_assembled_system():
    solver = small()
    q, qd, tau, fx = small_states(6)
    solution, system = solver(q, qd, tau, fx=fx), sd.assemble(solver.problem)
    residual, error = solution.residual(), solution.backward_error()
    assert residual.shape == (6, system.shape[0]) and error.shape == (6,)
    for k in range(6):
        D, b = system.D(q[k]), system.b(q[k], qd[k], tau=tau[k], fx=fx[k])
        d = np.zeros(system.shape[1])
        for quantity in QUANTITIES:
            d[system.layout.quantity_columns(quantity)] = np.ravel(solution[quantity][k])
        np.testing.assert_allclose(D @ d + b, residual[k], rtol=0, atol=1e-13 * np.abs(d).max())
        expected = np.max(np.abs(residual[k]) / np.maximum(np.abs(D) @ np.abs(d) + np.abs(b), 1e-300))
        assert error[k] <= expected * (1.0 + 1e-6) + 1e-18  # unknowns count with the size of their vectors
        assert error[k] < 1e-13
    solution.qdd[...] += 1e-3  # a wrong answer is seen
    assert solution.backward_error().min() > 1e-8
