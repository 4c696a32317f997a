"""Sparse factorisations of the joint-space inertia matrix, H = L^T L and H = L^T D L (RBDA ch. 6).

H_ij is zero unless i = j or one of i and j is an ancestor of the other in the tree of degrees of freedom `parent`
(branch-induced sparsity). Elimination from the last row to the first has no fill-in, so each loop runs over ancestors
only. All functions are generic over float, Expr and batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, SingularState
from sysdyn.model import Model
from sysdyn.program.arrays import is_integer
from sysdyn.program.graph import is_zero, sqrt
from sysdyn.reference.generic import checked_array, is_number, run_arrays

# Rounding error of a pivot relative to the diagonal entry before elimination: 450 rounding units (chosen).
PIVOT_ROUNDING = 1e-13
# Tolerance, relative to √(H_ii H_jj), for asymmetry of H and for entries outside the tree (chosen).
ENTRY_TOL = 1e-10

Paths = list[tuple[int, ...]]  # The ancestors λ(k), λ(λ(k)), … of each row k.
# Returns the error for a pivot that is not positive: (row, pivot, states of a batch).
Failure = Callable[[int, float, tuple[int, ...]], SingularState]


# ---- the tree of degrees of freedom ----------------------------------------------------------------------------------


def expanded_parent(model: Model) -> tuple[int, ...]:
    """λ' (nv): parent of each degree of freedom, −1 for the base; λ'[k] < k.

    A joint with several degrees of freedom counts as a chain of joints with one.

    References
    ----------
    RBDA Table 6.4 with indices from 0. map(i) is the last degree of freedom on the path from the base to body i, so
    that fixed joints are covered.
    """
    parent: list[int] = []
    last: list[int] = []  # degree of freedom on the path to each body
    for i, joint in enumerate(model.joints):
        before = last[model.parent[i]] if model.parent[i] >= 0 else -1
        for _ in range(joint.nv):
            parent.append(before)
            before = len(parent) - 1
        last.append(before)
    return tuple(parent)


@dataclass(frozen=True)
class Sparsity:
    """Branch-induced sparsity of H (n, n), and D1 and D2 of the cost formulas in RBDA Table 6.6.

    With the depth d_k of degree of freedom k (1 at the base): D1 = Σ (d_k − 1), the number of nonzeros below the
    diagonal, D2 = Σ d_k (d_k − 1)/2, nonzeros = n + 2 D1, density = nonzeros / n².

    References
    ----------
    RBDA section 6.5.
    """

    n: int
    density: float
    D1: int
    D2: int
    nonzeros: int


def sparsity(model: Model) -> Sparsity:
    """Branch-induced sparsity of the joint-space inertia matrix of a model."""
    depth = [1 + len(path) for path in ancestors(expanded_parent(model))]
    n, D1, D2 = len(depth), sum(d - 1 for d in depth), sum(d * (d - 1) // 2 for d in depth)
    nonzeros = n + 2 * D1
    return Sparsity(n, nonzeros / n**2 if n else 1.0, D1, D2, nonzeros)


# ---- factors ---------------------------------------------------------------------------------------------------------


class Factor(NamedTuple):
    """Factors L and D of H = L^T D L. Methods take x (…, n); leading axes of x, L and D are batch axes and broadcast.

    References
    ----------
    RBDA Table 6.5 for the algorithms, Table 6.6 for their costs.
    """

    L: np.ndarray  # (…, n, n) lower triangular, 1 on the diagonal, zero wherever the tree makes H zero
    D: np.ndarray  # (…, n), > 0
    parent: tuple[int, ...]  # (n), as in `ltdl`

    def mul_L(self, x: ArrayLike) -> np.ndarray:
        """L x (…, n). Raises InvalidInput."""
        return self._run(mul_L_at_state, x, self.L)

    def mul_Lt(self, x: ArrayLike) -> np.ndarray:
        """L^T x (…, n). Raises InvalidInput."""
        return self._run(mul_Lt_at_state, x, self.L)

    def solve_L(self, x: ArrayLike) -> np.ndarray:
        """L⁻¹ x (…, n). Raises InvalidInput."""
        return self._run(solve_L_at_state, x, self.L)

    def solve_Lt(self, x: ArrayLike) -> np.ndarray:
        """L^−T x (…, n). Raises InvalidInput."""
        return self._run(solve_Lt_at_state, x, self.L)

    def solve(self, b: ArrayLike) -> np.ndarray:
        """H⁻¹ b (…, n) = L⁻¹ D⁻¹ L^−T b. Raises InvalidInput."""
        return self._run(solve_at_state, b, self.L, self.D)

    def _run(self, recursion: Callable, x: ArrayLike, *factors: np.ndarray) -> np.ndarray:
        n = len(self.parent)
        shapes = {"x": (x, (n,))} | {name: (A, (n,) * k) for name, A, k in zip("LD", factors, (2, 1), strict=False)}
        (y,) = run_arrays(partial(recursion, ancestors(self.parent)), shapes)
        return y


def ltl(H: ArrayLike, parent: Sequence[int]) -> np.ndarray:
    """L (…, n, n) of H = L^T L: lower triangular with a positive diagonal and the zeros of H.

    Arguments and errors as for `ltdl`.

    References
    ----------
    RBDA Table 6.3.
    """
    (L,) = _factor(ltl_at_state, H, parent, _not_positive_definite)
    return L


def ltdl(H: ArrayLike, parent: Sequence[int], on_failure: Failure | None = None) -> Factor:
    """L and D of H = L^T D L: L unit lower triangular with the zeros of H, D diagonal and positive.

    Parameters
    ----------
    H : (…, n, n) array
        Symmetric positive definite, H_ij = 0 unless i = j or one is an ancestor of the other; leading axes are batch
        axes. Only the lower triangle enters the factor; H is not changed.
    parent : (n,) sequence of int
        parent[k] < k, −1 for the base; see `expanded_parent`.
    on_failure : callable, optional
        Returns the error for a pivot that is not positive, from (row, pivot, states of a batch).

    Raises
    ------
    InvalidInput
        If `parent` is not a tree, or H is not symmetric, has the wrong shape or entries outside the tree.
    SingularState
        Naming the first row in elimination order whose pivot is not positive.

    References
    ----------
    RBDA Table 6.3.
    """
    L, D = _factor(ltdl_at_state, H, parent, on_failure or _not_positive_definite)
    return Factor(L, D, tuple(int(p) for p in parent))


def mul_H(H: ArrayLike, parent: Sequence[int], x: ArrayLike) -> np.ndarray:
    """H x (…, n), using only the entries inside the tree. H and parent as for `ltdl`, x (…, n). Raises InvalidInput.

    References
    ----------
    RBDA Table 6.5.
    """
    paths, H = _checked_matrix(H, parent)
    n = len(paths)
    (y,) = run_arrays(partial(mul_H_at_state, paths), {"H": (H, (n, n)), "x": (x, (n,))})
    return y


def ldl_solve(A: np.ndarray, B: np.ndarray, on_failure: Failure, scale: np.ndarray | None = None) -> np.ndarray:
    """A⁻¹ B (n, m) by L^T D L of a dense symmetric positive definite A (n, n), at one state."""
    paths: Paths = [tuple(reversed(range(k))) for k in range(len(A))]
    L, D = ltdl_at_state(paths, on_failure, A, scale)
    X = np.empty_like(B)
    for k, b in enumerate(B.T):
        (X[:, k],) = solve_at_state(paths, b, L, D)
    return X


# ---- the algorithms, for one state -----------------------------------------------------------------------------------


def ltl_at_state(paths: Paths, on_failure: Failure, H: np.ndarray) -> tuple[np.ndarray]:
    L = _lower(paths, H)
    for k in reversed(range(len(paths))):
        _require_positive(on_failure, k, L[k, k], H[k, k])
        L[k, k] = sqrt(L[k, k])
        for i in paths[k]:
            L[k, i] = L[k, i] / L[k, k]
        for i in paths[k]:
            for j in (i, *paths[i]):
                L[i, j] = L[i, j] - L[k, i] * L[k, j]
    return (L,)


def ltdl_at_state(
    paths: Paths, on_failure: Failure, H: np.ndarray, scale: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(L (n, n), D (n)); pivot k must exceed PIVOT_ROUNDING · scale[k]; default scale: diagonal of H."""
    L = _lower(paths, H)
    for k in reversed(range(len(paths))):
        _require_positive(on_failure, k, L[k, k], H[k, k] if scale is None else scale[k])
        for i in paths[k]:
            a = L[k, i] / L[k, k]
            for j in (i, *paths[i]):
                L[i, j] = L[i, j] - a * L[k, j]
            L[k, i] = a
    D = L.diagonal().copy()
    np.fill_diagonal(L, 1.0)
    return L, D


def mul_L_at_state(paths: Paths, x: np.ndarray, L: np.ndarray) -> tuple[np.ndarray]:
    y = x.copy()
    for i, path in enumerate(paths):
        for j in path:
            y[i] = y[i] + L[i, j] * x[j]
    return (y,)


def mul_Lt_at_state(paths: Paths, x: np.ndarray, L: np.ndarray) -> tuple[np.ndarray]:
    y = x.copy()
    for i, path in enumerate(paths):
        for j in path:
            y[j] = y[j] + L[i, j] * x[i]
    return (y,)


def solve_L_at_state(paths: Paths, x: np.ndarray, L: np.ndarray) -> tuple[np.ndarray]:
    x = x.copy()
    for i, path in enumerate(paths):
        for j in path:
            x[i] = x[i] - L[i, j] * x[j]
    return (x,)


def solve_Lt_at_state(paths: Paths, x: np.ndarray, L: np.ndarray) -> tuple[np.ndarray]:
    x = x.copy()
    for i in reversed(range(len(paths))):
        for j in paths[i]:
            x[j] = x[j] - L[i, j] * x[i]
    return (x,)


def solve_at_state(paths: Paths, b: np.ndarray, L: np.ndarray, D: np.ndarray) -> tuple[np.ndarray]:
    (y,) = solve_Lt_at_state(paths, b, L)
    return solve_L_at_state(paths, y / D, L)


def mul_H_at_state(paths: Paths, H: np.ndarray, x: np.ndarray) -> tuple[np.ndarray]:
    y = H.diagonal() * x
    for i, path in enumerate(paths):
        for j in path:
            y[i] = y[i] + H[i, j] * x[j]
            y[j] = y[j] + H[i, j] * x[i]
    return (y,)


def _lower(paths: Paths, H: np.ndarray) -> np.ndarray:
    """Copy of the lower triangle of H inside the tree; the factorisation overwrites it."""
    L = np.full(H.shape, 0.0, dtype=H.dtype)
    for k, path in enumerate(paths):
        for j in (k, *path):
            L[k, j] = H[k, j]
    return L


# ---- checks ----------------------------------------------------------------------------------------------------------


def ancestors(parent: Sequence[int]) -> Paths:
    """Ancestors of each row, nearest first. Raises InvalidInput naming an entry that is not a valid parent."""
    paths: Paths = []
    for k, p in enumerate(parent):
        if not is_integer(p):
            raise InvalidInput(f"parent[{k}] = {p!r}: the number of a row, or −1 for the base, is needed")
        if not -1 <= p < k:
            before = f" or one of the rows 0 … {k - 1}" if k else ""
            raise InvalidInput(
                f"parent[{k}] = {p}: parents come first in a tree, so it has to be −1 (the base){before}"
            )
        paths.append((int(p), *paths[p]) if p >= 0 else ())
    return paths


def reject_entries(name: str, A: np.ndarray, outside: np.ndarray, reason: Callable[[int, int], str]) -> None:
    """Raise InvalidInput if |A_ij| > ENTRY_TOL √(A_ii A_jj) where `outside` (n, n) is True; A (…, n, n)."""
    wrong = outside & (
        np.vectorize(lambda x: not is_zero(x), otypes=[bool])(A) if A.dtype == object else np.abs(A) > _tolerances(A)
    )
    if np.any(wrong):
        *state, i, j = (int(k) for k in np.argwhere(wrong)[0])
        raise InvalidInput(f"{name}[{i}, {j}] is {A[(*state, i, j)]}{_in_state(state)}, but {reason(i, j)}")


def _tolerances(A: np.ndarray) -> np.ndarray:
    """ENTRY_TOL √(A_ii A_jj) (…, n, n)."""
    size = np.sqrt(np.abs(np.diagonal(A, axis1=-2, axis2=-1)))
    return ENTRY_TOL * size[..., :, None] * size[..., None, :]


def _factor(recursion: Callable, H: ArrayLike, parent: Sequence[int], on_failure: Failure) -> tuple[np.ndarray, ...]:
    paths, H = _checked_matrix(H, parent)
    return run_arrays(partial(recursion, paths, on_failure), {"H": (H, (len(paths), len(paths)))})


def _checked_matrix(H: ArrayLike, parent: Sequence[int]) -> tuple[Paths, np.ndarray]:
    """(ancestors, H as an array), after checks of symmetry and branch-induced sparsity."""
    paths = ancestors(parent)
    n = len(paths)
    H = checked_array("H", H, (n, n))
    outside = ~np.eye(n, dtype=bool)
    for k, path in enumerate(paths):
        outside[k, list(path)] = outside[list(path), k] = False
    reject_entries("H", H, outside, lambda i, j: (
        f"neither of {i} and {j} is an ancestor of the other in `parent`, so it has to be 0; the ancestors of "
        f"{max(i, j)} are {list(paths[max(i, j)])}"
    ))  # fmt: skip
    if H.dtype != object:
        lopsided = np.abs(H - np.swapaxes(H, -1, -2)) > _tolerances(H)
        if np.any(lopsided):
            *state, i, j = (int(k) for k in np.argwhere(lopsided)[0])
            entries = f"H[{i}, {j}] is {H[(*state, i, j)]}, but H[{j}, {i}] is {H[(*state, j, i)]}"
            raise InvalidInput(f"H is not symmetric{_in_state(state)}: {entries}")
    return paths, H


def _in_state(index: Sequence[int]) -> str:
    return f" in state {index[0] if len(index) == 1 else tuple(index)}" if index else ""


def _require_positive(on_failure: Failure, k: int, pivot, scale) -> None:
    """Raise on_failure(k, …) unless the pivot exceeds the rounding error of `scale`, its value before elimination."""
    if not is_number(pivot):
        return
    failed = ~(pivot > PIVOT_ROUNDING * (np.abs(scale) if is_number(scale) else 0.0))
    if np.any(failed):
        states = tuple(int(state) for state in np.flatnonzero(failed)) if np.ndim(failed) else ()
        raise on_failure(k, float(np.min(pivot)), states)


def _not_positive_definite(k: int, pivot: float, states: tuple[int, ...]) -> SingularState:
    return SingularState(
        f"H is not positive definite{f' in {len(states)} of the states given' if states else ''}: the pivot of row {k} "
        f"is {pivot:.3g} after the rows below are eliminated. Give the joint of this row an inertia to move, or check "
        "how H was computed.",
        equation=f"H[{k}]",
        unknown=f"x[{k}]",
        states=states,
    )
