"""
A quadruped that trots
======================

A robot of 13 kg trots in MuJoCo. Its log has encoders, a gyroscope, an accelerometer with a bias and torques of the
motors, all with noise. Nothing measures the base, velocities, or where feet stand; and masses, their centres and
inertias are 2 % from those of the model. A run finds the motion, the contacts and the forces on the feet.

Needs MuJoCo, ``pip install 'sysdyn-robotics[mujoco]'``, in ``docs/gallery`` of a clone of the repository.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd

sys.path.append(str(Path("../..").resolve() / "experiments" / "trajectories"))
import logs

# %%
# The log, whose truth is known, and what is stated of it: see ``logs.quadruped_problem``. Feet stand where knees carry,
# ``when="torques: tau(FL_calf) > 4.5"``. They count from 40 ms after a touch-down on, as the soft floor throws them
# back until then. Nothing touches a leg whose foot does not stand, ``sd.Switchable(…, unless="FL")``, unless what is
# measured contradicts that. Errors of the model are noise of its equations of motion, ``sd.ModelNoise``.

log = logs.quadruped(250, error=0.02)
problem = logs.quadruped_problem(log, error=0.02, when="torques: tau({}_calf) > 4.5".format)
given = {**log.log, "no motor": np.zeros((len(log.truth.t), 6))}
run = sd.smooth(problem, given, ["tau", "fx"])
print(run)

# %%
# Errors, beside the standard deviations of the run. The heading is told by nothing: forces are compared in axes of the
# calves.

model, truth, calves = log.model, log.truth, [f"{leg}_calf" for leg in logs.LEGS]
bodies = [model.body_index(x) for x in calves]
R = np.array([[sd.frame_pose(model, q, x)[:3, :3] for x in calves] for q in run.q])
force, std = run["fx"][:, bodies, 3:], run.std("fx")[:, bodies, 3:]
true_R = np.array([[sd.frame_pose(model, q, x)[:3, :3] for x in calves] for q in truth.q])
true_force = np.einsum("nfji,nfj->nfi", true_R, truth.forces)
for name, error, spread, unit in (
    ("velocity of the base", (run.qd - truth.qd)[:, 3:6], run.std("qd")[:, 3:6], "m/s"),
    ("forces on the feet", force - true_force, std, "N"),
    ("torques", (run["tau"] - truth.tau)[:, 6:], run.std("tau")[:, 6:], "N m"),
):
    rms, within = np.sqrt(np.mean(error**2)), np.mean(np.abs(error) < 2.0 * spread)
    print(f"{name}: error {rms:.2g} {unit}, {within:.1%} within 2 σ")

figure, axes = plt.subplots(3, 2, figsize=(11, 8), sharex=True, layout="constrained")
for k, (axis, letter) in enumerate(zip(axes[:, 0], "xyz", strict=True)):
    v, s = run.qd[:, 3 + k], run.std("qd")[:, 3 + k]
    axis.fill_between(run.t, v - 2.0 * s, v + 2.0 * s, color="#E69F00", alpha=0.6, lw=0.0, label="run, ±2 σ")
    axis.plot(run.t, truth.qd[:, 3 + k], "k", lw=1.0, label="MuJoCo")
    axis.set_ylabel(f"velocity of the base {letter} [m/s]")
up = np.einsum("nfij,nfj->nfi", R, force)[..., 2]
spread = np.sqrt(np.einsum("nfj,nfj->nf", R[:, :, 2] ** 2, std**2))
for axis, k in zip(axes[:2, 1], (0, 1), strict=True):
    axis.fill_between(
        run.t, up[:, k] - 2 * spread[:, k], up[:, k] + 2 * spread[:, k], color="#E69F00", alpha=0.6, lw=0.0
    )
    axis.plot(run.t, truth.forces[:, k, 2], "k", lw=1.0)
    axis.set_ylabel(f"force on {logs.LEGS[k]}, upwards [N]")
for k, leg in enumerate(logs.LEGS):
    for on, height, color in ((run.contacts[leg], 0.15, "#0072B2"), (truth.contacts[:, k], -0.15, "0.3")):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], on.astype(int), [0]])))
        for a, b in edges.reshape(-1, 2):
            axes[2, 1].barh(k + height, run.t[b - 1] - run.t[a], 0.28, run.t[a], color=color)
axes[2, 1].set(yticks=range(4), yticklabels=logs.LEGS, title="stances that count, and contacts in MuJoCo (grey)")
for axis in axes[-1]:
    axis.set_xlabel("t [s]")
axes[0, 0].legend(fontsize=8)
plt.show()
