"""
A four-bar linkage stays closed
===============================

The tree of a robot file is closed by a ``LoopJoint``. Loops hold accelerations, so that an integrator's errors add
up to a gap that grows; ``stabilise`` takes it out within the program (Baumgarte).
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.optimize import fsolve

import sysdyn as sd

linkage = sd.load("four_bar")  # crank 0.3 m, coupler 0.8 m, rocker 0.6 m
places = sd.kinematics(linkage, [f"pose:{x}" for x in ("coupler", "rocker", "end", "pivot")])


def gap(q):
    now = places(q)
    return (now["pose:end"] - now["pose:pivot"])[[0, 2], 3]


def simulated(stabilise, q, qd, h=2e-3, seconds=10.0):
    """q after each step of the classical Runge-Kutta method, without torques."""
    loop = sd.LoopJoint("pivot", "end", ["a_x", "a_z"], name="pin", stabilise=stabilise)
    solver = sd.compile(sd.forward_dynamics(linkage) + loop, outputs=["qdd"])
    at, rate = q.copy(), qd.copy()
    step = solver.bind(at, rate, np.zeros(3))

    def slope(x):
        at[:], rate[:] = x
        step()
        return np.array([rate, step.out["qdd"]])

    x, path = np.array([q, qd]), [q]
    for _ in range(round(seconds / h)):
        k1 = slope(x)
        k2 = slope(x + h / 2 * k1)
        k3 = slope(x + h / 2 * k2)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + slope(x + h * k3))
        path.append(x[0])
    return np.array(path)


# %%
# The crank starts at 1 rad with 6 rad/s; the other angles and their rates follow from the loop.

q = np.array([1.0, *fsolve(lambda x: gap([1.0, *x]), [-0.3, 2.0], xtol=1e-14)])
J = np.array([(gap(q + e) - gap(q - e)) / 2e-6 for e in 1e-6 * np.eye(3)]).T
qd = np.array([6.0, *np.linalg.solve(J[:, 1:], -6.0 * J[:, 0])])
paths = {None: simulated(None, q, qd), 0.1: simulated(0.1, q, qd)}

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained", width_ratios=[1, 1.3])
for k in range(0, 175, 25):
    now = places(paths[0.1][k])
    points = [[0.0, 0.0], *(now[f"pose:{x}"][[0, 2], 3] for x in ("coupler", "rocker", "pivot"))]
    left.plot(*np.transpose(points), "o-", color=plt.cm.viridis(k / 150), ms=4, label=f"{2e-3 * k:.2f} s")
left.set(aspect="equal", xlabel="x [m]", ylabel="z [m]", title="a third of a second")
left.legend(fontsize=7, loc="upper center")
t = 2e-3 * np.arange(5001)[1::20]
for stabilise, colour in ((None, "#D55E00"), (0.1, "#0072B2")):
    gaps = [np.linalg.norm(gap(x)) for x in paths[stabilise][1::20]]
    right.semilogy(t, gaps, color=colour, label="as it is" if stabilise is None else "stabilise=0.1 s")
right.set(xlabel="t [s]", ylabel="gap of the loop [m]", title="Runge-Kutta of fourth order, steps of 2 ms")
right.grid(alpha=0.3)
right.legend()
plt.show()
