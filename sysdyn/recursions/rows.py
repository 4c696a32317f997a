"""Rows of constraints carried to the base of a tree, as forces are.

A degree of freedom with axis s, U = I s, D = s^T U takes κ_e = C_e s out of each row C_e and leaves its share of Ω:

    C_e ← C_e − κ_e U^T / D,    Ω ← Ω + κ κ^T / D

Sathya and Carpentier, Constrained Articulated Body Dynamics Algorithms (2024), PV-OSIM. A row that is surely moved is
met at once, as in their early elimination, but with a divisor that is the same at every state: q̈ is what meets the row,
w of the row what the equation of the degree of freedom then says. With K = C_e / κ_e, t its target by κ_e,

    q̈ = t − K a,    κ_e w = U a + D q̈ − u,    I ← P^T I P, P = 1 − s K,    p ← p + K u + (U − D K) t

and no row of Ω is left of it. Rows that a turn of the joint only mixes stay as they are: their targets turn instead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sysdyn.model.se3 import translation
from sysdyn.program.graph import Expr, is_zero
from sysdyn.recursions.links import Link, Scalar, Tree, Turn, Vector, dot, force_before, plus, scaled

# Least κ of a row that is met at once, as a share of its greatest coefficient (chosen: less would lose digits).
SURE = 0.1


@dataclass(frozen=True)
class Rows:
    """Rows of constraints Σ C_i Δa_i + Σ c_k Δq̈_k = κ, Δ being what is missing to a known motion.

    bodies: {body: {row: C_i (6) in the coordinates of its link}}. freedoms: {degree of freedom k: {row: c_k}}.
    targets: κ of each row.
    """

    bodies: dict[int, dict[int, Vector]] = field(default_factory=dict)
    freedoms: dict[int, dict[int, Scalar]] = field(default_factory=dict)
    targets: list[Scalar] = field(default_factory=list)


NO_ROWS = Rows()  # Of no constraints.


class Met(NamedTuple):
    """A row that is met by a degree of freedom: K, t, U, D and u as above, κ, and {f: κ_f / κ} of the other rows."""

    row: int
    K: Vector
    t: Scalar
    U: Vector
    D: Scalar
    u: Scalar
    effect: float
    others: dict[int, Scalar]

    @property
    def V(self) -> Vector:
        """U − D K."""
        return [x - self.D * y for x, y in zip(self.U, self.K, strict=True)]

    def wrench(self, a: Vector, missing: Scalar, w: Vector) -> Scalar:
        """w of the row, with w of the others: a as above, missing: to q̈."""
        load = dot(self.U, a) + self.D * missing - self.u
        return load * (1.0 / self.effect) - dot([*self.others.values()], [w[f] for f in self.others])


class Carried:
    """Rows on their way to the base, at the links of a tree.

    meeting: rows may be met at once. effects: κ of each row at a degree of freedom. omega: Ω by (row, column), row ≤
    column. left: the targets less the rows with w = 0. met: by degree of freedom.
    """

    def __init__(self, tree: Tree, rows: Rows, meeting: bool = False):
        self._tree, self._own = tree, rows.freedoms
        self._at = [dict(rows.bodies.get(i, {})) for i in range(tree.model.nb)]
        self._turned: list[list[tuple[int, int, Turn]]] = [[] for _ in self._at]
        self.effects: dict[int, dict[int, Scalar]] = {}
        self.omega: dict[tuple[int, int], Scalar] = {}
        self.left = list(rows.targets)
        self.met: dict[int, Met] = {}
        # rows of one place alone, without a share of Ω so far
        places = Counter(e for own in rows.bodies.values() for e in own)
        places.update(e for coefficients in rows.freedoms.values() for e in coefficients)
        self._alone = {e for e, times in places.items() if times == 1 and meeting}
        # an acceleration of the origin counts as much as an angular one times this length
        self._reach = max((float(np.abs(translation(X)).max()) for X in tree.model.X_tree), default=0.0)

    def effect(self, i: int, k: int, s: Vector) -> dict[int, Scalar]:
        """κ of each row: the part that an acceleration of 1 of degree of freedom k of body i adds to it, along s."""
        own, rows = self._own.get(k, {}), self._at[i]
        found = {e: own.get(e, 0.0) + dot(s, row) for e, row in rows.items()} | {
            e: x for e, x in own.items() if e not in rows
        }
        self.effects[k] = {e: x for e, x in found.items() if not is_zero(x)}
        return self.effects[k]

    def meet(self, i: int, k: int, U: Vector, D: Scalar, u: Scalar) -> Met | None:
        """Meet a row by degree of freedom k, the only one of body i; None if none is sure to be moved by it."""
        effect, rows = self.effects[k], self._at[i]
        sure = {
            e: abs(x) for e, x in effect.items()
            if e in self._alone and isinstance(x, float) and abs(x) >= SURE * self._size(rows.get(e, [0.0] * 6))
        }  # fmt: skip
        if not sure:
            return None
        e = max(sure, key=sure.__getitem__)
        own, row = float(effect[e]), rows.pop(e, [0.0] * 6)
        others = {f: x * (1.0 / own) for f, x in effect.items() if f != e}
        for f, x in others.items():
            rows[f] = [c - x * z for c, z in zip(rows.get(f, [0.0] * 6), row, strict=True)]
            self.left[f] = self.left[f] - x * self.left[e]
        self.effects[k] = {}
        self.met[k] = Met(e, scaled(1.0 / own, row), self.left[e] * (1.0 / own), U, D, u, own, others)
        return self.met[k]

    def share(self, i: int, k: int, W: Vector, u: Scalar, inverse: Scalar) -> None:
        """Take what degree of freedom k does out of the rows of body i, by W = U / D and 1 / D."""
        effect, rows = self.effects[k], self._at[i]
        self._alone -= set(effect)
        for e, x in effect.items():
            share = inverse * x
            self.left[e] = self.left[e] - share * u
            for r, y in effect.items():
                if r <= e:
                    self.omega[r, e] = self.omega.get((r, e), 0.0) + share * y
            row = rows.get(e, [0.0] * 6)
            rows[e] = [c - x * z for c, z in zip(row, W, strict=True)]

    def hand_over(self, i: int) -> None:
        """Carry the rows of body i to its parent."""
        parent = self._tree.model.parent[i]
        if parent < 0 or not self._at[i]:
            return
        before = self._at[parent]
        for e, row in self._across(i, self._tree.links[i]).items():
            before[e] = plus(before[e], row) if e in before else row

    def _across(self, i: int, link: Link) -> dict[int, Vector]:
        """The rows of body i in the frame of its parent."""
        rows = self._at[i]
        for step in reversed(link.steps):
            mixed = self._mixed(rows, step) if isinstance(step, Turn) else []
            for e, f in mixed:
                self.left[e], self.left[f] = _turn(step, self.left[e], self.left[f])
                self._turned[i].append((e, f, step))
            still = {e for pair in mixed for e in pair}
            rows = {e: row if e in still else force_before(step, row) for e, row in rows.items()}
        return rows

    def _mixed(self, rows: dict[int, Vector], turn: Turn) -> list[tuple[int, int]]:
        """Pairs of rows that a turn mixes, the second being the first turned by a right angle."""
        found: list[tuple[int, int]] = []
        if _is_constant([turn.c, turn.s]):
            return found
        open_rows = {e: row for e, row in rows.items() if e in self._alone and _is_constant(row)}
        quarter = Turn(turn.axis, 0.0, 1.0)
        for e, row in open_rows.items():
            if is_zero(row[turn.axis]) and is_zero(row[3 + turn.axis]) and all(e not in pair for pair in found):
                right = quarter.back(row[:3]) + quarter.back(row[3:])
                f = next((f for f, x in open_rows.items() if f != e and x == right), None)
                if f is not None and all(f not in pair for pair in found):
                    found.append((e, f))
        return found

    def turn_back(self, i: int, w: Vector) -> None:
        """Give w of the rows that turned on the way from body i to its parent as it is at body i."""
        for e, f, turn in reversed(self._turned[i]):
            w[e], w[f] = _turn(Turn(turn.axis, turn.c, -turn.s), w[e], w[f])

    def _size(self, row: Sequence[Scalar]) -> float:
        """The greatest coefficient of a row; ∞ if one depends on the state."""
        if not _is_constant(row):
            return math.inf
        sizes = [abs(float(x)) for x in row]
        return max(*sizes[:3], *(self._reach * x for x in sizes[3:]))


def _turn(turn: Turn, x: Scalar, y: Scalar) -> tuple[Scalar, Scalar]:
    return turn.c * x - turn.s * y, turn.s * x + turn.c * y


def _is_constant(row: Sequence[Scalar]) -> bool:
    return not any(type(x) is Expr for x in row)
