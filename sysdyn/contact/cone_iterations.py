"""Branch-free programs for friction cones: projections, residuals, one step of ADMM or of Gauss-Seidel.

`friction_cone` states the problem. The functions take symbols or numbers.
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

# Over-relaxation of ADMM (measured: better than 1).
RELAXATION = 1.6
# Added to squared norms, so that ‖0‖ > 0 has the derivative 0; negligible in all other norms.
TINY = 1e-300
# Share of the mean diagonal entry of Ω added to that of each point, for points that cannot move (chosen).
DIAGONAL_REG = 1e-10


def point_scales(rows: Sequence[int], diagonal: Any) -> list:
    """Scale c of each point: regularised mean diagonal entry of its block of Ω. Entries may be arrays."""
    least = sum(diagonal) * (DIAGONAL_REG / sum(rows))
    return [sum(diagonal[part]) / float(part.stop - part.start) + least for part in slices(rows)]


def _norm(x: Any):
    return sqrt(sum(y * y for y in x) + TINY) if len(x) else 0.0


def _abs(x):
    return copysign(x, 1.0)


def _positive(x):
    """max(x, 0), exactly."""
    return 0.5 * (x + _abs(x))


def _max(x, y):
    return 0.5 * (x + y + _abs(x - y))


def _project_disk(x: Any, radius) -> list:
    """Nearest point of the disk of this radius ≥ 0."""
    if not len(x):
        return []
    share = radius / _max(radius, _norm(x))
    return [share * y for y in x]


def _project_cone(x: Any, mu) -> list:
    """Nearest point of the cone ‖x_t‖ ≤ μ x_n."""
    *tangents, normal = x
    up = _max(normal, _positive((normal + mu * _norm(tangents)) / (1.0 + mu * mu)))
    return [*_project_disk(tangents, mu * up), up]


def _project_point(x: Any, mu) -> list:
    """Projection Q: nearest x_n ≥ 0, then nearest x_t in the disk of radius μ x_n."""
    up = _positive(x[-1])
    return [*_project_disk(x[:-1], mu * up), up]


def _admm(rows: Sequence[int], x: dict[str, np.ndarray], relaxed: bool) -> dict[str, list]:
    """λ ← (1 + Ω/ρ)⁻¹ (y − u − (b + Γ)/ρ), over-relaxed; y ← P(λ + u), u ← u + λ − y, where Γ/ρ = μ ‖u_t‖."""
    y, u, matrix, m = x["forces"], x["dual"], x["matrix"], sum(rows)
    rhs = y - u - x["free"]
    for part, mu in zip(slices(rows), x["friction"], strict=True):
        if not relaxed:
            rhs[part.stop - 1] = rhs[part.stop - 1] - mu * _norm(u[part][:-1])
    forces: list = []
    solution = [sum(matrix[min(i, j) * m + max(i, j)] * rhs[j] for j in range(m)) for i in range(m)]
    shifted = [RELAXATION * a + (1.0 - RELAXATION) * b + c for a, b, c in zip(solution, y, u, strict=True)]
    for part, mu in zip(slices(rows), x["friction"], strict=True):
        forces += _project_cone(shifted[part], mu)
    return {"forces": forces, "dual": [a - b for a, b in zip(shifted, forces, strict=True)]}


def _pgs(rows: Sequence[int], x: dict[str, np.ndarray], relaxed: bool) -> dict[str, list]:
    """Point by point: λ_n ← max(0, λ_n − σ_n / Ω_nn), then λ_t ← λ_t − σ_t / ‖Ω_tt‖ in the disk of radius μ λ_n."""
    forces, matrix, m = list(x["forces"]), x["matrix"], sum(rows)
    lengths = x["steps"]

    def motion(i: int):
        return sum(matrix[min(i, j) * m + max(i, j)] * forces[j] for j in range(m)) + x["free"][i]

    for k, (part, mu) in enumerate(zip(slices(rows), x["friction"], strict=True)):
        indices, normal = range(part.start, part.stop), part.stop - 1
        if relaxed:
            forces[part] = _project_cone([forces[i] - lengths[k] * motion(i) for i in indices], mu)
            continue
        forces[normal] = _positive(forces[normal] - lengths[k] * motion(normal))
        tangents = [forces[i] - lengths[len(rows) + k] * motion(i) for i in indices[:-1]]
        forces[part.start : normal] = _project_disk(tangents, mu * forces[normal])
    return {"forces": forces}


@cache
def compile_step(rows: tuple[int, ...], method: str, relaxed: bool) -> Runner:
    """Compile one step of a method: from constants and iterates to the next iterates, "next NAME"."""
    m, points = sum(rows), len(rows)
    sizes = {"matrix": m * m, "free": m, "friction": points}
    changed = {"forces": m, **({"dual": m} if method == "admm" else {})}
    lengths = {"steps": 2 * points} if method == "pgs" else {}
    step: Callable = {"admm": _admm, "pgs": _pgs}[method]
    with Graph("structural") as graph:
        x = {name: graph.inputs(name, size) for name, size in (sizes | lengths | changed).items()}
        values = step(rows, x, relaxed)
        outputs = [(f"next {name}", list(values[name])) for name in changed]
        program = Program.from_graph(graph, [(name, list(y)) for name, y in x.items()], outputs)
    return Runner(backend_named("llvm")(program, 2))


@cache
def compile_residuals(rows: tuple[int, ...], relaxed: bool) -> Function:
    """Compile {motion (m,), signorini, friction ()} of Ω, b, μ and λ."""
    m = sum(rows)

    def residuals(omega: np.ndarray, free: np.ndarray, friction: np.ndarray, forces: np.ndarray) -> dict:
        motion, worst = omega @ forces + free, {"signorini": 0.0, "friction": 0.0}
        scales = point_scales(rows, [omega[i, i] for i in range(m)])
        for part, mu, c in zip(slices(rows), friction, scales, strict=True):
            project = _project_cone if relaxed else _project_point
            projection = project([a - b / c for a, b in zip(forces[part], motion[part], strict=True)], mu)
            error = [a - b for a, b in zip(forces[part], projection, strict=True)]
            worst["signorini"] = _max(worst["signorini"], c * _abs(error[-1]))
            worst["friction"] = _max(worst["friction"], c * _norm(error[:-1]))
        return {"motion": motion, **{name: np.array(x) for name, x in worst.items()}}

    return compile_function(
        residuals, {"omega": (m, m), "free": (m,), "friction": (len(rows),), "forces": (m,)}, sharing="structural"
    )


@cache
def compile_projection(rows: tuple[int, ...]) -> tuple[Function, Function]:
    """Compile Q of all points and its directional derivative Q'(y) v, both of y (m,) and μ."""

    def project(y: np.ndarray, friction: np.ndarray) -> np.ndarray:
        return np.concatenate([_project_point(y[part], mu) for part, mu in zip(slices(rows), friction, strict=True)])

    function = compile_function(project, {"y": (sum(rows),), "friction": (len(rows),)}, sharing="structural")
    return function, function.product("jvp", wrt="y")


class ConeLoop:
    """Compiled loop of steps for n states. It owns its arrays, so one thread at a time may run it."""

    def __init__(self, step: Runner, n: int):
        self.n = n
        kernel = step.backend.kernel(n == 1)
        assert kernel is not None
        changed = [name.removeprefix("next ") for name in step.program.outputs]
        sizes = step.program.inputs.sizes
        self._constants = {name: np.zeros((n, size)) for name, size in sizes.items() if name not in changed}
        self._iterates = {name: np.zeros((2, n, sizes[name])) for name in changed}  # of even and of odd steps
        self._work, status = kernel.work(), np.zeros(n, dtype=np.int64)
        calls = []
        for k in range(2):
            inputs = self._constants | {name: x[k] for name, x in self._iterates.items()}
            outputs = {f"next {name}": x[1 - k] for name, x in self._iterates.items()}
            calls.append(words(step.program, self._work[1], inputs, outputs, status))
        rows, flags, records = np.array(calls), np.zeros((2, 1), dtype=np.int64), np.zeros((0, 4), dtype=np.int64)
        self._loop = TimeLoop(kernel.address, status, rows, np.zeros_like(rows), flags, 1, 1, records)

    def run(self, constants: dict[str, np.ndarray], start: dict[str, np.ndarray], count: int) -> np.ndarray:
        """Forces (n, m) after `count` steps. Raises InvalidInput if they are not finite."""
        for name, x in constants.items():
            self._constants[name][:] = x
        for name, x in start.items():
            self._iterates[name][0] = x
        if self._loop.run(0, count) < count:
            raise InvalidInput("forces grow without end: omega is not positive semidefinite, or numbers are too large")
        return self._iterates["forces"][count % 2]
