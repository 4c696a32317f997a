"""The program of an integrator's stage: forward dynamics, feedback and integration in one straight line.

An integrator of several stages has one program for all of them; its coefficients are inputs, so that the code of the
forward dynamics exists once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sysdyn.codegen.registry import backend_named
from sysdyn.model import Model
from sysdyn.model.quantities import WRENCHES
from sysdyn.model.se3 import normalise_quaternions
from sysdyn.online.calls import Result
from sysdyn.online.solver import Solver
from sysdyn.program.autodiff import ScalarsByGroup, to_graph
from sysdyn.program.graph import SHARING, Graph
from sysdyn.program.program import Program
from sysdyn.runtime.runner import Runner
from sysdyn.simulation.control import apply_feedback
from sysdyn.simulation.events import EventFunctions

# Groups of a stage in addition to those of the solver: its coefficients, signs of event functions, normal forces.
STAGE, SIGNS, NORMALS = "stage", "signs", "normals"


class Integrator(NamedTuple):
    """A one-step method.

    sizes: model → {group: size} of the numbers that pass from stage to stage; q and q̇ first. coefficients: step [s] →
    (stages, m). advance: (model, groups, q̈, coefficients of a stage) → groups after the stage. leaves_manifold: at its
    stages quaternions do not have unit norm.
    """

    sizes: Callable[[Model], dict[str, int]]
    coefficients: Callable[[float], np.ndarray]
    advance: Callable[[Model, dict[str, np.ndarray], np.ndarray, np.ndarray], dict[str, np.ndarray]]
    leaves_manifold: bool


def position_rates(model: Model, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    """dq/dt (nq,), quaternions by their four components."""
    parts = [x.rates(q[model.q_slice(i)]) @ qd[model.v_slice(i)] for i, x in enumerate(model.joints) if x.nq]
    return np.concatenate([np.zeros(0), *parts])


def _euler(model: Model, x: dict[str, np.ndarray], qdd: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
    """q̇ ← q̇ + h q̈, q ← q ⊕ h q̇."""
    q, qd = x["q"], x["qd"] + c[0] * qdd
    parts = [y.integrate(q[model.q_slice(i)], c[0] * qd[model.v_slice(i)]) for i, y in enumerate(model.joints)]
    return {"q": np.concatenate([np.zeros(0), *parts]), "qd": qd}


def _rk4(model: Model, x: dict[str, np.ndarray], qdd: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
    """A stage of the classical method in the coordinates of q and q̇; quaternions are normalised at the end of a step.

    With the slopes k: sum ← γ sum + β k, start ← start + δ sum, state ← start + α k; c = (α, β, γ, δ).
    """
    alpha, beta, gamma, delta = c
    slopes = {"q": position_rates(model, x["q"], x["qd"]), "qd": qdd}
    after: dict[str, np.ndarray] = {}
    for name, slope in slopes.items():
        total = gamma * x[f"sum {name}"] + beta * slope
        start = x[f"start {name}"] + delta * total
        if name == "q":
            start = normalise_quaternions(start, [part for _, part in model.quaternions])
        after |= {name: start + alpha * slope, f"start {name}": start, f"sum {name}": total}
    return after


def _slopes(model: Model, x: dict[str, np.ndarray], qdd: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
    """dq/dt and q̈, for integrators of SciPy."""
    return {"q": position_rates(model, x["q"], x["qd"]), "qd": qdd}


def _state_sizes(model: Model) -> dict[str, int]:
    return {"q": model.nq, "qd": model.nv}


def _rk4_sizes(model: Model) -> dict[str, int]:
    return {f"{part}{name}": size for part in ("", "start ", "sum ") for name, size in _state_sizes(model).items()}


def _rk4_coefficients(h: float) -> np.ndarray:
    return np.array([(h / 2, h / 6, 0, 0), (h / 2, h / 3, 1, 0), (h, h / 3, 1, 0), (0, h / 6, 1, 1)], dtype=float)


INTEGRATORS: dict[str, Integrator] = {
    "euler": Integrator(_state_sizes, lambda h: np.array([[h]]), _euler, leaves_manifold=False),
    "rk4": Integrator(_rk4_sizes, _rk4_coefficients, _rk4, leaves_manifold=True),
    "adaptive": Integrator(_state_sizes, lambda h: np.zeros((1, 1)), _slopes, leaves_manifold=True),
}


class StepProgram:
    """The compiled stage of an integrator.

    solver: computes q̈. feedback: the gains are inputs. events: signs of event functions are outputs.
    """

    def __init__(self, solver: Solver, integrator: Integrator, feedback: bool, events: EventFunctions):
        self.solver, self.model, self.integrator, self.events = solver, solver.model, integrator, events
        self.feedback = feedback
        self.sizes = integrator.sizes(self.model)
        self.outputs = dict(solver.program.outputs.sizes)
        self.runner = Runner(backend_named(solver.options.backend)(self._program(), solver.options.code_level))

    @property
    def program(self) -> Program:
        return self.runner.program

    def _program(self) -> Program:
        """Inputs: those of the solver, where tau is u of the control law, and those of the integrator.

        Outputs: "next …" of each group of the integrator, outputs of the solver, signs of event functions.
        """
        graph, program = Graph(SHARING), self.solver.program
        x = {name: graph.inputs(name, size) for name, size in self.sizes.items()}
        stage = graph.inputs(STAGE, self.integrator.coefficients(0.0).shape[1])
        gains = {name: graph.inputs(name, self.model.nv) for name in (("kp", "kd") if self.feedback else ())}
        tau = graph.inputs("tau", self.model.nv).copy()
        q = self._feed_back(tau, gains, x)
        dynamics = to_graph(program, graph, {"q": list(q), "tau": list(tau)})
        further = {name: list(y) for name, y in (x | {STAGE: stage} | gains).items() if name not in ("q", "qd")}
        return dynamics.to_program(
            further, self._advance(x, dynamics.outputs, stage) | dynamics.outputs, program.ranges, simplified=False
        )

    def _feed_back(self, tau: np.ndarray, gains: dict[str, np.ndarray], x: dict[str, np.ndarray]) -> np.ndarray:
        """Add the feedback to tau; returns q with unit quaternions."""
        if gains:
            apply_feedback(self.model, tau, gains["kp"], gains["kd"], x["q"], x["qd"])
        quaternions = [part for _, part in self.model.quaternions] if self.integrator.leaves_manifold else []
        return normalise_quaternions(x["q"], quaternions)

    def _advance(self, x: dict[str, np.ndarray], solution: ScalarsByGroup, stage: np.ndarray) -> ScalarsByGroup:
        """Groups after the stage, signs of event functions and normal forces; of numbers or expressions."""
        after = self.integrator.advance(self.model, x, np.asarray(solution["qdd"]), stage)
        if self.integrator.advance is not _slopes:
            after["q"], after["qd"] = self.solver.problem.imposed(after["q"], after["qd"])
        results: ScalarsByGroup = {f"next {name}": list(y) for name, y in after.items()}
        if self.events.count:
            w = solution.get(WRENCHES.name)
            results |= {SIGNS: self.events.signs(x["q"], w), NORMALS: self.events.normal_forces(w)}
        return results

    def solve_fallback(
        self, inputs: dict[str, np.ndarray], status: np.ndarray, on_singular: str
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Outputs of the program at n states that it flagged, by the fallbacks of the solver, and which are valid (n,).

        Raises as the solver does.
        """
        n = len(status)
        x = {name: np.array(np.broadcast_to(y, (n, y.shape[-1])), order="C") for name, y in inputs.items()}
        tau = x["tau"].copy()
        q = self._feed_back(tau, {name: x[name] for name in ("kp", "kd") if self.feedback}, x)
        given = {name: x[name] for name in self.solver.program.inputs} | {"q": q, "tau": tau}
        solution = {name: np.full((n, size), np.nan) for name, size in self.outputs.items()}
        result = Result(given, (n,), solution, status.copy())
        self.solver.resolve(result, on_singular)
        sizes = self.program.outputs.sizes
        outputs = {name: solution.get(name, np.full((n, size), np.nan)) for name, size in sizes.items()}
        for k in np.flatnonzero(result.status == 0):
            state = {name: x[name][k] for name in self.sizes}
            row = self._advance(state, {name: y[k] for name, y in solution.items()}, x[STAGE][k])
            for name, values in row.items():
                outputs[name][k] = values
        finite = np.all([np.isfinite(y).all(axis=1) for y in outputs.values()], axis=0)
        return outputs, (result.status == 0) & finite
