"""Values that sensors show during a known motion."""

from __future__ import annotations

import math

import numpy as np

from sysdyn.inputs import WRENCHES
from sysdyn.reference.rnea import newton_euler
from sysdyn.system.problem import Problem
from sysdyn.system.variables import QUANTITIES, Layout


def predict(problem: Problem, q, qd, qdd, fx=None) -> dict[str, np.ndarray]:
    """{name: (…, m)}: the exact value of every measurement of `problem` during a known motion.

    q (…, nq), qd, qdd (…, nv); fx (…, nb, 6) [N m, N] external wrenches on the bodies, in body coordinates, None: none.
    τ, a and f follow by the recursive Newton-Euler algorithm (RBDA Table 5.1), and the values are Y d + b_Y. Handed to
    a solver as y, they give the motion back where the problem is well posed. Raises InvalidInput.
    """
    model, layout = problem.model, Layout(problem.model)
    tau, a, f, _ = newton_euler(model, q, qd, qdd, fx)
    lead = tau.shape[:-1]
    values = {"qdd": qdd, "fx": 0.0 if fx is None else fx, "tau": tau, "a": a, "f": f}
    d = np.zeros((math.prod(lead), layout.n))
    for quantity in QUANTITIES:
        shape = (*lead, model.nb, 6) if quantity in WRENCHES else (*lead, model.nv)
        columns = layout.quantity_columns(quantity)
        d[:, columns] = np.broadcast_to(values[quantity], shape).reshape(len(d), len(columns))
    state = {"q": model.normalise(q), "qd": np.asarray(qd, dtype=float)}
    state = {name: np.broadcast_to(x, (*lead, x.shape[-1])).reshape(len(d), x.shape[-1]) for name, x in state.items()}
    system = problem.system()
    rows = system.residual(state, d).rows  # with y = 0: Y d + b_Y
    at = len(system.row_blocks) - problem.ny
    result = {}
    for m in (*problem.raw, *problem.custom):  # the order of the rows
        size = len(m.components(model))
        result[m.name] = rows[:, at : at + size].reshape(*lead, size)
        at += size
    return {m.name: result[m.name] for m in problem.measurements}
