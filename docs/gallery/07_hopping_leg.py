"""
A hopping leg
=============

A contact that opens and closes: the foot is at rest, or nothing acts on it, and a switch says which in each state.
One compiled program estimates torques and the contact wrench through stance, flight and landing. The hop is that of
``experiments/benchmarks/hop.py``.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd
from sysdyn.app.problem_files import load_task

root = Path("../..").resolve()
sys.path.append(str(root / "experiments" / "benchmarks"))
import hop

task = load_task(root / "problems" / "hopping_leg.toml")
leg = task.problem.model
motion = hop.simulate(leg)  # by forward dynamics, with and without the contact of the sole
y = hop.sensors(task, motion, seed=0)

# %%
# Encoders and an IMU are noisy; nothing measures a force. What is switched off counts for nothing, and nothing is
# compiled again.

estimator = sd.compile(task.problem, outputs=["tau", "fx"], level="fast")
switches = {"stance": motion.stance, "flight": ~motion.stance}
estimate = estimator(motion.q, motion.qd, y={**task.values, **y}, active=switches)
foot = leg.body_index("foot")
force, std = estimate["fx", "foot"][:, 5], estimate.std("fx")[:, foot, 5]
knee = leg.dof_names.index("knee")
height = sd.kinematics(leg, "pose:sole")(motion.q)[:, 2, 3]

figure, axes = plt.subplots(3, 1, figsize=(8, 7), sharex=True, layout="constrained")
axes[0].plot(motion.t, 100 * height, color="#0072B2")
axes[0].set(ylabel="height of the sole [cm]", title="Push, flight and landing; grey: in the air")
axes[1].plot(motion.t, force, color="#D55E00", lw=2, label=f"estimate, ± {2 * std[motion.stance].mean():.1f} N (2 σ)")
axes[1].plot(motion.t, motion.foot[:, 5], "k--", lw=0.8, label="simulated")
axes[1].set(ylabel="force on the foot [N]")
band = 2 * estimate.std("tau")[:, knee]
axes[2].fill_between(motion.t, -band, band, color="#009E73", alpha=0.3, lw=0, label="± 2 σ")
axes[2].plot(motion.t, estimate.tau[:, knee] - motion.tau[:, knee], ".", color="#009E73", ms=3, label="error")
axes[2].set(ylabel="error of the knee [N m]", xlabel="t [s]")
air = np.flatnonzero(~motion.stance)
for axis in axes:
    axis.axvspan(motion.t[air[0]], motion.t[air[-1]], color="0.9", zorder=0)
for axis in axes[1:]:
    axis.legend(fontsize=8)
plt.show()
