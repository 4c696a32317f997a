"""Digits that an estimate keeps under covariances that are far from the declared ones.

A factor common to all covariances leaves the mean unchanged and multiplies posterior covariances, but every rounding is
another, unless it is a power of two: the difference of results is about their error. At 240 random problems with
variances over 8 to 32 decades it came to half of the error at least, wherever more than 1e-12 was lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from sysdyn.errors import LostDigits, at_states, few
from sysdyn.measurements.noise import Noise
from sysdyn.offline.check import VANISHING
from sysdyn.online.states import States
from sysdyn.program.groups import Arrays
from sysdyn.runtime.backend import RunResults

# Factor of a declared variance, either way, beyond which covariances are far and results are checked (chosen).
FAR = 1e4
# Factor of a declared variance, either way, beyond which an order is not used without checks (chosen).
TOO_FAR = 1e8
# Factors of all covariances with which results are checked: no powers of two (chosen).
FACTORS = (1.1, 0.7, 1.37)
# Share of the greatest ratio of variances below which ratios are rounding errors: half a rounding unit.
RATIO_ROUNDING = 1e-16
# Relative difference beyond which results have lost digits; their errors may be three times as large (chosen).
KEPT = 3e-9


class Runs(Protocol):
    """A source of results: a `Runner`, or several behind each other."""

    def results(self, inputs: Arrays, n: int) -> RunResults: ...


class Distance:
    """Distance of the covariances of calls from the declared ones.

    kept: relative difference beyond which results have lost digits.
    """

    def __init__(self, noises: Sequence[Noise]):
        self._noises, self.kept = tuple(noises), KEPT
        self._declared = np.concatenate([x.declared for x in noises]) if noises else np.zeros(0)
        self._full = np.repeat([x.full for x in noises], [x.scalars for x in noises]).astype(bool)
        self._bytes = self._declared.tobytes()
        self._groups = tuple(x.group for x in noises)
        self._inverses = {x.name: _inverse_factor(x) for x in noises if x.full}

    def is_near(self, states: States) -> bool:
        """False if `far` has to look at the covariances of one state."""
        own = states.beside(self._groups)[0]
        if own.tobytes() == self._bytes:  # as in most calls
            return True
        same = own[self._full] == self._declared[self._full]
        ratio = (own / self._declared)[~self._full]
        return bool(same.all() and not (ratio > FAR).any() and not (ratio < 1.0 / FAR).any())

    def far(self, inputs: Arrays, n: int, limit: float = FAR) -> np.ndarray:
        """Numbers of the states at which some variance is beyond `limit` times the declared one, or below its inverse.

        inputs: (size,) or (n, size) by group.
        """
        found = np.zeros(n, dtype=bool)
        for low, high in self._ratios(inputs).values():
            found |= (high > limit) | (low < 1.0 / limit)
        return np.flatnonzero(found)

    def _ratios(self, inputs: Arrays) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """{measurement: (least, greatest) ratio (n or 1,) of variances to declared ones}; without unchanged ones."""
        found = {}
        for noise in self._noises:
            x = np.atleast_2d(inputs[noise.group])
            if not (x == noise.declared).all():
                ratio = self._ratio(noise, x)
                found[noise.name] = ratio.min(axis=1), ratio.max(axis=1)
        return found

    def _ratio(self, noise: Noise, x: np.ndarray) -> np.ndarray:
        """Ratios (n, size) of variances to declared ones; for a full covariance along their common principal axes."""
        if not noise.full:
            return np.asarray(x / noise.declared)
        inverse = self._inverses[noise.name]
        found = np.linalg.eigvalsh(inverse @ noise.matrix(x) @ inverse.T)
        return np.maximum(found, RATIO_ROUNDING * found.max(axis=1, keepdims=True))

    def errors(
        self, executable: Runs, found: Arrays, inputs: Arrays, sizes: Arrays, powers: Mapping[str, float]
    ) -> np.ndarray:
        """Errors (n,), about, of the results `found` (n, m); inf if they are not finite.

        inputs: (n, size) by group. sizes: (n or 1, m or 1), to which errors are relative. powers: of a factor common to
        all covariances, by which results are multiplied.
        """
        worst = np.zeros(len(inputs["q"]))
        for factor in FACTORS:
            other = {noise.group: factor * inputs[noise.group] for noise in self._noises}
            results, status = executable.results({**inputs, **other}, len(worst))
            worst[status != 0] = np.inf
            for name, x in found.items():
                with np.errstate(all="ignore"):
                    difference = np.abs(results[name] / factor ** powers[name] - x)
                    error = np.where(difference == 0.0, 0.0, difference / sizes[name])
                worst = np.maximum(worst, np.where(np.isnan(error), np.inf, error).max(axis=1, initial=0.0))
        return worst

    def lost(
        self, what: str, inputs: Arrays, n: int, states: np.ndarray,
        hint: str = "on_singular='nan' goes on without it",
    ) -> LostDigits:  # fmt: skip
        """Error that names the measurements whose variances cost digits at the first of these states."""
        k, named = int(states[0]), []
        for name, ratios in self._ratios(inputs).items():
            low, high = (float(np.broadcast_to(x, n)[k]) for x in ratios)
            ratio = high if high * low > 1.0 else low
            if max(ratio, 1.0 / ratio) > FAR:
                named.append((max(ratio, 1.0 / ratio), f"{name!r} {ratio:.1e}"))
        words = few([words for _, words in sorted(named, reverse=True)])
        return LostDigits(
            f"{what} would keep fewer than 8 digits at this state{at_states(states, n)}: variances handed in are these "
            f"multiples of the declared ones: {words}. Compile again with covariances of the size that will be used"
            f"{'; ' if hint else ''}{hint}",
            states=tuple(states.tolist()),
        )


def sizes_of_mean(found: Arrays) -> Arrays:
    """Sizes {output: (n, 1)} that errors are relative to: the greatest entry, or the size that counts as zero."""
    size = {name: np.abs(x).max(axis=1, initial=0.0) for name, x in found.items()}
    least = VANISHING * np.max([*size.values()], axis=0)
    size = {name: np.maximum(x, least) for name, x in size.items()}
    return {name: np.where(x > 0.0, x, 1.0)[:, None] for name, x in size.items()}


def _inverse_factor(noise: Noise) -> np.ndarray:
    """L⁻¹ of the declared covariance L L^T."""
    return np.linalg.inv(np.linalg.cholesky(noise.matrix(noise.declared)))
