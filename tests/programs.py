"""Random programs, and what a correct run of them may give: values with a bound of their rounding errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.program.graph import Graph, cos, sin, sqrt
from sysdyn.program.opcodes import (
    ADD,
    COPYSIGN,
    COS,
    DIV,
    MUL,
    NEG,
    OPERATIONS,
    SIN,
    SQRT,
    SUB,
    WRAP,
    Flops,
)
from sysdyn.program.program import Program
from sysdyn.program.reproducible import wrap_angle

# Well conditioned, and bounded for bounded operands, so that any number of them can follow each other.
STEPS = (
    lambda a, b, c: a * c + b * 0.25,
    lambda a, b, c: a * 0.5 - b * c,
    lambda a, b, c: a / (b * b + 1.5),
    lambda a, b, c: sqrt(a * a + b * b + 0.5),
    lambda a, b, c: sin(a) * b,
    lambda a, b, c: cos(a) - c,
    lambda a, b, c: -sin(a),
    lambda a, b, c: (b - a) * -0.5,
    lambda a, b, c: c / ((a - b) * (a - b) + 2.0),
)
WIDTH = 4  # values that a block hands to the next
BLOCK = 12  # steps of a block, of some five operations each


def random_program(seed: int, blocks: int | None = None, mark: bool = True, **options) -> Program:
    """A program of blocks of one shape with constants of their own, and odd outputs: inputs, constants, repetitions.

    Its input groups are x (3), none (0) and u (a few); about one program in two has guards.
    """
    rng = np.random.default_rng(seed)
    graph = Graph(options.pop("sharing", "none"))
    blocks = int(rng.integers(0, 8)) if blocks is None else blocks
    x, u = graph.inputs("x", 3), graph.inputs("u", int(rng.integers(1, 5)))
    shape = [(int(rng.integers(len(STEPS))), *rng.integers(0, 10**6, 2).tolist()) for _ in range(BLOCK)]
    state = [*x, u[0]]
    seen, guarded = list(state), []
    for k in range(blocks):
        if mark:
            graph.cut()
        values = [*state, u[k % len(u)]]
        for step, i, j in shape:
            values.append(STEPS[step](values[i % len(values)], values[j % len(values)], float(rng.uniform(0.1, 0.6))))
        total = state[0] * 0.25
        for v in values[WIDTH + 1 :]:  # nothing is dead
            total = total * 0.5 + v * 0.25
        state = [v * 0.5 for v in (*values[1 - WIDTH :], total)]  # errors do not grow from block to block
        seen += values[WIDTH + 1 :]
        guarded.append(values[WIDTH + 3])
    if mark:
        graph.cut()
    graph.input("unused")
    last = seen[-BLOCK:]
    picked = [last[i] for i in rng.integers(0, len(last), int(rng.integers(1, 6)))]
    odd = [seen[-1], x[1], 0.25, seen[-1], 0.0, -1.5, -x[2], 0.25]
    rng.shuffle(odd)
    guards = []
    if rng.random() < 0.5:
        limits = np.sort(rng.uniform(0.0, 0.8, (len(guarded), 2))).tolist()
        guards = [(v, a, f"row {k} → column {k}", b) for k, (v, (a, b)) in enumerate(zip(guarded, limits, strict=True))]
    outputs = [("picked", picked), ("none", []), ("odd", odd), ("state", state)]
    return Program.from_graph(graph, [("x", x), ("none", []), ("u", u)], outputs, options.pop("guards", guards))


def random_inputs(program: Program, n: int, seed: int) -> dict[str, np.ndarray]:
    """{group: (n, size)}"""
    rng = np.random.default_rng(seed)
    return {name: rng.uniform(-2.0, 2.0, (n, size)) for name, size in program.inputs.sizes.items()}


@dataclass(frozen=True, eq=False)
class Bounded:
    """Values and bounds of their absolute errors, first order and generous, whatever is fused or reassociated not."""

    value: np.ndarray
    error: np.ndarray


_U = np.finfo(float).eps


def _bounded(x) -> Bounded:
    return x if isinstance(x, Bounded) else Bounded(np.asarray(x, dtype=float), np.asarray(0.0))


def _function(value, spread):
    def run(*operands) -> Bounded:
        operands = [_bounded(x) for x in operands]
        result = value(*(x.value for x in operands))
        return Bounded(result, spread(result, *operands) + _U * np.abs(result))

    return run


def _div_error(v, a, b):
    distance = np.abs(b.value) - b.error
    return np.where(distance > 0.0, (a.error + np.abs(v) * b.error) / distance, np.inf)


FUNCTIONS = {
    ADD: _function(np.add, lambda v, a, b: a.error + b.error),
    SUB: _function(np.subtract, lambda v, a, b: a.error + b.error),
    MUL: _function(np.multiply, lambda v, a, b: np.abs(a.value) * b.error + (np.abs(b.value) + b.error) * a.error),
    DIV: _function(np.divide, _div_error),
    NEG: _function(np.negative, lambda v, a: a.error),
    SIN: _function(np.sin, lambda v, a: a.error + 2.0 * _U),
    COS: _function(np.cos, lambda v, a: a.error + 2.0 * _U),
    COPYSIGN: _function(np.copysign, lambda v, a, b: np.where(np.abs(b.value) > b.error, a.error, np.inf)),
    SQRT: _function(np.sqrt, lambda v, a: np.where(a.value > a.error, a.error / v, np.inf)),
}


def run_bounded(program: Program, inputs: dict[str, np.ndarray]) -> tuple[dict[str, Bounded], dict[int, Bounded]]:
    """(outputs by group (N, size), every result by value number) with error bounds."""
    n = max((len(x) for x in inputs.values()), default=1)
    flat = [column for name in program.inputs for column in inputs[name].T]
    results: dict[int, Bounded] = {}
    values = [_bounded(x) for x in interpreter.run(program, flat, FUNCTIONS, results.__setitem__)]
    groups, at = {}, 0
    for name, size in program.outputs.sizes.items():
        part = values[at : at + size]
        at += size
        value, error = (
            np.array([np.broadcast_to(x, n) for x in column], dtype=float).reshape(size, n).T
            for column in ([p.value for p in part], [p.error for p in part])
        )
        groups[name] = Bounded(value, error)
    return groups, results


def assert_within(found: np.ndarray, expected: Bounded) -> None:
    """Two runs that each keep to the bound differ by at most twice of it."""
    assert np.all(expected.error < 1e-9), "the program is no good as a test: its own errors are large"
    difference = np.abs(found - expected.value)
    assert np.all(difference <= 2.0 * expected.error + 1e-300), f"off by {np.max(difference):.1e}"


__all__ = ["Bounded", "assert_within", "random_inputs", "random_program", "run_bounded"]


class Number:
    """A value with an identity, so that angles can be told apart."""

    def __init__(self, value: float):
        self.value = value


def executed(program: Program, inputs: list[float]) -> tuple[Flops, list[float]]:
    """What a run of the program does, operation by operation, and what it gives."""
    count = dict.fromkeys(OPERATIONS, 0)
    angles: dict[int, Number] = {}

    def counting(kind: int, function):
        def run(*operands):
            count[kind] += 1
            if kind in (SIN, COS):
                angles[id(operands[0])] = operands[0]
            return Number(function(*(x.value if isinstance(x, Number) else x for x in operands)))

        return run

    functions = {
        kind: counting(kind, function)
        for kind, function in (
            (ADD, lambda a, b: a + b), (SUB, lambda a, b: a - b), (MUL, lambda a, b: a * b), (DIV, lambda a, b: a / b),
            (NEG, lambda a: -a), (SIN, math.sin), (COS, math.cos), (SQRT, math.sqrt), (WRAP, wrap_angle),
        )
    }  # fmt: skip
    results = interpreter.run(program, [Number(x) for x in inputs], functions)
    flops = Flops(count[MUL], count[ADD] + count[SUB], count[DIV], count[SQRT], len(angles))
    return flops, [x.value if isinstance(x, Number) else x for x in results]
