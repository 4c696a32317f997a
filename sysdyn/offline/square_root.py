"""The square-root form of a problem with noise: its whitened system eliminated by orthogonal columns."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sysdyn.equations.assembly import Assembly
from sysdyn.equations.whitened import WhitenedSystem
from sysdyn.errors import NoSafeOrdering
from sysdyn.measurements.groups import NOISE, SWITCH, group_of
from sysdyn.offline.sampling import ORDER_SEED, sample_states
from sysdyn.offline.stages import Stages
from sysdyn.program.expr import Graph
from sysdyn.sparse.information import Information
from sysdyn.sparse.least_squares import Row, least_squares
from sysdyn.sparse.lu import Factors, Pivots, eliminate

# The order is searched at this many states.
STATES = 12


class SquareRoot(NamedTuple):
    """The eliminated system in the graph of its assembly: factors, and what the solution is worth."""

    assembly: Assembly
    factors: Factors
    information: Information


def square_root(system: WhitenedSystem, stages: Stages) -> SquareRoot:
    """The system eliminated by orthogonal columns, in the cheaper of two orders.

    Raises NoSafeOrdering where there is no estimate.
    """
    stages.say("ordering the square-root form", 0.1)
    order = _order(system)
    stages.say("eliminating by orthogonal columns", 0.3)
    assembly = system.assemble(Graph(system.sharing))
    factors = eliminate(assembly.rows, assembly.b, *order)
    return SquareRoot(assembly, factors, Information(factors, system.plain.noise_by_row))


def _order(system: WhitenedSystem) -> Pivots:
    rows = _rows(system)
    exact = [r not in system.plain.noise_by_row for r in range(len(rows))]
    fronts: list[list[int]] = [[] for _ in range(system.model.nb + 1)]
    for column, body in enumerate(system.body_of):
        fronts[body].append(column)
    whole, from_leaves = [list(range(system.shape[1]))], [*reversed(fronts[:-1]), fronts[-1]]
    best: Pivots | None = None
    operations, failed = math.inf, None
    for first, parts in (((), from_leaves), (system.plain.definitions(), whole)):
        try:
            best, operations = least_squares(rows, exact, first, parts, operations)
        except NoSafeOrdering as error:
            failed = error
    if best is None:
        raise NoSafeOrdering(f"no order of the square-root form: {failed}")
    return best


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
