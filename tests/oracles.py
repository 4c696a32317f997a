"""Independent answers: Pinocchio and MuJoCo on the same robot, spoken to in sysdyn's conventions.

Both are given the URDF itself, never anything that sysdyn read from it; joints and bodies are matched by name. What is
converted (R: body → world, of the free joint at the root; everything else is the same number in all three):

                     sysdyn              Pinocchio           MuJoCo
    free q           p, quat xyzw        p, quat xyzw        p, quat wxyz
    free q̇           ω, v in body        v, ω in body        R v, ω
    free q̈           ω̇, v̇ in body        v̇, ω̇ in body        R (v̇ + ω × v), ω̇
    free τ           n, f in body        f, n in body        R f, n
    fx               n, f in body        f, n in body        R f, R (n − com × f), at the com (in `forward`)
"""

from __future__ import annotations

import functools
from pathlib import Path

import icub_models
import mujoco
import numpy as np
import pinocchio as pin
from lxml import etree

import sysdyn
from sysdyn.model import Model
from sysdyn.model.joints import Fixed, Free, Prismatic, Revolute


@functools.cache
def icub_urdf(name: str = "iCubGazeboV2_5") -> str:
    """Path of the URDF of an iCub of the icub-models package."""
    return icub_models.get_model_file(name)


@functools.cache
def icub(base: str = "fixed", fixed_joints: str = "lump") -> Model:
    """The iCubGazeboV2_5 as sysdyn reads it."""
    return sysdyn.model.load_urdf(icub_urdf(), base=base, fixed_joints=fixed_joints)


def pin_model(urdf: str | Path, base: str) -> pin.Model:
    """The robot as Pinocchio reads it."""
    if base == "floating":
        return pin.buildModelFromUrdf(str(urdf), pin.JointModelFreeFlyer())
    return pin.buildModelFromUrdf(str(urdf))


def mujoco_model(urdf: str | Path, base: str) -> mujoco.MjModel:
    """The robot as MuJoCo reads it: every link a body, inertias as written; no damping, friction, limits, contacts."""
    root = etree.parse(str(urdf)).getroot()
    for tag in ("visual", "collision", "sensor", "gazebo", "transmission", "mujoco"):
        for element in list(root.iter(tag)):
            element.getparent().remove(element)
    settings = {"fusestatic": "false", "discardvisual": "true", "balanceinertia": "false"}
    etree.SubElement(etree.SubElement(root, "mujoco"), "compiler", settings)
    spec = mujoco.MjSpec.from_string(etree.tostring(root).decode())
    if base == "floating":
        children = {joint.find("child").get("link") for joint in root.findall("joint")}
        (root_link,) = [link.get("name") for link in root.findall("link") if link.get("name") not in children]
        spec.body(root_link).add_freejoint(name="root_joint")
    m = spec.compile()
    m.dof_damping[:] = m.dof_frictionloss[:] = m.dof_armature[:] = m.jnt_stiffness[:] = 0.0
    off = mujoco.mjtDisableBit
    m.opt.disableflags |= off.mjDSBL_CONSTRAINT | off.mjDSBL_CONTACT | off.mjDSBL_LIMIT
    return m


def _swap(x: np.ndarray) -> np.ndarray:
    """Angular-first ↔ linear-first, of vectors (…, 6)."""
    return np.concatenate([x[..., 3:], x[..., :3]], axis=-1)


class Pinocchio:
    """RNEA and ABA of Pinocchio for one state, in the conventions of `model`."""

    def __init__(self, model: Model, urdf: str | Path):
        self.model = model
        self.pin = pin_model(urdf, model.base)
        self.pin.gravity = pin.Motion(np.concatenate([model.gravity, np.zeros(3)]))
        self.data = self.pin.createData()
        self.moving = [i for i, joint in enumerate(model.joints) if not isinstance(joint, Fixed)]
        assert all(isinstance(model.joints[i], (Revolute, Prismatic, Free)) for i in self.moving), (
            "others are not converted"
        )
        self.joint = {i: self.pin.getJointId(model.joint_names[i]) for i in self.moving}
        assert self.pin.nv == model.nv
        assert sorted(self.joint.values()) == list(range(1, self.pin.njoints)), "the joints have other names"

    def rnea(self, q, qd, qdd, fx=None) -> np.ndarray:
        """tau (nv,)."""
        pin.rnea(self.pin, self.data, self.position(q), self.theirs(qd), self.theirs(qdd), self.wrenches(fx))
        return self.ours(self.data.tau)

    def aba(self, q, qd, tau, fx=None) -> np.ndarray:
        """q̈ (nv,)."""
        pin.aba(self.pin, self.data, self.position(q), self.theirs(qd), self.theirs(tau), self.wrenches(fx))
        return self.ours(self.data.ddq)

    def bodies(self, q, qd, qdd, fx=None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(a, f, v), each (nb, 6); rows of bodies that Pinocchio lumps are NaN."""
        self.rnea(q, qd, qdd, fx)
        a, f, v = np.full((3, self.model.nb, 6), np.nan)
        for i, j in self.joint.items():
            a[i], f[i], v[i] = (_swap(x[j].vector) for x in (self.data.a_gf, self.data.f, self.data.v))
        return a, f, v

    def position(self, q) -> np.ndarray:
        position = np.empty(self.pin.nq)
        for i, j in self.joint.items():
            joint, x = self.pin.joints[j], q[self.model.q_slice(i)]
            if joint.nq == 2:  # a continuous joint: (cos, sin)
                x = (np.cos(x[0]), np.sin(x[0]))
            position[joint.idx_q : joint.idx_q + joint.nq] = x
        return position

    def theirs(self, x) -> np.ndarray:
        y = np.empty(self.pin.nv)
        for i, j in self.joint.items():
            part, joint = x[self.model.v_slice(i)], self.pin.joints[j]
            y[joint.idx_v : joint.idx_v + joint.nv] = _swap(part) if joint.nv == 6 else part
        return y

    def ours(self, y) -> np.ndarray:
        x = np.empty(self.model.nv)
        for i, j in self.joint.items():
            joint = self.pin.joints[j]
            part = y[joint.idx_v : joint.idx_v + joint.nv]
            x[self.model.v_slice(i)] = _swap(part) if joint.nv == 6 else part
        return x

    def wrenches(self, fx) -> pin.StdVec_Force:
        forces = pin.StdVec_Force()
        forces.extend([pin.Force.Zero() for _ in range(self.pin.njoints)])
        if fx is not None:
            for i, j in self.joint.items():
                forces[j] = pin.Force(_swap(np.asarray(fx[i])))
        return forces


class MuJoCo:
    """Inverse and forward dynamics of MuJoCo for one state, in the conventions of `model`."""

    def __init__(self, model: Model, urdf: str | Path):
        self.model = model
        self.mj = mujoco_model(urdf, model.base)
        self.mj.opt.gravity[:] = model.gravity
        self.data = mujoco.MjData(self.mj)
        self.body = [self.mj.body(name).id for name in model.body_names]
        moving = {i: joint for i, joint in enumerate(model.joints) if not isinstance(joint, Fixed)}
        assert all(isinstance(j, (Revolute, Prismatic, Free)) for j in moving.values()), "others are not converted"
        self.joint = {i: self.mj.joint(model.joint_names[i]).id for i in moving}
        self.free = [i for i, joint in moving.items() if isinstance(joint, Free)]
        assert self.mj.nv == model.nv

    def inverse(self, q, qd, qdd, fx=None) -> np.ndarray:
        """tau (nv,): mj_inverse, less the generalised force of the external wrenches, applied at the body origins."""
        self.put(q, qd)
        self.data.qacc[:] = self.acceleration_to(qd, qdd)
        mujoco.mj_inverse(self.mj, self.data)
        applied = np.zeros(self.mj.nv)
        if fx is not None:
            for i, body in enumerate(self.body):
                R = self.data.xmat[body].reshape(3, 3)
                torque, force = R @ fx[i][:3], R @ fx[i][3:]
                mujoco.mj_applyFT(self.mj, self.data, force, torque, self.data.xpos[body].copy(), body, applied)
        return self.force_from(self.data.qfrc_inverse - applied)

    def forward(self, q, qd, tau, fx=None) -> np.ndarray:
        """q̈ (nv,): mj_forward with the external wrenches as Cartesian forces at the centres of mass."""
        self.put(q, qd)
        self.data.qfrc_applied[:] = self.force_to(tau)
        self.data.xfrc_applied[:] = 0.0
        if fx is not None:
            mujoco.mj_kinematics(self.mj, self.data)
            for i, body in enumerate(self.body):
                R, com = self.data.xmat[body].reshape(3, 3), self.mj.body_ipos[body]
                n, f = fx[i][:3], fx[i][3:]
                self.data.xfrc_applied[body] = np.concatenate([R @ f, R @ (n - np.cross(com, f))])
        mujoco.mj_forward(self.mj, self.data)
        return self.acceleration_from(qd, self.data.qacc)

    def put(self, q, qd) -> None:
        for i, j in self.joint.items():
            start, x = self.mj.jnt_qposadr[j], q[self.model.q_slice(i)]
            if i in self.free:
                x = np.concatenate([x[:3], x[6:], x[3:6]])
            self.data.qpos[start : start + len(x)] = x
        mujoco.mj_kinematics(self.mj, self.data)
        self.data.qvel[:] = self.vector_to(qd)

    def vector_to(self, x) -> np.ndarray:
        """ω, v in the body → R v, ω for free joints; the same for wrenches."""
        y = np.empty(self.mj.nv)
        for i, j in self.joint.items():
            start, part = self.mj.jnt_dofadr[j], x[self.model.v_slice(i)]
            if i in self.free:
                part = np.concatenate([self._attitude(i) @ part[3:], part[:3]])
            y[start : start + len(part)] = part
        return y

    def vector_from(self, y) -> np.ndarray:
        x = np.empty(self.model.nv)
        for i, j in self.joint.items():
            part, start = self.model.v_slice(i), self.mj.jnt_dofadr[j]
            if i in self.free:
                x[part] = np.concatenate([y[start + 3 : start + 6], self._attitude(i).T @ y[start : start + 3]])
            else:
                x[part] = y[start : start + part.stop - part.start]
        return x

    force_to, force_from = vector_to, vector_from

    def acceleration_to(self, qd, qdd) -> np.ndarray:
        return self.vector_to(qdd + self._turning(qd))

    def acceleration_from(self, qd, qacc) -> np.ndarray:
        return self.vector_from(qacc) - self._turning(qd)

    def _turning(self, qd) -> np.ndarray:
        """What d/dt (R v) = R (v̇ + ω × v) has beside R v̇: ω × v at the linear part of each free joint."""
        extra = np.zeros(self.model.nv)
        for i in self.free:
            part = self.model.v_slice(i)
            extra[part.start + 3 : part.stop] = np.cross(qd[part][:3], qd[part][3:])
        return extra

    def _attitude(self, i) -> np.ndarray:
        return self.data.xmat[self.body[i]].reshape(3, 3).copy()


def constrained(oracle: Pinocchio, constraints, q, qd, tau, fx=None, mu=0.0, iterations=1):
    """(q̈ (nv,), [wrench (6,) on the first joint's body, angular first]) by Pinocchio's constraintDynamics.

    constraints: (ContactType, joint, placement) against the world, or with a second joint and placement; in local
    axes. fx enters as the torques that balance it, since constraintDynamics takes none. mu, iterations: of the
    proximal solver, for redundant constraints.
    """
    models, datas = pin.StdVec_RigidConstraintModel(), pin.StdVec_RigidConstraintData()
    for kind, *places in constraints:
        models.append(pin.RigidConstraintModel(kind, oracle.pin, *places, pin.ReferenceFrame.LOCAL))
        datas.append(models[len(models) - 1].createData())
    data = oracle.pin.createData()
    pin.initConstraintDynamics(oracle.pin, data, models, datas)
    if fx is not None:
        still = np.zeros(oracle.pin.nv)
        at = oracle.position(q)
        free = pin.rnea(oracle.pin, data, at, still, still).copy()
        tau = tau + oracle.ours(free - pin.rnea(oracle.pin, data, at, still, still, oracle.wrenches(fx)))
    settings = pin.ProximalSettings(1e-15, mu, iterations)
    qdd = pin.constraintDynamics(
        oracle.pin, data, oracle.position(q), oracle.theirs(qd), oracle.theirs(tau), models, datas, settings
    )
    return oracle.ours(qdd), [_swap(c.contact_force.vector) for c in datas]
