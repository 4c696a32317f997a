"""Consistency checks of problems with more exact equations than unknowns, by the redundant measurements.

The reduced problem is solved; if its pivots fail, least squares of all equations are. The error of a redundant
measurement is its value at the solution minus its measured value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sysdyn.diagnosis.diagnose import contradicting
from sysdyn.equations.measurement_rows import measurement_row_name
from sysdyn.equations.problem_system import assemble
from sysdyn.errors import Inconsistent, at_states, few
from sysdyn.measurements.input_names import value_group
from sysdyn.measurements.known_quantities import RawMeasurement
from sysdyn.online.redundancy import FullSystem, Reduction
from sysdyn.online.solution import Solution


class Consistency(NamedTuple):
    """Errors {name: (…, components)} of redundant measurements, limits {name: (…, 1)}, and violated states (…)."""

    errors: dict[str, np.ndarray]
    limits: dict[str, np.ndarray]
    violated: np.ndarray


def check_consistency(
    reduction: Reduction, solution: Solution, system: FullSystem, tolerance: float
) -> Consistency:  # fmt: skip
    """Compare a solution with the redundant measurements."""
    lead, n, full = solution.ok.shape, solution.ok.size, reduction.full
    errors, limits, violated = {}, {}, system.contradicting.reshape(lead)
    for m, components in reduction.omitted:
        if isinstance(m, RawMeasurement):
            places = list(m.places(full.model))
            values = solution[m.quantity].reshape(*lead, full.inputs.sizes[m.quantity])[..., places]
        else:
            values = solution[m.name]
        group = value_group(m.name)
        measured = system.inputs[group] if group in system.inputs else system.inputs[m.quantity][..., places]
        size = measured.shape[-1]
        measured = np.broadcast_to(measured, (n, size)).reshape(*lead, size)[..., components]
        errors[m.name] = values[..., components] - measured
        limits[m.name] = tolerance * (1.0 + np.abs(measured).max(axis=-1, keepdims=True))
        violated = violated | (np.abs(errors[m.name]) > limits[m.name]).any(axis=-1)
    return Consistency(errors, limits, violated)


def inconsistent(reduction: Reduction, consistency: Consistency, system: FullSystem) -> Inconsistent:
    """Error that names the contradicting measurements at the first inconsistent state."""
    bad, n, model = np.flatnonzero(consistency.violated), consistency.violated.size, reduction.full.model
    reasons, names = [], []
    for m, components in reduction.omitted:
        error, limit = (np.abs(x[m.name].reshape(n, -1)[bad[0]]) for x in (consistency.errors, consistency.limits))
        if (error > limit).any():
            k = int(np.argmax(error))
            component = m.components(model)[components[k]]
            unit = reduction.full.values[m.name].units[components[k]]
            row = measurement_row_name(m, component)
            others = contradicting(assemble(reduction.full).plain, system.at(bad[:1]), row)
            names += [m.name, *others]
            against = f" by {few(map(repr, others))}" if others else ", as the joints alone move it"
            reasons.append(f"{m.name!r} is off by {error[k]:.3g}{unit and ' ' + unit} at {component}{against}")
    if not reasons:  # the least-squares residual is too large, but no single error
        names = [m.name for m, _ in reduction.omitted]
        reasons = [f"{few(map(repr, names))}, or others that state the same"]
    where = f" at state{at_states(bad, n)}" if n > 1 else ""
    return Inconsistent(
        f"measurements contradict each other{where}: {'; '.join(reasons)}. Correct their values, leave some out, or "
        "raise solver.tolerance; on_singular='nan' goes on with solution.ok False",
        tuple(dict.fromkeys(names)), tuple(bad.tolist()),
    )  # fmt: skip
