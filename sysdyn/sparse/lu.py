"""Sparse LU with fixed row and column permutations, over any scalar (float, Expr, a float that counts).

Right-looking: pivot k is row `row_perm[k]`, column `col_perm[k]`; the right-hand side is carried along as one more
column, so that forward substitution and elimination are one pass, and back substitution follows. If no entry of a
column keeps away from zero, several rows are rotated first, so that the pivot is the norm of their entries. The norm is
nonzero unless all of them vanish; if they are all active entries of the column, it is nonzero wherever A is regular.
To keep the other rows of A out of a pivot, the columns of one row are rotated instead; the pivot is their norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from sysdyn.errors import SingularState
from sysdyn.program.graph import Scalar, is_constant, is_zero
from sysdyn.sparse.active_submatrix import ActiveSubmatrix
from sysdyn.sparse.rotations import OrthogonalTransform

Row = dict[int, Scalar]  # {column: entry} of a row, or {row: entry} of a column.
# {k: rotations before pivot k (column, rows), after which only the first of the rows has an entry in the column}.
Early = Mapping[int, Sequence[tuple[int, Sequence[int]]]]
# {k: columns that are rotated with that of pivot k, so that its row has no entry in them afterwards}.
Across = Mapping[int, Sequence[int]]


class Pivots(NamedTuple):
    """An elimination order: pivot k is in row rows[k] and column columns[k].

    joined: {k: rows that are rotated with that of pivot k first}; without these an order is two permutations.
    """

    rows: Sequence[int]
    columns: Sequence[int]
    joined: Mapping[int, Sequence[int]] = {}


def is_unit(x) -> bool:
    """True if x is the constant 1 or −1."""
    return type(x) is float and (x == 1.0 or x == -1.0)


@dataclass
class Factors:
    """Result of elimination: the solution of A x + b = 0, and the entries of L and U to look at.

    turns     {k: the rotations of rows before pivot k, one after the other}
    across    {k: the rotation T of columns before pivot k}; the unknowns of later pivots are those of T x
    left      {row: right-hand side} of the rows without a pivot: elimination leaves them as 0 = right-hand side
    upper[k]  row k of U without its pivot, {column: entry}; scaled by the pivot if scaled[k]
    lower[k]  column k of L without its pivot, {row: entry}; scaled by the pivot if not scaled[k]
    """

    row_perm: Sequence[int]
    col_perm: Sequence[int]
    pivots: list = field(default_factory=list)
    upper: list[Row] = field(default_factory=list)
    lower: list[Row] = field(default_factory=list)
    scaled: list[bool] = field(default_factory=list)
    turns: dict[int, list[OrthogonalTransform]] = field(default_factory=dict)
    across: dict[int, OrthogonalTransform] = field(default_factory=dict)
    left: Row = field(default_factory=dict)
    fill: list[tuple[int, int]] = field(default_factory=list)
    solution: list = field(default_factory=list)

    @property
    def fill_in(self) -> int:
        """Entries of L and U that are structural zeros of A."""
        return len(self.fill)

    @property
    def triangular(self) -> bool:
        """True if P A Q was triangular already: one of the factors is diagonal."""
        return not self.turns and (not any(self.upper) or not any(self.lower))


def eliminate(
    rows: Sequence[Row],
    b: Sequence,
    row_perm: Sequence[int],
    col_perm: Sequence[int],
    joined: Mapping[int, Sequence[int]] | None = None,
    *,
    begin: Callable[[int], None] | None = None,
    early: Early | None = None,
    across: Across | None = None,
) -> Factors:
    """Solve A x + b = 0 by LU in the given order (see `Pivots`) and no other pivoting.

    rows (m)        A as one dict {column: entry} a row; not changed
    b (m)           right-hand side entries
    row_perm (n)    row of the k-th pivot; col_perm (n) its column
    joined          {k: rows that are rotated with that of pivot k, if they have an entry in its column}
    begin(k)        called before pivot k is eliminated, and before its unknown is substituted back
    early           {k: rotations of rows in another column, made before those of pivot k; all rows stay}
    across          {k: columns that are rotated with that of pivot k, if its row has entries in them}

    Of m > n rows those without a pivot end up in `Factors.left`. If that is zero, x solves all equations. If not, x is
    the least-squares solution, provided that all eliminations were rotations.

    Raises SingularState (with the position k of the pivot as `equation`) if a pivot is structurally or exactly 0.
    Either the row or the column of a pivot is divided by it, whichever has fewer entries (L D U in effect); several
    entries by one reciprocal.
    """
    n, joined, early, across = len(col_perm), joined or {}, early or {}, across or {}
    augmented = ({**row, n: rest} if not is_zero(rest) else row for row, rest in zip(rows, b, strict=True))
    left, out = ActiveSubmatrix(augmented, n + 1), Factors(row_perm, col_perm)  # b is column n
    ends: list[tuple[Scalar, Callable]] = []  # Back substitution of pivot k begins with b and divides at the end.
    for k, (pr, pc) in enumerate(zip(row_perm, col_perm, strict=True)):
        if begin:
            begin(k)
        together = [(column, rotated, True) for column, rotated in early.get(k, ())]
        if k in joined:
            together.append((pc, (pr, *joined[k]), False))
        for column, rotated, always in together:
            found = left.rotate_rows(rotated, column, always)
            if found:
                out.turns.setdefault(k, []).append(found)
        if k in across and (found := left.rotate_columns(pr, (pc, *across[k]))):
            out.across[k] = found
        ends.append(_pivot(left, out, pr, pc))
    out.fill = [(i, j) for i, j in _places(out) if j not in rows[i]]
    out.left = {i: left.rows[i].get(n, 0.0) for i in sorted(set(range(len(rows))).difference(row_perm))}
    out.solution = _substituted(out, ends, begin)
    return out


def _pivot(left: ActiveSubmatrix, out: Factors, pr: int, pc: int) -> tuple[Scalar, Callable]:
    """Eliminate column pc by row pr: row i −= (A_i,pc / pivot) · row pr for each other row i that is left.

    Appends to `out` the pivot, its row of U and its column of L; returns (b of the row, the division still to be done).
    """
    pivot, row, column = left.pivot(pr, pc)
    if is_zero(pivot):
        k = len(out.pivots)
        raise SingularState(f"pivot {k} (row {pr}, column {pc}) is zero", equation=str(k))
    b, column = len(left.columns) - 1, dict(sorted(column.items()))
    rest = row.pop(b, 0.0)
    has_rhs = not is_zero(rest)
    scale_row = len(row) < len(column)
    divide = divider(pivot, min(len(row), len(column)) + has_rhs)
    if scale_row:
        row, rest = {j: divide(u) for j, u in row.items()}, divide(rest)
    else:
        column = {i: divide(l) for i, l in column.items()}
    left.rank_one_update(column, row | {b: rest} if has_rhs else row)
    out.pivots.append(pivot)
    out.scaled.append(scale_row)
    out.upper.append(row)
    out.lower.append(column)
    return rest, _same if scale_row else divide


def _substituted(factors: Factors, ends: Sequence[tuple[Scalar, Callable]], begin: Callable | None = None) -> list:
    """x by back substitution; ends: b of each pivot's row, and the division at the end of its sum."""
    x: list = [0.0] * len(ends)
    for k in reversed(range(len(ends))):
        if begin:
            begin(k)
        total, divide = ends[k]
        for j, u in factors.upper[k].items():
            total = total + u * x[j]
        x[factors.col_perm[k]] = -divide(total)
        if k in factors.across:
            _turned(x, factors.across[k], back=True)
    return x


def _turned(x: list, turn: OrthogonalTransform, back: bool = False) -> None:
    """x ← T x, or back by T^T."""
    y = {j: x[j] for j in turn.rows}
    (turn.apply_transposed if back else turn.apply)(y)
    for j in turn.rows:
        x[j] = y.get(j, 0.0)


def _places(factors: Factors) -> Iterator[tuple[int, int]]:
    """(row, column) of the entries of L and U."""
    for i, j, row, column in zip(factors.row_perm, factors.col_perm, factors.upper, factors.lower, strict=True):
        yield i, j
        yield from ((i, c) for c in row)
        yield from ((k, j) for k in column)


def solve(factors: Factors, b: Sequence) -> list:
    """The solution of A x + b = 0 for another b, with the factors of A."""
    return solve_and_left(factors, dict(enumerate(b)))[0]


def solve_and_left(factors: Factors, b: Mapping[int, Scalar]) -> tuple[list, Row]:
    """(the solution of A x + b = 0, `Factors.left`) for another b {row: entry}, with the factors of A."""
    r = dict(b)
    ends: list[tuple[Scalar, Callable]] = []
    for k, (pr, pivot, scaled) in enumerate(zip(factors.row_perm, factors.pivots, factors.scaled, strict=True)):
        for rotated in factors.turns.get(k, ()):
            rotated.apply(r)
        if scaled:
            r[pr] = divider(pivot, 2)(r.get(pr, 0.0))
        for i, l in factors.lower[k].items():
            r[i] = r.get(i, 0.0) - l * r.get(pr, 0.0)
        ends.append((r.get(pr, 0.0), _same if scaled else partial(_divided, pivot)))
    return _substituted(factors, ends), {i: r.get(i, 0.0) for i in factors.left}


def solve_transposed(factors: Factors, c: Sequence) -> list:
    """The solution of A^T y = c, with the factors of A; zero for rows without a pivot."""
    r = list(c)
    steps = list(zip(factors.row_perm, factors.col_perm, factors.pivots, factors.scaled, strict=True))
    for k, (_, pc, pivot, scaled) in enumerate(steps):
        if k in factors.across:
            _turned(r, factors.across[k])
        if not scaled:
            r[pc] = divider(pivot, 2)(r[pc])
        for j, u in factors.upper[k].items():
            r[j] = r[j] - u * r[pc]
    y: dict[int, Scalar] = {}
    for k in range(len(steps) - 1, -1, -1):
        pr, pc, pivot, scaled = steps[k]
        total = r[pc]
        for i, l in factors.lower[k].items():
            total = total - l * y.get(i, 0.0)
        y[pr] = divider(pivot, 2)(total) if scaled else total
        for rotated in reversed(factors.turns.get(k, ())):
            rotated.apply_transposed(y)
    return [y.get(i, 0.0) for i in range(len(steps) + len(factors.left))]


def refine(rows: Sequence[Row], b: Sequence, factors: Factors, opaque: Callable = lambda x: x) -> list:
    """The solution of A x + b = 0 after one step of iterative refinement: x + δ with A δ + (A x + b) = 0.

    rows, b: as `eliminate` had them. opaque: an identity that a graph of expressions does not see through; it would
    otherwise simplify the residual to 0, its value in exact arithmetic. Wilkinson (1963).
    """
    x = [opaque(value) for value in factors.solution]
    residual = [sum((entry * x[j] for j, entry in row.items()), rest) for row, rest in zip(rows, b, strict=True)]
    return [value + opaque(step) for value, step in zip(x, solve(factors, residual), strict=True)]


def _same(x):
    return x


def _divided(pivot, x):
    return divider(pivot, 2)(x)


def divider(pivot, times: int) -> Callable:
    """x ↦ x / pivot, to be used `times` times: by one reciprocal if that is more than once."""
    if is_unit(pivot):
        return _same if pivot == 1.0 else lambda x: -x
    if times >= 2 or is_constant(pivot):
        inverse = 1.0 / pivot
        return lambda x: x * inverse
    return lambda x: x / pivot
