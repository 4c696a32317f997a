"""Process model: white noise on a derivative of the positions, for joints of all kinds.

Each degree of freedom is an integrated Wiener process of order p: q, q̇, …, q^(p−1), the last driven by white noise of
density κ. Over a time Δ, with the powers i, j = 0 … p − 1 of its entries,

    q^(i) ← Σ_j Δ^j/j! q^(i+j),    Q_ij = κ² Δ^(2p−1−i−j) / ((2p−1−i−j) (p−1−i)! (p−1−j)!)

Free, spherical and planar joints move in their group: the error of the position is e = q_{t+1} ⊖ (q_t ⊕ s) with
s = q̇ Δ + q̈ Δ²/2 …, and errors of states obey δ_{t+1} = Φ δ_t − e + N(0, Q). With the right Jacobian J_r of the group,
the rows of the position are Φ = Exp(−e) (Exp(−s), J_r(s) Δ^j/j!), and Q is multiplied by B = J_r(e) from both sides.
(B e = e, so that the offset remains −e.)

References
----------
Anderson and Barfoot (2015), Full STEAM ahead; Solà, Deray and Atchuthan (2018), A micro Lie theory, for the Jacobians.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.estimation.lie_jacobians import replayed_turns, turned
from sysdyn.model import Model
from sysdyn.model.joints import Free, Joint, Planar, Spherical
from sysdyn.program.graph import SHARING, Graph, is_zero
from sysdyn.program.program import Program

# Default order: white noise on jerk.
ORDER = 3

# Groups of the programs of a transition: the state before and after, its error, and entries of Φ and Q.
POSITION, RATES, BIASES, ERROR, TRANSITION, NOISE = "q", "rates", "biases", "error", "transition", "noise"
AFTER = " after"


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
    """Q⁻¹ (…, p, p): the inverse for Δ = 1 in units of Δ, which loses no digits."""
    dt = np.asarray(dt, dtype=float)
    unit = np.linalg.inv(covariance(np.ones(()), order))
    scale = dt[..., None] ** (np.arange(order) - order + 0.5)
    return scale[..., :, None] * unit * scale[..., None, :]


class ProcessModel:
    """The process model of a robot. order: of its processes, 3 (white noise on jerk) or 4 (on snap)."""

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
        return self.model.integrate(q, step), phi[:, 1:, 1:] @ rates

    def right_jacobian(self, step: np.ndarray) -> np.ndarray:
        """J (N, nv, nv) with q ⊕ (s + e) = q ⊕ s ⊕ J e for steps s (N, nv) of positions and small errors e."""
        J = np.tile(np.eye(self.model.nv), (len(step), 1, 1))
        for joint, _, part in self.groups:
            J[:, part, part] = turned(joint, -step[:, part])[1]
        return J

    def chi2(self, e: np.ndarray, dt: np.ndarray, density: np.ndarray) -> np.ndarray:
        """eᵀ Q⁻¹ e (N, nv) of errors e (N, p nv) over dt (N,), with Q for e = 0; density: (nv,) or (N, nv)."""
        p, n = self.order, len(dt)
        root = np.linalg.cholesky(information(np.ones(()), p))
        units = dt[:, None] ** (np.arange(p) - p + 0.5)
        scaled = e.reshape(n, p, -1) / np.expand_dims(density, -2) * units[:, :, None]
        return np.asarray((np.einsum("ji,njv->niv", root, scaled) ** 2).sum(axis=1))


class Transition(NamedTuple):
    """Programs of the transition from one state to the next.

    Inputs are the state before (POSITION, RATES, BIASES) and dt; `left` and `walk`, the share of each bias that remains
    and the variance that is added; `squares` (nv,), the squares of the densities. Outputs are TRANSITION and NOISE, the
    entries of Φ and Q at `Phi` and `Q` (…, 2), and ERROR (unknowns,) of the state after, which is more inputs; or the
    predicted state instead, if e = 0. error: program of ERROR alone, None if e = 0.
    """

    program: Program
    error: Program | None
    Phi: np.ndarray
    Q: np.ndarray


def between(process: ProcessModel, n_biases: int, predict: bool = False) -> Transition:
    """Build the programs of the process model from one state to the next: process error e, Φ and Q.

    predict: compute the predicted state instead of e, with Φ and Q for e = 0.
    """
    graph, model, p, nv = Graph(SHARING), process.model, process.order, process.model.nv
    state = {POSITION: model.nq, RATES: (p - 1) * nv, BIASES: n_biases}
    sizes = state | {"dt": 1, "left": n_biases}
    sizes |= {} if predict else {name + AFTER: size for name, size in state.items()}
    x = {name: graph.inputs(name, size) for name, size in sizes.items()}
    known = tuple(x.items())
    x |= {name: graph.inputs(name, size) for name, size in {"walk": n_biases, "squares": nv}.items()}

    powers: list[Any] = [1.0]
    for _ in range(2 * p - 1):
        powers.append(powers[-1] * x["dt"][0])
    phi = [powers[j] / float(math.factorial(j)) for j in range(p)]
    rates = x[RATES].reshape(p - 1, nv)
    step = [sum(phi[j] * rates[j - 1, v] for j in range(1, p)) for v in range(nv)]
    predicted = {
        POSITION: integrate(model, x[POSITION], np.array(step, dtype=object)),
        RATES: [sum(phi[j - i] * rates[j - 1, v] for j in range(i, p)) for i in range(1, p) for v in range(nv)],
        BIASES: [a * b for a, b in zip(x["left"], x[BIASES], strict=True)],
    }
    error: list[Any] = []
    if not predict:
        for i, joint in enumerate(model.joints):
            if joint.nq:
                q, after = (
                    np.array(y, dtype=object)[model.q_slice(i)] for y in (predicted[POSITION], x[POSITION + AFTER])
                )
                error += list(joint.difference(q, after))
        error += [a - b for name in (RATES, BIASES) for a, b in zip(x[name + AFTER], predicted[name], strict=True)]

    Phi: dict[tuple[int, int], Any] = {}
    Q: dict[tuple[int, int], Any] = {}
    spread: dict[tuple[int, int], Any] = {}
    for i in range(p):
        for j in range(p):
            power = 2 * p - 1 - i - j
            spread[i, j] = powers[power] / float(power * math.factorial(p - 1 - i) * math.factorial(p - 1 - j))
            Q |= {(i * nv + v, j * nv + v): spread[i, j] * x["squares"][v] for v in range(nv)}
            Phi |= {(i * nv + v, j * nv + v): phi[j - i] for v in range(nv) if j >= i}
    for joint, _, part in process.groups:
        adjoint, along = replayed_turns(graph, joint, [-y for y in step[part]])
        noise = np.diag(x["squares"][part])
        back = noise
        if not predict:
            exp, B = replayed_turns(graph, joint, [-y for y in error[part]])
            adjoint, along, back = exp @ adjoint, exp @ along, B * x["squares"][part]
            noise = back @ B.T
        for a, row in enumerate(range(part.start, part.stop)):
            for b, column in enumerate(range(part.start, part.stop)):
                Phi[row, column], Q[row, column] = adjoint[a, b], spread[0, 0] * noise[a, b]
                for j in range(1, p):
                    Phi[row, j * nv + column] = along[a, b] * phi[j]
                    Q[row, j * nv + column] = Q[j * nv + column, row] = spread[0, j] * back[a, b]
    n = p * nv
    Phi |= {(n + b, n + b): y for b, y in enumerate(x["left"])}
    Q |= {(n + b, n + b): y for b, y in enumerate(x["walk"])}
    entries, places = [], []
    for matrix in (Phi, Q):
        nonzero = {place: y for place, y in matrix.items() if not is_zero(y)}
        entries.append(list(nonzero.values()))
        places.append(np.array([*nonzero], dtype=np.int64).reshape(-1, 2))
    outputs = list(predicted.items()) if predict else [(ERROR, error)]
    program = Program.from_graph(graph, tuple(x.items()), [*outputs, (TRANSITION, entries[0]), (NOISE, entries[1])])
    return Transition(program, None if predict else Program.from_graph(graph, known, outputs), *places)


def integrate(model: Model, q: np.ndarray, step: np.ndarray) -> list:
    """q ⊕ step of expressions."""
    after: list = []
    for i, joint in enumerate(model.joints):
        if joint.nq:
            after += list(joint.integrate(q[model.q_slice(i)], step[model.v_slice(i)]))
    return after
