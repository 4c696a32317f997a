"""One time step of a trajectory: equations in the state alone, after the dynamic variables are eliminated.

The equations of a problem, linearised about a state x = (q, q̇, q̈), are

    E d + e + E_x δx = 0,    L⁻¹ (Y d + y₀ − y + Y_x δx) = ε,  ε ~ N(0, 1),

where d excludes q̈, and δx is a change of the state (with q̈) and of biases. Exact equations are eliminated by static
pivots, noisy ones by orthogonal columns (square-root information, Bierman 1977). The remaining rows are R δx + r = ε,
and exact rows R δx + r = 0. The same factors give d at the state, its derivative by the state, and its error for a
known state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.equations.system import SINGULAR
from sysdyn.equations.whitened import whitened_system
from sysdyn.errors import NoSafeOrdering, ProblemError
from sysdyn.measurements.input_names import NOISE, SWITCH, group_of, value_group
from sysdyn.measurements.measurement import Output, output_name
from sysdyn.measurements.problem import Problem
from sysdyn.offline.derivatives import affine, rates
from sysdyn.offline.elimination import output_groups
from sysdyn.offline.report import INACCURATE
from sysdyn.offline.sampling import CHECK_SEED, ORDER_SEED, sample_matrix, sample_states
from sysdyn.program.graph import SHARING, Graph, Scalar, is_zero
from sysdyn.program.program import Program
from sysdyn.sparse.constrained_least_squares import ConstrainedLeastSquares
from sysdyn.sparse.lu import Pivots, divide_by, eliminate, solve_with_residual
from sysdyn.sparse.markowitz import least_squares
from sysdyn.sparse.sampled import Pivot, SampledMatrix

# Groups of outputs: r and the entries of R; whitened residuals of noisy equations, their variances, and the matrix F
# that maps r to them.
RESIDUAL, JACOBIAN, ERRORS, VARIANCES, FREE = "residual", "jacobian", "errors", "variances", "free"

# Number of states at which orders are searched and checked (CPU time).
STATES = 12


class Rows(NamedTuple):
    """The rows R δx + r of a time step, as a program.

    program: inputs are those of the problem and q̈. Outputs are RESIDUAL r (rows,), JACOBIAN, the entries of R at
    `places` (2, entries), ERRORS, the whitened residuals of noisy equations at the state, and VARIANCES, theirs.
    exact (rows,) bool: True for exact rows. columns: (input, index) of each column: q (tangent), qd, qdd, and values of
    biased measurements. noisy: name and component of each of the ERRORS.
    """

    program: Program
    places: np.ndarray
    exact: np.ndarray
    columns: tuple[tuple[str, int], ...]
    noisy: tuple[tuple[str, int], ...]


class TimeStepElimination:
    """The eliminated equations of a problem at a state.

    biased: measurements whose values are columns, too. Orders are checked at sampled states against dense solves with
    pivoting. Raises ProblemError if q̈ is known, or if the state and the equations do not determine d; NoSafeOrdering
    if every order loses digits.
    """

    def __init__(self, problem: Problem, outputs: Sequence[Output], biased: Sequence[str] = ()):
        if problem.knows("qdd"):
            known = next(m.name for m in problem.raw if m.quantity == "qdd")
            raise ProblemError(
                f"q̈ is unknown along a trajectory, but {known!r} states it: give it noise=, or leave it out"
            )
        self.problem, self.outputs = problem, tuple(outputs)
        system = self.system = whitened_system(problem, known="substituted", outputs=[*outputs])
        self._noise = system.plain.noise_by_row
        self._accelerations = [c for c, block in enumerate(system.col_blocks) if block[0] == "qdd"]
        self._eliminated = [c for c, block in enumerate(system.col_blocks) if block[0] != "qdd"]
        self._number = {c: k for k, c in enumerate(self._eliminated)}  # of each column that is eliminated
        least = np.inf
        for pivots in self._orders():
            self._eliminate(pivots)
            least = min(least, self.error())
            if least <= INACCURATE:
                break
        else:
            raise NoSafeOrdering(f"no order of the equations of a time step keeps digits: errors are {least:.2g}")
        self._differentiate(biased)

    def _orders(self) -> Iterator[Pivots]:
        """Candidate orders: first with unit pivots in front, then by cost alone. Raises ProblemError without any."""
        system, sampled = self.system, self._sampled()
        exact = set(range(system.shape[0])).difference(self._noise)
        units = [Pivot(r, self._number[c]) for r, c in system.plain.unit_pivots() if c in self._number]
        for first in (units, []):
            try:
                yield least_squares(sampled, exact, first)
            except NoSafeOrdering as error:
                raise ProblemError(
                    f"the states do not determine the dynamic variables ({error}): state what is not measured, such "
                    "as external wrenches, or give them a Prior"
                ) from error

    def _sampled(self) -> SampledMatrix:
        """The columns to eliminate at sampled states, scaled, with declared noise and all measurements on."""
        system, columns = self.system, np.array(self._eliminated)
        states = sample_states(system.problem, STATES, ORDER_SEED)
        a = sample_matrix(system, {x: y for x, y in states.items() if group_of(x).role not in (NOISE, SWITCH)})
        row_scale, column_scale = system.plain.scaling
        units = np.where(system.plain.noisy_mask, 1.0, row_scale), column_scale[columns]
        e = np.isin(a.col, columns)
        return replace(
            a, n=len(columns), row=a.row[e], col=np.searchsorted(columns, a.col[e]), values=a.values[:, e],
            fixed=a.fixed[e], rhs=np.ones(len(a.rhs), dtype=bool), units=units,
        )  # fmt: skip

    def _eliminate(self, pivots: Pivots) -> None:
        """Eliminate the dynamic variables in the order `pivots`."""
        assembly = self._assembly = self.system.build(Graph(SHARING))
        qdd = assembly.graph.inputs("qdd", self.problem.model.nv)
        self._inputs = (*assembly.inputs, ("qdd", qdd))
        accelerations = dict(zip(self._accelerations, qdd, strict=True))
        rows, b = [], []
        for row, right in zip(assembly.rows, assembly.b, strict=True):
            rows.append({self._number[c]: x for c, x in row.items() if c in self._number})
            b.append(affine({c: x for c, x in row.items() if c in accelerations}, right, accelerations))
        assembly.graph.cut()
        self._factors = eliminate(rows, b, *pivots)
        solution = dict(zip(self._eliminated, self._factors.solution, strict=True)) | accelerations
        self._solution = [solution[c] for c in range(self.system.shape[1])]

    def _differentiate(self, biased: Sequence[str]) -> None:
        """Derivatives of d and of the remaining rows by each column."""
        system, assembly = self.system, self._assembly
        measured = {x.name for x in self.outputs if not isinstance(x, str)}
        self.columns: tuple[tuple[str, int], ...] = ()
        changes: list[dict[int, Any]] = []
        self._output_rates: list[dict[str, list]] = []  # of outputs at fixed d, by each column
        for name in ("q", "qd", "qdd", *map(value_group, biased)):
            assembly.graph.cut()
            if name == "qdd":
                columns = [{i: row[c] for i, row in enumerate(assembly.rows) if c in row} for c in self._accelerations]
                by_output: list[dict[str, list]] = [{} for _ in columns]
            else:
                columns, by_output = rates(system, assembly, self._solution, name, measured)
            self.columns += tuple((name, k) for k in range(len(columns)))
            changes += columns
            self._output_rates += by_output
        assembly.graph.cut()
        self._solved = [solve_with_residual(self._factors, change) for change in changes]

    def error(self) -> float:
        """Greatest difference of residuals of noisy equations from those of a dense solve, at sampled states.

        Differences are relative to the greatest residual of the state, at least 1. If no equation is noisy, scaled
        unknowns are compared, relative to the greatest one. States with a singular matrix (to working precision) are
        excluded. Raises NoSafeOrdering if all states are excluded.
        """
        system, columns, noisy = self.system, self._eliminated, sorted(self._noise)
        exact = sorted(set(self._factors.row_perm).difference(noisy))
        states = sample_states(self.problem, STATES, CHECK_SEED)
        qdd = np.random.default_rng(CHECK_SEED).standard_normal((STATES, self.problem.model.nv))
        compared = self._by_row(self._residuals()) if noisy else list(self._factors.solution)
        program = Program.from_graph(self._assembly.graph, self._inputs, [(ERRORS, compared)])
        values = interpreter.run_groups(program, {**states, "qdd": qdd})[ERRORS]
        entries, b = (np.broadcast_to(x, (STATES, x.shape[1])) for x in system.values(states))
        scales, differences = system.plain.scaling[1][columns], []
        for k in range(STATES):
            matrix = system.matrix(entries[k]).toarray()
            right = b[k] + matrix[:, self._accelerations] @ qdd[k]
            dense = ConstrainedLeastSquares(matrix[np.ix_(exact, columns)], matrix[np.ix_(noisy, columns)], scales)
            if not dense.condition < 1.0 / SINGULAR:
                continue
            d, _, residuals = dense.solve(np.zeros((len(scales), 1)), -right[exact][:, None], -right[noisy][:, None])
            expected, units = (residuals[:, 0], 1.0) if noisy else (d[:, 0], scales)
            size = max(1.0 if noisy else np.finfo(float).tiny, np.abs(expected / units).max(initial=0.0))
            differences.append(np.abs((values[k] - expected) / units).max(initial=0.0) / size)
        if not differences:
            raise NoSafeOrdering(
                f"the equations of a time step cannot be checked: their condition number exceeds {1.0 / SINGULAR:g} at "
                f"all of {STATES} sampled states. Choose units in which noise and inertias are of similar "
                "magnitude"
            )
        return float(np.max(differences))

    def rows(self) -> Rows:
        """The remaining rows as a program."""
        residual_rows = self._factors.residual_rows
        entries, places, numbers = [], [], list[int]()
        for i in residual_rows:
            row = [(k, y[i]) for k, (_, y) in enumerate(self._solved) if not is_zero(y[i])]
            if row or i in self._noise:
                places += [(len(numbers), k) for k, _ in row]
                entries += [x for _, x in row]
                numbers.append(i)
        variances = defaultdict[int, Any](float)
        for column in self._residual_factor():
            for i, x in column.items():
                variances[i] = variances[i] + x * x
        program = self._program([
            (RESIDUAL, [residual_rows[i] for i in numbers]), (JACOBIAN, entries),
            (ERRORS, self._by_row(self._residuals())), (VARIANCES, self._by_row(variances)),
        ])  # fmt: skip
        exact = np.array([i not in self._noise for i in numbers], dtype=bool)
        noisy = tuple((self._noise[i][0].name, self._noise[i][1]) for i in sorted(self._noise))
        return Rows(program, np.array(places, dtype=int).reshape(-1, 2).T, exact, self.columns, noisy)

    def free(self) -> tuple[Program, np.ndarray]:
        """(program of F, places (2, entries) of its entries), where F r are the whitened residuals.

        Rows of F are in the order of ERRORS, columns in the order of the rows that are not exact.
        """
        number = {i: k for k, i in enumerate(sorted(self._noise))}
        entries = [(number[i], k, x) for k, column in enumerate(self._residual_factor()) for i, x in column.items()]
        program = self._program([(FREE, [x for _, _, x in entries])])
        return program, np.array([x[:2] for x in entries], dtype=int).reshape(-1, 2).T

    def results(self) -> Program:
        """The program of the outputs at a state.

        Groups: NAME, the values; d NAME, their Gauss-Newton derivatives by the columns (scalars × columns); var NAME,
        the variances of their errors for a known state.
        """
        groups: list[tuple[str, list]] = []
        values_by_name = output_groups(self.system, self._assembly, self._solution, self.outputs)
        measured = self._assembly.outputs
        for (name, values), output in zip(values_by_name, self.outputs, strict=True):
            terms = measured[name].rows if name in measured else self.system.output_terms(output_name(output))
            slopes, variances = [], []
            for k, row in enumerate(terms):
                eliminated = {self._number[c]: x for c, x in row.items() if c in self._number}
                by_qdd = {("qdd", n): row[c] for n, c in enumerate(self._accelerations) if c in row}
                for column, (change, _), fixed in zip(self.columns, self._solved, self._output_rates, strict=True):
                    slope = fixed[name][k] if name in fixed else 0.0
                    slopes.append(affine(eliminated, slope + by_qdd.get(column, 0.0), change))
                variances.append(self._variance(eliminated))
            groups += [(name, values), (f"d {name}", slopes), (f"var {name}", variances)]
        return self._program(groups)

    def _program(self, groups: Sequence[tuple[str, list]]) -> Program:
        return Program.from_graph(self._assembly.graph, self._inputs, groups)

    def _by_row(self, values: Mapping[int, Scalar]) -> list[Scalar]:
        """Values of {noisy row: value} as a list in the order of the noisy rows; 0 for missing rows."""
        return [values.get(i, 0.0) for i in sorted(self._noise)]

    # After exact rows are eliminated, Q^T (W d + w) = (R d + r, ρ) with Q = (Q₁ Q₂). At the solution R d + r = 0, so
    # residuals are Q₂ ρ with covariance Q₂ Q₂^T, and the variance of c^T d is |R^-T c|². Golub (1965).

    def _variance(self, terms: Mapping[int, Scalar]) -> Scalar:
        """Variance of Σ c_j d_j for a known state. terms: {j: c_j}."""
        f, r, variance = self._factors, dict(terms), 0.0
        for k, (row, column) in enumerate(zip(f.row_perm, f.col_perm, strict=True)):
            x = r.pop(column, 0.0)
            if is_zero(x):
                continue
            divide = divide_by(f.pivots[k], 2)
            x = x if f.row_is_scaled[k] else divide(x)
            for j, u in f.upper[k].items():
                r[j] = r.get(j, 0.0) - u * x
            if row in self._noise:
                z = divide(x) if f.row_is_scaled[k] else x
                variance = variance + z * z
        return variance

    def _residuals(self) -> dict[int, Scalar]:
        """Residuals {noisy row: W d + w} at the solution."""
        return self._rotated_back({i: x for i, x in self._factors.residual_rows.items() if i in self._noise})

    def _residual_factor(self) -> list[dict[int, Scalar]]:
        """Columns {noisy row: entry} of Q₂, which maps ρ to the whitened residuals (comment above)."""
        return [self._rotated_back({i: 1.0}) for i in self._factors.residual_rows if i in self._noise]

    def _rotated_back(self, y: dict[int, Scalar]) -> dict[int, Scalar]:
        for _, rotation in sorted(self._factors.rotations.items(), reverse=True):
            if rotation.rows[0] in self._noise:
                rotation.apply_transposed(y)
        return y
