"""Errors of whole trajectories from raw logs, beside what was wanted: an arm, a quadruped, a squat, and random draws.

    python experiments/trajectories/figures.py [--full] [--seed 0]

The logs are those of logs.py, whose truth is known. Errors are root mean squares; nees is the mean square of errors in
standard deviations, for a vector of three the sum (3 is expected), and within the share of errors within two of them
(95.4 % of normal ones). Estimates are untuned: densities of motion are learnt from each log. Logs of one second and 20
draws, in which the bias of an accelerometer can hardly be told from tilt; --full: of four seconds and 200 draws. Writes
experiments/results/trajectories.csv.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import logs
import numpy as np
import scipy.signal
import scipy.special

import sysdyn as sd
from sysdyn.model.kinematics import frame_pose

sys.path.append(str(Path(__file__).resolve().parents[1]))
from nori import harness

RESULT = Path(__file__).resolve().parents[1] / "results" / "trajectories.csv"
# Rows of the parabolas by which velocities and accelerations are differences, as of `velocities="difference"`.
WINDOW = 11
# Seconds that the filter stays behind, and rows before it is judged.
LAG, SETTLED = 0.02, 100
# Share of torques that are outliers, their standard deviation, and biases of the torques [N m].
OUTLIERS, WRONG, OFFSET = 0.01, 30.0, 1.0
# Seconds by which contact times come late.
LATE = 0.004
# Force of a push [N]: it accelerates the quadruped of 13 kg as 50 N do one of 30 kg.
PUSH = 22.0
# Relative errors of the model, and rows of the squat.
MODEL_ERROR, SQUAT_ROWS = 0.02, 400
# Aims: of another quadruped's walk, and of a trotting ANYmal if contacts are late.
WANTED: dict[tuple[str, str], str] = {
    ("arm, encoders alone: torques", "smoother"): "2.5",
    ("quadruped: base velocity x", "kinematic"): "0.008", ("quadruped: base velocity y", "kinematic"): "0.008",
    ("quadruped: base velocity z", "kinematic"): "0.008", ("quadruped: tilt", "kinematic"): "0.002",
    ("quadruped: foot force x", "kinematic"): "2.6", ("quadruped: foot force y", "kinematic"): "2",
    ("quadruped: foot force z", "kinematic"): "3.8",
    ("quadruped: base velocity x", "exact"): "0.007", ("quadruped: base velocity y", "exact"): "0.007",
    ("quadruped: base velocity z", "exact"): "0.007", ("quadruped: tilt", "exact"): "0.0004",
    ("quadruped: foot force x", "exact"): "2.3", ("quadruped: foot force y", "exact"): "1.2",
    ("quadruped: foot force z", "exact"): "3",
    **{(f"late contacts, outliers, biases: foot force {x}", level): "5"
       for x in "xyz" for level in ("kinematic", "exact")},
    **{("late contacts, outliers, biases: torques", level): "0.4" for level in ("kinematic", "exact")},
    **{("push, late contacts, outliers, biases: push", level): "8" for level in ("kinematic", "exact")},
}  # fmt: skip
SHARE = "94 to 97"
# Share wanted for motions that are not drawn from the process.
OTHER_SHARE = "90 to 99"


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


class Table:
    """Rows of the results, printed as they come."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def add(
        self, what: str, level: str, error: float, unit: str, std: np.ndarray | None = None,
        errors: np.ndarray | None = None, vector: bool = False, share: str = OTHER_SHARE,
    ) -> None:  # fmt: skip
        """error: of `unit`; errors and std (…): of which nees and within are taken, vector: the last axis summed."""
        row: dict[str, object] = {
            "what": what, "level": level, "rms": f"{error:.3g}", "unit": unit, "wanted": WANTED.get((what, level), ""),
            "nees": "", "within 2 sigma": "", "wanted within": "",
        }  # fmt: skip
        if std is not None and errors is not None:
            known = std > 1e-9
            ratio = np.where(known, errors / np.where(known, std, 1.0), 0.0)
            square = (ratio**2).sum(axis=-1).mean() if vector else (ratio[known] ** 2).mean()
            row |= {"nees": f"{square:.3g}", "within 2 sigma": f"{100.0 * np.mean(np.abs(ratio[known]) < 2.0):.1f}",
                    "wanted within": share}  # fmt: skip
        self.rows.append(row)
        print("  ".join(f"{key} {x}" for key, x in row.items() if x != ""), flush=True)

    def chi2(self, what: str, level: str, run: sd.Run) -> None:
        """χ² of a row, and where that of 95 % of rows is that have as many degrees of freedom."""
        freedoms = run.redundancy / len(run)
        self.add(what, level, run.chi2() / len(run), "1")
        low, high = (float(scipy.special.chdtri(freedoms, x)) for x in (0.975, 0.025))
        self.rows[-1]["wanted"] = f"{low:.3g} to {high:.3g}"


def timed(call: Callable[[], sd.Run]) -> tuple[sd.Run, float]:
    began = time.process_time()
    return call(), time.process_time() - began


# ---- the arm ---------------------------------------------------------------------------------------------------------


def differences(log: logs.RawLog) -> np.ndarray:
    """Torques (N, nv) of derivatives of parabolas over `WINDOW` rows."""
    t, z = log.log["t"], log.log["encoders"]
    dt = float(t[1] - t[0])
    q, qd, qdd = (scipy.signal.savgol_filter(z, WINDOW, 2, deriv=k, delta=dt, axis=0) for k in range(3))
    return sd.rnea(log.model, q, qd, qdd)


def arm_rows(table: Table, seconds: float, seed: int) -> None:
    log = logs.arm(seconds, seed=seed)
    tau = log.truth.tau
    print(f"arm: {len(tau)} rows, torques of {rms(tau):.0f} N m rms")
    table.add(
        "arm, encoders alone: torques",
        f"differences over {WINDOW} rows",
        rms(differences(log) - tau),
        "N m",
        None,
        None,
    )
    run, used = timed(lambda: sd.smooth(logs.arm_problem(log), log.log))
    error = run["tau"] - tau
    table.add("arm, encoders alone: torques", "smoother", rms(error), "N m", run.std("tau"), error)
    print(f"  order {run.order}, {1e6 * used / len(tau):.0f} µs a row")
    for level, lag in (("filter", 0.0), (f"filter, {1e3 * LAG:.0f} ms behind", LAG)):
        live = sd.filter(logs.arm_problem(log), ["tau"], motion=run, lag=lag)
        began = time.process_time()
        now = [live(t, {"encoders": z}) for t, z in zip(log.log["t"], log.log["encoders"], strict=True)][SETTLED:]
        used = time.process_time() - began
        error = np.array([x["tau"] for x in now]) - tau[np.searchsorted(log.truth.t, [x.t for x in now])]
        std = np.array([x.std("tau") for x in now])
        table.add("arm, encoders alone: torques", level, rms(error), "N m", std, error)
        print(f"  {1e6 * used / len(tau):.0f} µs a row")


# ---- the quadruped ---------------------------------------------------------------------------------------------------


def spoiled(log: logs.RawLog, seed: int) -> dict[str, np.ndarray]:
    """The log with late contacts, outliers and biases of the torques."""
    rng = np.random.default_rng(seed + 100)
    found = logs.with_contacts(log, LATE)
    torques = found["torques"] + OFFSET * rng.standard_normal(found["torques"].shape[1])
    wrong = rng.random(torques.shape) < OUTLIERS
    return {**found, "torques": torques + np.where(wrong, WRONG * rng.standard_normal(torques.shape), 0.0)}


def poses(model: sd.Model, q: np.ndarray, frames: list[str]) -> np.ndarray:
    """R (N, frames, 3, 3) from axes of the frames to the world's."""
    return np.array([[frame_pose(model, x, frame)[:3, :3] for frame in frames] for x in q])


def walk_rows(
    table: Table, name: str, log: logs.RawLog, given: dict[str, np.ndarray], problem: sd.Problem, exact: bool
) -> None:
    level, truth, model = "exact" if exact else "kinematic", log.truth, log.model
    given = {**given, "no motor": np.zeros((len(truth.t), 6))}
    run, used = timed(lambda: sd.smooth(problem, given, ["tau", "fx"], coupled=exact))
    v, std = run.qd[:, 3:6] - truth.qd[:, 3:6], run.std("qd")[:, 3:6]
    for k, axis in enumerate("xyz"):
        table.add(f"{name}: base velocity {axis}", level, rms(v[:, k]), "m/s", std[:, k], v[:, k])
    table.add(f"{name}: base velocity", level, rms(v), "m/s", std, v, vector=True)
    tilt = model.difference(truth.q, run.q)[:, :2]  # about axes of the base, which is nearly level
    table.add(f"{name}: tilt", level, rms(tilt), "rad", run.std("q")[:, :2], tilt)
    calves = [f"{leg}_calf" for leg in logs.LEGS]
    bodies = [model.body_index(x) for x in calves]
    R = poses(model, truth.q, calves)
    # the yaw is chosen: forces are compared in axes of the bodies, turned as these truly are
    inside = np.einsum("nfji,nfj->nfi", R, truth.forces)
    off = run["fx"][:, bodies, 3:] - inside
    world, std = np.einsum("nfij,nfj->nfi", R, off), run.std("fx")[:, bodies, 3:]
    for k, axis in enumerate("xyz"):
        table.add(f"{name}: foot force {axis}", level, rms(world[:, :, k]), "N")
    table.add(f"{name}: foot forces", level, rms(world), "N", std, off)
    tau = (run["tau"] - truth.tau)[:, 6:]
    table.add(f"{name}: torques", level, rms(tau), "N m", run.std("tau")[:, 6:], tau)
    if np.any(truth.push):
        trunk = [model.body_index("trunk")]
        R = poses(model, truth.q, ["trunk"])[:, 0]
        off = run["fx"][:, trunk[0], 3:] - np.einsum("nji,nj->ni", R, truth.push)
        table.add(f"{name}: push", level, rms(off), "N", run.std("fx")[:, trunk[0], 3:], off)
    table.chi2(f"{name}: χ² of a row", level, run)
    counts: dict[str, int] = {}
    for event in run.events:
        counts[event.measurement] = counts.get(event.measurement, 0) + 1
    print(f"  {1e6 * used / len(v):.0f} µs a row; dropped {counts}")


def quadruped_rows(table: Table, seconds: float, seed: int) -> None:
    log = logs.quadruped(round(seconds / (2.0 * logs.TICK)), seed=seed)
    clean, spoilt = logs.quadruped_problem(log), logs.quadruped_problem(log, torque_bias=sd.Constant(3.0 * OFFSET))
    for exact in (False, True):
        walk_rows(table, "quadruped", log, logs.with_contacts(log), clean, exact)
        walk_rows(table, "late contacts, outliers, biases", log, spoiled(log, seed), spoilt, exact)


def push_rows(table: Table, seconds: float, seed: int) -> None:
    """A quadruped whose trunk is pushed aside, with late contacts, outliers and biases; the push is unknown."""
    log = logs.quadruped(round(seconds / (2.0 * logs.TICK)), seed=seed, push=PUSH)
    problem = logs.quadruped_problem(log, torque_bias=sd.Constant(3.0 * OFFSET), push=True)
    for exact in (False, True):
        walk_rows(table, "push, late contacts, outliers, biases", log, spoiled(log, seed), problem, exact)


def model_rows(table: Table, seconds: float, seed: int) -> None:
    """A quadruped whose masses, centres and inertias differ from the model's, as its problem declares."""
    log = logs.quadruped(round(seconds / (2.0 * logs.TICK)), seed=seed, error=MODEL_ERROR)
    problem = logs.quadruped_problem(log, error=MODEL_ERROR)
    for exact in (False, True):
        walk_rows(table, "2 % model errors", log, logs.with_contacts(log), problem, exact)


# ---- the squat -------------------------------------------------------------------------------------------------------


def squat_rows(table: Table, seed: int) -> None:
    """Torques of a squat from raw sensors with biases, and with q and q̇ given."""
    log, raw, exact, values = logs.icub_squat(SQUAT_ROWS, seed)
    truth, known = log.truth, sd.compile(exact, outputs=["tau"])(log.truth.q, log.truth.qd, y=values)
    # of joints that hardly move, noise on snap loses digits
    run, used = timed(lambda: sd.smooth(raw, log.log, ["tau"], order=3))
    print(f"  {1e6 * used / len(truth.t):.0f} µs a row")
    for level, found, std in (
        ("q and q̇ exact", known.tau, known.std("tau")),
        ("kinematic", run["tau"], run.std("tau")),
    ):
        error, spread = (found - truth.tau)[:, 6:], std[:, 6:]
        table.add("squat: torques", level, rms(error), "N m", spread, error)
    ratio = run.std("tau")[:, 6:].mean(axis=0) / known.std("tau")[:, 6:].mean(axis=0)
    table.add(
        "squat: σ by those of q and q̇ exact, median of the joints, 1.5 wanted",
        "kinematic",
        float(np.median(ratio)),
        "1",
    )
    table.add("squat: σ by those of q and q̇ exact, greatest, 1.5 wanted", "kinematic", float(ratio.max()), "1")


# ---- draws -----------------------------------------------------------------------------------------------------------


def draw_rows(table: Table, draws: int) -> None:
    """Errors over draws of an arm that moves by the declared process."""
    for exact in (False, True):
        found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for seed in range(draws):
            log, problem, fx = logs.drawn_arm(seed)
            truth, last = log.truth, log.model.nb - 1
            run = sd.smooth(problem, log.log, ["tau", "fx"], coupled=exact, order=3, density=logs.DRAWN, robust=False)
            pairs = {
                "q": (run.q - truth.q, run.std("q")), "qd": (run.qd - truth.qd, run.std("qd")),
                "qdd": (run.qdd - truth.qdd, run.std("qdd")), "tau": (run["tau"] - truth.tau, run.std("tau")),
                "fx": ((run["fx"] - fx)[:, last], run.std("fx")[:, last]),
            }  # fmt: skip
            for name, pair in pairs.items():
                found.setdefault(name, []).append(pair)
        for name, both in found.items():
            error, std = (np.concatenate(x) for x in zip(*both, strict=True))
            unit = {"q": "rad", "qd": "rad/s", "qdd": "rad/s²", "tau": "N m", "fx": "N m, N"}[name]
            table.add(f"draws: {name}", "exact" if exact else "kinematic", rms(error), unit, std, error, share=SHARE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="four seconds and 200 draws")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    warnings.simplefilter("ignore", sd.errors.LogWarning)
    table, seconds = Table(), 4.0 if options.full else 1.0
    arm_rows(table, seconds, options.seed)
    draw_rows(table, 200 if options.full else 20)
    quadruped_rows(table, seconds, options.seed)
    push_rows(table, seconds, options.seed)
    model_rows(table, seconds, options.seed)
    squat_rows(table, options.seed)
    harness.write_csv(options.out, table.rows)
    print(f"written to {options.out.name}")


if __name__ == "__main__":
    main()
