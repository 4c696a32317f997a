"""Tasks: a problem, named by its kind or stated by measurements, with options of compiling and solving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.errors import InvalidInput, check_among
from sysdyn.measurements.measurement import Output
from sysdyn.model import Model
from sysdyn.online.compile import compile
from sysdyn.online.progress import Bar
from sysdyn.online.solver import Solver
from sysdyn.problem import Problem, forward_dynamics, hybrid_dynamics, inverse_dynamics
from sysdyn.reference import aba, rnea
from sysdyn.sparse.orderings import ORDERINGS

# Kinds of problems with a name; any other problem is a list of measurements.
KINDS = ("inverse", "forward", "hybrid")
# Orders that a user may ask for, beside "auto", which tries them.
ALL_ORDERINGS = ("natural", *RECURSIVE, "mixed", *(name for name in ORDERINGS if name != "natural"))
# Default outputs by kind of problem: the quantity that RNEA or ABA returns.
WANTED = {"inverse": ("tau",), "forward": ("qdd",), "hybrid": ("tau", "qdd")}
# Algorithms by the book that are counted and run beside the solvers of their kind.
REFERENCES = {"inverse": rnea, "forward": aba}


@dataclass(frozen=True)
class Task:
    """A problem with options of compiling and solving; `kind`: inverse, forward, hybrid, or measurements.

    values {measurement: (m,)}: constants, the same in every state. columns: new names of columns of logs, as of `Log`.
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
        """The requested outputs, by default those of the kind of problem."""
        return self.outputs or WANTED.get(self.kind) or self.problem.quantities


def make_problem(model: Model, kind: str, torque: Sequence[str] = ()) -> Problem:
    """Inverse, forward or hybrid dynamics of the model; torque: joints whose torque is known (hybrid only)."""
    check_among("problem", kind, KINDS)
    if kind == "hybrid":
        if not torque:
            raise InvalidInput('hybrid dynamics needs the joints whose torque is known (torque = ["…"], --torque …)')
        return hybrid_dynamics(model, torque)
    if torque:
        raise InvalidInput(f"torque names joints of a hybrid problem; this one is {kind!r}, where they are not needed")
    return (inverse_dynamics if kind == "inverse" else forward_dynamics)(model)


def compile_task(task: Task, **options: Any) -> Solver:
    """The task compiled, with a progress bar; options and errors as of `sysdyn.compile`."""
    with Bar("compiling") as bar:
        return compile(task.problem, task.ordering, task.wanted, on_singular=task.on_singular, progress=bar, **options)
