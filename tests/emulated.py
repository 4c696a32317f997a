"""Results of a few solvers, printed as JSON by a Python that runs under an emulator of another processor."""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np

import sysdyn as sd
from sysdyn.codegen.llvm.target import host_processor

# States of a batch: more than fit in the widest register, and no multiple of these.
STATES = 11
# A whole number of turns that angles far out begin with.
FAR = 2.0**26 * np.pi


def results() -> dict[str, list]:
    """{name: values} of inverse dynamics, a contact that turns columns, single precision and an estimate."""
    model = sd.chain(3)
    q, qd, x = model.random_state(seed=1, batch=STATES)
    fast = {"level": "fast", "progress": False}
    inverse = sd.compile(sd.inverse_dynamics(model), outputs=["tau"], **fast)
    contact = sd.compile(sd.forward_dynamics(model) + sd.Contact("body2", ["a_x", "a_y"]), outputs=["qdd"], **fast)
    single = sd.compile(sd.inverse_dynamics(model), outputs=["tau"], real="float32", **fast)
    noisy = [sd.JointAcceleration("all", name="a", noise=0.1), sd.JointTorque("all", name="t", noise=0.2)]
    problem = sd.Problem(model, [*noisy, sd.ExternalWrench("all")])
    estimate = sd.compile(problem, outputs=["tau"], **fast)(q, qd, y=sd.predict(problem, q, qd, x, seed=1))
    found = {
        "one": inverse(q[0], qd[0], qdd=x[0]).tau, "batch": inverse(q, qd, qdd=x).tau,
        "far": inverse(q + FAR, qd, qdd=x).tau, "contact": contact(q, qd, tau=x).qdd,
        "single": single(q, qd, qdd=x).tau, "estimate": estimate.tau, "deviations": estimate.std("tau"),
    }  # fmt: skip
    return {name: np.asarray(value, dtype=float).tolist() for name, value in found.items()}


def main() -> None:
    warnings.simplefilter("ignore")  # of a build of the extension for another processor
    processor = host_processor()
    shown = {"triple": processor.triple, "lanes": processor.lanes(), "fuses": processor.fuses}
    json.dump({"processor": shown, "results": results()}, sys.stdout)


if __name__ == "__main__":
    main()
