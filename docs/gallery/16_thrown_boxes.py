"""
Boxes that are thrown
=====================

A box has contact points at its eight corners, which push, slide and open by Coulomb's law. One call simulates many
throws side by side, with impacts, until the boxes lie still.
"""

import itertools

import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd

half = np.array([0.10, 0.07, 0.04])  # [m]
ixx, iyy, izz = (half @ half - half**2) / 3  # of 1 kg
box = sd.load(
    f"""<robot name="box"><link name="box"><inertial><mass value="1"/>
      <inertia ixx="{ixx}" iyy="{iyy}" izz="{izz}" ixy="0" ixz="0" iyz="0"/></inertial></link></robot>""",
    base="floating",
)
signs, corners = np.array(list(itertools.product((-1, 1), repeat=3))), []
for k, sign in enumerate(signs):
    place = np.eye(4)
    place[:3, 3] = sign * half
    corners.append(sd.Contact(("box", place), "point", reference="world", name=f"corner{k}"))
ground = sd.unilateral(sd.forward_dynamics(box) + corners, friction=0.4, tolerance=1e-3)  # [m/s]

# %%
# Sixty throws differ by some centimetres a second and some radians a second. At impacts corners come back with 0.3 of
# their velocities.

rng, n = np.random.default_rng(1), 60
q = np.tile(np.array([0.0, 0.0, 0.4, 0.0, 0.0, 0.0, 1.0]), (n, 1))
qd = np.array([1.0, 8.0, 2.0, 1.0, 0.0, 0.5]) + rng.normal(size=(n, 6)) * [2.0, 2.0, 2.0, 0.05, 0.05, 0.05]
throws = sd.simulate(ground, q, qd, None, 1.2, 1e-3, restitution=0.3)
print(np.abs(throws.qd[-1]).max() < 1e-6)

# %%
# Left, one of them from the side; right, all places where boxes come to rest, by the face that they lie on.

turns = sd.kinematics(box, "pose:box")
edges = [(a, b) for a in range(8) for b in range(a) if (signs[a] != signs[b]).sum() == 1]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
for k, T in enumerate(turns(throws.q[:600:40, 0])):
    ends = signs * half @ T[:3, :3].T + T[:3, 3]
    for a, b in edges:
        left.plot(*ends[[a, b]][:, [0, 2]].T, color=plt.cm.viridis(k / 16), lw=0.8)
left.axhline(0.0, color="black", lw=1)
left.set(aspect="equal", xlabel="x [m]", ylabel="z [m]", title="every 40 ms, from dark to light")
for axis, (face, color) in enumerate(zip(("end", "side", "bottom"), ("#D55E00", "#009E73", "#0072B2"), strict=True)):
    T = turns(throws.q[-1])
    T = T[np.abs(T[:, 2, :3]).argmax(axis=1) == axis]
    right.plot(T[:, 0, 3], T[:, 1, 3], "o", color=color, label=f"on the {face}: {len(T)}")
right.set(aspect="equal", xlabel="x [m]", ylabel="y [m]", title="at rest after 1.2 s")
right.grid(alpha=0.3)
right.legend()
plt.show()
