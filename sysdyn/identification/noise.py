"""Maximum-likelihood covariances of sensors and models from logged measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import AccuracyWarning, InvalidInput, SingularState, check_among, few, warn
from sysdyn.measurements.noise import Noise, noise_of
from sysdyn.online.arguments import Named
from sysdyn.online.estimate import Estimate
from sysdyn.online.solver import Solver
from sysdyn.program.arrays import is_count
from sysdyn.program.groups import slices

# Change of a standard deviation, relative to its statistical error, that counts as converged (chosen).
CHANGE_TOL = 1e-2
# Relative error of a standard deviation beyond which the log does not determine it: it may be zero (chosen).
MAX_RELATIVE_ERROR = 1.0
# Longest step of the logarithm of a standard deviation (chosen).
MAX_LOG_STEP = 1.0
# Factor of a declared variance, or its inverse, at which the search ends: solving is slow there (chosen).
MAX_VARIANCE_RATIO = 1e6
# Range of the damping of scoring steps as a share of the information of each factor (chosen).
MIN_DAMPING, MAX_DAMPING = 1e-6, 1.0
# Share of the largest eigenvalue below which eigenvalues are rounding errors (chosen).
RANK_TOL = 1e-10

NoiseCovariances = dict[str, np.ndarray]


class Learned(NamedTuple):
    """Result of `learn_noise` of N states.

    Attributes
    ----------
    noise : dict
        {name: (m,) standard deviations or (m, m) covariance}, as for `noise=` of solvers.
    log_likelihood : array
        Sum over all states, initially and after each iteration; it never decreases.
    converged : bool
        True if the stopping criterion was met.
    error : dict
        {name: (m,) relative statistical errors of the learnt standard deviations}, asymptotic; inf if the log does not
        determine one.
    """

    noise: dict[str, np.ndarray]
    log_likelihood: np.ndarray
    converged: bool
    error: dict[str, np.ndarray]


class _LikelihoodPoint(NamedTuple):
    """Log-likelihood at some covariances, with the moments and the Fisher information of their p factors.

    observed, expected (p,): moments; their difference is the gradient, see `Estimate.noise_moments`. information (p,),
    correlations (p, p): variances and correlations of the scores.
    """

    noise: NoiseCovariances
    likelihood: float
    observed: np.ndarray
    expected: np.ndarray
    information: np.ndarray
    correlations: np.ndarray


def learn_noise_of_states(
    solver: Solver, q: ArrayLike, qd: ArrayLike, *known: ArrayLike, y: Named | ArrayLike | None = None,
    learn: str | Sequence[str] | None = None, noise: Named | None = None, active: Named | None = None,
    iterations: int = 200, tolerance: float = 1e-5, parameters: Named | None = None, on_singular: str | None = None,
    threads: int | None = None, **quantities: ArrayLike,
) -> Learned:  # fmt: skip
    """Learn maximum-likelihood covariances of noisy measurements, priors and equations from N states that share them.

    Parameters
    ----------
    solver, q, qd, *known, y, active, parameters, on_singular, threads, **quantities
        Arguments of a call of the solver, with one batch axis. States that are not solved (on_singular="nan") are
        omitted.
    learn
        Names of measurements whose covariances are learnt; others are constant. Default: all noisy ones. Standard
        deviations remain standard deviations, a matrix remains a matrix.
    noise
        Initial covariances. Default: as declared.
    iterations
        Most iterations.
    tolerance
        Change of the log-likelihood per state at which it has converged, if also every determined log σ changes by
        less than 1 % of its statistical error.

    Raises
    ------
    UnknownName
    InvalidInput
        If no state is solved.

    Warns
    -----
    AccuracyWarning
        Names standard deviations that the log does not determine (relative error > 1), or says that the search ended
        because the problem is near singular for the covariances of further steps; `converged` is False then.

    Notes
    -----
    After a step of expectation maximisation, the better of two steps is taken, with μ = Σ⁻¹ (y − ŷ) and the information
    A of the gradient g = Σ (σ² μ² − σ² Var μ) of the log-likelihood with respect to log σ:

        σ² ← σ² √(Σ μ² / Σ Var μ)           minorisation-maximisation; the likelihood never decreases
        log σ ← log σ + A⁻¹ g               scoring; A has the correlations of the scores over the log

    A component without redundancy keeps its covariance. Covariances that cannot be distinguished keep about
    their initial ratios.

    References
    ----------
    Dempster, Laird and Rubin (1977). Zhou, Hu, Zhou and Lange (2019), MM algorithms for variance components models.
    Berndt, Hall, Hall and Hausman (1974).
    """
    names = _names(solver, learn)
    if not is_count(iterations, 1):
        raise InvalidInput(f"iterations is {iterations!r}, but an integer ≥ 1 is needed")
    noises = {m.name: noise_of(m, solver.model) for m in solver.problem.noisy if m.name in names}
    constants = dict(noise or {})

    def estimate(changed: Named) -> Estimate:
        return solver(
            q, qd, *known, y=y, noise={**constants, **changed}, active=active, parameters=parameters,
            on_singular=on_singular, threads=threads, **quantities,
        )  # type: ignore[return-value]  # fmt: skip

    first = estimate({})
    if not np.any(first.ok):
        raise InvalidInput("no state was solved, so that there is nothing to learn from")
    history, solved = [float(np.sum(first.log_likelihood(), where=first.ok))], np.reshape(first.ok, -1)
    point = _evaluate(noises, first.expected_noise(names), estimate, solved)
    history.append(point.likelihood)
    converged, damping, error = False, MIN_DAMPING, _errors(noises, point)
    for _ in range(iterations - 1):
        before, rejected = point, None
        steps = [_mm_step(noises, before), _scoring_step(noises, before, damping, int(solved.sum()))]
        for step in steps:
            try:
                point = max(point, _evaluate(noises, step, estimate, solved), key=lambda x: x.likelihood)
            except SingularState as singular:  # the other step may be shorter
                rejected = rejected or singular
        if point is before and rejected:  # no progress, but this need not be the maximum
            if damping == MAX_DAMPING:
                warn(
                    f"the covariances have not converged: after {len(history) - 1} iterations the next ones are "
                    f"rejected ({rejected}). Compile the problem with noise= near those found so far and go on from "
                    "there, or learn fewer of them (learn=)",
                    AccuracyWarning,
                )  # fmt: skip
                break
            damping = min(10.0 * damping, MAX_DAMPING)
            continue
        # Levenberg-Marquardt damping
        damping = float(
            np.clip(damping / 10.0 if point.noise is steps[1] else 10.0 * damping, MIN_DAMPING, MAX_DAMPING)
        )
        history.append(point.likelihood)
        error = _errors(noises, point)
        converged = (
            point.likelihood - before.likelihood <= tolerance * solved.sum()
            and _largest_change(error, before.noise, point.noise) <= CHANGE_TOL
        )
        if converged:
            break
    _warn_undetermined(solver, error)
    learned = {name: np.array(x) for name, x in constants.items()} | point.noise
    return Learned(learned, np.array(history), bool(converged), error)


def _evaluate(
    noises: Mapping[str, Noise], noise: NoiseCovariances, estimate: Callable[[Named], Estimate], solved: np.ndarray
) -> _LikelihoodPoint:
    """Evaluate the likelihood of the solved states. Raises SingularState if one of them cannot be solved any more."""
    if far := [name for name, x in noises.items() if x.is_far(x.numbers(noise[name]), MAX_VARIANCE_RATIO)]:
        raise SingularState(
            f"the covariances of {few(far)} differ from the declared ones by more than a factor {MAX_VARIANCE_RATIO:g}"
        )
    solution = estimate(noise)
    likelihoods = np.reshape(solution.log_likelihood(), -1)
    if failed := np.flatnonzero(solved & ~(np.reshape(solution.ok, -1) & np.isfinite(likelihoods))).tolist():
        raise SingularState(f"states {few(failed)} are not solved, which were solved before", states=tuple(failed))
    moments, information = solution.noise_moments(tuple(noises)), []
    observed, expected = (np.concatenate([moments[name][k] for name in noises], axis=1)[solved] for k in range(2))
    for name, part in _parts(noises).items():
        H = expected[:, part]
        if noises[name].full:
            i, j = np.tril_indices(noises[name].size)
            diagonal = H[:, i == j]
            information.append(diagonal[:, i] * diagonal[:, j] + H * H)
        else:
            information.append(2.0 * H * H)
    return _LikelihoodPoint(
        noise, float(np.sum(likelihoods[solved])), observed.sum(axis=0), expected.sum(axis=0),
        np.concatenate(information, axis=1).sum(axis=0), _correlations(observed - expected),
    )  # fmt: skip


def _parts(noises: Mapping[str, Noise]) -> dict[str, slice]:
    """Slices of the factors of each covariance."""
    return dict(zip(noises, slices(x.scalars for x in noises.values()), strict=True))


def _correlations(scores: np.ndarray) -> np.ndarray:
    """Correlations (p, p) of scores (n, p); 0 for constant scores."""
    centred = scores - scores.mean(axis=0)
    norm = np.sqrt(np.sum(centred * centred, axis=0))
    unit = centred / np.where(norm > 0.0, norm, 1.0)
    correlations = unit.T @ unit
    np.fill_diagonal(correlations, 1.0)
    return correlations


# ---- steps -----------------------------------------------------------------------------------------------------------


def _mm_step(noises: Mapping[str, Noise], point: _LikelihoodPoint) -> NoiseCovariances:
    """Maximise a minorant of the likelihood: σ² √(o / e) for moments o, e; L G L^T with G E G = O."""
    covariances: NoiseCovariances = {}
    for name, part in _parts(noises).items():
        o, e, noise, before = point.observed[part], point.expected[part], noises[name], point.noise[name]
        if noise.full:
            O, E = noise.matrix(o), noise.matrix(e)
            # directions without information stay
            little = max(RANK_TOL * float(np.trace(E)), np.finfo(float).tiny) * np.eye(noise.size)
            root, L = _square_root(E + little), np.linalg.cholesky(before)
            inverse = np.linalg.inv(root)
            G = inverse @ _square_root(root @ (O + little) @ root) @ inverse
            covariances[name] = _symmetric(L @ G @ L.T)
        else:
            ratio = np.divide(o, e, out=np.ones_like(o), where=(o > 0.0) & (e > 0.0))
            covariances[name] = before * ratio**0.25
    return covariances


def _scoring_step(
    noises: Mapping[str, Noise], point: _LikelihoodPoint, damping: float, states: int
) -> NoiseCovariances:
    """Damped step of Fisher scoring."""
    g, root = point.observed - point.expected, np.sqrt(point.information)
    free, step = root > 0.0, np.zeros(len(root))
    # with few states per factor, sample correlations say little
    trust = max(0.0, 1.0 - len(g) / states)
    R = trust * point.correlations + (1.0 - trust + damping) * np.eye(len(g))
    step[free] = np.linalg.solve(R[np.ix_(free, free)], g[free] / root[free]) / root[free]
    step = np.clip(step, -MAX_LOG_STEP, MAX_LOG_STEP)
    covariances: NoiseCovariances = {}
    for name, part in _parts(noises).items():
        noise, before = noises[name], point.noise[name]
        if noise.full:
            X = np.zeros((noise.size, noise.size))
            X[np.tril_indices(noise.size)] = step[part]
            L = np.linalg.cholesky(before) @ (np.tril(X, -1) + np.diag(np.exp(np.diag(X))))
            covariances[name] = _symmetric(L @ L.T)
        else:
            covariances[name] = before * np.exp(step[part])
    return covariances


def _largest_change(errors: Mapping[str, np.ndarray], before: NoiseCovariances, after: NoiseCovariances) -> float:
    """Largest change of a determined log σ, relative to its error."""
    worst = 0.0
    for name, error in errors.items():
        first, second = (np.sqrt(np.diagonal(x)) if x.ndim == 2 else x for x in (before[name], after[name]))
        change = np.abs(np.log(second / first)) / error
        worst = max(worst, float(change[error <= MAX_RELATIVE_ERROR].max(initial=0.0)))
    return worst


def _square_root(x: np.ndarray) -> np.ndarray:
    """Square root of a positive semidefinite matrix."""
    size, vectors = np.linalg.eigh(_symmetric(x))
    return (vectors * np.sqrt(np.maximum(size, 0.0))) @ vectors.T


def _symmetric(x: np.ndarray) -> np.ndarray:
    return 0.5 * (x + x.T)


# ---- statistical errors ----------------------------------------------------------------------------------------------


def _errors(noises: Mapping[str, Noise], point: _LikelihoodPoint) -> dict[str, np.ndarray]:
    """Relative statistical errors {name: (m,)} of standard deviations; inf if they are not determined."""
    free = point.information > 0.0
    eigenvalues, vectors = np.linalg.eigh(point.correlations[np.ix_(free, free)])
    singular, errors = eigenvalues <= RANK_TOL, {}
    for name, part in _parts(noises).items():
        size = noises[name].size
        slope = np.zeros((size, len(free)))  # of each log σ by the factors
        if noises[name].full:
            i, j = np.tril_indices(size)
            L = np.linalg.cholesky(point.noise[name])
            slope[:, part] = L[:, i] * L[:, j] / np.sum(L * L, axis=1, keepdims=True)
        else:
            slope[:, part] = np.eye(size)
        projected = (slope[:, free] / np.sqrt(point.information[free])) @ vectors
        total = np.sum(projected**2, axis=1)
        undetermined = (projected[:, singular] ** 2 > RANK_TOL * total[:, None]).any(axis=1)
        undetermined |= (slope[:, ~free] != 0.0).any(axis=1)
        error = np.sqrt(np.sum(projected[:, ~singular] ** 2 / eigenvalues[~singular], axis=1))
        errors[name] = np.where(undetermined, np.inf, error)
    return errors


def _warn_undetermined(solver: Solver, errors: Mapping[str, np.ndarray]) -> None:
    """Warn of standard deviations with relative errors {name: (m,)} above MAX_RELATIVE_ERROR."""
    measurements, undetermined = {m.name: m for m in solver.problem.noisy}, []
    for name, error in errors.items():
        components = measurements[name].components(solver.model)
        labels = [f"{components[k]} ({error[k]:.2g})" for k in np.flatnonzero(error > MAX_RELATIVE_ERROR)]
        if labels:
            undetermined.append(f"{name!r}: {few(labels)}")
    if undetermined:
        warn(
            f"the log does not determine all standard deviations: relative errors beyond {MAX_RELATIVE_ERROR:g} have "
            f"{'; '.join(undetermined)}. Learn fewer of them (learn=), take a longer log, or add a measurement that "
            "checks them",
            AccuracyWarning,
        )  # fmt: skip


def _names(solver: Solver, learn: str | Sequence[str] | None) -> tuple[str, ...]:
    """Measurements whose noise is learnt. Raises UnknownName, InvalidInput."""
    valid = tuple(m.name for m in solver.problem.noisy)
    names = valid if learn is None else (learn,) if isinstance(learn, str) else tuple(learn)
    for name in names:
        check_among("noisy measurement", name, valid)
    if not names:
        raise InvalidInput("there is nothing to learn: no measurement of the problem is noisy")
    return names
