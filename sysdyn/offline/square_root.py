"""The square-root form of a problem with noise: its whitened system eliminated by orthogonal columns, and judged."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.equations.assembly import Assembly, EntryInputs
from sysdyn.equations.backward_error import residual_of
from sysdyn.equations.whitened import WhitenedSystem
from sysdyn.errors import NoSafeOrdering
from sysdyn.measurements.groups import NOISE, SWITCH, group_of
from sysdyn.offline.check import (
    ANY,
    Check,
    CheckedProgram,
    Inputs,
    Results,
    SampledStates,
    check,
    chunk_of,
    with_ranges,
)
from sysdyn.offline.sampling import ORDER_SEED, is_unsolvable, sample_states
from sysdyn.offline.stages import Stages
from sysdyn.program.graph import Graph, Scalar, is_constant, strip_sign
from sysdyn.program.program import Program
from sysdyn.sparse.double_double import DoubleDouble
from sysdyn.sparse.information import Information, OfFactors, OfMatrix, Refined
from sysdyn.sparse.least_squares import Order, Row, least_squares
from sysdyn.sparse.lu import Factors, eliminate

# Number of states at which the order is searched (chosen).
ORDER_STATES = 12
# Most unknowns of a system that is also ordered as a whole, which costs more operations for most larger ones.
MOST_UNKNOWNS = 500
# Fewest states at which factors are checked, whose programs are long; at most so many equations of all states.
FEWER_STATES, MOST_EQUATIONS = 64, 1_000_000
# Greatest difference of an order's residuals from its mean's, relative to their terms; the mean, which is not asked
# for, loses the digits of the two (chosen: 24 random problems leave 1.6e-8 at most).
LARGEST_ERROR = 1e-7
# Ratio of pivots beyond which a form with pivoting is refined: 12 digits are left without (chosen).
REFINED_BEYOND = 1e3
# A guard: value, size below which it counts as zero, label, size below which it loses digits.
GuardedValue = tuple[object, float, str, float]
# Groups of the judged program.
SOLUTION, PIVOTS, RESIDUALS = "d", "pivots", "residuals"


class Estimated(Protocol):
    """Source of results: its equations, `information`, and {measured output: rows of its values, by unknowns}."""

    @property
    def system(self) -> WhitenedSystem: ...
    @property
    def information(self) -> Information: ...
    @property
    def shown(self) -> Mapping[str, Sequence[Mapping]]: ...


class AtState(NamedTuple):
    """`Estimated` at one state."""

    system: WhitenedSystem
    information: Information
    shown: Mapping[str, Sequence[Mapping]]


class SquareRoot(NamedTuple):
    """The eliminated system, and its factors as the inputs of further programs.

    assembly, solution: the elimination in a graph of its own. program: from the inputs of the problem to the numbers of
    the factors, with guards as the programs of `assembly` have them. graph, entries: another graph, with these numbers
    as a group of inputs. information, shown: in terms of the entries, see `Estimated`.
    """

    system: WhitenedSystem
    assembly: Assembly
    solution: list
    program: Program
    guards: list[GuardedValue]
    verdict: Check
    graph: Graph
    entries: tuple[str, np.ndarray]
    information: Information
    shown: dict[str, list[Row]]

    def mean(self, groups: Sequence[tuple[str, list]]) -> Program:
        """A program of the solution, without guards: it is for covariances far from those that were judged.

        Its digits are looked at in each call, see `sysdyn.online.digits`.
        """
        return Program.from_graph(self.assembly.graph, self.assembly.inputs, groups)


def square_root(system: WhitenedSystem, stages: Stages) -> SquareRoot:
    """The system eliminated by orthogonal columns, in the cheapest safe one of a few orders.

    If none is safe, the most accurate one; if its errors exceed LARGEST_ERROR, guards send every state to be solved
    with pivoting. Raises NoSafeOrdering if no estimate is determined.
    """
    stages.report("ordering the square-root form", 0.1)
    tried: list[SquareRoot] = []
    for order in orders(system):
        stages.report("eliminating by orthogonal columns", 0.3)
        tried.append(_eliminated(system, order, stages))
        if tried[-1].verdict.report.acceptable:
            return tried[-1]
    found = min(tried, key=lambda root: root.verdict.report.backward_error)
    if found.verdict.report.backward_error <= LARGEST_ERROR:
        return found
    guards = [(x, zero, label, ANY) for x, zero, label, _ in found.guards]
    marked = tuple(replace(guard, weak=ANY) for guard in found.program.guards)
    return found._replace(guards=guards, program=replace(found.program, guards=marked))


def _eliminated(system: WhitenedSystem, order: Order, stages: Stages) -> SquareRoot:
    """The system eliminated in this order, and judged."""
    assembly = system.build(Graph(system.sharing))
    factors = eliminate(assembly.rows, assembly.b, *order.pivots, early=order.early, across=order.across)
    graph = Graph(system.sharing)
    entry = EntryInputs(graph)
    cut = _mapped(factors, entry)
    shown = {name: [{c: entry(x) for c, x in row.items()} for row in y.rows] for name, y in assembly.outputs.items()}
    stages.report("checking the square-root form", 0.4)
    verdict, guards = _judged(system, assembly, factors)
    program = Program.from_graph(assembly.graph, assembly.inputs, [(entry.group[0], entry.values)], guards)
    program = with_ranges(program, system.model, verdict.report)
    information = OfFactors(cut, system.plain.noise_by_row)
    return SquareRoot(
        system=system, assembly=assembly, solution=factors.solution, program=program, guards=guards, verdict=verdict,
        graph=graph, entries=entry.group, information=information, shown=shown,
    )  # fmt: skip


def _judged(system: WhitenedSystem, assembly: Assembly, factors: Factors) -> tuple[Check, list[GuardedValue]]:
    """The verdict on the elimination, and the guards of its pivots.

    Its mean is compared with a pivoted solve, and at every state residuals of the factors with those of the mean.
    """
    row_names, col_names = system.row_names, system.col_names
    pivots = [(strip_sign(x), f"{row_names[i]} → {col_names[j]}")
              for i, j, x in zip(factors.row_perm, factors.col_perm, factors.pivots, strict=True)
              if not is_constant(x)]  # fmt: skip
    residuals = OfFactors(factors, system.plain.noise_by_row).residuals()
    groups = [(SOLUTION, factors.solution), (PIVOTS, [x for x, _ in pivots]), (RESIDUALS, [*residuals.values()])]
    program, rows = Program.from_graph(assembly.graph, assembly.inputs, groups), [*residuals]

    def run(inputs: Inputs) -> Results:
        out = interpreter.run_groups(program, inputs)
        d = np.zeros((len(out[SOLUTION]), system.augmented.layout.n))
        d[:, system.columns] = out[SOLUTION]
        with np.errstate(all="ignore"):
            entries, b = system.values(inputs)
            expected = np.zeros((len(d), system.shape[0]))
            expected[:, rows] = out[RESIDUALS]
            error = residual_of(system, entries, b - expected, d).backward_error
        return Results(d, out[PIVOTS], error)

    states = max(FEWER_STATES, min(512, MOST_EQUATIONS // system.augmented.shape[0]))
    # every pivot is a norm of all that is left of a row or column: it vanishes only if there is no estimate
    certain, labels = np.ones(len(pivots), dtype=bool), [label for _, label in pivots]
    checked = CheckedProgram(run=run, labels=labels, structural=certain, chunk=chunk_of(program))
    verdict = check(checked, SampledStates.of(system.augmented, states))
    limits = zip(pivots, verdict.thresholds, strict=True)
    return verdict, [(x, zero, label, weak) for (x, label), (zero, weak) in limits]


def pivoted(system: WhitenedSystem, inputs: Inputs) -> list[AtState | None]:
    """The square-root form with pivoting at each of the states (inputs (N, size) by group); None if singular.

    Near a singular state, refined with entries of twice the precision.
    """
    n = len(inputs["q"])
    augmented = system.augmented
    singular = is_unsolvable(augmented, inputs, augmented.values(inputs)[0])
    entries, b = system.values_at(inputs, n)
    shown, found = system.output_rows(inputs), list[AtState | None]()
    for k in range(n):
        one = {name: x[k] if x.ndim == 2 else x for name, x in inputs.items()}
        information = None if singular[k] else _information(system, one, entries[k], b[k])
        if information is None:
            found.append(None)
            continue
        at = {
            name: [{c: float(np.broadcast_to(x, n)[k]) for c, x in row.items()} for row in y.rows]
            for name, y in shown.items()
        }
        found.append(AtState(system, information, at))
    return found


def _information(system: WhitenedSystem, inputs: Inputs, entries: np.ndarray, b: np.ndarray) -> Information | None:
    """Information at one state, inputs (size,) by group, of its `values`; None if refinement does not converge."""
    scales = system.plain.scaling[1]
    factors = OfMatrix(system.matrix(entries).toarray(), b, system.plain.noise_by_row, scales)
    if factors.condition < REFINED_BEYOND:
        return factors
    found = Refined(factors, *system.coordinates, *system.values_double_double(inputs))
    return found if found.converged else None


def means(system: WhitenedSystem, inputs: Inputs) -> np.ndarray:
    """Estimates d (N, full layout) near singular states, of twice the precision; NaN if refinement does not converge.

    system: with the equations as stated. inputs: (N, size) by group.
    """
    n = len(inputs["q"])
    d = np.full((n, system.layout.n), np.nan)
    entries, b = system.values_at(inputs, n)
    scales = system.plain.scaling[1]
    for k in range(n):
        factors = OfMatrix(system.matrix(entries[k]).toarray(), b[k], system.plain.noise_by_row, scales)
        twice = system.values_double_double({name: x[k] for name, x in inputs.items()})
        right = DoubleDouble(*(x[:, None] for x in twice[1]))
        solution = factors.refined(*system.coordinates, twice[0], right)
        if solution is not None:
            d[k] = 0.0
            d[k, system.columns] = solution[: len(system.columns), 0]
    return d


def _mapped(factors: Factors, of: Callable[[Scalar], Scalar]) -> Factors:
    """The parts of the factors that `Information` reads, with of(x) for each of their numbers x."""
    return replace(
        factors, pivots=[of(x) for x in factors.pivots],
        upper=[{j: of(x) for j, x in row.items()} for row in factors.upper], lower=[], solution=[],
        left={i: of(x) for i, x in factors.left.items()},
        turns={k: [turned.mapped(of) for turned in turns] for k, turns in factors.turns.items()},
        across={k: turned.mapped(of) for k, turned in factors.across.items()},
    )  # fmt: skip


def orders(system: WhitenedSystem) -> list[Order]:
    """The cheapest order, then others that were found before it. Raises NoSafeOrdering if there is none."""
    rows = sampled_rows(system)
    exact = [r not in system.plain.noise_by_row for r in range(len(rows))]
    columns = range(system.shape[1])
    tried: list[tuple[Sequence[tuple[int, int]], Sequence[Sequence[int]]]]
    tried = [((), from_leaves(system)), (system.plain.unit_pivots(), [columns])]
    if len(columns) <= MOST_UNKNOWNS:
        tried.append(((), [columns]))
    found: list[Order] = []
    failed: NoSafeOrdering | None = None
    for first, parts in tried:
        try:
            found.append(least_squares(rows, exact, first, parts, found[-1].operations if found else math.inf))
        except NoSafeOrdering as error:
            failed = error
    if not found:
        raise NoSafeOrdering(f"no order of the square-root form: {failed}")
    return found[::-1]


def from_leaves(system: WhitenedSystem) -> list[list[int]]:
    """Columns in parts, body by body: its forces and the wrenches of its children's joints, then its accelerations.

    So a subtree leaves noisy rows of the wrench of its joint and of the acceleration of its parent.
    """
    parent, parts = system.model.parent, defaultdict(list)
    for column, (body, (quantity, _)) in enumerate(zip(system.body_of, system.col_blocks, strict=True)):
        front = int(parent[body]) if quantity == "f" and body >= 0 else body
        parts[front, quantity not in ("a", "qdd")].append(column)
    return [parts[front] for front in sorted(parts, reverse=True)]


def sampled_rows(system: WhitenedSystem) -> list[Row]:
    """Entries at sampled states with the declared noise, nothing switched off, in natural units."""
    states = sample_states(system.problem, ORDER_STATES, ORDER_SEED)
    states = {name: x for name, x in states.items() if group_of(name).role not in (NOISE, SWITCH)}
    entries = np.broadcast_to(system.values(states)[0], (ORDER_STATES, system.nnz))
    row_scale, column_scale = system.plain.scaling
    row_scale = np.where(system.plain.noisy_mask, 1.0, row_scale)
    rows: list[Row] = [{} for _ in range(system.shape[0])]
    for i, j, x in zip(*(x.tolist() for x in system.coordinates), entries.T, strict=True):
        rows[i][j] = x * (row_scale[i] * column_scale[j])
    return rows
