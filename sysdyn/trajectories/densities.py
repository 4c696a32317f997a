"""Densities of motion from a log: by the likelihood of encoders, and by expectation maximisation of a smoothed path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.model import Model
from sysdyn.program.reals import real
from sysdyn.trajectories.chain import Covariances
from sysdyn.trajectories.equations import FAR_SQUARED
from sysdyn.trajectories.motion import Motion, covariance, information, transition
from sysdyn.trajectories.path import Path

# Densities that are tried for a joint, in units of its encoder's noise by Δ^(p − ½): below, motion is lost in noise,
# beyond, every reading is believed (chosen; half a decade apart, then refined by a parabola).
LEAST_DENSITY, GREATEST_DENSITY, DENSITIES = -8.0, 3.0, 45
# Stretches of a log from which densities are taken, and most instants of each (chosen).
STRETCHES, STRETCH = 4, 1000
# Instants of a stretch at its start that do not count, while the filter forgets where it began (chosen).
FORGOTTEN = 20
# Steps in time beyond which a log has a gap, in units of its median step: they tell nothing of motion (chosen).
LONGEST_STEP = 20.0
# Standard deviation of a normal distribution by the median of its absolute values.
BY_MEDIAN = 1.4826
# Share of the variance of the slope by a jump, if motion were known, below which readings do not tell it: rounding of
# covariances (chosen).
UNTOLD_JUMP = 1e-6
# Variances of the first state, in units of the encoder's (chosen: beyond the range of motions).
WIDE = 1e8


def of_stretches(n: int) -> np.ndarray:
    """Rows of a log of n by which encoders tell densities: all, or those of its stretches, one after the other."""
    if n <= STRETCHES * STRETCH:
        return np.arange(n)
    starts = np.linspace(0, n - STRETCH, STRETCHES).astype(int)
    return (starts[:, None] + np.arange(STRETCH)).reshape(-1)


def of_encoders(
    t: np.ndarray, z: np.ndarray, on: np.ndarray, std: np.ndarray, order: int
) -> tuple[np.ndarray, np.ndarray]:
    """(κ (m,), log-likelihood (m,)) of processes of an order, by the innovations of m encoders.

    t (N,) [s], z (N, m) readings, on (N, m) bool, std (m,). Filters of all joints, densities and stretches go side by
    side.
    """
    n, m = z.shape
    starts = np.unique(np.linspace(0, max(n - STRETCH, 0), STRETCHES).astype(int)) if n > STRETCH else np.array([0])
    length = min(n, STRETCH)
    at = starts[:, None] + np.arange(length)
    dt = np.minimum(np.diff(t[at], axis=1), LONGEST_STEP * np.median(np.diff(t)))  # (stretches, length − 1)
    unit = std / np.median(np.diff(t)) ** (order - 0.5)
    grid = 10.0 ** np.linspace(LEAST_DENSITY, GREATEST_DENSITY, DENSITIES)
    kappa = grid[:, None] * unit  # (tried, m)
    found = np.zeros((DENSITIES, m))
    phi, Q = transition(dt, order), covariance(dt, order)
    y, seen = z[at] / std, on[at]  # (stretches, length, m), in units of the noise
    shape = (len(starts), DENSITIES, m)
    x, P = np.zeros((order, *shape)), np.zeros((order, order, *shape))
    x[0] = y[:, 0][:, None]
    for i, scale in enumerate(np.median(dt) ** -np.arange(order)):
        P[i, i] = WIDE * scale * scale
    spread = (kappa / std) ** 2
    # entries first, which are few: stacks of small matrices take ten times as long
    phi, Q = (np.moveaxis(a, (0, 1), (-2, -1))[..., None, None] for a in (phi, Q))
    for k in range(length):
        if k:
            F = phi[0, :, :, k - 1]
            x, A = _ahead(x, F, order), _ahead(P, F, order)
            P = _ahead(A.swapaxes(0, 1), F, order)
            P = 0.5 * (P + P.swapaxes(0, 1)) + Q[:, :, :, k - 1] * spread
        S = P[0, 0] + 1.0
        e = y[:, k][:, None] - x[0]
        S = np.maximum(S, e * e / FAR_SQUARED)  # residuals beyond belief count as if they were at its limit
        here = np.broadcast_to(seen[:, k][:, None], shape)
        if k >= FORGOTTEN:
            found -= 0.5 * np.where(here, np.log(S) + e * e / S, 0.0).sum(axis=0)
        x += np.where(here, P[0] * (e / S), 0.0)
        gain = np.where(here, P[0] / np.sqrt(S), 0.0)
        P -= gain[:, None] * gain
    best = np.clip(found.argmax(axis=0), 1, DENSITIES - 2)
    j = np.arange(m)
    a, b, c = found[best - 1, j], found[best, j], found[best + 1, j]
    curve = a - 2.0 * b + c
    shift = np.where(curve < 0.0, 0.5 * (a - c) / np.where(curve < 0.0, curve, 1.0), 0.0)
    step = (GREATEST_DENSITY - LEAST_DENSITY) / (DENSITIES - 1)
    return unit * 10.0 ** (LEAST_DENSITY + step * (best + np.clip(shift, -1.0, 1.0))), found.max(axis=0)


def _ahead(x: np.ndarray, F: np.ndarray, order: int) -> np.ndarray:
    """Σ_j F[j] x[i + j] of x (order, …), F (order, …) the first row of a transition."""
    found = x.copy()
    for j in range(1, order):
        found[: order - j] += F[j] * x[j:]
    return found


def groups(motion: Motion) -> list[np.ndarray]:
    """Degrees of freedom whose densities are the same: one of a joint with one, the turns and the shifts of others."""
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


def expected(path: Path, covariances: Covariances, density: np.ndarray, learnt: np.ndarray) -> np.ndarray:
    """κ (nv,) after an iteration of expectation maximisation over a smoothed path; learnt (nv,) bool: of these."""
    motion = path.unknowns.motion
    p, nv, dt = motion.order, motion.model.nv, np.diff(path.t)
    share = np.zeros((p, nv))
    for freedoms, e, E in _errors(path, covariances):
        if learnt[freedoms].any():
            E += e[:, :, None] * e[:, None, :]
            share[:, freedoms] = np.einsum("nij,nji->i", motion.weights(dt, density[freedoms]), E).reshape(p, -1)
    found = density.copy()
    for group in groups(motion):
        if learnt[group].any():
            found[group] = density[group] * np.sqrt(share[:, group].sum() / (len(dt) * p * len(group)))
    return found


def _errors(path: Path, covariances: Covariances) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(degrees of freedom (f,), errors (N − 1, p f) of the motion along a path, their covariances) part by part."""
    motion, dt = path.unknowns.motion, np.diff(path.t)
    p, nv = motion.order, motion.model.nv
    e, step = motion.errors((path.q[:-1], path.rates[:-1]), (path.q[1:], path.rates[1:]), dt)
    for block in covariances.blocks:
        for c, columns in enumerate(block.columns):
            freedoms = columns[columns < nv]
            f = p * len(freedoms)
            if not f:
                continue
            F0, F1 = motion.jacobians(e, step, dt, freedoms)
            before, after, between = block.P[:-1, c, :f, :f], block.P[1:, c, :f, :f], block.C[:, c, :f, :f]
            cross = F1 @ between @ F0.swapaxes(1, 2)
            E = F0 @ before @ F0.swapaxes(1, 2) + F1 @ after @ F1.swapaxes(1, 2) + cross + cross.swapaxes(1, 2)
            yield freedoms, e[:, :, freedoms].reshape(len(dt), f), E


def jumps(path: Path, density: np.ndarray, covariances: Covariances | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(slopes of the squares by a jump of a velocity in a step (N − 1, nv), their standard deviations, alike).

    Slopes are Q⁻¹ e of the errors of a smoothed path; divided by their variance the jump that explains most by itself.
    density: (nv,) or (N − 1, nv). Without covariances, of the path with pairs, deviations are those of most steps; inf
    if a jump is not told. De Jong and Penzer (1998), "Diagnosing shocks in time series".
    """
    motion, dt = path.unknowns.motion, np.diff(path.t)
    p = motion.order
    weight = information(dt, p)
    e, _ = motion.errors((path.q[:-1], path.rates[:-1]), (path.q[1:], path.rates[1:]), dt)
    slope = np.einsum("nj,njv->nv", weight[:, 1], e) / density**2
    if covariances is None:
        variance = np.broadcast_to((BY_MEDIAN * np.median(np.abs(slope), axis=0)) ** 2, slope.shape)
    else:
        variance = weight[:, 1, 1, None] / np.broadcast_to(density, slope.shape) ** 2
        least = UNTOLD_JUMP * variance
        for freedoms, _, E in _errors(path, covariances):
            f, own = len(freedoms), np.arange(len(freedoms))
            of_one = E.reshape(len(dt), p, f, p, f)[:, :, own, :, own]  # (f, N − 1, p, p)
            less = np.einsum("ni,fnij,nj->nf", weight[:, 1], of_one, weight[:, 1])
            variance[:, freedoms] -= less / np.broadcast_to(density, slope.shape)[:, freedoms] ** 4
        variance = np.where(variance > least, variance, 0.0)
    return slope, np.where(variance > 0.0, np.sqrt(np.maximum(variance, 0.0)), np.inf)


def squares(path: Path, density: np.ndarray) -> np.ndarray:
    """Σ e^T Q⁻¹ e (nv,) of the errors of a path between its instants, of each degree of freedom."""
    return np.asarray(each_square(path, density).sum(axis=0))


def each_square(path: Path, density: np.ndarray) -> np.ndarray:
    """e^T Q⁻¹ e (N − 1, nv) of the errors of a path between its instants, of each degree of freedom."""
    motion, dt = path.unknowns.motion, np.diff(path.t)
    e, _ = motion.errors((path.q[:-1], path.rates[:-1]), (path.q[1:], path.rates[1:]), dt)
    e = e / density[..., None, :]
    return np.asarray(np.einsum("niv,nij,njv->nv", e, information(dt, motion.order), e, optimize=True))


def by_joint(model: Model, density: float | Mapping[str, float] | np.ndarray) -> np.ndarray:
    """(nv,) of one number, (nv,), or numbers by names of joints or degrees of freedom, NaN for the others.

    Raises InvalidInput for numbers that are not positive and finite, UnknownName.
    """
    if isinstance(density, Mapping):
        found, place = np.full(model.nv, np.nan), {name: k for k, name in enumerate(model.dof_names)}
        for name, value in density.items():
            x = real(f"density of {name!r}", value)
            found[place[name] if name in place else model.v_slice(model.joint_index(name))] = _positive(x)
        return found
    x = real("density", density)
    if x.shape not in ((), (model.nv,)):
        raise InvalidInput(f"density has shape {x.shape}: a number, ({model.nv},) or numbers by joint are needed")
    return np.array(np.broadcast_to(_positive(x), model.nv))


def _positive(x: np.ndarray) -> np.ndarray:
    if not ((x > 0.0) & np.isfinite(x)).all():
        raise InvalidInput(
            f"a density of motion is {x[~((x > 0.0) & np.isfinite(x))][0]}: it must be positive and finite"
        )
    return x
