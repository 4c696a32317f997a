"""The program of a step: solution, feedback and integration, one straight line from a state to the next.

An integrator of several stages has one program for all of them, which coefficients tell apart, so that the solution is
in there once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sysdyn.codegen.registry import backend_named
from sysdyn.model import Model
from sysdyn.model.quantities import WRENCHES
from sysdyn.model.se3 import normalise_quaternions
from sysdyn.online.calls import Result
from sysdyn.online.solver import Solver
from sysdyn.program.autodiff import ScalarsByGroup, SymbolicProgram, to_graph
from sysdyn.program.graph import SHARING, Graph
from sysdyn.program.program import Program
from sysdyn.runtime.runner import Runner
from sysdyn.simulation.control import fed_back
from sysdyn.simulation.events import Margins

# Groups of a step beside those of the solver: coefficients of the stage, signs of margins, normal forces.
STAGE, SIGNS, NORMALS = "stage", "signs", "normals"
# Prefix of the groups of solved quantities among the inputs of a step.
SOLVED = "solved:"


class Integrator(NamedTuple):
    """A way from a state to the next.

    kept: groups of numbers that go on from call to call, with their sizes; q and q̇ first. coefficients: (stages, m) by
    the step [s]. next: (model, the kept groups, q̈, coefficients of a stage) → the kept groups after it. leaves: its
    stages leave the manifold, so that quaternions of q have other norms than 1 within a step.
    """

    kept: Callable[[Model], dict[str, int]]
    coefficients: Callable[[float], np.ndarray]
    next: Callable[[Model, dict[str, np.ndarray], np.ndarray, np.ndarray], dict[str, np.ndarray]]
    leaves: bool


def rates(model: Model, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    """dq/dt (nq,), quaternions by their four numbers."""
    parts = [x.rates(q[model.q_slice(i)]) @ qd[model.v_slice(i)] for i, x in enumerate(model.joints) if x.nq]
    return np.concatenate([np.zeros(0), *parts])


def _euler(model: Model, x: dict[str, np.ndarray], qdd: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
    """q̇ ← q̇ + h q̈, q ← q ⊕ h q̇."""
    q, qd = x["q"], x["qd"] + c[0] * qdd
    moved = [y.integrate(q[model.q_slice(i)], c[0] * qd[model.v_slice(i)]) for i, y in enumerate(model.joints)]
    return {"q": np.concatenate([np.zeros(0), *moved]), "qd": qd}


def _rk4(model: Model, x: dict[str, np.ndarray], qdd: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
    """A stage of the classical method in the numbers of q and q̇; quaternions are normalised at the end of a step.

    With the slopes k: sum ← γ sum + β k, start ← start + δ sum, state ← start + α k; c = (α, β, γ, δ).
    """
    alpha, beta, gamma, delta = c
    slopes = {"q": rates(model, x["q"], x["qd"]), "qd": qdd}
    found: dict[str, np.ndarray] = {}
    for name, slope in slopes.items():
        total = gamma * x[f"sum {name}"] + beta * slope
        start = x[f"start {name}"] + delta * total
        if name == "q":
            start = normalise_quaternions(start, [part for _, part in model.quaternions])
        found |= {name: start + alpha * slope, f"start {name}": start, f"sum {name}": total}
    return found


def _slopes(model: Model, x: dict[str, np.ndarray], qdd: np.ndarray, c: np.ndarray) -> dict[str, np.ndarray]:
    """The slopes themselves, for integrators that are not ours."""
    return {"q": rates(model, x["q"], x["qd"]), "qd": qdd}


def _state(model: Model) -> dict[str, int]:
    return {"q": model.nq, "qd": model.nv}


def _runge_kutta(model: Model) -> dict[str, int]:
    both = _state(model).items()
    return {f"{what}{name}": size for what in ("", "start ", "sum ") for name, size in both}


def _stages(h: float) -> np.ndarray:
    return np.array([(h / 2, h / 6, 0, 0), (h / 2, h / 3, 1, 0), (h, h / 3, 1, 0), (0, h / 6, 1, 1)], dtype=float)


# Integrators by name. The third one gives SciPy its slopes.
INTEGRATORS: dict[str, Integrator] = {
    "euler": Integrator(_state, lambda h: np.array([[h]]), _euler, False),
    "rk4": Integrator(_runge_kutta, _stages, _rk4, True),
    "adaptive": Integrator(_state, lambda h: np.zeros((1, 1)), _slopes, True),
}


class Steps:
    """The steps of a solver, by one integrator.

    solver: gives q̈. feedback: its gains are inputs. margins: their signs are outputs.
    """

    def __init__(self, solver: Solver, integrator: Integrator, feedback: bool, margins: Margins):
        self.solver, self.model, self.integrator, self.margins = solver, solver.model, integrator, margins
        self.feedback = feedback
        self.kept = integrator.kept(self.model)
        self.outputs = dict(solver.program.outputs.sizes)
        self.executable = self._made(self._program())

    def _made(self, program: Program) -> Runner:
        options = self.solver.options
        return Runner(backend_named(options.backend)(program, options.code_level))

    @property
    def program(self) -> Program:
        return self.executable.program

    def _program(self) -> Program:
        """Program of a stage: from the solver's inputs, u in place of τ, to kept groups after it, and its outputs."""
        graph, program = Graph(SHARING), self.solver.program
        further, x = self._kept_inputs(graph)
        gains, tau = self._torques(graph, x)
        own = to_graph(program, graph, {"q": list(normalise_quaternions(x["q"], self._quaternions)), "tau": tau})
        return self._from(own, further | gains, x, own.outputs)

    @cached_property
    def _rest(self) -> Runner:
        """The same without the solution, whose outputs are inputs."""
        graph = Graph(SHARING)
        further, x = self._kept_inputs(graph)
        solved = {name: list(graph.inputs(f"{SOLVED}{name}", size)) for name, size in self.outputs.items()}
        further |= {f"{SOLVED}{name}": column for name, column in solved.items()}
        own = SymbolicProgram(graph, {name: list(x[name]) for name in ("q", "qd")}, {}, [])
        return self._made(self._from(own, further, x, solved))

    @property
    def _quaternions(self) -> list[slice]:
        """Quaternions of q that have other norms than 1 at the stages within a step."""
        return [part for _, part in self.model.quaternions] if self.integrator.leaves else []

    def _kept_inputs(self, graph: Graph) -> tuple[ScalarsByGroup, dict[str, np.ndarray]]:
        """(the groups of inputs that a solver does not have, the kept groups)."""
        x = {name: graph.inputs(name, size) for name, size in self.kept.items()}
        stage = list(graph.inputs(STAGE, self.integrator.coefficients(0.0).shape[1]))
        return {name: list(y) for name, y in x.items() if name not in ("q", "qd")} | {STAGE: stage}, x

    def _torques(self, graph: Graph, x: dict[str, np.ndarray]) -> tuple[ScalarsByGroup, list]:
        """(the gains, τ = u − Kp q − Kd q̇)."""
        names = ("tau", "kp", "kd") if self.feedback else ("tau",)
        given = {name: np.array(graph.inputs(name, self.model.nv), dtype=object) for name in names}
        tau, gains = given.pop("tau").copy(), {name: list(y) for name, y in given.items()}
        if gains:
            fed_back(self.model, tau, **given, q=x["q"], qd=x["qd"])
        return gains, list(tau)

    def _from(
        self, own: SymbolicProgram, further: ScalarsByGroup, x: dict[str, np.ndarray], solved: ScalarsByGroup
    ) -> Program:
        """The program from the solution on."""
        stage, w = np.array(further[STAGE], dtype=object), solved.get(WRENCHES.name)
        qdd = np.array(solved["qdd"], dtype=object)
        found = self.integrator.next(self.model, x, qdd, stage)
        if self.integrator.next is not _slopes:
            found["q"], found["qd"] = self.solver.problem.imposed(found["q"], found["qd"])
        results: ScalarsByGroup = {f"next {name}": list(y) for name, y in found.items()}
        if self.margins.words:
            results |= {SIGNS: self.margins.signs(x["q"], w), NORMALS: self.margins.normal_forces(w)}
        ranges = self.solver.program.ranges
        return own.to_program(further, results | solved, ranges if own.guarded or own.outputs else (), simplified=False)

    def settled(
        self, inputs: dict[str, np.ndarray], status: np.ndarray, on_singular: str
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """(all outputs of the program, (n,) bool: they are right) at n states at which it has failed.

        The solver takes its general way. Raises as the solver does.
        """
        n, model = len(status), self.model
        x = {name: np.array(np.broadcast_to(y, (n, y.shape[-1])), order="C") for name, y in inputs.items()}
        q, tau = normalise_quaternions(x["q"], self._quaternions), x["tau"].copy()
        if self.feedback:
            fed_back(model, tau, x["kp"], x["kd"], x["q"], x["qd"])
        given = {name: x[name] for name in self.solver.program.inputs} | {"q": q, "tau": tau}
        run = Result(given, (n,), {name: np.empty((n, size)) for name, size in self.outputs.items()}, status.copy())
        self.solver.resolve(run, on_singular)
        solved = x | {f"{SOLVED}{name}": y for name, y in run.outputs.items()}
        taken = {name: solved[name] for name in self._rest.program.inputs}
        found, left = self._rest.results(taken, n)
        return found, (run.status == 0) & (left == 0)
