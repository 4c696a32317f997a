"""
Computed torque
===============

A controller asks for accelerations that would make the arm follow, inverse dynamics gives the torques. The arm has a
payload: once unknown to the controller, once handed to the same compiled program as a parameter.
"""

import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd

arm = sd.chain(7)
last = "inertia:body6"
own = sd.inertial_parameters(arm)[-10:]
loaded = own + np.array([0.5, *np.zeros(9)])  # 0.5 kg at the origin of the last body
inverse = sd.compile(sd.inverse_dynamics(arm), outputs=["tau"], inputs=[last])
plant = sd.compile(sd.forward_dynamics(arm), outputs=["qdd"], inputs=[last])
print(inverse.flops.end_to_end, "|", plant.flops.end_to_end)


# %%
# A loop at 1 kHz: bound arrays are read and written in place, without checks or allocation. The arm starts 0.1 rad
# off.


def error(believed, dt=1e-3, steps=2500):
    q, qd, acceleration, tau = np.full(7, 0.1), np.ones(7), np.zeros(7), np.zeros(7)
    control = inverse.bind(q, qd, acceleration, parameters={last: believed}, out=tau)
    robot = plant.bind(q, qd, tau, parameters={last: loaded})
    errors = []
    for k in range(steps):
        t = k * dt
        acceleration[:] = -np.sin(t) + 40.0 * (np.cos(t) - qd) + 400.0 * (np.sin(t) - q)
        control()
        robot()
        qd += dt * robot.out["qdd"]
        q += dt * qd
        errors.append(q - np.sin(t + dt))
    return np.degrees(errors)


figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
runs = {"payload unknown to the controller": own, "payload known": loaded}
for axis, (title, believed) in zip(axes, runs.items(), strict=True):
    for k, line in enumerate(error(believed).T):
        axis.semilogy(1e-3 * np.arange(len(line)), np.abs(line), color=plt.cm.viridis(k / 7), lw=1, label=f"joint {k}")
    axis.set(xlabel="t [s]", title=title)
    axis.grid(alpha=0.3)
axes[0].set_ylabel("|error of the angle| [°]")
axes[1].legend(fontsize=8)
plt.show()
