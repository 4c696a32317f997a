"""
A broken sensor is found
========================

An arm has encoders, currents, a force/torque sensor at its wrist and an accelerometer in its hand. Nothing is known
about what touches the hand, and still there is more than is needed: what sensors say can be compared. Half way the
accelerometer gets an offset of 1 m/s² along y.
"""

import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd

arm = sd.auto_tree(4, 1, 1.5, 0.9)
problem = sd.Problem(
    arm,
    [
        sd.JointAcceleration("all", noise=0.2, name="encoders"),
        sd.JointTorque("all", noise=0.5, name="currents"),
        sd.ExternalWrench(["body0", "body1", "body2"]),
        sd.Prior(sd.ExternalWrench("body3", noise=100.0), name="touch"),
        sd.ForceTorqueSensor("joint3", noise=[0.01] * 3 + [0.1] * 3, name="wrist"),
        sd.Switchable(sd.Accelerometer("body3", noise=0.05, name="imu")),
    ],
)
estimator = sd.compile(problem, level="fast")

# %%
# A motion of 4 s, a changing push at the hand, and what sensors show of it, noise included.

t = np.linspace(0.0, 4.0, 400)[:, None]
phase = np.arange(4)
q, qd, qdd = np.sin(t + phase), np.cos(t + phase), -np.sin(t + phase)
fx = np.zeros((400, 4, 6))
fx[:, 3, 5] = 20.0 * np.sin(2.0 * t[:, 0])
y = sd.predict(problem, q, qd, qdd, fx, seed=0)
y["imu"][200:, 1] += 1.0

# %%
# χ² has as many degrees of freedom as there is redundancy; the greatest normalised residual points at the sensor,
# which is switched off 0.1 s after it broke.

estimate = estimator(q, qd, y=y)
chi2, freedoms = estimate.chi2(), estimate.redundancy[0]
residuals = estimate.normalised_residuals()
score = {name: np.abs(w[200:]).mean(axis=0).max() for name, w in residuals.items()}
suspect = max(score, key=score.get)
print(f"mean χ² of {freedoms} degrees of freedom: {chi2[:200].mean():.1f}, then {chi2[200:].mean():.1f}; {suspect!r}")
repaired = estimator(q, qd, y=y, active={suspect: np.arange(400) < 210})  # nothing is compiled again

figure, (above, below) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
above.plot(t, chi2, color="#D55E00", lw=0.8, label="all sensors")
above.plot(t, repaired.chi2(), color="#0072B2", lw=0.8, label=f"without {suspect!r} from 2.1 s on")
above.axhline(freedoms, color="0.4", ls="--", label=f"{freedoms} degrees of freedom")
above.set(ylabel="χ²", title="The sum of squared residuals says that something is wrong")
above.legend(loc="upper left")
for name, w in residuals.items():
    worst = np.abs(w).max(axis=1)
    below.plot(t, worst, lw=1.2 if name == suspect else 0.6, label=name, zorder=3 if name == suspect else 2)
below.axvline(2.0, color="0.4", ls=":")
below.set(xlabel="t [s]", ylabel="greatest |residual| / σ", title="The normalised residuals say what")
below.legend(loc="upper left", ncols=4)
plt.show()
