"""Programs: from graphs and to them, exact counts of their execution, digest and storage."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import executed, random_inputs, random_program

import sysdyn as sd
from sysdyn.codegen import interpreter
from sysdyn.errors import FileError, InvalidInput
from sysdyn.program.autodiff import evaluate, to_graph
from sysdyn.program.graph import Graph
from sysdyn.program.groups import Groups
from sysdyn.program.opcodes import ADD, COS, DIV, MUL, NEG, OPAQUE, SIN, SQRT, SUB, Flops
from sysdyn.program.program import PROGRAM_FORMAT, Guard, Program

seeds = st.integers(0, 10**6)


def example() -> Program:
    """Every kind of operation, two groups on each side, a guard and a cut."""
    graph = Graph()
    x, y = graph.input("x"), graph.input("y")
    s = x.sin() * 2.5
    graph.cut()
    c = (x.cos() + s) / y
    root = (c * c + 1.0).sqrt()
    outputs = [("first", [root, x]), ("second", [-(c * s), 4.0, root, x - y])]
    return Program.from_graph(graph, [("x", [x]), ("y", [y])], outputs, [(c, 1e-3, "row → column", 1e-2)])


# ---- from a graph --------------------------------------------------------------------------------------------------


def test_operations_keep_the_order_in_which_they_were_built():
    program = example()
    assert program.inputs.sizes == {"x": 1, "y": 1} and program.outputs.sizes == {"first": 2, "second": 4}
    assert program.n_inputs == 2 and program.n_outputs == 6 and program.first_op == 5
    assert program.constants.tolist() == [2.5, 1.0, 4.0]
    # values: x, y; 2.5, 1, 4; sin x, s, cos x, cos x + s, c, c c, c c + 1, root, c s, −c s, x − y
    assert program.kind.tolist() == [SIN, MUL, COS, ADD, DIV, MUL, ADD, SQRT, MUL, NEG, SUB]
    assert program.output_values.tolist() == [12, 0, 14, 4, 12, 15]
    operands = [set(pair) - {-1} for pair in zip(program.lhs.tolist(), program.rhs.tolist(), strict=True)]
    assert operands == [{0}, {2, 5}, {0}, {6, 7}, {8, 1}, {9}, {3, 10}, {11}, {6, 9}, {13}, {0, 1}]
    assert program.lhs[4] == 8 and program.lhs[10] == 0
    assert program.cuts.tolist() == [2]
    assert program.guards == (Guard(9, 1e-3, "row → column", 1e-2),)
    program.check()


def test_the_run_gives_what_evaluation_gives():
    graph = Graph()
    x, y = graph.input("x"), graph.input("y")
    outputs = [(x * y).sin() / (y + 2.0), -x, 3.0, (x * x + 1.0).sqrt() - y]
    program = Program.from_graph(graph, [("all", [x, y])], [("out", outputs)])
    at = {"x": 0.3, "y": -1.2}
    assert interpreter.run(program, [0.3, -1.2]) == evaluate(outputs, at).tolist()
    batch = np.random.default_rng(0).uniform(-1.0, 1.0, (7, 2))
    found = interpreter.run_groups(program, {"all": batch})["out"]
    for row, state in zip(found, batch, strict=True):
        np.testing.assert_allclose(row, evaluate(outputs, dict(zip("xy", state, strict=True))), rtol=1e-14)


def test_dead_operations_and_dead_guards_are_left_out():
    graph = Graph()
    x, y, unused = graph.input("x"), graph.input("y"), graph.input("unused")
    dead = (x * y + 1.5).sqrt()
    product = x * 2.0
    guards = [(dead, 1.0, "dead", 2.0), (product, 0.5, "live", 0.5), (3.0, 1.0, "constant", 1.0)]
    program = Program.from_graph(graph, [("in", [x, y, unused])], [("out", [product + y])], guards)
    assert program.flops == Flops(mul=1, add=1) and len(program) == 2
    assert program.constants.tolist() == [2.0]
    assert [g.label for g in program.guards] == ["live"]
    assert program.used_inputs.tolist() == [True, True, False]
    copied = Program.from_graph(graph, [("in", [x, y, unused])], [("out", [y, 1.0])])
    assert len(copied) == 0 and copied.used_inputs.tolist() == [False, True, False]
    assert interpreter.run(copied, [1.0, 2.0, 3.0]) == [2.0, 1.0]


def test_an_input_in_no_group_is_named():
    graph = Graph()
    x, y = graph.input("x"), graph.input("stray")
    with pytest.raises(InvalidInput, match="'stray'"):
        Program.from_graph(graph, [("in", [x])], [("out", [x + y])])


@given(seeds)
def test_every_operation_is_live_and_comes_after_its_operands(seed):
    program = random_program(seed)
    program.check()
    used = np.zeros(program.first_op + len(program), dtype=bool)
    used[program.lhs] = True
    used[program.rhs[program.rhs >= 0]] = True
    used[program.output_values] = True
    assert np.all(used[program.n_inputs :])  # constants and operations
    assert np.array_equal(used[: program.n_inputs], program.used_inputs)


# ---- counts --------------------------------------------------------------------------------------------------------


@given(seeds)
def test_counts_are_those_of_an_instrumented_execution(seed):
    for sharing in ("none", "structural", "algebraic"):
        program = random_program(seed, sharing=sharing)
        inputs = random_inputs(program, 1, seed)
        flops, values = executed(program, [x for name in program.inputs for x in inputs[name][0].tolist()])
        assert program.flops == flops
        found = interpreter.run_groups(program, inputs)
        np.testing.assert_allclose(np.concatenate([x[0] for x in found.values()]), values, rtol=1e-9, atol=1e-12)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("make", [sd.inverse_dynamics, sd.forward_dynamics])
def test_counts_of_a_solver_are_those_of_an_instrumented_execution(make):
    model = sd.random_tree(4, seed=3)
    solver = sd.compile(make(model), backend="python", outputs=["tau", "qdd"])
    inputs = np.random.default_rng(0).uniform(0.1, 1.0, solver.program.n_inputs)
    assert solver.flops.end_to_end == solver.program.flops == executed(solver.program, inputs.tolist())[0]
    assert f"{solver.program.flops!r}" in repr(solver.program)


# ---- digest --------------------------------------------------------------------------------------------------------


def test_the_digest_is_that_of_the_content():
    """Kept: stored programs and cached kernels are found by it. Raise PROGRAM_FORMAT where this changes."""
    assert PROGRAM_FORMAT == 2
    assert example().digest == example().digest
    assert example().digest == "96177d4a546301fa6ae25c642d93b10134e9dc3ec4cd0d8741585b04539c3423"


@pytest.mark.slow
def test_the_digest_is_the_same_in_every_process():
    code = (
        "import sysdyn as sd\n"
        "problem = sd.forward_dynamics(sd.auto_tree(3, 2, 1.5, 0.9))\n"
        "print(sd.compile(problem, ordering='markowitz', backend='python').program.digest)"
    )
    digests = set()
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "SYSDYN_CACHE": "", "PATH": "/usr/bin:/bin"}
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert run.returncode == 0, run.stderr
        digests.add(run.stdout.strip())
    assert len(digests) == 1 and len(digests.pop()) == 64


CHANGES = {
    "a constant": lambda p: replace(p, constants=p.constants + 1e-15),
    "the last bit of a constant": lambda p: replace(p, constants=np.nextafter(p.constants, 9.0)),
    "a kind": lambda p: replace(p, kind=np.where(p.kind == ADD, SUB, p.kind).astype(np.int8)),
    "an operand": lambda p: replace(p, lhs=np.where(np.arange(len(p)) == 2, 1, p.lhs).astype(np.int32)),
    "the other operand": lambda p: replace(p, rhs=np.where(np.arange(len(p)) == 4, 0, p.rhs).astype(np.int32)),
    "an output": lambda p: replace(p, output_values=p.output_values[::-1].copy()),
    "a cut": lambda p: replace(p, cuts=p.cuts + np.int32(1)),
    "a group": lambda p: replace(p, inputs=Groups.of_sizes([("x", 2)])),
    "the name of a group": lambda p: replace(p, outputs=Groups.of_sizes([("other", 2), ("second", 4)])),
    "a threshold": lambda p: replace(p, guards=(replace(p.guards[0], threshold=2e-3),)),
    "the weak threshold": lambda p: replace(p, guards=(replace(p.guards[0], weak=2e-2),)),
    "the value of a guard": lambda p: replace(p, guards=(replace(p.guards[0], value=8),)),
    "no guard": lambda p: replace(p, guards=()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_digest_tells_programs_apart(name):
    assert CHANGES[name](example()).digest != example().digest


def test_the_label_of_a_guard_changes_no_result_and_no_digest():
    program = example()
    assert replace(program, guards=(replace(program.guards[0], label="other"),)).digest == program.digest


# ---- storage -------------------------------------------------------------------------------------------------------


def stored(arrays: dict) -> dict[str, np.ndarray]:
    """Through an .npz file, without pickle."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    buffer.seek(0)
    with np.load(buffer, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


@given(seeds)
def test_programs_are_stored_and_read_back(seed):
    program = random_program(seed)
    again = Program.from_arrays(stored(program.to_arrays()))
    assert again.digest == program.digest and again.flops == program.flops
    assert again.inputs.sizes == program.inputs.sizes and again.outputs.sizes == program.outputs.sizes
    assert again.guards == program.guards
    inputs = random_inputs(program, 3, seed)
    for x, y in zip(
        interpreter.run_groups(program, inputs).values(), interpreter.run_groups(again, inputs).values(), strict=True
    ):
        np.testing.assert_array_equal(x, y)


def with_head(arrays: dict, **changes) -> dict:
    head = json.loads(bytes(arrays["program"]).decode())
    for key, value in changes.items():
        head.pop(key) if value is None else head.__setitem__(key, value)
    return {**arrays, "program": text(json.dumps(head))}


def text(content: str | bytes) -> np.ndarray:
    return np.frombuffer(content.encode() if isinstance(content, str) else content, dtype=np.uint8)


def changed(arrays: dict, name: str, k: int, value) -> dict:
    array = arrays[name].copy()
    array[k] = value
    return {**arrays, name: array}


DAMAGE = {
    "another format": (lambda a: with_head(a, format=PROGRAM_FORMAT + 1), f"format {PROGRAM_FORMAT + 1}"),
    "no format": (lambda a: with_head(a, format=None), "not a stored program: .*format"),
    "no head": (lambda a: {k: v for k, v in a.items() if k != "program"}, "not a stored program"),
    "an array missing": (lambda a: {k: v for k, v in a.items() if k != "lhs"}, "not a stored program"),
    "foreign text": (lambda a: {**a, "program": text("hello")}, "not a stored program"),
    "foreign bytes": (lambda a: {**a, "program": text(b"\xff\xfe\x00")}, "not a stored program"),
    "a list": (lambda a: {**a, "program": text("[1, 2]")}, "not a stored program"),
    "no text": (lambda a: {**a, "program": np.array([0.5, 2.0])}, "not a stored program"),
    "odd groups": (lambda a: with_head(a, inputs=[["x", "many"]]), "groups are"),
    "a negative size": (lambda a: with_head(a, inputs=[["x", 6], ["y", -1]]), "groups are"),
    "half a scalar": (lambda a: with_head(a, outputs=[["first", 2.5]]), "groups are"),
    "one name twice": (lambda a: with_head(a, inputs=[["x", 1], ["x", 4]]), "groups are"),
    "too many inputs": (lambda a: with_head(a, inputs=[["x", 2**31]]), "int32"),
    "odd guards": (lambda a: with_head(a, guards=[[1]]), "not a stored program"),
    "a guard of half a value": (lambda a: with_head(a, guards=[[2.5, 0.1, "", 0.2]]), "guard"),
    "a guard outside": (lambda a: with_head(a, guards=[[99, 0.1, "", 0.2]]), "guard"),
    "a range of an operation": (lambda a: with_head(a, ranges=[[7, 1.0]]), "range"),
    "fewer inputs": (lambda a: with_head(a, inputs=[["x", 1]]), "lhs of operations"),
    "more outputs": (lambda a: with_head(a, outputs=[["first", 9]]), "9 outputs"),
    "a changed constant": (lambda a: changed(a, "constants", 0, 7.0), "digest"),
    "a changed operand": (lambda a: changed(a, "lhs", 4, 1), "digest"),
    "an operand ahead": (lambda a: changed(a, "lhs", 0, 9), r"lhs of operations \[0\]"),
    "an operand of itself": (lambda a: changed(a, "lhs", 0, 5), r"lhs of operations \[0\]"),
    "a negative operand": (lambda a: changed(a, "lhs", 1, -1), r"lhs of operations \[1\]"),
    "an operand missing": (lambda a: changed(a, "rhs", 1, -1), r"rhs of operations \[1\]"),
    "an operand too many": (lambda a: changed(a, "rhs", 0, 0), r"rhs of operations \[0\]"),
    "an operation of graphs": (lambda a: changed(a, "kind", 0, OPAQUE), r"kinds of operations \[10\]"),
    "an input as operation": (lambda a: changed(a, "kind", 0, 0), r"kinds of operations \[0\]"),
    "a negative kind": (lambda a: changed(a, "kind", 0, -116), r"kinds of operations \[-116\]"),
    "an output outside": (lambda a: changed(a, "output_values", 0, 16), "output"),
    "a negative output": (lambda a: changed(a, "output_values", 0, -1), "output"),
    "a cut outside": (lambda a: changed(a, "cuts", 0, 11), "cut"),
    "cuts out of order": (lambda a: {**a, "cuts": np.array([4, 2], dtype=np.int32)}, "cuts do not increase"),
    "cuts that overflow": (lambda a: {**a, "cuts": np.array([1, 2**31 - 1, 2 - 2**31, 4], dtype=np.int32)}, "cut"),
    "bytes swapped": (lambda a: {**a, "lhs": a["lhs"].astype(">i4")}, "lhs is >i4"),
    "short arrays": (lambda a: {**a, "rhs": a["rhs"][:-1]}, "10 right operands"),
    "two-dimensional arrays": (lambda a: {**a, "lhs": np.tile(a["lhs"][:, None], 3)}, "lhs is int32 of shape"),
    "arrays of text": (lambda a: {**a, "kind": a["kind"].astype(str)}, "kind is <U"),
    "a number for an array": (lambda a: {**a, "kind": np.array(3)}, "kind is int64"),
    "other types": (lambda a: {**a, "lhs": a["lhs"].astype(float)}, "lhs is float64"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_and_foreign_programs_are_refused(name):
    change, message = DAMAGE[name]
    with pytest.raises(FileError, match=message):
        Program.from_arrays(stored(change(example().to_arrays())))


# ---- back to a graph -----------------------------------------------------------------------------------------------


def test_a_program_from_a_graph_is_simplified_on_demand():
    graph = Graph()
    x = graph.inputs("x", 3)
    program = Program.from_graph(graph, [("x", x)], [("y", [x[0] * x[1] + x[0] * x[2]])])
    again = to_graph(program, Graph())
    assert again.to_program({}, again.outputs, ()).flops == Flops(mul=1, add=1)
    assert again.to_program({}, again.outputs, (), simplified=False).flops == Flops(mul=2, add=1)
