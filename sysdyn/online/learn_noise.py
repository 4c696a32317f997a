"""Covariances of sensors and models learnt from logged measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.online.arguments import Named
from sysdyn.online.solver import Solver


class Learned(NamedTuple):
    """Result of `learn_noise`.

    noise            {name: standard deviations (m,) or covariance (m, m)}: what solvers take as noise=
    log_likelihood   of all states before each iteration; it never falls
    converged        the last iteration changed it by less than the tolerance
    """

    noise: dict[str, np.ndarray]
    log_likelihood: np.ndarray
    converged: bool


def learn_noise(
    solver: Solver, q: ArrayLike, qd: ArrayLike, *known: ArrayLike, y: Named | ArrayLike | None = None,
    learn: str | Sequence[str] | None = None, noise: Named | None = None, active: Named | None = None,
    iterations: int = 200, tolerance: float = 1e-6, parameters: Named | None = None, on_singular: str | None = None,
    threads: int | None = None, **quantities: ArrayLike,
) -> Learned:  # fmt: skip
    """Maximum-likelihood covariances of noisy measurements, priors and equations, from N states that share them.

        E:  d ~ N(d̂, C) at each state        M:  Σ = mean of (r r^T + Y C Y^T),  r = y − ŷ

    Arguments are those of a call of the solver, with one batch axis; learn: the names to learn (default all), the
    others stay. noise: the covariances to begin with, by default those declared. Standard deviations are learnt as
    standard deviations, a matrix as a matrix. A component that no other equation checks keeps its covariance, and the
    sum of covariances that cannot be told apart is shared out as at the beginning. It stops where an iteration changes
    the log-likelihood by less than tolerance times the number of states. Dempster, Laird and Rubin (1977). Raises
    InvalidInput, UnknownName.
    """
    names = _names(solver, learn)
    if not (isinstance(iterations, int) and iterations >= 1):
        raise InvalidInput(f"iterations is {iterations!r}, but an integer ≥ 1 is needed")
    current: dict[str, ArrayLike] = dict(noise or {})
    history: list[float] = []
    converged = False
    for _ in range(iterations):
        solution = solver(
            q, qd, *known, y=y, noise=current, active=active, parameters=parameters, on_singular=on_singular,
            threads=threads, **quantities,
        )  # fmt: skip
        history.append(float(np.sum(solution.log_likelihood())))
        if len(history) > 1 and history[-1] - history[-2] <= tolerance * solution.ok.size:
            converged = True
            break
        current = {**current, **solution.expected_noise(names)}
    return Learned({name: np.asarray(x) for name, x in current.items()}, np.array(history), converged)


def _names(solver: Solver, learn: str | Sequence[str] | None) -> tuple[str, ...]:
    """The measurements whose noise is learnt. Raises UnknownName, InvalidInput."""
    valid = tuple(m.name for m in solver.problem.noisy)
    names = valid if learn is None else (learn,) if isinstance(learn, str) else tuple(learn)
    for name in names:
        if name not in valid:
            raise UnknownName("noisy measurement", name, valid)
    if not names:
        raise InvalidInput("there is nothing to learn: no measurement of the problem is noisy")
    return names
