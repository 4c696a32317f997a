"""Algebraic simplification of graphs: n-ary sums and products are factored and share common pairs.

A sum that is used once, by another sum, is merged into it, and likewise products. Then

    factoring   a b ± a c = a (b ± c), where neither product is needed otherwise;
    sharing     a pair of terms (or factors) that occurs in several sums (products) is computed once.

Both are greedy, the most frequent first. Results change by rounding only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sysdyn.program.graph import Expr, Graph
from sysdyn.program.opcodes import ADD, MUL, NEG, SUB

# Largest graph to simplify, in operations: beyond, it takes most of the compile time (tuned).
MAX_OPS = 60_000

# (node, sign) of a term of a sum, or of a factor of a product, whose sign is +1.
SignedNode = tuple[int, int]
# {sum: its terms} or {product: its factors}
NaryNodes = dict[int, list[SignedNode]]


def simplify(graph: Graph, outputs: Sequence) -> tuple[Graph, list]:
    """(new graph, outputs in it). Inputs keep their names; nodes that no output needs are omitted."""
    return _Simplifier(graph, outputs).result()


class _Simplifier:
    """Sums and products of a graph, which keeps its node numbers while new nodes take the next ones.

    sums, products: those merged into no other. uses: number of uses of each node as an operand; outputs count twice, so
    that they are not merged. constants: {node: value}.
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
        self._factor_all()  # products in a shared pair are used once now
        self._share(self.products)

    # ---- n-ary sums and products -----------------------------------------------------------------------------------

    def _flatten(self) -> None:
        """Collect the terms of sums and the factors of products; inner ones that are used once are merged."""
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
        """The terms (or factors) of node i if it is a sum (or product) used once, else node i."""
        return parts.pop(i) if i in parts and self.uses[i] == 1 else [(i, 1)]

    def _fresh(self) -> int:
        self.uses.append(1)
        return len(self.uses) - 1

    def _constant(self, x: float) -> int:
        if x not in self._constant_id:
            self._constant_id[x] = self._fresh()
            self.constants[self._constant_id[x]] = x
        return self._constant_id[x]

    # ---- factoring -------------------------------------------------------------------------------------------------

    def _factor_all(self) -> None:
        for i in list(self.sums):
            if i in self.sums:
                self._factor(i)

    def _factor(self, i: int) -> None:
        """Take common factors out of sum i, the most frequent first."""
        while (factor := self._most_common_factor(self.sums[i])) is not None:
            inner, outer = self._divide(self.sums[i], factor)
            self.sums[i] = [*outer, self._product(factor, inner)] if inner else outer  # constants may cancel

    def _is_used_once(self, t: int, parts: NaryNodes) -> bool:
        """True if node t is one of these sums (or products) and used once."""
        return t in parts and self.uses[t] == 1

    def _most_common_factor(self, terms: Iterable[SignedNode]) -> int | None:
        """The factor that most products of a sum have, at least two; the first of several, so that constants add up."""
        products = [self.products[t] for t, _ in terms if self._is_used_once(t, self.products)]
        if len(products) < 2:
            return None
        count = Counter(f for factors in products for f, _ in set(factors))
        factor, times = max(count.items(), key=lambda c: (c[1], -c[0]))
        return factor if times > 1 else None

    def _divide(self, terms: Iterable[SignedNode], factor: int) -> tuple[list[SignedNode], list[SignedNode]]:
        """(cofactor of `factor` in a sum, terms without that factor)."""
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
                rest = self._fresh()
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
        """The product of a factor and a cofactor, which is factored in turn."""
        if len(cofactor) == 1:
            (other, sign), *_ = cofactor
        else:
            other, sign = self._fresh(), 1
            self.sums[other] = cofactor
            self._factor(other)
        new = self._fresh()
        self.products[new] = [(factor, 1), (other, 1)]
        return new, sign

    # ---- sharing ---------------------------------------------------------------------------------------------------

    def _share(self, parts: NaryNodes) -> None:
        """Replace pairs that several sums (or products) have by nodes of their own, until there are none."""
        holders: dict[int, set[int]] = defaultdict(set)  # {term or factor: sums or products that have it}
        for i, part in parts.items():
            for x, _ in part:
                holders[x].add(i)
        pairs: dict[int, set[tuple]] = {}
        where: dict[tuple, set[int]] = defaultdict(set)
        changed = set(parts)
        while changed:
            for i in changed:
                before, pairs[i] = pairs.get(i, set()), _pairs([x for x in parts[i] if len(holders[x[0]]) > 1])
                for key in before - pairs[i]:
                    where[key].remove(i)
                for key in pairs[i] - before:
                    where[key].add(i)
            changed = set()
            done: set[int] = set()
            for _, key in sorted((-len(places), key) for key, places in where.items() if len(places) > 1):
                if not where[key] & done:
                    done |= where[key]
                    changed |= self._extract(parts, key, where[key], holders)

    def _extract(self, parts: NaryNodes, key: tuple, places: set[int], holders: dict[int, set[int]]) -> set[int]:
        """Replace the pair in these sums (or products); returns those whose pairs have changed."""
        a, b, relative = key
        equal = [i for i in places if len(parts[i]) == 2]  # a sum that is this pair
        if equal:
            new = min(equal)
            sign_of_pair = dict(parts[new])[a]
        else:
            new, sign_of_pair = self._fresh(), 1
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
        holders[new] |= places - {new}
        return {new, *holders[new]}

    # ---- the new graph ---------------------------------------------------------------------------------------------

    def result(self) -> tuple[Graph, list]:
        """The new graph and the outputs in it: each node is built after its operands, depth first."""
        new, made = Graph(self.graph.sharing), dict[int, Any](self.constants)
        stack = [x.node for x in reversed(self.outputs) if type(x) is Expr]
        while stack:
            i = stack[-1]
            missing = [] if i in made else [x for x, _ in self._operands(i) if x not in made]
            if not missing:
                if i not in made:
                    made[i] = self._build(new, i, made)
                stack.pop()
            stack += missing
        return new, [x if type(x) is not Expr else -made[x.node] if x.negative else made[x.node] for x in self.outputs]

    def _operands(self, i: int) -> list[SignedNode]:
        """(node, sign) of the terms of a sum, the factors of a product, or the operands of another operation."""
        for parts in (self.sums, self.products):
            if i in parts:
                return parts[i]
        graph = self.graph
        return [(graph.lhs[k], -1) if graph.kind[k] == NEG else (k, 1) for k in graph.operands(i) if k >= 0]

    def _build(self, new: Graph, i: int, made: dict[int, Any]) -> Any:
        """Node i in the new graph."""
        if i in self.graph.input_names:
            return new.input(self.graph.input_names[i])
        operands = self._operands(i)
        if i in self.sums:  # by node, whatever the signs: isomorphic limbs stay isomorphic
            return sum([made[x] if sign > 0 else -made[x] for x, sign in sorted(operands)], 0.0)
        values = [made[x] if sign > 0 else -made[x] for x, sign in operands]
        if i in self.products:
            return _product(values)
        return new.apply(self.graph.kind[i], *values)


def _pairs(part: list[SignedNode]) -> set[tuple[int, int, int]]:
    """(node, node, product of signs) of each pair of terms or factors."""
    part = sorted(part)
    return {(x, y, s * z) for k, (x, s) in enumerate(part) for y, z in part[:k]}


def _product(factors: list) -> Any:
    """The product of the factors, constants first."""
    total: Any = 1.0
    for x in factors:
        if type(x) is not Expr:
            total *= x
    for x in factors:
        if type(x) is Expr:
            total = total * x
    return total
