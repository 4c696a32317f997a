"""Coulomb's law on a Delassus matrix: forces of contact points in a fixed number of steps without branches.

For each point with the force λ = (λ_t, λ_n) and the motion σ = Ω λ + b:

    0 ≤ λ_n ⟂ σ_n ≥ 0   (Signorini),    ‖λ_t‖ ≤ μ λ_n,  λ_t = −μ λ_n σ_t / ‖σ_t‖ if σ_t ≠ 0   (Coulomb)

that is K ∋ λ ⟂ σ + Γ(σ) ∈ K* with the friction cone K and Γ(σ) = μ ‖σ_t‖ along the normal: De Saxcé and Feng, The
bipotential method (1998). "admm" separates the quadratic form from the cones, as Carpentier, Le Lidec and Montaut, From
compliant to rigid contact simulation (2024); "pgs" is projected Gauss-Seidel, point by point. A step is a program that
a compiled loop repeats; a semismooth Newton method, Alart and Curnier (1991), refines states with large residuals.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.contact.cone_iterations import (
    ConeLoop,
    compile_projection,
    compile_residuals,
    compile_step,
    point_scales,
)
from sysdyn.errors import InvalidInput, check_among
from sysdyn.program.arrays import broadcast_shapes, finite_array, is_count
from sysdyn.program.groups import slices
from sysdyn.runtime.runner import INTERMEDIATE_BYTES, Runner

# Penalty ρ of ADMM as a share of the mean diagonal entry of Ω (measured: of 0.1 … 1.6 it solves most states).
PENALTY = 0.2
# Singular values below this share of the largest belong to redundant rows (chosen).
RANK_TOL = 1e-10
# Most alternations between the methods (measured: two solve 1,200 states of robots).
MAX_ALTERNATIONS = 4
# Alternating direction method of multipliers, projected Gauss-Seidel.
METHODS = ("admm", "pgs")
# Modes of a contact point.
OPEN, SLIDES, STICKS = "open", "slides", "sticks"


class PointForces(NamedTuple):
    """Forces of contact points by Coulomb's law, in the units of Ω and b.

    Attributes
    ----------
    forces : (…, m) array
        λ, point by point.
    motion : (…, m) array
        σ = Ω λ + b.
    signorini : (…) array
        Residual |min(σ_n, c λ_n)| of the worst point, in the unit of b. c is the mean diagonal entry of its block of Ω.
    friction : (…) array
        Residual c ‖λ_t − λ'‖ of the worst point, in the unit of b. λ' is the projection of λ_t − σ_t / c onto the disk
        of radius μ max(0, λ_n − σ_n / c). The law holds if and only if both residuals are zero.
    """

    forces: np.ndarray
    motion: np.ndarray
    signorini: np.ndarray
    friction: np.ndarray

    @property
    def worst(self) -> np.ndarray:
        """(…) array: the larger of the residuals `signorini` and `friction`."""
        return np.maximum(self.signorini, self.friction)


class Coulomb:
    """Coulomb's law for contact points with a given Delassus matrix; `law(omega, free, friction)` gives `PointForces`.

        law = sd.Coulomb([3, 3, 3, 3])
        solution = law(omega, free, 0.7)

    Parameters
    ----------
    rows
        Number of rows of each point: its tangents (two, one or none), then its normal.
    method
        "admm" (alternating direction method of multipliers) or "pgs" (projected Gauss-Seidel).
    iterations
        Steps of the method, the same number for all states.
    newton_steps
        Most steps of Newton's method for states with residuals above the tolerance. If they do not suffice, the other
        method continues from there with as many steps, and so on. 0: `iterations` steps of `method` only.
    relaxed
        Without Γ: the convex problem min ½ λᵀ Ω λ + bᵀ λ in the cones, as in MuJoCo. Sliding points separate. Newton's
        method is not used.

    Raises
    ------
    InvalidInput, UnknownName
    """

    def __init__(
        self, rows: Sequence[int], method: str = "admm", iterations: int = 100, newton_steps: int = 3,
        relaxed: bool = False,
    ):  # fmt: skip
        check_among("method", method, METHODS)
        for name, x, least in (("iterations", iterations, 1), ("newton_steps", newton_steps, 0)):
            if not is_count(x, least):
                raise InvalidInput(f"{name} is {x!r}, but an integer ≥ {least} is needed")
        if not (len(rows) and all(is_count(x, 1) and x <= 3 for x in rows)):
            raise InvalidInput(f"rows of points are {rows!r}, but each has a normal and up to two tangents: 1, 2 or 3")
        self.rows, self.method, self.iterations = tuple(rows), method, iterations
        self.newton_steps, self.relaxed = 0 if relaxed else newton_steps, relaxed
        self._parts = slices(self.rows)
        self._normals = np.cumsum(self.rows) - 1
        self._loops = threading.local()
        self._compiled_residuals = compile_residuals(self.rows, relaxed)

    def __repr__(self) -> str:
        return (
            f"Coulomb's law of {len(self.rows)} points by {self.iterations} steps of {self.method!r}, "
            f"{compile_step(self.rows, self.method, self.relaxed).program.flops.total} operations each"
        )

    def __reduce__(self):
        return Coulomb, (self.rows, self.method, self.iterations, self.newton_steps, self.relaxed)

    def __call__(
        self, omega: ArrayLike, free: ArrayLike, friction: ArrayLike, forces: ArrayLike | None = None,
        tolerance: float = 1e-9,
    ) -> PointForces:  # fmt: skip
        """Solve for forces. Leading axes are batch axes and broadcast.

        Parameters
        ----------
        omega : (…, m, m) array
            Ω, symmetric and positive semidefinite. It is singular if points are redundant; the forces are then one of
            the solutions.
        free : (…, m) array
            b, the motion without forces.
        friction : () or (…, points) array
            μ ≥ 0.
        forces : (…, m) array
            Initial forces, such as those of the previous time step. Default: zero.
        tolerance
            States with a residual above it, in the unit of b, are refined.

        Raises
        ------
        InvalidInput
        """
        m, points = sum(self.rows), len(self.rows)
        shapes = {"omega": (m, m), "free": (m,), "friction": (points,), "forces": (m,)}
        arguments = {"omega": omega, "free": free, "friction": self._per_point(friction)}
        arguments["forces"] = np.zeros(m) if forces is None else forces
        arrays = {name: finite_array(name, x, (..., *shapes[name])) for name, x in arguments.items()}
        if np.any(arrays["friction"] < 0.0):
            raise InvalidInput(f"friction is {np.min(arrays['friction']):g}, but coefficients are ≥ 0")
        lead = broadcast_shapes({name: x.shape[: x.ndim - len(shapes[name])] for name, x in arrays.items()})
        n = int(np.prod(lead, dtype=int))
        w, b, mu, start = (
            np.ascontiguousarray(np.broadcast_to(x, lead + shapes[name])).reshape(n, *shapes[name])
            for name, x in arrays.items()
        )
        traces = np.trace(w, axis1=1, axis2=2)
        if np.any(np.diagonal(w, axis1=1, axis2=2) < 0.0) or np.any(traces <= 0.0):
            raise InvalidInput("omega has negative diagonal entries, or no positive one: no point moves by its force")
        if np.any(np.abs(w - np.swapaxes(w, 1, 2)).max(axis=(1, 2)) > np.sqrt(np.finfo(float).eps) * traces):
            raise InvalidInput("omega is not symmetric, as J H⁻¹ Jᵀ is: are its rows in the order of its columns?")
        solution = self._iterate(self.method, w, b, mu, start, cold=forces is None)
        if self.newton_steps:
            alternation = itertools.cycle(METHODS if self.method == "pgs" else METHODS[::-1])
            self._refine(w, b, mu, solution, tolerance)
            for method in itertools.islice(alternation, MAX_ALTERNATIONS):
                if not len(bad := np.flatnonzero(solution.worst > tolerance)):
                    break
                problem = w[bad], b[bad], mu[bad]
                trial = self._iterate(method, *problem, solution.forces[bad], cold=False)
                self._refine(*problem, trial, tolerance)
                _improve(solution, bad, trial)
        return PointForces(*(x.reshape(lead + x.shape[1:]) for x in solution))

    def residuals(self, omega: ArrayLike, free: ArrayLike, friction: ArrayLike, forces: ArrayLike) -> PointForces:
        """Motion and residuals of any forces; arguments as for a call."""
        values = self._compiled_residuals(omega, free, self._per_point(friction), forces).values()
        return PointForces(np.asarray(forces), *values)

    def modes(self, omega: np.ndarray, friction: ArrayLike, solution: PointForces) -> np.ndarray:
        """(…, points) "open", "slides" or "sticks" at the solution of a call with these arguments."""
        y = self._shifted(omega, solution)
        normal = y[..., self._normals]
        sticks = self._tangential(y) <= np.asarray(friction) * normal
        return np.where(normal <= 0.0, OPEN, np.where(sticks, STICKS, SLIDES))

    def sensitivity(self, omega: np.ndarray, friction: ArrayLike, solution: PointForces) -> np.ndarray:
        """(…, m, m) derivative ∂λ/∂b at the solution of a call with these arguments, while no point changes its mode.

        ∂λ/∂Ω follows from it, because b and Ω λ are added. For redundant points it has minimum norm.
        """
        _, slope = self._projection(friction, self._shifted(omega, solution))
        return -self._newton_inverse(omega, slope) @ (slope * self._inverse_scales(omega)[..., None, :])

    def _per_point(self, friction: ArrayLike) -> ArrayLike:
        """Friction coefficients μ (…, points); a single number is that of all points."""
        return np.full(len(self.rows), friction) if np.ndim(friction) == 0 else friction

    # ---- fixed-point iterations ------------------------------------------------------------------------------------

    def _iterate(
        self, method: str, w: np.ndarray, b: np.ndarray, mu: np.ndarray, start: np.ndarray, cold: bool
    ) -> PointForces:
        """Run all steps of a method, in blocks of states that stay in the cache."""
        step = compile_step(self.rows, method, self.relaxed)
        constants, iterates = self._step_arrays(method, w, b, mu, start, cold)
        width, forces = step.backend.width, np.empty_like(b)
        size = max(1, INTERMEDIATE_BYTES // (8 * step.program.n_inputs) // width) * width
        for first in range(0, len(b), size):
            block = slice(first, first + size)
            inputs, initial = ({name: x[block] for name, x in group.items()} for group in (constants, iterates))
            forces[block] = self._loop(method, step, len(inputs["free"])).run(inputs, initial, self.iterations)
        if len(b) != 1:
            return self.residuals(w, b, mu, forces)
        return PointForces(*(np.asarray(x)[None] for x in self.residuals(w[0], b[0], mu[0], forces[0])))

    def _loop(self, method: str, step: Runner, n: int) -> ConeLoop:
        """Compiled loop that repeats `step`, the step of a method, for n states.

        Each thread has its own loops, and caches two for each method: for one state and for the last batch size.
        """
        loops = self._loops.__dict__
        key = f"{method} {min(n, 2)}"
        if key not in loops or loops[key].n != n:
            loops[key] = ConeLoop(step, n)
        return loops[key]

    def _step_arrays(
        self, method: str, w: np.ndarray, b: np.ndarray, mu: np.ndarray, start: np.ndarray, cold: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """(constants of a step, initial iterates) by name."""
        n, m = b.shape
        if method == "pgs":
            constants = {"matrix": w.reshape(n, m * m), "free": b, "friction": mu, "steps": self._step_lengths(w)}
            return constants, {"forces": start}
        rho = PENALTY / m * np.trace(w, axis1=1, axis2=2)[:, None]
        inverse = np.linalg.inv(w / rho[:, :, None] + np.eye(m))
        dual = np.zeros((n, m))
        if not cold:
            motion = np.einsum("nij,nj->ni", w, start) + b
            if not self.relaxed:
                motion[:, self._normals] += mu * self._tangential(motion)
            dual = -motion / rho
        return {"matrix": inverse.reshape(n, m * m), "free": b / rho, "friction": mu}, {"forces": start, "dual": dual}

    def _step_lengths(self, w: np.ndarray) -> np.ndarray:
        """(n, 2 points): 1 / Ω_nn of each point, then 1 / the largest eigenvalue of Ω_tt; 0 if a point cannot move.

        For the relaxed law both are 1 / the largest eigenvalue of the point's block.
        """
        normals, tangents = [], []
        for part in self._parts:
            block = w[:, part, part]
            size = block.shape[1]
            normals.append(np.linalg.eigvalsh(block)[:, -1] if self.relaxed else block[:, -1, -1])
            tangents.append(np.linalg.eigvalsh(block[:, :-1, :-1])[:, -1] if size > 1 else block[:, 0, 0])
        bounds = np.stack([*normals, *(normals if self.relaxed else tangents)], axis=1)
        return np.divide(1.0, bounds, out=np.zeros_like(bounds), where=bounds > 0.0)

    def _tangential(self, x: np.ndarray) -> np.ndarray:
        """Norm ‖x_t‖ (…, points) of the tangential components of x (…, m) at each point."""
        return np.stack([np.linalg.norm(x[..., part][..., :-1], axis=-1) for part in self._parts], axis=-1)

    # ---- Newton's method: the law is λ = Q(λ − σ / c) ---------------------------------------------------------------

    def _refine(self, w: np.ndarray, b: np.ndarray, mu: np.ndarray, solution: PointForces, tolerance: float) -> None:
        """Newton steps for the states whose residual is above the tolerance."""
        for _ in range(self.newton_steps):
            if not len(bad := np.flatnonzero(solution.worst > tolerance)):
                break
            current = PointForces(*(x[bad] for x in solution))
            projection, slope = self._projection(mu[bad], self._shifted(w[bad], current))
            step = np.einsum("nij,nj->ni", self._newton_inverse(w[bad], slope), projection - current.forces)
            _improve(solution, bad, self.residuals(w[bad], b[bad], mu[bad], current.forces + step))

    def _projection(self, friction: ArrayLike, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Projection Q(y) of all points, see `_project_point`, and its derivative Q'(y) (…, m, m)."""
        function, product = compile_projection(self.rows)
        mu = np.asarray(self._per_point(friction))
        transposed = product(y[..., None, :], mu[..., None, :], tangents=np.eye(y.shape[-1]))
        return function(y, mu), np.swapaxes(transposed, -1, -2)

    def _newton_inverse(self, w: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Pseudo-inverse (…, m, m) of the Newton matrix 1 − Q' (1 − Ω / c), the derivative of λ − Q(λ − σ / c).

        w: Ω (…, m, m). slope: Q' (…, m, m). c: scale of each point, see `_inverse_scales`.
        """
        identity = np.eye(w.shape[-1])
        return np.linalg.pinv(identity - slope @ (identity - self._inverse_scales(w)[..., None] * w), rcond=RANK_TOL)

    def _shifted(self, w: np.ndarray, solution: PointForces) -> np.ndarray:
        """Argument λ − σ / c (…, m) of the projection Q; w: Ω (…, m, m)."""
        return solution.forces - self._inverse_scales(w) * solution.motion

    def _inverse_scales(self, w: np.ndarray) -> np.ndarray:
        """1 / c (…, m) for each row, with the scale c of its point, see `point_scales`; w: Ω (…, m, m)."""
        scales = point_scales(self.rows, np.moveaxis(np.diagonal(w, axis1=-2, axis2=-1), -1, 0))
        return np.repeat(1.0 / np.stack(scales, axis=-1), self.rows, axis=-1)


def _improve(solution: PointForces, states: np.ndarray, trial: PointForces) -> None:
    """Replace the solution of these states where the trial has a smaller residual."""
    better = trial.worst < solution.worst[states]
    for x, y in zip(solution, trial, strict=True):
        x[states[better]] = y[better]
