"""Keys of compiled problems in the cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from importlib.metadata import version

from sysdyn.files.sources import sources_digest
from sysdyn.offline.options import Options
from sysdyn.offline.outputs import described
from sysdyn.problem import Problem

# Parts of the package whose code decides the program of a problem: a change of one changes every key.
DECIDING = (
    "passes.py", "problem.py", "program", "model", "sparse", "backends/entries/calls.py", "backends/interpreter.py",
    "backends/kernel.py", "backends/precise.py", "backends/real.py", "reference", "recursions", "measurements",
    "equations", "diagnosis", "offline", "online/posterior.py",
)  # fmt: skip


def cache_key(problem: Problem, options: Options) -> str | None:
    """Digest of all that the compiled problem depends on; None if a custom measurement has no description."""
    outputs = described(options.outputs, problem.model, placed=True)
    if problem.digest is None or outputs is None:
        return None
    # "auto" finds other orders if UMFPACK is installed
    umfpack = bool(importlib.util.find_spec("scikits")) and bool(importlib.util.find_spec("scikits.umfpack"))
    chosen = {**options.to_dict(), "outputs": outputs}
    about = [sources_digest(*DECIDING), version("numpy"), version("scipy"), problem.digest, chosen, umfpack]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest() + ".solver"
