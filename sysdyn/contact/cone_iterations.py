"""Steps of ADMM and of projected Gauss-Seidel on cones of friction, as programs without branches, and their loop.

`coulomb` says what problem they solve. Formulas hold for symbols and for numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from sysdyn.codegen.registry import backend_named
from sysdyn.errors import InvalidInput
from sysdyn.frameworks.function import Function, compile_function
from sysdyn.program.graph import Graph, copysign, sqrt
from sysdyn.program.groups import slices
from sysdyn.program.program import Program
from sysdyn.runtime.kernel import words
from sysdyn.runtime.runner import Runner
from sysdyn.runtime.time_loop import TimeLoop

# Over-relaxation of ADMM: of 1 and 1.6 the better (measured with `coulomb.SHARE`).
RELAXATION = 1.6
# Number that keeps quotients of two zeros finite, beside sizes of forces [N].
NO_FORCE = 1e-200
# Share of the mean diagonal entry of Ω that is added to that of each point, for points that cannot move (chosen).
UNMOVED = 1e-10


def scales(rows: Sequence[int], diagonal: Any) -> list:
    """c of each point: the mean diagonal entry of its block of Ω, and a trifle of that of Ω. Entries may be arrays."""
    least = sum(diagonal) * (UNMOVED / sum(rows))
    return [sum(diagonal[part]) / float(part.stop - part.start) + least for part in slices(rows)]


def _norm(x: Any):
    """‖x‖; 0.0 without entries."""
    return sqrt(sum(y * y for y in x)) if len(x) else 0.0


def _size(x):
    return copysign(x, 1.0)


def _positive(x):
    """max(x, 0), exactly."""
    return 0.5 * (x + _size(x))


def _larger(x, y):
    return 0.5 * (x + y + _size(x - y))


def _disk(x: Any, radius) -> list:
    """The nearest point of the disk of this radius ≥ 0."""
    if not len(x):
        return []
    share = radius / (_larger(radius, _norm(x)) + NO_FORCE)
    return [share * y for y in x]


def _cone(x: Sequence, mu) -> list:
    """The nearest point of the cone ‖x_t‖ ≤ μ x_n."""
    *tangents, normal = x
    up = _larger(normal, _positive((normal + mu * _norm(tangents)) / (1.0 + mu * mu)))
    return [*_disk(tangents, mu * up), up]


def _law(x: Sequence, mu) -> list:
    """Q: the nearest x_n ≥ 0, and x_t in the disk of radius μ x_n."""
    up = _positive(x[-1])
    return [*_disk(x[:-1], mu * up), up]


def _admm(rows: Sequence[int], x: dict[str, np.ndarray], relaxed: bool) -> dict[str, list]:
    """λ ← (1 + Ω/ρ)⁻¹ (y − u − (b + Γ)/ρ), relaxed with y; y ← P(λ + u), u ← u + λ − y, where Γ/ρ = μ ‖u_t‖."""
    y, u, matrix, m = x["forces"], x["dual"], x["matrix"], sum(rows)
    wanted = y - u - x["free"]
    for part, mu in zip(slices(rows), x["friction"], strict=True):
        if not relaxed:
            wanted[part.stop - 1] = wanted[part.stop - 1] - mu * _norm(u[part][:-1])
    forces: list = []
    sums = [sum(matrix[min(i, j) * m + max(i, j)] * wanted[j] for j in range(m)) for i in range(m)]
    moved = [RELAXATION * a + (1.0 - RELAXATION) * b + c for a, b, c in zip(sums, y, u, strict=True)]
    for part, mu in zip(slices(rows), x["friction"], strict=True):
        forces += _cone(moved[part], mu)
    return {"forces": forces, "dual": [a - b for a, b in zip(moved, forces, strict=True)]}


def _pgs(rows: Sequence[int], x: dict[str, np.ndarray], relaxed: bool) -> dict[str, list]:
    """Point by point: λ_n ← max(0, λ_n − σ_n / Ω_nn), then λ_t ← λ_t − σ_t / ‖Ω_tt‖ in the disk of radius μ λ_n."""
    forces, matrix, m = list(x["forces"]), x["matrix"], sum(rows)
    lengths = x["steps"]

    def motion(i: int):
        return sum(matrix[min(i, j) * m + max(i, j)] * forces[j] for j in range(m)) + x["free"][i]

    for k, (part, mu) in enumerate(zip(slices(rows), x["friction"], strict=True)):
        own, normal = range(part.start, part.stop), part.stop - 1
        if relaxed:
            forces[part] = _cone([forces[i] - lengths[k] * motion(i) for i in own], mu)
            continue
        forces[normal] = _positive(forces[normal] - lengths[k] * motion(normal))
        moved = [forces[i] - lengths[len(rows) + k] * motion(i) for i in own[:-1]]
        forces[part.start : normal] = _disk(moved, mu * forces[normal])
    return {"forces": forces}


@cache
def step_of(rows: tuple[int, ...], method: str, relaxed: bool) -> Runner:
    """The program of a step, from the arrays that it reads to the next of those that it changes."""
    m, points = sum(rows), len(rows)
    sizes = {"matrix": m * m, "free": m, "friction": points}
    kept = {"forces": m, **({"dual": m} if method == "admm" else {})}
    further = {"steps": 2 * points} if method == "pgs" else {}
    write: Callable = {"admm": _admm, "pgs": _pgs}[method]
    with Graph("structural") as graph:
        x = {name: graph.inputs(name, size) for name, size in (sizes | further | kept).items()}
        found = write(rows, x, relaxed)
        results = [(f"next {name}", list(found[name])) for name in kept]
        program = Program.from_graph(graph, [(name, list(y)) for name, y in x.items()], results)
    return Runner(backend_named("llvm")(program, 2))


@cache
def judge_of(rows: tuple[int, ...], relaxed: bool) -> Function:
    """{motion (m,), signorini, friction ()} of Ω, b, μ and λ, compiled."""
    m, own_rows = sum(rows), slices(rows)

    def residuals(omega: np.ndarray, free: np.ndarray, friction: np.ndarray, forces: np.ndarray) -> dict:
        motion, worst = omega @ forces + free, {"signorini": 0.0, "friction": 0.0}
        for part, mu, c in zip(own_rows, friction, scales(rows, [omega[i, i] for i in range(m)]), strict=True):
            own, sigma = forces[part], motion[part]
            wanted = (_cone if relaxed else _law)([a - b / c for a, b in zip(own, sigma, strict=True)], mu)
            off = [a - b for a, b in zip(own, wanted, strict=True)]
            worst["signorini"] = _larger(worst["signorini"], c * _size(off[-1]))
            worst["friction"] = _larger(worst["friction"], c * _norm(off[:-1]))
        return {"motion": motion, **{name: np.array(x) for name, x in worst.items()}}

    return compile_function(
        residuals, {"omega": (m, m), "free": (m,), "friction": (len(rows),), "forces": (m,)}, sharing="structural"
    )


class ConeLoop:
    """Calls of a step on n states, with arrays of its own: for one thread."""

    def __init__(self, step: Runner, n: int):
        self.n = n
        kernel = step.backend.kernel(n == 1)
        assert kernel is not None
        changed = [name.removeprefix("next ") for name in step.program.outputs]
        sizes = step.program.inputs.sizes
        self._given = {name: np.zeros((n, size)) for name, size in sizes.items() if name not in changed}
        self._two = {name: np.zeros((2, n, sizes[name])) for name in changed}
        self._work, status = kernel.work(), np.zeros(n, dtype=np.int64)
        rows = []
        for k in range(2):
            inputs = self._given | {name: x[k] for name, x in self._two.items()}
            outputs = {f"next {name}": x[1 - k] for name, x in self._two.items()}
            rows.append(words(step.program, self._work[1], inputs, outputs, status))
        calls, still, none = np.array(rows), np.zeros((2, 1), dtype=np.int64), np.zeros((0, 4), dtype=np.int64)
        self._loop = TimeLoop(kernel.address, status, calls, np.zeros_like(calls), still, 1, 1, none)

    def run(self, given: dict[str, np.ndarray], kept: dict[str, np.ndarray], count: int) -> np.ndarray:
        """Forces (n, m) after so many steps. Raises InvalidInput if they are not finite."""
        for name, x in given.items():
            self._given[name][:] = x
        for name, x in kept.items():
            self._two[name][0] = x
        if self._loop.run(0, count) < count:
            raise InvalidInput("forces grow without end: omega is not positive semidefinite, or numbers are too large")
        return self._two["forces"][count % 2]
