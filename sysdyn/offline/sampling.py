"""Sampled states for the search and the check of elimination orders, and matrices at these states."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sysdyn.diagnosis.diagnose import diagnose
from sysdyn.equations.augmented import AugmentedSystem
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.equations.system import SINGULAR, System
from sysdyn.errors import ProblemError, StructurallySingular
from sysdyn.measurements.input_names import NOISE, SWITCH, group_of, value_group
from sysdyn.measurements.parameters import sampled
from sysdyn.measurements.predict import motion_of, sensor_values
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY
from sysdyn.program.graph import is_zero
from sysdyn.program.reproducible import exp, matmul
from sysdyn.sparse.sampled import SampledMatrix, Tree

# Variances are scaled by up to this many powers of ten at half of the sampled states (documented range).
NOISE_DECADES = 2.0
# Greatest sampled length without limits [m], or angle of a screw joint [rad] (long rails).
FARTHEST = 1e3
# Positions in each 16 states at which lengths without limits are far: violent motions at 3, 6 and 14, others at 5 and 8
# (all kinds of states).
FAR_STATES = (3, 5, 6, 8, 14)
# Length [m] up to which all lengths are sampled and programs are used, whatever the joint limits (robots).
NEAREST = 1.0
# Greatest length [m] of near states: states that occur in every application.
NEAR = 5.0
# Seeds of the states at which orders are searched, programs checked, passes verified, and examples taken.
ORDER_SEED, CHECK_SEED, PASSES_SEED, EXAMPLE_SEED = 0, 1, 3, 2
# Number of states at which passes and measured outputs are verified (CPU time).
VERIFIED_STATES = 16


def lengths(model: Model) -> np.ndarray:
    """(nq,) bool: True for entries of q that are lengths or angles of screws, False for rotations."""
    turning = [{*j.angles, *range(*(j.quaternion or slice(0)).indices(j.nq))} for j in model.joints]
    return np.array([k not in x for j, x in zip(model.joints, turning, strict=True) for k in range(j.nq)], dtype=bool)


def limits(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Limits (lower, upper) (nq,) of positions; ±inf if there are none."""
    lower, upper = np.full(model.nq, -math.inf), np.full(model.nq, math.inf)
    for i, joint in enumerate(model.joints):
        if joint.nq == joint.nv == 1:
            lower[model.q_slice(i)], upper[model.q_slice(i)] = (
                model.lower[model.v_slice(i)],
                model.upper[model.v_slice(i)],
            )
    return lower, upper


def reach(model: Model, farthest: float = FARTHEST) -> np.ndarray:
    """(nq,): greatest checked |q|: the joint limit, or `farthest` without limits; inf for angles."""
    limit = np.abs(limits(model)).max(axis=0)
    limit = np.maximum(np.where(np.isfinite(limit), limit, farthest), NEAREST)
    return np.where(lengths(model), limit, math.inf)


def travelled(system: System, q: np.ndarray) -> np.ndarray:
    """(N,): greatest unlimited length on which the system depends; q (N, nq)."""
    model = system.model
    unlimited = lengths(model) & ~np.isfinite(np.abs(limits(model)).max(axis=0))
    return np.abs(q[:, unlimited & system.program.used_inputs[: model.nq]]).max(axis=1, initial=0.0)


def is_far(model: Model, q: np.ndarray) -> np.ndarray:
    """(N,) bool: True for states with a length beyond NEAR; q (N, nq)."""
    return np.asarray((np.abs(q[:, lengths(model)]) > NEAR).any(axis=1))


def sample_states(problem: Problem, n: int, seed: int = 0, ranges: bool = False) -> dict[str, np.ndarray]:
    """Inputs by group at n states: half at random positions, half with joints at multiples of π/2.

    Known quantities are those of a motion with accelerations near 1, at a third of the states with external wrenches of
    the size of inertial forces. Torques then nearly balance gravity, which reveals cancellation. At half of the states
    known quantities and covariances are multiplied by random factors (violent motion), and parameters that are inputs
    differ from the model's. Sensors have their values in the motion; they are 1 if some are noisy (large residuals), or
    without `ranges`. Each switchable measurement is off at a quarter of the states.

    ranges: seven of sixteen states also cover the joint ranges. Positions are random within the limits, or at them;
    lengths without limits are log-uniform up to FARTHEST. At a quarter of the states known quantities are of size 1.
    """
    model, rng = problem.model, np.random.default_rng(seed)
    q, qd, qdd = model.random_state(seed=seed, batch=n)
    right = np.arange(n) % 2 == 1
    quarters = rng.integers(0, 4, size=(n, model.nv)) * (math.pi / 2)
    same = np.arange(n) % 16 == 1  # among them every joint at the same multiple
    quarters[same] = (np.arange(n)[same] // 16 % 4 * (math.pi / 2))[:, None]
    snapped = model.integrate(np.broadcast_to(model.neutral(), (n, model.nq)), quarters)
    q = np.where(right[:, None], snapped, q)
    if ranges:
        q = _ranged(model, q, np.random.default_rng((seed, 1)))
    q, qd = problem.imposed(q, qd)
    pushed = np.arange(n) % 3 == 0
    fx = matmul(model.inertias, 3.0 * rng.standard_normal((n, model.nb, 6, 1)))[..., 0] * pushed[:, None, None]
    drawn = {x: rng.standard_normal((n, *QUANTITY[x].shape(model))) for x in problem.further}
    values = motion_of(problem, q, qd, qdd, fx, drawn)
    if ranges and not problem.noisy:  # other values would never be small compared with their terms
        flat = {name: x.reshape(n, -1) for name, x in values.items()}
        read = sensor_values(problem.custom, model, {"q": q, "qd": qd}, flat)
        values |= {value_group(name): x for name, x in read.items()}
    loose = np.arange(n) % 4 >= 2
    inputs = {"q": q, "qd": qd}
    varied = {p.name for p in problem.parameters}
    for name, group in list(problem.inputs.items())[2:]:
        role, size = group_of(name).role, group.size
        declared = np.zeros(size) if group.default is None else group.default
        if role == SWITCH:  # all of a measurement on or off
            inputs[name] = np.broadcast_to(np.where(loose & (rng.random(n) < 0.5), 0.0, 1.0)[:, None], (n, size)).copy()
            continue
        if role == NOISE:  # as declared, or all of a measurement multiplied by one factor
            factor = exp(math.log(10.0) * rng.uniform(-NOISE_DECADES, NOISE_DECADES, n))
            inputs[name] = np.where(loose, factor, 1.0)[:, None] * declared
            continue
        if name in varied:
            inputs[name] = np.where(loose[:, None], sampled(model, name, n, rng), declared)
            continue
        factor = rng.standard_normal((n, size))
        moving = values[name].reshape(n, size) if name in values else np.ones((n, size))
        inputs[name] = np.where(loose[:, None], 3.0 * factor, 1.0) * moving
        if ranges and name in values:
            inputs[name] = np.where(np.isin(np.arange(n) % 8, (4, 7))[:, None], factor, inputs[name])
    return inputs


def _ranged(model: Model, q: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Positions q (N, nq), with some states replaced by samples of the joint ranges."""
    (lower, upper), k = limits(model), np.arange(len(q))[:, None]
    limited, whole = np.isfinite(lower) | np.isfinite(upper), np.isfinite(lower) & np.isfinite(upper)
    low, high = np.where(np.isfinite(lower), lower, upper), np.where(np.isfinite(upper), upper, lower)
    low, high = np.where(limited, low, 0.0), np.where(limited, high, 0.0)
    q = np.where(whole & (k % 8 == 2), rng.uniform(low, high, q.shape), q)
    q = np.where(limited & (k % 8 == 6), np.where(rng.random(q.shape) < 0.5, low, high), q)
    far = exp(rng.uniform(math.log(NEAREST), math.log(FARTHEST), q.shape)) * rng.choice((-1.0, 1.0), q.shape)
    return np.where(lengths(model) & ~whole & np.isin(k % 16, FAR_STATES), np.clip(far, lower, upper), q)


def sample_matrix(system: System, states: dict[str, np.ndarray]) -> SampledMatrix:
    """The worst-case pattern and its values at sampled states. states: inputs by group."""
    entries, _ = system.values(states)
    row, col = system.coordinates
    rhs = np.array([not is_zero(x) for x in system.assembly.b], dtype=bool)
    entries = np.broadcast_to(entries, (len(states["q"]), len(row)))
    return SampledMatrix(len(system.columns), row, col, entries, system.fixed_entries(), rhs, tree=_tree(system))


def _tree(system: System) -> Tree | None:
    """The tree structure of an estimation problem, for symmetric orders; None for other systems."""
    if not isinstance(system, AugmentedSystem):
        return None
    n = system.n_unknowns
    positive = (k < n for k in range(len(system.columns)))
    pairs = ((n + row, column) for row, column in system.plain.unit_pivots())
    return Tree(tuple(system.tree_node), tuple(system.model.parent), tuple(positive), tuple(pairs))


def order_samples(system: System, n: int) -> SampledMatrix:
    """The matrix at sampled states for the search of an order; singular states are omitted.

    Raises StructurallySingular if the system is singular at every state.
    """
    states = sample_states(system.problem, n, ORDER_SEED)
    if not _always_regular(system):
        regular = ~is_singular(system, states)
        if not regular.any():
            require_regular(system)
            regular[:] = True
        states = {name: x[regular] for name, x in states.items()}
    return sample_matrix(system, states)


def require_regular(system: System) -> None:
    """Diagnose a system that looks singular at all sampled states; raise StructurallySingular if it is ill posed.

    A well-posed system can look singular, because inertias that differ by 10¹² give condition numbers as large.
    """
    diagnosis = diagnose(system.problem)
    if diagnosis.well_posed:
        return
    message = f"the system is singular at every sampled state, though not by its structure:\n{diagnosis}"
    raise StructurallySingular(message, diagnosis.undetermined, diagnosis.redundant)


def _always_regular(system: System) -> bool:
    """True for hybrid dynamics of an unconstrained robot, which solves positive definite systems."""
    if system.problem.constraints:
        return False
    try:
        RECURSIVE["aba"](system)
    except ProblemError:
        return False
    return True


def is_singular(system: System, states: dict[str, np.ndarray], entries: np.ndarray | None = None) -> np.ndarray:
    """(N,) bool: True for states at which a relative change of entries by 1e-12 can make the matrix singular.

    entries (N, nnz): of the matrix; None to compute them.
    """
    entries = system.values(states)[0] if entries is None else entries
    entries = np.broadcast_to(entries, (len(states["q"]), system.nnz))
    return np.array([system.reciprocal_condition(x, SINGULAR) < SINGULAR for x in entries], dtype=bool)


def is_unsolvable(system: System, states: dict[str, np.ndarray], entries: np.ndarray) -> np.ndarray:
    """(N,) bool: True for states at which the system has no unique solution; entries (N, nnz): of the matrix.

    Like `is_singular` without noise. The augmented matrix of a regular estimation problem can look singular, because
    multipliers can square the condition number, as at lengths of many metres. So a state of an estimation problem also
    counts as regular if the equations without multipliers are regular.
    """
    entries = np.broadcast_to(entries, (len(states["q"]), system.nnz))
    return np.array([system.solvability(x, SINGULAR) < SINGULAR for x in entries], dtype=bool)


def stacked(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
