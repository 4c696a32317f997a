"""Arguments that are to be paths of files: other types, and folders, are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.app.problem_files import load_job, load_renames
from sysdyn.data.sensor_log import Log
from sysdyn.data.states import read_states
from sysdyn.errors import InvalidInput, SysdynError
from sysdyn.files.tables import READERS
from sysdyn.model.readers.urdf import read_urdf

ARM = sd.forward_dynamics(sd.chain(2))
TABLES = sorted(READERS)
READ: dict[str, Callable[[Path], object]] = {
    **{f"robot{suffix}": sd.load for suffix in (".urdf", ".xml", ".xacro")},
    "urdf": sd.load_urdf, "mjcf": sd.load_mjcf, "parsed": read_urdf,
    "task.toml": load_job, "names.toml": lambda path: load_renames(path, ARM), "solver": sd.load_solver,
    **{f"log{suffix}": lambda path: Log(path, ARM) for suffix in TABLES},
    **{f"states{suffix}": lambda path: read_states(path, ARM) for suffix in TABLES},
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
def test_readers_refuse_folders(name, tmp_path):
    (tmp_path / name).mkdir()
    with pytest.raises(SysdynError, match=name):
        READ[name](tmp_path / name)


@pytest.mark.parametrize("wrong", (3, None, b"log.csv", {}, [1, 2], np.zeros((3, 3))), ids=lambda x: type(x).__name__)
def test_what_is_no_path_is_refused(wrong):
    """Of logs, too, which may be lists; 3 would be an open file."""
    arm, columns = sd.chain(1), {"t": [0.0, 0.1], "q": [0.0, 0.1]}
    problem = sd.Problem(arm, [sd.JointPosition("all", noise=1e-3, name="q"), sd.JointTorque("all", noise=1.0)])
    solver = sd.compile(sd.inverse_dynamics(arm), outputs=["tau"], backend="python")
    calls = [partial(f, problem, wrong) for f in (sd.smooth, sd.learn_noise, sd.observability)]
    calls += [partial(f, wrong) for f in (sd.load, sd.load_solver, solver.save, solver.export_c)]
    if wrong is not None:
        calls.append(lambda: sd.smooth(problem, columns, out=wrong))
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
