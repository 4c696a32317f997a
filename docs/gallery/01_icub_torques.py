"""
Torques of the iCub from its six force/torque sensors
=====================================================

The iCub has no torque sensors in its joints, but six force/torque sensors, in its upper arms, hips and ankles. Each
of them tells what touches the robot beyond it, wherever that is stated: with q̇ and q̈ known, all torques follow,
exactly. Here it stands and sways, and somebody pushes against its left shank.

Needs icub-models: ``pip install 'sysdyn-robotics[icub]'``.
"""

import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd

robot = sd.load("icub", base="floating", fixed_joints="sensors")
names = ["l_arm_ft", "r_arm_ft", "l_leg_ft", "r_leg_ft", "l_foot_ft", "r_foot_ft"]
touched = ["l_hand", "r_hand", "l_lower_leg", "r_lower_leg", "l_foot", "r_foot"]
problem = sd.inverse_dynamics(robot) - sd.ExternalWrench(touched) + [sd.sensor(robot, name) for name in names]
print(sd.diagnose(problem))
solver = sd.compile(problem, outputs=["tau", "fx"], level="fast")
print(solver)

# %%
# The motion, and a push of up to 40 N for a second, 0.1 m below the knee. The feet carry what the motion needs.

t = np.linspace(0.0, 4.0, 300)
q, qd, qdd = np.tile(robot.neutral(), (300, 1)), np.zeros((300, 38)), np.zeros((300, 38))
joints, w = np.arange(32), 2 * np.pi / 4
bend = {"hip_pitch": 0.5, "knee": -1.0, "ankle_pitch": -0.5}
size = np.array([next((x for key, x in bend.items() if key in name), 0.15) for name in robot.dof_names[6:]])
angle = w * t[:, None] + np.where(np.abs(size) > 0.2, 0.0, joints)
q[:, 7:] = size * (1.1 - np.cos(angle)) / 2
qd[:, 6:], qdd[:, 6:] = size * w * np.sin(angle) / 2, size * w**2 * np.cos(angle) / 2

bodies = {name: robot.body_index(name) for name in touched}
fx = np.zeros((300, robot.nb, 6))
push = np.where((t > 1.5) & (t < 2.5), 40.0 * np.sin(np.pi * (t - 1.5)) ** 2, 0.0)
fx[:, bodies["l_lower_leg"], 3], fx[:, bodies["l_lower_leg"], 1] = push, -0.1 * push  # force along x, moment about y
J = sd.kinematics(robot, ["jacobian:l_foot", "jacobian:r_foot"])(q)
A = np.concatenate([J[f"jacobian:{foot}"][:, :, :6] for foot in ("l_foot", "r_foot")], axis=1).transpose(0, 2, 1)
feet = np.linalg.pinv(A) @ sd.rnea(robot, q, qd, qdd, fx)[:, :6, None]
fx[:, bodies["l_foot"]], fx[:, bodies["r_foot"]] = feet[:, :6, 0], feet[:, 6:, 0]

# %%
# What the sensors show; the torques that follow; and those that would, were only the feet thought to be touched.

y = sd.predict(problem, q, qd, qdd, fx)
found = solver(q, qd, y={name: y[name] for name in ("qdd", *names)})
blind = sd.inverse_dynamics(robot) - sd.ExternalWrench(["l_foot", "r_foot"])
blind = sd.compile(blind + [sd.sensor(robot, x) for x in names[4:]], outputs=["tau"], level="fast")
believed = blind(q, qd, qdd, y={name: y[name] for name in names[4:]}).tau
truth = sd.rnea(robot, q, qd, qdd, fx)
print("greatest error of a torque:", np.abs(found.tau - truth).max(), "N m")

figure, axes = plt.subplots(1, 4, figsize=(12, 3.4), layout="constrained")
for axis, joint in zip(axes, ("l_hip_pitch", "l_hip_roll", "l_knee"), strict=False):
    k = robot.dof_names.index(joint)
    axis.plot(t, believed[:, k], color="#E69F00", label="only feet touched")
    axis.plot(t, found.tau[:, k], color="#0072B2", lw=2.5, label="six sensors")
    axis.plot(t, truth[:, k], "k--", lw=1, label="truth")
    axis.set(title=joint, xlabel="t [s]")
axes[0].set_ylabel("torque [N m]")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
for k, label in enumerate("xyz", start=3):
    axes[3].plot(t, found["fx", "l_lower_leg"][:, k], label=f"f{label}")
axes[3].set(title="force on the left shank [N]", xlabel="t [s]")
axes[3].legend(fontsize=8)
plt.show()
