"""One step of the Kalman filter as compiled calls: prediction, and an update by the residuals of each source.

Programs compute the nonlinear parts: the predicted state with Φ and Q, residuals, and the retraction of a step δ.
Routines of BLAS and LAPACK compute the covariances in fixed memory:

    P ← Φ P Φ^T + Q;    S = J P J^T + D = L L^T,  X = P J^T L^-T,  P ← P − X X^T,  δ = −X L⁻¹ r.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sysdyn.estimation.lie_jacobians import machine_code, replayed_turns
from sysdyn.estimation.process_model import BIASES, NOISE, POSITION, RATES, TRANSITION, between, integrate
from sysdyn.estimation.residuals import (
    CHI2_THRESHOLD,
    EXACT_SHARE,
    DynamicsResiduals,
    LinearizedResiduals,
    MeasurementData,
    StateResiduals,
)
from sysdyn.estimation.state_trajectory import StateLayout, StateTrajectory
from sysdyn.offline.time_step import JACOBIAN, RESIDUAL
from sysdyn.program.graph import SHARING, Graph, copysign, is_zero
from sysdyn.program.program import Program
from sysdyn.runtime.call_list import CallList
from sysdyn.runtime.real import DOUBLE, SINGLE, Real
from sysdyn.runtime.runner import Runner

# Groups of the program of a step δ of the state: δ, and entries of the right Jacobian.
CHANGE, TURN = "change", "turn"
# Variance of an exact row without a derivative, by number type: smallest normal numbers.
EMPTY_ROW_VARIANCE = {DOUBLE: 1e-300, SINGLE: 1e-30}
# Smaller covariances are set to zero, by number type: products of subnormal numbers take a hundred times as long.
SMALLEST_COVARIANCE = {DOUBLE: 1e-150, SINGLE: 1e-20}
# Largest factor by which P - X^T X may reduce a variance: ten digits are left.
MAX_REDUCTION = 1e6


class FilterStep:
    """Compiled steps of a filter of the residuals `sources`; density (nv,): of the process noise.

    gate: see `Filter`. real: number type of the exported code; the calls run in double precision. state, P
    (unknowns, unknowns): the current state, which `load` sets.
    """

    def __init__(
        self,
        layout: StateLayout,
        sources: Sequence[StateResiduals | DynamicsResiduals],
        density: np.ndarray,
        gate: bool,
        real: Real = DOUBLE,
    ):
        self.layout, self.real, size = layout, real, layout.size
        self.state = {x: np.zeros(n) for x, n in _sizes(layout).items()}
        self.P = np.zeros((size, size))
        self.given = {"dt": np.zeros(1), "left": np.zeros(layout.n_biases), "walk": np.zeros(layout.n_biases)}
        self.given["squares"] = density**2
        self.prediction = self._prediction()
        self._predict, self.retraction = self.prediction.bind_first(), retraction(layout)
        self.updates = [Update(self, x, gate and isinstance(x, StateResiduals)) for x in sources]

    def load(self, path: StateTrajectory, P: np.ndarray) -> None:
        """Set the state from a trajectory of one time step, and its covariance P (unknowns, unknowns)."""
        for name, x in ((POSITION, path.q), (RATES, path.rates), (BIASES, path.biases)):
            self.state[name][:] = x.reshape(-1)
        self.P[:] = P

    def path(self, t: float) -> StateTrajectory:
        """A copy of the state, at time t [s]."""
        own, x = self.layout, self.state
        rates = x[RATES].reshape(1, -1, own.model.nv).copy()
        return StateTrajectory(own, np.array([t]), x[POSITION][None].copy(), rates, x[BIASES][None].copy())

    def predict(self, dt: float) -> None:
        """Predict the state dt [s] later."""
        given = self.given
        given["dt"][0] = dt
        if self.layout.n_biases:
            left, walk = self.layout.bias_transition(given["dt"])
            given["left"][:], given["walk"][:] = left[0], walk[0]
        self._predict()

    def _prediction(self) -> CallList:
        """List of the calls that predict the state and its covariance, P ← Φ P Φᵀ + Q."""
        x, k, calls = between(self.layout.motion, self.layout.n_biases, predict=True), self.layout.size, CallList()
        places, numbers = x.Phi, (x.Q @ [k, 1]).astype(np.intc)
        found = _called(calls, machine_code(x.program), self.state | self.given)
        W, V = np.zeros((2, k, k))
        calls.spmm(k, k, places, found[TRANSITION], self.P, W)
        calls.call("transpose", k, k, W, V)
        calls.spmm(k, k, places, found[TRANSITION], V, self.P)
        calls.call("scatter_add", len(numbers), numbers, found[NOISE], self.P)
        calls.call("flush_subnormals", k * k, SMALLEST_COVARIANCE[self.real], self.P)
        self.copy_state(calls, found)
        return calls

    def copy_state(self, calls: CallList, found: Mapping[str, np.ndarray]) -> None:
        """Add calls that copy the outputs `found` of a program to the state."""
        for name, x in self.state.items():
            calls.call("dcopy", len(x), found[name], 1, x, 1)


class Update:
    """Update of a `FilterStep` by the residuals of a source.

    both: r (rows,) and entries (…) of `LinearizedResiduals`. known (rows,): variances that the state gives the rows.
    noise (rows,): their own, in units of the declared noise, > 1 if down-weighted. given: inputs of the residuals that
    follow from measurements. reading, solution: calls of the residuals, and of the update.
    """

    def __init__(self, step: FilterStep, source: StateResiduals | DynamicsResiduals, gate: bool):
        self._step, self.source, self._gate, self.rows = step, source, gate, len(source.exact)
        k, m, state = step.layout.size, len(source.exact), step.state
        self.both = np.zeros(m + len(source.places[0]))
        self.r, self.entries = self.both[:m], self.both[m:]
        self.known, self.noise, self._z = np.zeros((3, m))
        self._wrong, self._change = np.zeros(1, dtype=np.intc), np.zeros(k)
        self.reading, self.solution = CallList(), CallList()
        if not m:
            return
        nv = step.layout.model.nv
        given = {POSITION: state[POSITION], "qd": state[RATES][:nv], "qdd": state[RATES][nv : 2 * nv]}
        given[BIASES] = state[BIASES]
        self.given = source.default_inputs()
        outputs = {name: np.zeros(size) for name, size in source.runner.program.outputs.sizes.items()}
        outputs |= {RESIDUAL: self.r, JACOBIAN: self.entries}
        self._status = np.zeros(1, dtype=np.int64)
        _called(self.reading, source.runner, given | self.given, outputs, self._status)
        self.solution = self._solution()
        self._read, self._solve = self.reading.bind_first(), self.solution.bind_first()

    def _solution(self) -> CallList:
        """List of the BLAS, LAPACK and program calls that update the state and P by the residuals."""
        calls, P, exact = CallList(), self._step.P, self.source.exact
        k, m, z, change = len(P), self.rows, self._z, self._change
        places = self.source.places.T
        X, W, S = np.zeros((m, k)), np.zeros((k, m)), np.zeros((m, m))
        calls.spmm(k, m, places, self.entries, P, X)
        calls.call("transpose", m, k, X, W)
        calls.spmm(m, m, places, self.entries, W, S)
        calls.call("dcopy", m, S, m + 1, self.known, 1)
        own = machine_code(variances(exact, self._gate, EMPTY_ROW_VARIANCE[self._step.real]))
        _called(calls, own, {"r": self.r, "known": self.known}, {NOISE: self.noise})
        calls.call("daxpy", m, 1.0, self.noise, 1, S, m + 1)
        calls.call("dpotrf", "L", m, S, m, self._wrong)
        calls.call("trsm", k, m, S, X)
        calls.call("dcopy", m, self.r, 1, z, 1)
        calls.call("trsm", 1, m, S, z)
        calls.call("dgemv", "N", k, m, -1.0, X, k, z, 1, 0.0, change, 1)
        calls.call("syrk_sub", k, m, X, X, P)
        calls.call("symmetrise", k, P)
        program, places = self._step.retraction
        found = _called(calls, machine_code(program), self._step.state | {CHANGE: change})
        self._step.copy_state(calls, found)
        for _, _, part in self._step.layout.motion.groups:  # P ← J P J^T, J = 1 but for the rows of a group
            n, own = part.stop - part.start, (places[:, 0] >= part.start) & (places[:, 0] < part.stop)
            J, local = found[TURN][np.flatnonzero(own)[0] :], places[own] - part.start
            rows, columns, both = np.zeros((n, k)), np.zeros((k, n)), np.zeros((n, n))
            calls.spmm(k, n, local, J, P[part], rows)
            calls.call("transpose", n, k, rows, columns)
            calls.call("dcopy", n * k, rows, 1, P[part], 1)
            calls.call("dlacpy", "A", n, k, columns, n, P[:, part.start :], k)
            calls.spmm(n, n, local, J, columns[part], both)
            calls.call("dlacpy", "A", n, n, both, n, P[part, part.start :], k)
        return calls

    def linearize(self, readings: MeasurementData, t: float) -> None:
        """Compute the residuals of the first sample of `readings`."""
        if not self.rows:
            return
        for name, x in self.source.inputs(readings).items():
            self.given[name][:] = x[0]
        self._read()
        if not self._status[0] and np.isfinite(self.both).all():
            return
        self.set(self.source.linearize(self._step.path(t), readings))

    def set(self, lines: LinearizedResiduals) -> None:
        """Set the residuals of one time step."""
        self.r[:], self.entries[:] = lines.r[0], lines.entries[0]

    def __call__(self) -> None:
        """Update the state. Raises LinAlgError if the covariance of the innovations is not positive definite."""
        if not self.rows:
            return
        step = self._step
        before, P = {name: x.copy() for name, x in step.state.items()}, step.P.copy()
        self._solve()
        if self._wrong[0] or (self.known > MAX_REDUCTION * self.noise).any():
            for name, x in before.items():
                step.state[name][:] = x
            self._row_by_row(P)

    def _row_by_row(self, P: np.ndarray) -> None:
        """Update row by row in Joseph form, which remains accurate if P − X Xᵀ cancels."""
        step, J = self._step, np.zeros((self.rows, len(P)))
        J[tuple(self.source.places)] = self.entries
        change = np.zeros(len(P))
        for i, (row, noise) in enumerate(zip(J, self.noise, strict=True)):
            PJ = P @ row
            variance = float(row @ PJ + noise)
            if not 0.0 < variance < np.inf:
                raise np.linalg.LinAlgError(f"the innovation variance of row {i} of the readings is not positive")
            gain, innovation = PJ / variance, self.r[i] + row @ change
            change -= gain * innovation
            self._z[i] = innovation / variance**0.5
            P = P - np.outer(gain, PJ)
            P -= np.outer(P @ row - noise * gain, gain)
            P = 0.5 * (P + P.T)
        step.load(step.path(0.0).retract(change[None]), step.layout.transport(P, change))

    def outliers(self) -> list[tuple[tuple[str, int], float]]:
        """((measurement, component), innovation in standard deviations) of the down-weighted rows."""
        if not self._gate or not self.rows or self.noise.max() <= 1.0:
            return []
        far = np.flatnonzero((self.noise > 1.0) & ~self.source.exact)
        return [(self.source.names[i], float((CHI2_THRESHOLD * self.noise[i]) ** 0.5)) for i in far.tolist()]

    @property
    def chi2(self) -> float:
        """Sum of the squared normalised innovations."""
        return float(self._z @ self._z)

    @property
    def degrees_of_freedom(self) -> int:
        """Number of rows that depend on the state."""
        return int(np.count_nonzero(self.known))


# ---- programs --------------------------------------------------------------------------------------------------------


def retraction(layout: StateLayout) -> tuple[Program, np.ndarray]:
    """(program of the state after a step δ (unknowns,), with entries of the right Jacobian; their places (…, 2))."""
    graph, nv, n = Graph(SHARING), layout.model.nv, layout.n_states
    x = {name: graph.inputs(name, size) for name, size in (_sizes(layout) | {CHANGE: layout.size}).items()}
    change, entries = x[CHANGE], dict[tuple[int, int], Any]()
    for joint, _, part in layout.motion.groups:
        _, along = replayed_turns(graph, joint, [-y for y in change[part]])
        entries |= {(part.start + a, part.start + b): y for (a, b), y in np.ndenumerate(along) if not is_zero(y)}
    outputs = [
        (POSITION, integrate(layout.model, x[POSITION], change[:nv])), (RATES, list(x[RATES] + change[nv:n])),
        (BIASES, list(x[BIASES] + change[n:])), (TURN, [*entries.values()]),
    ]  # fmt: skip
    return Program.from_graph(graph, tuple(x.items()), outputs), np.array([*entries], dtype=np.int64).reshape(-1, 2)


def variances(exact: np.ndarray, gate: bool, empty_row: float) -> Program:
    """Program of the variances of rows, from residuals r and the variances `known` that the state gives them.

    1, or with `gate` so large that no innovation exceeds its limit; EXACT_SHARE² of the state's variance for exact
    rows, at least `empty_row`.
    """
    graph, found = Graph(SHARING), []
    r, known = (graph.inputs(name, len(exact)) for name in ("r", "known"))
    for e, s, holds in zip(r, known, exact.tolist(), strict=True):
        if holds:
            found.append(EXACT_SHARE**2 * s + empty_row)
        elif gate:
            beyond = e * e / ((s + 1.0) * CHI2_THRESHOLD) - 1.0
            found.append(1.0 + 0.5 * (beyond + copysign(beyond, 1.0)))
        else:
            found.append(1.0)
    return Program.from_graph(graph, (("r", r), ("known", known)), [(NOISE, found)])


def _sizes(layout: StateLayout) -> dict[str, int]:
    """Sizes of the groups of a state."""
    nv = layout.model.nv
    return {POSITION: layout.model.nq, RATES: (layout.motion.order - 1) * nv, BIASES: layout.n_biases}


def _called(
    calls: CallList, runner: Runner, given: Mapping[str, np.ndarray], outputs: dict[str, np.ndarray] | None = None,
    status: np.ndarray | None = None,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Add a run of a program with these inputs; return its outputs."""
    sizes = runner.program.outputs.sizes
    found = {name: np.zeros(size) for name, size in sizes.items()} if outputs is None else outputs
    calls.call_program(runner, given, found, status=status)
    return found
