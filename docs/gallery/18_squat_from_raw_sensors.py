"""
A squat from raw sensors
========================

The squat of `another page <05_squat.html>`_ has q and q̇ exactly. Here the legs and the trunk of the iCub have what
robots have: encoders, a gyroscope, an accelerometer and force/torque sensors, and all but the encoders have unknown
biases. How much less certain are the torques?

Needs icub-models and MuJoCo, ``pip install 'sysdyn-robotics[icub,mujoco]'``, in ``docs/gallery`` of a clone of the
repository.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd

sys.path.append(str(Path("../..").resolve() / "experiments" / "trajectories"))
import logs

# %%
# MuJoCo makes the motion and says what the sensors show; noise and biases are added. The feet stand.

log, raw, exact, values = logs.icub_squat(120)
truth, model = log.truth, log.model
print(raw)
run = sd.smooth(raw, log.log, ["tau"], order=3)
print(run)

# %%
# The same torques by an estimate of each instant, to which q and q̇ are given, joint accelerations with noise of
# 0.2 rad/s², and sensors without biases.

known = sd.compile(exact, outputs=["tau"])(truth.q, truth.qd, y=values)
ways = {"raw sensors": (run["tau"], run.std("tau")), "q and q̇ exact": (known.tau, known.std("tau"))}
for name, (tau, std) in ways.items():
    error = (tau - truth.tau)[:, 6:]
    rms, within = np.sqrt(np.mean(error**2)), np.mean(np.abs(error) < 2.0 * std[:, 6:])
    print(f"{name}: error {rms:.3f} N m, {within:.1%} within 2 σ")
ratio = run.std("tau")[:, 6:].mean(axis=0) / known.std("tau")[:, 6:].mean(axis=0)
print(f"σ of raw sensors by those of exact states: median {np.median(ratio):.2f}, greatest {ratio.max():.2f}")
for name in ("acc", "gyro", "l_leg_ft"):
    print(f"bias of {name}:", run.bias(name)[-1].round(3), "truth", truth.biases[name].round(3))

figure, axes = plt.subplots(2, 3, figsize=(11, 5.5), sharex=True, layout="constrained")
for column, joint in zip(axes.T, ("l_hip_pitch", "l_knee", "torso_pitch"), strict=True):
    k = model.dof_names.index(joint)
    column[0].plot(truth.t, run["tau"][:, k], color="#0072B2", lw=1.5, label="raw sensors")
    column[0].plot(truth.t, truth.tau[:, k], "k--", lw=0.8, label="MuJoCo")
    column[0].set_title(joint)
    for (name, (_, std)), color in zip(ways.items(), ("#E69F00", "#56B4E9"), strict=True):
        column[1].fill_between(
            truth.t, -2.0 * std[:, k], 2.0 * std[:, k], color=color, alpha=0.5, lw=0.0, label=f"±2 σ, {name}"
        )
    column[1].plot(truth.t, run["tau"][:, k] - truth.tau[:, k], ".", color="#0072B2", ms=3, label="error, raw sensors")
    column[1].set_xlabel("t [s]")
axes[0, 0].set_ylabel("torque [N m]")
axes[1, 0].set_ylabel("less the truth [N m]")
axes[0, 0].legend(fontsize=8)
axes[1, 0].legend(fontsize=8, loc="upper right")
plt.show()
