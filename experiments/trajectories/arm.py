"""A log of the seven-joint arm of problems/arm_from_encoders.toml: python experiments/trajectories/arm.py --log arm.npz

Encoders and motor currents as the problem declares them, with an offset of each current, at 500 Hz.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import sysdyn as sd
from sysdyn.app.problem_files import load_job
from sysdyn.data.columns import LogColumns
from sysdyn.files.table_writers import write_table

FILE = Path(__file__).parents[2] / "problems" / "arm_from_encoders.toml"
# Rate [Hz] of the rows, and offsets of currents [N m].
RATE, OFFSETS = 500.0, np.array([4.0, -3.0, 2.0, 1.0, -2.0, 1.0, 0.5])


def motion(t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, q̇, q̈ (N, 7) at times t (N,)."""
    w = 2.0 * np.pi * np.linspace(0.2, 0.8, 7)
    phase = t[:, None] * w
    return 0.4 * np.sin(phase), 0.4 * w * np.cos(phase), -0.4 * w * w * np.sin(phase)


def log(n: int, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(the log {t, encoders, currents} of n rows, true torques (n, 7))."""
    problem = load_job(FILE).problem
    t = np.arange(n) / RATE
    q, qd, qdd = motion(t)
    noise = np.random.default_rng(seed)
    found = {"t": t, "encoders": q + 1e-4 * noise.standard_normal(q.shape)}
    found["currents"] = sd.predict(problem, q, qd, qdd, seed=seed)["currents"] + OFFSETS
    return found, sd.rnea(problem.model, q, qd, qdd)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--log", type=Path, required=True, help="the .npz or .csv file to write")
    arguments.add_argument("--rows", type=int, default=1000)
    given = arguments.parse_args()
    arrays = log(given.rows)[0]
    names = LogColumns(load_job(FILE).problem)
    table = write_table(given.log, {name: (names.of_array(name) or [[name]])[0] for name in arrays})
    table.write({name: x.reshape(len(x), -1) for name, x in arrays.items()})
    table.close()


if __name__ == "__main__":
    main()
