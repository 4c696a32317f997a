"""
Model predictive control of a floating base
===========================================

A quadrotor carries a load on a rod and is pushed off its course. The horizon is planned on the manifold of its
positions: ``integrate`` and ``difference`` are programs like the dynamics, and CasADi differentiates all three.

Needs CasADi: ``pip install 'sysdyn-robotics[casadi]'``.
"""

import casadi as ca
import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd

robot = sd.load(
    """<robot name="quadrotor"><link name="frame"><inertial><mass value="0.8"/>
      <inertia ixx="0.005" iyy="0.005" izz="0.009" ixy="0" ixz="0" iyz="0"/></inertial></link>
    <link name="yoke"/>
    <link name="load"><inertial><origin xyz="0 0 -0.5"/><mass value="0.15"/>
      <inertia ixx="0.001" iyy="0.001" izz="0.0002" ixy="0" ixz="0" iyz="0"/></inertial></link>
    <joint name="roll" type="continuous"><parent link="frame"/><child link="yoke"/><axis xyz="1 0 0"/></joint>
    <joint name="pitch" type="continuous"><parent link="yoke"/><child link="load"/><axis xyz="0 1 0"/></joint>
    </robot>""",
    base="floating",
)
f = sd.compile(sd.forward_dynamics(robot), outputs=["qdd"]).to_casadi()
step, difference = (sd.kinematics(robot, name).to_casadi() for name in ("integrate", "difference"))

# %%
# Each of the four rotors pushes with up to 4 N along the frame's z and turns it by 0.016 m of its thrust. A plan has 20
# steps of 50 ms. Of each position its difference to the goal counts, with the frame's attitude as a rotation vector.

h, N, goal = 0.05, 20, robot.neutral()
rotors = np.array([[0.15, 0.15, 1.0], [-0.15, 0.15, -1.0], [-0.15, -0.15, 1.0], [0.15, -0.15, -1.0]])  # x, y [m], turn
mix = np.zeros((robot.nv, 4))
mix[:3], mix[5] = [rotors[:, 1], -rotors[:, 0], 0.016 * rotors[:, 2]], 1.0
hover = np.full(4, -robot.mass * robot.gravity[2] / 4)

ocp = ca.Opti()
q, v, u = ocp.variable(robot.nq, N + 1), ocp.variable(robot.nv, N + 1), ocp.variable(4, N)
q0, v0 = ocp.parameter(robot.nq), ocp.parameter(robot.nv)
ocp.subject_to(q[:, 0] == q0)
ocp.subject_to(v[:, 0] == v0)
ocp.subject_to(ocp.bounded(0.0, u, 4.0))
cost = 0
for k in range(N):
    ocp.subject_to(v[:, k + 1] == v[:, k] + h * f(q[:, k], v[:, k], mix @ u[:, k], ca.DM.zeros(6 * robot.nb)))
    ocp.subject_to(q[:, k + 1] == step(q[:, k], h * v[:, k + 1]))
    off, weight = difference(goal, q[:, k + 1]), 10.0 if k == N - 1 else 1.0
    cost += weight * (ca.sumsqr(off) + 0.1 * ca.sumsqr(v[:, k + 1])) + 0.01 * ca.sumsqr(u[:, k] - hover)
ocp.minimize(cost)
ocp.solver("ipopt", {"print_time": False, "expand": True}, {"print_level": 0, "sb": "yes", "max_iter": 200})

now = robot.integrate(goal, np.array([0.9, -0.5, 0.8, 1.5, -1.0, 0.5, 0.4, -0.6])), np.zeros(robot.nv)
positions, thrusts = [now[0]], []
ocp.set_initial(q, np.tile(now[0][:, None], N + 1))
ocp.set_initial(u, np.tile(hover[:, None], N))
for _ in range(60):
    ocp.set_value(q0, now[0])
    ocp.set_value(v0, now[1])
    plan = ocp.solve()
    thrusts.append(plan.value(u[:, 0]))
    now = plan.value(q[:, 1]), plan.value(v[:, 1])
    positions.append(now[0])
    ocp.set_initial(plan.value_variables())
positions, thrusts, t = np.array(positions), np.array(thrusts), h * np.arange(61)
off = robot.difference(goal, positions)

# %%
# From a tilt of more than a radian the quadrotor comes back to the goal, and its load nearly to rest, in three seconds.

places = sd.kinematics(robot, ["pose:frame", "pose:load"])(positions)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
for k in range(0, 41, 4):
    frame, load = places["pose:frame"][k], places["pose:load"][k]
    arm, hung = frame[:3, :3] @ [0.2, 0.0, 0.0], load[:3, 3] - load[:3, :3] @ [0.0, 0.0, 0.5]
    color = plt.cm.viridis(k / 45)
    left.plot(*np.transpose([frame[:3, 3] - arm, frame[:3, 3] + arm])[[0, 2]], color=color, lw=3)
    left.plot(*np.transpose([frame[:3, 3], hung])[[0, 2]], color=color, lw=1)
    left.plot(hung[0], hung[2], "o", color=color, ms=7)
left.set(aspect="equal", xlabel="x [m]", ylabel="z [m]", title="every 0.2 s, from dark to light")
right.plot(t, np.linalg.norm(off[:, 3:6], axis=1), color="#0072B2", label="distance of the frame [m]")
right.plot(t, np.linalg.norm(off[:, :3], axis=1), color="#D55E00", label="tilt and turn of the frame [rad]")
right.plot(t, np.linalg.norm(off[:, 6:], axis=1), color="#CC79A7", label="swing of the load [rad]")
right.step(t[:-1], thrusts.max(axis=1) / 4.0, color="#009E73", lw=1, where="post", label="strongest rotor [4 N]")
right.set(xlabel="t [s]", title="the first step of each plan, one after the other")
right.grid(alpha=0.3)
right.legend()
plt.show()
