"""Directions that no equation sees, in words: sparse combinations of unknowns, with units."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from sysdyn.diagnosis.reduction import involved
from sysdyn.errors import few
from sysdyn.measurements.variables import Layout
from sysdyn.model.kinematics import forward_kinematics

FIRST = ("w", "fx", "qdd", "tau")  # Quantities that a user thinks of, which are shown first, with further ones.
SHOWN = 8  # Most terms that are shown of a direction (chosen).
# Relative difference of amounts shown as equal, and share of a direction below which a term is left out (chosen).
ROUNDED = 1e-6
# Least shares of a pivot in its column and in its row; the next pair is for the pivots left over (chosen).
PIVOT_SHARES = ((1e-3, 1e-3), (1e-7, 0.0))


@dataclass(frozen=True)
class Term:
    """An unknown and its change, in its unit."""

    name: str
    amount: float
    unit: str


@dataclass(frozen=True)
class Direction:
    """A combination of unknowns that no equation sees: any multiple of it may be added to a solution.

    terms: those of one quantity, of w, fx, q̈ or τ; the first by one unit, which no other direction has. others:
    (quantity, how many unknowns) that change with them. forces: the same as forces along a line, if they are such.
    """

    terms: tuple[Term, ...]
    others: tuple[tuple[str, int], ...] = ()
    forces: str = ""

    def __str__(self) -> str:
        text = self._together()
        if self.others:
            text += f"; with it change {', '.join(f'{count} of {x}' for x, count in self.others)}"
        return text + (f"; {self.forces}" if self.forces else "")

    def _together(self) -> str:
        first, *rest = self.terms
        if not rest:
            return f"{first.name} [{first.unit}]"
        if len(rest) == 1 and first.unit == rest[0].unit and abs(abs(rest[0].amount) - abs(first.amount)) < ROUNDED:
            sense = "the same" if rest[0].amount * first.amount > 0.0 else "opposite"
            return f"{first.name} [{first.unit}] and {rest[0].name} [{rest[0].unit}] in {sense} sense"
        return f"together {few([f'{t.amount:.3g} {t.unit} of {t.name}' for t in self.terms], SHOWN)}"


def directions(layout: Layout, basis: np.ndarray, columns: np.ndarray, q: np.ndarray) -> tuple[Direction, ...]:
    """The space that `basis` spans, as sparse combinations.

    basis (unknowns, k): orthonormal, of scaled unknowns; columns (unknowns,): factors from those to SI units; q (nq,):
    the state. Each direction has an unknown that no other has: a reduced row echelon form, with the order of quantities
    that leaves the fewest terms.
    """
    if basis.shape[1] == 0:
        return ()
    quantity = np.array([x for x, i in layout.blocks for _ in range(layout.size(x, i))])
    part = involved(basis)
    first = (*FIRST, *layout.further)
    places = {x: np.flatnonzero(part & (quantity == x)) for x in first}
    forms = [
        echelon(basis.T, np.concatenate([places[x] for x in order]))
        for order in permutations([x for x in first if len(places[x])])
    ]
    rows, pivots = min(forms, key=lambda form: _length(form[0], form[1], quantity))
    unit, result = units(layout), []
    for row, pivot in zip(rows, pivots, strict=True):
        change = row * columns / columns[pivot]
        chosen = _terms(row, pivot, quantity)
        terms = tuple(Term(layout.names[c], float(change[c]), unit[c]) for c in chosen)
        counts = {x: int(np.count_nonzero(row[quantity == x])) for x in (*first, "a", "f") if x != quantity[pivot]}
        forces = _as_forces(layout, change, q) if quantity[pivot] == "fx" and len(chosen) > 1 else ""
        result.append(Direction(terms, tuple((x, n) for x, n in counts.items() if n), forces))
    return tuple(result)


def _length(rows: np.ndarray, pivots: list[int], quantity: np.ndarray) -> int:
    """Number of terms of all directions together."""
    return sum(len(_terms(row, pivot, quantity)) for row, pivot in zip(rows, pivots, strict=True))


def echelon(rows: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Reduced row echelon form of `rows` (k, n) and its pivots, in the columns `order` as they come."""
    rows, size = rows.copy(), np.linalg.norm(rows, axis=0)
    pivots: list[int] = []
    for of_column, of_row in PIVOT_SHARES:
        for c in order.tolist():
            done = len(pivots)
            if done == len(rows):
                break
            r = done + int(np.argmax(np.abs(rows[done:, c])))
            if abs(rows[r, c]) < max(of_column * size[c], of_row * np.abs(rows[r, order]).max()):
                continue
            rows[[done, r]] = rows[[r, done]]
            rows[done] /= rows[done, c]
            others = np.flatnonzero((np.arange(len(rows)) != done) & (rows[:, c] != 0.0))
            rows[others] -= np.outer(rows[others, c], rows[done])
            pivots.append(c)
    rows[np.abs(rows) < ROUNDED * np.abs(rows).max(axis=1, keepdims=True)] = 0.0
    return rows[: len(pivots)], pivots


def _terms(row: np.ndarray, pivot: int, quantity: np.ndarray) -> list[int]:
    """Columns of the quantity of the pivot that have an entry, the pivot first."""
    columns = np.flatnonzero((quantity == quantity[pivot]) & (row != 0.0)).tolist()
    return [pivot, *(c for c in columns if c != pivot)]


def units(layout: Layout) -> tuple[str, ...]:
    """Unit of each unknown; of τ and q̈ by the kind of the degree of freedom, a turn or a slide."""
    return tuple(unit for block in layout.blocks for unit in layout.units_at(*block))


def _as_forces(layout: Layout, change: np.ndarray, q: np.ndarray) -> str:
    """External wrenches that are forces along a line, in words; "" if a moment is left."""
    model = layout.model
    wrenches = {i: change[list(layout.columns("fx", i))] for i in range(model.nb)}
    wrenches = {i: w for i, w in wrenches.items() if np.any(w)}
    for n, f in (np.split(w, 2) for w in wrenches.values()):
        if abs(n @ f) > ROUNDED * (np.linalg.norm(n) * np.linalg.norm(f)) or not np.any(f):
            return ""
    names = [model.body_names[i] for i in wrenches]
    first = next(iter(wrenches))
    n, f = np.split(wrenches[first], 2)
    line = f"along ({_numbers(f / np.linalg.norm(f))}) through ({_numbers(np.cross(f, n) / (f @ f))}) m of {names[0]}"
    if len(wrenches) == 1:
        return f"a force on {names[0]} {line}"
    if len(wrenches) == 2:
        X = forward_kinematics(model, q)
        one, other = (X[i].T @ w for i, w in wrenches.items())
        if np.abs(one + other).max() < ROUNDED * np.abs(one).max():
            return f"opposite forces on {names[0]} and {names[1]} {line}"
    return ""


def _numbers(x: np.ndarray) -> str:
    return ", ".join(f"{v:.3g}" for v in np.round(x, 6) + 0.0)
