"""Whole trajectories by one dense least-squares problem, written apart from the engine.

All unknowns of all instants at once (δq, q̇, q̈, a wrench, biases), residuals by the RNEA and by the manifold of the
positions, Jacobians by central differences, Gauss-Newton by `scipy.optimize`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy.optimize

import sysdyn as sd

# Step of central differences, in units of the scale of an unknown.
H = 1e-4


@dataclass
class Dense:
    """A robot with encoders at its hinges, and what else is named; noise by name, values may be NaN.

    A free base, which has to be the first joint, has `position`, `attitude` and `gyro` at its origin, and a wrench of
    its own with the prior "wrench"; a fixed robot has that wrench on its last body. biases: {sensor: (std, density)},
    or (std, None, time) of an error that lasts.
    """

    model: sd.Model
    t: np.ndarray
    log: dict[str, np.ndarray]
    noise: dict[str, float]
    density: float
    biases: dict[str, tuple] = field(default_factory=dict)

    def __post_init__(self):
        self.free = self.model.joints[0].nv == 6
        nv, n = self.model.nv, len(self.t)
        self.wrench = 0 if self.free else 6
        self.sizes = [nv, nv, nv, self.wrench, *(self.log[name].shape[1] for name in self.biases)]
        self.nominal = np.repeat(self.model.neutral()[None], n, axis=0)
        if self.free:
            self.nominal[:, :3] = _filled(self.t, self.log["position"])
            self.nominal = self._turned(_filled(self.t, self.log["attitude"]))
        self.nominal[:, 7 if self.free else 0 :] = _filled(self.t, self.log["encoders"])
        self.first = self.nominal[:1]

    def _turned(self, r: np.ndarray) -> np.ndarray:
        """The nominal positions with the attitudes (N, 3) of the base, as rotation vectors."""
        step = np.zeros((len(r), self.model.nv))
        step[:, :3] = r
        return self.model.integrate(self.nominal, step)

    def parts(self, x: np.ndarray) -> list[np.ndarray]:
        """(q, qd, qdd, wrench, biases …) (B, N, …) of unknowns (B, all)."""
        x = x.reshape(len(x), len(self.t), -1)
        shift, *rest = np.split(x, np.cumsum(self.sizes)[:-1], axis=2)
        return [self.model.integrate(np.broadcast_to(self.nominal, (len(x), *self.nominal.shape)), shift), *rest]

    def torques(self, x: np.ndarray) -> np.ndarray:
        """(B, N, nv), those of a free base as its wrench takes them."""
        q, qd, qdd, w, *_ = self.parts(x)
        fx = np.zeros((*q.shape[:2], self.model.nb, 6))
        if self.wrench:
            fx[:, :, -1] = w
        return sd.rnea(self.model, q, qd, qdd, fx)

    def residuals(self, x: np.ndarray) -> np.ndarray:
        """(B, rows) in units of standard deviations."""
        model, dt = self.model, np.diff(self.t)[:, None]
        q, qd, qdd, w, *biases = self.parts(x)
        shown = {"encoders": q[..., 7:] if self.free else q}
        if self.free:
            shown["position"] = q[..., :3]
            shown["gyro"] = qd[..., :3]
        if "torques" in self.log:
            tau = self.torques(x)
            shown["torques"] = tau[..., 6:] if self.free else tau
        rows = []
        for name, value in shown.items():
            if name in self.log:
                bias = biases[list(self.biases).index(name)] if name in self.biases else 0.0
                rows.append((value + bias - self.log[name]) / self.noise[name])
        if "attitude" in self.log:
            measured = self.model.neutral()[None].repeat(len(self.t), axis=0)
            step = np.zeros((len(self.t), model.nv))
            step[:, :3] = np.nan_to_num(self.log["attitude"])
            measured = model.integrate(measured, step)
            off = model.difference(np.broadcast_to(measured, q.shape), q)[..., :3]
            size = np.linalg.norm(off, axis=-1, keepdims=True)
            off = off * np.sinc(size / np.pi)  # ½ vee(R_m^T R − R^T R_m)
            rows.append((off + 0.0 * self.log["attitude"]) / self.noise["attitude"])
        if "wrench" in self.noise:
            rows.append((tau[..., :6] if self.free else w) / self.noise["wrench"])
        start = 10.0 * np.ones(model.nv)
        if self.free:
            start[:3] = 0.3
        rows += [model.difference(self.first, q[:, :1]) / start, qd[:, :1] / 10.0, qdd[:, :1] / 1e3]
        e = np.stack([
            model.difference(model.integrate(q[:, :-1], qd[:, :-1] * dt + qdd[:, :-1] * dt**2 / 2), q[:, 1:]),
            qd[:, 1:] - qd[:, :-1] - qdd[:, :-1] * dt, qdd[:, 1:] - qdd[:, :-1],
        ], axis=-2)  # fmt: skip
        for k, h in enumerate(dt[:, 0]):
            Q = self.density**2 * np.array(
                [[h**5 / 20, h**4 / 8, h**3 / 6], [h**4 / 8, h**3 / 3, h**2 / 2], [h**3 / 6, h**2 / 2, h]]
            )
            rows.append(np.linalg.solve(np.linalg.cholesky(Q), e[:, k : k + 1]))
        for (std, walk, *time), b in zip(self.biases.values(), biases, strict=True):
            left = np.exp(-dt / time[0]) if time else 1.0
            spread = std * np.sqrt(1.0 - left**2) if time else walk * np.sqrt(dt)
            rows += [b[:, :1] / std, (b[:, 1:] - left * b[:, :-1]) / spread]
        return np.nan_to_num(np.concatenate([r.reshape(len(x), -1) for r in rows], axis=1))

    @property
    def scale(self) -> np.ndarray:
        """Sizes of the unknowns, for differences."""
        one = np.concatenate(
            [np.full(n, s) for n, s in zip(self.sizes, (0.1, 1.0, 10.0, 10.0, *(1.0,) * len(self.biases)), strict=True)]
        )
        return np.tile(one, len(self.t))

    def slopes(self, function, x: np.ndarray) -> np.ndarray:
        """(values, unknowns) by central differences."""
        steps = np.diag(H * self.scale)
        found = function(np.concatenate([x + steps, x - steps]))
        found = found.reshape(2, len(x), -1)
        return ((found[0] - found[1]) / (2 * H * self.scale[:, None])).T

    def _without_shift(self, x: np.ndarray) -> np.ndarray:
        x = x.reshape(len(self.t), -1).copy()
        x[:, : self.model.nv] = 0.0
        return x.reshape(-1)

    def solved(self) -> Answer:
        """The least, by Gauss-Newton; it changes the nominal positions to those of the estimate."""
        scale = self.scale

        def residuals(y: np.ndarray) -> np.ndarray:
            return self.residuals((y * scale)[None])[0]

        def jacobian(y: np.ndarray) -> np.ndarray:
            return self.slopes(self.residuals, y * scale) * scale

        found = scipy.optimize.least_squares(
            residuals, np.zeros(len(scale)), jacobian, method="trf", xtol=1e-15, ftol=1e-15, gtol=1e-12
        )
        x = found.x * scale
        self.nominal, x = self.parts(x[None])[0][0], self._without_shift(x)  # tangent vectors at the estimate
        J = self.slopes(self.residuals, x)
        root = np.linalg.inv(np.linalg.qr(J * scale, mode="r")) * scale[:, None]
        return Answer(self, x, root)


@dataclass
class Answer:
    """Unknowns at the least, and a root of their covariance."""

    dense: Dense
    x: np.ndarray
    root: np.ndarray

    def part(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """(values, standard deviations) (N, …) of q (tangent ones), qd, qdd, wrench, biases by their number."""
        value = self.dense.parts(self.x[None])[k][0]
        std = np.sqrt((self.root**2).sum(axis=1)).reshape(len(self.dense.t), -1)
        return value, np.split(std, np.cumsum(self.dense.sizes)[:-1], axis=1)[k]

    def torques(self) -> tuple[np.ndarray, np.ndarray]:
        J = self.dense.slopes(self.dense.torques, self.x)
        value = self.dense.torques(self.x[None])[0]
        return value, np.sqrt(((J @ self.root) ** 2).sum(axis=1)).reshape(value.shape)


def _filled(t: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values (N, m) with what is missing interpolated."""
    found = values.copy()
    for column in found.T:
        seen = ~np.isnan(column)
        column[:] = np.interp(t, t[seen], column[seen])
    return found
