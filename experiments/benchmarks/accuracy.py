"""How far each elimination order is from the exact accelerations: forward dynamics of the iCub at many random states.

    python experiments/benchmarks/accuracy.py [--states 20000]

Torques are those that the RNEA gives for known accelerations. Writes experiments/results/accuracy.csv.
"""

from __future__ import annotations

import argparse

import icub_models
import numpy as np
from common import write_csv

import sysdyn as sd

# The orders of these names are compared; "auto" is what `compile` takes by default.
ORDERINGS = ("auto", "aba", "crba", "umfpack", "markowitz", "tearing")
# A relative error beyond this fails the benchmark.
LIMIT = 1e-9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=20_000)
    states = parser.parse_args().states
    model = sd.load(icub_models.get_model_file("iCubGazeboV2_5"))
    q, qd, qdd = model.random_state(seed=5, batch=states)
    tau = sd.rnea(model, q, qd, qdd)
    rows = []
    for ordering in ORDERINGS:
        solver = sd.compile(sd.forward_dynamics(model), ordering, outputs=["qdd"])
        solution = solver(q, qd, tau, on_singular="nan")
        error = np.abs(solution.qdd - qdd).max(axis=-1) / np.abs(qdd).max(axis=-1)
        error = np.where(solution.ok, error, np.inf)
        row = {
            "ordering": solver.ordering,
            "median": f"{np.median(error):.1e}",
            "worst": f"{error.max():.1e}",
            f"above {LIMIT:.0e}": int(np.sum(error > LIMIT)),
            "states": states,
            "least_pivot": f"{solver.stability.least_pivot:.0e}",
        }
        rows.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    write_csv("accuracy", rows)


if __name__ == "__main__":
    main()
