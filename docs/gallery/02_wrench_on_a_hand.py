"""
The wrench on a hand, with no sensor there
==========================================

The force/torque sensor of the iCub's right arm is in the upper arm. What touches the hand is estimated from it, from
encoders whose second differences are noisy, and from an accelerometer in the hand: with standard deviations that say
how far that can be trusted.

Needs icub-models: ``pip install 'sysdyn-robotics[icub]'``.
"""

import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd

robot = sd.load("icub", fixed_joints="sensors")  # on a fixed base: the torso stands still
others = [name for name in robot.body_names if name != "r_hand"]
problem = sd.Problem(
    robot,
    [
        sd.JointAcceleration("all", noise=0.5, name="encoders"),
        sd.sensor(robot, "r_arm_ft", noise=[0.02] * 3 + [0.2] * 3),
        sd.Accelerometer("r_hand", noise=0.05, name="hand imu"),
        sd.ExternalWrench(others),
        sd.Prior(sd.ExternalWrench("r_hand", noise=1e3), name="touch"),
    ],
)
estimator = sd.compile(problem, outputs=["fx"], level="fast")
print(estimator)

# %%
# The arm moves, and the hand is loaded with 15 N that turn, for a second and a half.

t = np.linspace(0.0, 4.0, 400)
joints = np.arange(robot.nv)
angle = 2.0 * t[:, None] + joints
q, qd, qdd = 0.3 * np.sin(angle), 0.6 * np.cos(angle), -1.2 * np.sin(angle)
load = np.where((t > 1.0) & (t < 2.5), 15.0, 0.0)
hand = robot.body_index("r_hand")
fx = np.zeros((400, robot.nb, 6))
fx[:, hand, 3], fx[:, hand, 5], fx[:, hand, 1] = load * np.cos(3 * t), load * np.sin(3 * t), 0.03 * load
y = sd.predict(problem, q, qd, qdd, fx, seed=0)
estimate = estimator(q, qd, y=y)

found, std = estimate["fx", "r_hand"], estimate.std("fx")[:, hand]
within = np.abs(found - fx[:, hand]) < 2 * std
print(
    f"within 2 σ: {within.mean():.1%}; σ of a force {std[:, 3:].mean():.2f} N, of a moment {std[:, :3].mean():.3f} N m"
)

figure, axes = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
for axis, places, labels in ((axes[0], range(3, 6), "xyz"), (axes[1], range(3), "xyz")):
    for k, label, colour in zip(places, labels, ("#0072B2", "#D55E00", "#009E73"), strict=True):
        axis.fill_between(t, found[:, k] - 2 * std[:, k], found[:, k] + 2 * std[:, k], color=colour, alpha=0.25, lw=0)
        axis.plot(t, found[:, k], color=colour, lw=0.7, label=label)
        axis.plot(t, fx[:, hand, k], "k--", lw=0.8)
axes[0].set(ylabel="force [N]", title="Wrench on the right hand, ± 2 σ; dashed: what it is")
axes[1].set(ylabel="moment [N m]", xlabel="t [s]")
axes[0].legend(title="in axes of the hand", ncols=3)
plt.show()
