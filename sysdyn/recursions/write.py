"""Inverse, forward and hybrid dynamics written with as few operations as we know how.

`write` takes a model and what is known, and writes expressions: in canonical frames, with base inertial parameters
where only τ or q̈ is wanted, and with the decisions of a `Plan` found by search.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from sysdyn.errors import ProblemError
from sysdyn.model import Model
from sysdyn.model.kinematics import path
from sysdyn.passes import ALL
from sysdyn.program.simplify import MAX_OPS, simplify
from sysdyn.recursions.constraints import Constraint
from sysdyn.recursions.plan import Key, Plan, tuned
from sysdyn.recursions.ways import ROWS, Reduced, Unknowns, Written

COMPOSITE_LIMIT = 60  # Most degrees of freedom for trying the O(n³) method beside the O(n) one (chosen).
# Multiple of the cheapest program beyond which no further plan of a method is tried (chosen: on the iCub plans to begin
# with differ by 1 to 5 %).
OUT_OF_REACH = 1.5
SHORT = 100  # Operations up to which every program is rewritten (chosen).
# A longer program is rewritten if, as written, it has at most this multiple of the best one's operations as written. It
# holds for the programs to begin with and for those with another unit of length; for others the multiple is 1 (chosen).
PROMISING = 1.02
MEETINGS = 4  # Greatest depth at which all columns of H meet in a plan to begin with (chosen).
# Methods by the quantity that is known; a τ of one joint is enough for the second.
METHODS = {"qdd": ("newton-euler",), "tau": ("composite", "articulated")}


def write(
    model: Model, known: str | Collection[int], outputs: Sequence[str], external_wrenches: bool = True,
    method: str = "auto", *, budget: float = 0.0, passes: Sequence[str] = ALL,
    constraints: Sequence[Constraint] = (), readings: Sequence[Constraint] = (),
) -> Written:  # fmt: skip
    """The expressions of `outputs` of the problem in which `known` and the external wrenches are given.

    known: "tau", "qdd", or the degrees of freedom of which τ is known while q̈ is of the others. outputs: of tau, qdd,
    fx, a, f. external_wrenches: whether they are inputs, else they are zero. Inputs are named as in `Graph.inputs`: q,
    qd, tau and qdd where some are known, and fx. method: "auto", the cheapest, or one of METHODS. budget: operations
    that may be written in search of fewer, beyond one each for a few ways to begin. passes: of `sysdyn.passes`.
    constraints: they hold by wrenches, the output "w"; a and f are no outputs then, and RESPONSES alone are if there
    are any. If no τ is known wrenches are inputs, too, and ROWS an output. readings: outputs by their names, beside
    tau, qdd, fx and w.
    """
    every = frozenset(range(model.nv))
    free = {"tau": every, "qdd": frozenset()}[known] if isinstance(known, str) else frozenset(known)
    methods = METHODS["tau" if free else "qdd"] if method == "auto" else (method,)
    if method == "auto" and free and model.nv > COMPOSITE_LIMIT:
        methods = ("articulated",)
    allowed = frozenset(passes)
    ways: dict[str, tuple[Reduced | Unknowns, str]]
    if {"a", "f"} & set(outputs):
        if constraints or readings:
            raise ProblemError("recursions with constraints or readings give tau, qdd and w, but neither a nor f")
        ways = {name: (Unknowns(model, free, external_wrenches, allowed), name) for name in methods}
    else:
        tree = Reduced.of(model, free, external_wrenches, allowed, tuple(constraints), tuple(readings))
        ways = {name: (tree, name) for name in methods}
    trials = _Trials(ways, outputs, "rewriting" in passes)
    trials.begin({name: [*_starts(model, method)] for name, (_, method) in ways.items()})
    if budget:
        trials.improve(budget)
    written = trials.best
    considered = sorted(trials.least.items(), key=lambda x: x[0] != written.method)
    best, method = ways[written.method]
    given = best.given(method, outputs, trials.plan)
    if given and "rewriting" in passes:
        given = shortened(given)
    return replace(written, given=given.flops if given else None, considered=tuple(considered))


class _Trials:
    """Programs that are written in one of several ways, {name: (way, method)}, with one plan after the other.

    best: the one of fewest operations, plan: with which it was written. least: the fewest operations of each method.
    """

    best: Written
    plan: Plan

    def __init__(self, ways: Mapping[str, tuple[Reduced | Unknowns, str]], outputs: Sequence[str], rewriting: bool):
        self.least: dict[str, int] = {}
        self._ways, self._outputs, self._rewriting = ways, outputs, rewriting
        self._bound = math.inf  # operations that the best one was written with
        self._open = ExitStack()  # its graph

    def begin(self, starts: Mapping[str, Sequence[Plan]]) -> None:
        """Try the plans of each method, all of those that their first one leaves in reach, and keep the best."""
        first = {name: self._write(name, plans[0]) for name, plans in starts.items()}
        reach = OUT_OF_REACH * min(written.total for written in first.values())
        found = [(first[name], plans[0]) for name, plans in starts.items()]
        found += [
            (self._write(name, plan), plan) for name, plans in starts.items() for plan in plans[1:]
            if first[name].total <= reach
        ]  # fmt: skip
        for written, plan in sorted(found, key=lambda x: x[0].total):
            self._count(written, plan, PROMISING)

    def improve(self, budget: float) -> None:
        """Change decisions of the best plan; see `tuned`."""
        method = self.best.method
        if self.best.total > budget:
            return
        tuned(partial(self._cost, method), self.plan, budget)

    def _cost(self, method: str, plan: Plan) -> int:
        if plan is self.plan:
            return self.best.total
        return self._count(self._write(method, plan), plan)

    def _write(self, name: str, plan: Plan) -> Written:
        way, method = self._ways[name]
        return replace(way.write(method, self._outputs, plan), method=name)

    def _count(self, written: Written, plan: Plan, promising: float = 1.0) -> int:
        """Operations of the program, with sums and products rewritten if it may become the best one."""
        before = written.total
        if self._rewriting and before <= max(SHORT, promising * self._bound):
            written = shortened(written)
        with ExitStack() as graph:
            graph.enter_context(written.graph)
            if written.total < min(self.least.values(), default=math.inf):
                self._open.close()
                self._open = graph.pop_all()
                self.best, self.plan, self._bound = written, plan, before
        self.least[written.method] = min(written.total, self.least.get(written.method, written.total))
        return written.total


def shortened(written: Written) -> Written:
    """The program with sums and products rewritten, if that saves something."""
    if written.total > MAX_OPS:
        return written
    graph, new = simplify(written.graph, [*written.scalars, *(x for x, _ in written.pivots)])
    values = iter(new)
    shorter = replace(
        written, graph=graph, outputs={name: [next(values) for _ in x] for name, x in written.outputs.items()},
        pivots=[(next(values), k) for _, k in written.pivots],
    )  # fmt: skip
    kept, other = (shorter, written) if shorter.total <= written.total else (written, shorter)
    with other.graph:
        return kept


def _starts(model: Model, method: str) -> Iterator[Plan]:
    held: dict[Key, int] = {("turn", i): 1 for i in range(model.nb)}
    if model.nv <= COMPOSITE_LIMIT:  # a large robot is written once
        yield Plan()
    yield Plan(held)
    if method == "composite":
        deepest = max((len(path(model, i)) for i in range(model.nb)), default=1)
        for depth in range(1, min(deepest, MEETINGS + 1)):
            yield Plan({**held, **{("meeting", j): depth for j in range(model.nb)}})


__all__ = ["METHODS", "ROWS", "Plan", "Written", "write"]
