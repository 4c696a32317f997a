"""Reduction of problems with redundant exact equations: omit these, and map inputs to the reduced problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sysdyn.errors import InvalidInput, ProblemError
from sysdyn.measurements.constraints import FrameConstraint
from sysdyn.measurements.input_names import value_group
from sysdyn.measurements.known_quantities import RawMeasurement
from sysdyn.measurements.measurement import Constraint, Measurement, Output
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model
from sysdyn.online.states import StateInputs

# Tolerance of the error of a redundant measurement, in its units, divided by 1 + its greatest value (chosen).
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Reduction:
    """A problem with redundant exact equations, `full`, and the same problem without them, `reduced`.

    omitted: (measurement, numbers of its omitted components). keeps_wrenches: True if omitted components of
    constraints still exert wrenches, which other measurements determine.
    """

    full: Problem
    reduced: Problem
    omitted: tuple[tuple[Measurement, tuple[int, ...]], ...]
    keeps_wrenches: bool = False

    def __str__(self) -> str:
        return f"the problem without redundant equations of {self.names}"

    @property
    def names(self) -> str:
        """Names of the measurements with omitted components, as text."""
        return ", ".join(repr(m.name) for m, _ in self.omitted)

    @property
    def inactive_constraints(self) -> tuple[Constraint, ...]:
        """Constraints of which all components are omitted: their wrench is zero."""
        rest = {m.name for m in self.reduced.measurements}
        return tuple(m for m, _ in self.omitted if isinstance(m, Constraint) and m.name not in rest)

    @property
    def is_least_squares(self) -> bool:
        """True if least squares of all equations determine all unknowns, also if the reduced equations do not."""
        constrained = any(isinstance(m, Constraint) for m, _ in self.omitted)
        return not self.full.noisy and (self.keeps_wrenches or not constrained)

    def outputs(self, requested: tuple[Output, ...]) -> tuple[Output, ...]:
        """Requested outputs, and the quantities and measurements that the checks of the omitted measurements need."""
        raw = {m.quantity for m, _ in self.omitted if isinstance(m, RawMeasurement)}
        measured = tuple(x for x in requested if isinstance(x, Measurement))
        others = (m for m, _ in self.omitted if not isinstance(m, RawMeasurement) and m not in measured)
        return (*(x for x in self.reduced.quantities if x in requested or x in raw), *measured, *others)

    def reduce(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Inputs of the reduced problem, from those of the full one: {group: (size,) or (N, size)}."""
        inputs = {name: x for name, x in arrays.items() if name not in self.full.inputs}  # tangents and cotangents
        omitted, raw = {m.name: k for m, k in self.omitted}, {m.name for m in self.reduced.raw}
        remaining = {
            m.name: [k for k in range(len(m.components(self.full.model))) if k not in omitted.get(m.name, ())]
            for m in self.full.custom
        }
        groups = {value_group(name): components for name, components in remaining.items()}
        for name, size in self.reduced.inputs.sizes.items():
            x = arrays.get(name, np.zeros(size))
            inputs[name] = x if x.shape[-1] == size else np.ascontiguousarray(x[..., groups[name]])
        for m in self.full.custom:  # the remaining components of partly redundant measurements
            if isinstance(m, RawMeasurement) and m.name in raw:
                components, value, x = remaining[m.name], arrays[value_group(m.name)], inputs[m.quantity]
                x = np.broadcast_to(x, (*np.broadcast_shapes(x.shape[:-1], value.shape[:-1]), x.shape[-1])).copy()
                x[..., np.array(m.places(self.full.model))[components]] = value[..., components]
                inputs[m.quantity] = x
        return inputs

    def reject_omitted(self, wrt: str | Sequence[str] | None) -> None:
        """Raise ProblemError for derivatives with respect to an omitted measurement."""
        rest = {m.name for m in self.reduced.measurements}
        for name in () if wrt is None else (wrt,) if isinstance(wrt, str) else wrt:
            if name not in rest and name in {m.name for m, _ in self.omitted}:
                raise ProblemError(
                    f"{name!r} is left out: it only checks the solution, which does not change with it. Differentiate "
                    "by others, or compile a problem without the measurements that state the same"
                )

    def no_bound_calls(self) -> ProblemError:
        """Error of `bind`: prepared calls have no consistency checks."""
        return ProblemError(
            f"a prepared call has no checks, which {self.names} need: bind sd.compile(solver.problem), or its "
            "derivatives, instead"
        )


class FullSystem(StateInputs):
    """A problem with all its redundant equations, at the N states of a call.

    Attributes
    ----------
    problem : Problem
    inputs : dict of arrays
        {group: (size,) or (N, size)} of the full problem.
    solved, contradicting : (N,) bool arrays
        States that were solved by least squares of all equations, and those at which the residual is too large.
    """

    def __init__(self, problem: Problem, inputs: dict[str, np.ndarray], n: int):
        super().__init__(inputs, n)
        self.problem = problem
        self.solved, self.contradicting = np.zeros((2, n), dtype=bool)


def remove_redundant(problem: Problem, numerically: bool = False) -> Reduction | None:
    """Reduction of a problem that has a unique solution without its redundant equations; None for other problems.

    numerically: also find redundant equations that the sparsity pattern does not show, for problems that are singular
    at every state. Redundant constraints have undetermined wrenches: omitted components exert none, unless other
    measurements determine all wrenches.
    """
    model = problem.model
    motion, stated = 12 * model.nb + model.nv, sum(len(m.components(model)) for m in problem.valued)
    if not numerically and motion + stated <= problem.layout().n and not _is_overdetermined_in_part(problem):
        return None
    from sysdyn.diagnosis.diagnose import diagnose  # rarely needed
    from sysdyn.equations.measurement_rows import measurement_row_name
    from sysdyn.equations.problem_system import assemble

    diagnosis = diagnose(problem)
    plain, undetermined = assemble(problem).plain, set(diagnosis.undetermined)
    blocks = zip(plain.col_names, plain.col_blocks, strict=True)
    if any(quantity in ("qdd", "tau") for name, (quantity, _) in blocks if name in undetermined):
        return None
    places = {measurement_row_name(m, c): (m, k) for m in problem.valued for k, c in enumerate(m.components(model))}
    omitted: dict[str, list[int]] = {}
    for row in diagnosis.removals:
        m, k = places[row]
        omitted.setdefault(m.name, []).append(k)
    constrained = sum(len(omitted.get(m.name, ())) for m in problem.valued if isinstance(m, Constraint))
    observed = bool(constrained) and not diagnosis.missing
    if not omitted or not (observed or diagnosis.missing == constrained):
        return None
    try:
        reduction = drop_components(problem, omitted, keeps_wrenches=observed)
    except InvalidInput:  # components that are measured together
        return None
    return None if constrained and not diagnose(reduction.reduced).well_posed else reduction


def _is_overdetermined_in_part(problem: Problem) -> bool:
    """True if, by their sparsity pattern, some of the equations have more rows than unknowns."""
    if not problem.constraints:
        return False
    from sysdyn.diagnosis.structure import structure  # rarely needed
    from sysdyn.equations.problem_system import assemble

    return not structure(assemble(problem)).sound


def drop_components(
    problem: Problem, omitted: Mapping[str, Iterable[int]], keeps_wrenches: bool = False
) -> Reduction:  # fmt: skip
    """Reduction without some components of measurements, omitted: {name: their numbers}.

    keeps_wrenches: see `Reduction`. Raises InvalidInput for components that are only measured together, KeyError and
    IndexError for unknown ones.
    """
    model, by_name = problem.model, {m.name: m for m in problem.valued}
    numbers = {name: tuple(sorted(k)) for name, k in omitted.items()}
    for name, components in numbers.items():
        [by_name[name].components(model)[k] for k in components]
    remaining = [
        part
        for m in problem.measurements
        if not m.of_state  # stances may need omitted components
        and (part := _without(m, numbers.get(m.name, ()), model, keeps_wrenches))
    ]
    reduced = Problem(model, remaining, [p.name for p in problem.parameters])
    return Reduction(problem, reduced, tuple((by_name[name], k) for name, k in numbers.items()), keeps_wrenches)


def _without(m: Measurement, omitted: Iterable[int], model: Model, keeps_wrenches: bool) -> Measurement | None:
    rest = [k for k in range(len(m.components(model))) if k not in set(omitted)]
    if omitted and keeps_wrenches and isinstance(m, Constraint):
        if not isinstance(m, FrameConstraint):
            raise InvalidInput(f"{m.name!r} has one component for its motion and its wrench")
        return m.without_redundant_rows(rest)
    if not omitted or not rest:
        return m if rest else None
    return m.select(rest)
