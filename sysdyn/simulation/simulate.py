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
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY, WRENCHES
from sysdyn.online.arguments import Arguments, Inputs
from sysdyn.online.compile import compile
from sysdyn.online.constraint_errors import warn_if_moving, warn_if_opened, warn_of_followers, warn_of_gaps
from sysdyn.online.solver import ON_SINGULAR, Solver
from sysdyn.online.switching import SwitchingSolver
from sysdyn.problem import Problem
from sysdyn.program.arrays import is_count
from sysdyn.program.groups import Groups
from sysdyn.simulation import adaptive, fixed, time_stepping
from sysdyn.simulation.control import Feedback, Law, law_of
from sysdyn.simulation.events import Margins
from sysdyn.simulation.fixed import Controller, SimulationTask
from sysdyn.simulation.result import Simulation
from sysdyn.simulation.steps import INTEGRATORS, Steps

# Time constant [s] that takes out errors of constraints that state none, and the fewest steps that it may be (chosen).
STABILISE, FEWEST_STEPS = 0.05, 5
# Most by which a duration may miss a whole number of steps, in steps: decimal fractions are rounded (chosen).
WHOLE = 1e-6


def simulate(
    problem: Problem | Solver | Unilateral, q: ArrayLike, qd: ArrayLike, tau: ArrayLike | Feedback | Callable | None,
    duration: float, step: float, *, integrator: str = "euler", every: int = 1, outputs: str | Sequence[str] = (),
    stabilise: float | None = STABILISE, tolerance: float = 1e-9, on_singular: str = "raise",
    threads: int | None = None, **given: Any,
) -> Simulation:  # fmt: skip
    """The motion of a robot, or of a batch of robots, from q and q̇ on.

        motion = sd.simulate(sd.forward_dynamics(model), q, qd, None, duration=2.0, step=1e-3)
        motion.t, motion.q, motion.energy(), motion.events; sd.show(motion)

    problem: knows tau, as forward and hybrid dynamics with contacts, loops and couplings do; or its Solver, with qdd
        among its outputs, and with w for events of contacts. It is compiled at the first call. Or `unilateral`
        contacts with reference="world", which push on the plane z = 0, slide and open, by "euler" alone.
    q (…, nq) [rad, m], qd (…, nv): the first state; leading axes are robots.
    tau [N m, N]: None for none; (nv,) or (…, nv); (steps, nv) or (steps, …, nv), each held for a step; a `Feedback`,
        which is part of the compiled steps; or a function (t, q, qd) → tau of all robots, which is called before each
        step, and whose result is held for it ("adaptive" has such functions for one robot alone).
    duration, step [s]: a whole number of steps, and of `every`, the steps from a recorded state to the next.
    integrator: "euler", q̇ ← q̇ + h q̈ and then q ← q ⊕ h q̇ (semi-implicit, order 1); "rk4" (order 4); or "adaptive",
        SciPy's DOP853 by `tolerance`, robot after robot, in which `step` is the time that torques are held.
    outputs: some of the problem's, of which the values at the recorded states are kept: "qdd", "tau", "w", …
    stabilise [s]: time constant by which errors of contacts, loops and couplings decay if they state none themselves,
        of a Problem; None leaves them as they are. A `Contact` without `at=` loses errors of its velocity alone.
    on_singular: as for `compile`. "nan": robots whose state is singular or not finite are lost, and others go on.
    threads: as many as a batch is worth if None.
    given: further arguments of a call of the solver, the same for all times: fx, qdd, y, parameters, …; active={name:
        bool} of contacts that are `Switchable`, which hold or do not for the whole duration. Of `unilateral` contacts
        fx, friction and restitution.

    A state at which the program meets a guard is solved the general way, as by a call of the solver. No equation
    has the damping and friction of a robot file: `Feedback(kp=0.0, kd=model.damping, q=q)` damps. Warnings give the
    speed of contacts, loops and couplings that move at the start, the gap of loops that are open there, and the gap of
    loops without stabilise= that has grown by the end. Coupled joints of the model follow their leaders at every step.

    Raises ProblemError for a problem that cannot be simulated, InvalidInput naming the argument, UnknownName,
    SingularState with the time and the robots.
    """
    integrators, policies = INTEGRATORS, ON_SINGULAR
    for what, name, valid in (("integrator", integrator, integrators), ("on_singular", on_singular, policies)):
        check_among(what, name, valid)
    times = {"duration": duration, "step": step, **({} if stabilise is None else {"stabilise": stabilise})}
    for what, x in (*times.items(), ("tolerance", tolerance)):
        if not (isinstance(x, (int, float, np.number)) and 0.0 < float(x) < math.inf):
            unit = "" if what == "tolerance" else " of seconds"
            raise InvalidInput(f"{what} is {x!r}, but a positive number{unit} is needed")
    count = _whole(duration, step, every)
    asked = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    if isinstance(problem, Unilateral):
        time_stepping.checked(integrator, on_singular, asked, given)
        return _grounded(problem, q, qd, tau, count, float(step), every, asked, stabilise, given)
    if not isinstance(problem, (Problem, Solver)):
        kind = "it is a Model: take sysdyn.forward_dynamics(model)" if isinstance(problem, Model) else repr(problem)
        raise InvalidInput(f"simulate needs a Problem or its Solver: {kind}")
    if isinstance(problem, SwitchingSolver) or (isinstance(problem, Problem) and problem.switchable_constraints):
        problem = problem.mode(given.pop("active", None))
    solver = _solver(problem, asked, stabilise, step, given)
    model = solver.model
    inputs = Inputs(solver.problem, solver.options.external_wrenches)
    if "tau" in given:
        raise InvalidInput("tau is given twice")
    arguments = Arguments.of(q, qd, (), {**given, "tau": np.zeros(model.nv)})
    arrays, lead = inputs.checked(arguments)
    inputs.groups.reject_not_finite(arrays)
    robots = _some(lead)
    for name in ("q", "qd"):
        arrays[name] = np.array(np.broadcast_to(arrays[name], (robots, arrays[name].shape[-1])), order="C")
    del arrays["tau"]
    arrays["q"], arrays["qd"] = solver.problem.imposed(arrays["q"], arrays["qd"])
    warn_if_moving(solver.problem, arrays["q"], arrays["qd"], given.get("y") or (), "robot")
    opened = warn_of_gaps(solver.whole, arrays["q"], "robot")
    law, controller = Law(np.zeros((1, robots, model.nv))), None
    if callable(tau):
        if integrator == "adaptive" and lead:
            raise InvalidInput(
                "a function for torques is of all robots at one time, but 'adaptive' takes robot after robot: simulate "
                "them one by one, or take a Feedback or 'rk4'"
            )
        controller = _controller(model, tau, lead)
    else:
        law = law_of(model, tau, count, lead)
    job = SimulationTask(
        _steps(solver, integrator, bool(law.gains)), arrays, law, controller, float(step), count,
        every, asked, on_singular, tolerance,
    )  # fmt: skip
    try:
        record = adaptive.run(job) if integrator == "adaptive" else fixed.run(job, threads)
    except SingularState as error:
        if not opened:
            raise
        ended = f"the simulation failed before its end; at its start {opened}"
        raise SingularState(ended, error.equation, error.unknown, error.states) from error
    shapes: dict[str, tuple[int, ...]] = {"q": (model.nq,), "qd": (model.nv,)}
    shapes |= {name: group.shape for name, group in solver.problem.outputs(asked).items()}
    found = {name: x.reshape(-1, *lead, *shapes[name]) for name, x in record.arrays.items()}
    recorded = every * step * np.arange(count // every + 1)
    warn_if_opened(solver.whole, record.arrays["q"], recorded)
    ok = np.ones(robots, dtype=bool)
    ok[list(record.lost)] = False
    return Simulation(
        solver.problem, recorded, found.pop("q"), found.pop("qd"), found, tuple(sorted(record.events)),
        ok.reshape(lead), integrator,
    )  # fmt: skip


def _grounded(
    ground: Unilateral, q: ArrayLike, qd: ArrayLike, tau: ArrayLike | Feedback | Callable | None, count: int,
    step: float, every: int, asked: tuple[str, ...], stabilise: float | None, given: Mapping[str, Any],
) -> Simulation:  # fmt: skip
    """The motion of robots whose contacts push on the plane z = 0."""
    model = ground.model
    arrays, lead = Groups([QUANTITY[name].group(model) for name in ("q", "qd")]).normalise_inputs({"q": q, "qd": qd})
    robots = _some(lead)
    axis = (robots,) if lead else ()
    start = np.broadcast_to(arrays["q"], (*axis, model.nq)), np.broadcast_to(arrays["qd"], (*axis, model.nv))
    warn_of_followers(ground.problem, *start, "robot")
    start = ground.problem.imposed(*start)
    warn_of_gaps(ground.problem, start[0].reshape(robots, -1), "robot")
    controller = _controller(model, tau, lead) if callable(tau) else None
    law = law_of(model, None if callable(tau) else tau, count, lead)

    def flat(x: Any) -> Any:
        """Values with one axis of robots in place of all leading axes."""
        if isinstance(x, Mapping):
            return {name: flat(y) for name, y in x.items()}
        own = np.shape(x)
        return np.reshape(x, (robots, *own[len(lead) :])) if lead and own[: len(lead)] == lead else x

    further = {name: flat(x) for name, x in given.items()}
    found, events = time_stepping.simulated(
        ground, start, law, controller, step, count, every, asked, stabilise, further
    )
    shaped = {name: x.reshape(len(x), *lead, x.shape[-1]) for name, x in found.items()}
    return Simulation(
        ground.problem, every * step * np.arange(count // every + 1), shaped.pop("q"), shaped.pop("qd"), shaped,
        tuple(sorted(events)), np.ones(lead, dtype=bool), "euler",
    )  # fmt: skip


def _some(lead: tuple[int, ...]) -> int:
    """The number of robots. Raises InvalidInput if there is none."""
    if not math.prod(lead):
        raise InvalidInput("there is no robot to simulate: q has a batch axis of length 0")
    return math.prod(lead)


def _whole(duration: float, step: float, every: int) -> int:
    """The number of steps. Raises InvalidInput."""
    if not is_count(every, 1):
        raise InvalidInput(f"every is {every!r}, but an integer ≥ 1 is needed")
    count = round(duration / step)
    if count < 1 or abs(duration / step - count) > WHOLE * max(1, count) ** 0.5:
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
            if stabilise < FEWEST_STEPS * step:
                raise InvalidInput(
                    f"stabilise is {stabilise:g} s, but errors that shall decay in less than {FEWEST_STEPS} steps of "
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


def _steps(solver: Solver, integrator: str, feedback: bool) -> Steps:
    """The compiled steps of a solver, cached by its problem."""

    def made() -> Steps:
        margins = Margins.of(solver.problem, list(solver.program.outputs))
        return Steps(solver, INTEGRATORS[integrator], feedback, margins)

    return solver.problem.cached(("steps", id(solver), integrator, feedback), made)


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
