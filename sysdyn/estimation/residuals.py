"""Residuals of single time steps: of state sensors, and of dynamics after dynamic variables are eliminated."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy  # which loads scipy.special where it is first used

from sysdyn.equations.whitened import cholesky, substitute_forward
from sysdyn.errors import InvalidInput
from sysdyn.estimation.lie_jacobians import machine_code
from sysdyn.estimation.process_model import BIASES
from sysdyn.estimation.program_cache import CachedElimination
from sysdyn.estimation.state_trajectory import StateLayout, StateTrajectory
from sysdyn.measurements.constraints import LoopJoint
from sysdyn.measurements.input_names import NOISE, SWITCH, VALUE, InputName, group_of, value_group
from sysdyn.measurements.known_quantities import ExternalWrench
from sysdyn.measurements.measurement import Constraint, Context, Measurement, Output
from sysdyn.measurements.noise import ModelNoise, Switchable, noise_of
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model
from sysdyn.model.quantities import tangents
from sysdyn.offline.time_step import JACOBIAN, RESIDUAL
from sysdyn.program.autodiff import derivative, to_graph
from sysdyn.program.graph import SHARING, Graph, is_zero
from sysdyn.program.program import Program
from sysdyn.runtime.runner import Runner

# Standard deviation of an exact row, as a share of that of its best known unknown: rows are squared, less costs digits.
EXACT_SHARE = 1e-2
# Share of its own variance in a residual below which no other measurement checks it: half the digits of a standard
# deviation.
MIN_REDUNDANCY = 1e-4
# Random states at which the rows of loops are examined, and their seed.
LOOP_STATES, LOOP_SEED = 4, 3
# Least change of the error of a loop component that its joints move [m, rad]: rounding.
FIXED_LOOP = 1e-9
# Entries below this share of the greatest one of their row do not count for `sizes`: three digits.
LEADING_SHARE = 1e-3
# Confidence of outlier tests: usual.
CONFIDENCE = 0.999
# Limit of normalised residuals with this confidence, and its square.
OUTLIER_THRESHOLD = float(scipy.special.ndtri(0.5 + 0.5 * CONFIDENCE))
CHI2_THRESHOLD = OUTLIER_THRESHOLD * OUTLIER_THRESHOLD
# Group of inputs of rows of one time step: weights of rows.
WEIGHT = "weight"
# Most numbers in dense matrices of a batch of time steps: 16 MB, not slower than more (measured).
DENSE_NUMBERS = 2**21


@dataclass(frozen=True)
class MeasurementData:
    """Measurements y {name: (N, m)} at t (N,) [s], and active {name: (N, m) bool}: True for valid components.

    known: exact quantities (N, size) by group. weights {name: (N,)}: of the squared residuals of state sensors, by
    default 1. variances {name: (m,)}: of the noise, by default as declared. further {name: (N, m)}: variances that are
    added to those of state sensors, see `sysdyn.estimation.timing`.
    """

    t: np.ndarray
    y: Mapping[str, np.ndarray]
    active: Mapping[str, np.ndarray]
    known: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    variances: Mapping[str, np.ndarray] = field(default_factory=dict)
    further: Mapping[str, np.ndarray] = field(default_factory=dict)

    def part(self, chosen: slice | np.ndarray) -> MeasurementData:
        """The measurements at some of the time steps."""
        y, active, known, weights, further = (
            {name: x[chosen] for name, x in part.items()}
            for part in (self.y, self.active, self.known, self.weights, self.further)
        )
        return MeasurementData(self.t[chosen], y, active, known, weights, self.variances, further)

    def exclude(self, off: Mapping[str, np.ndarray]) -> MeasurementData:
        """The measurements without the components in `off` {name: (N, m) bool}."""
        return replace(self, active={**self.active, **{x: self.active[x] & ~gone for x, gone in off.items()}})


@dataclass(frozen=True)
class LinearizedResiduals:
    """Linear residuals J δ + r of N time steps, in units of their standard deviations; r (N, rows).

    entries (N, …): of J at places (2, …), rows and unknowns; size: number of unknowns. names: (measurement, component)
    of each row; component −1: several measurements. exact (rows,) bool: rows without noise, in their own units.
    """

    r: np.ndarray
    entries: np.ndarray
    places: np.ndarray
    size: int
    names: tuple[tuple[str, int], ...]
    exact: np.ndarray

    @cached_property
    def J(self) -> np.ndarray:
        """(N, rows, unknowns)."""
        found = np.zeros((*self.r.shape, self.size))
        found[:, self.places[0], self.places[1]] = self.entries
        return found

    def within(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(these rows (N, rows, c) of J, in ascending order, the unknowns (c,) in which they have entries)."""
        chosen = np.flatnonzero(np.isin(self.places[0], rows))
        columns = np.unique(self.places[1, chosen])
        found = np.zeros((len(self.r), len(rows), len(columns)))
        at = np.searchsorted(rows, self.places[0, chosen]), np.searchsorted(columns, self.places[1, chosen])
        found[:, at[0], at[1]] = self.entries[:, chosen]
        return found, columns


class Residuals(Protocol):
    """Residuals r(x) of a time step, with their derivative J by the unknowns.

    runner computes r (RESIDUAL) and the entries of J (JACOBIAN) at `places` (2, …), rows and unknowns, from the state,
    BIASES, and inputs that follow from the measurements. exact (rows,) bool; names: (measurement, component) of rows.
    """

    layout: StateLayout
    names: tuple[tuple[str, int], ...]
    places: np.ndarray
    exact: np.ndarray

    @property
    def runner(self) -> Runner: ...

    def default_inputs(self) -> dict[str, np.ndarray]:
        """Inputs of `runner` (size,) without measurements."""

    def inputs(self, readings: MeasurementData) -> dict[str, np.ndarray]:
        """Inputs of `runner` (N, size) that follow from measurements."""

    def linearize(self, path: StateTrajectory, readings: MeasurementData) -> LinearizedResiduals:
        """Residuals and their derivative along a path."""

    def count(self, readings: MeasurementData) -> int:
        """Number of rows that are exact or measured, over all time steps: degrees of freedom of χ²."""


class StateResiduals:
    """Residuals of sensors of the state, h(q, q̇) + bias − y, and of couplings and loops with their rates."""

    def __init__(self, problem: Problem, layout: StateLayout):
        self.layout, self.model = layout, problem.model
        self.sensors = problem.state_sensors
        self.noise = {m.name: noise_of(m, problem.model) for m in self.sensors}
        model, graph = problem.model, Graph(SHARING)
        state = {"q": graph.inputs("q", model.nq), "qd": graph.inputs("qd", model.nv)}
        biases, readings = graph.inputs(BIASES, layout.n_biases), dict[str, np.ndarray]()
        context = Context.at(model, state["q"], state["qd"])
        values, names = [], []
        for m in self.sensors:
            size = len(m.components(model))
            y = readings[value_group(m.name)] = graph.inputs(value_group(m.name), size)
            if m.name in layout.biases:
                y = y - biases[layout.biases[m.name].place]
            residual = np.asarray(m.residual(context, y), dtype=object).reshape(-1)
            if len(residual) != size:
                raise InvalidInput(f"the residual of {m.name!r} has {len(residual)} entries, but {size} components")
            noise = self.noise[m.name]
            if noise.full:
                residual = np.array(
                    substitute_forward(cholesky(noise, noise.declared, [1.0] * size), residual), dtype=object
                )
            values += list(residual)
            names += [(m.name, k) for k in range(size)]
        for link in model.couplings:
            leader = state["q"][link.leader_q] if link.leader_q >= 0 else 0.0
            rate = state["qd"][link.leader_v] if link.leader_v >= 0 else 0.0
            p, slope, _ = link.coupling.derivatives(leader)
            values += [state["q"][link.q] - p, state["qd"][link.v] - slope * rate]
            names += [(f"coupling of {link.coupling.joint}", 0)] * 2
        self.loops = tuple(m for m in problem.measurements if isinstance(m, LoopJoint))
        for m in self.loops:
            components = _changing(model, m)
            values += [x for both in m.error(context) for x in both[components]]
            names += [(f"loop {m.name}", int(k)) for k in components] * 2
        self.names = tuple(names)
        self.exact = np.array([x not in self.noise for x, _ in names], dtype=bool)
        columns = [(layout.column(x, k), d) for x in state for k, d in enumerate(tangents(model, x, state[x]))]
        columns += [(layout.n_states + k, {f"{BIASES}[{k}]": 1.0}) for x, b in layout.biases.items() if x in self.noise
                    for k in range(b.place.start, b.place.stop)]  # fmt: skip
        weight, entries, places = graph.inputs(WEIGHT, len(values)), [], []
        for column, direction in columns:
            for i, rate in enumerate(derivative(values, direction)):
                if not is_zero(rate):
                    entries.append(rate * weight[i])
                    places.append((i, column))
        self.places = np.array(places, dtype=int).reshape(-1, 2).T
        inputs = state | {BIASES: biases} | readings | {WEIGHT: weight}
        outputs = [(RESIDUAL, [x * w for x, w in zip(values, weight, strict=True)]), (JACOBIAN, entries)]
        self.program = Program.from_graph(graph, tuple(inputs.items()), outputs)
        self.rows = {m.name: np.array([i for i, (x, _) in enumerate(names) if x == m.name]) for m in self.sensors}

    @cached_property
    def runner(self) -> Runner:
        """Program of rows, from q, q̇, biases, measurements and WEIGHT (rows,), the reciprocal of their noise."""
        return machine_code(self.program)

    def default_inputs(self) -> dict[str, np.ndarray]:
        """See `Residuals`; exact rows have weight 1."""
        sizes = self.program.inputs.sizes
        return {value_group(x): np.zeros(len(rows)) for x, rows in self.rows.items()} | {WEIGHT: np.ones(sizes[WEIGHT])}

    def inputs(self, readings: MeasurementData, weighted: bool = True) -> dict[str, np.ndarray]:
        """See `Residuals`; weighted: by the weights of the measurements, too."""
        weight, inputs = np.ones((len(readings.t), len(self.names))), dict[str, np.ndarray]()
        for name, rows in self.rows.items():
            inputs[value_group(name)] = readings.y[name]
            noise, on = self.noise[name], readings.active[name]
            if noise.full:  # correlated components have no residuals one by one
                weight[:, rows] = np.all(on, axis=1)[:, None]
            else:
                weight[:, rows] = on / self._std(name, readings)
            if weighted and name in readings.weights:
                weight[:, rows] *= np.sqrt(readings.weights[name])[:, None]
        return inputs | {WEIGHT: weight}

    def _std(self, name: str, readings: MeasurementData) -> np.ndarray:
        if name in readings.variances or name in readings.further:
            variance = readings.variances.get(name, self.noise[name].declared)
            return np.sqrt(variance + readings.further.get(name, 0.0))
        return self.std[name]

    @cached_property
    def std(self) -> dict[str, np.ndarray]:
        """Declared standard deviations of the components of each sensor."""
        return {name: np.sqrt(noise.declared) for name, noise in self.noise.items()}

    def linearize(self, path: StateTrajectory, readings: MeasurementData, weighted: bool = True) -> LinearizedResiduals:
        """See `Residuals`. Rows that cannot be computed have weight 0."""
        if not self.names:
            return LinearizedResiduals(
                np.zeros((len(path), 0)),
                np.zeros((len(path), 0)),
                self.places,
                self.layout.size,
                self.names,
                self.exact,
            )
        inputs = self.inputs(readings, weighted)
        state = {"q": path.q, "qd": path.rates[:, 0], BIASES: path.biases}
        r, entries, failed = _run(self.runner, state | inputs, len(path))
        r[(inputs[WEIGHT] == 0.0) | failed[:, None]] = 0.0
        entries[failed] = 0.0
        if not np.isfinite(entries.sum()):
            entries[~np.isfinite(entries)] = 0.0
        return LinearizedResiduals(r, entries, self.places, self.layout.size, self.names, self.exact)

    def sizes(self, entries: np.ndarray) -> np.ndarray:
        """Magnitudes (1 or N, entries) of entries of J, which set the weights of exact rows; 0: entry is ignored.

        Rows of velocities are weighted by the uncertainty of velocities, rows of positions by that of positions. With
        loops the magnitudes are the same at all time steps, because some entries pass through zero.
        """
        return self._typical if self.loops else np.abs(entries)

    @cached_property
    def _typical(self) -> np.ndarray:
        model, rng = self.model, np.random.default_rng(LOOP_SEED)
        q, qd, _ = model.random_state(seed=LOOP_SEED, batch=LOOP_STATES)
        sizes = self.program.inputs.sizes
        inputs = {x: rng.standard_normal((LOOP_STATES, size)) for x, size in sizes.items()}
        inputs |= {"q": q, "qd": qd, WEIGHT: np.ones((LOOP_STATES, sizes[WEIGHT]))}
        entries = np.abs(_run(self.runner, inputs, LOOP_STATES)[1]).max(axis=0)
        return _leading(entries[None], self.places, self.layout)

    def count(self, readings: MeasurementData) -> int:
        """See `Residuals`."""
        count = len(readings.t) * int(self.exact.sum())
        for name, noise in self.noise.items():
            on = readings.active[name]
            count += noise.size * int(on.all(axis=1).sum()) if noise.full else int(on.sum())
        return count


def _run(runner: Runner, inputs: Mapping[str, np.ndarray], n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(residuals (N, rows), entries of their derivative (N, …), (N,) bool: the program failed)."""
    outputs, status = runner.results({x: np.ascontiguousarray(y, dtype=float) for x, y in inputs.items()}, n)
    return outputs[RESIDUAL], outputs[JACOBIAN], status != 0


class DynamicsResiduals:
    """Residuals of the state that remain after dynamic variables are eliminated; their outputs at a state.

    columns (c,): unknowns of the columns of the elimination; sign (c,): −1 for biases, which are subtracted from
    measurements. noisy: (measurement, component) of the equations with noise.
    """

    def __init__(self, problem: Problem, layout: StateLayout, outputs: Sequence[Output] = ()):
        self.layout, self.outputs = layout, tuple(outputs)
        self.problem = Problem(
            problem.model, [_switched(m) for m in problem.measurements], [p.name for p in problem.parameters]
        )
        biased = [x for x in layout.biases if x in {m.name for m in self.problem.custom}]
        self.elimination = CachedElimination(self.problem, self.outputs or ("qdd",), biased)
        self._rows = self.elimination.rows()
        self.noisy, self.exact = self._rows.noisy, self._rows.exact
        self.columns = np.array([layout.column(*x) for x in self._rows.columns], dtype=int)
        self.sign = np.array([-1.0 if group_of(x).role == VALUE else 1.0 for x, _ in self._rows.columns])
        self.places = np.array([self._rows.places[0], self.columns[self._rows.places[1]]])
        self.names = tuple(("", -1) for _ in self.exact)

    def sizes(self, entries: np.ndarray) -> np.ndarray:
        """Magnitudes (N, entries) of entries of J, which set the weights of exact rows; see `StateResiduals.sizes`."""
        return _leading(np.abs(entries), self.places, self.layout)

    @cached_property
    def free(self) -> tuple[Runner, np.ndarray]:
        """(program of the entries of F, their places (2, …)); F maps residuals to the whitened residuals of noisy rows.

        See `TimeStepElimination.free`.
        """
        program, places = self.elimination.free()
        return machine_code(program), places

    @cached_property
    def results(self) -> Runner:
        """Program of the outputs; see `TimeStepElimination.results`."""
        return machine_code(self.elimination.results())

    @property
    def has_redundancy(self) -> bool:
        """True if some measurements are checked by others: rows with noise remain."""
        return not self.exact.all()

    @cached_property
    def runner(self) -> Runner:
        """Program of rows, from the inputs of the problem, q̈ and biases."""
        graph, program = Graph(SHARING), self._rows.program
        biases, readings = graph.inputs(BIASES, self.layout.n_biases), dict[str, list]()
        for name, size in program.inputs.sizes.items():
            role, owner = group_of(name).role, group_of(name).name
            if role == VALUE and owner in self.layout.biases:
                y = graph.inputs(name, size)
                readings[name] = [a - b for a, b in zip(y, biases[self.layout.biases[owner].place], strict=True)]
        replay = to_graph(program, graph, readings)
        sign = self.sign[self._rows.places[1]].tolist()
        entries = [s * x for s, x in zip(sign, replay.outputs[JACOBIAN], strict=True)]
        results = {**replay.outputs, JACOBIAN: entries}
        return machine_code(replay.to_program({BIASES: list(biases)}, results, program.ranges, simplified=False))

    def default_inputs(self) -> dict[str, np.ndarray]:
        """See `Residuals`."""
        return {
            name: np.zeros(group.size) if group.default is None else np.array(group.default).reshape(-1)
            for name, group in self.problem.inputs.items() if name in self._owners
        }  # fmt: skip

    def inputs(self, readings: MeasurementData) -> dict[str, np.ndarray]:
        """See `Residuals`."""
        inputs = {}
        for name, (role, owner) in self._owners.items():
            if role == VALUE and owner in readings.y:
                inputs[name] = readings.y[owner]
            elif role == SWITCH:
                inputs[name] = readings.active[owner]
            elif role == NOISE and owner in readings.variances:
                inputs[name] = np.broadcast_to(readings.variances[owner], readings.y[owner].shape)
            elif name in readings.known:
                inputs[name] = readings.known[name]
        return inputs

    @cached_property
    def _owners(self) -> dict[str, InputName]:
        """Role and measurement of each input that is not the state."""
        return {name: group_of(name) for name in self.problem.inputs if name not in ("q", "qd", "qdd")}

    def linearize(self, path: StateTrajectory, readings: MeasurementData) -> LinearizedResiduals:
        """See `Residuals`. Time steps that cannot be computed have no rows."""
        r, entries, _ = _run(self.runner, self.all_inputs(path, readings) | {BIASES: path.biases}, len(path))
        bad = ~(np.isfinite(r).all(axis=1) & np.isfinite(entries).all(axis=1))
        r[bad], entries[bad] = 0.0, 0.0
        return LinearizedResiduals(r, entries, self.places, self.layout.size, self.names, self.exact)

    def unbiased_inputs(self, path: StateTrajectory, readings: MeasurementData) -> dict[str, np.ndarray]:
        """Inputs of the elimination programs, with the biases of the path subtracted from the measured values."""
        inputs = self.all_inputs(path, readings)
        for name, bias in self.layout.biases.items():
            if value_group(name) in inputs:
                inputs[value_group(name)] = inputs[value_group(name)] - path.biases[:, bias.place]
        return inputs

    def all_inputs(self, path: StateTrajectory, readings: MeasurementData) -> dict[str, np.ndarray]:
        """Inputs of the elimination programs except BIASES: states, measurements with switches and noise, and defaults.

        Measured values include their biases; `unbiased_inputs` subtracts them.
        """
        inputs = path.state() | self.default_inputs() | self.inputs(readings)
        return {name: np.ascontiguousarray(x, dtype=float) for name, x in inputs.items()}

    def count(self, readings: MeasurementData) -> int:
        """See `Residuals`."""
        off = sum(int(np.sum(~readings.active[m.name])) for m in self.problem.switchable if m.name in readings.active)
        return len(readings.t) * len(self.exact) - off


def _changing(model: Model, loop: LoopJoint) -> np.ndarray:
    """Components of a loop error that its joints change: in a plane mechanism not those across the plane."""
    q, qd, _ = model.random_state(seed=LOOP_SEED, batch=LOOP_STATES)
    found = [loop.error(Context.at(model, *(x.astype(object) for x in state)))[0] for state in zip(q, qd, strict=True)]
    return np.flatnonzero(np.ptp(np.array(found, dtype=float), axis=0) > FIXED_LOOP)


def _leading(sizes: np.ndarray, places: np.ndarray, layout: StateLayout) -> np.ndarray:
    """Sizes (N, entries) of entries at places (2, entries): 0 for all but the highest derivatives of their row.

    Entries below LEADING_SHARE of the greatest one of their row are 0, too.
    """
    row, column = places
    level = np.where(column < layout.n_states, column // layout.model.nv, -1)
    order = np.argsort(row, kind="stable")
    starts, number = np.unique(row[order], return_index=True)[1], np.unique(row, return_inverse=True)[1]
    highest = np.maximum.reduceat(level[order], starts)
    found = np.where(level == highest[number], sizes, 0.0)
    most = np.maximum.reduceat(found[:, order], starts, axis=1)
    return np.where(found > LEADING_SHARE * most[:, number], found, 0.0)


def memory_slices(n: int, source: StateResiduals | DynamicsResiduals) -> list[slice]:
    """Slices of n time steps whose dense residuals and covariances fit into memory."""
    size = source.layout.size
    step = max(1, DENSE_NUMBERS // (max(len(source.exact), size) * size))
    return [slice(at, min(at + step, n)) for at in range(0, n, step)]


def _switched(m: Measurement) -> Measurement:
    """The measurement as a `Switchable` one if it has noise."""
    if m.noise is None or m.of_state or m.switchable or isinstance(m, ModelNoise):
        return m
    return Switchable(m)


def without_state_sensors(problem: Problem, names: Collection[str] = ()) -> Problem:
    """The problem without state sensors and measurements of these names."""
    kept = [m for m in problem.measurements if not m.of_state and m.name not in names]
    return Problem(problem.model, kept, [p.name for p in problem.parameters])


def split(problem: Problem) -> tuple[Problem | None, Problem]:
    """(problem of the measurements of acceleration, or None without any; problem of all others but state sensors).

    Measurements of acceleration depend on accelerations alone, such as accelerometers.
    """
    model = problem.model
    q, qd, _ = model.random_state(seed=0)
    context = Context.at(model, q.astype(object), qd.astype(object))
    moving = [
        m for m in problem.valued
        if m.noise is not None and not isinstance(m, Constraint) and not m.of_state
        and {x for x, _ in m.rows(context)} <= {"a", "qdd"}
    ]  # fmt: skip
    names = {m.name for m in moving}
    rest = without_state_sensors(problem, names)
    if not moving:
        return None, rest
    return Problem(model, [*moving, ExternalWrench("all", name="no external wrench")]), rest
