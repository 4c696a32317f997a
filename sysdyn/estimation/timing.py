"""Jitter: errors of the times of a log, and the noise that they add to sensors of the state.

The clock of a computer that logs readings jitters: a sample of h(q, q̇) at t + ε, ε ~ N(0, σ_t²), is logged at t,
which adds the error ḣ ε, and its variance becomes σ² + (ḣ σ_t)². The rate ḣ is the slope of the readings around a
sample. Irregular steps of a log are jitter or a schedule: the likelihood of the readings decides, and determines σ_t.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sysdyn.errors import LogWarning, warn
from sysdyn.estimation.process_model import ORDER
from sysdyn.estimation.process_noise import psd_from_encoders
from sysdyn.estimation.quantisation import quantisation_noise
from sysdyn.estimation.residuals import CHI2_THRESHOLD, MeasurementData
from sysdyn.estimation.state_trajectory import declared_std
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.noise import noise_of
from sysdyn.measurements.problem import Problem
from sysdyn.measurements.state_sensors import FrameDistance, FramePose, FramePosition, JointPosition

# Sensors from which jitter is estimated. Not those of velocities: noise that is declared too small looks like jitter.
POSITIONS = (JointPosition, FramePosition, FramePose, FrameDistance)
# Samples on either side over which a rate is fitted: a compromise of noise and curvature.
AROUND = 5
# Standard deviations of times to try, in units of the spread of the steps: factors of two.
TRIED = (0.25, 0.5, 1.0, 2.0, 4.0)
# Negligible noise by jitter, in units of the declared noise, which it changes by 0.5 %.
NEGLIGIBLE = 0.1
# Jitter, in median steps, and share of stale samples, above which they are reported: good logs have less.
REPORTED_JITTER, REPORTED_STALE = 0.02, 0.01
# Repeated readings are stale if a joint moves by more quantisation steps than this: the 3 σ rule.
STALE_STEPS = 3.0


def rates(t: np.ndarray, y: np.ndarray, on: np.ndarray) -> np.ndarray:
    """Slopes (N, m) of readings y (N, m) that are `on`, by least squares over the samples AROUND each."""
    n, (w, x, xx, z, xz) = len(t), np.zeros((5, *y.shape))
    for shift in range(-min(AROUND, n - 1), min(AROUND, n - 1) + 1):
        here, there = slice(max(-shift, 0), n - max(shift, 0)), slice(max(shift, 0), n - max(-shift, 0))
        dt, dy = (t[there] - t[here])[:, None], np.where(on[there], y[there] - y[here], 0.0)
        for total, term in ((w, 1.0), (x, dt), (xx, dt * dt), (z, dy), (xz, dt * dy)):
            total[here] += term * on[there]
    spread = w * xx - x * x
    return np.divide(w * xz - x * z, spread, out=np.zeros_like(y), where=spread > 0.0)


def stillness(problem: Problem, readings: MeasurementData) -> dict[str, np.ndarray]:
    """{encoders: (m,)} motion in a step above which repeated readings are stale."""
    return {
        m.name: STALE_STEPS * np.sqrt(12.0) * quantisation_noise(readings.y[m.name], readings.active[m.name])
        + NEGLIGIBLE * declared_std(m, problem.model)
        for m in problem.state_sensors if isinstance(m, JointPosition)
    }  # fmt: skip


def stale(readings: MeasurementData, still: Mapping[str, np.ndarray]) -> np.ndarray:
    """(N,) bool: samples that repeat the positions of all encoders although a joint moves by more than `still`."""
    t = readings.t
    same, moved = np.zeros(len(t), dtype=bool), np.zeros(len(t), dtype=bool)
    same[1:] = len(still) > 0
    for name in still:
        y, on = readings.y[name], readings.active[name]
        same[1:] &= ((y[1:] == y[:-1]) | ~(on[1:] & on[:-1])).all(axis=1)
    for name, least in still.items() if same.any() else ():
        y, on = readings.y[name], readings.active[name]
        further = np.abs(rates(t, y, on)[1:]) * np.diff(t)[:, None] > least
        moved[1:] |= (on[1:] & on[:-1] & further).any(axis=1)
    return same & moved


def without_stale(readings: MeasurementData, still: Mapping[str, np.ndarray]) -> MeasurementData:
    """The readings without those of encoders at stale samples."""
    off = stale(readings, still)[:, None]
    return readings.exclude({name: off & readings.active[name] for name in still}) if off.any() else readings


def step_spread(t: np.ndarray) -> float:
    """Root mean square of the steps of times about the nearest multiple of their median [s]."""
    steps = np.diff(t)
    step = np.median(steps)
    return float(np.sqrt(np.mean((steps - step * np.maximum(np.round(steps / step), 1.0)) ** 2)))


def with_jitter(problem: Problem, readings: MeasurementData, jitter: float) -> MeasurementData:
    """The readings with the variances that jitter (standard deviation [s]) adds."""
    if not jitter or len(readings.t) < 2:
        return readings
    further = {
        m.name: (jitter * rates(readings.t, readings.y[m.name], readings.active[m.name])) ** 2
        for m in timed_sensors(problem)
    }
    return replace(readings, further=further)


def jitter_of(problem: Problem, readings: MeasurementData) -> float:
    """Maximum-likelihood standard deviation of the errors of a log's times [s]; 0 if the times count as exact.

    From the innovations of position sensors, each a process of its own. It is above 0 only if the likelihood ratio
    to exact times is significant (FAR_SQUARED, the χ² threshold of outliers).
    """
    t = readings.t
    sensors = [m for m in timed_sensors(problem) if isinstance(m, POSITIONS) and readings.active[m.name].any()]
    if len(t) <= ORDER or not sensors:
        return 0.0
    y, on = (np.concatenate([x[m.name] for m in sensors], axis=1) for x in (readings.y, readings.active))
    std = np.concatenate([np.sqrt(noise_of(m, problem.model).declared) for m in sensors])
    scale, rate = step_spread(t), rates(t, y, on)
    counts = (TRIED[-1] * scale * np.abs(rate) > NEGLIGIBLE * std).any(axis=0)
    if not counts.any():
        return 0.0
    y, on, std, rate = y[:, counts], on[:, counts], std[counts], rate[:, counts]

    def likelihood(jitter: float) -> float:
        return float(psd_from_encoders(t, y, on, std, np.arange(len(std)), ORDER, (jitter * rate) ** 2)[1].sum())

    found = [likelihood(x * scale) for x in TRIED]
    best = int(np.argmax(found))
    if found[best] <= likelihood(0.0) + 0.5 * CHI2_THRESHOLD:
        return 0.0
    if 0 < best < len(TRIED) - 1:  # vertex of a parabola in log₂ of the jitter
        a, b, c = found[best - 1 : best + 2]
        return float(TRIED[best] * scale * 2.0 ** (0.5 * (a - c) / (a - 2.0 * b + c)))
    return float(TRIED[best] * scale)


def warn_of_jitter(jitter: float, t: np.ndarray) -> None:
    """Warn of times t that are wrong by this standard deviation [s], more than REPORTED_JITTER of their median step."""
    step = float(np.median(np.diff(t)))
    if jitter > REPORTED_JITTER * step:
        warn(
            f"the times of the log jitter: their errors have a standard deviation of {jitter:.2g} s, "
            f"{jitter / step:.0%} of a step of {step:.3g} s. The noise of sensors of the state becomes "
            "√(σ² + (ḣ σ_t)²), with this σ_t and the rate ḣ of the reading. Log the clock of the sensors, if they have "
            "one",
            LogWarning,
        )  # fmt: skip


def warn_of_stale(readings: MeasurementData, still: Mapping[str, np.ndarray]) -> None:
    """Warn of samples that repeat the positions of the one before, if they are more than REPORTED_STALE of all."""
    count = int(stale(readings, still).sum())
    if count > REPORTED_STALE * len(readings.t):
        warn(
            f"{count} of {len(readings.t)} samples, {count / len(readings.t):.1%}, repeat all positions of the sample "
            "before although the robot moves: their encoder readings are ignored. Log at the rate of the robot",
            LogWarning,
        )  # fmt: skip


def timed_sensors(problem: Problem) -> list[Measurement]:
    """Sensors of the state that have readings and noise without correlations."""
    return [m for m in problem.state_sensors if not m.has_default and not noise_of(m, problem.model).full]
