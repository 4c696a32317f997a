"""Position errors of contacts, loops and couplings along a motion."""

from __future__ import annotations

import copy

import numpy as np

from sysdyn.frameworks.function import compile_function
from sysdyn.measurements.constraints import Contact, Stabilised
from sysdyn.measurements.measurement import Context, find_frame
from sysdyn.measurements.problem import Problem
from sysdyn.model.kinematics import frame_placement
from sysdyn.model.se3 import pose


def component_errors(problem: Problem, q: np.ndarray, qd: np.ndarray) -> dict[str, np.ndarray]:
    """{constraint: (K, N, 2, m)} errors of its components and their rates along q (K, N, nq), qd (K, N, nv).

    Errors of a contact without `at=` are relative to its first pose; attitude errors are sines of angles.
    """
    model, errors_by_name = problem.model, {}
    for m in problem.constraints:
        if not isinstance(m, Stabilised):
            continue

        def error(q: np.ndarray, qd: np.ndarray, at: np.ndarray, m: Stabilised = m) -> np.ndarray:
            if isinstance(m, Contact) and m.at is None:
                m = copy.copy(m)
                m.at = at
            return np.array(m.error(Context.at(model, q, qd)))

        kernel = compile_function(error, {"q": (model.nq,), "qd": (model.nv,), "at": (4, 4)}, level=1)
        at = np.broadcast_to(np.eye(4), (q.shape[1], 4, 4))
        if isinstance(m, Contact) and m.at is None:
            frame = find_frame(model, m.frame)
            at = np.array([pose(*frame_placement(model, x, frame)) for x in q[0]])
        finite = np.isfinite(q).all(axis=(0, 2)) & np.isfinite(qd).all(axis=(0, 2))
        errors_by_name[m.name] = np.full((*q.shape[:2], *kernel(q[0, 0], qd[0, 0], at[0]).shape), np.nan)
        errors_by_name[m.name][:, finite] = kernel(q[:, finite], qd[:, finite], at[finite])
    return errors_by_name
