"""Motion between instants: white noise on a derivative of the positions, for joints of any kind.

Each degree of freedom is an integrated Wiener process of order p: q, q̇, …, q^(p−1), the last driven by white noise of
density κ. Over a time Δ, with the powers i, j = 0 … p − 1 of its entries,

    q^(i) ← Σ_j Δ^j/j! q^(i+j),    Q_ij = κ² Δ^(2p−1−i−j) / ((2p−1−i−j) (p−1−i)! (p−1−j)!)

Free, spherical and planar joints move in their group: the error of the position is q_{t+1} ⊖ (q_t ⊕ (q̇ Δ + q̈ Δ²/2 …)),
differentiated by the right Jacobians of the group. Anderson and Barfoot (2015), "Full STEAM ahead"; Solà, Deray and
Atchuthan (2018) for the Jacobians.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.estimation import lie_jacobians
from sysdyn.estimation.lie_jacobians import carried, turned
from sysdyn.model import Model
from sysdyn.model.joints import Free, Joint, Planar, Spherical

# Order of the processes: white noise on jerk.
ORDER = 3


def transition(dt: np.ndarray, order: int) -> np.ndarray:
    """Φ (…, p, p) of one degree of freedom."""
    dt = np.asarray(dt, dtype=float)
    phi = np.zeros((*dt.shape, order, order))
    for i in range(order):
        for j in range(i, order):
            phi[..., i, j] = dt ** (j - i) / math.factorial(j - i)
    return phi


def covariance(dt: np.ndarray, order: int) -> np.ndarray:
    """Q (…, p, p) of one degree of freedom, for density 1."""
    dt = np.asarray(dt, dtype=float)
    Q = np.empty((*dt.shape, order, order))
    for i in range(order):
        for j in range(order):
            power = 2 * order - 1 - i - j
            Q[..., i, j] = dt**power / (power * math.factorial(order - 1 - i) * math.factorial(order - 1 - j))
    return Q


def information(dt: np.ndarray, order: int) -> np.ndarray:
    """Q⁻¹ (…, p, p): that for Δ = 1 in the units of Δ, so that no digits are lost."""
    dt = np.asarray(dt, dtype=float)
    unit = np.linalg.inv(covariance(np.ones(()), order))
    scale = dt[..., None] ** (np.arange(order) - order + 0.5)
    return scale[..., :, None] * unit * scale[..., None, :]


class ProcessModel:
    """The motion of a model between instants. order: of its processes, 3 (jerk) or 4 (snap)."""

    def __init__(self, model: Model, order: int = ORDER):
        if order not in (3, 4):
            raise InvalidInput(f"the order of motion is {order!r}: 3 (white noise on jerk) or 4 (on snap)")
        self.model, self.order = model, order

    @cached_property
    def groups(self) -> list[tuple[Joint, slice, slice]]:
        """Joints whose positions form a group, with their places in q and q̇."""
        model = self.model
        return [
            (joint, model.q_slice(i), model.v_slice(i))
            for i, joint in enumerate(model.joints)
            if isinstance(joint, (Free, Spherical, Planar))
        ]

    def predict(self, q: np.ndarray, rates: np.ndarray, dt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(q (N, nq), rates (N, p − 1, nv)) after dt (N,)."""
        phi = transition(dt, self.order)
        step = np.einsum("nj,njv->nv", phi[:, 0, 1:], rates)
        return self.retract(q, step), phi[:, 1:, 1:] @ rates

    @cached_property
    def _adding(self) -> tuple[np.ndarray | slice, np.ndarray | slice]:
        """Places in q and q̇ of joints whose positions add up."""
        grouped = {part.start for _, _, part in self.groups}
        kept = [i for i in range(len(self.model.joints)) if self.model.v_slice(i).start not in grouped]
        q, v = (np.concatenate([np.zeros(0, dtype=int), *(np.r_[of(i)] for i in kept)])
                for of in (self.model.q_slice, self.model.v_slice))  # fmt: skip
        return _as_slice(q), _as_slice(v)

    def retract(self, q: np.ndarray, step: np.ndarray) -> np.ndarray:
        """q ⊕ step (N, nq)."""
        found, (own, freedoms) = np.empty((len(step), q.shape[-1])), self._adding
        found[:, own] = q[..., own] + step[:, freedoms]
        for joint, place, part in self.groups:
            found[:, place] = lie_jacobians.stepped(joint, q[..., place], step[:, part])
        return found

    def transition(self, rates: np.ndarray, dt: np.ndarray) -> np.ndarray:
        """Φ (N, p nv, p nv) of the error of a state that moves as `predicted`."""
        nv, p, n = self.model.nv, self.order, len(dt)
        phi = transition(dt, p)
        found, own = np.zeros((n, p, nv, p, nv)), np.arange(nv)
        for i in range(p):
            for j in range(i, p):
                found[:, i, own, j, own] = phi[:, i, j, None]
        for joint, _, part in self.groups:
            step = np.einsum("nj,njv->nv", phi[:, 0, 1:], rates[:, :, part])
            found[:, 0, part, 0, part], along = turned(joint, -step)
            for j in range(1, p):
                found[:, 0, part, j, part] = along * phi[:, 0, j, None, None]
        return found.reshape(n, p * nv, p * nv)

    def process_residual(
        self, before: tuple[np.ndarray, np.ndarray], after: tuple[np.ndarray, np.ndarray], dt: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(errors (N, p, nv) of pairs of states (q (N, nq), rates (N, p − 1, nv)) with dt (N,) between them, steps).

        steps (N, nv): of the positions before.
        """
        p, (q, rates), (q1, rates1) = self.order, before, after
        powers = [x / math.factorial(j) for j, x in enumerate(_powers(dt, p))]
        e, step = np.empty((len(dt), p, self.model.nv)), powers[1] * rates[:, 0]
        for j in range(2, p):
            step += powers[j] * rates[:, j - 1]
        for i in range(1, p):
            np.subtract(rates1[:, i - 1], rates[:, i - 1], out=e[:, i])
            for j in range(i + 1, p):
                e[:, i] -= powers[j - i] * rates[:, j - 1]
        own, freedoms = self._adding
        e[:, 0, freedoms] = q1[:, own] - q[:, own] - step[:, freedoms]
        for joint, place, part in self.groups:
            e[:, 0, part] = lie_jacobians.apart(joint, q[:, place], step[:, part], q1[:, place])
        return e, step

    def pattern(self, freedoms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Places (entries, 2) of Φ and of Q of these degrees of freedom, whole joints; see `ahead`."""
        p, f, own = self.order, len(freedoms), np.arange(len(freedoms))
        steps = [(i * f + v, j * f + v) for i in range(p) for j in range(i, p) for v in own.tolist()]
        noise = [(i * f + v, j * f + v) for i in range(p) for j in range(p) for v in own.tolist()]
        for _, part in self._within(freedoms):
            inside = [(a, b) for a in range(part.start, part.stop) for b in range(part.start, part.stop)]
            steps += [(a, j * f + b) for j in range(p) for a, b in inside]
            noise += [(a, j * f + b) for j in range(p) for a, b in inside]
            noise += [(j * f + b, a) for j in range(1, p) for a, b in inside]
        return _places(steps), _places(noise)

    def _within(self, freedoms: np.ndarray) -> list[tuple[Joint, slice]]:
        """Joints that move in a group, with their places among these degrees of freedom."""
        found = []
        for joint, _, whole in self.groups:
            if np.isin(whole.start, freedoms):
                first = int(np.searchsorted(freedoms, whole.start))
                found.append((joint, slice(first, first + joint.nv)))
        return found

    def alone(self, dt: np.ndarray, density: np.ndarray, freedoms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Entries (N, …) of Φ and Q at the places of `pattern`, of joints that move by themselves; 0 in groups."""
        p, f, squares = self.order, len(freedoms), np.square(density[freedoms])
        phi, spread, places = transition(dt, p), covariance(dt, p), self.pattern(freedoms)
        in_group = np.zeros(f, dtype=bool)
        for _, part in self._within(freedoms):
            in_group[part] = True
        found = []
        for x, at in zip((phi, spread), places, strict=True):
            i, a = np.divmod(at[:, 0], f)
            j, b = np.divmod(at[:, 1], f)
            entries = x[:, i, j] * (1.0 if x is phi else squares[a])
            entries[:, (a != b) | in_group[a] & ((i == 0) | (x is spread) & (j == 0))] = 0.0
            found.append(entries)
        return found[0], found[1]

    def ahead(
        self, e: np.ndarray, step: np.ndarray, dt: np.ndarray, density: np.ndarray, freedoms: np.ndarray,
        Phi: np.ndarray, Q: np.ndarray, c: np.ndarray,
    ) -> None:  # fmt: skip
        """Write entries of groups into Φ and Q, at the places of `pattern`, and c (N, k), k ≥ p f, of the error ahead.

        δ⁺ = Φ δ + c + N(0, Q), of the errors of pairs of states, see `errors`: Φ = −F1⁻¹ F0, c = −F1⁻¹ e and
        Q ← F1⁻¹ Q F1⁻^T with F0, F1 the derivatives of e by the states before and after. Entries of other joints are
        those of `alone`.
        """
        p, f, n, powers = self.order, len(freedoms), len(dt), _powers(dt, 2 * self.order)
        np.negative(e if f == self.model.nv else e[:, :, freedoms], out=c[:, : p * f].reshape(n, p, f))
        for joint, part, blocks in self._blocks(freedoms):
            whole = freedoms[part]
            found = carried(joint, e[:, 0, whole], step[:, whole], np.square(density[whole]))
            c[:, part] = found["c"]
            for j, (of_step, of_noise, turned_noise) in enumerate(blocks):
                power = 2 * p - 1 - j
                spread = powers[power] / (power * math.factorial(p - 1) * math.factorial(p - 1 - j))
                if not j:
                    Phi[:, of_step], Q[:, of_noise] = found["turn"], spread * found["spread"]
                    continue
                Phi[:, of_step] = found["along"] * (powers[j] / math.factorial(j))
                Q[:, of_noise] = Q[:, turned_noise] = spread * found["back"]

    def _blocks(
        self, freedoms: np.ndarray
    ) -> list[tuple[Joint, slice, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]]:  # fmt: skip
        """(joint, its places among the degrees of freedom, numbers of entries that are its own) of joints in groups.

        Entries of Φ, of Q and of Q^T at the places of `pattern`, by the derivative with which errors of positions go.
        """
        key = freedoms.tobytes()
        if key not in self._known_blocks:
            f, (places, noise) = len(freedoms), self.pattern(freedoms)
            self._known_blocks[key] = [
                (joint, part, [(_block(places, part, j * f), _block(noise, part, j * f),
                                _block(noise[:, ::-1], part, j * f)) for j in range(self.order)])
                for joint, part in self._within(freedoms)
            ]  # fmt: skip
        return self._known_blocks[key]

    @cached_property
    def _known_blocks(self) -> dict[bytes, list]:
        return {}

    def right_jacobian(self, step: np.ndarray) -> np.ndarray:
        """J (nv, nv): an error e of a step (nv,) of positions is J e behind it, q ⊕ (step + e) = q ⊕ step ⊕ J e."""
        found = np.eye(self.model.nv)
        for joint, _, part in self.groups:
            found[part, part] = turned(joint, -step[None, part])[1][0]
        return found

    def noise(self, dt: np.ndarray, density: np.ndarray) -> np.ndarray:
        """Q (N, p nv, p nv) of degrees of freedom with these densities κ (nv,)."""
        p, nv = self.order, self.model.nv
        found, own, spread = np.zeros((len(dt), p, nv, p, nv)), np.arange(nv), covariance(dt, p)
        for i in range(p):
            for j in range(p):
                found[:, i, own, j, own] = spread[:, i, j, None] * np.square(density)
        return found.reshape(len(dt), p * nv, p * nv)

    def objective(self, e: np.ndarray, dt: np.ndarray, density: np.ndarray) -> float:
        """Sum of e^T Q⁻¹ e of errors e (N, p, nv)."""
        p, total = self.order, 0.0
        root = np.linalg.cholesky(information(np.ones(()), p))
        powers = _powers(1.0 / dt, p)
        scaled = [(e[:, i] / density) * (powers[p - 1 - i] * np.sqrt(powers[1])) for i in range(p)]
        for i in range(p):
            left = root[i, i] * scaled[i]
            for j in range(i + 1, p):
                left += root[j, i] * scaled[j]
            total += float(np.vdot(left, left))
        return total


def _powers(x: np.ndarray, count: int) -> list[np.ndarray]:
    """Powers (N, 1) of x (N,), from 0 on."""
    found = [np.ones((len(x), 1))]
    for _ in range(count - 1):
        found.append(found[-1] * x[:, None])
    return found


def _as_slice(places: np.ndarray) -> np.ndarray | slice:
    """Places as a slice if they follow each other, which takes no copy."""
    if len(places) and (np.diff(places) == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return places


def _places(found: list[tuple[int, int]]) -> np.ndarray:
    """Places (entries, 2), each once, row by row."""
    return np.array(sorted(set(found)), dtype=np.int64).reshape(-1, 2)


def _block(places: np.ndarray, part: slice, after: int) -> np.ndarray:
    """Numbers of the entries of rows `part` and the columns that are so far after these, row by row."""
    rows, columns = np.meshgrid(*[np.arange(part.start, part.stop)] * 2, indexing="ij")
    size = int(places.max()) + 1
    order = np.argsort(places @ [size, 1])
    wanted = rows.reshape(-1) * size + after + columns.reshape(-1)
    return order[np.searchsorted((places @ [size, 1])[order], wanted)]
