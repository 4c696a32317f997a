"""Forward dynamics inside JAX: beside our own calls without it, frax, and MuJoCo's MJX, in one run on one thread.

    python experiments/benchmarks/inside_jax.py [--robots panda g1] [--steps 20000] [--states 4096]

step: one of a compiled `lax.scan`, in which q, q̇ and τ change, beside the bound call. vmap: a state of a compiled
batch, beside the bound batch. gradient: of Σ q̈² by q, q̇ and τ, one compiled call from Python, and a step of a scan.
Robots are on a fixed base, without external wrenches. frax and MJX are left out if they are not installed: pip install
--no-deps frax mujoco-mjx etils trimesh. "the loop alone" has τ in place of q̈: it takes what is JAX's own. Ratios are
medians over rounds in which all take their turn. Writes experiments/results/inside_jax.csv.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from statistics import median

# one thread for XLA, before it is loaded
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import jax
import numpy as np
from common import timed, write_csv
from rivals import ROBOTS, CannotBuild, Robot
from rivals.frax import Frax
from rivals.mjx import Mjx
from rivals.robots import G1

jax.config.update("jax_enable_x64", True)
# q̈ of q, q̇, τ by others.
PEERS: dict[str, Callable[[Robot], Callable]] = {
    "frax": lambda robot: Frax(robot).forward, "MuJoCo MJX": lambda robot: Mjx(robot).forward,
}  # fmt: skip
# Greatest difference of theirs from ours, as a share of the greatest q̈ (measured: 1e-14 and less).
SAME = 1e-10
# Each time is the median of this many rounds.
ROUNDS = 7


def functions(robot: Robot) -> dict[str, Callable]:
    """{name: q̈ of q, q̇, τ in JAX}"""
    solver = robot.solver("forward")
    of_ours = solver.to_jax()
    found: dict[str, Callable] = {"sysdyn": lambda q, v, tau: of_ours(q, v, tau)["qdd"]}
    found["the loop alone"] = lambda q, v, tau: tau
    for name, peer in PEERS.items():
        try:
            found[name] = peer(robot)
        except CannotBuild as why:
            print(f"{name} is left out: {why}")
    return found


def run(name: str, robot: Robot, steps: int, states: int) -> list[dict]:
    model = robot.model
    q, v, tau = (np.ascontiguousarray(x) for x in model.random_state(seed=0, batch=states))
    solver = robot.solver("forward")
    one, many = solver.bind(q[0].copy(), v[0].copy(), tau[0].copy()), solver.bind(q, v, tau, threads=1)
    calls: dict[tuple[str, str], tuple[Callable[[], object], int, int]] = {
        ("step", "sysdyn, bound, without JAX"): (one, steps, 1),
        ("vmap", "sysdyn, bound, without JAX"): (many, 1, states),
    }
    given = [jax.numpy.asarray(x) for x in (q, v, tau)]
    first = [x[0] for x in given]
    qdd = solver(q[0], v[0], tau[0]).qdd
    for peer, f in functions(robot).items():
        if peer in PEERS and np.abs(f(*first) - qdd).max() > SAME * np.abs(qdd).max():
            raise SystemExit(f"{name}: q̈ of {peer} is another one")
        length = max(1, steps // 200) if peer in PEERS else steps

        def cost(*x, f=f):
            return (f(*x) ** 2).sum()

        def scanned(slope, length=length):
            """A loop in which all that f depends on changes, so that nothing is computed before it."""

            def step(x, _):
                return jax.tree.map(lambda a, b: a + 1e-12 * b, x, slope(*x)), None

            return jax.jit(lambda *x: jax.lax.scan(step, x, length=length)[0])

        all_alike = scanned(lambda *x, f=f: (f(*x),) * 3)
        descent = scanned(jax.grad(cost, (0, 1, 2)))
        for what, function, arguments, number in (
            ("step", all_alike, first, length), ("vmap", jax.jit(jax.vmap(f)), given, states),
            ("gradient, a call", jax.jit(jax.grad(cost, (0, 1, 2))), first, 1),
            ("gradient, a step", descent, first, length),
        ):  # fmt: skip
            call = lambda function=function, arguments=arguments: jax.block_until_ready(function(*arguments))  # noqa: E731
            calls[what, peer] = (call, 1, number)
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for _ in range(ROUNDS):
        for key, (call, number, count) in calls.items():
            times[key].append(timed(call, repeat=1, number=number).median / count)
    rows = []
    for (what, who), own in times.items():
        ours = times[what, "sysdyn"]
        ratio = median(x / y for x, y in zip(own, ours, strict=True))
        rows.append({"robot": name, "what": what, "by": who, "microseconds": round(1e6 * median(own), 3),
                     "of_sysdyn": round(ratio, 3)})  # fmt: skip
        print(f"{name:8} {what:18} {who:28} {1e6 * median(own):10.3f} µs   {ratio:8.3f} × sysdyn in JAX", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--robots", nargs="+", default=["panda", "g1"])
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--states", type=int, default=4096)
    options = parser.parse_args()
    known = ROBOTS | {"g1": G1}
    rows = []
    for name in options.robots:
        rows += run(name, known[name], options.steps, options.states)
    write_csv("inside_jax", rows)


if __name__ == "__main__":
    main()
