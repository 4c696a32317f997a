"""Values that sensors show during a known motion, with noise if wanted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.codegen import interpreter
from sysdyn.measurements.measurement import Context, Measurement
from sysdyn.measurements.noise import noise_of
from sysdyn.measurements.problem import Problem
from sysdyn.measurements.state_sensors import Stance, disturbed
from sysdyn.measurements.variables import Layout
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY
from sysdyn.program.graph import Graph
from sysdyn.program.groups import bind_arguments
from sysdyn.program.program import Program
from sysdyn.program.reproducible import matmul
from sysdyn.reference.generic import checked_array
from sysdyn.reference.rnea import newton_euler


def predict(
    problem: Problem,
    q: ArrayLike,
    qd: ArrayLike,
    qdd: ArrayLike,
    fx: ArrayLike | None = None,
    seed: int | None = None,
    state_sensors: bool = False,
    **others: ArrayLike,
) -> dict[str, np.ndarray]:
    """Values {name: (…, m)} of every measurement of `problem` during a known motion; of priors zero, their mean.

    q (…, nq), qd, qdd (…, nv); fx (…, nb, 6) [N m, N] external wrenches on the bodies, in body coordinates, None for
    none. seed: of the noise, drawn as declared for each measurement and state; None for exact values. state_sensors:
    with the values of sensors of the state, which solvers of one state do not take; stances have none. others: further
    quantities of the problem by name, zero if they are left out. Biases that are unknown over a log are left out.
    τ, a and f follow by the recursive Newton-Euler algorithm (RBDA Table 5.1), and the values are Y d + b_Y. Handed to
    a solver as y, they give the motion back if the problem is well posed and nothing is noisy. Raises InvalidInput.
    """
    model = problem.model
    values = motion_of(problem, q, qd, qdd, fx, bind_arguments("predict", problem.further, (), (), others))
    lead = values["tau"].shape[:-1]
    n = math.prod(lead)
    d = {x: np.broadcast_to(y, (*lead, *QUANTITY[x].shape(model))).reshape(n, -1) for x, y in values.items()}
    state = {"q": model.normalise(np.asarray(q)), "qd": np.asarray(qd, dtype=float)}
    state = {name: np.broadcast_to(x, (*lead, x.shape[-1])).reshape(n, x.shape[-1]) for name, x in state.items()}
    exact, values = shown([m for m in problem.valued if not m.prior], model, state, d), {}
    rng = None if seed is None else np.random.default_rng(seed)
    for m in problem.valued:
        noise = 0.0 if rng is None or m.noise is None else _drawn(m, problem, n, rng)
        # the mean, whatever the motion; noise is drawn all the same, so that that of others does not depend on it
        values[m.name] = np.zeros((n, len(m.components(model)))) if m.prior else exact[m.name] + noise
    if state_sensors:
        asked = [m for m in problem.state_sensors if not isinstance(m, Stance)]
        for name, x in shown_state(asked, model, state).items():
            m = next(m for m in asked if m.name == name)
            values[name] = x if rng is None else disturbed(m, x, _drawn(m, problem, n, rng))
            if m.prior:
                values[name] = np.zeros_like(x)
    return {name: x.reshape(*lead, x.shape[-1]) for name, x in values.items()}


def motion_of(
    problem: Problem, q: ArrayLike, qd: ArrayLike, qdd: ArrayLike, fx: ArrayLike | None, others: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """{quantity: (…, its shape)} of a motion; others: its further quantities, zero if they are left out."""
    model, wrenches, further = problem.model, fx, {}
    torques: Any = 0.0
    for x in problem.further:
        quantity, shape = QUANTITY[x], QUANTITY[x].shape(model)
        further[x] = value = checked_array(x, others.get(x, np.zeros(shape)), shape)
        flat = value.reshape(*value.shape[: value.ndim - len(shape)], math.prod(shape))
        wrench, torque = np.zeros((model.nb, 6, flat.shape[-1])), np.zeros((model.nv, flat.shape[-1]))
        for i in range(model.nb):
            loads, part = quantity.checked_terms(model, i), quantity.part(model, i)
            wrench[i][:, part] = loads.get("f", 0.0)
            torque[model.v_slice(i), part] = loads.get("tau", 0.0)
        torques = torques + flat @ torque.T
        wrenches = (0.0 if wrenches is None else np.asarray(wrenches)) + np.einsum("bis,...s->...bi", wrench, flat)
    motion = newton_euler(model, q, qd, qdd, wrenches)
    values = motion.quantities(qdd, 0.0 if fx is None else fx)
    return {**values, "tau": motion.tau - torques, **further} if further else values


def shown(
    measurements: Iterable[Measurement], model: Model, state: dict[str, np.ndarray], d: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Values {name: Y d + b_Y (N, m)} at N states q, q̇ with quantities (N, size); Y and b_Y are run as a program."""
    layout, graph = Layout(model), Graph()
    inputs = {"q": graph.inputs("q", model.nq), "qd": graph.inputs("qd", model.nv)}
    ctx = Context.at(model, inputs["q"], inputs["qd"])
    groups: list[tuple[str, list]] = []
    terms: dict[str, list[tuple[str, np.ndarray]]] = {}  # by measurement: (group of a block of Y, its part of d)
    for m in measurements:
        groups.append((m.name, list(np.asarray(m.bias(ctx)).astype(object))))
        terms[m.name] = []
        for (quantity, owner), block in m.rows(ctx).items():
            group, i = f"{m.name} {quantity} {owner}", layout.block(quantity, owner)[1]
            terms[m.name].append((group, d[quantity][:, QUANTITY[quantity].part(model, i)]))
            groups.append((group, list(np.asarray(block).astype(object).flat)))
    out = interpreter.run_groups(Program.from_graph(graph, tuple(inputs.items()), groups), state)
    values = {}
    for name, blocks in terms.items():
        size = out[name].shape[-1]
        total = np.broadcast_to(out[name], (len(state["q"]), size))
        for group, x in blocks:
            total = total + matmul(out[group].reshape(len(out[group]), size, x.shape[1]), x[..., None])[..., 0]
        values[name] = total
    return values


def shown_state(
    measurements: Iterable[Measurement], model: Model, state: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Values {name: (N, m)} of sensors of the state at N states q, q̇; they are run as a program."""
    graph = Graph()
    inputs = {"q": graph.inputs("q", model.nq), "qd": graph.inputs("qd", model.nv)}
    ctx = Context.at(model, inputs["q"], inputs["qd"])
    groups = [(m.name, list(m.value(ctx))) for m in measurements]
    if not groups:
        return {}
    out = interpreter.run_groups(Program.from_graph(graph, tuple(inputs.items()), groups), state)
    return {name: np.broadcast_to(x, (len(state["q"]), x.shape[-1])) for name, x in out.items()}


def _drawn(m: Measurement, problem: Problem, n: int, rng: np.random.Generator) -> np.ndarray:
    """Errors ε (n, m) ~ N(0, Σ) of a measurement, Σ as declared."""
    noise = noise_of(m, problem.model)
    L = np.linalg.cholesky(noise.matrix(noise.declared))
    return rng.standard_normal((n, noise.size)) @ L.T
