"""Pipes, devices, sockets and folders in place of files: every reader refuses them at once."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.app.problem_files import load_renames, load_task
from sysdyn.data.sensor_log import Log
from sysdyn.data.states import read_states
from sysdyn.errors import InvalidInput, SysdynError
from sysdyn.files import cache
from sysdyn.files.regular import open_regular, read_regular
from sysdyn.files.tables import READERS
from sysdyn.model.urdf import read_urdf

ARM = sd.forward_dynamics(sd.chain(2))
TABLES = sorted(READERS)
READ: dict[str, Callable[[Path], object]] = {
    **{f"robot{suffix}": sd.load for suffix in (".urdf", ".xml", ".xacro")},
    "urdf": sd.load_urdf, "mjcf": sd.load_mjcf, "parsed": read_urdf,
    "task.toml": load_task, "names.toml": lambda path: load_renames(path, ARM), "solver": sd.load_solver,
    **{f"log{suffix}": lambda path: Log(path, ARM) for suffix in TABLES},
    **{f"states{suffix}": lambda path: read_states(path, ARM) for suffix in TABLES},
}  # fmt: skip
IRREGULAR = ("pipe", "device", "socket", "folder", "link to a pipe")


def make(path: Path, kind: str) -> Path:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as s, tempfile.TemporaryDirectory() as folder:  # short names alone
            s.bind(f"{folder}/s")
            os.rename(f"{folder}/s", path)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path.with_name("pipe"))
        path.symlink_to(path.with_name("pipe"))
    return path


@contextmanager
def without_waiting() -> Iterator[None]:
    """An alarm ends what waits, with an error that is none of sysdyn's."""

    def late(*_: object) -> None:
        raise TimeoutError("it waits for a file that is none")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", IRREGULAR)
@pytest.mark.parametrize("name", READ)
def test_readers_refuse_what_is_no_regular_file(name, kind, tmp_path):
    path = make(tmp_path / name, kind)
    with without_waiting(), pytest.raises(SysdynError) as caught:
        READ[name](path)
    assert kind == "folder" or "not a regular file" in str(caught.value), caught.value
    assert name in str(caught.value)


@pytest.mark.parametrize("element", [
    '<include file="pipe"/>', '<asset><mesh name="m" file="pipe"/></asset>',
    '<asset><hfield name="h" file="pipe"/></asset>',
    '<compiler meshdir="in"/><asset><mesh name="m" file="pipe"/></asset>',
    '<compiler texturedir="in"/><asset><texture name="t" type="2d" file="pipe"/></asset>',
    '<asset><texture name="t" type="cube" fileright="pipe"/></asset>', '<asset><model name="m" file="pipe"/></asset>',
])  # fmt: skip
def test_files_that_a_robot_names_are_regular(element, tmp_path):
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / ("in/pipe" if '"in"' in element else "pipe"))
    (tmp_path / "robot.xml").write_text(f"<mujoco>{element}</mujoco>", encoding="utf-8")
    with without_waiting(), pytest.raises(sd.ModelError, match="pipe, not a regular file"):
        sd.load(tmp_path / "robot.xml")


def test_bags_are_folders_of_regular_files(tmp_path):
    (tmp_path / "bag.db3").mkdir()
    os.mkfifo(tmp_path / "bag.db3/metadata.yaml")
    with without_waiting(), pytest.raises(sd.FileError, match="not a regular file"):
        Log(tmp_path / "bag.db3", ARM)


def test_entries_of_the_cache_are_regular(tmp_path, monkeypatch):
    monkeypatch.setenv("SYSDYN_CACHE", str(tmp_path / "cache"))
    cache.store("key", b"kept")
    assert cache.load("key") == b"kept"
    (tmp_path / "cache/key").unlink()
    os.mkfifo(tmp_path / "cache/key", 0o600)
    with without_waiting():
        assert cache.load("key") is None


def test_regular_files_are_read_as_they_are(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"\0content\r\n")
    (tmp_path / "link").symlink_to(path)
    assert read_regular(path) == read_regular(tmp_path / "link") == b"\0content\r\n"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


NO_PATHS = (3, None, b"log.csv", object(), [1, 2], np.zeros((3, 3)))


@pytest.mark.parametrize("wrong", NO_PATHS, ids=repr)
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
