"""Joints that accelerations or wrenches cross the other way: from measured to unknown ones.

As it stands, c(a_i) gives a_i from the acceleration of the parent, and c(f_i) gives f_i from the wrenches of the
children, both by pivots −1. The other way they have X_i a_λ(i) or X_j^T f_j, in which no entry keeps away from zero at
every q. There the product becomes an unknown h of its own, and its factor follows without a division:

    h = X_i a_λ(i)    −a_λ(i) + X_i⁻¹ h = 0      from a body whose a is measured to a free root whose q̈ is unknown
    h = X_j^T f_j     −f_j + X_j^{−T} h = 0      from a body whose f is measured, or is the known τ of a free joint, to
                                                 one whose fx is unknown

With an accelerometer on a hand, or a force sensor at the hip for the wrench on the foot, the system is then triangular.
So it is in inverse dynamics on one foot, whose contact measures its acceleration and has the unknown wrench; other
constraints are left to the recursive orders.
"""

from __future__ import annotations

import numpy as np

from sysdyn.measurements.classical import driven_freedoms
from sysdyn.measurements.measurement import Constraint, Context
from sysdyn.measurements.statement import Statement
from sysdyn.measurements.variables import Layout
from sysdyn.model.kinematics import path
from sysdyn.sparse.least_squares import UNVARIED

# A block of unknowns: quantity and body.
Block = tuple[str, int]


def layout(problem: Statement, name: str = "paper", turn: bool = False) -> Layout:
    """Names and places of the unknowns; turn: with unknowns of turned joints. Cached."""

    def make() -> Layout:
        return Layout(problem.model, name, problem.wrenches, turned(problem) if turn else (), further=problem.further)

    return problem.cached(("layout", name, turn), make)


def turned(problem: Statement) -> tuple[Block, ...]:
    """Blocks ("Xa", i) and ("Xf", j) of the joints whose X_i a_λ(i) or X_j^T f_j is to be an unknown."""
    known = _Known(problem)
    return (*(("Xa", i) for i in known.inward()), *(("Xf", j) for j in known.outward()))


class _Known:
    """Components known of each block of six, by raw measurements and by others of that block alone."""

    def __init__(self, problem: Statement):
        self.model, self.problem = problem.model, problem
        contexts = [Context.at(self.model, *self.model.random_state(seed=seed)[:2]) for seed in (0, 1)]
        support = self._support()
        first, second = (_rows(problem, support, context) for context in contexts)
        self.involved = set(first)  # blocks with some measured component
        self.parts = {block: np.array(rows) for block, rows in first.items() if _alike(rows, second.get(block, []))}
        loads = {} if support is None else support.loads(contexts[0])
        self.loaded = [i for i in map(self.model.body_index, loads) if self._whole("a", i)]  # by six unknowns

    def _count(self, quantity: str, i: int) -> int:
        """Number of components that are stated."""
        return sum(body == i for body, _ in self.problem.knows(quantity))

    def _whole(self, quantity: str, i: int) -> bool:
        """True if all six components follow, with constant coefficients."""
        parts = self.parts.get((quantity, i), ())
        units = [np.eye(6)[k] for body, k in self.problem.knows(quantity) if body == i]
        return np.linalg.matrix_rank(np.array([*parts, *units, np.zeros(6)])) == 6

    def _free(self, i: int) -> bool:
        return np.array_equal(self.model.joints[i].S, np.eye(6))

    def _support(self) -> Constraint | None:
        """The only constraint if the robot has one, τ of its free root and all other q̈ known; None otherwise."""
        roots = [self.model.v_slice(i) for i in range(self.model.nb) if self._free(i)]
        moves = driven_freedoms(self.problem) == {k for part in roots for k in range(part.start, part.stop)}
        return self.problem.constraints[0] if moves and len(self.problem.constraints) == 1 else None

    def inward(self) -> list[int]:
        """Bodies whose acceleration gives that of the parent."""
        measured = [path(self.model, i) for i in range(self.model.nb) if self._whole("a", i)]
        result: list[int] = []
        for root in sorted({way[-1] for way in measured}):
            if self._free(root) and not self._count("qdd", root) and ("qdd", root) not in self.involved:
                result += min((way for way in measured if way[-1] == root), key=len)[:-1]
        return result

    def outward(self) -> list[int]:
        """Bodies whose wrench is found from that of the parent."""
        bodies = range(self.model.nb)
        sources = {i for i in bodies if self._whole("f", i) or (self._free(i) and self._count("tau", i) == 6)}
        result: list[int] = []
        for k in bodies:
            if k not in self.loaded and (self._count("fx", k) or ("fx", k) in self.involved):
                continue
            way = path(self.model, k)
            source = next((n for n, i in enumerate(way) if i in sources), 0)
            result += way[:source]
            sources.discard(way[source])
        return result


def _alike(first: list[list[float]], second: list[list[float]]) -> bool:
    """True if the coefficients are the same at two states but for rounding, so that they are constant."""
    return len(first) == len(second) and bool(np.allclose(first, second, rtol=UNVARIED, atol=UNVARIED))


def _rows(problem: Statement, support: Constraint | None, context: Context) -> dict[Block, list[list[float]]]:
    """Rows of custom measurements by their block; none for rows that hold several blocks."""
    model, layout = problem.model, Layout(problem.model)
    found: dict[Block, list[list[float]]] = {}
    for m in (m for m in problem.custom if m is support or not isinstance(m, Constraint)):
        blocks = {layout.block(*key): np.asarray(x, dtype=float) for key, x in m.solved_form(context)[0].items()}
        for k in range(len(m.components(model))):
            row = {block: x[k].tolist() for block, x in blocks.items() if x[k].any()}
            for block, values in row.items():
                rows = found.setdefault(block, [])
                if len(row) == 1:
                    rows.append(values)
    return found
