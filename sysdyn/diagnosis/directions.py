"""Null directions (unobservable combinations of unknowns) in sparse form, with names and units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sysdyn.diagnosis.null_space import INDEPENDENT, involved
from sysdyn.diagnosis.structure import LEADING
from sysdyn.errors import few
from sysdyn.measurements.variables import Layout

SHOWN = 8  # terms of a direction that are printed
# Relative difference below which amounts are printed as equal, and relative size below which entries are omitted.
ROUNDED = 1e-6


@dataclass(frozen=True)
class Term:
    """The change of one unknown along a null direction."""

    name: str
    amount: float
    unit: str


@dataclass(frozen=True)
class NullDirection:
    """A combination of unknowns that no equation observes: any multiple may be added to a solution.

    terms: changes of the unknowns of one quantity (w, fx, q̈ or τ). The first is 1, and its unknown is part of no other
    direction. others: (name, number of changing unknowns) of each other quantity.
    """

    terms: tuple[Term, ...]
    others: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        text = self._terms()
        if self.others:
            text += f"; with it change {', '.join(f'{count} of {x}' for x, count in self.others)}"
        return text

    def _terms(self) -> str:
        names = " and ".join(f"{t.name} [{t.unit}]" for t in self.terms)
        if len(self.terms) == 1:
            return names
        first, second, *_ = self.terms
        if len(self.terms) == 2 and first.unit == second.unit and abs(second.amount**2 - first.amount**2) < ROUNDED:
            return f"{names} in {'the same' if second.amount * first.amount > 0.0 else 'opposite'} sense"
        return f"together {few([f'{t.amount:.3g} {t.unit} of {t.name}' for t in self.terms], SHOWN)}"


def null_directions(layout: Layout, basis: np.ndarray, scale: np.ndarray) -> tuple[NullDirection, ...]:
    """Sparse basis of the span of `basis`, by a reduced row echelon form.

    basis (unknowns, k): orthonormal, in scaled unknowns. scale (unknowns,): factors from scaled to SI units. The
    elimination order of the quantities is chosen greedily for few terms.
    """
    if basis.shape[1] == 0:
        return ()
    quantity = np.array([x for x, i in layout.blocks for _ in range(layout.size(x, i))])
    units = [unit for block in layout.blocks for unit in layout.units_at(*block)]
    leading, mask = (*LEADING, *layout.further), involved(basis)
    columns = {x: np.flatnonzero(mask & (quantity == x)) for x in leading}

    def form(order: list[str]) -> tuple[np.ndarray, list[int]]:
        return echelon(basis.T, np.concatenate([columns[x] for x in order]))

    def terms(row: np.ndarray, pivot: int) -> list[int]:
        """Columns with entries in this row and the quantity of the pivot, the pivot first."""
        entries = np.flatnonzero((quantity == quantity[pivot]) & (row != 0.0)).tolist()
        return [pivot, *(c for c in entries if c != pivot)]

    def length(order: list[str]) -> int:
        return sum(len(terms(row, pivot)) for row, pivot in zip(*form(order), strict=True))

    order, remaining = list[str](), [x for x in leading if len(columns[x])]
    while remaining:
        best = min(remaining, key=lambda x: length([*order, x, *(y for y in remaining if y != x)]))
        order.append(best)
        remaining.remove(best)
    directions = []
    for row, pivot in zip(*form(order), strict=True):
        change = row * scale / scale[pivot]
        counts = ((x, np.count_nonzero(row[quantity == x])) for x in (*leading, "a", "f") if x != quantity[pivot])
        directions.append(
            NullDirection(
                tuple(Term(layout.names[c], float(change[c]), units[c]) for c in terms(row, pivot)),
                tuple((x, int(n)) for x, n in counts if n),
            )
        )
    return tuple(directions)


def echelon(rows: np.ndarray, order: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """(reduced row echelon form of `rows` (k, n), pivot columns). order: columns in the order of the pivot search."""
    rows, size = rows.copy(), np.linalg.norm(rows, axis=0)
    pivots: list[int] = []
    for least in INDEPENDENT:
        for c in order.tolist():
            k = len(pivots)
            if k == len(rows):
                break
            r = k + int(np.argmax(np.abs(rows[k:, c])))
            if abs(rows[r, c]) < least * max(size[c], np.abs(rows[r, order]).max()):
                continue
            rows[[k, r]] = rows[[r, k]]
            rows[k] /= rows[k, c]
            others = np.flatnonzero((np.arange(len(rows)) != k) & (rows[:, c] != 0.0))
            rows[others] -= np.outer(rows[others, c], rows[k])
            pivots.append(c)
    rows[np.abs(rows) < ROUNDED * np.abs(rows).max(axis=1, keepdims=True)] = 0.0
    return rows[: len(pivots)], pivots
