"""Systems D(q) d + b(q, q̇) = 0 with named rows and columns: as expressions, as pattern, and as numbers.

One assembly serves all three: its expressions are the input of the compiler and have the worst-case pattern, and their
values are D(q) and b.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import scipy  # which loads scipy.sparse where it is first used
from numpy.typing import ArrayLike

from sysdyn.codegen import interpreter
from sysdyn.codegen.double_double import run_double_double
from sysdyn.equations.assembly import Assembly, Combination
from sysdyn.equations.formulation import Formulation
from sysdyn.equations.measurement_rows import MeasurementRows, measurement_row_name
from sysdyn.equations.newton_euler import EquationRows, newton_euler
from sysdyn.errors import InvalidInput
from sysdyn.measurements.input_names import value_group
from sysdyn.measurements.noise import ModelNoise, Noise, noise_of
from sysdyn.measurements.parameters import VariedModel
from sysdyn.measurements.variables import Layout
from sysdyn.model.quantities import QUANTITY, is_spatial
from sysdyn.model.se3 import cross
from sysdyn.program.arrays import float_array, format_shape, reject_not_finite
from sysdyn.program.graph import SHARING, Expr, Graph, is_constant
from sysdyn.program.groups import bind_arguments
from sysdyn.program.program import Program
from sysdyn.sparse.condition import balance, bauer_condition, equilibration, skeel_condition
from sysdyn.sparse.double_double import DoubleDouble
from sysdyn.sparse.lu import is_unit

# Relative change of entries that makes the matrix of a singular state singular (4,500 rounding units).
SINGULAR = 1e-12
# Reciprocal condition of matrices that are singular in all units (a twentieth of the rounding unit).
SURELY_SINGULAR = 1e-17
# Number of random states from which rows and columns are scaled (more change little).
SCALE_STATES = 4
# Entries below this share of their typical size count as zero (45 rounding units).
ENTRY_ROUNDING = 1e-14


class System:
    """Equations over named unknowns: those of a problem (`BlockSystem`) or of its estimate.

    form, layout            choices by which the equations are written, and places of the unknowns
    columns                 number in the layout of each scalar unknown that has a column here
    col_names, col_blocks   name and (quantity, body) of each column
    plain                   the equations of the problem alone
    """

    plain: BlockSystem

    def __init__(
        self, form: Formulation, layout: Layout, columns: list[int], col_names: tuple[str, ...],
        col_blocks: tuple[tuple[str, int], ...],
    ):  # fmt: skip
        self.form, self.layout = form, layout
        self.columns, self.col_names, self.col_blocks = columns, col_names, col_blocks
        self.problem, self.model, self.passes = form.problem, form.problem.model, form.passes

    def rewrite(self, plain: Assembly) -> Assembly:
        """The equations of this system from those of the problem, in the same graph."""
        return plain

    def build(self, graph: Graph, segmented: bool = False) -> Assembly:
        """The system over `graph`. segmented: begin a segment of the program with each body."""
        return self.rewrite(self.plain.build(graph, segmented))

    def build_copy(self) -> Assembly:
        """The system over a new graph, with a program segment per body. Copies a cached one, which is faster."""
        return self._segmented.copy()

    @cached_property
    def _segmented(self) -> Assembly:
        return self.build(Graph(self.sharing), segmented=True)

    @cached_property
    def assembly(self) -> Assembly:
        """The system over a shared graph, for reading only."""
        return self.rewrite(self.plain.assembly)

    def output_terms(self, quantity: str) -> list[dict[int, float]]:
        """Each scalar of a quantity, in the frame of its body, as {column: coefficient}; see `Formulation`."""
        return self.form.output_terms(quantity)

    @property
    def sharing(self) -> str:
        """Option `sharing` of the graph of an elimination: "algebraic" or "structural"; see `Graph`."""
        return "algebraic" if "symmetric_elimination" in self.passes else "structural"

    # ---- names and pattern -------------------------------------------------------------------------------------

    @property
    def row_names(self) -> tuple[str, ...]:
        return self.assembly.names

    @property
    def row_blocks(self) -> tuple[tuple[str, int], ...]:
        """(quantity, body) of each row; ("y", number of the measurement) for rows of measurements."""
        return self.assembly.blocks

    @property
    def shape(self) -> tuple[int, int]:
        """Number of (equations, unknowns)."""
        return len(self.assembly.rows), len(self.columns)

    @cached_property
    def coordinates(self) -> tuple[np.ndarray, np.ndarray]:
        """(row, column) of each entry of the worst-case pattern, in the order of `values`."""
        pairs = [(r, c) for r, row in enumerate(self.assembly.rows) for c in sorted(row)]
        array = np.array(pairs, dtype=np.int32).reshape(-1, 2)
        return array[:, 0], array[:, 1]

    @cached_property
    def _starts(self) -> np.ndarray:
        """Row pointers (equations + 1) of the pattern in CSR."""
        sizes = np.bincount(self.coordinates[0], minlength=self.shape[0])
        return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)

    @cached_property
    def _entries(self) -> list:
        """The entry at each of the coordinates."""
        r, c = self.coordinates
        return [self.assembly.rows[i][j] for i, j in zip(r.tolist(), c.tolist(), strict=True)]

    @property
    def nnz(self) -> int:
        """Entries of the worst-case pattern."""
        return len(self.coordinates[0])

    def pattern(self) -> scipy.sparse.csr_matrix:
        """The worst-case pattern: all entries of D that are nonzero for some q. Nori, Remark 4.

        Returns
        -------
        (equations, unknowns) csr_matrix of ones
        """
        return self.matrix(np.ones(self.nnz))

    def fixed_entries(self) -> np.ndarray:
        """(nnz) bool: True for constants of the model; in the order of `values`."""
        return np.array([is_constant(x) for x in self._entries], dtype=bool)

    # ---- numbers -----------------------------------------------------------------------------------------------

    @cached_property
    def program(self) -> Program:
        """The entries of D, in the order of `values`, and b, as a program."""
        assembly = self.assembly
        inputs = [(name, list(group)) for name, group in assembly.inputs]
        return Program.from_graph(assembly.graph, inputs, [("D", self._entries), ("b", assembly.b)])

    def values(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """(entries (N, nnz), b (N, equations)) for inputs by group, each (N, size) or (size,).

        Missing parameters, covariances and switches have their declared defaults; other missing inputs are zero.
        """
        out = interpreter.run_groups(self.program, self._full(inputs))
        return out["D"], out["b"]

    def values_at(self, inputs: Mapping[str, np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray]:
        """`values` of n states, broadcast to n rows if all states share them."""
        entries, b = self.values(inputs)
        return np.broadcast_to(entries, (n, entries.shape[1])), np.broadcast_to(b, (n, b.shape[1]))

    def values_double_double(self, inputs: Mapping[str, np.ndarray]) -> tuple[DoubleDouble, DoubleDouble]:
        """Entries of D (nnz,) and b (equations,) in double-double, at one state; inputs as for `values`."""
        out = run_double_double(self.program, self._full(inputs))
        return out["D"], out["b"]

    def _full(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every group of inputs, missing ones filled with their defaults or zero."""
        defaults = {name: group.default for name, group in self.problem.inputs.items() if group.default is not None}
        values = {**defaults, **inputs}
        return {name: values.get(name, np.zeros(size)) for name, size in self.program.inputs.sizes.items()}

    @cached_property
    def _output_program(self) -> Program:
        """Entries of Y and b_Y of the measurements that are outputs."""
        assembly = self.assembly
        groups: list[tuple[str, list]] = []
        for name, (rows, b) in assembly.outputs.items():
            groups += [(f"Y {name}", [x for row in rows for x in row.values()]), (f"b {name}", b)]
        return Program.from_graph(assembly.graph, [(name, list(x)) for name, x in assembly.inputs], groups)

    def output_rows(self, inputs: Mapping[str, np.ndarray]) -> dict[str, Combination]:
        """{name: (Y, b_Y)} of the measurements that are outputs, with entries (N,); inputs as for `values`."""
        out = interpreter.run_groups(self._output_program, self._full(inputs))
        outputs = {}
        for name, (rows, _) in self.assembly.outputs.items():
            entries = iter(out[f"Y {name}"].T)
            outputs[name] = Combination([{c: next(entries) for c in row} for row in rows], list(out[f"b {name}"].T))
        return outputs

    def output_values(
        self, inputs: Mapping[str, np.ndarray], d: np.ndarray
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """{name: (y, sums)} of measured outputs: y = Y d + b_Y and absolute sums |Y| |d| + |b_Y|, (N, m) each.

        inputs: as for `values`. d (N, full layout): unknowns.
        """
        unknowns, values = d[:, self.columns], {}
        for name, (rows, b) in self.output_rows(inputs).items():
            terms = [[bias, *(x * unknowns[:, c] for c, x in row.items())] for row, bias in zip(rows, b, strict=True)]
            y, size = np.zeros((2, len(d), len(rows)))
            for k, row_terms in enumerate(terms):
                y[:, k], size[:, k] = sum(row_terms), sum(map(np.abs, row_terms))
            values[name] = y, size
        return values

    def matrix(self, entries: np.ndarray) -> scipy.sparse.csr_matrix:
        """The CSR matrix D at one state; entries (nnz) as from `values`."""
        starts = self._starts
        return scipy.sparse.csr_matrix((np.array(entries), self.coordinates[1].copy(), starts.copy()), shape=self.shape)

    @cached_property
    def typical_sizes(self) -> np.ndarray:
        """Greatest size (nnz,) of each entry at a few random states."""
        q, qd, _ = self.model.random_state(seed=7, batch=SCALE_STATES)
        return np.abs(self.values({"q": q, "qd": qd})[0]).max(axis=0)

    @cached_property
    def scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Factors of rows and columns that make them comparable."""
        (r, c), sizes = self.coordinates, self.typical_sizes
        rows, columns = equilibration(r, c, sizes, self.shape)
        both = balance(self.matrix(sizes * rows[r] * columns[c]))
        return rows * both[0], columns * both[1]

    def scaled(self, entries: np.ndarray) -> scipy.sparse.csr_matrix:
        """`matrix` with rows and columns scaled to be comparable, for condition numbers."""
        rows, columns = self.scaling
        r, c = self.coordinates
        return self.matrix(entries * rows[r] * columns[c])

    def drop_rounding(self, entries: np.ndarray) -> np.ndarray:
        """Entries (nnz) of D at one state, with zeros in place of those that are rounding errors."""
        return np.where(np.abs(entries) > ENTRY_ROUNDING * self.typical_sizes, entries, 0.0)

    def scaling_at(self, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rows, columns): scaling factors that minimise the condition number at one state; see `bauer_condition`."""
        (rows, columns), (r, c) = self.scaling, self.coordinates
        clean = self.drop_rounding(entries)
        _, *both = bauer_condition(self.matrix(clean * rows[r] * columns[c]))
        return rows * both[0], columns * both[1]

    def reciprocal_condition(self, entries: np.ndarray, sufficient: float = math.inf) -> float:
        """1/κ of the square matrix D with these entries (nnz), with Skeel's κ minimised over the units of the unknowns.

        1/κ is the least relative change of entries that makes the matrix singular: 1 is well-conditioned, 0 singular.
        Entries below 1e-14 of their typical size count as zeros. A cheaper lower bound, in the units of `scaling`, is
        returned if it is at least `sufficient` or below 1e-17, because in other units a row of rounding errors looks
        regular (see `bauer_condition`). For problems with noise the result is the greater of this bound and 1/κ in SI
        units.
        """
        clean = self.drop_rounding(entries)
        scaled = self.scaled(clean)
        bound = 1.0 / skeel_condition(scaled)
        if bound >= sufficient or bound < SURELY_SINGULAR:
            return bound
        # multipliers add units in which singular estimates look regular
        if self.problem.noisy:
            condition = skeel_condition(self.matrix(clean))
        else:
            condition = bauer_condition(scaled)[0]
        return max(bound, 1.0 / condition)

    def solvability(self, entries: np.ndarray, sufficient: float = math.inf) -> float:
        """Reciprocal condition number that decides whether a state can be solved; entries (nnz) of D at that state.

        For a plain system: `reciprocal_condition`. In an estimate multipliers can make a regular problem look
        singular, so `AugmentedSystem` takes the greater of `reciprocal_condition` and `estimability`.
        """
        return self.reciprocal_condition(entries, sufficient)

    def D(self, q: ArrayLike) -> scipy.sparse.csr_matrix:
        """The matrix D(q). Nori eq. (5).

        Parameters
        ----------
        q : (nq,) array, rad and m
            Positions.

        Returns
        -------
        (equations, unknowns) csr_matrix
            The stored entries are those of the worst-case pattern, zeros included.
        """
        return self.matrix(self.values({"q": self._one_state("q", q), "qd": np.zeros(self.model.nv)})[0][0])

    def b(self, q: ArrayLike, qd: ArrayLike, **known: ArrayLike) -> np.ndarray:
        """The right-hand side b(q, q̇) of D d + b = 0. Nori eq. (4).

        Parameters
        ----------
        q : (nq,) array, rad and m
            Positions.
        qd : (nv,) array, rad/s and m/s
            Velocities.
        **known : arrays
            Values of known quantities (tau, qdd, fx, a, f) at full size, zero by default.

        Returns
        -------
        (equations,) array
        """
        quantities = bind_arguments("the problem", self.problem.known_quantities, (), (), known, ("q", "qd"))
        inputs = {"q": q, "qd": qd, **quantities}
        return self.values({name: self._one_state(name, x) for name, x in inputs.items()})[1][0]

    def _one_state(self, name: str, value: ArrayLike) -> np.ndarray:
        """Values (size,) of a group of inputs at one state. Raises InvalidInput for several states."""
        group, x = self.problem.inputs[name], float_array(name, value)
        if group.batch_axes(x):
            shape = format_shape(group.shape)
            raise InvalidInput(f"{name} has shape {x.shape}, but {shape} is needed: D and b are of one state")
        x = x.reshape(-1)
        reject_not_finite(name, x, 1)
        return self.model.normalise(x) if name == "q" else x

    # ---- sizes of residuals, see `sysdyn.equations.backward_error` -----------------------------------------------

    def residual_scale(self, terms: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Scales (N, equations) of relative residuals. terms: sums of absolute terms; size (N, nnz): |D|."""
        return terms

    def row_sums(self, terms: np.ndarray) -> np.ndarray:
        """Sums (N, equations) of terms (N, nnz) by row."""
        return (self._row_adder @ terms.T).T

    @cached_property
    def _row_adder(self) -> scipy.sparse.csr_matrix:
        row = self.coordinates[0]
        return scipy.sparse.csr_matrix((np.ones(len(row)), (row, np.arange(len(row)))), shape=(self.shape[0], len(row)))

    @cached_property
    def unknown_groups(self) -> tuple[np.ndarray, np.ndarray]:
        """Group numbers (columns,) of each unknown: by 3-vector, and by body and units."""
        vectors: dict[tuple, int] = {}
        kinds: dict[tuple, int] = {}
        groups = []
        for c, (quantity, body) in zip(self.columns, self.col_blocks, strict=True):
            kind = QUANTITY[quantity].component_units if quantity in QUANTITY else quantity
            place = (c - self.layout.columns(quantity, body).start) // 3 if is_spatial(quantity) else c
            vector = vectors.setdefault((quantity, body, place), len(vectors))
            groups.append((vector, kinds.setdefault((kind, body), len(kinds))))
        numbers = np.array(groups, dtype=int).reshape(-1, 2)
        return numbers[:, 0], numbers[:, 1]

    def __repr__(self) -> str:
        m, n = self.shape
        how = f"layout {self.layout.name!r}, known {self.form.known!r}"
        return f"{type(self).__name__}({m} equations, {n} unknowns, {self.nnz} entries; {how})"


class BlockSystem(System):
    """The equations D(q) d + b(q, q̇) = 0 of a problem, from `sysdyn.assemble`.

    Attributes
    ----------
    row_names, col_names : tuple of str
        Names of the scalar equations and unknowns, such as "c:f(hand).nx" and "qdd(elbow)".
    row_blocks, col_blocks : tuple of (str, int)
        Quantity and number of the body; ("y", number of the measurement) for rows of measurements.
    columns : list of int
        Index in `Problem.layout` of each scalar unknown that has a column.
    """

    def __init__(self, form: Formulation):
        layout, columns = form.layout, form.columns
        blocks = [block for block in layout.blocks for _ in range(layout.size(*block))]
        names = tuple(layout.names[c] for c in columns)
        super().__init__(form, layout, columns, names, tuple(blocks[c] for c in columns))

    @property
    def plain(self) -> BlockSystem:  # type: ignore[override]
        """The equations of the problem without multipliers: this system itself."""
        return self

    def build(self, graph: Graph, segmented: bool = False) -> Assembly:
        problem, form, model = self.problem, self.form, self.problem.model
        state = graph.inputs("q", model.nq), graph.inputs("qd", model.nv)
        q, qd = problem.imposed(*state)
        known = {x: graph.inputs(x, len(self.layout.quantity_columns(x))) for x in problem.known_quantities}
        parameters = {p.name: graph.inputs(p.name, p.size) for p in problem.parameters}
        symbolic_model = VariedModel(model, parameters) if parameters else model
        reduced_model = symbolic_model if form.reduced_model is model else form.reduced_model
        fx_frames = {i: form.to_equation_frame("fx", i) for i in form.fx_in_body_frame}
        begin = (lambda i: graph.cut()) if segmented else None
        rows, X, v = newton_euler(reduced_model, self.layout, q, qd, begin, form.classical, fx_frames)
        shift = [cross(x[3:], x[:3]) for x in v] if form.classical else []  # spatial less classical acceleration
        if segmented:
            graph.cut()
        measurements = MeasurementRows(form, rows, symbolic_model, q, qd, X, v, shift)
        measurements.add_further_quantities()
        value_of = measurements.add_known(known)
        values = []
        for number, m in enumerate(problem.custom, start=len(problem.raw)):
            y = graph.inputs(value_group(m.name), len(m.components(model)))
            values.append((value_group(m.name), y))
            measurements.add(number, m, y)
        entries, b = self._reduced(graph, rows, value_of)
        outputs = {
            m.name: self._reduced(graph, measurements.output(m, galilean), value_of)
            for m, galilean in zip(form.outputs, form.galilean_outputs, strict=True)
        }
        inputs = (*zip(("q", "qd"), state, strict=True), *known.items(), *values, *parameters.items())
        return Assembly(graph, inputs, entries, b, tuple(rows.names), tuple(rows.blocks), outputs)

    def _reduced(self, graph: Graph, rows: EquationRows, value_of: Mapping[int, Expr]) -> Combination:
        """Move known scalars without a column into b, and renumber columns; constants keep their exact value."""
        column, b = {c: k for k, c in enumerate(self.columns)}, list(rows.b)
        for r, row in enumerate(rows.entries):
            for c in (c for c in row if c not in column):
                b[r] = b[r] + row[c] * value_of[c]
        exact = graph.exact_constant
        return Combination([{column[c]: exact(x) for c, x in row.items() if c in column} for row in rows.entries], b)

    @cached_property
    def assembly(self) -> Assembly:
        return self.build(Graph(SHARING))

    @cached_property
    def noise_rows(self) -> list[tuple[Noise, list[int]]]:
        """(covariance, row of each of its components) of each noisy measurement and equation of motion."""
        row = {name: r for r, name in enumerate(self.row_names)}
        rows = []
        for m in self.problem.noisy:
            names = m.components(self.model)
            if not isinstance(m, ModelNoise):
                names = tuple(measurement_row_name(m, name) for name in names)
            rows.append((noise_of(m, self.model), [row[name] for name in names]))
        return rows

    @cached_property
    def noise_by_row(self) -> dict[int, tuple[Noise, int]]:
        """{row: (covariance, component)} of the noisy equations."""
        return dict(sorted((r, (noise, k)) for noise, rows in self.noise_rows for k, r in enumerate(rows)))

    @property
    def noisy_mask(self) -> np.ndarray:
        """(equations,) bool: True for noisy equations, False for exact ones."""
        return np.isin(np.arange(self.shape[0]), list(self.noise_by_row))

    def unit_pivots(self) -> list[tuple[int, int]]:
        """Pivots ±1 (row, column) of exact rows, body by body from the leaves.

        The columns without such a pivot are unknown joint accelerations and external wrenches.
        """
        rows, columns = self.assembly.rows, dict[tuple[str, int], list[int]]()
        exact = [r for r in range(len(rows)) if r not in self.noise_by_row]
        pivots = [(r, c) for r in exact if len(rows[r]) == 1 for c, x in rows[r].items() if is_unit(x)]
        pivot_columns, by_body = {c for _, c in pivots}, dict[int, list[tuple[int, int]]]()
        for c, block in enumerate(self.col_blocks):
            columns.setdefault(block, []).append(c)
        for r in exact:
            block = self.row_blocks[r]
            for c in columns.get(block, ()):
                if c not in pivot_columns and is_unit(rows[r].get(c)):
                    by_body.setdefault(block[1], []).append((r, c))
                    pivot_columns.add(c)
                    break
        for body in sorted(by_body, reverse=True):  # τ and wrenches before the accelerations that they depend on
            pivots += sorted(by_body[body], key=lambda pivot: self.col_blocks[pivot[1]][0] == "a")
        return pivots
