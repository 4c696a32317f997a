"""Layout of the unknowns of a time step, states and biases, and trajectories of states on their manifold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from sysdyn.estimation.lie_jacobians import evaluated, machine_code
from sysdyn.estimation.process_model import (
    AFTER,
    BIASES,
    ERROR,
    NOISE,
    POSITION,
    RATES,
    TRANSITION,
    ProcessModel,
    Transition,
    between,
)
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.noise import noise_of
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model
from sysdyn.runtime.runner import Runner

# Drift of a constant bias over the log, as a share of its prior standard deviation: negligible, but not singular.
CONSTANT_BIAS_DRIFT = 1e-3
# Prior standard deviation of a bias without prior, in units of the noise of its sensor: half the digits.
UNKNOWN_BIAS_STD = 1e6


class BiasBlock(NamedTuple):
    """Biases of a measurement: their place among all, prior standard deviations, densities and times (m,)."""

    measurement: Measurement
    place: slice
    std: np.ndarray
    density: np.ndarray
    time: np.ndarray


class StateLayout:
    """Layout of the unknowns of a time step: δq (nv,), q̇, q̈ (and q⃛ at order 4), then biases.

    span: length of the log [s], over which constant biases do not drift.
    """

    def __init__(self, problem: Problem, motion: ProcessModel, span: float):
        self.model, self.motion = problem.model, motion
        self.biases: dict[str, BiasBlock] = {}
        at = 0
        for m in problem.biased:
            assert m.drift is not None
            size = len(m.components(self.model))
            std, density = prior_bias_std(m, self.model), m.drift.densities(size)
            density = np.where(density > 0.0, density, CONSTANT_BIAS_DRIFT * std / np.sqrt(max(span, 1e-9)))
            self.biases[m.name] = BiasBlock(m, slice(at, at + size), std, density, m.drift.times(size))
            at += size
        self.n_biases = at

    @property
    def n_states(self) -> int:
        """Entries of δq, q̇, q̈ …."""
        return self.motion.order * self.model.nv

    @property
    def size(self) -> int:
        return self.n_states + self.n_biases

    @cached_property
    def bias_std(self) -> np.ndarray:
        return np.concatenate([np.zeros(0), *(b.std for b in self.biases.values())])

    @cached_property
    def unknown_starts(self) -> np.ndarray:
        """(biases,) bool: biases without prior."""
        kinds = [(b.measurement.drift, len(b.std)) for b in self.biases.values()]
        starts = (~np.isfinite(drift.deviations(m)) for drift, m in kinds if drift is not None)
        return np.concatenate([np.zeros(0, dtype=bool), *starts])

    @cached_property
    def bias_walk(self) -> tuple[np.ndarray, np.ndarray]:
        """Densities and times (biases,)."""
        density, time = ([getattr(b, x) for b in self.biases.values()] for x in ("density", "time"))
        return np.concatenate([np.zeros(0), *density]), np.concatenate([np.zeros(0), *time])

    def set_bias_psd(self, name: str, density: np.ndarray) -> None:
        """Set the densities (m,) of the random walk of a bias."""
        self.biases[name] = self.biases[name]._replace(density=density)
        self.__dict__.pop("bias_walk", None)

    def bias_transition(self, dt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(share of each bias that remains, variance of its random walk) (N, biases) over dt (N,) [s]."""
        density, time = self.bias_walk
        over = np.asarray(dt)[:, None] / time
        fading = np.flatnonzero(time < np.inf)
        spread = np.repeat(dt[:, None], len(time), axis=1)
        if len(fading):
            spread[:, fading] = -0.5 * np.expm1(-2.0 * over[:, fading]) * time[fading]
        return np.exp(-over), density**2 * spread

    @cached_property
    def transition(self) -> Transition:
        """Programs between two states."""
        return between(self.motion, self.n_biases)

    @cached_property
    def _between(self) -> Runner:
        return machine_code(self.transition.program)

    @cached_property
    def _error(self) -> Runner:
        assert self.transition.error is not None
        return machine_code(self.transition.error)

    def process_errors(self, path: StateTrajectory) -> np.ndarray:
        """Errors (N − 1, unknowns) of the process model from one time step to the next."""
        before, after = path.part(slice(0, -1)), path.part(slice(1, None))
        return evaluated(self._error, len(before), **self._pairs(before, after))[ERROR]

    def transitions(
        self, before: StateTrajectory, after: StateTrajectory, density: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Entries (N, …) of Φ and Q between N pairs of states, at the places of `transition`; density: κ (nv,)."""
        walk = self.bias_transition(after.t - before.t)[1]
        inputs = self._pairs(before, after) | {"walk": walk, "squares": np.square(density)}
        matrices = evaluated(self._between, len(before), **inputs)
        return matrices[TRANSITION], matrices[NOISE]

    def _pairs(self, before: StateTrajectory, after: StateTrajectory) -> dict[str, np.ndarray]:
        """Inputs of programs between states."""
        dt, inputs = after.t - before.t, dict[str, np.ndarray]()
        for x, when in ((before, ""), (after, AFTER)):
            inputs |= {POSITION + when: x.q, RATES + when: x.rates.reshape(len(x), -1), BIASES + when: x.biases}
        return inputs | {"dt": dt[:, None], "left": self.bias_transition(dt)[0]}

    def transport(self, P: np.ndarray, step: np.ndarray, back: bool = False) -> np.ndarray:
        """Covariance P (size, size) after a state is retracted by a step (size,); back: before it, from P after it."""
        nv, found = self.model.nv, P.copy()
        if self.motion.groups:
            J = self.motion.right_jacobian(step[None, :nv])[0]
            J = np.linalg.inv(J) if back else J
            found[:nv] = J @ found[:nv]
            found[:, :nv] = found[:, :nv] @ J.T
        return found

    def column(self, name: str, k: int) -> int:
        """Index of an unknown: ("q", k), ("qd", k), ("qdd", k), or ("y:NAME", k) for a bias."""
        nv = self.model.nv
        if name in ("q", "qd", "qdd"):
            return ("q", "qd", "qdd").index(name) * nv + k
        return self.n_states + self.biases[name.partition(":")[2]].place.start + k


def declared_std(m: Measurement, model: Model) -> np.ndarray:
    """Declared standard deviations (m,) of a measurement with noise."""
    noise = noise_of(m, model)
    return np.asarray(np.sqrt(np.diagonal(noise.matrix(noise.declared))))


def prior_bias_std(m: Measurement, model: Model) -> np.ndarray:
    """Standard deviations (m,) of the initial bias of a measurement."""
    assert m.drift is not None
    std = m.drift.deviations(len(m.components(model)))
    return np.where(np.isfinite(std), std, UNKNOWN_BIAS_STD * declared_std(m, model))


@dataclass(frozen=True)
class StateTrajectory:
    """States at N time steps: t (N,) [s], q (N, nq), rates (N, p − 1, nv), biases (N, biases)."""

    layout: StateLayout
    t: np.ndarray
    q: np.ndarray
    rates: np.ndarray
    biases: np.ndarray

    def __len__(self) -> int:
        return len(self.t)

    def part(self, chosen: slice | np.ndarray) -> Self:
        """The states at some of the time steps."""
        return type(self)(self.layout, self.t[chosen], self.q[chosen], self.rates[chosen], self.biases[chosen])

    def retract(self, step: np.ndarray) -> Self:
        """x ⊕ step for steps (N, unknowns): positions on their manifold, all others by addition."""
        own, nv, n = self.layout, self.layout.model.nv, len(self)
        rates = self.rates + step[:, nv : own.n_states].reshape(n, -1, nv)
        q = own.model.integrate(self.q, step[:, :nv])
        return type(self)(own, self.t, q, rates, self.biases + step[:, own.n_states :])

    def local_coordinates(self, origin: Self) -> np.ndarray:
        """Steps (N, unknowns) from the states of `origin` to these; the inverse of `retract`."""
        q, rates = self.layout.model.difference(origin.q, self.q), self.rates - origin.rates
        return np.concatenate([q, rates.reshape(len(self), -1), self.biases - origin.biases], axis=1)

    def state(self) -> dict[str, np.ndarray]:
        """q, qd and qdd as inputs of programs."""
        return {"q": self.q, "qd": self.rates[:, 0], "qdd": self.rates[:, 1]}
