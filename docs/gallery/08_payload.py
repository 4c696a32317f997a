"""
A payload is identified
=======================

An arm carries a box that its controller does not know. Joint torques are linear in inertial parameters: mass, centre
of mass and inertia of the box follow from a log, with error bars, and such as a body can have.
"""

import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd

arm = sd.auto_tree(4, 1, 1.5, 0.9)
body = "inertia:body3"
own = sd.inertial_parameters(arm)[-10:]
m, c, sides = 0.6, np.array([0.1, 0.05, -0.03]), np.array([0.2, 0.3, 0.25])  # a box [kg, m]
about_c = m / 12 * np.diag(np.sum(sides**2) - sides**2)
I = about_c + m * (c @ c * np.eye(3) - np.outer(c, c))
box = np.array([m, *(m * c), I[0, 0], I[0, 1], I[1, 1], I[0, 2], I[1, 2], I[2, 2]])

# %%
# The log: 2,000 states of the loaded arm, and torques with noise of 0.05 N m.

q, qd, qdd = arm.random_state(seed=0, batch=2000)
loaded = sd.compile(sd.inverse_dynamics(arm), outputs=["tau"], inputs=[body], level="fast")
tau = loaded(q, qd, qdd, parameters={body: own + box}).tau
tau += 0.05 * np.random.default_rng(0).standard_normal(tau.shape)
found = sd.identify(arm, q, qd, qdd, tau, body, added=True)
print(found)

# %%
# With more states the deviations shrink; where few states would fit best with a box that cannot be, its
# pseudo-inertia is held positive semidefinite.

counts = np.unique(np.geomspace(10, 2000, 13).astype(int))
runs = [sd.identify(arm, q[:n], qd[:n], qdd[:n], tau[:n], body, noise=0.05, added=True) for n in counts]
figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
units = {"mass [kg]": [0], "first moments m c [kg m]": [1, 2, 3], "moments of inertia [kg m²]": [4, 6, 9]}
for axis, (title, places) in zip(axes, units.items(), strict=True):
    for k, colour in zip(places, ("#0072B2", "#E69F00", "#009E73"), strict=False):
        value, std = np.array([run.change[k] for run in runs]), np.array([run.std[k] for run in runs])
        axis.fill_between(counts, value - 2 * std, value + 2 * std, color=colour, alpha=0.2, lw=0)
        axis.plot(counts, value, color=colour, label=found.names[k].split(".")[1])
        axis.axhline(box[k], color=colour, ls="--", lw=0.8)
    axis.set(xscale="log", xlabel="states of the log", title=title)
    axis.legend(fontsize=8)
size = 3 * np.abs(box[[4, 6, 9]]).max()
axes[2].set_ylim(-size / 3, size)
figure.suptitle("The box, ± 2 σ; dashed: what it is")
plt.show()
