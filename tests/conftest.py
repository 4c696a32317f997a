"""One cache folder a test session, shared by its workers; CPU times of tests; the Hypothesis profile of the project."""

from __future__ import annotations

import functools
import gc
import hashlib
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import settings

# Fixed seeds: a run that passes passes again. Two shared cores are no ground for deadlines.
settings.register_profile("sysdyn", deadline=None, derandomize=True)
settings.load_profile("sysdyn")

# Expressions are many small objects that live long: at Python's own thresholds the collector walks them again.
gc.set_threshold(50_000, 20, 50)

# ---- the session's cache -------------------------------------------------------------------------------------------

# Seconds without a session after which the kept cache of other sources is deleted.
FORGOTTEN = 24 * 3600.0

_made: list[str] = []
_folder = ""


def kept_cache(top: Path, package: Path) -> Path:
    """The folder in `top` of the package's present sources; that of other sources goes a day after its last session."""
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(file.relative_to(package).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    folder = top / f"sysdyn-{digest.hexdigest()[:16]}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.utime(folder)
    for other in top.glob("sysdyn-*"):
        if other != folder and other.stat().st_mtime < time.time() - FORGOTTEN:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def pytest_configure(config: pytest.Config) -> None:
    """The user's cache is never touched; compiled kernels are shared by all tests of the session.

    SYSDYN_TEST_CACHE=FOLDER keeps them there for the next session with the same sources; without it, or in CI, every
    session starts from an empty folder.
    """
    global _folder
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        _folder = worker["sysdyn_cache"]
    elif (top := os.environ.get("SYSDYN_TEST_CACHE")) and not os.environ.get("CI"):
        _folder = str(kept_cache(Path(top).resolve(), Path(__file__).parents[1] / "sysdyn"))
    else:
        _folder = tempfile.mkdtemp(prefix="sysdyn-tests-")
        _made.append(_folder)
    os.environ["SYSDYN_CACHE"] = _folder


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """pytest-xdist: tell a worker where the session's cache is."""
    node.workerinput["sysdyn_cache"] = _folder


def pytest_unconfigure() -> None:
    for folder in _made:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def fast_commands(monkeypatch) -> None:
    """Commands compile at the level "fast": the tests look at what is written and printed."""
    from sysdyn.online.compile import compile

    for module in ("tasks", "demo"):
        monkeypatch.setattr(f"sysdyn.app.{module}.compile", functools.partial(compile, level="fast"))


# ---- CPU times -----------------------------------------------------------------------------------------------------

_seconds: dict[str, float] = {}  # of each test
_whole = [0.0]  # of all processes, start and collection included


def cpu_seconds() -> float:
    """User and system time of this process and of its finished children. Wall times tell of the machine's load, too."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--dearest", type=int, default=0, metavar="N", help="show the N tests that take most CPU time")
    parser.addoption("--write-pages", action="store_true", help="write into the documents what their code prints")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    before = cpu_seconds()
    result = yield
    _seconds[item.nodeid] = cpu_seconds() - before
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands its times in; the others keep them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cpu_seconds"] = (_seconds, cpu_seconds())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    seconds, whole = getattr(node, "workeroutput", {}).get("cpu_seconds", ({}, 0.0))
    _seconds.update(seconds)
    _whole[0] += whole


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    shown = config.getoption("dearest")
    if not shown:
        return
    own = os.times()
    whole = max(_whole[0] + own.user + own.system, cpu_seconds())  # finished workers are children of this process, too
    inside = sum(_seconds.values())
    terminalreporter.section(f"dearest tests: {inside:.0f} s of CPU time in tests, {whole:.0f} s in all")
    for name in sorted(_seconds, key=lambda name: -_seconds[name])[:shown]:
        terminalreporter.write_line(f"{_seconds[name]:8.1f} s  {name}")
