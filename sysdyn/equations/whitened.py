"""The whitened system of an estimation problem: equations with independent errors of variance 1.

Exact equations E d + e = 0 are unchanged. With Σ = L L^T, noisy equations become L⁻¹ (Y d + y₀) = ε, ε ~ N(0, 1), so
that the estimate is a least-squares solution. Golub (1965); Bierman (1977).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sysdyn.equations.assembly import Assembly
from sysdyn.equations.augmented import bodies_of_columns
from sysdyn.equations.formulation import formulate
from sysdyn.equations.system import BlockSystem, System
from sysdyn.measurements.input_names import switch_group
from sysdyn.measurements.measurement import Output
from sysdyn.measurements.noise import Noise
from sysdyn.measurements.problem import Problem
from sysdyn.program.graph import sqrt
from sysdyn.sparse.lu import Row


class WhitenedSystem(System):
    """The equations of a problem with noise; noisy equations are divided by their standard deviations.

    Rows and columns are as in `plain`. The row of a component that is switched off is zero.
    """

    def __init__(self, plain: BlockSystem):
        self.plain, self.tree_node = plain, bodies_of_columns(plain)
        super().__init__(plain.form, plain.layout, plain.columns, plain.col_names, plain.col_blocks)

    @property
    def sharing(self) -> str:
        return "structural"  # nothing here is symmetric

    def rewrite(self, plain: Assembly) -> Assembly:
        rows, b, graph = list(plain.rows), list(plain.b), plain.graph
        groups = [(noise.group, graph.inputs(noise.group, noise.scalars)) for noise, _ in self.plain.noise_rows]
        switches = {}
        for m in self.problem.switchable:
            group = switch_group(m.name)
            switches[m.name] = group, graph.inputs(group, len(m.components(self.model)))
        for (noise, row_of), (_, numbers) in zip(self.plain.noise_rows, groups, strict=True):
            active: Sequence = switches[noise.name][1].tolist() if noise.name in switches else [1.0] * noise.size
            factor = cholesky(noise, numbers, active)
            values = substitute_forward(factor, [plain.b[r] * x for r, x in zip(row_of, active, strict=True)])
            for k, r in enumerate(row_of):  # forward substitution
                row = _scaled(plain.rows[r], active[k])
                for l, x in factor[k].items():
                    if l < k:
                        _subtract(row, x, rows[row_of[l]])
                rows[r], b[r] = _scaled(row, 1.0 / factor[k][k]), values[k]
        inputs = (*plain.inputs, *groups, *switches.values())
        return Assembly(plain.graph, inputs, rows, b, plain.names, plain.blocks, plain.outputs)


def cholesky(noise: Noise, numbers: np.ndarray, active: Sequence) -> list[Row]:
    """Rows of the Cholesky factor L of Σ = L L^T. In a full Σ a component that is switched off is uncorrelated."""
    if not noise.full:
        return [{k: sqrt(numbers[k])} for k in range(noise.size)]
    L: list[Row] = []
    for i in range(noise.size):
        row: Row = {}
        for j in range(i + 1):
            x = noise.entry(numbers, i, j) * active[i] * active[j]
            if i == j:
                x = x + (1.0 - active[i] * active[i])
            for k in range(j):
                x = x - row[k] * (row[k] if i == j else L[j][k])
            row[j] = sqrt(x) if i == j else x / L[j][j]
        L.append(row)
    return L


def substitute_forward(factor: Sequence[Row], values: Iterable) -> list:
    """L⁻¹ values by forward substitution; factor: rows of L."""
    solution: list = []
    for k, x in enumerate(values):
        for l, entry in factor[k].items():
            if l < k:
                x = x - entry * solution[l]
        solution.append(x * (1.0 / factor[k][k]))
    return solution


def _scaled(row: Row, x) -> Row:
    return {j: x * entry for j, entry in row.items()}


def _subtract(row: Row, x, other: Row) -> None:
    """row −= x · other in place."""
    for j, entry in other.items():
        row[j] = row.get(j, 0.0) - x * entry


def whitened_system(problem: Problem, known: str, outputs: Sequence[Output]) -> WhitenedSystem:
    """The whitened system of a problem, in the layout of the paper; see `sysdyn.assemble`."""
    return WhitenedSystem(BlockSystem(formulate(problem, known=known, outputs=outputs)))
