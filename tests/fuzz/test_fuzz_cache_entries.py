"""Damaged entries of the cache: what they held is compiled again, and the answers are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fuzz.mutants import COUNT, bytes_changed

import sysdyn as sd
from sysdyn.files import cache

MODEL = sd.auto_tree(2, 1, 1.5, 0.9)
STATE = MODEL.random_state(seed=0, batch=3)


def answers() -> np.ndarray:
    """Of a solver that is compiled, or taken from the cache."""
    return sd.compile(sd.forward_dynamics(MODEL), "aba", "qdd", level="fast", effort=0.0)(*STATE).qdd


@pytest.fixture
def folder(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv("SYSDYN_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_damaged_entries_are_not_read(folder):
    expected = answers()
    whole = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
    payloads = {name: cache.load(name) for name in whole}
    assert {name.partition(".")[2] for name in whole} == {"o", "solver"}
    for seed in range(COUNT):
        rng = np.random.default_rng((4, seed))
        name = list(whole)[seed % len(whole)]
        (folder / name).write_bytes(bytes_changed(whole[name], rng))
        assert cache.load(name) in (None, payloads[name]), seed
        if seed % 50 == 0:
            np.testing.assert_array_equal(answers(), expected, err_msg=f"seed {seed}")
            assert cache.load(name) == payloads[name] or name.endswith(".solver")  # which holds times of its own
        (folder / name).write_bytes(whole[name])


@pytest.mark.slow
def test_forged_entries_are_compiled_again(folder):
    """As if somebody had stored something else by the cache's own means; object code has the cache's checksum alone."""
    expected = answers()
    (name,) = (path.name for path in folder.glob("*.solver"))
    payload = cache.load(name)
    for seed in range(COUNT // 20):
        rng = np.random.default_rng((5, seed))
        cache.store(name, rng.bytes(len(payload)) if seed % 10 < 3 else bytes_changed(payload, rng))
        np.testing.assert_array_equal(answers(), expected, err_msg=f"seed {seed}")
