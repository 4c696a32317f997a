"""
A squat, estimated back
=======================

MuJoCo makes a squat of the iCub and says what its sensors show: six force/torque sensors, an IMU in the head,
encoders. With noise added, sysdyn estimates the torques of all 32 joints. Do the error bars tell the truth? The data
are those of ``experiments/benchmarks/squat.py``.

Needs icub-models and MuJoCo, ``pip install 'sysdyn-robotics[icub,mujoco]'``, in ``docs/gallery`` of a clone of the
repository.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd
from sysdyn.app.problem_files import load_job

root = Path("../..").resolve()
sys.path.append(str(root / "experiments" / "benchmarks"))
import squat

task = load_job(root / "problems" / "icub_sensors.toml")
model = task.problem.model
sensors = tuple(m.name for m in task.problem.noisy if m.name in sd.declared_sensors(model))
motion = squat.simulate(squat.robot(squat.URDF)[0], 400, sensors)
y = squat.noisy_log(task.problem, motion, seed=0)
q, qd, truth = squat.in_order_of(model, motion)

# %%
# The problem is that of ``problems/icub_sensors.toml``: the feet are touched by an unknown wrench, nothing drives
# the base.

estimator = sd.compile(task.problem, outputs=["tau"], level="fast")
estimate = estimator(q, qd, y={**task.values, **y})
tau, std = estimate.tau[:, 6:], estimate.std("tau")[:, 6:]
z = (tau - truth[:, 6:]) / std
print(
    f"{z.size} torques: {np.mean(np.abs(z) < 1.96):.1%} within the 95 % band, {np.mean(np.abs(z) < 3):.2%} within 3 σ"
)

figure, axes = plt.subplots(2, 3, figsize=(11, 5.5), layout="constrained")
for column, joint in zip(axes.T, ("l_hip_pitch", "l_knee"), strict=False):
    k = model.dof_names.index(joint) - 6
    column[0].plot(motion.t, tau[:, k], color="#56B4E9", lw=1, label="estimate")
    column[0].plot(motion.t, truth[:, 6 + k], "k", lw=0.8, label="MuJoCo")
    column[0].set_title(joint)
    column[1].fill_between(motion.t, -2 * std[:, k], 2 * std[:, k], color="#E69F00", alpha=0.4, lw=0, label="±2 σ")
    column[1].plot(motion.t, tau[:, k] - truth[:, 6 + k], ".", color="#0072B2", ms=2, label="error")
    column[1].set_xlabel("t [s]")
axes[0, 0].set_ylabel("torque [N m]")
axes[1, 0].set_ylabel("error [N m]")
axes[0, 0].legend(fontsize=8)
axes[1, 0].legend(fontsize=8)
axes[0, 2].hist(z.ravel(), np.linspace(-4, 4, 60), density=True, color="#56B4E9", label="all joints")
x = np.linspace(-4, 4, 200)
axes[0, 2].plot(x, np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi), "k", label="normal distribution")
axes[0, 2].set(title="error / σ")
axes[0, 2].legend(fontsize=8)
share = np.mean(np.abs(z) < 1.96, axis=0)
axes[1, 2].bar(range(len(share)), 100 * share, color="#0072B2")
axes[1, 2].axhline(95, color="k", lw=0.8)
axes[1, 2].set(ylim=(80, 100), xlabel="joint", ylabel="within the 95 % band [%]")
plt.show()
