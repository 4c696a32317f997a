"""Derivatives of the iCub's dynamics against Pinocchio's called from Python, in one run on one thread.

    python experiments/benchmarks/derivatives.py [--states 1000]

Forward: ∂q̈/∂q, ∂q̈/∂q̇, ∂q̈/∂τ against pin.computeABADerivatives; inverse: ∂τ/∂q, ∂τ/∂q̇, ∂τ/∂q̈ against
pin.computeRNEADerivatives. Ours also take external wrenches, which are zero here, and give both triangles of symmetric
blocks. "bound": results go to arrays that are there; "call": to new ones. Writes experiments/results/derivatives.csv.
"""

from __future__ import annotations

import argparse

import icub_models
import numpy as np
import pinocchio as pin
from common import Timing, timed, write_csv

import sysdyn as sd

URDF = str(icub_models.get_model_file("iCubGazeboV2_5"))


def pin_time(base: str, algorithm, states: int) -> Timing:
    root = [pin.JointModelFreeFlyer()] if base == "floating" else []
    model = pin.buildModelFromUrdf(URDF, *root)
    data, rng = model.createData(), np.random.default_rng(0)
    q = [pin.randomConfiguration(model, -np.ones(model.nq), np.ones(model.nq)) for _ in range(states)]
    v, x = rng.uniform(-1.0, 1.0, (2, states, model.nv))

    def loop() -> None:
        for k in range(states):
            algorithm(model, data, q[k], v[k], x[k])

    return timed(loop).scaled(1 / states)


def run(base: str, forward: bool, states: int) -> list[dict]:
    model = sd.load(URDF, base=base)
    make, of, known = (sd.forward_dynamics, "qdd", "tau") if forward else (sd.inverse_dynamics, "tau", "qdd")
    algorithm = pin.computeABADerivatives if forward else pin.computeRNEADerivatives
    solver = sd.compile(make(model), outputs=[of], ordering="aba" if forward else "rnea")
    J = solver.derivatives(wrt=("q", "qd", known))
    q, qd, x = model.random_state(seed=0, batch=states)
    fx = np.zeros((model.nb, 6))
    many, one = J.bind(q, qd, x, fx), J.bind(q[0], qd[0], x[0], fx)
    print(f"{base} base: {J!r}")
    peer = pin_time(base, algorithm, states)
    rows = []

    def add(what: str, time: Timing) -> None:
        ratio = peer.median / time.median
        rows.append({
            "base": base, "of": of, "what": what, "operations": J.flops.total,
            **{name: f"{value:.4g}" for name, value in time._asdict().items()}, "ratio": f"{ratio:.2f}",
        })  # fmt: skip
        spread = f"{time.least * 1e6:.2f} … {time.greatest * 1e6:.2f}"
        print(f"  {what:<44}{time.median * 1e6:8.2f} µs a state ({spread})   {ratio:.2f}×")

    add(f"pin.{algorithm.__name__} from Python", peer)
    add(f"batch of {states}, bound", timed(many, repeat=15).scaled(1 / states))
    add(f"batch of {states}, call", timed(lambda: J(q, qd, x, fx, threads=1), repeat=15).scaled(1 / states))
    add("one state, bound", timed(one, repeat=15, number=500))
    add("one state, call", timed(lambda: J(q[0], qd[0], x[0], fx), repeat=15, number=200))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=1000)
    options = parser.parse_args()
    cases = [(base, forward) for base in ("fixed", "floating") for forward in (True, False)]
    write_csv("derivatives", [row for case in cases for row in run(*case, options.states)])


if __name__ == "__main__":
    main()
