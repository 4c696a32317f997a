"""
Torques from encoders
=====================

An arm of seven joints has encoders and motor currents, nothing else: nobody measures velocities and accelerations.
Encoders are noisy (1e-4 rad); currents have noise of 2 N m and an offset that nobody knows. A run finds q, q̇, q̈,
offsets and torques of the whole log, with their standard deviations.
"""

import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd

arm = sd.chain(7)
problem = sd.Problem(
    arm,
    [
        sd.JointPosition("all", noise=1e-4, name="encoders"),
        sd.JointTorque("all", noise=2.0, bias=sd.Constant(5.0), name="currents"),
        sd.ExternalWrench("all", name="nothing touches it"),
    ],
)

# %%
# The raw log: two seconds at 200 Hz.

noise = np.random.default_rng(0)
t = 0.005 * np.arange(400)
w = 2.0 * np.pi * np.linspace(0.3, 1.2, 7)
q, qd, qdd = 0.4 * np.sin(t[:, None] * w), 0.4 * w * np.cos(t[:, None] * w), -0.4 * w**2 * np.sin(t[:, None] * w)
tau = sd.rnea(arm, q, qd, qdd)
offset = np.array([4.0, -3.0, 5.0, 1.0, -4.0, 2.0, -1.0])
log = {
    "t": t,
    "encoders": q + noise.normal(0.0, 1e-4, q.shape),
    "currents": tau + offset + noise.normal(0.0, 2.0, q.shape),
}

# %%
# Differences of encoders multiply their noise by the square of the rate. A run weighs each reading by what the motion
# before and after it says; with ``coupled=True`` currents tell of the motion, too, and motion of their offsets.

rate = np.gradient(log["encoders"], t, axis=0)
differences = sd.rnea(arm, log["encoders"], rate, np.gradient(rate, t, axis=0))
kinematic = sd.smooth(problem, log)
coupled = sd.smooth(problem, log, coupled=True)
print(coupled)
ways = {
    "differences of encoders": (differences, None),
    "currents less their true offsets": (log["currents"] - offset, None),
    "first the motion, then the torques": (kinematic["tau"], kinematic.std("tau")),
    "coupled": (coupled["tau"], coupled.std("tau")),
}
for name, (found, std) in ways.items():
    within = "" if std is None else f", {np.mean(np.abs(found - tau) < 2.0 * std):.1%} within 2 σ"
    print(f"{name}: error {np.sqrt(np.mean((found - tau) ** 2)):.2f} N m{within}")
print("offsets of currents:", coupled.bias("currents")[-1].round(2), "±", coupled.bias_std("currents")[-1].round(2))

figure, axes = plt.subplots(3, 2, figsize=(11, 8), sharex=True, layout="constrained")
for (left, right), joint in zip(axes, (1, 3, 6), strict=True):
    left.plot(t, differences[:, joint], ".", color="0.7", ms=3, label="differences of encoders")
    left.plot(t, coupled["tau", f"joint{joint}"], color="#0072B2", lw=2, label="run")
    left.plot(t, tau[:, joint], "k--", lw=1, label="truth")
    low, high = tau[:, joint].min(), tau[:, joint].max()
    left.set(ylabel=f"τ of joint {joint} [N m]", ylim=(low - 0.4 * (high - low), high + 0.4 * (high - low)))
    std = coupled.std("tau")[:, joint]
    right.fill_between(t, -2.0 * std, 2.0 * std, color="#E69F00", alpha=0.6, lw=0.0, label="±2 σ, coupled")
    right.plot(t, coupled["tau"][:, joint] - tau[:, joint], color="#0072B2", lw=1, label="error, coupled")
    for sign in (-2.0, 2.0):
        label = "±2 σ, first the motion" if sign > 0.0 else None
        right.plot(t, sign * kinematic.std("tau")[:, joint], color="#D55E00", lw=0.8, ls=":", label=label)
    right.set(ylabel="less the truth [N m]", ylim=np.array([-6.0, 6.0]) * std.max())
axes[0, 0].set_title("Torques")
axes[0, 1].set_title("Their errors")
for axis, side in zip(axes[-1], ("left", "right"), strict=True):
    axis.set_xlabel("t [s]")
    figure.legend(*axis.get_legend_handles_labels(), loc=f"outside lower {side}", ncols=3)
plt.show()
