"""Null spaces of a problem's equations at single states, after the equations of motion are eliminated.

The Newton-Euler equations give a, f and τ for any q̈, fx and constraint wrenches w, with pivots ±1, so that they never
lack rank. With z = (q̈, fx, w),

    d = N z + d0          and of the measurements remains          S z + s0 = 0,          S = Y N

The null spaces of the small matrix S are those of the whole system: undetermined unknowns are the nonzero rows of N ker
S, redundant measurements the nonzero rows of ker Sᵀ. Rows and columns are scaled first, so that neither units nor the
taper of a robot decide what is small.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.equations.system import BlockSystem
from sysdyn.program.graph import constant_value, is_constant
from sysdyn.sparse.condition import balance, skeel_condition
from sysdyn.sparse.dulmage import maximum_matching

# Singular values of S below this share of the greatest count as zero, and so do parts of a unit null vector: well above
# rounding errors, and below those of regular robots of 300 joints.
ZERO = 1e-10
# Least independent part of a row, or pivot, relative to its row and column; the second where nothing else remains:
# three digits, then half of them.
INDEPENDENT = (1e-3, 1e-7)
# An entry of S counts as zero if a relative change of NOISE of the matrix accounts for it; the sensitivity is measured
# with a random change of the second size.
NOISE, PERTURBATION = 1e-13, 1e-6


class MotionElimination:
    """Which unknowns and equations of a system remain after the equations of motion are eliminated.

    system: of layout "paper", with known quantities as rows. active (equations,) bool: measurements that count; None:
    all. Noisy equations count for what is determined, but not for what is redundant. An equation of motion with noise
    has a residual, which is one more unknown.
    """

    def __init__(self, system: BlockSystem, active: np.ndarray | None = None):
        self.system, self.noisy = system, system.noisy_mask
        self.active = np.ones(len(self.noisy), dtype=bool) if active is None else active
        layout, blocks = system.layout, system.row_blocks
        bodies = range(system.model.nb)
        order = [("a", i) for i in bodies] + [("f", i) for i in reversed(bodies)] + [("tau", i) for i in bodies]
        rows: dict[tuple[str, int], list[int]] = {}
        for r, block in enumerate(blocks):
            rows.setdefault(block, []).append(r)
        # equations of motion and their unknowns a, f, τ, in the order of the recursions
        self.motion = np.array([r for block in order for r in rows.get(block, ())], dtype=int)
        self.dependent_columns = np.array([c for block in order for c in layout.columns(*block)], dtype=int)
        self.noisy_motion = np.flatnonzero(self.noisy[self.motion])
        measured = [r for r, block in enumerate(blocks) if block[0] == "y" and self.active[r]]
        z = set(range(layout.n)) - set(self.dependent_columns.tolist())

        # a measurement of one member of z and nothing else takes it out of z
        self.stating_row: dict[int, int] = {}  # {column: exact row that states its value}
        stated, stating = set(), set()
        for r in measured:
            column = self._single_column(r, z)
            if column is not None and (self.noisy[r] or column not in self.stating_row):
                stated.add(column)
                stating.add(r)
                if not self.noisy[r]:
                    self.stating_row[column] = r
        self.columns = np.array(sorted(z - stated), dtype=int)
        self.columns_of_exact = np.array(sorted(z - set(self.stating_row)), dtype=int)
        self.stated_columns = np.array(sorted(self.stating_row), dtype=int)
        self.rows = np.array([r for r in measured if r not in stating], dtype=int)
        self.exact_rows = np.array([r for r in self.rows.tolist() if not self.noisy[r]], dtype=int)

    def _single_column(self, row: int, z: set[int]) -> int | None:
        """The only unknown of z in the row, if its coefficient is constant."""
        entries = self.system.assembly.rows[row]
        if len(entries) != 1:
            return None
        ((column, x),) = entries.items()
        return column if column in z and is_constant(x) and constant_value(x) != 0.0 else None

    @cached_property
    def is_square(self) -> bool:
        """True if the active equations are exact, as many as the unknowns, and of full structural rank."""
        pattern = self.system.pattern()[self.active]
        square = pattern.shape[0] == pattern.shape[1] and not self.noisy[self.active].any()
        return square and bool((maximum_matching(pattern) >= 0).all())

    def at(self, entries: np.ndarray, tolerance: float = 0.0) -> NullSpaces:
        """The null spaces at one state; entries (nnz): a row of `system.values`; tolerance: see `NullSpaces`."""
        return NullSpaces(self, self.system.scaled(self.system.drop_rounding(entries)), tolerance)


@dataclass(frozen=True)
class NullSpaces:
    """Null spaces of the scaled matrix (equations, unknowns) at one state.

    tolerance: entries of S below count as zero, however large other entries of their row or column are.
    """

    elimination: MotionElimination
    matrix: scipy.sparse.csr_matrix
    tolerance: float = 0.0

    @cached_property
    def is_regular(self) -> bool:
        """True for a square system of exact equations whose condition number shows that it has one solution."""
        places = self.elimination
        return not self.tolerance and places.is_square and skeel_condition(self.matrix[places.active]) < 1.0 / ZERO

    @cached_property
    def right(self) -> np.ndarray:
        """Orthonormal basis (unknowns, k) of the directions that no active equation observes."""
        n, places = self.matrix.shape[1], self.elimination
        if self.is_regular:
            return np.zeros((n, 0))
        V = self._svd.right
        basis = np.zeros((n, V.shape[1]))
        basis[places.columns] = V
        basis[places.dependent_columns] = self._response_of_columns @ V
        return np.linalg.qr(basis)[0]

    @cached_property
    def left(self) -> np.ndarray:
        """Orthonormal basis (equations, k) of the combinations of exact measurements that vanish: k are too many."""
        m, places = self.matrix.shape[0], self.elimination
        if self.is_regular:
            return np.zeros((m, 0))
        if places.noisy.any():
            S = self._reduced(places.exact_rows, places.columns_of_exact, places.noisy_motion)
            w = _BalancedSVD(S).left
        else:
            w = self._svd.left
        basis = np.zeros((m, w.shape[1]))
        basis[places.exact_rows] = w
        if len(places.stated_columns):
            Y = self.matrix[places.exact_rows]
            y = self._solve_motion(Y[:, places.dependent_columns].T @ w, "T")
            through = Y[:, places.stated_columns].T @ w - self._motion[:, places.stated_columns].T @ y
            rows, coefficients = self._stating
            basis[rows] = -through / coefficients[:, None]
        return np.linalg.qr(basis)[0]

    @property
    def least_singular_vector(self) -> np.ndarray:
        """(unknowns,) the members of z in the direction that the measurements observe least."""
        direction = np.zeros(self.matrix.shape[1])
        direction[self.elimination.columns] = self._svd.least
        return direction

    def solve(self, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(x (unknowns,), misfit (equations,)): least-squares solution of `matrix` x + b = 0 with the shortest z.

        b (equations,) in scaled rows. misfit: residual of each row relative to its terms, in which each unknown counts
        with at least a thousandth of the greatest one.
        """
        x = np.zeros(self.matrix.shape[1])
        for _ in range(2):  # the second is a step of iterative refinement
            x = x + self._solve_once(self.matrix @ x + b)
        size = np.abs(x) + 1e-3 * np.abs(x).max(initial=0.0)
        terms = abs(self.matrix) @ size + np.abs(b)
        return x, np.abs(self.matrix @ x + b) / np.where(terms > 0.0, terms, 1.0)

    def _solve_once(self, b: np.ndarray) -> np.ndarray:
        places, x = self.elimination, np.zeros(self.matrix.shape[1])
        if self.is_regular:
            return scipy.sparse.linalg.splu(self.matrix.tocsc()).solve(-b)
        rows, coefficients = self._stating
        x[places.stated_columns] = -b[rows] / coefficients
        x[places.dependent_columns] = -self._solve_motion((self._motion @ x + b[places.motion])[:, None])[:, 0]
        z = -self._svd.inverse @ (self.matrix[places.rows] @ x + b[places.rows])
        x[places.columns] = z
        x[places.dependent_columns] += self._response_of_columns @ z
        return x

    # ---- parts of the matrix -----------------------------------------------------------------------------------

    @cached_property
    def _motion(self) -> scipy.sparse.csr_matrix:
        return self.matrix[self.elimination.motion]

    @cached_property
    def _lu(self) -> scipy.sparse.linalg.SuperLU:
        """Factors of the equations of motion in a, f and τ: lower triangular as ordered. Nori, Property 1."""
        triangle = self._motion[:, self.elimination.dependent_columns].tocsc()
        return scipy.sparse.linalg.splu(triangle, permc_spec="NATURAL", diag_pivot_thresh=0.0)

    def _solve_motion(self, rhs: np.ndarray, trans: str = "N") -> np.ndarray:
        return self._lu.solve(np.ascontiguousarray(rhs), trans) if rhs.size else rhs

    def _response(self, columns: np.ndarray) -> np.ndarray:
        """Response of a, f and τ (dependent columns, k) to unit values of k unknowns of z."""
        return -self._solve_motion(self._motion[:, columns].toarray())

    @cached_property
    def _response_of_columns(self) -> np.ndarray:
        return self._response(self.elimination.columns)

    @cached_property
    def _stating(self) -> tuple[np.ndarray, np.ndarray]:
        """(rows that fix the known columns, coefficients of these columns)."""
        places = self.elimination
        rows = np.array([places.stating_row[c] for c in places.stated_columns.tolist()], dtype=int)
        return rows, np.asarray(self.matrix[rows, places.stated_columns]).reshape(-1)

    @cached_property
    def _svd(self) -> _BalancedSVD:
        """Singular value decomposition of S of all measurements."""
        return _BalancedSVD(self._reduced(self.elimination.rows, self.elimination.columns))

    def _reduced(self, rows: np.ndarray, columns: np.ndarray, noisy_motion: np.ndarray | None = None) -> np.ndarray:
        """S of these rows and columns; entries that are rounding errors of cancelling sums are 0.

        noisy_motion: numbers in `motion` of equations with a residual, which adds a column.
        """
        matrix = self.matrix.copy()
        matrix.data *= 1.0 + PERTURBATION * np.random.default_rng(0).standard_normal(matrix.nnz)
        perturbed = NullSpaces(self.elimination, matrix)
        S, other = (x._product(rows, columns, noisy_motion) for x in (self, perturbed))
        S[np.abs(S) * PERTURBATION <= NOISE * np.abs(other - S)] = 0.0
        S[np.abs(S) < self.tolerance] = 0.0
        return S

    def _product(self, rows: np.ndarray, columns: np.ndarray, noisy_motion: np.ndarray | None) -> np.ndarray:
        """S = Y N of these rows and columns with its rounding errors; noisy_motion: as for `_reduced`."""
        Y = self.matrix[rows]
        through = Y[:, self.elimination.dependent_columns]
        S = Y[:, columns].toarray() + through @ self._response(columns)
        if noisy_motion is None:
            return S
        residuals = np.zeros((len(self.elimination.motion), len(noisy_motion)))
        residuals[noisy_motion, np.arange(len(noisy_motion))] = 1.0
        return np.hstack([S, through @ self._solve_motion(residuals)])


class _BalancedSVD:
    """Singular value decomposition of a balanced matrix S (m, n).

    left (m, k), right (n, l): orthonormal bases of its null spaces; inverse (n, m): the pseudo-inverse in balanced
    units; least (n,): a right singular vector of the least singular value.
    """

    def __init__(self, S: np.ndarray):
        m, n = S.shape
        if S.size == 0:
            self.left, self.right, self.inverse, self.least = np.eye(m), np.eye(n), np.zeros((n, m)), np.zeros(n)
            return
        rows, columns = balance(np.abs(S))
        U, s, Vt = np.linalg.svd(rows[:, None] * S * columns)
        rank = int(np.sum(s > ZERO * max(s[0], 1.0)))
        self.left, self.right = (
            _orthonormal(scale[:, None] * basis * involved(basis)[:, None])
            for scale, basis in ((rows, U[:, rank:]), (columns, Vt[rank:].T))
        )
        self.least = columns * Vt[-1]
        self.inverse = columns[:, None] * ((Vt[:rank].T / s[:rank]) @ U[:, :rank].T) * rows


def _orthonormal(basis: np.ndarray) -> np.ndarray:
    """Orthonormal basis of the column span, accurate in each row even if rows differ by orders of magnitude.

    They do, because balancing scales an entry of 1e-17, a rounding error in a robot's constants, as any other. Sorted
    rows and column pivoting make the QR factorisation row-wise stable (Cox and Higham 1998).
    """
    order = np.argsort(-np.abs(basis).max(axis=1, initial=0.0), kind="stable")
    Q = np.empty_like(basis)
    Q[order] = scipy.linalg.qr(basis[order], mode="economic", pivoting=True)[0]
    return Q


def involved(basis: np.ndarray) -> np.ndarray:
    """(rows,) bool: True for rows that take part in the space spanned by the orthonormal columns of `basis`."""
    return np.linalg.norm(basis, axis=1) > ZERO
