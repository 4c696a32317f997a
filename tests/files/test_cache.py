"""The cache folder: whole entries or none, and never an error."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from disk import FULL, no_room

import sysdyn as sd
from sysdyn.errors import CacheWarning
from sysdyn.files import cache

PAYLOADS = {"empty": b"", "short": b"x", "binary": bytes(range(256)) * 100, "like an entry": cache._MAGIC + b"\0" * 32}


@pytest.fixture
def folder(monkeypatch, tmp_path) -> Path:
    """A fresh cache folder, not made yet."""
    where = tmp_path / "deep" / "cache"
    monkeypatch.setenv("SYSDYN_CACHE", str(where))
    return where


# ---- good folders --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAYLOADS)
def test_what_is_stored_is_loaded(folder, name):
    payload = PAYLOADS[name]
    assert cache.load("key") is None and not folder.exists()
    cache.store("key", payload)
    assert cache.load("key") == payload and cache.load("other") is None
    cache.store("key", payload + b"new")
    assert cache.load("key") == payload + b"new"
    assert [p.name for p in folder.iterdir()] == ["key"]  # nothing temporary is left


def test_the_folder_is_the_users_unless_chosen(monkeypatch, tmp_path):
    monkeypatch.delenv("SYSDYN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() is not None and cache.folder().name == "sysdyn"
    monkeypatch.setenv("SYSDYN_CACHE", str(tmp_path / "mine"))
    assert cache.folder() == tmp_path / "mine"


@pytest.mark.parametrize("value", ["", "off"])
def test_a_variable_switches_the_cache_off(value, monkeypatch, tmp_path):
    monkeypatch.setenv("SYSDYN_CACHE", value)
    monkeypatch.chdir(tmp_path)
    assert cache.folder() is None
    cache.store("key", b"payload")
    assert cache.load("key") is None
    assert list(tmp_path.iterdir()) == []


# ---- bad entries ---------------------------------------------------------------------------------------------------

DAMAGE = {
    "empty": lambda content: b"",
    "truncated head": lambda content: content[:20],
    "head only": lambda content: content[:40],
    "truncated": lambda content: content[:-1],
    "longer": lambda content: content + b"\0",
    "one bit of the payload": lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
    "one bit of the digest": lambda content: content[:20] + bytes([content[20] ^ 128]) + content[21:],
    "another magic": lambda content: b"sysdyn0\n" + content[8:],
    "foreign": lambda content: b"\x7fELF" + bytes(100),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_entries_are_ignored_and_written_again(folder, name):
    cache.store("key", b"some payload")
    entry = folder / "key"
    entry.write_bytes(DAMAGE[name](entry.read_bytes()))
    assert cache.load("key") is None
    cache.store("key", b"some payload")
    assert cache.load("key") == b"some payload"


def test_a_solver_is_compiled_again_where_its_entry_is_damaged(folder):
    model = sd.auto_tree(2, 1, 1.5, 0.9)
    q, qd, tau = model.random_state(seed=0)
    expected = sd.compile(sd.forward_dynamics(model), ordering="aba")(q, qd, tau).qdd
    entries = sorted(folder.iterdir())
    assert {p.suffix for p in entries} == {".o", ".solver"}
    whole = {p: p.read_bytes() for p in entries}
    for change in (DAMAGE["truncated"], DAMAGE["one bit of the payload"], DAMAGE["empty"]):
        for path, content in whole.items():
            path.write_bytes(change(content))
        np.testing.assert_array_equal(sd.compile(sd.forward_dynamics(model), ordering="aba")(q, qd, tau).qdd, expected)
        assert all(cache.load(p.name) is not None for p in entries)
    # a whole entry whose content is not a solver: stored under a key of ours by somebody else
    (key,) = (p.name for p in entries if p.suffix == ".solver")
    cache.store(key, b"not a solver")
    np.testing.assert_array_equal(sd.compile(sd.forward_dynamics(model), ordering="aba")(q, qd, tau).qdd, expected)


# ---- bad folders ---------------------------------------------------------------------------------------------------


def a_file(tmp_path: Path) -> Path:
    where = tmp_path / "file"
    where.write_text("in the way")
    return where


def below_a_file(tmp_path: Path) -> Path:
    return a_file(tmp_path) / "cache"


def a_broken_link(tmp_path: Path) -> Path:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "else")
    (tmp_path / "nowhere").write_text("in the way")
    return tmp_path / "link"


def read_only(tmp_path: Path) -> Path:
    """There, and nobody, root included, can write to it."""
    return Path("/proc")


def below_read_only(tmp_path: Path) -> Path:
    """Nobody, root included, can make a folder there."""
    return Path("/proc/sysdyn-cache")


FOLDERS = [a_file, below_a_file, a_broken_link, read_only, below_read_only]


@pytest.mark.parametrize("make", FOLDERS)
def test_an_unusable_folder_is_reported_once(monkeypatch, tmp_path, make):
    where = make(tmp_path)
    monkeypatch.setenv("SYSDYN_CACHE", str(where))
    assert cache.load("key") is None  # silently: there is nothing to be done without
    with pytest.warns(CacheWarning, match=f"{where} cannot be used .*SYSDYN_CACHE") as found:
        cache.store("key", b"payload")
        cache.store("key", b"payload")
        cache.store("other", b"payload")
    assert len(found) == 1
    assert cache.load("key") is None


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_reported_and_still_read(folder):
    cache.store("key", b"payload")
    folder.chmod(0o500)
    try:
        with pytest.warns(CacheWarning, match="Permission denied"):
            cache.store("other", b"payload")
        assert cache.load("key") == b"payload"
    finally:
        folder.chmod(0o700)


def test_a_full_disk_leaves_nothing_behind(folder):
    """The old entry stays, and no temporary file."""
    cache.store("key", b"old")
    with no_room(), pytest.warns(CacheWarning, match=FULL):
        cache.store("key", b"new")
    assert (folder / "key").exists() and [p.name for p in folder.iterdir()] == ["key"]
    assert cache.load("key") == b"old"


def test_solvers_compile_without_a_cache(monkeypatch, tmp_path):
    """One warning for all entries; the answer is the same."""
    model = sd.auto_tree(2, 1, 1.5, 0.9)
    q, qd, tau = model.random_state(seed=0)
    monkeypatch.setenv("SYSDYN_CACHE", str(a_file(tmp_path)))
    with pytest.warns(CacheWarning) as found:
        solver = sd.compile(sd.forward_dynamics(model), ordering="aba")
    assert len(found) == 1
    np.testing.assert_allclose(solver(q, qd, tau).qdd, sd.aba(model, q, qd, tau), rtol=1e-9)
    monkeypatch.setenv("SYSDYN_CACHE", "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sd.compile(sd.forward_dynamics(model), ordering="aba")


# ---- of others -----------------------------------------------------------------------------------------------------

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no such owners here")


@posix
def test_the_folder_and_its_entries_are_the_users_alone(folder):
    old = os.umask(0)
    try:
        cache.store("key", b"payload")
    finally:
        os.umask(old)
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "key").stat().st_mode & 0o777 == 0o600
    assert cache.load("key") == b"payload"


def open_to_the_group(folder: Path, monkeypatch) -> None:
    folder.chmod(0o770)


def open_to_all(folder: Path, monkeypatch) -> None:
    folder.chmod(0o1777)


def of_another_user(folder: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)


@posix
@pytest.mark.parametrize("change", [open_to_the_group, open_to_all, of_another_user])
def test_folders_that_others_can_write_to_are_not_used(folder, monkeypatch, change):
    cache.store("key", b"payload")
    change(folder, monkeypatch)
    with pytest.warns(CacheWarning, match=r"others can write to it, mode 1?77|belongs to another user") as found:
        assert cache.load("key") is None
        cache.store("other", b"payload")
        assert cache.load("key") is None
    assert len(found) == 1 and str(folder) in str(found[0].message)
    assert [p.name for p in folder.iterdir()] == ["key"]


def test_an_entry_under_another_key_is_ignored(folder):
    """Of two robots of equal sizes either's program could be run for the other."""
    cache.store("one", b"payload")
    (folder / "one").rename(folder / "other")
    assert cache.load("other") is None


# ---- its size ------------------------------------------------------------------------------------------------------


def entry(k: int) -> str:
    return f"{k:064x}.o"


def test_the_least_recently_used_entries_are_deleted(folder, monkeypatch):
    monkeypatch.setenv("SYSDYN_CACHE_LIMIT", "0.1")
    now = time.time()
    for k in range(9):
        cache.store(entry(k), bytes(10_000))
        os.utime(folder / entry(k), (now - 20 + k, now - 20 + k))
    strange = [folder / "notes.txt", folder / "0.o"]
    for path in strange:
        path.write_bytes(bytes(200_000))
    dead = folder / f".{entry(5)}.123-0123abcd"  # of a process that was killed
    dead.write_bytes(b"half")
    os.utime(dead, (now - 100, now - 100))
    assert cache.load(entry(1)) is not None  # used just now
    cache.store(entry(9), bytes(10_000))
    cache.store(entry(10), bytes(10_000))
    left = {x.name for x in cache.entries()}
    assert left == {entry(k) for k in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)}
    assert all(path.exists() for path in strange)
    assert sum(x.size for x in cache.entries()) <= 0.1 * cache.MEBIBYTE
    cache.clear()
    assert cache.entries() == [] and all(path.exists() for path in strange)


@pytest.mark.parametrize("size", ["many", "-1", "nan", ""])
def test_a_limit_that_is_no_number_is_reported_once(size):
    """In a process of its own, as it is said once in each."""
    code = "from sysdyn.files import cache; print(cache.limit(), cache.limit())"
    environment = {**os.environ, "SYSDYN_CACHE_LIMIT": size}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert [*map(float, done.stdout.split())] == [2**30] * 2
    assert done.stderr.count(f"CacheWarning: SYSDYN_CACHE_LIMIT is '{size}', not a number") == 1


# ---- many processes ------------------------------------------------------------------------------------------------

KEYS, ROUNDS, PROCESSES = 3, 60, 3


def payload(key: int, writer: int) -> bytes:
    """Of another length for each writer, and recognisable from any piece."""
    return bytes([key, writer]) * (2000 + 700 * writer)


def write_and_read(where: str, writer: int) -> int:
    """How many reads found an entry; raises where one was not whole."""
    os.environ["SYSDYN_CACHE"] = where
    warnings.simplefilter("error")
    good = {key: {payload(key, w) for w in range(PROCESSES)} for key in range(KEYS)}
    hits = 0
    for k in range(ROUNDS):
        cache.store(f"key{k % KEYS}", payload(k % KEYS, writer))
        for key in range(KEYS):
            path = Path(where) / f"key{key}"
            found = cache.load(f"key{key}")
            if found is None:  # not yet written; once it is there, it is whole at any time
                if path.exists() and cache.load(f"key{key}") is None:
                    raise AssertionError(f"{path} is damaged")
                continue
            if found not in good[key]:
                raise AssertionError(f"{path} is not what anybody wrote")
            hits += 1
    return hits


def test_processes_write_one_entry_at_the_same_time(tmp_path):
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        hits = pool.starmap(write_and_read, [(str(tmp_path), w) for w in range(PROCESSES)])
    assert all(count >= KEYS * (ROUNDS - KEYS) for count in hits)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"key{k}" for k in range(KEYS)]


def compile_and_solve(where: str, ordering: str) -> list[list[float]]:
    os.environ["SYSDYN_CACHE"] = where
    warnings.simplefilter("error")
    model = sd.auto_tree(3, 1, 1.5, 0.9)
    q, qd, tau = model.random_state(seed=0, batch=3)
    solver = sd.compile(sd.forward_dynamics(model), ordering=ordering)
    return [solver(q[0], qd[0], tau[0]).qdd.tolist(), *solver(q, qd, tau).qdd.tolist()]


@pytest.mark.slow
def test_processes_compile_one_problem_at_the_same_time(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.starmap(compile_and_solve, [(str(tmp_path), "aba")] * 4)
    assert all(x == found[0] for x in found)
    assert len([p for p in tmp_path.iterdir() if p.suffix == ".o"]) == 2  # scalar and batch
    assert len([p for p in tmp_path.iterdir() if p.suffix == ".solver"]) == 1
