"""Calls from Python: plain and bound ones of one state against pin's, and batches against pin's thread pool.

    python experiments/benchmarks/python_calls.py [--states 20000] [--threads …]

Needs `pin`, icub-models and example-robot-data. A plain call is what is written first: solver(q, qd, tau).qdd beside
pin.aba(model, data, q, qd, tau), both of which give a new array, and derivatives(q, qd, tau) beside
pin.computeABADerivatives; and beside our own bound call of the same program. All other calls take and leave arrays
that exist already, of both libraries. The batch goes to pin.rneaInParallel or pin.abaInParallel with as many threads
as to ours. Writes experiments/results/python_calls.csv.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

import numpy as np

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # else pin's idle threads spin through our turns
import pinocchio as pin
from common import close, compared, write_csv
from rivals import ROBOTS, CannotBuild, Robot

import sysdyn as sd

# A repetition has this many calls.
CALLS = 200
# Bound calls, by robot, and batches are to be this many times faster than the peer's.
TARGETS = {"panda": 3.0, "icub": 5.0}
BATCH_TARGET = 20.0
# Plain calls, by robot: pin's times over the microseconds that are aimed at, of inverse and forward dynamics and of
# derivatives of forward dynamics.
PLAIN_TARGETS = {"panda": (1.5, 2.0, 2.5), "icub": (3.4, 3.9, 4.9)}


def run(robot: Robot, states: int, threads: int) -> list[dict]:
    model, peer = robot.model, robot.peer
    data, rows = peer.createData(), []
    (q, qd, x), theirs = robot.states(states)
    q1, qd1, x1 = (a[0].copy() for a in (q, qd, x))
    p1 = [a[0].copy() for a in theirs]
    columns = [np.asfortranarray(a.T) for a in theirs]
    pool = pin.ModelPool(peer, threads)
    fx = np.zeros((model.nb, 6))
    for problem, one, many in (
        ("inverse", pin.rnea, pin.rneaInParallel),
        ("forward", pin.aba, pin.abaInParallel),
    ):
        solver = robot.solver(problem)
        out = np.zeros(model.nv)
        step = solver.bind(q1, qd1, x1, fx=fx, out=out)
        single = compared(repeated(step), repeated(partial(one, peer, data, *p1)), each=(CALLS, CALLS))
        close(out[robot.order][None], np.asarray(one(peer, data, *p1))[None])
        operations = solver.flops.end_to_end.total
        name = f"pin.{one.__name__}"
        rows.append(single.row(f"{robot.name}, {problem}, one bound call", TARGETS[robot.name], peer=name,
                               threads=1, operations=operations))  # fmt: skip
        result = np.zeros((peer.nv, states), order="F")
        batch_out = np.empty((states, model.nv))
        arguments = (threads, pool, *columns, result)
        batch = solver.bind(q, qd, x, fx=fx, out=batch_out, threads=threads)
        clock = time.thread_time if threads == 1 else time.perf_counter
        ratio = compared(batch, partial(many, *arguments), each=(states, states), repeat=15, clock=clock)
        close(batch_out[:, robot.order], result.T)
        rows.append(ratio.row(f"{robot.name}, {problem}, batch of {states}, {threads} threads", BATCH_TARGET,
                              peer=f"pin.{many.__name__}", threads=threads, operations=operations))  # fmt: skip
    return rows


def repeated(call: Callable[[], object]) -> Callable[[], None]:
    """`CALLS` calls in a loop."""

    def calls() -> None:
        for _ in range(CALLS):
            call()

    return calls


def plain(robot: Robot) -> list[dict]:
    peer, rows = robot.peer, []
    data = peer.createData()
    (q, qd, x), theirs = ([a[0].copy() for a in arrays] for arrays in robot.states(1))
    inverse, forward = robot.solver("inverse"), robot.solver("forward")
    J = forward.derivatives()
    pairs = (
        ("inverse", lambda: inverse(q, qd, x).tau, pin.rnea, inverse),
        ("forward", lambda: forward(q, qd, x).qdd, pin.aba, forward),
        ("derivatives of forward", lambda: J(q, qd, x), pin.computeABADerivatives, J),
    )
    for (what, call, function, solver), target in zip(pairs, PLAIN_TARGETS[robot.name], strict=True):
        flops = solver.flops if solver is J else solver.flops.end_to_end
        ratio = compared(repeated(call), repeated(partial(function, peer, data, *theirs)), each=(CALLS, CALLS))
        rows.append(ratio.row(f"{robot.name}, {what}, one plain call", target, peer=f"pin.{function.__name__}",
                              threads=1, operations=flops.total))  # fmt: skip
    close(inverse(q, qd, x).tau[robot.order][None], np.asarray(pin.rnea(peer, data, *theirs))[None])
    return rows


def over_bound(robot: Robot) -> list[dict]:
    """Plain calls, as they are written, beside bound ones of the same program; the ratio is that of plain to bound."""
    model = robot.model
    q, qd, x = (a[0].copy() for a in robot.states(1)[0])
    fx, rows = np.zeros((model.nb, 6)), []
    inverse, forward = robot.solver("inverse"), robot.solver("forward")
    J, frame = forward.derivatives(), model.body_names[-1]
    K, one = sd.kinematics(model, [f"pose:{frame}", f"jacobian:{frame}", "com"]), sd.kinematics(model, f"pose:{frame}")
    sensed = [sd.JointAcceleration("all", noise=0.2, name="motion"), sd.JointTorque("all", noise=0.5, name="torques")]
    estimator = sd.compile(sd.Problem(model, [*sensed, sd.ExternalWrench("all")]), "symmetric", level="fast")
    y = {"motion": np.zeros(model.nv), "torques": np.zeros(model.nv)}
    pairs = {
        "inverse": (lambda: inverse(q, qd, x).tau, inverse.bind(q, qd, x, fx=fx)),
        "forward": (lambda: forward(q, qd, x).qdd, forward.bind(q, qd, x, fx=fx)),
        "derivatives of forward": (lambda: J(q, qd, x), J.bind(q, qd, x, fx=fx)),
        "pose": (lambda: one(q), one.bind(q)),
        "pose, Jacobian and centre of mass": (lambda: K(q), K.bind(q)),
        "estimate": (lambda: estimator(q, qd, y=y).qdd, estimator.bind(q, qd, y=y)),
    }
    for what, (call, step) in pairs.items():
        ratio = compared(repeated(step), repeated(call), each=(CALLS, CALLS))
        rows.append(ratio.row(f"{robot.name}, {what}, bound over plain call", None, peer="our plain call", threads=1))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=20_000)
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, os.cpu_count() or 1}))
    options = parser.parse_args()
    rows = []
    for robot in ROBOTS.values():
        try:
            rows += plain(robot) + over_bound(robot)
        except CannotBuild as why:
            print(f"{robot.name} is left out: {why}")
            continue
        for threads in options.threads:
            rows += run(robot, options.states, threads)
    write_csv("python_calls", rows)


if __name__ == "__main__":
    main()
