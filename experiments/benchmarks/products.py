"""Products of derivatives with vectors beside the solution itself and the Jacobian in full: operations and time.

    python experiments/benchmarks/products.py [--states 1000]

jvp: J v of the output by q, q̇ and τ (or measured values); vjp: wᵀ J; hvp: the derivative of wᵀ J along v. Each gives
the solution's operations and its own as a multiple of these, and bound calls of one state and of a batch, as multiples
of the solver's. Ratios are medians over rounds in which all take their turn. Writes experiments/results/products.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median

import icub_models
import numpy as np
from common import timed, write_csv
from rivals import CannotBuild
from rivals.robots import G1

import sysdyn as sd

# The iCub's description.
URDF = str(icub_models.get_model_file("iCubGazeboV2_5"))
# Each time is the median of this many rounds.
ROUNDS = 7


def feet(model: sd.Model) -> sd.Problem:
    return sd.forward_dynamics(model) + sd.Contact("l_foot", "fixed") + sd.Contact("r_foot", "fixed")


def estimate(model: sd.Model) -> sd.Problem:
    """Torques and accelerations of every joint, all noisy, and an accelerometer on the head."""
    sensors = [
        sd.JointTorque("all", noise=0.1),
        sd.JointAcceleration("all", noise=0.5),
        sd.Accelerometer("head", noise=0.1),
    ]
    return sd.Problem(model, [sd.ExternalWrench("all"), *sensors])


def cases() -> dict[str, Callable[[], sd.Solver]]:
    def forward(model: sd.Model) -> sd.Solver:
        return sd.compile(sd.forward_dynamics(model), outputs=["qdd"], external_wrenches=False)

    fixed, floating = (lambda base=base: sd.load(URDF, base=base) for base in ("fixed", "floating"))
    return {
        "iCub, forward": lambda: forward(fixed()),
        "iCub floating, forward": lambda: forward(floating()),
        "G1, forward": lambda: forward(G1.model),
        "iCub, inverse": lambda: sd.compile(sd.inverse_dynamics(fixed()), outputs=["tau"], external_wrenches=False),
        "iCub floating, two feet": lambda: sd.compile(feet(floating()), outputs=["qdd"]),
        "iCub, estimate": lambda: sd.compile(estimate(fixed()), outputs=["tau"]),
    }


def arguments(solver: sd.Solver, n: int) -> dict:
    """Random values of what a call takes."""
    problem, rng = solver.problem, np.random.default_rng(0)
    q, qd, _ = problem.model.random_state(seed=0, batch=n)
    y = {
        m.name: rng.standard_normal((n, len(m.components(problem.model))))
        for m in problem.custom
        if m.noise is not None
    }
    known = {x: rng.standard_normal((n, problem.model.nv)) for x in ("tau", "qdd") if x in problem.known_quantities}
    return {"q": q, "qd": qd, **known} | ({"y": y} if y else {})


def first(values: dict) -> dict:
    return {k: first(x) if isinstance(x, dict) else x[0].copy() for k, x in values.items()}


def run(name: str, solver: sd.Solver, states: int) -> list[dict]:
    given, rng = arguments(solver, states), np.random.default_rng(1)
    made = {"solution": solver, "jvp": solver.jvp(), "vjp": solver.vjp(), "hvp": solver.hvp()}
    made["Jacobian in full"] = solver.derivatives()
    calls = {}
    for what, x in made.items():
        vectors = {
            role: {k: rng.standard_normal((states, *group.shape)) for k, group in getattr(x, role, {}).items()}
            for role in ("tangents", "cotangents")
        }
        every = given | {role: values for role, values in vectors.items() if values}
        calls[what] = x.bind(**first(every)), x.bind(**every)
    times: dict[str, list[tuple[float, float]]] = {what: [] for what in made}
    for _ in range(ROUNDS):
        for what, (one, many) in calls.items():
            times[what].append((timed(one, 3, 300).median, timed(many, 3).median / states))
    rows = []
    for what, x in made.items():
        flops = x.flops.end_to_end.total if isinstance(x, sd.Solver) else x.flops.total
        one, many = (median(a[k] / b[k] for a, b in zip(times[what], times["solution"], strict=True)) for k in (0, 1))
        ns, ns_batch = (round(1e9 * median(a[k] for a in times[what])) for k in (0, 1))
        rows.append({
            "problem": name, "what": what, "way": getattr(x, "method", ""), "operations": flops,
            "of_solution": round(flops / made["solution"].flops.end_to_end.total, 3), "ns": ns, "ratio": round(one, 2),
            "ns_batch": ns_batch, "ratio_batch": round(many, 2),
        })  # fmt: skip
        print("  ".join(str(y) for y in rows[-1].values()), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=1000)
    options = parser.parse_args()
    rows = []
    for name, make in cases().items():
        try:
            rows += run(name, make(), options.states)
        except CannotBuild as why:
            print(f"{name} is left out: {why}")
    write_csv("products", rows)


if __name__ == "__main__":
    main()
