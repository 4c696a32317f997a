"""The offline phase.

From a problem to a program with a fixed elimination order, chosen by exact count and proven safe by sampling.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse.linalg

from sysdyn.backends import python
from sysdyn.errors import (
    BackendUnavailable,
    InvalidInput,
    NoSafeOrdering,
    ProblemError,
    SingularState,
    StructurallySingular,
    UnknownName,
)
from sysdyn.expr import Expr, Flops, Graph, is_constant, is_zero
from sysdyn.reference import newton_euler
from sysdyn.sparse.lu import Factors, eliminate
from sysdyn.sparse.ordering import ORDERINGS, Permutations, Sampled
from sysdyn.sparse.program import Program
from sysdyn.system.assemble import Assembly, BlockSystem, generic
from sysdyn.system.diagnose import structure
from sysdyn.system.orders import RECURSIVE
from sysdyn.system.problem import Problem
from sysdyn.system.variables import QUANTITIES

LEVELS = {"best": 2, "fast": 0}  # code-generation levels of the machine code
SHARING = "algebraic"
ORDER_SAMPLES = 48
RETRY_SAMPLES = 512  # where the first search found no safe order
SAFETY_SAMPLES = 2048
DIFFERENCE = 1e-10  # likewise, of the difference to a pivoted solve
JUDGED_UNKNOWNS = 10_000  # unknowns for which a pivoted solve is made
HOPELESS = 1e-6  # backward error that ends the check of an order
BACKWARD_ERROR = 1e-11  # accepted at once; a larger one only where a pivoted solve does no better
WORSE_THAN_PIVOTED = 1e2
AUTO = ("umfpack", "colamd", "markowitz")  # tried by "auto" beside the recursive orders
AUTO_LIMIT = 3000  # unknowns beyond which it leaves the slower searches out
AUTO_LARGE = ("umfpack",)
AUTO_CAP = 2.0  # an order is given up where it costs this many times the cheapest one known
CRBA_LIMIT = 60  # freedoms beyond which O(n³) is not tried beside O(n)
NODES_PER_OPERATION = 3.0  # nodes built for one operation that stays, with room to spare
ATTEMPTS = 4  # searches, each with the states at which the last one failed
WORST_STATES = 6
SINGULAR = 1e12  # condition number of the equilibrated matrix beyond which a sampled state is not held against an order
SUSPECT = 1e-8  # a state is looked at that closely where a pivot falls below this fraction of its greatest value

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Safety:
    """How a fixed order behaved over sampled states.

    backward_error: greatest |D d + b|∞ / (|D|∞ |d|∞ + |b|∞); pivoted: the same of a pivoted solve at the worst of
    them; difference: greatest relative difference of a quantity (∞-norms) to a pivoted solve with iterative refinement
    there; pivoted_difference: the same of the pivoted solve without it, large where the system is ill-conditioned;
    growth: greatest entry of D U over the greatest of D, both equilibrated; least_pivot: least |pivot| over its
    greatest value at any state. Only states at which the system is regular count; singular: how many of those drawn
    were not.
    """

    states: int
    backward_error: float
    pivoted: float
    difference: float
    pivoted_difference: float
    growth: float
    least_pivot: float
    least_pivot_name: str
    singular: int = 0

    @property
    def ok(self) -> bool:
        close = self.difference <= max(DIFFERENCE, WORSE_THAN_PIVOTED * self.pivoted_difference)
        sound = self.backward_error <= max(BACKWARD_ERROR, WORSE_THAN_PIVOTED * self.pivoted)
        return math.isfinite(self.growth) and sound and close and self.least_pivot > 0.0


@dataclass(frozen=True)
class Choice:
    """One elimination order and what it costs. `solve`: X, v, c, ν given; `end_to_end`: from q, q̇ on."""

    ordering: str
    row_perm: tuple[int, ...]
    col_perm: tuple[int, ...]
    end_to_end: Flops
    solve: Flops | None
    fill_in: int
    triangular: bool
    safety: Safety | None = None


@dataclass(frozen=True)
class Compiled:
    """What the offline phase leaves behind."""

    choice: Choice
    program: Program
    considered: tuple[tuple[str, str], ...]  # (ordering, cost or why not)
    seconds: float


def output_quantities(outputs: str | Sequence[str]) -> tuple[str, ...]:
    """The requested quantities in canonical order. Raises UnknownName."""
    if outputs == "all":
        return QUANTITIES
    if outputs is None:
        raise InvalidInput(f"outputs is None: name some of {', '.join(QUANTITIES)}, or 'all'")
    wanted = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    for name in wanted:
        if name not in QUANTITIES:
            raise UnknownName("output", name, ("all", *QUANTITIES))
    if not wanted:
        raise InvalidInput(f"outputs is empty: name some of {', '.join(QUANTITIES)}, or 'all'")
    return tuple(x for x in QUANTITIES if x in wanted)


def build(
    problem: Problem,
    ordering: str = "auto",
    outputs: Sequence[str] = QUANTITIES,
    level: str = "best",
    layout: str = "paper",
    known: str = "rows",
    progress: Progress | None = None,
) -> Compiled:
    """problem → system → pattern → structure → order → elimination → program. See `sysdyn.compile`."""
    with _no_collection():
        return _build(problem, ordering, outputs, level, layout, known, progress or (lambda what, done: None))


@contextlib.contextmanager
def _no_collection():
    """Cyclic garbage collection off: it would walk millions of graph entries that all stay alive."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _build(
    problem: Problem, ordering: str, outputs: Sequence[str], level: str, layout: str, known: str, say: Progress
) -> Compiled:
    began = time.perf_counter()
    say("assembling", 0.0)
    system = problem.system(layout, known)
    structure(system).require_solvable()
    sampled = _order_samples(system, ORDER_SAMPLES)
    singular: dict[int, bool] = {}
    considered: list[tuple[str, str]] = []
    for _ in range(ATTEMPTS):
        choices: list[Choice] = []
        best: Elimination | None = None  # of the cheapest choice; others are eliminated again if their turn comes
        for name, order in _candidates(system, sampled, ordering, level):
            say(f"ordering {name}", min(0.6, 0.1 + 0.04 * len(considered)))
            least = min((c.end_to_end.total for c in choices), default=math.inf)
            try:
                elimination = Elimination(system, *order(AUTO_CAP * least), cap=AUTO_CAP * least)
            except (NoSafeOrdering, SingularState) as error:
                considered.append((name, str(error)))
                continue
            except BackendUnavailable as error:
                if ordering != "auto":
                    raise
                considered.append((name, str(error)))
                continue
            choice = elimination.choice(name, outputs)
            considered.append((name, f"{choice.end_to_end.total} operations"))
            choices.append(choice)
            if choice.end_to_end.total < least:
                best = elimination
            del elimination
        failing = []
        for choice in sorted(choices, key=lambda c: c.end_to_end.total):
            say(f"checking {choice.ordering}", 0.7)
            elimination = best or Elimination(system, choice.row_perm, choice.col_perm)
            best = None
            safety, worst = elimination.assess(sampled.scaling, singular=singular)
            if safety.ok:
                say("writing the program", 0.9)
                choice = replace(choice, safety=safety, solve=_solve_scope(system, choice, outputs))
                program = elimination.program(outputs)
                return Compiled(choice, program, tuple(considered), time.perf_counter() - began)
            considered.append((choice.ordering, f"not safe: {_describe(safety)}"))
            failing.append(worst)
        if not failing or ordering in RECURSIVE:
            break
        # more states, and those at which these orders failed, guide the next search
        if len(sampled.values) < RETRY_SAMPLES and sampled.n <= AUTO_LIMIT:
            sampled = _order_samples(system, RETRY_SAMPLES)
        sampled = sampled.with_values(sample_matrix(system, _stack(failing)).values)
    raise NoSafeOrdering(_failure(problem, considered))


def _describe(safety: Safety) -> str:
    return (
        f"backward error {safety.backward_error:.1e}, difference to a pivoted solve {safety.difference:.1e}, "
        f"growth {safety.growth:.1e}, least pivot {safety.least_pivot:.1e} ({safety.least_pivot_name})"
    )


def _failure(problem: Problem, considered: list[tuple[str, str]]) -> str:
    tried = "\n".join(f"  {name}: {what}" for name, what in considered)
    diagnosis = problem.diagnose()
    why = "" if diagnosis.well_posed else f"\n{diagnosis}"
    return f"no elimination order is safe at every sampled state:\n{tried}{why}"


# ---- orders -------------------------------------------------------------------------------------------------------

Order = Callable[[float], Permutations]


def _candidates(system: BlockSystem, sampled: Sampled, ordering: str, level: str) -> Iterator[tuple[str, Order]]:
    """(name, function of the operation cap that gives the permutations) of every order to try."""
    if ordering in RECURSIVE:
        yield ordering, lambda cap: RECURSIVE[ordering](system)
        return
    names: tuple[str, ...] = (ordering,)
    if ordering == "auto":
        for name, function in RECURSIVE.items():
            if name == "crba" and system.model.nv > CRBA_LIMIT:
                continue
            try:
                permutations = function(system)
            except ProblemError:
                continue
            yield name, lambda cap, permutations=permutations: permutations
            if level == "fast" and name in ("rnea", "aba"):
                return
        names = AUTO if sampled.n <= AUTO_LIMIT else AUTO_LARGE
    elif ordering not in ORDERINGS:
        raise UnknownName("ordering", ordering, ("auto", *RECURSIVE, *ORDERINGS))
    for name in names:
        for number, start in enumerate(ORDERINGS[name]):
            label = name if number == 0 else f"{name} (start {number + 1})"
            yield label, lambda cap, start=start: start(replace(sampled, budget=cap))


def _solve_scope(system: BlockSystem, choice: Choice, outputs: Sequence[str]) -> Flops:
    """Operations of the same elimination with X, v, c, ν given."""
    assembly = generic(system.assemble(Graph(SHARING)), Graph(SHARING))
    factors = eliminate(assembly.rows, assembly.b, choice.row_perm, choice.col_perm)
    return assembly.graph.count(x for _, values in _outputs(system, assembly, factors, outputs) for x in values)


def _outputs(system: BlockSystem, assembly: Assembly, factors: Factors, outputs: Sequence[str]):
    """Expressions of the requested quantities, full size.

    From the solution, or the known input where it has no column.
    """
    number = {c: k for k, c in enumerate(system.columns)}
    inputs = dict(assembly.inputs)
    groups = []
    for quantity in outputs:
        values = []
        for k, c in enumerate(system.layout.quantity_columns(quantity)):
            if c in number:
                values.append(factors.solution[number[c]])
            elif quantity in inputs:
                values.append(inputs[quantity][k])
        groups.append((quantity, values))
    return groups


# ---- sampling -----------------------------------------------------------------------------------------------------


def sample_states(problem: Problem, n: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs at n states: random ones, and every joint at multiples of π/2 (all at the same, and each at random).

    Known quantities are those of a motion with accelerations near 1 under external wrenches of the size of the bodies'
    inertial forces, or none, where torques nearly balance gravity and errors show; at half of the states they are
    multiplied by random factors, so that the motion is violent.
    """
    model, rng = problem.model, np.random.default_rng(seed)
    q, qd, qdd = model.random_state(seed=seed, batch=n)
    right = np.arange(n) % 2 == 1
    quarters = rng.integers(0, 4, size=(n, model.nv)) * (math.pi / 2)
    same = np.arange(n) % 16 == 1  # among them every joint at the same multiple
    quarters[same] = (np.arange(n)[same] // 16 % 4 * (math.pi / 2))[:, None]
    snapped = model.integrate(np.broadcast_to(model.neutral(), (n, model.nq)), quarters)
    q = np.where(right[:, None], snapped, q)
    pushed = np.arange(n) % 3 == 0
    fx = np.einsum("ijk,nik->nij", model.inertias, 3.0 * rng.standard_normal((n, model.nb, 6))) * pushed[:, None, None]
    motion = newton_euler(model, q, qd, qdd, fx)
    values = {"tau": motion.tau, "qdd": qdd, "fx": fx, "a": motion.a, "f": motion.f}
    loose = np.arange(n) % 4 >= 2
    inputs = {"q": q, "qd": qd}
    for name, size in problem.input_sizes[2:]:
        factor = rng.standard_normal((n, size))
        moving = values[name].reshape(n, size) if name in values else np.ones((n, size))
        inputs[name] = np.where(loose[:, None], 3.0 * factor, 1.0) * moving
    return inputs


def sample_matrix(system: BlockSystem, states: dict[str, np.ndarray]) -> Sampled:
    """The worst-case pattern with its values at the states (inputs by group)."""
    entries, _ = system.values(states)
    row, col = system.coordinates
    rhs = np.array([not is_zero(x) for x in system.assembly.b], dtype=bool)
    entries = np.broadcast_to(entries, (len(states["q"]), len(row)))
    return Sampled(len(system.columns), row, col, entries, system.fixed_entries(), rhs)


def _order_samples(system: BlockSystem, n: int) -> Sampled:
    """The matrix at the states that orders are searched at; for general problems those at which it is regular."""
    states = sample_states(system.problem, n)
    try:
        RECURSIVE["aba"](system)
    except ProblemError:
        regular = ~is_singular(system, states)
        if regular.any():
            states = {name: x[regular] for name, x in states.items()}
    return sample_matrix(system, states)


def is_singular(system: BlockSystem, states: dict[str, np.ndarray]) -> np.ndarray:
    """(N,) bool: the equilibrated matrix has a condition number (estimated, 1-norm) above 1e12 at the state."""
    sampled = sample_matrix(system, states)
    found = np.ones(len(sampled.values), dtype=bool)
    for k, values in enumerate(sampled.values):
        matrix = _equilibrated(system.matrix(values)).tocsc()
        try:
            lu = scipy.sparse.linalg.splu(matrix)
        except RuntimeError:  # exactly singular
            continue
        with np.errstate(all="ignore"):
            inverse = scipy.sparse.linalg.LinearOperator(
                matrix.shape, lu.solve, rmatvec=lambda x, lu=lu: lu.solve(x, trans="T"), dtype=float
            )
            norm = scipy.sparse.linalg.onenormest(inverse) * np.abs(matrix).sum(axis=0).max()
        found[k] = not norm <= SINGULAR
    return found


def _equilibrated(A: scipy.sparse.csr_matrix) -> scipy.sparse.csr_matrix:
    """Rows and columns scaled until the greatest entry of each is near 1 (Ruiz 2001)."""
    for _ in range(6):
        size = abs(A)
        rows, columns = (size.max(axis=k).toarray().ravel() for k in (1, 0))
        scale = [1.0 / np.sqrt(np.where(x > 0.0, x, 1.0)) for x in (rows, columns)]
        A = scipy.sparse.diags(scale[0]) @ A @ scipy.sparse.diags(scale[1])
    return A.tocsr()


def _stack(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


# ---- elimination --------------------------------------------------------------------------------------------------


class Elimination:
    """The system eliminated over Expr with given permutations, ready to be checked and turned into programs.

    Raises NoSafeOrdering where it grows beyond `cap` operations, SingularState where a pivot is identically zero.
    """

    def __init__(self, system: BlockSystem, row_perm: Sequence[int], col_perm: Sequence[int], cap: float = math.inf):
        self.system = system
        self.graph = Graph(SHARING)
        self.assembly = system.assemble(self.graph, mark=True)
        body = [system.col_blocks[c][1] for c in col_perm]
        previous = [-1]
        limit = len(self.graph) + NODES_PER_OPERATION * cap

        def begin(k: int) -> None:
            if len(self.graph) > limit:
                raise NoSafeOrdering("given up: more expensive than what is known")
            # a new piece of program where the order goes on to another body
            if body[k] != previous[0]:
                self.graph.mark()
            previous[0] = body[k]

        self.factors = eliminate(self.assembly.rows, self.assembly.b, row_perm, col_perm, begin)
        self.graph.mark()
        self.scale: dict[int, float] = {}

    def choice(self, ordering: str, outputs: Sequence[str]) -> Choice:
        """The order with what it costs for these outputs."""
        groups = _outputs(self.system, self.assembly, self.factors, outputs)
        count = self.graph.count(x for _, values in groups for x in values)
        f = self.factors
        return Choice(ordering, tuple(f.row_perm), tuple(f.col_perm), count, None, f.fill_in, f.triangular)

    def label(self, k: int) -> str:
        """Equation and unknown of pivot k."""
        row, col = self.factors.row_perm[k], self.factors.col_perm[k]
        return f"{self.system.row_names[row]} → {self.system.col_names[col]}"

    def program(self, outputs: Sequence[str]) -> Program:
        """The program of the requested quantities, guarded where a pivot falls far below its sampled size."""
        guards = []
        for k, pivot in enumerate(self.factors.pivots):
            if not is_constant(pivot):
                guards.append((_positive(pivot), 1e-11 * self.scale.get(k, 0.0), self.label(k)))
        groups = _outputs(self.system, self.assembly, self.factors, outputs)
        return Program.from_graph(self.graph, self.assembly.inputs, groups, guards)

    def assess(
        self,
        scaling: tuple[np.ndarray, np.ndarray],
        states: int = SAFETY_SAMPLES,
        singular: dict[int, bool] | None = None,
    ) -> tuple[Safety, dict[str, np.ndarray]]:
        """(backward error, growth and least pivot over sampled states; the inputs at the worst of them).

        scaling: row and column factors that equilibrate D, in which growth is measured. States at which the system
        itself is singular are left out; `singular` remembers which, by number.
        """
        singular = {} if singular is None else singular
        row, col = self.system.coordinates
        pivots = [(k, p) for k, p in enumerate(self.factors.pivots) if not is_constant(p)]
        watched, weights = self._scaled_entries(scaling)
        groups = [("d", self.factors.solution), ("pivots", [p for _, p in pivots]), ("entries", watched)]
        program = Program.from_graph(self.graph, self.assembly.inputs, groups)
        inputs = sample_states(self.system.problem, states, seed=1)
        chunk = max(64, min(256, 20_000_000 // max(1, len(program) // 8 + len(watched))))
        errors, components, sizes, growths = [], [], [], []
        for start in range(0, states, chunk):
            if start >= len(inputs["q"]):
                break
            part = {name: x[start : start + chunk] for name, x in inputs.items()}
            out = python.run_groups(program, part)
            d = np.zeros((len(out["d"]), self.system.layout.n))
            d[:, self.system.columns] = out["d"]
            with np.errstate(all="ignore"):
                _, error, component = self.system.residual(part, d)
                growth = np.zeros(len(error))
                if watched:
                    entries = np.abs(self.system.values(part)[0]) * scaling[0][row] * scaling[1][col]
                    growth = (np.abs(out["entries"]) * weights).max(axis=1) / entries.max(axis=1)
            errors.append(np.where(np.isfinite(error), error, math.inf))
            components.append(np.where(np.isfinite(component), component, math.inf))
            hopeless = start + np.flatnonzero(errors[-1] > HOPELESS)
            if not all(self._singular_states(inputs, hopeless, singular)):
                inputs = {name: x[: start + chunk] for name, x in inputs.items()}
            sizes.append(np.nan_to_num(np.abs(out["pivots"]), nan=0.0))
            growths.append(np.where(np.isfinite(growth), growth, math.inf))
        error, size, growth = np.concatenate(errors), np.concatenate(sizes), np.concatenate(growths)
        regular = self._regular(inputs, error, size, singular)
        inputs = {name: x[regular] for name, x in inputs.items()}
        error, size, growth = error[regular], size[regular], growth[regular]
        component = np.concatenate(components)[regular]
        largest = size.max(axis=0)
        ratio = size / np.where(largest > 0.0, largest, 1.0)
        self.scale = {k: float(x) for (k, _), x in zip(pivots, largest, strict=True)}
        worst = np.union1d(np.argsort(error)[-WORST_STATES:], np.argsort(component)[-WORST_STATES:])
        if pivots:
            worst = np.union1d(worst, np.argsort(ratio.min(axis=1))[:WORST_STATES])
            least = int(np.argmin(ratio.min(axis=0)))
        failing = {name: x[worst] for name, x in inputs.items()}
        few = max(1, JUDGED_UNKNOWNS // max(1, self.system.layout.n))
        judged = np.union1d(np.argsort(error)[-few:], np.argsort(component)[-few:])
        judged = {name: x[judged] for name, x in inputs.items()}
        d = np.zeros((len(judged["q"]), self.system.layout.n))
        d[:, self.system.columns] = python.run_groups(program, judged)["d"]
        with np.errstate(all="ignore"):
            plain, refined = (pivoted_solve(self.system, judged, refine=k) for k in (0, 2))
            safety = Safety(
                len(error),
                float(error.max()),
                float(np.max(self.system.residual(judged, plain).backward_error)),
                self._difference(d, refined),
                self._difference(plain, refined),
                float(growth.max()),
                float(ratio[:, least].min()) if pivots else 1.0,
                self.label(pivots[least][0]) if pivots else "every pivot is constant",
                states - len(error),
            )
        return safety, failing

    def _regular(
        self, inputs: dict[str, np.ndarray], error: np.ndarray, size: np.ndarray, singular: dict[int, bool]
    ) -> np.ndarray:
        """(N,) bool: states to judge by; of those where something goes wrong, the ones at which a solution exists."""
        suspect = error > BACKWARD_ERROR
        if size.shape[1]:
            typical = np.median(size, axis=0)
            suspect |= (size <= SUSPECT * typical).any(axis=1) | (size * SUSPECT > typical).any(axis=1)
        suspects = np.flatnonzero(suspect)
        regular = np.ones(len(error), dtype=bool)
        regular[suspects] = ~np.array(self._singular_states(inputs, suspects, singular), dtype=bool)
        return regular if regular.any() else np.ones(len(error), dtype=bool)

    def _singular_states(
        self, inputs: dict[str, np.ndarray], numbers: np.ndarray, singular: dict[int, bool]
    ) -> list[bool]:
        """Whether the system itself is singular at the states of these numbers; `singular` remembers what is known."""
        new = np.array([k for k in numbers.tolist() if k not in singular], dtype=int)
        if len(new):
            found = is_singular(self.system, {name: x[new] for name, x in inputs.items()})
            singular.update(zip(new.tolist(), found.tolist(), strict=True))
        return [singular[k] for k in numbers.tolist()]

    def _scaled_entries(self, scaling: tuple[np.ndarray, np.ndarray]) -> tuple[list[Expr], np.ndarray]:
        """(entries of D U that are computed, the factor that puts each into equilibrated terms)."""
        rows, columns = scaling
        f = self.factors
        weight: dict[int, float] = {}

        def watch(x, factor: float) -> None:
            if type(x) is Expr:
                x = _positive(x)
                weight[x.id] = max(factor, weight.get(x.id, 0.0))

        for k, (r, c) in enumerate(zip(f.row_perm, f.col_perm, strict=True)):
            watch(f.pivots[k], rows[r] * columns[c])
            for j, u in f.upper[k].items():
                watch(u, columns[j] / columns[c] if f.scaled[k] else rows[r] * columns[j])
        chosen = sorted(weight)
        return [Expr(self.graph, i) for i in chosen], np.array([weight[i] for i in chosen])

    def _difference(self, d: np.ndarray, reference: np.ndarray) -> float:
        """Greatest relative difference of an unknown quantity (∞-norms) at any of the states."""
        worst = 0.0
        for quantity in QUANTITIES:
            columns = self.system.layout.quantity_columns(quantity)
            if len(columns) > len(self.system.problem.knows(quantity)):
                size = np.abs(reference[:, columns]).max(axis=1)
                difference = np.abs(d[:, columns] - reference[:, columns]).max(axis=1)
                worst = max(worst, float(np.max(difference / np.where(size > 0.0, size, 1.0))))
        return worst if math.isfinite(worst) else math.inf


def pivoted_solve(system: BlockSystem, inputs: dict[str, np.ndarray], refine: int = 0) -> np.ndarray:
    """d (N, full layout) by SuperLU with partial pivoting; NaN where the matrix is exactly singular.

    refine: steps of iterative refinement.
    """
    entries, b = system.values(inputs)
    n = max((x.shape[0] for x in inputs.values() if x.ndim == 2), default=1)
    entries, b = np.broadcast_to(entries, (n, entries.shape[1])), np.broadcast_to(b, (n, b.shape[1]))
    d = np.zeros((n, system.layout.n))
    for k in range(n):
        try:
            matrix = system.matrix(entries[k]).tocsc()
            lu = scipy.sparse.linalg.splu(matrix)
            x = lu.solve(-b[k])
            for _ in range(refine):
                x -= lu.solve(matrix @ x + b[k])
            d[k, system.columns] = x
        except RuntimeError:  # exactly singular
            d[k] = math.nan
    return d


def _positive(x):
    """x or −x, whichever is not a sign change of another node: what is computed."""
    if type(x) is Expr and x.graph._is_neg(x):
        return -x
    return x


__all__ = ["LEVELS", "Choice", "Compiled", "Elimination", "Safety", "StructurallySingular", "build", "pivoted_solve"]
