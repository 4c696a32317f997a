"""A graph with fewer operations for the same results: sums and products as a whole, shared and factored.

Where a sum is used once, by another sum, both are one sum of several terms, and so are products. Then

    factoring   a b ± a c = a (b ± c), where neither product is needed otherwise;
    sharing     a pair of terms (or factors) that occurs in several sums (products) is computed once.

Both are greedy, the most frequent first. Results change by rounding only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sysdyn.program.expr import Expr, Graph
from sysdyn.program.operations import ADD, MUL, NEG, SUB

Term = tuple[int, int]  # (node, +1 or −1)


@dataclass
class _Node:
    """A sum of terms, a product of factors, or anything else of a graph."""

    kind: str  # "sum", "product", "other"
    terms: list[Term] = field(default_factory=list)
    factors: list[int] = field(default_factory=list)


def rewritten(graph: Graph, outputs: Sequence) -> tuple[Graph, list]:
    """(a new graph, the outputs in it). Inputs keep their names; what is not needed by the outputs is left out."""
    return _Rewriting(graph, outputs).result()


class _Rewriting:
    def __init__(self, graph: Graph, outputs: Sequence):
        self.graph, self.outputs = graph, list(outputs)
        self.live = graph.live(outputs).tolist()
        self.nodes: dict[int, _Node] = {}
        self.next = len(graph)
        self.constants: dict[int, float] = dict(graph.constants)
        self._constant_id = {x: i for i, x in graph.constants.items()}
        self._flatten()
        self._factor()
        self._share("sum")
        self._share("product")

    # ---- sums and products as a whole ------------------------------------------------------------------------------

    def _strip(self, i: int) -> Term:
        sign = 1
        while self.graph.kind[i] == NEG:
            i, sign = self.graph.lhs[i], -sign
        return i, sign

    def _flatten(self) -> None:
        """`nodes`: sums with all terms and products with all factors, where the inner ones are used once."""
        kind, lhs, rhs = self.graph.kind, self.graph.lhs, self.graph.rhs
        self.uses = self._counted_uses()
        for i in self.live:
            if kind[i] in (ADD, SUB):
                left, right = self._terms(lhs[i], 1), self._terms(rhs[i], 1 if kind[i] == ADD else -1)
                self.nodes[i] = _Node("sum", terms=left + right)
            elif kind[i] == MUL:
                self.nodes[i] = _Node("product", factors=self._factors(lhs[i]) + self._factors(rhs[i]))
            elif kind[i] != NEG:
                self.nodes[i] = _Node("other")

    def _counted_uses(self) -> Counter:
        """How often each node, whatever its sign, is an operand; outputs count twice and so stay nodes of their own."""
        uses: Counter = Counter()
        for i in self.live:
            if self.graph.kind[i] != NEG:
                uses.update(self._strip(x)[0] for x in self.graph.operands(i) if x >= 0)
        for x in self.outputs:
            if type(x) is Expr:
                uses[self._strip(x.id)[0]] += 2
        return uses

    def _terms(self, x: int, outer: int) -> list[Term]:
        """The terms that operand x of a sum is."""
        base, sign = self._strip(x)
        if self.graph.kind[base] in (ADD, SUB) and self.uses[base] == 1:
            return [(t, s * sign * outer) for t, s in self.nodes.pop(base).terms]
        return [(base, sign * outer)]

    def _factors(self, x: int) -> list[int]:
        """The factors that operand x of a product is."""
        base, _ = self._strip(x)  # graphs keep signs out of products
        if self.graph.kind[base] == MUL and self.uses[base] == 1:
            return self.nodes.pop(base).factors
        return [base]

    def _constant(self, x: float) -> int:
        if x not in self._constant_id:
            self._constant_id[x] = self._fresh(_Node("other"))
            self.constants[self._constant_id[x]] = x
        return self._constant_id[x]

    def _fresh(self, node: _Node) -> int:
        self.next += 1
        self.nodes[self.next - 1] = node
        return self.next - 1

    # ---- factoring -------------------------------------------------------------------------------------------------

    def _factor(self) -> None:
        for i in list(self.nodes):
            if i in self.nodes and self.nodes[i].kind == "sum":
                self._factor_sum(i)

    def _factor_sum(self, i: int) -> None:
        """Take common factors out of a sum, the commonest first, until none is common."""
        node = self.nodes[i]
        while (factor := self._commonest(node)) is not None:
            inner, outer = self._divided(node, factor)
            node.terms = [*outer, self._product(factor, inner)] if inner else outer  # constants may cancel

    def _is_single(self, t: int, kind: str) -> bool:
        """Whether node t is a sum or product that is used once."""
        return t in self.nodes and self.nodes[t].kind == kind and self.uses[t] == 1

    def _commonest(self, node: _Node) -> int | None:
        """The factor of most products of a sum; of equals the first, which leaves constants to be added up."""
        count: Counter = Counter()
        for t, _ in node.terms:
            if self._is_single(t, "product"):
                count.update(set(self.nodes[t].factors))
        factor, times = max(count.items(), key=lambda c: (c[1], -c[0]), default=(-1, 0))
        return factor if times > 1 else None

    def _divided(self, node: _Node, factor: int) -> tuple[list[Term], list[Term]]:
        """(terms of the cofactor of `factor` in a sum, terms that do not hold it)."""
        inner: list[Term] = []
        outer: list[Term] = []
        constant = 0.0
        for t, s in node.terms:
            if not self._is_single(t, "product") or factor not in self.nodes[t].factors:
                outer.append((t, s))
                continue
            factors = list(self.nodes.pop(t).factors)
            factors.remove(factor)
            rest = factors[0]
            if len(factors) > 1:
                rest = self._fresh(_Node("product", factors=factors))
                self.uses[rest] = 1
                inner.append((rest, s))
            elif rest in self.constants:
                constant += s * self.constants[rest]
            elif self._is_single(rest, "sum"):
                inner += [(x, z * s) for x, z in self.nodes.pop(rest).terms]
            else:
                inner.append((rest, s))
        if constant != 0.0:
            inner.append((self._constant(abs(constant)), 1 if constant > 0.0 else -1))
        return inner, outer

    def _product(self, factor: int, cofactor: list[Term]) -> Term:
        """The product of a factor and a sum, which is factored in turn."""
        if len(cofactor) == 1:
            (other, sign), *_ = cofactor
        else:
            other, sign = self._fresh(_Node("sum", terms=cofactor)), 1
            self.uses[other] = 1
            self._factor_sum(other)
        new = self._fresh(_Node("product", factors=[factor, other]))
        self.uses[new] = 1
        return new, sign

    # ---- sharing ---------------------------------------------------------------------------------------------------

    def _share(self, kind: str) -> None:
        while True:
            where: dict[tuple, set[int]] = {}
            for i, node in self.nodes.items():
                if node.kind == kind and len(node.terms if kind == "sum" else node.factors) > 1:
                    for key in self._pairs(node):
                        where.setdefault(key, set()).add(i)
            common = sorted((-len(w), key) for key, w in where.items() if len(w) > 1)
            if not common:
                return
            touched: set[int] = set()
            for _, key in common:
                places = where[key]
                if len(places) < 2 or places & touched:
                    continue
                touched |= places
                self._extract(kind, key, places)

    @staticmethod
    def _pairs(node: _Node):
        if node.kind == "product":
            f = sorted(node.factors)
            return {(f[a], f[b]) for a in range(len(f)) for b in range(a)}
        t = sorted(node.terms)
        return {(t[a][0], t[b][0], t[a][1] * t[b][1]) for a in range(len(t)) for b in range(a)}

    def _extract(self, kind: str, key: tuple, places: set[int]) -> None:
        whole = [i for i in places if len(self.nodes[i].terms or self.nodes[i].factors) == 2]
        if kind == "product":
            a, b = key
            new = whole[0] if whole else self._fresh(_Node("product", factors=[a, b]))
            for i in places:
                if i != new:
                    f = self.nodes[i].factors
                    f.remove(a)
                    f.remove(b)
                    f.append(new)
            return
        a, b, relative = key
        if whole:
            new = whole[0]
            own = dict(self.nodes[new].terms)[a]
        else:
            new, own = self._fresh(_Node("sum", terms=[(a, 1), (b, relative)])), 1
        for i in places:
            if i != new:
                terms = self.nodes[i].terms
                sign = next(s for t, s in terms if t == a and (b, s * relative) in terms)
                terms.remove((a, sign))
                terms.remove((b, sign * relative))
                terms.append((new, sign * own))

    # ---- the new graph ---------------------------------------------------------------------------------------------

    def result(self) -> tuple[Graph, list]:
        self.new = Graph(self.graph.sharing)
        self.made: dict[int, Any] = {}
        return self.new, [self._signed(x.id) if type(x) is Expr else x for x in self.outputs]

    def _signed(self, x: int) -> Any:
        """What a node of the old graph is in the new one."""
        base, sign = self._strip(x)
        self._build(base)
        return self.made[base] if sign > 0 else -self.made[base]

    def _build(self, root: int) -> None:
        """Make a node after all that it needs, the last one first."""
        stack = [root]
        while stack:
            i = stack[-1]
            missing = [] if i in self.made else [x for x in self._needs(i) if x not in self.made]
            if not missing:
                if i not in self.made:
                    self.made[i] = self._make(i)
                stack.pop()
            stack += missing

    def _needs(self, i: int) -> list[int]:
        node = self.nodes.get(i)
        if i in self.constants or node is None:
            return []
        if node.kind == "sum":
            return [t for t, _ in node.terms]
        if node.kind == "product":
            return node.factors
        return [self._strip(x)[0] for x in self.graph.operands(i) if x >= 0]

    def _make(self, i: int) -> Any:
        if i in self.constants:
            return self.constants[i]
        node = self.nodes[i]
        if node.kind == "sum":
            return self._make_sum(node.terms)
        if node.kind == "product":
            return self._make_product([self.made[f] for f in node.factors])
        if i in self.graph.input_names:
            return self.new.input(self.graph.input_names[i])
        return self.new.apply(self.graph.kind[i], *(self._signed(x) for x in self.graph.operands(i)))

    def _make_sum(self, terms: list[Term]) -> Any:
        if not terms:  # they cancel, which the graph did not see
            return 0.0
        (first, sign), *others = sorted(terms, key=lambda t: -t[1])
        total = self.made[first] if sign > 0 else -self.made[first]
        for t, s in others:
            total = total + self.made[t] if s > 0 else total - self.made[t]
        return total

    @staticmethod
    def _make_product(factors: list) -> Any:
        """Constants first, as one factor."""
        total: Any = 1.0
        for x in factors:
            if type(x) is not Expr:
                total *= x
        for x in factors:
            if type(x) is Expr:
                total = x * total if type(total) is Expr else total * x
        return total
