"""Memory and time of long logs and large batches: memory must not grow with the log.

    python experiments/benchmarks/streaming.py [--states 100000 1000000] [--folder DIR]

A chain of three joints with encoders, an accelerometer and a sensor of the moment at its base. Logs of each length are
written to the folder (0.3 GB for 10⁶ states as .csv, 0.1 GB as .npz), estimated with standard deviations into another
file, and removed. A batch is one call of the solver of the forward dynamics on arrays of all states. Each runs in a
process of its own, whose largest resident memory is taken. Writes experiments/results/streaming.csv.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import sysdyn as sd
from sysdyn.data.columns import LogColumns
from sysdyn.data.estimates import estimate_log
from sysdyn.data.sensor_log import Log
from sysdyn.files.table_writers import write_table
from sysdyn.files.tables import ROWS

# Logs are written in these formats.
FORMATS = (".csv", ".npz")
# A log of this many states has as much in memory at a time as one of any length.
SMALL = 4 * ROWS
# Bytes of a mebibyte.
MEBI = 2**20


def problem() -> sd.Problem:
    model = sd.chain(3)
    return sd.Problem(model, [
        sd.Prior(sd.JointTorque(noise=50.0, name="torque")), sd.JointAcceleration(noise=0.3, name="encoders"),
        sd.Accelerometer("body2", noise=0.1, name="imu"), sd.ExternalWrench(name="no contact"),
        sd.ForceTorqueSensor("joint0", components=["nz"], noise=0.05, name="base"),
    ])  # fmt: skip


def write_log(path: Path, states: int) -> None:
    """A log of random states, the same in every chunk but for the time."""
    p = problem()
    q, qd, qdd = p.model.random_state(seed=0, batch=ROWS)
    y = sd.predict(p, q, qd, qdd, seed=1)
    arrays = {"q": q, "qd": qd, **{name: y[name] for name in ("encoders", "imu", "base")}}
    columns = LogColumns(p, ("no contact",))
    writer = write_table(path, {name: columns.of_array(name)[0] for name in ("t", *arrays)})
    for at in range(0, states, ROWS):
        n = min(ROWS, states - at)
        writer.write({"t": 1e-3 * np.arange(at, at + n)[:, None], **{name: x[:n] for name, x in arrays.items()}})
    writer.close()


def stream(path: Path) -> tuple[int, float]:
    """(states, seconds) of estimating a log into a file beside it."""
    solver = sd.compile(problem(), outputs=["tau", "qdd"])
    began = time.perf_counter()
    log = Log(path, solver, {"no contact": np.zeros(6 * solver.model.nb)})
    states = estimate_log(log, solver, path.with_name(f"estimates{path.suffix}")).states
    return states, time.perf_counter() - began


def batch(states: int) -> tuple[int, float, int]:
    """(states, seconds, bytes of inputs and outputs) of one call on arrays."""
    model = sd.load_urdf(str(Path(__file__).parents[2] / "problems" / "biped.urdf"), base="floating")
    solver = sd.compile(sd.forward_dynamics(model), outputs=["qdd", "a", "f"])
    rng = np.random.default_rng(0)
    q = np.tile(model.random_state(seed=0, batch=1000)[0], (states // 1000, 1))
    qd, tau = rng.standard_normal((2, len(q), model.nv))
    began = time.perf_counter()
    found = solver(q, qd, tau)
    seconds = time.perf_counter() - began
    arrays = [q, qd, tau, *(found[x] for x in solver.outputs)]
    return len(q), seconds, sum(x.nbytes for x in arrays)


def one(kind: str, argument: str) -> None:
    """Run in a process of its own; prints what it needed."""
    states, seconds, *size = batch(int(argument)) if kind == "batch" else stream(Path(argument))
    print(json.dumps({"states": states, "seconds": seconds, "peak": peak_memory(), "arrays": size[0] if size else 0}))


def peak_memory() -> int:
    """Largest resident memory of this process [bytes]. Linux; ru_maxrss would count what the parent process had."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def measured(kind: str, argument: object) -> dict:
    command = [sys.executable, __file__, "--one", kind, str(argument)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--folder", help="where the logs are written; default: a temporary one")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(*options.one)
        return
    from common import write_csv

    rows = []

    def add(kind: str, found: dict, size: int) -> None:
        row = {
            "kind": kind, "states": found["states"], "file_or_arrays_MiB": f"{size / MEBI:.1f}",
            "peak_memory_MiB": f"{found['peak'] / MEBI:.1f}",
            "us_a_state": f"{1e6 * found['seconds'] / found['states']:.3f}",
        }  # fmt: skip
        rows.append(row)
        print("  ".join(f"{key} {x}" for key, x in row.items()))

    for suffix in FORMATS:
        for states in (SMALL, *options.states):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                path = Path(folder) / f"log{suffix}"
                write_log(path, states)
                if states == SMALL:
                    measured("log", path)  # compiles
                add(f"log {suffix}", measured("log", path), path.stat().st_size)
    measured("batch", 1000)
    for states in (1000, *options.states):
        found = measured("batch", states)
        add("batch in NumPy", found, found["arrays"])
    write_csv("streaming", rows)


if __name__ == "__main__":
    main()
