"""
Torques of a human from motion capture
======================================

A person bows and swings the arms on a force plate; cameras see three markers on each segment. As in the papers on BERDY
(Latella et al. 2016, 2019) the torques of the joints are wanted, with standard deviations; here angles, velocities and
accelerations are unknown, too, and follow from the markers in the same estimate.

Needs MuJoCo: ``pip install 'sysdyn-robotics[mujoco]'``.
"""

import matplotlib.pyplot as plt
import numpy as np

import sysdyn as sd

# Segments of a person of 75 kg and 1.75 m, both legs and both arms as one, in the sagittal plane: length [m], mass [kg]
# (fractions of Winter 2009, table 4.1).
SEGMENTS = {"shank": (0.43, 7.0), "thigh": (0.43, 15.0), "trunk": (0.50, 43.0), "upper_arm": (0.33, 4.2),
            "forearm": (0.26, 3.3)}  # fmt: skip
JOINTS = {"shank": "ankle", "thigh": "knee", "trunk": "hip", "upper_arm": "shoulder", "forearm": "elbow"}


def segment(names: list[str], place: float) -> str:
    """The MJCF body of the first segment, with the others on its end."""
    name, *rest = names
    length, mass = SEGMENTS[name]
    sense = -1.0 if "arm" in name else 1.0  # arms hang
    inside = segment(rest, sense * length) if rest else ""
    return (
        f'<body name="{name}" pos="0 0 {place}"><joint name="{JOINTS[name]}" axis="0 1 0"/>'
        f'<geom type="capsule" size="0.05" fromto="0 0 0 0 0 {sense * length}" mass="{mass}" contype="0" '
        f'conaffinity="0"/>{inside}</body>'
    )


human = sd.load(
    '<mujoco model="human"><worldbody><body name="foot"><freejoint name="root"/>'
    '<geom type="box" size="0.13 0.1 0.04" pos="0.05 0 0.04" mass="2.2" contype="0" conaffinity="0"/>'
    f"{segment(list(SEGMENTS), 0.08)}</body></worldbody></mujoco>"
)

# %%
# Markers have noise of 1.5 mm, the force plate 5 N and 1 N m. Nothing else touches the person, and no muscle moves the
# foot against the world. What is stated of the root is that its torque is zero.


def marker(x: float, y: float, z: float) -> np.ndarray:
    T = np.eye(4)
    T[:3, 3] = x, y, z
    return T


markers = [
    sd.FramePosition((body, marker(x, y, z)), noise=1.5e-3, name=f"{body} {k}")
    for body in ("foot", *SEGMENTS)
    for k, (x, y, z) in enumerate([(0.05, 0.05, 0.0), (0.05, -0.05, 0.1), (-0.05, 0.0, 0.2)])
]
alone = sd.Problem(
    human,
    [
        *markers,
        sd.JointTorque("root", name="nothing moves the foot"),
        sd.ExternalWrench(list(SEGMENTS), name="nothing touches these"),
    ],
)
plate = sd.ExternalWrench("foot", noise=[1.0, 1.0, 1.0, 5.0, 5.0, 5.0], name="force plate")

# %%
# The raw log: five seconds of cameras at 100 Hz, with a tenth of the markers hidden at any time.

rng, t = np.random.default_rng(0), 0.01 * np.arange(500)
phase = 2.0 * np.pi * 0.4 * t
bow, rate, push = 0.5 - 0.5 * np.cos(phase), 0.5 * np.sin(phase), 0.5 * np.cos(phase)
size = np.array([0.08, -0.12, 0.9, -0.8, -0.5])  # rad: ankle, knee, hip, shoulder, elbow
w = 2.0 * np.pi * 0.4
q = np.repeat(human.neutral()[None], len(t), axis=0)
qd, qdd = np.zeros((2, len(t), human.nv))
q[:, 7:], qd[:, 6:], qdd[:, 6:] = bow[:, None] * size, w * rate[:, None] * size, w * w * push[:, None] * size
fx = np.zeros((len(t), human.nb, 6))
fx[:, 0] = sd.rnea(human, q, qd, qdd)[:, :6]  # the plate carries it all
tau = sd.rnea(human, q, qd, qdd, fx)
log = {"t": t, **sd.predict(alone + plate, q, qd, qdd, fx, seed=0, state_sensors=True)}
for m in markers:
    log[m.name][rng.random(len(t)) < 0.1] = np.nan

# %%
# Before anything is smoothed: is everything told? Then the torques from cameras alone, and with the force plate. How
# fast the person moves is learnt from the markers, and the plate makes the ankle five times as certain.

print(sd.observability(alone + plate, log))
cameras = {name: x for name, x in log.items() if name != "force plate"}
runs = {
    "cameras alone": sd.smooth(alone, cameras),
    "with the force plate": sd.smooth(alone + plate, log, coupled=True),
}
names = list(JOINTS.values())
for what, run in runs.items():
    error, std = (run["tau"] - tau)[:, 6:], run.std("tau")[:, 6:]
    print(what)
    print(run)
    for k, name in enumerate(names):
        rms, within = np.sqrt(np.mean(error[:, k] ** 2)), np.mean(np.abs(error[:, k]) < 2.0 * std[:, k])
        print(f"  {name:9} {rms:5.2f} N m, σ {std[:, k].mean():5.2f}, {within:.0%} within 2 σ")

figure, axes = plt.subplots(3, 2, figsize=(11, 8), sharex=True, sharey="row", layout="constrained")
for row, name in zip(axes, ("ankle", "hip", "shoulder"), strict=True):
    k = 6 + names.index(name)
    for axis, (what, run) in zip(row, runs.items(), strict=True):
        std = run.std("tau")[:, k]
        axis.fill_between(t, -2.0 * std, 2.0 * std, color="#E69F00", alpha=0.6, lw=0.0, label="±2 σ")
        axis.plot(t, run["tau"][:, k] - tau[:, k], color="#0072B2", lw=1.0, label="torque less the truth")
        axis.set_title(f"{name} ({np.ptp(tau[:, k]):.3g} N m from least to greatest), {what}", fontsize=10)
    row[0].set_ylabel("error [N m]")
for axis in axes[-1]:
    axis.set_xlabel("t [s]")
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
plt.show()
