"""Keys of compiled problems in the cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sysdyn.files.sources import sources_digest
from sysdyn.measurements.measurement import Output
from sysdyn.measurements.problem import Problem
from sysdyn.offline.options import Options, described


def cache_key(problem: Problem, options: Options) -> str | None:
    """Hash of everything that determines the compiled problem; None if a custom measurement has no description."""
    return _key("solver", problem, options.outputs, options.to_dict())


def time_step_key(problem: Problem, outputs: Sequence[Output], biased: Sequence[str], program: str) -> str | None:
    """Cache key of a program of `sysdyn.offline.time_step.TimeStepElimination`; None as in `cache_key`."""
    return _key("instant", problem, outputs, {"biased": list(biased), "program": program})


def _key(kind: str, problem: Problem, outputs: Sequence[Output], options: Mapping[str, Any]) -> str | None:
    shown = described(outputs, problem.model, placed=True)
    if problem.digest is None or shown is None:
        return None
    about = [version_digest(), problem.digest, {**options, "outputs": shown}]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest() + f".{kind}"


def version_digest() -> str:
    """Hash of the package's sources, the versions of NumPy and SciPy, and whether UMFPACK is installed."""
    # "auto" finds other orders if UMFPACK is installed
    umfpack = bool(importlib.util.find_spec("scikits")) and bool(importlib.util.find_spec("scikits.umfpack"))
    scipy = importlib.util.find_spec("scipy")  # importing it takes 5 ms
    assert scipy and scipy.origin
    about = [sources_digest(), np.__version__, Path(scipy.origin).with_name("version.py").read_text(), umfpack]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()
