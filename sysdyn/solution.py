"""What a solver returns: quantities by attribute and by name, and checks that need the whole system."""

from __future__ import annotations

import numpy as np

from sysdyn.errors import InvalidInput, ProblemError, UnknownName
from sysdyn.model.kinematics import frame_transform, joint_transforms, velocities
from sysdyn.system.problem import Problem
from sysdyn.system.variables import QUANTITIES, Layout

REFERENCES = ("local", "world")


class Solution:
    """Solved quantities at one state or, with leading batch axes, many.

    tau, qdd (…, nv); a, f, fx (…, nb, 6) in body coordinates, angular first; `a` is proper acceleration (gravity
    folded in). solution["tau", "l_knee"] picks one joint or body by name. ok (…) bool: the state was solved; False
    where on_singular="nan" left NaN.
    """

    def __init__(
        self,
        problem: Problem,
        inputs: dict[str, np.ndarray],
        lead: tuple[int, ...],
        values: dict[str, np.ndarray],
        ok: np.ndarray,
    ):
        self._problem, self._inputs, self._lead, self._values = problem, inputs, lead, values
        self.ok = ok

    def __getattr__(self, name: str) -> np.ndarray:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        if name in QUANTITIES:
            raise AttributeError(
                f"{name} was not asked for: this solver computes {', '.join(values)}; "
                f"compile with outputs={[*values, name]!r} or 'all'"
            )
        raise AttributeError(f"Solution has no attribute {name!r}")

    def __getitem__(self, key: str | tuple[str, str]) -> np.ndarray:
        quantity, name = key if isinstance(key, tuple) else (key, None)
        if quantity not in self._values:
            raise UnknownName("output", quantity, self._values)
        values = self._values[quantity]
        if name is None:
            return values
        model = self._problem.model
        if quantity in ("tau", "qdd"):
            block = values[..., model.v_slice(model.joint_index(name))]
            return block[..., 0] if block.shape[-1] == 1 else block
        return values[..., model.body_index(name), :]

    # ---- checks --------------------------------------------------------------------------------------------------

    def residual(self) -> np.ndarray:
        """D d + b (…, equations) of the problem's system at this solution; zero but for rounding.

        Needs outputs="all".
        """
        return self._residual()[0]

    def backward_error(self) -> np.ndarray:
        """|D d + b|∞ / (|D|∞ |d|∞ + |b|∞) (…): relative change of the system that makes the solution exact."""
        return self._residual()[1]

    def _residual(self) -> tuple[np.ndarray, np.ndarray]:
        missing = [x for x in QUANTITIES if x not in self._values]
        if missing:
            raise InvalidInput(
                f"the residual needs every quantity, but {', '.join(missing)} was left out: compile with outputs='all'"
            )
        problem = self._problem
        layout = Layout(problem.model)
        n = int(np.prod(self._lead, dtype=int))
        d = np.zeros((n, layout.n))
        for quantity in QUANTITIES:
            columns = layout.quantity_columns(quantity)
            d[:, columns] = self._values[quantity].reshape(n, len(columns))
        residual, error, _ = problem.system().residual(self._inputs, d)
        return residual.reshape(*self._lead, residual.shape[1]), error.reshape(self._lead)

    def std(self, *quantities: str):
        raise ProblemError("no measurement of this problem is noisy, so its solution has no standard deviation")

    covariance = std

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
        n = int(np.prod(self._lead, dtype=int))
        q, qd = (np.broadcast_to(self._inputs[x], (n, self._inputs[x].shape[-1])) for x in ("q", "qd"))
        if found.body >= 0:
            a = self.a.reshape(n, model.nb, 6)[:, found.body]
        result = np.empty((n, 6))
        for k in range(n):
            E = frame_transform(model, q[k], frame)[:3, :3]
            proper = found.X @ a[k] if found.body >= 0 else np.concatenate([np.zeros(3), -(E @ model.gravity)])
            if found.body >= 0 and not gravity:
                proper = proper + np.concatenate([np.zeros(3), E @ model.gravity])
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
