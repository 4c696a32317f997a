"""`simulate`: motions from states, torques and a problem that gives accelerations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.contact.time_stepping import Unilateral
from sysdyn.errors import InvalidInput, ProblemError, SingularState, check_among
from sysdyn.measurements.constraints import Stabilised, stabilised
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY, WRENCHES
from sysdyn.online.arguments import Arguments, Inputs
from sysdyn.online.compile import compile
from sysdyn.online.constraint_errors import warn_if_moving, warn_if_opened, warn_of_followers, warn_of_gaps
from sysdyn.online.solver import ON_SINGULAR, Solver
from sysdyn.online.switching import SwitchingSolver
from sysdyn.program.arrays import is_count
from sysdyn.program.groups import Groups
from sysdyn.simulation import adaptive, fixed, time_stepping
from sysdyn.simulation.control import ControlLaw, Feedback, control_law
from sysdyn.simulation.events import EventFunctions
from sysdyn.simulation.fixed import Controller, SimulationSpec
from sysdyn.simulation.result import Simulation
from sysdyn.simulation.steps import INTEGRATORS, StepProgram

# Default time constant [s] of constraint errors, and the least time constant in steps (chosen).
STABILISE, MIN_STEPS = 0.05, 5
# Largest difference of a duration from a whole number of steps, in steps: decimal fractions are rounded (chosen).
ROUNDING = 1e-6


def simulate(
    problem: Problem | Solver | Unilateral, q: ArrayLike, qd: ArrayLike, tau: ArrayLike | Feedback | Callable | None,
    duration: float, step: float, *, integrator: str = "euler", every: int = 1, outputs: str | Sequence[str] = (),
    stabilise: float | None = STABILISE, tolerance: float = 1e-9, on_singular: str = "raise",
    threads: int | None = None, **given: Any,
) -> Simulation:  # fmt: skip
    """Simulate a robot, or a batch of robots, from an initial state.

    Parameters
    ----------
    problem : Problem, Solver or Unilateral
        A problem that knows tau, as forward and hybrid dynamics with contacts, loops and couplings do. It is compiled
        at the first call. Or its Solver, with qdd among its outputs, and with w for events of contacts. Or
        `unilateral` contacts with reference="world", which push on the plane z = 0, slide and open; with "euler" only.
    q, qd : (…, nq), (…, nv) array_like
        Initial state [rad, m; rad/s, m/s]; leading axes are robots.
    tau : array_like, Feedback, callable or None
        Generalised forces [N m, N]: (nv,) or (…, nv); (steps, nv) or (steps, …, nv), each held for a step; `Feedback`,
        which is part of the compiled steps; or a function (t, q, qd) → tau of all robots, called before each step and
        held for it ("adaptive": of one robot only). None: zero.
    duration, step : float
        [s]; a whole number of steps.
    integrator : str
        "euler": q̇ ← q̇ + h q̈, then q ← q ⊕ h q̇ (semi-implicit, order 1). "rk4": order 4. "adaptive": SciPy's DOP853
        with `tolerance`, robot by robot; `step` is then the time for which torques are held.
    every : int
        Number of steps between recorded states; divides the number of steps.
    outputs : str or sequence of str
        Outputs of the problem to record: "qdd", "tau", "w", …
    stabilise : float or None
        Time constant [s] with which errors of contacts, loops and couplings decay if they do not define their own; of a
        Problem. None leaves them uncorrected. A `Contact` without `at=` corrects its velocity only.
    tolerance : float
        Relative and absolute error per step of "adaptive".
    on_singular : str
        "raise", or "nan": robots whose state is singular or not finite stop, and the others go on.
    threads : int, optional
        For a batch; None: as many as are worth it.
    **given
        Further arguments of a call of the solver, constant in time: fx, qdd, y, parameters, …; active={name: bool} of
        `Switchable` contacts. With `unilateral` contacts: fx, friction and restitution.

    Returns
    -------
    Simulation

    Raises
    ------
    ProblemError
        If the problem cannot be simulated.
    InvalidInput, UnknownName
        With the name of the argument.
    SingularState
        With the time and the robots.

    Warns
    -----
    PlausibilityWarning
        With the speed of contacts, loops and couplings that move at the start, and the gap of loops that are open
        there or, without `stabilise`, at the end.

    Notes
    -----
    A state that the compiled program flags is solved by the fallbacks of the solver. Damping and friction of a robot
    file are not part of the equations: use `Feedback(kp=0.0, kd=model.damping, q=q)`. Coupled joints of the model
    follow their leaders at every step.

    Examples
    --------
    >>> motion = sd.simulate(sd.forward_dynamics(model), q, qd, None, duration=2.0, step=1e-3)
    >>> motion.t, motion.q, motion.energy(), motion.events
    """
    check_among("integrator", integrator, INTEGRATORS)
    check_among("on_singular", on_singular, ON_SINGULAR)
    times = {"duration": duration, "step": step, **({} if stabilise is None else {"stabilise": stabilise})}
    for what, x in (*times.items(), ("tolerance", tolerance)):
        if not (isinstance(x, (int, float, np.number)) and 0.0 < float(x) < math.inf):
            unit = "" if what == "tolerance" else " of seconds"
            raise InvalidInput(f"{what} is {x!r}, but a positive number{unit} is needed")
    count = _step_count(duration, step, every)
    names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    if isinstance(problem, Unilateral):
        time_stepping.check_arguments(integrator, on_singular, names, given)
        return _simulate_unilateral(problem, q, qd, tau, count, float(step), every, names, stabilise, given)
    if not isinstance(problem, (Problem, Solver)):
        kind = "it is a Model: take sysdyn.forward_dynamics(model)" if isinstance(problem, Model) else repr(problem)
        raise InvalidInput(f"simulate needs a Problem or its Solver: {kind}")
    if isinstance(problem, SwitchingSolver) or (isinstance(problem, Problem) and problem.switchable_constraints):
        problem = problem.mode(given.pop("active", None))
    if "tau" in given:
        raise InvalidInput("tau is given twice")
    solver = _solver(problem, names, stabilise, step, given)
    model = solver.model
    inputs = Inputs(solver.problem, solver.options.external_wrenches)
    arrays, lead = inputs.checked(Arguments.of(q, qd, (), {**given, "tau": np.zeros(model.nv)}))
    inputs.groups.reject_not_finite(arrays)
    robots = _robot_count(lead)
    for name in ("q", "qd"):
        arrays[name] = np.array(np.broadcast_to(arrays[name], (robots, arrays[name].shape[-1])), order="C")
    del arrays["tau"]
    arrays["q"], arrays["qd"] = solver.problem.imposed(arrays["q"], arrays["qd"])
    warn_if_moving(solver.problem, arrays["q"], arrays["qd"], given.get("y") or (), "robot")
    gaps = warn_of_gaps(solver.whole, arrays["q"], "robot")
    if callable(tau) and integrator == "adaptive" and lead:
        raise InvalidInput(
            "a function for torques is of all robots at one time, but 'adaptive' takes robot after robot: simulate "
            "them one by one, or take a Feedback or 'rk4'"
        )
    law, controller = _torques(model, tau, count, lead)
    spec = SimulationSpec(
        _step_program(solver, integrator, feedback=bool(law.gains)), arrays, law, controller, float(step), count,
        every, names, on_singular, tolerance,
    )  # fmt: skip
    try:
        recording = adaptive.run(spec) if integrator == "adaptive" else fixed.run(spec, threads)
    except SingularState as error:
        if not gaps:
            raise
        text = f"the simulation failed before its end; at its start {gaps}"
        raise SingularState(text, error.equation, error.unknown, error.states) from error
    t = every * step * np.arange(count // every + 1)
    warn_if_opened(solver.whole, recording.arrays["q"], t)
    ok = np.ones(robots, dtype=bool)
    ok[list(recording.diverged)] = False
    shapes: dict[str, tuple[int, ...]] = {"q": (model.nq,), "qd": (model.nv,)}
    shapes |= {name: group.shape for name, group in solver.problem.outputs(names).items()}
    found = {name: x.reshape(-1, *lead, *shapes[name]) for name, x in recording.arrays.items()}
    return Simulation(
        solver.problem, t, found.pop("q"), found.pop("qd"), found, tuple(sorted(recording.events)),
        ok.reshape(lead), integrator,
    )  # fmt: skip


def _simulate_unilateral(
    ground: Unilateral, q: ArrayLike, qd: ArrayLike, tau: ArrayLike | Feedback | Callable | None, count: int,
    step: float, every: int, outputs: tuple[str, ...], stabilise: float | None, given: Mapping[str, Any],
) -> Simulation:  # fmt: skip
    """Simulate robots whose contacts push on the plane z = 0."""
    model = ground.model
    arrays, lead = Groups([QUANTITY[name].group(model) for name in ("q", "qd")]).normalise_inputs({"q": q, "qd": qd})
    robots = _robot_count(lead)
    axis = (robots,) if lead else ()
    state = np.broadcast_to(arrays["q"], (*axis, model.nq)), np.broadcast_to(arrays["qd"], (*axis, model.nv))
    warn_of_followers(ground.problem, *state, "robot")
    state = ground.problem.imposed(*state)
    warn_of_gaps(ground.problem, state[0].reshape(robots, -1), "robot")
    law, controller = _torques(model, tau, count, lead)

    def flatten(x: Any) -> Any:
        """Values with one axis of robots in place of all leading axes."""
        if isinstance(x, Mapping):
            return {name: flatten(y) for name, y in x.items()}
        shape = np.shape(x)
        return np.reshape(x, (robots, *shape[len(lead) :])) if lead and shape[: len(lead)] == lead else x

    found, events = time_stepping.run(
        ground, state, law, controller, step, count, every, outputs, stabilise, flatten(given)
    )
    found = {name: x.reshape(len(x), *lead, x.shape[-1]) for name, x in found.items()}
    return Simulation(
        ground.problem, every * step * np.arange(count // every + 1), found.pop("q"), found.pop("qd"), found,
        tuple(sorted(events)), np.ones(lead, dtype=bool), "euler",
    )  # fmt: skip


def _torques(
    model: Model, tau: ArrayLike | Feedback | Callable | None, count: int, lead: tuple[int, ...]
) -> tuple[ControlLaw, Controller | None]:
    """The control law, whose u a controller replaces before each step."""
    if callable(tau):
        return ControlLaw(np.zeros((1, math.prod(lead), model.nv))), _controller(model, tau, lead)
    return control_law(model, tau, count, lead), None


def _robot_count(lead: tuple[int, ...]) -> int:
    """The number of robots. Raises InvalidInput if there is none."""
    if not math.prod(lead):
        raise InvalidInput("there is no robot to simulate: q has a batch axis of length 0")
    return math.prod(lead)


def _step_count(duration: float, step: float, every: int) -> int:
    """The number of steps. Raises InvalidInput."""
    if not is_count(every, 1):
        raise InvalidInput(f"every is {every!r}, but an integer ≥ 1 is needed")
    count = round(duration / step)
    if count < 1 or abs(duration / step - count) > ROUNDING * max(1, count) ** 0.5:
        near = max(1, count)
        raise InvalidInput(
            f"duration {duration:g} s is no whole number of steps of {step:g} s: take {near * step:g} s, or a step of "
            f"{duration / near:g} s"
        )
    if count % every:
        raise InvalidInput(
            f"every is {every}, but the {count} steps of the simulation are no multiple of it: the last state would "
            f"not be recorded; take a duration of {(count // every + 1) * every * step:g} s"
        )
    return count


def _solver(
    problem: Problem | Solver, asked: tuple[str, ...], stabilise: float | None, step: float, given: Mapping[str, Any],
) -> Solver:  # fmt: skip
    """The solver of the problem. Raises ProblemError, InvalidInput, UnknownName."""
    whole = problem.whole if isinstance(problem, Solver) else problem
    for name in asked:
        check_among("output", name, whole.quantities)
    if whole.noisy:
        raise ProblemError(
            f"{whole.noisy[0].name!r} has noise, so that accelerations are estimates: simulate needs exact equations, "
            "such as sysdyn.forward_dynamics(model)"
        )
    if not whole.knows("tau"):
        raise ProblemError(
            "the problem does not know tau, which drives a simulation: take sysdyn.forward_dynamics(model), "
            "sysdyn.hybrid_dynamics(model, torque=…), or add sysdyn.JointTorque(…)"
        )
    wanted = {"qdd", *asked, *((WRENCHES.name,) if whole.constraints else ())}
    if isinstance(problem, Solver):
        if lacking := [name for name in ("qdd", *asked) if name not in problem.outputs]:
            raise ProblemError(
                f"the solver does not give {', '.join(lacking)}: compile it with "
                f"outputs={sorted({*problem.outputs, *lacking})}"
            )
        solver = problem
    else:
        if stabilise is not None and any(m.stabilise is None for m in whole.constraints if isinstance(m, Stabilised)):
            if stabilise < MIN_STEPS * step:
                raise InvalidInput(
                    f"stabilise is {stabilise:g} s, but errors that shall decay in less than {MIN_STEPS} steps of "
                    f"{step:g} s may grow: take a smaller step, or stabilise={10 * step:g}"
                )
        else:
            stabilise = None
        wrenches = "fx" in given or given.get("y") is not None

        def made() -> Solver:
            stated = whole if stabilise is None else _stabilised(whole, stabilise)
            return compile(stated, outputs=tuple(sorted(wanted)), external_wrenches=wrenches)

        solver = whole.cached(("simulated", frozenset(wanted), stabilise, wrenches), made)
    if not solver.executable.backend.kernels:
        raise ProblemError("simulate needs machine code: compile with backend='llvm'")
    return solver


def _step_program(solver: Solver, integrator: str, feedback: bool) -> StepProgram:
    """The compiled steps of a solver, cached by its problem."""

    def make() -> StepProgram:
        events = EventFunctions.of(solver.problem, list(solver.program.outputs))
        return StepProgram(solver, INTEGRATORS[integrator], feedback, events)

    return solver.problem.cached(("steps", id(solver), integrator, feedback), make)


def _stabilised(problem: Problem, stabilise: float) -> Problem:
    """The problem with constraints that take out their errors, by this time constant unless they state their own."""
    changed = [
        stabilised(m, stabilise) if isinstance(m, Stabilised) and m.stabilise is None else m
        for m in problem.measurements
    ]  # fmt: skip
    return Problem(problem.model, changed, [p.name for p in problem.parameters])


def _controller(model: Model, call: Callable[..., Any], lead: tuple[int, ...]) -> Controller:
    """The function with arrays of the axes of the robots; its result (robots or 1, nv) is checked."""
    groups = Groups([QUANTITY["tau"].group(model)])

    def controller(t: float, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
        tau = call(t, q.reshape(*lead, model.nq), qd.reshape(*lead, model.nv))
        if tau is None:
            raise InvalidInput(f"the controller gave None at t = {t:g} s: it returns tau {(*lead, model.nv)}")
        arrays, own = groups.normalise_inputs({"tau": tau})
        if own not in ((), lead):
            raise InvalidInput(f"the controller gave tau of shape {np.shape(tau)}, but {(*lead, model.nv)} is needed")
        if not np.isfinite(arrays["tau"]).all():
            raise InvalidInput(f"the controller gave torques that are not finite at t = {t:g} s: {tau}")
        return arrays["tau"].reshape(-1, model.nv)

    return controller
