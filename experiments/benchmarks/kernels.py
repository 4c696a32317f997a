"""Kernels against Pinocchio's C++, built here by clang -O3 -march=native: one state at a time, and in batches.

    python experiments/benchmarks/kernels.py [--states 256]

Needs clang++, Eigen's headers, `pin`, icub-models and example-robot-data; says what it takes instead where something
is missing. Both run over the same states in one call from Python, on one thread, each state copied in and its result
copied out. Of the ABA's two conventions in Pinocchio the faster counts. Writes experiments/results/kernels.csv.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
from common import close, compared, kernel_call, write_csv
from peers import ROBOTS, CannotBuild, Robot, native_or_wheel

# Our kernels are to be this many times faster.
TARGETS = {"one state": {"panda": 6, "icub": 4}, "batch": {"panda": 35, "icub": 25}}


def run(robot: Robot, states: int) -> list[dict]:
    model, peer = robot.model, native_or_wheel(robot.peer)
    (q, qd, x), theirs = robot.states(states)
    rows = []
    for problem, known in (("inverse", "qdd"), ("forward", "tau")):
        solver = robot.solver(problem)
        arrays = {"q": q, "qd": qd, known: x, "fx": np.zeros(6 * model.nb)}
        out, reference = np.empty((states, model.nv)), np.empty((states, model.nv))
        for mode in ("one state", "batch"):
            call = kernel_call(solver, arrays, out, single=mode == "one state")
            found = []
            for variant in peer.variants(problem):
                ratio = compared(call, partial(peer.run, variant, *theirs, reference), each=(states, states))
                close(out[:, robot.order], reference)
                found.append(ratio)
            best = min(found, key=lambda r: r.median)
            rows.append(best.row(
                f"{robot.name}, {problem}, {mode}", TARGETS[mode][robot.name], peer=peer.name,
                operations=solver.flops.end_to_end.total,
            ))  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=256)
    options = parser.parse_args()
    rows = []
    for robot in ROBOTS.values():
        try:
            rows += run(robot, options.states)
        except CannotBuild as why:
            print(f"{robot.name} is left out: {why}")
    write_csv("kernels", rows)


if __name__ == "__main__":
    main()
