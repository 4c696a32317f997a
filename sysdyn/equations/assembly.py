"""Rows D(q) d + b(q, q̇) = 0 of a problem over a graph of expressions: motion, raw measurements, then all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from sysdyn.equations.formulation import Formulation
from sysdyn.equations.newton_euler import Rows, newton_euler
from sysdyn.errors import ProblemError, check_among
from sysdyn.measurements.groups import value_group
from sysdyn.measurements.measurement import Constraint, Context, Measurement
from sysdyn.measurements.parameters import VariedModel
from sysdyn.model import Model
from sysdyn.model.kinematics import joint_transforms
from sysdyn.model.quantities import QUANTITY
from sysdyn.model.se3 import X_inverse, cross
from sysdyn.program.graph import Expr, Graph, constant_value, is_constant, is_zero

Row = dict[int, Any]  # The entries of a row, float or Expr, by their columns.


class Combination(NamedTuple):
    """Y d + b_Y of the unknowns: rows of Y, {column: entry}, and b_Y (m)."""

    rows: list[Row]
    b: list


@dataclass(frozen=True)
class Assembly:
    """A system D d + b = 0 in one graph.

    inputs: the groups of inputs it was built from. rows: of D, {column: entry}; b: one for each row. names and blocks:
    the name and the (kind, body) of each row. shown: {name: value of a measurement that is an output}.
    """

    graph: Graph
    inputs: tuple[tuple[str, np.ndarray], ...]
    rows: list[Row]
    b: list
    names: tuple[str, ...] = ()
    blocks: tuple[tuple[str, int], ...] = ()
    shown: Mapping[str, Combination] = field(default_factory=dict)

    def copy(self) -> Assembly:
        """The same system over a copy of the graph."""
        graph = self.graph.copy()

        def rows(given: list[Row]) -> list[Row]:
            return [{c: graph.rebind(x) for c, x in row.items()} for row in given]

        inputs = tuple((name, graph.inputs(name, len(group))) for name, group in self.inputs)
        shown = {name: Combination(rows(y.rows), [graph.rebind(x) for x in y.b]) for name, y in self.shown.items()}
        return replace(
            self, graph=graph, inputs=inputs, rows=rows(self.rows), b=[graph.rebind(x) for x in self.b], shown=shown
        )


@dataclass(frozen=True)
class Given:
    """Inputs of the equations: the state (coupled joints included), partly known quantities, varied parameters."""

    q: np.ndarray
    qd: np.ndarray
    known: dict[str, np.ndarray]
    varied: dict[str, np.ndarray]


def assemble(form: Formulation, graph: Graph, mark: bool = False) -> Assembly:
    """The equations of a problem over `graph`. mark: begin a new piece of program with each body."""
    given = _inputs(form, graph)
    problem = form.problem
    seen = VariedModel(problem.model, given.varied) if given.varied else problem.model
    rows, X, v = _motion(form, given, seen, graph if mark else None)
    shift = [cross(x[3:], x[:3]) for x in v] if form.classical else []  # from classical to spatial accelerations
    if mark:
        graph.cut()
    _further_loads(form, rows)
    value = _raw_rows(form, given, rows)
    # as seen by observers who move with the origins of the unknowns' frames but do not turn
    alike = form.galilean_outputs
    turning = [np.concatenate([x[:3], [0.0] * 3]) for x in v] if any(alike) else []
    if form.frames is not None and (problem.custom or form.outputs):  # measurements speak of the frames of bodies
        X = joint_transforms(problem.model, given.q)
        back = [X_inverse(F).astype(object) for F in form.frames]
        v, turning = ([F @ x for F, x in zip(back, w, strict=False)] for w in (v, turning))
    context = Context(seen, X, v, given.q, given.qd)
    values = []
    for number, m in enumerate(problem.custom, start=len(problem.raw)):
        y = graph.inputs(value_group(m.name), len(m.components(problem.model)))
        values.append((value_group(m.name), y))
        _custom_rows(form, rows, number, m, y, context, shift)
    entries, b = _written(form, graph, rows, value)
    shown = {}
    for k, m in enumerate(form.outputs):
        if alike and alike[k]:
            shown[m.name] = _shown(form, graph, m, replace(context, velocities=turning), [], value)
        else:
            shown[m.name] = _shown(form, graph, m, context, shift, value)
    state = ((name, graph.inputs(name, size)) for name, size in (("q", problem.model.nq), ("qd", problem.model.nv)))
    inputs = (*state, *given.known.items(), *values, *given.varied.items())
    return Assembly(graph, inputs, entries, b, tuple(rows.names), tuple(rows.blocks), shown)


def _inputs(form: Formulation, graph: Graph) -> Given:
    problem, model = form.problem, form.problem.model
    q, qd = problem.imposed(graph.inputs("q", model.nq), graph.inputs("qd", model.nv))
    known = {x: graph.inputs(x, len(form.layout.quantity_columns(x))) for x in problem.known_quantities}
    return Given(q, qd, known, {p.name: graph.inputs(p.name, p.size) for p in problem.parameters})


def _motion(
    form: Formulation, given: Given, seen: Model, marked: Graph | None
) -> tuple[Rows, list[np.ndarray], list[np.ndarray]]:
    """(rows, X, v) of the equations of motion, in the frames of the unknowns."""
    moved = seen if form.reduced_model is form.problem.model else form.reduced_model
    wrenches = {i: form.to_equation_frame("fx", i) for i in form.fx_in_body_frame}
    begin = None if marked is None else marked.cut
    return newton_euler(moved, form.layout, given.q, given.qd, begin, form.classical, wrenches)


def _raw_rows(form: Formulation, given: Given, rows: Rows) -> dict[int, Expr]:
    """The value of each stated scalar, by its column in the full layout; adds the rows that state them."""
    layout, model = form.layout, form.problem.model
    value: dict[int, Expr] = {}
    place = {x: {c: k for k, c in enumerate(layout.quantity_columns(x))} for x in given.known}
    for number, m in enumerate(form.problem.raw):
        components = iter(m.components(model))
        for i, pairs in groupby(m.pairs(model), key=lambda pair: pair[0]):
            columns, chosen = layout.columns(m.quantity, i), [k for _, k in pairs]
            names = [measured_row(m, next(components)) for _ in chosen]
            x = [given.known[m.quantity][place[m.quantity][columns[k]]] for k in chosen]
            value |= {columns[k]: y for k, y in zip(chosen, x, strict=True)}
            if form.known == "rows":
                block, x = form.rows_for_known(m.quantity, i, chosen, x)
                rows.add(("y", number), names, [(columns, block)], [-y for y in x])
    return value


def _custom_rows(
    form: Formulation, rows: Rows, number: int, m: Measurement, y: np.ndarray, context: Context, shift: list[np.ndarray]
) -> None:
    """Add the rows of a measurement with value y, and the wrench of a constraint to the rows of bodies.

    shift: [v × ω] of each body if a is classical, else empty.
    """
    model, layout = form.problem.model, form.layout
    names = m.components(model)
    # the covariance of a value turned would have to be turned, too
    blocks, bias, turn = m.solved_form(context) if m.noise is None else (m.rows(context), m.bias(context), None)
    parts, bias = _of_unknowns(form, m, len(names), blocks, bias, shift)
    value = y if turn is None else turn @ y
    rows.add(("y", number), [measured_row(m, c) for c in names], parts, list(np.asarray(bias) - value))
    if isinstance(m, Constraint):
        columns = layout.columns("w", form.problem.constraints.index(m))
        for owner, coefficients in m.loads(context).items():
            _load(form, rows, "f", model.body_index(owner), columns, coefficients)
        for owner, coefficients in m.torques(context).items():
            _load(form, rows, "tau", model.joint_index(owner), columns, coefficients)


def _further_loads(form: Formulation, rows: Rows) -> None:
    """Add the terms of further quantities to c(f) and c(τ)."""
    for x in form.layout.further:
        for i in range(form.problem.model.nb):
            columns, back = form.layout.columns(x, i), form.from_equation_frame(x, i)
            for equation, coefficients in QUANTITY[x].checked_terms(form.problem.model, i).items():
                block = coefficients if back is None else coefficients @ back
                _load(form, rows, equation, i, columns, block)


def _load(form: Formulation, rows: Rows, equation: str, i: int, columns: range, coefficients: np.ndarray) -> None:
    """Add unknowns that act on body i as fx does, or at its joint as τ does; coefficients: in its coordinates."""
    load = np.asarray(coefficients).astype(object)
    if equation == "f" and form.frames is not None:
        load = form.to_equation_frame("f", i) @ load
    rows.extend((equation, i), columns, -load)


def measured_row(m: Measurement, component: str) -> str:
    """Name of the row that states a component of a measurement."""
    return f"{value_group(m.name)}: {component}"


def _of_unknowns(
    form: Formulation, m: Measurement, size: int, blocks: Mapping[tuple[str, str], np.ndarray], bias: np.ndarray,
    shift: list[np.ndarray],
) -> tuple[list[tuple[range, np.ndarray]], np.ndarray]:  # fmt: skip
    """(parts, bias) of the equations of a measurement, brought from frames of bodies to frames of the unknowns."""
    parts = []
    for (quantity, owner), coefficients in blocks.items():
        columns, block = _checked_block(form, m, size, quantity, owner, np.asarray(coefficients))
        _, body = form.layout.block(quantity, owner)
        back = form.from_equation_frame(quantity, body)
        block = block.astype(object) if back is None else block.astype(object) @ back
        parts.append((columns, block))
        if shift and quantity == "a":
            bias = bias + block[:, 3:] @ shift[body]
    return parts, np.asarray(bias)


def _shown(
    form: Formulation, graph: Graph, m: Measurement, context: Context, shift: list[np.ndarray], value: dict[int, Expr]
) -> Combination:
    """The value of a measurement in terms of the unknowns."""
    names = m.components(form.problem.model)
    parts, bias = _of_unknowns(form, m, len(names), m.rows(context), m.bias(context), shift)
    if bias.shape != (len(names),):
        raise ProblemError(
            f"measurement {m.name!r} gives a bias of shape {bias.shape}, but ({len(names)},) is needed: its components"
        )
    rows = Rows()
    rows.add(("y", 0), list(names), parts, list(bias))
    return Combination(*_written(form, graph, rows, value))


def _checked_block(
    form: Formulation, m: Measurement, size: int, quantity: str, owner: str, block: np.ndarray
) -> tuple[range, np.ndarray]:
    """(columns, block) of coefficients for a quantity. Raises UnknownName, ProblemError."""
    valid = form.problem.quantities
    check_among(f"quantity in the rows of {m.name!r}:", quantity, valid)
    columns = form.layout.columns(*form.layout.block(quantity, owner))
    if block.shape != (size, len(columns)):
        raise ProblemError(
            f"measurement {m.name!r} gives a block of shape {block.shape} for {quantity}({owner}), "
            f"but {(size, len(columns))} is needed (its components × the size of the quantity)"
        )
    return columns, block


def _written(form: Formulation, graph: Graph, rows: Rows, value: dict[int, Expr]) -> tuple[list[Row], list]:
    """(entries, b) with known quantities treated as the form says, and constants of exact value."""
    entries, b = _substituted(form, rows, value) if form.known == "substituted" else (rows.entries, rows.b)
    return [{c: graph.exact_constant(x) for c, x in row.items()} for row in entries], b


def _substituted(form: Formulation, rows: Rows, value: dict[int, Expr]) -> tuple[list[Row], list]:
    """The rows with known scalars moved into b, and columns counted without them."""
    entries, b = [dict(row) for row in rows.entries], list(rows.b)
    for r, row in enumerate(entries):
        for column in [c for c in row if c in value]:
            b[r] = b[r] + row.pop(column) * value[column]
    number = {c: k for k, c in enumerate(form.columns)}
    return [{number[c]: x for c, x in row.items()} for row in entries], b


def generic(assembly: Assembly, graph: Graph) -> Assembly:
    """The same system over `graph`, every entry that depends on the state an input of its own.

    Entries that are equal (or opposite) stay equal, as X occurs twice; constants stay constants. The operations of its
    elimination are the *solve* scope of the counts: X, v, c, ν given.
    """
    entry = Entries(graph)

    def written(rows: list[Row], b: list) -> Combination:
        return Combination([{c: entry(x) for c, x in row.items()} for row in rows],
                           [x if is_zero(x) else entry(x) for x in b])  # fmt: skip

    rows, b = written(assembly.rows, assembly.b)
    shown = {name: written(*x) for name, x in assembly.shown.items()}
    return Assembly(graph, (entry.group,), rows, b, assembly.names, assembly.blocks, shown)


class Entries:
    """Values of one graph as inputs of another, made at first use: `entries(x)` is the input or constant for x.

    Values that are equal (or opposite) stay equal; constants stay constants. values: the ones that are inputs.
    """

    def __init__(self, graph: Graph):
        self.values: list[Expr] = []
        self._graph = graph
        self._inputs: dict[int, Expr] = {}  # by the node of the value

    def __call__(self, x):
        if is_constant(x):
            return self._graph.exact_constant(constant_value(x))
        if x.node not in self._inputs:
            self._inputs[x.node] = self._graph.input(f"entry[{len(self.values)}]")
            self.values.append(-x if x.negative else x)
        found = self._inputs[x.node]
        return -found if x.negative else found

    @property
    def group(self) -> tuple[str, np.ndarray]:
        """The inputs, as a program takes them."""
        return "entries", np.array([*self._inputs.values(), None], dtype=object)[:-1]
