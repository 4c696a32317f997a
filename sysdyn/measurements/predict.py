"""Predicted values of measurements during a known motion, exact or with random noise."""

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
from sysdyn.measurements.state_sensors import Stance, with_errors
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
    """Predict the value of every measurement of a problem during a known motion.

    Parameters
    ----------
    problem : Problem
        The model and its measurements.
    q : (…, nq) array
        Positions, rad or m, and unit quaternions.
    qd, qdd : (…, nv) array
        Velocities and accelerations of the joints.
    fx : (…, nb, 6) array, optional
        External wrenches on the bodies, N m and N, in body coordinates; zero by default.
    seed : int, optional
        Seed of the noise, which is drawn as declared for each measurement and state. None for exact values.
    state_sensors : bool
        Predict the sensors of the state, too, except for stances. Solvers of one state do not take their values.
    **others : array
        Further quantities of the problem by name, zero by default.

    Returns
    -------
    dict of str to (…, m) array
        Values by the name of the measurement; of a prior zero, its mean. Biases that are unknown over a log are zero.

    Raises
    ------
    InvalidInput
        If an array has a wrong shape.

    Notes
    -----
    τ, a and f follow by the recursive Newton-Euler algorithm (RBDA Table 5.1), and the values are Y d + b_Y. A solver
    that takes them as y returns the same motion if the problem is well posed and nothing is noisy.
    """
    model = problem.model
    motion = motion_of(problem, q, qd, qdd, fx, bind_arguments("predict", problem.further, (), (), others))
    lead = motion["tau"].shape[:-1]
    n = math.prod(lead)
    d = {x: np.broadcast_to(y, (*lead, *QUANTITY[x].shape(model))).reshape(n, -1) for x, y in motion.items()}
    state = {"q": model.normalise(np.asarray(q)), "qd": np.asarray(qd, dtype=float)}
    state = {name: np.broadcast_to(x, (*lead, x.shape[-1])).reshape(n, x.shape[-1]) for name, x in state.items()}
    predicted = list(problem.valued)
    if state_sensors:
        predicted += [m for m in problem.state_sensors if not isinstance(m, Stance)]
    exact, values = sensor_values([m for m in predicted if not m.prior], model, state, d), {}
    rng = None if seed is None else np.random.default_rng(seed)
    for m in predicted:
        # noise of priors is drawn, too, so that the noise of other measurements does not depend on them
        errors = None if rng is None or m.noise is None else _random_errors(m, problem, n, rng)
        x = np.zeros((n, len(m.components(model)))) if m.prior else exact[m.name]
        x = x if errors is None or m.prior else with_errors(m, x, errors)
        values[m.name] = x.reshape(*lead, x.shape[-1])
    return values


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


def sensor_values(
    measurements: Iterable[Measurement], model: Model, state: dict[str, np.ndarray], d: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Values {name: (N, m)} at N states q, q̇: Y d + b_Y with quantities d (N, size), or functions of the state.

    Y, b_Y and the functions are run as one program.
    """
    layout, graph = Layout(model), Graph()
    inputs = {"q": graph.inputs("q", model.nq), "qd": graph.inputs("qd", model.nv)}
    ctx = Context.at(model, inputs["q"], inputs["qd"])
    groups: list[tuple[str, list]] = []
    terms: dict[str, list[tuple[str, np.ndarray]]] = {}  # by measurement: (group of a block of Y, its part of d)
    for m in measurements:
        constant = m.value(ctx) if m.of_state else m.bias(ctx)
        groups.append((m.name, list(np.asarray(constant).astype(object))))
        terms[m.name] = []
        for (quantity, owner), block in () if m.of_state else m.rows(ctx).items():
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


def _random_errors(m: Measurement, problem: Problem, n: int, rng: np.random.Generator) -> np.ndarray:
    """Errors ε (n, m) ~ N(0, Σ) of a measurement, Σ as declared."""
    noise = noise_of(m, problem.model)
    L = np.linalg.cholesky(noise.matrix(noise.declared))
    return rng.standard_normal((n, noise.size)) @ L.T
