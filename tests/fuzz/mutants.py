"""Mutants of bytes, arrays and JSON, each from a seed of its own."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from sysdyn.errors import SysdynError

# SYSDYN_FUZZ mutants of each kind are tried; by night 100,000.
COUNT = int(os.environ.get("SYSDYN_FUZZ", "500"))
# No mutant takes longer than so many seconds.
PATIENCE = 10.0
# These stand for what a number, a text or a truth of a file can be changed to.
STRANGE = (
    None, True, False, 0, 1, -1, 2, 7, 2**31, -(2**31), 2**63, 10**30, 0.0, -0.0, 0.5, 1e300, float("nan"),
    float("inf"), "", "q", "qdd", "fast", "\x00", "*/ #error", "é" * 50, [], [[]], [0], ["q", -1],
    {}, {"type": "Revolute"},
)  # fmt: skip
TYPES = (np.int8, np.int32, np.int64, np.uint8, np.float32, np.float64, np.bool_, ">i4", "<U3", np.complex128)


def refused(call: Callable[[], object], seed: int) -> str | None:
    """The message with which the mutant of a seed is refused, None where it is taken; nothing else, and in seconds."""
    began = time.perf_counter()
    message = None
    try:
        call()
    except SysdynError as error:
        message = str(error)
        assert message, seed
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    assert time.perf_counter() - began < PATIENCE, seed
    return message


def bytes_changed(content: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes changed, left out, doubled or exchanged, or the end left out."""
    found = bytearray(content)
    for _ in range(rng.integers(1, 5)):
        a, b = sorted(rng.integers(0, len(found) + 1, 2).tolist())
        b = min(b, a + int(rng.integers(1, 64)))
        match rng.integers(6):
            case 0 | 1:
                found[a:b] = rng.integers(0, 256, b - a, dtype=np.uint8).tobytes()
            case 2 if a < len(found):
                found[a] ^= 1 << int(rng.integers(8))
            case 3:
                del found[a:b]
            case 4:
                found[a:a] = found[a:b]
            case _ if rng.random() < 0.2:
                del found[a:]
    return bytes(found)


def array_changed(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Another value, type, shape or length."""
    match rng.integers(6):
        case 0 | 1 if x.size:
            found = x.copy()
            limits = np.iinfo(x.dtype) if x.dtype.kind in "iu" else None
            near = [0, 1, len(x), len(x) - 1, -1]
            values = [*near, limits.min, limits.max] if limits else [*near, np.nan, np.inf, 1e300, 0.5]
            value = values[rng.integers(len(values))]
            found.flat[rng.integers(x.size)] = np.array(value).astype(x.dtype)
            return found
        case 2:
            with np.errstate(all="ignore"):
                return x.astype(TYPES[rng.integers(len(TYPES))])
        case 3:
            return x[: rng.integers(len(x) + 1)] if x.ndim else x
        case 4:
            return (x[None], x[:, None], x.reshape(-1)[:1].reshape(()) if x.size else x, np.concatenate([x, x]))[
                rng.integers(4)
            ]
    return x[rng.permutation(len(x))]


def json_changed(data: Any, rng: np.random.Generator) -> Any:
    """One value of it another one, left out, or exchanged with its neighbour."""
    found = copy.deepcopy(data)
    place = found
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = keys[rng.integers(len(keys))]
        if isinstance(place[key], (dict, list)) and len(place[key]) and rng.random() < 0.9:
            place = place[key]
            continue
        match rng.integers(4):
            case 0:
                del place[key]
            case 1 if len(keys) > 1:
                other = keys[rng.integers(len(keys))]
                place[key], place[other] = place[other], place[key]
            case 2 if isinstance(place[key], (int, float)):
                place[key] = place[key] * float(rng.standard_normal()) + float(rng.integers(-1, 2))
            case _:
                place[key] = STRANGE[rng.integers(len(STRANGE))]
        return found
