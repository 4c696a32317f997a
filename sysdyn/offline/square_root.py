"""The square-root form of a problem with noise: its whitened system eliminated by orthogonal columns."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sysdyn.equations.assembly import Assembly, Entries
from sysdyn.equations.whitened import WhitenedSystem
from sysdyn.errors import NoSafeOrdering
from sysdyn.measurements.groups import NOISE, SWITCH, group_of
from sysdyn.offline.sampling import ORDER_SEED, sample_states
from sysdyn.offline.stages import Stages
from sysdyn.program.expr import Graph
from sysdyn.program.program import Program
from sysdyn.program.scalar import Scalar
from sysdyn.sparse.information import Information
from sysdyn.sparse.least_squares import Row, least_squares
from sysdyn.sparse.lu import Early, Factors, Pivots, eliminate

# The order is searched at this many states.
STATES = 12
# Systems of up to this many unknowns are also ordered as a whole, which costs more operations for most larger ones.
FEW = 500


class SquareRoot(NamedTuple):
    """The eliminated system in the graph of its assembly, and its factors once more as inputs of other programs.

    program: from the inputs of the problem to the group `entries` of inputs, of a graph of their own. factors,
    information, shown: in terms of these; shown {measured output: rows of its values, by unknowns}.
    """

    assembly: Assembly
    solution: list
    program: Program
    graph: Graph
    entries: tuple[str, np.ndarray]
    factors: Factors
    information: Information
    shown: dict[str, list[Row]]


def square_root(system: WhitenedSystem, stages: Stages) -> SquareRoot:
    """The system eliminated by orthogonal columns, in the cheapest of a few orders.

    Raises NoSafeOrdering where there is no estimate.
    """
    stages.say("ordering the square-root form", 0.1)
    order, early = _order(system)
    stages.say("eliminating by orthogonal columns", 0.3)
    assembly = system.assemble(Graph(system.sharing))
    factors = eliminate(assembly.rows, assembly.b, *order, early=early)
    graph = Graph(system.sharing)
    entry = Entries(graph)
    cut = _mapped(factors, entry)
    shown = {name: [{c: entry(x) for c, x in row.items()} for row in y.rows] for name, y in assembly.shown.items()}
    program = Program.from_graph(assembly.graph, assembly.inputs, [(entry.group[0], entry.values)])
    information = Information(cut, system.plain.noise_by_row)
    return SquareRoot(assembly, factors.solution, program, graph, entry.group, cut, information, shown)


def _mapped(factors: Factors, of: Callable[[Scalar], Scalar]) -> Factors:
    """What `Information` reads of the factors, with of(x) for each of their numbers x."""
    return replace(
        factors, pivots=[of(x) for x in factors.pivots],
        upper=[{j: of(x) for j, x in row.items()} for row in factors.upper], lower=[], solution=[],
        left={i: of(x) for i, x in factors.left.items()},
        turns={k: [turned.mapped(of) for turned in turns] for k, turns in factors.turns.items()},
    )  # fmt: skip


def _order(system: WhitenedSystem) -> tuple[Pivots, Early]:
    rows = _rows(system)
    exact = [r not in system.plain.noise_by_row for r in range(len(rows))]
    columns = range(system.shape[1])
    tried: list[tuple[Sequence[tuple[int, int]], Sequence[Sequence[int]]]]
    tried = [((), _from_leaves(system)), (system.plain.definitions(), [columns])]
    if len(columns) <= FEW:
        tried.append(((), [columns]))
    best: tuple[Pivots, Early] | None = None
    operations, failed = math.inf, None
    for first, parts in tried:
        try:
            order, early, operations = least_squares(rows, exact, first, parts, operations)
            best = order, early
        except NoSafeOrdering as error:
            failed = error
    if best is None:
        raise NoSafeOrdering(f"no order of the square-root form: {failed}")
    return best


def _from_leaves(system: WhitenedSystem) -> list[list[int]]:
    """Columns in parts, body by body: its forces and those of the joints to its children, then its accelerations.

    So a subtree leaves noisy rows of the wrench of its joint and of the acceleration of its parent.
    """
    parent, parts = system.model.parent, defaultdict(list)
    for column, (body, (quantity, _)) in enumerate(zip(system.body_of, system.col_blocks, strict=True)):
        front = int(parent[body]) if quantity == "f" and body >= 0 else body
        parts[front, quantity not in ("a", "qdd")].append(column)
    return [parts[front] for front in sorted(parts, reverse=True)]


def _rows(system: WhitenedSystem) -> list[Row]:
    """The entries at sampled states with the declared noise, nothing switched off, in natural units."""
    states = sample_states(system.problem, STATES, ORDER_SEED)
    states = {name: x for name, x in states.items() if group_of(name).role not in (NOISE, SWITCH)}
    entries = np.broadcast_to(system.values(states)[0], (STATES, system.nnz))
    row_scale, column_scale = system.plain.scaling
    row_scale = np.where(system.plain.noisy_mask, 1.0, row_scale)
    rows: list[Row] = [{} for _ in range(system.shape[0])]
    for i, j, x in zip(*(x.tolist() for x in system.coordinates), entries.T, strict=True):
        rows[i][j] = x * (row_scale[i] * column_scale[j])
    return rows
