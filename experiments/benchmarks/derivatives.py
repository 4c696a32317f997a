"""Derivatives of the dynamics against Pinocchio's, called from Python and in C, in one run on one thread.

    python experiments/benchmarks/derivatives.py [--states 1000]

Forward: ∂q̈/∂q, ∂q̈/∂q̇, ∂q̈/∂τ against pin.computeABADerivatives; inverse: ∂τ/∂q, ∂τ/∂q̇, ∂τ/∂q̈ against
pin.computeRNEADerivatives, without external wrenches. Ours give both triangles of symmetric blocks. "bound": results
go to arrays that are there; "call": to new ones. Ratios are medians over rounds in which all take their turn. Writes
experiments/results/derivatives.csv.

In C the kernels of one state and of batches are beside Pinocchio's C++ built by clang and gcc, as kernels.py has it,
over 32 states in cache, with the results of either copied out. Writes experiments/results/derivatives_kernels.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median

import icub_models
import numpy as np
import pinocchio as pin
from common import close, timed, write_csv
from rivals import FLOATING, ROBOTS, CannotBuild, Native, Robot, compilers, in_turns, kernel_call

import sysdyn as sd

# The iCub's description.
URDF = str(icub_models.get_model_file("iCubGazeboV2_5"))
# Robots and problems whose kernels are called in C, and how many times faster they are to be at one state.
KERNELS = (
    (ROBOTS["panda"], "inverse", 6), (ROBOTS["panda"], "forward", 6), (ROBOTS["icub"], "forward", 6),
    (FLOATING["icub_floating"], "forward", 5),
)  # fmt: skip
# In C derivatives are taken at so many states.
STATES = 32
# Each time is the median of this many rounds.
ROUNDS = 11


def pin_loop(base: str, algorithm, states: int) -> Callable[[], None]:
    root = [pin.JointModelFreeFlyer()] if base == "floating" else []
    model = pin.buildModelFromUrdf(URDF, *root)
    data, rng = model.createData(), np.random.default_rng(0)
    q = [pin.randomConfiguration(model, -np.ones(model.nq), np.ones(model.nq)) for _ in range(states)]
    v, x = rng.uniform(-1.0, 1.0, (2, states, model.nv))

    def loop() -> None:
        for k in range(states):
            algorithm(model, data, q[k], v[k], x[k])

    return loop


def run(base: str, forward: bool, states: int) -> list[dict]:
    model = sd.load(URDF, base=base)
    make, of, known = (sd.forward_dynamics, "qdd", "tau") if forward else (sd.inverse_dynamics, "tau", "qdd")
    algorithm = pin.computeABADerivatives if forward else pin.computeRNEADerivatives
    solver = sd.compile(make(model), outputs=[of], external_wrenches=False)
    J = solver.derivatives(wrt=("q", "qd", known))
    q, qd, x = model.random_state(seed=0, batch=states)
    many, one = J.bind(q, qd, x), J.bind(q[0], qd[0], x[0])
    print(f"{base} base: {J!r}")
    loop = pin_loop(base, algorithm, states)
    name = f"pin.{algorithm.__name__} from Python"
    ours = {
        f"batch of {states}, bound": (many, 1, states),
        f"batch of {states}, call": (lambda: J(q, qd, x, threads=1), 1, states),
        "one state, bound": (one, 500, 1),
        "one state, call": (lambda: J(q[0], qd[0], x[0]), 200, 1),
    }
    peer: list[float] = []
    own: dict[str, list[float]] = {what: [] for what in ours}
    for _ in range(ROUNDS):  # in turn, so that what else the machine does falls on all alike
        peer.append(timed(loop, repeat=1).median / states)
        for what, (call, number, count) in ours.items():
            own[what].append(timed(call, repeat=3, number=number).median / count)
    rows = []
    for what, times in {name: peer, **own}.items():
        ratio = median(p / t for p, t in zip(peer, times, strict=True))
        row = {"base": base, "of": of, "what": what, "operations": J.flops.total}
        row |= {"median": f"{median(times):.4g}", "least": f"{min(times):.4g}", "greatest": f"{max(times):.4g}"}
        rows.append({**row, "ratio": f"{ratio:.2f}"})
        spread = f"{min(times) * 1e6:.2f} … {max(times) * 1e6:.2f}"
        print(f"  {what:<44}{median(times) * 1e6:8.2f} µs a state ({spread})   {ratio:.2f}×")
    return rows


def kernels(robot: Robot, problem: str, target: float) -> list[dict]:
    known = {"inverse": "qdd", "forward": "tau"}[problem]
    J = robot.solver(problem).derivatives(wrt=("q", "qd", known))
    ours, theirs = robot.states(STATES)
    nv, order = robot.model.nv, robot.order
    arrays = {"fx": np.zeros(6 * robot.model.nb), **dict(zip(("q", "qd", known), ours, strict=True))}
    outs = [{name: np.zeros((STATES, size)) for name, size in J.program.outputs.sizes.items()} for _ in range(2)]
    own = [kernel_call(name, J.executable, arrays, out, name == "one state")
           for name, out in zip(("one state", "batch"), outs, strict=True)]  # fmt: skip
    beside = [
        Native(robot.peer, compiler).call(f"{problem}_derivatives", *theirs, np.empty((STATES, 3, nv, nv)))
        for compiler in compilers()
    ]
    for call in (*own, *beside):
        call()
    for out in outs:  # by q and by q̇; the third of Pinocchio's is a triangle
        for k, block in enumerate(list(out.values())[:2]):
            found = block.reshape(STATES, nv, nv)[:, order][:, :, order]
            close(found.reshape(STATES, -1), beside[0].result[:, k].reshape(STATES, -1))
    turns = in_turns([*own, *beside])
    fastest = min((c.name for c in beside), key=turns.median)
    return [
        turns.ratio(call.name, peer.name).row(
            f"{robot.name}, derivatives of {problem} dynamics, {call.name}",
            target if call.name == "one state" and peer.name == fastest else None,
            peer=peer.name, fastest=peer.name == fastest, operations=J.flops.total,
        )
        for call in own for peer in beside
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=1000)
    options = parser.parse_args()
    cases = [(base, forward) for base in ("fixed", "floating") for forward in (True, False)]
    write_csv("derivatives", [row for case in cases for row in run(*case, options.states)])
    try:
        write_csv("derivatives_kernels", [row for case in KERNELS for row in kernels(*case)])
    except CannotBuild as why:
        print(f"Pinocchio's C++ is left out: {why}")


if __name__ == "__main__":
    main()
