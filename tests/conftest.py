"""One cache folder a test session, shared by its workers; long checks; skips; CPU times; the profile of Hypothesis."""

from __future__ import annotations

import collections
import functools
import gc
import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import is_hypothesis_test, settings

# One thread of linear algebra per worker, told before NumPy is loaded: idle threads wait in loops, which costs as much
# as work (measured: a test of small dense matrices takes 22 s of CPU time with two threads, 2 s with one).
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# Fixed seeds: a run that passes passes again. Two shared cores are no ground for deadlines.
settings.register_profile("sysdyn", deadline=None, derandomize=True)
settings.load_profile("sysdyn")

# Expressions are many small objects that live long: at Python's own thresholds the collector walks them again.
gc.set_threshold(50_000, 20, 50)

# ---- the session's cache ---------------------------------------------------------------------------------------------

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
    config.stash[_EVERY] = worker["sysdyn_every"] if worker is not None else every_test(config)
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
    """pytest-xdist: tell a worker where the session's cache is, and whether long checks run."""
    node.workerinput["sysdyn_cache"] = _folder
    node.workerinput["sysdyn_every"] = node.config.stash[_EVERY]


def pytest_unconfigure() -> None:
    for folder in _made:
        shutil.rmtree(folder, ignore_errors=True)


# ---- long checks -----------------------------------------------------------------------------------------------------

# Share of the examples of Hypothesis that is drawn without the long checks, but not less than the latter (chosen).
EXAMPLES, FEW_EXAMPLES = 4, 5

_EVERY = pytest.StashKey[bool]()
_left_out: set[str] = set()
_collected: collections.Counter[str] = collections.Counter()  # items of each test so far


def every_test(config: pytest.Config) -> bool:
    """Whether tests marked `slow` run: with --slow, --lf or a choice of marks, and in files that are named."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS and not all(map(os.path.isdir, config.args))
    return named or any(config.getoption(name, None) for name in ("slow", "lf", "markexpr"))


def pytest_itemcollected(item: pytest.Item) -> None:
    """`slow(after=n)`: of the parameter sets of a test the first n are run always."""
    for mark in [mark for mark in item.own_markers if mark.name == "slow" and "after" in mark.kwargs]:
        test = item.nodeid.partition("[")[0]
        _collected[test] += 1
        if _collected[test] <= mark.kwargs["after"]:
            item.own_markers.remove(mark)


def pytest_collection_finish() -> None:
    """What is collected lives to the end: the collector need not walk it again."""
    gc.freeze()


@pytest.hookimpl(trylast=True)  # after what -k and --lf choose
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.stash[_EVERY]:
        return
    for test in {item.obj for item in items if is_hypothesis_test(getattr(item, "obj", None))}:
        asked = test._hypothesis_internal_use_settings  # what the decorator sets; there is no public way to change it
        few = max(FEW_EXAMPLES, asked.max_examples // EXAMPLES)
        test._hypothesis_internal_use_settings = settings(asked, max_examples=min(asked.max_examples, few))
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        _left_out.update(item.nodeid for item in slow)


# ---- commands --------------------------------------------------------------------------------------------------------


@pytest.fixture
def fast_commands(monkeypatch) -> None:
    """Commands compile at the level "fast": the tests look at what is written and printed."""
    from sysdyn.online.compile import compile

    monkeypatch.setattr("sysdyn.app.jobs.compile", functools.partial(compile, level="fast"))


# ---- CPU times -------------------------------------------------------------------------------------------------------

_seconds: dict[str, float] = {}  # of each test
_whole = [0.0]  # of all processes, start and collection included


def cpu_seconds() -> float:
    """User and system time of this process and of its finished children. Wall times tell of the machine's load, too."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--dearest", type=int, default=0, metavar="N", help="show the N tests that take most CPU time")
    parser.addoption("--slow", action="store_true", help="run long checks, too")
    parser.addoption("--write-pages", action="store_true", help="write into the documents what their code prints")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    before = cpu_seconds()
    result = yield
    _seconds[item.nodeid] = cpu_seconds() - before
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands in its times and omitted tests; in CI an unexpected skip fails the session."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cpu_seconds"] = (_seconds, cpu_seconds())
        session.config.workeroutput["left_out"] = sorted(_left_out)
    elif os.environ.get("CI") and (reporter := session.config.pluginmanager.get_plugin("terminalreporter")):
        if unexpected_skips(reporter) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    output = getattr(node, "workeroutput", {})
    seconds, whole = output.get("cpu_seconds", ({}, 0.0))
    _seconds.update(seconds)
    _left_out.update(output.get("left_out", ()))
    _whole[0] += whole


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if os.environ.get("CI") and (skips := unexpected_skips(terminalreporter)):
        terminalreporter.section("unexpected skips: install what is missing, or state the reason in EXPECTED_SKIPS")
        terminalreporter.write("".join(f"{line}\n" for line in skips))
    if _left_out:
        terminalreporter.write_line(
            f"{len(_left_out)} long checks were left out: ./run test --slow runs all, as CI does"
        )
    shown = config.getoption("dearest")
    if not shown:
        return
    own = os.times()
    whole = max(_whole[0] + own.user + own.system, cpu_seconds())  # finished workers are children of this process, too
    inside = sum(_seconds.values())
    terminalreporter.section(f"dearest tests: {inside:.0f} s of CPU time in tests, {whole:.0f} s in all")
    for name in sorted(_seconds, key=lambda name: -_seconds[name])[:shown]:
        terminalreporter.write_line(f"{_seconds[name]:8.1f} s  {name}")


# ---- skips -----------------------------------------------------------------------------------------------------------

# Reasons, as regular expressions, for which CI may skip a test: what it does not install, and other processors.
EXPECTED_SKIPS = (
    "acados is not installed",  # no package; built from its source
    "recorded logs are not part of the project",
    "SYSDYN_TEST_AARCH64 names no folder",  # packages of Debian for another processor
    "the processor has no ", "needs a processor with two kinds", "this machine cannot run code for that processor",
    "these kernels are of x86-64", "looks for an instruction",
    "root writes everywhere", "no git checkout", "this is no clone",
    r"\.csv is of \d",  # results of an earlier version
)  # fmt: skip


def unexpected_skips(reporter: pytest.TerminalReporter) -> list[str]:
    """Tests that are skipped, with the reason, for which CI has no excuse."""
    skips = {
        f"{x.nodeid}: {x.longrepr[2].removeprefix('Skipped: ')}": x.longrepr[2] for x in reporter.getreports("skipped")
    }
    return sorted(x for x, reason in skips.items() if not any(re.search(y, reason) for y in EXPECTED_SKIPS))


# ---- packages --------------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path_factory, monkeypatch) -> Callable[[str, str, str], None]:
    """Puts files into packages with robots, which hide those that are installed: installed(package, name, text)."""
    from sysdyn.model.readers.robots import PACKAGES

    folder = tmp_path_factory.mktemp("packages")
    facts = {package: folder / f"{package.replace('-', '_')}-1.dist-info" for package in PACKAGES}
    for package, own in facts.items():
        own.mkdir()
        (own / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")

    def put(package: str, name: str, text: str) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        with open(facts[package] / "RECORD", "a") as record:
            record.write(f"{name},,\n")

    monkeypatch.syspath_prepend(folder)
    return put


@pytest.fixture
def dask_frames(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`dask.dataframe`, which would take the tests of `sysdyn.sparse` for the package of this name."""
    monkeypatch.setitem(sys.modules, "sparse", None)
    return pytest.importorskip("dask.dataframe")
