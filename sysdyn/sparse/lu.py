"""Sparse LU with fixed row and column permutations, over any scalar (float, Expr, a float that counts).

Right-looking: pivot k is row `row_perm[k]`, column `col_perm[k]`; the right-hand side is carried along as one more
column, so that forward substitution and elimination are one pass, and back substitution follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sysdyn.errors import SingularState
from sysdyn.program.expr import is_constant, is_zero

Row = dict[int, object]


def is_unit(x) -> bool:
    """x is the constant 1 or −1."""
    return type(x) is float and (x == 1.0 or x == -1.0)


@dataclass
class Factors:
    """What elimination leaves: A x + b = 0 solved, and the entries of L and U for whoever wants to look at them.

    upper[k]  row k of U without its pivot, {column: entry}; scaled by the pivot where scaled[k]
    lower[k]  column k of L without its pivot, {row: entry}; scaled by the pivot where not scaled[k]
    """

    row_perm: Sequence[int]
    col_perm: Sequence[int]
    pivots: list = field(default_factory=list)
    upper: list[Row] = field(default_factory=list)
    lower: list[Row] = field(default_factory=list)
    scaled: list[bool] = field(default_factory=list)
    fill: list[tuple[int, int]] = field(default_factory=list)
    solution: list = field(default_factory=list)

    @property
    def fill_in(self) -> int:
        """Entries of L and U that are structural zeros of A."""
        return len(self.fill)

    @property
    def triangular(self) -> bool:
        """P A Q was triangular already: one of the factors is diagonal."""
        return not any(self.upper) or not any(self.lower)


def eliminate(
    rows: Sequence[Row],
    b: Sequence,
    row_perm: Sequence[int],
    col_perm: Sequence[int],
    begin: Callable[[int], None] | None = None,
) -> Factors:
    """Solve A x + b = 0 by LU with the given permutations and no pivoting.

    rows (n)        A as one dict {column: entry} a row; not changed
    b (n)           right-hand side entries
    row_perm (n)    row of the k-th pivot; col_perm (n) its column
    begin(k)        called before pivot k is eliminated and again before its unknown is substituted back

    Raises SingularState (with the position k of the pivot as `equation`) where a pivot is structurally or exactly 0.
    L D U in effect: per pivot the shorter of its row and column is divided by it, through one reciprocal where several
    entries are.
    """
    A = [dict(row) for row in rows]
    r = list(b)
    holders: list[set[int]] = [set() for _ in rows]  # rows not yet eliminated that hold column j
    for i, row in enumerate(A):
        for j in row:
            holders[j].add(i)
    out = Factors(row_perm, col_perm)
    rhs = []
    for k, (pr, pc) in enumerate(zip(row_perm, col_perm, strict=True)):
        if begin:
            begin(k)
        row = A[pr]
        pivot = row.pop(pc, 0.0)
        if is_zero(pivot):
            raise SingularState(f"pivot {k} (row {pr}, column {pc}) is zero", equation=str(k))
        for j in row:
            holders[j].discard(pr)
        below = holders[pc]
        below.discard(pr)
        targets = sorted(below)
        has_rhs = not is_zero(r[pr])
        scale_row = len(row) < len(targets)
        divide = divider(pivot, min(len(row), len(targets)) + has_rhs)
        column = {i: A[i].pop(pc) for i in targets}
        if scale_row:
            row = {j: divide(u) for j, u in row.items()}
            r[pr] = divide(r[pr])
        else:
            column = {i: divide(l) for i, l in column.items()}
        for i, l in column.items():
            target = A[i]
            for j, u in row.items():
                old = target.get(j)
                if old is None:
                    target[j] = -(l * u)
                    holders[j].add(i)
                    out.fill.append((i, j))
                else:
                    new = old - l * u
                    if is_zero(new):
                        del target[j]
                        holders[j].discard(i)
                    else:
                        target[j] = new
            if has_rhs:
                r[i] = r[i] - l * r[pr]
        out.pivots.append(pivot)
        out.scaled.append(scale_row)
        out.upper.append(row)
        out.lower.append(column)
        rhs.append((r[pr], _same if scale_row else divide))
    # an entry may have cancelled, and even been filled in again, before its row or column was eliminated
    held = {(pr, j) for pr, row in zip(row_perm, out.upper, strict=True) for j in row}
    held.update((i, pc) for pc, column in zip(col_perm, out.lower, strict=True) for i in column)
    held.update(zip(row_perm, col_perm, strict=True))
    out.fill = [place for place in dict.fromkeys(out.fill) if place in held]
    x: list = [0.0] * len(A)
    for k in range(len(A) - 1, -1, -1):
        if begin:
            begin(k)
        total, divide = rhs[k]
        for j, u in out.upper[k].items():
            total = total + u * x[j]
        x[col_perm[k]] = -divide(total)
    out.solution = x
    return out


def refine(rows: Sequence[Row], b: Sequence, factors: Factors, opaque: Callable = lambda x: x) -> list:
    """The solution of A x + b = 0 after one step of iterative refinement: x + δ with A δ + (A x + b) = 0.

    rows, b: as `eliminate` had them. opaque: what keeps a graph from finding the residual to be 0, and the sum to be x,
    as they are in exact arithmetic. Wilkinson (1963).
    """
    x = [opaque(value) for value in factors.solution]
    r = []
    for row, rest in zip(rows, b, strict=True):
        for j, entry in row.items():
            rest = rest + entry * x[j]
        r.append(rest)
    change = solve(factors, r)
    return [value + opaque(step) for value, step in zip(x, change, strict=True)]


def solve(factors: Factors, b: Sequence) -> list:
    """The solution of A x + b = 0 for another b, with the factors of A."""
    r = list(b)
    steps = list(zip(factors.row_perm, factors.col_perm, factors.pivots, factors.scaled, strict=True))
    for k, (pr, _, pivot, scaled) in enumerate(steps):
        if scaled:
            r[pr] = divider(pivot, 2)(r[pr])
        for i, l in factors.lower[k].items():
            r[i] = r[i] - l * r[pr]
    x: list = [0.0] * len(r)
    for k in range(len(steps) - 1, -1, -1):
        pr, pc, pivot, scaled = steps[k]
        total = r[pr]
        for j, u in factors.upper[k].items():
            total = total + u * x[j]
        x[pc] = -(total if scaled else divider(pivot, 2)(total))
    return x


def solve_transposed(factors: Factors, c: Sequence) -> list:
    """The solution of A^T y = c, with the factors of A."""
    r = list(c)
    steps = list(zip(factors.row_perm, factors.col_perm, factors.pivots, factors.scaled, strict=True))
    for k, (_, pc, pivot, scaled) in enumerate(steps):
        if not scaled:
            r[pc] = divider(pivot, 2)(r[pc])
        for j, u in factors.upper[k].items():
            r[j] = r[j] - u * r[pc]
    y: list = [0.0] * len(r)
    for k in range(len(steps) - 1, -1, -1):
        pr, pc, pivot, scaled = steps[k]
        total = r[pc]
        for i, l in factors.lower[k].items():
            total = total - l * y[i]
        y[pr] = divider(pivot, 2)(total) if scaled else total
    return y


def _same(x):
    return x


def divider(pivot, times: int) -> Callable:
    """x ↦ x / pivot, to be used `times` times: by one reciprocal where that is more than once."""
    if is_unit(pivot):
        return _same if pivot == 1.0 else lambda x: -x
    if times >= 2 or is_constant(pivot):
        inverse = 1.0 / pivot
        return lambda x: x * inverse
    return lambda x: x / pivot
