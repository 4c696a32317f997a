"""Sparse LU with fixed row and column permutations, over any scalar (float, Expr, a float that counts).

Right-looking: pivot k is in row `row_perm[k]` and column `col_perm[k]`. The right-hand side is an extra column, so that
elimination includes forward substitution. If every entry of a column can vanish, several rows are rotated first, and
the pivot is the norm of their entries. It vanishes only if all of them do; if they are all active entries of the
column, it is nonzero wherever A is regular.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sysdyn.errors import SingularState
from sysdyn.program.graph import Scalar, is_constant, is_zero
from sysdyn.sparse.active_submatrix import ActiveSubmatrix
from sysdyn.sparse.rotations import OrthogonalTransform

Row = dict[int, Any]  # {column: entry} of a row, or {row: entry} of a column; float or Expr.


class Pivots(NamedTuple):
    """An elimination order: pivot k is in row rows[k] and column columns[k].

    rotated_with: {k: rows that are rotated with row rows[k] before pivot k}.
    """

    rows: Sequence[int]
    columns: Sequence[int]
    rotated_with: Mapping[int, Sequence[int]] = {}


def is_unit(x) -> bool:
    """True if x is the constant 1 or −1."""
    return type(x) is float and (x == 1.0 or x == -1.0)


@dataclass
class Factors:
    """Result of elimination: the solution of A x + b = 0, and the entries of L and U.

    rotations[k]      the rotation of rows before pivot k, if any
    residual_rows     {row: right-hand side} of rows without a pivot, which elimination reduces to 0 = right-hand side
    upper[k]          row k of U without its pivot, {column: entry}; scaled by the pivot if row_is_scaled[k]
    lower[k]          column k of L without its pivot, {row: entry}; scaled by the pivot if not row_is_scaled[k]
    """

    row_perm: Sequence[int]
    col_perm: Sequence[int]
    pivots: list = field(default_factory=list)
    upper: list[Row] = field(default_factory=list)
    lower: list[Row] = field(default_factory=list)
    row_is_scaled: list[bool] = field(default_factory=list)
    rotations: dict[int, OrthogonalTransform] = field(default_factory=dict)
    residual_rows: Row = field(default_factory=dict)
    fill: list[tuple[int, int]] = field(default_factory=list)
    solution: list = field(default_factory=list)

    @property
    def fill_in(self) -> int:
        """Entries of L and U that are structural zeros of A."""
        return len(self.fill)

    @property
    def triangular(self) -> bool:
        """True if P A Q is triangular: one of the factors is diagonal."""
        return not self.rotations and (not any(self.upper) or not any(self.lower))


def eliminate(
    rows: Sequence[Row],
    b: Sequence,
    row_perm: Sequence[int],
    col_perm: Sequence[int],
    rotated_with: Mapping[int, Sequence[int]] | None = None,
    *,
    begin: Callable[[int], None] = lambda _: None,
) -> Factors:
    """Solve A x + b = 0 by LU in the given order (see `Pivots`), without further pivoting.

    rows (m)        A, one dict {column: entry} per row; not changed
    b (m)           right-hand side entries
    row_perm (n)    row of the k-th pivot; col_perm (n) its column
    rotated_with          {k: rows that are rotated with row_perm[k] if they have an entry in the pivot column}
    begin(k)        called before pivot k is eliminated, and before its unknown is substituted back

    If m > n, the rows without a pivot are reduced to `Factors.residual_rows`. If these are zero, x solves all
    equations. Otherwise x is the least-squares solution, provided that all eliminations were rotations.

    Raises SingularState (with the position k of the pivot as `equation`) if a pivot is structurally or exactly 0. The
    pivot divides its row or its column, whichever has fewer entries; several divisions share one reciprocal.
    """
    n, rotated_with = len(col_perm), rotated_with or {}
    augmented = ({**row, n: right} if not is_zero(right) else row for row, right in zip(rows, b, strict=True))
    active, factors = ActiveSubmatrix(augmented, n + 1), Factors(row_perm, col_perm)  # b is column n
    ends: list[tuple[Scalar, Callable]] = []  # Back substitution of pivot k begins with b and divides at the end.
    for k, (pr, pc) in enumerate(zip(row_perm, col_perm, strict=True)):
        begin(k)
        if k in rotated_with and (rotation := active.rotate_rows((pr, *rotated_with[k]), pc)):
            factors.rotations[k] = rotation
        ends.append(_pivot(active, factors, pr, pc))
    factors.fill = [(i, j) for i, j in _places(factors) if j not in rows[i]]
    without_pivot = sorted(set(range(len(rows))).difference(row_perm))
    factors.residual_rows = {i: active.rows[i].get(n, 0.0) for i in without_pivot}
    factors.solution = _back_substitution(factors, ends, begin)
    return factors


def _pivot(active: ActiveSubmatrix, factors: Factors, pr: int, pc: int) -> tuple[Scalar, Callable]:
    """Eliminate column pc by row pr: row i −= (A_i,pc / pivot) · row pr for each other active row i.

    Appends the pivot, its row of U and its column of L to `factors`. Returns (b of the row, the final division of back
    substitution).
    """
    pivot, row, column = active.pivot(pr, pc)
    if is_zero(pivot):
        k = len(factors.pivots)
        raise SingularState(f"pivot {k} (row {pr}, column {pc}) is zero", equation=str(k))
    b, column = len(active.columns) - 1, dict(sorted(column.items()))
    right = row.pop(b, 0.0)
    has_rhs = not is_zero(right)
    scale_row = len(row) < len(column)
    divide = divide_by(pivot, min(len(row), len(column)) + has_rhs)
    if scale_row:
        row, right = {j: divide(u) for j, u in row.items()}, divide(right)
    else:
        column = {i: divide(l) for i, l in column.items()}
    active.rank_one_update(column, row | {b: right} if has_rhs else row)
    factors.pivots.append(pivot)
    factors.row_is_scaled.append(scale_row)
    factors.upper.append(row)
    factors.lower.append(column)
    return right, identity if scale_row else divide


def _back_substitution(
    factors: Factors, ends: Sequence[tuple[Scalar, Callable]], begin: Callable = lambda _: None
) -> list:
    """x by back substitution. ends: (right-hand side, final division) of each pivot."""
    x: list = [0.0] * len(ends)
    for k in reversed(range(len(ends))):
        begin(k)
        total, divide = ends[k]
        for j, u in factors.upper[k].items():
            total = total + u * x[j]
        x[factors.col_perm[k]] = -divide(total)
    return x


def _places(factors: Factors) -> Iterator[tuple[int, int]]:
    """(row, column) of the entries of L and U."""
    for i, j, row, column in zip(factors.row_perm, factors.col_perm, factors.upper, factors.lower, strict=True):
        yield i, j
        yield from ((i, c) for c in row)
        yield from ((k, j) for k in column)


def solve(factors: Factors, b: Sequence) -> list:
    """The solution of A x + b = 0 for another b, with the factors of A."""
    return solve_with_residual(factors, dict(enumerate(b)))[0]


def solve_with_residual(factors: Factors, b: Mapping[int, Scalar]) -> tuple[list, Row]:
    """(the solution of A x + b = 0, `Factors.residual_rows`) for another b {row: entry}, with the factors of A."""
    r = dict(b)
    ends: list[tuple[Scalar, Callable]] = []
    for k, (pr, pivot, scaled) in enumerate(zip(factors.row_perm, factors.pivots, factors.row_is_scaled, strict=True)):
        if k in factors.rotations:
            factors.rotations[k].apply(r)
        if scaled:
            r[pr] = divide_by(pivot, 2)(r.get(pr, 0.0))
        for i, l in factors.lower[k].items():
            r[i] = r.get(i, 0.0) - l * r.get(pr, 0.0)
        ends.append((r.get(pr, 0.0), identity if scaled else divide_by(pivot, 2)))
    return _back_substitution(factors, ends), {i: r.get(i, 0.0) for i in factors.residual_rows}


def solve_transposed(factors: Factors, c: Sequence) -> list:
    """The solution of A^T y = c, with the factors of A; zero for rows without a pivot."""
    r = list(c)
    steps = list(zip(factors.row_perm, factors.col_perm, factors.pivots, factors.row_is_scaled, strict=True))
    for k, (_, pc, pivot, scaled) in enumerate(steps):
        if not scaled:
            r[pc] = divide_by(pivot, 2)(r[pc])
        for j, u in factors.upper[k].items():
            r[j] = r[j] - u * r[pc]
    y: dict[int, Scalar] = {}
    for k in range(len(steps) - 1, -1, -1):
        pr, pc, pivot, scaled = steps[k]
        total = r[pc]
        for i, l in factors.lower[k].items():
            total = total - l * y.get(i, 0.0)
        y[pr] = divide_by(pivot, 2)(total) if scaled else total
        if k in factors.rotations:
            factors.rotations[k].apply_transposed(y)
    return [y.get(i, 0.0) for i in range(len(steps) + len(factors.residual_rows))]


def refine(rows: Sequence[Row], b: Sequence, factors: Factors, opaque: Callable = lambda x: x) -> list:
    """The solution of A x + b = 0 after one step of iterative refinement: x + δ with A δ + (A x + b) = 0.

    rows, b: arguments of `eliminate`. opaque: an identity that the expression graph cannot simplify; without it the
    residual would simplify to 0, its value in exact arithmetic. Wilkinson (1963).
    """
    x = [opaque(value) for value in factors.solution]
    residual = [sum((entry * x[j] for j, entry in row.items()), right) for row, right in zip(rows, b, strict=True)]
    return [value + opaque(step) for value, step in zip(x, solve(factors, residual), strict=True)]


def identity(x):
    return x


def divide_by(pivot, times: int) -> Callable:
    """The function x ↦ x / pivot. It multiplies by one reciprocal if it is used more than once (`times`)."""
    if is_unit(pivot):
        return identity if pivot == 1.0 else lambda x: -x
    if times >= 2 or is_constant(pivot):
        inverse = 1.0 / pivot
        return lambda x: x * inverse
    return lambda x: x / pivot
