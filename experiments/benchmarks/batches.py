"""Plain calls of batches: many states beside few, arrays of every kind, and two threads beside one; all from one run.

    python experiments/benchmarks/batches.py [--one-thread]

Needs icub-models and example-robot-data. A plain call is solver(q, qd, tau), which makes new arrays for its results.
Its time a state is divided by that of 128 states that are bound, both on one thread. Speed-ups are of the wall clock,
and need cores that nobody else is using. Writes experiments/results/batches.csv.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from common import Ratio, compared, write_csv
from rivals import ROBOTS, CannotBuild

import sysdyn as sd

# The bound batch that others are compared with has so many states.
FEW = 128
# A state of these batches is to take at most so many times as long as one of that batch.
STATES, TARGET = (1000, 10_000, 100_000), 1.15
# Two threads are to be so many times as fast as one, from so many states on, and at fewer not slower.
THREADS, WORTH, FASTER = (100, 500, 2049, 10_000, 100_000), 10_000, 1.7
# Arrays of float64 that lie otherwise are read where they are; the last three are converted in blocks.
KINDS: dict[str, Callable[[list[np.ndarray]], list[np.ndarray]]] = {
    "one q for all": lambda x: [x[0][0], *x[1:]],
    "np.broadcast_to": lambda x: [np.broadcast_to(x[0][0], x[0].shape), *x[1:]],
    "columns of a table": lambda x: np.split(np.concatenate(x, axis=1), np.cumsum([y.shape[1] for y in x])[:-1], 1),
    "backwards": lambda x: [y[::-1] for y in x],
    "float32": lambda x: [y.astype(np.float32) for y in x],
    "Fortran's order": lambda x: [np.asfortranarray(y) for y in x],
    "positions alone float32": lambda x: [x[0].astype(np.float32), *x[1:]],
}


def solvers() -> Iterator[tuple[str, sd.Solver]]:
    for robot in ROBOTS.values():
        try:
            models = {robot.name: robot.model}
        except CannotBuild as why:
            print(f"{robot.name} is left out: {why}")
            continue
        if robot.name == "icub":
            models["icub, floating"] = sd.load(robot.urdf, base="floating")
        for name, model in models.items():
            yield f"{name}, inverse", sd.compile(sd.inverse_dynamics(model), outputs=["tau"], external_wrenches=False)
            yield f"{name}, forward", sd.compile(sd.forward_dynamics(model), outputs=["qdd"], external_wrenches=False)


def row(what: str, n: int, threads: int, target: float, ratio: Ratio) -> dict:
    print(f"  {what:<52}{n:>7} states  {ratio.median:5.2f}×  (best {ratio.best:.2f})  target {target:g}×")
    return {
        "what": what, "states": n, "threads": threads, "target": target, "ratio": f"{ratio.median:.3g}",
        "least": f"{ratio.least:.3g}", "greatest": f"{ratio.greatest:.3g}", "best": f"{ratio.best:.3g}",
        "ns": f"{1e9 * ratio.theirs:.4g}", "reference_ns": f"{1e9 * ratio.ours:.4g}",
    }  # fmt: skip


def rows(name: str, solver: sd.Solver, numbers: tuple[int, ...]) -> list[dict]:
    """numbers: of states at which threads are compared with one."""

    def states(n: int) -> list[np.ndarray]:
        return [np.ascontiguousarray(x) for x in solver.model.random_state(seed=0, batch=n)]

    few = solver.bind(*states(FEW), fx=np.zeros((solver.model.nb, 6)))
    found = []
    for n in STATES:
        ratio = compared(few, partial(solver, *states(n), threads=1), each=(FEW, n), repeat=25)
        found.append(row(f"{name}, plain beside {FEW} bound states", n, 1, TARGET, ratio))
    for kind, changed in KINDS.items():
        call = partial(solver, *changed(states(10_000)), threads=1)
        ratio = compared(few, call, each=(FEW, 10_000), repeat=25)
        found.append(row(f"{name}, {kind}, beside {FEW} bound states", 10_000, 1, TARGET, ratio))
    for n in numbers:
        arrays = states(n)
        one, many = partial(solver, *arrays, threads=1), partial(solver, *arrays)
        threads = min(2, solver.executable.choose_threads(n))
        ratio = compared(many, one, each=(n, n), repeat=51, clock=time.perf_counter)
        found.append(row(f"{name}, speed-up by threads", n, threads, FASTER if n >= WORTH else 1.0, ratio))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one-thread", action="store_true", help="leave out the speed-ups by threads")
    numbers = () if parser.parse_args().one_thread else THREADS
    write_csv("batches", [x for name, solver in solvers() for x in rows(name, solver, numbers)])


if __name__ == "__main__":
    main()
