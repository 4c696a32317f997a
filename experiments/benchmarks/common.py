"""Measurement and storage that benchmarks share: times as median and spread, and the CSV of the results."""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))
from nori import harness

# The source tree.
ROOT = Path(__file__).resolve().parents[2]
# Results are written into this folder.
RESULTS = ROOT / "experiments" / "results"
# Each of two that are compared runs for at least this many seconds at a turn.
TURN = 1e-3


class Timing(NamedTuple):
    """Seconds of one call: median, least and greatest over the repetitions."""

    median: float
    least: float
    greatest: float

    def scaled(self, factor: float) -> Timing:
        return Timing(*(factor * x for x in self))


def timed(call: Callable[[], object], repeat: int = 9, number: int = 1) -> Timing:
    """Time of `call`, each repetition the mean of `number` calls."""
    call()
    runs = []
    for _ in range(repeat):
        began = time.perf_counter()
        for _ in range(number):
            call()
        runs.append((time.perf_counter() - began) / number)
    return Timing(median(runs), min(runs), max(runs))


def write_csv(name: str, rows: list[dict]) -> None:
    """Write `rows` to experiments/results/<name>.csv, with where they come from."""
    path = RESULTS / f"{name}.csv"
    harness.write_csv(path, rows)
    print(f"written to {path.relative_to(ROOT)}")


def alone(seconds: float, row: Callable[[], dict]) -> None:
    """Print the row as JSON, as `apart` reads it. This process ends with SIGXCPU when it has used so much CPU time."""
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 5))
    print(json.dumps(row()))


def apart(script: Path, arguments: Sequence, limit: float, **environment: str) -> dict:
    """The row that `script` prints last, as JSON, when run in a process of its own that limits its CPU time.

    Its "error" is "Limit" where it was ended by that, "exit N" where it failed otherwise; the row is then the last one
    it had printed.
    """
    run = subprocess.run(
        [sys.executable, str(script), *map(str, arguments), "--limit", str(limit)],
        capture_output=True, text=True, check=False, env=os.environ | environment,
    )  # fmt: skip
    lines = run.stdout.splitlines()
    row = json.loads(lines[-1]) if lines else {}
    if run.returncode:
        print(run.stderr[-2000:], file=sys.stderr)
        row["error"] = "Limit" if run.returncode == -signal.SIGXCPU else f"exit {run.returncode}"
    return row


def each_alone(
    parser: argparse.ArgumentParser, name: str, limit: float, answered: Callable[[int, argparse.Namespace], dict]
) -> tuple[list[dict], Path]:
    """(a result of each seed, the CSV to write), each in a process of its own that limits its CPU time.

    answered(seed, options): the result, which has an "error" if there is none. parser: with the options of the script,
    to which the number of seeds, the first, the limit and the CSV are added.
    """
    script = Path(sys.argv[0]).resolve()
    parser.add_argument("--seeds", type=int, default=20, help="so many robots or problems")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--limit", type=float, default=limit, help="CPU seconds of each seed")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.csv")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        alone(options.limit, lambda: answered(options.one, options))
        sys.exit()
    given = sys.argv[1:]
    found = []
    for seed in range(options.first, options.first + options.seeds):
        found.append({"seed": seed} | apart(script, [*given, "--one", seed], options.limit))
        print("  ".join(f"{x}" for x in found[-1].values() if not isinstance(x, list)), flush=True)
    return found, options.out


def greatest_of(rows: Sequence[dict], column: str) -> float:
    """The greatest number in a column; 0 without rows."""
    return max((float(row[column]) for row in rows), default=0.0)


class Ratio(NamedTuple):
    """Time of a peer over ours: median, least and greatest over repetitions that take turns; the least seconds of each.

    best: the ratio of the least times, which other work on the machine disturbs least.
    """

    median: float
    least: float
    greatest: float
    ours: float
    theirs: float

    @property
    def best(self) -> float:
        return self.theirs / self.ours

    def row(self, what: str, target: float | None, **more: object) -> dict[str, object]:
        """A line of a table; printed, too."""
        print(
            f"  {what:<52}{1e9 * self.theirs:>9.0f} ns {1e9 * self.ours:>9.1f} ns   {self.median:6.2f}×"
            f"  ({self.least:.2f} … {self.greatest:.2f}; best {self.best:.2f})"
            + (f"  target {target:g}×" if target else "")
        )
        return {
            "what": what, **more, "target": target or "", "ratio": f"{self.median:.3g}", "least": f"{self.least:.3g}",
            "greatest": f"{self.greatest:.3g}", "best": f"{self.best:.3g}",
            "ns": f"{1e9 * self.ours:.4g}", "peer_ns": f"{1e9 * self.theirs:.4g}",
        }  # fmt: skip


def compared(
    ours: Callable[[], object],
    theirs: Callable[[], object],
    each: tuple[float, float] = (1.0, 1.0),
    repeat: int = 101,
    clock: Callable[[], float] = time.thread_time,
) -> Ratio:
    """How many times faster `ours` is than `theirs`; each: states that one call of either takes.

    They take turns of at least a millisecond each, so that neither has its caches emptied by the other all the time.
    clock: processor time of this thread, which other processes do not add to; time.perf_counter for several threads.
    """
    turns = []
    for call, states in zip((ours, theirs), each, strict=True):
        once = min(timed(call, repeat=3))
        turns.append((call, max(1, math.ceil(TURN / once)), states))
    times = []
    for _ in range(repeat):
        pair = []
        for call, number, states in turns:
            began = clock()
            for _ in range(number):
                call()
            pair.append((clock() - began) / (number * states))
        times.append(pair)
    ratios = sorted(b / a for a, b in times)
    return Ratio(median(ratios), ratios[0], ratios[-1], min(a for a, _ in times), min(b for _, b in times))


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-7) -> None:
    """Raise unless both agree, relative to the greatest entry of a state."""
    error = np.max(np.abs(found - expected).max(axis=-1) / np.abs(expected).max(axis=-1))
    if not error < tolerance:
        raise AssertionError(f"the results differ by {error:.1e}")
