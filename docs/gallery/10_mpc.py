"""
Model predictive control
========================

A cart swings a pole up and holds it there. ``to_casadi`` hands the compiled dynamics to an optimiser: CasADi
differentiates them, IPOPT solves the problem over the next 1.6 s again and again, each time from where the cart is.

Needs CasADi: ``pip install 'sysdyn-robotics[casadi]'``.
"""

import casadi as ca
import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd

cart = sd.load(
    """<robot name="cart_pole"><link name="rail"/>
    <link name="cart"><inertial><mass value="1"/><inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/>
      </inertial></link>
    <link name="pole"><inertial><origin xyz="0 0 0.5"/><mass value="0.2"/>
      <inertia ixx="0.01" iyy="0.01" izz="0.001" ixy="0" ixz="0" iyz="0"/></inertial></link>
    <joint name="rail" type="prismatic"><parent link="rail"/><child link="cart"/><axis xyz="1 0 0"/>
      <limit lower="-1" upper="1" effort="15" velocity="10"/></joint>
    <joint name="hinge" type="continuous"><parent link="cart"/><child link="pole"/><axis xyz="0 1 0"/></joint>
    </robot>"""
)
f = sd.compile(sd.forward_dynamics(cart), outputs=["qdd"]).to_casadi()
print(f)

# %%
# The horizon has 40 steps of 40 ms; the force on the cart is at most 15 N and the rail 2 m long.

h, N = 0.04, 40
ocp = ca.Opti()
x, u, now = ocp.variable(4, N + 1), ocp.variable(1, N), ocp.parameter(4)
ocp.subject_to(x[:, 0] == now)
for k in range(N):
    qd = x[2:, k] + h * f(x[:2, k], x[2:, k], ca.vertcat(u[k], 0.0), ca.DM.zeros(12))
    ocp.subject_to(x[:, k + 1] == ca.vertcat(x[:2, k] + h * qd, qd))
ocp.subject_to(ocp.bounded(-15.0, u, 15.0))
ocp.subject_to(ocp.bounded(-1.0, x[0, :], 1.0))
upright = ca.sumsqr(1.0 - ca.cos(x[1, :])) + ca.sumsqr(ca.sin(x[1, :]))
ocp.minimize(upright + ca.sumsqr(x[0, :]) + 0.02 * ca.sumsqr(x[2:, :]) + 1e-3 * ca.sumsqr(u))
ocp.solver("ipopt", {"print_time": False}, {"print_level": 0, "sb": "yes", "max_iter": 300})

states, forces = [np.array([0.0, np.pi, 0.0, 0.0])], []
ocp.set_initial(x[1, :], np.linspace(np.pi, 0.0, N + 1))
for _ in range(75):
    ocp.set_value(now, states[-1])
    plan = ocp.solve()
    forces.append(plan.value(u)[0])
    states.append(plan.value(x[:, 1]))
    ocp.set_initial(x, np.column_stack([plan.value(x)[:, 1:], plan.value(x)[:, -1]]))
    ocp.set_initial(u, np.append(plan.value(u)[1:], 0.0))
states, t = np.array(states), h * np.arange(76)

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
for k in range(0, 60, 3):
    p, angle = states[k, :2]
    left.plot([p, p + np.sin(angle)], [0, np.cos(angle)], color=plt.cm.viridis(k / 60), lw=1.5)
    left.plot(p, 0, "s", color=plt.cm.viridis(k / 60), ms=6)
left.set(aspect="equal", xlabel="x [m]", ylabel="z [m]", title="every 0.12 s, from dark to light")
right.plot(t, np.degrees(states[:, 1]) / 100, color="#D55E00", label="angle of the pole [100°]")
right.plot(t, states[:, 0], color="#0072B2", label="place of the cart [m]")
right.step(t[:-1], np.array(forces) / 15, color="#009E73", lw=1, where="post", label="force [15 N]")
right.set(xlabel="t [s]", title="the first step of each plan, one after the other")
right.grid(alpha=0.3)
right.legend()
plt.show()
