"""Accelerations of a tree by forces with many zeros, without and with constraints.

Degrees of freedom are in limbs, chains each of which carries the next one. All that a limb hangs on acts on it through
an interface, the accelerations y of the degrees of freedom that carry it, or the six of the body if these are more.
With the inertia H of a limb, what it carries included, and its coupling F (n, m) to the interface, forces r and
accelerations y give

    x = G r + M y        G = H⁻¹, M = −G F        and the force p + M^T r on the interface, p being there from the first

so that forces on a limb and beyond move all other limbs by m numbers. R(c) are the responses of accelerations to unit
forces on interface c. Constraints J x = κ hold by forces J^T μ: with Y = H⁻¹ J^T, A = J Y and Z = Y A⁻¹, R becomes
R − Z J R, and x becomes x + Z (κ − J x).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from sysdyn.program.expr import is_zero
from sysdyn.reference.generic import piece

# Number of components of a body's acceleration: the interface of a limb that more degrees of freedom carry.
SPACE = 6

# Degrees of freedom that carry a limb, from the nearest one to the base.
Interface = tuple[int, ...]


class Source(NamedTuple):
    """Forces on degrees of freedom on the way to the base and beyond it.

    home: the limb of the last degree of freedom of that way, None if there is none. forces (n): on each. wrench (6): on
    the bodies of the way, the forces on it being components of this one.
    """

    home: int | None
    forces: np.ndarray
    wrench: np.ndarray


class Responses:
    """The factors of H of degrees of freedom that are numbered from 0.

    paths: those that carry each one, from the nearest to the base. S, IS (n, 6): each as a motion, and the momentum of
    all bodies beyond it in that motion, in the coordinates of its tree. H (n, n): their inertia. pieces: as for Bodies.
    follow: accelerations of limbs without forces follow from those that carry them where these are no more than the
    numbers of the force, else from it. followed: whether that has been so anywhere.
    """

    def __init__(
        self,
        paths: Sequence[Interface],
        S: np.ndarray,
        IS: np.ndarray,
        H: np.ndarray,
        pieces: bool,
        follow: bool = True,
    ):
        self.follow, self.followed = follow, False
        self.piece: Callable = piece if pieces else lambda *arrays: arrays
        self._S, self._IS, self._H, self.n = S, IS, H, len(paths)
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
        self.pivots: list = [0.0] * self.n
        self._L: list[np.ndarray] = [H] * len(self.limbs)
        self._reciprocals: list[np.ndarray] = [H] * len(self.limbs)
        self._M: list[np.ndarray] = [H] * len(self.limbs)
        self._R: dict[tuple[int, Interface], np.ndarray] = {}
        self._R_held: dict[tuple[int, Interface], np.ndarray] = {}
        self.rows: _Rows | None = None
        missing: dict[Interface, np.ndarray] = {}
        for number in reversed(range(len(self.limbs))):
            self._factor(number, missing)

    # ---- factors -------------------------------------------------------------------------------------------------

    def _factor(self, number: int, missing: dict[Interface, np.ndarray]) -> None:
        """L, D and M of a limb. missing: inertia of interfaces that limbs beyond do not resist with."""
        limb, base, end = self.limbs[number], self._base[number], self._end[number]
        n, less = len(limb), missing.get(end)
        L, F = self._H[np.ix_(limb, limb)], self._H[np.ix_(limb, base)]
        if len(base) > SPACE:
            F = self._IS[limb]
        if less is not None:
            own, on = self._motions(limb, end), np.eye(SPACE) if len(base) > SPACE else self._motions(base, end)
            turned = own @ less
            L, F, less = L + turned @ own.T, F + turned @ on.T, on @ less @ on.T
        reciprocals = np.full(n, 0.0, dtype=object)
        for k in reversed(range(n)):
            self.pivots[limb[k]], reciprocals[k] = L[k, k], 1.0 / L[k, k]
            scaled = L[k, :k] * reciprocals[k]
            for i in range(k):
                L[i, : i + 1] = L[i, : i + 1] - scaled[i] * L[k, : i + 1]
            L[k, :k] = scaled
        self._L[number], self._reciprocals[number], self._M[number] = L, reciprocals, F.copy()
        if not base:
            return
        halves = []
        for a, column in enumerate(F.T):
            (u,) = self.piece(column.copy())
            for k in reversed(range(n)):
                u[:k] = u[:k] - L[k, :k] * u[k]
            scaled = u * reciprocals
            halves.append((u, scaled))
            self._M[number][:, a] = -self._outward(L, scaled)
        E = np.full((len(halves), len(halves)), 0.0, dtype=object)
        for a, (u, _) in enumerate(halves):
            (u,) = self.piece(u)
            for b in range(a + 1):
                E[a, b] = E[b, a] = -(halves[b][1] @ u)
        E = E if less is None else E + less
        missing[base] = missing[base] + E if base in missing else E

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
        for W, reciprocals in zip(self._W, self._reciprocals, strict=True):
            G, scaled = np.full(W.shape, 0.0, dtype=object), W * reciprocals
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
            return self._S[list(ks)]
        return np.array([[float(k == a) for a in end] for k in ks], dtype=object).reshape(len(ks), len(end))

    def _rigid(self, number: int, forces: np.ndarray) -> np.ndarray:
        """Forces (m, …) on the interface of a limb by those on the interface at its end, the limb being rigid."""
        base, end = self._base[number], self._end[number]
        return forces if len(base) > SPACE else self._motions(base, end) @ forces

    def beyond(self, number: int) -> set[int]:
        """The limbs that a limb carries."""
        return self._beyond[number]

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

    def _response(self, number: int, c: Interface, of: Callable[[int, Interface], np.ndarray]) -> np.ndarray:
        """R(c) (n, m) of a limb by R of limbs and interfaces that are nearer to the base."""
        owner = self._owner[c]
        base, S = self._base[owner], self._motions(self.limbs[owner], c)
        m = S.shape[1]
        if number in self._beyond[owner]:
            x, at = np.full((self.n, m), 0.0, dtype=object), self._base[number]
            for n in {self.limb_of[k] for k in at}:
                x[self.limbs[n]] = of(n, c)
            y = self.interface(at, x)
            return _stacked([self.piece(row)[0] @ y for row in self._M[number]], m)
        found = np.full((len(self.limbs[number]), m), 0.0, dtype=object)
        if base:
            T = self._rigid(owner, np.eye(m)) + self._M[owner].T @ S
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

    def solve(self, source: Source, kappa: np.ndarray | None = None) -> np.ndarray:
        """x (n) of the forces, with J x = κ if there are constraints, or 0 if κ is None."""
        return self.solution(source, kappa)[0]

    def solution(self, source: Source, kappa: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(x, the forces μ of constraints)."""
        given = [] if kappa is None else [kappa]
        forces, wrench, *given = self.piece(source.forces, source.wrench, *given)
        rows, home, left = self.rows, source.home, given[0] if given else None
        inside = {*range(len(self.limbs))} if home is None else {home, *self._beyond[home]}
        base = () if home is None else self._base[home]
        alone, p = self._inward(home, inside, forces, wrench)
        tops = {n for n in inside if n == home or not self._base[n]}
        fixed = np.full(self.n, 0.0, dtype=object)  # while the interface of home does not move
        apart = {n for n in inside if rows is not None and rows.touches[n]}
        for n in sorted(apart):
            fixed[self.limbs[n]] = self._carried(n, alone[n], fixed, n in tops)
        if rows is not None and apart:
            left = (0.0 if left is None else left) - rows.J @ fixed
        carriers = {self.limb_of[k] for k in base}
        x, nothing, way = fixed.copy(), np.full(self.n, 0.0, dtype=object), self._way(base, p)
        for n, limb in enumerate(self.limbs):
            unforced = self._base[n] and n not in carriers and not (rows is not None and rows.touches[n])
            needed = n in inside - tops or left is not None and n not in inside
            either = bool(unforced) and not needed and len(self._base[n]) <= len(p)
            self.followed |= either
            if unforced and needed or either and self.follow:
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

    def _way(self, base: Interface, p: np.ndarray) -> list[tuple[Interface, np.ndarray]]:
        """Interfaces with the force on each that is equal, for the limbs beyond it, to force p on the first one.

        Of those nearer to the base the ones by which responses are enough cheaper, up to a limb with constraints.
        """
        way = [(base, p)]
        while base:
            owner = self._owner[base]
            if self.rows is not None and self.rows.touches[owner]:
                break
            base, m = self._base[owner], len(p)
            others = sum(len(limb) for n, limb in enumerate(self.limbs) if n != owner and n not in self._beyond[owner])
            lesser = min(len(base), SPACE)
            if not base or (m - lesser) * others <= len(self.limbs[owner]) * (m + lesser):
                break
            p = self._rigid(owner, p) + self._M[owner].T @ (self._motions(self.limbs[owner], way[-1][0]) @ p)
            way.append((base, p))
        return way

    def _pushed(self, number: int, way: Sequence[tuple[Interface, np.ndarray]]) -> np.ndarray:
        """Accelerations of a limb by a force, given on interfaces: by the first one that it hangs on or holds."""
        for c, p in way[:-1]:
            owner = self._owner[c]
            if number == owner or number in self._beyond[owner]:
                return self._held(number, c) @ p
        c, p = way[-1]
        return self._held(number, c) @ p

    def _inward(
        self, home: int | None, inside: set[int], forces: np.ndarray, wrench: np.ndarray
    ) -> tuple[dict[int, np.ndarray], np.ndarray]:
        """(G r of each limb, the force on the interface of home)."""
        on: dict[Interface, np.ndarray] = {}
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
        return alone if still else alone + self._M[n] @ self.interface(self._base[n], x)

    def inverse(self) -> np.ndarray:
        """(n, n) the accelerations by unit forces on each degree of freedom, both triangles."""
        G, result = self._G, np.full((self.n, self.n), 0.0, dtype=object)
        units = np.full((self.n, self.n), 0.0, dtype=object)
        np.fill_diagonal(units, 1.0)
        for number, limb in enumerate(self.limbs):
            base, end, known = self._base[number], self._end[number], set[int]()
            for c, own in ((base, False), (end, True)):
                if c and len(c) <= SPACE and (not own or self._beyond[number]):  # R are entries of the inverse
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
                for x, m in zip(columns, self._M[number], strict=True) if base else ():
                    way = self._way(base, self.piece(m)[0])
                    for n in others:
                        x[self.limbs[n]] = self._pushed(n, way)
                for x, g, m in zip(columns, G[number].T, self._M[number], strict=True):
                    x[limb] = g + self._held(number, base) @ self.piece(m)[0] if base else g
            for at, (k, x) in enumerate(zip(limb, columns, strict=True)):
                ks = [*(() if number in known else limb[at:]), *(i for n in others for i in self.limbs[n])]
                result[ks, k] = result[k, ks] = x[ks]
        return result

    def _source(self, a: int, b: int) -> int:
        """The one of two limbs whose forces give the accelerations of both: one that no constraint touches."""
        found = [n for n, other in ((a, b), (b, a)) if other not in self._beyond[n]]
        return min(found, key=lambda n: (self.rows is not None and self.rows.touches[n], -n))


class _Rows:
    """Constraints J (m, n) x, Y = H⁻¹ J^T, and what follows. touches: whether they are of a limb, or beyond it."""

    def __init__(self, free: Responses, J: np.ndarray, Y: np.ndarray):
        self.J, self._Y = J, Y
        own = [any(not is_zero(x) for x in J[:, limb].flat) for limb in free.limbs]
        self.touches = [mine or any(own[n] for n in free.beyond(k)) for k, mine in enumerate(own)]
        m = len(J)
        A, self.pivots, self._reciprocals = np.full((m, m), 0.0, dtype=object), [0.0] * m, [0.0] * m
        for e in range(m):
            for d in range(e + 1):
                A[e, d] = J[e] @ Y[:, d]
        for d in range(m):
            self.pivots[d], self._reciprocals[d] = A[d, d], 1.0 / A[d, d]
            scaled = A[:, d] * self._reciprocals[d]
            for e in range(d + 1, m):
                for c in range(d + 1, e + 1):
                    A[e, c] = A[e, c] - scaled[e] * A[c, d]
            A[d + 1 :, d] = scaled[d + 1 :]
        self._A = A
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
