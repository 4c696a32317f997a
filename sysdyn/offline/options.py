"""Options of compilation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sysdyn.errors import InvalidInput, check_among
from sysdyn.measurements.measurement import Measurement, Output, output_name
from sysdyn.model.quantities import QUANTITIES
from sysdyn.passes import ALL
from sysdyn.runtime.real import Real, real_of

# Name of the caller's own ordering.
CUSTOM = "custom"
# Formulations, see `sysdyn.compile`.
FORMULATIONS = ("auto", "paper", "elimination", "recursive")
# {compilation level: code-generation level of the machine code}.
LEVELS = {"best": 2, "fast": 0}


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
