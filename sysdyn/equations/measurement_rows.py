"""Rows of measurements: known quantities, sensors, constraints with their wrenches, and measured outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

import numpy as np

from sysdyn.equations.formulation import Formulation
from sysdyn.equations.newton_euler import EquationRows
from sysdyn.errors import ProblemError, check_among
from sysdyn.measurements.input_names import value_group
from sysdyn.measurements.measurement import Constraint, Context, Measurement
from sysdyn.model import Model
from sysdyn.model.kinematics import joint_transforms
from sysdyn.model.quantities import QUANTITY
from sysdyn.model.se3 import X_inverse
from sysdyn.program.graph import Expr


def measurement_row_name(m: Measurement, component: str) -> str:
    """Name of the row that states a component of a measurement."""
    return f"{value_group(m.name)}: {component}"


class MeasurementRows:
    """Adds measurements to the equations of motion `rows` of a formulation.

    X, v: joint transforms and velocities of bodies in equation frames. shift: v × ω of each body, the linear part of
    spatial minus classical acceleration, if a is classical; else empty.
    """

    def __init__(
        self, form: Formulation, rows: EquationRows, model: Model, q: np.ndarray, qd: np.ndarray, X: list[np.ndarray],
        v: list[np.ndarray], shift: list[np.ndarray],
    ):  # fmt: skip
        self._form, self._rows, self._shift = form, rows, shift
        # for outputs that do not depend on linear velocities
        angular = [np.concatenate([x[:3], [0.0] * 3]) for x in v] if any(form.galilean_outputs) else []
        if form.frames is not None and (form.problem.custom or form.outputs):  # measurements use the frames of bodies
            X = joint_transforms(form.problem.model, q)
            to_body = [X_inverse(F).astype(object) for F in form.frames]
            v, angular = ([F @ x for F, x in zip(to_body, w, strict=False)] for w in (v, angular))
        self._context = Context(model, X, v, q, qd)
        self._angular = replace(self._context, velocities=angular)

    def add_further_quantities(self) -> None:
        """Add the terms of user-defined quantities (`Layout.further`) to c(f) and c(τ)."""
        form = self._form
        for x in form.layout.further:
            for i in range(form.problem.model.nb):
                columns, transform = form.layout.columns(x, i), form.from_equation_frame(x, i)
                for equation, coefficients in QUANTITY[x].checked_terms(form.problem.model, i).items():
                    self._add_load(
                        equation, i, columns, coefficients if transform is None else coefficients @ transform
                    )

    def add_known(self, known: Mapping[str, np.ndarray]) -> dict[int, Expr]:
        """Add a row x = y for each known scalar if `form.known` is "rows"; return {column in the layout: y}.

        known: {quantity: inputs y at full size}.
        """
        form, layout, model = self._form, self._form.layout, self._form.problem.model
        values: dict[int, Expr] = {}
        place = {x: {c: k for k, c in enumerate(layout.quantity_columns(x))} for x in known}
        for number, m in enumerate(form.problem.raw):
            components = iter(m.components(model))
            for i, pairs in groupby(m.pairs(model), key=lambda pair: pair[0]):
                columns, numbers = layout.columns(m.quantity, i), [k for _, k in pairs]
                names = [measurement_row_name(m, next(components)) for _ in numbers]
                x = [known[m.quantity][place[m.quantity][columns[k]]] for k in numbers]
                values |= {columns[k]: y for k, y in zip(numbers, x, strict=True)}
                if form.known == "rows":
                    block, x = form.rows_for_known(m.quantity, i, numbers, x)
                    self._rows.add(("y", number), names, [(columns, block)], [-y for y in x])
        return values

    def add(self, number: int, m: Measurement, y: np.ndarray) -> None:
        """Add the rows of a measurement with value y; for a constraint, also its wrench to c(f) and c(τ)."""
        form, model, context = self._form, self._form.problem.model, self._context
        names = m.components(model)
        # a noisy measurement is not rotated: its covariance would have to be rotated, too
        blocks, bias, rotation = (
            m.simplified_rows(context) if m.noise is None else (m.rows(context), m.bias(context), None)
        )
        parts, bias = self._of_unknowns(m, blocks, bias, self._shift)
        value = y if rotation is None else rotation @ y
        self._rows.add(("y", number), [measurement_row_name(m, c) for c in names], parts, list(bias - value))
        if isinstance(m, Constraint):
            columns = form.layout.columns("w", form.problem.constraints.index(m))
            for equation, i, L in m.actions(context):
                self._add_load(equation, i, columns, L)

    def output(self, m: Measurement, galilean: bool) -> EquationRows:
        """The value y = Y d + b_Y of a measurement. galilean: y is independent of linear velocities, so they are 0."""
        names = m.components(self._form.problem.model)
        context, shift = (self._angular, []) if galilean else (self._context, self._shift)
        parts, bias = self._of_unknowns(m, m.rows(context), m.bias(context), shift)
        if bias.shape != (len(names),):
            raise ProblemError(
                f"measurement {m.name!r} gives a bias of shape {bias.shape}, but ({len(names)},) is needed: its "
                "components"
            )
        rows = EquationRows()
        rows.add(("y", 0), list(names), parts, list(bias))
        return rows

    def _add_load(self, equation: str, i: int, columns: range, coefficients: np.ndarray) -> None:
        """Add load terms to c(f_i) or c(τ_i), with the sign of fx_i or τ_i; coefficients are in the body frame."""
        load = np.asarray(coefficients).astype(object)
        if equation == "f" and self._form.frames is not None:
            load = self._form.to_equation_frame("f", i) @ load
        self._rows.extend((equation, i), columns, -load)

    def _of_unknowns(
        self, m: Measurement, blocks: Mapping[tuple[str, str], np.ndarray], bias: np.ndarray, shift: list[np.ndarray]
    ) -> tuple[list[tuple[range, np.ndarray]], np.ndarray]:
        """(parts, bias) of the rows of a measurement; a part is (columns in the layout, coefficients).

        blocks {(quantity, owner): coefficients} and bias have unknowns in body frames, the result in equation frames.
        shift: see the class; its terms are added to the bias.
        """
        layout, parts = self._form.layout, []
        size = len(m.components(self._form.problem.model))
        for (quantity, owner), coefficients in blocks.items():
            check_among(f"quantity in the rows of {m.name!r}:", quantity, self._form.problem.quantities)
            _, body = layout.block(quantity, owner)
            columns, block = layout.columns(quantity, body), np.asarray(coefficients)
            if block.shape != (size, len(columns)):
                raise ProblemError(
                    f"measurement {m.name!r} gives a block of shape {block.shape} for {quantity}({owner}), "
                    f"but {(size, len(columns))} is needed (its components × the size of the quantity)"
                )
            transform = self._form.from_equation_frame(quantity, body)
            block = block.astype(object) if transform is None else block.astype(object) @ transform
            parts.append((columns, block))
            if shift and quantity == "a":
                bias = bias + block[:, 3:] @ shift[body]
        return parts, np.asarray(bias)
