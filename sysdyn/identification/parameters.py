"""Inertias of bodies, rotor inertias and friction of joints out of logged motions and torques.

τ is linear in these parameters, τ = Y π (`joint_torque_regressor`), but not all of them are told: columns of Y
depend on each other, for every motion or for those of a log. Of the columns in order those that depend on the ones
before are left out, and their parameters counted to the others': base parameters, estimated by least squares with a
covariance (Gautier, Numerical calculation of the base inertial parameters of robots, J. Robotic Systems 8, 1991).

Residuals of successive samples are correlated, because model errors and filtering errors vary slowly. The least-squares
covariance C = (Σ_j Y_j^T Y_j / σ_j²)⁻¹, of independent errors, becomes C (Σ_j κ_j Y_j^T Y_j / σ_j²) C, where κ_j is the
integrated autocorrelation time of the residuals of joint j.

Among the parameters that bodies can have, with positive semidefinite pseudo-inertias P, are taken those that fit best
(Wensing, Kim, Slotine, Linear matrix inequalities for physically consistent inertial parameter identification, RA-L 3,
2018). Where the log says nothing they are as near to the declared ones as can be.
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

# Parameters of joints by the names of the model's arrays, and their units for a turn and a slide.
JOINT_UNITS = {"armature": ("kg m²", "kg"), "damping": ("N m s/rad", "N s/m"), "friction": ("N m", "N")}
# Forms of the names of parameters.
KINDS = ("inertia:BODY", *(f"{x}:JOINT" for x in JOINT_UNITS))
# States whose rows of Y are in memory at a time (chosen).
PIECE = 4096
# Fraction of a column orthogonal to others below which it depends on them (chosen).
DEPENDENT = 1e-8
# Rounding of the coefficients of dependent columns, each parameter in its usual size (chosen).
COLUMN_ROUNDING = 1e-7
# Distance from the least sum of squares at which the barrier method ends, as a fraction of the sum or of 1 (chosen).
GAP = 1e-7
# Increase of χ² over the best fit up to which physically consistent bodies count as good as it (chosen).
WORSE = 1.0
# Most steps of Newton's method (chosen).
NEWTON_STEPS = 50
# Window of the sum of autocorrelations, in units of the sum (Sokal 1997), and the least significant excess of the sum
# over 1, its value for independent residuals, in standard deviations.
WINDOW, SIGNIFICANT = 5.0, 3.0
# Greatest share of a joint's independent residuals that the fitted parameters may use up (chosen).
MOST_TAKEN = 0.5
# Parameters by number, and B with Σ_k x_k B_k positive semidefinite for physically consistent ones.
Block = tuple[np.ndarray, np.ndarray]
# Rounds in which deviations of τ are found that are not given, each with the weights of the one before (chosen).
NOISE_ROUNDS = 3


class Combination(NamedTuple):
    """Σ coefficient · parameter: a base parameter with its value and deviation, or a change that the log does not tell.

    terms: ((name, coefficient), …), the first one with coefficient 1, in whose unit it is. always: no motion tells it.
    """

    terms: tuple[tuple[str, float], ...]
    unit: str
    value: float = np.nan
    std: float = np.inf
    always: bool = False

    def __str__(self) -> str:
        shown = [("−" if c < 0.0 else "+", f"{abs(c):.4g} ".removeprefix("1 ") + x) for x, c in self.terms]
        return " ".join([shown[0][1], *(f"{sign} {x}" for sign, x in shown[1:])])


@dataclass(frozen=True, kw_only=True, eq=False)
class Identified:
    """Result of `identify`; found["inertia:BODY"] are the values of a group, as `parameters=` of a solver takes them.

    model         with these parameters
    names, units  of the scalars (p)
    values        (p,) of bodies and joints that can be
    change        (p,) of these from the declared ones: what is a payload's where `added`
    std           (p,) standard deviations; inf if the log does not tell a scalar by itself
    combinations  the base parameters (r), whatever bodies can be: all that the log tells
    covariance    (r, r) of these, for errors that are independent between joints and correlated in time
    correlation   (nv,) integrated autocorrelation time of the residuals [samples]: N / correlation are independent
    unseen        changes of parameters that change no torque of the log (p − r)
    noise         (nv,) standard deviations of τ, given or found
    chi2, redundancy  Σ (error of τ / noise)² of the base parameters, and its expectation
    possible      bodies and joints with these base parameters can be
    """

    model: Model
    names: tuple[str, ...]
    units: tuple[str, ...]
    values: np.ndarray
    change: np.ndarray
    std: np.ndarray
    combinations: tuple[Combination, ...]
    covariance: np.ndarray
    correlation: np.ndarray
    unseen: tuple[Combination, ...]
    noise: np.ndarray
    chi2: float
    redundancy: int
    possible: bool
    groups: dict[str, slice] = field(repr=False)

    def __getitem__(self, group: str) -> np.ndarray:
        check_among("identified group", group, self.groups)
        return self.values[self.groups[group]]

    def __repr__(self) -> str:
        alone = np.flatnonzero(np.isfinite(self.std))
        width = max(map(len, self.names))
        lines = [
            f"{len(self.names)} parameters of {self.model.name!r}: {len(alone)} told by themselves, "
            f"{len(self.combinations) - len(alone)} in combination, {len(self.unseen)} not at all",
            *(f"  {self.names[k]:{width}}  {self.values[k]:.4g} ± {self.std[k]:.2g} {self.units[k]}" for k in alone),
            *(f"  {x} = {x.value:.4g} ± {x.std:.2g} {x.unit}" for x in self.combinations if len(x.terms) > 1),
            *(f"  not told by {'any motion' if x.always else 'this log'}: {x}" for x in self.unseen),
        ]
        if not self.possible:
            lines.append("  no body is like the best fit: the values are of the best one that can be")
        return "\n".join(lines)


def identify(
    model: Model, q: ArrayLike, qd: ArrayLike, qdd: ArrayLike, tau: ArrayLike,
    parameters: str | Sequence[str] | None = None, *, fx: ArrayLike | None = None, noise: ArrayLike | None = None,
    added: bool = False,
) -> Identified:  # fmt: skip
    """Parameters of a robot out of N states and their torques: min Σ ((τ − ID(q, q̇, q̈, fx; π)) / noise)².

    q (N, nq), qd, qdd (N, nv): filtered ones, for their errors count as errors of τ
    tau (N, nv) [N m or N]: of the motors, with what damping and friction take where one of these is identified
    parameters: "inertia:BODY", "armature:JOINT", "damping:JOINT", "friction:JOINT" (see `Model.passive_torque`), one or
        several; default the inertias of all bodies. The others are as the model says
    fx (N, nb, 6): external wrenches; default none
    noise: standard deviation of τ, one or (nv,), inf if τ is not known. Default: the residual of each after the fit
    added: the difference from the declared parameters is a body by itself, such as a payload

    States must be in order of time, at about equal steps: standard deviations and covariance take account of the
    autocorrelation of the residuals. For independent states, in any order, it is 1.

    Base parameters by least squares (Gautier 1991), and of the parameters that have them those of bodies that can be,
    with positive semidefinite pseudo-inertias (Wensing, Kim and Slotine 2018); where the log says nothing, as near to
    the declared ones as can be. Raises InvalidInput, UnknownName.
    """
    if model.closures:
        raise InvalidInput(
            f"identify is of trees, and {model.name!r} has couplings or loops: see Model.replace(closures=)"
        )
    chosen = _Chosen(model, parameters)
    p, nv = len(chosen.names), model.nv
    states = _states(model, {"q": q, "qd": qd, "qdd": qdd, "tau": tau, "fx": fx})
    N = len(states[0])
    sigma = np.ones(nv) if noise is None else _deviations(noise, nv)
    measured = np.isfinite(sigma)
    if N * measured.sum() < p:
        raise InvalidInput(f"{N * measured.sum()} torques do not tell {p} parameters: more states are needed")

    sampled = chosen.factors(*model.random_state(seed=0, batch=max(20, 4 * p // nv)))
    base, never = _independent(_joined(sampled, np.where(measured, 1.0, np.inf)), chosen.scale, range(p))
    factors = chosen.factors(*states)
    for _ in range(NOISE_ROUNDS if noise is None else 0):
        x = _solution(_joined(factors, sigma), base)
        left = np.linalg.norm(factors[:, :, base] @ x - factors[:, :, p], axis=1)
        least = 1e-12 * np.maximum(1.0, np.linalg.norm(factors[:, :, p], axis=1))  # of torques without noise
        sigma = np.maximum(left, least) / np.sqrt(max(N - len(base) / nv, 1.0))
    R = _joined(factors, sigma)
    seen, here = _independent(R, chosen.scale, base)
    null = np.hstack([never, here])
    x, U = _solution(R, seen), _triangle(R[:, seen])
    inverse = np.linalg.inv(U)
    of_joints = factors[:, :, seen] @ inverse / sigma[:, None, None]
    taken = np.sum(of_joints**2, axis=(1, 2)) / N
    correlation, inflation = np.ones(nv), np.ones(nv)
    for j, e in enumerate(chosen.residuals(x, seen, *states).T):
        if measured[j]:
            correlation[j] = _autocorrelation(e)
            # the fit uses up as many of N / κ independent residuals as there are parameters
            share = np.clip(taken[j] * correlation[j], taken[j], max(taken[j], MOST_TAKEN))
            inflation[j] = correlation[j] * (1.0 - taken[j]) / (1.0 - share) if taken[j] < 1.0 else 1.0
    covariance = inverse @ np.einsum("j,jki,jkl->il", inflation, of_joints, of_joints) @ inverse.T
    deviations = np.sqrt(np.diagonal(covariance))
    others = [k for k in range(p) if k not in base] + [k for k in base if k not in seen]
    K = np.zeros((len(seen), p))  # base parameters = K π
    K[:, seen], K[:, others] = np.eye(len(seen)), -np.linalg.solve(null[others].T, null[seen].T).T
    K[np.abs(K) * chosen.scale <= COLUMN_ROUNDING * chosen.scale[seen, None]] = 0.0
    change, possible = _possible(chosen, U @ K, U @ x, null, added)
    values, std = chosen.declared + change, np.full(p, np.inf)
    for k, row, deviation in zip(seen, K, deviations, strict=True):
        if np.count_nonzero(row) == 1:
            std[k] = deviation
    combinations = tuple(
        Combination(chosen.terms(row, k), chosen.units[k], y, deviation)
        for k, row, y, deviation in zip(seen, K, K @ chosen.declared + x, deviations, strict=True)
    )
    unseen = tuple(
        Combination(chosen.terms(column, k), chosen.units[k], always=k not in base)
        for k, column in zip(others, null.T, strict=True)
    )
    return Identified(
        model=chosen.model_with(values), names=chosen.names, units=chosen.units, values=values, change=change, std=std,
        combinations=combinations, covariance=covariance, correlation=correlation, unseen=unseen, noise=sigma,
        chi2=float(np.sum((R[:, seen] @ x - R[:, p]) ** 2)), redundancy=int(N * measured.sum()) - len(seen),
        possible=possible, groups=chosen.groups,
    )  # fmt: skip


class _Chosen:
    """The parameters to be found: names, units, declared values (p), and groups {"inertia:BODY": its scalars}.

    scale (p): a usual size of each. bodies {body: its scalars}. joints {(kind, degree of freedom): scalar}.
    """

    def __init__(self, model: Model, parameters: str | Sequence[str] | None):
        wanted = [f"inertia:{body}" for body in model.body_names] if parameters is None else parameters
        wanted = [wanted] if isinstance(wanted, str) else list(dict.fromkeys(wanted))
        if not wanted:
            raise InvalidInput(f"there is nothing to identify: name some of {', '.join(KINDS)}")
        self.model, self.regressor = model, compile_regressor(model)
        self.groups: dict[str, slice] = {}
        self.bodies: dict[int, slice] = {}
        self.joints: dict[tuple[str, int], int] = {}
        names: list[str] = []
        units: list[str] = []
        declared: list[float] = []
        scale: list[float] = []
        turns = [unit == "rad/s²" for unit in QUANTITY["qdd"].units(model)]
        for group in wanted:
            kind, _, owner = group.partition(":") if isinstance(group, str) else ("", "", "")
            start = len(names)
            if kind == "inertia" and owner:
                i = model.body_index(owner)
                self.bodies[i] = slice(start, start + 10)
                names += [f"{owner}.{x}" for x in PARAMETERS]
                units += PARAMETER_UNITS
                declared += inertial_parameters(model)[10 * i : 10 * i + 10].tolist()
                scale += np.abs(_parameters(np.ones((4, 4)), _size(model, i))).tolist()
            elif kind in JOINT_UNITS and owner:
                for k in range(model.nv)[model.v_slice(model.joint_index(owner))]:
                    self.joints[kind, k] = len(names)
                    names.append(f"{model.dof_names[k]}.{kind}")
                    units.append(JOINT_UNITS[kind][0 if turns[k] else 1])
                    declared.append(float(getattr(model, kind)[k]))
                    scale.append(declared[-1] or 1.0)
            else:
                raise UnknownName("parameter to identify", str(group), KINDS)
            self.groups[group] = slice(start, len(names))
        self.names, self.units = tuple(names), tuple(units)
        self.declared, self.scale = np.array(declared), np.array(scale)
        self.dissipates = any(kind != "armature" for kind, _ in self.joints)

    def factors(self, q, qd, qdd, tau=None, fx=None) -> np.ndarray:
        """R (nv, p + 1, p + 1) of each degree of freedom, triangular, with R^T R = [Y e]^T [Y e] over the states.

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
        """[Y e] (n, nv, p + 1) of successive states."""
        p = len(self.names)
        for start in range(0, len(q), PIECE):
            part = slice(start, start + PIECE)
            rows = np.zeros((len(q[part]), self.model.nv, p + 1))
            rows[:, :, :p] = self._columns(q[part], qd[part], qdd[part])
            if tau is not None:
                rows[:, :, p] = tau[part] - rnea(self.model, q[part], qd[part], qdd[part], fx[part])
                if self.dissipates:
                    rows[:, :, p] += self.model.passive_torque(qd[part])
            yield rows

    def _columns(self, q: np.ndarray, qd: np.ndarray, qdd: np.ndarray) -> np.ndarray:
        """Y (N, nv, p)."""
        Y = np.zeros((len(q), self.model.nv, len(self.names)))
        full = self.regressor(q, qd, qdd)
        for i, place in self.bodies.items():
            Y[:, :, place] = full[:, :, 10 * i : 10 * i + 10]
        rates = {"armature": qdd, "damping": qd, "friction": qd / np.sqrt(qd * qd + COULOMB_VELOCITY**2)}
        for (kind, k), column in self.joints.items():
            Y[:, k, column] = rates[kind][:, k]
        return Y

    def blocks(self) -> list[Block]:
        """The pseudo-inertias of the bodies, in usual sizes, and the parameters of joints that must not be negative."""
        found = []
        for i, place in self.bodies.items():
            size = _size(self.model, i)
            units = [pseudo_inertia(with_parameters(e).astype(float)) / np.outer(size, size) for e in np.eye(10)]
            found.append((np.arange(place.start, place.stop), np.array(units)))
        return found + [(np.array([k]), np.full((1, 1, 1), 1.0 / self.scale[k])) for k in self.joints.values()]

    def model_with(self, values: np.ndarray) -> Model:
        changes = {kind: getattr(self.model, kind).copy() for kind in JOINT_UNITS}
        for (kind, k), scalar in self.joints.items():
            changes[kind][k] = max(values[scalar], 0.0)
        inertias = self.model.inertias.copy()
        for i, place in self.bodies.items():
            inertias[i] = with_parameters(values[place]).astype(float)
        return self.model.replace(inertias=inertias, strict=None, **changes)

    def terms(self, coefficients: np.ndarray, first: int) -> tuple[tuple[str, float], ...]:
        """(name, coefficient) of the coefficients that are not zero, beginning with the first."""
        order = [first, *(k for k in np.flatnonzero(coefficients).tolist() if k != first)]
        return tuple((self.names[k], float(coefficients[k])) for k in order)


def _states(model: Model, given: Mapping[str, ArrayLike | None]) -> list[np.ndarray]:
    """The arrays, checked, with one batch axis of the same length."""
    groups = Groups(QUANTITY[name].group(model) for name in given)
    arrays, lead = groups.normalise_inputs({name: x for name, x in given.items() if name != "fx" or x is not None})
    groups.reject_not_finite(arrays)
    n = math.prod(lead)
    return [np.broadcast_to(x, (n, groups[name].size)).reshape(n, *groups[name].shape) for name, x in arrays.items()]


def _deviations(noise: ArrayLike, nv: int) -> np.ndarray:
    """(nv,) standard deviations. Raises InvalidInput."""
    sigma = float_array("noise of τ", noise)
    if sigma.shape not in ((), (nv,)) or not (sigma > 0.0).all():
        raise InvalidInput(f"noise of τ is one standard deviation > 0, or ({nv},), not {noise!r}")
    return np.broadcast_to(sigma, nv)


def _autocorrelation(e: np.ndarray) -> float:
    """Integrated autocorrelation time Σ_k ρ_k, over all lags, of residuals (N,) [samples]; at least 1.

    Their mean is not subtracted: an offset is a persistent error.
    The larger of two estimates, because the fit removes part of the slow residuals: the sum over an automatic window
    if it is significant (Sokal 1997, Monte Carlo methods in statistical mechanics, section 3), and the spectral density
    at frequency 0 of an autoregressive model, whose order has the least BIC (Heidelberger and Welch 1981).
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
    found = float(total[lag]) if total[lag] - 1.0 > SIGNIFICANT * 2.0 * np.sqrt(lag / n) else 1.0
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
    return min(max(found, spectral, 1.0), float(n))


def _joined(factors: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """R (p + 1, p + 1) of all degrees of freedom together, weighted by 1/σ."""
    return _triangle(np.vstack(factors / sigma[:, None, None]))


def _triangle(A: np.ndarray) -> np.ndarray:
    """R with R^T R = A^T A."""
    return np.asarray(np.linalg.qr(A, mode="r"))


def _solution(R: np.ndarray, columns: list[int]) -> np.ndarray:
    """x that minimises |R[:, columns] x − R[:, −1]|."""
    return np.linalg.lstsq(R[:, columns], R[:, -1], rcond=None)[0]


def _independent(R: np.ndarray, scale: np.ndarray, among: Sequence[int]) -> tuple[list[int], np.ndarray]:
    """(columns independent of those before them, (p, k) vanishing combinations, one for each other of `among`)."""
    A = R[:, :-1] * scale
    greatest = np.linalg.norm(A[:, among], axis=0).max(initial=0.0)
    Q = np.zeros((len(A), 0))
    kept: list[int] = []
    null = []
    for k in among:
        rest = A[:, k] - Q @ (Q.T @ A[:, k])
        rest -= Q @ (Q.T @ rest)
        if np.linalg.norm(rest) > DEPENDENT * max(np.linalg.norm(A[:, k]), DEPENDENT * greatest):
            kept.append(k)
            Q = np.column_stack([Q, rest / np.linalg.norm(rest)])
            continue
        x = np.linalg.lstsq(A[:, kept], A[:, k], rcond=None)[0] if kept else np.zeros(0)
        column = np.zeros(len(scale))
        column[kept] = np.where(np.abs(x) > COLUMN_ROUNDING, -x * scale[kept] / scale[k], 0.0)
        column[k] = 1.0
        null.append(column)
    return kept, np.array(null).reshape(-1, len(scale)).T


def _possible(chosen: _Chosen, A: np.ndarray, b: np.ndarray, null: np.ndarray, added: bool) -> tuple[np.ndarray, bool]:
    """(change δ of parameters to physically consistent ones, True if it fits as well as any): min |A δ − b|².

    Along `null`, where A is zero, δ is as small as it can be, in terms of usual sizes. By the barrier method: Newton's
    steps to min w/2 |M x − c|² − Σ log det P(x) for growing w (Boyd, Vandenberghe, Convex optimization, section 11.3).
    """
    along = np.linalg.qr(null / chosen.scale[:, None])[0].T / chosen.scale
    M, target = np.vstack([A, along]), np.concatenate([b, np.zeros(len(along))])
    declared = np.zeros(len(target)) if added else chosen.declared
    change = np.linalg.solve(M, target)
    blocks = chosen.blocks()
    least = min(np.linalg.eigvalsh(np.tensordot((declared + change)[k], B, 1))[0] for k, B in blocks)
    if least >= -(COLUMN_ROUNDING**2):
        return change, True
    c = target + M @ declared
    x = np.array(chosen.scale)
    for i, place in chosen.bodies.items():
        x[place] = _parameters(np.eye(4), _size(chosen.model, i))
    terms = sum(B.shape[-1] for _, B in blocks)
    w = terms / max(np.sum((M @ x - c) ** 2), 1.0)
    while terms / w > GAP * max(np.sum((M @ x - c) ** 2), 1.0):
        w *= 10.0
        x = _centred(M, c, w, blocks, x)
    change = x - declared
    return change, bool(np.sum((A @ change - b) ** 2) <= WORSE)


def _centred(M: np.ndarray, c: np.ndarray, w: float, blocks: list[Block], x: np.ndarray) -> np.ndarray:
    """x that minimises w/2 |M x − c|² − Σ log det P(x), from an x with every P positive definite."""

    def barrier(x: np.ndarray) -> float:
        values = np.concatenate([np.linalg.eigvalsh(np.tensordot(x[k], B, 1)) for k, B in blocks])
        return np.inf if values.min() <= 0.0 else w / 2 * np.sum((M @ x - c) ** 2) - np.sum(np.log(values))

    for _ in range(NEWTON_STEPS):
        # the Hessian is w M^T M + G^T G, and the step solves a least-squares problem
        G, ones = [], []
        for k, B in blocks:
            inverse = np.linalg.inv(np.linalg.cholesky(np.tensordot(x[k], B, 1)))
            rows = np.zeros((inverse.size, len(x)))
            rows[:, k] = (inverse @ B @ inverse.T).reshape(len(B), -1).T
            G.append(rows)
            ones.append(np.eye(len(inverse)).ravel())
        J, r = np.vstack([np.sqrt(w) * M, *G]), np.concatenate([np.sqrt(w) * (c - M @ x), *ones])
        step = np.linalg.lstsq(J / (size := np.linalg.norm(J, axis=0)), r, rcond=None)[0] / size
        decrease, now, length = np.sum((J @ step) ** 2), barrier(x), 1.0
        while length > 1e-10 and barrier(x + length * step) > now - 0.1 * length * decrease:
            length /= 2
        if decrease <= 1e-9 or length <= 1e-10:
            break
        x = x + length * step
    return x


def _size(model: Model, i: int) -> np.ndarray:
    """(4,) √m times a length, three times, and √m: usual sizes of body i, whose products scale its pseudo-inertia."""
    I = model.inertias[i]
    mass = I[5, 5] or np.mean(model.inertias[:, 5, 5]) or 1.0
    length = np.sqrt(max(np.trace(I[:3, :3]), 0.0) / mass) or 0.1
    return np.sqrt(mass) * np.array([length, length, length, 1.0])


def _parameters(P: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The 10 parameters of the pseudo-inertia diag(size) P diag(size)."""
    return parameters(spatial_inertia(P * np.outer(size, size)))
