"""Time and memory of trajectories from raw logs, by row: the live filter, both smoothers, and long logs.

    python experiments/benchmarks/trajectories.py [--rows 2000 20000 100000]

A free body with an IMU and two points that stand, an arm of seven joints with encoders alone at 1 kHz, and the trotting
quadruped of experiments/trajectories/logs.py with encoders, IMU and feet that stand at 500 Hz. A row of the filter is
`live(t, y)`, without reading its result and with the torques read, and a step of its export by the C compiler, if there
is one; one of the kinematic smoother is what `smooth` needs for another row, covariances included. Of the coupled level
a row of one iteration, linearised and solved, of chains of 9, 20 and 40 joints: 27, 60 and 120 unknowns an instant.
GTSAM, if installed, solves the linear chain of five joints, too, of encoders and of encoders with torques; results
are the same to 1e-8 standard deviations. Long logs are of the arm and of the iCub on a fixed base, with torques.

Ratio: over a row of the same number of unknowns of a block-tridiagonal Cholesky factorisation by SciPy's potrf, trsm
and syrk, called block by block, in the same run; processor times of one thread. Memory is the largest resident one of a
process that smooths a log of so many rows, and its time that of the process, compiling included. Writes
experiments/results/trajectory_rows.csv.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import icub_models
import numpy as np
import scipy.linalg
from common import ROOT, write_csv
from rivals.gtsam_chain import Rival
from streaming import MEBI, peak_memory

import sysdyn as sd
from sysdyn.estimation.linearization import Linearised
from sysdyn.estimation.measurement_data import LogStatistics, read_log
from sysdyn.estimation.residuals import MeasurementData
from sysdyn.estimation.smooth import single_blas_thread, with_motion
from sysdyn.estimation.state_trajectory import StateTrajectory as States

sys.path.insert(0, str(ROOT / "experiments" / "trajectories"))
import logs

# Rows before the filter is timed, and rows that are.
WARM, TIMED = 50, 300
# Rows of the two logs whose times of smoothing differ by those of a row: of the arm, and of the quadruped.
SHORT, LONG = (2000, 100), (12000, 500)
# Joints of the chains of the coupled level, rows of their logs, and seconds between these.
JOINTS, CHAIN_ROWS, STEP = (9, 20, 40), 200, 2e-3
# Rows of the chain that GTSAM solves, too, and those that are smoothed before a long log, which compiles.
GTSAM_ROWS, FIRST_ROWS = 2000, 200
# Densities of jerk of the arm and the chains, and of the quadruped (as learnt from its log), and order of all motions.
MOTION, ORDER = 100.0, 3
TURNS, SHIFTS, LEG = 126.0, 16.0, (70.0, 730.0, 1300.0)
# Runs of which the median is taken, and steps of the export in each.
REPEAT, C_STEPS = 3, 2000

Row = tuple[float, dict[str, np.ndarray], dict[str, float]]


def spent(call: Callable[[], object], clock: Callable[[], float] = time.thread_time) -> float:
    """Processor time of this thread [s], which other processes do not add to: the median of a few."""
    found = []
    for _ in range(REPEAT):
        began = clock()
        call()
        found.append(clock() - began)
    return median(found)


def arm(rows: int) -> tuple[sd.Problem, dict[str, np.ndarray]]:
    log = logs.arm(rows / 1000.0)
    return logs.arm_problem(log), log.log


def quadruped(rows: int) -> tuple[sd.Problem, dict[str, np.ndarray]]:
    """The quadruped of logs.py with its IMU, encoders and feet: torques are not measured."""
    log = logs.quadruped(rows)
    given = {name: x for name, x in logs.with_contacts(log).items() if name != "torques"}
    problem = logs.quadruped_problem(log)
    kept = [m for m in problem.measurements if m.of_state or m.name == "acc"]
    return sd.Problem(log.model, [*kept, sd.ExternalWrench("all", name="no wrench")]), given


def body(rows: int) -> tuple[sd.Problem, dict[str, np.ndarray]]:
    """A free body at rest with an IMU, whose biases walk, and two points that stand."""
    model, rng = sd.random_tree(1, seed=0, joints=("free",)), np.random.default_rng(0)
    imu, aside = (model.body_names[0], np.eye(4)), np.eye(4)
    aside[:3, 3] = 0.1, 0.0, 0.2
    problem = sd.Problem(model, [
        sd.Gyroscope(imu, noise=2e-3, bias=sd.RandomWalk(1e-5), name="gyro"),
        sd.Accelerometer(imu, noise=0.05, bias=sd.RandomWalk(1e-4), name="acc"),
        sd.Stance(imu, noise=1e-2, name="left"), sd.Stance((model.body_names[0], aside), noise=1e-2, name="right"),
        sd.ExternalWrench("all", name="no wrench"),
    ])  # fmt: skip
    log = {"t": STEP * np.arange(rows), "gyro": 2e-3 * rng.standard_normal((rows, 3)),
           "acc": np.array([0.0, 0.0, 9.81]) + 0.05 * rng.standard_normal((rows, 3))}  # fmt: skip
    return problem, log | {f"active: {name}": np.ones(rows) for name in ("left", "right")}


def densities(problem: sd.Problem) -> float | np.ndarray:
    """Densities of the jerk of a motion, see `MOTION`."""
    if problem.model.nv != 6 + len(LEG) * len(logs.LEGS):
        return MOTION
    return np.array([TURNS] * 3 + [SHIFTS] * 3 + [*LEG] * len(logs.LEGS))


def rows_of(log: dict[str, np.ndarray]) -> list[Row]:
    """(t, y, active) of each row."""
    found = []
    for k, t in enumerate(log["t"].tolist()):
        y = {name: x[k] for name, x in log.items() if name != "t" and ":" not in name}
        active = {name.partition(": ")[2]: float(x[k]) for name, x in log.items() if name.startswith("active: ")}
        found.append((t, y, active))
    return found


def filtered(problem: sd.Problem, log: dict[str, np.ndarray], outputs: list[str]) -> float:
    """Seconds of a row of the filter; outputs: read from each result."""
    live, rows, found = sd.filter(problem, outputs, motion=densities(problem), order=ORDER), rows_of(log), []
    for at, row in enumerate(rows[: WARM + TIMED]):
        began = time.thread_time()
        now = live(*row)
        for name in outputs:
            now.std(name)
        if at >= WARM:
            found.append(time.thread_time() - began)
    return median(found)


# A main that takes the readings of one instant again and again.
MAIN = """
#include <stdio.h>
#include <time.h>
#include "robot.h"
#include "test_vectors.h"
int main(void)
{
    static robot_readings now;
    int k;
    clock_t began;
    now = test_readings[0];
    began = clock();
    for (k = 0; k < STEPS; ++k) {
        now.t += 0.002;
        if (robot_step(&now)) {
            return 1;
        }
    }
    printf("%.17g", (double)(clock() - began) / CLOCKS_PER_SEC / STEPS);
    return 0;
}
"""


def exported(problem: sd.Problem, log: dict[str, np.ndarray]) -> float | None:
    """Seconds of a step of the filter's export; None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    live = sd.filter(problem, [], motion=densities(problem), order=ORDER)
    for row in rows_of(log)[:WARM]:
        live(*row)
    with tempfile.TemporaryDirectory() as parent:
        folder = live.export_c(Path(parent) / "robot", "robot")
        (folder / "main.c").write_text(MAIN.replace("STEPS", str(C_STEPS)))
        sources = [x.name for x in folder.glob("*.c")]
        command = [compiler, "-O3", "-march=native", "-std=c99", *sources, "-o", "main", "-lm"]
        subprocess.run(command, cwd=folder, check=True)
        times = (subprocess.run([folder / "main"], check=True, capture_output=True, text=True) for _ in range(REPEAT))
        return median(float(x.stdout) for x in times)


def smoothed(of: Callable[[int], tuple[sd.Problem, dict[str, np.ndarray]]], short: int, long: int) -> float:
    """Seconds of a further row of the kinematic smoother, from logs of these rows."""
    times = []
    for rows in (short, long):
        problem, log = of(rows)
        kappa = densities(problem)
        times.append(spent(lambda p=problem, x=log, k=kappa: sd.smooth(p, x, [], order=ORDER, density=k)))
    return (times[1] - times[0]) / (long - short)


def linearised(joints: int, torques: bool, rows: int = CHAIN_ROWS) -> tuple[Linearised, States, MeasurementData]:
    """(equations, a first path, readings) of a chain with encoders; torques: measured, too, on the coupled level."""
    model, t = sd.chain(joints, seed=1), STEP * np.arange(rows)
    omega, rng = np.linspace(1.0, 4.0, joints), np.random.default_rng(0)
    angle = t[:, None] * omega
    q, qd, qdd = 0.1 * np.sin(angle), 0.1 * omega * np.cos(angle), -0.1 * omega**2 * np.sin(angle)
    log = {"t": t, "encoders": q + 1e-3 * rng.standard_normal(q.shape), "torques": sd.rnea(model, q, qd, qdd)}
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=1e-3, name="encoders"),
        *([sd.JointTorque("all", noise=0.3, name="torques")] if torques else []),
        sd.ExternalWrench("all", name="no wrench"),
    ])  # fmt: skip
    readings = read_log(problem, log if torques else {x: y for x, y in log.items() if x != "torques"})
    estimation, kappa, _ = with_motion(problem, (), torques, ORDER, MOTION, LogStatistics.of(lambda: [readings]))
    belief, _ = estimation.initial_state(readings, None, kappa)
    equations = Linearised(estimation.layout, estimation.sources, kappa, belief)
    return equations, estimation.initial_trajectory(belief, readings, kappa), readings


def coupled(joints: int) -> tuple[int, float]:
    """(unknowns, seconds of a row and iteration of the coupled level) of a chain with encoders and torques."""
    equations, path, readings = linearised(joints, True)
    equations.sweep(equations.about(path, readings))  # compiles
    return equations.layout.size, spent(lambda: equations.sweep(equations.about(path, readings))) / len(path)


def beside_gtsam(torques: bool) -> Iterator[tuple[str, float, float]]:
    """(what, seconds of a row of the same linear chain, and of GTSAM) of five joints: steps, and covariances.

    Raises AssertionError if they differ by 1e-8 standard deviations, or 1e-8 of what the step is.
    """
    equations, path, readings = linearised(5, torques, GTSAM_ROWS)
    least = equations.about(path, readings)
    found = equations.sweep(least, covariances=True)
    rival, std = Rival(least.parts, equations.layout.size, found), np.sqrt(found.covariances.diagonal())
    assert (np.abs(rival.step() - found.step) <= 1e-8 * np.maximum(std, np.abs(found.step))).all()
    off = np.abs(rival.covariances() - found.covariances.dense())
    assert (off <= 1e-8 * std[:, :, None] * std[:, None, :]).all()
    n, clock = len(path), time.process_time
    yield "a step", spent(lambda: equations.sweep(least)) / n, min(spent(x, clock) for x in rival.ways()) / n
    own = spent(lambda: equations.sweep(least, covariances=True))
    yield "a step with all marginals", own / n, spent(rival.covariances, clock) / n


def blocks(k: int) -> float:
    """Seconds of a row of a block-tridiagonal Cholesky factorisation with k unknowns each, by calls of LAPACK."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((k, k))
    own, beside = np.asfortranarray(x @ x.T + 4.0 * k * np.eye(k)), np.asfortranarray(rng.standard_normal((k, k)))
    potrf, trsm, syrk = scipy.linalg.lapack.dpotrf, scipy.linalg.blas.dtrsm, scipy.linalg.blas.dsyrk

    def factored() -> None:
        A = own
        for _ in range(CHAIN_ROWS):
            L, _ = potrf(A, lower=1)
            A = syrk(-1.0, trsm(1.0, L, beside, lower=1), trans=1, beta=1.0, c=own, lower=1)

    return spent(factored) / CHAIN_ROWS


def count_unknowns(problem: sd.Problem) -> int:
    sizes = (len(m.components(problem.model)) for m in problem.biased)
    return ORDER * problem.model.nv + sum(sizes)


def icub(rows: int) -> tuple[sd.Problem, dict[str, np.ndarray]]:
    """The iCub on a fixed base with encoders at 1 kHz, each joint on a sine; external wrenches are none."""
    model, t = sd.load(str(icub_models.get_model_file("iCubGazeboV2_5")), base="fixed"), 1e-3 * np.arange(rows)
    rng = np.random.default_rng(0)
    omega, phase = rng.uniform(1.0, 6.0, model.nv), rng.uniform(0.0, 6.0, model.nv)
    q = 0.3 * np.sin(t[:, None] * omega + phase) + 1e-4 * rng.standard_normal((rows, model.nv))
    encoders = sd.JointPosition("all", noise=1e-4, name="encoders")
    return sd.Problem(model, [encoders, sd.ExternalWrench("all", name="no wrench")]), {"t": t, "encoders": q}


# Robots whose logs of many rows are smoothed.
LONG_LOGS = {"arm": arm, "iCub": icub}


def of_rows(name: str, rows: int, folder: str = "") -> dict:
    """{seconds, peak memory, unknowns} of smoothing so many rows, torques too; in a folder: from file to file."""
    problem, log = LONG_LOGS[name](FIRST_ROWS if folder else rows)
    sd.smooth(problem, {x: y[:FIRST_ROWS] for x, y in log.items()}, ["tau"], order=ORDER, density=MOTION)
    began = time.process_time()
    if folder:
        sd.smooth(problem, f"{folder}/log.npz", ["tau"], order=ORDER, density=MOTION, out=f"{folder}/run.npz")
    else:
        sd.smooth(problem, log, ["tau"], order=ORDER, density=MOTION)
    return {"seconds": time.process_time() - began, "peak": peak_memory(), "unknowns": count_unknowns(problem)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[5000, 20_000, 100_000], help="of the long logs of the arm and the iCub"
    )
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore", sd.errors.LogWarning)
    if options.one:
        print(json.dumps(of_rows(options.one[0], int(options.one[1]), options.folder)))
        return
    table: list[dict[str, object]] = []

    def add(what: str, size: int, seconds: float, memory: str = "", gtsam: str = "") -> None:
        ratio = "" if memory else f"{seconds / blocks(size):.3g}"
        row = {"what": what, "unknowns": size, "seconds": f"{seconds:.3g}", "ratio": ratio, "gtsam": gtsam,
               "peak_memory_MiB": memory}  # fmt: skip
        table.append(row)
        print("  ".join(f"{key} {x}" for key, x in row.items() if x != ""), flush=True)

    with single_blas_thread():
        problem, log = body(WARM + TIMED)
        what = "free body, IMU and two feet"
        add(f"{what}: filter", count_unknowns(problem), filtered(problem, log, []))
        step = exported(problem, log)
        if step is not None:
            add(f"{what}: filter, a step in C", count_unknowns(problem), step)
        logs_of = (("arm, encoders", arm), ("quadruped, encoders, IMU and feet", quadruped))
        for (name, of), short, long in zip(logs_of, SHORT, LONG, strict=True):
            problem, log = of(WARM + TIMED)
            add(f"{name}: filter", count_unknowns(problem), filtered(problem, log, []))
            add(f"{name}: filter, torques read", count_unknowns(problem), filtered(problem, log, ["tau"]))
            step = exported(problem, log)
            if step is not None:
                add(f"{name}: filter, a step in C", count_unknowns(problem), step)
            add(f"{name}: smoother", count_unknowns(problem), smoothed(of, short, long))
        for joints in JOINTS:
            size, seconds = coupled(joints)
            add(f"chain of {joints}, coupled: an iteration", size, seconds)
        if find_spec("gtsam") is None:
            print("GTSAM is not installed")
        else:
            for torques, level in ((False, "kinematic"), (True, "coupled")):
                for what, own, other in beside_gtsam(torques):
                    add(f"chain of 5, {level}: {what} of the linear chain", 15, own, gtsam=f"{other / own:.3g}")
    for name, rows in ((name, rows) for name in LONG_LOGS for rows in options.rows):
        command = [sys.executable, "-W", "ignore", __file__, "--one", name, str(rows)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        what = f"{name}: smoother with torques, {rows:,} rows"
        add(what, found["unknowns"], found["seconds"] / rows, f"{found['peak'] / MEBI:.0f}")
        with tempfile.TemporaryDirectory() as folder:
            np.savez(f"{folder}/log.npz", **LONG_LOGS[name](rows)[1])
            output = subprocess.run([*command, "--folder", folder], check=True, capture_output=True, text=True).stdout
        found = json.loads(output)
        add(f"{what}, file to file", found["unknowns"], found["seconds"] / rows, f"{found['peak'] / MEBI:.0f}")
    write_csv("trajectory_rows", table)


if __name__ == "__main__":
    main()
