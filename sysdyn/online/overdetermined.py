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
from sysdyn.measurements.measurement import Measurement
from sysdyn.online.redundancy import FullSystem, Reduction
from sysdyn.online.solution import Solution


class Consistency(NamedTuple):
    """Errors of redundant measurements, {name: (…, components)}, and (…) bool: True for inconsistent states."""

    errors: dict[str, np.ndarray]
    violated: np.ndarray


def check_consistency(
    reduction: Reduction, solution: Solution, system: FullSystem, tolerance: float
) -> Consistency:  # fmt: skip
    """Compare a solution with the redundant measurements."""
    lead, n = solution.ok.shape, solution.ok.size
    errors, violated = {}, system.contradicting.reshape(lead)
    for m, components in reduction.left_out:
        reading = _reading(reduction, m, system.inputs)
        size = reading.shape[-1]
        reading = np.broadcast_to(reading, (n, size)).reshape(*lead, size)[..., components]
        errors[m.name] = _implied(reduction, m, solution)[..., components] - reading
        limits = tolerance * (1.0 + np.abs(reading).max(axis=-1, keepdims=True))
        violated = violated | (np.abs(errors[m.name]) > limits).any(axis=-1)
    return Consistency(errors, violated)


def inconsistent(
    reduction: Reduction, consistency: Consistency, system: FullSystem, tolerance: float
) -> Inconsistent:  # fmt: skip
    """Error that names the contradicting measurements at the first inconsistent state."""
    bad = np.flatnonzero(consistency.violated)
    n, model, words, names = consistency.violated.size, reduction.full.model, [], []
    state = system.at(bad[:1])
    for m, components in reduction.left_out:
        error = np.abs(consistency.errors[m.name].reshape(n, -1)[bad[0]])
        reading = _reading(reduction, m, state)[0, list(components)]
        if (error > tolerance * (1.0 + np.abs(reading).max())).any():
            k = int(np.argmax(error))
            component, unit = (
                m.components(model)[components[k]], reduction.full.values[m.name].units[components[k]]
            )  # fmt: skip
            others = contradicting(assemble(reduction.full).plain, state, measurement_row_name(m, component))
            names += [m.name, *others]
            against = f" by {few(map(repr, others))}" if others else ", as the joints alone move it"
            words.append(f"{m.name!r} is off by {error[k]:.3g}{unit and ' ' + unit} at {component}{against}")
    if not words:  # the least-squares residual is too large, but no single error
        names = [m.name for m, _ in reduction.left_out]
        words = [f"{few(map(repr, names))}, or others that state the same"]
    where = f" at state{at_states(bad, n)}" if n > 1 else ""
    return Inconsistent(
        f"measurements contradict each other{where}: {'; '.join(words)}. Correct their values, leave some out, or "
        "raise solver.tolerance; on_singular='nan' goes on with solution.ok False",
        tuple(dict.fromkeys(names)), tuple(bad.tolist()),
    )  # fmt: skip


def _reading(reduction: Reduction, m: Measurement, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Measured values (…, components) of a measurement, from the inputs of the full problem."""
    if (group := value_group(m.name)) in inputs:
        return inputs[group]
    assert isinstance(m, RawMeasurement)
    return inputs[m.quantity][..., m.places(reduction.full.model)]


def _implied(reduction: Reduction, m: Measurement, solution: Solution) -> np.ndarray:
    """Values (…, components) of a measurement at the solution."""
    if not isinstance(m, RawMeasurement):
        return solution[m.name]
    quantity = solution[m.quantity]
    size = reduction.full.inputs.sizes[m.quantity]
    return quantity.reshape(*solution.ok.shape, size)[..., m.places(reduction.full.model)]
