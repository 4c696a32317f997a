"""Derivatives of τ and q̈ in rigid-body dynamics, analytic; positions are differentiated in the tangent space."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sysdyn.measurements.classical import is_classical
from sysdyn.model.base_parameters import regrouped
from sysdyn.model.canonical import canonical
from sysdyn.offline.elimination import SHARING
from sysdyn.offline.sensitivity import Expressions
from sysdyn.problem import Problem
from sysdyn.program.expr import Graph, is_zero
from sysdyn.recursions.frames import wrench_to
from sysdyn.reference import expanded_parent
from sysdyn.reference.generic import piece
from sysdyn.reference.rnea_derivatives import Bodies

# Factor of operations that a column saves if it is written apart from equal pieces for that (chosen).
SIMPLER = 10
# Most degrees of freedom of a robot whose derivatives are written in equal pieces (chosen).
MOST_IN_PIECES = 64
# Multiple of the operations that equal pieces may need, as they are computed side by side (chosen).
DEARER = 1.05

# ---- rigid-body dynamics -------------------------------------------------------------------------------------------


def has_analytic(problem: Problem, of: Sequence[str]) -> bool:
    """True for derivatives of τ and q̈ alone in classical problems, see `is_classical`."""
    return is_classical(problem) and set(of) <= {"tau", "qdd"}


def analytic(problem: Problem, of: Sequence[str], wrt: Sequence[str], external_wrenches: bool = True) -> Expressions:
    """Derivatives of τ and q̈ in inverse, forward and hybrid dynamics.

    With degrees of freedom U of known τ and K of known q̈, and the derivatives of ID at (q, q̇, q̈), for any parameter x
    of ID

        ∂q̈_U/∂x = −H_UU⁻¹ ∂ID_U/∂x,   ∂τ_K/∂x = ∂ID_K/∂x + H_KU ∂q̈_U/∂x

    and the same with −1 for ∂ID_U/∂τ_U. None of them depends on the choice of the bodies' frames, or on parameters
    that cannot be told from τ and q̈. external_wrenches: they are inputs, else zero.
    J. Carpentier, N. Mansard, Analytical derivatives of rigid body dynamics algorithms, RSS (2018).
    """
    graph = Graph(SHARING)
    groups = {name: graph.inputs(name, size) for name, size in problem.input_sizes}
    model, fx = problem.model, None
    if external_wrenches:
        fx = groups["fx"].reshape(model.nb, 6)
    if "fx" not in wrt:  # those by fx are in the given frames
        model, X = canonical(model)
        model = regrouped(model)
        if fx is not None:
            fx = np.array([wrench_to(x, w.tolist()) for x, w in zip(X, fx, strict=True)], dtype=object)
    U = sorted(model.v_slice(i).start + k for i, k in problem.knows("tau"))
    K = [k for k in range(model.nv) if k not in set(U)]
    exact = _Dynamics(model, groups, fx, U, K)
    inputs = tuple(groups.items())
    found = {(x, name): y for name in wrt for x, y in exact.by(name, of)}
    whole = Expressions("analytic", graph, inputs, found, (), exact.pivots, tuple(exact.qdd))
    if model.nv > MOST_IN_PIECES:
        return whole
    pieces = _Dynamics(model, groups, fx, U, K, zeros=exact)
    blocks = {(x, name): with_zeros(graph, y, whole.blocks[x, name]) for name in wrt for x, y in pieces.by(name, of)}
    in_pieces = Expressions("analytic", graph, inputs, blocks, (), pieces.pivots, tuple(pieces.qdd))
    return in_pieces if in_pieces.operations <= DEARER * whole.operations else whole


def with_zeros(graph: Graph, block: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The block with the zeros of an exact one, and with its columns if they are far simpler."""
    result = block.copy()
    for column, (x, y) in enumerate(zip(block.T, exact.T, strict=True)):
        zero = [is_zero(b) and not is_zero(a) for a, b in zip(x, y, strict=True)]
        if any(zero):
            simpler = SIMPLER * graph.count(y).total < graph.count(x).total
            result[:, column] = y if simpler else np.where(zero, 0.0, x)
    return result


class _Dynamics:
    """ID at a state, its derivatives and the factors of H_UU.

    zeros: the same written in one piece, from which structural zeros are known. With it this one is written in equal
    pieces of work, which share machine code but show no zeros.
    """

    def __init__(self, model, groups: dict, fx, U: list[int], K: list[int], zeros: _Dynamics | None = None):
        self.U, self.K, self.nv = U, K, model.nv
        bodies = Bodies(model, groups["q"], groups["qd"], pieces=zeros is not None)
        self.H: np.ndarray = bodies.H if zeros is None else masked(bodies.H, zeros.H)
        self.factors = _Factors(self.H, expanded_parent(model), U, pieces=zeros is not None)
        qdd = np.full(model.nv, 0.0, dtype=object)
        if K:
            qdd[K] = groups["qdd"][K]
        if U:
            qdd[U] = self.factors.solve(groups["tau"][U] - bodies.inverse_dynamics(qdd, fx).tau[U])
        self.qdd, self.pivots = qdd, tuple((self.factors.L[k, k], freedom) for k, freedom in enumerate(U))
        motion = bodies.inverse_dynamics(qdd, fx)
        flat = motion.dtau_dfx.reshape(model.nv, 6 * model.nb)
        self.rates = {"q": motion.dtau_dq, "qd": motion.dtau_dqd, "fx": flat}

    def by(self, name: str, of: Sequence[str]) -> list[tuple[str, np.ndarray]]:
        """(quantity, its derivative by an input) of the wanted ones of τ and q̈."""
        U, K = self.U, self.K
        zero = np.full((self.nv, self.nv), 0.0, dtype=object)
        own_qdd, own_tau = zero.copy(), zero.copy()  # ∂q̈/∂q̈_K and ∂τ/∂τ_U are the identity
        if name == "tau":
            change = zero.copy()
            own_tau[U, U] = 1.0
        elif name == "qdd":
            change = zero.copy()
            change[:, K] = self.H[:, K]
            own_qdd[K, K] = 1.0
        else:
            change = self.rates[name]
        dqdd, dtau = (np.full(change.shape, 0.0, dtype=object) for _ in range(2))
        if name == "tau":
            dqdd[np.ix_(U, U)] = self.factors.inverse()
        for column in range(change.shape[1]):
            if U and name != "tau":
                dqdd[U, column] = -self.factors.solve(change[U, column])
            if K:
                dtau[K, column] = change[K, column]
                if U:
                    dtau[K, column] = dtau[K, column] + self.H[np.ix_(K, U)] @ dqdd[U, column]
        if name == "qdd":
            dqdd = dqdd + own_qdd
        if name == "tau":
            dtau = dtau + own_tau
        return [(x, block) for x, block in (("tau", dtau), ("qdd", dqdd)) if x in of]


def masked(values: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """The values, replaced by 0.0 at the zeros of `zeros`."""
    result = values.copy()
    result.flat[:] = [0.0 if is_zero(x) else y for x, y in zip(zeros.flat, values.flat, strict=True)]
    return result


class _Factors:
    """H_UU = L^T D L of the degrees of freedom U, from the tips, and W = L⁻¹, which has the zeros of L.

    pieces: as for Bodies. A limb is a chain of degrees of freedom, each of which carries all the next ones: the degrees
    of freedom that a limb hangs on are alike for it, one column each.
    """

    def __init__(self, H: np.ndarray, parent: Sequence[int], U: Sequence[int], pieces: bool):
        self._piece: Callable = piece if pieces else lambda *arrays: arrays
        number = {k: n for n, k in enumerate(U)}
        self.paths: list[list[int]] = []  # of each degree of freedom towards the base
        for k in U:
            path, j = [], parent[k]
            while j >= 0:
                if j in number:
                    path.append(number[j])
                j = parent[j]
            self.paths.append(path)
        self.limbs: list[list[int]] = []
        for i, path in enumerate(self.paths):
            if path and path[0] == i - 1 and sum(other[:1] == path[:1] for other in self.paths) == 1:
                self.limbs[-1].append(i)
            else:
                self.limbs.append([i])
        self.L = H[np.ix_(U, U)]
        self.reciprocals: list = [0.0] * len(U)
        self.W = np.full(self.L.shape, 0.0, dtype=object)
        for limb in reversed(self.limbs):
            self._factor(limb)
        for limb in self.limbs:
            self._invert(limb)

    def _factor(self, limb: list[int]) -> None:
        L, reciprocals, carriers = self.L, self.reciprocals, self.paths[limb[0]]
        for k in reversed(limb):
            reciprocals[k] = 1.0 / L[k, k]
            own = [i for i in limb if i < k]
            scaled = {i: L[k, i] * reciprocals[k] for i in own}
            for i in own:
                for j in own[: own.index(i) + 1]:
                    L[i, j] = L[i, j] - scaled[i] * L[k, j]
            for i in own:
                L[k, i] = scaled[i]
        unscaled = {}
        for a in carriers:
            (b,) = self._piece(L[limb, a])
            for n in reversed(range(len(limb))):
                for i in range(n):
                    b[i] = b[i] - L[limb[n], limb[i]] * b[n]
            unscaled[a] = b
            for n, k in enumerate(limb):
                L[k, a] = b[n] * reciprocals[k]
        for m, a in enumerate(carriers):
            for j in carriers[m:]:
                (b,) = self._piece(unscaled[j])
                L[a, j] = L[a, j] - sum((L[k, a] * b[n] for n, k in enumerate(limb)), 0.0)

    def _invert(self, limb: list[int]) -> None:
        L, W, carriers = self.L, self.W, self.paths[limb[0]]
        for k in limb:
            W[k, k] = 1.0
            for j in reversed([j for j in limb if j < k]):
                W[k, j] = -(L[k, j] + sum((L[k, i] * W[i, j] for i in limb if j < i < k), 0.0))
        for n, a in enumerate(carriers):
            for k in limb:
                (b,) = self._piece(L[k, carriers[: n + 1]])
                W[k, a] = b[n] + sum((x * W[i, a] for x, i in zip(b[:n], carriers, strict=False)), 0.0)
        for a in carriers:
            (b,) = self._piece(W[limb, a])
            for n, k in enumerate(limb):
                b[n] = -(b[n] + sum((L[k, i] * b[m] for m, i in enumerate(limb[:n])), 0.0))
            W[limb, a] = b

    def solve(self, b: np.ndarray) -> np.ndarray:
        """Solution H_UU⁻¹ b = W D⁻¹ L⁻ᵀ b: by W only the part of a path that is common with b's counts."""
        (z,) = self._piece(b.copy())
        for i in reversed(range(len(z))):
            for j in self.paths[i]:
                z[j] = z[j] - self.L[i, j] * z[i]
            z[i] = z[i] * self.reciprocals[i]
        x = z.copy()
        for i, path in enumerate(self.paths):
            x[i] = z[i] + sum((self.W[i, j] * z[j] for j in path), 0.0)
        return x

    def inverse(self) -> np.ndarray:
        """Inverse H_UU⁻¹ = W D⁻¹ W^T, both triangles."""
        n = len(self.paths)
        result = np.full((n, n), 0.0, dtype=object)
        ways = [[k, *path] for k, path in enumerate(self.paths)]
        # alike are the degrees of freedom of one limb with all that come before it, and with one of their own
        parts: list[tuple[int, Sequence[int]]] = [(i, range(limb[0])) for limb in self.limbs for i in limb]
        parts += [(i, [k]) for limb in self.limbs for k in limb for i in limb if i >= k]
        scaled = [np.array([self.W[i, j] * self.reciprocals[j] for j in way]) for i, way in enumerate(ways)]
        for i, others in parts:
            (row,) = self._piece(scaled[i])
            own = dict(zip(ways[i], row, strict=True))
            for k in others:
                total = sum((own[j] * self.W[k, j] for j in ways[k] if j in own), 0.0)
                result[i, k] = result[k, i] = total
        return result
