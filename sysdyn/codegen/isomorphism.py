"""Operations that a segment does twice, as for a left and a right arm: equal places in like graphs.

Nothing but the graph says which these are. Values get colours that are refined by those of their operands and users, as
of Weisfeiler and Leman (1968); two inputs of one colour are the seed of a match, which spreads from each pair to
operands and users of one colour, deep colours first. Constants are all alike: each half has its own.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from sysdyn.codegen.partition import EXTERNAL, LOCAL, SegmentTemplate
from sysdyn.program.opcodes import ADD, SUB

# Refinements of the colours, and the refinements by whose colours a match spreads, one after the other (chosen).
REFINEMENTS, LEVELS = 8, (8, 5, 3, 1, 0)
# Most inputs of one colour that can be seeds, and seeds that are tried at a time (chosen).
ALIKE, SEEDS = 4, 12
# Least worth of a match: operations whose operands are matched, too, less operations whose operands are not (chosen).
LEAST_WORTH = 20

# Operands that are no values: constants, and none at all.
_CONSTANT, _NONE = -1, -2


class Twins:
    """The match of a template.

    first: {operation: its twin}, where the keys are of one half, and the values of the other.
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
        self._colours = self._refined()
        self._twin: dict[int, int] = {}  # both ways
        first = self._found()
        n = self._n_outside
        self.first = {u - n: w - n for u, w in first.items() if u >= n}

    def _number(self, code: int) -> int:
        """The number of a value: values from outside first, then results."""
        if code < 0:
            return _NONE
        number, kind = divmod(code, 4)
        return number if kind == EXTERNAL else number + self._n_outside if kind == LOCAL else _CONSTANT

    def _refined(self) -> list[list[int]]:
        """Colours of all values after 0 … REFINEMENTS refinements."""
        n = self._n_outside
        colour = np.zeros(len(self._users), dtype=np.uint64)
        colour[n:] = 1 + self._kind
        operands = [np.array(x) for x in (self._lhs, self._rhs)]
        found = [colour]
        for _ in range(REFINEMENTS):
            below = np.append(_mixed(colour, 1), _mixed(np.array([3, 5], dtype=np.uint64), 1))  # at −2 and −1
            above, users = _mixed(colour[n:], 2), np.zeros_like(colour)
            for x in operands:
                np.add.at(users, x[x >= 0], above[x >= 0])
            new = _mixed(colour, 3) + _mixed(users, 4)
            new[n:] += _mixed(below[operands[0]] + below[operands[1]], 5)
            colour = new
            found.append(colour)
        return [x.tolist() for x in found]

    def _found(self) -> dict[int, int]:
        """{value: its twin} of one half, match by match, the best of a few seeds each time."""
        found: dict[int, int] = {}
        while seeds := self._seeds():
            best = max((self._spread(*seed) for seed in seeds), key=self._worth)
            if self._worth(best) < LEAST_WORTH:
                break
            found.update(best)
            self._twin.update(best)
            self._twin.update({w: u for u, w in best.items()})
        return found

    def _seeds(self) -> list[tuple[int, int]]:
        """Values from outside that have one colour with few others, the deepest colours first."""
        seeds: list[tuple[int, int]] = []
        for colour in self._colours[:1:-1]:
            classes: dict[int, list[int]] = defaultdict(list)
            for v in range(self._n_outside):
                if v not in self._twin:
                    classes[colour[v]].append(v)
            for alike in classes.values():
                if 2 <= len(alike) <= ALIKE:
                    pairs = ((alike[0], alike[k]) for k in range(1, len(alike)))
                    seeds += [pair for pair in pairs if pair not in seeds]
            if len(seeds) >= SEEDS:
                break
        return seeds[:SEEDS]

    def _spread(self, u: int, w: int) -> dict[int, int]:
        """The match that a pair leads to."""
        match, taken = {u: w}, {_CONSTANT, _NONE, *self._twin, u, w}
        over: set[int] = set()  # pairs without operands or users that are left
        for level in LEVELS:
            colour, by_order = self._colours[level], level <= 1
            queue = [u for u in match if u not in over]
            while queue:
                u = queue.pop()
                w = match[u]
                over.add(u)
                for near, far in ((self._users[u], self._users[w]), (self._operands[u], self._operands[w])):
                    near = [x for x in near if x not in taken]
                    far = [x for x in far if x not in taken] if near else []
                    if not far:
                        continue
                    over.discard(u)
                    for x, y in _alike(near, far, colour, by_order):
                        if x != y and x not in taken and y not in taken:
                            match[x] = y
                            taken |= {x, y}
                            queue.append(x)
        return match

    def _worth(self, match: dict[int, int]) -> int:
        """Operations saved, less operands that have to be put together, in their order or in the other one."""
        worth, get = 0, {**match, _CONSTANT: _CONSTANT, _NONE: _NONE}.get
        for u, w in match.items():
            if u >= self._n_outside:
                p, q = map(get, self._operands[u])
                a, b = self._operands[w]
                worth += 1 - min((p != a) + (q != b), (p != b) + (q != a))
        return worth


def _alike(near: list[int], far: list[int], colour: list[int], by_order: bool) -> list[tuple[int, int]]:
    """Pairs of one colour; `by_order`: if several values share a colour, pairs in their order."""
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


def _mixed(x: np.ndarray, salt: int) -> np.ndarray:
    """A hash of each entry (the finalizer of splitmix64, Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(salt) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
