"""One table of robots and functions beside other libraries: times, operations, and distance from the exact answer.

    python experiments/benchmarks/peers.py [--robots panda icub]

Peers are Pinocchio's C++ and the code generated from it on CasADi's symbols, compiled here by clang (by gcc where
there is no clang), and MuJoCo's C; what cannot be built is left out. All are called in C, one state at a time in
turns over the same states, as kernels.py and generated.py have it. "×" is how many times longer a peer takes.
frax runs on JAX: jitted, mapped over the batch, and called from Python, which is compared with a plain call of ours.
Operations are counted by running the program: each multiplication, addition, division and root as it is executed;
sines and cosines come beside them. Of generated code, which is Pinocchio's algorithm without what is zero or one, they
are its statements, each of which runs once. The error is the greatest of a few states, of the largest entry, from an
answer with 50 digits (rivals/exact.py). Writes experiments/results/peers.csv.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from common import compared, write_csv
from rivals import ROBOTS, CannotBuild, Generated, Mujoco, Native, Robot, in_turns, solver_calls
from rivals.exact import forward, inverse
from rivals.frax import Frax

import sysdyn as sd
from sysdyn.codegen import interpreter
from sysdyn.program.opcodes import ANGULAR, OPERATIONS

# Times are of so many states, errors of the first few of them.
STATES, EXACT = 128, 3
# Peers that are called in C, by the name of their column.
PEERS = {
    "Pinocchio": lambda robot: Native(robot.peer),
    "CasADi-generated": lambda robot: Generated(robot.name, robot.peer),
    "MuJoCo": lambda robot: Mujoco(robot.peer),
}
# Peers that are called from Python with a batch.
MAPPED = {"frax": Frax}


def executed(solver: sd.Solver, arrays: dict[str, np.ndarray]) -> tuple[int, int]:
    """(operations, sines and cosines) that the interpreter executes for one state."""
    program, count = solver.program, Counter()

    def counting(kind: int, *operands):
        count["angular" if kind in ANGULAR else OPERATIONS[kind].counted] += 1
        return OPERATIONS[kind].numpy(*operands)

    row = np.concatenate([arrays[name].ravel()[:size] for name, size in program.inputs.sizes.items()])
    interpreter.run(program, row.tolist(), {kind: partial(counting, kind) for kind in OPERATIONS})
    return sum(n for name, n in count.items() if name not in ("", "angular")), count["angular"]


def error(found: np.ndarray, exact: list[np.ndarray]) -> float:
    """Of the first states, the greatest distance relative to the largest entry."""
    return max(
        max(abs(float(type(t)(float(x)) - t)) for x, t in zip(row, true, strict=True))
        / max(abs(float(t)) for t in true)
        for row, true in zip(found, exact, strict=False)
    )


def built(robot: Robot, makers: Mapping[str, Callable]) -> dict:
    """The peers that can be built here; says which cannot."""
    peers = {}
    for name, make in makers.items():
        try:
            peers[name] = make(robot)
        except CannotBuild as why:
            print(f"  {robot.name} without {name}: {why}")
    return peers


def run(robot: Robot) -> list[dict]:
    peers, mapped = built(robot, PEERS), built(robot, MAPPED)
    rows, (ours, theirs) = [], robot.states(STATES)
    for problem, known, reference in (("inverse", "qdd", inverse), ("forward", "tau", forward)):
        solver = robot.solver(problem)
        arrays = {"fx": np.zeros(6 * robot.model.nb), **dict(zip(("q", "qd", known), ours, strict=True))}
        own = solver_calls(solver, arrays, single=True)
        calls = {
            name: [peer.call(v, *theirs, np.empty((STATES, robot.model.nv))) for v in peer.variants(problem)]
            for name, peer in peers.items()
        }
        turns = in_turns([*own, *(call for group in calls.values() for call in group)])
        middle = turns.middle(own)
        exact = [reference(robot.model, *(x[k] for x in ours)) for k in range(EXACT)]
        theirs_exact = [x[robot.order] for x in exact]
        operations, angular = executed(solver, arrays)
        row = {
            "robot": robot.name, "function": problem, "ns": f"{1e9 * turns.median(middle):.3g}",
            "operations": operations, "sines": angular, "error": f"{error(own[0].result, exact):.1e}",
        }  # fmt: skip
        for name in PEERS:
            best = min(calls.get(name, ()), key=lambda call: turns.median(call.name), default=None)
            if name == "CasADi-generated":
                counts = {} if best is None else peers[name].operations
                row[f"{name} operations"] = next((n for v, n in counts.items() if f", {v}," in best.name), "")
            row[f"{name} ×"] = "" if best is None else f"{turns.ratio(middle, best.name).median:.3g}"
            row[f"{name} error"] = "" if best is None else f"{error(best.result, theirs_exact):.1e}"
        for name in MAPPED:
            row[f"{name}, batch ×"], row[f"{name} error"] = "", ""
            if name in mapped:
                call = mapped[name].batch(problem, *ours)
                row[f"{name} error"] = f"{error(call(), exact):.1e}"
                plain = partial(solver, *ours[:2], **{known: ours[2]}, threads=1)
                row[f"{name}, batch ×"] = f"{compared(plain, call, repeat=15, clock=time.process_time).median:.3g}"
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robots", nargs="*", choices=ROBOTS, default=list(ROBOTS))
    options = parser.parse_args()
    rows = []
    for name in options.robots:
        try:
            rows += run(ROBOTS[name])
        except CannotBuild as why:
            print(f"{name} is left out: {why}")
    if not rows:
        return
    widths = {key: max(len(key), *(len(str(row[key])) for row in rows)) for key in rows[0]}
    for row in ({key: key for key in widths}, *rows):
        print("  ".join(f"{row[key]!s:>{width}}" for key, width in widths.items()))
    if options.robots == list(ROBOTS):
        write_csv("peers", rows)


if __name__ == "__main__":
    main()
