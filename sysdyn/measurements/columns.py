"""Columns: the names and units of the scalars of states and results in files and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sysdyn.measurements.measurement import Constraint, Measurement
from sysdyn.measurements.variables import COMPONENTS, PARTS, UNIT_OF, WRENCHES, freedom_units
from sysdyn.model import Model


def column_names(model: Model, quantity: str, constraints: Sequence[Constraint] = ()) -> list[str]:
    """Columns of a quantity (q, qd, tau, qdd, fx, a, f; w of constraints) in the order of its flat array."""
    if quantity == "w":
        return [f"w:{m.name}.{c}" for m in constraints for c in m.wrench(model)]
    if quantity in WRENCHES:
        return [f"{quantity}:{body}.{c}" for body in model.body_names for c in COMPONENTS[quantity]]
    if quantity != "q":
        return [f"{quantity}:{name}" for name in model.dof_names]
    names = []
    for name, joint in zip(model.joint_names, model.joints, strict=True):
        names += [f"q:{name}"] if joint.nq == 1 else [f"q:{name}[{k}]" for k in range(joint.nq)]
    return names


def measured_columns(measured: Iterable[Measurement], model: Model) -> dict[str, list[str]]:
    """{name: columns} of measurements, such as "imu: a_x", as in `problem.y_names`."""
    return {m.name: [f"{m.name}: {c}" for c in m.components(model)] for m in measured}


def quantity_units(model: Model, quantity: str, constraints: Sequence[Constraint] = ()) -> list[str]:
    """Unit of each of `column_names`, but for q."""
    if quantity == "w":
        return [UNIT_OF[c] for m in constraints for c in m.wrench(model)]
    if quantity in WRENCHES:
        return [UNIT_OF[c] for c in COMPONENTS[quantity]] * model.nb
    return freedom_units(model, quantity)


def measured_units(m: Measurement, model: Model) -> tuple[str, ...]:
    """Unit of each component; "" where a measurement of one's own does not say."""
    return tuple(m.component_units(model)) or ("",) * len(m.components(model))


def position_units(model: Model) -> list[str]:
    """Unit of each entry (nq) of q."""
    units = []
    angular, straight = PARTS["q"]
    for joint in model.joints:
        quaternion = range(joint.nq)[joint.quaternion] if joint.quaternion is not None else ()
        units += ["1" if k in quaternion else angular if k in joint.angles else straight for k in range(joint.nq)]
    return units
