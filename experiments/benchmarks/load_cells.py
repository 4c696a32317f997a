"""The load cells of Figure 2, on chains of 4 to 100 bodies: operations, CPU seconds of compiling, residuals.

    python experiments/benchmarks/load_cells.py [--bodies 4 8 12 20 50 100] [--limit 120] [--states 10000]

All unknowns are outputs; each chain is
compiled in a process of its own, without the cache. Residuals are row-wise, at states with multiples of π/2 among them
(see `states`).

Writes experiments/results/load_cells.csv.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
from common import RESULTS, alone, apart, harness
from nori.problems import load_cells
from states import KILOMETRE, Answers, judged

import sysdyn as sd

# Chains of these lengths are compiled.
BODIES = (4, 8, 12, 20, 50, 100)


def compiled(bodies: int, states: int) -> dict:
    """A line of the table."""
    row = {"bodies": bodies, "ordering": "", "operations": "", "a_body": "", "seconds": ""}
    row |= dict.fromkeys(Answers._fields, "") | {"error": ""}
    print(json.dumps(row), flush=True)  # what is known of it where it never ends
    problem, began = load_cells(bodies), time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            solver = sd.compile(problem)
    except sd.SysdynError as error:
        return row | {"error": type(error).__name__}
    count = solver.flops.end_to_end.total
    row |= {"ordering": solver.ordering, "operations": count, "a_body": round(count / bodies)}
    row["seconds"] = f"{time.process_time() - began:.2f}"
    print(json.dumps(row), flush=True)
    return row | judged(problem, solver, states, np.random.default_rng(bodies), KILOMETRE).row()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bodies", type=int, nargs="+", default=BODIES)
    parser.add_argument("--limit", type=float, default=120.0, help="CPU seconds of each")
    parser.add_argument("--states", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULTS / "load_cells.csv")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        return alone(options.limit, lambda: compiled(options.one, options.states))
    rows = []
    for bodies in options.bodies:
        arguments = ["--one", bodies, "--states", options.states]
        rows.append(apart(Path(__file__), arguments, options.limit, SYSDYN_CACHE=""))
        print("  ".join(str(x) for x in rows[-1].values()), flush=True)
    harness.write_csv(options.out, rows)


if __name__ == "__main__":
    main()
