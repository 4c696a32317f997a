"""Coulomb's law on a Delassus matrix: forces of contact points in a fixed number of steps without branches.

For each point with the rows λ = (λ_t, λ_n) of its force, and σ = Ω λ + b of its motion:

    0 ≤ λ_n ⟂ σ_n ≥ 0   (Signorini),    ‖λ_t‖ ≤ μ λ_n,  λ_t = −μ λ_n σ_t / ‖σ_t‖ wherever σ_t ≠ 0   (Coulomb)

that is K ∋ λ ⟂ σ + Γ(σ) ∈ K* with the cone K of friction and Γ(σ) = μ ‖σ_t‖ along the normal: De Saxcé and Feng, The
bipotential method (1998). "admm" splits the quadratic form from the cones, as Carpentier, Le Lidec and Montaut, From
compliant to rigid contact simulation (2024); "pgs" solves point by point. A step is a program, which a compiled loop
runs again and again; Newton's method ends what is not exact then, Alart and Curnier (1991).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.backends.executable import BETWEEN, Executable
from sysdyn.backends.function import Function, compile_function
from sysdyn.backends.kernel import words
from sysdyn.backends.llvm.loop import Plan
from sysdyn.backends.registry import backend_named
from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.program.expr import Graph, copysign, sqrt
from sysdyn.program.groups import common, finite
from sysdyn.program.program import Program

# Step of ADMM as a share of the mean diagonal entry of Ω, and its over-relaxation: of 0.1 … 1.6 and of 1 and 1.6 they
# leave the fewest states of two quadrupeds, and of an iCub on eight points, above 1e-6 m/s after 100 steps (measured).
SHARE, RELAXATION = 0.2, 1.6
# Number that keeps quotients of two zeros finite, beside sizes of forces [N].
NO_FORCE = 1e-200
# Singular values below this share of the greatest belong to redundant points, which share their forces (chosen).
REDUNDANT = 1e-10
# Fractions of a Newton step that are tried, of which the best is taken (chosen).
FRACTIONS = (1.0, 0.5, 0.25)
# Turns of both methods after the first at most: of 1,200 states of robots two leave none above 1e-6 m/s (measured).
METHOD_TURNS = 4
METHODS = ("admm", "pgs")
OPEN, SLIDES, STICKS = "open", "slides", "sticks"


class PointForces(NamedTuple):
    """Forces by Coulomb's law. forces, motion (…, m): λ and σ = Ω λ + b, point by point.

    signorini (…), friction (…): residuals in the unit of b, of the worst point, with c the mean diagonal entry of its
    block of Ω: |min(σ_n, c λ_n)|, and c ‖λ_t − λ'‖ with λ' = λ_t − σ_t / c, brought back into the disk of radius μ λ_n.
    Both are zero if and only if the law holds.
    """

    forces: np.ndarray
    motion: np.ndarray
    signorini: np.ndarray
    friction: np.ndarray


class Coulomb:
    """Contact points with friction, by their Delassus matrix; `law(omega, free, friction)` gives a `PointForces`.

        law = sd.Coulomb([3, 3, 3, 3])
        found = law(omega, free, 0.7)

    rows: of each point, its tangents (two, one or none) and its normal last. method: "admm" or "pgs". iterations: steps
    of it, at all states. polish: steps of Newton's method at most, at states whose residual is large then; where that
    does not do, the other method takes as many steps from there, and so on in turns. 0: the first steps alone. relaxed:
    without Γ, the convex problem min ½ λᵀ Ω λ + bᵀ λ in the cones, in which what slides lifts off, as in MuJoCo; it is
    not polished.

    Raises InvalidInput, UnknownName.
    """

    def __init__(
        self, rows: Sequence[int], method: str = "admm", iterations: int = 100, polish: int = 3, relaxed: bool = False
    ):
        if method not in METHODS:
            raise UnknownName("method", method, METHODS)
        for name, x, least in (("iterations", iterations, 1), ("polish", polish, 0)):
            if not (isinstance(x, int) and x >= least):
                raise InvalidInput(f"{name} is {x!r}, but an integer ≥ {least} is needed")
        if not (len(rows) and all(x in (1, 2, 3) for x in rows)):
            raise InvalidInput(f"rows of points are {rows!r}, but each has a normal and up to two tangents: 1, 2 or 3")
        self.rows, self.method, self.iterations = tuple(rows), method, iterations
        self.polish, self.relaxed = 0 if relaxed else polish, relaxed
        self._parts = _parts(self.rows)
        self._normals = np.cumsum(self.rows) - 1
        self._own = threading.local()
        self._judge = _judge(self.rows, relaxed)

    def __repr__(self) -> str:
        return (
            f"Coulomb's law of {len(self.rows)} points by {self.iterations} steps of {self.method!r}, "
            f"{_step(self.rows, self.method, self.relaxed).program.flops.total} operations each"
        )

    def __reduce__(self):
        return Coulomb, (self.rows, self.method, self.iterations, self.polish, self.relaxed)

    def __call__(
        self, omega: ArrayLike, free: ArrayLike, friction: ArrayLike, forces: ArrayLike | None = None,
        tolerance: float = 1e-9,
    ) -> PointForces:  # fmt: skip
        """Forces and residuals; leading axes are batch axes and broadcast.

        omega (…, m, m): Ω, symmetric and positive semidefinite; of redundant points it is singular, and their forces
        are some that obey the law. free (…, m): b, the motion without forces. friction (…, points) or (): μ ≥ 0.
        forces (…, m): where to begin, such as those of the step before; else at zero. tolerance: residual, in the unit
        of b, above which states are polished.

        Raises InvalidInput.
        """
        m, points = sum(self.rows), len(self.rows)
        sizes = {"omega": (m, m), "free": (m,), "friction": (points,), "forces": (m,)}
        given = {"omega": omega, "free": free, "friction": self._each(friction)}
        given["forces"] = np.zeros(m) if forces is None else forces
        arrays = {name: finite(name, x, sizes[name]) for name, x in given.items()}
        if np.any(arrays["friction"] < 0.0):
            raise InvalidInput(f"friction is {np.min(arrays['friction']):g}, but coefficients are ≥ 0")
        lead = common({name: x.shape[: x.ndim - len(sizes[name])] for name, x in arrays.items()})
        n = int(np.prod(lead, dtype=int))
        w, b, mu, start = (
            np.ascontiguousarray(np.broadcast_to(x, lead + sizes[name])).reshape(n, *sizes[name])
            for name, x in arrays.items()
        )
        if np.any(np.diagonal(w, axis1=1, axis2=2) < 0.0):
            raise InvalidInput("omega has negative diagonal entries: Delassus matrices are positive semidefinite")
        found = self._steps(self.method, w, b, mu, start, cold=forces is None)
        if self.polish:
            turns = itertools.cycle(METHODS if self.method == "pgs" else METHODS[::-1])
            self._polish(w, b, mu, found, tolerance)
            for other in itertools.islice(turns, METHOD_TURNS):
                if not len(bad := _above(found, tolerance)):
                    break
                some = w[bad], b[bad], mu[bad]
                new = self._steps(other, *some, found.forces[bad], cold=False)
                self._polish(*some, new, tolerance)
                _improve(found, bad, new)
        return PointForces(*(x.reshape(lead + x.shape[1:]) for x in found))

    def judged(self, omega: ArrayLike, free: ArrayLike, friction: ArrayLike, forces: ArrayLike) -> PointForces:
        """Any forces with their motion and residuals; arguments as of a call."""
        return PointForces(np.asarray(forces), *self._judge(omega, free, self._each(friction), forces).values())

    def _each(self, friction: ArrayLike) -> ArrayLike:
        """μ of each point."""
        return np.full(len(self.rows), friction) if np.ndim(friction) == 0 else friction

    def modes(self, omega: np.ndarray, friction: np.ndarray, found: PointForces) -> np.ndarray:
        """(…, points) of "open", "slides" or "sticks" at a result of a call with these arguments."""
        w, mu, now, lead = self._flat(omega, friction, found)
        y = now.forces - self._scale(w) * now.motion
        open_ = y[:, self._normals] <= 0.0
        sticks = self._sliding(y) <= mu * y[:, self._normals]
        return np.where(open_, OPEN, np.where(sticks, STICKS, SLIDES)).reshape(*lead, len(self.rows))

    def sensitivity(self, omega: np.ndarray, friction: np.ndarray, found: PointForces) -> np.ndarray:
        """∂λ/∂b (…, m, m) at a result of a call with these arguments, while no point changes its mode.

        ∂λ/∂Ω follows from it, for b acts as Ω λ does. Of redundant points the smallest changes are given.
        """
        w, mu, now, lead = self._flat(omega, friction, found)
        _, slope = self._law(mu, now.forces - self._scale(w) * now.motion)
        changes = -self._inverse(w, slope) @ (slope * self._scale(w)[:, None, :])
        return changes.reshape(*lead, *changes.shape[1:])

    def _flat(
        self, omega: np.ndarray, friction: np.ndarray, found: PointForces
    ) -> tuple[np.ndarray, np.ndarray, PointForces, tuple[int, ...]]:
        """(Ω, μ, the result, all with one axis of states; the batch axes)."""
        lead, m = found.signorini.shape, sum(self.rows)
        n = int(np.prod(lead, dtype=int))
        w = np.broadcast_to(omega, (*lead, m, m)).reshape(n, m, m)
        mu = np.broadcast_to(friction, (*lead, len(self.rows))).reshape(n, -1)
        return w, mu, PointForces(*(x.reshape(n, *x.shape[len(lead) :]) for x in found)), lead

    # ---- the steps -------------------------------------------------------------------------------------------------

    def _steps(
        self, method: str, w: np.ndarray, b: np.ndarray, mu: np.ndarray, start: np.ndarray, cold: bool
    ) -> PointForces:
        """All steps of a method, part by part of a batch that stays in the cache."""
        step, (given, kept) = _step(self.rows, method, self.relaxed), self._prepared(method, w, b, mu, start, cold)
        row = 8 * sum(size for _, size in step.program.input_groups)
        width = step.backend.width
        part = max(1, BETWEEN // row // width) * width
        for first in range(0, len(b), part):
            own = slice(first, first + part)
            inputs, changed = ({name: x[own] for name, x in group.items()} for group in (given, kept))
            loop = self._loop(method, len(inputs["free"]))
            kept["forces"][own] = loop.run(inputs, changed, self.iterations)
        if len(b) > 1:
            return self.judged(w, b, mu, kept["forces"])
        return PointForces(*(np.asarray(x)[None] for x in self.judged(w[0], b[0], mu[0], kept["forces"][0])))

    def _loop(self, method: str, n: int) -> _Loop:
        """The loop of this thread over n states; those of one state and of the last batch are kept."""
        loops = self._own.__dict__.setdefault("loops", {})
        kept = method, min(n, 2)
        if kept not in loops or loops[kept].n != n:
            loops[kept] = _Loop(_step(self.rows, method, self.relaxed), n)
        return loops[kept]

    def _prepared(
        self, method: str, w: np.ndarray, b: np.ndarray, mu: np.ndarray, start: np.ndarray, cold: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """(arrays that a step reads, arrays that it changes)."""
        n, m = b.shape
        if method == "pgs":
            given = {"matrix": w.reshape(n, -1), "free": b, "friction": mu, "steps": self._lengths(w)}
            return given, {"forces": start.copy()}
        rho = SHARE * np.maximum(np.trace(w, axis1=1, axis2=2)[:, None] / m, NO_FORCE)
        inverse = np.linalg.inv(w / rho[:, :, None] + np.eye(m))
        dual = np.zeros((n, m))
        if not cold:
            motion = np.einsum("nij,nj->ni", w, start) + b
            if not self.relaxed:
                motion[:, self._normals] += mu * self._sliding(motion)
            dual = -motion / rho
        given = {"matrix": np.ascontiguousarray(inverse).reshape(n, -1), "free": b / rho, "friction": mu}
        return given, {"forces": start.copy(), "dual": dual}

    def _lengths(self, w: np.ndarray) -> np.ndarray:
        """(n, 2 points): 1 / Ω_nn of each point, then 1 / the greatest eigenvalue of Ω_tt; 0 for what cannot move.

        Of a relaxed law both are 1 / the greatest eigenvalue of the point's block.
        """
        normals, tangents = [], []
        for part in self._parts:
            block = w[:, part, part]
            size = block.shape[1]
            normals.append(np.linalg.eigvalsh(block)[:, -1] if self.relaxed else block[:, -1, -1])
            tangents.append(np.linalg.eigvalsh(block[:, :-1, :-1])[:, -1] if size > 1 else block[:, 0, 0])
        found = np.stack([*normals, *(normals if self.relaxed else tangents)], axis=1)
        return np.divide(1.0, found, out=np.zeros_like(found), where=found > 0.0)

    def _sliding(self, motion: np.ndarray) -> np.ndarray:
        """‖σ_t‖ (n, points)."""
        return np.stack([np.linalg.norm(motion[:, part][:, :-1], axis=1) for part in self._parts], axis=1)

    # ---- Newton's method -------------------------------------------------------------------------------------------

    def _polish(
        self, w: np.ndarray, b: np.ndarray, mu: np.ndarray, found: PointForces, tolerance: float
    ) -> None:  # fmt: skip
        """Steps of Newton's method at the states whose residual is above the tolerance."""
        for _ in range(self.polish):
            if not len(bad := _above(found, tolerance)):
                break
            now = PointForces(*(x[bad] for x in found))
            wanted, slope = self._law(mu[bad], now.forces - self._scale(w[bad]) * now.motion)
            step = np.einsum("nij,nj->ni", self._inverse(w[bad], slope), wanted - now.forces)
            for fraction in FRACTIONS:
                _improve(found, bad, self.judged(w[bad], b[bad], mu[bad], now.forces + fraction * step))

    def _law(self, mu: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(Q(y), Q'(y) (n, m, m)): λ_n ≥ 0, and λ_t in the disk of radius μ λ_n. The law is λ = Q(λ − σ / c)."""
        n, m = y.shape
        wanted, slope = np.zeros((n, m)), np.zeros((n, m, m))
        for k, part in enumerate(self._parts):
            t, normal = slice(part.start, part.stop - 1), part.stop - 1
            closed, up = y[:, normal] > 0.0, np.maximum(y[:, normal], 0.0)
            radius, size = mu[:, k] * up, np.linalg.norm(y[:, t], axis=1)
            share = np.where(size > radius, radius / np.maximum(size, NO_FORCE), 1.0)[:, None]
            along = np.where(size > radius, 1.0, 0.0)[:, None] * y[:, t] / np.maximum(size, NO_FORCE)[:, None]
            across = np.eye(t.stop - t.start) - along[:, :, None] * along[:, None, :]
            wanted[:, normal], wanted[:, t] = up, share * y[:, t]
            slope[:, normal, normal] = closed
            slope[:, t, normal] = closed[:, None] * mu[:, k, None] * along
            slope[:, t, t] = closed[:, None, None] * share[:, :, None] * across
        return wanted, slope

    def _inverse(self, w: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """(1 − Q' (1 − Ω / c))⁺ (n, m, m)."""
        one = np.eye(w.shape[1])
        return np.linalg.pinv(one - slope @ (one - self._scale(w)[:, :, None] * w), rcond=REDUNDANT)

    def _scale(self, w: np.ndarray) -> np.ndarray:
        """1 / c (n, m), c the mean diagonal entry of each point's block; at least a trifle of that of Ω."""
        diagonal = np.diagonal(w, axis1=1, axis2=2)
        means = np.stack([diagonal[:, part].mean(axis=1) for part in self._parts], axis=1)
        least = np.maximum(REDUNDANT * diagonal.mean(axis=1), NO_FORCE)[:, None]
        return np.repeat(1.0 / np.maximum(means, least), self.rows, axis=1)


def _above(found: PointForces, tolerance: float) -> np.ndarray:
    """Numbers of the states whose residual is above the tolerance."""
    return np.flatnonzero(np.maximum(found.signorini, found.friction) > tolerance)


def _improve(found: PointForces, which: np.ndarray, new: PointForces) -> None:
    """Put other forces of these states in place of those with greater residuals."""
    better = np.maximum(new.signorini, new.friction) < np.maximum(found.signorini, found.friction)[which]
    for x, y in zip(found, new, strict=True):
        x[which[better]] = y[better]


# ---- programs ------------------------------------------------------------------------------------------------------


def _parts(rows: Sequence[int]) -> list[slice]:
    """Rows of each point."""
    ends = np.cumsum([0, *rows]).tolist()
    return [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]


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
    for part, mu in zip(_parts(rows), x["friction"], strict=True):
        if not relaxed:
            wanted[part.stop - 1] = wanted[part.stop - 1] - mu * _norm(u[part][:-1])
    forces: list = []
    sums = [sum(matrix[min(i, j) * m + max(i, j)] * wanted[j] for j in range(m)) for i in range(m)]
    moved = [RELAXATION * a + (1.0 - RELAXATION) * b + c for a, b, c in zip(sums, y, u, strict=True)]
    for part, mu in zip(_parts(rows), x["friction"], strict=True):
        forces += _cone(moved[part], mu)
    return {"forces": forces, "dual": [a - b for a, b in zip(moved, forces, strict=True)]}


def _pgs(rows: Sequence[int], x: dict[str, np.ndarray], relaxed: bool) -> dict[str, list]:
    """Point by point: λ_n ← max(0, λ_n − σ_n / Ω_nn), then λ_t ← λ_t − σ_t / ‖Ω_tt‖ in the disk of radius μ λ_n."""
    forces, matrix, m = list(x["forces"]), x["matrix"], sum(rows)
    lengths = x["steps"]

    def motion(i: int):
        return sum(matrix[min(i, j) * m + max(i, j)] * forces[j] for j in range(m)) + x["free"][i]

    for k, (part, mu) in enumerate(zip(_parts(rows), x["friction"], strict=True)):
        own, normal = range(part.start, part.stop), part.stop - 1
        if relaxed:
            forces[part] = _cone([forces[i] - lengths[k] * motion(i) for i in own], mu)
            continue
        forces[normal] = _positive(forces[normal] - lengths[k] * motion(normal))
        moved = [forces[i] - lengths[len(rows) + k] * motion(i) for i in own[:-1]]
        forces[part.start : normal] = _disk(moved, mu * forces[normal])
    return {"forces": forces}


@cache
def _step(rows: tuple[int, ...], method: str, relaxed: bool) -> Executable:
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
    return Executable(backend_named("llvm")(program, 2))


@cache
def _judge(rows: tuple[int, ...], relaxed: bool) -> Function:
    """{motion (m,), signorini, friction ()} of Ω, b, μ and λ, compiled."""
    m, parts = sum(rows), _parts(rows)

    def residuals(omega: np.ndarray, free: np.ndarray, friction: np.ndarray, forces: np.ndarray) -> dict:
        motion, worst = omega @ forces + free, {"signorini": 0.0, "friction": 0.0}
        for part, mu in zip(parts, friction, strict=True):
            own, sigma = forces[part], motion[part]
            c = sum(omega[i, i] for i in range(part.start, part.stop)) / float(part.stop - part.start) + NO_FORCE
            wanted = (_cone if relaxed else _law)([a - b / c for a, b in zip(own, sigma, strict=True)], mu)
            off = [a - b for a, b in zip(own, wanted, strict=True)]
            worst["signorini"] = _larger(worst["signorini"], c * _size(off[-1]))
            worst["friction"] = _larger(worst["friction"], c * _norm(off[:-1]))
        return {"motion": motion, **{name: np.array(x) for name, x in worst.items()}}

    return compile_function(
        residuals, {"omega": (m, m), "free": (m,), "friction": (len(rows),), "forces": (m,)}, sharing="structural"
    )


class _Loop:
    """Calls of a step on n states, with arrays of its own: for one thread."""

    def __init__(self, step: Executable, n: int):
        self.n = n
        kernel = step.backend.kernel(n == 1)
        assert kernel is not None
        changed = [name.removeprefix("next ") for name, _ in step.program.output_groups]
        sizes = dict(step.program.input_groups)
        self._given = {name: np.zeros((n, size)) for name, size in sizes.items() if name not in changed}
        self._two = {name: np.zeros((2, n, sizes[name])) for name in changed}
        self._work, status = kernel.work(), np.zeros(n, dtype=np.int64)
        rows = []
        for k in range(2):
            inputs = self._given | {name: x[k] for name, x in self._two.items()}
            outputs = {f"next {name}": x[1 - k] for name, x in self._two.items()}
            rows.append(words(step.program, self._work[1], inputs, outputs, status))
        calls, still, none = np.array(rows), np.zeros((2, 1), dtype=np.int64), np.zeros((0, 4), dtype=np.int64)
        self._plan = Plan(kernel.address, status, calls, np.zeros_like(calls), still, 1, 1, none)

    def run(self, given: dict[str, np.ndarray], kept: dict[str, np.ndarray], count: int) -> np.ndarray:
        """Forces (n, m) after so many steps. Raises InvalidInput if they are not finite."""
        for name, x in given.items():
            self._given[name][:] = x
        for name, x in kept.items():
            self._two[name][0] = x
        if self._plan.run(0, count) < count:
            raise InvalidInput("forces grow without end: omega is not positive semidefinite, or numbers are too large")
        return self._two["forces"][count % 2]
