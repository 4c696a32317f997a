"""Conversion of models, states, accelerations, forces and Jacobians between Pinocchio and sysdyn.

In Pinocchio, spatial vectors have the linear part first, unbounded and planar angles are stored as (cos, sin), and
mimic joints have no variables. The other conventions agree: joint frames, quaternions (x, y, z, w), and velocities and
spatial accelerations of free joints in body coordinates.
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
from sysdyn.model.se3 import X_motion, normalise_quaternion, point_acceleration_term
from sysdyn.model.validate import check_count, unique_name
from sysdyn.program.arrays import finite_array

# Limits of Pinocchio with a larger absolute value mean no limit.
UNBOUNDED = 1e300
# Names of Pinocchio's arrays per degree of freedom.
DOF_ARRAYS = ("armature", "damping", "friction", "velocityLimit", "effortLimit")
# {last letter of a joint type: axis}
AXES = {"X": (1.0, 0.0, 0.0), "Y": (0.0, 1.0, 0.0), "Z": (0.0, 0.0, 1.0)}
# Indices that swap the angular and linear halves of a spatial vector.
SWAPPED = (3, 4, 5, 0, 1, 2)


class JointPart(NamedTuple):
    """A sysdyn joint that represents a Pinocchio joint or a part of it. (E, r) place its frame in the previous frame.

    angle_index: index in q of the angle that Pinocchio stores as (cos, sin), or None.
    """

    joint: Joint
    E: np.ndarray
    r: np.ndarray
    angle_index: int | None = None

    @property
    def nq(self) -> int:
        """Number of position variables in Pinocchio."""
        return self.joint.nq + (self.angle_index is not None)

    def normalise(self, q: np.ndarray) -> np.ndarray:
        """Normalise the quaternion in positions (…, nq). Raises InvalidInput if it is zero."""
        return q if self.joint.quaternion is None else normalise_quaternion("q", q, self.joint.quaternion.start)


def from_pinocchio(pin_model: Any, strict: bool = False) -> Model:
    """Convert a `pinocchio.Model`.

    Parameters
    ----------
    pin_model : pinocchio.Model
    strict : bool
        Raise ModelError, instead of warning, for physically inconsistent inertias and joints that move no inertia.

    Returns
    -------
    Model
        Joints keep their order and names; `PinocchioState` converts states. Body frames coincide with joint frames. A
        body has the name of the first BODY frame at its joint, else the joint name. SphericalZYX, Translation,
        Universal and composite joints become several joints "<joint>_0", "<joint>_1" …; their bodies are massless,
        except for the last one. Mimic joints get a `Coupling`. Frames ("<name>_" if the name is in use), gravity,
        armature, damping, friction and limits are converted. Rotor inertias (rotorInertia) are ignored.

    Raises
    ------
    ModelError
        For ellipsoid joints, and for gravity with an angular part.
    InvalidInput
        For an object other than a pinocchio.Model.
    """
    m = checked(pin_model)
    check_count(m.njoints - 1)
    if np.any(m.gravity.angular):
        raise ModelError("the gravity vector of the model has a nonzero angular part; it must be zero")
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
    builder.limits = [JointLimits(*x) for x in zip(*(_to_infinite(x).tolist() for x in bounds), strict=True)]
    for follower, leader in _leaders(m).items():
        x = m.joints[follower].extract()
        builder.closures.append(Coupling(m.names[follower], m.names[leader], (x.offset, x.scaling)))
    used_names = set(builder.body_names)
    for frame in m.frames:
        if not frame.parentJoint or frame.name != bodies[frame.parentJoint]:  # `Model` adds body frames
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
    """Converts states, accelerations, forces, inertias and Jacobians between Pinocchio and `from_pinocchio` models.

        state = PinocchioState(pin_model)
        q, qd = state.to_sysdyn(q_pin, v_pin)
        a_pin = state.acceleration_to_pinocchio(sd.aba(model, q, qd, state.force_to_sysdyn(tau_pin)))

    G (nv, nv of Pinocchio) has a 1 for each independent degree of freedom and the factor of each mimic joint:

        q̇ = G v,    q̈ = G a,    τ_pin = G^T τ,    M_pin = G^T H G,    J_pin = P J G

                           sysdyn                         Pinocchio
        free, q            p, quaternion xyzw             p, quaternion xyzw
        free, q̇, q̈, τ      [ω; v], [n; f] in the body     [v; ω], [f; n] in the body; q̈ is spatial in both
        unbounded          angle                          (cos, sin)
        planar             x, y, angle                    x, y, cos, sin
        6-vectors          angular part first             linear part first; P swaps the parts

    Positions are (…, nq), vectors (…, nv), with leading batch axes. All methods raise InvalidInput for a wrong shape, a
    number that is not finite, and a zero quaternion or (cos, sin). `bodies` has the body index of each Pinocchio joint,
    without the universe.
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
        self._free: list[int] = []  # start of the velocity of each free joint in q̇
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
        """Convert Pinocchio's (q, v) to (q, q̇)."""
        return self._positions(finite_array("q", q, (..., self._pin_nq))), self.velocity_to_sysdyn(v)

    def to_pinocchio(self, q: ArrayLike, qd: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Convert (q, q̇) to Pinocchio's (q, v). Mimic joints are omitted."""
        q = finite_array("q", q, (..., self.nq))
        positions = np.zeros((*q.shape[:-1], self._pin_nq))
        for part, slice_q, pin_slice, law in self._entries:
            x = part.normalise(q[..., slice_q])
            if law is not None:
                continue
            if part.angle_index is not None:
                k = part.angle_index
                x = np.concatenate([x[..., :k], np.cos(x[..., k:]), np.sin(x[..., k:])], axis=-1)
            positions[..., pin_slice] = x
        return positions, self.velocity_to_pinocchio(qd)

    def velocity_to_sysdyn(self, v: ArrayLike) -> np.ndarray:
        """Convert Pinocchio's v to q̇."""
        return finite_array("v", v, (..., self._pin_nv))[..., self._column] * self._factor

    def velocity_to_pinocchio(self, qd: ArrayLike) -> np.ndarray:
        """Convert q̇ to Pinocchio's v."""
        return finite_array("qd", qd, (..., self.nv))[..., self._leader_dofs]

    def acceleration_to_sysdyn(self, a: ArrayLike, v: ArrayLike | None = None) -> np.ndarray:
        """Convert Pinocchio's a to q̈. If v is passed, the linear part of a free joint is a classical acceleration."""
        qdd = finite_array("a", a, (..., self._pin_nv))[..., self._column] * self._factor
        return qdd if v is None else qdd - point_acceleration_term(self.velocity_to_sysdyn(v), self._free)

    def acceleration_to_pinocchio(self, qdd: ArrayLike, qd: ArrayLike | None = None) -> np.ndarray:
        """Convert q̈ to Pinocchio's a. If qd is passed, the linear part of a free joint is a classical acceleration."""
        qdd = finite_array("qdd", qdd, (..., self.nv))
        extra = 0.0 if qd is None else point_acceleration_term(finite_array("qd", qd, (..., self.nv)), self._free)
        return (qdd + extra)[..., self._leader_dofs]

    def force_to_sysdyn(self, tau: ArrayLike) -> np.ndarray:
        """Convert Pinocchio's generalised force to τ. It is 0 at mimic joints; their leaders have the whole torque."""
        tau = finite_array("tau", tau, (..., self._pin_nv))
        torque = np.zeros((*tau.shape[:-1], self.nv))
        torque[..., self._leader_dofs] = tau
        return torque

    def force_to_pinocchio(self, tau: ArrayLike) -> np.ndarray:
        """Convert τ to Pinocchio's generalised force."""
        return finite_array("tau", tau, (..., self.nv)) @ self._G

    def inertia_to_sysdyn(self, M: ArrayLike) -> np.ndarray:
        """Convert Pinocchio's joint-space inertia M to H (…, nv, nv). Raises InvalidInput for mimic joints."""
        self._reject_followers("an inertia")
        return finite_array("M", M, (..., self._pin_nv, self._pin_nv))[..., self._column[:, None], self._column]

    def inertia_to_pinocchio(self, H: ArrayLike) -> np.ndarray:
        """Convert H (…, nv, nv) to Pinocchio's joint-space inertia."""
        return self._G.T @ finite_array("H", H, (..., self.nv, self.nv)) @ self._G

    def jacobian_to_sysdyn(self, J: ArrayLike) -> np.ndarray:
        """Convert Pinocchio's Jacobian to J (…, 6, nv), angular part first. Raises InvalidInput for mimic joints."""
        self._reject_followers("a Jacobian")
        return finite_array("J", J, (..., 6, self._pin_nv))[..., SWAPPED, :][..., self._column]

    def jacobian_to_pinocchio(self, J: ArrayLike) -> np.ndarray:
        """Convert the Jacobian J (…, 6, nv) to Pinocchio's, linear part first."""
        return (finite_array("J", J, (..., 6, self.nv)) @ self._G)[..., SWAPPED, :]

    @staticmethod
    def exchanged(x: ArrayLike) -> np.ndarray:
        """Swap the linear and angular parts of spatial vectors (…, 6)."""
        return finite_array("x", x, (..., 6))[..., SWAPPED]

    def wrenches_to_pinocchio(self, fx: ArrayLike) -> Any:
        """Convert wrenches fx (nb, 6) on bodies, in body coordinates, to Pinocchio's joint forces `StdVec_Force`."""
        pin, fx = _pinocchio(), finite_array("fx", fx, (..., sum(map(len, self.parts)), 6))
        if fx.ndim != 2:
            raise InvalidInput(f"fx has shape {fx.shape}: wrenches of one state are needed")
        forces = pin.StdVec_Force()
        forces.extend([pin.Force.Zero(), *(pin.Force(fx[body][list(SWAPPED)]) for body in self.bodies)])
        return forces

    def wrenches_to_sysdyn(self, forces: Sequence[Any]) -> np.ndarray:
        """Convert Pinocchio's joint forces (with an entry for the universe) to wrenches fx (nb, 6) on bodies."""
        if len(forces) != len(self.bodies) + 1:
            raise InvalidInput(f"{len(forces)} forces were given for {len(self.bodies) + 1} joints with the universe")
        fx = np.zeros((sum(map(len, self.parts)), 6))
        for body, force in zip(self.bodies, list(forces)[1:], strict=True):
            fx[body] = self.exchanged(force.vector)
        return fx

    # ---- parts ---------------------------------------------------------------------------------------------------

    def _spread_to_dofs(self, x: np.ndarray) -> np.ndarray:
        """Reorder values per Pinocchio degree of freedom to (nv,). Mimic joints get 0."""
        values = np.zeros(self.nv)
        values[self._leader_dofs] = x
        return values

    def _bounds(self, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(lower, upper), each (nv,), from Pinocchio's limits (nq,). Infinite for joints with nv > 1."""
        bounds, at = (np.full(self.nv, -np.inf), np.full(self.nv, np.inf)), 0
        for part, _, pin_slice, law in self._entries:
            if part.joint.nv == 1 and part.angle_index is None and law is None:
                bounds[0][at], bounds[1][at] = lower[pin_slice.start], upper[pin_slice.start]
            at += part.joint.nv
        return bounds

    def _positions(self, q: np.ndarray) -> np.ndarray:
        """Convert Pinocchio's positions to q (…, nq)."""
        positions = list[np.ndarray]()
        for part, _, pin_slice, law in self._entries:
            x = q[..., pin_slice]
            if part.angle_index is not None:
                k = part.angle_index
                if not np.all(np.hypot(x[..., k], x[..., k + 1]) > 0.0):
                    raise InvalidInput("a pair (cos, sin) in q is zero and gives no angle")
                x = np.concatenate([x[..., :k], np.arctan2(x[..., k + 1], x[..., k])[..., None]], axis=-1)
            x = part.normalise(x)
            positions.append(x if law is None else law[0] * x + law[1])
        return np.concatenate([np.zeros((*q.shape[:-1], 0)), *positions], axis=-1)

    def _reject_followers(self, what: str) -> None:
        if self.follows:
            raise InvalidInput(f"{what} of Pinocchio does not separate mimic joints from their leaders")


def checked(m: Any) -> Any:
    """Return m if it is a pinocchio.Model. Raises InvalidInput, BackendUnavailable."""
    pin = _pinocchio()
    if not isinstance(m, pin.Model):
        raise InvalidInput(f"a pinocchio.Model is needed, not {type(m).__name__}; a RobotWrapper has it as .model")
    return m


def _pinocchio() -> Any:
    return optional("pinocchio", f"Pinocchio is not available ({{error}}): {install('pin')}")


def _leaders(m: Any) -> dict[int, int]:
    """{mimic joint: leader} by index. Empty for Pinocchio versions without mimic joints."""
    return dict(zip(getattr(m, "mimicking_joints", ()), getattr(m, "mimicked_joints", ()), strict=True))


def _parts(m: Any, j: int) -> list[JointPart]:
    """Sysdyn joints that represent Pinocchio joint j."""
    T = m.jointPlacements[j]
    E, r = np.array(T.rotation).T, np.array(T.translation)
    if (leader := _leaders(m).get(j)) is not None:
        return [JointPart(_mimic_joint(m, j), E, r, *(part.angle_index for part in _parts(m, leader)))]
    return _of_type(m, m.joints[j], m.names[j], E, r)


def _of_type(m: Any, joint: Any, name: str, E: np.ndarray, r: np.ndarray) -> list[JointPart]:
    """Sysdyn joints for a Pinocchio joint with frame (E, r), by joint type. Raises ModelError."""
    kind, x = joint.shortname().removeprefix("JointModel"), joint.extract() if hasattr(joint, "extract") else joint
    here, still = (E, r), (np.eye(3), np.zeros(3))

    def chain(*joints: Joint) -> list[JointPart]:
        return [JointPart(y, *(still if k else here)) for k, y in enumerate(joints)]

    if kind.startswith(("R", "P", "H")) and kind != "Planar":  # revolute, prismatic and helical, with any axis
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
    """Joint with one degree of freedom. Its motion subspace is that of the Pinocchio joint, divided by `factor`."""
    data = joint.createData()
    joint.calc(data, _pinocchio().neutral(m), np.zeros(m.nv))
    linear, angular = np.split(np.array(data.S).ravel() / factor, [3])
    if not angular.any():
        return Prismatic(unit_axis(linear))
    axis = unit_axis(angular)
    return Helical(axis, float(linear @ angular)) if linear.any() else Revolute(axis)


def _mimic_joint(m: Any, j: int) -> Joint:
    """Sysdyn joint for a mimic joint. Raises ModelError for a factor of 0."""
    factor = float(m.joints[j].extract().scaling)
    if factor == 0.0:
        raise ModelError(f"joint {m.names[j]!r} mimics another joint with a factor of 0: make it a fixed joint")
    return _single(m, m.joints[j], factor)


def _body_names(m: Any) -> list[str]:
    """Names of the bodies on Pinocchio's joints, with the universe first."""
    pin, names = _pinocchio(), dict[int, str]()
    for frame in m.frames:
        if frame.type == pin.FrameType.BODY and frame.placement.isIdentity(0.0):
            names.setdefault(int(frame.parentJoint), frame.name)
    used_names = set[str]()
    return [unique_name(names.get(j, m.names[j]), used_names) for j in range(m.njoints)]


def _to_infinite(x: np.ndarray) -> np.ndarray:
    """Replace Pinocchio's code for no limit by ±inf."""
    return np.where(np.abs(x) > UNBOUNDED, np.copysign(np.inf, x), x)
