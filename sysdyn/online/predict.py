"""Values that sensors show during a known motion, with noise if wanted."""

from __future__ import annotations

import math

import numpy as np

from sysdyn.backends import interpreter
from sysdyn.measurements.measurement import Context
from sysdyn.measurements.noise import noise_of
from sysdyn.measurements.variables import QUANTITIES, Layout
from sysdyn.model.kinematics import joint_transforms, velocities
from sysdyn.online.arguments import WRENCHES
from sysdyn.problem import Problem
from sysdyn.program.expr import Graph
from sysdyn.program.program import Program
from sysdyn.reference.rnea import newton_euler


def predict(problem: Problem, q, qd, qdd, fx=None, seed: int | None = None) -> dict[str, np.ndarray]:
    """{name: (…, m)}: the value of every measurement of `problem` during a known motion.

    q (…, nq), qd, qdd (…, nv); fx (…, nb, 6) [N m, N] external wrenches on the bodies, in body coordinates, None: none.
    seed: of the noise, drawn as declared for each measurement and state; None: exact values.
    τ, a and f follow by the recursive Newton-Euler algorithm (RBDA Table 5.1), and the values are Y d + b_Y. Handed to
    a solver as y, they give the motion back where the problem is well posed and nothing is noisy. Raises InvalidInput.
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

    # Y and b_Y as a program of q and q̇, run at all states.
    graph = Graph()
    inputs = {"q": graph.inputs("q", model.nq), "qd": graph.inputs("qd", model.nv)}
    X = joint_transforms(model, inputs["q"])
    ctx = Context(model, X, velocities(model, X, inputs["qd"])[0], inputs["q"], inputs["qd"])
    groups, unknowns, sizes = [], {}, [len(m.components(model)) for m in problem.valued]
    for k, m in enumerate(problem.valued):
        groups.append((f"{k}", list(np.asarray(m.bias(ctx)).astype(object))))
        for (quantity, owner), block in m.rows(ctx).items():
            index = model.joint_index(owner) if quantity in ("tau", "qdd") else model.body_index(owner)
            unknowns[f"{k} {quantity} {owner}"] = k, d[:, list(layout.columns(quantity, index))]
            groups.append((f"{k} {quantity} {owner}", list(np.asarray(block).astype(object).flat)))
    out = interpreter.run_groups(Program.from_graph(graph, tuple(inputs.items()), groups), state)
    values = [np.broadcast_to(out[f"{k}"], (len(d), size)) for k, size in enumerate(sizes)]
    for name, (k, x) in unknowns.items():
        values[k] = values[k] + np.einsum("nij,nj->ni", out[name].reshape(len(out[name]), sizes[k], x.shape[1]), x)
    rng = np.random.default_rng(seed)
    for k, m in enumerate(problem.valued):
        if m.noise is not None and seed is not None:
            noise = noise_of(m, model)
            L = np.linalg.cholesky(noise.matrix(noise.declared))
            values[k] = values[k] + rng.standard_normal((len(d), sizes[k])) @ L.T
    return {m.name: values[k].reshape(*lead, sizes[k]) for k, m in enumerate(problem.valued)}
