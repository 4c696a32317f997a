"""Models from MJCF files.

The package `mujoco` compiles the file; its mjModel, with inertias inferred from geoms, is converted to a `Model`. A
body with several joints becomes several bodies.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sysdyn.errors import IgnoredWarning, ModelError, PlausibilityWarning, warn
from sysdyn.model.builder import UNLIMITED, FramePlacement, JointLimits, ModelBuilder
from sysdyn.model.closures import Coupling, Loop
from sysdyn.model.constants import clean, exact_right_angles
from sysdyn.model.frames import DeclaredSensor, Origin
from sysdyn.model.inertia import inertia
from sysdyn.model.joints import Free, Joint, Prismatic, Revolute, Spherical
from sysdyn.model.massless import check_inertialess_joints
from sysdyn.model.model import Model
from sysdyn.model.readers.mujoco import check_type, compiled, imported
from sysdyn.model.readers.source import origin_of
from sysdyn.model.se3 import X_motion, quaternion_to_E
from sysdyn.model.validate import check_count, unique_name
from sysdyn.program.reproducible import matmul

# Permutations from MuJoCo quaternions (w, x, y, z) to sysdyn quaternions (x, y, z, w), and back.
TO_XYZW, TO_WXYZ = [1, 2, 3, 0], [3, 0, 1, 2]
_IDENTITY = np.array([1.0, 0.0, 0.0, 0.0])  # (w, x, y, z)
# A free joint with armature becomes three slides and a ball, with these name suffixes.
_SUFFIXES = ("[x]", "[y]", "[z]", "[ball]")
_SPLIT = (Prismatic((1.0, 0.0, 0.0)), Prismatic((0.0, 1.0, 0.0)), Prismatic((0.0, 0.0, 1.0)), Spherical())


def load_mjcf(source: str | os.PathLike[str], strict: bool = False, snap: bool = True) -> Model:
    """Read an MJCF file into a `Model`. MuJoCo compiles the file, `from_mujoco` converts it.

    Parameters
    ----------
    source : path or str
        A file, or the text itself if it begins with "<".
    strict, snap : bool
        See `from_mujoco`.

    Returns
    -------
    Model

    Raises
    ------
    BackendUnavailable
        If `mujoco` is not installed.
    ModelError
        For a file larger than 64 MiB, for errors of MuJoCo (with its message), and as in `from_mujoco`.
    """
    return _convert(compiled(source), strict, snap, origin_of(source))


def from_mujoco(mj_model: Any, strict: bool = False, snap: bool = True) -> Model:
    """Convert a compiled `mujoco.MjModel`.

    Parameters
    ----------
    mj_model : mujoco.MjModel
    strict : bool
        Raise ModelError, instead of warning, for physically inconsistent inertias and joints that move no inertia.
    snap : bool
        Round attitudes within 1e-11 rad of right angles to exact right angles (files often have 1.57079632679 for π/2).

    Returns
    -------
    Model
        Joints and degrees of freedom keep the order of MuJoCo. Positions and velocities follow the conventions of
        sysdyn; `MujocoState` converts states, accelerations and forces.

    Raises
    ------
    ModelError
        For flexes.
    InvalidInput
        For an object other than an MjModel.

    Warns
    -----
    IgnoredWarning
        Once, for effects in MuJoCo that are not part of the model: contacts, limits of balls, other equalities,
        tendons, actuators, springs and other passive forces. Also for damping and friction, which act only if a
        problem requests them.
    PlausibilityWarning
        For a free joint with an armature.

    Notes
    -----
    Bodies
        A MuJoCo body with n joints becomes n bodies. The first n − 1 are massless and named "<body>@<joint>". The last
        has the name of the MuJoCo body if both frames coincide. If the origin of the MuJoCo frame is not on the axis of
        the last joint, the origin moves to the anchor of the joint, and the name is also "<body>@<joint>". A body
        without joints is lumped with its parent, or dropped if the parent is the world. Unnamed bodies and joints get
        the names "body<number>" and "<body>_joint<number within the body>".
    Frames
        One frame per MuJoCo body, at the MuJoCo frame and with its name ("world" for the base). One frame per named
        site ("<site>@<body>" if the name is in use).
    Joints
        Hinge → Revolute and slide → Prismatic, with q = 0 at qpos0 (`ref`); ball → Spherical; free → Free. A free joint
        with armature becomes three slides and a ball, since the armature acts on the velocity in the world. The base is
        "floating" if one free body carries all others.
    Limits
        `lower`, `upper`: ranges of hinges and slides; `effort_limit`: the larger bound of `actuatorfrcrange`.
    Armature, damping, friction
        Armature of the joints plus gear² times the armature of their actuators; `damping` and `frictionloss` of joints.
    Closures
        Active joint equalities become `Coupling`s. `connect` and `weld` become `Loop`s between the frames
        "<equality>:a" and "<equality>:b". They are rigid, whereas those of MuJoCo are soft.
    """
    return _convert(mj_model, strict, snap)


# ---- conversion ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _BodyJoint:
    """One of the joints that connect a MuJoCo body to its parent.

    origin (3,) [m]: origin of the frame that the joint moves, in the MuJoCo body frame at qpos0. resistance: armature,
    damping and friction per degree of freedom.
    """

    name: str
    joint: Joint
    origin: np.ndarray
    resistance: Mapping[str, np.ndarray]
    limits: JointLimits


def _convert(m: Any, strict: bool, snap_angles: bool, source: Origin | None = None) -> Model:
    check_type(m)
    check_count(m.nbody - 1)
    try:
        name = m.names.decode().partition("\0")[0]
    except UnicodeDecodeError as error:
        raise ModelError(f"the names in the MJCF file are not UTF-8: {error}") from None
    if m.nflex:
        raise ModelError(f"{name!r} has {m.nflex} flexes, but bodies have to be rigid: remove <flex> and <flexcomp>")
    ignored = ", ".join(_ignored_effects(m))
    if ignored:
        warn(f"{name!r}: not part of the model, and ignored: {ignored}", IgnoredWarning)
    links, joint_names = body_and_joint_names(m)
    joints = _body_joints(m, joint_names)
    split = [joint_names[m.body_jntadr[b]] for b in range(m.nbody) if len(joints[b]) > m.body_jntnum[b]]
    if split:
        warn(
            f"{name!r}: a free body has no armature, so free joints with an armature become three slides and a ball: "
            f"{', '.join(split)}",
            PlausibilityWarning,
        )

    builder, used_names = ModelBuilder(), set(links)
    with np.errstate(over="ignore", invalid="ignore"):  # `Model` rejects numbers that are not finite
        places = _add_bodies(builder, m, links, joints, used_names, snap_angles)
    _add_sites(builder, m, links, places, used_names, snap_angles)
    _add_closures(builder, m, joint_names, places, used_names, snap_angles)
    model = Model(
        name=name,
        base="floating" if builder.parent.count(-1) == 1 and isinstance(builder.joints[0], Free) else "fixed",
        strict=strict,
        sensors=_sensors(m, links, joint_names, snap_angles),
        source=source,
        **builder.model_arguments(np.zeros(3) if _is_disabled(m, "GRAVITY") else m.opt.gravity),
    )
    check_inertialess_joints(model, strict)
    return model


def _add_bodies(
    builder: ModelBuilder, m: Any, links: Sequence[str], joints: Sequence[Sequence[_BodyJoint]], used_names: set[str],
    snap_angles: bool,
) -> list[FramePlacement]:  # fmt: skip
    """Add a body for each joint of each MuJoCo body. Returns the placements of the MuJoCo body frames."""
    places: list[FramePlacement] = []
    for b, link in enumerate(links):
        place = places[m.body_parentid[b]] if b else FramePlacement.on_body(-1)
        if not _is_free(m, b):  # a free body is placed by its joint only
            place = place.compose(_attitude(m.body_quat[b], snap_angles), m.body_pos[b])
        for joint in joints[b]:
            keeps_name = joint is joints[b][-1] and not joint.origin.any()
            name = link if keeps_name else unique_name(f"{link}@{joint.name}", used_names)
            X_tree = X_motion(place.E, place.r + matmul(place.E.T, joint.origin))
            body = builder.add(
                name, joint.name, joint.joint, place.body, X_tree, limits=joint.limits, **joint.resistance
            )
            place = FramePlacement(body, np.eye(3), 0.0 - joint.origin)
        builder.add_inertia(place.body, _inertia(m, b, place.E, place.r, snap_angles))
        builder.add_frame(link, place)
        places.append(place)
    return places


def _add_sites(
    builder: ModelBuilder, m: Any, links: Sequence[str], places: Sequence[FramePlacement], used_names: set[str],
    snap_angles: bool,
) -> None:  # fmt: skip
    """Add frames for MuJoCo's sites."""
    for s in range(m.nsite):
        if m.site(s).name:
            b = m.site_bodyid[s]
            body, E, r = places[b]
            site = m.site(s).name if m.site(s).name not in used_names else f"{m.site(s).name}@{links[b]}"
            E_site = clean(matmul(_attitude(m.site_quat[s], snap_angles), E))
            place = FramePlacement(body, E_site, r + matmul(E.T, m.site_pos[s]))
            builder.add_frame(unique_name(site, used_names), place)


def _sensors(m: Any, links: Sequence[str], joints: Sequence[str], snap_angles: bool) -> tuple[DeclaredSensor, ...]:
    """Sensors of the file, with MuJoCo's type names. Sensors on other objects than links and joints have no parent."""
    kinds, objects = imported().mjtSensor, imported().mjtObj
    poses = {
        int(objects.mjOBJ_SITE): (m.site_bodyid, m.site_quat, m.site_pos),
        int(objects.mjOBJ_GEOM): (m.geom_bodyid, m.geom_quat, m.geom_pos),
        int(objects.mjOBJ_CAMERA): (m.cam_bodyid, m.cam_quat, m.cam_pos),
        int(objects.mjOBJ_BODY): (range(m.nbody), m.body_iquat, m.body_ipos),
    }
    found: list[DeclaredSensor] = []
    used_names: set[str] = set()
    for k in range(m.nsensor):
        kind, of, at = (
            kinds(m.sensor_type[k]).name.removeprefix("mjSENS_").lower(),
            m.sensor_objtype[k],
            m.sensor_objid[k],
        )
        name = unique_name(m.sensor(k).name or f"{kind}{k}", used_names)
        magnetic = {"magnetic": " ".join(map(str, m.opt.magnetic.tolist()))} if kind == "magnetometer" else {}
        relative = "it is relative to another frame (reftype, refname)" if m.sensor_refid[k] >= 0 else ""
        if of == objects.mjOBJ_JOINT:
            found.append(DeclaredSensor(name, kind, "joint", joints[at]))
        elif of == objects.mjOBJ_XBODY:
            found.append(DeclaredSensor(name, kind, "link", links[at], fault=relative))
        elif int(of) in poses:
            bodies, quat, pos = poses[int(of)]
            X = X_motion(_attitude(quat[at], snap_angles), np.array(pos[at]))
            found.append(DeclaredSensor(name, kind, "link", links[bodies[at]], X, magnetic, fault=relative))
        else:
            found.append(DeclaredSensor(name, kind, "", ""))
    return tuple(found)


def _add_closures(
    builder: ModelBuilder,
    m: Any,
    joints: Sequence[str],
    places: Sequence[FramePlacement],
    used_names: set[str],
    snap_angles: bool,
) -> None:
    """Add couplings and loops for the supported equalities."""
    kinds, names = imported().mjtEq, {c.name for c in builder.closures if isinstance(c, Loop)}
    for e in _closure_equalities(m):
        one, other, data = m.eq_obj1id[e], m.eq_obj2id[e], m.eq_data[e]
        if m.eq_type[e] == kinds.mjEQ_JOINT:
            leader = None if other < 0 else joints[other]
            builder.closures.append(Coupling(joints[one], leader, data[:5] if leader else data[:1]))
            continue
        weld = m.eq_type[e] == kinds.mjEQ_WELD
        points = (data[3:6], data[:3]) if weld else (data[:3], data[3:6])
        turns = (data[6:10], _IDENTITY) if weld else (_IDENTITY, _IDENTITY)
        ends = []
        for (body, site), quat, r in zip(_ends(m, e), turns, points, strict=True):
            quat, r = (m.site_quat[site], m.site_pos[site]) if site >= 0 else (quat, r)
            ends.append(places[body].compose(_attitude(quat, snap_angles), r))
        name = unique_name(m.eq(e).name or f"{'weld' if weld else 'connect'}{e}", names)
        frame_a, frame_b = (unique_name(f"{name}:{end}", used_names) for end in "ab")
        for frame, place in zip((frame_a, frame_b), ends, strict=True):
            builder.add_frame(frame, place)
        builder.closures.append(Loop(name, frame_a, frame_b, "fixed" if weld else "spherical"))


def _ends(m: Any, e: int) -> list[tuple[int, int]]:
    """(body, site or −1) of the two ends of a connect or weld equality."""
    ids = m.eq_obj1id[e], m.eq_obj2id[e]
    sites = m.eq_objtype[e] == imported().mjtObj.mjOBJ_SITE
    return [(int(m.site_bodyid[k]), int(k)) if sites else (int(k), -1) for k in ids]


def _closure_equalities(m: Any) -> list[int]:
    """Indices of the equalities that become closures. Per joint, the first one that creates no cycle is used."""
    if _is_disabled(m, "CONSTRAINT", "EQUALITY"):
        return []
    kinds, found = imported().mjtEq, []
    leaders: dict[int, int] = {}
    for e in np.flatnonzero(m.eq_active0).tolist():
        one, other = int(m.eq_obj1id[e]), int(m.eq_obj2id[e])
        if m.eq_type[e] == kinds.mjEQ_JOINT:
            root = other
            while root in leaders:
                root = leaders[root]
            if one not in leaders and root != one:
                leaders[one] = other
                found.append(e)
        elif m.eq_type[e] in (int(kinds.mjEQ_CONNECT), int(kinds.mjEQ_WELD)):
            a, b = (m.body_weldid[body] for body, _ in _ends(m, e))
            if a != b:
                found.append(e)
    return found


def body_and_joint_names(m: Any) -> tuple[list[str], list[str]]:
    """Names of the MuJoCo bodies and joints. Unnamed ones get generated names."""
    bodies, joints = [m.body(b).name for b in range(m.nbody)], [m.joint(j).name for j in range(m.njnt)]
    used_names = set(bodies)
    bodies = [name or unique_name(f"body{b}", used_names) for b, name in enumerate(bodies)]
    used_names = set(joints)
    for j, b in enumerate(m.jnt_bodyid):
        joints[j] = joints[j] or unique_name(f"{bodies[b]}_joint{j - m.body_jntadr[b]}", used_names)
    return bodies, joints


def _body_joints(m: Any, names: Sequence[str]) -> list[list[_BodyJoint]]:
    """The joints between each MuJoCo body and its parent."""
    armature = joint_armature(m)
    joints = convert_joints(m, armature)
    damping = np.zeros(m.nv) if _is_disabled(m, "DAMPER") else m.dof_damping
    friction = np.zeros(m.nv) if _is_disabled(m, "CONSTRAINT", "FRICTIONLOSS") else m.dof_frictionloss
    properties = {"armature": armature, "damping": damping, "friction": friction}
    used_names = set(names)
    result: list[list[_BodyJoint]] = []
    for b in range(m.nbody):
        numbers = range(m.body_jntadr[b], m.body_jntadr[b] + m.body_jntnum[b])
        result.append([])
        for j, origin in zip(numbers, _origins(m, joints, numbers), strict=True):
            resistance = {name: x[m.dof_jntid == j] for name, x in properties.items()}
            if joints[j] is _SPLIT:
                for k, (part, suffix) in enumerate(zip(_SPLIT, _SUFFIXES, strict=True)):
                    share = {name: np.split(x, [1, 2, 3])[k] for name, x in resistance.items()}
                    name = unique_name(names[j] + suffix, used_names)
                    result[b].append(_BodyJoint(name, part, origin, share, UNLIMITED))
                continue
            (joint,) = joints[j]
            if isinstance(joint, Free):
                resistance = {name: x[[3, 4, 5, 0, 1, 2]] for name, x in resistance.items()}
            limits = _limits(m, j) if joint.nv == 1 else UNLIMITED
            result[b].append(_BodyJoint(names[j], joint, origin, resistance, limits))
    return result


def convert_joints(m: Any, armature: np.ndarray) -> list[tuple[Joint, ...]]:
    """For each MuJoCo joint, the equivalent joints of sysdyn."""
    kind = imported().mjtJoint
    converted: list[tuple[Joint, ...]] = []
    for j in range(m.njnt):
        if m.jnt_type[j] == kind.mjJNT_HINGE:
            converted.append((Revolute(m.jnt_axis[j]),))
        elif m.jnt_type[j] == kind.mjJNT_SLIDE:
            converted.append((Prismatic(m.jnt_axis[j]),))
        elif m.jnt_type[j] == kind.mjJNT_BALL:
            converted.append((Spherical(),))
        else:
            linear = armature[m.jnt_dofadr[j] :][:3]
            converted.append(_SPLIT if np.any(linear) else (Free(),))
    return converted


def _is_free(m: Any, b: int) -> bool:
    return m.body_jntnum[b] > 0 and m.jnt_type[m.body_jntadr[b]] == imported().mjtJoint.mjJNT_FREE


def joint_armature(m: Any) -> np.ndarray:
    """Armature (nv,) of the joints plus gear² times the armature of their actuators."""
    armature = np.array(m.dof_armature)
    rotors = getattr(m, "actuator_armature", np.zeros(0))  # MuJoCo 3.5 and newer
    at_joint = (int(imported().mjtTrn.mjTRN_JOINT), int(imported().mjtTrn.mjTRN_JOINTINPARENT))
    for a in np.flatnonzero(rotors):
        if m.actuator_trntype[a] in at_joint:
            gear = m.actuator_gear[m.actuator_outadr[a] if hasattr(m, "actuator_outadr") else a, 0]
            armature[m.dof_jntid == m.actuator_trnid[a, 0]] += gear**2 * rotors[a]
    return armature


def _origins(m: Any, joints: Sequence[tuple[Joint, ...]], numbers: range) -> list[np.ndarray]:
    """Origins of the frames that the joints of a body move, in the MuJoCo body frame at qpos0.

    An origin must be on the hinge axis or at the centre of the ball. The next origin (for the last joint: that of the
    MuJoCo frame) is reused if it satisfies this condition, which saves a translation. Otherwise the anchor of the joint
    is used.
    """
    origins: list[np.ndarray] = []
    origin = np.zeros(3)
    for j in reversed(numbers):
        joint, offset = joints[j][0], m.jnt_pos[j] - origin
        if isinstance(joint, Revolute):
            offset = np.cross(joint.axis, offset)
        if isinstance(joint, (Revolute, Spherical)) and clean(offset).any():
            origin = np.array(m.jnt_pos[j])
        origins.append(origin)
    return origins[::-1]


def _limits(m: Any, j: int) -> JointLimits:
    limits = UNLIMITED
    if m.jnt_limited[j]:
        lower, upper = (float(x) for x in m.jnt_range[j] - m.qpos0[m.jnt_qposadr[j]])
        limits = limits._replace(lower=lower, upper=upper)
    if m.jnt_actfrclimited[j]:
        limits = limits._replace(effort=float(np.max(np.abs(m.jnt_actfrcrange[j]))))
    return limits


def _attitude(quat: np.ndarray, snap_angles: bool) -> np.ndarray:
    """Rotation E (3, 3) of a MuJoCo quaternion (w, x, y, z).

    snap_angles: round a rotation within 1e-11 of a permutation of axes to this permutation.
    """
    E = quaternion_to_E(quat[TO_XYZW])
    return exact_right_angles(E, (0, 1)) if snap_angles else clean(E)


def _inertia(m: Any, b: int, E: np.ndarray, r: np.ndarray, snap_angles: bool) -> np.ndarray:
    """Spatial inertia (6, 6) of MuJoCo body b in the frame in which E, r place the MuJoCo body frame."""
    axes = clean(matmul(_attitude(m.body_iquat[b], snap_angles), E))
    I_com = matmul(axes.T * m.body_inertia[b], axes)
    I_com = clean(I_com, np.trace(I_com))  # rounding errors of MuJoCo's principal axes
    return inertia(float(m.body_mass[b]), clean(r + matmul(E.T, m.body_ipos[b])), I_com)


# ---- ignored effects -------------------------------------------------------------------------------------------------


def _is_disabled(m: Any, *flags: str) -> bool:
    """True if <option> disables one of the flags."""
    return any(m.opt.disableflags & getattr(imported().mjtDisableBit, f"mjDSBL_{flag}", 0) for flag in flags)


def _ignored_effects(m: Any) -> list[str]:
    """Names of the effects in MuJoCo that are not part of a `Model`."""

    def nonzero(*names: str) -> bool:
        return any(np.any(getattr(m, name, 0.0)) for name in names)

    def on(flag: str) -> bool:
        return not _is_disabled(m, flag)

    constrained = on("CONSTRAINT")
    kinds = imported().mjtEq
    loops = np.isin(m.eq_type, [int(kinds.mjEQ_CONNECT), int(kinds.mjEQ_WELD)])
    # Loops without a closure connect bodies that are welded anyway.
    not_imposed = set(np.flatnonzero(m.eq_active0 & ~loops).tolist()) - set(_closure_equalities(m))
    balls = m.jnt_type == imported().mjtJoint.mjJNT_BALL
    acts = {
        "contacts": constrained and on("CONTACT") and _may_touch(m),
        "equality constraints": constrained and on("EQUALITY") and not_imposed,
        "joint friction": constrained and on("FRICTIONLOSS") and nonzero("dof_frictionloss"),
        "limits of ball joints": constrained and on("LIMIT") and np.any(m.jnt_limited & balls),
        "joint springs": on("SPRING") and nonzero("jnt_stiffness", "jnt_stiffnesspoly"),
        "joint damping": on("DAMPER") and nonzero("dof_damping", "dof_dampingpoly"),
        "fluid forces": m.opt.density or m.opt.viscosity,
        "gravity compensation": on("GRAVITY") and nonzero("body_gravcomp"),
        "tendons": m.ntendon,
        "actuators": m.nu and on("ACTUATION"),
        "plugins": m.nplugin,
        "motion of mocap bodies": m.nmocap,
    }
    return [name for name, active in acts.items() if active]


def _may_touch(m: Any) -> bool:
    """True if contact is possible: a declared pair, or matching contact masks of geoms on two moving bodies."""
    kinds = np.column_stack([m.geom_contype, m.geom_conaffinity, m.body_weldid[m.geom_bodyid]])
    contype, conaffinity, body = np.unique(kinds, axis=0).T
    return bool(m.npair or np.any((contype[:, None] & conaffinity) * (body[:, None] != body)))
