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
        kind, lhs, rhs = self.graph.kind, self.graph.lhs, self.graph.rhs
        uses: Counter = Counter()
        for i in self.live:
            if kind[i] == NEG:
                continue
            for x in (lhs[i], rhs[i]):
                if x >= 0:
                    base = self._strip(x)[0]
                    uses[base] += 1
        for x in self.outputs:
            if type(x) is Expr:
                uses[self._strip(x.id)[0]] += 2  # stays a node of its own
        self.uses = uses
        addition = (ADD, SUB)
        for i in self.live:
            if kind[i] == NEG:
                continue
            if kind[i] in addition:
                self.nodes[i] = node = _Node("sum")
                for x, outer in ((lhs[i], 1), (rhs[i], 1 if kind[i] == ADD else -1)):
                    base, sign = self._strip(x)
                    sign *= outer
                    if kind[base] in addition and uses[base] == 1:
                        node.terms += [(t, s * sign) for t, s in self.nodes.pop(base).terms]
                    else:
                        node.terms.append((base, sign))
            elif kind[i] == MUL:
                self.nodes[i] = node = _Node("product")
                for x in (lhs[i], rhs[i]):
                    base, _ = self._strip(x)  # graphs keep signs out of products
                    if kind[base] == MUL and uses[base] == 1:
                        node.factors += self.nodes.pop(base).factors
                    else:
                        node.factors.append(base)
            else:
                self.nodes[i] = _Node("other")

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
        node = self.nodes[i]
        while True:
            count: Counter = Counter()
            for t, _ in node.terms:
                if t in self.nodes and self.nodes[t].kind == "product" and self.uses[t] == 1:
                    count.update(set(self.nodes[t].factors))
            if not count:
                return
            # the commonest; of equals, one that leaves constants to be added up
            best, times = max(count.items(), key=lambda c: (c[1], -c[0]))
            if times < 2:
                return
            inner: list[Term] = []
            outer: list[Term] = []
            constant = 0.0
            for t, s in node.terms:
                single = t in self.nodes and self.nodes[t].kind == "product" and self.uses[t] == 1
                if not single or best not in self.nodes[t].factors:
                    outer.append((t, s))
                    continue
                factors = list(self.nodes.pop(t).factors)
                factors.remove(best)
                if len(factors) == 1:
                    rest = factors[0]
                    if rest in self.constants:
                        constant += s * self.constants[rest]
                        continue
                    if rest in self.nodes and self.nodes[rest].kind == "sum" and self.uses[rest] == 1:
                        inner += [(x, z * s) for x, z in self.nodes.pop(rest).terms]
                        continue
                else:
                    rest = self._fresh(_Node("product", factors=factors))
                    self.uses[rest] = 1
                inner.append((rest, s))
            if constant != 0.0:
                inner.append((self._constant(abs(constant)), 1 if constant > 0.0 else -1))
            if not inner:  # constants that cancel
                node.terms = outer
                continue
            if len(inner) == 1:
                new = self._fresh(_Node("product", factors=[best, inner[0][0]]))
                sign = inner[0][1]
            else:
                total = self._fresh(_Node("sum", terms=inner))
                self.uses[total] = 1
                self._factor_sum(total)
                new = self._fresh(_Node("product", factors=[best, total]))
                sign = 1
            self.uses[new] = 1
            node.terms = [*outer, (new, sign)]

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
        graph = Graph(self.graph.sharing)
        made: dict[int, object] = {}
        old = self.graph

        def needs(i: int) -> list[int]:
            node = self.nodes.get(i)
            if i in self.constants or node is None:
                return []
            if node.kind == "sum":
                return [t for t, _ in node.terms]
            if node.kind == "product":
                return node.factors
            return [self._strip(x)[0] for x in (old.lhs[i], old.rhs[i]) if x >= 0]

        def make(i: int):
            if i in self.constants:
                return self.constants[i]
            node = self.nodes[i]
            if node.kind == "sum":
                if not node.terms:  # they cancel, which the graph did not see
                    return 0.0
                first = sorted(node.terms, key=lambda t: -t[1])
                total = made[first[0][0]] if first[0][1] > 0 else -made[first[0][0]]
                for t, s in first[1:]:
                    total = total + made[t] if s > 0 else total - made[t]
                return total
            if node.kind == "product":
                constants = [made[f] for f in node.factors if type(made[f]) is not Expr]
                total = 1.0
                for x in constants:
                    total *= x
                for f in node.factors:
                    if type(made[f]) is Expr:
                        total = made[f] * total if type(total) is Expr else total * made[f]
                return total
            if i in old.input_names:
                return graph.input(old.input_names[i])
            return graph.apply(old.kind[i], *(self._signed(made, x) for x in old.operands(i)))

        def build(root: int) -> None:
            stack = [root]
            while stack:
                i = stack[-1]
                if i in made:
                    stack.pop()
                    continue
                missing = [x for x in needs(i) if x not in made]
                if missing:
                    stack += missing
                else:
                    made[i] = make(i)
                    stack.pop()

        results = []
        for x in self.outputs:
            if type(x) is not Expr:
                results.append(x)
                continue
            base, sign = self._strip(x.id)
            build(base)
            results.append(made[base] if sign > 0 else -made[base])
        return graph, results

    def _signed(self, made: dict, x: int):
        base, sign = self._strip(x)
        return made[base] if sign > 0 else -made[base]
