"""What checks of a solution cost: backward error, residual, redundancy, and states that are solved again.

    python experiments/benchmarks/checks.py

One state of the iCub, fixed and floating; needs icub-models. Milliseconds of processor time a call: the first one of a
solver read from a file, which assembles the system, and the median of those that follow. Then a batch of 10,000 states
of a planar arm whose tip is held, of which none, or some, are within 2 mrad of the stretched arm, and so are marked.
Writes experiments/results/checks.csv.
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
from sysdyn.program.opcodes import WEAK_PIVOT
from sysdyn.runtime.runner import Runner

# A call may take so many milliseconds.
TARGET = 10.0
# So many calls follow the first one.
CALLS = 25
# A batch has so many states; so many of them are marked.
BATCH, MARKED = 10_000, (0, 1, 10, 100)


def row(base: str, what: str, call: Callable[[], object]) -> dict[str, object]:
    """A line of the table; printed, too."""
    times = []
    for _ in range(1 + CALLS):
        began = time.process_time()
        call()
        times.append(1e3 * (time.process_time() - began))
    first, then = times[0], median(times[1:])
    print(f"  {base:<12}{what:<42} first {first:7.2f} ms, then {then:6.3f} ms  target {TARGET:g} ms")
    return {"base": base, "what": what, "first_ms": f"{first:.4g}", "ms": f"{then:.4g}", "target_ms": TARGET}


def weak(solver: sd.Solver, pivoting: bool) -> sd.Solver:
    """The solver as it is where a pivot comes near zero at every state, so that it solves them all again.

    pivoting: as those that twice the precision leaves.
    """

    class Weak(Runner):
        def results(self, *arguments):
            outputs, status = super().results(*arguments)
            return outputs, status | WEAK_PIVOT

    solver.executable.__class__ = Weak
    solver._calls.batch_call = lambda *_: None  # type: ignore[method-assign]  # which does without `results`
    if pivoting:
        solver._fallback.double_double.solve = lambda *_: None  # type: ignore[method-assign]
    return solver


def batches() -> list[dict[str, object]]:
    """Lines of batches with marked states."""
    rng = np.random.default_rng(0)
    inertia = np.array([np.diag([0.01, 0.02, 0.02])] * 3)
    model = sd.from_dh(
        alpha=np.zeros(3), a=[0.0, 0.4, 0.4], d=np.zeros(3), mass=np.ones(3), com=np.array([[0.2, 0.0, 0.0]] * 3),
        inertia=inertia,
    )  # fmt: skip
    end = np.eye(4)
    end[0, 3] = 0.4
    tip = sd.Contact((model.body_names[-1], end), ["a_x", "a_y"], name="tip")
    solver = sd.compile(sd.forward_dynamics(model) + [tip], outputs=["qdd", "w"])
    qd, tau = rng.standard_normal((2, BATCH, 3))
    rows = []
    for marked in MARKED:
        q = rng.uniform(0.5, 1.5, (BATCH, 3))
        q[:marked] = np.linspace(1e-3, 2e-3, marked)[:, None] * np.array([0.7, 1.0, -0.6])
        flagged = solver(q, qd, tau)._result.flagged
        assert marked == (0 if flagged is None else flagged.sum())
        what = f"batch of {BATCH:,}, {marked} of them marked"
        rows.append(row("planar arm", what, lambda q=q: solver(q, qd, tau)))
    return rows


def run(base: str) -> list[dict[str, object]]:
    model = sd.load(icub_models.get_model_file("iCubGazeboV2_5"), base=base)
    q, qd, tau = model.random_state(seed=0)
    stored = pickle.dumps(sd.compile(sd.forward_dynamics(model), "aba", level="fast"))
    exact = pickle.loads(stored)
    twice, pivoted = (weak(pickle.loads(stored), pivoting) for pivoting in (False, True))
    sensed = [
        sd.JointAcceleration("all", noise=0.2, name="encoders"), sd.JointTorque("all", noise=0.5, name="torques"),
        sd.ExternalWrench("all"),
    ]  # fmt: skip
    estimator = pickle.loads(pickle.dumps(sd.compile(sd.Problem(model, sensed), "symmetric", level="fast")))
    y = {"encoders": np.zeros(model.nv), "torques": np.zeros(model.nv)}
    return [
        row(base, "call and backward error", lambda: exact(q, qd, tau).backward_error()),
        row(base, "call and residual", lambda: exact(q, qd, tau).residual()),
        row(base, "call that solves in twice the precision", lambda: twice(q, qd, tau)),
        row(base, "call that solves with pivoting", lambda: pivoted(q, qd, tau)),
        row(base, "estimate and redundancy", lambda: estimator(q, qd, y=y).redundancy),
        row(base, "estimate and backward error", lambda: estimator(q, qd, y=y).backward_error()),
    ]


def main() -> None:
    write_csv("checks", [*(line for base in ("fixed", "floating") for line in run(base)), *batches()])


if __name__ == "__main__":
    main()
