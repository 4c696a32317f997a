"""A hop, simulated and estimated back from noisy sensors: a contact that opens and closes, in one compiled problem.

    python experiments/benchmarks/hop.py [--log hop.csv] [--seed 0]

The leg of problems/leg.urdf pushes itself off, flies and lands; its motion is integrated with the forward dynamics,
with a rigid contact of the sole while it stands. White noise as problems/hopping_leg.toml declares it is added to the
sensors; q and q̇ are exact. Writes the log, with its switches, and experiments/results/hop.csv (one row a joint and
phase).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from squat import BAND_95, coverage, write_log

import sysdyn as sd
from sysdyn.app.jobs import Job
from sysdyn.app.problem_files import load_job
from sysdyn.data.estimates import estimate_log
from sysdyn.data.sensor_log import Log

# The problem file of the hopping leg.
PROBLEM = Path(__file__).resolve().parents[2] / "problems" / "hopping_leg.toml"
# The simulation has this step [s] and end [s]; each EVERY-th step is a row of the log.
STEP, END, EVERY = 5e-4, 0.7, 4
# Hip, knee and ankle go from the first of these angles [rad] to the second.
BENT, STRETCHED = np.array([-0.5, 1.0, -0.5]), np.array([-0.1, 0.2, -0.1])
# The joints are driven with this stiffness [N m/rad] and damping [N m s/rad].
STIFFNESS, DAMPING = np.array([220.0, 220.0, 120.0]), np.array([6.0, 6.0, 3.0])


class Hop(NamedTuple):
    """N states: t (N,), q, q̇, q̈, τ, the wrench on the foot (N, 6) in its coordinates, and whether it stands (N,)."""

    t: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    qdd: np.ndarray
    tau: np.ndarray
    foot: np.ndarray
    stance: np.ndarray


def simulate(model: sd.Model, end: float = END, every: int = EVERY) -> Hop:
    """Squat, push, flight, landing; every so many steps of a semi-implicit Euler method."""
    fly = sd.compile(sd.forward_dynamics(model), "aba", ["qdd"])
    stand = sd.compile(sd.forward_dynamics(model) + sd.Contact("sole", name="ground"), "aba", ["qdd", "w"])
    sole = model.frame("sole").X
    q, qd, stance = model.neutral(), np.zeros(model.nv), True
    q[model.nv - 2 :] = BENT
    q[2] -= sd.frame_pose(model, q, "sole")[2, 3]
    rows = []
    for k in range(round(end / STEP)):
        t = k * STEP
        target = STRETCHED if stance and 0.1 < t < 0.4 else BENT
        tau = np.zeros(model.nv)
        tau[6:] = STIFFNESS * (target - q[7:]) - DAMPING * qd[6:]
        found = stand(q, qd, tau) if stance else None
        if found is not None and t > 0.1 and found["w", "ground"][5] < 0.0 and t < 0.4:
            stance = False  # the ground does not pull
        elif not stance and sd.frame_pose(model, q, "sole")[2, 3] < 0.0:
            stance, qd = True, _landed(model, q, qd)
            found = stand(q, qd, tau)
        qdd = found.qdd if stance else fly(q, qd, tau).qdd
        wrench = sole.T @ found.wrench("ground") if stance else np.zeros(6)
        if k % every == 0:
            rows.append((t, q, qd, qdd, tau, wrench, stance))
        qd = qd + STEP * qdd
        q = np.concatenate([
            joint.integrate(q[model.q_slice(i)], STEP * qd[model.v_slice(i)]) for i, joint in enumerate(model.joints)
        ])  # fmt: skip
    return Hop(*(np.array(x) for x in zip(*rows, strict=True)))


def _landed(model: sd.Model, q: np.ndarray, qd: np.ndarray) -> np.ndarray:
    """q̇ after a perfectly plastic impact of the sole."""
    J = sd.frame_jacobian(model, q, "sole")
    turned = np.linalg.solve(sd.crba(model, q), J.T)
    return qd - turned @ np.linalg.solve(J @ turned, J @ qd)


def sensors(task: Job, hop: Hop, seed: int | None) -> dict[str, np.ndarray]:
    """{measurement: (N, m)} with noise, None: without."""
    fx = np.zeros((len(hop.t), task.problem.model.nb, 6))
    fx[:, task.problem.model.body_index("foot")] = hop.foot
    y = sd.predict(task.problem, hop.q, hop.qd, hop.qdd, fx, seed)
    return {name: x for name, x in y.items() if name in ("encoders", "imu")}


def log_of(task: Job, hop: Hop, seed: int | None = 0) -> dict[str, np.ndarray]:
    """Arrays of a log: t, q, q̇, the sensors, and which contact counts. What is off, or zero, has no columns."""
    switches = {"active:stance": hop.stance, "active:flight": ~hop.stance}
    return {"t": hop.t, "q": hop.q, "qd": hop.qd, **sensors(task, hop, seed), **switches}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log", default="hop.csv")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    from common import write_csv

    task = load_job(PROBLEM)
    hop = simulate(task.problem.model)
    path = write_log(options.log, task, log_of(task, hop, options.seed))
    flight = int(np.sum(~hop.stance))
    height = sd.frame_pose(task.problem.model, hop.q[~hop.stance][flight // 2], "sole")[2, 3]
    print(f"{len(hop.t)} states in {path}, {flight} of them in flight, the sole up to {height:.3f} m high")
    solver = sd.compile(task.problem, task.ordering, task.requested)
    parts = []
    estimate_log(Log(path, solver, task.values), solver, seen=parts.append)
    found, std = (np.vstack([getattr(x, name)["tau"] for x in parts])[:, 6:] for name in ("values", "std"))
    rows = []
    for phase, chosen in (("stance", hop.stance), ("flight", ~hop.stance)):
        for k, name in enumerate(task.problem.model.dof_names[6:]):
            error, truth = found[chosen, k] - hop.tau[chosen, 6 + k], hop.tau[chosen, 6 + k]
            c = coverage(found[chosen, k], std[chosen, k], truth)
            rows.append({
                "phase": phase, "joint": name, "states": len(truth), "within_95": c.within_95,
                "within_3_sigma": c.within_3, "mean_std_Nm": std[chosen, k].mean(),
                "rms_error_Nm": np.sqrt(np.mean(error**2)), "largest_torque_Nm": np.abs(truth).max(),
            })  # fmt: skip
    write_csv("hop", rows)
    z = (found - hop.tau[:, 6:]) / std
    print(f"{np.mean(np.abs(z) <= BAND_95):.1%} of the torques within the 95 % band")


if __name__ == "__main__":
    main()
