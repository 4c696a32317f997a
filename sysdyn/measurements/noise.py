"""Gaussian noise of measurements and of the model, and priors: equations that hold up to errors of known covariance.

An equation with noise is Y d + b_Y = y + ε, ε ~ N(0, Σ). Σ is declared with the measurement, block by block, as a
standard deviation for all its components, one for each, or a covariance matrix; it can be replaced with every call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sysdyn.errors import InvalidInput, ProblemError, UnknownName
from sysdyn.measurements.bias_models import STD_MAX, STD_MIN, BiasModel, bias_model_of
from sysdyn.measurements.input_names import noise_group
from sysdyn.measurements.measurement import Constraint, Measurement, Names, changed
from sysdyn.measurements.variables import Layout
from sysdyn.model import Model
from sysdyn.program.arrays import float_array

# Greatest difference of opposite entries of a symmetric covariance, relative to the standard deviations: 4,500 rounding
# units (chosen).
SYMMETRIC = 1e-12
# Factor of a declared variance, either way, beyond which an order that was checked for it may lose digits (chosen).
FAR = 1e4
EQUATIONS = ("a", "f", "tau")  # Equations of motion that can have noise: c(a), c(f) and c(τ).


@dataclass(frozen=True)
class Noise:
    """Covariance of one measurement of m components: variances (m,) or, if it is full, m (m + 1) / 2 numbers.

    The numbers of a full one are its lower triangle, row by row. declared: the numbers declared with the measurement.
    """

    name: str
    size: int
    full: bool
    declared: np.ndarray

    @property
    def group(self) -> str:
        """Name of the group of program inputs that holds the numbers."""
        return noise_group(self.name)

    @property
    def scalars(self) -> int:
        return self.size * (self.size + 1) // 2 if self.full else self.size

    def entry(self, numbers: np.ndarray, i: int, j: int):
        """Σ_ij (…) of its numbers (…, scalars) of any scalar type; 0 if it is none of them."""
        if self.full:
            return numbers[..., max(i, j) * (max(i, j) + 1) // 2 + min(i, j)]
        return numbers[..., i] if i == j else 0.0

    def matrix(self, numbers: np.ndarray) -> np.ndarray:
        """Σ (…, m, m) of its numbers (…, scalars)."""
        result = np.zeros((*numbers.shape[:-1], self.size, self.size))
        rows, columns = np.tril_indices(self.size) if self.full else (np.arange(self.size),) * 2
        result[..., rows, columns] = result[..., columns, rows] = numbers
        return result

    def is_far(self, numbers: np.ndarray, factor: float = FAR) -> np.ndarray:
        """(…) bool: True if a variance, along a principal axis, is far from the declared one; numbers (…, scalars)."""
        ratio = numbers / self.declared if not self.full else self._ratios(numbers)
        return np.asarray(((ratio > factor) | (ratio < 1.0 / factor)).any(axis=-1))

    def _ratios(self, numbers: np.ndarray) -> np.ndarray:
        """Variances (…, m) along the common principal axes of a full covariance and the declared one, as ratios."""
        inverse = np.linalg.inv(np.linalg.cholesky(self.matrix(self.declared)))
        return np.linalg.eigvalsh(inverse @ self.matrix(numbers) @ inverse.T)

    def numbers(self, value, least: float = STD_MIN) -> np.ndarray:
        """Numbers (…, scalars) from a standard deviation, one for each component (…, m), or covariances (…, m, m).

        least: the least standard deviation; a call may give 0 for components of an independent noise, which are
        exact then. Raises InvalidInput naming the entry that is not positive, not symmetric or not finite.
        """
        x = _real(self.name, value)
        m = self.size
        if not self.full:
            if x.ndim and x.shape[-1] != m:
                raise InvalidInput(
                    f"the noise of {self.name!r} has shape {x.shape}: a standard deviation, or one for each of its "
                    f"{m} components, is needed (it was declared without correlations)"
                )
            x = np.broadcast_to(x, (*x.shape[:-1], m))
            positive = x >= least if least == 0.0 else x > 0.0
            if not positive.all():
                k = np.argwhere(~positive)[0]
                raise InvalidInput(
                    f"the standard deviation of component {k[-1]} of {self.name!r} is {x[tuple(k)]}: it must be "
                    "positive; for an exact equation leave out noise="
                )
            _check_range(self.name, x[x != 0.0])
            return x * x
        if x.shape[-2:] != (m, m):
            raise InvalidInput(f"the covariance of {self.name!r} has shape {x.shape}, but (…, {m}, {m}) is needed")
        checked = _checked_covariance(self.name, x)
        _check_range(self.name, np.sqrt(np.einsum("...ii->...i", checked)))
        return checked[..., *np.tril_indices(m)]


def _check_range(name: str, deviations: np.ndarray) -> None:
    """Raise InvalidInput for standard deviations beyond STD_MIN or STD_MAX."""
    size = deviations[(deviations < STD_MIN) | (deviations > STD_MAX)]
    if size.size:
        raise InvalidInput(
            f"the noise of {name!r} has a standard deviation of {size.flat[0]:.3g}, but {STD_MIN:g} to {STD_MAX:g} "
            "are computed with: choose other units, or leave the measurement out or exact"
        )


def _real(name: str, value) -> np.ndarray:
    try:
        x = float_array("it", value)
    except InvalidInput:
        raise InvalidInput(
            f"the noise of {name!r} is {value!r}: a standard deviation or covariance is needed"
        ) from None
    if not np.isfinite(x).all():
        raise InvalidInput(f"the noise of {name!r} has an entry that is {x[~np.isfinite(x)][0]}: it must be finite")
    return x


def _checked_covariance(name: str, x: np.ndarray) -> np.ndarray:
    size = np.sqrt(np.abs(np.einsum("...ii->...i", x)))
    difference = np.abs(x - np.swapaxes(x, -1, -2))
    wrong = np.argwhere(difference > SYMMETRIC * size[..., :, None] * size[..., None, :])
    if len(wrong):
        i, j = (int(k) for k in wrong[0][-2:])
        at = tuple(wrong[0][:-2])
        raise InvalidInput(
            f"the covariance of {name!r} is not symmetric: entry ({i}, {j}) is {x[*at, i, j]:g}, "
            f"entry ({j}, {i}) is {x[*at, j, i]:g}"
        )
    eigenvalues = np.linalg.eigvalsh(x)
    if not (eigenvalues > 0.0).all():
        raise InvalidInput(
            f"the covariance of {name!r} is not positive definite: its least eigenvalue is {eigenvalues.min():.3g}"
        )
    return x


def noise_of(m: Measurement, model: Model) -> Noise:
    """The declared noise of a measurement. Raises InvalidInput if it is no covariance."""
    size = len(m.components(model))
    x = _real(m.name, m.noise)
    if x.ndim > 2:
        raise InvalidInput(f"the noise of {m.name!r} has shape {x.shape}: declare that of one state")
    noise = Noise(m.name, size, x.ndim == 2, np.empty(0))
    return Noise(m.name, size, noise.full, noise.numbers(x))


def Prior(m: Measurement, name: str | None = None, bias: BiasModel | None = None) -> Measurement:
    """Turn a noisy measurement into a prior: an expectation of quantities before anything is measured.

    Parameters
    ----------
    m : Measurement
        The measurement with its noise, such as ``JointTorque("all", noise=30.0)``. Its value is the prior mean, zero
        unless a call gives one as ``y={name: …}``.
    name : str, optional
        Default ``Prior(NAME)`` with the name of the measurement.
    bias : Constant, RandomWalk or GaussMarkov, optional
        Unknown bias over a log, if the measurement has none.

    Returns
    -------
    Measurement
        A copy of the measurement whose attribute `prior` is true.

    Raises
    ------
    InvalidInput
        If `m` is no measurement.
    ProblemError
        If it has no noise, or two biases.
    """
    if isinstance(m, Constraint) and m.noise is None:
        raise ProblemError(
            f"Prior is for measurements with noise, but the wrench of {m.name!r} follows from its motion, which is "
            "exact: state both by themselves, Prior(FrameAcceleration(…, noise=…)) for the motion and "
            "ContactWrench(…, noise=…) for the wrench"
        )
    _check_noisy("Prior", m, name)
    if bias is not None and m.drift is not None:
        raise ProblemError(f"the bias of {m.name!r} is given twice: to it and to its Prior")
    drift = m.drift if bias is None else bias_model_of(m.name, bias)
    return changed(m, name=name or f"Prior({m.name})", drift=drift, prior=True, selectable=False)


def Switchable(m: Measurement, name: str | None = None, unless: str | None = None) -> Measurement:
    """Make a measurement with noise, or an exact constraint such as a Contact, switchable on and off at each state.

    Parameters
    ----------
    m : Measurement
        A measurement with noise, or an exact constraint.
    name : str, optional
        Default the name of the measurement.
    unless : str, optional
        Name of a `Stance`. In `smooth` and `filter` the measurement is active whenever the stance is inactive, to state
        for example that a swing foot has no contact force:
        ``Switchable(ExternalWrench("l_foot", noise=1.0), "l_foot in the air", unless="l_sole")``.

    Returns
    -------
    Measurement
        A copy of the measurement whose attribute `switchable` is true.

    Raises
    ------
    InvalidInput
        If `m` is no measurement, or a sensor of the state has `unless`.
    ProblemError
        If it is neither noisy nor a constraint, or is a constraint with noise.

    Notes
    -----
    A call switches it by ``active={name: …}``, 0 or 1. It is on by default, and in functions without an argument
    `active`.

    A measurement with noise is switched by component, (…, m), or as a whole, (…), without recompilation. A call gives
    its value or its switches; without a value it is off, unless its value is zero by default, such as the motion of a
    foot at rest. Values that are off may be anything, such as NaN. A contact that opens and closes is stated by two
    measurements: a switchable acceleration, on while it is closed, and a switchable external wrench, on while it is
    open.

    An exact constraint is switched as a whole, (…), in problems without noise; its wrench is zero while it is off.
    `sysdyn.compile` makes a `SwitchingSolver`, with a kernel for each combination of switches; `Problem.mode` is the
    problem of one combination.
    """
    _check_noisy("Switchable", m, name)
    if unless is not None and (not isinstance(unless, str) or m.noise is None or m.of_state):
        raise InvalidInput(
            f"unless of {name or m.name!r} is {unless!r}: the name of a Stance, for a measurement with noise that is "
            "no sensor of the state"
        )
    return changed(m, name=name or m.name, unless=unless, switchable=True, selectable=False)


def _check_noisy(kind: str, m: Measurement, name: object) -> None:
    """Raise InvalidInput or ProblemError for a measurement that cannot be a prior or switchable."""
    if not isinstance(m, Measurement) or isinstance(m, ModelNoise):
        raise InvalidInput(f"a {kind} is of a measurement such as JointTorque('all', noise=30.0), not {m!r}")
    if name is not None and not isinstance(name, str):
        raise InvalidInput(f"the name of a {kind} is a text, not {name!r}")
    if isinstance(m, Constraint) and m.noise is not None:
        raise ProblemError(
            f"{kind} is not for {m.name!r}: its own noise says what is expected of its wrench, and "
            f"noise={{{m.name!r}: …}} of a call says it state by state, near zero where there is no contact"
        )
    if m.noise is None and not isinstance(m, Constraint):
        raise ProblemError(f"{kind} needs noise, but {m.name!r} is exact: give it a standard deviation, noise=…")


class ModelNoise(Measurement):
    """Equations of motion with Gaussian noise: errors of the model, such as of its masses.

    equations  "all", or some of "a" (propagation of accelerations [rad/s², m/s²]), "f" (Newton-Euler [N m, N]) and
               "tau" (projection on the joint axis [N m or N])
    bodies     "all", one name, or several
    noise      standard deviation or covariance of the equations, body by body
    """

    optional = True

    def __init__(self, equations: Names = "all", bodies: Names = "all", noise=None, name: str | None = None):
        chosen = (equations,) if isinstance(equations, str) else tuple(equations)
        self.equations = EQUATIONS if chosen == ("all",) else chosen
        for x in self.equations:
            if x not in EQUATIONS:
                raise UnknownName("equation of a ModelNoise:", x, ("all", *EQUATIONS))
        self.bodies = (bodies,) if isinstance(bodies, str) else tuple(bodies)
        self.name = name or f"ModelNoise({','.join(chosen)}{'' if self.bodies == ('all',) else f': {self.bodies}'})"
        if noise is None:
            raise ProblemError(f"{self.name!r} has no noise: give it a standard deviation, noise=…")
        self.noise = noise

    def blocks(self, model: Model) -> tuple[tuple[str, int], ...]:
        """(equation, body) of each noisy block of rows, in the order of the noise."""
        everywhere = self.bodies == ("all",)
        chosen = range(model.nb) if everywhere else [model.body_index(name) for name in self.bodies]
        return tuple((x, i) for i in chosen for x in self.equations)

    def components(self, model: Model) -> tuple[str, ...]:
        layout = Layout(model)
        return tuple(f"c:{name}" for block in self.blocks(model) for name in layout.scalar_names(*block))

    def describe(self, model: Model | None = None) -> dict | None:
        return {"type": "ModelNoise", "name": self.name, "equations": list(self.equations),
                "bodies": list(self.bodies)}  # fmt: skip

    def __repr__(self) -> str:
        return f"<{self.name}>"
