"""Null spaces of a problem's equations at single states, after the equations of motion are eliminated.

The Newton-Euler equations give a, f and τ for any q̈, fx and constraint wrenches w by pivots ±1, so they always have
full rank. With z = (q̈, fx, w),

    d = N z + d0,     and the measurements Y d + y0 = 0 become     S z + s0 = 0,     S = Y N

The null spaces of the small matrix S give those of the whole system: undetermined unknowns are the nonzero rows of
N ker S, redundant measurements the nonzero rows of ker Sᵀ. Rows and columns are scaled first, so that the rank does not
depend on units or on the size of the links.
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

# Singular values of S below this share of the greatest count as zero, and so do components of a unit null vector: well
# above rounding errors, and below the singular values of regular robots of 300 joints.
ZERO = 1e-10
# Least independent component of a row, or least pivot, relative to its row and column: three digits. The second value
# (half of the digits) is used if no other rows or pivots remain.
INDEPENDENT = (1e-3, 1e-7)
# An entry of S counts as zero if a relative change of the matrix by NOISE can cause it. The sensitivity is measured by
# a random change of size PERTURBATION.
NOISE, PERTURBATION = 1e-13, 1e-6


class MotionElimination:
    """Partition of the rows and columns of a system by the elimination of the equations of motion.

    system: of layout "paper", with known quantities as rows. active (equations,) bool: equations that count; None: all.
    z = (q̈, fx, w): the unknowns that the equations of motion do not give.

    motion, dependent_columns        active equations of motion, and the unknowns a, f, τ that they give, in order
    stating_rows, stated_columns     measurements of a single unknown of z, and these unknowns
    rows, columns                    the other measurements, and the other unknowns of z
    """

    def __init__(self, system: BlockSystem, active: np.ndarray | None = None):
        self.system = system
        self.active = np.ones(system.shape[0], dtype=bool) if active is None else active
        bodies = range(system.model.nb)
        order = [("a", i) for i in bodies] + [("f", i) for i in reversed(bodies)] + [("tau", i) for i in bodies]
        rows: dict[tuple[str, int], list[int]] = {}
        for r, block in enumerate(system.row_blocks):
            rows.setdefault(block, []).append(r)
        pairs = [pair for x in order for pair in zip(rows.get(x, ()), system.layout.columns(*x), strict=True)]
        pivots = np.array([pair for pair in pairs if self.active[pair[0]]], dtype=int).reshape(-1, 2)
        self.motion, self.dependent_columns = pivots.T
        z = set(range(system.layout.n)) - set(self.dependent_columns.tolist())
        measured = [r for r, block in enumerate(system.row_blocks) if block[0] == "y" and self.active[r]]
        stating: dict[int, int] = {}
        for r in measured:
            column = self._single_column(r)
            if column in z:
                stating.setdefault(column, r)
        self.stated_columns, self.stating_rows = np.array(sorted(stating.items()), dtype=int).reshape(-1, 2).T
        self.columns = np.array(sorted(z - set(stating)), dtype=int)
        self.rows = np.array([r for r in measured if r not in set(stating.values())], dtype=int)

    def _single_column(self, row: int) -> int:
        """The only unknown of the row, if its coefficient is constant; else −1."""
        entries = self.system.assembly.rows[row]
        if len(entries) != 1:
            return -1
        ((column, x),) = entries.items()
        return column if is_constant(x) and constant_value(x) != 0.0 else -1

    @cached_property
    def is_square(self) -> bool:
        """True if the active equations are square and have full structural rank."""
        pattern = self.system.pattern()[self.active]
        return pattern.shape[0] == pattern.shape[1] and bool((maximum_matching(pattern) >= 0).all())

    def at(self, entries: np.ndarray, tolerance: float = 0.0) -> NullSpaces:
        """The null spaces at one state. entries (nnz) of D, see `System.values`. tolerance: see `NullSpaces`."""
        return NullSpaces(self, self.system.scaled(self.system.drop_rounding(entries)), tolerance)


@dataclass(frozen=True)
class NullSpaces:
    """Null spaces of the scaled matrix (equations, unknowns) at one state.

    tolerance: absolute size below which entries of S count as zero.
    """

    elimination: MotionElimination
    matrix: scipy.sparse.csr_matrix
    tolerance: float = 0.0

    @cached_property
    def is_regular(self) -> bool:
        """True if the system is square and its condition number is low enough for a unique solution."""
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
        """Orthonormal basis (equations, k) of dependencies between active measurements, given the motion equations."""
        m, places = self.matrix.shape[0], self.elimination
        if self.is_regular:
            return np.zeros((m, 0))
        w = self._svd.left
        basis = np.zeros((m, w.shape[1]))
        basis[places.rows] = w
        Y = self.matrix[places.rows]
        y = self._solve_motion(Y[:, places.dependent_columns].T @ w, "T")
        loads = Y[:, places.stated_columns].T @ w - self._motion[:, places.stated_columns].T @ y
        basis[places.stating_rows] = -loads / self._stating[:, None]
        return np.linalg.qr(basis)[0]

    @property
    def least_singular_vector(self) -> np.ndarray:
        """(unknowns,) the direction of z that the measurements observe least; zero outside of z."""
        direction = np.zeros(self.matrix.shape[1])
        direction[self.elimination.columns] = self._svd.least
        return direction

    def solve(self, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(x (unknowns,), misfit (equations,)): least-squares solution of A x + b = 0, of least norm in z = (q̈, fx, w).

        A is `matrix`, and b (equations,) has the scaling of its rows. misfit: |A x + b| relative to the sum |A| s + |b|
        of absolute terms. s is |x| plus a thousandth of the greatest |x|.
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
        x[places.stated_columns] = -b[places.stating_rows] / self._stating
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
        """Factors of the equations of motion in a, f and τ, which are lower triangular. Nori, Property 1."""
        triangle = self._motion[:, self.elimination.dependent_columns].tocsc()
        return scipy.sparse.linalg.splu(triangle, permc_spec="NATURAL", diag_pivot_thresh=0.0)

    def _solve_motion(self, rhs: np.ndarray, trans: str = "N") -> np.ndarray:
        return self._lu.solve(np.ascontiguousarray(rhs), trans) if rhs.size else rhs

    @cached_property
    def _response_of_columns(self) -> np.ndarray:
        """Response of a, f and τ (dependent columns, columns) to unit values of each unknown of z."""
        return -self._solve_motion(self._motion[:, self.elimination.columns].toarray())

    @cached_property
    def _stating(self) -> np.ndarray:
        """Coefficient of each stated unknown in its row."""
        places = self.elimination
        return np.asarray(self.matrix[places.stating_rows, places.stated_columns]).reshape(-1)

    @cached_property
    def _svd(self) -> _BalancedSVD:
        """Decomposition of S. Entries that are rounding errors of cancelling sums are set to zero."""
        matrix = self.matrix.copy()
        matrix.data *= 1.0 + PERTURBATION * np.random.default_rng(0).standard_normal(matrix.nnz)
        S, perturbed = self._product(), NullSpaces(self.elimination, matrix)._product()
        S[np.abs(S) * PERTURBATION <= NOISE * np.abs(perturbed - S)] = 0.0
        S[np.abs(S) < self.tolerance] = 0.0
        return _BalancedSVD(S)

    def _product(self) -> np.ndarray:
        """S = Y N: measurements Y as functions of z (see the module), before rounding errors are set to zero."""
        Y, places = self.matrix[self.elimination.rows], self.elimination
        return Y[:, places.columns].toarray() + Y[:, places.dependent_columns] @ self._response_of_columns


class _BalancedSVD:
    """Singular value decomposition of a balanced matrix S (m, n).

    left (m, k), right (n, l): orthonormal bases of its null spaces. inverse (n, m): the pseudo-inverse of the balanced
    matrix, scaled back. least (n,): the right singular vector of the least singular value.
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

    Rows can be tiny, because balancing scales up a rounding error of 1e-17 in a robot's constants like any other entry.
    Sorted rows and column pivoting make the QR factorisation row-wise stable (Cox and Higham 1998).
    """
    order = np.argsort(-np.abs(basis).max(axis=1, initial=0.0), kind="stable")
    Q = np.empty_like(basis)
    Q[order] = scipy.linalg.qr(basis[order], mode="economic", pivoting=True)[0]
    return Q


def involved(basis: np.ndarray) -> np.ndarray:
    """(rows,) bool: True for rows of an orthonormal `basis` (rows, k) that are nonzero up to rounding errors."""
    return np.linalg.norm(basis, axis=1) > ZERO
