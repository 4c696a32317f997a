"""Kernels against code-generated Pinocchio: its headers on casadi::SX, emitted as C, compiled by gcc -O3.

    python experiments/benchmarks/generated.py [--states 256]

Needs gcc, clang++, Eigen's headers, `pin`, `casadi`, icub-models and example-robot-data. The peer takes one state at a
time, or eight in vector registers; for the latter its states already lie side by side, ours lie in rows and are
gathered and scattered within the time. For forward dynamics the faster of its ABA and its CRBA with bias and Cholesky
counts. Writes experiments/results/generated.csv.
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
from common import close, compared, kernel_call, write_csv
from peers import ROBOTS, CannotBuild, Generated, Robot
from peers.generated import LANES, in_lanes

# Our kernels are to be this many times faster.
TARGETS = {"inverse": 1.5, "forward": 2.0}


def run(robot: Robot, states: int) -> list[dict]:
    model, peer = robot.model, Generated(robot.name, robot.peer)
    (q, qd, x), theirs = robot.states(states)
    rows = []
    for problem, known in (("inverse", "qdd"), ("forward", "tau")):
        solver = robot.solver(problem)
        arrays = {"q": q, "qd": qd, known: x, "fx": np.zeros(6 * model.nb)}
        out = np.empty((states, model.nv))
        for lanes in (1, LANES):
            call = kernel_call(solver, arrays, out, single=lanes == 1)
            given = theirs if lanes == 1 else [in_lanes(a) for a in theirs]
            reference = np.zeros((states, model.nv)) if lanes == 1 else in_lanes(np.zeros((states, model.nv)))
            found = []
            for variant in peer.variants(problem):
                ratio = compared(call, partial(peer.run, variant, *given, reference, lanes), each=(states, states))
                rowwise = reference if lanes == 1 else reference.swapaxes(1, 2).reshape(states, -1)
                close(out[:, robot.order], rowwise)
                found.append((ratio, variant))
            best, variant = min(found, key=lambda pair: pair[0].median)
            what = f"{robot.name}, {problem}, {'one state' if lanes == 1 else 'eight states wide'}"
            rows.append(best.row(what, TARGETS[problem], peer=f"{peer.name}, {variant}",
                                 operations=solver.flops.end_to_end.total))  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=256)
    options = parser.parse_args()
    rows = []
    for robot in ROBOTS.values():
        try:
            rows += run(robot, options.states // LANES * LANES)
        except CannotBuild as why:
            print(f"{robot.name} is left out: {why}")
    if rows:
        write_csv("generated", rows)


if __name__ == "__main__":
    main()
