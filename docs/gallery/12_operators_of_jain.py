"""
Operators of Jain
=================

A. Jain writes the dynamics of trees as spatial operators that gather and scatter along the tree. ``SKOModel`` has
them under his names; none is formed as a matrix unless asked, as here for their pictures.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm

import sysdyn as sd

model = sd.auto_tree(12, 2, 1.5, 0.9)  # a binary tree of joints
q, qd, qdd = model.random_state(seed=0)
sko = sd.reference.SKOModel.from_model(model, q, qd)
ric = sko.riccati

# %%
# The mass operator in its two factorisations, with composite and with articulated bodies, and inverse dynamics in
# one line.

H, phi, M = sko.H, sko.phi, sko.M
mass = (H @ phi @ M @ phi.T @ H.T).to_dense()
innovations = sko.innovations.to_dense()
print(np.abs(mass - sd.crba(model, q)).max(), np.abs(mass - innovations @ ric.D.to_dense() @ innovations.T).max())
torques = H @ phi @ (M @ (phi.T @ (H.T @ qdd + sko.a)) + sko.b)
print(np.abs(torques - sd.rnea(model, q, qd, qdd)).max())

# %%
# φ has a block for each pair of a body and one that it carries; the mass matrix one for each pair on a path to a
# tip; the operational-space compliance one for all pairs, which its decomposition along paths needs not form.

figure, axes = plt.subplots(1, 4, figsize=(13, 3.9), layout="constrained")
compliance = np.block([[sko.Omega[j, k] for k in range(model.nb)] for j in range(model.nb)])
pictures = {
    "φ: rigid transforms": phi.to_dense(),
    "ψ: past joints that are free": ric.psi.to_dense(),
    "ℳ = H φ M φ* H*": mass,
    "Ω = ψ* H* D⁻¹ H ψ": compliance,
}
for axis, (title, A) in zip(axes, pictures.items(), strict=True):
    size = len(A) // model.nb
    shown = np.where(np.abs(A) > 1e-12, np.abs(A), np.nan)
    image = axis.imshow(shown, norm=LogNorm(1e-3, 10.0), cmap="viridis", interpolation="nearest")
    ticks = np.arange(0, model.nb, 3)
    axis.set_xticks(size * ticks + (size - 1) / 2, ticks)
    axis.set_yticks(size * ticks + (size - 1) / 2, ticks)
    axis.set(title=title, xlabel="body")
axes[0].set_ylabel("body")
figure.colorbar(image, ax=axes, label="|entry|, in units of kg, m, s", shrink=0.8)
plt.show()
