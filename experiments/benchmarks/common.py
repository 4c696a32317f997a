"""What every benchmark shares: timing as median and spread, and a CSV that says where its figures come from."""

from __future__ import annotations

import csv
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import llvmlite
import numpy as np

import sysdyn

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


def about() -> dict[str, str]:
    """What a stored figure needs beside it: commit, processor, versions."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line), cpu)
    return {
        "commit": described.stdout.strip() or "unknown",
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "llvmlite": llvmlite.__version__,
        "sysdyn": sysdyn.__version__,
    }


def write_csv(name: str, rows: list[dict]) -> None:
    """Write `rows` with `about()` beside each to experiments/results/<name>.csv."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    rows = [{**row, **about()} for row in rows]
    path = RESULTS / f"{name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(f"written to {path.relative_to(ROOT)}")
