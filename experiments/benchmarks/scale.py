"""Forward dynamics from 30 to 1,000 bodies: time to compile, time a body in batches, agreement with our ABA.

    python experiments/benchmarks/scale.py [--level fast|best] [--sizes 30 100 300 1000]

Chains are auto_tree(n, 1, 1.5, 1); beside them random trees of 30 and 300 bodies, which share no code. Writes
experiments/results/scale.csv.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

import numpy as np
from common import timed, write_csv

import sysdyn as sd

# The timed batch has this many states.
STATES = 2048
# This many of them are compared with the ABA.
CHECKED = 16


def run(name: str, model: sd.Model, level: str) -> dict:
    problem = sd.forward_dynamics(model)
    began = time.perf_counter()
    solver = sd.compile(problem, outputs=["qdd"], level=level)
    seconds = time.perf_counter() - began
    q, qd, tau = model.random_state(seed=0, batch=STATES)
    batch = timed(lambda: solver(q, qd, tau, threads=1), repeat=5).scaled(1e9 / STATES / model.nb)
    qdd = solver(q[:CHECKED], qd[:CHECKED], tau[:CHECKED]).qdd
    reference = sd.aba(model, q[:CHECKED], qd[:CHECKED], tau[:CHECKED])
    error = float(np.max(np.abs(qdd - reference).max(axis=-1) / np.abs(reference).max(axis=-1)))
    return {
        "model": name, "bodies": model.nb, "level": level, "ordering": solver.ordering,
        "operations_a_body": f"{solver.flops.end_to_end.total / model.nb:.0f}", "compile_s": f"{seconds:.1f}",
        "ns_a_body": f"{batch.median:.1f}", "least": f"{batch.least:.1f}", "greatest": f"{batch.greatest:.1f}",
        "backward_error": f"{solver.stability.backward_error:.1e}", "error_to_aba": f"{error:.1e}",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", choices=("fast", "best"), default="fast")
    parser.add_argument("--sizes", type=int, nargs="+", default=[30, 100, 300, 1000])
    options = parser.parse_args()
    cases = [(f"auto_tree({n}, 1, 1.5, 1)", sd.auto_tree(n, 1, 1.5, 1)) for n in options.sizes]
    cases += [(f"random tree {n}", sd.random_tree(n, seed=1, joints=("revolute", "prismatic"))) for n in (30, 300)]
    rows: list[dict] = []
    first: dict[str, float] = {}  # ns a body of the first of each family
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SYSDYN_CACHE"] = folder
        for name, model in cases:
            row = run(name, model, options.level)
            time_a_body = float(row["ns_a_body"])
            row["ratio"] = f"{time_a_body / first.setdefault(name.split()[0].split('(')[0], time_a_body):.2f}"
            rows.append(row)
            print("  ".join(f"{key} {value}" for key, value in row.items() if key != "level"))
    write_csv("scale", rows)
    print("ratio: time a body over that of the first of its kind")


if __name__ == "__main__":
    main()
