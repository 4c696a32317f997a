"""Systems D(q) d + b(q, q̇) = 0 with named rows and columns: their pattern, their values, their residuals."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.sparse where it is first used
from numpy.typing import ArrayLike

from sysdyn.codegen import interpreter
from sysdyn.codegen.double_double import run_double_double
from sysdyn.equations.assembly import Assembly, Combination
from sysdyn.errors import InvalidInput
from sysdyn.measurements.statement import Statement
from sysdyn.measurements.variables import Layout
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY, is_spatial
from sysdyn.program.arrays import float_array, format_shape, reject_not_finite
from sysdyn.program.graph import Graph, is_constant
from sysdyn.program.groups import bind_arguments
from sysdyn.program.program import Program
from sysdyn.sparse.condition import balance, equilibration, least_condition, skeel_condition
from sysdyn.sparse.double_double import DoubleDouble
from sysdyn.sparse.superlu import Pattern

# Most entries of D of all states whose residuals are computed at a time: 40 MB an array (chosen).
RESIDUAL_ENTRIES = 5_000_000
# Reciprocal condition below which a matrix is singular beyond doubt: a twentieth of the rounding unit.
CERTAINLY = 1e-17
# Most nodes of the graph of an assembly that is kept for the next elimination (chosen).
KEPT_NODES = 300_000
# Number of random states at which sizes of entries are taken, to scale rows and columns (chosen).
SCALE_STATES = 4
# Seed of these states (chosen).
SCALE_SEED = 7
# Greatest terms of a row that are rounding errors, as a share of its terms with each unknown the greatest of its kind:
# 45,000 rounding units (chosen).
ROUNDED_OFF = 1e-11
# Relative change of entries that makes the matrix of a singular state singular (chosen).
SINGULAR = 1e-12
# The condition of the state magnifies rounding: terms below the rounding unit times it are rounding, too. This matters
# to rows with errors beyond EXACT (chosen); MAGNIFIED is the share of such terms at a state that is just not singular.
EXACT, MAGNIFIED = 1e-11, 2.0**-52 / SINGULAR
# Entries below this share of their typical size count as zero: 45 rounding units (chosen).
ENTRY_ROUNDING = 1e-14


class Residual(NamedTuple):
    """D d + b at N states and its distance from zero.

    rows (N, equations): D d + b itself
    backward_error (N,): row by row, the greatest |D d + b|_i / (|D| s + |b|)_i, s the sizes of the unknowns: the least
        relative change of each entry of D and b that makes d exact (Oettli and Prager 1964). s_j is the norm of the
        vector of three that d_j is a component of, since a turned frame mixes them. If the unknowns of a row vanish,
        its terms are rounding errors and say nothing: the row is relative to its terms with each unknown the greatest
        of its kind (acceleration, force) at its body, in the units that equilibrate D, if its own are below 1e-11 of
        these (Arioli, Demmel and Duff 1989, who take the greatest of all unknowns). So are rows with terms below the
        rounding unit times the condition of the state, which no solve tells from zero
    normwise (N,): |D d + b|∞ / (|D|∞ |d|∞ + |b|∞), which hides errors in small quantities (Rigal and Gaches 1967)
    """

    rows: np.ndarray
    backward_error: np.ndarray
    normwise: np.ndarray


class LinearSystem(ABC):
    """Equations over named unknowns, with pattern, values and residuals.

    Subclasses give `assemble` and `assembly`, `plain`, `reported`, and set

    problem, known, passes  the problem whose equations they are, and choices of their form (see `BlockSystem`)
    layout                  places of the unknowns in the full layout
    columns                 numbers in the full layout of the scalar unknowns that have a column here
    col_names, col_blocks   name and (quantity, body) of each column
    """

    problem: Statement
    known: str
    passes: tuple[str, ...]
    layout: Layout
    columns: list[int]
    col_names: tuple[str, ...]
    col_blocks: tuple[tuple[str, int], ...]
    _marked: Assembly | None = None

    @abstractmethod
    def assemble(self, graph: Graph, mark: bool = False) -> Assembly:
        """The system over `graph`. mark: begin a new piece of program with each body."""

    def assembled(self) -> Assembly:
        """The system over a new graph, with a new piece of program for each body: a copy of one that is kept."""
        if self._marked is None:
            made = self.assemble(Graph(self.sharing), mark=True)
            if len(made.graph) > KEPT_NODES:
                return made
            self._marked = made
        return self._marked.copy()

    @property
    @abstractmethod
    def assembly(self) -> Assembly:
        """The system over a graph of its own."""

    @property
    @abstractmethod
    def plain(self) -> LinearSystem:
        """The equations of the problem alone, without multipliers."""

    @abstractmethod
    def reported(self, quantity: str) -> list[dict[int, float]]:
        """Each scalar of a quantity, in the frame of its body, as {number of an unknown: coefficient}.

        Empty for scalars that are known and substituted, or known and would have to be turned back.
        """

    @property
    def model(self) -> Model:
        return self.problem.model

    @property
    def sharing(self) -> str:
        """Kind of sharing of equal results in an elimination, see `Graph`."""
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
        """Number (equations + 1) of the first entry of each row, as in CSR."""
        of_each = np.bincount(self.coordinates[0], minlength=self.shape[0])
        return np.concatenate([[0], np.cumsum(of_each)]).astype(np.int32)

    @cached_property
    def _entries(self) -> list:
        """The entry at each of the coordinates."""
        r, c = self.coordinates
        return [self.assembly.rows[i][j] for i, j in zip(r.tolist(), c.tolist(), strict=True)]

    @property
    def nnz(self) -> int:
        """Entries of the worst-case pattern."""
        return len(self.coordinates[0])

    @cached_property
    def entry_places(self) -> Pattern:
        """The places of the entries, in the order of `values`, for factorizations at many states."""
        return Pattern(*self.coordinates, self.shape[1])

    def pattern(self) -> scipy.sparse.csr_matrix:
        """Worst-case pattern (CSR of ones): all entries that are nonzero for some q. Nori, Remark 4."""
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

    @property
    def positions_used(self) -> np.ndarray:
        """(nq,) bool: True for entries of q that D or b depends on."""
        return self.program.used_inputs[: self.model.nq]

    def values(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """(entries (N, nnz), b (N, equations)) for inputs by group, each (N, size) or (size,).

        Missing ones are as declared: parameters of the model, covariances, switches that are on. Others are zero.
        """
        out = interpreter.run_groups(self.program, self._full(inputs))
        return out["D"], out["b"]

    def values_at(self, inputs: Mapping[str, np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray]:
        """The same with an axis of n states, also if they share the values."""
        entries, b = self.values(inputs)
        return np.broadcast_to(entries, (n, entries.shape[1])), np.broadcast_to(b, (n, b.shape[1]))

    def values_twice(self, inputs: Mapping[str, np.ndarray]) -> tuple[DoubleDouble, DoubleDouble]:
        """(entries (nnz,), b (equations,)) at one state, exact to twice the precision, inputs as for `values`."""
        out = run_double_double(self.program, self._full(inputs))
        return out["D"], out["b"]

    def _full(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every group of inputs; missing ones are their defaults, or zero."""
        defaults = {name: group.default for name, group in self.problem.inputs.items() if group.default is not None}
        given = {**defaults, **inputs}
        return {name: given.get(name, np.zeros(size)) for name, size in self.program.inputs.sizes.items()}

    @cached_property
    def _shown_program(self) -> Program:
        """Entries of Y and b_Y of the measurements that are outputs."""
        assembly = self.assembly
        groups: list[tuple[str, list]] = []
        for name, (rows, b) in assembly.shown.items():
            groups += [(f"Y {name}", [x for row in rows for x in row.values()]), (f"b {name}", b)]
        return Program.from_graph(assembly.graph, [(name, list(x)) for name, x in assembly.inputs], groups)

    def shown_values(self, inputs: Mapping[str, np.ndarray]) -> dict[str, Combination]:
        """{name: (Y, b_Y)} of the measurements that are outputs, with entries (N,); inputs as for `values`."""
        out = interpreter.run_groups(self._shown_program, self._full(inputs))
        found = {}
        for name, (rows, _) in self.assembly.shown.items():
            entries = iter(out[f"Y {name}"].T)
            found[name] = Combination([{c: next(entries) for c in row} for row in rows], list(out[f"b {name}"].T))
        return found

    def shown(self, inputs: Mapping[str, np.ndarray], d: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """{name: (y, size)} (N, m) of each measurement that is an output, y = Y d + b_Y and size |Y| |d| + |b_Y|.

        inputs by group, unknowns d (N, full layout): as for `residual`.
        """
        chosen, found = d[:, self.columns], {}
        for name, (rows, b) in self.shown_values(inputs).items():
            terms = [[bias, *(x * chosen[:, c] for c, x in row.items())] for row, bias in zip(rows, b, strict=True)]
            sums = [[sum(parts), sum(map(np.abs, parts))] for parts in terms]
            y, size = (np.stack([np.broadcast_to(x[k], len(d)) for x in sums], axis=1) for k in (0, 1))
            found[name] = y, size
        return found

    def matrix(self, entries: np.ndarray) -> scipy.sparse.csr_matrix:
        """The CSR matrix of one row of `values`."""
        starts = self._starts
        return scipy.sparse.csr_matrix((np.array(entries), self.coordinates[1].copy(), starts.copy()), shape=self.shape)

    @cached_property
    def typical_sizes(self) -> np.ndarray:
        """Greatest size (nnz,) of each entry at a few random states."""
        q, qd, _ = self.model.random_state(seed=SCALE_SEED, batch=SCALE_STATES)
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

    def cleaned(self, entries: np.ndarray) -> np.ndarray:
        """One row of `values`, entries that are zero but for rounding replaced by zero."""
        return np.where(np.abs(entries) > ENTRY_ROUNDING * self.typical_sizes, entries, 0.0)

    def scaling_at(self, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`scaling` that suits one state best, one row of `values`; see `least_condition`."""
        (rows, columns), (r, c) = self.scaling, self.coordinates
        clean = self.cleaned(entries)
        _, *both = least_condition(self.matrix(clean * rows[r] * columns[c]))
        return rows * both[0], columns * both[1]

    def reciprocal_condition(self, entries: np.ndarray, enough: float = math.inf) -> float:
        """1/κ of the square matrix of one row of `values`, in the units of unknowns that make κ (Skeel) least.

        1 is well-conditioned, 0 singular: no smaller relative change of entries makes the matrix singular. Entries
        below 1e-14 of their typical size are taken for zeros. An estimate in units that make columns comparable at
        random states, which is less, suffices if it is at least `enough`, or so small that it leaves no doubt: in other
        units a row of rounding errors looks regular; see `least_condition`. For problems with noise the greater of
        that and the one in SI units.
        """
        clean = self.cleaned(entries)
        scaled = self.scaled(clean)
        found = 1.0 / skeel_condition(scaled, self.entry_places)
        if found >= enough or found < CERTAINLY:
            return found
        # multipliers add units in which singular estimates look regular
        if self.problem.noisy:
            other = skeel_condition(self.matrix(clean), self.entry_places)
        else:
            other = least_condition(scaled)[0]
        return max(found, 1.0 / other)

    def margin(self, entries: np.ndarray, enough: float = math.inf) -> float:
        """Reciprocal condition number of what has to be regular for a solution, for one row of `values`.

        `reciprocal_condition` of the matrix; of an estimate, whose multipliers may look singular though its equations
        are not, the greater of that and `AugmentedSystem.estimability`. enough: as there.
        """
        return self.reciprocal_condition(entries, enough)

    def D(self, q: ArrayLike) -> scipy.sparse.csr_matrix:
        """D(q) (equations, unknowns) as CSR with the worst-case pattern; q (nq,). Nori eq. (5)."""
        return self.matrix(self.values({"q": self._one("q", q), "qd": np.zeros(self.model.nv)})[0][0])

    def b(self, q: ArrayLike, qd: ArrayLike, **known: ArrayLike) -> np.ndarray:
        """b(q, q̇) (equations,).

        known: full-size values of known quantities (tau, qdd, fx, a, f), zero if not given.
        """
        given = {"q": q, "qd": qd} | bind_arguments(
            "the problem", self.problem.known_quantities, (), (), known, ("q", "qd")
        )
        return self.values({name: self._one(name, x) for name, x in given.items()})[1][0]

    def _one(self, name: str, value: ArrayLike) -> np.ndarray:
        """Values (size,) of a group of inputs at one state. Raises InvalidInput if given for several."""
        group, x = self.problem.inputs[name], float_array(name, value)
        if group.batch_axes(x):
            needed = format_shape(group.shape)
            raise InvalidInput(f"{name} has shape {x.shape}, but {needed} is needed: D and b are of one state")
        x = x.reshape(-1)
        reject_not_finite(name, x, 1)
        return self.model.normalise(x) if name == "q" else x

    def residual(self, inputs: Mapping[str, np.ndarray], d: np.ndarray) -> Residual:
        """Residual D d + b for inputs by group and unknowns d (N, full layout)."""
        most = math.ceil(RESIDUAL_ENTRIES / self.nnz)
        if len(d) <= most:
            return self.misfit(*self.values(inputs), d)
        parts = []
        for part in (slice(k, k + most) for k in range(0, len(d), most)):
            given = {name: x[part] if np.shape(x)[:-1] == (len(d),) else x for name, x in inputs.items()}
            parts.append(self.misfit(*self.values(given), d[part]))
        return Residual(*(np.concatenate(x) for x in zip(*parts, strict=True)))

    def misfit(self, entries: np.ndarray, b: np.ndarray, d: np.ndarray) -> Residual:
        """`residual` for `values` at hand: entries (N or 1, nnz), b (N or 1, equations) and d (N, full layout)."""
        entries, b = np.broadcast_to(entries, (len(d), entries.shape[1])), np.broadcast_to(b, (len(d), b.shape[1]))
        c, chosen = self.coordinates[1], d[:, self.columns]
        residual = self._sums(entries * chosen[:, c]) + b
        size = np.abs(entries)
        normwise = self._sums(size).max(axis=1) * np.abs(chosen).max(axis=1) + np.abs(b).max(axis=1)
        own, natural = (self._sums(size * x[:, c]) + np.abs(b) for x in self._sizes(chosen))

        def relative(states: slice | np.ndarray, least: np.ndarray) -> np.ndarray:
            """Residuals by row, relative to their terms, or to natural ones if terms are less than `least` of these."""
            terms = np.where(own[states] < least * natural[states], natural[states], own[states])
            terms = self.tolerated(terms, size[states])
            return np.abs(residual[states]) / np.where(terms > 0.0, terms, 1.0)

        error = relative(slice(None), self.rounded_off)
        lost = error > EXACT
        large = np.flatnonzero(lost.any(axis=1) & ~(lost & (own > MAGNIFIED * natural)).any(axis=1))
        if len(large) and self.shape[0] == self.shape[1]:
            condition = np.array([self.reciprocal_condition(x, 0.0) for x in entries[large]])
            least = np.where(condition > SINGULAR, np.finfo(float).eps / np.maximum(condition, SINGULAR), 0.0)
            error[large] = relative(large, np.maximum(least[:, None], self.rounded_off))
        return Residual(
            residual, error.max(axis=1), np.abs(residual).max(axis=1) / np.where(normwise > 0.0, normwise, 1.0)
        )

    @property
    def rounded_off(self) -> np.ndarray:
        """(1 or equations,): share of natural terms below which the terms of a row are rounding errors."""
        return np.array([ROUNDED_OFF])

    def tolerated(self, terms: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Sizes (N, equations) of residuals, from sums |D| |d| + |b| of the rows and |D| (N, nnz)."""
        return terms

    @cached_property
    def _adding(self) -> scipy.sparse.csr_matrix:
        """(equations, nnz): matrix that adds the entries of each row."""
        row = self.coordinates[0]
        return scipy.sparse.csr_matrix((np.ones(len(row)), (row, np.arange(len(row)))), shape=(self.shape[0], len(row)))

    def _sums(self, terms: np.ndarray) -> np.ndarray:
        """Sums (N, equations) of terms (N, nnz) by row."""
        return (self._adding @ terms.T).T

    def _sizes(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sizes (N, columns) of the unknowns `chosen` for residuals: (of their vectors, of their kinds)."""
        (vectors, kinds), units, size = self._families, self.scaling[1], np.abs(chosen)
        return _greatest(size, vectors), units * _greatest(size / units, kinds)

    @cached_property
    def _families(self) -> tuple[np.ndarray, np.ndarray]:
        """Number (columns,) of the vector of three, and of the accelerations or forces of a body, that holds each."""
        vectors: dict[tuple, int] = {}
        kinds: dict[tuple, int] = {}
        found = []
        for c, (quantity, body) in zip(self.columns, self.col_blocks, strict=True):
            units = QUANTITY[quantity].component_units if quantity in QUANTITY else quantity
            kind = units, body  # acceleration or force
            part = (c - self.layout.columns(quantity, body).start) // 3 if is_spatial(quantity) else c
            vector = quantity, body, part
            found.append((vectors.setdefault(vector, len(vectors)), kinds.setdefault(kind, len(kinds))))
        vector_of, kind_of = np.array(found, dtype=int).reshape(-1, 2).T
        return vector_of, kind_of

    def __repr__(self) -> str:
        m, n = self.shape
        how = f"layout {self.layout.name!r}, known {self.known!r}"
        return f"{type(self).__name__}({m} equations, {n} unknowns, {self.nnz} entries; {how})"


def _greatest(x: np.ndarray, family: np.ndarray) -> np.ndarray:
    """(N, n): the greatest of x (N, n) among the columns of the same family; family (n,): numbers from 0."""
    order = np.argsort(family, kind="stable")
    starts = np.searchsorted(family[order], np.arange(family.max() + 1))
    return np.maximum.reduceat(x[:, order], starts, axis=1)[:, family]
