"""Contacts that the motion of feet proposes: feet whose velocities agree with zero and with each other, in a window.

At first the lowest feet count, as far as they do not move much; round by round velocities count alone, the smaller the
more, with weights of Geman and McClure (1985), as in graduated non-convexity (Yang et al. 2020). What is proposed is
tested by the smoother, as every stance is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sysdyn.estimation.ekf import GaussianState
from sysdyn.estimation.estimation_problem import EstimationProblem
from sysdyn.estimation.gauss_newton import ROUGH_DECREASE, STEPS_A_ROUND, Smoother
from sysdyn.estimation.linearization import Linearised
from sysdyn.estimation.residuals import OUTLIER_THRESHOLD, MeasurementData, machine_code
from sysdyn.estimation.state_trajectory import StateTrajectory, declared_std
from sysdyn.measurements.contact_schedule import Settling
from sysdyn.measurements.measurement import Context
from sysdyn.measurements.state_sensors import Stance
from sysdyn.program.graph import SHARING, Graph
from sysdyn.program.program import Program
from sysdyn.runtime.runner import Runner

# Velocities [m/s, rad/s] that count a quarter as much as none, round by round, and heights [m] above the lowest foot by
# which feet count in the first rounds (chosen: from the speed of a swinging foot down to that of one that slips).
ROUNDS = ((0.5, 0.02), (0.2, 0.03), (0.1, np.inf), (0.05, np.inf))


def proposed(
    estimation: EstimationProblem, belief: GaussianState, kappa: np.ndarray, readings: MeasurementData
) -> MeasurementData:
    """The readings with stances that ask for proposals switched off at instants without a proposed contact.

    belief: of the first instant before its readings.
    """
    feet = [m for m in estimation.problem.state_sensors if isinstance(m, Stance) and m.proposed]
    if not feet:
        return readings
    model = estimation.model
    smoother = Smoother(
        Linearised(estimation.layout, estimation.kinematic, kappa, belief, estimation.gauge_directions), True
    )
    noise = {m.name: declared_std(m, model) for m in feet}
    n = len(readings.t)
    weak = {m.name: np.full(n, float((noise[m.name].min() / ROUNDS[0][0]) ** 2)) for m in feet}
    path = estimation.initial_trajectory(belief, replace(readings, weights=weak), kappa)
    height = _heights(estimation, feet)
    speed = dict[str, np.ndarray]()
    for scale, lift in ROUNDS:
        speed = _speeds(estimation, feet, noise, path, readings)
        above = height.results({"q": path.q}, n)[0]["height"]
        above = above - above.min(axis=1, keepdims=True)
        weights = {}
        for k, m in enumerate(feet):
            share = np.exp(-0.5 * (above[:, k] / lift) ** 2) / (1.0 + (speed[m.name] / scale) ** 2) ** 2
            weights[m.name] = np.maximum(share, 1e-6) * float((noise[m.name].min() / scale) ** 2)
        least, _ = smoother.solve(path, replace(readings, weights=weights), ROUGH_DECREASE, STEPS_A_ROUND)
        path = least.path
    speed = _speeds(estimation, feet, noise, path, readings)
    active = {}
    for m in feet:
        lasting = estimation.layout.biases[m.name].std if m.drift is not None else np.zeros(1)
        limit = OUTLIER_THRESHOLD * float(np.sqrt(np.square(noise[m.name]).max() + np.square(lasting).max()))
        active[m.name] = readings.active[m.name] & (speed[m.name] <= limit)[:, None]
    Settling(estimation.problem).switch(active, readings.t)
    return readings.exclude({name: ~x for name, x in active.items()})


def _speeds(
    estimation: EstimationProblem,
    feet: Sequence[Stance],
    noise: dict[str, np.ndarray],
    path: StateTrajectory,
    readings: MeasurementData,
) -> dict[str, np.ndarray]:
    """{stance: (N,)} greatest components of the velocities of the held points along a path."""
    source, still = estimation.states, replace(path, biases=np.zeros_like(path.biases))
    r = source.linearize(still, readings, weighted=False).r
    return {m.name: np.abs(r[:, source.rows[m.name]] * noise[m.name]).max(axis=1) for m in feet}


def _heights(estimation: EstimationProblem, feet: Sequence[Stance]) -> Runner:
    """The program of the heights (feet,) at q."""
    model, graph = estimation.model, Graph(SHARING)
    q = graph.inputs("q", model.nq)
    up = -model.gravity / max(float(np.linalg.norm(model.gravity)), np.finfo(float).tiny)
    context = Context.at(model, q, np.zeros(model.nv))
    values = [up @ context.p(m.frame) for m in feet]
    return machine_code(Program.from_graph(graph, (("q", q),), [("height", values)]))
