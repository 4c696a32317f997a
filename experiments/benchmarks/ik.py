"""Inverse kinematics: time of the textbook's UR3 cases, and success and time on random reachable targets.

    python experiments/benchmarks/ik.py [--targets 1000]

Writes experiments/results/ik.csv. One thread; a pose and Jacobian beside pin's from Python, in the same run.
"""

from __future__ import annotations

import argparse
import math
import time

import icub_models
import numpy as np
import pinocchio as pin
from common import timed, write_csv

import sysdyn as sd
from sysdyn.frameworks.function import compile_function
from sysdyn.model.kinematics import frame_pose, pose_and_jacobian
from sysdyn.model.product_of_exponentials import from_screws
from sysdyn.model.se3 import pose, rotx, rotz
from sysdyn.reference.ik import inverse_kinematics

# The iCub's description.
URDF = str(icub_models.get_model_file("iCubGazeboV2_5"))
# The textbook's cases end within these tolerances [rad, mm].
TOLERANCES = {"angle_tol": 1e-4, "position_tol": 1e-3}


def ur3() -> tuple[sd.Model, dict[str, np.ndarray]]:
    """(the UR3 of the text in mm, its targets by name)."""
    w = np.eye(3)[[2, 1, 1, 1, 2, 1]]
    p = [(0, 0, 0), (0, 0, 151.9), (0, 0, 395.55), (213, 0, 395.55), (213, 110.4, 478.95), (213, 110.4, 478.95)]
    home = pose(np.eye(3), np.array([213.0, 267.8, 478.95]))
    targets = {
        "A": pose(rotz(math.pi / 2), np.array([50.0, 375.0, 160.0])),
        "B": pose(rotx(-math.pi / 2), np.array([10.0, 375.0, 200.0])),
        "C": pose(rotx(-math.pi / 2), np.array([-10.0, 375.0, 200.0])),
    }
    return from_screws(home, space=np.concatenate([w.T, -np.cross(w, p).T]), name="UR3"), targets


def panda() -> sd.Model:
    """Seven joints with the lengths and limits of a Panda; its inertias do not matter here."""
    h = math.pi / 2
    upper = np.array([2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973])
    lower = np.array([-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973])
    table = [0, -h, h, h, -h, h, h], [0, 0, 0, 0.0825, -0.0825, 0, 0.088], [0.333, 0, 0.316, 0, 0.384, 0, 0]
    model = sd.from_dh(*table, np.ones(7), np.zeros((7, 3)), np.tile(np.eye(3), (7, 1, 1)), name="Panda")
    return model.replace(lower=lower, upper=upper)


def textbook() -> list[dict]:
    model, targets = ur3()
    home, damped, newton = np.zeros(6), {}, {"method": "newton-body"}
    at_b = inverse_kinematics(model, "tool", targets["B"], home, **TOLERANCES).q
    cases = [(f"home to {name}, damped", targets[name], home, damped) for name in targets]
    cases += [
        ("home to A, undamped", targets["A"], home, newton),
        ("home to B, undamped, 2 waypoints", targets["B"], home, {**newton, "waypoints": 2}),
        ("home to C, undamped, 2 waypoints", targets["C"], home, {**newton, "waypoints": 2}),
        ("B to C, undamped", targets["C"], at_b, newton),
    ]
    rows = []
    print("UR3 of the text, one call")
    for what, target, q0, options in cases:

        def solve(target=target, q0=q0, options=options):
            return inverse_kinematics(model, "tool", target, q0, **TOLERANCES, **options)

        result, taken = solve(), timed(solve, repeat=15, number=50)
        assert result, result
        print(f"  {what:<36}{result.iterations:>4} iterations{taken.median * 1e6:>8.0f} µs")
        rows.append({
            "robot": "UR3", "what": what, "solved": 1.0, "iterations": result.iterations, "restarts": 0,
            "seconds": f"{taken.median:.4g}", "least": f"{taken.least:.4g}", "greatest": f"{taken.greatest:.4g}",
        })  # fmt: skip
    return rows


def random_targets(model: sd.Model, frame: str, count: int) -> dict:
    low, high = np.maximum(model.lower, -math.pi), np.minimum(model.upper, math.pi)
    goals = np.random.default_rng(1).uniform(low, high, (count, model.nq))
    targets = [frame_pose(model, q, frame) for q in goals]
    q0 = np.clip(model.neutral(), model.lower, model.upper)
    began = time.perf_counter()
    inverse_kinematics(model, frame, targets[0], q0)
    first = time.perf_counter() - began
    results, seconds = [], []
    for seed, target in enumerate(targets):
        began = time.perf_counter()
        results.append(inverse_kinematics(model, frame, target, q0, restarts=20, seed=seed))
        seconds.append(time.perf_counter() - began)
    solved = sum(map(bool, results)) / count
    iterations, restarts = (float(np.mean([getattr(r, x) for r in results])) for x in ("iterations", "restarts"))
    print(
        f"  {model.name + ', ' + frame:<30}{solved:>7.1%} solved, {iterations:.1f} iterations, "
        f"{restarts:.2f} restarts, "
        f"{np.mean(seconds) * 1e6:.0f} µs on average, {np.max(seconds) * 1e3:.1f} ms at most; first call {first:.2f} s"
    )
    return {
        "robot": model.name, "what": f"{count} random targets, {frame}", "solved": solved, "iterations": iterations,
        "restarts": restarts, "seconds": f"{np.mean(seconds):.4g}", "least": f"{np.min(seconds):.4g}",
        "greatest": f"{np.max(seconds):.4g}",
    }  # fmt: skip


def kinematics(model: sd.Model, frame: str) -> dict:
    """Pose and Jacobian of a frame of the iCub, compiled, and by pin from Python."""
    q = model.random_state(seed=0)[0]
    step = compile_function(lambda q: pose_and_jacobian(model, q, frame), {"q": (model.nq,)}).bind(q)
    ours = timed(step, number=2000)
    other = pin.buildModelFromUrdf(URDF)
    data, number, position = other.createData(), other.getFrameId(frame), np.zeros(other.nq)
    peer = timed(lambda: pin.computeFrameJacobian(other, data, position, number, pin.LOCAL), number=2000)
    print(f"  pose and Jacobian of {frame}: {ours.median * 1e9:.0f} ns; pin from Python {peer.median * 1e9:.0f} ns")
    return {
        "robot": model.name, "what": f"pose and Jacobian of {frame}; pin: {peer.median:.4g} s", "solved": "",
        "iterations": "", "restarts": "", "seconds": f"{ours.median:.4g}", "least": f"{ours.least:.4g}",
        "greatest": f"{ours.greatest:.4g}",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=1000)
    options = parser.parse_args()
    rows = textbook()
    print("random reachable targets, up to 20 restarts, from one start")
    icub = sd.load(URDF)
    rows += [random_targets(icub, "l_hand", options.targets), random_targets(icub, "r_hand", options.targets)]
    rows.append(random_targets(panda(), "dh6", options.targets))
    rows.append(kinematics(icub, "l_hand"))
    write_csv("ik", rows)


if __name__ == "__main__":
    main()
