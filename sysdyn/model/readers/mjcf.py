"""MJCF files as MuJoCo compiles them: trees with several joints a body, into a `Model`; states there and back.

MuJoCo (the package `mujoco`) reads the file; its compiled mjModel is converted, with the inertias it found from geoms.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sysdyn.errors import IgnoredWarning, ModelError, PlausibilityWarning, warn
from sysdyn.model.builder import UNLIMITED, GrowingTree, Limits, Place
from sysdyn.model.closures import Coupling, Loop
from sysdyn.model.frames import Origin, Sensor
from sysdyn.model.joints import ANGLE_SNAP, SNAP, Free, Joint, Prismatic, Revolute, Spherical, snap
from sysdyn.model.massless import warn_of_idle_joints
from sysdyn.model.model import Model
from sysdyn.model.readers.mujoco import check_type, compiled, imported
from sysdyn.model.readers.source import origin_of
from sysdyn.model.spatial import X_motion, inertia, quaternion_to_E
from sysdyn.model.validate import check_count, unique
from sysdyn.program.reproducible import product

# Orders of components that turn MuJoCo's quaternions (w, x, y, z) into ours (x, y, z, w), and back.
TO_XYZW, TO_WXYZ = [1, 2, 3, 0], [3, 0, 1, 2]
_STILL = np.array([1.0, 0.0, 0.0, 0.0])  # MuJoCo's quaternion of no rotation.
# Endings of the names of the joints that a free joint with armature becomes.
_PARTS = ("[x]", "[y]", "[z]", "[ball]")
_SPLIT = (Prismatic((1.0, 0.0, 0.0)), Prismatic((0.0, 1.0, 0.0)), Prismatic((0.0, 0.0, 1.0)), Spherical())


def load_mjcf(source: str | os.PathLike[str], strict: bool = False, snap: bool = True) -> Model:
    """Model of the MJCF file (or text, if it begins with "<") `source`: MuJoCo compiles it, `from_mujoco` converts it.

    snap: as for `from_mujoco`.

    Raises BackendUnavailable if `mujoco` is not installed; ModelError for a file larger than 64 MiB, for what MuJoCo
    cannot read, with its message, and as `from_mujoco`.
    """
    return _convert(compiled(source), strict, snap, origin_of(source))


def from_mujoco(mj_model: Any, strict: bool = False, snap: bool = True) -> Model:
    """Model of a compiled `mujoco.MjModel`.

    Joints and degrees of freedom keep MuJoCo's numbers, but positions and velocities are sysdyn's: `MujocoState`
    converts states, accelerations and forces.

    Bodies: a MuJoCo body on n joints becomes n bodies, all but the last without mass and called "<body>@<joint>". The
        last has the body's name if its frame is MuJoCo's; where that frame's origin is not on the last joint's axis,
        the origin is moved to the joint's anchor and the body called "<body>@<joint>" too. A body without joints is
        lumped with the one that carries it, or dropped if that is the world. Bodies and joints without names are called
        "body<number>" and "<body>_joint<number within the body>".
    Frames: of each MuJoCo body by its name, where MuJoCo has it ("world": the base), and of each named site
        ("<site>@<body>" if the name is taken).
    Joints: hinge → Revolute and slide → Prismatic, both zero at qpos0 (`ref`); ball → Spherical; free → Free, or three
        slides and a ball if it has an armature, which acts on the velocity in the world (PlausibilityWarning). base is
        "floating" if one free body carries all others.
    lower, upper: the ranges of hinges and slides; effort_limit: the larger bound of `actuatorfrcrange`.
    armature: of the joints, and of actuators at joints times gear².
    damping, friction: `damping` and `frictionloss` of the joints, which act where they are asked for.
    closures: active equalities of joints become `Coupling`s, `connect` and `weld` `Loop`s between frames called
        "<equality>:a" and "<equality>:b", rigid where MuJoCo's are soft.

    snap: make attitudes within 1e-11 rad of one of right angles exactly that, for π/2 is often written 1.57079632679.
    strict: raise for implausible inertias, and joints that move no inertia, instead of warning. Warns once, with
    IgnoredWarning, of what acts in MuJoCo and is not part of the model: contacts, limits of balls, other equalities,
    tendons, actuators, springs and other passive forces; and of damping and friction, which have to be asked for.
    Raises ModelError for flexes, InvalidInput for what is no MjModel.
    """
    return _convert(mj_model, strict, snap)


# ---- conversion ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Step:
    """A joint on the way to a MuJoCo body.

    origin (3,): of the frame it moves, in MuJoCo's frame of the body at qpos0. own: armature, damping and friction by
    degree of freedom.
    """

    name: str
    joint: Joint
    origin: np.ndarray
    own: Mapping[str, np.ndarray]
    limits: Limits


def _convert(m: Any, strict: bool, right: bool, source: Origin | None = None) -> Model:
    check_type(m)
    check_count(m.nbody - 1)
    try:
        name = m.names.decode().partition("\0")[0]
    except UnicodeDecodeError as error:
        raise ModelError(f"the names in the MJCF file are not UTF-8: {error}") from None
    if m.nflex:
        raise ModelError(f"{name!r} has {m.nflex} flexes, but bodies have to be rigid: remove <flex> and <flexcomp>")
    ignored = ", ".join(_ignored(m))
    if ignored:
        warn(f"{name!r}: not part of the model, and ignored: {ignored}", IgnoredWarning)
    links, joint_names = names_of(m)
    steps = _steps(m, joint_names)
    split = [joint_names[m.body_jntadr[b]] for b in range(m.nbody) if len(steps[b]) > m.body_jntnum[b]]
    if split:
        warn(
            f"{name!r}: free joints with an armature, as no free body has, become three slides and a ball: "
            f"{', '.join(split)}",
            PlausibilityWarning,
        )

    tree, taken = GrowingTree(), set(links)
    with np.errstate(over="ignore", invalid="ignore"):  # Model finds numbers that are not finite
        places = _add_bodies(tree, m, links, steps, taken, right)
    _add_sites(tree, m, links, places, taken, right)
    _add_closures(tree, m, joint_names, places, taken, right)
    model = Model(
        name=name,
        base="floating" if tree.parent.count(-1) == 1 and isinstance(tree.joints[0], Free) else "fixed",
        strict=strict,
        sensors=_sensors(m, links, joint_names, right),
        source=source,
        **tree.parts(np.zeros(3) if _off(m, "GRAVITY") else m.opt.gravity),
    )
    warn_of_idle_joints(model, strict)
    return model


def _add_bodies(
    tree: GrowingTree, m: Any, links: Sequence[str], steps: Sequence[Sequence[_Step]], taken: set[str], right: bool
) -> list[Place]:
    """Add a body for each step on the way to each MuJoCo body; returns the places of MuJoCo's frames."""
    places: list[Place] = []
    for b, link in enumerate(links):
        place = places[m.body_parentid[b]] if b else Place.of(-1)
        if not _is_free(m, b):  # such a body is placed by its joint alone
            place = place.then(_attitude(m.body_quat[b], right), m.body_pos[b])
        for step in steps[b]:
            plain = step is steps[b][-1] and not step.origin.any()
            name = link if plain else unique(f"{link}@{step.name}", taken)
            X_tree = X_motion(place.E, place.r + product(place.E.T, step.origin))
            body = tree.add(name, step.name, step.joint, place.body, X_tree, limits=step.limits, **step.own)
            place = Place(body, np.eye(3), 0.0 - step.origin)
        tree.weld(place.body, _inertia(m, b, place.E, place.r, right))
        tree.name(link, place)
        places.append(place)
    return places


def _add_sites(
    tree: GrowingTree, m: Any, links: Sequence[str], places: Sequence[Place], taken: set[str], right: bool
) -> None:
    """Name the places of MuJoCo's sites."""
    for s in range(m.nsite):
        if m.site(s).name:
            b = m.site_bodyid[s]
            body, E, r = places[b]
            site = m.site(s).name if m.site(s).name not in taken else f"{m.site(s).name}@{links[b]}"
            place = Place(body, snap(product(_attitude(m.site_quat[s], right), E)), r + product(E.T, m.site_pos[s]))
            tree.name(unique(site, taken), place)


def _sensors(m: Any, links: Sequence[str], joints: Sequence[str], right: bool) -> tuple[Sensor, ...]:
    """The sensors of the file by MuJoCo's names of their types, on links or joints; others have no carrier."""
    kinds, objects = imported().mjtSensor, imported().mjtObj
    poses = {
        int(objects.mjOBJ_SITE): (m.site_bodyid, m.site_quat, m.site_pos),
        int(objects.mjOBJ_GEOM): (m.geom_bodyid, m.geom_quat, m.geom_pos),
        int(objects.mjOBJ_CAMERA): (m.cam_bodyid, m.cam_quat, m.cam_pos),
        int(objects.mjOBJ_BODY): (range(m.nbody), m.body_iquat, m.body_ipos),
    }
    found: list[Sensor] = []
    taken: set[str] = set()
    for k in range(m.nsensor):
        kind, of, at = (
            kinds(m.sensor_type[k]).name.removeprefix("mjSENS_").lower(),
            m.sensor_objtype[k],
            m.sensor_objid[k],
        )
        name = unique(m.sensor(k).name or f"{kind}{k}", taken)
        magnetic = {"magnetic": " ".join(map(str, m.opt.magnetic.tolist()))} if kind == "magnetometer" else {}
        relative = "it is relative to another frame (reftype, refname)" if m.sensor_refid[k] >= 0 else ""
        if of == objects.mjOBJ_JOINT:
            found.append(Sensor(name, kind, "joint", joints[at]))
        elif of == objects.mjOBJ_XBODY:
            found.append(Sensor(name, kind, "link", links[at], fault=relative))
        elif int(of) in poses:
            bodies, quat, pos = poses[int(of)]
            X = X_motion(_attitude(quat[at], right), np.array(pos[at]))
            found.append(Sensor(name, kind, "link", links[bodies[at]], X, magnetic, fault=relative))
        else:
            found.append(Sensor(name, kind, "", ""))
    return tuple(found)


def _add_closures(
    tree: GrowingTree, m: Any, joints: Sequence[str], places: Sequence[Place], taken: set[str], right: bool
) -> None:
    """Add the equalities that are imposed."""
    kinds, names = imported().mjtEq, {c.name for c in tree.closures if isinstance(c, Loop)}
    for e in _imposed(m):
        one, other, data = m.eq_obj1id[e], m.eq_obj2id[e], m.eq_data[e]
        if m.eq_type[e] == kinds.mjEQ_JOINT:
            leader = None if other < 0 else joints[other]
            tree.closures.append(Coupling(joints[one], leader, data[:5] if leader else data[:1]))
            continue
        weld = m.eq_type[e] == kinds.mjEQ_WELD
        points = (data[3:6], data[:3]) if weld else (data[:3], data[3:6])
        turns = (data[6:10], _STILL) if weld else (_STILL, _STILL)
        ends = []
        for (body, site), quat, r in zip(_ends(m, e), turns, points, strict=True):
            quat, r = (m.site_quat[site], m.site_pos[site]) if site >= 0 else (quat, r)
            ends.append(places[body].then(_attitude(quat, right), r))
        name = unique(m.eq(e).name or f"{'weld' if weld else 'connect'}{e}", names)
        frame_a, frame_b = (unique(f"{name}:{end}", taken) for end in "ab")
        for frame, place in zip((frame_a, frame_b), ends, strict=True):
            tree.name(frame, place)
        tree.closures.append(Loop(name, frame_a, frame_b, "fixed" if weld else "spherical"))


def _ends(m: Any, e: int) -> list[tuple[int, int]]:
    """(body, site or −1) of both ends of a connect or weld."""
    ids = m.eq_obj1id[e], m.eq_obj2id[e]
    sites = m.eq_objtype[e] == imported().mjtObj.mjOBJ_SITE
    return [(int(m.site_bodyid[k]), int(k)) if sites else (int(k), -1) for k in ids]


def _imposed(m: Any) -> list[int]:
    """Numbers of the equalities that become closures: of each joint the first that does not make it lead itself."""
    if _off(m, "CONSTRAINT", "EQUALITY"):
        return []
    kinds, found = imported().mjtEq, []
    leaders: dict[int, int] = {}
    for e in np.flatnonzero(m.eq_active0).tolist():
        one, other = int(m.eq_obj1id[e]), int(m.eq_obj2id[e])
        if m.eq_type[e] == kinds.mjEQ_JOINT:
            way = other
            while way in leaders:
                way = leaders[way]
            if one not in leaders and way != one:
                leaders[one] = other
                found.append(e)
        elif m.eq_type[e] in (int(kinds.mjEQ_CONNECT), int(kinds.mjEQ_WELD)):
            a, b = (m.body_weldid[body] for body, _ in _ends(m, e))
            if a != b:
                found.append(e)
    return found


def names_of(m: Any) -> tuple[list[str], list[str]]:
    """Names of MuJoCo's bodies and joints; nameless ones get made-up names."""
    bodies, joints = [m.body(b).name for b in range(m.nbody)], [m.joint(j).name for j in range(m.njnt)]
    taken = set(bodies)
    bodies = [name or unique(f"body{b}", taken) for b, name in enumerate(bodies)]
    taken = set(joints)
    for j, b in enumerate(m.jnt_bodyid):
        joints[j] = joints[j] or unique(f"{bodies[b]}_joint{j - m.body_jntadr[b]}", taken)
    return bodies, joints


def _steps(m: Any, names: Sequence[str]) -> list[list[_Step]]:
    """The joints on the way to each MuJoCo body."""
    armature = armature_of(m)
    joints = joints_of(m, armature)
    damping = np.zeros(m.nv) if _off(m, "DAMPER") else m.dof_damping
    friction = np.zeros(m.nv) if _off(m, "CONSTRAINT", "FRICTIONLOSS") else m.dof_frictionloss
    resisting = {"armature": armature, "damping": damping, "friction": friction}
    taken = set(names)
    result: list[list[_Step]] = []
    for b in range(m.nbody):
        here = range(m.body_jntadr[b], m.body_jntadr[b] + m.body_jntnum[b])
        result.append([])
        for j, origin in zip(here, _origins(m, joints, here), strict=True):
            own = {name: x[m.dof_jntid == j] for name, x in resisting.items()}
            if joints[j] is _SPLIT:
                for k, (part, suffix) in enumerate(zip(_SPLIT, _PARTS, strict=True)):
                    at = {name: np.split(x, [1, 2, 3])[k] for name, x in own.items()}
                    result[b].append(_Step(unique(names[j] + suffix, taken), part, origin, at, UNLIMITED))
                continue
            (joint,) = joints[j]
            if isinstance(joint, Free):
                own = {name: x[[3, 4, 5, 0, 1, 2]] for name, x in own.items()}
            limits = _limits(m, j) if joint.nv == 1 else UNLIMITED
            result[b].append(_Step(names[j], joint, origin, own, limits))
    return result


def joints_of(m: Any, armature: np.ndarray) -> list[tuple[Joint, ...]]:
    """The joints that each joint of MuJoCo becomes."""
    kind = imported().mjtJoint
    made: list[tuple[Joint, ...]] = []
    for j in range(m.njnt):
        if m.jnt_type[j] == kind.mjJNT_HINGE:
            made.append((Revolute(m.jnt_axis[j]),))
        elif m.jnt_type[j] == kind.mjJNT_SLIDE:
            made.append((Prismatic(m.jnt_axis[j]),))
        elif m.jnt_type[j] == kind.mjJNT_BALL:
            made.append((Spherical(),))
        else:
            linear = armature[m.jnt_dofadr[j] :][:3]
            made.append(_SPLIT if np.any(linear) else (Free(),))
    return made


def _is_free(m: Any, b: int) -> bool:
    return m.body_jntnum[b] > 0 and m.jnt_type[m.body_jntadr[b]] == imported().mjtJoint.mjJNT_FREE


def armature_of(m: Any) -> np.ndarray:
    """(nv,) of joints and of the actuators at them, gear² times."""
    armature = np.array(m.dof_armature)
    rotors = getattr(m, "actuator_armature", np.zeros(0))  # MuJoCo 3.5 and newer
    at_joint = (int(imported().mjtTrn.mjTRN_JOINT), int(imported().mjtTrn.mjTRN_JOINTINPARENT))
    for a in np.flatnonzero(rotors):
        if m.actuator_trntype[a] in at_joint:
            gear = m.actuator_gear[m.actuator_outadr[a] if hasattr(m, "actuator_outadr") else a, 0]
            armature[m.dof_jntid == m.actuator_trnid[a, 0]] += gear**2 * rotors[a]
    return armature


def _origins(m: Any, joints: Sequence[tuple[Joint, ...]], here: range) -> list[np.ndarray]:
    """Origins of the frames behind the joints of a body, from MuJoCo's origin of the body at qpos0.

    On the axis of a hinge or at the centre of a ball: at that of the next joint if that is such a place (which saves a
    translation between them), MuJoCo's origin coming last; else at the joint's own anchor.
    """
    found: list[np.ndarray] = []
    origin = np.zeros(3)
    for j in reversed(here):
        joint, offset = joints[j][0], m.jnt_pos[j] - origin
        if isinstance(joint, Revolute):
            offset = np.cross(joint.axis, offset)
        if isinstance(joint, (Revolute, Spherical)) and np.max(np.abs(offset)) > SNAP:
            origin = np.array(m.jnt_pos[j])
        found.append(origin)
    return found[::-1]


def _limits(m: Any, j: int) -> Limits:
    limits = UNLIMITED
    if m.jnt_limited[j]:
        lower, upper = (float(x) for x in m.jnt_range[j] - m.qpos0[m.jnt_qposadr[j]])
        limits = limits._replace(lower=lower, upper=upper)
    if m.jnt_actfrclimited[j]:
        limits = limits._replace(effort=float(np.max(np.abs(m.jnt_actfrcrange[j]))))
    return limits


def _attitude(quat: np.ndarray, right: bool) -> np.ndarray:
    """E (3, 3) of MuJoCo's quaternion w, x, y, z.

    right: one within `ANGLE_SNAP` of a permutation of axes is made exactly that.
    """
    E = snap(quaternion_to_E(quat[TO_XYZW]))
    exact = np.round(E)
    return exact + 0.0 if right and np.max(np.abs(E - exact)) <= ANGLE_SNAP else E


def _inertia(m: Any, b: int, E: np.ndarray, r: np.ndarray, right: bool) -> np.ndarray:
    """Spatial inertia (6, 6) of MuJoCo's body b in the frame from which E, r lead to MuJoCo's frame of the body."""
    axes = snap(product(_attitude(m.body_iquat[b], right), E))
    I_com = product(axes.T * m.body_inertia[b], axes)
    I_com[np.abs(I_com) < SNAP * np.trace(I_com)] = 0.0  # rounding of MuJoCo's principal axes; zeros fold
    return inertia(float(m.body_mass[b]), snap(r + product(E.T, m.body_ipos[b])), I_com)


# ---- what is left out ------------------------------------------------------------------------------------------------


def _off(m: Any, *flags: str) -> bool:
    """True if one of the flags is disabled in <option>."""
    return any(m.opt.disableflags & getattr(imported().mjtDisableBit, f"mjDSBL_{flag}", 0) for flag in flags)


def _ignored(m: Any) -> list[str]:
    """Names of everything that acts on the bodies in MuJoCo and is not part of a Model."""

    def given(*names: str) -> bool:
        return any(np.any(getattr(m, name, 0.0)) for name in names)

    def on(flag: str) -> bool:
        return not _off(m, flag)

    constrained = on("CONSTRAINT")
    kinds = imported().mjtEq
    loops = np.isin(m.eq_type, [int(kinds.mjEQ_CONNECT), int(kinds.mjEQ_WELD)])  # left-out loops hold by themselves
    not_imposed = set(np.flatnonzero(m.eq_active0 & ~loops).tolist()) - set(_imposed(m))
    balls = m.jnt_type == imported().mjtJoint.mjJNT_BALL
    acts = {
        "contacts": constrained and on("CONTACT") and _may_touch(m),
        "equality constraints": constrained and on("EQUALITY") and not_imposed,
        "joint friction": constrained and on("FRICTIONLOSS") and given("dof_frictionloss"),
        "limits of ball joints": constrained and on("LIMIT") and np.any(m.jnt_limited & balls),
        "joint springs": on("SPRING") and given("jnt_stiffness", "jnt_stiffnesspoly"),
        "joint damping": on("DAMPER") and given("dof_damping", "dof_dampingpoly"),
        "fluid forces": m.opt.density or m.opt.viscosity,
        "gravity compensation": on("GRAVITY") and given("body_gravcomp"),
        "tendons": m.ntendon,
        "actuators": m.nu and on("ACTUATION"),
        "plugins": m.nplugin,
        "motion of mocap bodies": m.nmocap,
    }
    return [name for name, active in acts.items() if active]


def _may_touch(m: Any) -> bool:
    """True if two geoms of bodies that move against each other fit together, or a pair is declared."""
    kinds = np.column_stack([m.geom_contype, m.geom_conaffinity, m.body_weldid[m.geom_bodyid]])
    contype, conaffinity, body = np.unique(kinds, axis=0).T
    return bool(m.npair or np.any((contype[:, None] & conaffinity) * (body[:, None] != body)))
