"""Extended Kalman filter on the manifold of the states, and its fixed-interval smoother."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sysdyn.estimation.ekf_step import FilterStep
from sysdyn.estimation.outliers import Event, snooped
from sysdyn.estimation.process_model import BIASES, POSITION, RATES
from sysdyn.estimation.residuals import EXACT_SHARE, DynamicsResiduals, MeasurementData, StateResiduals
from sysdyn.estimation.state_trajectory import StateLayout, StateTrajectory
from sysdyn.estimation.unwrapping import AMBIGUOUS, BEYOND, CERTAIN, NEAR, TURN, Angle, report

# First time steps without outlier events, because the prior is wide.
UNTESTED = 20
# Iterations of Gauss-Newton for the initial state, and its tolerance: half the digits.
MAX_ITERATIONS, TOLERANCE = 50, 1e-9


@dataclass
class GaussianState:
    """A state and the covariance of its error: path of one time step, P (unknowns, unknowns)."""

    path: StateTrajectory
    P: np.ndarray


@dataclass
class Filter:
    """Filter of the residuals `sources`; density (nv,): of the process noise.

    gate: innovations of state sensors beyond their limit of CONFIDENCE are down-weighted to that limit, and outliers of
    dynamic variables are rejected. events: these outliers. chi2, degrees_of_freedom: of the innovations of the last
    time step. angles: measured angles that may wrap; turns (angles,): whole turns that were added to their last
    readings, NaN before the first.
    """

    layout: StateLayout
    sources: Sequence[StateResiduals | DynamicsResiduals]
    density: np.ndarray
    gate: bool = True
    events: list[Event] = field(default_factory=list)
    chi2: float = 0.0
    degrees_of_freedom: int = 0
    angles: Sequence[Angle] = ()
    turns: np.ndarray = field(default_factory=lambda: np.zeros(0))
    _count: int = 0
    _current: GaussianState | None = None
    _reported: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        if len(self.turns) != len(self.angles):
            self.turns = np.full(len(self.angles), np.nan)

    @cached_property
    def _calls(self) -> FilterStep:
        return FilterStep(self.layout, self.sources, self.density, self.gate)

    def _load(self, belief: GaussianState) -> FilterStep:
        """The compiled step, loaded with a state unless it has that state from its last result."""
        if belief is not self._current:
            self._calls.load(belief.path, belief.P)
        self._current = None
        return self._calls

    def _state(self, t: float) -> GaussianState:
        """A copy of the state of the compiled step."""
        self._current = GaussianState(self._calls.path(t), self._calls.P.copy())
        return self._current

    def predict(self, belief: GaussianState, t: float) -> GaussianState:
        """The state predicted to a later time t [s]."""
        self._load(belief).predict(t - float(belief.path.t[0]))
        return self._state(t)

    def predict_and_update(self, belief: GaussianState, readings: MeasurementData) -> GaussianState:
        """`predict` to the time of the readings, then `update` by them."""
        t = float(readings.t[0])
        self._load(belief).predict(t - float(belief.path.t[0]))
        return self._after(readings, t)

    def update(self, belief: GaussianState, readings: MeasurementData) -> GaussianState:
        """The state after the first sample of `readings`, which is at its time."""
        self._load(belief)
        return self._after(readings, float(belief.path.t[0]))

    def _after(self, readings: MeasurementData, t: float) -> GaussianState:
        """The state of the compiled step, updated by the first sample of `readings`."""
        calls, self.chi2, self.degrees_of_freedom = self._calls, 0.0, 0
        readings = self._unwrapped(readings, t) if self.angles else readings
        for source, update in zip(self.sources, calls.updates, strict=True):
            if self.gate and isinstance(source, DynamicsResiduals) and source.outputs:
                readings, events = snooped(source, calls.path(t), readings, calls.P[None])
                self.events += [e._replace(instant=self._count, why="innovation") for e in events]
            update.linearize(readings, t)
            update()
            if self._count >= UNTESTED:
                self.events += [
                    Event(self._count, t, name, str(k), size, "innovation") for (name, k), size in update.outliers()
                ]
            self.chi2 += update.chi2
            self.degrees_of_freedom += update.degrees_of_freedom
        self._count += 1
        return self._state(t)

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

    def smooth(
        self, filtered: Sequence[GaussianState], predicted: Sequence[GaussianState], covariances: bool = True
    ) -> tuple[StateTrajectory, np.ndarray]:
        """(smoothed trajectory, its covariances (N, unknowns, unknowns) if requested) of successive time steps.

        predicted: the predictions of all but the first. To first order in the steps from filtered to smoothed states.
        Rauch, Tung and Striebel (1965), "Maximum likelihood estimates of linear dynamic systems".
        """
        own, path, P = self.layout, _concatenate([x.path for x in filtered]), np.array([x.P for x in filtered])
        if not predicted:
            return path, P
        before, n, size, nv = _concatenate([x.path for x in predicted]), len(predicted), own.size, own.model.nv
        Phi = np.zeros((n, size, size))
        Phi[:, *own.transition.Phi.T] = own.transitions(path.part(slice(0, n)), before, self.density)[0]
        P_before = np.array([x.P for x in predicted])
        scale = np.sqrt(np.einsum("nii->ni", P_before))[:, :, None]  # whatever the units
        K = np.linalg.solve(P_before / (scale * scale.swapaxes(1, 2)), Phi @ P[:-1] / scale) / scale
        away, step = path.part(slice(1, None)).local_coordinates(before), np.zeros((n + 1, size))
        to_prediction = np.tile(np.eye(size), (n, 1, 1))
        to_prediction[:, :nv, :nv] = np.linalg.inv(own.motion.right_jacobian(away[:, :nv]))
        for t in reversed(range(n)):
            step[t] = (away[t] + to_prediction[t] @ step[t + 1]) @ K[t]
            if covariances:
                change = to_prediction[t] @ P[t + 1] @ to_prediction[t].T - P_before[t]
                P[t] += K[t].T @ change @ K[t]
        if covariances:
            P = np.array([own.transport(x, y) for x, y in zip(0.5 * (P + P.swapaxes(1, 2)), step, strict=True)])
        return path.retract(step), P

    def solve_initial_state(self, belief: GaussianState, readings: MeasurementData) -> GaussianState:
        """The maximum a posteriori state of one sample, by Gauss-Newton from its prior `belief`."""
        prior, P = belief.path, belief.P
        path = prior
        for _ in range(MAX_ITERATIONS):
            away = path.local_coordinates(prior)[0]
            H = np.linalg.inv(self.layout.transport(P, away))
            g = H @ away
            for source in self.sources:
                lines = source.linearize(path, readings)
                weight = np.where(lines.exact, 1.0 / EXACT_SHARE, 1.0)
                J, r = lines.J[0] * weight[:, None], lines.r[0] * weight
                H, g = H + J.T @ J, g + J.T @ r
            step = -np.linalg.solve(H, g)
            path = path.retract(step[None])
            if np.abs(step).max() < TOLERANCE:
                break
        return GaussianState(path, np.linalg.inv(H))


def _concatenate(paths: Sequence[StateTrajectory]) -> StateTrajectory:
    """One trajectory of successive ones."""
    own = paths[0].layout
    return StateTrajectory(
        own, *(np.concatenate([getattr(x, name) for x in paths]) for name in ("t", "q", "rates", "biases"))
    )
