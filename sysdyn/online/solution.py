"""What a solver returns: quantities by attribute and by name, and checks that need the whole system."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sysdyn.equations.block_system import BlockSystem
from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.measurements.constraints import FrameConstraint
from sysdyn.measurements.measurement import Constraint, find_frame
from sysdyn.measurements.variables import QUANTITIES
from sysdyn.model.kinematics import forward_kinematics, frame_transform, joint_transforms, velocities
from sysdyn.model.spatial import rotation
from sysdyn.online.arguments import WRENCHES
from sysdyn.online.posterior import Checked, Part, Posterior
from sysdyn.problem import Problem

REFERENCES = ("local", "world")
UNCHECKED = 1e-9  # share of its own error that shows in a residual, below which nothing else checks it


class Solution:
    """Solved quantities at one state or, with leading batch axes, many.

    tau, qdd (…, nv); a, f, fx (…, nb, 6) in body coordinates, angular first; `a` is proper acceleration (gravity
    folded in); w (…, nw) the components of the wrenches of constraints. solution["tau", "l_knee"] picks one joint, body
    or constraint by name. ok (…) bool: the state was solved; False where on_singular="nan" left NaN.
    """

    def __init__(
        self,
        problem: Problem,
        inputs: dict[str, np.ndarray],
        lead: tuple[int, ...],
        values: dict[str, np.ndarray],
        ok: np.ndarray,
        posterior: Posterior,
    ):
        self._problem, self._inputs, self._lead, self._values = problem, inputs, lead, values
        self._posterior = posterior
        self.ok = ok

    def __getattr__(self, name: str) -> np.ndarray:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        if name in QUANTITIES or (name == "w" and values and self._problem.constraints):
            raise AttributeError(
                f"{name} was not asked for: this solver computes {', '.join(values)}; "
                f"compile with outputs={[*values, name]!r} or 'all'"
            )
        raise AttributeError(f"Solution has no attribute {name!r}")

    def __getitem__(self, key: str | tuple[str, str]) -> np.ndarray:
        quantity, name = key if isinstance(key, tuple) else (key, None)
        if quantity not in self._values:
            raise UnknownName("output", quantity, self._values)
        return self._picked(self._values[quantity], quantity, name)

    def _picked(self, values: np.ndarray, quantity: str, name: str | None) -> np.ndarray:
        if name is None:
            return values
        model = self._problem.model
        if quantity in ("tau", "qdd"):
            block = values[..., model.v_slice(model.joint_index(name))]
            return block[..., 0] if block.shape[-1] == 1 else block
        if quantity == "w":
            return values[..., self._place(name)[1]]
        return values[..., model.body_index(name), :]

    def _place(self, name: str) -> tuple[Constraint, slice]:
        """The constraint of that name, and where its components are in w."""
        constraints = {m.name: m for m in self._problem.constraints}
        if name not in constraints:
            raise UnknownName("constraint", name, constraints)
        layout = self._problem.layout()
        columns = layout.columns("w", list(constraints).index(name))
        start = layout.columns("w", 0).start
        return constraints[name], slice(columns.start - start, columns.stop - start)

    def wrench(self, name: str, reference: str = "local") -> np.ndarray:
        """Wrench (…, 6) [N m, N] of the Contact or LoopJoint of that name, angular first.

        It acts on the body of the contact at the origin of its frame, or on that of frame_b of a loop at the origin of
        frame_b; the opposite acts on the body of frame_a.

        reference  "local" (axes of the frame of a contact, of frame_a of a loop) or "world" (axes of the world)

        Raises UnknownName.
        """
        if reference not in REFERENCES:
            raise UnknownName("reference", reference, REFERENCES)
        constraint, _ = self._place(name)
        if not isinstance(constraint, FrameConstraint):
            raise InvalidInput(f"{name!r} has no frame: its components are solution['w', {name!r}]")
        wrench = constraint.spread(self["w", name])
        if reference == constraint.reference:
            return wrench
        model = self._problem.model
        frame = find_frame(model, constraint.frame)
        flat = wrench.reshape(-1, 6)
        q = np.broadcast_to(self._inputs["q"], (len(flat), model.nq))
        for k, state in enumerate(q):
            E = rotation(frame.X)
            if frame.body >= 0:
                E = E @ rotation(forward_kinematics(model, state)[frame.body])
            turn = E.T if reference == "world" else E
            flat[k] = np.concatenate([turn @ flat[k, :3], turn @ flat[k, 3:]])
        return flat.reshape(wrench.shape)

    # ---- checks --------------------------------------------------------------------------------------------------

    def residual(self) -> np.ndarray:
        """D d + b (…, equations) of the problem's system at this solution; zero but for rounding where it is exact.

        Needs outputs="all".
        """
        return self._residual()[0]

    def backward_error(self) -> np.ndarray:
        """|D d + b|∞ / (|D|∞ |d|∞ + |b|∞) (…): relative change of the system that makes the solution exact."""
        return self._residual()[1]

    def _residual(self) -> tuple[np.ndarray, np.ndarray]:
        missing = [x for x in self._problem.quantities if x not in self._values]
        if missing:
            raise InvalidInput(
                f"the residual needs every quantity, but {', '.join(missing)} was left out: compile with outputs='all'"
            )
        problem = self._problem
        layout = problem.layout()
        n = self._n
        d = np.zeros((n, layout.n))
        for quantity in problem.quantities:
            columns = layout.quantity_columns(quantity)
            d[:, columns] = self._values[quantity].reshape(n, len(columns))
        residual, error, _ = BlockSystem(problem).residual(self._inputs, d)
        return residual.reshape(*self._lead, residual.shape[1]), error.reshape(self._lead)

    # ---- what an estimate is worth -------------------------------------------------------------------------------

    def std(self, quantity: str, name: str | None = None) -> np.ndarray:
        """Posterior standard deviation of a quantity, shaped as it is; or of that of one joint or body.

        For problems with noise. The program for it is compiled when it is first asked for. States at which double
        precision has too few digits take milliseconds each, see docs/estimation.md.
        """
        values = np.sqrt(np.maximum(self._posterior.variances(quantity, self._inputs, self._n), 0.0))
        model = self._problem.model
        shape = (model.nb, 6) if quantity in WRENCHES else values.shape[1:]
        return self._picked(values.reshape(*self._lead, *shape), quantity, name)

    def covariance(self, first: Part, second: Part | None = None) -> np.ndarray:
        """Posterior covariance (…, m, n) of one part or between two: "tau", or ("fx", "l_foot"), flattened."""
        other = first if second is None else second
        found = self._posterior.covariance(first, other, self._inputs, self._n)
        return found.reshape(*self._lead, *found.shape[1:])

    def residuals(self) -> dict[str, np.ndarray]:
        """{name: y − ŷ (…, m)}: what each noisy measurement, prior and equation differs by, in its unit.

        NaN for what is switched off.
        """
        result = {}
        for name, (S, mu, _) in self._parts().items():
            result[name] = self._shaped(np.where(self._on(name), -np.einsum("nij,nj->ni", S, mu), np.nan))
        return result

    def normalised_residuals(self) -> dict[str, np.ndarray]:
        """{name: w (…, m)}: standard normal where the noise is as declared; beyond 4 a fault is likely.

        The w-test of Baarda: that a component alone is wrong. NaN where no other equation checks it, and for what is
        switched off.
        """
        result = {}
        for name, (S, mu, M) in self._parts().items():
            # Cov(μ) of what is unchecked is zero: compared with Σ⁻¹, of what all else determined
            variance = np.einsum("nii->ni", M)
            checked = variance > UNCHECKED * np.einsum("nii->ni", self._inverse(name, S))
            with np.errstate(all="ignore"):
                result[name] = self._shaped(np.where(checked, -mu / np.sqrt(variance), np.nan))
        return result

    def leverage(self) -> dict[str, np.ndarray]:
        """{name: h (…, m)}: how much of a component's own error the estimate follows, 1 where nothing else checks it.

        They sum to the number of noisy equations less `redundancy`; 0 for what is switched off.
        """
        parts = self._parts().items()
        return {
            name: self._shaped(self._on(name) * (1.0 - np.einsum("nij,nji->ni", S, M))) for name, (S, _, M) in parts
        }

    def chi2(self) -> np.ndarray:
        """ε^T Σ⁻¹ ε (…) of all noisy equations: χ² distributed with `redundancy` degrees of freedom."""
        total = sum(np.einsum("ni,nij,nj->n", mu, S, mu) for S, mu, _ in self._parts().values())
        return self._shaped(total)

    @property
    def redundancy(self) -> np.ndarray:
        """Equations (…) beyond those that determine the unknowns: degrees of freedom of `chi2`."""
        equations, unknowns = BlockSystem(self._problem).shape
        off = [np.sum(x == 0.0, axis=-1) for name, x in self._inputs.items() if name.startswith("active:")]
        return np.broadcast_to(equations - unknowns - sum(off), self._n).reshape(self._lead)

    def log_likelihood(self) -> np.ndarray:
        """log p(y) (…) of all noisy equations, the unknowns integrated out over those that satisfy the exact ones.

        log p = −½ (χ² + log |det K| + ν log 2π), ν = redundancy.
        """
        det = self._shaped(self._checked().log_determinant)
        return -0.5 * (self.chi2() + det + self.redundancy * math.log(2.0 * math.pi))

    def expected_noise(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """{name: standard deviations (m,) or covariance (m, m)}: mean of E[ε ε^T] over the states where it is active.

        One iteration of expectation maximisation; see `sysdyn.learn_noise`.
        """
        result, parts = {}, self._parts()
        for noise in self._posterior.noises:
            if noise.name not in names:
                continue
            S, mu, M = parts[noise.name]
            on = np.broadcast_to(self._on(noise.name), mu.shape)
            if noise.full:  # components that are off are expected as those that are on have it
                on = np.broadcast_to(on.any(axis=1, keepdims=True), mu.shape)
            r = np.einsum("nij,nj->ni", S, mu)
            expected = r[:, :, None] * r[:, None, :] + S - S @ M @ S
            both = on[:, :, None] & on[:, None, :]
            count = both.sum(axis=0)
            mean = np.where(both, expected, 0.0).sum(axis=0) / np.maximum(count, 1)
            mean = np.where(count > 0, mean, S[0])  # never seen
            mean = 0.5 * (mean + mean.T)
            result[noise.name] = mean if noise.full else np.sqrt(np.diagonal(mean))
        return result

    def _checked(self) -> Checked:
        return self._posterior.check(self._inputs, self._n)

    def _parts(self) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """{name: (Σ, μ, Cov(μ))}; μ and Cov(μ) are zero for what is switched off."""
        checked, result = self._checked(), {}
        for noise in self._posterior.noises:
            on = self._on(noise.name)
            S = noise.matrix(np.broadcast_to(self._inputs[noise.group], (self._n, noise.scalars)))
            M = checked.covariances[noise.name] * (on[:, :, None] & on[:, None, :])
            result[noise.name] = S, checked.multipliers[noise.name] * on, M
        return result

    def _on(self, name: str) -> np.ndarray:
        """(n or 1, m or 1) bool: the component is not switched off."""
        return np.atleast_2d(self._inputs.get(f"active:{name}", 1.0)) != 0.0

    def _inverse(self, name: str, S: np.ndarray) -> np.ndarray:
        """Σ⁻¹ of what is switched on; the identity for the rest."""
        on = np.broadcast_to(self._on(name), S.shape[:2])
        both = on[:, :, None] & on[:, None, :]
        return np.linalg.inv(np.where(both, S, np.eye(S.shape[1])))

    @property
    def _n(self) -> int:
        return int(np.prod(self._lead, dtype=int))

    def _shaped(self, x: np.ndarray) -> np.ndarray:
        return x.reshape((*self._lead, *x.shape[1:]))

    # ---- accelerations in other terms ----------------------------------------------------------------------------

    def acceleration(
        self, frame: str, classical: bool = False, gravity: bool = False, reference: str = "local"
    ) -> np.ndarray:
        """Acceleration (…, 6) [rad/s², m/s²] of a named frame, angular first.

        classical  linear part of the frame's origin as a point (spatial acceleration + ω × v) instead of spatial
        gravity    proper acceleration, as an accelerometer feels it, instead of acceleration relative to the world
        reference  "local" (frame coordinates) or "world" (world-aligned axes at the frame's origin)

        RBDA section 2.11.
        """
        if reference not in REFERENCES:
            raise UnknownName("reference", reference, REFERENCES)
        model = self._problem.model
        found = model.frame(frame)
        n = self._n
        q, qd = (np.broadcast_to(self._inputs[x], (n, self._inputs[x].shape[-1])) for x in ("q", "qd"))
        down = np.broadcast_to(self._inputs.get("gravity", model.gravity), (n, 3))
        if found.body >= 0:
            a = self.a.reshape(n, model.nb, 6)[:, found.body]
        result = np.empty((n, 6))
        for k in range(n):
            E = frame_transform(model, q[k], frame)[:3, :3]
            proper = found.X @ a[k] if found.body >= 0 else np.concatenate([np.zeros(3), -(E @ down[k])])
            if found.body >= 0 and not gravity:
                proper = proper + np.concatenate([np.zeros(3), E @ down[k]])
            elif found.body < 0 and not gravity:
                proper = np.zeros(6)
            if classical and found.body >= 0:
                v = found.X @ velocities(model, joint_transforms(model, q[k]), qd[k])[0][found.body]
                proper = proper + np.concatenate([np.zeros(3), np.cross(v[:3], v[3:])])
            if reference == "world":
                proper = np.concatenate([E.T @ proper[:3], E.T @ proper[3:]])
            result[k] = proper
        return result.reshape(*self._lead, 6)

    def __repr__(self) -> str:
        where = f"{self._lead} states" if self._lead else "one state"
        shapes = ", ".join(f"{name} {x.shape}" for name, x in self._values.items())
        failed = int((~self.ok).sum())
        return f"Solution at {where}: {shapes}" + (f"; {failed} not solved" if failed else "")
