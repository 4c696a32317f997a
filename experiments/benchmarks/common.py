"""What every benchmark shares: timing as median and spread, and where its CSV goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

from sysdyn import experiment

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"


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
    experiment.write_csv(path, rows)
    print(f"written to {path.relative_to(ROOT)}")
