"""Models with revolute, prismatic, spherical and free joints as Pinocchio models, and the map between their vectors.

Pinocchio wants bodies numbered depth first and the velocity of a free joint linear part first.
"""

from __future__ import annotations

import numpy as np
import pinocchio as pin

from sysdyn.model import Model
from sysdyn.model.joints import Free, Prismatic, Revolute, Spherical
from sysdyn.model.se3 import rotation, translation


class Twin:
    """pin: the model; T (nv, nv): its vectors from ours, for velocities, accelerations, forces and tangents of q."""

    def __init__(self, model: Model):
        self.model, self.pin = model, pin.Model()
        self.pin.gravity = pin.Motion(np.concatenate([model.gravity, np.zeros(3)]))
        self.joint: dict[int, int] = {-1: 0}
        waiting = [i for i in reversed(range(model.nb)) if model.parent[i] < 0]
        while waiting:
            i = waiting.pop()
            waiting += reversed(model.children[i])
            placement = pin.SE3(rotation(model.X_tree[i]).T, translation(model.X_tree[i]))
            parent = self.joint[model.parent[i]]
            self.joint[i] = self.pin.addJoint(parent, _joint(model.joints[i]), placement, model.joint_names[i])
            self.pin.appendBodyToJoint(self.joint[i], _inertia(model.inertias[i]), pin.SE3.Identity())
        self.T = np.zeros((model.nv, model.nv))
        for i in range(model.nb):
            start, part = self.pin.joints[self.joint[i]].idx_v, model.v_slice(i)
            block = np.eye(part.stop - part.start)
            if isinstance(model.joints[i], Free):
                block = np.roll(block, 3, axis=0)
            self.T[start : start + len(block), part] = block
        armature = self.pin.armature.copy()
        armature[:] = self.T @ model.armature
        self.pin.armature = armature
        self.data = self.pin.createData()

    def position(self, q: np.ndarray) -> np.ndarray:
        found = np.empty(self.pin.nq)
        for i in range(self.model.nb):
            joint = self.pin.joints[self.joint[i]]
            found[joint.idx_q : joint.idx_q + joint.nq] = q[self.model.q_slice(i)]
        return found

    def wrenches(self, fx: np.ndarray | None) -> pin.StdVec_Force:
        forces = pin.StdVec_Force()
        forces.extend([pin.Force.Zero() for _ in range(self.pin.njoints)])
        for i in range(self.model.nb if fx is not None else 0):
            forces[self.joint[i]] = pin.Force(np.roll(fx[i], 3))
        return forces

    def ours(self, D: np.ndarray) -> np.ndarray:
        """A matrix of derivatives (nv, nv) of Pinocchio in our order."""
        return self.T.T @ D @ self.T


def _joint(joint):
    if isinstance(joint, Revolute):
        return pin.JointModelRevoluteUnaligned(np.array(joint.axis))
    if isinstance(joint, Prismatic):
        return pin.JointModelPrismaticUnaligned(np.array(joint.axis))
    return {Spherical: pin.JointModelSpherical, Free: pin.JointModelFreeFlyer}[type(joint)]()


def _inertia(I: np.ndarray) -> pin.Inertia:
    m, h = I[5, 5], np.array([I[2, 4], I[0, 5], I[1, 3]])
    c = h / m if m else np.zeros(3)
    C = np.array([[0.0, -c[2], c[1]], [c[2], 0.0, -c[0]], [-c[1], c[0], 0.0]])
    return pin.Inertia(m, c, I[:3, :3] + m * C @ C)
