"""Derivatives of τ and q̈ in rigid-body dynamics, analytic; positions are differentiated in the tangent space."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sysdyn.measurements.groups import value_group
from sysdyn.model import Model
from sysdyn.model.kinematics import path
from sysdyn.model.normal_form import normal_form
from sysdyn.model.se3 import X_inverse
from sysdyn.offline import recursion
from sysdyn.offline.constraint_rows import ConstraintRows
from sysdyn.offline.responses import SPACE, Freedoms, Motion, Responses, Source
from sysdyn.offline.sensitivity import Blocks, Expressions
from sysdyn.problem import Problem
from sysdyn.program.graph import SHARING, Graph, is_zero
from sysdyn.program.reproducible import matmul
from sysdyn.recursions.frames import wrench_to
from sysdyn.reference import expanded_parent
from sysdyn.reference.rnea_derivatives import Bodies

# Values of `Responses.follow`, and operations up to which derivatives are written by all of them, of which the cheapest
# is taken (chosen: they take half a second).
FOLLOWING, ALL_WAYS = (math.inf, 0.0, -math.inf), 20_000
# Factor of operations that a column saves if it is written apart from equal pieces for that (chosen).
SIMPLER = 10
# Most degrees of freedom of a robot whose derivatives are written in equal pieces (chosen).
MOST_IN_PIECES = 64
# Multiple of the operations that equal pieces may need, as they are computed side by side (chosen).
DEARER = 1.05
# The same with constraints (chosen: the iCub's on two feet need 7 % more in equal pieces, and half the time).
DEARER_HELD = 1.1

# Fewest degrees of freedom beyond a limb that are moved as a whole, and not one by one (measured on random trees: five
# or six take 1 to 2 % fewer operations so by q and q̇ together; four take no fewer).
MOVED = 5

# The wrench of forces on single degrees of freedom, which none on a body gives.
_NO_WRENCH = np.zeros(6)

# ---- rigid-body dynamics -------------------------------------------------------------------------------------------


def has_analytic(problem: Problem, of: Sequence[str], wrt: Sequence[str]) -> bool:
    """True for derivatives of τ, q̈ and w in problems that `recursion.applies` to, by their inputs."""
    if recursion.applies(problem) is None:
        return False
    known = {"q", "qd", "tau", "qdd", "fx", *(value_group(m.name) for m in problem.constraints)}
    return {*of} <= {"tau", "qdd", *([problem.wrenches.name] if problem.constraints else [])} and {*wrt} <= known


def analytic(
    problem: Problem, of: Sequence[str], wrt: Sequence[str], external_wrenches: bool = True, dearer: float | None = None
) -> Expressions:
    """Derivatives of τ and q̈ in inverse, forward and hybrid dynamics, and of w of constraints.

    With degrees of freedom U of known τ and K of known q̈, the derivatives of ID at (q, q̇, q̈), and those of the rows
    ρ = J q̈ + b − y of constraints, which hold by torques J^T w, for any parameter x of these

        H_UU ∂q̈_U/∂x − J_U^T ∂w/∂x = −∂(ID − J^T w)_U/∂x,   J_U ∂q̈_U/∂x = −∂ρ/∂x
        ∂τ_K/∂x = ∂(ID − J^T w)_K/∂x + H_KU ∂q̈_U/∂x − J_K^T ∂w/∂x

    where q̈ and w are held fixed on the right, and the same with −1 for ∂ID_U/∂τ_U. None of them depends on the choice
    of the bodies' frames, or on parameters that cannot be told from τ and q̈. external_wrenches: they are inputs, else
    zero. dearer: multiple of the operations of the whole that equal pieces may need; if None DEARER, or DEARER_HELD.
    J. Carpentier, N. Mansard, Analytical derivatives of rigid body dynamics algorithms, RSS (2018).
    """
    stated, wrt = wrt, [*wrt, *(["qd"] if problem.couplings and "q" in wrt and "qd" not in wrt else [])]
    first = 0.0 if "tau" in wrt else math.inf  # the responses that limbs need which follow nothing are those by τ
    if dearer is None:
        dearer = DEARER_HELD if problem.constraints else DEARER
    found, either = _written(problem, of, wrt, external_wrenches, first, dearer)
    if either and found.price <= ALL_WAYS:
        others = (_written(problem, of, wrt, external_wrenches, x, dearer)[0] for x in FOLLOWING if x != first)
        found = min(found, *others, key=lambda x: x.price)
    return _by_leaders(problem, found.expressions, of, stated) if problem.couplings else found.expressions


def _by_leaders(problem: Problem, found: Expressions, of: Sequence[str], wrt: Sequence[str]) -> Expressions:
    """Derivatives by leaders, with the chain rule through followers, q_f = p(q_l), q̇_f = p' q̇_l; 0 by followers."""
    inputs, blocks = dict(found.inputs), {key: block.copy() for key, block in found.blocks.items()}
    q, qd = problem.imposed(inputs["q"], inputs["qd"])
    for link, x in itertools.product(reversed(problem.couplings), of):
        f, l = link.v, link.leader_v
        by_q, by_qd = (blocks.get((x, name)) for name in ("q", "qd"))
        if l >= 0:
            _, slope, curve = link.coupling.derivatives(q[link.leader_q])
            if by_q is not None and by_qd is not None:
                by_q[:, l] = by_q[:, l] + slope * by_q[:, f] + curve * qd[l] * by_qd[:, f]
            if by_qd is not None:
                by_qd[:, l] = by_qd[:, l] + slope * by_qd[:, f]
        for block in (by_q, by_qd):
            if block is not None:
                block[:, f] = 0.0
    return replace(found, blocks={key: block for key, block in blocks.items() if key[1] in wrt})


class _Written(NamedTuple):
    """Derivatives in one form. price: operations, of which equal pieces may need more."""

    expressions: Expressions
    price: float


def _written(
    problem: Problem, of: Sequence[str], wrt: Sequence[str], external_wrenches: bool, follow: float, dearer: float
) -> tuple[_Written, bool]:
    """(in equal pieces, or else as a whole; whether it depends on `follow`, see Responses). dearer: as `analytic`."""
    graph = Graph(SHARING)
    groups = {name: graph.inputs(name, size) for name, size in problem.input_sizes}
    model, fx, X = problem.model, None, None
    if external_wrenches:
        fx = groups["fx"].reshape(model.nb, 6)
    if "fx" not in wrt:  # those by fx are in the given frames
        model, X = normal_form(model)
        if fx is not None:
            fx = np.array([wrench_to(x, w.tolist()) for x, w in zip(X, fx, strict=True)], dtype=object)
    U = sorted(model.v_slice(i).start + k for i, k in problem.knows("tau"))
    inputs = tuple(groups.items())
    if problem.couplings:
        groups["q"], groups["qd"] = problem.imposed(groups["q"], groups["qd"])
    state = _State(model, X, groups, fx, U, ConstraintRows(problem) if problem.constraints else None)

    def expressions(dynamics: _Dynamics, blocks: Blocks) -> Expressions:
        return Expressions(
            "analytic", graph, inputs, blocks, (), dynamics.pivots, tuple(dynamics.qdd), tuple(dynamics.w)
        )

    exact = _Dynamics(state, wrt, follow=follow)
    whole = expressions(exact, exact.blocks(of, wrt))
    either, price = exact.responses.followed, dearer * whole.operations
    if model.nv > MOST_IN_PIECES:
        return _Written(whole, price), either
    pieces = _Dynamics(state, wrt, exact, follow)
    blocks = {key: with_zeros(graph, y, whole.blocks[key]) for key, y in pieces.blocks(of, wrt).items()}
    in_pieces = expressions(pieces, blocks)
    found = _Written(in_pieces, in_pieces.operations)
    return found if found.price <= price else _Written(whole, price), either


def with_zeros(graph: Graph, block: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The block with the zeros of an exact one, and with its columns if they are far simpler."""
    result = block.copy()
    for column, (x, y) in enumerate(zip(block.T, exact.T, strict=True)):
        zero = [is_zero(b) and not is_zero(a) for a, b in zip(x, y, strict=True)]
        if any(zero):
            simpler = SIMPLER * graph.count(y).total < graph.count(x).total
            result[:, column] = y if simpler else np.where(zero, 0.0, x)
    return result


class _State(NamedTuple):
    """A problem at a state: X, the frames of bodies by the given ones; U, the degrees of freedom of known τ."""

    model: Model
    X: np.ndarray | None
    groups: dict[str, np.ndarray]
    fx: np.ndarray | None
    U: list[int]
    rows: ConstraintRows | None


# (The last degree of freedom on the way to the base of all at which ID changes, or −1, of those that are not beyond it;
# the changes of all; the wrench that gives those on the way.)
_Part = tuple[int, np.ndarray, np.ndarray]


class _Column(NamedTuple):
    """Changes of ID, at q̈ and w held fixed, and of the rows of constraints along one direction of an input.

    parts: ID (nv) as a sum of terms (a degree of freedom on whose way to the base and beyond it this one is not zero,
    −1 for none; its entries; the wrench (6) that gives those on the way). rows: (m) of constraints, None for zero.
    motion: as of a Source, of the one part. known: q̈ (nv) that a part of ID which is not among them takes.
    """

    parts: list[tuple[int, np.ndarray, np.ndarray]]
    rows: np.ndarray | None = None
    motion: Motion | None = None
    known: np.ndarray | None = None


# (∂q̈ (nv) along a direction; the source of which it is minus the solution x (nv); this without the limbs that move.)
_Moving = tuple[np.ndarray, Source, np.ndarray]


class _Dynamics:
    """ID at a state, its derivatives and the responses of q̈_U to forces.

    zeros: the same written in one piece, from which structural zeros are known. With it this one is written in equal
    pieces of work, which share machine code but show no zeros. follow: as for Responses.
    """

    def __init__(self, state: _State, wrt: Sequence[str], zeros: _Dynamics | None = None, follow: float = math.inf):
        self._state, model, groups, U = state, state.model, state.groups, state.U
        self._nv = nv = model.nv
        self._K = [k for k in range(nv) if k not in set(U)]
        self._bodies = bodies = Bodies(model, groups["q"], groups["qd"], pieces=zeros is not None)
        self.H: np.ndarray = bodies.H if zeros is None else masked(bodies.H, zeros.H)
        number = {k: n for n, k in enumerate(U)}
        paths: list[list[int]] = []
        for k, j in enumerate(expanded_parent(model)):
            paths.append([k, *(paths[j] if j >= 0 else ())])
        ways = [tuple(number[j] for j in path if j in number) for path in paths]
        S, IS, BS = (
            np.array([getattr(bodies.sides[k], x) for k in U], dtype=object).reshape(-1, n)
            for x, n in (("s", 6), ("Is", 6), ("Bs", 3))
        )
        axes = _constant_axes(model)
        tree, H_U, paths_U = Freedoms(S, IS, BS, [axes[k] for k in U]), self.H[np.ix_(U, U)], [ways[k][1:] for k in U]
        columns = sum(0.5 if name == "tau" else 1.0 for name in wrt)  # H⁻¹ is symmetric
        self.responses = Responses(paths_U, tree, H_U, zeros is not None, follow, columns)
        self._home = [self.responses.limb_of[way[0]] if way else None for way in ways]
        self._J = np.empty((0, nv), dtype=object)
        self._given: dict[str, object] = {}
        self._loads: dict[int, np.ndarray] = {}
        self._moved: dict[tuple[str, int], Motion] = {}
        if state.rows is not None:
            self._hold(state.rows)
        self._solve(state.rows)

    # ---- at the state ----------------------------------------------------------------------------------------------

    def _hold(self, rows: ConstraintRows) -> None:
        """Constraints: their wrenches, J and the responses with them."""
        state, bodies = self._state, self._bodies
        self._given = {f"{name}[{k}]": x for name, values in state.groups.items() for k, x in enumerate(values)}
        found, torques = rows.loads(self._given)
        self._loads = {i: np.array([self._framed(i, x) for x in L.T], dtype=object).T for i, L in found.items()}
        placed = {i: [bodies.motion.placed_wrench(i, x) for x in L.T] for i, L in self._loads.items()}
        sources: list[list[Source]] = []
        self._J = torques.T.copy()
        for e in range(rows.m):
            bodies_of = [self._on_body(i, x[e]) for i, x in placed.items() if not all(map(is_zero, x[e]))]
            joints_of = [self._on_joint(k, x) for k, x in enumerate(torques[:, e]) if not is_zero(x)]
            sources.append([self._source(part) for part in (*bodies_of, *joints_of)])
            for _, forces, _ in bodies_of:
                self._J[e] = self._J[e] + forces
        if state.U:
            self.responses.constrain(self._J[:, state.U], sources)

    def _framed(self, i: int, wrench: np.ndarray) -> np.ndarray:
        """A wrench (6) on body i from its given frame."""
        X = self._state.X
        return wrench if X is None else np.array(wrench_to(X[i], wrench.tolist()), dtype=object)

    def _solve(self, rows: ConstraintRows | None) -> None:
        """q̈ and w, and ID there."""
        groups, U, K, bodies = self._state.groups, self._state.U, self._K, self._bodies
        self.qdd, self.w, fx = np.full(self._nv, 0.0, dtype=object), np.zeros(0), self._state.fx
        self.qdd[K] = groups["qdd"][K] if K else []
        kappa = None if rows is None else -rows.residual(self._given | _named("qdd", self.qdd))
        if U:
            forces = groups["tau"][U] - bodies.inverse_dynamics(self.qdd, fx).tau[U]
            self.qdd[U], self.w = self.responses.solution(Source(None, forces, _NO_WRENCH), kappa)
        self.pivots = tuple(zip(self.responses.pivots, U, strict=True))
        if rows is not None:
            held = self.responses.rows
            self.pivots += tuple((x, self._nv + e) for e, x in enumerate(held.pivots if held else ()))
            self._given |= _named("qdd", self.qdd)
            fx = np.full((self._state.model.nb, 6), 0.0, dtype=object) if fx is None else fx.copy()
            for i, L in self._loads.items():
                fx[i] = fx[i] + L @ self.w
        self._motion = bodies.inverse_dynamics(self.qdd, fx)

    # ---- changes ---------------------------------------------------------------------------------------------------

    def _on_body(self, i: int, wrench: np.ndarray) -> _Part:
        """Forces of a wrench (6) on body i, in coordinates of its tree."""
        forces, last = np.full(self._nv, 0.0, dtype=object), -1
        for j in path(self._state.model, i):
            for l, t in enumerate(self._bodies.motion.S[j], start=self._state.model.v_slice(j).start):
                forces[l], last = t @ wrench, max(last, l)
        return last, forces, wrench

    def _on_joint(self, k: int, torque: object) -> _Part:
        forces = np.full(self._nv, 0.0, dtype=object)
        forces[k] = torque
        return k, forces, _NO_WRENCH

    def _source(self, part: _Part, motion: Motion | None = None) -> Source:
        k, forces, wrench = part
        return Source(self._home[k] if k >= 0 else None, forces[self._state.U], wrench, motion)

    def _columns(self, name: str) -> list[_Column]:
        """The changes along each direction of an input but τ."""
        state, bodies, motion, rows = self._state, self._bodies, self._motion, self._state.rows
        every = range(self._nv)
        if name == "qdd":
            found = [
                _Column([(k, self.H[:, k], bodies.sides[k].Is)], self._J[:, k] if rows is not None else None)
                if k in self._K else _Column([]) for k in every
            ]  # fmt: skip
        elif name == "fx":
            found = []
            for i, placed in enumerate(
                bodies.motion.placed_wrench(i, -e) for i in range(state.model.nb) for e in np.eye(6)
            ):
                k, _, wrench = self._on_body(i // 6, placed)
                found.append(_Column([(k, motion.dtau_dfx[:, i // 6, i % 6], wrench)]))
        elif name in ("q", "qd"):
            rates = motion.dtau_dq if name == "q" else motion.dtau_dqd
            wrenches = bodies.turned if name == "q" else [side.column for side in bodies.sides]
            found = [self._column(name, k, rates[:, k], wrenches[k]) for k in every]
            if rows is not None:
                changes = rows.rates(name, self._given)
                found = [column._replace(rows=x) for column, x in zip(found, changes, strict=True)]
        else:  # the given values of a constraint
            assert rows is not None
            found = [_Column([], np.array([-float(e == k) for e in range(rows.m)])) for k in rows.names[name]]
        if name == "q" and rows is not None:
            for column, (on_bodies, torques) in zip(found, rows.load_rates(self._given, self.w), strict=True):
                for i, x in on_bodies.items():
                    column.parts.append(self._on_body(i, -bodies.motion.placed_wrench(i, self._framed(i, x))))
                column.parts.extend(self._on_joint(k, -x) for k, x in enumerate(torques) if not is_zero(x))
        return found

    def _carry(self, wrt: Sequence[str]) -> None:
        """Motions of the limbs that a degree of freedom carries, by which they are moved, and resist, as a whole.

        Of all columns before any of these is written, so that they are computed side by side.
        """
        responses, sides = self.responses, self._bodies.sides
        for k in () if self._K else range(self._nv):
            home = responses.limb_of[k]
            if responses.moved(home) < MOVED:
                continue
            if "q" in wrt:
                self._moved["q", k] = responses.motion(home, self._bodies.psi_dd[k], sides[k].psi_d[:3])
            if "qd" in wrt:
                alpha = np.zeros(SPACE) if self._takes(k) is not None else sides[k].both
                self._moved["qd", k] = responses.motion(home, alpha, sides[k].s[:3])

    def _takes(self, k: int) -> np.ndarray | None:
        """(6, 6) the coordinates in the joint of degree of freedom k of any acceleration; None if it cannot make all.

        A floating base can, and so takes an acceleration that all bodies are to have by itself, if nothing holds them.
        """
        if self._K or self._state.rows is not None:
            return None
        root = self._state.model.v_slice(self._bodies.sides[k].body)
        return self.responses.coordinates(range(root.start, root.stop))

    def _column(self, name: str, k: int, forces: np.ndarray, wrench: np.ndarray) -> _Column:
        """The column of a degree of freedom by its position or velocity."""
        sides, known = self._bodies.sides, None
        if name == "qd" and (T := self._takes(k)) is not None:
            side, known = sides[k], np.full(self._nv, 0.0, dtype=object)
            known[self._state.model.v_slice(side.body)] = T.astype(object) @ side.both
            forces = np.array(
                [0.0 if is_zero(x) else other.Bs @ side.s[:3] for x, other in zip(forces, sides, strict=True)]
            )
        return _Column([(k, forces, wrench)], motion=self._moved.get((name, k)), known=known)

    def blocks(self, of: Sequence[str], wrt: Sequence[str]) -> Blocks:
        """The derivatives of the wanted ones of τ, q̈ and w by each input."""
        self._carry(wrt)
        moving: list[_Moving] = []
        blocks = {(x, name): block for name in wrt for x, block in self._by(name, moving).items() if x in of}
        for dqdd, source, x in moving:  # all after the others, so that they are computed side by side
            assert source.home is not None and source.motion is not None
            for k in self.responses.move(source.home, x, source.motion):
                dqdd[k] = -x[k]
        return blocks

    def _by(self, name: str, moving: list[_Moving]) -> dict[str, np.ndarray]:
        """The derivatives of τ, q̈ and w by an input. moving: columns that are not complete yet."""
        U, K, nv = self._state.U, self._K, self._nv
        m = len(self._J)
        if name == "tau":
            blocks = {x: np.full((n, nv), 0.0, dtype=object) for x, n in (("tau", nv), ("qdd", nv), ("w", m))}
            blocks["tau"][U, U] = 1.0
            blocks["qdd"][np.ix_(U, U)] = inverse = self.responses.inverse()
            if self.responses.rows is not None:
                blocks["w"][:, U] = -self.responses.rows.Z.T
            for n, k in enumerate(U):
                self._add_torques(blocks["tau"][:, k], inverse[:, n], blocks["w"][:, k])
            return blocks
        columns = self._columns(name)
        blocks = {x: np.full((n, len(columns)), 0.0, dtype=object) for x, n in (("tau", nv), ("qdd", nv), ("w", m))}
        for c, column in enumerate(columns):
            dqdd, dw = blocks["qdd"][:, c], blocks["w"][:, c]
            if column.parts or column.rows is not None:
                dqdd[U], dw[:] = self._answer(column, dqdd, moving)
            if column.known is not None:
                dqdd -= column.known
            for _, forces, _ in column.parts:
                blocks["tau"][K, c] = blocks["tau"][K, c] + forces[K]
            self._add_torques(blocks["tau"][:, c], dqdd[U], dw)
            if name == "qdd" and c in K:
                dqdd[c] = 1.0
        return blocks

    def _answer(self, column: _Column, whole: np.ndarray, moving: list[_Moving]) -> tuple[np.ndarray, np.ndarray]:
        """(∂q̈_U, ∂w) of a column. whole: where ∂q̈ is kept."""
        dqdd, dw, kappa = (
            np.full(len(self._state.U), 0.0, dtype=object),
            np.full(len(self._J), 0.0, dtype=object),
            column.rows,
        )
        for part in column.parts or [(-1, np.full(self._nv, 0.0, dtype=object), _NO_WRENCH)]:
            source = self._source(part, column.motion)
            x, mu = self.responses.solution(source, kappa)
            if column.motion is not None:
                moving.append((whole, source, x))
            dqdd, dw, kappa = dqdd - x, dw - mu, None
        return dqdd, dw

    def _add_torques(self, dtau: np.ndarray, dqdd: np.ndarray, dw: np.ndarray) -> None:
        """Add ∂τ_K by ∂q̈_U and ∂w."""
        K, U = self._K, self._state.U
        dtau[K] = dtau[K] + self.H[np.ix_(K, U)] @ dqdd - self._J[:, K].T @ dw


def _constant_axes(model: Model) -> list[np.ndarray | None]:
    """(6) of each degree of freedom in the frame of the root of its tree; None if it moves there, or has a rotor."""
    found: list[np.ndarray | None] = []
    for joint, X, parent in zip(model.joints, model.X_tree, model.parent, strict=True):
        still = parent < 0 or (model.parent[parent] < 0 and joint.nv == 1)
        S = joint.S if parent < 0 else matmul(X_inverse(X), joint.S)
        found += list(S.T) if still else [None] * joint.nv
    return [None if rotor else s for s, rotor in zip(found, model.armature, strict=True)]


def _named(name: str, values: np.ndarray) -> dict[str, object]:
    return {f"{name}[{k}]": x for k, x in enumerate(values)}


def masked(values: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """The values, replaced by 0.0 at the zeros of `zeros`."""
    result = values.copy()
    result.flat[:] = [0.0 if is_zero(x) else y for x, y in zip(zeros.flat, values.flat, strict=True)]
    return result
