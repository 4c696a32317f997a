"""Damaged and forged solver files: an error of sysdyn, or the same answers; never a crash."""

from __future__ import annotations

import json
import time
import warnings
from functools import cache

import numpy as np
import pytest
from fuzz.mutants import COUNT, array_changed, bytes_changed, json_changed

import sysdyn as sd
from sysdyn.errors import SysdynError
from sysdyn.online import storage
from sysdyn.program.groups import Groups
from sysdyn.program.program import Guard, Program

LONGEST = 10.0  # seconds of CPU time, of each mutant


@cache
def solver() -> sd.Solver:
    """Of an elimination with turned rows, so that a file has all there is."""
    model = sd.auto_tree(2, 1, 1.5, 0.9)
    return sd.compile(sd.forward_dynamics(model), "tearing", ["qdd", "a"], level="fast", effort=0.0)


@cache
def arrays() -> dict[str, np.ndarray]:
    return storage.unpacked(storage.pack(solver().compiled, solver().options, solver().problem))


@cache
def state() -> tuple[np.ndarray, ...]:
    return solver().model.random_state(seed=0, batch=3)


def text(data: object) -> np.ndarray:
    return np.frombuffer(json.dumps(data).encode(), dtype=np.uint8)


def parsed(x: np.ndarray) -> dict:
    return json.loads(x.tobytes())


def changed(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The arrays of the file with one of them changed."""
    found = dict(arrays())
    name = list(found)[rng.integers(len(found))] if rng.random() < 0.6 else "solver"
    if name in ("solver", "program"):
        found[name] = text(json_changed(parsed(found[name]), rng))
    else:
        found[name] = array_changed(found[name], rng)
    if rng.random() < 0.05:
        del found[name]
    return found


def forged(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays with digests that fit, where they can be computed."""
    try:
        head = parsed(found["program"])
        program = Program(
            Groups.of_sizes(head["inputs"]), Groups.of_sizes(head["outputs"]),
            *(found[x] for x in ("constants", "kind", "lhs", "rhs", "output_values", "cuts")),
            tuple(Guard(*x) for x in head["guards"]), tuple(map(tuple, head["ranges"])),
        )  # fmt: skip
        found = {**found, "program": text({**head, "digest": program.digest})}
    except Exception:  # of what has no digest the rest is forged
        pass
    rest = {name: x for name, x in found.items() if name != "digest"}
    return {**rest, "digest": np.frombuffer(storage.digest_of(rest), dtype=np.uint8)}


def outcome(path, content: bytes) -> tuple[sd.Solver, sd.Solution] | None:
    """The solver in a file of this content, and its answers; None where an error of sysdyn says what is wrong."""
    path.write_bytes(content)
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = sd.load_solver(path)
            answers = found(*state())
            assert found.report()
            return found, answers
    except SysdynError:
        return None
    finally:
        assert time.process_time() - began < LONGEST


@pytest.mark.slow
def test_damaged_files_are_refused_or_answer_the_same(tmp_path):
    good = storage.packed(arrays())
    expected = solver()(*state())
    refused = 0
    for seed in range(COUNT):
        rng = np.random.default_rng((1, seed))
        content = bytes_changed(good, rng) if seed % 2 else storage.packed(changed(rng))
        found = outcome(tmp_path / "x.solver", content)
        if found is None:
            refused += 1
            continue
        loaded, answers = found
        assert loaded.problem.digest == solver().problem.digest and loaded.options == solver().options, seed
        for name in solver().outputs:
            np.testing.assert_array_equal(answers[name], expected[name], err_msg=f"seed {seed}")
    assert refused > 0.8 * COUNT


@pytest.mark.slow
def test_forged_files_crash_nothing(tmp_path):
    """Their digests fit: what they say can be another robot, but nothing outside of their arrays is read or written."""
    taken = 0
    for seed in range(COUNT):
        content = storage.packed(forged(changed(np.random.default_rng((2, seed)))))
        taken += outcome(tmp_path / "x.solver", content) is not None
    assert 0.05 * COUNT < taken < 0.9 * COUNT
