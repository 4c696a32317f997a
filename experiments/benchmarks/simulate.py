"""Simulation: time of a step beside that of the bare kernel, and of the same robot in Pinocchio and MuJoCo.

    python experiments/benchmarks/simulate.py [--steps 20000] [--robots 1024]

Writes experiments/results/simulate.csv. One thread. The bare kernel is that of the solver of the same problem, called
as often by the same compiled loop; it does not integrate. Both take turns, and ratios are medians over the turns.
Pinocchio is pin.aba and pin.integrate in a loop in Python; MuJoCo is one call of mj_step for all steps, without
contacts, limits and actuators. The column "kernel" is then their time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import icub_models
import mujoco
import numpy as np
import pinocchio as pin
from common import ROOT, write_csv

import sysdyn as sd
from sysdyn.runtime.kernel import words
from sysdyn.runtime.time_loop import TimeLoop
from sysdyn.simulation.steps import INTEGRATORS

# The iCub's description, and a posture with bent knees, at which two feet that hold are not singular.
URDF = str(icub_models.get_model_file("iCubGazeboV2_5"))
BENT = {"hip_pitch": 0.5, "knee": -1.0, "ankle_pitch": -0.5}
HUMANOID = ROOT / "tests" / "models" / "humanoid.xml"
# Step [s]: so short that all robots stay near their first state, whatever the number of steps.
STEP = 1e-6
TURNS = 11  # Turns of those that are compared (chosen).


def bent(model: sd.Model) -> np.ndarray:
    q = model.neutral()
    for side in "lr":
        for joint, angle in BENT.items():
            q[model.q_slice(model.joint_index(f"{side}_{joint}"))] = angle
    return q


def bare(solver: sd.Solver, q: np.ndarray, calls: int) -> Callable[[], None]:
    """The kernel of the solver at q (n, nq), called so often by the loop of simulations."""
    n, program, model = len(q), solver.program, solver.model
    kernel = solver.executable.backend.kernel(n == 1)
    given = {"q": q, "qd": np.zeros((n, model.nv))}
    inputs = {name: given.get(name, np.zeros(size)) for name, size in program.inputs.sizes.items()}
    outputs, status = solver.executable.backend.allocate_results(n)
    work = kernel.work()
    rows = np.array([words(program, work[1], inputs, outputs, status)])
    loop = TimeLoop(kernel.address, status, rows, np.zeros_like(rows), np.zeros((2, 0), dtype=np.int64), 1, calls + 1,
                    np.zeros((0, 4), dtype=np.int64))  # fmt: skip
    kept = kernel, work, inputs, outputs

    def run() -> None:
        assert kept and loop.run(0, calls) == calls, status

    return run


def compared(one: Callable[[], object], other: Callable[[], object], calls: int) -> tuple[float, float, list[float]]:
    """(seconds of a call of each, ratios of all turns, sorted)."""
    one(), other()
    taken = []
    for _ in range(TURNS):
        began = time.perf_counter()
        one()
        middle = time.perf_counter()
        other()
        taken.append(((middle - began) / calls, (time.perf_counter() - middle) / calls))
    return *(min(x) for x in zip(*taken, strict=True)), sorted(a / b for a, b in taken)


def of_problem(name: str, problem: sd.Problem, q: np.ndarray, steps: int, robots: int, part: int) -> list[dict]:
    model, rows = problem.model, []
    outputs = ["qdd", "w"] if problem.constraints else "qdd"
    solver = sd.compile(problem, outputs=outputs, external_wrenches=False)
    feedback = sd.Feedback(20.0, 1.0, q)
    for n in (1, robots):
        states = q if n == 1 else np.repeat(q[None], n, axis=0)
        count = steps if n == 1 else max(1, 40 * steps // n)
        for integrator in ("euler", "rk4"):
            for what, tau in (("constant", None), ("feedback", feedback)):
                calls = count * len(INTEGRATORS[integrator].coefficients(STEP))

                def simulated(states=states, tau=tau, count=count, integrator=integrator) -> None:
                    sd.simulate(solver, states, np.zeros((*states.shape[:-1], model.nv)), tau, count * STEP, STEP,
                                integrator=integrator, every=count, threads=1)  # fmt: skip

                kernel = bare(solver, np.atleast_2d(states)[:part], calls * max(1, n // part))
                ours, least, ratios = compared(simulated, kernel, count * n)
                print(
                    f"  {name:<16}{n:>5} robots  {integrator:<6}{what:<10}{ours * 1e9:>8.0f} ns a step, "
                    f"{1 / ours:>10,.0f} a second; kernel {least * 1e9:>7.0f} ns, ratio {median(ratios):.3f} "
                    f"({ratios[0]:.3f} to {ratios[-1]:.3f})"
                )
                rows.append({
                    "robot": name, "robots": n, "integrator": integrator, "torques": what, "seconds": f"{ours:.4g}",
                    "kernel": f"{least:.4g}", "ratio": f"{median(ratios):.4g}", "least": f"{ratios[0]:.4g}",
                    "greatest": f"{ratios[-1]:.4g}", "operations": solver.program.flops.total,
                })  # fmt: skip
    return rows


def peers(steps: int) -> list[dict]:
    """A step by Euler's method of the iCub with Pinocchio, and of a humanoid with MuJoCo, both floating and free."""
    icub, mj = sd.load(URDF, base="floating"), mujoco.MjModel.from_xml_path(str(HUMANOID))
    off = mujoco.mjtDisableBit
    mj.opt.disableflags |= off.mjDSBL_CONSTRAINT | off.mjDSBL_ACTUATION | off.mjDSBL_SPRING | off.mjDSBL_DAMPER
    mj.opt.timestep, mj_data = STEP, mujoco.MjData(mj)
    other = pin.buildModelFromUrdf(URDF, pin.JointModelFreeFlyer())
    data, count = other.createData(), steps // 10

    def pinocchio() -> None:
        q, v, tau = pin.neutral(other), np.zeros(other.nv), np.zeros(other.nv)
        for _ in range(count):
            v = v + STEP * pin.aba(other, data, q, v, tau)
            q = pin.integrate(other, q, STEP * v)

    cases = [("pin.aba, Python", icub, pinocchio), ("mj_step", sd.from_mujoco(mj), lambda: mj_step(mj, mj_data, count))]
    rows = []
    for peer, model, call in cases:
        solver = sd.compile(sd.forward_dynamics(model), outputs="qdd", external_wrenches=False)

        def ours(solver=solver, model=model) -> None:
            sd.simulate(solver, model.neutral(), np.zeros(model.nv), None, count * STEP, STEP, every=count)

        first, second, ratios = compared(ours, call, count)
        print(
            f"  {model.name:<16}{peer:<16}{second * 1e9:>8.0f} ns a step, ours {first * 1e9:.0f}: "
            f"{1 / median(ratios):.1f} x"
        )
        rows.append({
            "robot": model.name, "robots": 1, "integrator": "euler", "torques": peer, "seconds": f"{first:.4g}",
            "kernel": f"{second:.4g}", "ratio": f"{median(ratios):.4g}", "least": f"{ratios[0]:.4g}",
            "greatest": f"{ratios[-1]:.4g}", "operations": solver.program.flops.total,
        })  # fmt: skip
    return rows


def mj_step(mj: mujoco.MjModel, data: mujoco.MjData, count: int) -> None:
    """So many steps by one call of MuJoCo."""
    mujoco.mj_resetData(mj, data)
    mujoco.mj_step(mj, data, nstep=count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--robots", type=int, default=1024)
    options = parser.parse_args()
    model = sd.load(URDF, base="floating")
    feet = [sd.Contact(f"{x}_sole", name=x, stabilise=0.05) for x in "lr"]
    free = sd.forward_dynamics(model)
    rows = of_problem("iCub", free, bent(model), options.steps, options.robots, 128)
    rows += of_problem("iCub, two feet", free + feet[0] + feet[1], bent(model), options.steps, options.robots, 128)
    rows += peers(options.steps)
    write_csv("simulate", rows)


if __name__ == "__main__":
    main()
