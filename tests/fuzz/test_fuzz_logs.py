"""Mutants of logs, states and problem files: each is read or refused with a SysdynError, in seconds."""

from __future__ import annotations

import functools
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from fuzz.mutants import COUNT, bytes_changed, refused

import sysdyn as sd
from sysdyn.app.problem_files import load_job
from sysdyn.data.sensor_log import Log
from sysdyn.data.states import read_states
from sysdyn.files.table_writers import write_table

NEEDS = {".parquet": "pyarrow", ".h5": "h5py"}
PROBLEM = sd.forward_dynamics(sd.chain(2)) + sd.Switchable(sd.Accelerometer("body1", ["a_x"], name="imu", noise=0.1))
TASK = """title = "a task" # of two bodies
robot = "chain:2"
outputs = ["tau", {type = "Accelerometer", frame = "body1", name = "out"}]
[[measurement]]
type = "JointTorque"
noise = [
  1.0, 2.0,
]
name = '''motors'''
[[measurement]]
type = "ExternalWrench"
value = 0
[[measurement]]
type = "Accelerometer"
frame = {body = "body1", xyz = [0, 0, 0.1], rpy = [0, 0, 1.5]}
switchable = true
noise = 1e-2
name = "imu"
[units]
motors = "N m"
[columns]
"/joint_states/position[0]" = "q.joint0"
"""


@functools.cache
def original(suffix: str) -> bytes:
    """A whole file of a kind."""
    if suffix == ".toml":
        return TASK.encode()
    rng = np.random.default_rng(0)
    arrays = {"t": 0.01 * np.arange(20.0), "q": rng.standard_normal((20, 2)), "qd": rng.standard_normal((20, 2))}
    arrays |= {"tau": rng.standard_normal((20, 2)), "imu": rng.standard_normal(20), "other": rng.standard_normal(20)}
    columns = {x: [x] if np.ndim(y) == 1 else [f"{x}:joint{k}" for k in range(2)] for x, y in arrays.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"log{suffix}"
        if suffix == ".npz":
            np.savez_compressed(path, **arrays)
        else:
            writer = write_table(path, columns)
            writer.write(arrays)
            writer.close()
        return path.read_bytes()


def read(path: Path) -> None:
    """As everything that the file can be."""
    if path.suffix == ".toml":
        load_job(path)
        return
    for chunk in Log(path, PROBLEM, missing="sensor", rows=8, velocities="difference"):
        assert np.isfinite(chunk.q).all() and np.isfinite(chunk.qd).all() and np.isfinite(chunk.t).all()
    read_states(path, PROBLEM, missing="skip")


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("suffix", [".toml", ".csv", ".npz", ".parquet", ".h5"])
def test_mutants_are_read_or_refused(tmp_path, suffix):
    if suffix in NEEDS:
        pytest.importorskip(NEEDS[suffix])
    whole, path, messages = original(suffix), tmp_path / f"mutant{suffix}", []
    for seed in range(COUNT):
        path.write_bytes(bytes_changed(whole, np.random.default_rng(seed)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            messages.append(refused(lambda: read(path), seed))
    messages = [x for x in messages if x]
    assert len(messages) > COUNT // 20 and all(str(path) in x for x in messages)
