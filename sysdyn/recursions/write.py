"""Inverse, forward and hybrid dynamics written with as few operations as we know how.

`write` takes a model and what is known, and writes expressions: in canonical frames, with base inertial parameters
where only τ or q̈ is wanted, and with the decisions of a `Plan` found by search.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import numpy as np

from sysdyn.model import Model
from sysdyn.model.base_parameters import LEFT_CHOICES, in_units, regrouped, without_fixed
from sysdyn.model.canonical import canonical, placements, upright
from sysdyn.model.inertia import first_moment
from sysdyn.model.joints import Revolute, Spherical, agreed
from sysdyn.model.kinematics import path
from sysdyn.passes import ALL
from sysdyn.program.expr import Expr, Graph
from sysdyn.program.operations import CONST, MUL, Flops
from sysdyn.program.rewrite import REWRITE_LIMIT, rewritten
from sysdyn.recursions.forward_dynamics import articulated, mass_matrix, reaction, solve
from sysdyn.recursions.frames import motion_back, wrench_back, wrench_to
from sysdyn.recursions.inverse_dynamics import bodies, torques, wrenches
from sysdyn.recursions.links import Scalar, Tree, Vector
from sysdyn.recursions.plan import Key, More, Plan, tuned
from sysdyn.recursions.unknowns import accelerations, own_wrenches, velocity_terms

COMPOSITE_LIMIT = 60  # Most degrees of freedom for trying the O(n³) method beside the O(n) one (chosen).
SHORT = 100  # Operations up to which every program is rewritten (chosen).
# A longer program is rewritten if, as written, it has at most this multiple of the best one's operations as written. It
# holds for the programs to begin with and for those with another unit of length; for others the multiple is 1 (chosen).
PROMISING = 1.02
SAME = 1e-9  # Relative difference below which lengths are the same (chosen).
LIKELY = 4  # Units of length that are tried first, those that seem to save most (chosen).
MEETINGS = 4  # Greatest depth at which all columns of H meet in a plan to begin with (chosen).
UNITS = 60  # Lengths that are tried as the unit of length (chosen).
# Methods by the quantity that is known; a τ of one joint is enough for the second.
METHODS = {"qdd": ("newton-euler",), "tau": ("composite", "articulated")}


@dataclass(frozen=True)
class Written:
    """Expressions of the outputs, by quantity at full size.

    method: "newton-euler", "composite" or "articulated". pivots: (D, degree of freedom) of each divisor that depends on
    the state. given: operations if X, v, c and ν were given, where the formulation knows them. considered: (method,
    operations) of those that were tried; what is far dearer is not rewritten.
    """

    method: str
    graph: Graph
    outputs: dict[str, list]
    pivots: list[tuple[Scalar, int]]
    given: Flops | None = None
    considered: tuple[tuple[str, int], ...] = ()

    @property
    def scalars(self) -> list:
        return [x for values in self.outputs.values() for x in values]

    @cached_property
    def flops(self) -> Flops:
        return self.graph.count(self.scalars)

    @property
    def total(self) -> int:
        return self.flops.total


def write(
    model: Model, known: str | Collection[int], outputs: Sequence[str], external_wrenches: bool = True,
    method: str = "auto", *, budget: float = 0.0, passes: Sequence[str] = ALL, more: More | None = None, seed: int = 0,
) -> Written:  # fmt: skip
    """The expressions of `outputs` of the problem in which `known` and the external wrenches are given.

    known: "tau", "qdd", or the degrees of freedom of which τ is known while q̈ is of the others. outputs: of tau, qdd,
    fx, a, f. external_wrenches: whether they are inputs, else they are zero. Inputs are named as in `Graph.inputs`: q,
    qd, tau and qdd where some are known, and fx. method: "auto", the cheapest, or one of METHODS. budget: operations
    that may be written in search of fewer, beyond one each for a few ways to begin. passes: of `sysdyn.passes`. more:
    after that the search goes on for as long as this is true, with plans that `seed` fixes.
    """
    every = frozenset(range(model.nv))
    free = {"tau": every, "qdd": frozenset()}[known] if isinstance(known, str) else frozenset(known)
    methods = METHODS["tau" if free else "qdd"] if method == "auto" else (method,)
    if method == "auto" and free and model.nv > COMPOSITE_LIMIT:
        methods = ("articulated",)
    reduced = not {"a", "f"} & set(outputs)
    wanted = (_Reduced if reduced else _Unknowns)(model, free, external_wrenches, frozenset(passes))
    trials = _Trials(wanted, outputs, "rewriting" in passes)
    trials.begin([(name, plan) for name in methods for plan in _starts(model, name)])
    if budget or (more and more()):
        trials.improve(budget, more, seed)
    written = trials.best
    considered = sorted(trials.least.items(), key=lambda x: x[0] != written.method)
    given = wanted.given(written.method, outputs, trials.plan)
    if given and "rewriting" in passes:
        given = _shorter(given)
    return replace(written, given=given.flops if given else None, considered=tuple(considered))


class _Trials:
    """Programs that are written with one plan after the other.

    best: the one of fewest operations, plan: with which it was written. least: the fewest operations of each method.
    """

    best: Written
    plan: Plan

    def __init__(self, wanted: _Reduced | _Unknowns, outputs: Sequence[str], rewriting: bool):
        self.least: dict[str, int] = {}
        self._wanted, self._outputs, self._rewriting = wanted, outputs, rewriting
        self._bound = math.inf  # operations that the best one was written with
        self._open = ExitStack()  # its graph

    def begin(self, starts: Iterable[tuple[str, Plan]]) -> None:
        """Try these methods and plans, and keep the best."""
        found = [(self._wanted.write(name, self._outputs, plan), plan) for name, plan in starts]
        for written, plan in sorted(found, key=lambda x: x[0].total):
            self._count(written, plan, PROMISING)

    def improve(self, budget: float, more: More | None, seed: int) -> None:
        """Change decisions of the best plan; see `tuned`."""
        method = self.best.method
        if self.best.total > budget and not (more and more()):
            return
        for unit in self._wanted.likely_units(self.best, self.plan)[:LIKELY]:
            plan = Plan({**self.plan.choices, ("unit",): unit})
            self._count(self._wanted.write(method, self._outputs, plan), plan, PROMISING)
        tuned(partial(self._cost, method), [self.plan], budget, more, seed)

    def _cost(self, method: str, plan: Plan) -> int:
        if plan is self.plan:
            return self.best.total
        return self._count(self._wanted.write(method, self._outputs, plan), plan)

    def _count(self, written: Written, plan: Plan, promising: float = 1.0) -> int:
        """Operations of the program, with sums and products rewritten if it may become the best one."""
        before = written.total
        if self._rewriting and before <= max(SHORT, promising * self._bound):
            written = _shorter(written)
        with ExitStack() as graph:
            graph.enter_context(written.graph)
            if written.total < min(self.least.values(), default=math.inf):
                self._open.close()
                self._open = graph.pop_all()
                self.best, self.plan, self._bound = written, plan, before
        self.least[written.method] = min(written.total, self.least.get(written.method, written.total))
        return written.total


def _shorter(written: Written) -> Written:
    """The program with sums and products rewritten, if that saves something."""
    if written.total > REWRITE_LIMIT:
        return written
    graph, new = rewritten(written.graph, [*written.scalars, *(x for x, _ in written.pivots)])
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


class _Inputs:
    """The inputs of one graph, and trees at them.

    tau (nv), qdd (nv): the known ones, 0 for the others. free: degrees of freedom of which τ is known.
    """

    def __init__(self, model: Model, free: frozenset[int], external_wrenches: bool, passes: frozenset[str]):
        self.free, self.passes = free, passes
        self.graph = Graph("algebraic" if "symmetric_elimination" in passes else "structural")
        self.q, self.qd = (self.graph.inputs(x, n).tolist() for x, n in (("q", model.nq), ("qd", model.nv)))
        self.tau: Vector = [0.0] * model.nv
        self.qdd: Vector = [0.0] * model.nv
        for k in range(model.nv):
            (self.tau if k in free else self.qdd)[k] = self.graph.input(f"{'tau' if k in free else 'qdd'}[{k}]")
        self.fx = None
        if external_wrenches:
            fx = self.graph.inputs("fx", 6 * model.nb).tolist()
            self.fx = [fx[6 * i : 6 * i + 6] for i in range(model.nb)]

    def tree(self, model: Model, plan: Plan, may_hold: bool = False) -> Tree:
        may_hold = may_hold and "parallel_axes" in self.passes
        return Tree(model, plan, self.graph.mark, may_hold, "double_angle" in self.passes).at(self.q)


class _Reduced:
    """τ and q̈ alone: every pass applies."""

    def __init__(self, model: Model, free: frozenset[int], external_wrenches: bool, passes: frozenset[str]):
        base = "base_parameters" in passes
        model = model.replace(frames={}, closures=())  # a recursion is of the tree alone
        model = without_fixed(model) if base and not external_wrenches else model  # else each takes a wrench of its own
        self.source = model
        self.free, self.external, self.passes = free, external_wrenches, passes
        self.frames = cache(lambda number: (canonical, upright)[number](self.source))
        self.regrouped = cache(lambda model, left: regrouped(model, dict(left)))
        self.in_units = cache(in_units)
        self.turning = all(isinstance(joint, (Revolute, Spherical)) for joint in self.source.joints)

    def model(self, plan: Plan) -> tuple[Model, np.ndarray]:
        """(the model that the plan makes of the given one, X (nb, 6, 6) from the given frames to its own)."""
        model, X = self.source, np.tile(np.eye(6), (self.source.nb, 1, 1))
        if "canonical_frames" in self.passes:
            model, X = self.frames(plan.pick("frames"))
        if "base_parameters" not in self.passes:
            return model, X
        left = {i: plan.pick("left", i, of=LEFT_CHOICES) for i, j in enumerate(model.joints) if isinstance(j, Revolute)}
        model = self.regrouped(model, tuple(left.items()))
        if self.turning and not self.external:
            units = _units(model)
            if number := plan.pick("unit", of=1 + len(units)):
                model = self.in_units(model, units[number - 1])
        return model, X

    def likely_units(self, written: Written, plan: Plan) -> list[int]:
        """Forms of the decision on the unit of length, those first that seem to save most multiplications.

        That is where they are by this length, or by the inverse of it: of a first moment.
        """
        if ("unit",) not in plan.open:
            return []
        graph = written.graph
        factors = Counter(
            graph.constants[k]
            for i in graph.live(written.scalars).tolist()
            if graph.kind[i] == MUL
            for k in graph.operands(i)
            if graph.kind[k] == CONST
        )
        units, by = np.array(_units(self.model(plan)[0])), np.array(list(factors))
        found = np.isclose(by, units[:, None], SAME, 0.0) | np.isclose(by * units[:, None], 1.0, SAME, 0.0)
        saved = found @ np.array(list(factors.values()))
        return [int(k) + 1 for k in np.argsort(-saved, kind="stable") if saved[k]]

    def given(self, method: str, outputs: Sequence[str], plan: Plan) -> None:
        """None: X, v, c and ν do not occur here."""

    def write(self, method: str, outputs: Sequence[str], plan: Plan) -> Written:
        inputs = _Inputs(self.source, self.free, self.external, self.passes)
        model, X = self.model(plan)
        tree = inputs.tree(model, plan, may_hold=True)
        fx = None if inputs.fx is None else [tree.links[i].wrench(wrench_to(X[i], w)) for i, w in enumerate(inputs.fx)]
        pivots: list[tuple[Scalar, int]] = []
        tau, qdd = _solved(method, tree, inputs, *self._motion(tree, inputs, fx), pivots)
        values = {"tau": tau, "qdd": qdd, "fx": [x for w in inputs.fx or [] for x in w]}
        return Written(method, inputs.graph, _full(self.source, values, outputs), _varying(pivots))

    def _motion(self, tree: Tree, inputs: _Inputs, fx: list[Vector] | None) -> tuple[Vector, list[Vector]]:
        """(q̈, the wrench of each body on its own) of a motion with the known q̈."""
        if "classical_accelerations" in self.passes:
            return bodies(tree, inputs.qd, inputs.qdd, fx, self.free)
        c, nu = velocity_terms(tree, inputs.qd)
        return inputs.qdd, own_wrenches(tree, accelerations(tree, c, inputs.qdd), nu, fx)


class _Unknowns:
    """Any quantities: spatial accelerations and wrenches in the frames of the bodies, but for a turn onto z."""

    def __init__(self, model: Model, free: frozenset[int], external_wrenches: bool, passes: frozenset[str]):
        self.source, self.free, self.external, self.passes = model, free, external_wrenches, passes
        self.upright, self.X = model, np.tile(np.eye(6), (model.nb, 1, 1))
        if "canonical_frames" in passes:
            self.upright, self.X = upright(model)
        self.base = regrouped(self.upright) if "base_parameters" in passes else self.upright

    def write(self, method: str, outputs: Sequence[str], plan: Plan) -> Written:
        inputs = self._inputs()
        tree = inputs.tree(self.upright, plan)
        return self._rest(inputs, tree, *velocity_terms(tree, inputs.qd), method, outputs)

    def given(self, method: str, outputs: Sequence[str], plan: Plan) -> Written:
        """The program if X, v, c and ν were given."""
        inputs, other = self._inputs(), self._inputs()
        c, nu = velocity_terms(inputs.tree(self.upright, plan), inputs.qd)
        terms = _as_inputs(other.graph, "c", c), _as_inputs(other.graph, "nu", nu)
        return self._rest(other, other.tree(self.upright, plan), *terms, method, outputs)

    def likely_units(self, written: Written, plan: Plan) -> list[int]:
        """No units at all, for f has the units of the model."""
        return []

    def _inputs(self) -> _Inputs:
        return _Inputs(self.source, self.free, self.external, self.passes)

    def _rest(
        self, inputs: _Inputs, tree: Tree, c: list[Vector], nu: list[Vector], method: str, outputs: Sequence[str]
    ) -> Written:
        """The outputs from c and ν."""
        fx = None if inputs.fx is None else [wrench_to(self.X[i], w) for i, w in enumerate(inputs.fx)]
        qdd = inputs.qdd
        pivots: list[tuple[Scalar, int]] = []
        if self.free:
            own = own_wrenches(tree, accelerations(tree, c, qdd), nu, fx)
            _, qdd = _solved(method, inputs.tree(self.base, tree.plan), inputs, qdd, own, pivots)
        a = accelerations(tree, c, qdd)
        f = wrenches(tree, own_wrenches(tree, a, nu, fx))
        tau = [inputs.tau[k] if k in self.free else x for k, x in enumerate(torques(tree, f, qdd))]
        values = {
            "tau": tau, "qdd": qdd, "fx": [x for w in inputs.fx or [] for x in w],
            "a": [x for i, v in enumerate(a) for x in motion_back(self.X[i], v)],
            "f": [x for i, v in enumerate(f) for x in wrench_back(self.X[i], v)],
        }  # fmt: skip
        return Written(method, inputs.graph, _full(self.source, values, outputs), _varying(pivots))


def _solved(
    method: str, tree: Tree, inputs: _Inputs, qdd: Vector, own: list[Vector], pivots: list[tuple[Scalar, int]]
) -> tuple[Vector, Vector]:
    """(τ, q̈) from the known ones and a motion with the known q̈: qdd, and own, the wrench of each body on its own."""
    free = inputs.free
    if method == "articulated":
        return articulated(tree, inputs.tau, qdd, own, free, pivots)
    tau = torques(tree, wrenches(tree, own), qdd)
    if not free:
        return tau, qdd
    H = mass_matrix(tree)
    u = [inputs.tau[k] - x if k in free else 0.0 for k, x in enumerate(tau)]
    missing = solve(H, u, free, pivots, "symmetric_elimination" in inputs.passes)
    rest = reaction(H, missing, free)
    tau = [inputs.tau[k] if k in free else x + rest[k] for k, x in enumerate(tau)]
    return tau, [x + y for x, y in zip(qdd, missing, strict=True)]


def _as_inputs(graph: Graph, name: str, vectors: list[Vector]) -> list[Vector]:
    """Inputs in place of the entries that are not constant."""
    return [
        [graph.input(f"{name}[{i}][{k}]") if type(x) is Expr else x for k, x in enumerate(v)]
        for i, v in enumerate(vectors)
    ]


def _units(model: Model) -> list[float]:
    """Lengths that save multiplications as the unit: displacements, the acceleration of gravity, and inverses of h."""
    found = {abs(x) for x in model.gravity}
    for place, I in zip(placements(model), model.inertias, strict=True):
        found |= {abs(x) for x in (*place.p, place.r)}
        found |= {1.0 / abs(h) for h in first_moment(I) if h}
    return np.unique(agreed(np.array([x for x in found if 1e-3 < x < 1e3]))[0]).tolist()[:UNITS]


def _full(model: Model, values: dict[str, list], outputs: Sequence[str]) -> dict[str, list]:
    sizes = {"fx": 6 * model.nb}
    return {name: values[name] or [0.0] * sizes.get(name, 0) for name in outputs}


def _varying(pivots: list[tuple[Scalar, int]]) -> list[tuple[Scalar, int]]:
    return [(x, k) for x, k in pivots if type(x) is Expr]


__all__ = ["METHODS", "Plan", "Written", "write"]
