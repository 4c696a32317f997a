"""The equations of motion eliminated: measurements as equations of the degrees of freedom z = (q̈, fx, w).

The Newton-Euler equations give a, f and τ for any q̈, fx and wrenches w of constraints, by pivots that are ±1, so that
they never lack rank:

    d = N z + d0          and of the measurements remains          S z + s0 = 0,          S = Y N

The null spaces of the small matrix S are those of the whole system: unknowns that are not determined are the nonzero
rows of N ker S, and redundant measurements those of ker Sᵀ. Rows and columns are scaled first, so that units and the
taper of a robot do not decide what is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.equations.system import BlockSystem
from sysdyn.program.graph import constant_value, is_constant
from sysdyn.sparse.condition import balance, condition
from sysdyn.sparse.dulmage import maximum_matching
from sysdyn.sparse.nullspace import structural_null_spaces

RELATIVE_RANK = 1e-10  # Share of the greatest singular value of S below which others count as zero (chosen).
PART = 1e-10  # Share of a unit vector of a null space above which an unknown is part of it (chosen).
# Relative change of the matrix that must not account for an entry of S, or the entry counts as zero; relative
# change by which this is found, at random; and its seed (chosen).
NOISE, CHANGE, CHANGE_SEED = 1e-13, 1e-6, 0
# Size of an entry of S, of terms near 1, below which it may be rounding: sin(π) is 1.2e-16, limbs have many joints, and
# entries with fewer than three digits are too few for a refinement to begin with.
ROUNDED_SINE = 1e-13
# Most degrees of freedom for which S is formed: in long chains its singular values spread with their number (chosen).
DENSE = 300


class Reduction:
    """The elimination of the equations of motion from a BlockSystem of layout "paper" with known quantities as rows.

    noisy_mask (equations,) bool: rows that need not hold exactly. They count for what is determined, but not for
    what is redundant; an equation of motion among them has a residual that is one more degree of freedom.
    counted (equations,) bool: measurements that are there; others are candidates and do not count. None: all.
    """

    def __init__(self, system: BlockSystem, noisy_mask: np.ndarray, counted: np.ndarray | None = None):
        self.system, self.noisy_mask = system, noisy_mask
        self.counted = np.ones(len(noisy_mask), dtype=bool) if counted is None else counted
        layout, blocks = system.layout, system.row_blocks
        bodies = range(system.model.nb)
        order = [("a", i) for i in bodies] + [("f", i) for i in reversed(bodies)] + [("tau", i) for i in bodies]
        rows: dict[tuple[str, int], list[int]] = {}
        for r, block in enumerate(blocks):
            rows.setdefault(block, []).append(r)
        self.motion = np.array([r for block in order for r in rows.get(block, ())], dtype=int)
        self.inner = np.array([c for block in order for c in layout.columns(*block)], dtype=int)
        self.inexact = np.flatnonzero(noisy_mask[self.motion])  # places in `motion`
        measured = [r for r, block in enumerate(blocks) if block[0] == "y" and self.counted[r]]
        free = set(range(layout.n)) - set(self.inner.tolist())

        # A measurement of one degree of freedom and nothing else takes it out of z.
        self.stating: dict[int, int] = {}  # degree of freedom: exact row
        stated, alone = set(), set()
        for r in measured:
            column = self._one_freedom(r, free)
            if column is not None and (noisy_mask[r] or column not in self.stating):
                stated.add(column)
                alone.add(r)
                if not noisy_mask[r]:
                    self.stating[column] = r
        self.freedoms = np.array(sorted(free - stated), dtype=int)
        self.loose = np.array(sorted(free - set(self.stating)), dtype=int)  # of exact measurements alone
        self.known = np.array(sorted(self.stating), dtype=int)
        self.measured = np.array([r for r in measured if r not in alone], dtype=int)
        self.exact = np.array([r for r in measured if not noisy_mask[r] and r not in alone], dtype=int)

    def _one_freedom(self, row: int, free: set[int]) -> int | None:
        """The degree of freedom of which the row is a constant multiple."""
        entries = self.system.assembly.rows[row]
        if len(entries) != 1:
            return None
        ((column, x),) = entries.items()
        return column if column in free and is_constant(x) and constant_value(x) != 0.0 else None

    @cached_property
    def square(self) -> bool:
        """True if equations and unknowns are equally many, exact and matchable; SuperLU is not safe with others."""
        pattern = self.system.pattern()[self.counted]
        square = pattern.shape[0] == pattern.shape[1] and not self.noisy_mask[self.counted].any()
        return square and bool((maximum_matching(pattern) >= 0).all())

    @property
    def scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Factors of rows and columns that bring entries near 1, from their sizes at a few random states."""
        return self.system.scaling

    def at(self, entries: np.ndarray, usual: bool = False, coarse: bool = False) -> Reduced:
        """The elimination at one state; entries (nnz): a row of `system.values`; usual, coarse: see `Reduced`."""
        rows, columns = self.scaling
        r, c = self.system.coordinates
        return Reduced(self, self.system.matrix(entries * rows[r] * columns[c]), usual, coarse)


@dataclass(frozen=True)
class Reduced:
    """The elimination at one state, in scaled rows and columns; matrix (equations, unknowns).

    usual: entries that are rounding beside their usual sizes are zero, though all of their row may be as small there.
    coarse: so are rows and columns that are small as a whole: a direction that the equations hardly see counts as not
    seen, whether others cancel in it or not.
    """

    reduction: Reduction
    matrix: scipy.sparse.csr_matrix
    usual: bool = False
    coarse: bool = False

    @cached_property
    def regular(self) -> bool:
        """True for a square system of exact equations whose condition number says that it has one solution."""
        places = self.reduction
        return not self.usual and places.square and condition(self.matrix[places.counted]) < 1.0 / RELATIVE_RANK

    @cached_property
    def resolved(self) -> bool:
        """True if the null spaces can be told: for few degrees of freedom, or if the rank is the structural one."""
        return self.regular or len(self.reduction.loose) <= DENSE or self._structural is not None

    @cached_property
    def free(self) -> np.ndarray:
        """Basis (unknowns, k) of the null space: the k directions that no equation sees; orthonormal."""
        n, places = self.matrix.shape[1], self.reduction
        if self.regular:
            return np.zeros((n, 0))
        if self._structural is not None:
            return np.linalg.qr(self._structural[0])[0]
        response = self._right
        V = self._decomposed.right
        basis = np.zeros((n, V.shape[1]))
        basis[places.freedoms] = V
        basis[places.inner] = response @ V
        return np.linalg.qr(basis)[0]

    @property
    def weakest(self) -> np.ndarray:
        """(unknowns,) the degrees of freedom in the direction seen least by the equations, seen or not."""
        direction = np.zeros(self.matrix.shape[1])
        direction[self.reduction.freedoms] = self._decomposed.least
        return direction

    @cached_property
    def dependent(self) -> np.ndarray:
        """Basis (equations, k) of the combinations of exact equations that vanish: k are too many; orthonormal.

        Only the parts of measurements are given: the equations of motion do not depend on each other.
        """
        m, places = self.matrix.shape[0], self.reduction
        if self.regular:
            return np.zeros((m, 0))
        if self._structural is not None:
            return np.linalg.qr(self._structural[1])[0]
        decomposed = None
        if places.noisy_mask.any():
            decomposed = _Decomposition(self._reduced(places.exact, places.loose, places.inexact))
        w = (decomposed or self._decomposed).left
        basis = np.zeros((m, w.shape[1]))
        basis[places.exact] = w
        if len(places.known):
            Y = self.matrix[places.exact]
            y = self._solved(Y[:, places.inner].T @ w, "T")
            through = Y[:, places.known].T @ w - self._motion[:, places.known].T @ y
            rows = np.array([places.stating[c] for c in places.known.tolist()])
            basis[rows] = -through / self._stated(rows)[:, None]
        return np.linalg.qr(basis)[0]

    def solve(self, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(x, misfit): the shortest z and its unknowns (n,) with `matrix` x + b = 0 in the sense of least squares.

        b (equations,) in scaled rows. misfit (equations,): what is left of each row, relative to the sizes of its terms
        or, where all of them are small, to a thousandth of what they could be.
        """
        x = np.zeros(self.matrix.shape[1])
        for _ in range(2):  # the second is a step of iterative refinement
            x = x + self._solve_once(self.matrix @ x + b)
        size = np.abs(x) + 1e-3 * np.abs(x).max(initial=0.0)
        terms = abs(self.matrix) @ size + np.abs(b)
        return x, np.abs(self.matrix @ x + b) / np.where(terms > 0.0, terms, 1.0)

    def _solve_once(self, b: np.ndarray) -> np.ndarray:
        places, x = self.reduction, np.zeros(self.matrix.shape[1])
        if self.regular:
            return scipy.sparse.linalg.splu(self.matrix.tocsc()).solve(-b)
        rows = np.array([places.stating[c] for c in places.known.tolist()], dtype=int)
        x[places.known] = -b[rows] / self._stated(rows)
        x[places.inner] = -self._solved((self._motion @ x + b[places.motion])[:, None])[:, 0]
        response = self._right
        z = -self._decomposed.inverse @ (self.matrix[places.measured] @ x + b[places.measured])
        x[places.freedoms] = z
        x[places.inner] += response @ z
        return x

    @cached_property
    def _structural(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(free, dependent), not orthogonal; None for few columns or if the rank is not the structural one."""
        places = self.reduction
        if len(places.loose) <= DENSE:
            return None
        counted, exact = np.flatnonzero(places.counted), np.flatnonzero(places.counted & ~places.noisy_mask)
        of_all = structural_null_spaces(self.matrix[counted], 1.0 / RELATIVE_RANK)
        of_exact = of_all
        if len(exact) < len(counted):
            of_exact = structural_null_spaces(self.matrix[exact], 1.0 / RELATIVE_RANK)
        if of_all is None or of_exact is None:
            return None
        dependent = np.zeros((self.matrix.shape[0], of_exact[1].shape[1]))
        dependent[exact] = of_exact[1]
        dependent[places.motion] = 0.0
        return of_all[0], dependent

    # ---- parts of the matrix -----------------------------------------------------------------------------------

    @cached_property
    def _motion(self) -> scipy.sparse.csr_matrix:
        return self.matrix[self.reduction.motion]

    @cached_property
    def _lu(self) -> scipy.sparse.linalg.SuperLU:
        """D1 d_inner + D2 z = 0: D1 is lower triangular in the order of the recursions. Nori, Property 1."""
        inner = self._motion[:, self.reduction.inner].tocsc()
        return scipy.sparse.linalg.splu(inner, permc_spec="NATURAL", diag_pivot_thresh=0.0)

    def _solved(self, rhs: np.ndarray, trans: str = "N") -> np.ndarray:
        return self._lu.solve(np.ascontiguousarray(rhs), trans) if rhs.size else rhs

    def _response(self, columns: np.ndarray) -> np.ndarray:
        """−D1⁻¹ D2 (inner, columns): a, f and τ for a unit of each degree of freedom."""
        return -self._solved(self._motion[:, columns].toarray())

    def _reduced(self, rows: np.ndarray, columns: np.ndarray, residuals: np.ndarray | None = None) -> np.ndarray:
        """S of the measurements `rows` and the degrees of freedom `columns`, with the rounding of sums set to 0.

        residuals: places in `motion` of equations with a residual, which are further degrees of freedom.
        """
        S, changed = (x._sums(rows, columns, residuals) for x in (self, self._changed))
        S[np.abs(S) * CHANGE <= NOISE * np.abs(changed - S)] = 0.0
        if self.usual:
            S[np.abs(S) < ROUNDED_SINE] = 0.0
        if self.coarse:
            S[np.abs(S).max(axis=1, initial=0.0) < RELATIVE_RANK] = 0.0
            S[:, np.abs(S).max(axis=0, initial=0.0) < RELATIVE_RANK] = 0.0
        return S

    def _sums(self, rows: np.ndarray, columns: np.ndarray, residuals: np.ndarray | None) -> np.ndarray:
        Y, n = self.matrix[rows], len(self.reduction.motion)
        S = Y[:, columns].toarray() + Y[:, self.reduction.inner] @ self._response(columns)
        if residuals is None:
            return S
        units = np.zeros((n, len(residuals)))
        units[residuals, np.arange(len(residuals))] = 1.0
        return np.hstack([S, Y[:, self.reduction.inner] @ self._solved(units)])

    @cached_property
    def _changed(self) -> Reduced:
        """The same with each entry changed a little at random: a sum that changes by more than its size is rounding."""
        matrix = self.matrix.copy()
        matrix.data *= 1.0 + CHANGE * np.random.default_rng(CHANGE_SEED).standard_normal(matrix.nnz)
        return Reduced(self.reduction, matrix)

    @cached_property
    def _right(self) -> np.ndarray:
        """The response of the degrees of freedom that no measurement states."""
        return self._response(self.reduction.freedoms)

    @cached_property
    def _decomposed(self) -> _Decomposition:
        """S of all measurements."""
        return _Decomposition(self._reduced(self.reduction.measured, self.reduction.freedoms))

    def _stated(self, rows: np.ndarray) -> np.ndarray:
        """The coefficients with which `rows` state the known degrees of freedom."""
        return np.asarray(self.matrix[rows, self.reduction.known]).reshape(-1)


class _Decomposition:
    """Bases of the left and right null spaces of a matrix S (m, n), numerically, and a generalised inverse.

    least (n,): a right singular vector of the least singular value.
    Rows and columns are balanced first; the inverse is the pseudo-inverse in balanced units, bases are orthonormal.
    """

    def __init__(self, S: np.ndarray):
        m, n = S.shape
        if S.size == 0:
            self.left, self.right, self.inverse, self.least = np.eye(m), np.eye(n), np.zeros((n, m)), np.zeros(n)
            return
        rows, columns = balance(np.abs(S))
        U, s, Vt = np.linalg.svd(rows[:, None] * S * columns)
        r = int(np.sum(s > RELATIVE_RANK * max(s[0], 1.0)))
        self.left, self.right = (x * involved(x)[:, None] for x in (U[:, r:], Vt[r:].T))
        self.left, self.right = _orthonormal(rows[:, None] * self.left), _orthonormal(columns[:, None] * self.right)
        self.least = columns * Vt[-1]
        self.inverse = columns[:, None] * ((Vt[:r].T / s[:r]) @ U[:, :r].T) * rows


def _orthonormal(basis: np.ndarray) -> np.ndarray:
    """Orthonormal basis of the column span, accurate in each row even if rows differ by orders of magnitude.

    They do: balancing scales an entry of 1e-17, a rounding error in a robot's constants, as much as any other.
    Sorted rows and column pivoting make the QR factorisation row-wise stable (Cox and Higham 1998).
    """
    order = np.argsort(-np.abs(basis).max(axis=1, initial=0.0), kind="stable")
    Q = np.empty_like(basis)
    Q[order] = scipy.linalg.qr(basis[order], mode="economic", pivoting=True)[0]
    return Q


def involved(basis: np.ndarray) -> np.ndarray:
    """(rows,) bool: the row has a part in the space spanned by the orthonormal columns of `basis`."""
    return np.linalg.norm(basis, axis=1) > PART
