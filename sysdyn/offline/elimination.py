"""A system eliminated with a fixed order: what it costs, how safe it is over sampled states, and its program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sysdyn.backends import interpreter
from sysdyn.equations.assembly import Assembly, generic
from sysdyn.equations.block_system import BlockSystem
from sysdyn.errors import NoSafeOrdering
from sysdyn.offline.safety import (
    BACKWARD_ERROR,
    GUARD,
    HARMLESS,
    HOPELESS,
    JUDGED_UNKNOWNS,
    SAFETY_SAMPLES,
    SUSPECT,
    WEAK,
    WORST_STATES,
    Safety,
    crossing,
    passes_through_zero,
    relative_difference,
)
from sysdyn.offline.sampling import is_singular, pivoted_solve, sample_states
from sysdyn.passes import PAPER
from sysdyn.program.expr import Expr, Graph, is_constant
from sysdyn.program.operations import Flops
from sysdyn.program.program import Program
from sysdyn.sparse.lu import Factors, eliminate, refine

SHARING = "algebraic"
NODES_PER_OPERATION = 3.0  # nodes built for one operation that stays, with room to spare


@dataclass(frozen=True)
class Choice:
    """One elimination order and what it costs. `solve`: X, v, c, ν given; `end_to_end`: from q, q̇ on.

    refined: a step of iterative refinement follows, in the program. passes: of `sysdyn.passes`, that were applied.
    """

    ordering: str
    row_perm: tuple[int, ...]
    col_perm: tuple[int, ...]
    end_to_end: Flops
    solve: Flops | None
    fill_in: int
    triangular: bool
    safety: Safety | None = None
    refined: bool = False
    passes: tuple[str, ...] = PAPER

    @property
    def total(self) -> int:
        """Operations end to end."""
        return self.end_to_end.total


class Elimination:
    """The system eliminated over Expr with given permutations, ready to be checked and turned into programs.

    refined: with one step of iterative refinement. Raises NoSafeOrdering where it grows beyond `cap` operations,
    SingularState where a pivot is identically zero.
    """

    def __init__(self, system: BlockSystem, row_perm: Sequence[int], col_perm: Sequence[int], cap: float = math.inf,
                 refined: bool = False):  # fmt: skip
        self.system, self.refined = system, refined
        self.graph = Graph(system.sharing)
        self.assembly = system.assemble(self.graph, mark=True)
        body = [system.col_blocks[c][1] for c in col_perm]
        previous = [-1]
        limit = len(self.graph) + NODES_PER_OPERATION * cap

        def begin(k: int) -> None:
            if len(self.graph) > limit:
                raise NoSafeOrdering("given up: more expensive than what is known")
            # a new piece of program where the order goes on to another body
            if body[k] != previous[0]:
                self.graph.mark()
            previous[0] = body[k]

        self.factors = eliminate(self.assembly.rows, self.assembly.b, row_perm, col_perm, begin)
        self.graph.mark()
        self.solution = _solution(self.assembly, self.factors, refined)
        self.limits: dict[int, tuple[float, float]] = {}  # pivot → (counts as zero, is weak) below these

    def choice(self, ordering: str, outputs: Sequence[str]) -> Choice:
        """The order with what it costs for these outputs."""
        groups = quantity_outputs(self.system, self.assembly, self.solution, outputs)
        count = self.graph.count(x for _, values in groups for x in values)
        f = self.factors
        perms = tuple(f.row_perm), tuple(f.col_perm)
        return Choice(ordering, *perms, count, None, f.fill_in, f.triangular, None, self.refined, self.system.passes)

    def label(self, k: int) -> str:
        """Equation and unknown of pivot k."""
        row, col = self.factors.row_perm[k], self.factors.col_perm[k]
        return f"{self.system.row_names[row]} → {self.system.col_names[col]}"

    def program(self, outputs: Sequence[str]) -> Program:
        """The program of the requested quantities, guarded where a pivot falls far below its sampled size."""
        guards = []
        for k, pivot in enumerate(self.factors.pivots):
            if not is_constant(pivot):
                limit, weak = self.limits.get(k, (0.0, 0.0))
                guards.append((_positive(pivot), limit, self.label(k), weak))
        groups = quantity_outputs(self.system, self.assembly, self.solution, outputs)
        return Program.from_graph(self.graph, self.assembly.inputs, groups, guards)

    def assess(
        self,
        scaling: tuple[np.ndarray, np.ndarray],
        states: int = SAFETY_SAMPLES,
        singular: dict[int, bool] | None = None,
        strict: bool = False,
    ) -> tuple[Safety, dict[str, np.ndarray]]:
        """(backward error, growth and least pivot over sampled states; the inputs at the worst of them).

        scaling: row and column factors that equilibrate D, in which growth is measured. States at which the system
        itself is singular are left out; `singular` remembers which, by number. strict: stop where a pivot passes
        through zero.
        """
        singular = {} if singular is None else singular
        row, col = self.system.coordinates
        pivots = [(k, p) for k, p in enumerate(self.factors.pivots) if not is_constant(p)]
        watched, weights = self._scaled_entries(scaling)
        groups = [("d", self.solution), ("pivots", [p for _, p in pivots]), ("entries", watched)]
        program = Program.from_graph(self.graph, self.assembly.inputs, groups)
        inputs = sample_states(self.system.problem, states, seed=1)
        chunk = max(64, min(256, 20_000_000 // max(1, len(program) // 8 + len(watched))))
        errors, components, values, growths = [], [], [], []
        for start in range(0, states, chunk):
            if start >= len(inputs["q"]):
                break
            part = {name: x[start : start + chunk] for name, x in inputs.items()}
            out = interpreter.run_groups(program, part)
            d = np.zeros((len(out["d"]), self.system.layout.n))
            d[:, self.system.columns] = out["d"]
            with np.errstate(all="ignore"):
                _, error, component = self.system.residual(part, d)
                growth = np.zeros(len(error))
                if watched:
                    entries = np.abs(self.system.values(part)[0]) * scaling[0][row] * scaling[1][col]
                    growth = (np.abs(out["entries"]) * weights).max(axis=1) / entries.max(axis=1)
            errors.append(np.where(np.isfinite(error), error, math.inf))
            components.append(np.where(np.isfinite(component), component, math.inf))
            values.append(np.nan_to_num(out["pivots"], nan=0.0))
            hopeless = start + np.flatnonzero(errors[-1] > HOPELESS)
            given_up = not all(self._singular_states(inputs, hopeless, singular))
            if given_up or (strict and crossing(values[-1])[0]):
                inputs = {name: x[: start + chunk] for name, x in inputs.items()}
            growths.append(np.where(np.isfinite(growth), growth, math.inf))
        error, value, growth = np.concatenate(errors), np.concatenate(values), np.concatenate(growths)
        regular = self._regular(inputs, error, np.abs(value), singular)
        inputs = {name: x[regular] for name, x in inputs.items()}
        error, value, growth = error[regular], value[regular], growth[regular]
        component, size = np.concatenate(components)[regular], np.abs(value)
        largest = size.max(axis=0)
        ratio = size / np.where(largest > 0.0, largest, 1.0)
        harmless = np.minimum(WEAK * largest, HARMLESS * size.min(axis=0))
        weak = np.where(passes_through_zero(value), WEAK * largest, harmless)
        zero = GUARD * largest
        if self.system.problem.noisy:  # pivots scale with covariances, which may be others than those sampled
            zero, weak = GUARD * size.min(axis=0), np.zeros_like(weak)
        limits = zip(zero.tolist(), weak.tolist(), strict=True)
        self.limits = dict(zip((k for k, _ in pivots), limits, strict=True))
        worst = np.union1d(np.argsort(error)[-WORST_STATES:], np.argsort(component)[-WORST_STATES:])
        if pivots:
            worst = np.union1d(worst, np.argsort(ratio.min(axis=1))[:WORST_STATES])
            through, rare = crossing(value)
            worst = np.union1d(worst, rare)
            least = int(np.argmin(ratio.min(axis=0)))
        failing = {name: x[worst] for name, x in inputs.items()}
        few = max(1, JUDGED_UNKNOWNS // max(1, self.system.layout.n))
        judged = np.union1d(np.argsort(error)[-few:], np.argsort(component)[-few:])
        judged = {name: x[judged] for name, x in inputs.items()}
        d = np.zeros((len(judged["q"]), self.system.layout.n))
        d[:, self.system.columns] = interpreter.run_groups(program, judged)["d"]
        with np.errstate(all="ignore"):
            plain, refined = (pivoted_solve(self.system, judged, refine=k) for k in (0, 2))
            safety = Safety(
                len(error),
                float(error.max()),
                float(np.max(self.system.residual(judged, plain).backward_error)),
                relative_difference(self.system, d, refined),
                relative_difference(self.system, plain, refined),
                float(growth.max()),
                float(ratio[:, least].min()) if pivots else 1.0,
                self.label(pivots[least][0]) if pivots else "every pivot is constant",
                through if pivots else 0,
                states - len(error),
            )
        return safety, failing

    def _regular(
        self, inputs: dict[str, np.ndarray], error: np.ndarray, size: np.ndarray, singular: dict[int, bool]
    ) -> np.ndarray:
        """(N,) bool: states to judge by; of those where something goes wrong, the ones at which a solution exists."""
        suspect = error > BACKWARD_ERROR
        if size.shape[1]:
            typical = np.median(size, axis=0)
            suspect |= (size <= SUSPECT * typical).any(axis=1) | (size * SUSPECT > typical).any(axis=1)
        suspects = np.flatnonzero(suspect)
        regular = np.ones(len(error), dtype=bool)
        regular[suspects] = ~np.array(self._singular_states(inputs, suspects, singular), dtype=bool)
        return regular if regular.any() else np.ones(len(error), dtype=bool)

    def _singular_states(
        self, inputs: dict[str, np.ndarray], numbers: np.ndarray, singular: dict[int, bool]
    ) -> list[bool]:
        """Whether the system itself is singular at the states of these numbers; `singular` remembers what is known."""
        new = np.array([k for k in numbers.tolist() if k not in singular], dtype=int)
        if len(new):
            found = is_singular(self.system, {name: x[new] for name, x in inputs.items()})
            singular.update(zip(new.tolist(), found.tolist(), strict=True))
        return [singular[k] for k in numbers.tolist()]

    def _scaled_entries(self, scaling: tuple[np.ndarray, np.ndarray]) -> tuple[list[Expr], np.ndarray]:
        """(entries of D U that are computed, the factor that puts each into equilibrated terms)."""
        rows, columns = scaling
        f = self.factors
        weight: dict[int, float] = {}

        def watch(x, factor: float) -> None:
            if type(x) is Expr:
                x = _positive(x)
                weight[x.id] = max(factor, weight.get(x.id, 0.0))

        for k, (r, c) in enumerate(zip(f.row_perm, f.col_perm, strict=True)):
            watch(f.pivots[k], rows[r] * columns[c])
            for j, u in f.upper[k].items():
                watch(u, columns[j] / columns[c] if f.scaled[k] else rows[r] * columns[j])
        chosen = sorted(weight)
        return [Expr(self.graph, i) for i in chosen], np.array([weight[i] for i in chosen])


def _solution(assembly: Assembly, factors: Factors, refined: bool) -> list:
    return refine(assembly.rows, assembly.b, factors, assembly.graph.opaque) if refined else factors.solution


def quantity_outputs(system: BlockSystem, assembly: Assembly, solution: Sequence, outputs: Sequence[str]):
    """Expressions of the requested quantities, full size, in the frames of bodies.

    From the solution, or the known input where it has no column.
    """
    inputs = dict(assembly.inputs)
    groups = []
    for quantity in outputs:
        values = []
        for k, terms in enumerate(system.reported(quantity)):
            if terms:
                values.append(sum((x * solution[c] for c, x in terms.items()), 0.0))
            elif quantity in inputs:
                values.append(inputs[quantity][k])
        groups.append((quantity, values))
    return groups


def solve_scope(system: BlockSystem, choice: Choice, outputs: Sequence[str]) -> Flops:
    """Operations of the same elimination with X, v, c, ν given."""
    assembly = generic(system.assemble(Graph(system.sharing)), Graph(system.sharing))
    factors = eliminate(assembly.rows, assembly.b, choice.row_perm, choice.col_perm)
    solution = _solution(assembly, factors, choice.refined)
    groups = quantity_outputs(system, assembly, solution, outputs)
    return assembly.graph.count(x for _, values in groups for x in values)


def _positive(x):
    """x or −x, whichever is not a sign change of another node: what is computed."""
    if type(x) is Expr and x.graph._is_neg(x):
        return -x
    return x
