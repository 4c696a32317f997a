"""Physical quantities of a robot: scalars per joint or spatial vectors per body, with shape, name, unit and meaning.

`QUANTITY` is the table. A user-defined quantity is one more entry; shapes, labels, units, checks, files, exports and
its terms in the equations of motion are derived from the entry. It is an unknown only of problems that use it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.model.model import Model
from sysdyn.program.graph import is_zero
from sysdyn.program.groups import Group

# Components of a wrench and of a spatial acceleration.
WRENCH = ("nx", "ny", "nz", "fx", "fy", "fz")
ACCELERATION = ("alpha_x", "alpha_y", "alpha_z", "a_x", "a_y", "a_z")
# (unit of the angular part, unit of the linear part)
_POSITION, _VELOCITY = ("rad", "m"), ("rad/s", "m/s")
MOTION, FORCE = ("rad/s²", "m/s²"), ("N m", "N")
# {component: unit}; "torque" and "force" are components of joint couplings.
UNIT_OF = {c: units[k // 3] for names, units in ((WRENCH, FORCE), (ACCELERATION, MOTION)) for k, c in enumerate(names)}
UNIT_OF |= {"torque": FORCE[0], "force": FORCE[1]}

# (model, i) → {"f": (6, n), "tau": (nv_i, n)} or one of them: constant coefficients of the n scalars of joint or body i
# in its equations of motion.
EquationTerms = Callable[[Model, int], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Quantity(ABC):
    """Scalars of each joint or body of a robot.

    Parameters
    ----------
    name : str
        Name in code, files and messages.
    noun, symbol : str
        Name and TeX symbol in legends.
    meaning : str
        Description in tables and in headers of exported code.
    component_units : (str, str)
        Units of the angular and the linear part.
    zero : bool
        True if a known value defaults to zero.
    equation_terms : callable, optional
        For a user-defined quantity: (model, i) → {"f": (6, n), "tau": (nv_i, n)} or one of them. "f" has the wrench on
        body i per scalar, added to fx; "tau" the torque at joint i per scalar, added to τ.
    """

    name: str
    noun: str
    symbol: str
    meaning: str
    component_units: tuple[str, str]
    zero: bool = False
    equation_terms: EquationTerms | None = None
    owner: ClassVar[str] = "joint"  # "joint" or "body": owner of the scalars.

    @abstractmethod
    def part(self, model: Model, i: int) -> slice:
        """Slice of joint or body i in the flattened array of this quantity."""

    @abstractmethod
    def shape(self, model: Model) -> tuple[int, ...]:
        """Shape of the array of this quantity for the whole robot."""

    @abstractmethod
    def units_at(self, model: Model, i: int) -> list[str]:
        """Unit of each scalar of this quantity at joint or body i."""

    @property
    def is_force(self) -> bool:
        """True for forces and moments, which transform like wrenches."""
        return self.component_units == FORCE

    @property
    def unit(self) -> tuple[str, ...]:
        """Possible units of a scalar."""
        return (" or ".join(self.component_units),)

    def checked_terms(self, model: Model, i: int) -> dict[str, np.ndarray]:
        """`equation_terms` of joint or body i as arrays, or {}. Raises InvalidInput for a wrong name or shape."""
        if self.equation_terms is None:
            return {}
        terms = {x: np.asarray(C, dtype=float) for x, C in self.equation_terms(model, i).items()}
        shapes = {"f": (6, self.size(model, i)), "tau": (model.joints[i].nv, self.size(model, i))}
        for equation, C in terms.items():
            if C.shape != shapes.get(equation):
                raise InvalidInput(
                    f"the terms of {self.name!r} at {self.owners(model)[i]!r} are {{equation: coefficients}} with some "
                    f"of {shapes}, not {equation!r} of shape {C.shape}"
                )
        return terms

    def size(self, model: Model, i: int) -> int:
        """Number of scalars of this quantity at joint or body i."""
        part = self.part(model, i)
        return part.stop - part.start

    def components(self, model: Model, i: int) -> Sequence[str | int]:
        """Name, such as "nx", or else number of each scalar of this quantity at joint or body i."""
        return range(self.size(model, i))

    def suffixes(self, model: Model, i: int) -> list[str]:
        """Name suffix of each scalar of this quantity at joint or body i: "[2]" or ".nz"; "" for a single scalar."""
        components = self.components(model, i)
        return [""] if len(components) == 1 else [f"[{k}]" for k in components]

    def owners(self, model: Model) -> tuple[str, ...]:
        """Names of the joints or bodies."""
        return model.joint_names

    def index(self, model: Model, name: str, kind: str = "", valid: Sequence[str] = ()) -> int:
        """Index of the joint or body called `name`. Raises UnknownName with `kind` and additional `valid` names."""
        names = self.owners(model)
        if name not in names:
            raise UnknownName(kind or self.owner, name, (*valid, *names), model.lumped(name))
        return names.index(name)

    def scalar_names(self, model: Model, i: int) -> list[str]:
        """Names of the unknowns of joint or body i, such as "tau(l_knee)" or "f(l_foot).nz"."""
        return [f"{self.name}({self.owners(model)[i]}){x}" for x in self.suffixes(model, i)]

    def labels(self, model: Model) -> tuple[str, ...]:
        """Column names of the flattened array in files and tables, such as "tau:l_knee" or "f:l_foot.nz"."""
        owners = enumerate(self.owners(model))
        return tuple(f"{self.name}:{owner}{x}" for i, owner in owners for x in self.suffixes(model, i))

    def units(self, model: Model) -> tuple[str, ...]:
        """Unit of each scalar of the flattened array."""
        return tuple(unit for i in range(len(self.owners(model))) for unit in self.units_at(model, i))

    def group(self, model: Model) -> Group:
        """Input or output array of a program that contains this quantity for all joints or bodies, as a `Group`."""
        shape = self.shape(model)
        default = np.zeros(int(np.prod(shape))) if self.zero else None
        return Group(self.name, shape, self.labels(model), self.units(model), default, self.meaning)


class JointQuantity(Quantity):
    """A scalar per degree of freedom: (nv,)."""

    def part(self, model: Model, i: int) -> slice:
        return model.v_slice(i)

    def shape(self, model: Model) -> tuple[int, ...]:
        return (model.nv,)

    def units_at(self, model: Model, i: int) -> list[str]:
        angular, straight = self.component_units
        return [angular if turn.any() else straight for turn in model.joints[i].S[:3].T]


class JointPositions(Quantity):
    """The position variables of the joints: (nq,)."""

    def part(self, model: Model, i: int) -> slice:
        return model.q_slice(i)

    def shape(self, model: Model) -> tuple[int, ...]:
        return (model.nq,)

    def units_at(self, model: Model, i: int) -> list[str]:
        joint = model.joints[i]
        quaternion = range(joint.nq)[joint.quaternion] if joint.quaternion is not None else ()
        angular, straight = self.component_units
        return ["1" if k in quaternion else angular if k in joint.angles else straight for k in range(joint.nq)]


class SpatialQuantity(Quantity):
    """A spatial vector per body in body coordinates, angular part first: (nb, 6)."""

    owner: ClassVar[str] = "body"

    def part(self, model: Model, i: int) -> slice:
        return slice(6 * i, 6 * i + 6)

    def shape(self, model: Model) -> tuple[int, ...]:
        return (model.nb, 6)

    def units_at(self, model: Model, i: int) -> list[str]:
        return [unit for unit in self.component_units for _ in range(3)]

    @property
    def unit(self) -> tuple[str, ...]:
        return self.component_units

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the six components."""
        return WRENCH if self.is_force else ACCELERATION

    def components(self, model: Model, i: int) -> Sequence[str]:
        return self.names

    def suffixes(self, model: Model, i: int) -> list[str]:
        return [f".{c}" for c in self.names]

    def owners(self, model: Model) -> tuple[str, ...]:
        return model.body_names


class JointWrenchQuantity(SpatialQuantity):
    """Wrench across the joint of each body, in body coordinates. Joint names are accepted as well as body names."""

    def index(self, model: Model, name: str, kind: str = "", valid: Sequence[str] = ()) -> int:
        if name in model.joint_names and name not in model.body_names:
            return model.joint_names.index(name)
        return super().index(model, name, kind, valid)


@dataclass(frozen=True)
class WrenchQuantity(Quantity):
    """Constraint wrench components w: (nw,). constraints: (name, components) of each constraint."""

    owner: ClassVar[str] = "constraint"
    constraints: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def part(self, model: Model, i: int) -> slice:
        start = sum(len(components) for _, components in self.constraints[:i])
        return slice(start, start + len(self.constraints[i][1]))

    def shape(self, model: Model) -> tuple[int, ...]:
        return (sum(len(components) for _, components in self.constraints),)

    def units_at(self, model: Model, i: int) -> list[str]:
        return [UNIT_OF.get(c, "") for c in self.constraints[i][1]]

    def components(self, model: Model, i: int) -> Sequence[str]:
        return self.constraints[i][1]

    def suffixes(self, model: Model, i: int) -> list[str]:
        return [f".{c}" for c in self.constraints[i][1]]

    def owners(self, model: Model) -> tuple[str, ...]:
        return tuple(name for name, _ in self.constraints)


_STATE = (
    JointPositions("q", "position", "$q$", "joint positions; quaternions (x, y, z, w) must have unit norm", _POSITION),
    JointQuantity("qd", "velocity", r"$\dot{q}$", "joint velocities", _VELOCITY),
)
# Final position of a motion that starts at q.
_GOAL = JointPositions("q1", "second position", "$q_1$", "second joint positions; quaternions (x, y, z, w)", _POSITION)
# Quantities of every problem that users can prescribe or request, in the order of outputs.
_USER_VISIBLE = (
    JointQuantity("tau", "torque", r"$\tau$", "joint torques and forces", FORCE),
    JointQuantity("qdd", "joint acceleration", r"$\ddot{q}$", "joint accelerations", MOTION),
    SpatialQuantity(
        "fx", "external wrench", "$f^x$", "external wrenches on the bodies, at their origins and in their coordinates",
        FORCE, zero=True,
    ),
    SpatialQuantity(
        "a", "acceleration", "$a$",
        "proper spatial accelerations of the bodies, gravity folded in, in their coordinates", MOTION,
    ),
    JointWrenchQuantity(
        "f", "joint wrench", "$f$", "wrenches across the joints on their bodies, in their coordinates", FORCE
    ),
)  # fmt: skip
# Additional unknowns of some matrix layouts: I a + ν, X_i a_λ(i) and X_i^T f_i.
_AUXILIARY = (
    SpatialQuantity("fB", "net force", "$f^B$", "net forces on the bodies", FORCE),
    SpatialQuantity("Xa", "acceleration", "$X a$", "accelerations of parents in coordinates of their children", MOTION),
    SpatialQuantity("Xf", "joint wrench", "$X f$", "wrenches across the joints in coordinates of parents", FORCE),
)
# Constraint wrenches of a problem without constraints; problems replace `constraints`.
WRENCHES = WrenchQuantity(
    "w",
    "constraint wrench",
    "$w$",
    "components of the wrenches of contacts and loop joints, in the axes of each",
    FORCE,
)
QUANTITY: dict[str, Quantity] = {x.name: x for x in (*_STATE, _GOAL, *_USER_VISIBLE, *_AUXILIARY)}
# Names of the quantities of every problem.
QUANTITIES = tuple(x.name for x in _USER_VISIBLE)


def user_defined() -> tuple[str, ...]:
    """Names of the user-defined quantities."""
    return tuple(name for name, x in QUANTITY.items() if x.equation_terms is not None)


def user_visible() -> tuple[str, ...]:
    """Names of the quantities that users can prescribe or request."""
    return (*QUANTITIES, *user_defined())


def is_spatial(name: str) -> bool:
    """True if `name` is a spatial quantity of bodies."""
    return isinstance(QUANTITY.get(name), SpatialQuantity)


def tangents(model: Model, name: str, values: np.ndarray) -> list[dict[str, object]]:
    """Tangent basis of an input at `values`: {scalar: rate} per tangent direction. For q: the columns of N(q)."""
    if not isinstance(QUANTITY.get(name), JointPositions):
        return [{f"{name}[{k}]": 1.0} for k in range(len(values))]
    directions = []
    for i, joint in enumerate(model.joints):
        part = model.q_slice(i)
        for column in joint.rates(values[part]).T:
            directions.append({f"{name}[{k}]": x for k, x in enumerate(column, part.start) if not is_zero(x)})
    return directions


# ---- for type checkers ---------------------------------------------------------------------------------------------


class KnownQuantities(TypedDict, total=False):
    """Types of the keyword arguments of calls that pass quantities."""

    tau: ArrayLike
    qdd: ArrayLike
    fx: ArrayLike
    a: ArrayLike
    f: ArrayLike


class SolvedQuantities:
    """Types of the attributes of solutions that return quantities."""

    tau: np.ndarray
    qdd: np.ndarray
    fx: np.ndarray
    a: np.ndarray
    f: np.ndarray
    w: np.ndarray
