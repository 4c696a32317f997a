"""BlockSystem: the equations of a problem with named rows and columns, as expressions, as pattern, and as numbers.

One assembly serves all: over Expr it gives the compiler its input and the worst-case pattern; evaluated, it gives
D(q) and b.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from sysdyn.equations.assembly import Assembly, assemble, measured_row
from sysdyn.equations.formulation import formulate
from sysdyn.equations.linear_system import LinearSystem
from sysdyn.measurements.measurement import Output
from sysdyn.measurements.noise import ModelNoise, Noise, noise_of
from sysdyn.measurements.statement import Statement
from sysdyn.model.quantities import QUANTITIES
from sysdyn.passes import PAPER
from sysdyn.program.graph import SHARING, Graph
from sysdyn.sparse.lu import is_unit


class BlockSystem(LinearSystem):
    """Equations and unknowns of a problem.

    layout  "paper" (20 scalars for a body with one degree of freedom) or "net_force" (26: with fB = I a + ν)
    known   "rows": a known quantity is an equation x = y; "substituted": it is moved into b and has no column
    turn    X_i a_λ(i) or X_i^T f_i is an unknown of its own at the joints of `sysdyn.equations.turned_joints.turned`
    passes  of `sysdyn.passes`; passes that do not apply are left out. canonical_frames: a, f and fx are unknowns in
            frames along whose z the joints move, at the places of fewest entries of X (`sysdyn.model.normal_form`);
            inputs, noise and `reported` stay in frames of bodies. base_parameters: f is that of bodies with parameters
            moved to their parents. classical_accelerations: a is that of the origins of bodies
    outputs: quantities that have to keep their meaning, and measurements that are written as y = Y d + b_Y

    columns: numbers in the full layout of the scalar unknowns that have a column here
    col_names, row_names: scalar names
    col_blocks, row_blocks: (quantity, body) of each; rows of measurements have ("y", number of the measurement)
    """

    def __init__(
        self, problem: Statement, layout: str = "paper", known: str = "rows", turn: bool = False,
        passes: Sequence[str] = PAPER, outputs: Sequence[Output] = QUANTITIES,
    ):  # fmt: skip
        self.form = formulate(problem, layout, known, turn, passes, outputs)
        self.problem, self.known, self.passes = problem, known, self.form.passes
        self.layout, self.columns = self.form.layout, self.form.columns
        self.col_names = tuple(self.layout.names[c] for c in self.columns)
        blocks = [block for block in self.layout.blocks for _ in range(self.layout.size(*block))]
        self.col_blocks = tuple(blocks[c] for c in self.columns)

    @property
    def plain(self) -> BlockSystem:
        """The system itself."""
        return self

    def assemble(self, graph: Graph, mark: bool = False) -> Assembly:
        return assemble(self.form, graph, mark)

    @cached_property
    def assembly(self) -> Assembly:
        return self.assemble(Graph(SHARING))

    def reported(self, quantity: str) -> list[dict[int, float]]:
        return self.form.output_terms(quantity)

    @cached_property
    def noise_by_row(self) -> dict[int, tuple[Noise, int]]:
        """{row: (noise, component)} of the noisy equations."""
        place = {}
        for m in self.problem.noisy:
            noise = noise_of(m, self.model)
            for k, name in enumerate(m.components(self.model)):
                place[name if isinstance(m, ModelNoise) else measured_row(m, name)] = noise, k
        return {r: place[name] for r, name in enumerate(self.row_names) if name in place}

    @property
    def noisy_mask(self) -> np.ndarray:
        """(equations,) bool: True for noisy equations, False for exact ones."""
        return np.isin(np.arange(self.shape[0]), list(self.noise_by_row))

    def definitions(self) -> list[tuple[int, int]]:
        """(row, column) of the exact rows that give one unknown with a coefficient of ±1, body by body from the leaves.

        The unknowns left are the joint accelerations and the external wrenches that are not known.
        """
        exact, rows = {r for r in range(self.shape[0]) if r not in self.noise_by_row}, self.assembly.rows
        found = [(r, c) for r in sorted(exact) if len(rows[r]) == 1 for c, x in rows[r].items() if is_unit(x)]
        taken = {c for _, c in found}
        columns: dict[tuple[str, int], list[int]] = {}
        for c, block in enumerate(self.col_blocks):
            columns.setdefault(block, []).append(c)
        stated: dict[int, list[tuple[int, int]]] = {}
        for r, block in enumerate(self.row_blocks):
            for c in columns.get(block, ()):
                if r in exact and c not in taken and is_unit(rows[r].get(c)):
                    stated.setdefault(block[1], []).append((r, c))
                    taken.add(c)
                    break
        # τ and wrenches before the accelerations that they depend on
        order = {"a": 1}
        for body in sorted(stated, reverse=True):
            found += sorted(stated[body], key=lambda pair: order.get(self.col_blocks[pair[1]][0], 0))
        return found
