"""One instant of a trajectory: all that its equations say about the state once the dynamic variables are eliminated.

The equations of a problem, linearised about a state x = (q, q̇, q̈), are

    E d + e + E_x δx = 0,    L⁻¹ (Y d + y₀ − y + Y_x δx) = ε,  ε ~ N(0, 1),

d without q̈, and a change of the state, of q̈ and of biases as further columns. Orthogonal columns eliminate d
(square-root information, Bierman 1977) and leave R δx + r = ε, and exact rows R δx + r = 0: rows of states alone. d at
the state follows from the same factors, and so do its change with the state and its error beyond that of the state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sysdyn.codegen import interpreter
from sysdyn.equations.whitened import WhitenedSystem, whitened_system
from sysdyn.errors import NoSafeOrdering, ProblemError
from sysdyn.measurements.groups import NOISE, SWITCH, group_of, value_group
from sysdyn.measurements.measurement import Output, output_name
from sysdyn.offline.derivatives import rates
from sysdyn.offline.elimination import output_groups
from sysdyn.offline.sampling import CHECK_SEED, ORDER_SEED, sample_states
from sysdyn.problem import Problem
from sysdyn.program.graph import SHARING, Graph, Scalar, is_zero
from sysdyn.program.program import Program
from sysdyn.sparse.constrained_least_squares import ConstrainedLeastSquares
from sysdyn.sparse.least_squares import Order, least_squares
from sysdyn.sparse.lu import Factors, divider, eliminate, solve_and_left

# Groups of outputs: rows of the state and their entries; whitened residuals of noisy equations, and their variances.
RESIDUAL, JACOBIAN, ERRORS, SHARES, FREE = "residual", "jacobian", "errors", "shares", "free"


# States at which an elimination is checked, condition beyond which a state has no digits to compare, and greatest
# error of residuals (chosen).
JUDGED, WITHOUT_DIGITS, LARGEST_ERROR = 8, 1e12, 1e-7
# Number of states at which orders are searched (chosen).
ORDER_STATES = 12


class Rows(NamedTuple):
    """The program of the rows of the state at an instant.

    program: from the inputs of the problem and q̈ to RESIDUAL (rows,), JACOBIAN, the entries at `places` (2, entries),
    ERRORS, the whitened residuals of the noisy equations at the state, and SHARES, their variances. exact (rows,) bool:
    rows that hold exactly. columns: (input, number) of each column: q (tangent), qd, qdd, and values of biased
    measurements. noisy: name and component of each of the ERRORS.
    """

    program: Program
    places: np.ndarray
    exact: np.ndarray
    columns: tuple[tuple[str, int], ...]
    noisy: tuple[tuple[str, int], ...]


class _Errors:
    """Errors of a least-squares solution from its orthogonal factors. noisy: the rows that are not exact.

    With exact rows eliminated, Q^T (W d + w) = (R d + r, residual) of the whitened rows, Q = (Q₁ Q₂): Cov(c^T d) is
    |R^-T c|², residuals are Q₂ residual and their covariance is Q₂ Q₂^T. Golub (1965).
    """

    def __init__(self, factors: Factors, noisy: Collection[int]):
        self._factors, self._noisy = factors, noisy
        self._rest = [i for i in factors.left if i in noisy]

    def variance(self, terms: Mapping[int, Scalar]) -> Scalar:
        """Variance of Σ c_j d_j, of {j: c_j}."""
        f, r, variance = self._factors, dict(terms), 0.0
        for k, (row, column) in enumerate(zip(f.row_perm, f.col_perm, strict=True)):
            if k in f.across:
                f.across[k].apply(r)
            x = r.pop(column, 0.0)
            if is_zero(x):
                continue
            divide = divider(f.pivots[k], 2)
            x = x if f.scaled[k] else divide(x)
            for j, u in f.upper[k].items():
                r[j] = r.get(j, 0.0) - u * x
            if row in self._noisy:
                z = divide(x) if f.scaled[k] else x
                variance = variance + z * z
        return variance

    def residuals(self) -> dict[int, Scalar]:
        """Residuals {noisy row: W d + w} at the solution."""
        return self._rotated_back({i: self._factors.left[i] for i in self._rest})

    def factor(self) -> list[dict[int, Scalar]]:
        """Columns {noisy row: entry} of Q₂."""
        return [self._rotated_back({i: 1.0}) for i in self._rest]

    def _rotated_back(self, y: dict[int, Scalar]) -> dict[int, Scalar]:
        for k in sorted(self._factors.turns, reverse=True):
            for transform in reversed(self._factors.turns[k]):
                if transform.rows[0] in self._noisy:
                    transform.apply_transposed(y)
        return y


class Instant:
    """The eliminated equations of a problem at a state.

    biased: measurements whose values have columns, too. Orders are checked at sampled states against dense matrices
    with pivoting; the first that loses no digits is used. Raises ProblemError if q̈ is known, or if d is not determined
    by the state and the equations; NoSafeOrdering if every order loses digits.
    """

    def __init__(self, problem: Problem, outputs: Sequence[Output], biased: Sequence[str] = ()):
        if problem.knows("qdd"):
            known = next(m.name for m in problem.raw if m.quantity == "qdd")
            raise ProblemError(
                f"q̈ is unknown along a trajectory, but {known!r} states it: give it noise=, or leave it out"
            )
        self.problem, self.outputs = problem, tuple(outputs)
        system = self.system = whitened_system(problem, known="substituted", outputs=[*outputs])
        moving = [c for c, block in enumerate(system.col_blocks) if block[0] == "qdd"]
        rest = [c for c in range(system.shape[1]) if c not in set(moving)]
        self._rest, self._moving = rest, moving
        least = np.inf
        for order in _ordered(system, rest):
            self._eliminate(order)
            least = min(least, self.error())
            if least <= LARGEST_ERROR:
                break
        else:
            raise NoSafeOrdering(f"no order of the equations of an instant keeps digits: errors are {least:.2g}")
        self._differentiate(biased)

    def _eliminate(self, order: Order) -> None:
        """Eliminate the dynamic variables in this order."""
        system, rest, moving, problem = self.system, self._rest, self._moving, self.problem
        assembly = self._assembly = system.build(Graph(SHARING))
        qdd = assembly.graph.inputs("qdd", problem.model.nv)
        self._inputs = (*assembly.inputs, ("qdd", qdd))
        number = {c: k for k, c in enumerate(rest)}
        rows = [{number[c]: x for c, x in row.items() if c in number} for row in assembly.rows]
        b = list(assembly.b)
        held: list[dict[int, Any]] = [{} for _ in moving]
        for i, row in enumerate(assembly.rows):
            for k, c in enumerate(moving):
                if c in row:
                    held[k][i] = row[c]
                    b[i] = b[i] + row[c] * qdd[k]
        assembly.graph.cut()
        self._factors = eliminate(rows, b, *order.pivots, early=order.early, across=order.across)
        self._solution = self._full(self._factors.solution, rest, dict(zip(moving, qdd, strict=True)))
        self._held = held

    def _differentiate(self, biased: Sequence[str]) -> None:
        """Solve for the change of d along each column, with the rows that are left."""
        system, assembly, d = self.system, self._assembly, self._solution
        shown = {x.name for x in self.outputs if not isinstance(x, str)}
        self._columns: list[tuple[str, int]] = []
        self._changes: list[dict[int, Any]] = []
        self._own: list[dict[str, list]] = []
        for name in ("q", "qd"):
            assembly.graph.cut()
            self._add(name, *rates(system, assembly, d, name, shown))
        for k, change in enumerate(self._held):
            self._columns.append(("qdd", k))
            self._changes.append(change)
            self._own.append({})
        for name in biased:
            self._add(value_group(name), *rates(system, assembly, d, value_group(name), shown))
        assembly.graph.cut()
        self._along = [solve_and_left(self._factors, change) for change in self._changes]

    def error(self) -> float:
        """Greatest difference of residuals of noisy equations from those of dense matrices, at sampled states.

        Each difference is relative to the greatest residual of its state, or to 1 if that is smaller. If no equation is
        noisy, scaled unknowns are compared instead, relative to the greatest one. States whose matrix is singular to
        working precision are excluded. Raises NoSafeOrdering if all are.
        """
        system, noise = self.system, self.system.plain.noise_by_row
        states = sample_states(self.problem, JUDGED, CHECK_SEED)
        qdd = np.random.default_rng(CHECK_SEED).standard_normal((JUDGED, self.problem.model.nv))
        errors = _Errors(self._factors, noise).residuals()
        compared = [errors.get(i, 0.0) for i in sorted(noise)] if noise else list(self._factors.solution)
        program = Program.from_graph(self._assembly.graph, self._inputs, [(ERRORS, compared)])
        found = interpreter.run_groups(program, {**states, "qdd": qdd})[ERRORS]
        entries, b = (np.broadcast_to(x, (JUDGED, x.shape[1])) for x in system.values(states))
        noisy, exact = sorted(noise), sorted(set(self._factors.row_perm).difference(noise))
        scales, differences = system.plain.scaling[1][self._rest], []
        for k in range(JUDGED):
            matrix = system.matrix(entries[k]).toarray()
            right = b[k] + matrix[:, self._moving] @ qdd[k]
            dense = ConstrainedLeastSquares(
                matrix[np.ix_(exact, self._rest)], matrix[np.ix_(noisy, self._rest)], scales
            )
            if not dense.condition < WITHOUT_DIGITS:
                continue
            d, _, residuals = dense.solve(np.zeros((len(scales), 1)), -right[exact][:, None], -right[noisy][:, None])
            if noise:
                expected, units, least = residuals[:, 0], np.ones(len(noisy)), 1.0
            else:
                expected, units, least = d[:, 0], scales, np.finfo(float).tiny
            size = max(least, np.abs(expected / units).max(initial=0.0))
            differences.append(np.abs((found[k] - expected) / units).max(initial=0.0) / size)
        if not differences:
            raise NoSafeOrdering(
                f"the equations of a time step cannot be checked: their condition number exceeds {WITHOUT_DIGITS:g} at "
                f"all of {JUDGED} sampled states. Choose units in which noise and inertias are of similar magnitude"
            )
        return float(np.max(differences))

    def _add(self, name: str, changes: Sequence[dict[int, Any]], own: list[dict[str, list]]) -> None:
        self._columns += [(name, k) for k in range(len(changes))]
        self._changes += changes
        self._own += own

    @staticmethod
    def _full(solution: Sequence, rest: Sequence[int], held: dict[int, object]) -> list:
        d: list = [0.0] * (len(rest) + len(held))
        for c, x in zip(rest, solution, strict=True):
            d[c] = x
        for c, x in held.items():
            d[c] = x
        return d

    @property
    def columns(self) -> tuple[tuple[str, int], ...]:
        """(input, number) of each column."""
        return tuple(self._columns)

    def rows(self) -> Rows:
        """The program of the rows that are left."""
        left, noise = self._factors.left, self.system.plain.noise_by_row
        entries, places, chosen = [], [], list[int]()
        for i in left:
            row = [(k, found[i]) for k, (_, found) in enumerate(self._along) if not is_zero(found[i])]
            if row or i in noise:
                places += [(len(chosen), k) for k, _ in row]
                entries += [x for _, x in row]
                chosen.append(i)
        factors = _Errors(self._factors, noise)
        errors, shares = factors.residuals(), defaultdict[int, Any](float)
        for column in factors.factor():
            for i, x in column.items():
                shares[i] = shares[i] + x * x
        noisy = [(noise[i][0].name, noise[i][1]) for i in sorted(noise)]
        groups = [(RESIDUAL, [left[i] for i in chosen]), (JACOBIAN, entries)]
        groups += [(name, [x.get(i, 0.0) for i in sorted(noise)]) for name, x in ((ERRORS, errors), (SHARES, shares))]
        program = Program.from_graph(self._assembly.graph, self._inputs, groups)
        exact = np.array([i not in noise for i in chosen], dtype=bool)
        return Rows(program, np.array(places, dtype=int).reshape(-1, 2).T, exact, self.columns, tuple(noisy))

    def free(self) -> tuple[Program, np.ndarray]:
        """(the program of F, the places (2, entries) of its entries): residuals of noisy equations are F r.

        Rows as of ERRORS, columns as of those of the rows of the state that are not exact.
        """
        noise = self.system.plain.noise_by_row
        rows = _Errors(self._factors, noise).factor()
        kept = [k for k, i in enumerate(i for i in self._factors.left if i in noise)]
        number = {i: k for k, i in enumerate(sorted(noise))}
        found = [(number[i], k, x) for k in kept for i, x in rows[k].items()]
        program = Program.from_graph(self._assembly.graph, self._inputs, [(FREE, [x for _, _, x in found])])
        return program, np.array([x[:2] for x in found], dtype=int).reshape(-1, 2).T

    def results(self) -> Program:
        """The program of the outputs at a state.

        Groups: NAME, its values; d NAME, their derivatives by the columns (scalars × columns) as of Gauss-Newton,
        without the terms of residuals; var NAME, variances of their errors if the state is known.
        """
        errors = _Errors(self._factors, self.system.plain.noise_by_row)
        groups: list[tuple[str, list]] = []
        written = output_groups(self.system, self._assembly, self._solution, self.outputs)
        number = {c: k for k, c in enumerate(self._rest)}
        for (name, values), output in zip(written, self.outputs, strict=True):
            terms = self._terms(output)
            slopes, variances = [], []
            for k, row in enumerate(terms):
                for column, ((changed, _), own) in enumerate(zip(self._along, self._own, strict=True)):
                    slope = own[name][k] if name in own else 0.0
                    for c, x in row.items():
                        if c in number:
                            slope = slope + x * changed[number[c]]
                        elif self._columns[column] == ("qdd", self._moving.index(c)):
                            slope = slope + x
                    slopes.append(slope)
                variances.append(errors.variance({number[c]: x for c, x in row.items() if c in number}))
            groups += [(name, values), (f"d {name}", slopes), (f"var {name}", variances)]
        return Program.from_graph(self._assembly.graph, self._inputs, groups)

    def _terms(self, output: Output) -> Sequence[dict]:
        """Each scalar of an output in terms of the unknowns; of none if it is known."""
        shown = self._assembly.outputs
        name = output_name(output)
        return shown[name].rows if name in shown else self.system.output_terms(name)


def _ordered(system: WhitenedSystem, rest: Sequence[int]) -> list[Order]:
    """Orders of these columns, the cheapest first, from sampled states. Raises ProblemError if there is none."""
    number = {c: k for k, c in enumerate(rest)}
    rows = [{number[c]: x for c, x in row.items() if c in number} for row in _sampled_rows(system)]
    exact = [r not in system.plain.noise_by_row for r in range(len(rows))]
    fronts = [[number[c] for c in part if c in number] for part in _from_leaves(system)]
    definitions = [(r, number[c]) for r, c in system.plain.unit_pivots() if c in number]
    found: list[Order] = []
    failed: NoSafeOrdering | None = None
    tried: list[tuple[Sequence[tuple[int, int]], Sequence[Sequence[int]]]]
    tried = [((), fronts), (definitions, [range(len(rest))])]
    for first, parts in tried:
        try:
            found.append(least_squares(rows, exact, first, parts))
        except NoSafeOrdering as error:
            failed = error
    if not found:
        raise ProblemError(
            f"the states do not determine the dynamic variables ({failed}): state what is not measured, such as "
            "external wrenches, or give them a Prior"
        )
    return sorted(found, key=lambda order: order.operations)


def _from_leaves(system: WhitenedSystem) -> list[list[int]]:
    """Columns in parts, body by body: its forces and the wrenches of its children's joints, then its accelerations.

    So a subtree leaves noisy rows of the wrench of its joint and of the acceleration of its parent.
    """
    parent, parts = system.model.parent, defaultdict(list)
    for column, (body, (quantity, _)) in enumerate(zip(system.tree_node, system.col_blocks, strict=True)):
        front = int(parent[body]) if quantity == "f" and body >= 0 else body
        parts[front, quantity not in ("a", "qdd")].append(column)
    return [parts[front] for front in sorted(parts, reverse=True)]


def _sampled_rows(system: WhitenedSystem) -> list[dict[int, np.ndarray]]:
    """Entries at sampled states with the declared noise, nothing switched off, in natural units."""
    states = sample_states(system.problem, ORDER_STATES, ORDER_SEED)
    states = {name: x for name, x in states.items() if group_of(name).role not in (NOISE, SWITCH)}
    entries = np.broadcast_to(system.values(states)[0], (ORDER_STATES, system.nnz))
    row_scale, column_scale = system.plain.scaling
    row_scale = np.where(system.plain.noisy_mask, 1.0, row_scale)
    rows: list[dict[int, np.ndarray]] = [{} for _ in range(system.shape[0])]
    for i, j, x in zip(*(x.tolist() for x in system.coordinates), entries.T, strict=True):
        rows[i][j] = x * (row_scale[i] * column_scale[j])
    return rows
