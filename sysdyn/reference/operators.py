"""Matrix-free spatial operators of a tree: recursions over the nodes that act on stacked vectors.

Nodes are numbered 0 … n−1 with parent[k] < k and −1 for the inertial node, which has no block. Jain numbers children
before parents, so his strictly lower triangular operators are strictly upper triangular here. `.T` is his *. Blocks may
differ in size from node to node and be singular. Everything is generic over float and Expr.

A. Jain, "Graph theoretic foundations of multibody dynamics", part II (2011), "Jain II" below; §3, 4 and 7.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple, overload

import numpy as np
import scipy  # loads scipy.linalg lazily
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, ModelError, SingularState
from sysdyn.model import Model
from sysdyn.model.kinematics import joint_transforms, velocities
from sysdyn.model.se3 import cross_force
from sysdyn.program.arrays import is_integer
from sysdyn.program.groups import slices
from sysdyn.reference.generic import checked_array, run
from sysdyn.reference.ltdl import ldl_solve, ltdl_at_state

Blocks = list[np.ndarray]  # A stacked vector, or several as columns, split by nodes.
Sizes = tuple[int, ...]  # The number of components of each node.


class Operator:
    """A linear map between stacked vectors; `@` composes and applies, `+` and `−` add, `.T` is the transpose.

    rows, cols: block sizes of the output and of the input. `A @ x` takes a stacked vector (sum(cols),) or several as
    columns (sum(cols), m). `A @ B` is an operator, evaluated lazily. Raises InvalidInput if block sizes do not match
    (Jain II §2.3, compatibility).
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
        """Dense matrix (sum(rows), sum(cols))."""
        return self @ np.eye(sum(self.cols))

    def __repr__(self) -> str:
        return f"<{_sized(self)}>"


class BlockDiagonal(Operator):
    """diag(blocks), one block per node, of any shape; closed under products, sums and transposes.

    Raises ModelError naming a block that is not a finite matrix.
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
        """Identity with blocks of the given sizes."""
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

    parent (n): parent[k] < k, or −1 for a node without a parent. sizes (n): block sizes. weights (n): φ(λ(k), k) of
        shape (sizes[λ(k)], sizes[k]); ignored for nodes without a parent. names (n): node names for messages.

    φ(j, k) is the product of the weights along the path from k up to j, 1 for j = k and 0 if j is not an ancestor of k.
    Raises ModelError naming the node with a wrong parent or the edge with a wrong weight.
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
        for what, sequence in (("sizes", self.sizes), ("weights", weights)):
            if len(sequence) != len(self.parent):
                raise ModelError(f"there are {len(sequence)} {what}, but parent has {len(self.parent)} nodes")
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
        """φ̃ = φ − 1 = ℰ_φ φ. Corollary 3.1."""
        return self.kernel @ self

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
        """{j: φ(j, k) B} for k and each ancestor j of k; B (sizes[k], m)."""
        products = {k: B}
        while self.parent[k] >= 0:
            B = self.weights[k] @ B
            k = self.parent[k]
            products[k] = B
        return products

    def __getitem__(self, index: tuple[int, int]) -> np.ndarray:
        """φ(j, k) (sizes[j], sizes[k])."""
        j, k = index
        products = self.climb(k, np.eye(self.sizes[k]))
        return products[j] if j in products else np.zeros((self.sizes[j], self.sizes[k]))

    def common_ancestor(self, j: int, k: int) -> int:
        """The closest node on both paths to the base, j and k included; −1 if they belong to different trees."""
        while j != k:
            j, k = (self.parent[j], k) if j > k else (j, self.parent[k])
        return j

    def _edges(self, reverse: bool = False):
        """(k, λ(k), φ(λ(k), k)) of each node with a parent: parents first, or children first if `reverse`."""
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

    Z = Y + Ã Y + Y B̃* with the block-diagonal solution Y of Y − ℰ_A Y ℰ_B* = X, computed from the tips:

        Y(k) = Σ_j A(k, j) Y(j) B*(k, j) + X(k)

    Y: this solution. `Z[j, k]` is A(j, k) Y(k) if j = k or an ancestor of k, Y(j) B*(k, j) if k is an ancestor of j,
    else 0. Jain II Lemma 3, eq. (11) to (15).
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

    Z = Y + Ã* Y + Y B̃ + R with the block-diagonal solution Y of Y − diagOf(ℰ_A* Y ℰ_B) = X,
    computed from the base:

        Y(k) = A*(λ(k), k) Y(λ(k)) B(λ(k), k) + X(k)

    Y: this solution. `Z[j, k]` is A*(i, j) Y(i) B(i, k), i the closest common ancestor of j and k, or 0 without one.
    R contains the blocks of unrelated nodes j, k; in a serial chain R = 0.
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
    """Structural nonzero blocks of ℰ_φ, φ and the mass matrix: (n, n) bool arrays."""

    kernel: np.ndarray
    phi: np.ndarray
    mass: np.ndarray


def segment_tree(parent: Sequence[int]) -> Any:
    """Tree of serial-chain segments as a networkx.DiGraph, with edges from each segment to its child segments.

    A segment is the tuple of its nodes from base to tip; it ends at a branching node or a leaf. Raises ModelError
    as `SPO`. Jain II §7.1.
    """
    import networkx as nx  # slow import (a tenth of `import sysdyn`), needed only here

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
    """Block sparsity of a tree of segments; `tree` from `segment_tree`.

    Within a segment the pattern is that of a serial chain: ℰ_φ one diagonal, φ a triangle, ℳ full. Between a segment
    and its child, ℰ_φ connects the tip of the segment to the first node of the child. Between an ancestor and a
    descendant segment, φ and ℳ are full. All other blocks are zero. Jain II §7.2 to 7.4, eq. (61) to (63).
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
    """Name of node k in error messages."""
    return f"node {k}" if names is None else f"node {k} ({names[k]!r})"


def checked_parents(parent: Sequence[int], names: Sequence[str] | None = None) -> tuple[int, ...]:
    """`parent` as integers. Raises ModelError naming a node that violates parent[k] < k."""
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
            raise ModelError(f"the parent of {label(k, names)} is {p}: number the nodes so that parents come first")
    return tuple(int(p) for p in parent)


def checked_block(what: str, value: Any) -> np.ndarray:
    """`value` as a two-dimensional array of finite floats, or of objects. Raises ModelError; `what` names the block."""
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


# ---- SKO models ----------------------------------------------------------------------------------------------------

Task = tuple[int, np.ndarray]  # (k, B): a task frame on node k with velocity B* V(k).


class Riccati(NamedTuple):
    """The block-diagonal solution P of M = P − ℰ_φ [P − P H* (H P H*)⁻¹ H P] ℰ_φ* and operators made of it.

    P: articulated inertias. D = H P H*, D_inv = D⁻¹. G = P H* D⁻¹. tau = G H and tau_bar = 1 − G H are projections.
    P_plus: P⁺ = τ̄ P. K = ℰ_φ G. psi: ψ = (1 − ℰ_ψ)⁻¹ with ℰ_ψ = ℰ_φ τ̄.  Jain II eq. (31) to (35).
    """

    P: BlockDiagonal
    D: BlockDiagonal
    D_inv: BlockDiagonal
    G: BlockDiagonal
    tau: BlockDiagonal
    tau_bar: BlockDiagonal
    P_plus: BlockDiagonal
    K: Operator
    psi: SPO


class SKOModel:
    """A tree of nodes with V = φ* H* θ̇, α = φ* (H* θ̈ + a), f = φ (M α + b) and T = H f.

    parent (n): parent[k] < k, −1 for nodes on the inertial node. names (n): node names for messages.
    phi (n): the weights φ(λ(k), k) (m_λ(k), m_k), with V(k) = φ*(λ(k), k) V(λ(k)) + H*(k) θ̇(k); None for nodes on the
        inertial node. They may be non-square and singular.
    H (n): H(k) (r_k, m_k) of full row rank (checked for floats); r_k may be 0.
    M (n): M(k) (m_k, m_k), symmetric. M(k) may be singular if H P H* is positive definite.
    a, b: node accelerations and forces that depend on the velocity, stacked (Σ m_k,); None: zero. Gravity is part of a:
        a(k) of nodes on the inertial node contains X_k a_0, so that α is proper acceleration.

    The attributes phi, H, M are operators (`SPO`, `BlockDiagonal`), a and b stacked vectors; θ̈ and T are stacked
    (Σ r_k,). Raises ModelError naming the node or edge with a wrong parent, shape, rank or inertia, and
    InvalidInput for vectors.
    Jain II §2.1, eq. (1).
    """

    def __init__(
        self,
        parent: Sequence[int],
        phi: Sequence[np.ndarray | None],
        H: Sequence[np.ndarray],
        M: Sequence[np.ndarray],
        a: np.ndarray | None = None,
        b: np.ndarray | None = None,
        *,
        names: Sequence[str] | None = None,
    ):
        self.names = None if names is None else tuple(names)
        self.parent = checked_parents(parent, self.names)
        nodes = [label(k, self.names) for k in range(len(parent))]
        for what, blocks in (("H", H), ("M", M)):
            if len(blocks) != len(nodes):
                raise ModelError(f"{what} has {len(blocks)} blocks, but parent has {len(nodes)} nodes")
        self.M = BlockDiagonal([_checked_inertia(block, node) for block, node in zip(M, nodes, strict=True)])
        self.H = BlockDiagonal([_checked_map(*each) for each in zip(H, self.M.rows, nodes, strict=True)])
        self.phi = SPO(self.parent, self.M.rows, phi, self.names)
        zero = np.zeros(sum(self.phi.sizes))
        self.a = zero if a is None else _stacked("a", a, len(zero))
        self.b = zero if b is None else _stacked("b", b, len(zero))

    @classmethod
    def from_model(
        cls, model: Model, q: ArrayLike, qd: ArrayLike | None = None, fx: ArrayLike | None = None
    ) -> SKOModel:
        """SKO model of a robot at one state: node k is body k, with blocks in body coordinates.

            φ(λ(k), k) = X_k^T    H(k) = S_k^T    M(k) = I_k    a(k) = c_k (+ X_k a_0 on the base)    b(k) = ν_k − fx_k

        A degree of freedom with armature adds its rotor to the node: V(k) = [v_k; θ̇], H(k) = [S_k^T, 1],
        M(k) = diag(I_k, A), with zero weights because a rotor carries no body. Nodes have 6 to 12 components.

        q (nq,), qd (nv,) (None: zero), fx (nb, 6) [N m, N] body k: external wrench (None: none). Floats or Expr.
        Raises InvalidInput.
        """
        if model.nb == 0:
            raise InvalidInput(f"model {model.name!r} has no moving bodies; an SKO model needs a node")
        qd = np.zeros(model.nv) if qd is None else qd
        X, a, b = run(_blocks_at, model, {"q": q, "qd": qd, "fx": fx})
        if X.ndim != 3:
            raise InvalidInput(f"an SKO model is of one state; q has shape {np.shape(q)}, qd {np.shape(qd)}")
        rotors = [_rotors(model, k) for k in range(model.nb)]
        weights, H, M = [], [], []
        for k, (p, joint, rotor) in enumerate(zip(model.parent, model.joints, rotors, strict=True)):
            armature = np.diag(model.armature[model.v_slice(k)])
            weights.append(None if p < 0 else _padded(X[k].T, rotors[p].shape[1], rotor.shape[1]))
            H.append(np.hstack([joint.S.T, rotor]))
            M.append(scipy.linalg.block_diag(model.inertias[k], rotor.T @ armature @ rotor))
        still = [np.zeros(rotor.shape[1]) for rotor in rotors]
        a, b = (np.concatenate([*chain.from_iterable(zip(x, still, strict=True))]) for x in (a, b))
        return cls(model.parent, weights, H, M, a, b, names=model.body_names)

    # ---- Newton-Euler factorisation ------------------------------------------------------------------------------

    @property
    def mass(self) -> Operator:
        """ℳ = H φ M φ* H*, applied in O(n). Eq. (2)."""
        return self.H @ self.phi @ self.M @ self.phi.T @ self.H.T

    @property
    def C(self) -> np.ndarray:
        """C = H φ (M φ* a + b) (Σ r_k,): Coriolis, gyroscopic and gravity forces minus external forces. Eq. (3)."""
        return self.H @ self.phi @ (self.M @ self.phi.T @ self.a + self.b)

    def inverse_dynamics(self, qdd: ArrayLike) -> np.ndarray:
        """Joint forces T (Σ r_k,) for the accelerations θ̈ (Σ r_k,). Algorithm 3.1, eq. (10)."""
        qdd = _stacked("qdd", qdd, sum(self.H.rows))
        alpha = self.phi.T @ (self.H.T @ qdd + self.a)
        f = self.phi @ (self.M @ alpha + self.b)
        return self.H @ f

    # ---- composite inertias ----------------------------------------------------------------------------------------

    @cached_property
    def R(self) -> BlockDiagonal:
        """Composite body inertias: R − ℰ_φ R ℰ_φ* = M. Eq. (18), Algorithm 4.1."""
        return ForwardLyapunov(self.phi, self.M).Y

    def mass_matrix(self) -> np.ndarray:
        """ℳ (Σ r_k, Σ r_k) = H R H* + H φ̃ R H* + H R φ̃* H*, nonzero for related nodes only. Lemma 4, Algorithm 4.2."""
        part = slices(self.H.rows)
        mass = np.full((sum(self.H.rows),) * 2, 0.0, dtype=self._dtype)
        for k in range(len(self.parent)):
            for j, X in self.phi.climb(k, self.R[k] @ self.H[k].T).items():  # φ(j, k) R(k) H*(k)
                block = self.H[j] @ X
                mass[part[j], part[k]], mass[part[k], part[j]] = block, block.T
        return mass

    # ---- articulated inertias --------------------------------------------------------------------------------------

    @cached_property
    def riccati(self) -> Riccati:
        """Solution of the Riccati equation, computed from the tips to the base.

            P(k) = Σ_j φ(k, j) P⁺(j) φ*(k, j) + M(k)    D(k) = H(k) P(k) H*(k)    G(k) = P(k) H*(k) D⁻¹(k)
            τ̄(k) = 1 − G(k) H(k)    P⁺(k) = τ̄(k) P(k)    ψ(λ(k), k) = φ(λ(k), k) τ̄(k)

        Raises SingularState naming a node if D(k) is not positive definite. Lemmas 7 and 8, eq. (33).
        """
        phi, H = self.phi, self.H
        P = list(self.M.blocks)
        D, D_inv, G, tau, tau_bar, P_plus = ([np.empty(0)] * len(P) for _ in range(6))
        for k in reversed(range(len(P))):
            D[k] = H[k] @ P[k] @ H[k].T
            D_inv[k] = ldl_solve(
                D[k], np.eye(len(D[k])).astype(D[k].dtype), partial(self._no_inertia, k), self._scale(k)
            )
            G[k] = P[k] @ H[k].T @ D_inv[k]
            tau[k] = G[k] @ H[k]
            tau_bar[k] = np.eye(len(P[k])) - tau[k]
            P_plus[k] = tau_bar[k] @ P[k]
            p, weight = self.parent[k], phi.weights[k]
            if p >= 0:
                P[p] = P[p] + weight @ P_plus[k] @ weight.T
        psi = [weight @ block for weight, block in zip(phi.weights, tau_bar, strict=True)]
        diag = BlockDiagonal
        return Riccati(
            diag(P), diag(D), diag(D_inv), diag(G), diag(tau), diag(tau_bar), diag(P_plus),
            K=phi.kernel @ diag(G), psi=SPO(self.parent, phi.sizes, psi, self.names),
        )  # fmt: skip

    @cached_property
    def innovations(self) -> Operator:
        """1 + H φ K, the unit triangular factor of ℳ = [1 + H φ K] D [1 + H φ K]*. Eq. (49)."""
        return BlockDiagonal.identity(self.H.rows) + self.H @ self.phi @ self.riccati.K

    @cached_property
    def innovations_inv(self) -> Operator:
        """[1 + H φ K]⁻¹ = 1 − H ψ K. Lemma 11, eq. (50)."""
        return BlockDiagonal.identity(self.H.rows) - self.H @ self.riccati.psi @ self.riccati.K

    @property
    def mass_inv(self) -> Operator:
        """ℳ⁻¹ = [1 − H ψ K]* D⁻¹ [1 − H ψ K], applied in O(n). Lemma 11, eq. (51)."""
        return self.innovations_inv.T @ self.riccati.D_inv @ self.innovations_inv

    def determinant(self):
        """det ℳ = Π_k det D(k). Corollary 6.1, eq. (53)."""
        pivots = [
            ltdl_at_state([tuple(reversed(range(i))) for i in range(len(block))], partial(self._no_inertia, k), block)[
                1
            ]
            for k, block in enumerate(self.riccati.D.blocks)
        ]
        return math.prod(pivot for D in pivots for pivot in D)

    def forward_dynamics(self, T: ArrayLike) -> np.ndarray:
        """θ̈ (Σ r_k,) = [1 − H ψ K]* D⁻¹ [T − H ψ (K T + P a + b)] − K* ψ* a, under the forces T (Σ r_k,).

        One pass to the base and one to the tips, as in the articulated-body algorithm; z = p^A + P a.
        Lemma 12, eq. (58), Algorithm 6.1.
        """
        T = _stacked("T", T, sum(self.H.rows))
        P, D_inv, K, psi = self.riccati.P, self.riccati.D_inv, self.riccati.K, self.riccati.psi
        z = psi @ (K @ T + P @ self.a + self.b)
        nu = D_inv @ (T - self.H @ z)
        alpha = psi.T @ (self.H.T @ nu + self.a)
        return nu - K.T @ alpha

    # ---- operational space -----------------------------------------------------------------------------------------

    @cached_property
    def Omega(self) -> BackwardLyapunov:
        """Ω = ψ* H* D⁻¹ H ψ, the extended operational space compliance matrix; its diagonal is `Omega.Y`. Eq. (60)."""
        return BackwardLyapunov(self.riccati.psi, self.H.T @ self.riccati.D_inv @ self.H)

    def operational_space_compliance(self, tasks: Sequence[Task]) -> np.ndarray:
        """Λ⁻¹ = 𝒥 ℳ⁻¹ 𝒥* = ℬ* Ω ℬ (Σ p, Σ p) of task frames (k, B), B (m_k, p), with velocity B* V(k).

        Block (i, j) is W_i* Y(c) W_j with the closest common ancestor c of the two nodes and W = ψ(c, k) B. The cost is
        O(n) for Y, O(n) per frame and O(1) per pair; ℳ⁻¹ and ℬ are not formed. `task_frames` returns the tasks of
        named frames. Raises InvalidInput naming a task with a wrong node or shape. Jain II §6.2, Lemma 5.
        """
        for i, (k, B) in enumerate(tasks):
            if not 0 <= k < len(self.parent) or np.ndim(B) != 2 or len(B) != self.phi.sizes[k]:
                raise InvalidInput(
                    f"task {i} is on node {k} with B of shape {np.shape(B)}; nodes are 0 to {len(self.parent) - 1} and "
                    "B needs a row for each component of V(k)"
                )
        carried = [self.riccati.psi.climb(k, B) for k, B in tasks]
        part = slices([B.shape[1] for _, B in tasks])
        compliance = np.full((sum(B.shape[1] for _, B in tasks),) * 2, 0.0, dtype=self._dtype)
        for i, (j, _) in enumerate(tasks):
            for l, (k, _) in enumerate(tasks[: i + 1]):
                c = self.phi.common_ancestor(j, k)
                if c >= 0:
                    block = carried[i][c].T @ (self.Omega.Y[c] @ carried[l][c])
                    compliance[part[i], part[l]], compliance[part[l], part[i]] = block, block.T
        return compliance

    def operational_space_inertia(self, tasks: Sequence[Task]) -> np.ndarray:
        """Λ (Σ p, Σ p), the inverse of `operational_space_compliance`.

        Raises SingularState naming a task that cannot move independently of the others.
        """
        compliance = self.operational_space_compliance(tasks)
        owner = [(i, component) for i, (_, B) in enumerate(tasks) for component in range(B.shape[1])]

        def dependent(row: int, pivot: float, states: tuple[int, ...]) -> SingularState:
            i, component = owner[row]
            return SingularState(
                f"component {component} of task {i}, on {label(tasks[i][0], self.names)}, does not move independently "
                f"of the others (pivot {pivot:.3g} of the compliance): Λ does not exist; leave it out, or use "
                "operational_space_compliance"
            )

        return ldl_solve(compliance, np.eye(len(compliance)).astype(compliance.dtype), dependent)

    # ---- other nodes -----------------------------------------------------------------------------------------------

    def aggregated(self, groups: Sequence[Sequence[int]] | None = None) -> SKOModel:
        """The same dynamics with one node per group; None: one per serial-chain segment.

        groups: a partition of the nodes into connected parts. φ_J is the SPO operator of group J alone, ℰ_pJ the
        connector block from its parent group. The new blocks are

            φ(λ(J), J) = ℰ_pJ φ_J    H(J) = H_J φ_J    M(J) = diag(M_J)    a(J) = φ_J* a_J    b(J) = b_J

        They are dense and in general not square. θ̈ and T are ordered by the first nodes of the groups, then by node.
        Raises InvalidInput naming a group that is not connected, or a node that is not in exactly one group.
        Jain II §8.1.
        """
        groups = _checked_groups(self.parent, list(segment_tree(self.parent)) if groups is None else groups)
        number = {k: J for J, group in enumerate(groups) for k in group}
        size, part = self.phi.sizes, slices(self.phi.sizes)
        parent, weights, H, M, a, b = [], [], [], [], [], []
        for group in groups:
            root, place = group[0], {k: i for i, k in enumerate(group)}
            inner = SPO(
                [place.get(self.parent[k], -1) for k in group],
                [size[k] for k in group],
                [self.phi.weights[k] for k in group],
            )
            phi_J = inner.to_dense()
            p = self.parent[root]
            parent.append(number.get(p, -1))
            above = groups[parent[-1]] if p >= 0 else []
            connector = [self.phi.weights[root] if k == p else np.zeros((size[k], size[root])) for k in above]
            weights.append(np.concatenate(connector) @ phi_J[: size[root]] if connector else None)
            H.append(BlockDiagonal([self.H[k] for k in group]).to_dense() @ phi_J)
            M.append(BlockDiagonal([self.M[k] for k in group]).to_dense())
            a.append(inner.T @ np.concatenate([self.a[part[k]] for k in group]))
            b.append(np.concatenate([self.b[part[k]] for k in group]))
        names = None if self.names is None else ["+".join(self.names[k] for k in group) for group in groups]
        return SKOModel(parent, weights, H, M, np.concatenate(a), np.concatenate(b), names=names)

    # ---- checks ----------------------------------------------------------------------------------------------------

    @property
    def _dtype(self) -> np.dtype:
        return np.result_type(*self.phi.weights, *self.H.blocks, *self.M.blocks)

    def _scale(self, k: int) -> np.ndarray | None:
        """Diagonal of H R H* at node k, the scale of the pivots of D(k); None in a symbolic model."""
        return None if self._dtype.hasobject else np.diag(self.H[k] @ self.R[k] @ self.H[k].T)

    def _no_inertia(self, k: int, row: int, pivot: float, states: tuple[int, ...]) -> SingularState:
        """SingularState for a pivot of D(k) that is not positive."""
        name = str(k) if self.names is None else self.names[k]
        return SingularState(
            f"H P H* of {label(k, self.names)} is not positive definite: pivot {row} is {pivot:.3g}. This degree of "
            "freedom moves no inertia, or an M is not positive definite: give the node inertia (or its joint "
            "armature), or take the degree of freedom away",
            equation=f"T({name})[{row}]",
            unknown=f"qdd({name})[{row}]",
        )


def task_frames(model: Model, *frames: str) -> list[Task]:
    """Tasks (k, B) of named frames, for `SKOModel.from_model`; B* V(k) is the velocity in frame coordinates.

    Raises UnknownName, and InvalidInput for a frame of the base, which does not move.
    """
    tasks = []
    for name in frames:
        frame = model.frame(name)
        if frame.body < 0:
            raise InvalidInput(f"frame {name!r} is fixed to the base; a task needs a frame that moves")
        tasks.append((frame.body, _padded(frame.X.T, _rotors(model, frame.body).shape[1], 0)))
    return tasks


def _blocks_at(model: Model, q, qd, fx) -> tuple[np.ndarray, ...]:
    """X (nb, 6, 6), a (nb, 6) and b (nb, 6) of the bodies at a state."""
    X = joint_transforms(model, q)
    v, c = velocities(model, X, qd)
    a = [c[k] + X[k] @ model.a0 if p < 0 else c[k] for k, p in enumerate(model.parent)]
    b = [cross_force(v[k], model.inertias[k] @ v[k]) for k in range(model.nb)]
    if fx is not None:
        b = [b[k] - fx[k] for k in range(model.nb)]
    return np.stack(X), np.stack(a), np.stack(b)


def _rotors(model: Model, k: int) -> np.ndarray:
    """Columns of the identity (n_k, n_k) for the degrees of freedom of joint k with an armature."""
    armature = model.armature[model.v_slice(k)]
    return np.eye(len(armature))[:, armature > 0.0]


def _padded(A: np.ndarray, rows: int, cols: int) -> np.ndarray:
    """A padded by `rows` zero rows and `cols` zero columns."""
    B = np.full((A.shape[0] + rows, A.shape[1] + cols), 0.0, dtype=A.dtype)
    B[: A.shape[0], : A.shape[1]] = A
    return B


def _stacked(name: str, x, size: int) -> np.ndarray:
    x = checked_array(name, x, (size,))
    if x.ndim != 1:
        raise InvalidInput(f"{name} has shape {x.shape}; an SKO model is of one state and takes ({size},)")
    return x


def _checked_map(H: np.ndarray, m: int, node: str) -> np.ndarray:
    H = checked_block(f"H of {node}", H)
    if H.shape[1] != m:
        raise ModelError(f"H of {node} has shape {H.shape}; its M is {m}×{m}, so H needs {m} columns")
    if H.dtype != object and len(H) and np.linalg.matrix_rank(H) < len(H):
        raise ModelError(
            f"H of {node}, of shape {H.shape}, has rank {np.linalg.matrix_rank(H)}: its columns are not independent; "
            "leave the redundant rows out"
        )
    return H


def _checked_inertia(M: np.ndarray, node: str) -> np.ndarray:
    M = checked_block(f"M of {node}", M)
    if M.shape[0] != M.shape[1]:
        raise ModelError(f"M of {node} has shape {M.shape}; a square matrix is needed")
    if M.dtype != object and np.max(np.abs(M - M.T), initial=0.0) > 1e-9 * np.max(np.abs(M), initial=0.0):
        raise ModelError(f"M of {node} is not symmetric")
    return M


def _checked_groups(parent: Sequence[int], groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Groups sorted by their first nodes, each sorted. Raises InvalidInput for an invalid partition."""
    ordered = sorted(sorted(group) for group in groups if len(group))
    count = Counter(k for group in ordered for k in group)
    wrong = [k for k in sorted({*count, *range(len(parent))}) if count[k] != 1 or not 0 <= k < len(parent)]
    if wrong:
        raise InvalidInput(f"the groups are no partition of the {len(parent)} nodes: see node {wrong[0]}")
    for group in ordered:
        inside = set(group)
        loose = [k for k in group[1:] if parent[k] not in inside]
        if loose:
            raise InvalidInput(f"group {group} is not connected: the parent of node {loose[0]} is {parent[loose[0]]}")
    return ordered
