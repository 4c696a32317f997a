"""Identification of inertial parameters, rotor inertias and joint friction from logged motions and torques.

τ = Y π is linear in the parameters (`joint_torque_regressor`), but columns of Y are linearly dependent, for all motions
or for those of a log. Columns that depend on preceding ones are omitted, and their parameters are merged with those of
the others: base parameters, estimated by least squares (Gautier, Numerical calculation of the base inertial parameters
of robots, J. Robotic Systems 8, 1991).

Residuals of successive samples are correlated, because model errors and filtering errors vary slowly. The covariance
C = (Σ_j Y_j^T Y_j / σ_j²)⁻¹ for independent errors becomes C (Σ_j κ_j Y_j^T Y_j / σ_j²) C, with the integrated
autocorrelation time κ_j of the residuals of joint j.

The values are the best fit among physically consistent parameters, which have positive semidefinite pseudo-inertias P
(Wensing, Kim, Slotine, Linear matrix inequalities for physically consistent inertial parameter identification, RA-L 3,
2018). Directions that the log does not determine stay as close to the declared parameters as possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import scipy.fft
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, UnknownName, check_among
from sysdyn.model import Model, inertial_parameters
from sysdyn.model.inertia import (
    PARAMETER_UNITS,
    PARAMETERS,
    parameters,
    pseudo_inertia,
    spatial_inertia,
    with_parameters,
)
from sysdyn.model.model import COULOMB_VELOCITY
from sysdyn.model.quantities import QUANTITY
from sysdyn.program.arrays import float_array
from sysdyn.program.groups import Groups
from sysdyn.reference import compile_regressor, rnea

# Joint parameters by the names of the model's arrays, with their units for revolute and prismatic joints.
JOINT_UNITS = {"armature": ("kg m²", "kg"), "damping": ("N m s/rad", "N s/m"), "friction": ("N m", "N")}
# Forms of the names of parameters.
KINDS = ("inertia:BODY", *(f"{x}:JOINT" for x in JOINT_UNITS))
# States whose rows of Y are in memory at a time (chosen).
CHUNK = 4096
# Share of a column orthogonal to others, and coefficients in typical sizes, that count as rounding (chosen).
RANK_TOL = 1e-7
# Duality gap at which the barrier method ends, relative to the sum of squares or to 1 (chosen).
GAP = 1e-7
# Limit of Newton steps per barrier weight, where rounding errors prevent convergence (chosen).
MAX_NEWTON_STEPS = 50
# Window of the sum of autocorrelations, in units of the sum (Sokal 1997), and the least significant excess of the sum
# over 1, its value for independent residuals, in standard deviations.
WINDOW, SIGNIFICANT = 5.0, 3.0
# Largest share of a joint's independent residuals that the fitted parameters may use up (chosen).
MAX_LEVERAGE = 0.5
# Iterations that estimate unknown standard deviations of τ, each with the weights of the previous one (chosen).
NOISE_ROUNDS = 3

# Indices k of parameters, and matrices B: Σ_k x_k B_k is positive semidefinite for physically consistent parameters.
ConsistencyBlock = tuple[np.ndarray, np.ndarray]


class ParameterCombination(NamedTuple):
    """Linear combination Σ coefficient · parameter: a base parameter, or a direction that the log does not determine.

    Attributes
    ----------
    terms : tuple
        ((name, coefficient), …). The first coefficient is 1.
    unit : str
        Unit of the first parameter.
    value, std : float
        Value and standard deviation of a base parameter.
    structural : bool
        True if no motion at all determines the direction.
    """

    terms: tuple[tuple[str, float], ...]
    unit: str
    value: float = np.nan
    std: float = np.inf
    structural: bool = False

    def __str__(self) -> str:
        terms = [("−" if c < 0.0 else "+", f"{abs(c):.4g} ".removeprefix("1 ") + x) for x, c in self.terms]
        return " ".join([terms[0][1], *(f"{sign} {x}" for sign, x in terms[1:])])


@dataclass(frozen=True, kw_only=True, eq=False)
class Identified:
    """Result of `identify`; result["inertia:BODY"] are the values of a group for `parameters=` of a solver.

    Attributes
    ----------
    model : Model
        The robot with these parameters.
    names, units : tuple of str
        Of the p scalars.
    values : (p,) array
        Physically consistent parameters.
    change : (p,) array
        Difference from the declared parameters, such as a payload.
    std : (p,) array
        Standard deviations; inf if the log does not determine a scalar individually.
    combinations : tuple of ParameterCombination
        The r base parameters, not constrained to be physically consistent: all that the log determines.
    covariance : (r, r) array
        Of the base parameters, for errors that are independent between joints and correlated in time.
    correlation : (nv,) array
        Integrated autocorrelation time of the residuals in samples: N / correlation of them are independent.
    unidentifiable : tuple of ParameterCombination
        The p − r directions in parameter space that change no torque of the log.
    noise : (nv,) array
        Standard deviations of τ, declared or estimated.
    chi2, redundancy : float, int
        Σ (error of τ / noise)² of the base parameters, and its expectation.
    physically_consistent : bool
        True if physically consistent parameters have these base parameters.
    """

    model: Model
    names: tuple[str, ...]
    units: tuple[str, ...]
    values: np.ndarray
    change: np.ndarray
    std: np.ndarray
    combinations: tuple[ParameterCombination, ...]
    covariance: np.ndarray
    correlation: np.ndarray
    unidentifiable: tuple[ParameterCombination, ...]
    noise: np.ndarray
    chi2: float
    redundancy: int
    physically_consistent: bool
    groups: dict[str, slice] = field(repr=False)

    def __getitem__(self, group: str) -> np.ndarray:
        check_among("identified group", group, self.groups)
        return self.values[self.groups[group]]

    def __repr__(self) -> str:
        single = np.flatnonzero(np.isfinite(self.std))
        width = max(map(len, self.names))
        lines = [
            f"{len(self.names)} parameters of {self.model.name!r}: {len(single)} identified individually, "
            f"{len(self.combinations) - len(single)} in combination, {len(self.unidentifiable)} not at all",
            *(f"  {self.names[k]:{width}}  {self.values[k]:.4g} ± {self.std[k]:.2g} {self.units[k]}" for k in single),
            *(f"  {x} = {x.value:.4g} ± {x.std:.2g} {x.unit}" for x in self.combinations if len(x.terms) > 1),
            *(f"  not determined by {'any motion' if x.structural else 'this log'}: {x}" for x in self.unidentifiable),
        ]
        if not self.physically_consistent:
            lines.append("  the best fit is not physically consistent: the values are the best fit that is")
        return "\n".join(lines)


def identify(
    model: Model, q: ArrayLike, qd: ArrayLike, qdd: ArrayLike, tau: ArrayLike,
    parameters: str | Sequence[str] | None = None, *, fx: ArrayLike | None = None, noise: ArrayLike | None = None,
    added: bool = False,
) -> Identified:  # fmt: skip
    """Identify parameters from N states and their torques: min Σ ((τ − ID(q, q̇, q̈, fx; π)) / noise)².

    Parameters
    ----------
    q, qd, qdd : (N, nq), (N, nv), (N, nv) arrays
        Filtered states in order of time, with about equal time steps. Their errors count as errors of τ. Standard
        deviations account for the autocorrelation of the residuals. Independent states may have any order.
    tau : (N, nv) array, N m or N
        Torques of the motors. They include damping and friction if one of these is identified.
    parameters
        "inertia:BODY", "armature:JOINT", "damping:JOINT", "friction:JOINT" (see `Model.passive_torque`), one or
        several. Default: the inertias of all bodies. Other parameters are those of the model.
    fx : (N, nb, 6) array, N m and N
        External wrenches in the axes of the bodies. Default: none.
    noise : float or (nv,) array
        Standard deviation of τ; inf if τ of a joint is unknown. Default: estimated from the residuals.
    added
        True if the change of the parameters must be physically consistent by itself, as for a payload.

    Raises
    ------
    InvalidInput, UnknownName

    References
    ----------
    Gautier (1991), base parameters. Wensing, Kim and Slotine (2018), physical consistency.
    """
    if model.closures:
        raise InvalidInput(
            f"identify is of trees, and {model.name!r} has couplings or loops: see Model.replace(closures=)"
        )
    unknowns = _ParameterSet(model, parameters)
    p, nv = len(unknowns.names), model.nv
    states = _states(model, {"q": q, "qd": qd, "qdd": qdd, "tau": tau, "fx": fx})
    N = len(states[0])
    sigma = np.ones(nv) if noise is None else _standard_deviations(noise, nv)
    measured = np.isfinite(sigma)
    if N * measured.sum() < p:
        raise InvalidInput(f"{N * measured.sum()} torques do not determine {p} parameters: more states are needed")

    random = unknowns.factors(*model.random_state(seed=0, batch=max(20, 4 * p // nv)))
    base, structural_null_space = _independent(
        _weighted(random, np.where(measured, 1.0, np.inf)), unknowns.scale, range(p)
    )
    factors = unknowns.factors(*states)
    for _ in range(NOISE_ROUNDS if noise is None else 0):
        x = _solution(_weighted(factors, sigma), base)
        residual = np.linalg.norm(factors[:, :, base] @ x - factors[:, :, p], axis=1)
        least = 1e-12 * np.maximum(1.0, np.linalg.norm(factors[:, :, p], axis=1))  # lower bound for exact torques
        sigma = np.maximum(residual, least) / np.sqrt(max(N - len(base) / nv, 1.0))
    R = _weighted(factors, sigma)
    columns, data_null_space = _independent(R, unknowns.scale, base)
    null_space = np.hstack([structural_null_space, data_null_space])
    x, U = _solution(R, columns), _triangle(R[:, columns])
    residuals = unknowns.residuals(x, columns, *states)
    covariance, correlation = _covariance(factors[:, :, columns] / sigma[:, None, None], U, residuals, measured)
    deviations = np.sqrt(np.diagonal(covariance))

    others = [k for k in range(p) if k not in base] + [k for k in base if k not in columns]
    K = np.zeros((len(columns), p))  # base parameters = K π
    K[:, columns] = np.eye(len(columns))
    K[:, others] = -np.linalg.solve(null_space[others].T, null_space[columns].T).T
    K[np.abs(K) * unknowns.scale <= RANK_TOL * unknowns.scale[columns, None]] = 0.0
    change, consistent = _project_consistent(unknowns, U @ K, U @ x, null_space, added)
    values, std = unknowns.declared + change, np.full(p, np.inf)
    single = np.count_nonzero(K, axis=1) == 1
    std[np.array(columns, dtype=int)[single]] = deviations[single]
    combinations = tuple(
        ParameterCombination(unknowns.terms(row, k), unknowns.units[k], value, deviation)
        for k, row, value, deviation in zip(columns, K, K @ unknowns.declared + x, deviations, strict=True)
    )
    unidentifiable = tuple(
        ParameterCombination(unknowns.terms(direction, k), unknowns.units[k], structural=k not in base)
        for k, direction in zip(others, null_space.T, strict=True)
    )
    return Identified(
        model=unknowns.model_with(values), names=unknowns.names, units=unknowns.units, values=values, change=change,
        std=std, combinations=combinations, covariance=covariance, correlation=correlation,
        unidentifiable=unidentifiable, noise=sigma, chi2=float(np.sum((R[:, columns] @ x - R[:, p]) ** 2)),
        redundancy=int(N * measured.sum()) - len(columns), physically_consistent=consistent, groups=unknowns.groups,
    )  # fmt: skip


class _ParameterSet:
    """Parameters to identify: names, units, declared values (p,), typical sizes `scale` (p,), and {group: scalars}."""

    def __init__(self, model: Model, parameters: str | Sequence[str] | None):
        names = [f"inertia:{body}" for body in model.body_names] if parameters is None else parameters
        groups = [names] if isinstance(names, str) else list(dict.fromkeys(names))
        if not groups:
            raise InvalidInput(f"there is nothing to identify: name some of {', '.join(KINDS)}")
        self.model, self.regressor = model, compile_regressor(model)
        self.groups: dict[str, slice] = {}
        self.bodies: dict[int, slice] = {}
        self.joints: dict[tuple[str, int], int] = {}  # {(kind, degree of freedom): scalar}
        table: list[tuple[str, str, float, float]] = []
        revolute = [unit == "rad/s²" for unit in QUANTITY["qdd"].units(model)]
        for group in groups:
            kind, _, owner = group.partition(":") if isinstance(group, str) else ("", "", "")
            start = len(table)
            if kind == "inertia" and owner:
                i = model.body_index(owner)
                self.bodies[i] = slice(start, start + 10)
                labels, declared = [f"{owner}.{x}" for x in PARAMETERS], inertial_parameters(model)[10 * i :][:10]
                sizes = np.abs(_parameters(np.ones((4, 4)), _size(model, i)))
                table += zip(labels, PARAMETER_UNITS, declared.tolist(), sizes.tolist(), strict=True)
            elif kind in JOINT_UNITS and owner:
                for k in range(model.nv)[model.v_slice(model.joint_index(owner))]:
                    self.joints[kind, k] = len(table)
                    value = float(getattr(model, kind)[k])
                    unit = JOINT_UNITS[kind][0 if revolute[k] else 1]
                    table.append((f"{model.dof_names[k]}.{kind}", unit, value, value or 1.0))
            else:
                raise UnknownName("parameter to identify", str(group), KINDS)
            self.groups[group] = slice(start, len(table))
        self.names, self.units, values, scale = zip(*table, strict=True)
        self.declared, self.scale = np.array(values), np.array(scale)
        self.dissipates = any(kind != "armature" for kind, _ in self.joints)

    def factors(self, q, qd, qdd, tau=None, fx=None) -> np.ndarray:
        """Triangular factors R (nv, p + 1, p + 1), one per degree of freedom: R^T R = [Y e]^T [Y e] over all states.

        e = τ − ID(q, q̇, q̈, fx) with the declared parameters; 0 if τ is None.
        """
        nv, p = self.model.nv, len(self.names)
        R = np.zeros((nv, p + 1, p + 1))
        for rows in self._rows(q, qd, qdd, tau, fx):
            for k in range(nv):
                R[k] = _triangle(np.vstack([R[k], rows[:, k]]))
        return R

    def residuals(self, x: np.ndarray, columns: list[int], q, qd, qdd, tau, fx) -> np.ndarray:
        """e − Y[:, columns] x (N, nv)."""
        rows = self._rows(q, qd, qdd, tau, fx)
        return np.concatenate([part[:, :, -1] - part[:, :, columns] @ x for part in rows])

    def _rows(self, q, qd, qdd, tau, fx) -> Iterator[np.ndarray]:
        """Yield [Y e] (n, nv, p + 1) for successive chunks of states."""
        p = len(self.names)
        for start in range(0, len(q), CHUNK):
            part = slice(start, start + CHUNK)
            rows = np.zeros((len(q[part]), self.model.nv, p + 1))
            rows[:, :, :p] = self._columns(q[part], qd[part], qdd[part])
            if tau is not None:
                rows[:, :, p] = tau[part] - rnea(self.model, q[part], qd[part], qdd[part], fx[part])
                if self.dissipates:
                    rows[:, :, p] += self.model.passive_torque(qd[part])
            yield rows

    def _columns(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray) -> np.ndarray:
        """Regressor Y (N, nv, p)."""
        Y = np.zeros((len(q), self.model.nv, len(self.names)))
        full = self.regressor(q, qd, qdd)
        for i, scalars in self.bodies.items():
            Y[:, :, scalars] = full[:, :, 10 * i : 10 * i + 10]
        rates = {"armature": qdd, "damping": qd, "friction": qd / np.sqrt(qd * qd + COULOMB_VELOCITY**2)}
        for (kind, k), column in self.joints.items():
            Y[:, k, column] = rates[kind][:, k]
        return Y

    def blocks(self) -> list[ConsistencyBlock]:
        """Matrices that must be positive semidefinite: scaled pseudo-inertias of bodies, and parameters of joints."""
        blocks = []
        for i, scalars in self.bodies.items():
            size = _size(self.model, i)
            units = [pseudo_inertia(with_parameters(e).astype(float)) / np.outer(size, size) for e in np.eye(10)]
            blocks.append((np.arange(scalars.start, scalars.stop), np.array(units)))
        return blocks + [(np.array([k]), np.full((1, 1, 1), 1.0 / self.scale[k])) for k in self.joints.values()]

    def interior(self) -> np.ndarray:
        """Parameters (p,) with positive definite pseudo-inertias."""
        x = np.array(self.scale)
        for i, scalars in self.bodies.items():
            x[scalars] = _parameters(np.eye(4), _size(self.model, i))
        return x

    def model_with(self, values: np.ndarray) -> Model:
        arrays = {kind: getattr(self.model, kind).copy() for kind in JOINT_UNITS}
        for (kind, k), scalar in self.joints.items():
            arrays[kind][k] = max(values[scalar], 0.0)
        inertias = self.model.inertias.copy()
        for i, scalars in self.bodies.items():
            inertias[i] = with_parameters(values[scalars]).astype(float)
        return self.model.replace(inertias=inertias, strict=None, **arrays)

    def terms(self, coefficients: np.ndarray, first: int) -> tuple[tuple[str, float], ...]:
        """(name, coefficient) of the nonzero coefficients, starting with `first`."""
        order = [first, *(k for k in np.flatnonzero(coefficients).tolist() if k != first)]
        return tuple((self.names[k], float(coefficients[k])) for k in order)


def _states(model: Model, arguments: Mapping[str, ArrayLike | None]) -> list[np.ndarray]:
    """Checked arrays (N, …) of the arguments."""
    groups = Groups(QUANTITY[name].group(model) for name in arguments)
    arrays, lead = groups.normalise_inputs({name: x for name, x in arguments.items() if name != "fx" or x is not None})
    groups.reject_not_finite(arrays)
    n = math.prod(lead)
    return [np.broadcast_to(x, (n, groups[name].size)).reshape(n, *groups[name].shape) for name, x in arrays.items()]


def _standard_deviations(noise: ArrayLike, nv: int) -> np.ndarray:
    """Standard deviations (nv,) of τ. Raises InvalidInput."""
    sigma = float_array("noise of τ", noise)
    if sigma.shape not in ((), (nv,)) or not (sigma > 0.0).all():
        raise InvalidInput(f"noise of τ is one standard deviation > 0, or ({nv},), not {noise!r}")
    return np.broadcast_to(sigma, nv)


# ---- statistics ------------------------------------------------------------------------------------------------------


def _covariance(
    factors: np.ndarray, U: np.ndarray, residuals: np.ndarray, measured: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(covariance of base parameters, autocorrelation times (nv,)) for residuals (N, nv) correlated in time.

    factors (nv, p + 1, r): triangular factors of the joints, whitened. U: triangular factor of all joints.
    """
    (N, nv), inverse = residuals.shape, np.linalg.inv(U)
    influence = factors @ inverse
    leverage = np.sum(influence**2, axis=(1, 2)) / N
    correlation, inflation = np.ones(nv), np.ones(nv)
    for j in np.flatnonzero(measured):
        correlation[j] = _autocorrelation(residuals[:, j])
        # the fit uses up as many of the N / κ independent residuals as there are parameters
        share = np.clip(leverage[j] * correlation[j], leverage[j], max(leverage[j], MAX_LEVERAGE))
        inflation[j] = correlation[j] * (1.0 - leverage[j]) / (1.0 - share) if leverage[j] < 1.0 else 1.0
    return inverse @ np.einsum("j,jki,jkl->il", inflation, influence, influence) @ inverse.T, correlation


def _autocorrelation(e: np.ndarray) -> float:
    """Integrated autocorrelation time Σ_k ρ_k, over all lags, of residuals (N,) in samples; at least 1.

    The mean is not subtracted: an offset is a persistent error. The fit removes part of the slow residuals, so the
    larger of two estimates is taken: the sum over an automatic window if it is significant (Sokal 1997, Monte Carlo
    methods in statistical mechanics, section 3), and the spectral density at frequency 0 of the autoregressive model
    of least BIC (Heidelberger and Welch 1981).
    """
    n = len(e)
    size = scipy.fft.next_fast_len(2 * n)
    r = scipy.fft.irfft(np.abs(scipy.fft.rfft(e, size)) ** 2, size)[: n // 2 + 1]
    if not r[0] > 0.0:
        return 1.0
    r = r / r[0]
    total = 2.0 * np.cumsum(r) - 1.0
    beyond = np.arange(len(r)) >= WINDOW * total
    lag = int(beyond.argmax()) if beyond.any() else len(r) - 1
    windowed = float(total[lag]) if total[lag] - 1.0 > SIGNIFICANT * 2.0 * np.sqrt(lag / n) else 1.0
    # Levinson-Durbin recursion; v: variance of the innovations
    phi, v, least, spectral = np.zeros(0), 1.0, 0.0, 1.0
    for order in range(1, min(int(10.0 * np.log10(n)), n // 4) + 1):
        k = (r[order] - phi @ r[order - 1 : 0 : -1]) / v
        phi, v = np.append(phi - k * phi[::-1], k), v * (1.0 - k * k)
        if not v > 0.0:
            break
        bic = n * np.log(v) + order * np.log(n)
        if bic < least:
            least, spectral = bic, v / (1.0 - phi.sum()) ** 2
    return min(max(windowed, spectral, 1.0), float(n))


# ---- linear algebra --------------------------------------------------------------------------------------------------


def _weighted(factors: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """Triangular R (p + 1, p + 1) with R^T R = Σ_j R_j^T R_j / σ_j², from the `factors` R_j (nv, p + 1, p + 1)."""
    return _triangle(np.vstack(factors / sigma[:, None, None]))


def _triangle(A: np.ndarray) -> np.ndarray:
    """Triangular R with R^T R = A^T A."""
    return np.asarray(np.linalg.qr(A, mode="r"))


def _solution(R: np.ndarray, columns: list[int]) -> np.ndarray:
    """x that minimises |R[:, columns] x − R[:, −1]|."""
    return np.linalg.lstsq(R[:, columns], R[:, -1], rcond=None)[0]


def _independent(R: np.ndarray, scale: np.ndarray, candidates: Sequence[int]) -> tuple[list[int], np.ndarray]:
    """(columns independent of preceding ones, null space (p, k): one vector for each dependent candidate)."""
    A = R[:, :-1] * scale
    largest = np.linalg.norm(A[:, candidates], axis=0).max(initial=0.0)
    Q = np.zeros((len(A), 0))
    columns: list[int] = []
    null_space = []
    for k in candidates:
        residual = A[:, k] - Q @ (Q.T @ A[:, k])
        residual -= Q @ (Q.T @ residual)
        if np.linalg.norm(residual) > RANK_TOL * max(np.linalg.norm(A[:, k]), RANK_TOL * largest):
            columns.append(k)
            Q = np.column_stack([Q, residual / np.linalg.norm(residual)])
            continue
        x = np.linalg.lstsq(A[:, columns], A[:, k], rcond=None)[0] if columns else np.zeros(0)
        direction = np.zeros(len(scale))
        direction[columns] = np.where(np.abs(x) > RANK_TOL, -x * scale[columns] / scale[k], 0.0)
        direction[k] = 1.0
        null_space.append(direction)
    return columns, np.array(null_space).reshape(-1, len(scale)).T


# ---- physical consistency --------------------------------------------------------------------------------------------


def _project_consistent(
    unknowns: _ParameterSet, A: np.ndarray, b: np.ndarray, null_space: np.ndarray, added: bool
) -> tuple[np.ndarray, bool]:
    """(physically consistent change δ that minimises |A δ − b|², True if it fits as well as the unconstrained one).

    In the null space of A, δ has minimum norm in typical sizes. The barrier method minimises w/2 |M x − c|² − Σ log det
    P(x) for growing weights w (Boyd, Vandenberghe, Convex optimization, section 11.3).
    """
    directions = np.linalg.qr(null_space / unknowns.scale[:, None])[0].T / unknowns.scale
    M, target = np.vstack([A, directions]), np.concatenate([b, np.zeros(len(directions))])
    declared = np.zeros(len(target)) if added else unknowns.declared
    change, blocks = np.linalg.solve(M, target), unknowns.blocks()
    if min(np.linalg.eigvalsh(np.tensordot((declared + change)[k], B, 1))[0] for k, B in blocks) >= -(RANK_TOL**2):
        return change, True
    c, x, terms = target + M @ declared, unknowns.interior(), sum(B.shape[-1] for _, B in blocks)
    w = terms / max(np.sum((M @ x - c) ** 2), 1.0)
    while terms / w > GAP * max(np.sum((M @ x - c) ** 2), 1.0):
        w *= 10.0
        x = _centering_steps(M, c, w, blocks, x)
    change = x - declared
    return change, bool(np.sum((A @ change - b) ** 2) <= 1.0)  # χ² within one standard deviation


def _centering_steps(
    M: np.ndarray, c: np.ndarray, w: float, blocks: list[ConsistencyBlock], x: np.ndarray
) -> np.ndarray:
    """Minimise w/2 |M x − c|² − Σ log det P(x) from x with all P positive definite, by damped Newton steps.

    The function is self-concordant: steps of length 1 / (1 + λ), with the Newton decrement λ, stay in the domain
    (Boyd, Vandenberghe, Convex optimization, section 9.6).
    """
    for _ in range(MAX_NEWTON_STEPS):
        # the Hessian is w M^T M + G^T G, so the step solves a least-squares problem
        rows, rhs = [np.sqrt(w) * M], [np.sqrt(w) * (c - M @ x)]
        for k, B in blocks:
            inverse = np.linalg.inv(np.linalg.cholesky(np.tensordot(x[k], B, 1)))
            G = np.zeros((inverse.size, len(x)))
            G[:, k] = (inverse @ B @ inverse.T).reshape(len(B), -1).T
            rows.append(G)
            rhs.append(np.eye(len(inverse)).ravel())
        J = np.vstack(rows)
        size = np.linalg.norm(J, axis=0)
        step = np.linalg.lstsq(J / size, np.concatenate(rhs), rcond=None)[0] / size
        decrement = np.linalg.norm(J @ step)
        x = x + step / (1.0 + decrement if decrement > 0.25 else 1.0)
        if decrement <= 1e-4:
            break
    return x


def _size(model: Model, i: int) -> np.ndarray:
    """Typical sizes √m (l, l, l, 1) of body i with mass m and length l; their products scale its pseudo-inertia."""
    I = model.inertias[i]
    mass = I[5, 5] or np.mean(model.inertias[:, 5, 5]) or 1.0
    length = np.sqrt(max(np.trace(I[:3, :3]), 0.0) / mass) or 0.1
    return np.sqrt(mass) * np.array([length, length, length, 1.0])


def _parameters(P: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The 10 parameters of the pseudo-inertia diag(size) P diag(size)."""
    return parameters(spatial_inertia(P * np.outer(size, size)))
