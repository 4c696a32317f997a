"""Inverse and forward dynamics of the iCub: offline and online times, and ratios to pin and mujoco in the same run.

    python experiments/benchmarks/icub.py [--states 10000] [--base fixed|floating|both]

Writes experiments/results/icub.csv. All on one thread unless the row says otherwise; ns a state.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

import icub_models
import numpy as np
import pinocchio as pin
from common import timed, write_csv

import sysdyn as sd
from sysdyn.runtime.kernel import words

# The iCub's description.
URDF = str(icub_models.get_model_file("iCubGazeboV2_5"))
# A fresh process runs this program to time the offline phase.
OFFLINE = """
import time, sysdyn as sd
model = sd.load({urdf!r}, base={base!r})
problem = sd.{problem}_dynamics(model)
began = time.perf_counter()
sd.compile(problem, outputs=[{output!r}])
print(time.perf_counter() - began)
"""


def offline(base: str, problem: str, output: str) -> tuple[float, float]:
    """Seconds of `sd.compile` in a fresh process, with an empty cache and then from it."""
    with tempfile.TemporaryDirectory() as folder:
        code = OFFLINE.format(urdf=URDF, base=base, problem=problem, output=output)
        runs = [
            subprocess.run(
                [sys.executable, "-W", "ignore", "-c", code],
                env={**os.environ, "SYSDYN_CACHE": folder}, capture_output=True, text=True, check=True,
            )
            for _ in range(2)
        ]  # fmt: skip
    cold, cached = (float(run.stdout) for run in runs)
    return cold, cached


def pin_states(model: sd.Model, pm: pin.Model, q, v, x) -> tuple[np.ndarray, ...]:
    """States in pin's order of joints, for the fixed base (the order of magnitude is the same for any state)."""
    if model.base == "floating":
        rng = np.random.default_rng(0)
        q = np.array([pin.randomConfiguration(pm, -np.ones(pm.nq), np.ones(pm.nq)) for _ in range(len(q))])
        return q, rng.uniform(-1, 1, (len(q), pm.nv)), rng.uniform(-1, 1, (len(q), pm.nv))
    order = [model.v_slice(model.joint_index(name)).start for name in pm.names[1:]]
    return q[:, order], v[:, order], x[:, order]


def kernel_time(solver: sd.Solver, arrays: dict[str, np.ndarray], copies: int = 500) -> float:
    """Seconds of the scalar kernel itself for one state: many states in one call, all the same."""
    outputs = {name: np.empty((copies, size)) for name, size in solver.program.outputs.sizes.items()}
    status = np.empty(copies, dtype=np.int64)
    kernel = solver.executable.backend.kernel(True)
    flat = {k: x.reshape(-1) for k, x in arrays.items()}
    own = words(solver.program, kernel.own_work(), flat, outputs, status)
    return timed(lambda: kernel.run(own, copies)).least / copies


def run(base: str, problem: str, output: str, known: str, states: int) -> list[dict]:
    model = sd.load(URDF, base=base)
    make = {"inverse": sd.inverse_dynamics, "forward": sd.forward_dynamics}[problem]
    solver = sd.compile(make(model), outputs=[output])
    q, v, x = model.random_state(seed=0, batch=states)
    fx = np.zeros((model.nb, 6))
    rows = []

    def add(what: str, seconds: float, spread: tuple[float, float] | None = None, ratio: float | None = None) -> None:
        low, high = spread or (seconds, seconds)
        rows.append({
            "base": base, "problem": problem, "what": what, "seconds": f"{seconds:.4g}", "least": f"{low:.4g}",
            "greatest": f"{high:.4g}", "ratio": "" if ratio is None else f"{ratio:.2f}",
        })  # fmt: skip
        shown = f"{seconds:.2f} s" if seconds > 1e-3 else f"{seconds * 1e9:.0f} ns"
        print(f"  {what:<46}{shown:>12}" + ("" if ratio is None else f"   {ratio:.2f}"))

    print(f"iCub, {base} base, {problem} dynamics: {solver!r}")
    cold, cached = offline(base, problem, output)
    add("compile, cold", cold)
    add("compile, from cache", cached)

    pm = pin.buildModelFromUrdf(URDF, pin.JointModelFreeFlyer()) if base == "floating" else pin.buildModelFromUrdf(URDF)
    data = pm.createData()
    algorithm = pin.rnea if problem == "inverse" else pin.aba
    pq, pv, px = pin_states(model, pm, q, v, x)

    def loop() -> None:
        for k in range(states):
            algorithm(pm, data, pq[k], pv[k], px[k])

    peer = timed(loop, repeat=5).scaled(1 / states)
    batch = timed(lambda: solver(q, v, x, fx=fx, threads=1)).scaled(1 / states)
    both = timed(lambda: solver(q, v, x, fx=fx, threads=os.cpu_count())).scaled(1 / states)
    q1, v1, x1 = q[0].copy(), v[0].copy(), x[0].copy()
    step = solver.bind(q1, v1, x1, fx=fx)
    kernel = kernel_time(solver, {"q": q1, "qd": v1, known: x1, "fx": fx})
    bound = timed(step, number=2000)
    call = timed(lambda: solver(q1, v1, x1), number=1000)
    add(f"pin.{algorithm.__name__} in a Python loop, a state", peer.median, (peer.least, peer.greatest))
    add(
        f"batch of {states}, one thread, a state",
        batch.median,
        (batch.least, batch.greatest),
        peer.median / batch.median,
    )
    add(
        f"batch of {states}, {os.cpu_count()} threads, a state",
        both.median,
        (both.least, both.greatest),
        peer.median / both.median,
    )
    add("scalar kernel alone", kernel)
    add("single call through bind", bound.median, (bound.least, bound.greatest), peer.median / bound.median)
    add("  over the kernel's own time", bound.least - kernel)
    add("single checked call", call.median, (call.least, call.greatest))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=10_000)
    parser.add_argument("--base", choices=("fixed", "floating", "both"), default="both")
    options = parser.parse_args()
    began = time.perf_counter()
    rows = []
    for base in ("fixed", "floating") if options.base == "both" else (options.base,):
        rows += run(base, "inverse", "tau", "qdd", options.states)
        rows += run(base, "forward", "qdd", "tau", options.states)
    write_csv("icub", rows)
    print(f"{time.perf_counter() - began:.0f} s; ratio: time of pin's loop over this one, in this run")


if __name__ == "__main__":
    main()
