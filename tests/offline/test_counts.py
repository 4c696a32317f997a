"""Fill-in, triangular forms, and operation counts that are those of an execution."""

from __future__ import annotations

import numpy as np
import pytest
from solvers import ALL_JOINTS, TABLE, TOLERANCE, compiled, icub_or, oracle_states, relative_error, states

from sysdyn.codegen import interpreter
from sysdyn.equations.problem_system import assemble
from sysdyn.model import (
    Cylindrical,
    Helical,
    Planar,
    Revolute,
)
from sysdyn.online.solver import Solver
from sysdyn.program.graph import Graph, is_constant, is_zero
from sysdyn.program.opcodes import ADD, COPYSIGN, COS, DIV, MUL, NEG, SIN, SQRT, SUB, Flops
from sysdyn.reference import rnea
from sysdyn.sparse.lu import eliminate


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


class Counted:
    """A number that depends on the state and counts the operations on it; floats are constants. Rules: design.md."""

    done: dict[str, int] = {}  # noqa: RUF012
    __array_priority__ = 1000

    def __init__(self, x: float):
        self.x = float(x)

    @staticmethod
    def _value(other) -> float:
        return other.x if isinstance(other, Counted) else float(other)

    def _do(self, kind: str, x: float) -> Counted:
        Counted.done[kind] = Counted.done.get(kind, 0) + 1
        return Counted(x)

    def __add__(self, other):
        return self if _is(other, 0.0) else self._do("add", self.x + self._value(other))

    __radd__ = __add__

    def __neg__(self):
        return Counted(-self.x)

    def __sub__(self, other):
        return self if _is(other, 0.0) else self._do("add", self.x - self._value(other))

    def __rsub__(self, other):
        return -self if _is(other, 0.0) else self._do("add", self._value(other) - self.x)

    def __mul__(self, other):
        if _is(other, 0.0):
            return 0.0
        if _is(other, 1.0) or _is(other, -1.0):
            return self if other > 0.0 else -self
        return self._do("mul", self.x * self._value(other))

    __rmul__ = __mul__

    def __truediv__(self, other):
        if _is(other, 1.0) or _is(other, -1.0):
            return self if other > 0.0 else -self
        return self._do("div", self.x / self._value(other))

    def __rtruediv__(self, other):
        return 0.0 if _is(other, 0.0) else self._do("div", self._value(other) / self.x)

    def sin(self):
        return Counted(np.sin(self.x))

    def cos(self):
        return Counted(np.cos(self.x))


def _is(x, value: float) -> bool:
    return not isinstance(x, Counted) and float(x) == value


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", ["fd", "id"])
@pytest.mark.parametrize("name", [ALL_JOINTS, "auto_tree 7 1.5 1.5 0.9"])
def test_counts_without_sharing_equal_those_of_an_elimination_on_numbers(name, kind):
    solver = compiled(name, kind, "aba")
    system, choice = assemble(solver.problem), solver.choice
    graph = Graph("none")
    assembly = system.build(graph)
    before = len(graph)
    factors = eliminate(assembly.rows, assembly.b, choice.row_perm, choice.col_perm)
    kinds = np.asarray(graph.kind[before:])
    q, qd, qdd, fx, expected = states(solver.model)
    values = system.values(
        {"q": q[:1], "qd": qd[:1], "qdd": qdd[:1], "tau": expected.tau[:1], "fx": fx[:1].reshape(1, -1)}
    )
    r, c = system.coordinates
    rows: list[dict[int, object]] = [{} for _ in assembly.rows]
    for i, j, x, fixed in zip(r.tolist(), c.tolist(), values[0][0], system.fixed_entries(), strict=True):
        rows[i][j] = float(x) if fixed else Counted(x)
    b = [0.0 if is_zero(e) else float(x) if is_constant(e) else Counted(x)
         for e, x in zip(assembly.b, values[1][0], strict=True)]  # fmt: skip
    Counted.done = {}
    found = eliminate(rows, b, choice.row_perm, choice.col_perm)
    counted = Counted.done
    assert factors.fill_in == found.fill_in
    assert np.isin(kinds, (ADD, SUB)).sum() == counted["add"]
    assert (kinds == MUL).sum() == counted["mul"]
    assert (kinds == DIV).sum() == counted.get("div", 0)
    tau = [found.solution[k] for k in system.layout.quantity_columns("tau")]
    np.testing.assert_allclose([x.x for x in tau], expected.tau[0], rtol=0, atol=1e-9 * np.abs(expected.tau[0]).max())
