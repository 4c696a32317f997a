"""Errors of constraints along a motion: how far contacts, loops and couplings are from where they hold the robot."""

from __future__ import annotations

import copy

import numpy as np

from sysdyn.frameworks.function import compile_function
from sysdyn.measurements.constraints import Contact, Stabilised
from sysdyn.measurements.measurement import Context, find_frame
from sysdyn.model.kinematics import frame_placement
from sysdyn.model.se3 import pose
from sysdyn.problem import Problem


def constraint_errors(problem: Problem, q: np.ndarray, qd: np.ndarray) -> dict[str, np.ndarray]:
    """{constraint: (K, N, 2, m)} errors of its components and their rates along q (K, N, nq), qd (K, N, nv).

    Of a contact without a pose to keep, from its first pose; attitudes count as sines of angles.
    """
    model, found = problem.model, {}
    for m in problem.constraints:
        if not isinstance(m, Stabilised):
            continue
        posed = isinstance(m, Contact) and m.at is None

        def errors(q: np.ndarray, qd: np.ndarray, at: np.ndarray, m: Stabilised = m, posed: bool = posed) -> np.ndarray:
            own = m
            if posed:
                own = copy.copy(m)
                own.at = at  # type: ignore[attr-defined]
            return np.array(own.error(Context.at(model, q, qd)))

        kernel = compile_function(errors, {"q": (model.nq,), "qd": (model.nv,), "at": (4, 4)}, level=1)
        at = np.broadcast_to(np.eye(4), (q.shape[1], 4, 4))
        if posed:
            frame = find_frame(model, m.frame)  # type: ignore[attr-defined]
            at = np.array([pose(*frame_placement(model, x, frame)) for x in q[0]])
        fine = np.isfinite(q).all(axis=(0, 2)) & np.isfinite(qd).all(axis=(0, 2))
        found[m.name] = np.full((*q.shape[:2], *kernel(q[0, 0], qd[0, 0], at[0]).shape), np.nan)
        found[m.name][:, fine] = kernel(q[:, fine], qd[:, fine], at[fine])
    return found
