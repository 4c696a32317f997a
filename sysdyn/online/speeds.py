"""Velocities of what constraints hold: zero where a contact, a loop or a coupling goes on as it is."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from sysdyn.backends.function import compile_function
from sysdyn.errors import PlausibilityWarning, few, warn
from sysdyn.measurements.constraints import Stabilised
from sysdyn.measurements.measurement import Context
from sysdyn.problem import Problem

# Speed [m/s, rad/s] of a constraint above which a motion does not go on as it says (chosen).
MOVES = 1e-3


def speeds(problem: Problem, q: np.ndarray, qd: np.ndarray) -> dict[str, np.ndarray]:
    """{constraint: (N, m)} velocities [m/s, rad/s] of its components at q (N, nq), q̇ (N, nv)."""
    held = [m for m in problem.constraints if isinstance(m, Stabilised) and m.noise is None]
    if not held:
        return {}
    model = problem.model

    def rates(q: np.ndarray, qd: np.ndarray) -> np.ndarray:
        context = Context.at(model, q, qd)
        return np.concatenate([m.error(context)[1] for m in held])

    sizes = {"q": (model.nq,), "qd": (model.nv,)}
    found = problem.kept(("speeds",), lambda: compile_function(rates, sizes, level=1))(q, qd)
    ends = np.cumsum([len(m.components(model)) for m in held])
    return dict(zip([m.name for m in held], np.split(found, ends[:-1], axis=-1), strict=True))


def warn_if_moving(
    problem: Problem, q: np.ndarray, qd: np.ndarray, driven: Collection[str] = (), what: str = "state"
) -> None:
    """Warn of constraints that move although they hold the robot, with their greatest speed.

    q (N, nq), qd (N, nv); driven: some that are to move. what: a state in the words.
    """
    if not qd.any():
        return
    words, named = [], {m.name: m for m in problem.constraints}
    for name, found in speeds(problem, q, qd).items():
        turns = np.array([x.startswith("alpha") for x in named[name].components(problem.model)])
        for unit, which in (("m/s", ~turns), ("rad/s", turns)):
            speed = np.linalg.norm(found[:, which], axis=1)
            if name not in driven and speed[worst := int(np.argmax(speed))] > MOVES:
                at = f" ({what} {worst})" if len(q) > 1 else ""
                words.append(f"{name!r} by {speed[worst]:.3g} {unit}{at}")
    if words:
        warn(
            f"constraints move that hold the robot: {few(words)}. They hold accelerations, so that it goes on "
            "until stabilise= has taken it out; sd.impact(problem)(q, qd).qd are velocities that they allow",
            PlausibilityWarning,
        )
