"""Propagated unknowns X a and X^T f, by which accelerations propagate from a sensor to the base, wrenches to the tips.

The equation c(a_i) gives a_i from the acceleration of the parent, and c(f_i) gives f_i from the wrenches of the
children, both by pivots −1. In the opposite direction the pivots are entries of X_i, and each vanishes at some q. There
the product becomes an unknown h, and a row with pivots −1 gives the factor:

    h = X_i a_λ(i)    −a_λ(i) + X_i⁻¹ h = 0      from a body with measured a to a free root with unknown q̈
    h = X_j^T f_j     −f_j + X_j^{−T} h = 0      from a body with measured f, or known τ of a free joint, to one with
                                                 unknown fx

Examples of systems that become triangular: an accelerometer on a hand, a force sensor at the hip that measures the
wrench on the foot, inverse dynamics in single support (the contact fixes the acceleration of the foot and has an
unknown wrench). For other constraints the recursive orders need fewer operations.
"""

from __future__ import annotations

import numpy as np

from sysdyn.equations.assembly import Block
from sysdyn.measurements.classical import driven_freedoms
from sysdyn.measurements.measurement import Constraint, Context
from sysdyn.measurements.problem import Problem
from sysdyn.measurements.variables import Layout
from sysdyn.model.kinematics import path


def propagated_blocks(problem: Problem) -> tuple[Block, ...]:
    """("Xa", i) and ("Xf", j) of the joints at which X_i a_λ(i) or X_j^T f_j becomes an unknown."""
    measured = _MeasuredBlocks(problem)
    return (*(("Xa", i) for i in measured.acceleration_paths()), *(("Xf", j) for j in measured.wrench_paths()))


class _MeasuredBlocks:
    """Body accelerations and wrenches that are measured directly: by known values, or by rows with no other unknown."""

    def __init__(self, problem: Problem):
        self.model, self.problem = problem.model, problem
        contexts = [Context.at(self.model, *self.model.random_state(seed=seed)[:2]) for seed in (0, 1)]
        foot = self._single_support()
        first, second = (_rows_by_block(problem, foot, context) for context in contexts)
        self.measured = set(first)  # in part or whole
        self.constant_rows = {block: rows for block, rows in first.items() if _same(rows, second.get(block, []))}
        loads = {} if foot is None else foot.loads(contexts[0])
        self.supported = [i for i in map(self.model.body_index, loads) if self._is_determined("a", i)]

    def _n_known(self, quantity: str, i: int) -> int:
        return sum(body == i for body, _ in self.problem.knows(quantity))

    def _is_determined(self, quantity: str, i: int) -> bool:
        """True if the measurements determine all six components, with constant coefficients."""
        units = [np.eye(6)[k] for body, k in self.problem.knows(quantity) if body == i]
        return np.linalg.matrix_rank(np.array([*self.constant_rows.get((quantity, i), ()), *units, np.zeros(6)])) == 6

    def _is_free(self, i: int) -> bool:
        return np.array_equal(self.model.joints[i].S, np.eye(6))

    def _single_support(self) -> Constraint | None:
        """The only constraint of a robot whose free root has known τ and whose other joints have known q̈; else None."""
        roots = [self.model.v_slice(i) for i in range(self.model.nb) if self._is_free(i)]
        driven = driven_freedoms(self.problem) == {k for part in roots for k in range(part.start, part.stop)}
        return self.problem.constraints[0] if driven and len(self.problem.constraints) == 1 else None

    def acceleration_paths(self) -> list[int]:
        """Bodies i on the path from a measured acceleration to a free root, where a_i gives a_λ(i)."""
        paths = [path(self.model, i) for i in range(self.model.nb) if self._is_determined("a", i)]
        bodies: list[int] = []
        for root in sorted({p[-1] for p in paths}):
            if self._is_free(root) and not self._n_known("qdd", root) and ("qdd", root) not in self.measured:
                bodies += min((p for p in paths if p[-1] == root), key=len)[:-1]
        return bodies

    def wrench_paths(self) -> list[int]:
        """Bodies j on the path from a measured wrench to a body with unknown fx, where f_λ(j) gives f_j."""
        bodies = range(self.model.nb)
        sources = {
            i for i in bodies if self._is_determined("f", i) or (self._is_free(i) and self._n_known("tau", i) == 6)
        }
        result: list[int] = []
        for k in bodies:
            if k not in self.supported and (self._n_known("fx", k) or ("fx", k) in self.measured):
                continue
            to_root = path(self.model, k)
            source = next((n for n, i in enumerate(to_root) if i in sources), 0)
            result += to_root[:source]
            sources.discard(to_root[source])
        return result


def _same(first: list[list[float]], second: list[list[float]]) -> bool:
    """True if coefficients at two states agree up to rounding errors."""
    return len(first) == len(second) and bool(np.allclose(first, second))


def _rows_by_block(problem: Problem, support: Constraint | None, context: Context) -> dict[Block, list[list[float]]]:
    """{block: coefficients of the rows of sensors and of the support with this block as their only unknowns}."""
    model, layout = problem.model, Layout(problem.model)
    by_block: dict[Block, list[list[float]]] = {}
    for m in (m for m in problem.custom if m is support or not isinstance(m, Constraint)):
        blocks = {layout.block(*key): np.asarray(x, dtype=float) for key, x in m.simplified_rows(context)[0].items()}
        for k in range(len(m.components(model))):
            row = {block: x[k].tolist() for block, x in blocks.items() if x[k].any()}
            for block, values in row.items():
                rows = by_block.setdefault(block, [])
                if len(row) == 1:
                    rows.append(values)
    return by_block
