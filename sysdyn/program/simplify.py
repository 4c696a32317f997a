"""Algebraic simplification of graphs: factoring of n-ary sums, and sharing of common pairs.

A sum with a single use in another sum is merged into it; products likewise. Then two greedy passes follow, each with
the most frequent factor or pair first:

    factoring   a b ± a c = a (b ± c), if both products have no other use;
    sharing     a pair of terms (or factors) that occurs in several sums (products) is computed once.

Results change by rounding errors only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sysdyn.program.graph import Expr, Graph
from sysdyn.program.opcodes import ADD, MUL, NEG, SUB

# Largest graph to simplify [operations]: for larger graphs it dominates the compile time (tuned).
MAX_OPS = 60_000

# (node, sign) of a term of a sum or a factor of a product. The sign of a factor is +1.
SignedNode = tuple[int, int]
# {sum: terms} or {product: factors}
NaryNodes = dict[int, list[SignedNode]]


def simplify(graph: Graph, outputs: Sequence) -> tuple[Graph, list]:
    """Simplify a graph. Returns (new graph, outputs in it). Input names are kept; unused nodes are omitted."""
    return _Simplifier(graph, outputs).result()


class _Simplifier:
    """N-ary sums and products of a graph. Node numbers are those of the graph; new nodes get the next numbers.

    Attributes
    ----------
    sums, products : dict
        {node: terms or factors}, without nodes that were merged into others.
    uses : list of int
        Number of uses of each node as an operand. Outputs count twice and are thus never merged.
    constants : dict
        {node: value}.
    """

    def __init__(self, graph: Graph, outputs: Sequence):
        self.graph, self.outputs = graph, list(outputs)
        self.sums: NaryNodes = {}
        self.products: NaryNodes = {}
        self.constants: dict[int, float] = dict(graph.constants)
        self._constant_id = {x: i for i, x in graph.constants.items()}
        self._flatten()
        self._factor_all()
        self._share(self.sums)
        self._factor_all()  # products in shared pairs now have a single use
        self._share(self.products)

    # ---- n-ary sums and products -----------------------------------------------------------------------------------

    def _flatten(self) -> None:
        """Collect terms of sums and factors of products. Inner sums and products with a single use are merged."""
        graph = self.graph
        live = graph.live(self.outputs)
        kind, lhs, rhs = (np.asarray(x, dtype=np.int64) for x in (graph.kind, graph.lhs, graph.rhs))
        live = live[kind[live] != NEG]
        operands = np.concatenate([lhs[live], rhs[live]])
        operands = operands[operands >= 0]
        operands = np.where(kind[operands] == NEG, lhs[operands], operands)
        results = [x.node for x in self.outputs if type(x) is Expr]
        self.uses = np.bincount(
            np.concatenate([operands, results, results]).astype(np.int64), minlength=len(kind)
        ).tolist()
        for i, k, a, b in zip(live.tolist(), kind[live].tolist(), lhs[live].tolist(), rhs[live].tolist(), strict=True):
            if k == MUL:
                self.products[i] = self._inner(self.products, a) + self._inner(self.products, b)
            elif k == ADD:
                self.sums[i] = self._inner(self.sums, a) + self._inner(self.sums, b)
            elif k == SUB:
                self.sums[i] = self._inner(self.sums, a) + [(t, -s) for t, s in self._inner(self.sums, b)]

    def _inner(self, parts: NaryNodes, i: int) -> list[SignedNode]:
        """Terms (or factors) of node i if it is a sum (or product) with a single use, else node i itself."""
        return parts.pop(i) if i in parts and self.uses[i] == 1 else [(i, 1)]

    def _new_node(self) -> int:
        self.uses.append(1)
        return len(self.uses) - 1

    def _constant(self, x: float) -> int:
        if x not in self._constant_id:
            self._constant_id[x] = self._new_node()
            self.constants[self._constant_id[x]] = x
        return self._constant_id[x]

    # ---- factoring -------------------------------------------------------------------------------------------------

    def _factor_all(self) -> None:
        for i in list(self.sums):
            if i in self.sums:
                self._factor(i)

    def _factor(self, i: int) -> None:
        """Factor out the common factors of sum i, most frequent first."""
        while (factor := self._most_common_factor(self.sums[i])) is not None:
            inner, outer = self._divide(self.sums[i], factor)
            self.sums[i] = [*outer, self._product(factor, inner)] if inner else outer  # constants may cancel

    def _is_used_once(self, t: int, parts: NaryNodes) -> bool:
        """True if node t is a sum (or product) in `parts` and has a single use."""
        return t in parts and self.uses[t] == 1

    def _most_common_factor(self, terms: Iterable[SignedNode]) -> int | None:
        """The factor of most products in a sum, at least two; the lowest node number if several tie. Else None."""
        products = [self.products[t] for t, _ in terms if self._is_used_once(t, self.products)]
        if len(products) < 2:
            return None
        count = Counter(f for factors in products for f, _ in set(factors))
        factor, times = max(count.items(), key=lambda c: (c[1], -c[0]))
        return factor if times > 1 else None

    def _divide(self, terms: Iterable[SignedNode], factor: int) -> tuple[list[SignedNode], list[SignedNode]]:
        """Split a sum: (terms of the cofactor of `factor`, terms without this factor)."""
        inner: list[SignedNode] = []
        outer: list[SignedNode] = []
        constant = 0.0
        for t, s in terms:
            if not self._is_used_once(t, self.products) or (factor, 1) not in self.products[t]:
                outer.append((t, s))
                continue
            factors = self.products.pop(t)
            factors.remove((factor, 1))
            rest, _ = factors[0]
            if len(factors) > 1:
                rest = self._new_node()
                self.products[rest] = factors
                inner.append((rest, s))
            elif rest in self.constants:
                constant += s * self.constants[rest]
            elif self._is_used_once(rest, self.sums):
                inner += [(x, z * s) for x, z in self.sums.pop(rest)]
            else:
                inner.append((rest, s))
        if constant != 0.0:
            inner.append((self._constant(abs(constant)), 1 if constant > 0.0 else -1))
        return inner, outer

    def _product(self, factor: int, cofactor: list[SignedNode]) -> SignedNode:
        """Create the product of a factor and a cofactor; factor the cofactor recursively."""
        if len(cofactor) == 1:
            (other, sign), *_ = cofactor
        else:
            other, sign = self._new_node(), 1
            self.sums[other] = cofactor
            self._factor(other)
        new = self._new_node()
        self.products[new] = [(factor, 1), (other, 1)]
        return new, sign

    # ---- sharing ---------------------------------------------------------------------------------------------------

    def _share(self, parts: NaryNodes) -> None:
        """Replace pairs that occur in several sums (or products) by new nodes, until no such pair remains."""
        containers: dict[int, set[int]] = defaultdict(set)  # {term or factor: sums or products that contain it}
        for i, part in parts.items():
            for x, _ in part:
                containers[x].add(i)
        pairs: dict[int, set[tuple]] = {}
        where: dict[tuple, set[int]] = defaultdict(set)
        changed = set(parts)
        while changed:
            for i in changed:
                before, pairs[i] = pairs.get(i, set()), _pairs([x for x in parts[i] if len(containers[x[0]]) > 1])
                for key in before - pairs[i]:
                    where[key].remove(i)
                for key in pairs[i] - before:
                    where[key].add(i)
            changed = set()
            done: set[int] = set()
            for _, key in sorted((-len(places), key) for key, places in where.items() if len(places) > 1):
                if not where[key] & done:
                    done |= where[key]
                    changed |= self._extract(parts, key, where[key], containers)

    def _extract(self, parts: NaryNodes, key: tuple, places: set[int], containers: dict[int, set[int]]) -> set[int]:
        """Replace the pair `key` in the sums (or products) `places` by a node. Returns those whose pairs changed."""
        a, b, relative = key
        equal = [i for i in places if len(parts[i]) == 2]  # sums that consist of this pair
        if equal:
            new = min(equal)
            sign_of_pair = dict(parts[new])[a]
        else:
            new, sign_of_pair = self._new_node(), 1
            parts[new] = [(a, 1), (b, relative)]
        for x in (a, b):
            self.uses[x] -= len(places) - 1
        self.uses[new] += len(places) - 1
        for i in places - {new}:
            part = parts[i]
            sign = next(s for t, s in part if t == a and (b, s * relative) in part)
            part.remove((a, sign))
            part.remove((b, sign * relative))
            part.append((new, sign * sign_of_pair))
        containers[new] |= places - {new}
        return {new, *containers[new]}

    # ---- the new graph ---------------------------------------------------------------------------------------------

    def result(self) -> tuple[Graph, list]:
        """Build the new graph, operands first. Returns (graph, outputs in it)."""
        new, expressions = Graph(self.graph.sharing), dict[int, Any](self.constants)
        stack = [x.node for x in reversed(self.outputs) if type(x) is Expr]
        while stack:
            i = stack[-1]
            missing = [] if i in expressions else [x for x, _ in self._operands(i) if x not in expressions]
            if not missing:
                if i not in expressions:
                    expressions[i] = self._build(new, i, expressions)
                stack.pop()
            stack += missing
        return new, [
            x if type(x) is not Expr else -expressions[x.node] if x.negative else expressions[x.node]
            for x in self.outputs
        ]

    def _operands(self, i: int) -> list[SignedNode]:
        """Signed nodes of node i: terms of a sum, factors of a product, or operands of another operation."""
        for parts in (self.sums, self.products):
            if i in parts:
                return parts[i]
        graph = self.graph
        return [(graph.lhs[k], -1) if graph.kind[k] == NEG else (k, 1) for k in graph.operands(i) if k >= 0]

    def _build(self, new: Graph, i: int, expressions: dict[int, Any]) -> Any:
        """Create node i in the new graph from its operands `expressions`."""
        if i in self.graph.input_names:
            return new.input(self.graph.input_names[i])
        operands = self._operands(i)
        if i in self.sums:  # sorted by node, not by sign: isomorphic limbs stay isomorphic
            return sum([expressions[x] if sign > 0 else -expressions[x] for x, sign in sorted(operands)], 0.0)
        values = [expressions[x] if sign > 0 else -expressions[x] for x, sign in operands]
        if i in self.products:
            return _product(values)
        return new.apply(self.graph.kind[i], *values)


def _pairs(part: list[SignedNode]) -> set[tuple[int, int, int]]:
    """(node, node, product of signs) of each pair of terms or factors."""
    part = sorted(part)
    return {(x, y, s * z) for k, (x, s) in enumerate(part) for y, z in part[:k]}


def _product(factors: list) -> Any:
    """Product of the factors, constants first."""
    total: Any = 1.0
    for x in factors:
        if type(x) is not Expr:
            total *= x
    for x in factors:
        if type(x) is Expr:
            total = total * x
    return total
