"""Factors of the joint-space inertia matrix that keep its zeros: H = L^T L and H = L^T D L (RBDA ch. 6).

H_ij can only differ from 0 if one of i and j is an ancestor of the other, or i = j, in the tree of freedoms that
`parent` gives: branch-induced sparsity. Eliminating from the last row up fills none of these zeros in, so that every
loop below runs over ancestors only. All of it is generic over float, Expr and batches.
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

# Rounding of a pivot, as a fraction of the entry that it is the rest of: 450 rounding units (chosen).
PIVOT_ROUNDING = 1e-13
# Fraction of √(H_ii H_jj) above which |H_ij − H_ji| is an error, and |H_ij| if the tree has no such entry (chosen).
UNEQUAL = 1e-10

Paths = list[tuple[int, ...]]  # The ancestors λ(k), λ(λ(k)), … of each row k.
# Makes the error of a pivot that is not positive: (row, pivot, states of a batch).
Failure = Callable[[int, float, tuple[int, ...]], SingularState]


# ---- the tree of freedoms --------------------------------------------------------------------------------------------


def expanded_parent(model: Model) -> tuple[int, ...]:
    """λ' (nv): predecessor of each degree of freedom towards the base, −1 for the first ones; λ'[k] < k.

    A joint of several degrees of freedom is a chain of single ones. RBDA Table 6.4, counted from 0; its map(i) is here
    the last degree of freedom on the path from body i to the base, which differs behind joints without degree of
    freedom (the book has none).
    """
    parent: list[int] = []
    last: list[int] = []  # of each body
    for i, joint in enumerate(model.joints):
        before = last[model.parent[i]] if model.parent[i] >= 0 else -1
        for _ in range(joint.nv):
            parent.append(before)
            before = len(parent) - 1
        last.append(before)
    return tuple(parent)


@dataclass(frozen=True)
class Sparsity:
    """Number of entries of H (n, n) that can differ from 0, and the costs of factors and products with them.

    n: degrees of freedom. nonzeros: such entries, n + 2 D1. density: ρ, their share of all.
    D1, D2: Σ (d_k − 1), those below the diagonal, and Σ d_k (d_k − 1)/2, with d_k the depth of freedom k (1 at
        the base).

    RBDA §6.5.
    """

    n: int
    density: float
    D1: int
    D2: int
    nonzeros: int


def sparsity(model: Model) -> Sparsity:
    """The branch-induced sparsity of the joint-space inertia matrix, by single degrees of freedom."""
    depth = [1 + len(path) for path in ancestors(expanded_parent(model))]
    n, D1, D2 = len(depth), sum(d - 1 for d in depth), sum(d * (d - 1) // 2 for d in depth)
    nonzeros = n + 2 * D1
    return Sparsity(n, nonzeros / n**2 if n else 1.0, D1, D2, nonzeros)


# ---- factors ---------------------------------------------------------------------------------------------------------


class Factor(NamedTuple):
    """H = L^T L, or H = L^T D L with 1 on the diagonal of L; zero wherever H is by the tree of `parent`.

    L (…, n, n): lower triangular. D (…, n): positive; None for H = L^T L. parent (n): as of `ltl`.

    x below is (…, n); leading axes of x, L and D are batch axes, broadcast against each other. Costs: RBDA Table 6.6.
    """

    L: np.ndarray  # (…, n, n) lower triangular
    D: np.ndarray | None  # (…, n), > 0; None for H = L^T L
    parent: tuple[int, ...]  # (n)

    def mul_L(self, x: ArrayLike) -> np.ndarray:
        """L x (…, n). Raises InvalidInput. RBDA Table 6.5."""
        return self._run(mul_L_at_state, x)

    def mul_Lt(self, x: ArrayLike) -> np.ndarray:
        """L^T x (…, n). Raises InvalidInput. RBDA Table 6.5."""
        return self._run(mul_Lt_at_state, x)

    def solve_L(self, x: ArrayLike) -> np.ndarray:
        """L⁻¹ x (…, n). Raises InvalidInput. RBDA Table 6.5."""
        return self._run(solve_L_at_state, x)

    def solve_Lt(self, x: ArrayLike) -> np.ndarray:
        """L^−T x (…, n). Raises InvalidInput. RBDA Table 6.5."""
        return self._run(solve_Lt_at_state, x)

    def solve(self, b: ArrayLike) -> np.ndarray:
        """H⁻¹ b (…, n) = L⁻¹ D⁻¹ L^−T b. Raises InvalidInput."""
        return self._run(solve_at_state, b)

    def _run(self, recursion: Callable, x) -> np.ndarray:
        paths = ancestors(self.parent)
        n = len(paths)
        arguments = {"x": (x, (n,)), "L": (self.L, (n, n))}
        if self.D is not None:
            arguments["D"] = (self.D, (n,))
        (y,) = run_arrays(partial(recursion, paths), arguments)
        return y


def ltl(H: ArrayLike, parent: Sequence[int]) -> Factor:
    """L of H = L^T L: lower triangular with a positive diagonal and the zeros of H.

    H (…, n, n): symmetric positive definite, H_ij = 0 unless i = j or one is an ancestor of the other; leading axes are
        batch axes. Its upper triangle is only looked at to see that this is so; H stays as it is.
    parent (n): parent[k] < k, −1 for the base; see `expanded_parent`.
    Raises InvalidInput for a parent that is no tree, and for an H of another shape, that is not symmetric, or with
    entries where the tree has none; SingularState naming the first row, from below, whose pivot is not positive.

    RBDA Table 6.3.
    """
    parent, (L,) = _factored(ltl_at_state, H, parent, _not_positive_definite)
    return Factor(L, None, parent)


def ltdl(H: ArrayLike, parent: Sequence[int]) -> Factor:
    """L and D of H = L^T D L: L lower triangular with 1 on its diagonal and the zeros of H; D diagonal and positive.

    Arguments, errors and source as of `ltl`.
    """
    return ltdl_or(_not_positive_definite, H, parent)


def ltdl_or(failure: Failure, H: ArrayLike, parent: Sequence[int]) -> Factor:
    """`ltdl` that raises failure(k, pivot, states) if the pivot of row k is not positive (states: of a batch)."""
    parent, (L, D) = _factored(ltdl_at_state, H, parent, failure)
    return Factor(L, D, parent)


def mul_H(H: ArrayLike, parent: Sequence[int], x: ArrayLike) -> np.ndarray:
    """H x (…, n) over the entries that the tree leaves. H and parent as of `ltl`, x (…, n). Raises InvalidInput.

    RBDA Table 6.5.
    """
    paths, H = _checked(H, parent)
    n = len(paths)
    (y,) = run_arrays(partial(mul_H_at_state, paths), {"H": (H, (n, n)), "x": (x, (n,))})
    return y


# ---- the algorithms, for one state -----------------------------------------------------------------------------------


def ltl_at_state(paths: Paths, failure: Failure, H: np.ndarray) -> tuple[np.ndarray]:
    L = _lower(paths, H)
    for k in reversed(range(len(paths))):
        _require_positive(failure, k, L[k, k], H[k, k])
        L[k, k] = sqrt(L[k, k])
        for i in paths[k]:
            L[k, i] = L[k, i] / L[k, k]
        for i in paths[k]:
            for j in (i, *paths[i]):
                L[i, j] = L[i, j] - L[k, i] * L[k, j]
    return (L,)


def ltdl_at_state(paths: Paths, failure: Failure, H: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    L = _lower(paths, H)
    for k in reversed(range(len(paths))):
        _require_positive(failure, k, L[k, k], H[k, k])
        for i in paths[k]:
            a = L[k, i] / L[k, k]
            for j in (i, *paths[i]):
                L[i, j] = L[i, j] - a * L[k, j]
            L[k, i] = a
    D = L.diagonal().copy()
    np.fill_diagonal(L, 1.0)
    return L, D


def mul_L_at_state(paths: Paths, x: np.ndarray, L: np.ndarray, D: np.ndarray | None = None) -> tuple[np.ndarray]:
    y = x.copy() if D is not None else L.diagonal() * x
    for i, path in enumerate(paths):
        for j in path:
            y[i] = y[i] + L[i, j] * x[j]
    return (y,)


def mul_Lt_at_state(paths: Paths, x: np.ndarray, L: np.ndarray, D: np.ndarray | None = None) -> tuple[np.ndarray]:
    y = x.copy() if D is not None else L.diagonal() * x
    for i, path in enumerate(paths):
        for j in path:
            y[j] = y[j] + L[i, j] * x[i]
    return (y,)


def solve_L_at_state(paths: Paths, x: np.ndarray, L: np.ndarray, D: np.ndarray | None = None) -> tuple[np.ndarray]:
    x = x.copy()
    for i, path in enumerate(paths):
        for j in path:
            x[i] = x[i] - L[i, j] * x[j]
        if D is None:
            x[i] = x[i] / L[i, i]
    return (x,)


def solve_Lt_at_state(paths: Paths, x: np.ndarray, L: np.ndarray, D: np.ndarray | None = None) -> tuple[np.ndarray]:
    x = x.copy()
    for i in reversed(range(len(paths))):
        if D is None:
            x[i] = x[i] / L[i, i]
        for j in paths[i]:
            x[j] = x[j] - L[i, j] * x[i]
    return (x,)


def solve_at_state(paths: Paths, b: np.ndarray, L: np.ndarray, D: np.ndarray | None = None) -> tuple[np.ndarray]:
    (y,) = solve_Lt_at_state(paths, b, L, D)
    return solve_L_at_state(paths, y if D is None else y / D, L, D)


def mul_H_at_state(paths: Paths, H: np.ndarray, x: np.ndarray) -> tuple[np.ndarray]:
    y = H.diagonal() * x
    for i, path in enumerate(paths):
        for j in path:
            y[i] = y[i] + H[i, j] * x[j]
            y[j] = y[j] + H[i, j] * x[i]
    return (y,)


def _lower(paths: Paths, H: np.ndarray) -> np.ndarray:
    """The entries of H on and below the diagonal that the tree leaves; H is factored in their place."""
    L = np.full(H.shape, 0.0, dtype=H.dtype)
    for k, path in enumerate(paths):
        for j in (k, *path):
            L[k, j] = H[k, j]
    return L


# ---- checks ----------------------------------------------------------------------------------------------------------


def _factored(recursion: Callable, H, parent: Sequence[int], failure: Failure) -> tuple[tuple[int, ...], tuple]:
    paths, H = _checked(H, parent)
    n = len(paths)
    return tuple(int(p) for p in parent), run_arrays(partial(recursion, paths, failure), {"H": (H, (n, n))})


def ancestors(parent: Sequence[int]) -> Paths:
    """The ancestors of each row, the nearest first. Raises InvalidInput naming the entry that makes it no tree."""
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


def _checked(H, parent: Sequence[int]) -> tuple[Paths, np.ndarray]:
    """(ancestors, H): H as an array of their shape, symmetric and with the zeros of the tree."""
    paths = ancestors(parent)
    n = len(paths)
    H = checked_array("H", H, (n, n))
    outside = np.ones((n, n), dtype=bool)
    for k, path in enumerate(paths):
        outside[k, k] = False
        outside[k, list(path)] = outside[list(path), k] = False
    if H.dtype == object:
        wrong = outside & np.vectorize(lambda x: not is_zero(x), otypes=[bool])(H)
        lopsided = np.zeros(H.shape, dtype=bool)
    else:
        diagonal = np.sqrt(np.abs(np.diagonal(H, axis1=-2, axis2=-1)))
        size = UNEQUAL * diagonal[..., :, None] * diagonal[..., None, :]
        wrong = outside & (np.abs(H) > size)
        lopsided = np.abs(H - np.swapaxes(H, -1, -2)) > size
    if np.any(wrong):
        *state, i, j = (int(k) for k in np.argwhere(wrong)[0])
        raise InvalidInput(
            f"H[{i}, {j}] is {H[(*state, i, j)]}{_in_state(state)}, but neither of {i} and {j} is an ancestor of the "
            f"other in `parent`, so it has to be 0; the ancestors of {max(i, j)} are {list(paths[max(i, j)])}"
        )
    if np.any(lopsided):
        *state, i, j = (int(k) for k in np.argwhere(lopsided)[0])
        raise InvalidInput(
            f"H is not symmetric{_in_state(state)}: H[{i}, {j}] is {H[(*state, i, j)]}, "
            f"but H[{j}, {i}] is {H[(*state, j, i)]}"
        )
    return paths, H


def _in_state(index: Sequence[int]) -> str:
    return f" in state {index[0] if len(index) == 1 else tuple(index)}" if index else ""


def _require_positive(failure: Failure, k: int, pivot, diagonal) -> None:
    """Raise failure(k, …) unless the pivot is above the rounding of the diagonal entry that it is the rest of."""
    if not is_number(pivot):
        return
    bad = ~(pivot > PIVOT_ROUNDING * (np.abs(diagonal) if is_number(diagonal) else 0.0))
    if np.any(bad):
        states = tuple(int(state) for state in np.flatnonzero(bad)) if np.ndim(bad) else ()
        raise failure(k, float(np.min(pivot)), states)


def _not_positive_definite(k: int, pivot: float, states: tuple[int, ...]) -> SingularState:
    return SingularState(
        f"H is not positive definite{f' in {len(states)} of the states given' if states else ''}: in row {k}, "
        f"{pivot:.3g} is left of the diagonal entry when the rows below are eliminated. A row of an inertia matrix "
        "is so when its joint moves no inertia; otherwise look at how H was made.",
        equation=f"H[{k}]",
        unknown=f"x[{k}]",
        states=states,
    )
