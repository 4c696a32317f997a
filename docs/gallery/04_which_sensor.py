"""
Which sensor to buy next
========================

Something touches the hand of an arm, and nobody has measured it: ``diagnose`` says in names what cannot be known,
and which of the sensors on offer would tell. How well each would do is the standard deviation that it leaves.
"""

import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd

arm = sd.auto_tree(4, 1, 1.5, 0.9)
known = sd.inverse_dynamics(arm) - sd.ExternalWrench("body3")
print(sd.diagnose(known))

# %%
# What is on offer, with its noise. Three load cells alone do not do it, nor does an accelerometer, whatever its
# price.

cells = sd.LoadCells("body3", components=["nz", "fx", "fy"], noise=0.3, name="3 load cells")
wrist = sd.ForceTorqueSensor("joint3", noise=[0.01] * 3 + [0.1] * 3, name="wrist F/T")
elbow = sd.ForceTorqueSensor("joint2", noise=[0.01] * 3 + [0.1] * 3, name="elbow F/T")
currents = sd.JointTorque("all", noise=0.5, name="currents")
imu = sd.Accelerometer("body3", noise=0.05, name="accelerometer")
offers = {
    "wrist F/T": [wrist],
    "elbow F/T": [elbow],
    "currents": [currents],
    "3 load cells": [cells],
    "currents + 3 load cells": [currents, cells],
    "wrist F/T + currents": [wrist, currents],
    "accelerometer": [imu],
}
for name, sensors in offers.items():
    print(f"{name:24}", "enough" if sd.diagnose(known + sensors).well_posed else "not enough")

# %%
# Those that are enough are compiled, and give the deviation of each component of the force on the hand. Encoders
# tell accelerations to 0.2 rad/s² now, so that the mass of the arm between a sensor and the hand counts.

states = arm.random_state(seed=0, batch=200)[:2]
found = {}
for name, sensors in offers.items():
    measured = [sd.JointAcceleration("all", noise=0.2, name="encoders"), *sensors]
    problem = sd.Problem(arm, [*measured, sd.ExternalWrench(["body0", "body1", "body2"])])
    if sd.diagnose(problem).well_posed:
        solver = sd.compile(problem, outputs=["fx"], level="fast")
        zero = {m.name: np.zeros(len(m.components(arm))) for m in measured}
        found[name] = solver(*states, y=zero).std("fx")[:, 3, 3:].mean(axis=0)

figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
places = np.arange(len(found))
for k, (label, colour) in enumerate(zip("xyz", ("#0072B2", "#E69F00", "#009E73"), strict=True)):
    axis.barh(
        places + 0.25 * (k - 1), [std[k] for std in found.values()], 0.25, color=colour, label=f"force along {label}"
    )
axis.set_yticks(places, found)
axis.invert_yaxis()
axis.set(xscale="log", xlim=(0.08, 20.0), xlabel="standard deviation of the force on the hand [N], mean of 200 states")
axis.set_title("Sensors that tell the force on the hand, and how well")
axis.legend()
plt.show()
