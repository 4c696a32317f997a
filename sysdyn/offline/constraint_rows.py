"""Rows and load matrices of a problem's constraints at a state, and the derivatives of both."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sysdyn.measurements.input_names import value_group
from sysdyn.measurements.measurement import Context
from sysdyn.measurements.problem import Problem
from sysdyn.model.quantities import tangents
from sysdyn.offline.constrained import acceleration_rows, load_matrices
from sysdyn.program.autodiff import derivative, evaluate
from sysdyn.program.graph import Graph, is_zero
from sysdyn.recursions.generate import ROWS, generate


class ConstraintRows:
    """The m rows J q̈ + b − y = 0 of constraints that act by torques J^T w.

    names: {input group y: its rows}. m: number of rows.
    """

    def __init__(self, problem: Problem):
        model = self._model = problem.model
        self._rows = generate(model, frozenset(), (ROWS,), False, constraints=acceleration_rows(problem) or ())
        self._load_graph = Graph("structural")
        self._q, qd = (self._load_graph.inputs(x, n) for x, n in (("q", model.nq), ("qd", model.nv)))
        self.m = len(self._rows.outputs[ROWS])
        self.names: dict[str, range] = {}
        start = 0
        for constraint in problem.constraints:
            self.names[value_group(constraint.name)] = range(start, start := start + len(constraint.wrench(model)))
        self._bodies, self._joints = load_matrices(problem, Context.at(model, self._q, qd))

    def loads(self, values: Mapping[str, object]) -> tuple[dict[int, np.ndarray], np.ndarray]:
        """({body: (6, m) wrenches on the body, in its frame}, torques (nv, m)) per unit of each w.

        values: {name of a scalar input: value}.
        """
        return {i: self._at(x, values) for i, x in self._bodies.items()}, self._at(self._joints, values)

    def load_rates(self, values: Mapping[str, object], w: np.ndarray) -> list[tuple[dict[int, np.ndarray], np.ndarray]]:
        """Derivatives of the loads ({body: wrench (6)}, torques (nv)) along each direction of q, at fixed w."""
        along = []
        names = {f"w[{e}]": x for e, x in enumerate(w)}
        w_inputs = self._load_graph.inputs("w", self.m)
        acting = [*(x for block in self._bodies.values() for x in block @ w_inputs), *(self._joints @ w_inputs)]
        for direction in tangents(self._model, "q", self._q):
            rate = self._at(np.array([*derivative(acting, direction), None], dtype=object)[:-1], {**values, **names})
            bodies = {i: rate[6 * n : 6 * n + 6] for n, i in enumerate(self._bodies)}
            along.append((
                {i: x for i, x in bodies.items() if not all(map(is_zero, x))}, rate[6 * len(bodies) :],
            ))  # fmt: skip
        return along

    def residual(self, values: Mapping[str, object]) -> np.ndarray:
        """J q̈ + b − y (m)."""
        return self._at(np.array(self._rows.outputs[ROWS], dtype=object), values)

    def rates(self, name: str, values: Mapping[str, object]) -> list[np.ndarray | None]:
        """Derivatives (m) of the residual along each direction of q or q̇; None for a zero derivative."""
        rows = self._rows.outputs[ROWS]
        size = self._model.nq if name == "q" else self._model.nv
        residual_rates: list[np.ndarray | None] = []
        for direction in tangents(self._model, name, self._rows.graph.inputs(name, size)):
            rate = self._at(np.array(derivative(rows, direction), dtype=object), values)
            residual_rates.append(None if all(map(is_zero, rate)) else rate)
        return residual_rates

    @staticmethod
    def _at(x: np.ndarray, values: Mapping[str, object]) -> np.ndarray:
        return np.asarray(evaluate(x, values)).astype(object)
