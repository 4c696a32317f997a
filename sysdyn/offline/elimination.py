"""A system eliminated with a fixed order: its cost, its safety over sampled states, and its program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.equations.assembly import Assembly, Combination, with_entry_inputs
from sysdyn.equations.backward_error import residual_of
from sysdyn.equations.system import System
from sysdyn.errors import NoSafeOrdering
from sysdyn.measurements.measurement import Output
from sysdyn.offline.choice import Choice
from sysdyn.offline.safety import SAFETY_SAMPLES, judge
from sysdyn.offline.sampling import SAFETY_SEED, sample_states
from sysdyn.offline.verdict import Behaviour, Candidate, Safety
from sysdyn.program.graph import Graph, is_constant, strip_sign
from sysdyn.program.opcodes import Flops
from sysdyn.program.program import Program
from sysdyn.sparse.lu import Factors, eliminate, refine

# Nodes that an elimination builds for one operation that stays, with room to spare (chosen).
NODES_PER_OPERATION = 1.8
# Most equations of all states at which a system is judged, and least number of these states (chosen).
SAMPLED_EQUATIONS, FEWEST = 4_000_000, 64
# Most values of all states at which a program is judged at a time: 80 MB (chosen).
CHUNK_ENTRIES = 10_000_000


class Elimination:
    """The system eliminated over Expr in a given order, ready to be checked and turned into programs.

    joined: {k: rows that are turned with that of pivot k}, see `eliminate`.
    refined: with one step of iterative refinement. Raises NoSafeOrdering if it grows beyond `cap` operations,
    SingularState if a pivot is identically zero.
    """

    def __init__(self, system: System, row_perm: Sequence[int], col_perm: Sequence[int],
                 joined: Mapping[int, Sequence[int]] | None = None, cap: float = math.inf,
                 refined: bool = False):  # fmt: skip
        self.system, self.joined, self.refined = system, dict(joined or {}), refined
        self.assembly = system.build_copy()
        self.graph = self.assembly.graph
        body = [system.col_blocks[c][1] for c in col_perm]
        previous = [-1]
        limit = len(self.graph) + NODES_PER_OPERATION * cap

        def begin(k: int) -> None:
            if len(self.graph) > limit:
                raise NoSafeOrdering("given up: more expensive than what is known")
            # a new piece of program if the order goes on to another body
            if body[k] != previous[0]:
                self.graph.cut()
            previous[0] = body[k]

        with ExitStack() as failed:
            failed.enter_context(self.graph)
            self.factors = eliminate(self.assembly.rows, self.assembly.b, row_perm, col_perm, self.joined, begin=begin)
            failed.pop_all()
        self.graph.cut()
        self.solution = _solution(self.assembly, self.factors, refined)
        self.limits: dict[int, tuple[float, float]] = {}  # pivot → (counts as zero, is weak) below these

    @property
    def shown(self) -> Mapping[str, Combination]:
        """The measured outputs in terms of the unknowns."""
        return self.assembly.outputs

    def choice(self, ordering: str, outputs: Sequence[Output]) -> Choice:
        """The order with its cost for these outputs."""
        groups = output_groups(self.system, self.assembly, self.solution, outputs)
        count = self.graph.count(x for _, values in groups for x in values)
        f = self.factors
        return Choice(
            ordering=ordering, row_perm=tuple(f.row_perm), col_perm=tuple(f.col_perm), end_to_end=count, solve=None,
            fill_in=f.fill_in, triangular=f.triangular, refined=self.refined, passes=self.system.passes,
            joined=tuple((k, tuple(rows)) for k, rows in sorted(self.joined.items()) if k in f.turns),
        )  # fmt: skip

    def label(self, k: int) -> str:
        """Equation and unknown of pivot k."""
        row, col = self.factors.row_perm[k], self.factors.col_perm[k]
        return f"{self.system.row_names[row]} → {self.system.col_names[col]}"

    def program(self, outputs: Sequence[Output]) -> Program:
        """The program of the requested outputs, guarded against pivots far below their sampled sizes."""
        guards = []
        for k, pivot in enumerate(self.factors.pivots):
            if not is_constant(pivot):
                limit, weak = self.limits.get(k, (0.0, 0.0))
                guards.append((strip_sign(pivot), limit, self.label(k), weak))
        groups = output_groups(self.system, self.assembly, self.solution, outputs)
        return Program.from_graph(self.graph, self.assembly.inputs, groups, guards)

    def assess(
        self,
        states: int | None = None,
        singular: dict[int, bool] | None = None,
        strict: bool = False,
    ) -> tuple[Safety, dict[str, np.ndarray]]:
        """(safety over sampled states, the inputs at the worst of them); see `judge`. Sets `limits`.

        states: their number, None for SAFETY_SAMPLES, or fewer if the system is large.
        """
        states = judged_states(self.system) if states is None else states
        inputs = sample_states(self.system.problem, states, seed=SAFETY_SEED, ranges=True)
        verdict = judge(self.candidate(), inputs, singular, strict)
        self.limits = dict(zip(self._varying, verdict.guards, strict=True))
        return verdict.safety, verdict.worst

    @property
    def _varying(self) -> list[int]:
        """Numbers of the pivots that depend on the state."""
        return [k for k, p in enumerate(self.factors.pivots) if not is_constant(p)]

    def candidate(self) -> Candidate:
        """Solution and pivots of the order, to be judged."""
        f, pivots = self.factors, self._varying
        groups = [("d", self.solution), ("pivots", [f.pivots[k] for k in pivots])]
        # a pivot alone in its column, or row, vanishes with the determinant
        alone = np.array([not (f.lower[k] and f.upper[k]) for k in pivots], dtype=bool)
        program = Program.from_graph(self.graph, self.assembly.inputs, groups)

        def run(inputs: dict[str, np.ndarray]) -> Behaviour:
            out = interpreter.run_groups(program, inputs)
            d = np.zeros((len(out["d"]), self.system.layout.n))
            d[:, self.system.columns] = out["d"]
            entries, b = self.system.values(inputs)
            with np.errstate(all="ignore"):
                error = residual_of(self.system, entries, b, d).backward_error
            return Behaviour(d, out["pivots"], error)

        return Candidate(
            run=run, system=self.system, labels=[self.label(k) for k in pivots], certain=alone,
            again=not self.system.problem.noisy, chunk=chunk_of(program),
        )  # fmt: skip


def judged_states(system: System) -> int:
    """Number of states at which programs of a system are judged, the same for all orders: they share singular ones."""
    return max(FEWEST, min(SAFETY_SAMPLES, SAMPLED_EQUATIONS // len(system.row_names)))


def chunk_of(program: Program) -> int:
    """Number of states that a program runs at a time while it is judged."""
    return max(64, min(256, CHUNK_ENTRIES // max(1, len(program) // 8)))


def _solution(assembly: Assembly, factors: Factors, refined: bool) -> list:
    return refine(assembly.rows, assembly.b, factors, assembly.graph.decouple) if refined else factors.solution


def output_groups(
    system: System, assembly: Assembly, solution: Sequence, outputs: Sequence[Output]
) -> list[tuple[str, list]]:
    """Expressions of the requested outputs: quantities, full size, in the frames of bodies; values of measurements.

    From the solution, or the known input if it has no column.
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
        found = [x for _, values in output_groups(system, assembly, solution, outputs) for x in values]
        return graph.count(found)
