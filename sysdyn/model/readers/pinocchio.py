"""Conversion of Pinocchio's models, states, accelerations, forces and Jacobians to sysdyn's and back.

Pinocchio puts linear parts first, stores unbounded and planar angles as (cos, sin), and has no variables for joints
that mimic others. Apart from that both agree: frames of joints, attitudes as quaternions (x, y, z, w), velocities and
spatial accelerations of free joints in the body.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import InvalidInput, ModelError, install, optional
from sysdyn.model.builder import FramePlacement, JointLimits, ModelBuilder
from sysdyn.model.closures import Coupling
from sysdyn.model.inertia import inertia
from sysdyn.model.joints import Free, Helical, Joint, Planar, Prismatic, Revolute, Spherical, unit_axis
from sysdyn.model.massless import check_inertialess_joints
from sysdyn.model.model import Model
from sysdyn.model.se3 import X_motion, normalised, point_acceleration_term
from sysdyn.model.validate import check_count, unique_name
from sysdyn.program.arrays import finite_array

# Pinocchio's limits beyond this size mean no limit.
UNBOUNDED = 1e300
# Pinocchio's arrays by degree of freedom.
DOF_ARRAYS = ("armature", "damping", "friction", "velocityLimit", "effortLimit")
# Unit vectors by the letter at the end of a type's name.
AXES = {"X": (1.0, 0.0, 0.0), "Y": (0.0, 1.0, 0.0), "Z": (0.0, 0.0, 1.0)}
# Indices that swap the angular and linear halves of a spatial vector.
SWAPPED = (3, 4, 5, 0, 1, 2)


class JointPart(NamedTuple):
    """One of the joints that a joint of Pinocchio becomes, with its frame (E, r) in the previous frame.

    angle_index: index in q of an angle that Pinocchio stores as (cos, sin), or None.
    """

    joint: Joint
    E: np.ndarray
    r: np.ndarray
    angle_index: int | None = None

    @property
    def nq(self) -> int:
        """Number of positions in Pinocchio."""
        return self.joint.nq + (self.angle_index is not None)

    def normalised(self, q: np.ndarray) -> np.ndarray:
        """Positions (…, nq) with the quaternion normalised. Raises InvalidInput."""
        return q if self.joint.quaternion is None else normalised("q", q, self.joint.quaternion.start)


def from_pinocchio(pin_model: Any, strict: bool = False) -> Model:
    """Convert a `pinocchio.Model`.

    Parameters
    ----------
    pin_model : pinocchio.Model
    strict : bool
        Raise for implausible inertias and joints that move no inertia, instead of warning.

    Returns
    -------
    Model
        Joints keep Pinocchio's order and names; `PinocchioState` converts their states. Bodies are at the joints'
        frames and named as the first frame of type BODY there, else as the joint. A joint that is several of sysdyn's
        (SphericalZYX, Translation, Universal, composites) becomes these, "<joint>_0" and so on, all but the last
        massless. Joints that mimic others get a `Coupling`. All frames are kept ("<name>_" if a name is used), and so
        are gravity, armature, damping, friction and limits; reflected rotors (rotorInertia) are not.

    Raises
    ------
    ModelError
        For ellipsoid joints, and gravity with an angular part.
    InvalidInput
        For anything but a pinocchio.Model.
    """
    m = checked(pin_model)
    check_count(m.njoints - 1)
    if np.any(m.gravity.angular):
        raise ModelError("the gravity of the model has an angular part, but gravity has no angular part")
    state, builder, last = PinocchioState(m), ModelBuilder(), [-1]
    bodies = _body_names(m)
    joint_names, body_names = set(m.names), set(bodies)
    for j, parts in enumerate(state.parts, 1):
        at = last[m.parents[j]]
        for k, part in enumerate(parts):
            name = m.names[j] if len(parts) == 1 else unique_name(f"{m.names[j]}_{k}", joint_names)
            body = bodies[j] if k == len(parts) - 1 else unique_name(f"{bodies[j]}@{name}", body_names)
            at = builder.add(body, name, part.joint, at, X_motion(part.E, part.r))
        last.append(at)
        I = m.inertias[j]
        builder.add_inertia(at, inertia(I.mass, np.array(I.lever), np.array(I.inertia)))
    by_dof = {name: state._spread_to_dofs(np.asarray(getattr(m, name))) for name in DOF_ARRAYS}
    builder.armature, builder.damping, builder.friction = (by_dof[x].tolist() for x in DOF_ARRAYS[:3])
    bounds = (
        *state._bounds(m.lowerPositionLimit, m.upperPositionLimit),
        by_dof["velocityLimit"],
        by_dof["effortLimit"],
    )
    builder.limits = [JointLimits(*x) for x in zip(*(_unbounded(x).tolist() for x in bounds), strict=True)]
    for follower, leader in _leaders(m).items():
        x = m.joints[follower].extract()
        builder.closures.append(Coupling(m.names[follower], m.names[leader], (x.offset, x.scaling)))
    used_names = set(builder.body_names)
    for frame in m.frames:
        if not frame.parentJoint or frame.name != bodies[frame.parentJoint]:  # the body's own is there
            T = frame.placement
            builder.add_frame(
                unique_name(frame.name, used_names),
                FramePlacement.on_body(last[frame.parentJoint]).compose(T.rotation.T, T.translation),
            )
    floating = builder.parent.count(-1) == 1 and isinstance(builder.joints[0], Free)
    model = Model(
        name=m.name or "pinocchio", base="floating" if floating else "fixed", strict=strict,
        **builder.model_arguments(np.array(m.gravity.linear)),
    )  # fmt: skip
    check_inertialess_joints(model, strict)
    return model


class PinocchioState:
    """States, accelerations, forces, inertias and Jacobians of a `pinocchio.Model` ↔ those of its `from_pinocchio`.

        state = PinocchioState(pin_model)
        q, qd = state.to_sysdyn(q_pin, v_pin)
        a_pin = state.acceleration_to_pinocchio(sd.aba(model, q, qd, state.force_to_sysdyn(tau_pin)))

    G (nv, nv of Pinocchio) has a 1 for each degree of freedom, and the factor of those that mimic others:

        q̇ = G v,    q̈ = G a,    τ_pin = G^T τ,    M_pin = G^T H G,    J_pin = P J G

                           sysdyn                         Pinocchio
        free, q            p, quaternion xyzw             the same
        free, q̇, q̈, τ      [ω; v], [n; f] in the body     [v; ω], [f; n] in the body; q̈ is spatial in both
        unbounded          angle                          (cos, sin)
        planar             x, y, angle                    x, y, cos, sin
        6-vectors          angular part first             linear part first: P exchanges the halves

    Positions are (…, nq), vectors (…, nv) with leading batch axes. All methods raise InvalidInput for a wrong shape, a
    number that is not finite, and quaternions or (cos, sin) that are zero.

    bodies: numbers of the bodies that Pinocchio's joints carry, the first joint's first.
    """

    def __init__(self, pin_model: Any):
        m = checked(pin_model)
        self.parts = [_parts(m, j) for j in range(1, m.njoints)]
        self.nq, self.nv = sum(p.joint.nq for p in self._flat), sum(p.joint.nv for p in self._flat)
        self._pin_nq, self._pin_nv = int(m.nq), int(m.nv)
        leaders = _leaders(m)
        self.follows = bool(leaders)
        self._entries: list[tuple[JointPart, slice, slice, tuple[float, float] | None]] = []
        self.bodies: list[int] = []
        self._free: list[int] = []  # places of velocities of free joints
        at, number, column, factor = 0, -1, list[int](), list[float]()
        for j, parts in enumerate(self.parts, 1):
            joint = m.joints[leaders.get(j, j)]
            q, v = joint.idx_q, joint.idx_v
            law = None
            if j in leaders:
                mimic = m.joints[j].extract()
                law = (float(mimic.scaling), float(mimic.offset))
            for part in parts:
                self._entries.append((part, slice(at, at + part.joint.nq), slice(q, q + part.nq), law))
                components: Sequence[int] = range(part.joint.nv)
                if isinstance(part.joint, Free):
                    components, self._free = SWAPPED, [*self._free, len(column)]
                column += [v + k for k in components]
                factor += [law[0] if law else 1.0] * part.joint.nv
                at, q, v, number = at + part.joint.nq, q + part.nq, v + part.joint.nv, number + 1
            self.bodies.append(number)
        self._G = np.zeros((self.nv, self._pin_nv))
        self._G[np.arange(self.nv), column] = factor
        self._column, self._factor = np.array(column, dtype=int), np.array(factor)
        self._leader_dofs = np.concatenate(
            [np.zeros(0, dtype=int), *(np.flatnonzero(self._column == k)[:1] for k in range(self._pin_nv))]
        )

    @property
    def _flat(self) -> Iterator[JointPart]:
        return (part for parts in self.parts for part in parts)

    # ---- states ------------------------------------------------------------------------------------------------

    def to_sysdyn(self, q: ArrayLike, v: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """(q, q̇) of Pinocchio's (q, v)."""
        return self._positions(finite_array("q", q, (..., self._pin_nq))), self.velocity_to_sysdyn(v)

    def to_pinocchio(self, q: ArrayLike, qd: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Pinocchio's (q, v) of (q, q̇); joints that mimic others are omitted."""
        q = finite_array("q", q, (..., self.nq))
        found = np.zeros((*q.shape[:-1], self._pin_nq))
        for part, slice_q, pin_slice, law in self._entries:
            x = part.normalised(q[..., slice_q])
            if law is not None:
                continue
            if part.angle_index is not None:
                k = part.angle_index
                x = np.concatenate([x[..., :k], np.cos(x[..., k:]), np.sin(x[..., k:])], axis=-1)
            found[..., pin_slice] = x
        return found, self.velocity_to_pinocchio(qd)

    def velocity_to_sysdyn(self, v: ArrayLike) -> np.ndarray:
        """q̇ of Pinocchio's v."""
        return finite_array("v", v, (..., self._pin_nv))[..., self._column] * self._factor

    def velocity_to_pinocchio(self, qd: ArrayLike) -> np.ndarray:
        """Pinocchio's v of q̇."""
        return finite_array("qd", qd, (..., self.nv))[..., self._leader_dofs]

    def acceleration_to_sysdyn(self, a: ArrayLike, v: ArrayLike | None = None) -> np.ndarray:
        """q̈ of Pinocchio's a; v: its velocity, if the linear part of a free joint is classical, that of the point."""
        found = finite_array("a", a, (..., self._pin_nv))[..., self._column] * self._factor
        return found if v is None else found - point_acceleration_term(self.velocity_to_sysdyn(v), self._free)

    def acceleration_to_pinocchio(self, qdd: ArrayLike, qd: ArrayLike | None = None) -> np.ndarray:
        """Pinocchio's a of q̈; qd: q̇, if the linear part of a free joint shall be classical."""
        qdd = finite_array("qdd", qdd, (..., self.nv))
        extra = 0.0 if qd is None else point_acceleration_term(finite_array("qd", qd, (..., self.nv)), self._free)
        return (qdd + extra)[..., self._leader_dofs]

    def force_to_sysdyn(self, tau: ArrayLike) -> np.ndarray:
        """τ of Pinocchio's generalised force; none on joints that mimic others, whose leaders have it all."""
        tau = finite_array("tau", tau, (..., self._pin_nv))
        found = np.zeros((*tau.shape[:-1], self.nv))
        found[..., self._leader_dofs] = tau
        return found

    def force_to_pinocchio(self, tau: ArrayLike) -> np.ndarray:
        """Pinocchio's generalised force of τ."""
        return finite_array("tau", tau, (..., self.nv)) @ self._G

    def inertia_to_sysdyn(self, M: ArrayLike) -> np.ndarray:
        """H (…, nv, nv) of Pinocchio's joint-space inertia M. Raises InvalidInput if joints mimic others."""
        self._reject_followers("an inertia")
        return finite_array("M", M, (..., self._pin_nv, self._pin_nv))[..., self._column[:, None], self._column]

    def inertia_to_pinocchio(self, H: ArrayLike) -> np.ndarray:
        """Pinocchio's joint-space inertia of H (…, nv, nv)."""
        return self._G.T @ finite_array("H", H, (..., self.nv, self.nv)) @ self._G

    def jacobian_to_sysdyn(self, J: ArrayLike) -> np.ndarray:
        """Jacobian (…, 6, nv), angular part first, of Pinocchio's. Raises InvalidInput if joints mimic others."""
        self._reject_followers("a Jacobian")
        return finite_array("J", J, (..., 6, self._pin_nv))[..., SWAPPED, :][..., self._column]

    def jacobian_to_pinocchio(self, J: ArrayLike) -> np.ndarray:
        """Pinocchio's Jacobian of J (…, 6, nv)."""
        return (finite_array("J", J, (..., 6, self.nv)) @ self._G)[..., SWAPPED, :]

    @staticmethod
    def exchanged(x: ArrayLike) -> np.ndarray:
        """A spatial velocity, acceleration or force (…, 6) with its halves exchanged, either way."""
        return finite_array("x", x, (..., 6))[..., SWAPPED]

    def wrenches_to_pinocchio(self, fx: ArrayLike) -> Any:
        """External forces `StdVec_Force` on Pinocchio's joints of wrenches fx (nb, 6) on the bodies, in their axes."""
        pin, fx = _imported(), finite_array("fx", fx, (..., sum(map(len, self.parts)), 6))
        if fx.ndim != 2:
            raise InvalidInput(f"fx has shape {fx.shape}: wrenches of one state are needed")
        found = pin.StdVec_Force()
        found.extend([pin.Force.Zero(), *(pin.Force(fx[body][list(SWAPPED)]) for body in self.bodies)])
        return found

    def wrenches_to_sysdyn(self, forces: Sequence[Any]) -> np.ndarray:
        """Wrenches fx (nb, 6) on the bodies of forces on Pinocchio's joints, one for each with the universe."""
        if len(forces) != len(self.bodies) + 1:
            raise InvalidInput(f"{len(forces)} forces were given for {len(self.bodies) + 1} joints with the universe")
        fx = np.zeros((sum(map(len, self.parts)), 6))
        for body, force in zip(self.bodies, list(forces)[1:], strict=True):
            fx[body] = self.exchanged(force.vector)
        return fx

    # ---- parts ---------------------------------------------------------------------------------------------------

    def _spread_to_dofs(self, x: np.ndarray) -> np.ndarray:
        """Values (nv,) from values by Pinocchio's degrees of freedom; 0 for joints that mimic others."""
        found = np.zeros(self.nv)
        found[self._leader_dofs] = x
        return found

    def _bounds(self, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(lower, upper), each (nv,), from Pinocchio's limits (nq,); infinite for joints with several velocities."""
        found, at = (np.full(self.nv, -np.inf), np.full(self.nv, np.inf)), 0
        for part, _, pin_slice, law in self._entries:
            if part.joint.nv == 1 and part.angle_index is None and law is None:
                found[0][at], found[1][at] = lower[pin_slice.start], upper[pin_slice.start]
            at += part.joint.nv
        return found

    def _positions(self, q: np.ndarray) -> np.ndarray:
        """q (…, nq) of Pinocchio's positions."""
        found = list[np.ndarray]()
        for part, _, pin_slice, law in self._entries:
            x = q[..., pin_slice]
            if part.angle_index is not None:
                k = part.angle_index
                if not np.all(np.hypot(x[..., k], x[..., k + 1]) > 0.0):
                    raise InvalidInput("a pair (cos, sin) of q is zero and gives no angle")
                x = np.concatenate([x[..., :k], np.arctan2(x[..., k + 1], x[..., k])[..., None]], axis=-1)
            x = part.normalised(x)
            found.append(x if law is None else law[0] * x + law[1])
        return np.concatenate([np.zeros((*q.shape[:-1], 0)), *found], axis=-1)

    def _reject_followers(self, what: str) -> None:
        if self.follows:
            raise InvalidInput(f"{what} of Pinocchio does not separate joints that mimic others from their leaders")


def checked(m: Any) -> Any:
    """m, if it is a pinocchio.Model. Raises InvalidInput, BackendUnavailable."""
    pin = _imported()
    if not isinstance(m, pin.Model):
        raise InvalidInput(f"a pinocchio.Model is needed, not {type(m).__name__}; a RobotWrapper has it as .model")
    return m


def _imported() -> Any:
    return optional("pinocchio", f"Pinocchio is not available ({{error}}): {install('pin')}")


def _leaders(m: Any) -> dict[int, int]:
    """{mimicking joint: mimicked joint} by number; empty for versions of Pinocchio without such joints."""
    return dict(zip(getattr(m, "mimicking_joints", ()), getattr(m, "mimicked_joints", ()), strict=True))


def _parts(m: Any, j: int) -> list[JointPart]:
    """The joints that joint j of Pinocchio becomes."""
    T = m.jointPlacements[j]
    E, r = np.array(T.rotation).T, np.array(T.translation)
    if (leader := _leaders(m).get(j)) is not None:
        return [JointPart(_followed(m, j), E, r, *(part.angle_index for part in _parts(m, leader)))]
    return _of_type(m, m.joints[j], m.names[j], E, r)


def _of_type(m: Any, joint: Any, name: str, E: np.ndarray, r: np.ndarray) -> list[JointPart]:
    """The joints that a joint of Pinocchio with frame (E, r) becomes, by its type. Raises ModelError."""
    kind, x = joint.shortname().removeprefix("JointModel"), joint.extract() if hasattr(joint, "extract") else joint
    here, still = (E, r), (np.eye(3), np.zeros(3))

    def chain(*joints: Joint) -> list[JointPart]:
        return [JointPart(y, *(still if k else here)) for k, y in enumerate(joints)]

    if kind.startswith(("R", "P", "H")) and kind != "Planar":  # revolute, prismatic, helical, each about any axis
        if kind.startswith("RU") or "Unbounded" in kind:
            return [JointPart(_single(m, joint), E, r, angle_index=0)]
        return chain(_single(m, joint))
    if kind == "FreeFlyer":
        return chain(Free())
    if kind == "Spherical":
        return chain(Spherical())
    if kind == "Planar":
        return [JointPart(Planar(), E, r, angle_index=2)]
    if kind == "SphericalZYX":
        return chain(*(Revolute(AXES[y]) for y in "ZYX"))
    if kind == "Translation":
        return chain(*(Prismatic(AXES[y]) for y in "XYZ"))
    if kind == "Universal":
        return chain(Revolute(unit_axis(x.axis1)), Revolute(unit_axis(x.axis2)))
    if kind == "Composite":
        found = list[JointPart]()
        for inner, T in zip(x.joints, x.jointPlacements, strict=True):
            place = FramePlacement.on_body(0).compose(*still) if found else FramePlacement(0, E, r)
            place = place.compose(np.array(T.rotation).T, np.array(T.translation))
            found += _of_type(m, inner, name, place.E, place.r)
        return found
    raise ModelError(f"joint {name!r} is a {joint.shortname()}, which has no counterpart among the joints of sysdyn")


def _single(m: Any, joint: Any, factor: float = 1.0) -> Joint:
    """The joint with one degree of freedom whose motion subspace is Pinocchio's over a factor."""
    data = joint.createData()
    joint.calc(data, _imported().neutral(m), np.zeros(m.nv))
    linear, angular = np.split(np.array(data.S).ravel() / factor, [3])
    if not angular.any():
        return Prismatic(unit_axis(linear))
    axis = unit_axis(angular)
    return Helical(axis, float(linear @ angular)) if linear.any() else Revolute(axis)


def _followed(m: Any, j: int) -> Joint:
    """The joint that a mimicking joint becomes. Raises ModelError."""
    factor = float(m.joints[j].extract().scaling)
    if factor == 0.0:
        raise ModelError(f"joint {m.names[j]!r} mimics another with a factor of 0: make it fixed")
    return _single(m, m.joints[j], factor)


def _body_names(m: Any) -> list[str]:
    """Names of the bodies on Pinocchio's joints; the universe is first."""
    pin, found = _imported(), dict[int, str]()
    for frame in m.frames:
        if frame.type == pin.FrameType.BODY and frame.placement.isIdentity(0.0):
            found.setdefault(int(frame.parentJoint), frame.name)
    used_names = set[str]()
    return [unique_name(found.get(j, m.names[j]), used_names) for j in range(m.njoints)]


def _unbounded(x: np.ndarray) -> np.ndarray:
    """Limits, infinite where Pinocchio has none."""
    return np.where(np.abs(x) > UNBOUNDED, np.copysign(np.inf, x), x)
