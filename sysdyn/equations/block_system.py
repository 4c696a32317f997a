"""BlockSystem: the equations of a problem with named rows and columns, as expressions, as pattern, and as numbers.

One assembly serves all: over Expr it gives the compiler its input and the worst-case pattern; evaluated, it gives
D(q) and b.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
import scipy  # which loads scipy.sparse where it is first used

from sysdyn.backends import interpreter
from sysdyn.equations.assembly import Assembly
from sysdyn.equations.newton_euler import Rows, newton_euler
from sysdyn.equations.turned_joints import layout as layout_of
from sysdyn.errors import InvalidInput, ProblemError, UnknownName
from sysdyn.measurements.measurement import Constraint, Context
from sysdyn.measurements.noise import WRAPPERS, ModelNoise, Noise, noise_of
from sysdyn.measurements.parameters import VariedModel
from sysdyn.measurements.raw import RawMeasurement
from sysdyn.measurements.statement import Statement
from sysdyn.measurements.variables import COMPONENTS, QUANTITIES
from sysdyn.model.base_parameters import regrouped
from sysdyn.model.canonical import canonical, moves_frames
from sysdyn.model.kinematics import joint_transforms, velocities
from sysdyn.model.spatial import X_inverse, cross
from sysdyn.passes import ELIMINATION, PAPER, named_passes
from sysdyn.program.expr import Expr, Graph, is_constant
from sysdyn.program.program import Program
from sysdyn.sparse.condition import equilibration

KNOWN = ("rows", "substituted")
RESIDUAL_ENTRIES = 20_000_000  # of all states for which residuals are computed at a time


class Residual(NamedTuple):
    """D d + b at N states and how far it is from zero.

    rows (N, equations): D d + b itself
    backward_error (N,): normwise, |D d + b|∞ / (|D|∞ |d|∞ + |b|∞), the least relative change of D and b that makes d
        exact (Rigal and Gaches 1967)
    componentwise (N,): the greatest |D d + b|_i / (|D| |d| + |b|)_i, the same for changes of each entry (Oettli and
        Prager 1964); it sees errors in small quantities that the norm hides
    """

    rows: np.ndarray
    backward_error: np.ndarray
    componentwise: np.ndarray


class BlockSystem:
    """Equations and unknowns of a problem.

    layout  "paper" (20 scalars for a body with one freedom) or "net_force" (26: with fB = I a + ν)
    known   "rows": a known quantity is an equation x = y; "substituted": it is moved into b and has no column
    turn    X_i a_λ(i) or X_i^T f_i is an unknown of its own where `sysdyn.equations.turned_joints` says so
    passes  of `sysdyn.passes`; those that do not apply are left out. canonical_frames: a, f and fx are unknowns in
            frames along whose z the joints move, at the places where X has the fewest entries
            (`sysdyn.model.canonical`); inputs, noise and `reported` stay in frames of bodies. base_parameters: f is
            that of bodies with parameters moved to their parents. classical_accelerations: a is that of the origins
            of bodies
    outputs quantities that have to stay what they are

    columns: numbers in the full layout of the scalar unknowns that have a column here
    col_names, row_names: scalar names; col_blocks, row_blocks: (quantity, body) of each; rows of measurements have
    the block ("y", number of the measurement).
    """

    def __init__(
        self, problem: Statement, layout: str = "paper", known: str = "rows", turn: bool = False,
        passes: Sequence[str] = PAPER, outputs: Sequence[str] = QUANTITIES,
    ):  # fmt: skip
        if known not in KNOWN:
            raise UnknownName("treatment of known quantities", known, KNOWN)
        self.problem, self.known = problem, known
        self.model = problem.model
        self.passes = _applicable(problem, known, named_passes(passes), outputs)
        self._moved, self._X = self.model, None
        self._own_fx: frozenset[int] = frozenset()  # bodies whose fx is in their own frame all the same
        if "canonical_frames" in self.passes:
            self._moved, self._X = canonical(self.model, _kept_bodies(problem))
            self._own_fx = _noisy_wrenches(problem)
        if "base_parameters" in self.passes:
            self._moved = regrouped(self._moved, kept=_measured(problem, "f"))
        self.layout = layout_of(problem, layout, turn)
        stated = {
            self.layout.columns(m.quantity, i)[k] for m in problem.raw for i, k in m.pairs(self.model)
        }  # fmt: skip
        self.columns = [c for c in range(self.layout.n) if known == "rows" or c not in stated]
        self.col_names = tuple(self.layout.names[c] for c in self.columns)
        blocks = [block for block in self.layout.blocks for _ in range(self.layout.size(*block))]
        self.col_blocks = tuple(blocks[c] for c in self.columns)

    @property
    def plain(self) -> BlockSystem:
        """The equations of the problem without multipliers, whether some are noisy or not."""
        return self

    # ---- expressions -------------------------------------------------------------------------------------------

    def assemble(self, graph: Graph, mark: bool = False) -> Assembly:
        """The system over `graph`. mark: begin a new piece of program with each body."""
        model, layout = self.model, self.layout
        q, qd = graph.inputs("q", model.nq), graph.inputs("qd", model.nv)
        known = {x: graph.inputs(x, len(layout.quantity_columns(x))) for x in self.problem.known_quantities}
        varied = {p.name: graph.inputs(p.name, len(p.declared)) for p in self.problem.parameters}
        seen = VariedModel(model, varied) if varied else model
        moved = seen if self._moved is model else self._moved
        classical = "classical_accelerations" in self.passes
        wrenches = {i: self._forth("fx", i) for i in self._own_fx}
        rows, X, v = newton_euler(moved, layout, q, qd, graph.mark if mark else None, classical, wrenches)
        shift = [cross(x[3:], x[:3]) for x in v] if classical else []  # from classical to spatial accelerations
        if mark:
            graph.mark()
        value: dict[int, Expr] = {}  # of each stated scalar, by its column in the full layout
        place = {x: {c: k for k, c in enumerate(layout.quantity_columns(x))} for x in known}
        for number, m in enumerate(self.problem.raw):
            components = iter(m.components(model))
            for i, pairs in groupby(m.pairs(model), key=lambda pair: pair[0]):
                columns, chosen = layout.columns(m.quantity, i), [k for _, k in pairs]
                names = [f"y:{m.name}: {next(components)}" for _ in chosen]
                x = [known[m.quantity][place[m.quantity][columns[k]]] for k in chosen]
                value |= {columns[k]: y for k, y in zip(chosen, x, strict=True)}
                if self.known == "rows":
                    block, x = self._stated(m.quantity, i, chosen, x)
                    rows.add(("y", number), names, [(columns, block)], [-y for y in x])
        if self._X is not None and self.problem.custom:  # measurements speak of the frames of bodies
            X = joint_transforms(model, q)
            v = [X_inverse(self._X[i]).astype(object) @ v[i] for i in range(model.nb)]
        custom = self._custom_rows(graph, rows, Context(seen, X, v, q, qd), shift)
        entries, b = rows.entries, rows.b
        if self.known == "substituted":
            entries, b = [dict(row) for row in entries], list(b)
            for r, row in enumerate(entries):
                for column in [c for c in row if c in value]:
                    b[r] = b[r] + row.pop(column) * value[column]
            number = {c: k for k, c in enumerate(self.columns)}
            entries = [{number[c]: x for c, x in row.items()} for row in entries]
        entries = [{c: graph.exact(x) for c, x in row.items()} for row in entries]
        self._names = (tuple(rows.names), tuple(rows.blocks))
        inputs = (("q", q), ("qd", qd), *known.items(), *custom, *varied.items())
        return Assembly(graph, inputs, entries, b)

    def _custom_rows(
        self, graph: Graph, rows: Rows, context: Context, shift: list[np.ndarray]
    ) -> list[tuple[str, np.ndarray]]:
        model, layout = self.model, self.layout
        groups = []
        for number, m in enumerate(self.problem.custom, start=len(self.problem.raw)):
            names = m.components(model)
            y = graph.inputs(f"y:{m.name}", len(names))
            groups.append((f"y:{m.name}", y))
            parts = []
            # the covariance of a value turned would have to be turned, too
            blocks, bias, turn = m.solved_form(context) if m.noise is None else (m.rows(context), m.bias(context), None)
            for (quantity, owner), block in blocks.items():
                if quantity not in QUANTITIES:
                    raise UnknownName(f"quantity in the rows of {m.name!r}:", quantity, QUANTITIES)
                columns, block = layout.columns(*layout.block(quantity, owner)), np.asarray(block)
                if block.shape != (len(names), len(columns)):
                    raise ProblemError(
                        f"measurement {m.name!r} gives a block of shape {block.shape} for {quantity}({owner}), "
                        f"but {(len(names), len(columns))} is needed (its components × the size of the quantity)"
                    )
                back = self._back(*layout.block(quantity, owner))
                block = block.astype(object) if back is None else block.astype(object) @ back
                parts.append((columns, block))
                if shift and quantity == "a":
                    bias = bias + block[:, 3:] @ shift[layout.block(quantity, owner)[1]]
            value = y if turn is None else turn @ y
            rows.add(("y", number), [f"y:{m.name}: {c}" for c in names], parts, list(np.asarray(bias) - value))
            if isinstance(m, Constraint):
                columns = layout.columns("w", self.problem.constraints.index(m))
                for owner, block in m.loads(context).items():
                    i, load = model.body_index(owner), np.asarray(block).astype(object)
                    load = load if self._X is None else self._forth("f", i) @ load
                    rows.extend(("f", i), columns, -load)
        return groups

    # ---- frames --------------------------------------------------------------------------------------------------

    def _back(self, quantity: str, body: int) -> np.ndarray | None:
        """(6, 6) from the unknown of a body to the same in the body's frame; None where they are the same."""
        if self._X is None or quantity not in COMPONENTS or (quantity == "fx" and body in self._own_fx):
            return None
        X = self._X[body]
        return (X_inverse(X) if quantity == "a" else X.T).astype(object)

    def _forth(self, quantity: str, body: int) -> np.ndarray:
        """(6, 6) from a quantity in the frame of the body to the same in the frame of its equations."""
        X = self._X[body]
        return (X if quantity == "a" else X_inverse(X).T).astype(object)

    def _stated(self, quantity: str, body: int, chosen: list[int], x: list) -> tuple[np.ndarray, list]:
        """(rows (m, size), values) by which components of a block are stated."""
        back, size = self._back(quantity, body), self.layout.size(quantity, body)
        unit = np.array([[1.0 if i == k else 0.0 for i in range(size)] for k in chosen], dtype=object)
        if back is None:
            return unit, x
        if chosen == list(range(6)):
            return unit, list(self._forth(quantity, body) @ np.array(x, dtype=object))
        return back[chosen], x

    def reported(self, quantity: str) -> list[dict[int, float]]:
        """Each scalar of a quantity, in the frame of its body, as {number of an unknown: coefficient}.

        Empty for scalars that are known and substituted, or known and would have to be turned back.
        """
        known = self.problem.knows(quantity) if self._X is not None else frozenset()
        number = {c: k for k, c in enumerate(self.columns)}
        found = []
        for body in (i for x, i in self.layout.blocks if x == quantity):
            columns, back = [number.get(c) for c in self.layout.columns(quantity, body)], self._back(quantity, body)
            for k, column in enumerate(columns):
                if (body, k) in known:
                    found.append({})
                elif back is None:
                    found.append({} if column is None else {column: 1.0})
                else:
                    found.append({c: x for c, x in zip(columns, back[k], strict=True) if x != 0.0})
        return found

    @cached_property
    def noisy(self) -> dict[int, tuple[Noise, int]]:
        """{row: (noise, component)} of the equations that hold but for noise."""
        place = {}
        for m in self.problem.noisy:
            noise = noise_of(m, self.model)
            for k, name in enumerate(m.components(self.model)):
                place[name if isinstance(m, ModelNoise) else f"y:{m.name}: {name}"] = noise, k
        return {r: place[name] for r, name in enumerate(BlockSystem.row_names.fget(self)) if name in place}

    @cached_property
    def assembly(self) -> Assembly:
        """The system over a graph of its own."""
        return self.assemble(Graph("algebraic"))

    @property
    def sharing(self) -> str:
        """Which equal results are one in an elimination, see `Graph`."""
        return "algebraic" if "symmetric_elimination" in self.passes else "structural"

    # ---- names and pattern -------------------------------------------------------------------------------------

    @property
    def row_names(self) -> tuple[str, ...]:
        _ = self.assembly
        return self._names[0]

    @property
    def row_blocks(self) -> tuple[tuple[str, int], ...]:
        _ = self.assembly
        return self._names[1]

    @property
    def shape(self) -> tuple[int, int]:
        """(equations, unknowns)."""
        return len(self.assembly.rows), len(self.columns)

    @cached_property
    def coordinates(self) -> tuple[np.ndarray, np.ndarray]:
        """(row, column) of each entry of the worst-case pattern, in the order of `values`."""
        pairs = [(r, c) for r, row in enumerate(self.assembly.rows) for c in sorted(row)]
        array = np.array(pairs, dtype=np.int32).reshape(-1, 2)
        return array[:, 0], array[:, 1]

    @property
    def nnz(self) -> int:
        """Entries of the worst-case pattern."""
        return len(self.coordinates[0])

    def pattern(self) -> scipy.sparse.csr_matrix:
        """Worst-case pattern (CSR of ones): an entry is there if it is nonzero for some q. Nori, Remark 4."""
        r, c = self.coordinates
        return scipy.sparse.csr_matrix((np.ones(len(r)), (r, c)), shape=self.shape)

    def fixed_entries(self) -> np.ndarray:
        """(nnz) bool: the entry is a constant of the model; in the order of `values`."""
        r, c = self.coordinates
        rows = self.assembly.rows
        return np.array([is_constant(rows[i][j]) for i, j in zip(r.tolist(), c.tolist(), strict=True)], dtype=bool)

    # ---- numbers -----------------------------------------------------------------------------------------------

    @cached_property
    def _program(self) -> Program:
        r, c = self.coordinates
        entries = [self.assembly.rows[i][j] for i, j in zip(r.tolist(), c.tolist(), strict=True)]
        return Program.from_graph(self.assembly.graph, self.assembly.inputs, [("D", entries), ("b", self.assembly.b)])

    def values(self, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """(entries (N, nnz), b (N, equations)) for inputs by group, each (N, size) or (size,).

        Missing ones are zero, parameters those of the model.
        """
        declared = {p.name: p.declared for p in self.problem.parameters}
        full = {name: inputs.get(name, declared.get(name, np.zeros(size))) for name, size in self._program.input_groups}
        out = interpreter.run_groups(self._program, full)
        return out["D"], out["b"]

    def matrix(self, entries: np.ndarray) -> scipy.sparse.csr_matrix:
        """The CSR matrix of one row of `values`."""
        r, c = self.coordinates
        return scipy.sparse.csr_matrix((entries, (r, c)), shape=self.shape)

    @cached_property
    def _scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Factors of rows and columns, from the greatest size of each entry at a few random states."""
        q, qd, _ = self.model.random_state(seed=7, batch=4)
        return equilibration(*self.coordinates, np.abs(self.values({"q": q, "qd": qd})[0]).max(axis=0), self.shape)

    def scaled(self, entries: np.ndarray) -> scipy.sparse.csr_matrix:
        """`matrix` with rows and columns scaled to be comparable: what its condition number is asked of."""
        rows, columns = self._scaling
        r, c = self.coordinates
        return self.matrix(entries * rows[r] * columns[c])

    def D(self, q: np.ndarray) -> scipy.sparse.csr_matrix:
        """D(q) (equations, unknowns) as CSR with the worst-case pattern; q (nq,). Nori eq. (5)."""
        q = self._one("q", q, self.model.nq)
        return self.matrix(self.values({"q": q, "qd": np.zeros(self.model.nv)})[0][0])

    def b(self, q: np.ndarray, qd: np.ndarray, **known: np.ndarray) -> np.ndarray:
        """b(q, q̇) (equations,).

        known: full-size values of known quantities (tau, qdd, fx, a, f), zero where not given.
        """
        inputs = {"q": self._one("q", q, self.model.nq), "qd": self._one("qd", qd, self.model.nv)}
        for name, x in known.items():
            if name not in self.problem.known_quantities:
                raise UnknownName("known quantity", name, self.problem.known_quantities)
            size = len(self.layout.quantity_columns(name))
            inputs[name] = self._one(name, np.reshape(x, -1) if np.size(x) == size else x, size)
        return self.values(inputs)[1][0]

    def _one(self, name: str, x: np.ndarray, n: int) -> np.ndarray:
        try:
            x = np.asarray(x, dtype=float)
        except (TypeError, ValueError):
            raise InvalidInput(f"{name} must be an array of {n} numbers") from None
        if x.shape != (n,):
            raise InvalidInput(f"{name} has shape {x.shape}, but ({n},) is needed: D and b are of one state")
        if not np.isfinite(x).all():
            k = int(np.argmin(np.isfinite(x)))
            raise InvalidInput(f"{name} is {x[k]} at entry {k}: every input must be finite")
        return self.model.normalise(x) if name == "q" else x

    def residual(self, inputs: Mapping[str, np.ndarray], d: np.ndarray) -> Residual:
        """What is left of D d + b for inputs by group and unknowns d (N, full layout)."""
        most = max(1, RESIDUAL_ENTRIES // max(1, self.nnz))
        if len(d) > most:
            slices = [slice(k, k + most) for k in range(0, len(d), most)]
            parts = [
                self.residual({name: x[k] if np.shape(x)[:-1] == (len(d),) else x for name, x in inputs.items()}, d[k])
                for k in slices
            ]
            return Residual(*(np.concatenate(x) for x in zip(*parts, strict=True)))
        entries, b = self.values(inputs)
        entries, b = np.broadcast_to(entries, (len(d), entries.shape[1])), np.broadcast_to(b, (len(d), b.shape[1]))
        r, c = self.coordinates
        sum_rows = scipy.sparse.csr_matrix((np.ones(len(r)), (r, np.arange(len(r)))), shape=(self.shape[0], len(r)))
        chosen = d[:, self.columns]
        residual = (sum_rows @ (entries * chosen[:, c]).T).T + b
        size = np.abs(entries)
        normwise = (sum_rows @ size.T).max(axis=0) * np.abs(chosen).max(axis=1) + np.abs(b).max(axis=1)
        terms = (sum_rows @ (size * np.abs(chosen[:, c])).T).T + np.abs(b)
        return Residual(
            residual,
            np.abs(residual).max(axis=1) / np.where(normwise > 0.0, normwise, 1.0),
            (np.abs(residual) / np.where(terms > 0.0, terms, 1.0)).max(axis=1),
        )

    def __repr__(self) -> str:
        m, n = self.shape
        how = f"layout {self.layout.name!r}, known {self.known!r}"
        return f"BlockSystem({m} equations, {n} unknowns, {self.nnz} entries; {how})"


def _applicable(problem: Statement, known: str, passes: Sequence[str], outputs: Sequence[str]) -> tuple[str, ...]:
    """Those of the passes that leave the outputs, and what is known and measured, as they are."""
    fixed, noisy = bool(problem.parameters), bool(problem.noisy)
    here = {
        "canonical_frames": not fixed and known == "rows" and moves_frames(problem.model, _kept_bodies(problem)),
        "base_parameters": not fixed and not noisy and "f" not in outputs and not problem.knows("f"),
        "classical_accelerations": not fixed and "a" not in outputs and not problem.knows("a"),
        "symmetric_elimination": True,
    }
    return tuple(x for x in ELIMINATION if x in passes and here[x])


def _measured(problem: Statement, quantity: str) -> set[int]:
    """Bodies whose `quantity` is in an equation of a measurement."""
    model = problem.model
    if not problem.custom:
        return set()
    q, qd, _ = (x.astype(object) for x in model.random_state(seed=0))
    X = joint_transforms(model, q)
    context = Context(model, X, velocities(model, X, qd)[0], q, qd)
    rows = [m.rows(context) for m in problem.custom]
    return {model.body_index(owner) for blocks in rows for x, owner in blocks if x == quantity}


def _kept_bodies(problem: Statement) -> frozenset[int]:
    """Bodies that keep their frames: their equations have noise, which is declared in these.

    Rows turned back have more entries than they save: 133,900 operations instead of 112,800 for the iCub where all
    equations of motion are noisy.
    """
    noise = (m for m in problem.noisy if isinstance(m, ModelNoise))
    return frozenset(i for m in noise for quantity, i in m.blocks(problem.model) if quantity in COMPONENTS)


def _noisy_wrenches(problem: Statement) -> frozenset[int]:
    """Bodies whose fx is stated with noise: rows with one entry there would have up to six in another frame."""
    stated = (m.of if type(m) in WRAPPERS.values() else m for m in problem.noisy)
    wrenches = (m for m in stated if isinstance(m, RawMeasurement) and m.quantity == "fx")
    return frozenset(i for m in wrenches for i, _ in m.pairs(problem.model))
