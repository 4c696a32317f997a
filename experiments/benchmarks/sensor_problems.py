"""Random regular sensor problems, square and redundant: whether and how well each is compiled, and what it answers.

    python experiments/benchmarks/sensor_problems.py [--seeds 0:400] [--step 1] [--limit 60] [--out FILE]
    python experiments/benchmarks/sensor_problems.py --compare FILE [--no-run]
    python experiments/benchmarks/sensor_problems.py --states 10000
    python experiments/benchmarks/sensor_problems.py --exact --seeds 0:100 --states 1500 --out FILE

Every problem (see `random_sensors`) is compiled with all its unknowns as outputs, in a process of its own whose CPU
time is limited, without the cache. A line of the CSV is a seed: the order and its operations end to end, the CPU
seconds of compiling, the errors that the judge saw; or the class of what was raised, "Limit" where the seconds were
not enough.

--compare gives the ratios of operations to those of an earlier file where both have an order; --no-run reads --out
instead of compiling. --states calls each solver at so many states (see `states`) and adds the greatest row-wise
residual where it says `ok`, how many states it leaves unsolved, how many answers it calls `ok` that are wrong, and, of
noisy problems, how far the mean is from dense least squares. With --exact no equation is noisy, and those of redundant
problems that follow from others are exact, too, with values that agree.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from statistics import median

import numpy as np
from common import RESULTS, alone, apart, harness
from estimators import dense, mean_error
from random_sensors import described, random_problem, regular_at
from states import KILOMETRE, Answers, at, called, calls, judged

import sysdyn as sd

# A seed has so many problems.
PROBLEMS = 400
# Estimates are compared with dense least squares at so many states.
DENSE = 5
# A line of the file has these columns; with --states come those of `Answers` and the mean's error.
COLUMNS = (
    "seed", "kind", "robot", "bodies", "unknowns", "equations", "ordering", "operations", "seconds", "backward_error",
    "error", "measurements",
)  # fmt: skip


def compiled(seed: int, states: int, exact: bool) -> dict:
    """The problem of a seed, compiled in this process and called at so many states."""
    problem = random_problem(seed, exact)
    equations, unknowns = sd.assemble(problem).plain.shape
    row = dict.fromkeys(COLUMNS, "") | {
        "seed": seed, "kind": "redundant" if equations > unknowns else "square", "robot": problem.model.name,
        "bodies": problem.model.nb, "unknowns": unknowns, "equations": equations, "measurements": described(problem),
    }  # fmt: skip
    row |= dict.fromkeys((*Answers._fields, "mean"), "") if states else {}
    print(json.dumps(row), flush=True)  # what is known of it where it never ends
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            solver = sd.compile(problem)
    except Exception as error:
        row |= {"error": type(error).__name__, "seconds": round(time.process_time() - began, 2)}
        print(error, file=sys.stderr)
        return row
    row |= {
        "ordering": solver.ordering, "operations": solver.flops.end_to_end.total,
        "seconds": round(time.process_time() - began, 2), "backward_error": f"{solver.stability.backward_error:.1e}",
    }  # fmt: skip
    if states:
        rng = np.random.default_rng(seed)
        row |= judged(problem, solver, states, rng, KILOMETRE).row()
        row["mean"] = f"{mean_of(problem, solver, rng):.1e}" if problem.noisy else ""
    return row


def mean_of(problem: sd.Problem, solver: sd.Solver, rng: np.random.Generator) -> float:
    """Greatest relative difference of the mean to dense least squares at a few well-conditioned states."""
    inputs, worst = calls(problem, DENSE, rng, 1.0), 0.0
    for k in range(DENSE):
        state = at(inputs, k)
        solution = called(problem, solver, state)
        if solution.ok and regular_at(problem, state):
            worst = max(worst, mean_error(problem, solution, dense(problem, state)[0]))
    return worst


# ---- all of them ---------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default=f"0:{PROBLEMS}", help="first seed, and the one after the last")
    parser.add_argument("--step", type=int, default=1, help="every so many-th of them")
    parser.add_argument("--limit", type=float, default=60.0, help="CPU seconds of each")
    parser.add_argument("--out", type=Path, default=RESULTS / "sensor_problems.csv")
    parser.add_argument("--compare", type=Path, help="an earlier file")
    parser.add_argument("--no-run", action="store_true", help="read --out instead of compiling")
    parser.add_argument("--states", type=int, default=0, help="how many states each solver is called at")
    parser.add_argument("--exact", action="store_true", help="without noise")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        return alone(options.limit, lambda: compiled(options.one, options.states, options.exact))
    rows = harness.read_csv(options.out) if options.no_run else run(options)
    print(summary(rows))
    if options.compare:
        print(ratios_to(rows, harness.read_csv(options.compare)))


def run(options: argparse.Namespace) -> list[dict]:
    """Compile the problems one after another; the file grows with them."""
    first, last = map(int, options.seeds.split(":"))
    rows: list[dict] = []
    for seed in range(first, last, options.step):
        arguments = ["--one", seed, "--states", options.states, *(["--exact"] if options.exact else [])]
        rows.append(apart(Path(__file__), arguments, options.limit, SYSDYN_CACHE="", OPENBLAS_NUM_THREADS="1"))
        print("  ".join(str(x) for name, x in rows[-1].items() if name != "measurements"), flush=True)
        harness.write_csv(options.out, rows)
    return harness.read_csv(options.out)


def summary(rows: list[dict]) -> str:
    """How many have an order, and the median seconds."""
    failed = [f"{row['seed']} ({row['error']})" for row in rows if row["error"]]
    seconds = [row["seconds"] for row in rows if row["seconds"] != ""]
    text = (
        f"{len(rows)} problems: {len(rows) - len(failed)} compiled, median {median(seconds):.1f} s, "
        f"sum {sum(seconds):.0f} s of CPU time"
    )
    return text + (f"; not compiled: {', '.join(failed)}" if failed else "")


def ratios_to(rows: list[dict], earlier: list[dict]) -> str:
    """Ratios of operations to those of an earlier file."""
    before = {row["seed"]: row["operations"] for row in earlier if row["operations"] != ""}
    pairs = [(row["operations"], before[row["seed"]]) for row in rows
             if row["operations"] != "" and row["seed"] in before]  # fmt: skip
    ratios = [new / old for new, old in pairs]
    total = sum(new for new, _ in pairs) / sum(old for _, old in pairs)
    worst = max(ratios)
    return (
        f"operations over those of {len(pairs)} problems that had an order: median {median(ratios):.3f}, "
        f"sum {total:.3f}, greatest {worst:.3f}"
    )


if __name__ == "__main__":
    main()
