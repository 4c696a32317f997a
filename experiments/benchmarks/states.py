"""States over and beyond the range of a robot, and how a solver answers there: residuals row by row.

The judge here is its own: with the equations at a state from `values`, |D d + b|_i / (|D| |d| + |b|)_i of each exact
row (Oettli and Prager 1964), the greatest of them for a state. Where all terms of a row vanish (an external wrench that
is zero) its rounding errors are no error: terms count at least as 1e-6 of the greatest acceleration, or force, of the
state, angular and linear ones alike [rad/s², m/s²; N m, N]. So an error is one beyond 1e-15 of that. A row whose terms
are below 1e-11 of those with unknowns as large as the greatest acceleration, or force, of their bodies holds rounding
errors alone, and is relative to the latter (Arioli, Demmel and Duff 1989).

Entries of D are rounded: far out, answers that are right to the last digit do not solve such equations. And frames mix
the components of a vector, one of which may be 1e-6 of the others and hold their rounding errors. Suspicious answers
are judged by equations in extended precision, too, and if need be in 50 digits, with the norms of vectors for |d|; the
smallest residual counts. What is still beyond is counted, and solved in 50 digits. It is farther if a quantity is
farther from that answer than where changes of the equations by a few rounding units can move it, max |D⁻¹| (|D| |d| +
|b|), which rounding their entries does already (Higham 2002, section 7.2). It is wrong if such a quantity is off by
more than 1e-11 of its greatest entry, unless the state is why: it is within GROWTH of those changes and no farther
than STABLE times the answer of a backward stable solve, LAPACK's LU of the dense matrix, of entries that are rounded
once, with partial pivoting, rows and columns equilibrated. And it is untold if it is farther than TOLD times what
`Solution.forward_error` says.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
from digits import Digits, left_over
from random_sensors import regular_at

import sysdyn as sd
from sysdyn.codegen import interpreter
from sysdyn.equations.system import System
from sysdyn.measurements.input_names import value_group
from sysdyn.measurements.noise import noise_of
from sysdyn.model.joints import Helical
from sysdyn.online.accuracy import forward_errors
from sysdyn.program.opcodes import WRAP
from sysdyn.reference import newton_euler
from sysdyn.sparse.condition import equilibration

# Lengths without limits reach so far [m].
KILOMETRE = 1e3
# An answer with a greater row-wise residual is suspicious.
WRONG = 1e-11
# The terms of a row count at least as this fraction of the greatest terms of the same kind at that state.
VANISHING = 1e-6
# The rounding unit.
UNIT = 2.0**-53
# Changes of the equations that an answer may be off by, relative to each term, in rounding units, as entries are sums
# of a few rounded products.
ROUNDINGS = 4.0
# Changes that elimination may make of them, two digits more than rounding, and the multiple of the error of a dense
# solve that is the state's then, not the program's.
GROWTH, STABLE = 100.0, 10.0
# An error beyond this multiple of the estimate is one that the estimate does not tell.
TOLD = 10.0
# Terms of a row below this fraction of those that its bodies could make are rounding errors.
ROUNDED_OFF = 1e-11
# Unknowns of these names are accelerations, all others forces.
MOTIONS = ("a", "qdd")
# Unknowns of these names are vectors of three, two for each body.
VECTORS = ("a", "f", "fx")
# Rows of these units are of one kind each.
KINDS = {"rad/s²": "acceleration", "m/s²": "acceleration", "N m": "force", "N": "force", "N m or N": "force"}
# A solver is called with so many states at a time.
BATCH = 1000
# Of so many states of a batch that were not solved it is looked at whether their matrix is regular.
LOOKED_AT = 10


class Answers(NamedTuple):
    """Of N states: how many were not solved; how many of the first of these in each batch have a regular matrix; of
    those called `ok`, how many have row-wise residuals beyond WRONG, how many of these are farther from the answer in
    50 digits than rounding explains, how many of these are wrong, and how many of those beyond are farther than they
    say themselves; of those that rounding does not explain the greatest error of a quantity, relative to its greatest
    entry, in rounding units of its equations, and as a multiple of the dense solve's; the greatest row-wise residual
    where `ok`, and its equation."""

    states: int
    unsolved: int
    regular: int
    beyond: int
    farther: int
    silent: int
    untold: int
    off: float
    units: float
    dense: float
    residual: float
    equation: str

    def __add__(self, other: Answers) -> Answers:
        """Of both."""
        counts = (x + y for x, y in zip(self[:7], other[:7], strict=True))
        return Answers(*counts, *map(max, self[7:10], other[7:10]), *max(self[10:], other[10:]))

    def row(self) -> dict:
        """Columns of a table."""
        return self._asdict() | {x: f"{getattr(self, x):.1e}" for x in ("off", "units", "dense", "residual")}


def positions(model: sd.Model, n: int, rng: np.random.Generator, far: float) -> np.ndarray:
    """q (n, nq): a third at random, a third at multiples of π/2, a third at limits where there are some.

    Joints with limits stay within them. Lengths without limits are within 1 m at a third of the states, at others
    between 1 m and `far`, evenly in their logarithm, or just there.
    """
    q = model.random_state(seed=int(rng.integers(1 << 31)), batch=n)[0]
    kind = rng.integers(3, size=n)[:, None]
    quarters = rng.integers(0, 4, size=(n, model.nv)) * (math.pi / 2)
    q = np.where(kind == 1, model.integrate(np.broadcast_to(model.neutral(), q.shape), quarters), q)
    for i, joint in enumerate(model.joints):
        lengths = [k for k in range(joint.nq) if k not in (*joint.angles, *_quaternion(joint))]
        for k in () if isinstance(joint, Helical) else lengths:
            reach = np.where(rng.random(n) < 0.2, far, far ** rng.random(n))
            one = rng.integers(3, size=n) == 0
            x = np.where(one, rng.uniform(-1.0, 1.0, n), np.where(rng.random(n) < 0.5, reach, -reach))
            q[:, model.q_slice(i).start + k] = x
        if joint.nq == joint.nv == 1:
            place, v = model.q_slice(i).start, model.v_slice(i).start
            low, high = model.lower[v], model.upper[v]
            if math.isfinite(low) and math.isfinite(high):
                inside = np.where(kind[:, 0] == 1, q[:, place], rng.uniform(low, high, n))
                at_limit = np.where(rng.random(n) < 0.5, low, high)
                q[:, place] = np.where(kind[:, 0] == 2, at_limit, np.clip(inside, low, high))
    return q


def _quaternion(joint) -> range:
    return range(0) if joint.quaternion is None else range(*joint.quaternion.indices(joint.nq))


def calls(problem: sd.Problem, n: int, rng: np.random.Generator, far: float) -> dict[str, np.ndarray]:
    """Inputs by group at n states: known values of a motion under external wrenches; at half of the states others.

    Noisy values have errors as declared; exact ones that follow from others are those of the motion.
    """
    model = problem.model
    q = positions(model, n, rng, far)
    qd, qdd = (10.0 ** rng.uniform(-1.0, 1.0, (n, 1)) * rng.uniform(-1.0, 1.0, (n, model.nv)) for _ in range(2))
    pushed = (rng.random(n) < 0.5)[:, None, None]
    fx = pushed * np.einsum("ijk,nik->nij", model.inertias, 3.0 * rng.standard_normal((n, model.nb, 6)))
    motion = newton_euler(model, q, qd, qdd, fx)
    values = {"tau": motion.tau, "qdd": qdd, "fx": fx, "a": motion.a, "f": motion.f}
    shown = sd.predict(problem, q, qd, qdd, fx, seed=int(rng.integers(1 << 31)))
    inputs = {x: values[x].reshape(n, -1) for x in problem.known_quantities}
    inputs |= {value_group(m.name): shown[m.name] for m in problem.custom}
    equations, unknowns = sd.assemble(problem).plain.shape
    other = ((rng.random(n) < 0.5) & (bool(problem.noisy) or equations <= unknowns))[:, None]
    inputs = {name: np.where(other, 3.0 * rng.standard_normal(x.shape), 1.0) * x for name, x in inputs.items()}
    noise = {x.group: x.declared for x in (noise_of(m, model) for m in problem.noisy)}
    return {"q": q, "qd": qd, **inputs, **noise}


def judged(problem: sd.Problem, solver: sd.Solver, states: int, rng: np.random.Generator, far: float) -> Answers:
    """How the solver answers at so many states; it computes all unknowns."""
    found = Answers(0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, "")
    for start in range(0, states, BATCH):
        found += _batch(problem, solver, calls(problem, min(BATCH, states - start), rng, far))
    return found


def called(problem: sd.Problem, solver: sd.Solver, inputs: dict[str, np.ndarray]) -> sd.Solution:
    """The solver's answer for inputs by group (…, size), with NaN where it has none."""
    known = {x: inputs[x] for x in problem.known_quantities}
    y = {m.name: inputs[value_group(m.name)] for m in problem.custom}
    return solver(inputs["q"], inputs["qd"], y=y, on_singular="nan", **known)


def _batch(problem: sd.Problem, solver: sd.Solver, inputs: dict[str, np.ndarray]) -> Answers:
    solution = called(problem, solver, inputs)
    system, d = sd.assemble(problem).plain, unknowns(problem, solution)
    inputs = inputs | {"q": problem.model.normalise(inputs["q"])}
    residual = np.where(solution.ok[:, None], row_wise(system, inputs, d), 0.0)
    chosen = np.flatnonzero(residual.max(axis=1) > WRONG)
    if len(chosen):
        part, x = {name: y if y.ndim < 2 else y[chosen] for name, y in inputs.items()}, d[chosen]
        own = row_wise(system, part, x, extended(system, part, x), of_vectors(system, x))
        residual[chosen] = np.where((own.max(axis=1) < residual[chosen].max(axis=1))[:, None], own, residual[chosen])
    for k in np.flatnonzero(residual.max(axis=1) > WRONG):
        one, x = at(inputs, k), d[[k]]
        exact = row_wise(system, one, x, left_over(system, one, x[0, system.columns]), of_vectors(system, x))[0]
        residual[k] = min(residual[k], exact, key=max)
    refused = np.flatnonzero(~solution.ok)
    regular = sum(regular_at(problem, at(inputs, k)) for k in refused[:LOOKED_AT])
    beyond = np.flatnonzero(residual.max(axis=1) > WRONG)
    looked_at = [farther(system, at(inputs, k), d[k]) for k in beyond]
    unexplained = [x for x in looked_at if x.units > ROUNDINGS]
    wrong, untold = sum(x.wrong for x in unexplained), sum(x.untold for x in looked_at)
    state, row = np.unravel_index(np.argmax(residual), residual.shape)
    greatest = float(residual[state, row])
    beside = (max((x[k] for x in unexplained), default=0.0) for k in range(3))
    counts = len(d), len(refused), regular, len(beyond), len(unexplained), wrong, untold
    return Answers(*counts, *beside, greatest, system.row_names[row])


def unknowns(problem: sd.Problem, solution: sd.Solution) -> np.ndarray:
    """d (N, full layout) of a solution at N states."""
    layout = sd.assemble(problem).plain.layout
    d = np.zeros((len(solution.ok), layout.n))
    for quantity in problem.quantities:
        d[:, layout.quantity_columns(quantity)] = solution[quantity].reshape(len(d), -1)
    return d


def at(inputs: dict[str, np.ndarray], k: int) -> dict[str, np.ndarray]:
    """Inputs at the state of that number."""
    return {name: x[k] if x.ndim == 2 else x for name, x in inputs.items()}


def row_wise(
    system: sd.BlockSystem, inputs: dict[str, np.ndarray], d: np.ndarray, left: np.ndarray | None = None,
    sizes: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """(N, equations) |D d + b|_i / (|D| |d| + |b|)_i; 0 for noisy rows, inf where it is no number.

    left (N, equations): D d + b in more digits than those of rounded entries. sizes (N, columns): in place of |d|.
    """
    entries, b = system.values(inputs)
    r, c = system.coordinates
    sums = scipy.sparse.csr_matrix((np.ones(len(r)), (r, np.arange(len(r)))), shape=(system.shape[0], len(r)))
    with np.errstate(all="ignore"):
        d_own = d[:, system.columns]
        left = (sums @ (entries * d_own[:, c]).T).T + b if left is None else left
        size = (sums @ np.abs(entries * (d_own if sizes is None else sizes)[:, c]).T).T + np.abs(b)
        possible = (sums @ np.abs(entries * of_bodies(system, d)[:, c]).T).T
        own, kinds = size.copy(), row_kinds(system)
        for kind in set(kinds):
            same = np.array([x == kind for x in kinds])
            size[:, same] = np.maximum(size[:, same], VANISHING * size[:, same].max(axis=1, keepdims=True))
        size = np.where(own < ROUNDED_OFF * possible, np.maximum(size, possible), size)
        ratio = np.abs(left) / np.where(size == 0.0, 1.0, size)
    return np.where(system.noisy_mask, 0.0, np.where(np.isnan(ratio), np.inf, ratio))


def extended(system: sd.BlockSystem, inputs: dict[str, np.ndarray], d: np.ndarray) -> np.ndarray:
    """D d + b (N, equations) of numbers with 64 bits, where the processor has them; d (N, full layout)."""
    wide = np.longdouble
    given = [np.atleast_2d(inputs[name].astype(wide)).T for name in system.program.inputs]
    functions = interpreter.numpy_functions() | {WRAP: lambda x: x}
    out = interpreter.run(system.program, [x for rows in given for x in rows], functions, constant=wide)
    nnz, x = system.nnz, d[:, system.columns].astype(wide)
    left = np.stack([np.broadcast_to(y, len(d)) for y in out[nnz:]], axis=1)
    for r, c, entry in zip(*(y.tolist() for y in system.coordinates), out[:nnz], strict=True):
        left[:, r] += entry * x[:, c]
    return left.astype(float)


class Farther(NamedTuple):
    """The greatest distances of quantities from those in 50 digits: relative to the greatest entry of the quantity; of
    those that rounding does not explain, in rounding units u of u max |D⁻¹| (|D| |d| + |b|), and over that of a dense
    solve. Whether one of these is wrong, and whether one is TOLD times farther than the answer says."""

    off: float
    units: float
    dense: float
    wrong: bool
    untold: bool

    def worse(self, other: Farther) -> Farther:
        """The greater of each."""
        return Farther(*map(max, self, other))


def farther(system: System, inputs: dict[str, np.ndarray], d: np.ndarray) -> Farther:
    """How far an answer d (layout,) at one state is from that in 50 digits, of an estimate from its mean.

    Of redundant equations, whose values agree but for rounding, as many as there are unknowns are solved, those that
    QR with pivoting takes first; what the answer says of itself is not looked at.

    A quantity is at least as large as VANISHING of the greatest acceleration, or force, of the state, as rows are: an
    external wrench that is zero is 3e-15 N beside forces of 2e17 N.
    """
    if system.noisy_mask.any():
        system = sd.assemble(system.problem)
        d = np.pad(d, (0, system.layout.n - len(d)))  # by multipliers, which are not looked at
    (r, c), redundant = system.coordinates, system.shape[0] > system.shape[1]
    entries = system.values(inputs)[0][0]
    rows, columns = equilibration(r, c, np.abs(entries), system.shape)
    kept = np.arange(system.shape[0])
    if redundant:
        scaled = rows[:, None] * system.matrix(entries).toarray() * columns
        kept = np.sort(scipy.linalg.qr(scaled.T, mode="r", pivoting=True)[1][: system.shape[1]])
    exact = Digits(system, inputs, rows=kept)
    right = np.array([exact.value(j) for j in range(len(system.columns))])
    D, b, rows = system.matrix(exact.entries).toarray()[kept], exact.b[kept], rows[kept]
    scaled = rows[:, None] * D * columns
    inverse = columns[:, None] * np.linalg.inv(scaled) * rows
    stable = np.abs(columns * np.linalg.solve(scaled, -rows * b) - right)
    bound = np.abs(inverse) @ (np.abs(D) @ np.abs(right) + np.abs(b))
    off, place = np.abs(d[system.columns] - right), {c: j for j, c in enumerate(system.columns)}
    layout = system.layout
    owned = {x: [place[c] for c in layout.quantity_columns(x) if c in place] for x in system.problem.quantities}
    greatest = [max(np.abs(right[own]).max(initial=0.0) for x, own in owned.items() if (x in MOTIONS) == kind)
                for kind in (False, True)]  # fmt: skip
    found = Farther(0.0, 0.0, 0.0, False, False)
    for name, own in owned.items():
        if own and off[own].any():
            least = VANISHING * greatest[name in MOTIONS]
            with np.errstate(divide="ignore"):
                beside = max(np.abs(right[own]).max(), least), UNIT * max(bound[own].max(), least), stable[own].max()
                error, units, dense = (float(off[own].max() / x) for x in beside)
            says = error
            if not redundant:
                value = d[list(layout.quantity_columns(name))][None]
                (says,) = forward_errors(system, inputs, {name: value})[name]
            if units > ROUNDINGS:  # or else all is relative to nothing but rounding
                wrong = error > WRONG and (units > GROWTH or dense > STABLE)
                found = found.worse(Farther(error, units, dense, wrong, bool(error > TOLD * says)))
            else:
                found = found.worse(Farther(error, units, 0.0, False, False))
    return found


def of_vectors(system: sd.BlockSystem, d: np.ndarray) -> np.ndarray:
    """(N, columns) the norm of the vector of three that each unknown is a component of; d (N, full layout)."""
    size = np.abs(d)
    for quantity in VECTORS:
        columns = list(system.layout.quantity_columns(quantity))
        norms = np.linalg.norm(d[:, columns].reshape(len(d), -1, 3), axis=2)
        size[:, columns] = np.repeat(norms, 3, axis=1)
    return size[:, system.columns]


def of_bodies(system: sd.BlockSystem, d: np.ndarray) -> np.ndarray:
    """(N, columns) the greatest acceleration, or force, at the body of each unknown; d (N, full layout)."""
    size = np.abs(d[:, system.columns])
    greatest = np.zeros_like(size)
    kinds = [(quantity in MOTIONS, body) for quantity, body in system.col_blocks]
    for kind in set(kinds):
        same = np.array([x == kind for x in kinds])
        greatest[:, same] = size[:, same].max(axis=1, keepdims=True)
    return greatest


def row_kinds(system: sd.BlockSystem) -> list[str]:
    """What each row is about: accelerations, forces, as its unit or else all of its unknowns say; or its unit."""
    measured = [*system.problem.raw, *system.problem.custom]
    kinds: list[str] = []
    for (kind, number), rows in groupby(enumerate(system.row_blocks), lambda row: row[1]):
        if kind == "y":
            units = measured[number].component_units(system.model)
            kinds += [KINDS.get(units[k]) or _kind_of(system, r) or units[k] for k, (r, _) in enumerate(rows)]
        else:
            kinds += ["acceleration" if kind == "a" else "force" for _ in rows]
    return kinds


def _kind_of(system: sd.BlockSystem, row: int) -> str:
    """What all unknowns of the row are, nothing where they differ."""
    kinds = {system.col_blocks[c][0] in MOTIONS for c in system.assembly.rows[row]}
    return {frozenset({True}): "acceleration", frozenset({False}): "force"}.get(frozenset(kinds), "")
