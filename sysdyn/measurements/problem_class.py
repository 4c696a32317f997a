"""The classical problems of rigid-body dynamics, by their known quantities: inverse, forward and hybrid dynamics."""

from __future__ import annotations

from sysdyn.measurements.statement import Statement


def driven_freedoms(problem: Statement) -> frozenset[int] | None:
    """Degrees of freedom with known τ, if q̈ is known exactly at all others and only there; None otherwise."""
    model = problem.model
    tau, qdd = ({model.v_slice(i).start + k for i, k in problem.knows(x)} for x in ("tau", "qdd"))
    return None if len(tau) + len(qdd) != model.nv or tau & qdd else frozenset(tau)


def torque_freedoms(problem: Statement) -> frozenset[int] | None:
    """`driven_freedoms` of inverse, forward or hybrid dynamics; None unless all fx, τ and q̈ alone are known.

    RBDA section 9.2. The problem may have more, such as constraints and sensors: see `is_classical`.
    """
    every = len(problem.knows("fx")) == 6 * problem.model.nb
    return driven_freedoms(problem) if every and _of_joints(problem) else None


def is_classical(problem: Statement) -> bool:
    """True for inverse, forward or hybrid dynamics and nothing else: no sensor, constraint, noise or parameter."""
    alone = not (problem.custom or problem.noisy or problem.parameters)
    return alone and torque_freedoms(problem) is not None


def dynamics_name(problem: Statement) -> str:
    """Name of the dynamics by quantities known wholly or in part, such as "inverse_dynamics"; "dynamics" for others."""
    known = problem.known_quantities
    if problem.custom or not _of_joints(problem):
        return "dynamics"
    if "tau" not in known:
        return "inverse_dynamics"
    return "hybrid_dynamics" if "qdd" in known else "forward_dynamics"


def _of_joints(problem: Statement) -> bool:
    """True if nothing is known exactly but τ, q̈ and fx."""
    return set(problem.known_quantities) <= {"tau", "qdd", "fx"}
