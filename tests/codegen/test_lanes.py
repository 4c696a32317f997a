"""Equal pieces of one state side by side in the lanes of a register: who may join, where values are kept, results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import random_inputs, random_program

from sysdyn.codegen import interpreter
from sysdyn.codegen.llvm.machine_code import MachineCode
from sysdyn.codegen.partition import CONSTANT, EXTERNAL, LOCAL, MIN_BESIDE, MIN_PACKED, schedule
from sysdyn.program.graph import Graph
from sysdyn.program.opcodes import BAD_INPUT
from sysdyn.program.program import Program
from sysdyn.runtime.runner import Runner


def columns(seed: int, n: int, count: int, chained: int = 0) -> Program:
    """Triangular solves of `count` right-hand sides with one matrix, each a piece, and a second piece for each result.

    The first `chained` of the second pieces need the one before. Outputs are by row, by column, and some twice.
    """
    rng = np.random.default_rng(seed)
    graph = Graph("structural")
    L, b = graph.inputs("L", n * n).reshape(n, n), graph.inputs("b", n * count).reshape(count, n)
    found, second = [], []
    for k in range(count):
        graph.cut()
        x = [graph.decouple(y) for y in b[k]]
        for i in range(n):
            for j in range(i):
                x[i] = x[i] - L[i, j] * x[j]
            x[i] = x[i] * float(rng.uniform(0.5, 1.0))
        found.append(x)
    for k, x in enumerate(found):
        graph.cut()
        y = [graph.decouple(v) for v in x]
        if 0 < k < chained:
            y[0] = y[0] + second[-1][-1]
        for _ in range(3):
            y = [0.5 * v + L[0, 0] * w for v, w in zip(y, [*y[1:], y[0]], strict=True)]
        second.append(y)
    graph.cut()
    rest = [second[0][0] * second[-1][-1] + found[0][0]]
    outputs = [
        ("rows", [x[i] for i in range(n) for x in second]),
        ("columns", [v for x in found for v in x]),
        ("rest", rest),
    ]
    return Program.from_graph(graph, [("L", L.ravel().tolist()), ("b", b.ravel().tolist())], outputs)


def interpret(program: Program, inputs: list[float], lanes: int) -> list[float]:
    """Run the schedule on a memory that knows whose value each place holds."""
    plan = schedule(program, lanes)
    memory: list[tuple[int, float] | None] = [None] * plan.n_slots
    for k, x in enumerate(inputs):
        memory[k] = (k, x)
    needed = [{v for lane in segment.lanes for v in lane.reads} for segment in plan.segments]
    functions, done = interpreter.numpy_functions(), 0
    for s, segment in enumerate(plan.segments):
        shape, results = segment.shape, []
        assert len(segment.lanes) <= lanes
        assert not segment.beside or (len(segment.lanes) >= MIN_BESIDE and len(shape.kind) >= MIN_PACKED)
        for lane in segment.lanes:  # all read before any writes
            assert lane.shape == shape
            outside = []
            for value in lane.reads:
                held = memory[plan.slot[value]]
                assert held is not None and held[0] == value, f"value {value} is not in its place"
                outside.append(held[1])
            local: list[float] = []
            held_by = {LOCAL: local, CONSTANT: lane.constants, EXTERNAL: outside}
            for kind, *codes in zip(shape.kind, shape.lhs, shape.rhs, strict=True):
                operands = [held_by[code % 4][code // 4] for code in codes if code >= 0]
                local.append(functions[kind](*operands))
            results.append([local[k] for k in shape.exported])
            done += len(shape.kind)
        later = set().union(*needed[s + 1 :])
        for lane, values in zip(segment.lanes, results, strict=True):
            for value, x in zip(lane.writes, values, strict=True):
                held = memory[plan.slot[value]]
                assert held is None or held[0] not in later, f"value {held[0]} is overwritten"
                memory[plan.slot[value]] = (value, x)
    assert done == len(program)
    copied, found = dict(plan.copies), []
    for place, value in enumerate(program.output_values.tolist(), start=program.n_inputs):
        if program.n_inputs <= value < program.first_op:
            found.append(float(program.constants[value - program.n_inputs]))
            continue
        held = memory[plan.slot[value] if place in copied else place]
        assert held is not None and held[0] == value
        found.append(held[1])
    return found


@given(st.integers(0, 10**6), st.integers(2, 7), st.integers(1, 20), st.integers(0, 20), st.sampled_from([1, 2, 4, 8]))
def test_values_of_lanes_keep_their_places(seed, n, count, chained, lanes):
    program = columns(seed, n, count, chained)
    inputs = [x for group in random_inputs(program, 1, seed).values() for x in group[0].tolist()]
    np.testing.assert_array_equal(interpret(program, inputs, lanes), interpreter.run(program, inputs))


@given(st.integers(0, 10**6), st.booleans())
def test_programs_of_blocks_that_need_one_another_stay_as_they_are(seed, mark):
    program = random_program(seed, mark=mark)
    inputs = [x for group in random_inputs(program, 1, seed).values() for x in group[0].tolist()]
    np.testing.assert_array_equal(interpret(program, inputs, 8), interpreter.run(program, inputs))
    assert not any(segment.beside for segment in schedule(program, 8).segments)


def test_who_is_beside_whom():
    def packs(program: Program) -> list[int]:
        return [len(segment.lanes) for segment in schedule(program, 8).segments if segment.beside]

    assert packs(columns(0, 5, 8)) == [8, 8]
    assert packs(columns(0, 5, 19)) == [8, 8, 3, 8, 8, 3]
    assert packs(columns(0, 5, 10)) == [8, 8]  # two are left over: too few
    assert packs(columns(0, 5, 8, chained=8)) == [8]  # those that need one another are not side by side
    assert packs(columns(0, 4, 8)) == [8]  # the solves are too short
    assert not any(s.beside for s in schedule(columns(0, 5, 8)).segments)


def test_neighbouring_lanes_are_neighbours_in_memory():
    program = columns(0, 5, 8)
    plan = schedule(program, 8)
    first, second = (segment for segment in plan.segments if segment.beside)
    rows = [[int(plan.slot[v]) for v in values] for values in zip(*(lane.writes for lane in second.lanes), strict=True)]
    assert all(np.all(np.diff(places) == 1) for places in rows), "outputs by row lie together as they are"
    reads = zip(*(lane.reads for lane in first.lanes), strict=True)
    varying = [values for values in reads if len(set(values)) > 1]
    assert len(varying) == 5, "the matrix is the same for all"


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("count", [3, 4, 5, 8, 11, 21])
def test_kernels_of_one_state_give_what_the_program_gives(count, level):
    """Lanes from 3 to a full register and more, whose operands and results are together or scattered."""
    program = columns(count, 6, count, chained=count // 3)
    executable = Runner(MachineCode(program, level))
    for seed in range(3):
        inputs = random_inputs(program, 1, seed)
        expected = interpreter.run_groups(program, inputs)
        outputs = {name: np.full((1, size), np.nan) for name, size in program.outputs.sizes.items()}
        status = np.empty(1, dtype=np.int64)
        executable.run(inputs, outputs, status)
        found, state = executable.results({name: x[0] for name, x in inputs.items()}, 1)
        assert status[0] == state[0] == 0
        for name, x in expected.items():
            np.testing.assert_allclose(outputs[name][0], np.ravel(x), rtol=1e-12, atol=1e-12)
            np.testing.assert_array_equal(found[name], outputs[name])
    bad = {name: x.copy() for name, x in inputs.items()}
    bad["b"][0, 3] = np.inf
    assert executable.results({name: x[0] for name, x in bad.items()}, 1)[1][0] & BAD_INPUT


def test_results_of_one_call_are_not_those_of_the_next():
    program = columns(0, 4, 3)
    executable = Runner(MachineCode(program))
    first = {name: x[0] for name, x in random_inputs(program, 1, 0).items()}
    found, _ = executable.results(first, 1)
    kept = {name: x.copy() for name, x in found.items()}
    executable.results({name: 2.0 * x for name, x in first.items()}, 1)
    for name, x in found.items():
        np.testing.assert_array_equal(x, kept[name])
