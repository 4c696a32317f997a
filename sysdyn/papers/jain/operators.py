"""Spatial operators of a tree as actions on stacked vectors: recursions over the nodes, never a matrix.

Nodes are numbered 0 … n−1 with parent[k] < k and −1 for the inertial node, which takes no part. Jain's canonical trees
number the other way (a child before its parent), so what is strictly lower triangular there is strictly upper
triangular here. `.T` is his *. Blocks may have any size, differ from node to node, and be singular. Everything is
generic over float and Expr.

A. Jain, "Graph theoretic foundations of multibody dynamics", part II (2011), "Jain II" below; §3, 4 and 7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from sysdyn.errors import InvalidInput, ModelError
from sysdyn.program.arrays import is_integer
from sysdyn.program.groups import slices

Blocks = list[np.ndarray]  # A stacked vector or several as columns, cut by nodes.
Sizes = tuple[int, ...]  # The number of components of each node.


class Operator:
    """A linear map between stacked vectors; `@` composes and applies, `+` and `−` add, `.T` is the transpose.

    rows, cols: the sizes of the blocks of what it gives and of what it takes. `A @ x` takes a stacked vector
    (sum(cols),) or several as columns (sum(cols), m), and `A @ B` is an operator again: nothing is computed before a
    vector comes. Raises InvalidInput if blocks do not match (Jain II §2.3, compatibility).
    """

    __array_ufunc__ = None  # so that `array @ operator` is an error, not an array of operators

    def __init__(
        self, rows: Sizes, cols: Sizes, product: Callable[[Blocks], Blocks], transposed: Callable[[Blocks], Blocks]
    ):
        self.rows, self.cols = rows, cols
        self._product, self._transposed = product, transposed

    @property
    def T(self) -> Operator:
        """The transpose."""
        return Operator(self.cols, self.rows, self._transposed, self._product)

    @overload
    def __matmul__(self, other: Operator) -> Operator: ...
    @overload
    def __matmul__(self, other: np.ndarray) -> np.ndarray: ...

    def __matmul__(self, other):
        if isinstance(other, Operator):
            if self.cols != other.rows:
                raise InvalidInput(f"operators that do not compose: {_sized(self)} @ {_sized(other)}")
            return Operator(
                self.rows,
                other.cols,
                lambda x: self._product(other._product(x)),
                lambda y: other._transposed(self._transposed(y)),
            )
        x = np.asarray(other)
        if x.ndim not in (1, 2) or len(x) != sum(self.cols):
            raise InvalidInput(
                f"{_sized(self)} @ an array of shape {x.shape}; ({sum(self.cols)},) or columns are needed"
            )
        return np.concatenate(self._product([x[part] for part in slices(self.cols)]))

    def __add__(self, other: Operator) -> Operator:
        return self._combined(other, np.add)

    def __sub__(self, other: Operator) -> Operator:
        return self._combined(other, np.subtract)

    def _combined(self, other: Operator, ufunc: Callable) -> Operator:
        if (self.rows, self.cols) != (other.rows, other.cols):
            raise InvalidInput(f"operators that cannot be added: {_sized(self)} and {_sized(other)}")

        def both(left: Callable[[Blocks], Blocks], right: Callable[[Blocks], Blocks]) -> Callable[[Blocks], Blocks]:
            return lambda x: [ufunc(a, b) for a, b in zip(left(x), right(x), strict=True)]

        return Operator(
            self.rows, self.cols, both(self._product, other._product), both(self._transposed, other._transposed)
        )

    def to_dense(self) -> np.ndarray:
        """The matrix (sum(rows), sum(cols)): the operator applied to the columns of 1."""
        return self @ np.eye(sum(self.cols))

    def __repr__(self) -> str:
        return f"<{_sized(self)}>"


class BlockDiagonal(Operator):
    """diag(blocks): one block a node, of any shapes; products, sums and transposes of these are block-diagonal too.

    Raises ModelError naming a block that is no matrix of finite numbers.
    """

    def __init__(self, blocks: Sequence[np.ndarray]):
        self.blocks = tuple(checked_block(f"block {k}", B) for k, B in enumerate(blocks))
        super().__init__(
            tuple(len(B) for B in self.blocks),
            tuple(B.shape[1] for B in self.blocks),
            lambda x: [B @ y for B, y in zip(self.blocks, x, strict=True)],
            lambda x: [B.T @ y for B, y in zip(self.blocks, x, strict=True)],
        )

    @classmethod
    def identity(cls, sizes: Sizes) -> BlockDiagonal:
        """1 on stacked vectors with blocks of these sizes."""
        return cls([np.eye(m) for m in sizes])

    @property
    def T(self) -> BlockDiagonal:
        return BlockDiagonal([B.T for B in self.blocks])

    def __getitem__(self, k: int) -> np.ndarray:
        """The block of node k."""
        return self.blocks[k]

    def __matmul__(self, other: Any) -> Any:
        product = super().__matmul__(other)
        if isinstance(other, BlockDiagonal):
            return BlockDiagonal([A @ B for A, B in zip(self.blocks, other.blocks, strict=True)])
        return product

    def _combined(self, other: Operator, ufunc: Callable) -> Operator:
        combined = super()._combined(other, ufunc)
        if isinstance(other, BlockDiagonal):
            return BlockDiagonal([ufunc(A, B) for A, B in zip(self.blocks, other.blocks, strict=True)])
        return combined


class SPO(Operator):
    """φ = (1 − ℰ_φ)⁻¹, the spatial propagation operator of the weights φ(λ(k), k) on the edges of a tree.

    parent (n): parent[k] < k, or −1 for a node without a parent. sizes (n): of the blocks. weights (n): φ(λ(k), k) of
        shape (sizes[λ(k)], sizes[k]); what is given for a node without a parent is not looked at. names (n): of the
        nodes, for messages.

    φ(j, k) is the product of the weights along the path from k up to j, 1 for j = k and 0 if j is no ancestor of k.
    Raises ModelError naming the node whose parent, or the edge whose weight, is wrong.
    Jain II §2.1, Lemmas 1 and 2, Corollary 3.1.
    """

    def __init__(
        self,
        parent: Sequence[int],
        sizes: Sequence[int],
        weights: Sequence[np.ndarray | None],
        names: Sequence[str] | None = None,
    ):
        self.parent = checked_parents(parent, names)
        self.sizes = tuple(int(m) for m in sizes)
        for what, found in (("sizes", self.sizes), ("weights", weights)):
            if len(found) != len(self.parent):
                raise ModelError(f"there are {len(found)} {what}, but parent has {len(self.parent)} nodes")
        self.weights = tuple(
            np.zeros((0, self.sizes[k])) if p < 0 else self._checked_weight(k, weights[k], names)
            for k, p in enumerate(self.parent)
        )
        super().__init__(self.sizes, self.sizes, self._gather, self._scatter)

    def _gather(self, x: Blocks) -> Blocks:
        """y = φ x, tips to base: y(k) = Σ_j φ(k, j) y(j) + x(k) over the children j of k. Lemma 1, eq. (5)."""
        y = list(x)
        for k, p, weight in self._edges(reverse=True):
            y[p] = y[p] + weight @ y[k]
        return y

    def _scatter(self, x: Blocks) -> Blocks:
        """y = φ* x, base to tips: y(k) = φ*(λ(k), k) y(λ(k)) + x(k). Lemma 2, eq. (8)."""
        y = list(x)
        for k, p, weight in self._edges():
            y[k] = weight.T @ y[p] + x[k]
        return y

    @property
    def strict(self) -> Operator:
        """φ̃ = φ − 1 = ℰ_φ φ."""
        return Operator(self.sizes, self.sizes, self._strict_gather, self._strict_scatter)

    def _strict_gather(self, x: Blocks) -> Blocks:
        """y = φ̃ x, tips to base: y(k) = Σ_j φ(k, j) [y(j) + x(j)]. Corollary 3.1."""
        y = [_zeros_like(part) for part in x]
        for k, p, weight in self._edges(reverse=True):
            y[p] = y[p] + weight @ (y[k] + x[k])
        return y

    def _strict_scatter(self, x: Blocks) -> Blocks:
        """y = φ̃* x, base to tips: y(k) = φ*(λ(k), k) [y(λ(k)) + x(λ(k))]. Corollary 3.1."""
        y = [_zeros_like(part) for part in x]
        for k, p, weight in self._edges():
            y[k] = weight.T @ (y[p] + x[p])
        return y

    @property
    def kernel(self) -> Operator:
        """ℰ_φ, the spatial kernel operator: φ(λ(k), k) at block (λ(k), k), strictly upper triangular here."""

        def product(x: Blocks) -> Blocks:
            y = [_zeros_like(part) for part in x]
            for k, p, weight in self._edges():
                y[p] = y[p] + weight @ x[k]
            return y

        def transposed(x: Blocks) -> Blocks:
            y = [_zeros_like(part) for part in x]
            for k, p, weight in self._edges():
                y[k] = weight.T @ x[p]
            return y

        return Operator(self.sizes, self.sizes, product, transposed)

    @property
    def inv(self) -> Operator:
        """φ⁻¹ = 1 − ℰ_φ."""
        return BlockDiagonal.identity(self.sizes) - self.kernel

    def climb(self, k: int, B: np.ndarray) -> dict[int, np.ndarray]:
        """{j: φ(j, k) B} for j = k and each of its ancestors, carried up the path; B (sizes[k], m)."""
        found = {k: B}
        while self.parent[k] >= 0:
            B = self.weights[k] @ B
            k = self.parent[k]
            found[k] = B
        return found

    def __getitem__(self, index: tuple[int, int]) -> np.ndarray:
        """φ(j, k) (sizes[j], sizes[k])."""
        j, k = index
        found = self.climb(k, np.eye(self.sizes[k]))
        return found[j] if j in found else np.zeros((self.sizes[j], self.sizes[k]))

    def common_ancestor(self, j: int, k: int) -> int:
        """The closest node on both paths to the base, j and k included; −1 if they belong to different trees."""
        while j != k:
            j, k = (self.parent[j], k) if j > k else (j, self.parent[k])
        return j

    def _edges(self, reverse: bool = False):
        """(k, λ(k), φ(λ(k), k)) of each node that has a parent: parents first, or children first."""
        nodes = range(len(self.parent))
        return (
            (k, self.parent[k], self.weights[k]) for k in (reversed(nodes) if reverse else nodes) if self.parent[k] >= 0
        )

    def _checked_weight(self, k: int, weight: np.ndarray | None, names: Sequence[str] | None) -> np.ndarray:
        p = self.parent[k]
        edge = f"the weight φ({p}, {k}) of the edge from {label(k, names)} to its parent {label(p, names)}"
        array = checked_block(edge, weight)
        if array.shape != (self.sizes[p], self.sizes[k]):
            raise ModelError(
                f"{edge} has shape {array.shape}, but with blocks of {self.sizes[p]} and {self.sizes[k]} it has to be "
                f"{(self.sizes[p], self.sizes[k])}"
            )
        return array


class ForwardLyapunov(Operator):
    """Z = A X B* for SPO operators A, B of one tree (B = A unless given) and block-diagonal X.

    Z = Y + Ã Y + Y B̃* with the block-diagonal solution Y of Y − ℰ_A Y ℰ_B* = X, gathered from the tips:

        Y(k) = Σ_j A(k, j) Y(j) B*(k, j) + X(k)

    Y: that solution. `Z[j, k]` is A(j, k) Y(k) where j is an ancestor of k, Y(j) B*(k, j) where k is one of j, and 0
    where they are unrelated.  Jain II Lemma 3, eq. (11) to (15).
    """

    def __init__(self, A: SPO, X: BlockDiagonal, B: SPO | None = None):
        self.A, self.B = A, A if B is None else B
        _require_one_tree(self.A, X, self.B)
        Y = list(X.blocks)
        for (k, p, a), (_, _, b) in zip(self.A._edges(reverse=True), self.B._edges(reverse=True), strict=True):
            Y[p] = Y[p] + a @ Y[k] @ b.T
        self.Y = BlockDiagonal(Y)
        Z = self.A @ X @ self.B.T
        super().__init__(Z.rows, Z.cols, Z._product, Z._transposed)

    def __getitem__(self, index: tuple[int, int]) -> np.ndarray:
        j, k = index
        return self.A[j, k] @ self.Y[k] if j <= k else self.Y[j] @ self.B[k, j].T


class BackwardLyapunov(Operator):
    """Z = A* X B for SPO operators A, B of one tree (B = A unless given) and block-diagonal X.

    Z = Y + Ã* Y + Y B̃ + R with the block-diagonal solution Y of Y − diagOf(ℰ_A* Y ℰ_B) = X, scattered from the base:

        Y(k) = A*(λ(k), k) Y(λ(k)) B(λ(k), k) + X(k)

    Y: that solution. `Z[j, k]` is A*(i, j) Y(i) B(i, k) with i the closest common ancestor of j and k (one of them, if
    they are related; R holds the pairs that are not), and 0 if there is none. In a serial chain R = 0.
    Jain II Lemmas 5 and 6, Algorithm 4.3.
    """

    def __init__(self, A: SPO, X: BlockDiagonal, B: SPO | None = None):
        self.A, self.B = A, A if B is None else B
        _require_one_tree(self.A, X, self.B)
        Y = list(X.blocks)
        for (k, p, a), (_, _, b) in zip(self.A._edges(), self.B._edges(), strict=True):
            Y[k] = a.T @ Y[p] @ b + Y[k]
        self.Y = BlockDiagonal(Y)
        Z = self.A.T @ X @ self.B
        super().__init__(Z.rows, Z.cols, Z._product, Z._transposed)

    def __getitem__(self, index: tuple[int, int]) -> np.ndarray:
        j, k = index
        i = self.A.common_ancestor(j, k)
        if i < 0:
            return np.zeros((self.A.sizes[j], self.B.sizes[k]))
        return self.A[i, j].T @ self.Y[i] @ self.B[i, k]


class BlockPattern(NamedTuple):
    """Blocks (n, n) of ℰ_φ, of φ and of the mass matrix that the tree alone lets differ from zero."""

    kernel: np.ndarray
    phi: np.ndarray
    mass: np.ndarray


def segment_tree(parent: Sequence[int]) -> Any:
    """The tree of branches: a node for each serial-chain segment, an edge from each segment to the next ones behind it.

    It is a networkx.DiGraph. A segment is the tuple of its nodes from base to tip; it ends where the tree branches or
    ends. Raises ModelError as `SPO`. Jain II §7.1.
    """
    import networkx as nx  # a tenth of `import sysdyn`, for this tree alone

    parent = checked_parents(parent)
    children = np.bincount([p for p in parent if p >= 0], minlength=len(parent))
    segments: list[list[int]] = []
    number: list[int] = []  # of the segment of each node
    for k, p in enumerate(parent):
        if p >= 0 and children[p] == 1:
            segments[number[p]].append(k)
            number.append(number[p])
        else:
            number.append(len(segments))
            segments.append([k])
    tree = nx.DiGraph()
    tree.add_nodes_from(tuple(segment) for segment in segments)
    hanging = [segment for segment in segments if parent[segment[0]] >= 0]
    tree.add_edges_from((tuple(segments[number[parent[s[0]]]]), tuple(s)) for s in hanging)
    return tree


def segment_pattern(tree: Any) -> BlockPattern:
    """The blocks that the tree of branches lets differ from zero; `tree` from `segment_tree`.

    On its own nodes a segment has the pattern of a serial chain (ℰ_φ one diagonal, φ a triangle, ℳ full); where one
    segment hangs on another, ℰ_φ connects the tip of the one to the first node of the other; where they are related,
    the blocks of φ and ℳ are full; all else is zero. Jain II §7.2 to 7.4, eq. (61) to (63).
    """
    import networkx as nx  # see `segment_tree`

    n = sum(len(segment) for segment in tree)
    kernel, phi, mass = np.zeros((3, n, n), dtype=bool)
    for segment in tree:
        for position, k in enumerate(segment):
            kernel[k, segment[position + 1 : position + 2]] = True
            phi[k, segment[position:]] = True
            mass[k, segment] = True
    for upper, lower in tree.edges:
        kernel[upper[-1], lower[0]] = True
    for upper, lower in nx.transitive_closure_dag(tree).edges:
        phi[np.ix_(upper, lower)] = mass[np.ix_(upper, lower)] = mass[np.ix_(lower, upper)] = True
    return BlockPattern(kernel, phi, mass)


# ---- checks --------------------------------------------------------------------------------------------------------


def label(k: int, names: Sequence[str] | None) -> str:
    """Node k, for a message."""
    return f"node {k}" if names is None else f"node {k} ({names[k]!r})"


def checked_parents(parent: Sequence[int], names: Sequence[str] | None = None) -> tuple[int, ...]:
    """`parent` as integers. Raises ModelError naming the node that breaks the numbering from the base."""
    n = len(parent)
    if n == 0:
        raise ModelError("parent is empty; a tree needs at least one node")
    if names is not None and len(names) != n:
        raise ModelError(f"there are {len(names)} names, but parent has {n} nodes")
    for k, p in enumerate(parent):
        node = label(k, names)
        if not is_integer(p):
            raise ModelError(f"the parent of {node} is {p!r}; each node of a tree has one parent, a node number or −1")
        if not -1 <= p < n:
            raise ModelError(f"the parent of {node} is {p}; valid: −1 (the inertial node) to {n - 1}")
    for k, p in enumerate(parent):
        if p >= k:
            path = [k]
            while parent[path[-1]] >= 0 and parent[path[-1]] not in path:
                path.append(parent[path[-1]])
            if parent[path[-1]] in path:
                cycle = " → ".join(str(j) for j in [*path, parent[path[-1]]])
                raise ModelError(f"{label(k, names)} leads into a cycle, {cycle}: the parents form no tree")
            raise ModelError(f"parent[{k}] = {p}: number the nodes so that each parent comes before its children")
    return tuple(int(p) for p in parent)


def checked_block(what: str, value: Any) -> np.ndarray:
    """`value` as a two-dimensional array of finite floats, or of objects. Raises ModelError naming `what` it is."""
    array = np.asarray(value)
    if array.ndim != 2:
        raise ModelError(f"{what} has shape {array.shape}; a matrix is needed")
    if array.dtype.kind not in "iufO":
        raise ModelError(f"{what} has dtype {array.dtype}; real numbers are needed")
    if array.dtype == object:
        return array
    if not np.isfinite(array).all():
        raise ModelError(f"{what} has an entry that is not a finite number")
    return array.astype(float, copy=False)


def _require_one_tree(A: SPO, X: BlockDiagonal, B: SPO) -> None:
    if A.parent != B.parent:
        raise InvalidInput(f"the two SPO operators belong to different trees: {A.parent} and {B.parent}")
    if (X.rows, X.cols) != (A.sizes, B.sizes):
        raise InvalidInput(f"X is {_sized(X)}, but blocks of {_shown(A.sizes)} × {_shown(B.sizes)} are needed")


def _zeros_like(x: np.ndarray) -> np.ndarray:
    return np.full(x.shape, 0.0)


def _shown(sizes: Sizes) -> str:
    return "[" + ", ".join(str(m) for m in sizes[:6]) + (f", … ({len(sizes)})]" if len(sizes) > 6 else "]")


def _sized(operator: Operator) -> str:
    return f"{type(operator).__name__} {_shown(operator.rows)} × {_shown(operator.cols)}"
