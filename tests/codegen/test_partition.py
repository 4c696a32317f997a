"""Segments of programs: what they compute, which code they share, who is packed, and where values are kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import BLOCK, random_inputs, random_program

from sysdyn.codegen import interpreter
from sysdyn.codegen.llvm.machine_code import MachineCode
from sysdyn.codegen.partition import CONSTANT, EXTERNAL, LOCAL, MAX_OPS, MIN_OUTLINED_OPS, MIN_REPEATS, partition
from sysdyn.program.graph import Graph
from sysdyn.program.opcodes import BAD_INPUT
from sysdyn.program.program import Program
from sysdyn.runtime.runner import Runner

seeds = st.integers(0, 10**6)


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
    """Run the segments on a memory that knows whose value each place holds; outputs in order.

    Asserts that what is read is in its place, and that no place is written while its value is needed.
    """
    plan = partition(program, lanes)
    first, n_in, slot = program.first_op, program.n_inputs, plan.workspace_slot
    memory: list[tuple[int, float] | None] = [(k, x) for k, x in enumerate(inputs)]
    memory += [None] * (plan.n_slots - n_in)

    def stored(value: int, place: int) -> float:
        entry = memory[place]
        assert entry is not None and entry[0] == value, f"value {value} is not in its place"
        return entry[1]

    reads = [{v for lane in segment.instances for v in lane.reads} for segment in plan.segments]
    functions, done = interpreter.numpy_functions(), []
    for s, segment in enumerate(plan.segments):
        template, results = segment.template, []
        assert len(segment.instances) <= lanes and (segment.kind == "packed") == bool(segment.packed_with)
        for lane in segment.instances:  # all read before any writes
            assert lane.template == template and 0 < len(template.kind) == lane.end - lane.start <= MAX_OPS
            assert len(set(lane.reads)) == len(lane.reads)
            assert lane.writes == [first + lane.start + k for k in template.exported]
            local: list[float] = []
            values = {LOCAL: local, CONSTANT: lane.constants, EXTERNAL: [stored(v, slot[v]) for v in lane.reads]}
            for kind, *codes in zip(template.kind, template.lhs, template.rhs, strict=True):
                local.append(functions[kind](*(values[code % 4][code // 4] for code in codes if code >= 0)))
            results.append([local[k] for k in template.exported])
            done += range(lane.start, lane.end)
        later = set().union(*reads[s + 1 :])
        for lane, values in zip(segment.instances, results, strict=True):
            for value, x in zip(lane.writes, values, strict=True):
                entry = memory[slot[value]]
                assert slot[value] >= n_in, "an input is overwritten"
                assert entry is None or entry[0] not in later, f"value {entry[0]} is overwritten"
                memory[slot[value]] = (value, x)
    assert sorted(done) == list(range(len(program)))  # each operation once
    copies, outputs = dict(plan.output_copies), []
    for place, value in enumerate(program.output_values.tolist(), start=n_in):
        if n_in <= value < first:
            outputs.append(float(program.constants[value - n_in]))
        else:
            outputs.append(stored(value, slot[value] if place in copies else place))
        assert copies.get(place, value) == value
    return outputs


def check(program: Program, lanes: int = 1, seed: int = 0) -> None:
    inputs = [x for group in random_inputs(program, 1, seed).values() for x in group[0].tolist()]
    np.testing.assert_array_equal(interpret(program, inputs, lanes), interpreter.run(program, inputs))


@given(seeds, st.booleans(), st.sampled_from(["none", "structural"]))
def test_values_keep_their_places(seed, mark, sharing):
    check(random_program(seed, mark=mark, sharing=sharing), seed=seed)


@given(seeds, st.integers(2, 7), st.integers(1, 20), st.integers(0, 20), st.sampled_from([1, 2, 4, 8]))
def test_values_of_packed_segments_keep_their_places(seed, n, count, chained, lanes):
    check(columns(seed, n, count, chained), lanes, seed)


@pytest.mark.parametrize("blocks", [0, 40, 150])
def test_values_of_long_programs_keep_their_places(blocks):
    for seed in (1, 2):
        for mark in (False, True):
            check(random_program(seed, blocks=blocks, mark=mark), seed=seed)


@given(seeds, st.booleans())
def test_blocks_that_depend_on_one_another_are_not_packed(seed, mark):
    program = random_program(seed, mark=mark)
    check(program, 8, seed)
    assert all(segment.kind != "packed" for segment in partition(program, 8).segments)


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (columns(0, 5, 8), [8, 8]),
        (columns(0, 5, 19), [8, 8, 3, 8, 8, 3]),
        (columns(0, 5, 10), [8, 8]),  # two are left over: too few
        (columns(0, 5, 8, chained=8), [8]),  # the second pieces depend on one another
        (columns(0, 2, 8), [8]),  # the solves are too short
    ],
)
def test_packs(program, sizes):
    plan = partition(program, 8)
    assert [len(segment.instances) for segment in plan.segments if segment.kind == "packed"] == sizes
    assert all(segment.kind != "packed" for segment in partition(program).segments)


def test_neighbouring_lanes_are_neighbours_in_memory():
    plan = partition(columns(0, 5, 8), 8)
    first, second = (segment for segment in plan.segments if segment.kind == "packed")
    for values in zip(*(lane.writes for lane in second.instances), strict=True):
        assert np.all(np.diff(plan.workspace_slot[list(values)]) == 1), "outputs by row lie together as they are"
    reads = zip(*(lane.reads for lane in first.instances), strict=True)
    assert sum(len(set(values)) > 1 for values in reads) == 5, "the matrix is the same for all"


def test_places_are_used_again():
    """A chain of blocks needs the memory of a few of them, however long it is."""
    short, long = (partition(random_program(3, blocks=blocks)) for blocks in (20, 80))
    assert len(long.segments) > 3 * len(short.segments)
    assert long.n_slots <= short.n_slots + 2 * BLOCK


def test_templates_that_occur_three_times_are_outlined():
    """In most random programs: a sine that is computed once changes its block. Each has thresholds of its own."""
    guarded, having = [], 0
    for seed in range(40):
        plan = partition(random_program(seed, blocks=8))
        outlined = [s for s in plan.segments if s.kind == "outlined"]
        for segment in outlined:
            assert len(segment.template.kind) >= MIN_OUTLINED_OPS
            assert sum(s.template == segment.template for s in outlined) >= MIN_REPEATS
        inline = [s.kind == "inline" for s in plan.segments]
        assert not any(a and b for a, b in zip(inline[:-1], inline[1:], strict=True))  # neighbours are merged
        having += bool(outlined)
        guarded += [s for s in outlined if s.template.guards]
    assert having >= 15 and len(guarded) >= 20
    assert any(s.template == t.template and s.constants != t.constants for s in guarded for t in guarded)


@pytest.mark.parametrize(("rest", "kinds"), [(10, {"inline", "outlined"}), (200, {"inline"})])
def test_repeated_pieces_are_outlined_if_they_are_most_of_a_program(rest, kinds):
    graph = Graph("none")
    x = graph.inputs("x", 4).tolist()
    y, ends = x[0], []
    for _ in range(rest):
        y = y * x[1] + x[2]
    for v in (x[3], y, x[1]):
        graph.cut()
        v = graph.decouple(v)
        for k in range(15):
            v = v * v + 0.5 + 0.01 * k
        ends.append(v)
    program = Program.from_graph(graph, [("x", x)], [("y", ends)])
    assert {segment.kind for segment in partition(program).segments} == kinds


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
