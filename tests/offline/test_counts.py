"""Fill-in, triangular forms, and operation counts that are those of an execution."""

from __future__ import annotations

import numpy as np
import pytest
from solvers import TABLE, TOLERANCE, compiled, icub_or, oracle_states, relative_error, states

from sysdyn.codegen import interpreter
from sysdyn.model import (
    Cylindrical,
    Helical,
    Planar,
    Revolute,
)
from sysdyn.online.solver import Solver
from sysdyn.program.opcodes import ADD, COPYSIGN, COS, DIV, MUL, NEG, SIN, SQRT, SUB, Flops
from sysdyn.reference import rnea


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["icub fixed", *(pytest.param(x, marks=pytest.mark.slow) for x in ("icub floating", "auto_tree 100 1.5 1.5 0.9"))],
)
def test_umfpack_finds_the_triangular_form_of_inverse_dynamics(name):
    solver = compiled(name, "id", "umfpack", level="fast")
    assert solver.fill_in == 0
    assert solver.triangular
    assert solver.flops.end_to_end.div == 0
    q, qd, qdd = solver.model.random_state(seed=1)
    assert solver(q, qd, qdd).backward_error() <= 1e-11
    assert relative_error(solver(q, qd, qdd).tau[None], rnea(solver.model, q, qd, qdd)[None]) <= TOLERANCE


def test_forward_dynamics_is_not_triangular():
    solver = compiled("puma560", "fd", "umfpack")
    assert solver.fill_in > 0
    assert not solver.triangular


def instrumented(solver: Solver, q, qd, **given) -> Flops:
    """Run the program once on numbers and count what is executed, by kind."""
    executed = dict.fromkeys((ADD, SUB, MUL, DIV, NEG, SQRT), 0)
    angles = set()

    def counted(kind, function):
        def execute(*operands):
            executed[kind] += 1
            return function(*operands)

        return execute

    def trigonometric(function):
        def execute(angle):
            angles.add(float(angle))
            return function(angle)

        return execute

    functions = {
        ADD: counted(ADD, lambda x, y: x + y), SUB: counted(SUB, lambda x, y: x - y),
        MUL: counted(MUL, lambda x, y: x * y),
        DIV: counted(DIV, lambda x, y: x / y), NEG: counted(NEG, lambda x: -x), SQRT: counted(SQRT, np.sqrt),
        COPYSIGN: np.copysign,
        SIN: trigonometric(np.sin), COS: trigonometric(np.cos),
    }  # fmt: skip
    inputs = {"q": q, "qd": qd, **given}
    flat = [x for name in solver.program.inputs for x in np.ravel(inputs[name])]
    outputs = interpreter.run(solver.program, flat, functions)
    expected = solver(q, qd, **given)
    flat_expected = np.concatenate([np.ravel(expected[name]) for name in solver.program.outputs])
    np.testing.assert_allclose(outputs, flat_expected, rtol=1e-9, atol=1e-9 * np.abs(flat_expected).max())
    return Flops(executed[MUL], executed[ADD] + executed[SUB], executed[DIV], executed[SQRT], len(angles))


TURNING = (Revolute, Helical, Cylindrical, Planar)  # one sin/cos pair each


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("kind", "ordering"), [row for row in TABLE if row[1] in ("aba", "umfpack", "markowitz")])
def test_counts_equal_an_instrumented_execution(kind, ordering):
    solver = compiled("random 9 1", kind, ordering, known="substituted", level="fast")
    q, qd, qdd, fx, expected = states(solver.model)
    answer = {"tau": expected.tau, "qdd": qdd, "fx": fx}
    given = {x: answer[x][0] for x in solver.problem.known_quantities}
    executed = instrumented(solver, q[0], qd[0], **given)
    assert solver.flops.end_to_end == executed
    turning = [i for i, joint in enumerate(solver.model.joints) if isinstance(joint, TURNING)]
    free_of_gravity = sum(solver.model.parent[i] < 0 for i in turning)  # the angle of a root about the vertical
    assert len(turning) - free_of_gravity <= executed.trig <= len(turning)
    assert solver.flops.solve.trig == 0
    assert 0 < solver.flops.solve.total < executed.total


@pytest.mark.slow
def test_counts_of_icub_equal_an_instrumented_execution():
    q, qd, x, fx = (array[0] for array in oracle_states("fixed"))
    for kind, known in (("fd", "tau"), ("id", "qdd")):
        solver = icub_or("icub fixed", kind)
        assert solver.flops.end_to_end == instrumented(solver, q, qd, fx=fx, **{known: x})
