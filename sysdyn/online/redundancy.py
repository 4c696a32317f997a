"""Redundant equations of a problem: left out, and values of the whole problem as values of the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sysdyn.diagnosis.structure import structure
from sysdyn.equations.measurement_rows import measurement_row_name
from sysdyn.errors import InvalidInput, ProblemError
from sysdyn.measurements.constraints import FrameConstraint
from sysdyn.measurements.drifts import drift_part
from sysdyn.measurements.groups import value_group
from sysdyn.measurements.measurement import Constraint, Measurement, Output
from sysdyn.measurements.raw import RawMeasurement, Subset
from sysdyn.model import Model
from sysdyn.online.arguments import Arguments, Inputs
from sysdyn.problem import Problem


class Redundant(NamedTuple):
    """A whole problem, and the rest without redundant equations: left_out (measurement, its components' numbers).

    loosened: left-out components of constraints exert their wrenches all the same, which other measurements see.
    """

    whole: Problem
    rest: Problem
    left_out: tuple[tuple[Measurement, tuple[int, ...]], ...]
    loosened: bool = False

    def __str__(self) -> str:
        names = ", ".join(repr(m.name) for m, _ in self.left_out)
        return f"the problem without redundant equations of {names}"

    def outputs(self, asked: tuple[Output, ...]) -> tuple[Output, ...]:
        """The outputs, and the quantities and measurements that the left-out measurements are compared with."""
        raw = {m.quantity for m, _ in self.left_out if isinstance(m, RawMeasurement)}
        shown = tuple(x for x in asked if isinstance(x, Measurement))
        others = (m for m, _ in self.left_out if not isinstance(m, RawMeasurement) and m not in shown)
        return (*(x for x in self.rest.quantities if x in asked or x in raw), *shown, *others)

    def apply(self, values: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """(known quantities, values by the name of a measurement) of the rest; values: of the whole, by group."""
        groups = {m.name: value_group(m.name) for m in self.rest.custom}
        y = {m.name: values[groups[m.name]][..., self._kept(m)] for m in self.whole.custom if m.name in groups}
        found = {x: values.get(x, np.zeros(self.rest.inputs.sizes[x])) for x in self.rest.known_quantities}
        raw = {m.name for m in self.rest.raw}
        for m in self.whole.custom:  # measurements that state some scalars again, and others alone
            if isinstance(m, RawMeasurement) and m.name in raw:
                rest, given, x = self._kept(m), values[value_group(m.name)], found[m.quantity]
                x = np.broadcast_to(x, (*np.broadcast_shapes(x.shape[:-1], given.shape[:-1]), x.shape[-1])).copy()
                x[..., np.array(m.places(self.whole.model))[rest]] = given[..., rest]
                found[m.quantity] = x
        return found, y

    def _kept(self, m: Measurement) -> list[int]:
        """The components of a measurement that are not left out."""
        gone = {m.name: k for m, k in self.left_out}.get(m.name, ())
        return [k for k in range(len(m.components(self.whole.model))) if k not in gone]


class ReducedArguments:
    """The map from arguments of a problem to those of the problem without its redundant measurements."""

    def __init__(self, found: Redundant, external_wrenches: bool):
        self.found, self._external_wrenches = found, external_wrenches
        self._inputs = Inputs(found.whole, external_wrenches)

    def apply(self, arguments: Arguments) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], Arguments]:
        """(arrays of the whole problem by group, the same with batch axes, arguments of the reduced problem)."""
        arrays, lead = self._inputs.checked(arguments._replace(tangents=None, cotangents=None))
        self._inputs.groups.reject_not_finite(arrays)
        values = {name: x if x.ndim == 1 else x.reshape(*lead, x.shape[-1]) for name, x in arrays.items()}
        quantities, y = self.found.apply(values)
        reduced = arguments._replace(q=values["q"], qd=values["qd"], known=(), quantities=quantities, y=y)
        return arrays, values, reduced

    def reject_bound_calls(self, what: str = "") -> None:
        """Raise ProblemError: prepared calls do not check solutions."""
        names = ", ".join(repr(m.name) for m, _ in self.found.left_out)
        raise ProblemError(
            f"a prepared call has no checks, which {names} need: bind sd.compile(solver.problem){what} instead"
        )

    def reject_left_out(self, wrt: str | Sequence[str] | None) -> None:
        """Raise ProblemError for derivatives by a measurement that is left out."""
        kept = {m.name for m in self.found.rest.measurements}
        for name in () if wrt is None else (wrt,) if isinstance(wrt, str) else wrt:
            if name not in kept and name in {m.name for m, _ in self.found.left_out}:
                raise ProblemError(
                    f"{name!r} is left out: it only checks the solution, which does not change with it. Differentiate "
                    "by others, or compile a problem without the measurements that state the same"
                )

    def __reduce__(self):
        return ReducedArguments, (self.found, self._external_wrenches)


def redundant(problem: Problem, by_value: bool = False) -> Redundant | None:
    """The redundant equations of a problem that has one solution without them; None for any other problem.

    by_value: also equations that the pattern does not show, which takes a diagnosis: for problems that are singular at
    every state. If constraints are redundant, their wrenches are undetermined: omitted components exert none,
    unless other measurements determine all of them.
    """
    model = problem.model
    if not by_value:
        motion, stated = 12 * model.nb + model.nv, sum(len(m.components(model)) for m in problem.valued)
        twice = bool(problem.constraints) and not structure(problem.system()).sound
        if motion + stated <= problem.layout().n and not twice:
            return None
    found = problem.diagnose()
    plain, undetermined = problem.system().plain, set(found.undetermined)
    blocks = zip(plain.col_names, plain.col_blocks, strict=True)
    if any(quantity in ("qdd", "tau") for name, (quantity, _) in blocks if name in undetermined):
        return None
    places = {measurement_row_name(m, c): (m, k) for m in problem.valued for k, c in enumerate(m.components(model))}
    gone: dict[str, list[int]] = {}
    for row in found.removals:
        m, k = places[row]
        gone.setdefault(m.name, []).append(k)
    held = sum(len(gone.get(m.name, ())) for m in problem.valued if isinstance(m, Constraint))
    seen = bool(held) and not found.missing
    if not gone or not (seen or found.missing == held):
        return None
    try:
        reduced = without(problem, gone, loosened=seen)
    except InvalidInput:  # components that are measured together
        return None
    return None if held and not reduced.rest.diagnose().well_posed else reduced


def without(problem: Problem, gone: Mapping[str, Iterable[int]], loosened: bool = False) -> Redundant:
    """The problem without these components of measurements, by name; loosened: see `Redundant`.

    Raises InvalidInput for components that are measured together, KeyError and IndexError for unknown ones.
    """
    model, by_name = problem.model, {m.name: m for m in problem.valued}
    left_out = tuple((by_name[name], tuple(sorted(k))) for name, k in gone.items())
    for m, components in left_out:
        [m.components(model)[k] for k in components]
    numbers = {m.name: components for m, components in left_out}
    stated = [m for m in problem.measurements if not m.of_state]  # its state is given, and stances may need what goes
    kept = [part for m in stated if (part := _without(m, numbers.get(m.name, ()), model, loosened))]
    return Redundant(problem, Problem(model, kept, [p.name for p in problem.parameters]), left_out, loosened)


def _without(m: Measurement, gone: Iterable[int], model: Model, loosened: bool) -> Measurement | None:
    rest = [k for k in range(len(m.components(model))) if k not in set(gone)]
    if gone and loosened and isinstance(m, Constraint):
        if not isinstance(m, FrameConstraint):
            raise InvalidInput(f"{m.name!r} holds and exerts by one component")
        return m.loosened(rest)
    if not gone or not rest:
        return m if rest else None
    if isinstance(m, RawMeasurement):
        pairs = m.pairs(model)
        return Subset(m, tuple(pairs[k] for k in rest), bias=drift_part(m.drift, rest))
    return m.part(rest)
