"""Checks of a smoothed run: warnings of noise that is declared too small, dropped readings, biases, impacts and χ²."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sysdyn.errors import LogWarning, few, warn
from sysdyn.estimation.process_noise import SEGMENT_ROWS, psd_from_encoders
from sysdyn.estimation.residuals import CHI2_THRESHOLD, MeasurementData
from sysdyn.estimation.state_trajectory import declared_std, prior_bias_std
from sysdyn.estimation.summary import BAND, RunStatistics
from sysdyn.estimation.timing import timed_sensors
from sysdyn.measurements.problem import Problem
from sysdyn.measurements.state_sensors import JointPosition

# Share of dropped readings above which a sensor is reported, and above which the noise of a component is raised. Up to
# FEW dropped readings of a component do not count, for short logs (chosen: 0.1 % of inliers are dropped).
REPORTED, RAISED, FEW = 0.01, 0.1, 3
# Least factor by which noise is raised (chosen).
LEAST_RAISED = 1.1
# χ² over its degrees of freedom, and its probability, above which it is reported (measured: 400 logs that match their
# problem have at most 1.05 from 500 degrees of freedom on, and none reaches the probability). Small values are not
# reported: standard deviations are then too wide, which is conservative.
GREATEST_FIT, PROBABILITY = 1.1, 1.0 - 1e-6
# Bias, in prior standard deviations, above which it is reported (chosen: one true bias in two million is larger).
FAR_BIAS = 5.0
# Factors of the declared noise of encoders that are compared by their likelihood (chosen).
NOISE_FACTORS = (1.0, 3.0, 10.0, 30.0, 100.0)


def dropped_shares(problem: Problem, run: RunStatistics) -> dict[str, np.ndarray]:
    """{measurement: share (m,) of the readings of each component that was dropped}; stances have no readings."""
    shares = {}
    for m in (*problem.state_sensors, *problem.custom):
        if m.noise is None or m.has_default or m.name in problem.swing_measurements:
            continue
        labels = m.components(problem.model)
        dropped = np.array([run.rejected[m.name, x] for x in labels])
        read = max(run.rows - run.missing[m.name] / len(labels), 1.0)
        shares[m.name] = np.where(dropped > FEW, dropped, 0) / read
    return shares


def raised_noise(
    problem: Problem, shares: Mapping[str, np.ndarray], scales: Sequence[Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """{sensor of the state: standard deviations (m,) of its residuals}, if more than RAISED of a component was dropped.

    scales: for each window, robust standard deviations of all residuals, in units of the declared noise.
    """
    found = {}
    for m in timed_sensors(problem):
        scale = np.median([x[m.name] for x in scales], axis=0)
        factor = np.where(shares[m.name] > RAISED, np.maximum(scale, 1.0), 1.0)
        if (factor > LEAST_RAISED).any():
            found[m.name] = factor * declared_std(m, problem.model)
    return found


def warn_of_raised(problem: Problem, shares: Mapping[str, np.ndarray], noise: Mapping[str, np.ndarray]) -> None:
    """Warn of sensors whose noise was raised to these standard deviations (m,)."""
    for m in timed_sensors(problem):
        if m.name in noise:
            before, labels = declared_std(m, problem.model), m.components(problem.model)
            changed = [
                f"{label} {a:.2g} → {b:.2g} ({share:.0%})"
                for label, a, b, share in zip(labels, before, noise[m.name], shares[m.name], strict=True) if a != b
            ]  # fmt: skip
            warn(
                f"more than {RAISED:.0%} of the readings of {m.name!r} were dropped: the log was smoothed once more "
                f"with the noise that their residuals show: {few(changed)}. Declare that noise, or find the fault of "
                "these readings",
                LogWarning,
            )  # fmt: skip


def warn_of_noise(problem: Problem, readings: MeasurementData, order: int, shares: Mapping[str, np.ndarray]) -> None:
    """Warn of encoders whose readings are likelier with a multiple of their declared noise.

    White noise that is declared too small passes for motion if the density of the motion is learnt: χ² looks right, and
    accelerations are wrong. The likelihoods are those of innovations (`psd_from_encoders`) of at most SEGMENT_ROWS
    samples. order: of the motion. shares: of dropped readings; components that lost many are reported by `warn_of_run`.
    """
    part = readings.part(slice(SEGMENT_ROWS))
    for m in timed_sensors(problem):
        on = part.active[m.name]
        if not isinstance(m, JointPosition) or not on.any():
            continue
        std, further = declared_std(m, problem.model), part.further.get(m.name, 0.0)
        each = np.arange(len(std))
        likelihoods = np.stack([
            psd_from_encoders(part.t, part.y[m.name], on, std, each, order, further + (factor**2 - 1.0) * std**2)[1]
            for factor in NOISE_FACTORS
        ])  # fmt: skip
        clear = (likelihoods.max(axis=0) > likelihoods[0] + 0.5 * CHI2_THRESHOLD) & (shares[m.name] <= REPORTED)
        labels, best = m.components(problem.model), likelihoods.argmax(axis=0)
        many = [f"{labels[k]} {NOISE_FACTORS[best[k]]:.0f} times" for k in np.flatnonzero(clear)]
        if many:
            warn(
                f"the readings of {m.name!r} look noisier than declared, by their likelihood: about {few(many)}. Their "
                "noise passes for motion, so that velocities, accelerations and torques may be wrong. Raise noise=, or "
                "learn it with sysdyn.learn_noise",
                LogWarning,
            )  # fmt: skip


def warn_of_biases(problem: Problem, biases: Mapping[str, np.ndarray]) -> None:
    """Warn of biases (m,) at the start that are far beyond their prior standard deviations."""
    for m in problem.biased:
        labels, prior = m.components(problem.model), prior_bias_std(m, problem.model)
        far = [
            f"{label} {x:.3g} {unit} (± {std:.2g} declared)"
            for label, x, std, unit in zip(labels, biases[m.name], prior, m.component_units(problem.model), strict=True)
            if abs(x) > FAR_BIAS * std
        ]  # fmt: skip
        if far:
            warn(
                f"the bias of {m.name!r} is more than {FAR_BIAS:g} times its prior standard deviation: {few(far)}. "
                "Another statement is wrong, such as a stance, a pose of a sensor or an exact measurement, or the bias "
                "is larger than declared",
                LogWarning,
            )  # fmt: skip


def warn_of_run(problem: Problem, shares: Mapping[str, np.ndarray], run: RunStatistics, has_contacts: bool) -> None:
    """Warn of dropped readings, of impacts although no contact is declared, and of χ² above its band."""
    for m in (*problem.state_sensors, *problem.custom):
        if m.name in shares and shares[m.name].mean() > REPORTED:
            labels = m.components(problem.model)
            many = [f"{x} {s:.1%}" for x, s in zip(labels, shares[m.name], strict=True) if s > REPORTED]
            warn(
                f"more than {REPORTED:.0%} of the readings of {m.name!r} were dropped ({few(many)}): its noise is "
                "declared too small, the sensor is not the declared one, or it fails. run.events lists them; raise "
                "noise=, or learn it with sysdyn.learn_noise",
                LogWarning,
            )  # fmt: skip
    if run.impacts and not has_contacts:
        warn(
            f"{run.impacts} impacts were found, but the problem declares no stance and no contact: they are "
            "collisions, or the noise is declared too small. Declare a stance or a contact, or omit impacts=True",
            LogWarning,
        )  # fmt: skip
    for of, (_, fit) in zip(("", " of the forces"), run.fit.parts(), strict=False):
        ratio, high = fit.chi2 / max(fit.dof, 1), fit.band()[1]
        if ratio <= GREATEST_FIT or fit.chi2 <= fit.band(PROBABILITY)[1]:
            continue
        warn(
            f"χ²{of} is {fit.chi2:.5g}, {ratio:.3g} times its {fit.dof} degrees of freedom ({BAND:.0%} of "
            f"logs that match their problem have less than {high:.5g}): standard deviations are too narrow. Raise "
            "noise=, learn it with sysdyn.learn_noise, or state what the problem lacks, such as biases, drifts or "
            "contacts",
            LogWarning,
        )  # fmt: skip
