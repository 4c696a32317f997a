"""What the tests' own machinery does: the kept cache, and CPU times from this process, its children and workers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import FORGOTTEN, every_test, kept_cache


def test_the_kept_cache_is_that_of_the_present_sources(tmp_path):
    package, top = tmp_path / "package", tmp_path / "caches"
    package.mkdir()
    (package / "a.py").write_text("x = 1\n")
    first = kept_cache(top, package)
    (first / "entry").touch()
    assert kept_cache(top, package) == first and (first / "entry").exists()
    (package / "a.py").write_text("x = 2\n")
    second = kept_cache(top, package)
    assert second != first and first.exists()  # another session may be using it
    (package / "a.py").rename(package / "b.py")
    third = kept_cache(top, package)
    assert third not in (first, second)
    (top / "somebody's").mkdir()
    for old in (second, third, top / "somebody's"):
        os.utime(old, (0.0, os.stat(old).st_mtime - 2 * FORGOTTEN))
    assert kept_cache(top, package) == third  # used again: not forgotten
    assert sorted(x.name for x in top.iterdir()) == sorted([first.name, third.name, "somebody's"])


def test_linear_algebra_has_one_thread():
    code = "import conftest, numpy, threadpoolctl; print([x['num_threads'] for x in threadpoolctl.threadpool_info()])"
    free = {name: x for name, x in os.environ.items() if not name.endswith("_NUM_THREADS")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=Path(__file__).parent, env=free, capture_output=True, text=True, check=True)
    assert set(done.stdout.strip(" []\n").split(", ")) <= {"1", ""}


TESTS = """
import subprocess, sys, time

def test_in_a_child():
    code = "import time\\nwhile time.process_time() < 0.4: pass"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_here():
    start = time.process_time()
    while time.process_time() < start + 0.2:
        pass

def test_asleep():
    time.sleep(0.3)
"""


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("arguments", [[], ["-n", "1"]], ids=["alone", "worker"])
def test_the_dearest_tests_are_listed_by_cpu_time(tmp_path, arguments):
    (tmp_path / "test_x.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-q", "--dearest", "2", *arguments, "test_x.py"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    rows = re.findall(r"^ +([\d.]+) s  test_x\.py::(\w+)$", shown.stdout, flags=re.MULTILINE)
    assert [name for _, name in rows] == ["test_in_a_child", "test_here"]
    assert float(rows[0][0]) >= 0.4 and float(rows[1][0]) >= 0.2
    (inside, whole) = map(
        int, re.findall(r"dearest tests: (\d+) s of CPU time in tests, (\d+) s in all", shown.stdout)[0]
    )
    assert inside <= whole


LONG = """
import pytest

@pytest.mark.slow
def test_long():
    pass

@pytest.mark.slow(after=1)
@pytest.mark.parametrize("k", range(3))
def test_of_a_family(k):
    pass
"""


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("arguments", "ran"),
    [(["-n", "1"], 1), (["."], 1), (["--slow", "-n", "1"], 4), (["-m", "not slow"], 1), (["-m", "slow"], 3)],
    ids=str,
)
def test_long_checks_are_run_if_asked_for(tmp_path, arguments, ran):
    (tmp_path / "test_x.py").write_text(LONG)
    (tmp_path / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert f"{ran} passed" in shown.stdout
    told = "3 long checks were left out: ./run test --slow runs all" in shown.stdout
    assert told == (ran == 1 and "-m" not in arguments)


@pytest.mark.parametrize(
    ("source", "arguments", "options", "every"),
    [
        ("TESTPATHS", ["tests"], {}, False), ("INVOCATION_DIR", ["."], {}, False), ("ARGS", ["tests"], {}, False),
        ("ARGS", [__file__], {}, True), ("ARGS", ["tests", f"{__file__}::test_x"], {}, True),
        *(("TESTPATHS", ["tests"], {name: value}, True) for name, value in
          (("slow", True), ("lf", True), ("markexpr", "slow"))),
    ],
)  # fmt: skip
def test_what_asks_for_long_checks(source, arguments, options, every):
    asked = pytest.Config.ArgsSource[source]
    config = SimpleNamespace(args_source=asked, args=arguments, getoption=lambda name, default: options.get(name, ""))
    assert every_test(config) == every


def test_ci_runs_every_test():
    root = Path(__file__).parents[1]
    assert re.search(r"^\./run test .*--slow", (root / ".ci" / "run").read_text(), flags=re.MULTILINE)


DRAWN = """
from hypothesis import given, settings, strategies as st
seen = []

@given(st.integers())
def test_default(x):
    seen.append(x)

@settings(max_examples=4)
@given(st.integers())
def test_few(x):
    seen.append(x)

def test_counted():
    print("drawn:", len(seen))
"""


@pytest.mark.parametrize(("option", "most"), [([], 29), (["--slow"], 104)], ids=["quick", "slow"])
def test_long_checks_draw_more_examples(tmp_path, option, most):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(DRAWN)
    (tmp_path / "tests" / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", *option, "tests"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert f"drawn: {most}" in shown.stdout, shown.stdout + shown.stderr


SKIPPED = {"module": "import pytest\npytest.importorskip('no_such_module')\n",
           "test": "import pytest\ndef test():\n    pytest.skip('no compiler')\n",
           "expected": "import pytest\ndef test():\n    pytest.skip('acados is not installed')\n",
           "passed": "def test():\n    pass\n"}  # fmt: skip


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("arguments", [[], ["-n", "1"]], ids=["alone", "worker"])
@pytest.mark.parametrize(
    ("files", "ci", "code"),
    [(("module",), "true", 1), (("test",), "true", 1), (("expected",), "true", 0), (tuple(SKIPPED), "", 0)],
    ids=["module", "test", "expected", "not in CI"],
)
def test_an_unexpected_skip_fails_in_ci(tmp_path, files, ci, code, arguments):
    for name in {*files, "passed"}:
        (tmp_path / f"test_{name}.py").write_text(SKIPPED[name])
    (tmp_path / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    shown = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "CI": ci}, capture_output=True, text=True, timeout=120
    )
    assert shown.returncode == code, shown.stdout + shown.stderr
    assert ("unexpected skips" in shown.stdout) == bool(code)
    assert ("test_module.py: could not import" in shown.stdout) == (code and files == ("module",))
