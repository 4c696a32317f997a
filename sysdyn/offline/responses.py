"""Accelerations of a tree by forces with many zeros, without and with constraints.

Degrees of freedom are in limbs, chains each of which carries the next one. All that a limb hangs on acts on it through
an interface, the accelerations y of the degrees of freedom that carry it, or the six of the body if these are more.
With the inertia H of a limb, what it carries included, and its coupling F (n, m) to the interface, forces r and
accelerations y give

    x = G r + M y        G = H⁻¹, M = −G F        and the force p + M^T r on the interface, p being there from the first

so that forces on a limb and beyond move all other limbs by m numbers. By its first degree of freedom s it transmits no
force along s but the reaction of this one's own: where s does not depend on the state, m − 1 numbers are enough. If the
interface moves all bodies that it carries by an acceleration α and a turn rate β, which need forces F α + V β, then

    x = M (y − α) + N β        N = G V        and the force E α + T β on the interface, E = −F^T G F, T = −F^T G V

beyond that of bodies which do not give way: nine numbers for whatever is beyond a limb.

R(c) are the responses of accelerations to unit forces on interface c. Constraints J x = κ hold by forces J^T μ: with
Y = H⁻¹ J^T, A = J Y and Z = Y A⁻¹, R becomes R − Z J R, and x becomes x + Z (κ − J x).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from sysdyn.model.constants import clean
from sysdyn.program.graph import is_zero
from sysdyn.program.reproducible import matmul
from sysdyn.reference.generic import piece

# Number of components of a body's acceleration: the interface of a limb that more degrees of freedom carry.
SPACE = 6

# Degrees of freedom that carry a limb, from the nearest one to the base.
Interface = tuple[int, ...]


class _Force(NamedTuple):
    """A force p on an interface. limb: p is transmitted by it, without the component that is `_idle` then."""

    on: Interface
    p: np.ndarray
    limb: int | None


class Motion(NamedTuple):
    """A motion of the end of a limb: acceleration (6) and turn rate (3) of all limbs beyond it.

    resistance: the force on that end by which these, as they give way, resist less.
    """

    acceleration: np.ndarray
    turning: np.ndarray
    resistance: np.ndarray


class Source(NamedTuple):
    """Forces on degrees of freedom on the way to the base and beyond it.

    home: the limb of the last degree of freedom of that way, None if there is none. forces (n): on each. wrench (6): on
    the bodies of the way, the forces on it being components of this one. motion: of the end of home, in place of the
    forces on limbs beyond it, whose accelerations are not among the solution until `Responses.move`.
    """

    home: int | None
    forces: np.ndarray
    wrench: np.ndarray
    motion: Motion | None = None


class _Idle(NamedTuple):
    """A component of the forces p that a limb transmits which follows from the others.

    By its first degree of freedom s and the torque τ on this, s·p = −τ: p_i = −Σ (s_j / s_i) p_j − τ / s_i. component:
    i, with the greatest |s_i|. shares (m): s_j / s_i. reaction: 1 / s_i.
    """

    component: int
    shares: np.ndarray
    reaction: float


class Freedoms(NamedTuple):
    """Degrees of freedom in the coordinates of their tree.

    S, IS (n, 6): each as a motion, and the momentum of all bodies beyond it in that motion. BS (n, 3): the force on it
    by a turn rate of all bodies beyond it. axes: S where it does not depend on the state, None elsewhere.
    """

    S: np.ndarray
    IS: np.ndarray
    BS: np.ndarray
    axes: Sequence[np.ndarray | None]


class Responses:
    """The factors of H for degrees of freedom numbered from 0.

    paths: the limbs that carry each one, from the nearest to the base. tree: of each of them. H (n, n): their inertia.
    pieces: as for Bodies. follow: accelerations of limbs without forces follow from those of the limbs that carry them
    if these are at most `follow` more than the numbers that the force needs, else from the force. followed: whether
    both have been possible anywhere. columns: wanted by each force, the symmetric ones of the inverse count as half.
    """

    def __init__(
        self,
        paths: Sequence[Interface],
        tree: Freedoms,
        H: np.ndarray,
        pieces: bool,
        follow: float,
        columns: float,
    ):
        self.follow, self.followed, self._columns = follow, False, columns
        self.piece: Callable = piece if pieces else lambda *arrays: arrays
        self._tree, self._H, self.n = tree, H, len(paths)
        self.limbs: list[list[int]] = []
        self.limb_of: dict[int, int] = {}
        for i, path in enumerate(paths):
            if path and sum(other[:1] == path[:1] for other in paths) == 1:
                self.limb_of[i] = self.limb_of[path[0]]
            else:
                self.limb_of[i] = len(self.limbs)
                self.limbs.append([])
            self.limbs[self.limb_of[i]].append(i)
        self._base = [tuple(paths[limb[0]]) for limb in self.limbs]  # the interface that a limb hangs on
        self._end = [(*reversed(limb), *base) for limb, base in zip(self.limbs, self._base, strict=True)]
        self._owner = {end: number for number, end in enumerate(self._end)}
        self._beyond = [{n for n, base in enumerate(self._base) if limb[-1] in base} for limb in self.limbs]
        self.pivots: list = [None] * self.n
        self._L: list[np.ndarray] = [H] * len(self.limbs)
        self._reciprocals: list[np.ndarray] = [H] * len(self.limbs)
        self._M: list[np.ndarray] = [H] * len(self.limbs)
        self._N: list[np.ndarray] = [H] * len(self.limbs)
        self._R: dict[tuple[int, Interface], np.ndarray] = {}
        self._R_held: dict[tuple[int, Interface], np.ndarray] = {}
        self._R_across: dict[tuple[int, Interface, int], np.ndarray] = {}
        self._prepared: set[int] = set()
        self.rows: _Rows | None = None
        self._missing: dict[Interface, tuple[np.ndarray, np.ndarray]] = {}
        for number in reversed(range(len(self.limbs))):
            self._factor(number)

    # ---- factors -------------------------------------------------------------------------------------------------

    def _factor(self, number: int) -> None:
        """L, D, M and N of a limb; E and T of the interface that it hangs on."""
        limb, base, end = self.limbs[number], self._base[number], self._end[number]
        n, missing = len(limb), self._missing.get(end)
        L, F, V = self._H[np.ix_(limb, limb)], self._H[np.ix_(limb, base)], self._tree.BS[limb]
        if len(base) > SPACE:
            F = self._tree.IS[limb]
        if missing is not None:
            E, T = missing
            own, on = self._motions(limb, end), np.eye(SPACE) if len(base) > SPACE else self._motions(base, end)
            turned = own @ E
            L, F, V = L + turned @ own.T, F + turned @ on.T, V + own @ T
            missing = on @ E @ on.T, on @ T
        reciprocals = np.empty(n, dtype=object)
        for k in reversed(range(n)):
            self.pivots[limb[k]], reciprocals[k] = L[k, k], 1.0 / L[k, k]
            scaled = L[k, :k] * reciprocals[k]
            for i in range(k):
                L[i, : i + 1] = L[i, : i + 1] - scaled[i] * L[k, : i + 1]
            L[k, :k] = scaled
        self._L[number], self._reciprocals[number] = L, reciprocals
        self._M[number], self._N[number] = F.copy(), V.copy()
        if not base:
            return
        halves = []
        for columns, result, sign in ((F.T, self._M[number], -1.0), (V.T, self._N[number], 1.0)):
            for a, column in enumerate(columns):
                (u,) = self.piece(column.copy())
                for k in reversed(range(n)):
                    u[:k] = u[:k] - L[k, :k] * u[k]
                scaled = u * reciprocals
                halves.append((u, scaled))
                result[:, a] = sign * self._outward(L, scaled)
        m = len(F.T)
        E, T = np.empty((m, m), dtype=object), np.empty((m, len(V.T)), dtype=object)
        for a, (u, _) in enumerate(halves[:m]):
            (u,) = self.piece(u)
            for b in range(a + 1):
                E[a, b] = E[b, a] = -(halves[b][1] @ u)
        for a, (u, _) in enumerate(halves[m:]):
            (u,) = self.piece(u)
            T[:, a] = [-(scaled @ u) for _, scaled in halves[:m]]
        for other in (missing, self._missing.get(base)):
            if other is not None:
                E, T = other[0] + E, other[1] + T
        self._missing[base] = E, T

    def _moving(self, number: int, y: np.ndarray) -> np.ndarray:
        """M y of a limb. To a motion of its interface along its first axis s that one answers alone: M s = −e."""
        M, idle = self._M[number], self._idle(number)
        if idle is None or len(M) <= np.count_nonzero(idle.shares):  # as many operations or more
            return M @ y
        kept = [a for a in range(len(y)) if a != idle.component]
        x = M[:, kept] @ (y[kept] - idle.shares[kept] * y[idle.component])
        x[0] = x[0] - y[idle.component] * idle.reaction
        return x

    @staticmethod
    def _outward(L: np.ndarray, b: np.ndarray) -> np.ndarray:
        """L⁻¹ b."""
        x = b.copy()
        for k in range(1, len(x)):
            x[k] = x[k] - L[k, :k] @ x[:k]
        return x

    @cached_property
    def _W(self) -> list[np.ndarray]:
        """W = L⁻¹ of each limb."""
        found = []
        for L in self._L:
            W = np.full(L.shape, 0.0, dtype=object)
            for k in range(len(L)):
                W[k, k] = 1.0
                for j in reversed(range(k)):
                    W[k, j] = -(L[k, j] + sum((L[k, i] * W[i, j] for i in range(j + 1, k)), 0.0))
            found.append(W)
        return found

    @cached_property
    def _G(self) -> list[np.ndarray]:
        """G = W D⁻¹ W^T of each limb."""
        found = []
        for limb in zip(self._W, self._reciprocals, strict=True):
            W, reciprocals = self.piece(*limb)
            G, scaled = np.empty(W.shape, dtype=object), W * reciprocals
            for i in range(len(W)):
                for k in range(i + 1):
                    G[i, k] = G[k, i] = scaled[i, : k + 1] @ W[k, : k + 1]
            found.append(G)
        return found

    def _alone(self, number: int, r: np.ndarray) -> np.ndarray:
        """G r; by W only the degrees of freedom up to the last one of r that is not zero count."""
        L, z = self._L[number], r.copy()
        for k in reversed(range(len(z))):
            z[:k] = z[:k] - L[k, :k] * z[k]
            z[k] = z[k] * self._reciprocals[number][k]
        return self._W[number] @ z

    # ---- interfaces ----------------------------------------------------------------------------------------------

    def _motions(self, ks: Sequence[int], end: Interface) -> np.ndarray:
        """(len(ks), m) unit motions of degrees of freedom that make up an interface, in its coordinates."""
        if len(end) > SPACE:
            return self._tree.S[list(ks)]
        return np.array([[float(k == a) for a in end] for k in ks], dtype=object).reshape(len(ks), len(end))

    def _rigid(self, number: int, forces: np.ndarray) -> np.ndarray:
        """Forces (m, …) on the interface of a limb by those on the interface at its end, the limb being rigid."""
        base, end = self._base[number], self._end[number]
        return forces if len(base) > SPACE else self._motions(base, end) @ forces

    def beyond(self, number: int) -> set[int]:
        """The limbs that a limb carries."""
        return self._beyond[number]

    def coordinates(self, c: Sequence[int]) -> np.ndarray | None:
        """(m, 6) accelerations of any motion in an interface; None if it cannot make all motions."""
        if len(c) > SPACE:
            return np.eye(SPACE)
        S = np.array([x for k in c if (x := self._tree.axes[k]) is not None])
        return S if len(S) == SPACE and np.array_equal(matmul(S, S.T), np.eye(SPACE)) else None

    def moved(self, number: int) -> int:
        """The number of degrees of freedom beyond a limb; 0 if a `Source` there may not be of a motion."""
        beyond = self._beyond[number]
        if self.rows is not None or any(self.coordinates(self._base[n]) is None for n in beyond):
            return 0
        return sum(len(self.limbs[n]) for n in beyond)

    def _idle(self, number: int) -> _Idle | None:
        """The component that a limb's forces on its interface do without; None if that saves nothing."""
        base, limb = self._base[number], self.limbs[number]
        axis, T = self._tree.axes[limb[0]], self.coordinates(base) if base else None
        if axis is None or T is None:
            return None
        s = matmul(T, axis)
        i = int(np.argmax(np.abs(s)))
        shares = clean(s / s[i])
        return _Idle(i, shares, float(1.0 / s[i])) if np.count_nonzero(shares) - 1 < self._columns * len(limb) else None

    def _seen(self, c: Interface, motion: np.ndarray) -> np.ndarray:
        """A motion (6) in the coordinates of an interface that can make it."""
        if len(c) > SPACE:
            return motion
        T = self.coordinates(c)
        assert T is not None
        return T.astype(object) @ motion

    def interface(self, c: Interface, x: np.ndarray) -> np.ndarray:
        """Accelerations (m, …) of an interface by those of all degrees of freedom."""
        if len(c) <= SPACE:
            return x[list(c)]
        owner = self._owner[c]
        base = self._base[owner]
        own = self._motions(self.limbs[owner], c).T @ x[self.limbs[owner]]
        if len(base) > SPACE:
            return own + self.interface(base, x)
        return own + self._motions(base, c).T @ x[list(base)] if base else own

    def _free(self, number: int, c: Interface) -> np.ndarray:
        """R(c) (n, m) of a limb without constraints."""
        if (number, c) not in self._R:
            self._R[number, c] = self._symmetric(number, c, self._response(number, c, self._free))
        return self._R[number, c]

    def _held(self, number: int, c: Interface) -> np.ndarray:
        """R(c) (n, m) of a limb with constraints."""
        if self.rows is None:
            return self._free(number, c)
        if (number, c) not in self._R_held:
            if self.rows.touches[self._owner[c]]:
                R, reach = self._free(number, c), self.rows.of(c)
                Z = [self.piece(z)[0] for z in self.rows.Z[self.limbs[number]]]
                found = _stacked([x - z @ reach for x, z in zip(R, Z, strict=True)], R.shape[1])
            else:
                found = self._response(number, c, self._held)
            self._R_held[number, c] = self._symmetric(number, c, found)
        return self._R_held[number, c]

    def _symmetric(self, number: int, c: Interface, R: np.ndarray) -> np.ndarray:
        """R with one triangle for both of the entries that a limb has with itself."""
        if self._owner[c] == number and len(c) <= SPACE:
            n = len(R)
            for i in range(n):
                for k in range(i):
                    R[k, n - 1 - i] = R[i, n - 1 - k]
        return R

    def _across(self, number: int, c: Interface, limb: int) -> np.ndarray:
        """R(c) (n, m − 1) of limb `number` to forces that another limb on c transmits, see `_idle`."""
        if (number, c, limb) not in self._R_across:
            R, idle = self._held(number, c), self._idle(limb)
            if idle is not None:
                R = np.delete(R - np.outer(R[:, idle.component], idle.shares), idle.component, axis=1)
            self._R_across[number, c, limb] = R
        return self._R_across[number, c, limb]

    def _response(self, number: int, c: Interface, of: Callable[[int, Interface], np.ndarray]) -> np.ndarray:
        """R(c) (n, m) of a limb by R of limbs and interfaces that are nearer to the base."""
        owner = self._owner[c]
        base, S = self._base[owner], self._motions(self.limbs[owner], c)
        m = S.shape[1]
        if number in self._beyond[owner]:
            x, at = np.empty((self.n, m), dtype=object), self._base[number]
            for n in {self.limb_of[k] for k in at}:
                x[self.limbs[n]] = of(n, c)
            y = self.interface(at, x)
            return _stacked([self.piece(row)[0] @ y for row in self._M[number]], m)
        found = np.full((len(self.limbs[number]), m), 0.0, dtype=object)
        if base:
            (M,) = self.piece(self._M[owner])
            T = self._rigid(owner, np.eye(m)) + M.T @ S
            found = _stacked([self.piece(row)[0] @ T for row in of(number, base)], m)
        if number == owner:
            found = found + _stacked([self._alone(owner, s) for s in S.T], len(S)).T
        return found

    # ---- solutions -------------------------------------------------------------------------------------------------

    def constrain(self, J: np.ndarray, forces: Sequence[Sequence[Source]]) -> None:
        """Hold J (m, n) x by forces J^T μ, of which each row is a sum of sources."""
        zero = np.full(self.n, 0.0, dtype=object)
        Y = np.array([sum((self.solve(x) for x in row), zero) for row in forces], dtype=object).T
        self.rows = _Rows(self, J, Y)
        self._R_across.clear()

    def solve(self, source: Source, kappa: np.ndarray | None = None) -> np.ndarray:
        """x (n) of the forces, with J x = κ if there are constraints, or 0 if κ is None."""
        return self.solution(source, kappa)[0]

    def solution(self, source: Source, kappa: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(x, the forces μ of constraints)."""
        rows, (home, forces, wrench, motion) = self.rows, source
        moved, on = set[int](), dict[Interface, np.ndarray]()
        if home is not None:
            self._prepare(home)
        given = [x for x in (None if motion is None else motion.resistance, kappa) if x is not None]
        forces, wrench, *given = self.piece(forces, wrench, *given)
        left = None if kappa is None else given[-1]
        if motion is not None:
            assert home is not None
            moved, on = self._beyond[home], {self._end[home]: given[0]}
        inside = {*range(len(self.limbs))} if home is None else {home, *self._beyond[home]}
        base = () if home is None else self._base[home]
        alone, p = self._inward(home, inside - moved, forces, wrench, on)
        tops = {n for n in inside if n == home or not self._base[n]}
        fixed = np.full(self.n, 0.0, dtype=object)  # while the interface of home does not move
        apart = {n for n in inside if rows is not None and rows.touches[n]}
        for n in sorted(apart):
            fixed[self.limbs[n]] = self._carried(n, alone[n], fixed, n in tops)
        if rows is not None and apart:
            left = (0.0 if left is None else left) - rows.J @ fixed
        carriers = {self.limb_of[k] for k in base}
        x, nothing, way = fixed.copy(), np.full(self.n, 0.0, dtype=object), list[_Force]()
        if home is not None:
            way = self._way(home, p, is_zero(forces[self.limbs[home][0]]) or not all(map(is_zero, wrench)))
        for n, limb in enumerate(self.limbs):
            if n in moved:
                continue
            unforced = self._base[n] and n not in carriers and not (rows is not None and rows.touches[n])
            needed = n in inside - tops or left is not None and n not in inside
            either = bool(unforced and way) and not needed and len(self._base[n]) <= len(p)
            self.followed |= either
            if unforced and needed or either and len(self._base[n]) <= len(self._reaching(n, way).p) + self.follow:
                x[limb] = self._carried(n, alone.get(n, nothing[limb]), x, False)
                continue
            if n in tops - apart:
                x[limb] = alone[n]
            if base:
                x[limb] = x[limb] + self._pushed(n, way)
            if rows is not None and left is not None:
                x[limb] = x[limb] + rows.Z[limb] @ left
        if rows is None:
            return x, np.zeros(0)
        left = np.full(len(rows.J), 0.0, dtype=object) if left is None else left
        return x, rows.solved(left - rows.of(base) @ p if base else left)

    def motion(self, home: int, alpha: np.ndarray, beta: np.ndarray) -> Motion:
        """The motion of the end of a limb by its acceleration (6) and turn rate (3); see `moved`."""
        E, T = self._missing[self._end[home]]
        a, b = self.piece(self._seen(self._end[home], alpha), beta)
        return Motion(alpha, beta, E @ a + T @ b)

    def move(self, home: int, x: np.ndarray, motion: Motion) -> list[int]:
        """Complete a `solution` by the limbs beyond home, which move with it; their degrees of freedom."""
        for c in dict.fromkeys(self._base[n] for n in sorted(self._beyond[home])):
            carriers, less = self.piece(x, self._seen(c, motion.acceleration))
            y, turning = self.piece(self.interface(c, carriers) - less, motion.turning)
            for n in sorted(self._beyond[home]):
                if self._base[n] == c:
                    x[self.limbs[n]] = self._moving(n, y) + self._N[n] @ turning
        return [k for n in sorted(self._beyond[home]) for k in self.limbs[n]]

    def _prepare(self, home: int) -> None:
        """Write the responses that forces on a limb need, lest they become parts of one piece of work with these.

        Not with constraints, where limbs that these touch may do without.
        """
        if home in self._prepared or self.rows is not None or not self._base[home]:
            return
        stops = [_Force(c, np.zeros(0), n) for c, n in self._stops(home)]
        for n in range(len(self.limbs)):
            if n not in self._beyond[home]:
                self._response_to(n, self._reaching(n, stops))
        self._prepared.add(home)

    def _stops(self, home: int) -> list[tuple[Interface, int]]:
        """(interfaces, limbs that transmit a force to them) on the way of forces on a limb to others.

        The limb that it hangs on, and nearer to the base the ones by which responses are enough cheaper, up to a limb
        with constraints.
        """
        found, number = [(self._base[home], home)] if self._base[home] else [], home
        while found:
            end = self._base[number]
            number = self._owner[end]
            base, m = self._base[number], min(len(end), SPACE)
            if not base or (self.rows is not None and self.rows.touches[number]):
                break
            others = sum(len(limb) for n, limb in enumerate(self.limbs) if n not in {number, *self._beyond[number]})
            lesser = min(len(base), SPACE)
            if (m - lesser) * others <= len(self.limbs[number]) * (m + lesser):
                break
            found.append((base, number))
        return found

    def _way(self, home: int, p: np.ndarray, transmitted: bool) -> list[_Force]:
        """The forces on `_stops` that are equal, for the limbs beyond them, to force p on the first one.

        transmitted: p is a force from the first degree of freedom of home, which has none of its own.
        """
        way: list[_Force] = []
        for c, n in self._stops(home):
            if way:
                p = self._rigid(n, p) + self._M[n].T @ (self._motions(self.limbs[n], way[-1].on) @ p)
            way.append(self._force(c, p, n if way or transmitted else None))
        return way

    def _force(self, c: Interface, p: np.ndarray, limb: int | None) -> _Force:
        idle = None if limb is None else self._idle(limb)
        return _Force(c, p, None) if idle is None else _Force(c, np.delete(p, idle.component), limb)

    def _reaching(self, number: int, way: Sequence[_Force]) -> _Force:
        """The force on the first interface of a way that a limb hangs on or holds, or on the last one."""
        for force in way[:-1]:
            owner = self._owner[force.on]
            if number == owner or number in self._beyond[owner]:
                return force
        return way[-1]

    def _pushed(self, number: int, way: Sequence[_Force]) -> np.ndarray:
        """Accelerations of a limb by a force, given on interfaces."""
        force = self._reaching(number, way)
        return self._response_to(number, force) @ force.p

    def _response_to(self, number: int, force: _Force) -> np.ndarray:
        return self._held(number, force.on) if force.limb is None else self._across(number, force.on, force.limb)

    def _inward(
        self,
        home: int | None,
        inside: set[int],
        forces: np.ndarray,
        wrench: np.ndarray,
        on: dict[Interface, np.ndarray],
    ) -> tuple[dict[int, np.ndarray], np.ndarray]:
        """(G r of each limb, the force on the interface of home). on: forces on interfaces from limbs beyond."""
        alone: dict[int, np.ndarray] = {}
        p = np.zeros(0)
        for n in sorted(inside, reverse=True):
            base, end, r, beyond = self._base[n], self._end[n], forces[self.limbs[n]], None
            if end in on:
                r, beyond = r + self._motions(self.limbs[n], end) @ on[end], self._rigid(n, on[end])
            alone[n] = r if all(is_zero(x) for x in r) else self._alone(n, r)
            if not base:
                continue
            p = self._M[n].T @ r
            if n == home:
                p = p + (wrench if len(base) > SPACE else forces[list(base)])
            p = p if beyond is None else p + beyond
            on[base] = on[base] + p if base in on else p
        return alone, p

    def _carried(self, n: int, alone: np.ndarray, x: np.ndarray, still: bool) -> np.ndarray:
        """G r + M y of a limb; x: accelerations of the degrees of freedom that carry it; still: y is 0."""
        return alone if still else alone + self._moving(n, self.interface(self._base[n], x))

    def inverse(self) -> np.ndarray:
        """(n, n) the accelerations by unit forces on each degree of freedom, both triangles."""
        G, result = self._G, np.empty((self.n, self.n), dtype=object)
        units = np.full((self.n, self.n), 0.0, dtype=object)
        np.fill_diagonal(units, 1.0)
        for number, limb in enumerate(self.limbs):
            base, known = self._base[number], set[int]()
            for c in self._carriers(number):
                if len(c) <= SPACE:  # R are entries of the inverse
                    known |= {self.limb_of[k] for k in c}
                    result[np.ix_(limb, c)] = self._held(number, c)
                    result[np.ix_(c, limb)] = result[np.ix_(limb, c)].T
            others = [n for n in range(len(self.limbs)) if n not in {number, *known}
                      and self._source(number, n) == number]  # fmt: skip
            if number in known and not others:
                continue
            if self.rows is not None and self.rows.touches[number]:
                columns = [self.solve(Source(number, unit, np.zeros(SPACE))) for unit in units[limb]]
            else:
                columns = [np.full(self.n, 0.0, dtype=object) for _ in limb]
                self._prepare(number)
                for x, m in zip(columns, self._M[number], strict=True) if base else ():
                    way = self._way(number, self.piece(m)[0], True)
                    for n in others:
                        x[self.limbs[n]] = self._pushed(n, way)
                for x, g, m in zip(columns, G[number].T, self._M[number], strict=True):
                    x[limb] = g + self._pushed(number, self._way(number, self.piece(m)[0], True)) if base else g
                if (idle := self._idle(number)) is not None:  # of its first torque a limb transmits the reaction
                    for n in (number, *(n for n in others if self._reaching(n, way).on == base)):
                        columns[0][self.limbs[n]] -= self._held(n, base)[:, idle.component] * idle.reaction
            for at, (k, x) in enumerate(zip(limb, columns, strict=True)):
                ks = [*(() if number in known else limb[at:]), *(i for n in others for i in self.limbs[n])]
                result[ks, k] = result[k, ks] = x[ks]
        return result

    def _carriers(self, number: int) -> list[Interface]:
        """The interfaces that a limb is part of, and those that carry it; with constraints the nearest one of these."""
        found = [self._end[number]] if self._beyond[number] else []
        while base := self._base[number]:
            found.append(base)
            if self.rows is not None:
                break
            number = self._owner[base]
        return found

    def _source(self, a: int, b: int) -> int:
        """The one of two limbs whose forces give the accelerations of both: one that no constraint touches.

        Of two such the one that fewer degrees of freedom carry, for its forces have the shorter way to the other.
        """
        found = [n for n, other in ((a, b), (b, a)) if other not in self._beyond[n]]
        return min(found, key=lambda n: (self.rows is not None and self.rows.touches[n], len(self._base[n]), -n))


class _Rows:
    """Constraints J (m, n) x, Y = H⁻¹ J^T, and what follows. touches: whether they are of a limb, or beyond it."""

    def __init__(self, free: Responses, J: np.ndarray, Y: np.ndarray):
        self.J, self._Y = J, Y
        own = [any(not is_zero(x) for x in J[:, limb].flat) for limb in free.limbs]
        self.touches = [mine or any(own[n] for n in free.beyond(k)) for k, mine in enumerate(own)]
        m = len(J)
        A, self._reciprocals = np.empty((m, m), dtype=object), np.empty(m, dtype=object)
        for e in range(m):
            for d in range(e + 1):
                A[e, d] = J[e] @ Y[:, d]
        for d in range(m):
            self._reciprocals[d] = 1.0 / A[d, d]
            scaled = A[d:, d] * self._reciprocals[d]
            for e in range(d + 1, m):
                for c in range(d + 1, e + 1):
                    A[e, c] = A[e, c] - scaled[e - d] * A[c, d]
            A[d + 1 :, d] = scaled[1:]
        self._A, self.pivots = A, A.diagonal().tolist()
        self.Z = np.array([self.solved(free.piece(y)[0]) for y in Y], dtype=object)
        self._of = cache(lambda c: free.interface(c, self._Y).T)

    def solved(self, b: np.ndarray) -> np.ndarray:
        """A⁻¹ b."""
        x = b.copy()
        for e in range(1, len(x)):
            x[e] = x[e] - self._A[e, :e] @ x[:e]
        x = x * self._reciprocals
        for e in reversed(range(len(x) - 1)):
            x[e] = x[e] - self._A[e + 1 :, e] @ x[e + 1 :]
        return x

    def of(self, c: Interface) -> np.ndarray:
        """J R(c) (m, …) without constraints."""
        return self._of(c)


def _stacked(rows: Sequence[np.ndarray], width: int) -> np.ndarray:
    """(n, width) array of objects."""
    return np.array([*rows], dtype=object).reshape(len(rows), width)
