"""How a problem is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.measurements.variables import QUANTITIES
from sysdyn.passes import ALL

FORMULATIONS = ("auto", "paper", "elimination", "recursive")
LEVELS = {"best": 2, "fast": 0}  # code-generation levels of the machine code


@dataclass(frozen=True)
class Options:
    """How a problem is compiled; see `sysdyn.compile`."""

    ordering: str = "auto"
    outputs: tuple[str, ...] = QUANTITIES
    level: str = "best"
    layout: str = "paper"
    known: str = "rows"
    backend: str = "llvm"
    formulation: str = "auto"
    wrenches: bool = True
    effort: float = 1.0
    passes: tuple[str, ...] = ALL
    seconds: float | None = None
    seed: int = 0

    @property
    def usual(self) -> bool:
        """No order, layout or treatment of known quantities is asked for."""
        return (self.ordering, self.layout, self.known) == ("auto", "paper", "rows")


def output_quantities(outputs: str | Sequence[str], valid: Sequence[str] = QUANTITIES) -> tuple[str, ...]:
    """The requested quantities in canonical order, out of those that are valid. Raises UnknownName."""
    if outputs == "all":
        return tuple(valid)
    if outputs is None:
        raise InvalidInput(f"outputs is None: name some of {', '.join(valid)}, or 'all'")
    wanted = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    for name in wanted:
        if name not in valid:
            raise UnknownName("output", name, ("all", *valid))
    if not wanted:
        raise InvalidInput(f"outputs is empty: name some of {', '.join(valid)}, or 'all'")
    return tuple(x for x in valid if x in wanted)
