"""Derivatives of the iCub's dynamics against Pinocchio's called from Python, in one run on one thread.

    python experiments/benchmarks/derivatives.py [--states 1000]

Forward: ∂q̈/∂q, ∂q̈/∂q̇, ∂q̈/∂τ against pin.computeABADerivatives; inverse: ∂τ/∂q, ∂τ/∂q̇, ∂τ/∂q̈ against
pin.computeRNEADerivatives, without external wrenches. Ours give both triangles of symmetric blocks. "bound": results
go to arrays that are there; "call": to new ones. Ratios are medians over rounds in which all take their turn. Writes
experiments/results/derivatives.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median

import icub_models
import numpy as np
import pinocchio as pin
from common import timed, write_csv

import sysdyn as sd

# The iCub's description.
URDF = str(icub_models.get_model_file("iCubGazeboV2_5"))
# Each time is the median of this many rounds.
ROUNDS = 11


def pin_loop(base: str, algorithm, states: int) -> Callable[[], None]:
    root = [pin.JointModelFreeFlyer()] if base == "floating" else []
    model = pin.buildModelFromUrdf(URDF, *root)
    data, rng = model.createData(), np.random.default_rng(0)
    q = [pin.randomConfiguration(model, -np.ones(model.nq), np.ones(model.nq)) for _ in range(states)]
    v, x = rng.uniform(-1.0, 1.0, (2, states, model.nv))

    def loop() -> None:
        for k in range(states):
            algorithm(model, data, q[k], v[k], x[k])

    return loop


def run(base: str, forward: bool, states: int) -> list[dict]:
    model = sd.load(URDF, base=base)
    make, of, known = (sd.forward_dynamics, "qdd", "tau") if forward else (sd.inverse_dynamics, "tau", "qdd")
    algorithm = pin.computeABADerivatives if forward else pin.computeRNEADerivatives
    solver = sd.compile(make(model), outputs=[of], wrenches=False)
    J = solver.derivatives(wrt=("q", "qd", known))
    q, qd, x = model.random_state(seed=0, batch=states)
    many, one = J.bind(q, qd, x), J.bind(q[0], qd[0], x[0])
    print(f"{base} base: {J!r}")
    loop = pin_loop(base, algorithm, states)
    name = f"pin.{algorithm.__name__} from Python"
    ours = {
        f"batch of {states}, bound": (many, 1, states),
        f"batch of {states}, call": (lambda: J(q, qd, x, threads=1), 1, states),
        "one state, bound": (one, 500, 1),
        "one state, call": (lambda: J(q[0], qd[0], x[0]), 200, 1),
    }
    peer: list[float] = []
    own: dict[str, list[float]] = {what: [] for what in ours}
    for _ in range(ROUNDS):  # in turn, so that what else the machine does falls on all alike
        peer.append(timed(loop, repeat=1).median / states)
        for what, (call, number, count) in ours.items():
            own[what].append(timed(call, repeat=3, number=number).median / count)
    rows = []
    for what, times in {name: peer, **own}.items():
        ratio = median(p / t for p, t in zip(peer, times, strict=True))
        row = {"base": base, "of": of, "what": what, "operations": J.flops.total}
        row |= {"median": f"{median(times):.4g}", "least": f"{min(times):.4g}", "greatest": f"{max(times):.4g}"}
        rows.append({**row, "ratio": f"{ratio:.2f}"})
        spread = f"{min(times) * 1e6:.2f} … {max(times) * 1e6:.2f}"
        print(f"  {what:<44}{median(times) * 1e6:8.2f} µs a state ({spread})   {ratio:.2f}×")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=1000)
    options = parser.parse_args()
    cases = [(base, forward) for base in ("fixed", "floating") for forward in (True, False)]
    write_csv("derivatives", [row for case in cases for row in run(*case, options.states)])


if __name__ == "__main__":
    main()
