"""Keys of compiled problems in the cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from sysdyn.files.sources import sources_digest
from sysdyn.measurements.measurement import Output
from sysdyn.offline.options import Options
from sysdyn.offline.outputs import described
from sysdyn.problem import Problem

# Parts of the package whose code decides the program of a problem: a change of one changes every key.
DECIDING = (
    "passes.py", "problem.py", "program", "model", "sparse", "runtime/kernel.py", "runtime/native_calls.py",
    "runtime/real.py", "runtime/spans.py", "codegen/double_double.py", "codegen/interpreter.py", "reference",
    "recursions", "measurements", "equations", "diagnosis", "offline", "online/posterior.py",
)  # fmt: skip


def cache_key(problem: Problem, options: Options) -> str | None:
    """Digest of all that the compiled problem depends on; None if a custom measurement has no description."""
    return _key("solver", problem, options.outputs, options.to_dict())


def instant_key(problem: Problem, outputs: Sequence[Output], biased: Sequence[str], program: str) -> str | None:
    """As `cache_key`, of a program of the eliminated equations of an instant; see `sysdyn.offline.instant.Instant`."""
    return _key("instant", problem, outputs, {"biased": list(biased), "program": program})


def _key(kind: str, problem: Problem, outputs: Sequence[Output], options: Mapping[str, Any]) -> str | None:
    shown = described(outputs, problem.model, placed=True)
    if problem.digest is None or shown is None:
        return None
    about = [version_digest(), problem.digest, {**options, "outputs": shown}]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest() + f".{kind}"


def version_digest(*further: str) -> str:
    """Digest of the sources that a program depends on (`further`: more of them), and of NumPy, SciPy and UMFPACK."""
    # "auto" finds other orders if UMFPACK is installed
    umfpack = bool(importlib.util.find_spec("scikits")) and bool(importlib.util.find_spec("scikits.umfpack"))
    about = [sources_digest(*DECIDING, *further), version("numpy"), version("scipy"), umfpack]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()
