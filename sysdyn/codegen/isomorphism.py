"""Find isomorphic halves of a segment: equal subgraphs, such as the equations of a left and of a right arm.

The search uses the expression graph alone. Colour refinement labels each value by the colours of its operands and users
(Weisfeiler and Leman 1968). Two inputs of the same colour seed a match. The match grows from each pair to operands and
users of the same colour, first by the most refined colours. All constants have the same colour, as their values may
differ between the halves.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from sysdyn.codegen.partition import EXTERNAL, LOCAL, SegmentTemplate
from sysdyn.program.opcodes import ADD, SUB

# Number of colour refinements, and the refinement levels that the growth of a match uses in turn (chosen).
REFINEMENTS, LEVELS = 8, (8, 5, 3, 1, 0)
# Largest colour class whose inputs may be seeds, and seeds per trial (classes of six never matched on the iCub).
MAX_CLASS, SEEDS = 4, 12
# Least benefit of a match: number of operation pairs minus number of operands to pack (chosen).
MIN_BENEFIT = 20

# Codes of operands that are not values: a constant, and a missing operand.
_CONSTANT, _NONE = -1, -2


class IsomorphicHalves:
    """Isomorphic halves of a template. mapping: {operation of one half: corresponding operation of the other half}.

    Nodes are the values of the template: external values first, then the results of its operations.
    """

    def __init__(self, template: SegmentTemplate):
        self._n_outside = 1 + max((c // 4 for c in (*template.lhs, *template.rhs) if c % 4 == EXTERNAL), default=-1)
        self._kind = np.array([ADD if kind == SUB else kind for kind in template.kind], dtype=np.uint64)
        self._lhs, self._rhs = ([self._number(code) for code in codes] for codes in (template.lhs, template.rhs))
        outside: list[tuple[int, ...]] = [()] * self._n_outside
        self._operands = [*outside, *zip(self._lhs, self._rhs, strict=True)]  # of each value
        self._users: list[list[int]] = [[] for _ in self._operands]
        for k, pair in enumerate(self._operands):
            for x in set(pair):
                if x >= 0:
                    self._users[x].append(k)
        self._colours = self._refine()
        self._partner: dict[int, int] = {}  # maps both members of each pair
        n = self._n_outside
        self.mapping = {u - n: w - n for u, w in self._matches().items() if u >= n}

    def _number(self, code: int) -> int:
        """Node number of an operand code; _CONSTANT for a constant, _NONE for a missing operand."""
        if code < 0:
            return _NONE
        number, kind = divmod(code, 4)
        return number if kind == EXTERNAL else number + self._n_outside if kind == LOCAL else _CONSTANT

    def _refine(self) -> list[list[int]]:
        """Colours of all nodes after 0, 1, …, REFINEMENTS refinements."""
        n = self._n_outside
        colour = np.zeros(len(self._users), dtype=np.uint64)
        colour[n:] = 1 + self._kind
        operands = [np.array(x) for x in (self._lhs, self._rhs)]
        colours = [colour]
        for _ in range(REFINEMENTS):
            below = np.append(_hash(colour, 1), _hash(np.array([3, 5], dtype=np.uint64), 1))  # at _NONE, _CONSTANT
            above, users = _hash(colour[n:], 2), np.zeros_like(colour)
            for x in operands:
                np.add.at(users, x[x >= 0], above[x >= 0])
            new = _hash(colour, 3) + _hash(users, 4)
            new[n:] += _hash(below[operands[0]] + below[operands[1]], 5)
            colour = new
            colours.append(colour)
        return [x.tolist() for x in colours]

    def _matches(self) -> dict[int, int]:
        """Match the halves: {node of one half: node of the other half}.

        Greedy: grows a match from each seed and adds the match with the largest benefit, until the largest benefit is
        below MIN_BENEFIT.
        """
        matches: dict[int, int] = {}
        while seeds := self._seeds():
            best = max((self._grow_match(*seed) for seed in seeds), key=self._benefit)
            if self._benefit(best) < MIN_BENEFIT:
                break
            matches.update(best)
            self._partner.update(best)
            self._partner.update({w: u for u, w in best.items()})
        return matches

    def _seeds(self) -> list[tuple[int, int]]:
        """Pairs of nodes from which matches grow: external values of equal colour, most refined colours first.

        Colours of more than MAX_CLASS nodes are omitted.
        """
        seeds: list[tuple[int, int]] = []
        for colour in self._colours[:1:-1]:
            classes: dict[int, list[int]] = defaultdict(list)
            for v in range(self._n_outside):
                if v not in self._partner:
                    classes[colour[v]].append(v)
            for alike in classes.values():
                if 2 <= len(alike) <= MAX_CLASS:
                    pairs = ((alike[0], alike[k]) for k in range(1, len(alike)))
                    seeds += [pair for pair in pairs if pair not in seeds]
            if len(seeds) >= SEEDS:
                break
        return seeds[:SEEDS]

    def _grow_match(self, u: int, w: int) -> dict[int, int]:
        """Grow a match from the pair (u, w) to operands and users of equal colour, by levels of refinement."""
        match, taken = {u: w}, {_CONSTANT, _NONE, *self._partner, u, w}
        finished: set[int] = set()  # pairs all of whose operands and users are matched
        for level in LEVELS:
            colour, by_order = self._colours[level], level <= 1
            queue = [u for u in match if u not in finished]
            while queue:
                u = queue.pop()
                w = match[u]
                finished.add(u)
                for near, far in ((self._users[u], self._users[w]), (self._operands[u], self._operands[w])):
                    near = [x for x in near if x not in taken]
                    far = [x for x in far if x not in taken] if near else []
                    if not far:
                        continue
                    finished.discard(u)
                    for x, y in _equal_colours(near, far, colour, by_order):
                        if x != y and x not in taken and y not in taken:
                            match[x] = y
                            taken |= {x, y}
                            queue.append(x)
        return match

    def _benefit(self, match: dict[int, int]) -> int:
        """Number of operation pairs minus number of operands that must be packed.

        The operands of the second operation of a pair are exchanged if this reduces packing.
        """
        worth, get = 0, {**match, _CONSTANT: _CONSTANT, _NONE: _NONE}.get
        for u, w in match.items():
            if u >= self._n_outside:
                p, q = map(get, self._operands[u])
                a, b = self._operands[w]
                worth += 1 - min((p != a) + (q != b), (p != b) + (q != a))
        return worth


def _equal_colours(near: list[int], far: list[int], colour: list[int], by_order: bool) -> list[tuple[int, int]]:
    """Pair nodes of `near` with nodes of `far` of the same colour.

    A colour is used if it occurs once in each list. If `by_order`, it may occur n times in each; the k-th occurrences
    are then paired. Other colours are omitted.
    """
    if len(near) == len(far) == 1:
        return [(near[0], far[0])] if colour[near[0]] == colour[far[0]] else []
    sides: list[dict[int, list[int]]] = []
    for values in (near, far):
        side: dict[int, list[int]] = defaultdict(list)
        for x in values:
            side[colour[x]].append(x)
        sides.append(side)
    return [
        pair
        for c, xs in sides[0].items()
        if len(xs) == len(sides[1].get(c, ())) and (len(xs) == 1 or by_order)
        for pair in zip(xs, sides[1][c], strict=True)
    ]


def _hash(x: np.ndarray, salt: int) -> np.ndarray:
    """A hash of each entry (the finalizer of splitmix64, Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(salt) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
