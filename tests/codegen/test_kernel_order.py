"""Orders of operations: the same program, angles first, fewer moves between registers and memory."""

from __future__ import annotations

import gc
import platform
import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import random_inputs, random_program

import sysdyn as sd
from sysdyn.codegen import interpreter
from sysdyn.codegen.instruction_order import REGISTERS, angles_first, arranged, traffic
from sysdyn.codegen.llvm import target
from sysdyn.codegen.llvm.compile import compile_kernel
from sysdyn.codegen.llvm.emitter import Emitter
from sysdyn.codegen.partition import schedule
from sysdyn.program.graph import Graph
from sysdyn.program.opcodes import COS, SIN
from sysdyn.program.program import Program


def in_turn(program: Program) -> list[int]:
    return list(range(len(program)))


@given(st.integers(0, 10**6), st.booleans())
def test_other_orders_give_the_same_to_the_last_bit(seed, mark):
    program = random_program(seed, mark=mark)
    inputs = [x for group in random_inputs(program, 1, seed).values() for x in group[0].tolist()]
    expected = interpreter.run(program, inputs)
    for other in (angles_first(program)[0], arranged(program)):
        other.check()
        np.testing.assert_array_equal(interpreter.run(other, inputs), expected)
        assert other.flops == program.flops
        assert [(g.label, g.threshold, g.weak) for g in other.guards] == [
            (g.label, g.threshold, g.weak) for g in program.guards
        ]
        seen = [{}, {}]
        for values, made in zip(seen, (program, other), strict=True):
            interpreter.run(made, inputs, watch=values.__setitem__)
        for g, h in zip(program.guards, other.guards, strict=True):
            assert seen[0].get(g.value) == seen[1].get(h.value)


@given(st.integers(0, 10**6))
def test_angles_are_in_pieces_of_their_own_before_what_needs_them(seed):
    program, rest = angles_first(random_program(seed))
    angle = np.isin(program.kind, (SIN, COS))
    if not angle.any():
        return
    first = int(np.argmax(angle))
    assert angle[first:rest].all() and {first, rest} - {0, len(program)} <= set(program.cuts.tolist())
    assert any(segment.shape.angles for segment in schedule(program).segments) or any(
        first <= g.value - program.first_op < rest for g in program.guards
    )
    # what comes later is an angle only if it depends on another
    depends = np.zeros(program.first_op + len(program), dtype=bool)
    depends[program.first_op + first : program.first_op + rest] = True
    for k in range(rest, len(program)):
        depends[program.first_op + k] = depends[program.lhs[k]] or (program.rhs[k] >= 0 and depends[program.rhs[k]])
        assert depends[program.first_op + k] or not angle[k]


def test_programs_without_operations_stay_as_they_are():
    x = Graph().input("x")
    program = Program.from_graph(x.graph, [("x", [x])], [("out", [x, 2.0])])
    assert arranged(program) is program


def test_traffic_of_programs_that_can_be_counted_by_hand():
    graph = Graph("none")
    x = graph.inputs("x", 2 * REGISTERS)
    total = x[0]
    for v in x[1:]:
        total = total + v
    chain = Program.from_graph(graph, [("x", list(x))], [("out", [total])])
    assert traffic(chain, in_turn(chain)) == 2 * REGISTERS  # each input once, nothing else
    squares = [v * v for v in x]  # all kept until they are added up
    total = squares[0]
    for v in squares[1:]:
        total = total + v
    program = Program.from_graph(graph, [("x", list(x))], [("out", [total])])
    kept = 2 * (len(squares) - REGISTERS)  # stored and loaded again
    found = traffic(program, in_turn(program))
    assert len(x) + kept <= found <= len(x) + kept + 2
    assert traffic(arranged(program), in_turn(program)) == len(x)  # each added at once


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("make, output", [(sd.inverse_dynamics, "tau"), (sd.forward_dynamics, "qdd")])
def test_less_is_moved_for_a_robot(make, output):
    program = sd.compile(make(sd.random_tree(14, seed=4)), outputs=[output], backend="python", level="fast").program
    plain, _ = angles_first(program)
    assert not any(segment.shared for segment in schedule(plain).segments)
    assert traffic(arranged(program), in_turn(program)) < 0.95 * traffic(plain, in_turn(program))


@pytest.mark.parametrize("angles", [1, 2, 3, 4, 7, 8, 9, 17])
@pytest.mark.parametrize("level", [0, 2])
def test_one_state_takes_any_number_of_angles_together(angles, level):
    """Sines without cosines, sums of angles, angles that are outputs, and sines of sines."""
    graph = Graph()
    x = graph.inputs("x", angles)
    sums = [a + b for a, b in zip(x[:-1], x[1:], strict=True)]
    values = [*(a.sin() for a in x), *(a.cos() for a in sums), sums[-1] if sums else x[0], x[0].sin().cos()]
    program = Program.from_graph(graph, [("x", list(x))], [("out", values)])
    q = np.random.default_rng(angles).uniform(-9.0, 9.0, angles)
    kernel = compile_kernel(program, 1, level)
    out, status = np.empty(len(values)), np.empty(1, dtype=np.int64)
    _, work = kernel.work()
    words = np.array([work, status.ctypes.data, q.ctypes.data, angles, out.ctypes.data, len(values)], dtype=np.int64)
    kernel.run(words.ctypes.data, 1)
    np.testing.assert_allclose(out, interpreter.run(program, q.tolist()), rtol=0, atol=1e-14)


@pytest.mark.slow
def test_prepared_calls_leave_no_references_and_outlive_their_solver():
    model = sd.chain(3, seed=0)
    q, qd, tau = model.random_state(seed=0)
    expected = sd.aba(model, q, qd, tau)
    step = sd.compile(sd.forward_dynamics(model), outputs=["qdd"]).bind(q, qd, tau)
    gc.collect()
    step()
    np.testing.assert_allclose(step.out["qdd"], expected, rtol=1e-9)
    before = sys.getrefcount(None)
    for _ in range(10_000):
        assert step() is None
    assert abs(sys.getrefcount(None) - before) < 100
    for _ in range(100):
        del step
        step = sd.compile(sd.forward_dynamics(model), outputs=["qdd"]).bind(q, qd, tau)
    step()
    np.testing.assert_allclose(step.out["qdd"], expected, rtol=1e-9)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks for an instruction")
def test_registers_on_the_stack_begin_at_its_lines():
    program = arranged(random_program(3, blocks=12))
    module = target.library().parse_assembly(Emitter(program, target.here().lanes()).module())
    text = target.here().machine(2).emit_assembly(module)
    segments, run = text.split("\nrun:")
    assert re.search(r"andq\s+\$-64, %rsp", run[: run.index("call")])
    assert re.search(r"movap[sd]\s.*\(%rsp\)", segments) and not re.search(r"movup[sd]\s.*\(%rsp\)", segments)
