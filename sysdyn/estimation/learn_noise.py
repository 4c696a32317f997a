"""Maximum-likelihood noise, drifts and process noise from a raw log, by its sensors of motion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import AccuracyWarning, InvalidInput, UnknownName, few, warn
from sysdyn.estimation import process_noise
from sysdyn.estimation.estimation_problem import EstimationProblem
from sysdyn.estimation.learning import Learning, Point, relative_errors, sensors_of_motion, with_noise
from sysdyn.estimation.measurement_data import LogStatistics, read_log
from sysdyn.estimation.quantisation import quantisation_noise
from sysdyn.estimation.sliding_window import window_rows
from sysdyn.estimation.smooth import first_position, single_blas_thread, with_motion
from sysdyn.estimation.timing import timed_sensors, warn_of_jitter, warn_of_stale
from sysdyn.identification.noise import CHANGE_TOL, MAX_RELATIVE_ERROR, Learned, learn_noise_of_states
from sysdyn.measurements.bias_models import BiasModel, GaussMarkov
from sysdyn.measurements.problem import Problem
from sysdyn.offline.stages import Progress, Stages
from sysdyn.online.arguments import Named
from sysdyn.online.solver import Solver
from sysdyn.program.arrays import is_count

# Most repetitions of outlier rejection with the learnt noise (measured: two to four if noise is declared five times too
# small).
RETESTS = 10


@dataclass(frozen=True, repr=False, eq=False)
class LearnedMotion:
    """Result of `learn_noise` of a raw log.

    problem          the problem with the learnt noise and drifts: pass it to `smooth`
    density, order   {degree of freedom: density of its jerk (order 3) or snap}: pass them to `smooth`, too
    noise            {sensor: standard deviations (m,)}
    drift            {sensor: densities (m,) of the random walk of its bias, or standard deviations of a Gauss-Markov
                     bias}
    log_likelihood   of the inliers, at the beginning and after each iteration since outliers were last rejected; it
                     decreases by rounding only
    converged        the stopping rule was met
    error            {"noise:NAME", "drift:NAME": (m,), "motion": (nv,)} asymptotic relative statistical errors of the
                     standard deviations and densities; inf if the log does not determine one
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
                shown = (f"{s:.3g} ± {100.0 * e:.0f} %" if np.isfinite(e) else f"{s:.3g}, not determined"
                         for s, e in zip(x, self.error[f"{kind}:{name}"], strict=True))  # fmt: skip
                lines.append(f"  {kind} of {name}: {few(shown)}")
        shown = (f"{name} {x:.3g}" for name, x in self.density.items())
        lines.append(f"  motion, order {self.order}: {few(shown)}")
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
    start: ArrayLike | None = None, robust: bool = True, impacts: bool | None = None, iterations: int = 100,
    tolerance: float = 1e-5, rows: int = 2000, progress: Progress | None = None, **options: Any,
) -> LearnedMotion: ...  # fmt: skip


def learn_noise(of: Solver | Problem, *arguments: Any, **options: Any) -> Learned | LearnedMotion:
    """Maximum-likelihood noise: of N states by a Solver, or of a raw log by a Problem with sensors of the state.

    learn_noise(solver, q, qd, *known, y=…, …) → Learned: see `learn_noise_of_states`
    learn_noise(problem, log, …) → LearnedMotion: see `learn_noise_of_log`
    """
    if isinstance(of, Problem):
        return learn_noise_of_log(of, *arguments, **options)
    return learn_noise_of_states(of, *arguments, **options)


def learn_noise_of_log(
    problem: Problem, log: Any, learn: str | Sequence[str] | None = None, *, order: int | None = None,
    density: Any = None, start: ArrayLike | None = None, robust: bool = True, impacts: bool | None = None,
    iterations: int = 100, tolerance: float = 1e-5, rows: int = 2000, progress: Progress | None = None, **options: Any,
) -> LearnedMotion:  # fmt: skip
    """Maximum-likelihood standard deviations of sensors of motion, drifts of their biases, and process noise.

    learn       sensors of the state and accelerometers whose noise and drift are learnt; None: all. Constant biases,
                and noise with correlations, stay as declared
    density     of degrees of freedom that are known; None: all are learnt
    rows        number of first rows to learn from
    order, start, robust, impacts, progress, options: as of `sysdyn.smooth`; outliers are rejected before learning, and
                anew with the learnt noise until the inliers stay the same, ten times at most

    Noise is at least the quantisation noise of the readings, step / √12. If an encoder's readings never change, its
    noise stays as declared, and the density of its joint is that of greatest likelihood of the encoders.

    It stops where an iteration changes the log-likelihood by less than tolerance times the number of rows, and every
    logarithm by less than 1 % of its statistical error, or after `iterations`, with `converged` False. An
    AccuracyWarning names what the log does not determine. See docs/trajectories.md for when to trust it. Raises what
    `smooth` does, and UnknownName.
    """
    if not is_count(iterations, 1):
        raise InvalidInput(f"iterations is {iterations!r}, but an integer ≥ 1 is needed")
    readings, first = read_log(problem, log, **options), first_position(problem, start)
    stages = Stages(progress)
    stages.report("compiling the equations of an instant", 0.05)
    survey = LogStatistics.of(lambda: [readings])
    estimation, kappa, _ = with_motion(problem, (), False, order, density, survey, impacts)
    warn_of_stale(survey.sample, estimation.still)
    warn_of_jitter(estimation.jitter, survey.sample.t)
    stated = np.isfinite(process_noise.by_joint(problem.model, density)) if density is not None else False
    floor = {m.name: quantisation_noise(readings.y[m.name], readings.active[m.name]) for m in timed_sensors(problem)}
    readings = readings.part(slice(0, min(rows, window_rows(estimation))))
    with single_blas_thread():
        learning = Learning(estimation, kappa, readings, first, robust, _names(estimation, learn), stated, floor)
        found, history, converged = learning.run(iterations, tolerance, stages, CHANGE_TOL)
        for _ in range(RETESTS):
            if not learning.update_inliers(found):
                break
            found, history, converged = learning.run(iterations, tolerance, stages, CHANGE_TOL, found.x)
    return _result(learning, found, history, converged)


def _names(estimation: EstimationProblem, learn: str | Sequence[str] | None) -> tuple[str, ...]:
    """Names of the sensors whose noise is learnt. Raises UnknownName."""
    valid = sensors_of_motion(estimation)
    names = valid if learn is None else [learn] if isinstance(learn, str) else list(learn)
    for name in names:
        if name not in valid:
            raise UnknownName("sensor of motion", name, valid)
    return tuple(names)


def _result(learning: Learning, found: Point, history: np.ndarray, converged: bool) -> LearnedMotion:
    estimation = learning.estimation
    model, values, errors = (
        estimation.model,
        learning.split(found.x),
        learning.split(relative_errors(found.information)),
    )
    kappa, of_motion = learning.motion(values["motion"]), np.full(model.nv, np.inf)
    for g, error in zip(learning.groups, errors["motion"], strict=True):
        of_motion[g] = error
    noise = {x: np.exp(values[f"noise:{x}"]) for x in learning.sensors}
    biases = estimation.layout.biases
    drift = {x: _shown(biases[x].measurement.drift, np.exp(values[f"drift:{x}"])) for x in learning.drifts}
    result = LearnedMotion(
        with_noise(estimation.problem, noise, drift),
        dict(zip(model.dof_names, kappa.tolist(), strict=True)), estimation.motion.order, noise, drift, history,
        converged, {**errors, "motion": of_motion},
    )  # fmt: skip
    _warn_undetermined(result)
    return result


def _shown(drift: BiasModel | None, density: np.ndarray) -> np.ndarray:
    """Reported noise of a bias: its densities, or the stationary standard deviations of a Gauss-Markov bias."""
    return density * np.sqrt(0.5 * drift.times(len(density))) if isinstance(drift, GaussMarkov) else density


def _warn_undetermined(found: LearnedMotion) -> None:
    components = {
        m.name: m.components(found.problem.model) for m in found.problem.measurements if m.name in found.noise
    }
    undetermined = []
    for name, error in found.error.items():
        kind, _, sensor = name.partition(":")
        if kind != "motion" and (error > MAX_RELATIVE_ERROR).any():
            labels = components.get(sensor, [str(k) for k in range(len(error))])
            worst = few(f"{x} ({e:.2g})" for x, e in zip(labels, error, strict=True) if e > MAX_RELATIVE_ERROR)
            undetermined.append(f"{kind} of {sensor}: {worst}")
    if undetermined:
        warn(
            f"the log does not determine all standard deviations: relative errors beyond {MAX_RELATIVE_ERROR:g} have "
            f"{'; '.join(undetermined)}. Learn fewer of them (learn=), take a longer log, or add a sensor that checks "
            "them",
            AccuracyWarning,
        )  # fmt: skip
