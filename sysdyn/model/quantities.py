"""Physical quantities of a robot: scalars of joints, or six of each body, with shapes, names, units and meaning.

`QUANTITY` is the table. A user-defined quantity is one more entry: shapes, labels, units, checks, files, exports and
its terms in the equations of motion follow. It is an unknown of problems that state or measure it, and of no others.
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
# (Unit of the angular part, unit of the linear part).
_POSITION, _VELOCITY = ("rad", "m"), ("rad/s", "m/s")
MOTION, FORCE = ("rad/s²", "m/s²"), ("N m", "N")
# Unit by the name of a component; "torque" and "force" are those of joint couplings.
UNIT_OF = {c: units[k // 3] for names, units in ((WRENCH, FORCE), (ACCELERATION, MOTION)) for k, c in enumerate(names)}
UNIT_OF |= {"torque": FORCE[0], "force": FORCE[1]}

# (model, i) → {"f": (6, n), "tau": (nv_i, n)} or one of them: coefficients, constants of the model, of the n scalars of
# joint or body i in its equations of motion.
EquationTerms = Callable[[Model, int], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Quantity(ABC):
    """Scalars of each joint or body of a robot.

    Parameters
    ----------
    name : str
        Name in code, files and messages.
    noun, symbol : str
        In legends; the symbol in TeX.
    meaning : str
        In tables and headers of exported code.
    component_units : (str, str)
        Units of the angular and the linear part.
    zero : bool
        A value that is known exactly but not handed in is zero.
    equation_terms : callable, optional
        Of a user-defined quantity, (model, i) → {"f": (6, n), "tau": (nv_i, n)} or one of them: its wrench on body i,
        added to fx, and its torque at joint i, added to τ, by each of its n scalars there.
    """

    name: str
    noun: str
    symbol: str
    meaning: str
    component_units: tuple[str, str]
    zero: bool = False
    equation_terms: EquationTerms | None = None
    owner: ClassVar[str] = "joint"  # Kind of the parts of a robot that the scalars belong to.

    @abstractmethod
    def part(self, model: Model, i: int) -> slice:
        """Slice of joint or body i in the flat array."""

    @abstractmethod
    def shape(self, model: Model) -> tuple[int, ...]:
        """Shape of the array of all joints or bodies."""

    @abstractmethod
    def units_at(self, model: Model, i: int) -> list[str]:
        """Unit of each scalar of joint or body i."""

    @property
    def is_force(self) -> bool:
        """True for forces and moments, which transform as wrenches do."""
        return self.component_units == FORCE

    @property
    def unit(self) -> tuple[str, ...]:
        """Units that a scalar may have."""
        return (" or ".join(self.component_units),)

    def checked_terms(self, model: Model, i: int) -> dict[str, np.ndarray]:
        """`equation_terms` as arrays, {} without any. Raises InvalidInput for a wrong name or shape."""
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
        """Number of scalars of joint or body i."""
        part = self.part(model, i)
        return part.stop - part.start

    def components(self, model: Model, i: int) -> Sequence[str | int]:
        """Name or number of each scalar of joint or body i."""
        return range(self.size(model, i))

    def suffixes(self, model: Model, i: int) -> list[str]:
        """Suffix of the name of each scalar of joint or body i, such as "[2]" or ".nz"; "" if it is the only one."""
        components = self.components(model, i)
        return [""] if len(components) == 1 else [f"[{k}]" for k in components]

    def owners(self, model: Model) -> tuple[str, ...]:
        """Names of the joints or bodies."""
        return model.joint_names

    def index(self, model: Model, name: str, kind: str = "", valid: Sequence[str] = ()) -> int:
        """Index of the joint or body of this name. Raises UnknownName; `kind` and `valid` names extend its message."""
        names = self.owners(model)
        if name not in names:
            raise UnknownName(kind or self.owner, name, (*valid, *names), model.lumped(name))
        return names.index(name)

    def scalar_names(self, model: Model, i: int) -> list[str]:
        """Names of the unknowns of joint or body i, such as "tau(l_knee)" or "f(l_foot).nz"."""
        return [f"{self.name}({self.owners(model)[i]}){x}" for x in self.suffixes(model, i)]

    def labels(self, model: Model) -> tuple[str, ...]:
        """Column names of the flat array in files and tables, such as "tau:l_knee" or "f:l_foot.nz"."""
        owners = enumerate(self.owners(model))
        return tuple(f"{self.name}:{owner}{x}" for i, owner in owners for x in self.suffixes(model, i))

    def units(self, model: Model) -> tuple[str, ...]:
        """Unit of each scalar of the flat array."""
        return tuple(unit for i in range(len(self.owners(model))) for unit in self.units_at(model, i))

    def group(self, model: Model) -> Group:
        """The group of inputs or outputs of a program for the whole quantity."""
        shape = self.shape(model)
        default = np.zeros(int(np.prod(shape))) if self.zero else None
        return Group(self.name, shape, self.labels(model), self.units(model), default, self.meaning)


@dataclass(frozen=True)
class JointQuantity(Quantity):
    """A scalar of each degree of freedom: (nv,)."""

    def part(self, model: Model, i: int) -> slice:
        return model.v_slice(i)

    def shape(self, model: Model) -> tuple[int, ...]:
        return (model.nv,)

    def units_at(self, model: Model, i: int) -> list[str]:
        angular, straight = self.component_units
        return [angular if turn.any() else straight for turn in model.joints[i].S[:3].T]


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class SpatialQuantity(Quantity):
    """A spatial vector of each body, angular part first, in its coordinates: (nb, 6)."""

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


@dataclass(frozen=True)
class JointWrench(SpatialQuantity):
    """The wrench across the joint of each body, in coordinates of the body; a joint's name selects it, too."""

    def index(self, model: Model, name: str, kind: str = "", valid: Sequence[str] = ()) -> int:
        if name in model.joint_names and name not in model.body_names:
            return model.joint_names.index(name)
        return super().index(model, name, kind, valid)


@dataclass(frozen=True)
class ConstraintWrenches(Quantity):
    """Components w of the wrenches of constraints: (nw,). constraints: (name, components) of each constraint."""

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
# Position at the end of a motion from q.
_GOAL = JointPositions("q1", "second position", "$q_1$", "second joint positions; quaternions (x, y, z, w)", _POSITION)
# Quantities of every problem that a user can state or ask for, in the order of outputs.
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
    JointWrench("f", "joint wrench", "$f$", "wrenches across the joints on their bodies, in their coordinates", FORCE),
)  # fmt: skip
# Unknowns of some layouts only: I a + ν, X_i a_λ(i) and X_i^T f_i.
_AUXILIARY = (
    SpatialQuantity("fB", "net force", "$f^B$", "net forces on the bodies", FORCE),
    SpatialQuantity("Xa", "acceleration", "$X a$", "accelerations of parents in coordinates of their children", MOTION),
    SpatialQuantity("Xf", "joint wrench", "$X f$", "wrenches across the joints in coordinates of parents", FORCE),
)
# Wrenches of constraints, here of none; problems replace `constraints`.
WRENCHES = ConstraintWrenches(
    "w",
    "constraint wrench",
    "$w$",
    "components of the wrenches of contacts and loop joints, in the axes of each",
    FORCE,
)
QUANTITY: dict[str, Quantity] = {x.name: x for x in (*_STATE, _GOAL, *_USER_VISIBLE, *_AUXILIARY)}
# Names of the quantities of every problem, known or unknown.
QUANTITIES = tuple(x.name for x in _USER_VISIBLE)


def user_defined() -> tuple[str, ...]:
    """Names of the user-defined quantities of the table."""
    return tuple(name for name, x in QUANTITY.items() if x.equation_terms is not None)


def user_visible() -> tuple[str, ...]:
    """Names of the quantities that a user can state or ask for."""
    return (*QUANTITIES, *user_defined())


def is_spatial(name: str) -> bool:
    """True for the name of a spatial vector of the bodies."""
    return isinstance(QUANTITY.get(name), SpatialQuantity)


def tangents(model: Model, name: str, values: np.ndarray) -> list[dict[str, object]]:
    """Per tangent direction of an input, {scalar: its rate}; `values` are its scalars, on which q̇ of q depends."""
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
    """Keyword arguments of calls that state quantities."""

    tau: ArrayLike
    qdd: ArrayLike
    fx: ArrayLike
    a: ArrayLike
    f: ArrayLike


class SolvedQuantities:
    """Attributes of solutions, each by the name of a quantity."""

    tau: np.ndarray
    qdd: np.ndarray
    fx: np.ndarray
    a: np.ndarray
    f: np.ndarray
    w: np.ndarray
