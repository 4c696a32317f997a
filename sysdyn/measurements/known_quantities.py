"""Known components of the quantities q̈, τ, fx, a and f, and of further ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sysdyn.errors import InvalidInput, UnknownName, check_among
from sysdyn.measurements.bias_models import BiasModel, RandomWalk, bias_model_of
from sysdyn.measurements.measurement import Context, Measurement, Names
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY, Quantity, user_visible
from sysdyn.program.arrays import to_plain


class QuantityMeasurement(Measurement, listed=False):
    """A measurement of scalars of one quantity, of some joints or bodies: a known value, or a sensor of q or q̇.

    Subclasses give `targets`, "all", one name, or several, and the `quantity` or the `state` that they measure.
    """

    selectable = True
    state: str = ""
    targets: str | tuple[str, ...]

    @property
    def stated(self) -> Quantity:
        """The quantity whose scalars it states."""
        return QUANTITY[self.quantity or self.state]

    @property
    def units(self) -> tuple[str, ...]:  # type: ignore[override]
        """The units that a component may have."""
        return self.stated.unit

    def bodies(self, model: Model) -> list[int]:
        """Indices in the model of the joints or bodies that `targets` names. Raises UnknownName."""
        if self.targets == "all":
            return list(range(model.nb))
        kind = f"{self.stated.owner} in {self.name!r}:"
        return [self.stated.index(model, target, kind, ("all",)) for target in as_tuple(self.targets)]

    def scalars_of(self, model: Model, i: int) -> Sequence[int]:
        """Numbers of the scalars of joint or body i that it measures, unless a selection leaves some out."""
        return range(self.stated.size(model, i))

    def pairs(self, model: Model) -> tuple[tuple[int, int], ...]:
        """(body, component number) of each scalar, in the order of the value. Raises UnknownName, InvalidInput."""
        pairs = tuple((i, k) for i in self.bodies(model) for k in self.scalars_of(model, i))
        if self.selection is None:
            return pairs
        if not 0 <= min(self.selection) <= max(self.selection) < len(pairs):
            raise InvalidInput(f"components of {self.name!r} are {self.selection}, but it has {len(pairs)} scalars")
        return tuple(pairs[k] for k in self.selection)

    def places(self, model: Model) -> list[int]:
        """Places of its scalars in the flat array of the quantity, in the order of the value."""
        return [self.stated.part(model, i).start + k for i, k in self.pairs(model)]

    def labels(self, model: Model) -> list[str]:
        """Labels of its scalars as columns of the quantity, such as "tau:l_knee"."""
        labels = self.stated.labels(model)
        return [labels[k] for k in self.places(model)]

    def component_units(self, model: Model) -> tuple[str, ...]:
        return tuple(self.stated.units_at(model, i)[k] for i, k in self.pairs(model))


class RawMeasurement(QuantityMeasurement, listed=False):
    """Known components of one quantity.

    targets     "all", one name, or several: joints for τ and q̈, bodies for a, f, fx; for f the joint's name does as
                well
    components  "all", or for a, f, fx names out of nx ny nz fx fy fz (alpha_x … a_z for a), for τ and q̈ numbers
                of a joint with several degrees of freedom
    name        name of its value in a call, y={name: …}; default the class and its targets
    noise       None for exact equations (standard deviations are accepted by estimation problems)
    bias        of a log, unknown: a Constant or a RandomWalk; drift=density is short for bias=RandomWalk(density)
    """

    def __init__(
        self, targets: Names = "all", components: Names | int | Sequence[int] = "all", name: str | None = None,
        noise=None, bias: BiasModel | None = None, drift: Any = None,
    ):  # fmt: skip
        self.targets = targets if isinstance(targets, str) else tuple(targets)
        self.chosen = components if isinstance(components, str) and components == "all" else as_tuple(components)
        label = self.targets if isinstance(self.targets, str) else ",".join(self.targets)
        if self.chosen != "all":
            label += "." + ",".join(str(c) for c in self.chosen)
        kind = self.quantity if isinstance(self, Known) else type(self).__name__
        self.name, self.noise = name or (kind if label == "all" else f"{kind}({label})"), noise
        if drift is not None and bias is not None:
            raise InvalidInput(f"the bias of {self.name!r} is given twice, by bias= and by drift=")
        self.drift = bias_model_of(self.name, bias) if drift is None else RandomWalk(drift)

    def _identity(self) -> tuple[Any, ...]:
        """Hashable key: measurements with equal keys are equal."""
        noise = None if self.noise is None else _nested(np.asarray(self.noise).tolist())
        return (
            type(self), self.quantity, self.targets, self.chosen, self.selection, self.name, noise, self.drift,
            self.prior, self.switchable, self.unless,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RawMeasurement) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def scalars_of(self, model: Model, i: int) -> list[int]:
        valid = list(self.stated.components(model, i))
        for component in valid if self.chosen == "all" else self.chosen:
            if component not in valid:
                raise UnknownName(f"component in {self.name!r}:", component, [str(x) for x in valid])
        return [valid.index(component) for component in (valid if self.chosen == "all" else self.chosen)]

    def undriven(self, model: Model) -> bool:
        """True if all components are torques of free joints, which are zero because nothing drives these joints."""
        return self.quantity == "tau" and all(model.joints[i].kind == "free" for i, _ in self.pairs(model))

    def components(self, model: Model) -> tuple[str, ...]:
        return tuple(self.stated.scalar_names(model, i)[k] for i, k in self.pairs(model))

    def rows(self, ctx: Context) -> dict[tuple[str, str], np.ndarray]:
        model, pairs = ctx.model, self.pairs(ctx.model)
        result: dict[tuple[str, str], np.ndarray] = {}
        for row, (i, k) in enumerate(pairs):
            key = (self.quantity, self.stated.owners(model)[i])
            block = result.setdefault(key, np.zeros((len(pairs), self.stated.size(model, i))))
            block[row, k] = 1.0
        return result

    def describe(self, model: Model | None = None) -> dict:
        return {
            "type": type(self).__name__, "name": self.name, "targets": to_plain(self.targets),
            "components": to_plain(self.chosen),
        }  # fmt: skip

    def __repr__(self) -> str:
        selection = "" if self.selection is None else f", selection={self.selection}"
        return (
            f"{type(self).__name__}(targets={self.targets!r}, chosen={self.chosen!r}, name={self.name!r}, "
            f"noise={self.noise!r}{selection})"
        )


class Known(RawMeasurement):
    """Known components of a quantity by its name, such as Known("tau", "l_knee"); further ones have no other class.

    Raises UnknownName.
    """

    def __init__(
        self, quantity: str, targets: Names = "all", components: Names | int | Sequence[int] = "all",
        name: str | None = None, noise=None, bias: BiasModel | None = None, drift: Any = None,
    ):  # fmt: skip
        check_among("quantity of a Known:", quantity, user_visible())
        self.quantity = quantity
        super().__init__(targets, components, name, noise, bias, drift)

    def describe(self, model: Model | None = None) -> dict:
        return {**super().describe(), "quantity": self.quantity}


class JointAcceleration(RawMeasurement):
    """Known q̈ of joints [rad/s² or m/s²]."""

    quantity = "qdd"


class JointTorque(RawMeasurement):
    """Known τ of joints [N m or N]. Logs need no column for a free joint: nothing drives it, so its τ is zero."""

    quantity = "tau"


class ExternalWrench(RawMeasurement):
    """Known fx of bodies [N m, N], at the body's origin, in its coordinates; zero unless a call gives a value."""

    quantity = "fx"


class BodyAcceleration(RawMeasurement):
    """Known proper spatial acceleration a of bodies [rad/s², m/s²], in body coordinates."""

    quantity = "a"


class JointWrench(RawMeasurement):
    """Known wrench f transmitted through joints to their bodies [N m, N], in body coordinates."""

    quantity = "f"


# Raw measurements by the quantity that they state.
RAW: dict[str, type[RawMeasurement]] = {
    c.quantity: c for c in (JointTorque, JointAcceleration, ExternalWrench, BodyAcceleration, JointWrench)
}


def known(quantity: str, *arguments: Any, **named: Any) -> RawMeasurement:
    """The measurement of a quantity by its own class, or by `Known`; arguments as of these. Raises UnknownName."""
    return RAW[quantity](*arguments, **named) if quantity in RAW else Known(quantity, *arguments, **named)


def _nested(x: Any) -> Any:
    """Nested lists as tuples."""
    return tuple(map(_nested, x)) if isinstance(x, list) else x


def as_tuple(x) -> tuple:
    return (x,) if isinstance(x, (str, int)) else tuple(x)
