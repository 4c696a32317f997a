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
from sysdyn.program.arrays import is_count
from sysdyn.runtime.real import Real, real_of

# Name of the caller's own ordering.
GIVEN = "given"
# Formulations that can be asked for, see `sysdyn.compile`.
FORMULATIONS = ("auto", "paper", "elimination", "recursive")
# Levels of compilation, with the code-generation level of the machine code.
LEVELS = {"best": 2, "fast": 0}


@dataclass(frozen=True)
class Budget:
    """Extent of the offline phase's searches. Raises InvalidInput.

    effort: multiple of the usual effort. seconds: time until which a longer search goes on, None for no such search.
    seed: of its draws.
    """

    effort: float = 1.0
    seconds: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not (isinstance(self.effort, (int, float)) and 0.0 <= self.effort < math.inf):
            raise InvalidInput(f"effort is {self.effort!r}, but a number ≥ 0 is needed")
        if self.seconds is not None and not (isinstance(self.seconds, (int, float)) and 0.0 < self.seconds < math.inf):
            raise InvalidInput(f"seconds is {self.seconds!r}, but a number > 0 is needed, or None for the usual search")
        if not is_count(self.seed, 0):
            raise InvalidInput(f"seed is {self.seed!r}, but an integer ≥ 0 is needed")
        object.__setattr__(self, "effort", float(self.effort))
        if self.seconds is None:  # nothing is drawn
            object.__setattr__(self, "seed", 0)
        else:
            object.__setattr__(self, "seconds", float(self.seconds))


@dataclass(frozen=True)
class Equations:
    """Form of the assembled equations: layout of the unknowns, known quantities as rows or substituted."""

    layout: str = "paper"
    known: str = "rows"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of compilation; see `sysdyn.compile`. Raises UnknownName.

    given: the permutations of the ordering GIVEN; unsafe: it is taken whatever the judge says.
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
    budget: Budget = Budget()
    given: tuple[tuple[int, ...], ...] = ()
    unsafe: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "given", tuple(tuple(x) for x in self.given))
        check_among("level", self.level, LEVELS)
        object.__setattr__(self, "real", real_of(self.real).dtype.name)
        check_among("formulation", self.formulation, FORMULATIONS)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return tuple(output_name(x) for x in self.outputs)

    @property
    def measured(self) -> tuple[Measurement, ...]:
        """The measurements among the outputs."""
        return tuple(x for x in self.outputs if isinstance(x, Measurement))

    @property
    def usual(self) -> bool:
        """True if no order, layout or treatment of known quantities is asked for."""
        return self.ordering == "auto" and self.equations == Equations()

    @property
    def numbers(self) -> Real:
        """Type of the numbers of the machine code."""
        return real_of(self.real)

    @property
    def code_level(self) -> int:
        """Code-generation level of the machine code."""
        return LEVELS[self.level]

    def to_dict(self) -> dict:
        """Plain flat dict, as in solver files; outputs by name."""
        flat = asdict(replace(self, outputs=self.names))
        groups = flat.pop("equations") | flat.pop("budget")
        return {**flat, **groups}

    @staticmethod
    def from_dict(data: Mapping) -> Options:
        """Inverse of `to_dict`."""
        rest: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in data.items()}
        equations, budget = ({x.name: rest.pop(x.name) for x in fields(kind)} for kind in (Equations, Budget))
        return Options(**rest, equations=Equations(**equations), budget=Budget(**budget))
