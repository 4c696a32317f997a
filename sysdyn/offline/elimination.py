"""A system eliminated with a fixed order: its cost, its check over sampled states, and its program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.equations.assembly import Assembly, Combination, with_entry_inputs
from sysdyn.equations.backward_error import residual_at
from sysdyn.equations.system import System
from sysdyn.errors import NoSafeOrdering
from sysdyn.measurements.measurement import Output
from sysdyn.offline.check import Check, CheckedProgram, Results, SampledStates, check, chunk_of
from sysdyn.offline.report import Choice
from sysdyn.program.graph import Graph, is_constant, strip_sign
from sysdyn.program.opcodes import Flops
from sysdyn.program.program import Program
from sysdyn.sparse.lu import Factors, eliminate, refine

# Graph nodes that an elimination builds per operation of the final program (trial on robots, with a margin).
NODES_PER_OPERATION = 1.8


class Elimination:
    """Symbolic elimination of a system in a given order; provides its cost, check and program.

    rotated_with: see `eliminate`. thresholds: {pivot k: (zero, fallback)}, sizes below which it counts as zero and
    below which calls use the fallback; set by `check`. refined: add one step of iterative refinement. Raises
    NoSafeOrdering if the elimination exceeds `cap` operations, SingularState if a pivot is identically zero.
    """

    def __init__(self, system: System, row_perm: Sequence[int], col_perm: Sequence[int],
                 rotated_with: Mapping[int, Sequence[int]] | None = None, cap: float = math.inf,
                 thresholds: Mapping[int, tuple[float, float]] | None = None,
                 refined: bool = False):  # fmt: skip
        self.system, self.rotated_with, self.refined = system, dict(rotated_with or {}), refined
        self.thresholds = dict(thresholds or {})
        self.assembly = system.build_copy()
        self.graph = self.assembly.graph
        body = [system.col_blocks[c][1] for c in col_perm]
        previous = [-1]
        limit = len(self.graph) + NODES_PER_OPERATION * cap

        def begin(k: int) -> None:
            if len(self.graph) > limit:
                raise NoSafeOrdering("given up: more expensive than another order")
            # a new program segment for each body
            if body[k] != previous[0]:
                self.graph.cut()
            previous[0] = body[k]

        with ExitStack() as failed:
            failed.enter_context(self.graph)
            self.factors = eliminate(
                self.assembly.rows, self.assembly.b, row_perm, col_perm, self.rotated_with, begin=begin
            )
            failed.pop_all()
        self.graph.cut()
        self.solution = _solution(self.assembly, self.factors, refined)

    @property
    def output_rows(self) -> Mapping[str, Combination]:
        """{name: (Y, b_Y)} of the measurements that are outputs, as linear combinations Y d + b_Y of the unknowns."""
        return self.assembly.outputs

    def choice(self, ordering: str, outputs: Sequence[Output]) -> Choice:
        """Record of this order: its permutations, its fill-in and the operations that compute these outputs."""
        groups = output_groups(self.system, self.assembly, self.solution, outputs)
        count = self.graph.count(x for _, values in groups for x in values)
        f = self.factors
        return Choice(
            ordering=ordering, row_perm=tuple(f.row_perm), col_perm=tuple(f.col_perm), end_to_end=count, solve=None,
            fill_in=f.fill_in, triangular=f.triangular, refined=self.refined, passes=self.system.passes,
            rotated_with=tuple((k, tuple(rows)) for k, rows in sorted(self.rotated_with.items()) if k in f.rotations),
        )  # fmt: skip

    def label(self, k: int) -> str:
        """Equation and unknown of pivot k."""
        row, col = self.factors.row_perm[k], self.factors.col_perm[k]
        return f"{self.system.row_names[row]} → {self.system.col_names[col]}"

    def program(self, outputs: Sequence[Output]) -> Program:
        """The program of the requested outputs; guards flag states with pivots below their thresholds."""
        guards = []
        for k, pivot in enumerate(self.factors.pivots):
            if not is_constant(pivot):
                zero, fallback = self.thresholds.get(k, (0.0, 0.0))
                guards.append((strip_sign(pivot), zero, self.label(k), fallback))
        groups = output_groups(self.system, self.assembly, self.solution, outputs)
        return Program.from_graph(self.graph, self.assembly.inputs, groups, guards)

    def check(self, states: SampledStates) -> Check:
        """Check the elimination at sampled states, and set the thresholds of its pivots."""
        checked = check(self.checked_program(), states)
        self.thresholds = dict(zip(self._varying, checked.thresholds, strict=True))
        return checked

    @property
    def _varying(self) -> list[int]:
        """Indices of the pivots that depend on the state."""
        return [k for k, p in enumerate(self.factors.pivots) if not is_constant(p)]

    def checked_program(self) -> CheckedProgram:
        """The program of the solution and the pivots, for `check`."""
        f, pivots = self.factors, self._varying
        groups = [("d", self.solution), ("pivots", [f.pivots[k] for k in pivots])]
        # a pivot that is alone in its row or column is a factor of the determinant
        structural = np.array([not (f.lower[k] and f.upper[k]) for k in pivots], dtype=bool)
        program = Program.from_graph(self.graph, self.assembly.inputs, groups)

        def run(inputs: dict[str, np.ndarray]) -> Results:
            out = interpreter.run_groups(program, inputs)
            d = np.zeros((len(out["d"]), self.system.layout.n))
            d[:, self.system.columns] = out["d"]
            with np.errstate(all="ignore"):
                return Results(d, out["pivots"], residual_at(self.system, inputs, d).backward_error)

        labels = [self.label(k) for k in pivots]
        return CheckedProgram(run=run, labels=labels, structural=structural, chunk=chunk_of(program))


def _solution(assembly: Assembly, factors: Factors, refined: bool) -> list:
    return refine(assembly.rows, assembly.b, factors, assembly.graph.decouple) if refined else factors.solution


def output_groups(
    system: System, assembly: Assembly, solution: Sequence, outputs: Sequence[Output]
) -> list[tuple[str, list]]:
    """(name, expressions) of each output: a quantity at full size in body frames, or the values of a measurement.

    Scalars without a column in the system are inputs.
    """
    inputs = dict(assembly.inputs)
    groups = []
    for quantity in outputs:
        values = []
        if not isinstance(quantity, str):
            for row, bias in zip(*assembly.outputs[quantity.name], strict=True):
                values.append(sum((x * solution[c] for c, x in row.items()), bias))
            groups.append((quantity.name, values))
            continue
        for k, terms in enumerate(system.output_terms(quantity)):
            if terms:
                values.append(sum((x * solution[c] for c, x in terms.items()), 0.0))
            elif quantity in inputs:
                values.append(inputs[quantity][k])
        groups.append((quantity, values))
    return groups


def solve_scope(system: System, choice: Choice, outputs: Sequence[Output]) -> Flops:
    """Operations of the same elimination with X, v, c, ν given."""
    assembly = with_entry_inputs(system.build(Graph(system.sharing)), Graph(system.sharing))
    with assembly.graph as graph:
        factors = eliminate(assembly.rows, assembly.b, *choice.pivots)
        solution = _solution(assembly, factors, choice.refined)
        return graph.count(x for _, values in output_groups(system, assembly, solution, outputs) for x in values)
