"""What checks of a solution cost: backward error, residual, redundancy, and states solved again with pivoting.

    python experiments/benchmarks/checks.py

One state of the iCub, fixed and floating; needs icub-models. Milliseconds of processor time a call: the first one of a
solver read from a file, which assembles the system, and the median of those that follow. Writes
experiments/results/checks.csv.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from statistics import median

import icub_models
import numpy as np
from common import write_csv

import sysdyn as sd
from sysdyn.backends.executable import Executable
from sysdyn.program.status import WEAK_PIVOT

# A call may take so many milliseconds.
TARGET = 10.0
# So many calls follow the first one.
CALLS = 25


def row(base: str, what: str, call: Callable[[], object]) -> dict[str, object]:
    """A line of the table; printed, too."""
    times = []
    for _ in range(1 + CALLS):
        began = time.process_time()
        call()
        times.append(1e3 * (time.process_time() - began))
    first, then = times[0], median(times[1:])
    print(f"  {base:<10}{what:<36} first {first:7.2f} ms, then {then:6.3f} ms  target {TARGET:g} ms")
    return {"base": base, "what": what, "first_ms": f"{first:.4g}", "ms": f"{then:.4g}", "target_ms": TARGET}


def weak(solver: sd.Solver) -> sd.Solver:
    """The solver as it is where a pivot comes near zero at every state, so that it solves them all again."""

    class Weak(Executable):
        def results(self, *arguments):
            outputs, status = super().results(*arguments)
            return outputs, status | WEAK_PIVOT

    solver.executable.__class__ = Weak
    return solver


def run(base: str) -> list[dict[str, object]]:
    model = sd.load(icub_models.get_model_file("iCubGazeboV2_5"), base=base)
    q, qd, tau = model.random_state(seed=0)
    stored = pickle.dumps(sd.compile(sd.forward_dynamics(model), "aba", level="fast"))
    exact, pivoted = pickle.loads(stored), weak(pickle.loads(stored))
    sensed = [
        sd.JointAcceleration("all", noise=0.2, name="encoders"), sd.JointTorque("all", noise=0.5, name="torques"),
        sd.ExternalWrench("all"),
    ]  # fmt: skip
    estimator = pickle.loads(pickle.dumps(sd.compile(sd.Problem(model, sensed), "symmetric", level="fast")))
    y = {"encoders": np.zeros(model.nv), "torques": np.zeros(model.nv)}
    return [
        row(base, "call and backward error", lambda: exact(q, qd, tau).backward_error()),
        row(base, "call and residual", lambda: exact(q, qd, tau).residual()),
        row(base, "call that solves with pivoting", lambda: pivoted(q, qd, tau)),
        row(base, "estimate and redundancy", lambda: estimator(q, qd, y=y).redundancy),
        row(base, "estimate and backward error", lambda: estimator(q, qd, y=y).backward_error()),
    ]


def main() -> None:
    write_csv("checks", [line for base in ("fixed", "floating") for line in run(base)])


if __name__ == "__main__":
    main()
