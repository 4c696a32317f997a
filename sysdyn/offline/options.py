"""Options of compilation, among them the outputs: quantities by name, and measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sysdyn.errors import InvalidInput, ProblemError, check_among
from sysdyn.measurements.measurement import Constraint, Measurement, Output, output_name
from sysdyn.measurements.noise import ModelNoise
from sysdyn.measurements.problem import Problem
from sysdyn.measurements.registry import description, restored
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITIES, QUANTITY
from sysdyn.passes import ALL
from sysdyn.program.groups import select_names
from sysdyn.runtime.real import Real, real_of

# Name of the caller's own ordering.
CUSTOM = "custom"
# Formulations, see `sysdyn.compile`.
FORMULATIONS = ("auto", "paper", "elimination", "recursive")
# {compilation level: code-generation level of the machine code}.
LEVELS = {"best": 2, "fast": 0}
# Reserved names: other columns in files of results, and "all".
RESERVED = ("all", "w", "ok", "t")


@dataclass(frozen=True)
class Equations:
    """Form of the assembled equations: layout of the unknowns, known quantities as rows or substituted."""

    layout: str = "paper"
    known: str = "rows"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of compilation; see `sysdyn.compile`. Raises UnknownName.

    effort: factor on the search budget for cheaper recursions. custom_order: row and column permutations of the
    ordering CUSTOM. allow_unsafe: accept the cheapest order if none passes the check.
    """

    ordering: str = "auto"
    outputs: tuple[Output, ...] = QUANTITIES
    level: str = "best"
    backend: str = "llvm"
    real: str = "float64"
    formulation: str = "auto"
    external_wrenches: bool = True
    passes: tuple[str, ...] = ALL
    equations: Equations = Equations()
    effort: float = 1.0
    custom_order: tuple[tuple[int, ...], ...] = ()
    allow_unsafe: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "custom_order", tuple(tuple(x) for x in self.custom_order))
        check_among("level", self.level, LEVELS)
        object.__setattr__(self, "real", real_of(self.real).dtype.name)
        check_among("formulation", self.formulation, FORMULATIONS)
        if not (isinstance(self.effort, (int, float)) and 0.0 <= self.effort < math.inf):
            raise InvalidInput(f"effort is {self.effort!r}, but a number ≥ 0 is needed")
        object.__setattr__(self, "effort", float(self.effort))

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return tuple(output_name(x) for x in self.outputs)

    @property
    def measured(self) -> tuple[Measurement, ...]:
        """The measurements among the outputs."""
        return tuple(x for x in self.outputs if isinstance(x, Measurement))

    @property
    def is_default(self) -> bool:
        """True if ordering, layout and treatment of known quantities have their defaults."""
        return self.ordering == "auto" and self.equations == Equations()

    @property
    def kernel_real(self) -> Real:
        """Type of the numbers of the machine code."""
        return real_of(self.real)

    @property
    def code_level(self) -> int:
        """Code-generation level of the machine code."""
        return LEVELS[self.level]

    def to_dict(self) -> dict:
        """Flat dict of plain values for solver files; outputs by name."""
        flat = asdict(replace(self, outputs=self.output_names))
        return flat.pop("equations") | flat

    @staticmethod
    def from_dict(data: Mapping) -> Options:
        """Inverse of `to_dict`."""
        values: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in data.items()}
        equations = Equations(**{x.name: values.pop(x.name) for x in fields(Equations)})
        return Options(**values, equations=equations)


def requested_outputs(outputs: str | Measurement | Sequence[Output], problem: Problem) -> tuple[Output, ...]:
    """Validated outputs: quantities in canonical order, then measurements in the order of the argument.

    Raises UnknownName or InvalidInput for invalid outputs, ProblemError for ambiguous names.
    """
    requested = (outputs,) if isinstance(outputs, (str, Measurement)) else () if outputs is None else tuple(outputs)
    for x in requested:
        if not isinstance(x, (str, Measurement)):
            raise InvalidInput(
                f"{x!r} is no output: name some of {', '.join(problem.quantities)}, or give a measurement such as "
                "Accelerometer('head')"
            )
    measured = tuple(x for x in requested if isinstance(x, Measurement))
    for m in measured:
        _check(m, problem)
    names = [m.name for m in measured]
    for name in names:
        if names.count(name) > 1:
            raise ProblemError(f"two outputs are called {name!r}: give one of them another name=")
    quantities = [x for x in requested if isinstance(x, str)]
    if not measured or quantities:
        quantities = list(select_names("output", quantities, (), ("all", *problem.quantities)))
    return (*(x for x in problem.quantities if x in quantities or "all" in quantities), *measured)


def _check(m: Measurement, problem: Problem) -> None:
    """Raise if a measurement has no value, has a reserved name, or does not fit the robot."""
    if m.switchable or (m.prior and not isinstance(m, Constraint)):
        raise ProblemError(
            f"{m.name!r} is a {'Switchable' if m.switchable else 'Prior'}, which says how a measurement is treated: as "
            "an output give the measurement itself"
        )
    if isinstance(m, ModelNoise):
        raise ProblemError(f"{m.name!r} is noise of the equations of motion, which has no value: it is no output")
    if m.prior:
        raise ProblemError(f"{m.name!r} is an unknown of the problem that states it, whose output 'w' has its value")
    if not isinstance(getattr(m, "name", None), str) or not m.name:
        raise InvalidInput(f"an output of type {type(m).__name__} has no name: give it name=…")
    if m.name in RESERVED or m.name in QUANTITY:
        raise ProblemError(f"an output is called {m.name!r}, which means something else: give it another name=")
    if not m.components(problem.model):
        raise InvalidInput(f"output {m.name!r} has no components")


def described(outputs: Iterable[Output], model: Model, placed: bool = False) -> list[str | dict] | None:
    """The outputs as JSON; None if a measurement has no description. placed: see `description`."""
    descriptions = [x if isinstance(x, str) else description(x, model, placed) for x in outputs]
    return None if any(x is None for x in descriptions) else [x for x in descriptions if x is not None]


def from_described(outputs: Iterable[str | dict]) -> tuple[Output, ...]:
    """Inverse of `described`."""
    return tuple(x if isinstance(x, str) else restored(x) for x in outputs)
