"""Kernels against Pinocchio's C++, built here by clang and gcc, and MuJoCo's C: one state at a time, and in batches.

    python experiments/benchmarks/kernels.py [--only panda chain_30 …]

Needs clang++ or g++, Eigen's headers, `pin`, `mujoco`, icub-models and example-robot-data; says what it leaves out
where something is missing. All sides are called in C, by turns on one thread, over the same rows of states: each
state is copied in and its result copied out. "In cache" are 128 states, "out of cache" as many as fill 64 MiB. Of the
ABA's two conventions in Pinocchio the faster counts; of ours the median of places in memory. `fastest` marks its
faster build, which the target is for. Writes experiments/results/kernels.csv.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import close, write_csv
from long_chain import urdf
from rivals import FLOATING, ROBOTS, Call, CannotBuild, Mujoco, Native, Robot, Turns, compilers, in_turns, solver_calls

# States in cache, and bytes of those out of it.
FEW, LARGE = 128, 2**26
# Chains of so many bodies (with 1,000 Pinocchio's data would take 32 GB); of each, so many states.
CHAINS, CHAIN_STATES = (30, 100, 300), 8
# Our kernels are to be this many times faster than the faster build of Pinocchio: one state; batches.
ONE_STATE = {"panda": 6, "icub": 4} | dict.fromkeys(FLOATING, 6) | {f"chain_{n}": 4 for n in CHAINS}
BATCH = {("panda", "inverse"): 38, ("panda", "forward"): 42, ("icub", "inverse"): 34, ("icub", "forward"): 30,
         ("talos", "forward"): 28}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A robot, and what is measured of it. near: states near zero, where long chains are not ill-conditioned."""

    robot: Robot
    problems: tuple[str, ...] = ("inverse", "forward")
    states: int = FEW
    large: bool = False
    near: bool = False
    tolerance: float = 1e-7


def cases() -> dict[str, Case]:
    found = {name: Case(robot, large=True) for name, robot in ROBOTS.items()}
    found |= {name: Case(robot) for name, robot in FLOATING.items()}
    for n in CHAINS:
        path = Path(tempfile.mkdtemp()) / f"chain_{n}.urdf"
        path.write_text(urdf(n))
        robot = Robot(f"chain_{n}", lambda path=path: path)
        found[robot.name] = Case(robot, ("forward",), CHAIN_STATES, near=True, tolerance=1e-4)
    return found


def peers(robot: Robot) -> list[Native | Mujoco]:
    """Raises CannotBuild where there is none."""
    found: list[Native | Mujoco] = [Native(robot.peer, compiler) for compiler in compilers()]
    try:
        found.append(Mujoco(robot.peer))
    except CannotBuild as why:
        print(f"  {robot.name} without MuJoCo: {why}")
    return found


def run(case: Case) -> list[dict]:
    robot, rows = case.robot, []
    beside = peers(robot)
    large = LARGE // (4 * 8 * robot.model.nv) // FEW * FEW
    for problem in case.problems:
        solver = robot.solver(problem)
        for states in (case.states, large) if case.large else (case.states,):
            ours, theirs = robot.states(states)
            if case.near:
                for x, scale in zip((*ours, *theirs), (0.1, 0.1, 1.0) * 2, strict=True):
                    x[:] = scale * np.random.default_rng(0).uniform(-1.0, 1.0, x.shape)
            arrays = dict(zip(("q", "qd", {"inverse": "qdd", "forward": "tau"}[problem]), ours, strict=True))
            shape = (states, robot.model.nv)
            batch = BATCH.get((robot.name, problem))
            own = [solver_calls(solver, arrays, single) for single in (True, False)[: 1 + bool(batch)]]
            groups = [[peer.call(v, *theirs, np.empty(shape)) for v in peer.variants(problem)] for peer in beside]
            check(robot, own, groups, case.tolerance)
            turns = in_turns([c for group in (*own, *groups) for c in group], turns=51 if states == case.states else 5)
            what = f"{robot.name}, {problem}"
            size = "in cache" if states == case.states else f"out of cache, {states} states"
            for kind, calls, target in zip(("one state", "batch"), own, (ONE_STATE[robot.name], batch), strict=False):
                operations = solver.flops.end_to_end.total
                rows += lines(turns, f"{what}, {kind}, {size}", turns.middle(calls), groups, target, operations)
    return rows


def check(robot: Robot, own: Sequence[Sequence[Call]], groups: Sequence[Sequence[Call]], tolerance: float) -> None:
    """Raise AssertionError where results differ."""
    calls = [c for group in (*own, *groups) for c in group]
    for call in calls:
        call()
    results = [c.result[:, robot.order] for group in own for c in group] + [c.result for group in groups for c in group]
    for result in results[1:]:
        close(result, results[0], tolerance)


def lines(
    turns: Turns, what: str, own: str, groups: Sequence[Sequence[Call]], target: float, operations: int
) -> list[dict]:
    """A row a peer, each with the faster of what it has; the target is for the faster build of Pinocchio."""
    best = [min((c.name for c in group), key=turns.median) for group in groups]
    fastest = min((name for name in best if not name.startswith("MuJoCo")), key=turns.median)
    rows = []
    for name in best:
        ratio = turns.ratio(own, name)
        goal = target if name == fastest else None
        rows.append(ratio.row(what, goal, peer=name, fastest=name == fastest, operations=operations))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = cases()
    parser.add_argument("--only", nargs="*", choices=every, default=list(every))
    options = parser.parse_args()
    rows = []
    for name in options.only:
        try:
            rows += run(every[name])
        except CannotBuild as why:
            print(f"{name} is left out: {why}")
    if options.only == list(every):
        write_csv("kernels", rows)


if __name__ == "__main__":
    main()
