"""Compiled problems for frameworks that trace functions: their arguments, and what comes of states that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.frameworks.traced import Settle, Traced
from sysdyn.model.manifolds import at_unit
from sysdyn.online.arguments import Arguments
from sysdyn.online.calls import Calls, Run
from sysdyn.program.program import Program
from sysdyn.runtime.backend import Arrays
from sysdyn.runtime.real import DOUBLE, Real

# Writes results of a run's states that failed, by a program.
SettleRun = Callable[[Program, Run], None]


def traced(
    name: str, calls: Calls, program: Program, settle: SettleRun, settle_derived: SettleRun, direct: Callable[..., Any],
    about: str, level: int, product: Callable[[str, tuple[str, ...]], Program] | None = None, real: Real = DOUBLE,
) -> Traced:  # fmt: skip
    """The program of these calls; see `Traced`."""
    inputs = calls.inputs

    def collected(q: Any, qd: Any, *known: Any, **given: Any) -> dict[str, Any]:
        if given.get("noise") is not None:
            raise InvalidInput(
                "noise is as declared where functions are traced and differentiated: compile a problem for each"
            )
        return inputs.collected(Arguments.of(q, qd, known, given), keep=True)

    return Traced(
        name, at_unit(program, inputs.quaternions), inputs.groups, collected,
        {group: shape for group, shape in calls.groups.values()},
        lambda found: {key: found[group] for key, (group, _) in calls.groups.items()},
        _of_run(settle), _of_run(settle_derived), direct, product, about, level, real,
    )  # fmt: skip


def _of_run(settle: SettleRun) -> Settle:
    def settled(program: Program, inputs: Arrays, outputs: Arrays, status: np.ndarray) -> None:
        given = {name: x.astype(float, copy=False) for name, x in inputs.items()}
        settle(program, Run(given, (len(status),), dict(outputs), status))

    return settled
