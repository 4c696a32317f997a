"""The filter over the unknowns of a trajectory: an extended Kalman filter on the manifold of the states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import scipy  # which loads scipy.linalg where it is first used

from sysdyn.estimation.ekf_step import POSITION, RATES, FilterStep
from sysdyn.estimation.lie_jacobians import turned
from sysdyn.estimation.outliers import Event, snooped
from sysdyn.estimation.residuals import BIASES, EXACT_SHARE, DynamicsResiduals, MeasurementData, StateResiduals
from sysdyn.estimation.state_trajectory import StateLayout, StateTrajectory
from sysdyn.estimation.unwrapping import AMBIGUOUS, BEYOND, CERTAIN, NEAR, TURN, Angle, report
from sysdyn.runtime.call_list import CallList, StridedArray

# Instants at the start at which nothing is dropped, since the state is not known well.
UNTESTED = 20
# Steps of Gauss-Newton for the first state, and the size of a step below which it has converged (chosen).
FIRST_STEPS, FIRST_CONVERGED = 50, 1e-9


@dataclass
class GaussianState:
    """A state with its covariance: path of one instant, P (unknowns, unknowns)."""

    path: StateTrajectory
    P: np.ndarray


@dataclass
class Filter:
    """Filter of the rows of `sources`, density (nv,) of the motion.

    events: innovations that it did not believe. squares, freedoms: of the innovations of the last instant, normalised,
    and how many they are. Sensors of states beyond CONFIDENCE count as if they were at it; of
    dynamic variables of the coupled level the farthest are dropped. angles: those whose readings may wrap; turns
    (angles,): whole turns that were added to their last readings, NaN before the first.
    """

    layout: StateLayout
    sources: Sequence[StateResiduals | DynamicsResiduals]
    density: np.ndarray
    gate: bool = True
    events: list[Event] = field(default_factory=list)
    squares: float = 0.0
    freedoms: int = 0
    angles: Sequence[Angle] = ()
    turns: np.ndarray = field(default_factory=lambda: np.zeros(0))
    _seen: int = 0
    _held: GaussianState | None = None
    _noise: tuple[float, np.ndarray] | None = None
    _reported: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        if len(self.turns) != len(self.angles):
            self.turns = np.full(len(self.angles), np.nan)

    @cached_property
    def _calls(self) -> FilterStep:
        return FilterStep(self.layout, self.sources, self.density, self.gate)

    def _loaded(self, belief: GaussianState) -> FilterStep:
        """The calls, with a belief, of which they hold the one that they gave last."""
        if belief is not self._held:
            self._calls.load(belief.path, belief.P)
        self._held = None
        return self._calls

    def _given(self, t: float) -> GaussianState:
        """A copy of the belief that the calls hold."""
        self._held = GaussianState(self._calls.path(t), self._calls.P.copy())
        return self._held

    def predict(self, belief: GaussianState, t: float) -> GaussianState:
        """The belief at a later time."""
        self._loaded(belief).predict(t - float(belief.path.t[0]))
        return self._given(t)

    def predict_and_update(self, belief: GaussianState, readings: MeasurementData) -> GaussianState:
        """The belief at the time of readings, after these: `predicted`, then `updated`."""
        t = float(readings.t[0])
        self._loaded(belief).predict(t - float(belief.path.t[0]))
        return self._after(readings, t)

    def step(self, path: StateTrajectory, dt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(Φ, Q) (unknowns, unknowns) of the error of a path of one instant."""
        own, n = self.layout, self.layout.n_states
        F, k = np.zeros((own.size, own.size)), np.arange(n, own.size)
        F[:n, :n] = own.motion.transition(path.rates, dt)[0]
        F[k, k], walk = (x[0] for x in own.bias_transition(dt))
        if self._noise is None or self._noise[0] != dt[0]:
            Q = np.zeros((own.size, own.size))
            Q[:n, :n] = own.motion.noise(dt, self.density)[0]
            Q[k, k] = walk
            self._noise = dt[0], Q
        return F, self._noise[1]

    def update(self, belief: GaussianState, readings: MeasurementData) -> GaussianState:
        """The belief after the readings of one instant, the first of `readings`."""
        self._loaded(belief)
        return self._after(readings, float(belief.path.t[0]))

    def _after(self, readings: MeasurementData, t: float) -> GaussianState:
        """The belief after these readings, of the one that the calls hold."""
        calls, self.squares, self.freedoms = self._calls, 0.0, 0
        readings = self._unwrapped(readings, t) if self.angles else readings
        for source, update in zip(self.sources, calls.updates, strict=True):
            if self.gate and isinstance(source, DynamicsResiduals) and source.outputs:
                readings, events = snooped(source, calls.path(t), readings, calls.P[None])
                self.events += [e._replace(instant=self._seen, why="innovation") for e in events]
            update.read(readings, t)
            update()
            if self._seen >= UNTESTED:
                self.events += [
                    Event(self._seen, t, name, str(k), size, "innovation") for (name, k), size in update.beyond()
                ]
            self.squares += update.squares
            self.freedoms += update.freedoms
        self._seen += 1
        return self._given(t)

    def _unwrapped(self, readings: MeasurementData, t: float) -> MeasurementData:
        """Readings with angles shifted by whole turns, nearest to the state, or as before if the state is uncertain."""
        calls, shifted, (limited, q) = self._calls, dict[str, np.ndarray](), self._limited
        if len(limited):
            now = np.where(np.isnan(self.turns[limited]), np.nan, calls.state[POSITION][q])
            self._ends[0], self._ends[1] = np.fmin(self._ends[0], now), np.fmax(self._ends[1], now)
        for name, numbers, components, q, biases in self._by_sensor:
            away = readings.y[name][0, components] - calls.state[POSITION][q]
            if len(biases):
                away -= calls.state[BIASES][biases]
            nearest = -np.rint(away / TURN)
            other = (nearest != self.turns[numbers]) & readings.active[name][0, components]
            for k in np.flatnonzero(other).tolist():
                self._count_turns(self.angles[numbers[k]], numbers[k], float(away[k]), float(nearest[k]), t)
            if self.turns[numbers].any():
                y = shifted[name] = readings.y[name].copy()
                y[0, components] += TURN * np.nan_to_num(self.turns[numbers])
        return replace(readings, y={**readings.y, **shifted}) if shifted else readings

    def _count_turns(self, angle: Angle, number: int, away: float, nearest: float, t: float) -> None:
        """Update the turns of an angle; away: its distance from the state, nearest: the turns that minimise it."""
        first, certain = np.isnan(self.turns[number]), self._calls.P[angle.v, angle.v] <= CERTAIN**2
        before = 0.0 if first else self.turns[number]
        moved = abs(self._calls.state[RATES][angle.v] * self._calls.given["dt"][0])
        ends = self._ends[:, self._limited[0] == number]
        beyond = ends.size and not angle.allows(*ends[:, 0])
        why = "" if first else AMBIGUOUS if not certain or moved > NEAR else BEYOND if beyond else ""
        if why and (angle.joint, why) not in self._reported:
            self._reported.add((angle.joint, why))
            report(angle, f"readings at {t:.6g} s", away + TURN * before, why)
        self.turns[number] = nearest if certain else before

    @cached_property
    def _limited(self) -> tuple[np.ndarray, np.ndarray]:
        """(numbers of the angles that have limits, places in q)."""
        found = [(i, x.q) for i, x in enumerate(self.angles) if np.isfinite(x.limits).any()]
        numbers, q = np.array(found, dtype=int).reshape(-1, 2).T
        return numbers, q

    @cached_property
    def _ends(self) -> np.ndarray:
        """(2, limited angles) least and greatest angles since the first reading."""
        return np.full((2, len(self._limited[0])), np.nan)

    @cached_property
    def _by_sensor(self) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """(sensor, numbers of its angles, their components, places in q, places of their biases, if it has any)."""
        found = []
        for name in dict.fromkeys(x.name for x in self.angles):
            numbers = np.array([i for i, x in enumerate(self.angles) if x.name == name])
            components, q = (np.array([getattr(self.angles[i], x) for i in numbers]) for x in ("component", "q"))
            bias = self.layout.biases.get(name)
            found.append(
                (name, numbers, components, q, components[:0] if bias is None else components + bias.place.start)
            )
        return found

    def backwards(self, found: Sequence[GaussianState], ahead: Sequence[GaussianState]) -> list[GaussianState]:
        """Beliefs of successive instants smoothed once; ahead: the predictions of all but the first."""
        last, smoothed = found[-1], [found[-1]]
        for before, prediction in zip(found[-2::-1], ahead[::-1], strict=True):
            F, _ = self.step(before.path, prediction.path.t - before.path.t)
            factor = scipy.linalg.cho_factor(prediction.P, check_finite=False)  # whatever the units
            K = scipy.linalg.cho_solve(factor, F @ before.P, check_finite=False).T
            away = last.path.local_coordinates(prediction.path)
            step, P = K @ away, before.P + K @ (self.layout.transport(last.P, away, back=True) - prediction.P) @ K.T
            last = GaussianState(before.path.retract(step[None]), self.layout.transport(0.5 * (P + P.T), step))
            smoothed.append(last)
        return smoothed[::-1]

    def path(self, found: Sequence[GaussianState], ahead: Sequence[GaussianState]) -> StateTrajectory:
        """The path of `backwards`, to first order in its steps; that of the filter if a covariance has no factor."""
        own, whole = self.layout, _together([x.path for x in found])
        if not ahead:
            return whole
        before, after = (_together([x.path for x in part]) for part in (ahead, found[1:]))
        dt, n = np.diff(whole.t), self.layout.n_states
        F, k = np.zeros((len(dt), own.size, own.size)), np.arange(n, own.size)
        F[:, :n, :n], F[:, k, k] = own.motion.transition(whole.rates[:-1], dt), own.bias_transition(dt)[0]
        P, behind = (np.stack([x.P for x in part]) for part in (ahead, found[:-1]))
        away = np.concatenate([
            own.model.difference(before.q, after.q), (after.rates - before.rates).reshape(len(dt), -1),
            after.biases - before.biases,
        ], axis=1)  # fmt: skip
        size, step, further = own.size, np.zeros((len(found), own.size)), np.zeros((2, own.size))
        wrong, calls = np.zeros((len(dt), 2), dtype=np.intc), CallList()
        calls.call("dcopy", size, StridedArray(step, -1), 1, further[0], 1)
        for joint, _, part in own.motion.groups:
            J, m = np.linalg.inv(turned(joint, -away[:, part])[1]), joint.nv
            later = StridedArray(step, -1, part.start)
            calls.call("dgemv", "T", m, m, 1.0, StridedArray(J), m, later, 1, 0.0, further[0, part], 1)
        calls.call("daxpy", size, 1.0, StridedArray(away), 1, further[0], 1)
        # P₊ F^T P₋⁻¹ of it
        calls.call("dpotrf", "L", size, StridedArray(P), size, StridedArray(wrong))
        calls.call("dpotrs", "L", size, 1, StridedArray(P), size, further[0], size, StridedArray(wrong, offset=1))
        calls.call("dgemv", "N", size, size, 1.0, StridedArray(F), size, further[0], 1, 0.0, further[1], 1)
        calls.call("dgemv", "N", size, size, 1.0, StridedArray(behind), size, further[1], 1, 0.0, StridedArray(step), 1)
        calls.run(range(len(dt) - 1, -1, -1))
        return whole if wrong.any() else whole.retract(step)

    def solve_initial_state(self, belief: GaussianState, readings: MeasurementData) -> GaussianState:
        """The belief of the first instant, by Gauss-Newton from a prior: the readings of one instant."""
        prior, P = belief.path, belief.P
        path = prior
        for _ in range(FIRST_STEPS):
            away = path.local_coordinates(prior)
            H = np.linalg.inv(self.layout.transport(P, away))
            g = H @ away
            for source in self.sources:
                lines = source.linearize(path, readings)
                weight = np.where(lines.exact, 1.0 / EXACT_SHARE, 1.0)
                J, r = lines.J[0] * weight[:, None], lines.r[0] * weight
                H, g = H + J.T @ J, g + J.T @ r
            step = -np.linalg.solve(H, g)
            path = path.retract(step[None])
            if np.abs(step).max() < FIRST_CONVERGED:
                break
        return GaussianState(path, np.linalg.inv(H))


def _together(paths: Sequence[StateTrajectory]) -> StateTrajectory:
    """The path of instants that follow each other."""
    own = paths[0].layout
    return StateTrajectory(
        own, *(np.concatenate([getattr(x, name) for x in paths]) for name in ("t", "q", "rates", "biases"))
    )
