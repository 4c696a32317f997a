"""Noise, drift of biases and motion learnt from a raw log, by the likelihood of all that sensors of motion measured.

Expectation maximisation over a smoothed log: each variance is the mean of expected squares, of errors of readings, of
steps of biases, and of the noise that moves each degree of freedom (Dempster, Laird and Rubin 1977; Shumway and Stoffer
1982). Steps of the logarithms are stretched while the likelihood grows (Salakhutdinov and Roweis 2003, adaptive
overrelaxation). log p(y) = −½ (χ² + log det S + m log 2π), S the covariance of what is measured.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.diagnosis.words import few
from sysdyn.errors import AccuracyWarning, InvalidInput, UnknownName
from sysdyn.measurements.drifts import Constant, Drift, GaussMarkov, RandomWalk
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.noise import Wrapped, noise_of
from sysdyn.offline.stages import Progress, Stages
from sysdyn.online.arguments import Named
from sysdyn.online.learn_noise import CHANGE_LEFT, UNDETERMINED, Learned, learn_noise_of_states
from sysdyn.online.solver import Solver
from sysdyn.problem import Problem
from sysdyn.trajectories import densities
from sysdyn.trajectories.chain import Sweep
from sysdyn.trajectories.equations import OfStates, Readings, in_parts
from sysdyn.trajectories.linearised import Linearised
from sysdyn.trajectories.path import Path
from sysdyn.trajectories.readings import read
from sysdyn.trajectories.smooth import BLAS, first_position, window_rows, with_motion
from sysdyn.trajectories.smoothing import Smoother
from sysdyn.trajectories.statement import Trajectory

# Factor by which steps of logarithms are stretched after each success, and the greatest stretch (chosen).
STRETCHED, MOST_STRETCHED = 1.5, 20.0
# Greatest change of the logarithm of a standard deviation in one step (chosen).
LONGEST_STEP_OF_LOGS = 2.0

Deviations = dict[str, np.ndarray]  # {"noise:NAME", "drift:NAME" or "motion": (m,)}.


@dataclass(frozen=True, repr=False)
class LearnedMotion:
    """Result of `learn_noise` of a raw log.

    problem          the problem with what was learnt in place of what it declared: pass it to `smooth`
    density, order   {degree of freedom: density of its jerk (order 3) or snap}: pass them to `smooth`, too
    noise            {sensor: standard deviations (m,)}
    drift            {sensor: densities (m,) of the walk of its bias, or deviations of an error that lasts}
    log_likelihood   of the log, at the beginning and after each iteration; it never falls but by rounding
    converged        the stopping rule was met
    error            {"noise:NAME", "drift:NAME": (m,), "motion": (nv,)} relative statistical errors of the standard
                     deviations and densities, as of a long log; inf if the log does not tell one
    """

    problem: Problem
    density: Mapping[str, float]
    order: int
    noise: Mapping[str, np.ndarray]
    drift: Mapping[str, np.ndarray]
    log_likelihood: np.ndarray
    converged: bool
    error: Mapping[str, np.ndarray]

    def __repr__(self) -> str:
        lines = [f"learnt in {len(self.log_likelihood) - 1} iterations, {'' if self.converged else 'not '}converged; "
                 f"log-likelihood {self.log_likelihood[0]:.6g} → {self.log_likelihood[-1]:.6g}"]  # fmt: skip
        for kind, found in (("noise", self.noise), ("drift", self.drift)):
            for name, x in found.items():
                shown = (f"{s:.3g} ± {100.0 * e:.0f} %" if np.isfinite(e) else f"{s:.3g}, not told"
                         for s, e in zip(x, self.error[f"{kind}:{name}"], strict=True))  # fmt: skip
                lines.append(f"  {kind} of {name}: {few(tuple(shown))}")
        shown = (f"{name} {x:.3g}" for name, x in self.density.items())
        lines.append(f"  motion, order {self.order}: {few(tuple(shown))}")
        return "\n".join(lines)


@overload
def learn_noise(
    of: Solver, q: ArrayLike, qd: ArrayLike, *known: ArrayLike, y: Named | ArrayLike | None = None,
    learn: str | Sequence[str] | None = None, noise: Named | None = None, active: Named | None = None,
    iterations: int = 200, tolerance: float = 1e-5, parameters: Named | None = None, on_singular: str | None = None,
    threads: int | None = None, **quantities: ArrayLike,
) -> Learned: ...  # fmt: skip


@overload
def learn_noise(
    of: Problem, log: Any, learn: str | Sequence[str] | None = None, *, order: int | None = None, density: Any = None,
    start: ArrayLike | None = None, robust: bool = True, iterations: int = 100, tolerance: float = 1e-5,
    rows: int = 2000, progress: Progress | None = None, **options: Any,
) -> LearnedMotion: ...  # fmt: skip


def learn_noise(of: Solver | Problem, *arguments: Any, **options: Any) -> Learned | LearnedMotion:
    """Noise of greatest likelihood: of N states by a Solver, or of a raw log by a Problem with sensors of the state.

    learn_noise(solver, q, qd, *known, y=…, …) → Learned: see `learn_noise_of_states`
    learn_noise(problem, log, …) → LearnedMotion: see `learn_noise_of_log`
    """
    if isinstance(of, Problem):
        return learn_noise_of_log(of, *arguments, **options)
    return learn_noise_of_states(of, *arguments, **options)


class _Point(NamedTuple):
    """Logarithms x of standard deviations, their log-likelihood, and those after a step of expectation maximisation.

    told (p,): number of values, less those that the estimate took, that tell each of them.
    """

    x: np.ndarray
    likelihood: float
    after: np.ndarray
    told: np.ndarray
    path: Path


def learn_noise_of_log(
    problem: Problem, log: Any, learn: str | Sequence[str] | None = None, *, order: int | None = None,
    density: Any = None, start: ArrayLike | None = None, robust: bool = True, iterations: int = 100,
    tolerance: float = 1e-5, rows: int = 2000, progress: Progress | None = None, **options: Any,
) -> LearnedMotion:  # fmt: skip
    """Standard deviations of sensors of motion, drifts of their biases and densities of motion, of greatest likelihood.

    learn       sensors of the state and accelerometers whose noise and drift are learnt; None: all. Constant biases,
                and noise with correlations, stay as declared
    density     of degrees of freedom that are known; None: all are learnt
    rows        most rows that it learns from, the first ones
    order, start, robust, progress, options: as of `sysdyn.smooth`; readings that do not fit what was declared are
                dropped once, before learning: declare noise too large rather than too small

    It stops where an iteration changes the log-likelihood by less than tolerance times the number of rows, and every
    logarithm by less than 1 % of its statistical error, or after `iterations`, with `converged` False. An
    AccuracyWarning names what the log does not tell. See docs/trajectories.md for when to trust it. Raises what
    `smooth` does, and UnknownName.
    """
    if not (isinstance(iterations, int) and iterations >= 1):
        raise InvalidInput(f"iterations is {iterations!r}, but an integer ≥ 1 is needed")
    readings, first = read(problem, log, **options), first_position(problem, start)
    told = Stages(None, progress)
    told.say("compiling the equations of an instant", 0.05)
    trajectory, kappa, _ = with_motion(problem, (), False, order, density, readings)
    stated = np.isfinite(densities.by_joint(problem.model, density)) if density is not None else False
    readings = readings.part(slice(0, min(rows, window_rows(trajectory))))
    with BLAS.limit(limits=1, user_api="blas"):
        learning = _Learning(trajectory, kappa, readings, first, robust, _names(trajectory, learn), stated)
        found, history, converged = learning.run(iterations, tolerance, told)
    return _result(learning, found, history, converged)


class _Learning:
    """Expectation maximisation on one log."""

    def __init__(
        self, trajectory: Trajectory, kappa: np.ndarray, readings: Readings, first: np.ndarray | None, robust: bool,
        names: Sequence[str], stated: np.ndarray | bool,
    ):  # fmt: skip
        own, model = trajectory.unknowns, trajectory.model
        self.trajectory, self.kappa, self._first = trajectory, kappa, first
        belief, _ = trajectory.belief(readings, first, kappa)
        smoother = Smoother(Linearised(own, trajectory.kinematic, kappa, belief), robust)
        found, self.readings = smoother.run(trajectory.first_path(belief, readings, kappa), readings)
        self.belief, self.path, self.sizes = belief, found.path, smoother.equations.sizes
        measured = _measured(trajectory)
        self.sensors = [x for x in names if not noise_of(measured[x], model).full and self.readings.active[x].any()]
        self.drifts = [x for x, b in own.biases.items() if x in names and not isinstance(b.measurement.drift, Constant)]
        stated = np.broadcast_to(stated, model.nv)
        self.groups = [g for g in densities.groups(trajectory.motion) if not stated[g].any()]
        self.noise = {x: noise_of(measured[x], model).declared for x in self.sensors}
        self._rest = 0.0  # log det of the noise that stays
        for x in set(measured) - set(self.sensors):
            noise, on = noise_of(measured[x], model), self.readings.active[x]
            one = np.linalg.slogdet(noise.matrix(noise.declared))[1] if noise.full else np.log(noise.declared)
            self._rest += float(np.sum(on.all(axis=1) * one if noise.full else on * one))

    # ---- logarithms ----------------------------------------------------------------------------------------------

    def begin(self) -> np.ndarray:
        """Logarithms of standard deviations (p,) as declared, and of densities of the encoders' likelihood."""
        parts = [0.5 * np.log(self.noise[x]) for x in self.sensors]
        parts += [np.log(self.trajectory.unknowns.biases[x].density) for x in self.drifts]
        return np.concatenate([*parts, np.log([self.kappa[g[0]] for g in self.groups])])

    def split(self, x: np.ndarray) -> Deviations:
        """Values by name, of (p,) in the order of `begin`."""
        found, at = Deviations(), 0
        biases = self.trajectory.unknowns.biases
        sizes = {**{f"noise:{s}": len(self.noise[s]) for s in self.sensors},
                 **{f"drift:{s}": len(biases[s].density) for s in self.drifts}, "motion": len(self.groups)}  # fmt: skip
        for name, size in sizes.items():
            found[name], at = x[at : at + size], at + size
        return found

    def motion(self, x: np.ndarray) -> np.ndarray:
        """κ (nv,) of the logarithms (groups,)."""
        kappa = self.kappa.copy()
        for g, value in zip(self.groups, x, strict=True):
            kappa[g] = np.exp(value)
        return kappa

    # ---- expectation and maximisation ----------------------------------------------------------------------------

    def at(self, x: np.ndarray, path: Path) -> _Point:
        """The likelihood of logarithms x (p,), near a path, and the step from there."""
        own, values = self.trajectory.unknowns, self.split(x)
        variances = {s: np.exp(2.0 * values[f"noise:{s}"]) for s in self.sensors}
        for s in self.drifts:
            own.drive(s, np.exp(values[f"drift:{s}"]))
        readings, kappa = replace(self.readings, variances=variances), self.motion(values["motion"])
        equations = Linearised(own, self.trajectory.kinematic, kappa, self.belief, self.sizes)
        path = path.moved(equations.sweep(equations.about(path, readings)).step)
        least = equations.about(path, readings)
        solved = equations.sweep(least, covariances=True)
        scale = sum(float((readings.active[s].sum(axis=0) * np.log(v)).sum()) for s, v in variances.items())
        count = equations.counted(readings)
        likelihood = -0.5 * (least.objective + solved.logdet + scale + self._rest + count * math.log(2.0 * math.pi))
        new, told = [], []
        parts = [*self._of_sensors(path, readings, solved), *self._of_drifts(path, solved)]
        for ratio, number in (*parts, self._of_motion(path, kappa, solved)):
            new.append(0.5 * np.log(np.maximum(ratio, np.finfo(float).tiny)))
            told.append(number)
        return _Point(
            x, likelihood, x + np.concatenate([np.zeros(0), *new]), np.concatenate([np.zeros(0), *told]), path
        )

    def _of_sensors(self, path: Path, readings: Readings, solved: Sweep) -> list[tuple[np.ndarray, np.ndarray]]:
        """(expected squares by their variance (m,), number of readings that tell (m,)) of each sensor."""
        total = {s: np.zeros((3, len(self.noise[s]))) for s in self.sensors}
        for source in self.trajectory.kinematic:
            for part in in_parts(len(path), source):
                some = readings.part(part)
                found = source.expected(path.part(part), some, solved.covariances.part(part).dense())
                for s in [s for s in self.sensors if s in found]:
                    on, (squares, left) = some.active[s], found[s]
                    total[s] += [(x * on).sum(axis=0) for x in (squares + left, np.clip(1.0 - left, 0.0, 1.0) ** 2, on)]
        return [(np.where(n > 0, E / np.maximum(n, 1), 1.0), told) for E, told, n in total.values()]

    def _of_drifts(self, path: Path, solved: Sweep) -> list[tuple[np.ndarray, np.ndarray]]:
        own, found = self.trajectory.unknowns, []
        left, walk = own.walk(np.diff(path.t))
        for s in self.drifts:
            ratios = []
            for k in range(own.biases[s].place.start, own.biases[s].place.stop):
                before, after, cross = _pair(solved, own.n_states + k)
                a, q = left[:, k], walk[:, k]
                spread = (after + a * a * before - 2.0 * a * cross) / q
                step = (path.biases[1:, k] - a * path.biases[:-1, k]) ** 2 / q
                ratios.append((np.mean(step + spread), np.sum(np.clip(1.0 - spread, 0.0, 1.0) ** 2)))
            found.append((np.array([x for x, _ in ratios]), np.array([x for _, x in ratios])))
        return found

    def _of_motion(self, path: Path, kappa: np.ndarray, solved: Sweep) -> tuple[np.ndarray, np.ndarray]:
        learnt = np.zeros(len(kappa), dtype=bool)
        for g in self.groups:
            learnt[g] = True
        ratio = (densities.expected(path, solved.covariances, kappa, learnt) / kappa) ** 2
        own = densities.squares(path, kappa)
        first = [g[0] for g in self.groups]
        count = np.array([(len(path) - 1) * self.trajectory.motion.order * len(g) for g in self.groups])
        shares = np.array([own[g].sum() for g in self.groups]) / count  # of the data, the rest is uncertainty
        return ratio[first], count * np.clip(shares / ratio[first], 0.0, 1.0) ** 2

    def run(self, iterations: int, tolerance: float, told: Stages) -> tuple[_Point, np.ndarray, bool]:
        """(the last point, log-likelihoods, True if converged)."""
        now = self.at(self.begin(), self.path)
        history, stretch, converged = [now.likelihood], 1.0, False
        for k in range(iterations):
            told.say(f"learning, iteration {k + 1}", 0.1 + 0.9 * k / iterations)
            step = np.clip(now.after - now.x, -LONGEST_STEP_OF_LOGS, LONGEST_STEP_OF_LOGS)
            found = self.at(now.x + np.clip(stretch * step, -LONGEST_STEP_OF_LOGS, LONGEST_STEP_OF_LOGS), now.path)
            if found.likelihood < now.likelihood and stretch > 1.0:
                stretch, found = 1.0, self.at(now.x + step, now.path)
            else:
                stretch = min(stretch * STRETCHED, MOST_STRETCHED)
            gain, error = found.likelihood - now.likelihood, _errors(found.told)
            small = np.abs(found.after - found.x) <= CHANGE_LEFT * np.where(error <= UNDETERMINED, error, np.inf)
            now = found
            history.append(now.likelihood)
            converged = bool(gain <= tolerance * len(now.path) and small.all())
            if converged:
                break
        return now, np.array(history), converged


def _errors(told: np.ndarray) -> np.ndarray:
    """Relative statistical errors of standard deviations that this many values tell."""
    with np.errstate(divide="ignore"):
        return np.where(told > 0.5, 1.0 / np.sqrt(2.0 * told), np.inf)


def _pair(solved: Sweep, column: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Variances (N − 1,) of an unknown before and after each step, and their covariance."""
    for block in solved.covariances.blocks:
        chains, places = np.nonzero(block.columns == column)
        if len(chains):
            c, k = int(chains[0]), int(places[0])
            return block.P[:-1, c, k, k], block.P[1:, c, k, k], block.C[:, c, k, k]
    raise KeyError(column)


def _measured(trajectory: Trajectory) -> dict[str, Measurement]:
    """Sensors of motion by name."""
    found: dict[str, Measurement] = {}
    for source in trajectory.kinematic:
        sensors = source.sensors if isinstance(source, OfStates) else source.problem.noisy
        found |= {m.name: m for m in sensors}
    return found


def _names(trajectory: Trajectory, learn: str | Sequence[str] | None) -> tuple[str, ...]:
    """Sensors of motion that are learnt. Raises UnknownName."""
    valid = _measured(trajectory)
    names = valid if learn is None else [learn] if isinstance(learn, str) else list(learn)
    for name in names:
        if name not in valid:
            raise UnknownName("sensor of motion", name, valid)
    return tuple(names)


def _result(learning: _Learning, found: _Point, history: np.ndarray, converged: bool) -> LearnedMotion:
    trajectory = learning.trajectory
    model, values, errors = trajectory.model, learning.split(found.x), learning.split(_errors(found.told))
    kappa, of_motion = learning.motion(values["motion"]), np.full(model.nv, np.inf)
    for g, error in zip(learning.groups, errors["motion"], strict=True):
        of_motion[g] = error
    noise = {x: np.exp(values[f"noise:{x}"]) for x in learning.sensors}
    biases = trajectory.unknowns.biases
    drift = {x: _shown(biases[x].measurement.drift, np.exp(values[f"drift:{x}"])) for x in learning.drifts}
    problem = trajectory.problem
    measurements = [_with(m, noise.get(m.name), drift.get(m.name)) for m in problem.measurements]
    result = LearnedMotion(
        Problem(model, measurements, [p.name for p in problem.parameters]),
        dict(zip(model.dof_names, kappa.tolist(), strict=True)), trajectory.motion.order, noise, drift, history,
        converged, {**errors, "motion": of_motion},
    )  # fmt: skip
    _warn_untold(result)
    return result


def _shown(drift: Drift | None, density: np.ndarray) -> np.ndarray:
    """Densities, or deviations of errors that last."""
    return density * np.sqrt(0.5 * drift.times(len(density))) if isinstance(drift, GaussMarkov) else density


def _with(m: Measurement, noise: np.ndarray | None, drift: np.ndarray | None) -> Measurement:
    """The measurement with what was learnt."""
    if noise is None and drift is None:
        return m
    if isinstance(m, Wrapped):
        return type(m)(_with(m.of, noise, drift), name=m.name)
    changed, own = copy.copy(m), m.drift
    if noise is not None:
        object.__setattr__(changed, "noise", noise)  # raw ones are frozen
    if drift is not None:
        start = own.std if isinstance(own, RandomWalk) else None
        new = GaussMarkov(drift, own.time) if isinstance(own, GaussMarkov) else RandomWalk(drift, start)
        object.__setattr__(changed, "drift", new)
    return changed


def _warn_untold(found: LearnedMotion) -> None:
    worst = {x: float(np.max(error, initial=0.0)) for x, error in found.error.items() if x != "motion"}
    told = [f"{name} ({x:.2g})" for name, x in worst.items() if x > UNDETERMINED]
    if told:
        warnings.warn(
            f"the log does not tell all standard deviations: relative errors beyond {UNDETERMINED:g} have "
            f"{', '.join(told)}. Learn fewer of them (learn=), take a longer log, or add a sensor that checks them",
            AccuracyWarning, stacklevel=4,
        )  # fmt: skip
