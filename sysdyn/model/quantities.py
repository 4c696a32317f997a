"""Quantities of a robot: numbers of its joints, or six of each body, with their shapes, names, units and meaning.

`QUANTITY` is the table. A further quantity is a row there: shapes, labels, units, checks, files, exports, and its terms
in the equations of motion follow. It is an unknown of the problems that state or measure it, and of no others.
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

# Names of the components of a wrench.
WRENCH = ("nx", "ny", "nz", "fx", "fy", "fz")
# Names of the components of a spatial acceleration.
ACCELERATION = ("alpha_x", "alpha_y", "alpha_z", "a_x", "a_y", "a_z")
# Units of the angular and the linear part.
_POSITION, _VELOCITY = ("rad", "m"), ("rad/s", "m/s")
MOTION, FORCE = ("rad/s²", "m/s²"), ("N m", "N")
# Units by the name of a component; the components of couplings of joints are called torque and force.
UNIT_OF = {c: units[k // 3] for names, units in ((WRENCH, FORCE), (ACCELERATION, MOTION)) for k, c in enumerate(names)}
UNIT_OF |= {"torque": FORCE[0], "force": FORCE[1]}

# {"f": (6, n), "tau": (nv_i, n)}: wrench on body i in its coordinates, and torque at its joint, by each of the n
# scalars that joint or body i has. One of them may be left out; they are constants of the model.
Load = Callable[[Model, int], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Quantity(ABC):
    """Scalars of each joint or body of a robot.

    name: in code, files and messages. noun, symbol: in legends, TeX. meaning: in tables and headers of exported code.
    parts: units of the angular and the linear part. zero: an exact value that is not handed in is zero.
    load: of a further quantity, its terms beside fx in c(f) and beside τ in c(τ).
    """

    name: str
    noun: str
    symbol: str
    meaning: str
    parts: tuple[str, str]
    zero: bool = False
    load: Load | None = None
    owner: ClassVar[str] = "joint"  # Kind of the parts that the scalars belong to.

    @abstractmethod
    def part(self, model: Model, i: int) -> slice:
        """Place of joint or body i in the flat array."""

    @abstractmethod
    def shape(self, model: Model) -> tuple[int, ...]:
        """Shape of the array of all joints or bodies."""

    @abstractmethod
    def units_at(self, model: Model, i: int) -> list[str]:
        """Unit of each scalar of joint or body i."""

    @property
    def is_force(self) -> bool:
        """True for forces and moments, which go from frame to frame as wrenches do."""
        return self.parts == FORCE

    @property
    def unit(self) -> tuple[str, ...]:
        """The units that a scalar may have; degrees of freedom have one of them."""
        return (" or ".join(self.parts),)

    def loads(self, model: Model, i: int) -> dict[str, np.ndarray]:
        """{"f": (6, n), "tau": (nv_i, n)}: `load`, checked. Raises InvalidInput."""
        found = {} if self.load is None else {x: np.asarray(C, dtype=float) for x, C in self.load(model, i).items()}
        needed = {"f": (6, self.size(model, i)), "tau": (model.joints[i].nv, self.size(model, i))}
        for equation, C in found.items():
            if C.shape != needed.get(equation):
                raise InvalidInput(
                    f"the load of {self.name!r} is {{equation: coefficients}} with some of {needed} at "
                    f"{self.owners(model)[i]!r}, not {equation!r} of shape {C.shape}"
                )
        return found

    def size(self, model: Model, i: int) -> int:
        """Scalars of joint or body i."""
        part = self.part(model, i)
        return part.stop - part.start

    def components(self, model: Model, i: int) -> Sequence[str | int]:
        """Name or number of each scalar of joint or body i."""
        return range(self.size(model, i))

    def suffixes(self, model: Model, i: int) -> list[str]:
        """Endings of names that tell the scalars of joint or body i apart."""
        components = self.components(model, i)
        return [""] if len(components) == 1 else [f"[{k}]" for k in components]

    def owners(self, model: Model) -> tuple[str, ...]:
        """Names of the joints or bodies."""
        return model.joint_names

    def index(self, model: Model, name: str, kind: str = "", valid: Sequence[str] = ()) -> int:
        """Number of the joint or body of this name. Raises UnknownName; kind, valid: in its message."""
        names = self.owners(model)
        if name not in names:
            raise UnknownName(kind or self.owner, name, (*valid, *names), model.lumped(name))
        return names.index(name)

    def scalar_names(self, model: Model, i: int) -> list[str]:
        """Names of the unknowns of joint or body i, such as `tau(l_knee)` or `f(l_foot).nz`."""
        return [f"{self.name}({self.owners(model)[i]}){x}" for x in self.suffixes(model, i)]

    def labels(self, model: Model) -> tuple[str, ...]:
        """Columns in files and tables, such as "tau:l_knee" or "f:l_foot.nz"."""
        owners = enumerate(self.owners(model))
        return tuple(f"{self.name}:{owner}{x}" for i, owner in owners for x in self.suffixes(model, i))

    def units(self, model: Model) -> tuple[str, ...]:
        """Unit of each scalar of the flat array."""
        return tuple(unit for i in range(len(self.owners(model))) for unit in self.units_at(model, i))

    def group(self, model: Model) -> Group:
        """Group of inputs or outputs that holds all of it."""
        shape = self.shape(model)
        default = np.zeros(int(np.prod(shape))) if self.zero else None
        return Group(self.name, shape, self.labels(model), self.units(model), default, self.meaning)


@dataclass(frozen=True)
class Freedoms(Quantity):
    """A scalar of each degree of freedom: (nv,)."""

    def part(self, model: Model, i: int) -> slice:
        return model.v_slice(i)

    def shape(self, model: Model) -> tuple[int, ...]:
        return (model.nv,)

    def units_at(self, model: Model, i: int) -> list[str]:
        angular, straight = self.parts
        return [angular if turn.any() else straight for turn in model.joints[i].S[:3].T]


@dataclass(frozen=True)
class Positions(Quantity):
    """The position variables of the joints: (nq,)."""

    def part(self, model: Model, i: int) -> slice:
        return model.q_slice(i)

    def shape(self, model: Model) -> tuple[int, ...]:
        return (model.nq,)

    def units_at(self, model: Model, i: int) -> list[str]:
        joint = model.joints[i]
        quaternion = range(joint.nq)[joint.quaternion] if joint.quaternion is not None else ()
        angular, straight = self.parts
        return ["1" if k in quaternion else angular if k in joint.angles else straight for k in range(joint.nq)]


@dataclass(frozen=True)
class Spatial(Quantity):
    """A spatial vector of each body, angular part first, in its coordinates: (nb, 6)."""

    owner: ClassVar[str] = "body"

    def part(self, model: Model, i: int) -> slice:
        return slice(6 * i, 6 * i + 6)

    def shape(self, model: Model) -> tuple[int, ...]:
        return (model.nb, 6)

    def units_at(self, model: Model, i: int) -> list[str]:
        return [unit for unit in self.parts for _ in range(3)]

    @property
    def unit(self) -> tuple[str, ...]:
        return self.parts

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
class Transmitted(Spatial):
    """A spatial vector of each body that goes across its joint, which may be named for it."""

    def index(self, model: Model, name: str, kind: str = "", valid: Sequence[str] = ()) -> int:
        if name in model.joint_names and name not in model.body_names:
            return model.joint_names.index(name)
        return super().index(model, name, kind, valid)


@dataclass(frozen=True)
class ConstraintWrenches(Quantity):
    """The components w of the wrenches of constraints: (nw,). constraints: (name, components) of each."""

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


# The state of a robot.
_STATE = (
    Positions("q", "position", "$q$", "joint positions; quaternions (x, y, z, w) must have unit norm", _POSITION),
    Freedoms("qd", "velocity", r"$\dot{q}$", "joint velocities", _VELOCITY),
)
# A second position, at the end of a motion from q.
_GOAL = Positions("q1", "second position", "$q_1$", "second joint positions; quaternions (x, y, z, w)", _POSITION)
# Quantities that a user can know or ask for, in the order of outputs.
_STATED = (
    Freedoms("tau", "torque", r"$\tau$", "joint torques and forces", FORCE),
    Freedoms("qdd", "joint acceleration", r"$\ddot{q}$", "joint accelerations", MOTION),
    Spatial(
        "fx", "external wrench", "$f^x$", "external wrenches on the bodies, at their origins and in their coordinates",
        FORCE, zero=True,
    ),
    Spatial(
        "a", "acceleration", "$a$",
        "proper spatial accelerations of the bodies, gravity folded in, in their coordinates", MOTION,
    ),
    Transmitted("f", "joint wrench", "$f$", "wrenches across the joints on their bodies, in their coordinates", FORCE),
)  # fmt: skip
# Unknowns of some layouts that are no quantities of their own: I a + ν, X_i a_λ(i) and X_i^T f_i.
_INNER = (
    Spatial("fB", "net force", "$f^B$", "net forces on the bodies", FORCE),
    Spatial("Xa", "acceleration", "$X a$", "accelerations of parents in coordinates of their children", MOTION),
    Spatial("Xf", "joint wrench", "$X f$", "wrenches across the joints in coordinates of parents", FORCE),
)
# The wrenches of the constraints of a problem without any.
WRENCHES = ConstraintWrenches(
    "w",
    "constraint wrench",
    "$w$",
    "components of the wrenches of contacts and loop joints, in the axes of each",
    FORCE,
)
# Every quantity by name.
QUANTITY: dict[str, Quantity] = {x.name: x for x in (*_STATE, _GOAL, *_STATED, *_INNER)}
# Names of the quantities that every problem has, known or not.
QUANTITIES = tuple(x.name for x in _STATED)


def further() -> tuple[str, ...]:
    """Names of the further quantities of the table."""
    return tuple(name for name, x in QUANTITY.items() if x.load is not None)


def stated() -> tuple[str, ...]:
    """Names of the quantities that a user can know or ask for."""
    return (*QUANTITIES, *further())


def is_spatial(name: str) -> bool:
    """True if the name is of a spatial vector of the bodies."""
    return isinstance(QUANTITY.get(name), Spatial)


# ---- for type checkers ---------------------------------------------------------------------------------------------


class KnownQuantities(TypedDict, total=False):
    """Known quantities of a call by keyword."""

    tau: ArrayLike
    qdd: ArrayLike
    fx: ArrayLike
    a: ArrayLike
    f: ArrayLike


class SolvedQuantities:
    """Attributes of solutions."""

    tau: np.ndarray
    qdd: np.ndarray
    fx: np.ndarray
    a: np.ndarray
    f: np.ndarray
    w: np.ndarray


def tangents(model: Model, name: str, values: np.ndarray) -> list[dict[str, object]]:
    """Rates of the scalars of an input, for each scalar that it is differentiated by."""
    if not isinstance(QUANTITY.get(name), Positions):
        return [{f"{name}[{k}]": 1.0} for k in range(len(values))]
    directions = []
    for i, joint in enumerate(model.joints):
        part = model.q_slice(i)
        for column in joint.rates(values[part]).T:
            directions.append({f"{name}[{k}]": x for k, x in enumerate(column, part.start) if not is_zero(x)})
    return directions
