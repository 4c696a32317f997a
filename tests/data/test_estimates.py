"""Logs estimated by a cluster: the same bits as alone, whatever happens to a worker."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.data.estimates import estimate_log
from sysdyn.data.sensor_log import Log
from sysdyn.errors import BackendUnavailable, FileError, LogWarning, SysdynError

MODEL = sd.chain(2)
PROBLEM = sd.Problem(
    MODEL, [sd.JointTorque(noise=1.0, name="motors"), sd.JointAcceleration(noise=[0.1, 0.2], name="encoders"),
            sd.ExternalWrench(name="fx")],
)  # fmt: skip
PARTS, ROWS = 12, 500


def write_parts(folder: Path) -> None:
    """Partitions of a log without velocities, with a column that nobody knows, and gaps."""
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    names = ["q.joint0", "q.joint1", "motors: tau(joint0)", "motors: tau(joint1)"]
    names += ["encoders: qdd(joint0)", "encoders: qdd(joint1)", "comment"]
    for part in range(PARTS):
        x = rng.uniform(-1.0, 1.0, (ROWS, len(names)))
        x[::100, 2] = np.nan
        table = {"t": 0.01 * (part * ROWS + np.arange(ROWS)), **dict(zip(names, x.T, strict=True))}
        parquet.write_table(arrow.table(table), folder / f"part.{part}.parquet")


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as found:
            yield found


def log(folder: Path, **options) -> Log:
    return Log(folder / "part.*.parquet", PROBLEM, missing="skip", velocities="difference", rows=200, **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sending large graph")
def test_a_cluster_gives_the_same_bits_and_survives_a_killed_worker(tmp_path, cluster):
    write_parts(tmp_path)
    solver = sd.compile(PROBLEM, outputs=["tau", "qdd"], level="fast")
    with pytest.warns(LogWarning) as told:
        alone = estimate_log(log(tmp_path), solver, tmp_path / "alone.csv")
    assert (alone.states, alone.skipped) == (PARTS * ROWS - PARTS * 5, PARTS * 5) and len(told) == 2
    with pytest.warns(LogWarning) as retold:
        found = estimate_log(log(tmp_path), solver, tmp_path / "cluster.csv", scheduler=cluster.scheduler_address)
    assert found == alone and len(retold) == 2
    killed = []

    def seen(x):
        if x.where.endswith("part.1.parquet") and not killed:
            killed.append(next(iter(cluster.workers.values())).pid)
            os.kill(killed[0], signal.SIGKILL)

    with pytest.warns(LogWarning):
        again = estimate_log(log(tmp_path), solver, tmp_path / "again.csv", seen, cluster.scheduler_address)
    assert killed and again == alone
    expected = (tmp_path / "alone.csv").read_bytes()
    assert (tmp_path / "cluster.csv").read_bytes() == expected == (tmp_path / "again.csv").read_bytes()
    (tmp_path / "part.3.parquet").write_bytes(b"PAR1")
    with pytest.warns(LogWarning), pytest.raises(FileError, match=r"part.3.parquet"):
        estimate_log(log(tmp_path), solver, tmp_path / "no.csv", scheduler=cluster.scheduler_address)
    assert not (tmp_path / "no.csv").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sending large graph")
def test_a_cluster_estimates_delayed_parts(tmp_path, cluster):
    read, delayed = pytest.importorskip("pandas").read_parquet, pytest.importorskip("dask").delayed
    write_parts(tmp_path)
    solver = sd.compile(PROBLEM, outputs=["tau", "qdd"], level="fast")
    delays = [delayed(read)(str(tmp_path / f"part.{k}.parquet")) for k in range(PARTS)]
    with pytest.warns(LogWarning):
        files = estimate_log(log(tmp_path), solver, tmp_path / "files.csv")
        for name, scheduler in (("here", None), ("there", cluster.scheduler_address)):
            parts = Log(delays, PROBLEM, missing="skip", velocities="difference", rows=200)
            assert estimate_log(parts, solver, tmp_path / f"{name}.csv", scheduler=scheduler) == files
    expected = (tmp_path / "files.csv").read_bytes()
    assert (tmp_path / "here.csv").read_bytes() == expected == (tmp_path / "there.csv").read_bytes()


def test_a_cluster_that_is_not_there(tmp_path, monkeypatch):
    np.savez(tmp_path / "log.npz", t=np.zeros(1), q=np.zeros((1, 2)), qd=np.zeros((1, 2)), tau=np.zeros((1, 2)))
    problem = sd.forward_dynamics(MODEL)
    solver = sd.compile(problem, level="fast")
    pytest.importorskip("distributed")
    with pytest.raises(SysdynError, match="the cluster at nowhere failed"):
        estimate_log(Log(tmp_path / "log.npz", problem), solver, scheduler="nowhere")
    monkeypatch.setitem(__import__("sys").modules, "dask.distributed", None)
    with pytest.raises(BackendUnavailable, match="pip install dask distributed"):
        estimate_log(Log(tmp_path / "log.npz", problem), solver, scheduler="nowhere")
