"""Biases of sensors over a log: unknown constants, random walks, and errors that last for a while.

The value of a sensor with a bias is Y d + b_Y + β = y + ε, or h(q, q̇) + β = y + ε for a sensor of the state. β is an
unknown of whole trajectories; solvers of one state leave it out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.program.arrays import float_array, to_plain

# Limits of standard deviations: products of variances with squares of lengths and masses stay within range (chosen).
STD_MIN, STD_MAX = 1e-60, 1e60
# A number for all components, or one for each.
Numbers: TypeAlias = float | tuple[float, ...]
# Keys of the stored forms of biases.
CONSTANT, WALK, START, MARKOV, TIME = "constant", "random_walk", "std", "gauss_markov", "time"


class BiasModel(ABC):
    """Base class of biases; numbers are one for all components of a measurement, or one for each."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Stored form, as `bias_model_of` takes it."""

    @abstractmethod
    def densities(self, m: int) -> np.ndarray:
        """(m,) density of the noise that drives each of m components [unit/√s]; 0 for constants."""

    def times(self, m: int) -> np.ndarray:
        """(m,) time in which each of m components is forgotten [s]; infinite unless it is."""
        return np.full(m, np.inf)

    @abstractmethod
    def deviations(self, m: int) -> np.ndarray:
        """(m,) prior standard deviation of the bias at the start [unit]; infinite if nothing is known of it."""

    def select(self, numbers: Sequence[int]) -> BiasModel:
        """The bias of the components with these numbers alone, in their order."""
        some = {key: x if isinstance(x, float) else [x[k] for k in numbers] for key, x in self.describe().items()}
        return _from_stored("a selection", some)

    def check(self, name: str, m: int) -> None:
        """Raise InvalidInput unless there is one number, or one for each of the m components of the measurement."""
        for key, x in self.describe().items():
            if not isinstance(x, float) and len(x) != m:
                raise InvalidInput(
                    f"the bias of {name!r} has {len(x)} numbers for {key}, but {name!r} has {m} components: one for "
                    "all of them, or one for each, is needed"
                )


@dataclass(frozen=True)
class Constant(BiasModel):
    """A constant unknown bias: β ~ N(0, std²) at the first instant.

    std: prior standard deviation, in the unit of the measurement; one for all its components, or (m,) one for each.
    Raises InvalidInput if it is not positive and finite.
    """

    std: Numbers

    def __init__(self, std: Any):
        object.__setattr__(self, "std", _positive("standard deviation of a Constant bias", std))

    def describe(self) -> dict[str, Any]:
        return {CONSTANT: to_plain(self.std)}

    def densities(self, m: int) -> np.ndarray:
        return np.zeros(m)

    def deviations(self, m: int) -> np.ndarray:
        return np.array(np.broadcast_to(self.std, m), dtype=float)


@dataclass(frozen=True)
class RandomWalk(BiasModel):
    """A bias that drifts: β(t + Δ) − β(t) ~ N(0, density² Δ), β ~ N(0, std²) at the first instant.

    density: of the walk, in the unit of the measurement by √s: after T seconds it has moved by density √T. std: prior
    standard deviation of its start; None: nothing is known of it. Each one for all components, or (m,) one for each.
    Raises InvalidInput if a number is not positive and finite.
    """

    density: Numbers
    std: Numbers | None = None

    def __init__(self, density: Any, std: Any = None):
        object.__setattr__(self, "density", _positive("density of a RandomWalk", density))
        start = None if std is None else _positive("standard deviation of the start of a RandomWalk", std)
        object.__setattr__(self, "std", start)

    def describe(self) -> dict[str, Any]:
        return {WALK: to_plain(self.density), **({} if self.std is None else {START: to_plain(self.std)})}

    def densities(self, m: int) -> np.ndarray:
        return np.array(np.broadcast_to(self.density, m), dtype=float)

    def deviations(self, m: int) -> np.ndarray:
        return np.array(np.broadcast_to(np.inf if self.std is None else self.std, m), dtype=float)


@dataclass(frozen=True)
class GaussMarkov(BiasModel):
    """An error that lasts for a while: β ~ N(0, std²) at each instant, correlated by exp(−Δ/time) over Δ.

    White noise has another error in each reading. A soft foot, hysteresis or model errors cause the same error for some
    time, so that many readings have less information. std: in the unit of the
    measurement; time: of the correlation [s]. Each one for all components, or (m,) one for each. Raises InvalidInput if
    a number is not positive and finite.

    Source: Gelb (1974), "Applied Optimal Estimation", §3.6 (first-order Gauss-Markov process).
    """

    std: Numbers
    time: Numbers

    def __init__(self, std: Any, time: Any):
        object.__setattr__(self, "std", _positive("standard deviation of a GaussMarkov bias", std))
        object.__setattr__(self, "time", _positive("time of a GaussMarkov bias", time))

    def describe(self) -> dict[str, Any]:
        return {MARKOV: to_plain(self.std), TIME: to_plain(self.time)}

    def densities(self, m: int) -> np.ndarray:
        return np.asarray(self.deviations(m) * np.sqrt(2.0 / self.times(m)))

    def times(self, m: int) -> np.ndarray:
        return np.array(np.broadcast_to(self.time, m), dtype=float)

    def deviations(self, m: int) -> np.ndarray:
        return np.array(np.broadcast_to(self.std, m), dtype=float)


def bias_model_of(name: str, bias: object) -> BiasModel | None:
    """The bias of the measurement `name` out of bias=: one, its stored form, or None. Raises InvalidInput."""
    if bias is None or isinstance(bias, BiasModel):
        return bias
    if isinstance(bias, Mapping):
        return _from_stored(repr(name), bias)
    raise InvalidInput(
        f"the bias of {name!r} is {bias!r}: say how it is unknown, bias=sysdyn.Constant(std) if it stays the same, "
        "bias=sysdyn.RandomWalk(density) if it drifts, or bias=sysdyn.GaussMarkov(std, time) if it lasts for a while; "
        "a known one is to be taken off the values"
    )


def _from_stored(what: str, data: Mapping[Any, Any]) -> BiasModel:
    keys = set(data)
    if keys == {CONSTANT}:
        return Constant(data[CONSTANT])
    if WALK in keys and keys <= {WALK, START}:
        return RandomWalk(data[WALK], data.get(START))
    if keys == {MARKOV, TIME}:
        return GaussMarkov(data[MARKOV], data[TIME])
    raise InvalidInput(
        f"the bias of {what} is {dict(data)!r}: it is {{{CONSTANT} = std}}, {{{WALK} = density, {START} = std}}, or "
        f"{{{MARKOV} = std, {TIME} = time}}"
    )


def _positive(what: str, value: Any) -> Numbers:
    """One number or a tuple of them, each positive, finite and within range. Raises InvalidInput."""
    try:
        x = float_array(what, value)
    except InvalidInput:
        raise InvalidInput(
            f"the {what} is {value!r}: a positive number, or one for each component, is needed"
        ) from None
    if x.ndim > 1 or not x.size:
        raise InvalidInput(f"the {what} has shape {x.shape}: one number, or one for each component, is needed")
    wrong = x[~((x >= STD_MIN) & (x <= STD_MAX))]
    if wrong.size:
        raise InvalidInput(
            f"the {what} is {wrong.flat[0]:g}: it must be positive and finite ({STD_MIN:g} to {STD_MAX:g}); without a "
            "bias leave out bias="
        )
    return float(x) if x.ndim == 0 else tuple(x.tolist())
