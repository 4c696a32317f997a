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

# Accelerations of a body, which are an interface if more degrees of freedom carry a limb.
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
    """

    def __init__(self, paths: Sequence[Interface], S: np.ndarray, IS: np.ndarray, H: np.ndarray, pieces: bool):
        self.piece: Callable = piece if pieces else lambda *arrays: arrays
        self._S, self._IS, self._H, self.n = S, IS, H, len(paths)
        self.limbs: list[list[int]] = []
        for i, path in enumerate(paths):
            if path and path[0] == i - 1 and sum(other[:1] == path[:1] for other in paths) == 1:
                self.limbs[-1].append(i)
            else:
                self.limbs.append([i])
        self.limb_of = {k: number for number, limb in enumerate(self.limbs) for k in limb}
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
    def G(self) -> list[np.ndarray]:
        """G = W D⁻¹ W^T of each limb, W = L⁻¹."""
        found = []
        for L, reciprocals in zip(self._L, self._reciprocals, strict=True):
            n = len(L)
            W, G = np.full((n, n), 0.0, dtype=object), np.full((n, n), 0.0, dtype=object)
            for k in range(n):
                W[k, k] = 1.0
                for j in reversed(range(k)):
                    W[k, j] = -(L[k, j] + L[k, j + 1 : k] @ W[j + 1 : k, j] if j + 1 < k else L[k, j])
            scaled = W * reciprocals
            for i in range(n):
                for k in range(i + 1):
                    G[i, k] = G[k, i] = scaled[i, : k + 1] @ W[k, : k + 1]
            found.append(G)
        return found

    def _alone(self, number: int, r: np.ndarray) -> np.ndarray:
        """G r."""
        if "G" in self.__dict__:
            return self.G[number] @ r
        L, x = self._L[number], r.copy()
        for k in reversed(range(len(x))):
            x[:k] = x[:k] - L[k, :k] * x[k]
        return self._outward(L, x * self._reciprocals[number])

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
            self._R[number, c] = self._response(number, c, self._free)
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
            self._R_held[number, c] = found
        return self._R_held[number, c]

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
        x, nothing = fixed.copy(), np.full(self.n, 0.0, dtype=object)
        for n, limb in enumerate(self.limbs):
            pulled = left is not None and self._base[n] and n not in inside | apart and not rows.touches[n]
            if n in inside - tops - apart or pulled:
                x[limb] = self._carried(n, alone.get(n, nothing[limb]), x, False)
                continue
            if n in tops - apart:
                x[limb] = alone[n]
            if base:
                x[limb] = x[limb] + self._held(n, base) @ p
            if rows is not None and left is not None:
                x[limb] = x[limb] + rows.Z[limb] @ left
        if rows is None:
            return x, np.zeros(0)
        left = np.full(len(rows.J), 0.0, dtype=object) if left is None else left
        return x, rows.solved(left - rows.of(base) @ p if base else left)

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
        """G r + M y of a limb, x being the accelerations of those that carry it; still: y is 0."""
        return alone if still else alone + self._M[n] @ self.interface(self._base[n], x)

    def inverse(self) -> np.ndarray:
        """(n, n) the accelerations by unit forces on each degree of freedom, both triangles."""
        G, result = self.G, np.full((self.n, self.n), 0.0, dtype=object)
        units = np.full((self.n, self.n), 0.0, dtype=object)
        np.fill_diagonal(units, 1.0)
        for number, limb in enumerate(self.limbs):
            base, known = self._base[number], set[int]()
            if base and len(base) <= SPACE:
                known = {self.limb_of[k] for k in base}
                result[np.ix_(limb, base)] = self._held(number, base)
                result[np.ix_(base, limb)] = result[np.ix_(limb, base)].T
            others = [n for n in range(len(self.limbs)) if n not in {number, *known}
                      and self._source(number, n) == number]  # fmt: skip
            if self.rows is not None and self.rows.touches[number]:
                columns = [self.solve(Source(number, unit, np.zeros(SPACE))) for unit in units[limb]]
            else:
                columns = [np.full(self.n, 0.0, dtype=object) for _ in limb]
                for x, m in zip(columns, self._M[number], strict=True) if base else ():
                    (m,) = self.piece(m)
                    for n in others:
                        x[self.limbs[n]] = self._held(n, base) @ m
                for x, g, m in zip(columns, G[number].T, self._M[number], strict=True):
                    x[limb] = g + self._held(number, base) @ self.piece(m)[0] if base else g
            for at, (k, x) in enumerate(zip(limb, columns, strict=True)):
                ks = [*limb[at:], *(i for n in others for i in self.limbs[n])]
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
