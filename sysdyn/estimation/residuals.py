"""Equations of the instants of a trajectory: rows of states, from sensors of states and from dynamic variables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import scipy  # which loads scipy.special where it is first used

from sysdyn.equations.whitened import cholesky, substitute_forward
from sysdyn.errors import InvalidInput
from sysdyn.estimation.instants import StoredInstant
from sysdyn.estimation.kalman_smoother import components
from sysdyn.estimation.lie_jacobians import machine_code
from sysdyn.estimation.process_model import BIASES
from sysdyn.estimation.state_trajectory import StateLayout, StateTrajectory
from sysdyn.measurements.constraints import LoopJoint
from sysdyn.measurements.input_names import NOISE, SWITCH, VALUE, Holder, group_of, value_group
from sysdyn.measurements.known_quantities import ExternalWrench
from sysdyn.measurements.measurement import Constraint, Context, Measurement, Output
from sysdyn.measurements.noise import ModelNoise, Switchable, noise_of
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model
from sysdyn.model.quantities import tangents
from sysdyn.offline.time_step import ERRORS, FREE, JACOBIAN, RESIDUAL, VARIANCES
from sysdyn.program.autodiff import derivative, to_graph
from sysdyn.program.graph import SHARING, Graph, is_zero
from sysdyn.program.program import Program
from sysdyn.runtime.runner import Runner

# Standard deviation of a row that holds exactly, as a share of that of the unknown of it that is known best without it:
# less would cost covariances digits, since the rows are squared (chosen).
EXACT_SHARE = 1e-2
# Share of its own variance in a residual below which nothing else checks a reading (chosen).
MIN_REDUNDANCY = 1e-4
# States at which is looked on what rows of loops depend, their seed, change of a position of a loop below which it has
# none, and share of the greatest entry of a row below which an entry does not count (chosen).
SOME_STATES, STATES_SEED, UNMOVED_LOOP, LEADING_SHARE = 4, 3, 1e-9, 1e-3
# Probability beyond which a reading is dropped at its instant: 99.9 % (chosen).
CONFIDENCE = 0.999
# Residual, in standard deviations, that a true reading keeps below with the probability CONFIDENCE, and its square.
OUTLIER_THRESHOLD = float(scipy.special.ndtri(0.5 + 0.5 * CONFIDENCE))
CHI2_THRESHOLD = OUTLIER_THRESHOLD * OUTLIER_THRESHOLD
# Group of inputs of rows of one time step: weights of rows.
WEIGHT = "weight"
# Most numbers of the dense rows of instants that are held at a time: 16 MB, as fast as more (measured).
DENSE_NUMBERS = 2**21


@dataclass(frozen=True)
class MeasurementData:
    """Values y {name: (N, m)} without gaps at t (N,) [s], and active {name: (N, m) bool} where they are measured.

    known: exact quantities (N, size) by group. weights {name: (N,)}: of squares of sensors of states, 1 if not named.
    variances {name: (m,)}: of the noise, as declared if not named. further {name: (N, m)}: variances that are
    added for sensors of states, 0 if not named, see `sysdyn.estimation.timing`.
    """

    t: np.ndarray
    y: Mapping[str, np.ndarray]
    active: Mapping[str, np.ndarray]
    known: Mapping[str, np.ndarray]
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    variances: Mapping[str, np.ndarray] = field(default_factory=dict)
    further: Mapping[str, np.ndarray] = field(default_factory=dict)

    def part(self, chosen: slice | np.ndarray) -> MeasurementData:
        """The readings of some of the instants."""
        y, active, known, weights, further = (
            {name: x[chosen] for name, x in part.items()}
            for part in (self.y, self.active, self.known, self.weights, self.further)
        )
        return MeasurementData(self.t[chosen], y, active, known, weights, self.variances, further)

    def exclude(self, off: Mapping[str, np.ndarray]) -> MeasurementData:
        """The readings with components off, {name: (N, m) bool}."""
        return replace(self, active={**self.active, **{x: self.active[x] & ~gone for x, gone in off.items()}})


@dataclass(frozen=True)
class LinearizedResiduals:
    """Rows J δ + r of N instants, in units of their standard deviations; r (N, rows).

    entries (N, …) of J at places (2, …), rows and unknowns; size: number of unknowns. names: (measurement, component)
    of each row; component −1: rows of several measurements together. exact: see EXACT_SHARE; these rows are in their
    own units.
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


class StateResiduals:
    """Rows of the sensors of states: h(q, q̇) + bias = y + noise, and of coupled joints and loops, with their rates."""

    def __init__(self, problem: Problem, layout: StateLayout):
        self.layout, self.model = layout, problem.model
        self.sensors = problem.state_sensors
        self._noise = {m.name: noise_of(m, problem.model) for m in self.sensors}
        model, graph = problem.model, Graph(SHARING)
        inputs = {"q": graph.inputs("q", model.nq), "qd": graph.inputs("qd", model.nv)}
        context = Context.at(model, inputs["q"], inputs["qd"])
        values, names = [], []
        for m in self.sensors:
            size = len(m.components(model))
            y = inputs[f"y:{m.name}"] = graph.inputs(f"y:{m.name}", size)
            found = np.asarray(m.residual(context, y), dtype=object).reshape(-1)
            if len(found) != size:
                raise InvalidInput(f"the residual of {m.name!r} has {len(found)} entries, but {size} components")
            noise = self._noise[m.name]
            if noise.full:
                found = np.array(substitute_forward(cholesky(noise, noise.declared, [1.0] * size), found), dtype=object)
            values += list(found)
            names += [(m.name, k) for k in range(size)]
        for link in model.couplings:
            leader = inputs["q"][link.leader_q] if link.leader_q >= 0 else 0.0
            rate = inputs["qd"][link.leader_v] if link.leader_v >= 0 else 0.0
            p, slope, _ = link.coupling.derivatives(leader)
            values += [inputs["q"][link.q] - p, inputs["qd"][link.v] - slope * rate]
            names += [(f"coupling of {link.coupling.joint}", 0)] * 2
        self.loops = tuple(m for m in problem.measurements if isinstance(m, LoopJoint))
        for m in self.loops:
            kept = _changing(model, m)
            values += [x for both in m.error(context) for x in both[kept]]
            names += [(f"loop {m.name}", int(k)) for k in kept] * 2
        self.names = tuple(names)
        self.exact = np.array([x not in self._noise for x, _ in names], dtype=bool)
        entries, places = [], []
        columns = [(x, d) for x in ("q", "qd") for d in enumerate(tangents(model, x, inputs[x]))]
        columns += [(f"y:{x}", (k, {f"y:{x}[{k}]": 1.0}))
                    for x in layout.biases if x in self._noise for k in range(self._noise[x].size)]  # fmt: skip
        for name, (k, direction) in columns:
            for i, rate in enumerate(derivative(values, direction)):
                if not is_zero(rate):
                    # y less the bias is what the state explains
                    entries.append(-rate if name.startswith("y:") else rate)
                    places.append((i, layout.column(name, k)))
        self.places = np.array(places, dtype=int).reshape(-1, 2).T
        groups = [(RESIDUAL, values), (JACOBIAN, entries)]
        self.program = Program.from_graph(graph, tuple(inputs.items()), groups)
        parts: dict[str, list[int]] = {}
        for i, (name, _) in enumerate(names):
            parts.setdefault(name, []).append(i)
        self._rows = {m.name: np.array(parts[m.name]) for m in self.sensors}

    @cached_property
    def _executable(self) -> Runner:
        return machine_code(self.program)

    def sizes(self, entries: np.ndarray) -> np.ndarray:
        """(1 or N, entries): sizes of the entries by which exact rows are weighted; 0: not by this one.

        Those of a row of velocities are by velocities, and so on: what it says of positions is as much less certain.
        Of rows of loops they are the same at all instants, as some pass through zero.
        """
        return self._typical if self.loops else np.abs(entries)

    @cached_property
    def _typical(self) -> np.ndarray:
        model, rng = self.model, np.random.default_rng(STATES_SEED)
        q, qd, _ = model.random_state(seed=STATES_SEED, batch=SOME_STATES)
        states = {"q": q, "qd": qd}
        given = {
            x: states.get(x, rng.standard_normal((SOME_STATES, size))) for x, size in self.program.inputs.sizes.items()
        }
        found = np.abs(self._executable.results(given, SOME_STATES)[0][JACOBIAN]).max(axis=0)
        return _leading(found[None], self.places, self.layout)

    def linearize(self, path: StateTrajectory, readings: MeasurementData, weighted: bool = True) -> LinearizedResiduals:
        """The rows about a path."""
        n = len(path)
        if not self.names:
            return self._lines(np.zeros((n, 0)), np.zeros((n, 0)))
        given = {"q": path.q, "qd": path.rates[:, 0]}
        for sensor in self.sensors:
            given[f"y:{sensor.name}"] = subtract_bias(sensor.name, path, readings)
        given = {name: np.ascontiguousarray(x) for name, x in given.items()}
        outputs, status = self._executable.results(given, n)
        r, entries = outputs[RESIDUAL], outputs[JACOBIAN]
        weight = np.ones(r.shape)
        for name, rows in self._rows.items():
            noise, on = self._noise[name], readings.active[name]
            # correlated components say nothing apart
            one = np.sqrt(readings.variances.get(name, noise.declared) + readings.further.get(name, 0.0))
            weight[:, rows] = np.all(on, axis=1)[:, None] if noise.full else on / one
            if weighted and name in readings.weights:
                weight[:, rows] *= np.sqrt(readings.weights[name])[:, None]
        weight[status != 0] = 0.0
        r[weight == 0.0] = 0.0
        if not np.isfinite(entries.sum()):
            entries[~np.isfinite(entries)] = 0.0
        r *= weight
        entries *= weight[:, self.places[0]]
        return self._lines(r, entries)

    def _lines(self, r: np.ndarray, entries: np.ndarray) -> LinearizedResiduals:
        return LinearizedResiduals(r, entries, self.places, self.layout.size, self.names, self.exact)

    @cached_property
    def single(self) -> Runner:
        """The rows of one instant: from q, qd, biases, readings y:NAME and the weights of rows."""
        graph = Graph(SHARING)
        own = to_graph(self.program, graph, _unbiased(graph, self.program, self.layout))
        weight = list(graph.inputs(WEIGHT, len(self.names)))
        further = {BIASES: list(graph.inputs(BIASES, self.layout.n_biases)), WEIGHT: weight}
        r = [x * w for x, w in zip(own.outputs[RESIDUAL], weight, strict=True)]
        entries = [x * weight[i] for x, i in zip(own.outputs[JACOBIAN], self.places[0].tolist(), strict=True)]
        results = {RESIDUAL: r, JACOBIAN: entries}
        return machine_code(own.to_program(further, results, self.program.ranges, simplified=False))

    def default(self, name: str, size: int) -> np.ndarray:
        """New values of an input of `single` before it is written; rows that hold exactly keep their weight, 1."""
        return np.full(size, 1.0 if name == WEIGHT else 0.0)

    def write(self, given: Mapping[str, np.ndarray], readings: MeasurementData) -> None:
        """Write the readings of the first instant into the inputs of `single`."""
        weight = given[WEIGHT]
        for name, whole, one, rows in self.written:
            given[self._values[name]][:] = readings.y[name][0]
            on = readings.active[name][0]
            if name in readings.further:
                one = np.sqrt(one * one + readings.further[name][0])
            weight[rows] = on.all() if whole else on / one

    @cached_property
    def _values(self) -> dict[str, str]:
        return {name: value_group(name) for name in self._rows}

    @cached_property
    def written(self) -> list[tuple[str, bool, np.ndarray, np.ndarray]]:
        """(name, whether its components are correlated, their standard deviations, rows) of each sensor."""
        noise = self._noise
        return [(name, noise[name].full, np.sqrt(noise[name].declared), rows) for name, rows in self._rows.items()]

    def groups(self) -> Mapping[str, np.ndarray]:
        """Rows of each sensor."""
        return self._rows

    def expected(
        self, path: StateTrajectory, readings: MeasurementData, P: np.ndarray
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Expected values and variances of sensors with independent components; see `DynamicsResiduals.expected`."""
        lines, found = self.linearize(path, readings), {}
        for name, rows in self._rows.items():
            J = lines.J[:, rows]
            found[name] = lines.r[:, rows] ** 2, np.einsum("nij,njk,nik->ni", J, P, J, optimize=True)
        return {name: x for name, x in found.items() if not self._noise[name].full}

    def count(self, readings: MeasurementData) -> int:
        """Number of rows that hold or are measured, over all instants: degrees of freedom of their sum of squares."""
        count = len(readings.t) * int(self.exact.sum())
        for name, noise in self._noise.items():
            on = readings.active[name]
            count += noise.size * int(on.all(axis=1).sum()) if noise.full else int(on.sum())
        return count


class DynamicsResiduals:
    """Rows that the dynamic variables leave to the states, and results at the states."""

    def __init__(self, problem: Problem, layout: StateLayout, outputs: Sequence[Output] = ()):
        self.layout, self.outputs = layout, tuple(outputs)
        self.problem = Problem(
            problem.model, [_switched(m) for m in problem.measurements], [p.name for p in problem.parameters]
        )
        biased = [x for x in layout.biases if x in {m.name for m in self.problem.custom}]
        self._instant = StoredInstant(self.problem, self.outputs or ("qdd",), biased)
        self._rows = self._instant.rows()
        self._columns = np.array([layout.column(*x) for x in self._rows.columns], dtype=int)
        # y less the bias is what the equations have
        self._sign = np.array([-1.0 if group_of(x).role == VALUE else 1.0 for x, _ in self._rows.columns])
        self.places = np.array([self._rows.places[0], self._columns[self._rows.places[1]]])
        self.exact = self._rows.exact
        self.names = tuple(("", -1) for _ in self.exact)

    def sizes(self, entries: np.ndarray) -> np.ndarray:
        """(N, entries): sizes of the entries by which exact rows are weighted; see `StateResiduals.sizes`."""
        return _leading(np.abs(entries), self.places, self.layout)

    @property
    def checkable(self) -> bool:
        """True if some readings are checked by others: rows with noise are left."""
        return not self.exact.all()

    @cached_property
    def whole(self) -> tuple[str, ...]:
        """Names of measurements that hold as a whole or not at all: of feet that do not stand."""
        return tuple(self.problem.opposites)

    @cached_property
    def _results(self) -> Runner:
        return machine_code(self._instant.results())

    def _inputs(self, path: StateTrajectory, readings: MeasurementData, biases: bool = False) -> dict[str, np.ndarray]:
        """Inputs of the programs; biases: of `single`, which takes these and the readings as they are."""
        given = path.state() | ({BIASES: path.biases} if biases else {})
        for name, group in self.problem.inputs.items():
            role = group_of(name).role
            if name in given:
                continue
            owner = group_of(name).name
            if role == VALUE and owner in readings.y:
                given[name] = readings.y[owner] if biases else subtract_bias(owner, path, readings)
            elif role == SWITCH:
                given[name] = readings.active[owner].astype(float)
            elif role == NOISE and owner in readings.variances:
                given[name] = readings.variances[owner]
            elif role == NOISE or name not in readings.known:
                given[name] = group.require_default()
            else:
                given[name] = readings.known[name]
        return {name: np.ascontiguousarray(x, dtype=float) for name, x in given.items()}

    @cached_property
    def single(self) -> Runner:
        """The rows of instants: from the inputs of the problem, q̈ and biases."""
        graph, program = Graph(SHARING), self._rows.program
        own = to_graph(program, graph, _unbiased(graph, program, self.layout))
        further = {BIASES: list(graph.inputs(BIASES, self.layout.n_biases))}
        sign = self._sign[self._rows.places[1]].tolist()
        entries = [s * x for s, x in zip(sign, own.outputs[JACOBIAN], strict=True)]
        results = {**own.outputs, JACOBIAN: entries}
        return machine_code(own.to_program(further, results, program.ranges, simplified=False))

    def default(self, name: str, size: int) -> np.ndarray:
        """New values of an input of `single` before it is written."""
        written = group_of(name).role in (VALUE, SWITCH) or name in self.problem.known_quantities
        return np.zeros(size) if written else np.array(self.problem.inputs[name].require_default()).reshape(size)

    def write(self, given: Mapping[str, np.ndarray], readings: MeasurementData) -> None:
        """Write the readings of the first instant into the inputs of `single`."""
        for name, x in given.items():
            role, owner = self._owners[name]
            if role == VALUE and owner in readings.y:
                x[:] = readings.y[owner][0]
            elif role == SWITCH:
                x[:] = readings.active[owner][0]
            elif name in readings.known:
                x[:] = readings.known[name][0]

    @cached_property
    def _owners(self) -> dict[str, Holder]:
        return {name: group_of(name) for name in self.problem.inputs} | {"qdd": group_of("qdd")}

    def linearize(self, path: StateTrajectory, readings: MeasurementData) -> LinearizedResiduals:
        """The rows about a path."""
        n = len(path)
        outputs, _ = self.single.results(self._inputs(path, readings, biases=True), n)
        r, entries = outputs[RESIDUAL], outputs[JACOBIAN]
        bad = ~(np.isfinite(r).all(axis=1) & np.isfinite(entries).all(axis=1))
        r[bad], entries[bad] = 0.0, 0.0
        return LinearizedResiduals(r, entries, self.places, self.layout.size, self.names, self.exact)

    def count(self, readings: MeasurementData) -> int:
        """Number of rows that are left, over all instants: degrees of freedom of their sum of squares."""
        off = sum(int(np.sum(~readings.active[m.name])) for m in self.problem.switchable if m.name in readings.active)
        return len(readings.t) * len(self.exact) - off

    def errors(self, path: StateTrajectory, readings: MeasurementData) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """{name: (residuals (N, m), their variances (N, m))} of the noisy equations if the states are known.

        In units of standard deviations and variances of the noise; what nothing else checks has variance 0.
        """
        outputs, _ = self.single.results(self._inputs(path, readings, biases=True), len(path))
        errors, shares = (self._by_name(outputs[x]) for x in (ERRORS, VARIANCES))
        return {name: (e, shares[name]) for name, e in errors.items()}

    def expected(
        self, path: StateTrajectory, readings: MeasurementData, P: np.ndarray
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """{name: (squares of residuals (N, m), variances (N, m) of the errors that are left)}, in units of the noise.

        P (N, unknowns, unknowns): of the states after these readings. Together the expected square of an error.
        """
        F, J, r = self._whitened(path, readings)
        left = F @ J
        e = (F @ r[..., None])[..., 0]
        spread = np.einsum("nij,njk,nik->ni", left, P, left, optimize=True) + 1.0 - (F * F).sum(axis=2)
        squares, spread = self._by_name(e * e), self._by_name(spread)
        return {name: (squares[name], spread[name]) for name in squares}

    def _whitened(self, path: StateTrajectory, readings: MeasurementData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """F (N, noisy equations, rows), J (N, rows, unknowns) and r (N, rows) of the rows that are not exact."""
        lines, (program, places) = self.linearize(path, readings), self._free
        J, r = lines.J[:, ~lines.exact], lines.r[:, ~lines.exact]
        F = np.zeros((len(path), len(self._rows.noisy), r.shape[1]))
        F[:, places[0], places[1]] = program.results(self._inputs(path, readings), len(path))[0][FREE]
        return F, J, r

    @cached_property
    def _free(self) -> tuple[Runner, np.ndarray]:
        program, places = self._instant.free()
        return machine_code(program), places

    def normalised(
        self, path: StateTrajectory, readings: MeasurementData, P: np.ndarray, after: bool = False
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """Residuals {name: (N, m)} after all readings, relative to their standard deviations (Baarda 1968).

        path, P (N, unknowns, unknowns): the states before these readings, or after them. 0 if nothing else checks one.
        A measurement that holds as a whole has one number for all components, the root of the squares that are less
        without it; so much less as for one residual at OUTLIER_THRESHOLD if it is at its own limit of CONFIDENCE.
        """
        F, J, r = self._whitened(path, readings)
        known, one = J @ P @ J.swapaxes(1, 2), np.eye(r.shape[1])
        both = np.concatenate([r[:, :, None], F.swapaxes(1, 2)], axis=2)
        if after:
            both[:, :, 1:] = (one - known) @ both[:, :, 1:]
        else:
            both = np.linalg.solve(one + known, both)
        e = (F @ both[:, :, :1])[..., 0]
        variance = np.einsum("nij,nji->ni", F, both[:, :, 1:])
        checked = variance > MIN_REDUNDANCY
        w = np.where(checked, e / np.sqrt(np.where(checked, variance, 1.0)), 0.0)
        for name in self.whole:
            rows = [k for k, (x, _) in enumerate(self._rows.noisy) if x == name]
            V = F[:, rows] @ both[:, :, 1:][:, :, rows]
            size, axes = np.linalg.eigh(0.5 * (V + V.swapaxes(1, 2)))
            checked = size > MIN_REDUNDANCY
            along = (axes.swapaxes(1, 2) @ e[:, rows, None])[..., 0]
            less = np.where(checked, along**2 / np.where(checked, size, 1.0), 0.0).sum(axis=1)
            limit = scipy.special.chdtri(np.maximum(checked.sum(axis=1), 1), 1.0 - CONFIDENCE)
            w[:, rows] = np.sqrt(np.maximum(less - limit + CHI2_THRESHOLD, 0.0))[:, None]
        return self._by_name(w)

    def _by_name(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """{name: (N, m)} of values (N, noisy equations)."""
        places: dict[str, dict[int, int]] = {}
        for column, (name, k) in enumerate(self._rows.noisy):
            places.setdefault(name, {})[k] = column
        return {name: x[:, [place[k] for k in range(len(place))]] for name, place in places.items()}

    def results(
        self, path: StateTrajectory, readings: MeasurementData, P: np.ndarray
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """{output: (values (N, size), standard deviations (N, size))}; P (N, unknowns, unknowns): of the unknowns."""
        n, found = len(path), {}
        if not self.outputs:
            return {}
        outputs, _ = self._results.results(self._inputs(path, readings), n)
        parts = self._apart(P) if n > 1 else np.arange(len(self._columns))[None]
        for name in [x for x in outputs if not x.startswith(("d ", "var "))]:
            x = outputs[name]
            slopes = outputs[f"d {name}"].reshape(n, x.shape[1], len(self._columns))
            if (self._sign < 0.0).any():
                slopes = slopes * self._sign
            variance = outputs[f"var {name}"] + self._spread(slopes, P, parts)
            found[name] = x, np.sqrt(np.maximum(variance, 0.0))
        return found

    def _apart(self, P: np.ndarray) -> np.ndarray:
        """Numbers (parts, k) of columns in parts of one size that covariances P (N, …) do not couple; else one part."""
        known = (P != 0.0).any(axis=0)[self._columns[:, None], self._columns]
        found = components(known)
        alike = len({len(x) for x in found}) == 1
        return np.array(found) if alike else np.arange(len(self._columns))[None]

    def _spread(self, slopes: np.ndarray, P: np.ndarray, parts: np.ndarray) -> np.ndarray:
        """Variances (N, m) of values with slopes (N, m, columns); P, parts: see `_apart`."""
        columns = self._columns
        if len(parts) == 1:
            whole = len(columns) == P.shape[1] and (np.diff(columns) == 1).all()
            known = P if whole else P[:, columns[:, None], columns]
            return np.asarray(np.einsum("nij,nij->ni", slopes @ known, slopes))
        J, at = slopes[:, :, parts].swapaxes(1, 2), columns[parts]  # (N, parts, m, k)
        return np.asarray(np.einsum("npij,npij->ni", J @ P[:, at[:, :, None], at[:, None, :]], J))


def _changing(model: Model, loop: LoopJoint) -> np.ndarray:
    """Numbers of the components of a loop that its joints change: a plane mechanism holds those across its plane."""
    q, qd, _ = model.random_state(seed=STATES_SEED, batch=SOME_STATES)
    found = [loop.error(Context.at(model, *(x.astype(object) for x in state)))[0] for state in zip(q, qd, strict=True)]
    return np.flatnonzero(np.ptp(np.array(found, dtype=float), axis=0) > UNMOVED_LOOP)


def _leading(sizes: np.ndarray, places: np.ndarray, layout: StateLayout) -> np.ndarray:
    """Sizes (N, entries) of entries at places (2, entries) by the highest derivative in their row, 0 for others.

    Small ones beside the greatest of their row are 0, too.
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
    """Instants in parts whose dense rows and covariances fit into memory."""
    size = source.layout.size
    step = max(1, DENSE_NUMBERS // (max(len(source.exact), size) * size))
    return [slice(at, min(at + step, n)) for at in range(0, n, step)]


def subtract_bias(name: str, path: StateTrajectory, readings: MeasurementData) -> np.ndarray:
    """Values (N, m) of a measurement less its bias."""
    bias = path.layout.biases.get(name)
    y = readings.y[name]
    return y if bias is None else y - path.biases[:, bias.place]


def _unbiased(graph: Graph, program: Program, layout: StateLayout) -> dict[str, list]:
    """{y:NAME: readings less their bias} of the inputs of a program that have one."""
    biases, found = graph.inputs(BIASES, layout.n_biases), {}
    for name, size in program.inputs.sizes.items():
        role, owner = group_of(name)
        if role == VALUE and owner in layout.biases:
            y = graph.inputs(name, size)
            found[name] = [x - b for x, b in zip(y, biases[layout.biases[owner].place], strict=True)]
    return found


def _switched(m: Measurement) -> Measurement:
    """The measurement as one that can be off, if it can."""
    if m.noise is None or m.of_state or m.switchable or isinstance(m, ModelNoise):
        return m
    return Switchable(m)


def without_state_sensors(problem: Problem, names: Collection[str] = ()) -> Problem:
    """The problem without sensors of states, and without the measurements of these names."""
    kept = [m for m in problem.measurements if not m.of_state and m.name not in names]
    return Problem(problem.model, kept, [p.name for p in problem.parameters])


def split(problem: Problem) -> tuple[Problem | None, Problem]:
    """(the problem of the measurements of motion alone, or None without any; the problem of all others).

    Measurements of motion have rows of accelerations alone, such as accelerometers.
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
