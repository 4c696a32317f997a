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
from disk import no_room

import sysdyn as sd
from sysdyn.errors import CacheWarning
from sysdyn.files import cache


@pytest.fixture
def folder(monkeypatch, tmp_path) -> Path:
    """A cache folder that does not exist yet."""
    where = tmp_path / "deep" / "cache"
    monkeypatch.setenv("SYSDYN_CACHE", str(where))
    return where


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(256)) * 100], ids=["empty", "short", "long"])
def test_what_is_stored_is_loaded(folder, payload):
    assert cache.load("key") is None and not folder.exists()
    for content in (payload, payload + b"new"):
        cache.store("key", content)
        assert cache.load("key") == content and cache.load("other") is None
    assert [p.name for p in folder.iterdir()] == ["key"]  # nothing temporary is left
    (folder / "key").rename(folder / "other")  # of two robots of equal sizes the program of the other would run
    assert cache.load("other") is None


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
    assert cache.load("key") is None and list(tmp_path.iterdir()) == []


# ---- damaged entries -----------------------------------------------------------------------------------------------

DAMAGE = {
    "empty": lambda content: b"",
    "head only": lambda content: content[:40],
    "truncated": lambda content: content[:-1],
    "longer": lambda content: content + b"\0",
    "one bit of the payload": lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
    "one bit of the digest": lambda content: content[:20] + bytes([content[20] ^ 128]) + content[21:],
    "another version": lambda content: b"sysdyn0\n" + content[8:],
    "foreign": lambda content: b"\x7fELF" + bytes(100),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_entries_are_ignored_and_replaced(folder, name):
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


# ---- unusable folders ----------------------------------------------------------------------------------------------

FOLDERS = {"a file": "file", "below a file": "file/cache", "a broken link": "link", "read only": "/proc/sysdyn-cache"}


@pytest.mark.parametrize("case", FOLDERS)
def test_an_unusable_folder_is_reported_once(monkeypatch, tmp_path, case):
    """Solvers compile without it."""
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "link").symlink_to(tmp_path / "file" / "else")
    where = tmp_path / FOLDERS[case]
    monkeypatch.setenv("SYSDYN_CACHE", str(where))
    model = sd.auto_tree(2, 1, 1.5, 0.9)
    q, qd, tau = model.random_state(seed=0)
    assert cache.load("key") is None  # without a warning
    with pytest.warns(CacheWarning, match=f"{where} .*SYSDYN_CACHE") as found:
        cache.store("key", b"payload")
        solver = sd.compile(sd.forward_dynamics(model), ordering="aba")
    assert len(found) == 1 and cache.load("key") is None
    np.testing.assert_allclose(solver(q, qd, tau).qdd, sd.aba(model, q, qd, tau), rtol=1e-9)


def test_a_full_disk_leaves_the_old_entry(folder):
    cache.store("key", b"old")
    with no_room(), pytest.warns(CacheWarning):
        cache.store("key", b"new")
    assert [p.name for p in folder.iterdir()] == ["key"] and cache.load("key") == b"old"


def test_the_folder_and_its_entries_are_the_users_alone(folder):
    old = os.umask(0)
    try:
        cache.store("key", b"payload")
    finally:
        os.umask(old)
    assert folder.stat().st_mode & 0o777 == 0o700 and (folder / "key").stat().st_mode & 0o777 == 0o600
    assert cache.load("key") == b"payload"


@pytest.mark.parametrize("mode", [0o770, 0o1777, None])
def test_folders_that_others_own_or_write_to_are_not_used(folder, monkeypatch, mode):
    cache.store("key", b"payload")
    if mode is None:
        monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    else:
        folder.chmod(mode)
    with pytest.warns(CacheWarning, match=str(folder)) as found:
        assert cache.load("key") is None
        cache.store("other", b"payload")
    assert len(found) == 1 and [p.name for p in folder.iterdir()] == ["key"]


# ---- size ----------------------------------------------------------------------------------------------------------


def entry(k: int) -> str:
    return f"{k:064x}.o"


def test_the_least_recently_used_entries_are_deleted(folder, monkeypatch):
    monkeypatch.setenv("SYSDYN_CACHE_LIMIT", "0.1")  # of which an entry is more than 1/64: each store looks
    now = time.time()
    for k in range(9):
        cache.store(entry(k), bytes(10_000))
        os.utime(folder / entry(k), (now - 20 + k, now - 20 + k))
    foreign = [folder / "notes.txt", folder / "0.o"]
    for path in foreign:
        path.write_bytes(bytes(200_000))
    killed = folder / f".{entry(5)}.123-0123abcd"  # temporary file of a process that was killed
    killed.write_bytes(b"half")
    os.utime(killed, (now - 100, now - 100))
    assert cache.load(entry(1)) is not None  # used just now
    cache.store(entry(9), bytes(10_000))
    cache.store(entry(10), bytes(10_000))
    assert {x.name for x in cache.entries()} == {entry(k) for k in range(1, 11)}
    assert sum(x.size for x in cache.entries()) <= 0.1 * cache.MEBIBYTE
    cache.clear()
    assert cache.entries() == [] and all(path.exists() for path in foreign)


def test_a_large_folder_is_scanned_rarely(folder, monkeypatch):
    """On average while 1/64 of the limit is stored, so that the size stays close to it."""
    monkeypatch.setenv("SYSDYN_CACHE_LIMIT", "10")
    original, scans = cache.entries, []
    monkeypatch.setattr(cache, "entries", lambda: scans.append(1) or original())
    for k in range(1000):  # 4 times 1/64
        cache.store(entry(k), bytes(600))
    assert 0 < len(scans) < 40


@pytest.mark.parametrize("size", ["many", "-1", "nan", ""])
def test_a_limit_that_is_no_number_is_reported_once(size):
    code = "from sysdyn.files import cache; print(cache.limit(), cache.limit())"
    environment = {**os.environ, "SYSDYN_CACHE_LIMIT": size}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert [*map(float, done.stdout.split())] == [2**30] * 2
    assert done.stderr.count(f"CacheWarning: SYSDYN_CACHE_LIMIT is '{size}', not a number") == 1


# ---- many processes ------------------------------------------------------------------------------------------------

KEYS, ROUNDS, PROCESSES = 3, 60, 3


def payload(key: int, writer: int) -> bytes:
    """Content of another length for each writer."""
    return bytes([key, writer]) * (2000 + 700 * writer)


def write_and_read(where: str, writer: int) -> int:
    """Number of reads that found an entry; raises if one was not whole."""
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
