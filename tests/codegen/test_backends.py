"""Backends: machine code at every width and level against the NumPy run, status bits, sines, threads."""

from __future__ import annotations

import itertools
import math
import mmap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernels import run_kernel, run_llvm
from programs import assert_within, random_inputs, random_program, run_bounded

import sysdyn as sd
from sysdyn.codegen import interpreter
from sysdyn.codegen.llvm import machine_code
from sysdyn.codegen.llvm.compile import compile_kernel
from sysdyn.codegen.llvm.target import host_processor
from sysdyn.codegen.partition import MAX_OPS, partition
from sysdyn.files import cache
from sysdyn.program.graph import Graph
from sysdyn.program.opcodes import BAD_INPUT, BAD_OUTPUT, BAD_PIVOT, WEAK_PIVOT
from sysdyn.program.program import Program
from sysdyn.program.reproducible import LARGEST_ANGLE
from sysdyn.runtime.kernel import Kernel
from sysdyn.runtime.runner import Runner

seeds = st.integers(0, 10**6)


def run_python(program: Program, inputs: dict[str, np.ndarray], n: int) -> dict[str, np.ndarray]:
    full = {name: np.broadcast_to(x, (n, x.shape[-1])) for name, x in inputs.items()}
    return interpreter.run_groups(program, full)


WIDTHS, LEVELS = tuple(width for width in (1, 2, 4, 8) if width <= host_processor().lanes()), (0, 2)
BACKENDS = {"python": run_python} | {
    f"llvm, {width} wide, level {level}": run_llvm(width, level) for width in WIDTHS for level in LEVELS
}
each_width = pytest.mark.parametrize("width", WIDTHS)


# ---- values --------------------------------------------------------------------------------------------------------


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", BACKENDS)
@settings(max_examples=12)
@given(seeds)
def test_backends_agree_on_random_programs(name, seed):
    """To a few times the rounding errors, with outputs that are inputs, constants or repeated."""
    program = random_program(seed)
    n = 1 + seed % 11
    inputs = random_inputs(program, n, seed)
    expected, _ = run_bounded(program, inputs)
    found = BACKENDS[name](program, inputs, n)
    assert list(found) == list(program.outputs)
    for group, x in found.items():
        assert_within(x, expected[group])


def test_kernels_are_made_where_they_are_asked_for(monkeypatch, tmp_path):
    """Solvers ask for that of one state at once; whoever runs batches alone pays for no other."""
    monkeypatch.setenv("SYSDYN_CACHE", str(tmp_path))
    program = random_program(4)
    code = machine_code.MachineCode(program, 0)
    assert code.kernels and not interpreter.Interpreter(program).kernels and not [*tmp_path.iterdir()]
    for n, kernels in ((9, 1), (9, 1), (1, 2), (1, 2)):
        Runner(code).results(random_inputs(program, n, 0), n)
        assert len([*tmp_path.glob("*.o")]) == kernels
    sd.compile(sd.inverse_dynamics(sd.chain(2)), outputs="tau", level="fast")
    assert len([*tmp_path.glob("*.o")]) == 3


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_repeated_pieces_share_machine_code_and_give_the_same(name, seed):
    program = random_program(seed, blocks=9)
    shared = [s for s in partition(program).segments if s.kind == "outlined"]
    assert len(shared) >= 3 and len({s.template for s in shared}) < len(shared)
    assert len({tuple(s.constants) for s in shared}) > 1 and len({tuple(s.reads) for s in shared}) == len(shared)
    inputs = random_inputs(program, 5, seed)
    expected, _ = run_bounded(program, inputs)
    unmarked = random_program(seed, blocks=9, mark=False)
    assert not any(s.kind == "outlined" for s in partition(unmarked).segments)
    for made in (program, unmarked):
        for group, x in BACKENDS[name](made, inputs, 5).items():
            assert_within(x, expected[group])


@pytest.mark.parametrize("name", BACKENDS)
def test_a_solver_program_gives_the_same_on_every_backend(name):
    model = sd.random_tree(5, seed=2)
    program = sd.compile(sd.forward_dynamics(model), backend="python").program
    q, qd, tau = model.random_state(seed=0, batch=19)
    inputs = {"q": q, "qd": qd, "tau": tau, "fx": np.zeros(6 * model.nb)}
    inputs = {name: inputs[name] for name in program.inputs}
    expected = run_python(program, inputs, 19)
    for group, x in BACKENDS[name](program, inputs, 19).items():
        np.testing.assert_allclose(x, expected[group], rtol=1e-10, atol=1e-10 * np.abs(expected[group]).max())


@each_width
def test_any_number_of_states(width):
    """The remainder of the last block is not written, and states do not depend on their neighbours."""
    program = random_program(5, blocks=4)
    kernel = compile_kernel(program, width, 0)
    most = 3 * width + 2
    inputs = random_inputs(program, most, 0)
    whole, status = run_kernel(kernel, program, inputs, most)
    assert not status.any()
    for n in range(most):
        part, status = run_kernel(kernel, program, {k: x[:n] for k, x in inputs.items()}, n)
        assert not status.any()
        for group, x in part.items():
            np.testing.assert_array_equal(x, whole[group][:n])


@each_width
def test_one_row_serves_all_states(width):
    """Stride 0."""
    program = random_program(6, blocks=4)
    kernel, n = compile_kernel(program, width, 0), 2 * width + 1
    inputs = random_inputs(program, n, 0)
    mixed = {**inputs, "x": inputs["x"][0]}
    spread = {**inputs, "x": np.tile(inputs["x"][0], (n, 1))}
    found, _ = run_kernel(kernel, program, mixed, n)
    expected, _ = run_kernel(kernel, program, spread, n)
    for group, x in expected.items():
        np.testing.assert_array_equal(found[group], x)


def test_rows_are_prefetched_and_give_the_same():
    """Those of a batch that is larger than the cache, also at the end of a mapping, beyond which there is no memory."""
    program, width = random_program(6, blocks=4), host_processor().lanes()
    few = 5 * width + 3
    n = few * (2**20 // (8 * few * (program.n_inputs + program.n_outputs)))
    inputs = random_inputs(program, n, 0)
    kernel = compile_kernel(program, width, 0)
    parts = [slice(k, k + few) for k in range(0, n, few)]
    expected = [run_kernel(kernel, program, {x: y[part] for x, y in inputs.items()}, few)[0] for part in parts]
    for group, x in inputs.items():
        page = mmap.mmap(-1, (x.nbytes // mmap.PAGESIZE + 1) * mmap.PAGESIZE)
        inputs[group] = np.frombuffer(page)[-x.size :].reshape(x.shape) if x.size else x
        inputs[group][:] = x
    found, _ = run_kernel(kernel, program, inputs, n)
    for part, own in zip(parts, expected, strict=True):
        for group, x in own.items():
            np.testing.assert_array_equal(found[group][part], x)


@each_width
def test_null_outputs_are_skipped(width):
    program = random_program(7, blocks=4)
    kernel, n = compile_kernel(program, width, 0), width + 1
    inputs = random_inputs(program, n, 0)
    whole, _ = run_kernel(kernel, program, inputs, n)
    for skip in (("odd",), ("picked", "state"), tuple(whole)):
        part, status = run_kernel(kernel, program, inputs, n, skip)
        assert not status.any()
        for group in set(whole) - set(skip):
            np.testing.assert_array_equal(part[group], whole[group])


@each_width
def test_programs_without_operations_inputs_or_outputs(width):
    graph = Graph()
    x, y = graph.input("x"), graph.input("y")
    both = [("in", [x, y])]
    copies = Program.from_graph(graph, both, [("out", [y, 2.5, x, y, 0.0])])
    assert len(copies) == 0
    outputs, status = run_kernel(compile_kernel(copies, width, 0), copies, {"in": np.array([[1.0, 2.0]] * 3)}, 3)
    np.testing.assert_array_equal(outputs["out"], [[2.0, 2.5, 1.0, 2.0, 0.0]] * 3)
    constants = Program.from_graph(graph, [("none", [])], [("out", [4.0, -1.0])])
    outputs, status = run_kernel(compile_kernel(constants, width, 0), constants, {"none": np.empty((3, 0))}, 3)
    np.testing.assert_array_equal(outputs["out"], [[4.0, -1.0]] * 3)
    silent = Program.from_graph(graph, both, [("out", [])])
    _, status = run_kernel(compile_kernel(silent, width, 0), silent, {"in": np.array([[1.0, math.nan]])}, 1)
    assert status.tolist() == [0]  # nothing reads the inputs


def test_long_programs_are_cut_into_functions():
    program = random_program(8, blocks=150, mark=False)
    assert len(program) > 3 * MAX_OPS
    plan = partition(program)
    assert len(plan.segments) == -(-len(program) // MAX_OPS)
    inputs = random_inputs(program, 3, 0)
    expected, _ = run_bounded(program, inputs)
    for group, x in run_llvm(2, 0)(program, inputs, 3).items():
        assert_within(x, expected[group])


# ---- status --------------------------------------------------------------------------------------------------------


@each_width
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_inputs_that_are_no_numbers_are_flagged_at_their_state(width, bad):
    """Whatever their group, unless nothing reads them."""
    program = random_program(9, blocks=3, guards=[])
    read = {name: program.used_inputs[part] for name, part in program.inputs.slices.items()}
    kernel, n = compile_kernel(program, width, 0), 2 * width + 1
    whole, _ = run_kernel(kernel, program, random_inputs(program, n, 0), n)
    for group, size in program.inputs.sizes.items():
        for k in range(0, n, 2):
            for j in range(size):
                inputs = random_inputs(program, n, 0)
                inputs[group][k, j] = bad
                outputs, status = run_kernel(kernel, program, inputs, n)
                assert bool(status[k] & BAD_INPUT) == read[group][j] and not np.delete(status, k).any()
                for name, x in outputs.items():  # the others are what they were
                    np.testing.assert_array_equal(np.delete(x, k, axis=0), np.delete(whole[name], k, axis=0))


@each_width
def test_numbers_at_the_edges_are_numbers(width):
    graph = Graph()
    x = graph.input("x")
    program = Program.from_graph(graph, [("x", [x])], [("out", [x, -x])])
    edges = np.array([np.finfo(float).max, -np.finfo(float).max, 5e-324, -0.0, np.finfo(float).tiny])
    outputs, status = run_kernel(compile_kernel(program, width, 2), program, {"x": edges[:, None]}, 5)
    assert not status.any()
    np.testing.assert_array_equal(outputs["out"], np.stack([edges, -edges], axis=1))
    assert np.signbit(outputs["out"][3]).tolist() == [True, False]


@each_width
@pytest.mark.parametrize("level", LEVELS)
def test_results_that_are_no_numbers_are_flagged(width, level):
    graph = Graph()
    x, y = graph.input("x"), graph.input("y")
    program = Program.from_graph(graph, [("in", [x, y])], [("quotient", [x / y]), ("root", [x, y.sqrt()])])
    states = np.array([[1.0, 2.0], [1.0, 0.0], [0.0, 0.0], [1.0, -2.0], [1e300, 1e-300], [3.0, 4.0]])
    outputs, status = run_kernel(compile_kernel(program, width, level), program, {"in": states}, 6)
    bad = BAD_OUTPUT
    assert status.tolist() == [0, bad, bad, bad, bad, 0]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(outputs["quotient"][:, 0], states[:, 0] / states[:, 1])
        np.testing.assert_array_equal(outputs["root"][:, 1], np.sqrt(states[:, 1]))
    # an output that nobody asks for is not judged
    _, status = run_kernel(compile_kernel(program, width, level), program, {"in": states}, 6, ("quotient",))
    assert status.tolist() == [0, 0, 0, bad, 0, 0]


@each_width
@pytest.mark.parametrize("level", LEVELS)
def test_guards_flag_states_whose_pivot_is_zero_or_near_it(width, level):
    graph = Graph()
    x, y = graph.input("x"), graph.input("y")
    p, r = x * y + 0.5, x - y
    guards = [(p, 1e-3, "first", 1e-2), (r, 0.25, "second", 0.25)]
    program = Program.from_graph(graph, [("in", [x, y])], [("out", [1.0 / p, y / r])], guards)
    states = np.array([[1.0, 2.0], [1.0, -0.5], [1.0, -0.5005], [1.0, -0.502], [1.0, 0.875], [0.0, -0.25], [2.0, 1.76]])
    pivot, weak, bad = BAD_PIVOT | WEAK_PIVOT, WEAK_PIVOT, BAD_OUTPUT
    _, status = run_kernel(compile_kernel(program, width, level), program, {"in": states}, 7)
    assert status.tolist() == [0, pivot | bad, pivot, weak, pivot, 0, pivot]
    outputs, status = run_kernel(compile_kernel(program, width, level), program, {"in": np.array([[1.0, math.nan]])}, 1)
    assert status.tolist() == [BAD_INPUT | pivot | bad]


@each_width
def test_a_value_guarded_twice_meets_the_strictest_limits(width):
    graph = Graph()
    x, y = graph.input("x"), graph.input("y")
    p = x * y
    for guards in itertools.permutations([(p, 0.1, "first", 0.6), (p, 0.3, "second", 0.4)]):
        program = Program.from_graph(graph, [("in", [x, y])], [("out", [1.0 / p])], guards)
        states = np.array([[1.0, 0.2], [1.0, 0.5], [1.0, 0.7], [1.0, 0.35]])
        _, status = run_kernel(compile_kernel(program, width, 0), program, {"in": states}, 4)
        weak = WEAK_PIVOT
        assert status.tolist() == [BAD_PIVOT | weak, weak, 0, weak]


@pytest.mark.slow
@settings(max_examples=30)
@example(3628, 1)
@given(seeds, st.sampled_from(WIDTHS))
def test_guards_of_random_programs(seed, width):
    program = random_program(seed, blocks=2 + seed % 5)
    n = 7
    inputs = random_inputs(program, n, seed)
    _, results = run_bounded(program, inputs)
    expected, clear = np.zeros(n, dtype=int), np.ones(n, dtype=bool)
    for guard in program.guards:
        if guard.value >= program.first_op:
            v = results[guard.value]
            for limit, bit in ((guard.threshold, BAD_PIVOT), (guard.weak, WEAK_PIVOT)):
                expected |= np.where(np.abs(v.value) < limit, bit, 0)
                clear &= np.abs(np.abs(v.value) - limit) > 4.0 * v.error
    assert clear.all()  # no state so near to a threshold that rounding decides
    _, status = run_kernel(compile_kernel(program, width, 0), program, inputs, n)
    np.testing.assert_array_equal(status, expected)


# ---- sines ---------------------------------------------------------------------------------------------------------


def sincos_program() -> Program:
    graph = Graph()
    x = graph.input("x")
    return Program.from_graph(graph, [("x", [x])], [("out", [x.sin(), x.cos()])])


def angles() -> np.ndarray:
    """Random ones of all sizes to 1e6, and doubles at and next to multiples of π/4."""
    rng = np.random.default_rng(0)
    multiples = np.concatenate([np.arange(-2000, 2001), rng.integers(-1_273_239, 1_273_239, 20_000)]) * (math.pi / 4)
    x = np.concatenate([
        rng.uniform(-1e6, 1e6, 60_000), rng.uniform(-10.0, 10.0, 60_000),
        rng.choice([-1.0, 1.0], 20_000) * 10.0 ** rng.uniform(-300, 6, 20_000),
        multiples, np.nextafter(multiples, np.inf), np.nextafter(multiples, -np.inf), [0.0, 5e-324, 1e6, -1e6],
    ])  # fmt: skip
    return x[np.abs(x) <= 1e6]


@each_width
@pytest.mark.parametrize("level", LEVELS)
def test_sines_and_cosines_are_as_good_as_those_of_numpy(width, level):
    """2 units in the last place, also next to their zeros, where long doubles can tell; else 1e-15."""
    x, program = angles(), sincos_program()
    outputs, status = run_kernel(compile_kernel(program, width, level), program, {"x": x[:, None]}, len(x))
    assert not status.any()
    exact = x.astype(np.longdouble)
    for column, function in ((0, np.sin), (1, np.cos)):
        found = outputs["out"][:, column]
        assert np.max(np.abs(found - function(x))) <= 1e-15
        assert np.max(np.abs(found)) <= 1.0
        if np.finfo(np.longdouble).nmant >= 63:
            expected = function(exact)
            unit = np.spacing(np.abs(expected).astype(float))
            assert np.max(np.abs(found - expected) / unit) <= 2.0


@each_width
def test_angles_too_large_are_no_numbers(width):
    """Their last bit is more than 1e-7 rad; rather NaN and a flag than a number without meaning."""
    largest = LARGEST_ANGLE
    x = np.array([largest, -largest, np.nextafter(largest, np.inf), -2.0 * largest, 1e300, 0.5])
    outputs, status = run_kernel(compile_kernel(sincos_program(), width, 2), sincos_program(), {"x": x[:, None]}, 6)
    assert status.tolist() == [0, 0, *[BAD_OUTPUT] * 3, 0]
    assert np.isnan(outputs["out"]).all(axis=1).tolist() == [False, False, True, True, True, False]
    good = [0, 1, 5]
    expected = np.stack([np.sin(x[good]), np.cos(x[good])], axis=1)
    np.testing.assert_allclose(outputs["out"][good], expected, atol=1e-15, rtol=0.0)


# ---- threads, cache ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 8])
def test_many_threads_call_one_kernel(width):
    """Each with a workspace of its own: the same bits as one thread."""
    program = random_program(10, blocks=12)
    kernel = compile_kernel(program, width, 2)
    parts = [random_inputs(program, 400 + k, k) for k in range(16)]
    expected = [run_kernel(kernel, program, x, len(x["x"])) for x in parts]

    def work(k: int):
        space = kernel.work()
        return [run_kernel(kernel, program, parts[k], len(parts[k]["x"]), work=space) for _ in range(5)]

    with ThreadPoolExecutor(8) as pool:
        for (outputs, status), runs in zip(expected, pool.map(work, range(16)), strict=True):
            for found, found_status in runs:
                np.testing.assert_array_equal(found_status, status)
                for group, x in outputs.items():
                    np.testing.assert_array_equal(found[group], x)


def test_threads_compile_at_the_same_time():
    programs = [random_program(seed, blocks=2) for seed in range(40, 46)]
    with ThreadPoolExecutor(4) as pool:
        kernels = list(pool.map(lambda p: compile_kernel(p, 2, 0), programs * 2))
    for program, kernel in zip(programs * 2, kernels, strict=True):
        inputs = random_inputs(program, 3, 0)
        expected, _ = run_bounded(program, inputs)
        for group, x in run_kernel(kernel, program, inputs, 3)[0].items():
            assert_within(x, expected[group])


def test_workspace_is_aligned():
    for n in (1, 7, 100):
        kernel = Kernel(random_program(0), 0, 2, n, 0, 0)
        for array, first in [kernel.work() for _ in range(9)]:
            start = array.ctypes.data
            assert first % 64 == 0 and start <= first and first + 8 * (2 * n + 8) <= start + array.nbytes


def test_machine_code_is_cached_by_what_it_depends_on(monkeypatch, tmp_path):
    monkeypatch.setenv("SYSDYN_CACHE", str(tmp_path))
    program = random_program(11, blocks=2)
    inputs = random_inputs(program, 3, 0)

    def outputs(kernel):
        return np.concatenate(list(run_kernel(kernel, program, inputs, 3)[0].values()), axis=1)

    first = compile_kernel(program, 2, 0)
    again = compile_kernel(program, 2, 0)
    assert not first.cached and again.cached and (again.n_slots, again.width) == (first.n_slots, first.width)
    np.testing.assert_array_equal(outputs(first), outputs(again))
    for width, level in ((4, 0), (2, 2)):
        assert not compile_kernel(program, width, level).cached
    assert not compile_kernel(random_program(12, blocks=2), 2, 0).cached
    for entry in tmp_path.iterdir():  # damaged entries are compiled again
        entry.write_bytes(entry.read_bytes()[:-1])
    third = compile_kernel(program, 2, 0)
    assert not third.cached
    np.testing.assert_array_equal(outputs(first), outputs(third))
    assert compile_kernel(program, 2, 0).cached
    monkeypatch.setenv("SYSDYN_CACHE", "")
    assert cache.folder() is None and not compile_kernel(program, 2, 0).cached


def test_compiling_twice_gives_the_same_code(monkeypatch, tmp_path):
    """Emission does not depend on anything but the program: caches of two machines of one kind agree."""
    stored = []
    for folder in (tmp_path / "one", tmp_path / "other"):
        monkeypatch.setenv("SYSDYN_CACHE", str(folder))
        compile_kernel(random_program(13, blocks=5), 4, 0)
        stored.append({x.name: cache.load(x.name) for x in folder.iterdir()})
    assert len(stored[0]) == 1 and stored[0] == stored[1]
