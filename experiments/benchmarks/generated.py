"""Kernels against code-generated Pinocchio: its headers on casadi::SX, emitted as C, compiled by clang and by gcc.

    python experiments/benchmarks/generated.py [--states 128]

Needs clang++ or g++, Eigen's headers, `pin`, `casadi`, icub-models and example-robot-data. Both sides are called in C,
by turns on one thread, and take one state at a time, or eight in vector registers. States lie in rows; they are copied
or gathered in, and results out, within the time of either. "Side by side" is the peer with states that lie as its
registers do, which ours do not. For forward dynamics the faster of its ABA and its CRBA with bias and Cholesky counts.
`fastest` marks the compiler and layout that the target is for, from rows. Writes experiments/results/generated.csv.
"""

from __future__ import annotations

import argparse

import numpy as np
from common import close, write_csv
from rivals import ROBOTS, Call, CannotBuild, Generated, Robot, compilers, in_turns, solver_calls
from rivals.generated import LANES, in_lanes, roomy

# Our kernels are to be this many times faster: one state, and eight wide.
TARGETS = {("inverse", 1): 1.5, ("forward", 1): 2.0, ("inverse", LANES): 2.5, ("forward", LANES): 2.5}


def calls(peer: Generated, problem: str, states: list[np.ndarray], lanes: int) -> list[list[Call]]:
    """Its functions for a problem, by the layout of the states."""
    n, nv = states[0].shape
    layouts = [[*map(roomy, states), roomy(np.zeros((n, nv)))]]
    if lanes > 1:
        layouts.append([in_lanes(x) for x in (*states, np.zeros((n, nv)))])
    return [[peer.call(variant, *layout, lanes) for variant in peer.variants(problem)] for layout in layouts]


def run(robot: Robot, n: int) -> list[dict]:
    rows, (ours, theirs) = [], robot.states(n)
    peers = [Generated(robot.name, robot.peer, compiler) for compiler in compilers()]
    for problem, known in (("inverse", "qdd"), ("forward", "tau")):
        solver = robot.solver(problem)
        arrays = dict(zip(("q", "qd", known), ours, strict=True))
        for lanes in (1, LANES):
            own = solver_calls(solver, arrays, single=lanes == 1)
            groups = [group for peer in peers for group in calls(peer, problem, theirs, lanes)]
            beside = [c for group in groups for c in group]
            for call in (*own, *beside):
                call()
            for call in beside:
                found = call.result if call.result.ndim == 2 else call.result.swapaxes(1, 2).reshape(n, -1)
                close(own[0].result[:, robot.order], found)
            turns = in_turns([*own, *beside])
            best = [min((c.name for c in group), key=turns.median) for group in groups]
            fastest = min((name for name in best if "side by side" not in name), key=turns.median)
            what = f"{robot.name}, {problem}, {'one state' if lanes == 1 else 'eight states wide'}"
            for name in best:
                target = TARGETS[problem, lanes] if name == fastest else None
                rows.append(turns.ratio(turns.middle(own), name).row(
                    what, target, peer=name, fastest=name == fastest, operations=solver.flops.end_to_end.total,
                ))  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=128)
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
