"""
A hopping leg
=============

A contact that opens and closes: the foot is at rest, or nothing acts on it, and a switch says which in each state.
One compiled program estimates torques and the contact wrench through stance, flight and landing.
"""

import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd

leg = sd.load("leg", base="floating")
dynamics = sd.forward_dynamics(leg) + sd.Switchable(sd.Contact("sole", name="ground"))
place, knocked = sd.kinematics(leg, "pose:sole"), sd.impact(sd.forward_dynamics(leg) + sd.Contact("sole"))
stiffness, damping = np.zeros(leg.nv), np.zeros(leg.nv)
stiffness[6:], damping[6:] = [220.0, 220.0, 120.0], [6.0, 6.0, 3.0]  # [N m/rad], [N m s/rad]
bent, stretched = np.array([-0.5, 1.0, -0.5]), np.array([-0.1, 0.2, -0.1])  # hip, knee, ankle [rad]

# %%
# The hop is simulated: the leg stands bent, stretches until the ground would have to pull, and bends again in the air.
# The sole lands without a rebound.

q, qd = leg.neutral(), np.zeros(leg.nv)
q[-3:] = bent
q[2] -= place(q)[2, 3]  # the sole on the ground
phases = []
for seconds, angles, stands in ((0.1, bent, True), (0.1, stretched, True), (0.6, bent, False), (0.2, bent, True)):
    drive = sd.Feedback(stiffness, damping, np.concatenate([q[:-3], angles]))
    outputs = ["qdd", "tau", "w"] if stands else ["qdd", "tau"]
    phase = sd.simulate(dynamics, q, qd, drive, seconds, 5e-4, every=4, outputs=outputs, active={"ground": stands})
    over = phase["w"][:, 5] < 0.0 if stands else place(phase.q)[:, 2, 3] < 0.0
    end = np.argmax(over) if over.any() else len(over) - 1
    phases.append((stands, end, phase))
    q, qd = phase.q[end], phase.qd[end]
    if not stands:
        qd = knocked(q, qd).qd  # the impact of the sole
stance = np.concatenate([np.full(end, stands) for stands, end, _ in phases])
t = 2e-3 * np.arange(len(stance))
q, qd = (np.concatenate([getattr(phase, x)[:end] for _, end, phase in phases]) for x in ("q", "qd"))
qdd, tau = (np.concatenate([phase[x][:end] for _, end, phase in phases]) for x in ("qdd", "tau"))
ground = np.concatenate([phase["w"][:end] if stands else np.zeros((end, 6)) for stands, end, phase in phases])
fx, foot = np.zeros((len(t), leg.nb, 6)), leg.body_index("foot")
fx[:, foot] = ground @ leg.frame("sole").X  # at the foot's own frame

# %%
# Encoders and an IMU are noisy; nothing measures a force. What is switched off counts for nothing, and nothing is
# compiled again.

problem = sd.Problem(
    leg,
    [
        sd.ExternalWrench([name for name in leg.body_names if name != "foot"], name="nothing else touches it"),
        sd.JointTorque("root_joint", name="no motor at the trunk"),
        sd.JointAcceleration(["hip", "knee", "ankle"], noise=0.5, name="encoders"),  # [rad/s²]
        sd.sensor(leg, "imu", noise=0.05),  # [m/s²]
        sd.Switchable(sd.FrameAcceleration("sole", noise=[0.05] * 3 + [0.01] * 3, name="stance")),  # [rad/s², m/s²]
        sd.Switchable(sd.ExternalWrench("foot", noise=1e-3, name="flight")),  # [N m, N]
    ],
)
estimator = sd.compile(problem, outputs=["tau", "fx"], level="fast")
y = sd.predict(problem, q, qd, qdd, fx, seed=0)
for name in ("stance", "flight"):
    y[name] = np.zeros_like(y[name])  # what is stated
estimate = estimator(q, qd, y=y, active={"stance": stance, "flight": ~stance})
force, std = estimate["fx", "foot"][:, 5], estimate.std("fx")[:, foot, 5]
knee = leg.dof_names.index("knee")

figure, axes = plt.subplots(3, 1, figsize=(8, 7), sharex=True, layout="constrained")
axes[0].plot(t, 100 * place(q)[:, 2, 3], color="#0072B2")
axes[0].set(ylabel="height of the sole [cm]", title="Push, flight and landing; grey: in the air")
axes[1].plot(t, force, color="#D55E00", lw=2, label=f"estimate, ± {2 * std[stance].mean():.1f} N (2 σ)")
axes[1].plot(t, fx[:, foot, 5], "k--", lw=0.8, label="simulated")
axes[1].set(ylabel="force on the foot [N]")
band = 2 * estimate.std("tau")[:, knee]
axes[2].fill_between(t, -band, band, color="#009E73", alpha=0.3, lw=0, label="± 2 σ")
axes[2].plot(t, estimate.tau[:, knee] - tau[:, knee], ".", color="#009E73", ms=3, label="error")
axes[2].set(ylabel="error of the knee [N m]", xlabel="t [s]")
for axis in axes:
    axis.axvspan(*t[~stance][[0, -1]], color="0.9", zorder=0)
for axis in axes[1:]:
    axis.legend(fontsize=8)
plt.show()
