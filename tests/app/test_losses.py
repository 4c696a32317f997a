"""Nothing is lost: signals, full disks and closed outputs leave inputs and old outputs whole, and no other files.

The commands run as forks of one process that has imported everything, since starting Python takes longer than they do.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import sysdyn as sd
from sysdyn.app import cli, jobs

OUTPUTS = ["out.csv", "out.npz", "out.parquet", "out.h5"]
TASK = """robot = "chain:2"
outputs = ["qdd"]
[[measurement]]
type = "ExternalWrench"
value = 0
[[measurement]]
type = "JointTorque"
name = "tau"
[[measurement]]
type = "JointAcceleration"
noise = 100
prior = true
mean = 0
name = "expected"
"""
OLD = b"the old results"
SIGNALS = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -9}  # and the exit codes
KILLS = 2  # of each kind of file, at later and later times
STATES = 9_000  # of the log, three chunks


def write_inputs(folder: Path) -> None:
    rng = np.random.default_rng(0)
    (folder / "task.toml").write_text(TASK)
    x = {name: rng.standard_normal((STATES, 2)) for name in ("q", "qd", "tau")}
    np.savez(folder / "log.npz", t=np.arange(STATES) * 1e-3, **x)


# ---- in the process that forks


def interrupted(sent: int, chunks: int):
    """`estimate_log` that gets a signal after so many chunks."""
    original, seen = jobs.estimate_log, []

    def told(chunk):
        seen.append(chunk)
        if len(seen) == chunks:
            os.kill(os.getpid(), sent)

    return lambda log, solver, out, seen, scheduler: original(log, solver, out, told, scheduler)


def forked(arguments: list[str], prepare=lambda: None, kill_after: float | None = None) -> int:
    """Exit code of a command, negative where a signal ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1)
            os.dup2(null, 2)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # which jobs in the background ignore
            prepare()
            sys.argv = ["sysdyn", *arguments]
            cli.main()
            os._exit(0)
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(int(end.code or 0))
        except BaseException:
            os._exit(99)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(folder: Path, *outputs: str) -> None:
    """Print {case: (exit code, what is in the folder that was not)} as JSON, with signals for each of these outputs."""
    write_inputs(folder)
    inputs = {p.name: p.read_bytes() for p in folder.iterdir()}
    os.chdir(folder)
    found: dict[str, list] = {}

    def case(name: str, arguments: list[str], *options, old: str = "", **more) -> None:
        if old:
            (folder / old).write_bytes(OLD)
        code = forked(arguments, *options, **more)
        left = {p.name: p.read_bytes() for p in folder.iterdir()}
        for new in left.keys() - inputs.keys():
            (folder / new).unlink()
        if code == -signal.SIGKILL:  # may leave the hidden file that it was writing
            left = {n: content for n, content in left.items() if not n.startswith(".out")}
        changed = sorted(n for n in {*inputs, *left} if left.get(n) != inputs.get(n) and (n, left.get(n)) != (old, OLD))
        found[name] = [code, changed]

    solve = ["solve", "task.toml", "--log", "log.npz"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        cli.app(solve)  # compiles, and imports what forks need

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    for out in outputs:
        command = [*solve, "--out", out, "--force"]
        for sent in SIGNALS:

            def prepare(sent=sent):
                jobs.estimate_log = interrupted(sent, 2)

            case(f"{out}: {sent.name}", command, prepare, old=out)
        case(f"{out}: full disk", command, full, old=out)
        case(f"{out}: new", command, prepare)
        for k in range(KILLS):
            case(f"{out} {k}: killed", command, kill_after=0.03 * (k + 1), old=out)
    case("exists", [*solve, "--out", "out.csv"], old="out.csv")
    case("forced", [*solve, "--out", "out.csv", "--force"], old="out.csv")
    case("input", ["solve", "task.toml", "--states", "log.npz", "--out", "log.npz", "--force"])

    def stdout_full():
        os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

    def stdout_unread():
        end, begin = os.pipe()
        os.dup2(begin, 1)
        os.close(end)

    case("stdout full", ["info", "chain:2"], stdout_full)
    case("stdout unread", ["info", "chain:2"], stdout_unread)
    case("stdout closed", ["info", "chain:2"], lambda: os.close(1))
    case("help, stdout full", ["--help"], stdout_full)
    case("no memory", ["solve", "chain:2", "--random", "1000000000"],
         lambda: resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32)))  # fmt: skip
    print(json.dumps(found))


# ---- in the process of the tests


@pytest.fixture(scope="module")
def found(request, tmp_path_factory) -> dict[str, list]:
    folder, items = tmp_path_factory.mktemp("losses"), (x for x in request.session.items if x.path == request.path)
    outputs = {item.callspec.params["out"] for item in items if "[out." in item.nodeid}
    done = subprocess.run([sys.executable, __file__, folder, *outputs], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def needs(out: str) -> None:
    pytest.importorskip({".parquet": "pyarrow", ".h5": "h5py"}.get(Path(out).suffix, "numpy"))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("out", OUTPUTS)
def test_signals_and_full_disks_leave_everything_as_it_was(found, out):
    needs(out)
    codes = {**{sent.name: code for sent, code in SIGNALS.items()}, "full disk": 2, "new": -9}
    assert {name: found[f"{out}: {name}"] for name in codes} == {name: [code, []] for name, code in codes.items()}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("out", OUTPUTS)
def test_kills_at_any_moment_leave_the_old_or_the_new(found, out):
    needs(out)
    for k in range(KILLS):
        code, changed = found[f"{out} {k}: killed"]
        assert (code, changed) in [(-9, []), (-9, [out]), (0, [out])]


def test_what_exists_is_replaced_by_force_only(found):
    assert found["exists"] == [2, []] and found["forced"] == [0, ["out.csv"]]


def test_inputs_are_no_outputs(found):
    assert found["input"] == [2, []]


@pytest.mark.parametrize("case", ["stdout full", "help, stdout full", "no memory"])
def test_what_cannot_be_had_is_an_error(found, case):
    assert found[case] == [2, []]


def test_output_that_nobody_reads(found):
    assert found["stdout unread"] == [141, []] and found["stdout closed"] == [2, []]


@pytest.mark.slow
def test_output_in_ascii(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "sysdyn", "solve", "chain:2", "--random", "2"], env=environment, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "rad/s?" in done.stdout and done.stderr == ""


if __name__ == "__main__":
    assert sd.__version__
    main(Path(sys.argv[1]), *sys.argv[2:])
