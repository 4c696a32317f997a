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
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.contact.cone_iterations import NO_FORCE, ConeLoop, judge_of, scales, step_of
from sysdyn.errors import InvalidInput, check_among
from sysdyn.program.arrays import broadcast_shapes, finite_array, is_count
from sysdyn.program.groups import slices
from sysdyn.runtime.runner import INTERMEDIATE_BYTES

# Step of ADMM as a share of the mean diagonal entry of Ω: of 0.1 … 1.6 it leaves the fewest states of two quadrupeds,
# and of an iCub on eight points, above 1e-6 m/s after 100 steps (measured).
SHARE = 0.2
# Greatest difference of Ω from its transpose that is taken for rounding, as a share of its trace (chosen).
ASYMMETRIC = 1e-6
# Singular values below this share of the greatest belong to redundant points, which share their forces (chosen).
REDUNDANT = 1e-10
# Fractions of a Newton step that are tried, of which the best is taken (chosen).
FRACTIONS = (1.0, 0.5, 0.25)
# Most turns of both methods after the first one: two leave none of 1,200 states of robots above 1e-6 m/s (measured).
METHOD_TURNS = 4
# Names of the methods: alternating directions of multipliers, projected Gauss-Seidel.
METHODS = ("admm", "pgs")
# States of a point of contact.
OPEN, SLIDES, STICKS = "open", "slides", "sticks"


class PointForces(NamedTuple):
    """Forces by Coulomb's law. forces, motion (…, m): λ and σ = Ω λ + b, point by point.

    signorini (…), friction (…): residuals in the unit of b, of the worst point, with c the mean diagonal entry of its
    block of Ω: |min(σ_n, c λ_n)|, and c ‖λ_t − λ'‖, λ' being λ_t − σ_t / c brought back into the disk of radius
    μ max(0, λ_n − σ_n / c). Both are zero if and only if the law holds.
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
        check_among("method", method, METHODS)
        for name, x, least in (("iterations", iterations, 1), ("polish", polish, 0)):
            if not is_count(x, least):
                raise InvalidInput(f"{name} is {x!r}, but an integer ≥ {least} is needed")
        if not (len(rows) and all(is_count(x, 1) and x <= 3 for x in rows)):
            raise InvalidInput(f"rows of points are {rows!r}, but each has a normal and up to two tangents: 1, 2 or 3")
        self.rows, self.method, self.iterations = tuple(rows), method, iterations
        self.polish, self.relaxed = 0 if relaxed else polish, relaxed
        self._parts = slices(self.rows)
        self._normals = np.cumsum(self.rows) - 1
        self._own = threading.local()
        self._judge = judge_of(self.rows, relaxed)

    def __repr__(self) -> str:
        return (
            f"Coulomb's law of {len(self.rows)} points by {self.iterations} steps of {self.method!r}, "
            f"{step_of(self.rows, self.method, self.relaxed).program.flops.total} operations each"
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
        arrays = {name: finite_array(name, x, (..., *sizes[name])) for name, x in given.items()}
        if np.any(arrays["friction"] < 0.0):
            raise InvalidInput(f"friction is {np.min(arrays['friction']):g}, but coefficients are ≥ 0")
        lead = broadcast_shapes({name: x.shape[: x.ndim - len(sizes[name])] for name, x in arrays.items()})
        n = int(np.prod(lead, dtype=int))
        w, b, mu, start = (
            np.ascontiguousarray(np.broadcast_to(x, lead + sizes[name])).reshape(n, *sizes[name])
            for name, x in arrays.items()
        )
        traces = np.trace(w, axis1=1, axis2=2)
        if np.any(np.diagonal(w, axis1=1, axis2=2) < 0.0) or np.any(traces <= 0.0):
            raise InvalidInput("omega has negative diagonal entries, or no positive one: no point moves by its force")
        if np.any(np.abs(w - np.swapaxes(w, 1, 2)).max(axis=(1, 2)) > ASYMMETRIC * traces):
            raise InvalidInput("omega is not symmetric, as J H⁻¹ Jᵀ is: are its rows in the order of its columns?")
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
        mu = np.broadcast_to(friction, (*lead, len(self.rows))).reshape(n, len(self.rows))
        return w, mu, PointForces(*(x.reshape(n, *x.shape[len(lead) :]) for x in found)), lead

    # ---- the steps -------------------------------------------------------------------------------------------------

    def _steps(
        self, method: str, w: np.ndarray, b: np.ndarray, mu: np.ndarray, start: np.ndarray, cold: bool
    ) -> PointForces:
        """All steps of a method, part by part of a batch that stays in the cache."""
        step, (given, kept) = step_of(self.rows, method, self.relaxed), self._prepared(method, w, b, mu, start, cold)
        row = 8 * step.program.n_inputs
        width = step.backend.width
        part = max(1, INTERMEDIATE_BYTES // row // width) * width
        for first in range(0, len(b), part):
            own = slice(first, first + part)
            inputs, changed = ({name: x[own] for name, x in group.items()} for group in (given, kept))
            loop = self._loop(method, len(inputs["free"]))
            kept["forces"][own] = loop.run(inputs, changed, self.iterations)
        if len(b) != 1:
            return self.judged(w, b, mu, kept["forces"])
        return PointForces(*(np.asarray(x)[None] for x in self.judged(w[0], b[0], mu[0], kept["forces"][0])))

    def _loop(self, method: str, n: int) -> ConeLoop:
        """The loop of this thread over n states; those of one state and of the last batch are kept."""
        loops = self._own.__dict__.setdefault("loops", {})
        kept = method, min(n, 2)
        if kept not in loops or loops[kept].n != n:
            loops[kept] = ConeLoop(step_of(self.rows, method, self.relaxed), n)
        return loops[kept]

    def _prepared(
        self, method: str, w: np.ndarray, b: np.ndarray, mu: np.ndarray, start: np.ndarray, cold: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """(arrays that a step reads, arrays that it changes)."""
        n, m = b.shape
        if method == "pgs":
            given = {"matrix": w.reshape(n, m * m), "free": b, "friction": mu, "steps": self._lengths(w)}
            return given, {"forces": start.copy()}
        rho = SHARE / m * np.trace(w, axis1=1, axis2=2)[:, None]
        inverse = np.linalg.inv(w / rho[:, :, None] + np.eye(m))
        dual = np.zeros((n, m))
        if not cold:
            motion = np.einsum("nij,nj->ni", w, start) + b
            if not self.relaxed:
                motion[:, self._normals] += mu * self._sliding(motion)
            dual = -motion / rho
        given = {"matrix": np.ascontiguousarray(inverse).reshape(n, m * m), "free": b / rho, "friction": mu}
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

    def _polish(self, w: np.ndarray, b: np.ndarray, mu: np.ndarray, found: PointForces, tolerance: float) -> None:
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
        """1 / c (n, m) of each row's point."""
        found = scales(self.rows, np.diagonal(w, axis1=1, axis2=2).T)
        return np.repeat(1.0 / np.stack(found, axis=1), self.rows, axis=1)


def _above(found: PointForces, tolerance: float) -> np.ndarray:
    """Numbers of the states whose residual is above the tolerance."""
    return np.flatnonzero(np.maximum(found.signorini, found.friction) > tolerance)


def _improve(found: PointForces, which: np.ndarray, new: PointForces) -> None:
    """Put other forces of these states in place of those with greater residuals."""
    better = np.maximum(new.signorini, new.friction) < np.maximum(found.signorini, found.friction)[which]
    for x, y in zip(found, new, strict=True):
        x[which[better]] = y[better]
