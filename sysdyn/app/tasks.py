"""Tasks: a problem, named by its kind or stated by measurements, and how it is to be compiled and solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.measurements.measurement import Output
from sysdyn.model import Model
from sysdyn.online.compile import compile
from sysdyn.online.progress import Bar
from sysdyn.online.solver import Solver
from sysdyn.problem import Problem, forward_dynamics, hybrid_dynamics, inverse_dynamics
from sysdyn.reference import aba, rnea
from sysdyn.sparse.orderings import ORDERINGS

# A problem is one of these by name, or else a list of measurements.
KINDS = ("inverse", "forward", "hybrid")
# A user may ask for one of these orders, or for "auto", which tries them.
ALL_ORDERINGS = ("natural", *RECURSIVE, "mixed", *(name for name in ORDERINGS if name != "natural"))
# By default a problem is solved for the quantity that RNEA or ABA returns.
WANTED = {"inverse": ("tau",), "forward": ("qdd",), "hybrid": ("tau", "qdd")}
# These algorithms by the book are counted and run beside the solvers of their kind.
REFERENCES = {"inverse": rnea, "forward": aba}


@dataclass(frozen=True)
class Task:
    """A problem and how it is to be compiled and solved; `kind`: inverse, forward, hybrid, or measurements.

    values {measurement: (m,)}: those that are the same in every state. columns: renames of those of logs, as of `Log`.
    """

    problem: Problem
    kind: str
    title: str = ""
    ordering: str = "auto"
    outputs: tuple[Output, ...] | None = None
    on_singular: str = "raise"
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def wanted(self) -> tuple[Output, ...]:
        """The outputs asked for, else those that the kind of problem is solved for."""
        return self.outputs or WANTED.get(self.kind) or self.problem.quantities


def make_problem(model: Model, kind: str, torque: Sequence[str] = ()) -> Problem:
    """Inverse, forward or hybrid dynamics of the model; torque: joints whose torque is known (hybrid only)."""
    if kind not in KINDS:
        raise UnknownName("problem", kind, KINDS)
    if kind == "hybrid":
        if not torque:
            raise InvalidInput('hybrid dynamics needs the joints whose torque is known (torque = ["…"], --torque …)')
        return hybrid_dynamics(model, torque)
    if torque:
        raise InvalidInput(f"torque names joints of a hybrid problem; this one is {kind!r}, where they are not needed")
    return (inverse_dynamics if kind == "inverse" else forward_dynamics)(model)


def compile_task(task: Task, outputs: Sequence[Output] | None = None, **options: Any) -> Solver:
    """The task compiled, with a progress bar; options and errors as of `sysdyn.compile`."""
    with Bar("compiling") as bar:
        return compile(
            task.problem, task.ordering, outputs or task.wanted, on_singular=task.on_singular, progress=bar, **options
        )
