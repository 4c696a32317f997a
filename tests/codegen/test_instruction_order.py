"""Instruction order: the same values to the last bit, sines and cosines first, short critical paths, little traffic."""

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
from sysdyn.codegen.instruction_order import contract, hoist_trig, memory_traffic, schedule_instructions
from sysdyn.codegen.llvm import target
from sysdyn.codegen.llvm.compile import compile_kernel
from sysdyn.codegen.llvm.emitter import Emitter
from sysdyn.codegen.partition import CONSTANT, EXTERNAL, LOCAL, partition
from sysdyn.codegen.slp import scalar_operations
from sysdyn.program.graph import Graph
from sysdyn.program.opcodes import ADD, COS, MUL, SIN, SUB
from sysdyn.program.program import Program

FAST = 2**30  # bytes of an instruction cache that holds all code
ORDERS = {"critical path": FAST, "least traffic": 0}


def instructions_of(program: Program):
    """(segment, its instructions in the order of the program)"""
    (segment,) = partition(program, 1, len(program)).segments
    return segment, contract(scalar_operations(segment.template), segment.template.exported)


@given(st.integers(0, 10**6), st.booleans())
def test_hoisted_sines_leave_each_value_as_it_is(seed, mark):
    program = random_program(seed, mark=mark)
    inputs = [x for group in random_inputs(program, 1, seed).values() for x in group[0].tolist()]
    other = hoist_trig(program)
    other.check()
    assert other.flops == program.flops
    values: list[dict[int, float]] = [{}, {}]
    outputs = [
        interpreter.run(x, inputs, watch=seen.__setitem__) for x, seen in zip((program, other), values, strict=True)
    ]
    np.testing.assert_array_equal(*outputs)
    for g, h in zip(program.guards, other.guards, strict=True):
        assert (g.label, g.threshold, g.weak) == (h.label, h.threshold, h.weak)
        assert values[0].get(g.value) == values[1].get(h.value)


@given(st.integers(0, 10**6))
def test_sines_are_in_a_piece_of_their_own_before_what_depends_on_them(seed):
    program = hoist_trig(random_program(seed))
    trig = np.isin(program.kind, (SIN, COS))
    if not trig.any():
        return
    begin = int(np.argmax(trig))
    end = min([c for c in program.cuts.tolist() if c > begin], default=len(program))
    assert trig[begin:end].all() and {begin, end} - {0, len(program)} <= set(program.cuts.tolist())
    assert any(segment.template.is_trig for segment in partition(program).segments) or any(
        begin <= g.value - program.first_op < end for g in program.guards
    )
    depends = np.zeros(program.first_op + len(program), dtype=bool)
    depends[program.first_op + begin : program.first_op + end] = True
    for k in range(end, len(program)):
        depends[program.first_op + k] = depends[program.lhs[k]] or (program.rhs[k] >= 0 and depends[program.rhs[k]])
        assert depends[program.first_op + k] or not trig[k]


@pytest.mark.parametrize("code_cache", ORDERS.values(), ids=ORDERS)
@given(seed=st.integers(0, 10**6))
def test_scheduled_instructions_compute_the_same_values(code_cache, seed):
    """Each operation once, after its operands, with the same operands: equal to the last bit."""
    program = random_program(seed, blocks=3, mark=False, guards=[])
    inputs = [x for group in random_inputs(program, 1, seed).values() for x in group[0].tolist()]
    segment, given_order = instructions_of(program)
    scheduled = schedule_instructions(given_order, 6, code_cache)
    assert sorted(x.result for x in scheduled) == sorted(x.result for x in given_order)
    assert scheduled == schedule_instructions(given_order, 6, code_cache)
    values: dict[int, float] = {}
    expected = interpreter.run(program, inputs, watch=values.__setitem__)
    known = {k * 4 + CONSTANT: x for k, x in enumerate(segment.constants)}
    known |= {k * 4 + EXTERNAL: inputs[v] for k, v in enumerate(segment.reads)}
    functions = interpreter.numpy_functions()
    for instruction in scheduled:
        for operation in instruction.operations:
            known[operation.result] = functions[operation.kind](*(known[x] for x in operation.operands))
    for k, value in zip(segment.template.exported, segment.writes, strict=True):
        assert known[k * 4 + LOCAL] == values[value]
    assert len(expected) == program.n_outputs


def test_a_product_is_contracted_with_the_sum_that_alone_reads_it():
    graph = Graph("none")
    a, b, c, d, e = x = graph.inputs("x", 5).tolist()
    shared = b * d
    outputs = [a * b + c, a * c - e * d, c - a * d, c + shared, a - shared, a * a + a]
    program = Program.from_graph(graph, [("x", x)], [("y", outputs)])
    _, instructions = instructions_of(program)
    kinds = sorted(tuple(operation.kind for operation in x.operations) for x in instructions)
    assert kinds == sorted([(MUL, ADD), (MUL, SUB), (MUL,), (MUL, SUB), (MUL,), (ADD,), (SUB,), (MUL, ADD)])
    value = np.array([3.0, 5.0, 7.0, 11.0, 13.0])
    np.testing.assert_array_equal(run_one(compile_kernel(program), program, value), [22, -122, -26, 62, -52, 12])


def test_traffic_that_can_be_counted_by_hand():
    registers = 10
    graph = Graph("none")
    x = graph.inputs("x", 2 * registers).tolist()
    total = x[0]
    for v in x[1:]:
        total = total + v
    _, chain = instructions_of(Program.from_graph(graph, [("x", x)], [("out", [total])]))
    assert memory_traffic(chain, registers) == len(x)  # each input once, nothing else
    roots = [v.sqrt() for v in x]  # all live until they are added
    total = roots[0]
    for v in roots[1:]:
        total = total + v
    _, program = instructions_of(Program.from_graph(graph, [("x", x)], [("out", [total])]))
    spilled = 2 * (len(roots) - registers)  # stored and loaded
    assert len(x) + spilled <= memory_traffic(program, registers) <= len(x) + spilled + 2
    for code_cache in ORDERS.values():  # each added at once
        assert memory_traffic(schedule_instructions(program, registers, code_cache), registers) == len(x)


def test_one_state_follows_the_critical_path_while_its_code_fits():
    """Two chains one after the other are interleaved, but not if code comes from beyond the instruction cache."""
    graph = Graph("none")
    x = graph.inputs("x", 2).tolist()
    ends = []
    for v in x:
        for _ in range(50):
            v = v.sqrt() + 1.0
        ends.append(v)
    _, instructions = instructions_of(Program.from_graph(graph, [("x", x)], [("y", ends)]))
    chain = {instruction.result: k // 100 for k, instruction in enumerate(instructions)}

    def changes(code_cache: int) -> int:
        order = [chain[x.result] for x in schedule_instructions(instructions, 30, code_cache)]
        return sum(a != b for a, b in zip(order[:-1], order[1:], strict=True))

    assert changes(FAST) > 90 and changes(100) == changes(0) == 1


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("make, output", [(sd.inverse_dynamics, "tau"), (sd.forward_dynamics, "qdd")])
def test_less_is_moved_for_a_robot(make, output):
    program = sd.compile(make(sd.random_tree(14, seed=4)), outputs=[output], backend="python", level="fast").program
    segments = partition(hoist_trig(program), 1, len(program)).segments
    longest = max(segments, key=lambda segment: len(segment.template.kind))
    instructions = contract(scalar_operations(longest.template), longest.template.exported)
    assert memory_traffic(schedule_instructions(instructions, 30), 30) < 0.95 * memory_traffic(instructions, 30)


def run_one(kernel, program: Program, x: np.ndarray) -> np.ndarray:
    """Outputs of a program of one group each, of one state."""
    out, status = np.empty(program.n_outputs), np.empty(1, dtype=np.int64)
    _, work = kernel.work()
    words = np.array([work, status.ctypes.data, x.ctypes.data, len(x), out.ctypes.data, len(out)], dtype=np.int64)
    kernel.run(words, 1)
    return out


@pytest.mark.parametrize("angles", [1, 2, 3, 4, 7, 8, 9, 17])
@pytest.mark.parametrize("level", [0, 2])
def test_one_state_takes_any_number_of_angles_at_a_time(angles, level):
    """Sines without cosines, sums of angles, angles that are outputs, and sines of sines."""
    graph = Graph()
    x = graph.inputs("x", angles)
    sums = [a + b for a, b in zip(x[:-1], x[1:], strict=True)]
    values = [*(a.sin() for a in x), *(a.cos() for a in sums), sums[-1] if sums else x[0], x[0].sin().cos()]
    program = Program.from_graph(graph, [("x", list(x))], [("out", values)])
    q = np.random.default_rng(angles).uniform(-9.0, 9.0, angles)
    out = run_one(compile_kernel(program, 1, level), program, q)
    np.testing.assert_allclose(out, interpreter.run(program, q.tolist()), rtol=0, atol=1e-14)


@pytest.mark.slow
def test_bound_calls_leave_no_references_and_outlive_their_solver():
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
def test_spilled_registers_are_aligned():
    program = hoist_trig(random_program(3, blocks=12))
    module = target.library().parse_assembly(Emitter(program, target.host_processor().lanes()).module())
    text = target.host_processor().machine(2).emit_assembly(module)
    segments, run = text.split("\nbody:")
    assert re.search(r"andq\s+\$-64, %rsp", run[: run.index("call")])
    assert re.search(r"movap[sd]\s.*\(%rsp\)", segments) and not re.search(r"movup[sd]\s.*\(%rsp\)", segments)
