"""The outputs of a solver: quantities by name, and values of measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sysdyn.errors import InvalidInput, ProblemError, UnknownName
from sysdyn.measurements.measurement import Measurement, Output
from sysdyn.measurements.noise import ModelNoise, Wrapped
from sysdyn.measurements.registry import description, restored
from sysdyn.measurements.statement import Statement
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY

# Reserved names: other columns in files of results, and "all".
RESERVED = ("all", "w", "ok", "t")


def requested_outputs(outputs: str | Measurement | Sequence[Output], problem: Statement) -> tuple[Output, ...]:
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
    if measured and not quantities:
        return measured
    return (*_quantities(quantities, problem.quantities), *measured)


def _quantities(wanted: Sequence[str], valid: Sequence[str]) -> tuple[str, ...]:
    """The requested quantities in canonical order. Raises UnknownName, InvalidInput."""
    if not wanted:
        raise InvalidInput(f"outputs is empty: name some of {', '.join(valid)}, or 'all'")
    if "all" in wanted:
        return tuple(valid)
    for name in wanted:
        if name not in valid:
            raise UnknownName("output", name, ("all", *valid))
    return tuple(x for x in valid if x in wanted)


def _check(m: Measurement, problem: Statement) -> None:
    """Raise if a measurement has no value, has a reserved name, or does not fit the robot."""
    if isinstance(m, Wrapped):
        raise ProblemError(
            f"{m.name!r} is a {type(m).__name__}, which says how a measurement is treated: as an output give the "
            f"measurement itself, {m.of.name!r}"
        )
    if isinstance(m, ModelNoise):
        raise ProblemError(f"{m.name!r} is noise of the equations of motion, which has no value: it is no output")
    if isinstance(m, Measurement) and m.expected:
        raise ProblemError(f"{m.name!r} is an unknown of the problem that states it, whose output 'w' has its value")
    name = getattr(m, "name", None)
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"an output of type {type(m).__name__} has no name: give it name=…")
    if name in RESERVED or name in QUANTITY:
        raise ProblemError(f"an output is called {name!r}, which means something else: give it another name=")
    components = m.components(problem.model)
    if not components:
        raise InvalidInput(f"output {name!r} has no components")


def described(outputs: Iterable[Output], model: Model, placed: bool = False) -> list[str | dict] | None:
    """The outputs as JSON; None if a measurement has no description. placed: see `description`."""
    descriptions = [x if isinstance(x, str) else description(x, model, placed) for x in outputs]
    return None if any(x is None for x in descriptions) else [x for x in descriptions if x is not None]


def from_described(outputs: Iterable[str | dict]) -> tuple[Output, ...]:
    """Inverse of `described`."""
    return tuple(x if isinstance(x, str) else restored(x) for x in outputs)
