"""Measurements: named lists of scalar equations, exact unless they have noise, for all that is known or measured.

Raw ones state components of q̈, τ, fx, a or f directly. A custom one subclasses `Measurement` and gives its block rows.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, ClassVar, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from sysdyn.errors import InvalidInput
from sysdyn.measurements.bias_models import BiasModel
from sysdyn.model import Frame, Model
from sysdyn.model.kinematics import frame_placement, joint_transforms, path, velocities
from sysdyn.model.quantities import QUANTITY
from sysdyn.model.se3 import X_inverse, X_motion, checked_pose, rotation

# A place: a frame of the model, or (body, T (4, 4)), a pose fixed in a body.
FrameRef = str | tuple[str, np.ndarray]
# Names of components, joints or bodies: "all", one, or several.
Names = str | Sequence[str]


@dataclass(frozen=True)
class Context:
    """State and kinematics that a measurement may use in its rows; every value is float or Expr.

    A frame is given by its name in the model, or as (body, T): the pose T (4, 4) fixed in that body.

    q (nq,), qd (nv,)     the state
    body(frame)           name of the body that carries it
    X(frame, reference)   (6, 6) motion transform to the frame from body `reference` (default: the carrying body)
    X0(frame)             (6, 6) motion transform from the world to the frame
    R(frame)              (3, 3) rotation from coordinates of the frame to the world's
    p(frame)              (3,) position of the frame's origin in the world
    v(frame)              (6,) velocity of the frame in its own coordinates
    between(a, b)         (E, p×): E (3, 3) rotates axes of b to axes of a; p from origin a to origin b, in axes of a
    """

    model: Model
    transforms: Sequence[np.ndarray]
    velocities: Sequence[np.ndarray]
    q: np.ndarray = field(default_factory=lambda: np.zeros(0))
    qd: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def at(cls, model: Model, q: np.ndarray, qd: np.ndarray) -> Self:
        """The context of a state; q, qd: floats or Expr."""
        X = joint_transforms(model, q)
        return cls(model, X, velocities(model, X, qd)[0], q, qd)

    def body(self, frame: FrameRef) -> str:
        return self.model.body_names[moving_frame(self.model, frame).body]

    def X(self, frame: FrameRef, reference: str | None = None) -> np.ndarray:
        found = find_frame(self.model, frame)
        if reference is None:
            return found.X.astype(object)
        target = self.model.body_index(reference)
        if target not in path(self.model, found.body):
            raise InvalidInput(
                f"body {reference!r} does not carry frame {found.name!r}: it must be on its path to the base"
            )
        return self._from(found, target)

    def X0(self, frame: FrameRef) -> np.ndarray:
        return self._from(find_frame(self.model, frame), -1)

    def R(self, frame: FrameRef) -> np.ndarray:
        found = find_frame(self.model, frame)
        E = rotation(found.X).astype(object)
        for i in path(self.model, found.body):
            E = E @ rotation(self.transforms[i])
        return E.T

    def p(self, frame: FrameRef) -> np.ndarray:
        return frame_placement(self.model, np.asarray(self.q, dtype=object), find_frame(self.model, frame))[1]

    def v(self, frame: FrameRef) -> np.ndarray:
        found = find_frame(self.model, frame)
        if found.body < 0:
            return np.array([0.0] * 6, dtype=object)
        return found.X.astype(object) @ self.velocities[found.body]

    def between(self, a: FrameRef, b: FrameRef) -> tuple[np.ndarray, np.ndarray]:
        """(E, p×), see the class; computed relative to a body that carries both frames."""
        ways = [path(self.model, find_frame(self.model, frame).body) for frame in (a, b)]
        common = next((i for i in ways[0] if i in ways[1]), -1)
        X = self._from(find_frame(self.model, a), common) @ X_inverse(self._from(find_frame(self.model, b), common))
        E = rotation(X)
        return E, X[3:, :3] @ E.T

    def _from(self, frame: Frame, target: int) -> np.ndarray:
        X, i = frame.X.astype(object), frame.body
        while i != target:
            X = X @ self.transforms[i]
            i = self.model.parent[i]
        return X


def find_frame(model: Model, frame: FrameRef) -> Frame:
    """The frame of that name, or the frame (body, T). Raises UnknownName, InvalidInput."""
    if isinstance(frame, str):
        return model.frame(frame)
    body, T = frame
    T = checked_pose(f"pose of a frame on {body!r}", T)
    return Frame(f"a pose on {body}", model.body_index(body), X_motion(T[:3, :3].T, T[:3, 3]))


def moving_frame(model: Model, frame: FrameRef) -> Frame:
    """`find_frame`, of a moving frame. Raises InvalidInput for a frame of the base, which does not move."""
    found = find_frame(model, frame)
    if found.body < 0:
        raise InvalidInput(f"frame {found.name!r} is fixed to the base and has no dynamic variables")
    return found


# Annotated types that are checked, in the words of messages; arguments of other types are checked at their use.
_WORDS = {
    str: "a name", bool: "True or False", int: "an integer", float: "a number", type(None): "None",
    Sequence[str]: "a list of names", Sequence[int]: "a list of integers",
}  # fmt: skip


def check_arguments(cls: type, arguments: Sequence, named: Mapping[str, Any]) -> None:
    """Raise InvalidInput for an argument whose type does not match its annotation in `cls.__init__`."""
    signature, alternatives = _annotated(cls)
    try:
        given = signature.bind_partial(None, *arguments, **named).arguments
    except TypeError:  # raised by the call of the class itself
        return
    for name, types in alternatives.items():
        if name in given and not any(_is(given[name], x) for x in types):
            words = " or ".join(_WORDS[x] for x in types)
            raise InvalidInput(f"{cls.__name__}: {name} must be {words}, not {given[name]!r}")


@functools.cache
def _annotated(cls: type) -> tuple[inspect.Signature, dict[str, tuple]]:
    """(signature of `cls.__init__`, {argument: types} of the arguments whose types can all be checked)."""
    make = cls.__init__  # type: ignore[misc]
    try:
        hints = get_type_hints(make)
    except NameError:  # annotations of a user's class may exist for type checkers only
        hints = {}
    types = {name: get_args(x) if get_origin(x) in (Union, UnionType) else (x,) for name, x in hints.items()}
    signature = inspect.signature(make)
    several = {name for name, x in signature.parameters.items() if x.kind in (x.VAR_POSITIONAL, x.VAR_KEYWORD)}
    return signature, {name: x for name, x in types.items() if name not in several and all(y in _WORDS for y in x)}


def _is(x: Any, kind: Any) -> bool:
    if kind in (Sequence[str], Sequence[int]):
        return isinstance(x, (list, tuple, range, np.ndarray)) and all(_is(y, get_args(kind)[0]) for y in x)
    if isinstance(x, (bool, np.bool_)):
        return kind is bool
    return isinstance(x, {int: (int, np.integer), float: (int, float, np.number)}.get(kind, kind))


class Measurement:
    """Base class: `m` equations Σ block · x + bias = y with value y of shape (…, m).

    Subclasses give `name`, `rows(ctx) → {(quantity, owner name): (m, size) block}`, `bias(ctx) → (m,)` (default
    zero), and `components(model) → m names`; `noise` is None for an exact equation. optional: the value is zero
    unless a call gives one. A measurement that can be stored gives `describe()`.

    selection: numbers of its components among all that it could have; None for all. A `selectable` one can be measured
    in part, with noise or without: see `select`.

    quantity: the quantity whose components it states directly; empty for combinations. units: unit of each component,
    or the units that they may have. drift: its unknown bias over a log; None for none.

    prior: its value is a prior mean, zero by default, not a reading. switchable: it can be switched off state by state.
    unless: name of a Stance; along a log the measurement is on whenever the stance is off. See `sysdyn.Prior` and
    `sysdyn.Switchable`.

    One of_state has no rows: its value is a smooth function of q and q̇, `value(ctx) → (m,)`, and these are unknowns of
    whole trajectories. See `sysdyn.measurements.state_sensors`.
    """

    name: str
    noise: Any = None
    optional: bool = False
    prior: bool = False
    switchable: bool = False
    unless: str | None = None
    quantity: str = ""
    units: tuple[str, ...] = ()
    selectable: bool = False
    selection: tuple[int, ...] | None = None
    drift: BiasModel | None = None
    of_state: bool = False
    kinds: ClassVar[dict[str, type[Measurement]]] = {}  # classes by name, for problem files and stored problems

    def __init_subclass__(cls, listed: bool = True, **keywords: Any) -> None:
        """Register the class by its name, unless it is a base class or a class of sysdyn has the name."""
        super().__init_subclass__(**keywords)
        namesake = Measurement.kinds.get(cls.__name__)
        if listed and (namesake is None or _package(cls) == "sysdyn" or _package(namesake) != "sysdyn"):
            Measurement.kinds[cls.__name__] = cls

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """Raises InvalidInput for arguments whose types do not match the annotations of the class."""
        check_arguments(cls, arguments, named)
        return super().__new__(cls)

    @property
    def argument_hint(self) -> str:
        """Argument of a call that hands its value in, for messages."""
        return f"y={{{self.name!r}: …}}" + (f", or active={{{self.name!r}: False}}" if self.switchable else "")

    @property
    def zero_by_default(self) -> bool:
        """True if its value is zero, while it is on, unless a call gives one."""
        return self.optional or self.prior or (self.quantity in QUANTITY and QUANTITY[self.quantity].zero)

    @property
    def has_default(self) -> bool:
        """True if a call may leave out its value; one that leaves out that of a switchable sensor switches it off."""
        return self.zero_by_default and not (self.switchable and self.noise is not None)

    def components(self, model: Model) -> tuple[str, ...]:
        raise NotImplementedError(f"{type(self).__name__} must implement components(model)")

    def rows(self, ctx: Context) -> Mapping[tuple[str, str], np.ndarray]:
        raise NotImplementedError(f"{type(self).__name__} must implement rows(ctx)")

    def bias(self, ctx: Context) -> np.ndarray:
        return np.zeros(len(self.components(ctx.model)))

    def value(self, ctx: Context) -> np.ndarray:
        """(m,) value at a state, if it is of_state."""
        raise InvalidInput(f"the value of {self.name!r} does not follow from q and q̇ alone")

    def residual(self, ctx: Context, y: np.ndarray) -> np.ndarray:
        """(m,) value less the measured y, if it is of_state: smooth in q and q̇, zero if they agree."""
        return self.value(ctx) - np.asarray(y, dtype=object)

    def component_units(self, model: Model) -> tuple[str, ...]:
        """Unit of each component."""
        return self.units

    def select(self, numbers: Sequence[int]) -> Measurement:
        """The measurement of the components with these numbers alone, with its name, and their noise and bias.

        Raises InvalidInput if its components are measured together.
        """
        if not self.selectable:
            if self.noise is not None or self.of_state or isinstance(self, Constraint):
                raise InvalidInput(f"{self.name!r} cannot be divided: its components are measured together")
            return Part(self, numbers)
        drift = None if self.drift is None else self.drift.select(numbers)
        all_numbers = range(max(numbers, default=-1) + 1) if self.selection is None else self.selection
        selection = tuple(all_numbers[k] for k in numbers)
        return changed(self, selection=selection, noise=select_noise(self.noise, numbers), drift=drift)

    def identity(self) -> str | None:
        """Text shared by measurements that differ in name, components and noise alone; None unless `selectable`."""
        return None

    def simplified_rows(
        self, ctx: Context
    ) -> tuple[Mapping[tuple[str, str], np.ndarray], np.ndarray, np.ndarray | None]:
        """Simpler equations (T rows, T bias, T) with an invertible T (m, m): T Σ block · x + T bias = T y.

        None for T = 1. It turns values instead of unknowns, so that fewer coefficients (and pivots) depend on q.
        """
        return self.rows(ctx), self.bias(ctx), None

    def describe(self, model: Model | None = None) -> dict | None:
        """Description as JSON, or None if it cannot be written down.

        With a model, also data that rows depend on but the digest of the model lacks, such as the pose of the frame.
        """
        return None


class Part(Measurement, listed=False):
    """Some of the equations of an exact measurement whose class gives all rows at once, such as a custom one."""

    selection: tuple[int, ...]

    def __init__(self, whole: Measurement, selection: Sequence[int]):
        self.whole, self.selection, self.name, self.optional = whole, tuple(selection), whole.name, whole.optional
        self.drift = None if whole.drift is None else whole.drift.select(selection)

    def components(self, model: Model) -> tuple[str, ...]:
        names = self.whole.components(model)
        return tuple(names[k] for k in self.selection)

    def component_units(self, model: Model) -> tuple[str, ...]:
        units = self.whole.component_units(model)  # none if nobody gave some
        return tuple(units[k] for k in self.selection) if units else ()

    def rows(self, ctx: Context) -> dict[tuple[str, str], np.ndarray]:
        return {place: np.asarray(block)[list(self.selection)] for place, block in self.whole.rows(ctx).items()}

    def bias(self, ctx: Context) -> np.ndarray:
        return np.asarray(self.whole.bias(ctx))[list(self.selection)]

    def describe(self, model: Model | None = None) -> dict | None:
        return self.whole.describe(model)

    def __repr__(self) -> str:
        return f"<some of {self.whole!r}>"


M = TypeVar("M", bound=Measurement)


def changed(m: M, **attributes: Any) -> M:
    """A copy of the measurement with other values of attributes."""
    copied = copy.copy(m)
    vars(copied).update(attributes)
    return copied


def select_noise(noise: Any, numbers: Sequence[int]) -> Any:
    """The declared noise of the components with these numbers, in their order."""
    x = np.asarray(noise)
    return noise if noise is None or x.ndim == 0 else x[np.ix_(*[list(numbers)] * x.ndim)]


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


# An output of a solver: a quantity by its name, or a measurement for its value at the solution.
Output = str | Measurement


def output_name(output: Output) -> str:
    """Name of an output in solutions."""
    return output if isinstance(output, str) else output.name


class Constraint(Measurement, listed=False):
    """A measurement that brings unknowns of its own: the wrench that keeps a motion to its known components.

    Subclasses give `wrench(model) → names of the components of w` and `loads(ctx) → {body name: (6, size of w)}`: the
    wrench L w on each body, in its coordinates, which is one term more in c(f_i) as fx_i is. Without friction L is the
    transpose of the block of `rows` for the acceleration of that body. `torques` does for joints, with the block of
    `rows` for their accelerations, what `loads` does for bodies.
    """

    def wrench(self, model: Model) -> tuple[str, ...]:
        raise NotImplementedError(f"{type(self).__name__} must implement wrench(model)")

    def loads(self, ctx: Context) -> Mapping[str, np.ndarray]:
        raise NotImplementedError(f"{type(self).__name__} must implement loads(ctx)")

    def torques(self, ctx: Context) -> Mapping[str, np.ndarray]:
        """Joint torques L w by the constraint wrench w: {joint name: L (degrees of freedom, size of w)}.

        L w is added to τ_i in c(τ_i), the projection of f_i on the joint axis. No joint by default.
        """
        return {}

    def actions(self, ctx: Context) -> Iterator[tuple[str, int, np.ndarray]]:
        """(equation "f" or "tau", number of its body or joint, L) of each term L w."""
        for name, L in self.loads(ctx).items():
            yield "f", ctx.model.body_index(name), np.asarray(L)
        for name, L in self.torques(ctx).items():
            yield "tau", ctx.model.joint_index(name), np.asarray(L)

    def implausible(self, model: Model) -> str | None:
        """A doubtful choice of arguments, in words for a warning; None if there is none."""
        return None
