"""Random values for the inputs of a problem's programs."""

from __future__ import annotations

import numpy as np

from sysdyn.measurements.problem import Problem


def random_groups(problem: Problem, n: int, seed: int = 0) -> dict[str, np.ndarray]:
    """{input group: (n, …)}: states as `Model.random_state`, everything else standard normal, forces ten times that."""
    model, rng = problem.model, np.random.default_rng(seed)
    q, qd, _ = model.random_state(seed=seed, batch=n)
    arrays = {"q": q, "qd": qd}
    for name, group in list(problem.inputs.items())[2:]:
        arrays[name] = rng.standard_normal((n, *group.shape)) * (10.0 if name in ("tau", "fx", "f") else 1.0)
    return arrays
