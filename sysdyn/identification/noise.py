"""Covariances of sensors and models learnt from logged measurements."""

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

# Change of a standard deviation, relative to its statistical error, below which it has converged: more iterations would
# change less than another log of the same length (chosen).
CHANGE_LEFT = 1e-2
# Greatest change of the logarithm of a standard deviation in one step of scoring (chosen).
LONGEST = 1.0
# Factor of a declared variance, either way, beyond which the search ends: such states are solved slowly (chosen).
TOO_FAR = 1e6
# Damping of scoring, as a share of the information of each factor: the least, which leaves alone what the log does not
# tell apart, and the greatest (chosen); it changes tenfold as steps are taken or not (Marquardt 1963).
LEAST, GREATEST, TENFOLD = 1e-6, 1.0, 10.0
# Relative error of a standard deviation beyond which the log does not determine it: it may as well be zero (chosen).
UNDETERMINED = 1.0
# Share of the greatest of these below which eigenvalues of correlations and moments are rounding errors (chosen).
UNINFORMED = 1e-10

Covariances = dict[str, np.ndarray]


class Learned(NamedTuple):
    """Result of `learn_noise` of N states.

    noise            {name: standard deviations (m,) or covariance (m, m)}: what solvers take as noise=
    log_likelihood   of all states, at the beginning and after each iteration; it never falls
    converged        the stopping rule was met
    error            {name: (m,)} relative statistical error of each learnt standard deviation, as of a long log; inf if
                     the log does not determine it
    """

    noise: dict[str, np.ndarray]
    log_likelihood: np.ndarray
    converged: bool
    error: dict[str, np.ndarray]


class _Point(NamedTuple):
    """The likelihood of n states at some covariances, and how it changes with the p factors of these.

    observed, expected (p,): moments, of which the gradient is the difference; see `Estimate.noise_moments`.
    information (p,): variances of its components; correlations (p, p).
    """

    noise: Covariances
    likelihood: float
    observed: np.ndarray
    expected: np.ndarray
    information: np.ndarray
    correlations: np.ndarray
    states: int


def learn_noise_of_states(
    solver: Solver, q: ArrayLike, qd: ArrayLike, *known: ArrayLike, y: Named | ArrayLike | None = None,
    learn: str | Sequence[str] | None = None, noise: Named | None = None, active: Named | None = None,
    iterations: int = 200, tolerance: float = 1e-5, parameters: Named | None = None, on_singular: str | None = None,
    threads: int | None = None, **quantities: ArrayLike,
) -> Learned:  # fmt: skip
    """Maximum-likelihood covariances of noisy measurements, priors and equations, from N states that share them.

    After a step of expectation maximisation the more likely of two steps is taken, with μ = Σ⁻¹ (y − ŷ) and the
    information A of the gradient g = Σ (σ² μ² − σ² Var μ) of the log-likelihood by log σ:

        σ² ← σ² √(Σ μ² / Σ Var μ)           minorisation; the likelihood never falls
        log σ ← log σ + A⁻¹ g               scoring; A has the correlations that scores have over the log

    Arguments are those of a call of the solver, with one batch axis; learn: the names to learn (default all), the
    others stay. noise: the covariances to begin with, by default those declared. Standard deviations are learnt as
    standard deviations, a matrix as a matrix. States that are not solved (on_singular="nan") do not count.

    It stops where an iteration changes the log-likelihood by less than tolerance times the number of states, and every
    log σ that is determined by less than 1 % of its statistical error; with `converged` False after `iterations`, or,
    with an AccuracyWarning, if the problem is near singular with the covariances of both steps.
    A component that no other equation checks keeps its covariance, and the sum of covariances that cannot be told apart
    is shared out about as at the beginning. An AccuracyWarning names the standard deviations that the log does not
    determine: their relative error is beyond 1.

    Dempster, Laird and Rubin (1977); Zhou, Hu, Zhou and Lange (2019), MM algorithms for variance components models;
    Berndt, Hall, Hall and Hausman (1974). Raises UnknownName, and InvalidInput if no state was solved.
    """
    names = _names(solver, learn)
    if not is_count(iterations, 1):
        raise InvalidInput(f"iterations is {iterations!r}, but an integer ≥ 1 is needed")
    noises = {m.name: noise_of(m, solver.model) for m in solver.problem.noisy if m.name in names}

    def estimate(given: Named) -> Estimate:
        return solver(
            q, qd, *known, y=y, noise=given, active=active, parameters=parameters, on_singular=on_singular,
            threads=threads, **quantities,
        )  # type: ignore[return-value]  # fmt: skip

    others = dict(noise or {})
    first = estimate(others)
    if not np.any(first.ok):
        raise InvalidInput("no state was solved, so that there is nothing to learn from")
    history = [float(np.sum(first.log_likelihood(), where=first.ok))]
    counted = np.reshape(first.ok, -1)
    point = _point(noises, others, first.expected_noise(names), estimate, counted)
    history.append(point.likelihood)
    converged, damping, error = False, LEAST, _errors(noises, point)
    for _ in range(iterations - 1):
        before, refused = point, None
        tried = [_minorised(noises, before), _scored(noises, before, damping)]
        for step in tried:
            try:
                found = _point(noises, others, step, estimate, counted)
            except SingularState as too_far:  # the other one may be shorter
                refused = refused or too_far
                continue
            point = max(point, found, key=lambda x: x.likelihood)
        if point is before and refused:  # no change, although this need not be the maximum
            if damping == GREATEST:
                warn(
                    f"the covariances have not converged: after {len(history) - 1} iterations the next ones are "
                    f"rejected ({refused}). Compile the problem with noise= near those found so far and go on from "
                    "there, or learn fewer of them (learn=)",
                    AccuracyWarning,
                )  # fmt: skip
                break
            damping = min(damping * TENFOLD, GREATEST)
            continue
        taken = point.noise is tried[1]
        damping = min(max(damping / TENFOLD if taken else damping * TENFOLD, LEAST), GREATEST)
        history.append(point.likelihood)
        gain, error = point.likelihood - before.likelihood, _errors(noises, point)
        converged = gain <= tolerance * point.states and _change(error, before.noise, point.noise) <= CHANGE_LEFT
        if converged:
            break
    _warn(solver, error)
    learned = {name: np.array(x) for name, x in others.items()} | point.noise
    return Learned(learned, np.array(history), converged, error)


def _point(
    noises: Mapping[str, Noise], others: Named, noise: Covariances, estimate: Callable[[Named], Estimate],
    ok: np.ndarray,
) -> _Point:  # fmt: skip
    """The likelihood of the states `ok`. Raises SingularState if one of these is not solved any more."""
    if far := [name for name, x in noises.items() if x.is_far(x.numbers(noise[name]), TOO_FAR)]:
        raise SingularState(
            f"the covariances of {few(far)} are {TOO_FAR:g} times the declared ones, or a share of them"
        )
    solution = estimate({**others, **noise})
    likelihoods = np.reshape(solution.log_likelihood(), -1)
    if lost := np.flatnonzero(ok & ~(np.reshape(solution.ok, -1) & np.isfinite(likelihoods))).tolist():
        raise SingularState(f"states {few(lost)} are not solved, which were solved before", states=tuple(lost))
    moments, information = solution.noise_moments(tuple(noises)), []
    observed, expected = (np.concatenate([moments[name][k] for name in noises], axis=1)[ok] for k in range(2))
    for name, part in _parts(noises).items():
        H = expected[:, part]
        if noises[name].full:
            i, j = np.tril_indices(noises[name].size)
            diagonal = H[:, i == j]
            information.append(diagonal[:, i] * diagonal[:, j] + H * H)
        else:
            information.append(2.0 * H * H)
    likelihood = float(np.sum(likelihoods[ok]))
    correlations = _correlations(observed - expected)
    variances = np.concatenate(information, axis=1).sum(axis=0)
    return _Point(noise, likelihood, observed.sum(axis=0), expected.sum(axis=0), variances, correlations, int(ok.sum()))


def _parts(noises: Mapping[str, Noise]) -> dict[str, slice]:
    """The factors of each covariance among all of them."""
    return dict(zip(noises, slices(x.scalars for x in noises.values()), strict=True))


def _correlations(scores: np.ndarray) -> np.ndarray:
    """Correlations (p, p) of scores (n, p); 0 for those that never change."""
    centred = scores - scores.mean(axis=0)
    norm = np.sqrt(np.sum(centred * centred, axis=0))
    unit = centred / np.where(norm > 0.0, norm, 1.0)
    found = unit.T @ unit
    np.fill_diagonal(found, 1.0)
    return found


# ---- steps -----------------------------------------------------------------------------------------------------------


def _minorised(noises: Mapping[str, Noise], point: _Point) -> Covariances:
    """Covariances that maximise a function below the likelihood: σ² √(o / e) of moments o, e; L G L^T, G E G = O."""
    found: Covariances = {}
    for name, part in _parts(noises).items():
        o, e, own = point.observed[part], point.expected[part], noises[name]
        if own.full:
            O, E = own.matrix(o), own.matrix(e)
            little = max(UNINFORMED * float(np.trace(E)), np.finfo(float).tiny) * np.eye(own.size)  # stays where it is
            root = _root(E + little)
            inverse, L = np.linalg.inv(root), np.linalg.cholesky(point.noise[name])
            G = inverse @ _root(root @ (O + little) @ root) @ inverse
            found[name] = _symmetric(L @ G @ L.T)
        else:
            known = (o > 0.0) & (e > 0.0)
            ratio = np.divide(o, e, out=np.ones_like(o), where=known)
            found[name] = point.noise[name] * ratio**0.25
    return found


def _scored(noises: Mapping[str, Noise], point: _Point, damping: float) -> Covariances:
    """Covariances after a step of scoring."""
    g, root = point.observed - point.expected, np.sqrt(point.information)
    free, step = root > 0.0, np.zeros(len(root))
    # correlations of as many states as factors say nothing
    trust = max(0.0, 1.0 - len(g) / point.states)
    R = trust * point.correlations + (1.0 - trust + damping) * np.eye(len(g))
    step[free] = np.linalg.solve(R[np.ix_(free, free)], g[free] / root[free]) / root[free]
    step = np.clip(step, -LONGEST, LONGEST)
    found: Covariances = {}
    for name, part in _parts(noises).items():
        own = noises[name]
        if own.full:
            X = np.zeros((own.size, own.size))
            X[np.tril_indices(own.size)] = step[part]
            L = np.linalg.cholesky(point.noise[name]) @ (np.tril(X, -1) + np.diag(np.exp(np.diag(X))))
            found[name] = _symmetric(L @ L.T)
        else:
            found[name] = point.noise[name] * np.exp(step[part])
    return found


def _change(errors: Mapping[str, np.ndarray], before: Covariances, after: Covariances) -> float:
    """Greatest change of the logarithm of a standard deviation that is determined, relative to its error."""
    worst = 0.0
    for name, error in errors.items():
        first, second = (np.sqrt(np.diagonal(x)) if x.ndim == 2 else x for x in (before[name], after[name]))
        change = np.abs(np.log(second / first)) / error
        worst = max(worst, float(change[error <= UNDETERMINED].max(initial=0.0)))
    return worst


def _root(x: np.ndarray) -> np.ndarray:
    """Square root of a symmetric matrix without negative eigenvalues."""
    size, vectors = np.linalg.eigh(_symmetric(x))
    return (vectors * np.sqrt(np.maximum(size, 0.0))) @ vectors.T


def _symmetric(x: np.ndarray) -> np.ndarray:
    return 0.5 * (x + x.T)


# ---- statistical errors ----------------------------------------------------------------------------------------------


def _errors(noises: Mapping[str, Noise], point: _Point) -> dict[str, np.ndarray]:
    """Relative statistical errors {name: (m,)} of standard deviations; inf if they are not determined."""
    free = point.information > 0.0
    size, vectors = np.linalg.eigh(point.correlations[np.ix_(free, free)])
    found = {}
    for name, part in _parts(noises).items():
        own = noises[name]
        change = np.zeros((own.size, len(free)))  # of the logarithm of each standard deviation by the factors
        if own.full:
            i, j = np.tril_indices(own.size)
            L = np.linalg.cholesky(point.noise[name])
            change[:, part] = L[:, i] * L[:, j] / np.sum(L * L, axis=1, keepdims=True)
        else:
            change[:, part] = np.eye(own.size)
        along = (change[:, free] / np.sqrt(point.information[free])) @ vectors
        total = np.sum(along * along, axis=1)
        lost = (along[:, size <= UNINFORMED] ** 2 > UNINFORMED * total[:, None]).any(axis=1)
        lost |= (change[:, ~free] != 0.0).any(axis=1)
        error = np.sqrt(np.sum(along[:, size > UNINFORMED] ** 2 / size[size > UNINFORMED], axis=1))
        found[name] = np.where(lost, np.inf, error)
    return found


def _warn(solver: Solver, errors: Mapping[str, np.ndarray]) -> None:
    """Warn of standard deviations that the log does not determine."""
    measured, undetermined = {m.name: m for m in solver.problem.noisy}, []
    for name, error in errors.items():
        components = measured[name].components(solver.model)
        chosen = [f"{components[k]} ({error[k]:.2g})" for k in np.flatnonzero(error > UNDETERMINED)]
        if chosen:
            undetermined.append(f"{name!r}: {few(chosen)}")
    if undetermined:
        warn(
            f"the log does not determine all standard deviations: relative errors beyond {UNDETERMINED:g} have "
            f"{'; '.join(undetermined)}. Learn fewer of them (learn=), take a longer log, or add a measurement that "
            "checks them",
            AccuracyWarning,
        )  # fmt: skip


def _names(solver: Solver, learn: str | Sequence[str] | None) -> tuple[str, ...]:
    """The measurements whose noise is learnt. Raises UnknownName, InvalidInput."""
    valid = tuple(m.name for m in solver.problem.noisy)
    names = valid if learn is None else (learn,) if isinstance(learn, str) else tuple(learn)
    for name in names:
        check_among("noisy measurement", name, valid)
    if not names:
        raise InvalidInput("there is nothing to learn: no measurement of the problem is noisy")
    return names
