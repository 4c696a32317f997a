"""Densities of the process noise: by the likelihood of encoders, and by expectation maximisation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.estimation.covariances import Covariances
from sysdyn.estimation.process_model import ProcessModel, covariance, information, transition
from sysdyn.estimation.residuals import CHI2_THRESHOLD
from sysdyn.estimation.state_trajectory import StateTrajectory
from sysdyn.model import Model
from sysdyn.program.arrays import float_array

# Grid of the densities of a joint, in units of its encoder's noise by Δ^(p − ½): decades, and number of densities.
# Below it, motion is lost in noise; above it, every reading is an inlier (half a decade apart, refined by a parabola).
LEAST_DENSITY, GREATEST_DENSITY, DENSITIES = -8.0, 3.0, 45
# Number of segments of a log by which encoders determine densities, and rows of each (chosen).
SEGMENTS, SEGMENT_ROWS = 4, 1000
# Burn-in: first readings of an encoder in a segment, which the likelihood omits until the filter has forgotten its
# initial state. At most BURN_IN, at most a share of the readings, and at least the highest order (chosen).
BURN_IN, BURN_IN_SHARE, LEAST_BURN_IN = 20, 0.25, 4
# Densities whose log-likelihood is this much below the maximum are rejected: one standard deviation.
REJECTED = 0.5
# Longest time step that counts, in median steps; a longer one is a gap (chosen).
LONGEST_STEP = 20.0
# Standard deviation of a normal distribution over the median of its absolute values.
MAD_TO_STD = 1.4826
# Share of the variance of the slope by a jump, if the motion were known, below which a jump is unobservable: rounding
# of covariances (chosen).
MIN_JUMP_INFORMATION = 1e-6
# Variances of the first state, in units of the encoder's (chosen: beyond the range of motions).
WIDE = 1e8


def sample_segments(n: int) -> np.ndarray:
    """Rows of a log of n rows by which encoders determine densities: all, or those of SEGMENTS segments."""
    if n <= SEGMENTS * SEGMENT_ROWS:
        return np.arange(n)
    starts = np.linspace(0, n - SEGMENT_ROWS, SEGMENTS).astype(int)
    return (starts[:, None] + np.arange(SEGMENT_ROWS)).reshape(-1)


def psd_from_encoders(
    t: np.ndarray, z: np.ndarray, on: np.ndarray, std: np.ndarray, joint: np.ndarray, order: int,
    further: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Maximum-likelihood densities κ (m,) of m joints, and log-likelihoods (m,), by the innovations of encoders.

    t (N,) [s], z (N, k) readings, on (N, k) bool, std (k,), joint (k,): index of each encoder's joint, order: of the
    process, further (N, k): variances of the readings in addition to std². Log-likelihoods of the encoders of a joint
    are added. If the least density tried is accepted, as for a joint at rest, κ is the greatest accepted density; it is
    NaN if the greatest density tried is accepted. Filters of all encoders, densities and segments run in parallel.
    """
    (n, k), m = z.shape, int(joint.max()) + 1
    length = min(n, SEGMENT_ROWS)
    starts = np.unique(np.linspace(0, n - length, SEGMENTS).astype(int))
    at = starts[:, None] + np.arange(length)
    dt = np.minimum(np.diff(t[at], axis=1), LONGEST_STEP * np.median(np.diff(t)))  # (segments, length − 1)
    unit = np.full(m, np.inf)
    np.minimum.at(unit, joint, std / np.median(np.diff(t)) ** (order - 0.5))
    grid = 10.0 ** np.linspace(LEAST_DENSITY, GREATEST_DENSITY, DENSITIES)
    found = np.zeros((DENSITIES, k))
    phi, Q = transition(dt, order), covariance(dt, order)
    y, seen = z[at] / std, on[at]  # (segments, length, k), in units of the noise
    noise = np.broadcast_to(1.0 + further / std**2, z.shape)[at]
    number = seen.cumsum(axis=1)
    burn_in = np.clip(BURN_IN_SHARE * number[:, -1], LEAST_BURN_IN, BURN_IN)
    counted = seen & (number > burn_in[:, None])
    shape = (len(starts), DENSITIES, k)
    x, P = np.zeros((order, *shape)), np.zeros((order, order, *shape))
    x[0] = np.take_along_axis(y, seen.argmax(axis=1)[:, None], axis=1)
    for i, scale in enumerate(np.median(dt) ** -np.arange(order)):
        P[i, i] = WIDE * scale * scale
    spread = (grid[:, None] * unit[joint] / std) ** 2
    # entries first, which are few: stacks of small matrices take ten times as long
    phi, Q = (np.moveaxis(a, (0, 1), (-2, -1))[..., None, None] for a in (phi, Q))
    for i in range(length):
        if i:
            F = phi[0, :, :, i - 1]
            x, A = _ahead(x, F, order), _ahead(P, F, order)
            P = _ahead(A.swapaxes(0, 1), F, order)
            P = 0.5 * (P + P.swapaxes(0, 1)) + Q[:, :, :, i - 1] * spread
        S = P[0, 0] + noise[:, i][:, None]
        e = y[:, i][:, None] - x[0]
        S = np.maximum(S, e * e / CHI2_THRESHOLD)  # outliers count as if they were at the limit
        here = np.broadcast_to(seen[:, i][:, None], shape)
        found -= 0.5 * np.where(counted[:, i][:, None], np.log(S) + e * e / S, 0.0).sum(axis=0)
        x += np.where(here, P[0] * (e / S), 0.0)
        gain = np.where(here, P[0] / np.sqrt(S), 0.0)
        P -= gain[:, None] * gain
    total = np.zeros((m, DENSITIES))
    np.add.at(total, joint, found.T)
    j, best = np.arange(m), np.clip(total.argmax(axis=1), 1, DENSITIES - 2)
    a, b, c = total[j, best - 1], total[j, best], total[j, best + 1]
    curve = a - 2.0 * b + c
    shift = np.where(curve < 0.0, 0.5 * (a - c) / np.where(curve < 0.0, curve, 1.0), 0.0)
    step = (GREATEST_DENSITY - LEAST_DENSITY) / (DENSITIES - 1)
    kappa = unit * 10.0 ** (LEAST_DENSITY + step * (best + np.clip(shift, -1.0, 1.0)))
    likelihood = total.max(axis=1)
    accepted = total > likelihood[:, None] - REJECTED
    greatest = DENSITIES - 1 - accepted[:, ::-1].argmax(axis=1)
    kappa = np.where(accepted[:, 0], unit * grid[greatest], kappa)
    return np.where(accepted[:, -1], np.nan, kappa), likelihood


def _ahead(x: np.ndarray, F: np.ndarray, order: int) -> np.ndarray:
    """Φ x, entry i is Σ_j F[j] x[i + j], for x (order, …) and the first row F (order, …) of the transition matrix Φ."""
    found = x.copy()
    for j in range(1, order):
        found[: order - j] += F[j] * x[j:]
    return found


def groups(motion: ProcessModel) -> list[np.ndarray]:
    """Degrees of freedom that share a density: that of a joint, or the rotations and the translations of a joint."""
    model, found = motion.model, []
    for i, joint in enumerate(model.joints):
        part = np.arange(model.nv)[model.v_slice(i)]
        if joint.nv == 6:
            found += [part[:3], part[3:]]
        elif joint.kind == "planar":
            found += [part[:2], part[2:]]
        elif joint.nv:
            found.append(part)
    return found


def em_update(path: StateTrajectory, covariances: Covariances, density: np.ndarray, learnt: np.ndarray) -> np.ndarray:
    """κ (nv,) after an iteration of expectation maximisation over a smoothed path; learnt (nv,) bool: of these.

    covariances: with the adjoint covariance Λ after each step. The expected square of the noise of a step, in units of
    Q, is that of the smoothed path plus the trace of 1 − Q Λ (Koopman 1993, "Disturbance smoother for state space
    models").
    """
    p, dt = path.layout.motion.order, np.diff(path.t)
    explained = np.einsum("nij,nijv->v", covariance(dt, p), _adjoint_covariances(path, covariances)) * density**2
    share, found = total_process_chi2(path, density) + p * len(dt) - explained, density.copy()
    for group in groups(path.layout.motion):
        if learnt[group].any():
            found[group] = density[group] * np.sqrt(share[group].sum() / (len(dt) * p * len(group)))
    return found


def _adjoint_covariances(path: StateTrajectory, covariances: Covariances) -> np.ndarray:
    """Adjoint covariances Λ (N − 1, p, p, nv) after each step, a block (p, p) for each degree of freedom.

    p: order of the process model. Λ belongs to the tangent space of the state after the step; the process error
    differs from it by the right Jacobian.
    """
    p, nv = path.layout.motion.order, path.layout.model.nv
    own = np.arange(p * nv).reshape(p, nv)
    first, second = (np.broadcast_to(x, (p, p, nv)) for x in (own[:, None], own))
    return covariances.adjoint(first, second)


def jump_slopes(
    path: StateTrajectory, density: np.ndarray, covariances: Covariances | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Score test for velocity jumps along a smoothed path: (slopes (N − 1, nv), their standard deviations (N − 1, nv)).

    The slope is the derivative of χ²/2 with respect to a velocity jump in a step, up to its sign: the velocity part of
    Q⁻¹ e, where e is the process error. Its variance is an entry of the adjoint covariance Λ; the most likely jump is
    the slope over its variance. density: of the process noise, (nv,) or (N − 1, nv). Without covariances, standard
    deviations are robust estimates over all steps (median). The standard deviation is inf if the jump is unobservable.
    De Jong and Penzer (1998), "Diagnosing shocks in time series".
    """
    motion, dt = path.layout.motion, np.diff(path.t)
    weight = information(dt, motion.order)
    e = path.layout.process_errors(path)[:, : motion.order * motion.model.nv].reshape(len(dt), motion.order, -1)
    slope = np.einsum("nj,njv->nv", weight[:, 1], e) / density**2
    if covariances is None:
        variance = np.broadcast_to((MAD_TO_STD * np.median(np.abs(slope), axis=0)) ** 2, slope.shape)
    else:
        velocity = motion.model.nv + np.arange(motion.model.nv)
        variance = covariances.adjoint(velocity, velocity)
        variance = np.where(variance > MIN_JUMP_INFORMATION * weight[:, 1, 1, None] / density**2, variance, 0.0)
    return slope, np.where(variance > 0.0, np.sqrt(variance), np.inf)


def total_process_chi2(path: StateTrajectory, density: np.ndarray) -> np.ndarray:
    """Σ e^T Q⁻¹ e (nv,) of the process errors of a path, by degree of freedom."""
    return np.asarray(process_chi2(path, density).sum(axis=0))


def process_chi2(path: StateTrajectory, density: np.ndarray) -> np.ndarray:
    """e^T Q⁻¹ e (N − 1, nv) of the process errors of a path, by degree of freedom."""
    layout = path.layout
    return layout.motion.chi2(layout.process_errors(path)[:, : layout.n_states], np.diff(path.t), density)


def by_joint(model: Model, density: float | Mapping[str, float] | np.ndarray) -> np.ndarray:
    """Densities (nv,) from a number, (nv,), or {joint or degree of freedom: number}, NaN for the others.

    Raises InvalidInput for numbers that are not positive and finite, UnknownName.
    """
    if isinstance(density, Mapping):
        found, place = np.full(model.nv, np.nan), {name: k for k, name in enumerate(model.dof_names)}
        for name, value in density.items():
            x = float_array(f"density of {name!r}", value)
            found[place[name] if name in place else model.v_slice(model.joint_index(name))] = _positive(x)
        return found
    x = float_array("density", density)
    if x.shape not in ((), (model.nv,)):
        raise InvalidInput(f"density has shape {x.shape}: a number, ({model.nv},) or numbers by joint are needed")
    return np.array(np.broadcast_to(_positive(x), model.nv))


def _positive(x: np.ndarray) -> np.ndarray:
    if not ((x > 0.0) & np.isfinite(x)).all():
        raise InvalidInput(
            f"a density of motion is {x[~((x > 0.0) & np.isfinite(x))][0]}: it must be positive and finite"
        )
    return x
