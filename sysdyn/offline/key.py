"""Under which key the cache holds what was compiled."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from importlib.metadata import version

from sysdyn.files.sources import sources_digest
from sysdyn.offline.options import Options
from sysdyn.offline.outputs import described
from sysdyn.problem import Problem

# Parts of the package whose code decides what program a problem becomes: a change of one makes every key another one.
DECIDING = (
    "passes.py", "problem.py", "program", "model", "sparse", "backends/interpreter.py", "reference", "recursions",
    "measurements", "equations", "diagnosis", "offline", "online/posterior.py",
)  # fmt: skip


def cache_key(problem: Problem, options: Options) -> str | None:
    """What the compiled problem depends on; None where a custom measurement makes that unknown."""
    outputs = described(options.outputs, problem.model, placed=True)
    if problem.digest is None or outputs is None:
        return None
    # "auto" finds other orders where UMFPACK is installed
    umfpack = bool(importlib.util.find_spec("scikits")) and bool(importlib.util.find_spec("scikits.umfpack"))
    chosen = {**options.to_dict(), "outputs": outputs}
    about = [sources_digest(*DECIDING), version("numpy"), version("scipy"), problem.digest, chosen, umfpack]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest() + ".solver"
