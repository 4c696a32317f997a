"""Expectation maximisation over a smoothed log: noise of sensors of motion, drifts of biases, densities of motion.

Each variance is the mean of expected squares: of measurement errors, of steps of biases, and of the process noise of
each degree of freedom (Dempster, Laird and Rubin 1977; Shumway and Stoffer 1982). The step of each logarithm is
multiplied by a secant factor if the likelihood grows (Jamshidian and Jennrich 1997, quasi-Newton acceleration).

    log p(y) = −½ (χ² + log det S + m log 2π), S the covariance of all measurements
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sysdyn.estimation import process_noise
from sysdyn.estimation.contact_detection import proposed
from sysdyn.estimation.estimation_problem import EstimationProblem, encoders_of
from sysdyn.estimation.gauss_newton import Smoother
from sysdyn.estimation.kalman_smoother import SmootherResult
from sysdyn.estimation.linearization import Linearised
from sysdyn.estimation.quantisation import unchanged
from sysdyn.estimation.residual_statistics import expected_squares
from sysdyn.estimation.residuals import MeasurementData, StateResiduals, memory_slices
from sysdyn.estimation.state_trajectory import StateTrajectory
from sysdyn.identification.noise import MAX_RELATIVE_ERROR
from sysdyn.measurements.bias_models import Constant, GaussMarkov, RandomWalk
from sysdyn.measurements.measurement import Measurement, changed
from sysdyn.measurements.noise import noise_of
from sysdyn.measurements.problem import Problem
from sysdyn.offline.stages import Stages

# Factor of a step without a secant, and greatest factor (chosen).
STRETCH_FACTOR, MAX_STRETCH = 2.0, 50.0
# Greatest change of the logarithm of a standard deviation in a step (chosen).
MAX_LOG_STEP = 2.0

Deviations = dict[str, np.ndarray]  # {"noise:NAME", "drift:NAME" or "motion": (m,)}.


class Point(NamedTuple):
    """Logarithms x (p,) of standard deviations, their log-likelihood, and x after a step of expectation maximisation.

    information (p,): number of values that determine each of them, less those that the estimate took. path: smoothed.
    """

    x: np.ndarray
    likelihood: float
    after: np.ndarray
    information: np.ndarray
    path: StateTrajectory


class Learning:
    """Expectation maximisation on one log."""

    def __init__(
        self,
        estimation: EstimationProblem,
        kappa: np.ndarray,
        readings: MeasurementData,
        first: np.ndarray | None,
        robust: bool,
        names: Sequence[str],
        stated: np.ndarray | bool,
        floor: Deviations | None = None,
    ):
        own, model = estimation.layout, estimation.model
        self.estimation, self.kappa, self._first, self._robust = estimation, kappa, first, robust
        self.belief, _ = estimation.initial_state(readings, first, kappa)
        self._whole = proposed(estimation, self.belief, kappa, estimation.timed(readings))
        self._test(estimation.initial_trajectory(self.belief, self._whole, kappa), self._whole, kappa)
        measured = sensors_of_motion(estimation)
        self.sensors = [x for x in names if not noise_of(measured[x], model).full and self.readings.active[x].any()]
        self.drifts = [x for x, b in own.biases.items() if x in names and not isinstance(b.measurement.drift, Constant)]
        stated = np.array(np.broadcast_to(stated, model.nv))
        # readings that never change determine neither noise nor motion
        self.still = {x: unchanged(readings.y[x], self.readings.active[x]) for x in self.sensors}
        for m, places in encoders_of(estimation.problem):
            still = unchanged(readings.y[m.name], self.readings.active[m.name])
            stated[[v for k, (_, v) in enumerate(places) if still[k]]] = True
        self.groups = [g for g in process_noise.groups(estimation.motion) if not stated[g].any()]
        least = {x: np.square((floor or {}).get(x, 0.0)) for x in self.sensors}
        self.noise = {x: np.maximum(noise_of(measured[x], model).declared, least[x]) for x in self.sensors}
        self.floor = {x: np.where(self.still[x], self.noise[x], least[x]) for x in self.sensors}
        self._others = [noise_of(measured[x], model) for x in sorted(set(measured) - set(self.sensors))]

    def _test(self, path: StateTrajectory, readings: MeasurementData, kappa: np.ndarray) -> None:
        """Smooth from a path, and set the inliers."""
        own = self.estimation
        equations = Linearised(own.layout, own.kinematic, kappa, self.belief, own.gauge_directions)
        smoother = Smoother(equations, self._robust, None if own.impacts else [])
        found, self.readings = smoother.run(path, readings)
        self.path, self.sizes = found.path, smoother.equations.sizes

    def update_inliers(self, now: Point) -> bool:
        """Reject outliers anew with the learnt noise; True if the inliers changed."""
        if not self._robust:
            return False
        values, before = self.split(now.x), self.readings.active
        readings = replace(self._whole, variances=self._declared(values))
        self._test(now.path, readings, self.motion(values["motion"]))
        return any(not np.array_equal(x, before[name]) for name, x in self.readings.active.items())

    def _rest(self) -> float:
        """Log-determinant of the noise that is not learnt."""
        total = 0.0
        for noise in self._others:
            on = self.readings.active[noise.name]
            one = np.linalg.slogdet(noise.matrix(noise.declared))[1] if noise.full else np.log(noise.declared)
            total += float(np.sum(on.all(axis=1) * one if noise.full else on * one))
        return total

    def _declared(self, values: Deviations) -> Deviations:
        """Variances of the sensors; sets the drifts of the layout."""
        for s in self.drifts:
            self.estimation.layout.set_bias_psd(s, np.exp(values[f"drift:{s}"]))
        return {s: np.exp(2.0 * values[f"noise:{s}"]) for s in self.sensors}

    # ---- logarithms ----------------------------------------------------------------------------------------------

    def initial(self) -> np.ndarray:
        """Logarithms (p,) of the declared standard deviations, and of the densities by the encoders' likelihood."""
        parts = [0.5 * np.log(self.noise[x]) for x in self.sensors]
        parts += [np.log(self.estimation.layout.biases[x].density) for x in self.drifts]
        return np.concatenate([*parts, np.log([self.kappa[g[0]] for g in self.groups])])

    def limited(self, x: np.ndarray) -> np.ndarray:
        """Logarithms (p,), clipped: noise is at least its floor, and as declared if the readings never change."""
        least, most = np.full(len(x), -np.inf), np.full(len(x), np.inf)
        at = 0
        for s in self.sensors:
            part = slice(at, at := at + len(self.noise[s]))
            with np.errstate(divide="ignore"):
                least[part] = 0.5 * np.log(self.floor[s])
            most[part] = np.where(self.still[s], least[part], np.inf)
        return np.clip(x, least, most)

    def split(self, x: np.ndarray) -> Deviations:
        """{name: values} of a vector (p,) in the order of `initial`."""
        found, at = Deviations(), 0
        biases = self.estimation.layout.biases
        sizes = {**{f"noise:{s}": len(self.noise[s]) for s in self.sensors},
                 **{f"drift:{s}": len(biases[s].density) for s in self.drifts}, "motion": len(self.groups)}  # fmt: skip
        for name, size in sizes.items():
            found[name], at = x[at : at + size], at + size
        return found

    def motion(self, x: np.ndarray) -> np.ndarray:
        """Densities κ (nv,) of the logarithms (groups,)."""
        kappa = self.kappa.copy()
        for g, value in zip(self.groups, x, strict=True):
            kappa[g] = np.exp(value)
        return kappa

    # ---- expectation and maximisation ----------------------------------------------------------------------------

    def at(self, x: np.ndarray, path: StateTrajectory) -> Point:
        """Likelihood at logarithms x (p,), linearised about a path, and the step from there."""
        own, values = self.estimation.layout, self.split(x)
        variances = self._declared(values)
        readings, kappa = replace(self.readings, variances=variances), self.motion(values["motion"])
        equations = Linearised(
            own, self.estimation.kinematic, kappa, self.belief, self.estimation.gauge_directions, self.sizes
        )  # fmt: skip
        least = equations.about(path, readings)
        solved = equations.sweep(least, covariances=True)
        path = equations.moved(least, solved.step, readings)
        objective = equations.about(path, readings).objective
        scale = sum(
            float((readings.active[s] * np.log(v + readings.further.get(s, 0.0))).sum()) for s, v in variances.items()
        )
        count = equations.count(readings)
        likelihood = -0.5 * (objective + solved.logdet + scale + self._rest() + count * math.log(2.0 * math.pi))
        new, information = [], []
        parts = [*self._of_sensors(path, readings, solved), *self._of_drifts(path, solved)]
        for ratio, number in (*parts, self._of_motion(path, kappa, solved)):
            new.append(0.5 * np.log(np.maximum(ratio, np.finfo(float).tiny)))
            information.append(number)
        after = self.limited(x + np.concatenate([np.zeros(0), *new]))
        return Point(x, likelihood, after, np.concatenate([np.zeros(0), *information]), path)

    def _of_sensors(
        self, path: StateTrajectory, readings: MeasurementData, solved: SmootherResult
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """(expected squares over their variance (m,), effective number of readings (m,)) of each sensor.

        If a variance is v + w with a known w, only the share v / (v + w) of the residual is noise of the sensor.
        """
        total = {s: np.zeros((3, len(self.noise[s]))) for s in self.sensors}
        for source in self.estimation.kinematic:
            for part in memory_slices(len(path), source):
                some = readings.part(part)
                found = expected_squares(source, path.part(part), some, solved.covariances.part(part).dense())
                for s in [s for s in self.sensors if s in found]:
                    on, (squares, left), v = some.active[s], found[s], readings.variances[s]
                    share = v / (v + some.further.get(s, 0.0))
                    expected, own = 1.0 + share * (squares + left - 1.0), share * np.clip(1.0 - left, 0.0, 1.0)
                    total[s] += [(x * on).sum(axis=0) for x in (expected, own**2, on)]
        return [
            (np.where(n > 0, E / np.maximum(n, 1), 1.0), np.where(self.still[s], 0.0, information))
            for s, (E, information, n) in total.items()
        ]

    def _of_drifts(self, path: StateTrajectory, solved: SmootherResult) -> list[tuple[np.ndarray, np.ndarray]]:
        own, found = self.estimation.layout, []
        left, walk = own.bias_transition(np.diff(path.t))
        for s in self.drifts:
            ratios = []
            for k in range(own.biases[s].place.start, own.biases[s].place.stop):
                column = np.array(own.n_states + k)
                explained = walk[:, k] * solved.covariances.adjoint(column, column)
                step = (path.biases[1:, k] - left[:, k] * path.biases[:-1, k]) ** 2 / walk[:, k]
                ratios.append((np.mean(step + 1.0 - explained), np.sum(np.clip(explained, 0.0, 1.0) ** 2)))
            found.append((np.array([x for x, _ in ratios]), np.array([x for _, x in ratios])))
        return found

    def _of_motion(
        self, path: StateTrajectory, kappa: np.ndarray, solved: SmootherResult
    ) -> tuple[np.ndarray, np.ndarray]:
        learnt = np.zeros(len(kappa), dtype=bool)
        for g in self.groups:
            learnt[g] = True
        ratio = (process_noise.em_update(path, solved.covariances, kappa, learnt) / kappa) ** 2
        own = process_noise.total_process_chi2(path, kappa)
        first = [g[0] for g in self.groups]
        count = np.array([(len(path) - 1) * self.estimation.motion.order * len(g) for g in self.groups])
        shares = np.array([own[g].sum() for g in self.groups]) / count  # of the data, the rest is uncertainty
        return ratio[first], count * np.clip(shares / ratio[first], 0.0, 1.0) ** 2

    def run(
        self, iterations: int, tolerance: float, stages: Stages | None = None, change: float = np.inf,
        begin: np.ndarray | None = None,
    ) -> tuple[Point, np.ndarray, bool]:  # fmt: skip
        """(last point, log-likelihoods, True if converged), from logarithms `begin`, or those declared.

        Converged: an iteration changes the log-likelihood by less than tolerance times the number of time steps, and
        each determined logarithm by less than `change` of its statistical error.
        """
        now = self.at(self.initial() if begin is None else begin, self.path)
        history, converged, factor = [now.likelihood], not len(now.x), np.ones(len(now.x))
        for k in range(iterations if len(now.x) else 0):
            if stages is not None:
                stages.report(f"learning, iteration {k + 1}", 0.1 + 0.9 * k / iterations)
            step = now.after - now.x
            moved = np.clip(factor * step, -MAX_LOG_STEP, MAX_LOG_STEP)
            moved = self.limited(now.x + moved) - now.x
            found = self.at(now.x + moved, now.path)
            if found.likelihood < now.likelihood and (factor > 1.0).any():
                moved = np.clip(step, -MAX_LOG_STEP, MAX_LOG_STEP)
                found = self.at(now.x + moved, now.path)
            shorter = step - (found.after - found.x)  # by as much as it moved
            with np.errstate(divide="ignore", invalid="ignore"):
                secant = np.where(moved * shorter > 0.0, moved / shorter, STRETCH_FACTOR * factor)
            factor = np.clip(secant, 1.0, MAX_STRETCH)
            gain, error = found.likelihood - now.likelihood, relative_errors(found.information)
            limit = np.where(error <= MAX_RELATIVE_ERROR, change * error, np.inf)
            now = found
            history.append(now.likelihood)
            converged = bool(gain <= tolerance * len(now.path) and (np.abs(now.after - now.x) <= limit).all())
            if converged:
                break
        return now, np.array(history), converged


def relative_errors(information: np.ndarray) -> np.ndarray:
    """Relative statistical errors of standard deviations, each determined by this many values."""
    with np.errstate(divide="ignore"):
        return np.where(information > 0.5, 1.0 / np.sqrt(2.0 * information), np.inf)


def sensors_of_motion(estimation: EstimationProblem) -> dict[str, Measurement]:
    """{name: sensor} of the sensors from which the motion is estimated: state sensors and accelerometers."""
    found: dict[str, Measurement] = {}
    for source in estimation.kinematic:
        sensors = source.sensors if isinstance(source, StateResiduals) else source.problem.noisy
        found |= {m.name: m for m in sensors}
    return found


def with_noise(
    problem: Problem, noise: Mapping[str, np.ndarray], drift: Mapping[str, np.ndarray] | None = None
) -> Problem:
    """The problem with these standard deviations (m,) and drifts (m,) of its measurements."""
    own = [_with_noise(m, noise.get(m.name), (drift or {}).get(m.name)) for m in problem.measurements]
    return Problem(problem.model, own, [p.name for p in problem.parameters])


def _with_noise(m: Measurement, noise: np.ndarray | None, drift: np.ndarray | None) -> Measurement:
    """The measurement with this noise and drift."""
    if noise is None and drift is None:
        return m
    own = m.drift
    if drift is not None:
        start = m.drift.std if isinstance(m.drift, RandomWalk) else None
        own = GaussMarkov(drift, m.drift.time) if isinstance(m.drift, GaussMarkov) else RandomWalk(drift, start)
    return changed(m, noise=m.noise if noise is None else noise, drift=own)
