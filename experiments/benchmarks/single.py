"""Solvers in single precision beside those in double: states a second, and errors over many states; all from one run.

    python experiments/benchmarks/single.py [--states 1000000]

Needs icub-models and example-robot-data. States a second of float32 over float64 on one thread: batches that are
bound, plain calls by arrays of the solver's own type, and by float64 for both. Errors are the greatest, over random
states with random torques, of the difference to float64 over the state's greatest entry.
Writes experiments/results/single.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

import numpy as np
from common import compared, write_csv
from rivals import FLOATING, ROBOTS, CannotBuild
from rivals.robots import G1

import sysdyn as sd

# States of a bound batch and of a plain one; twice as many lanes are to give so many times as many states a second.
BOUND, PLAIN, TARGET = 1024, 10_000, 1.7
# The greatest error of a state.
ERROR = 1e-5
# States whose errors are looked at together.
TOGETHER = 10_000


def problems() -> Iterator[tuple[str, sd.Problem, tuple[str, ...]]]:
    robots = {"panda": ROBOTS["panda"], "icub": ROBOTS["icub"], "icub, floating": FLOATING["icub_floating"], "g1": G1}
    for name, robot in robots.items():
        try:
            model = sd.load(robot.urdf, base="floating" if name == "g1" else robot.base)
        except CannotBuild as why:
            print(f"{name} is left out: {why}")
            continue
        yield f"{name}, inverse", sd.inverse_dynamics(model), ("tau",)
        yield f"{name}, forward", sd.forward_dynamics(model), ("qdd",)
        if name == "g1":
            foot = sd.Contact("left_ankle_roll_link", name="foot")
            yield f"{name}, on one foot", sd.forward_dynamics(model) + [foot], ("qdd", "w")


def states(model: sd.Model, n: int, seed: int, dtype: type = np.float64) -> list[np.ndarray]:
    return [np.ascontiguousarray(x, dtype) for x in model.random_state(seed=seed, batch=n)]


def speeds(name: str, double: sd.Solver, single: sd.Solver) -> Iterator[dict]:
    """Ratios of states a second."""
    model = double.model
    bound = [
        solver.bind(*states(model, BOUND, 0, dtype), fx=np.zeros((model.nb, 6), dtype))
        for solver, dtype in ((single, np.float32), (double, np.float64))
    ]
    yield compared(*bound, each=(BOUND, BOUND), repeat=51).row(f"{name}, bound", TARGET, states=BOUND)
    plain = partial(double, *states(model, PLAIN, 0), threads=1)
    for what, dtype, goal in (("plain", np.float32, TARGET), ("plain, float64 handed in", np.float64, None)):
        call = partial(single, *states(model, PLAIN, 0, dtype), threads=1)
        yield compared(call, plain, each=(PLAIN, PLAIN), repeat=25).row(f"{name}, {what}", goal, states=PLAIN)


def error(name: str, double: sd.Solver, single: sd.Solver, n: int) -> dict:
    """The greatest error of n states, and the number of states that were solved again in double precision."""
    worst, again = 0.0, 0
    for k in range(0, n, TOGETHER):
        given = states(double.model, min(TOGETHER, n - k), k)
        exact, found = double(*given), single(*given)
        for x in single.outputs:
            off, size = np.abs(found[x] - exact[x]).max(axis=1), np.abs(exact[x]).max(axis=1)
            worst = max(worst, float(np.max(off / size)))
        failed = found._result.flagged
        again += 0 if failed is None else int(np.count_nonzero(failed))
    what = f"{name}, error"
    print(f"  {what:<52}{worst:9.1e} of {n:,} states, {again} solved again  target {ERROR:g}")
    return {"what": what, "states": n, "target": ERROR, "error": f"{worst:.2g}", "again": again}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=100_000, help="states whose errors are looked at")
    n, rows = parser.parse_args().states, list[dict]()
    for name, problem, outputs in problems():
        options = {"outputs": outputs, "external_wrenches": True, "progress": False}
        double = sd.compile(problem, **options)
        single = sd.compile(problem, real="float32", **options)
        rows += [*speeds(name, double, single), error(name, double, single, n)]
    columns = dict.fromkeys(x for row in rows for x in row)
    write_csv("single", [{x: row.get(x, "") for x in columns} for row in rows])


if __name__ == "__main__":
    main()
