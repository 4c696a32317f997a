"""How fast expression graphs are built: operations a second for each kind of sharing.

    python experiments/benchmarks/expr_build.py [--operations 100000] [--repeat 5]

Prints medians of processor time with spread, the float run of the same algorithm beside them, and writes
experiments/results/expr_build.csv.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np
from common import write_csv

from sysdyn.program.graph import Graph, cos, sin

# Graphs share equal results in one of these ways.
SHARING = ("none", "structural", "algebraic")
# Graphs have this many angles as inputs.
JOINTS = 64


def work(q: np.ndarray, limit) -> None:
    """Rotations and congruences Eᵀ I E, as in the assembly of a robot, until limit() says so."""
    rng = np.random.default_rng(0)
    I = np.array(rng.uniform(1.0, 2.0, (3, 3)), dtype=object)
    k = 0
    while not limit():
        s, c = sin(q[k % len(q)]), cos(q[k % len(q)])
        E = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]], dtype=object)
        r = rng.uniform(-1.0, 1.0, 3)
        I = E.T @ I @ E * 0.5 + np.outer(r, r)
        k += 1


def build(sharing: str, operations: int) -> tuple[float, int]:
    """(seconds, operations in the graph)."""
    graph = Graph(sharing)
    q = graph.inputs("q", JOINTS)
    began = time.process_time()
    work(q, lambda: len(graph) >= operations)
    seconds = time.process_time() - began
    return seconds, len(graph)


def floats(rounds: int) -> float:
    """Seconds of the same algorithm over floats in object arrays: what the recording costs is the difference."""
    q = np.array(np.random.default_rng(1).uniform(-3.0, 3.0, JOINTS), dtype=object)
    left = iter(range(rounds))
    began = time.process_time()
    work(q, lambda: next(left, None) is None)
    return time.process_time() - began


def rounds_of(sharing: str, operations: int) -> int:
    graph = Graph(sharing)
    count = 0

    def limit() -> bool:
        nonlocal count
        count += 1
        return len(graph) >= operations

    work(graph.inputs("q", JOINTS), limit)
    return count - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    rows = []
    print(f"{'sharing':<12}{'nodes':>9}{'seconds':>10}{'min':>9}{'max':>9}{'operations/s':>14}{'× floats':>10}")
    for sharing in SHARING:
        runs = [build(sharing, options.operations) for _ in range(options.repeat)]
        seconds, nodes = [s for s, _ in runs], runs[0][1]
        rounds = rounds_of(sharing, options.operations)
        ratio = median(seconds) / median(floats(rounds) for _ in range(options.repeat))
        rate = nodes / median(seconds)
        print(
            f"{sharing:<12}{nodes:>9}{median(seconds):>10.3f}{min(seconds):>9.3f}{max(seconds):>9.3f}{rate:>14,.0f}{ratio:>10.1f}"
        )
        rows.append({
            "sharing": sharing, "nodes": nodes, "seconds_median": f"{median(seconds):.4f}",
            "seconds_min": f"{min(seconds):.4f}", "seconds_max": f"{max(seconds):.4f}",
            "operations_per_second": f"{rate:.0f}", "ratio_to_floats": f"{ratio:.2f}",
            "repeat": options.repeat,
        })  # fmt: skip
    write_csv("expr_build", rows)


if __name__ == "__main__":
    main()
