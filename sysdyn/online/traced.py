"""Compiled problems for frameworks that trace functions: their arguments, and what comes of states that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sysdyn.backends.backend import Arrays
from sysdyn.backends.traced import Settle, Traced
from sysdyn.errors import InvalidInput
from sysdyn.model.manifolds import at_unit
from sysdyn.online.arguments import Arguments
from sysdyn.online.calls import Calls, Run
from sysdyn.program.program import Program
from sysdyn.reference.generic import normalised


def traced(
    name: str, calls: Calls, program: Program, settle: Callable[[Run], None], settle_derived: Callable[[Run], None],
    direct: Callable[..., Any], about: str, level: int,
    product: Callable[[str, tuple[str, ...]], Program] | None = None,
) -> Traced:  # fmt: skip
    """The program of these calls. settle, settle_derived: write results of a run's states that failed; see `Traced`."""
    inputs = calls.inputs
    model = inputs.model

    def collected(q: Any, qd: Any, *known: Any, **given: Any) -> dict[str, Any]:
        if given.get("noise") is not None:
            raise InvalidInput(
                "noise is as declared where functions are traced and differentiated: compile a problem for each"
            )
        return inputs.collected(Arguments.of(q, qd, known, given), keep=True)

    def of_run(action: Callable[[Run], None]) -> Settle:
        def settled(given: Arrays, outputs: Arrays, status: np.ndarray) -> None:
            arrays = {x: given[x] for x in inputs.groups} | {"q": normalised(model, np.array(given["q"]))}
            action(Run(arrays, (len(status),), dict(outputs), status))

        return settled

    return Traced(
        name, at_unit(program, inputs.quaternions), inputs.groups, collected,
        {group: shape for group, shape in calls.groups.values()},
        lambda found: {key: found[group] for key, (group, _) in calls.groups.items()},
        of_run(settle), of_run(settle_derived), direct, product, about, level,
    )  # fmt: skip
