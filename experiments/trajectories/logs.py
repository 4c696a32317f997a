"""Raw logs with their truth, for estimates of whole trajectories: an arm from its encoders, and a walking quadruped.

    python experiments/trajectories/logs.py [--seed 0] [--out FOLDER]

The arm is a chain of seven joints on a smooth motion; its log has encoders alone. The quadruped trots in MuJoCo, which
integrates it with soft contacts: feet touch down with speed, roll and slip. Its log has a gyroscope and an
accelerometer with constant biases, encoders and torques, all with white noise, and nothing of the base. MuJoCo reads
the file that is written here, and `sysdyn.from_mujoco` the same. Prints what the motions are like; --out writes the
logs as .npz.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from scipy.spatial.transform import Rotation

import sysdyn as sd

# Legs of the quadruped, front left first, and the side of each: pairs on a diagonal swing together.
LEGS = ("FL", "FR", "RL", "RR")
# Joints of a leg, from the trunk on.
JOINTS = ("hip", "thigh", "calf")
# Half lengths of the trunk between the hips, lengths of a leg's links and radius of a foot [m].
HALF_LENGTH, HALF_WIDTH, OFFSET, LINK, FOOT = 0.19, 0.05, 0.08, 0.21, 0.02
# Seconds of a stride, share of it that a foot stands, its stride and lift [m], and the height of the hips [m].
STRIDE, DUTY, STEP, LIFT, HEIGHT = 0.4, 0.6, 0.1, 0.07, 0.3
# Gains of the joints' controllers [N m/rad, N m s/rad], and the seconds over which the gait sets in.
GAINS, ONSET = (200.0, 4.0), 0.5
# Step of the simulation [s]: of two steps one is logged.
TICK = 0.001
# Standard deviations of the sensors: rad/s, m/s², rad, N m; of the encoders of the arm, rad; and of the biases.
NOISE = {"gyro": 2e-3, "acc": 0.05, "encoders": 1e-3, "torques": 0.3}
BIASES = {"gyro": 0.02, "acc": 0.2}
ARM_ENCODERS = 1e-4
# Densities of jerk [rad/s³/√Hz] and snap that are drawn, and standard deviations of the drawn sensors, in their units.
DRAWN, DRAWN_SNAP = 500.0, 2e4
DRAWN_STD = {"encoders": 1e-3, "torques": 0.5, "bias": 1.0, "push": 5.0}
# White noise of the velocity of a foot that stands [m/s], and the standard deviation and time [m/s, s] of an error that
# lasts: it rolls, slips and rings on a soft floor (after touch-downs 0.1 to 0.6 m/s, after 20 ms 0.01: measured).
SLIP, SLIPS = 2e-3, (0.02, 0.02)
# Seconds after a touch-down in which the floor, pressed in at once, comes back at 1 to 3 cm/s under both feet of a pair
# (measured): a velocity with a sign, which no error of zero mean stands for.
SETTLE = 0.04
# Accelerations less gravity that bodies have [m/s²], and length [m] of a link, by which errors of a model are declared.
LOADED, LEVER = 12.0, 0.1
# Moment [N m] at the centre of a foot of the force at its surface: 0.12 rms while it stands (measured), and lasting. As
# white noise of rows 2 ms apart, with the density of an error that lasts 20 ms: 0.12 √(2 · 20/2).
ROLLING = 0.5
# Begin and length of a push [s]; standard deviations [N m, N] of its wrench before anything is measured, and the time
# [s] that it lasts.
PUSH, PUSHES, LASTS = (0.25, 0.5), np.repeat([5.0, 50.0], 3), 0.2
# Standard deviations [N m, N] of the wrench on a leg whose foot is in the air: nothing, and what the model leaves out.
AIR = np.repeat([0.1, 1.0], 3)


@dataclass
class Truth:
    """The motion at N instants t (N,) [s]: q (N, nq), qd, qdd, tau (N, nv), and forces on each of the feet.

    forces (N, feet, 3) [N] in world axes at the feet, contacts (N, feet) bool; push (N, 3) [N] on the trunk, in world
    axes; biases {sensor: (m,)}.
    """

    t: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    qdd: np.ndarray
    tau: np.ndarray
    forces: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 3)))
    contacts: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=bool))
    push: np.ndarray = field(default_factory=lambda: np.zeros((0, 3)))
    biases: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def switches(self) -> list[tuple[float, str, bool]]:
        """(time, leg, True if it touches down) of each change of contact."""
        rows, feet = np.nonzero(np.diff(self.contacts, axis=0))
        return [(float(self.t[k + 1]), LEGS[i], bool(self.contacts[k + 1, i])) for k, i in zip(rows, feet, strict=True)]


@dataclass
class RawLog:
    """A robot, its raw log {column: array} with t, as `sysdyn.Log(…, states="unknown")` reads it, and the truth."""

    model: sd.Model
    log: dict[str, np.ndarray]
    truth: Truth


# ---- an arm ----------------------------------------------------------------------------------------------------------


def arm(seconds: float = 2.0, rate: float = 1000.0, noise: float = ARM_ENCODERS, seed: int = 0) -> RawLog:
    """A chain of seven joints, each on a sum of three sines of 0.3 to 2 Hz; encoders alone."""
    model, rng = sd.chain(7, seed=1), np.random.default_rng(seed)
    t = np.arange(round(seconds * rate)) / rate
    omega = 2.0 * math.pi * rng.uniform(0.3, 2.0, (3, model.nv, 1))
    phase, size = rng.uniform(0.0, 2.0 * math.pi, omega.shape), rng.uniform(0.1, 0.4, omega.shape)
    angle = omega * t + phase
    q = np.sum(size * np.sin(angle), axis=0).T
    qd = np.sum(size * omega * np.cos(angle), axis=0).T
    qdd = np.sum(-size * omega**2 * np.sin(angle), axis=0).T
    truth = Truth(t, q, qd, qdd, sd.rnea(model, q, qd, qdd))
    return RawLog(model, {"t": t, "encoders": q + noise * rng.standard_normal(q.shape)}, truth)


def arm_problem(log: RawLog, noise: float = ARM_ENCODERS) -> sd.Problem:
    """Encoders, and no external wrench: torques follow."""
    return sd.Problem(log.model, [sd.JointPosition("all", noise=noise, name="encoders"), sd.ExternalWrench("all")])


def drawn_arm(seed: int, order: int = 3, density: float | None = None) -> tuple[RawLog, sd.Problem, np.ndarray]:
    """(log, problem, fx (N, nb, 6)) of a chain of three joints that moves by the process that estimates assume.

    White noise of this density (None: `DRAWN`, or `DRAWN_SNAP`) drives the derivative of this order from a random
    state; times are irregular. Sensors, the bias of the torques and the wrench on the last body are drawn from what the
    problem declares of them.
    """
    model, rng = sd.chain(3, seed=1), np.random.default_rng(seed)
    if density is None:
        density = DRAWN if order == 3 else DRAWN_SNAP
    t = np.cumsum(rng.uniform(2e-3, 8e-3, 60))
    x = np.zeros((len(t), order, model.nv))
    x[0] = rng.standard_normal((order, model.nv)) * np.array([0.5, 1.0, 10.0, 100.0])[:order, None]
    for k, dt in enumerate(np.diff(t)):
        powers = np.array(
            [[dt ** (j - i) / math.factorial(j - i) if j >= i else 0.0 for j in range(order)] for i in range(order)]
        )
        nodes, weights = np.polynomial.legendre.leggauss(order)  # a push s ago, integrated exactly
        ago = 0.5 * dt * (1.0 + nodes)
        pushed = np.array([ago ** (order - 1 - i) / math.factorial(order - 1 - i) for i in range(order)])
        noise = pushed * np.sqrt(0.5 * dt * weights) @ rng.standard_normal((order, model.nv))
        x[k + 1] = powers @ x[k] + density * noise
    q, qd, qdd = x[:, 0], x[:, 1], x[:, 2]
    fx = np.zeros((len(t), model.nb, 6))
    fx[:, -1] = DRAWN_STD["push"] * rng.standard_normal((len(t), 6))
    tau, bias = sd.rnea(model, q, qd, qdd, fx), DRAWN_STD["bias"] * rng.standard_normal(model.nv)
    log = {
        "t": t, "encoders": q + DRAWN_STD["encoders"] * rng.standard_normal(q.shape),
        "torques": tau + bias + DRAWN_STD["torques"] * rng.standard_normal(q.shape),
    }  # fmt: skip
    *others, last = model.body_names
    problem = sd.Problem(model, [
        sd.JointPosition("all", noise=DRAWN_STD["encoders"], name="encoders"),
        sd.JointTorque("all", noise=DRAWN_STD["torques"], bias=sd.Constant(DRAWN_STD["bias"]), name="torques"),
        sd.ExternalWrench(others, name="none"),
        sd.Prior(sd.ExternalWrench(last, noise=DRAWN_STD["push"]), name="push"),
    ])  # fmt: skip
    return RawLog(model, log, Truth(t, q, qd, qdd, tau, biases={"torques": bias})), problem, fx


# ---- a quadruped -----------------------------------------------------------------------------------------------------


def quadruped_file() -> str:
    """The MJCF file of a quadruped of 13 kg with twelve hinges, motors, and spheres as feet."""
    legs = []
    for leg in LEGS:
        x, y = (HALF_LENGTH if leg[0] == "F" else -HALF_LENGTH), (1.0 if leg[1] == "L" else -1.0)
        legs.append(f"""
<body name="{leg}_hip" pos="{x} {y * HALF_WIDTH} 0"><joint name="{leg}_hip" axis="1 0 0"/>
<inertial pos="0 {y * 0.03} 0" mass="0.7" diaginertia="0.0006 0.0008 0.0006"/>
<body name="{leg}_thigh" pos="0 {y * OFFSET} 0"><joint name="{leg}_thigh" axis="0 1 0"/>
<inertial pos="0 {-y * 0.02} -0.03" mass="1.0" diaginertia="0.005 0.005 0.001"/>
<body name="{leg}_calf" pos="0 0 {-LINK}"><joint name="{leg}_calf" axis="0 1 0"/>
<inertial pos="0.005 0 -0.1" mass="0.2" diaginertia="0.0016 0.0016 0.0001"/>
<geom name="{leg}" type="sphere" size="{FOOT}" pos="0 0 {-LINK}" friction="0.8 0.02 0.01"/>
<site name="{leg}_foot" pos="0 0 {-LINK}"/></body></body></body>""")
    motors = "".join(f'<motor joint="{leg}_{joint}"/>' for leg in LEGS for joint in JOINTS)
    return f"""<mujoco model="quadruped"><option timestep="{TICK}"/>
<default><geom solref="0.01 1" condim="3"/></default><worldbody>
<geom name="floor" type="plane" size="0 0 1" friction="0.8 0.02 0.01"/>
<body name="trunk" pos="0 0 {HEIGHT + FOOT}"><freejoint name="root"/>
<inertial pos="0.01 0 0" mass="6" diaginertia="0.02 0.08 0.09"/>
<site name="imu" pos="0.03 0.01 0.05" euler="0 0 0.2"/>{"".join(legs)}</body></worldbody>
<actuator>{motors}</actuator>
<sensor><gyro name="gyro" site="imu"/><accelerometer name="acc" site="imu"/></sensor></mujoco>"""


def phase_of(leg: str, t: float) -> float:
    """Share of its stride that a leg has done at t; it stands in the first `DUTY` of it."""
    return (t / STRIDE + (0.0 if leg in ("FL", "RR") else 0.5)) % 1.0


def gait(t: float) -> np.ndarray:
    """Angles (12,) of a trot at t: a foot goes back while it stands, and forward above the ground."""
    angles = []
    share = min(t / ONSET, 1.0)
    for leg in LEGS:
        phase = phase_of(leg, t)
        if phase < DUTY:
            x, lift = STEP * (0.5 - phase / DUTY), 0.0
        else:
            s = (phase - DUTY) / (1.0 - DUTY)
            x, lift = -0.5 * STEP * math.cos(math.pi * s), LIFT * math.sin(math.pi * s) ** 2
        x, z = share * x, HEIGHT - share * lift
        knee = -2.0 * math.acos(min(math.hypot(x, z) / (2.0 * LINK), 1.0))
        angles += [0.0, -math.atan2(x, z) - knee / 2.0, knee]
    return np.array(angles)


def quadruped(
    instants: int = 2000, seed: int = 0, start: float = 1.0, error: float = 0.0, push: float = 0.0
) -> RawLog:  # fmt: skip
    """Instants of a trot at 2 ms, from `start` [s] on, when it walks: see the module.

    error: standard deviation of relative errors of the masses, their centres and inertias of the model, body by body.
    push: greatest force [N] that pushes the trunk aside, see `pushed`.
    """
    mj = mujoco.MjModel.from_xml_string(quadruped_file())
    data, state, rng = mujoco.MjData(mj), sd.MujocoState(mj), np.random.default_rng(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sd.IgnoredWarning)  # contacts and motors are measurements here
        model = sd.from_mujoco(mj)
    wrong = 1.0 + error * np.random.default_rng(seed + 200).standard_normal((3, mj.nbody, 1))
    mj.body_mass *= wrong[0, :, 0]
    mj.body_inertia *= wrong[0] * wrong[1]
    mj.body_ipos *= wrong[2]
    mujoco.mj_setConst(mj, data)
    data.qpos[7:] = gait(0.0)
    feet = [mj.geom(leg).id for leg in LEGS]
    rows: dict[str, list[Any]] = {
        x: [] for x in ("qpos", "qvel", "qacc", "tau", "gyro", "acc", "forces", "contacts", "push")
    }
    first = round(start / TICK)
    for k in range(first + 2 * instants):
        t = k * TICK
        wanted, rate = gait(t), (gait(t + 1e-4) - gait(t - 1e-4)) / 2e-4 if t > 0.0 else np.zeros(12)
        data.ctrl[:] = GAINS[0] * (wanted - data.qpos[7:]) + GAINS[1] * (rate - data.qvel[6:]) + _carrying(mj, data, t)
        data.xfrc_applied[mj.body("trunk").id, 1] = pushed(t - start, push)
        mujoco.mj_forward(mj, data)  # accelerations, forces and sensors of this very state
        if k >= first and (k - first) % 2 == 0:
            force = _forces(mj, data, feet)
            rows["push"].append(np.array([0.0, pushed(t - start, push), 0.0]))
            for name, x in (("qpos", data.qpos), ("qvel", data.qvel), ("qacc", data.qacc), ("tau", data.qfrc_actuator),
                            ("gyro", data.sensor("gyro").data), ("acc", data.sensor("acc").data), ("forces", force),
                            ("contacts", np.abs(force).sum(axis=1) > 0.0)):  # fmt: skip
                rows[name].append(np.array(x))
        mujoco.mj_step(mj, data)
    found = {name: np.array(x) for name, x in rows.items()}
    q, qd = state.to_sysdyn(found["qpos"], found["qvel"])
    qdd = state.acceleration_to_sysdyn(found["qpos"], found["qvel"], found["qacc"])
    tau = state.force_to_sysdyn(found["qpos"], found["tau"])
    t = 2.0 * TICK * np.arange(instants)
    biases = {name: size * rng.standard_normal(3) for name, size in BIASES.items()}
    truth = Truth(t, q, qd, qdd, tau, found["forces"], found["contacts"], found["push"], biases)
    exact = {"gyro": found["gyro"] + biases["gyro"], "acc": found["acc"] + biases["acc"], "encoders": q[:, 7:],
             "torques": tau[:, 6:]}  # fmt: skip
    noisy = {name: x + NOISE[name] * rng.standard_normal(x.shape) for name, x in exact.items()}
    return RawLog(model, {"t": t, **noisy}, truth)


def pushed(t: float, size: float) -> float:
    """Force [N] at t [s] of a push of this size that begins after `PUSH[0]` s and lasts `PUSH[1]`."""
    s = (t - PUSH[0]) / PUSH[1]
    return size * math.sin(math.pi * s) ** 2 if 0.0 < s < 1.0 else 0.0


def _carrying(mj: mujoco.MjModel, data: mujoco.MjData, t: float) -> np.ndarray:
    """Torques (12,) by which the legs that shall stand carry the weight, each the same share of it."""
    stand = [leg for leg in LEGS if phase_of(leg, t) < DUTY]
    torques, weight = np.zeros(12), -mj.opt.gravity[2] * mj.body_mass.sum()
    for leg in stand:
        J = np.zeros((3, mj.nv))
        mujoco.mj_jacSite(mj, data, J, None, mj.site(f"{leg}_foot").id)
        torques -= J[2, 6:] * weight / len(stand)
    return torques


def with_contacts(log: RawLog, late: float = 0.0) -> dict[str, np.ndarray]:
    """The log with columns active: LEG that say when each foot stands, `late` [s] after it does."""
    shift = round(late / (log.truth.t[1] - log.truth.t[0]))
    stands = log.truth.contacts[np.clip(np.arange(len(log.truth.t)) - shift, 0, None)]
    return {**log.log, **{f"active: {leg}": stands[:, k].astype(float) for k, leg in enumerate(LEGS)}}


def quadruped_problem(
    log: RawLog, torque_bias: sd.Constant | None = None, error: float = 0.0,
    when: Callable[[str], str | None] | None = None, push: bool = False,
) -> sd.Problem:  # fmt: skip
    """What the log of the quadruped says: sensors with biases, feet that stand and roll, and forces at these alone.

    error: of the model, as of `quadruped`. when: of the stances, by leg; None: columns of the log. push: something may
    push the trunk.
    """
    model = log.model
    calves = [f"{leg}_calf" for leg in LEGS]
    touched = [*calves, *(["trunk"] if push else [])]
    base, air = model.joint_names[0], [leg for leg in LEGS if when is None or when(leg) != "kinematics"]
    return sd.Problem(model, [
        sd.JointPosition("all", noise=NOISE["encoders"], name="encoders"),
        sd.Gyroscope("imu", noise=NOISE["gyro"], bias=sd.Constant(5.0 * BIASES["gyro"]), name="gyro"),
        sd.Accelerometer("imu", noise=NOISE["acc"], bias=sd.Constant(5.0 * BIASES["acc"]), name="acc"),
        sd.JointTorque(base, name="no motor"),
        sd.JointTorque(model.joint_names[1:], noise=NOISE["torques"], bias=torque_bias, name="torques"),
        sd.ExternalWrench([x for x in model.body_names if x not in touched], name="no contact"),
        sd.Prior(sd.ExternalWrench(calves, noise=200.0), name="contact"),
        *(sd.Switchable(sd.ExternalWrench(f"{leg}_calf", noise=AIR), f"{leg} in the air", unless=leg) for leg in air),
        *(sd.PointContact(f"{leg}_foot", noise=ROLLING, name=f"point {leg}") for leg in LEGS),
        *(sd.Stance(f"{leg}_foot", noise=SLIP, radius=FOOT, settle=SETTLE, bias=sd.GaussMarkov(*SLIPS), name=leg,
                    when=None if when is None else when(leg)) for leg in LEGS),
        *([sd.ModelNoise("f", noise=model_noise(model, error), name="model")] if error else []),
        *([sd.Prior(sd.ExternalWrench("trunk", noise=AIR), "push", sd.GaussMarkov(PUSHES, LASTS))] if push else []),
    ])  # fmt: skip


def model_noise(model: sd.Model, error: float) -> np.ndarray:
    """(6 nb,) standard deviations [N m, N] of the equations of motion of bodies whose masses have relative errors."""
    force = error * LOADED * model.inertias[:, 5, 5]
    return np.column_stack([np.repeat(LEVER * force[:, None], 3, axis=1), np.repeat(force[:, None], 3, axis=1)]).ravel()


# ---- a squat ---------------------------------------------------------------------------------------------------------

# Joints of the iCub that are left out with what they carry, so that legs and trunk stay, and its force/torque sensors.
CUT = ("l_shoulder_pitch", "r_shoulder_pitch", "neck_pitch")
FORCE_SENSORS = ("l_leg_ft", "r_leg_ft", "l_foot_ft", "r_foot_ft")
# Rows of the whole squat of 4 s.
SQUAT = 400
# Standard deviations of its sensors: rad, rad/s, m/s², N m and N; and of their biases.
SQUAT_NOISE = {"encoders": 1e-4, "gyro": 2e-3, "acc": 0.05, "ft": np.repeat([0.05, 0.5], 3)}
SQUAT_BIASES = {"gyro": 0.02, "acc": 0.1, "ft": np.repeat([0.1, 1.0], 3)}


def icub_squat(rows: int = SQUAT, seed: int = 0) -> tuple[RawLog, sd.Problem, sd.Problem, dict[str, np.ndarray]]:
    """(raw log, its problem, that of known states, its values) of a squat of the iCub's legs and trunk in MuJoCo.

    The motion is that of experiments/benchmarks/squat.py, on feet that stand still. The raw log has encoders, an IMU at
    the root and force/torque sensors, with biases. The other problem knows q and q̇ exactly, has accelerations
    of the joints with noise of 0.2 rad/s², and the sensors without biases.
    """
    sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
    import squat

    mj, _, urdf = squat.robot(squat.URDF, CUT)
    whole = squat.simulate(mj, SQUAT, FORCE_SENSORS)
    moved = whole._replace(
        **{x: getattr(whole, x)[:rows] for x in ("t", "q", "qd", "qdd", "tau")},
        sensors={x: y[:rows] for x, y in whole.sensors.items()},
    )
    model, rng = sd.load_urdf(urdf, base="floating", fixed_joints="sensors"), np.random.default_rng(seed)
    q, qd, tau = squat.in_order_of(model, moved)
    order = np.array([moved.joints.index(name) for name in model.joint_names if name in moved.joints])
    qdd = np.concatenate([moved.qdd[:, :6], moved.qdd[:, 6 + order]], axis=1)
    back = Rotation.from_quat(q[:, 3:7]).inv()
    shown = {"encoders": q[:, 7:], "gyro": qd[:, :3], **moved.sensors,
             "acc": qdd[:, 3:6] + np.cross(qd[:, :3], qd[:, 3:6]) - back.apply(np.array(model.gravity))}  # fmt: skip
    size = {name: "ft" if name in FORCE_SENSORS else name for name in shown}
    noisy = {x: y + np.asarray(SQUAT_NOISE[size[x]]) * rng.standard_normal(y.shape) for x, y in shown.items()}
    biases = {
        x: np.asarray(SQUAT_BIASES[size[x]]) * rng.standard_normal(shown[x].shape[1]) for x in shown if x != "encoders"
    }
    root, joints = model.body_names[0], [model.joint_names[i] for i in range(1, model.nb) if model.joints[i].nv]
    others = [x for x in model.body_names if x not in squat.FEET]
    told = [
        sd.JointTorque(model.joint_names[0], name="no motor"), sd.ExternalWrench(others, name="no contact"),
        sd.Prior(sd.ExternalWrench(list(squat.FEET), noise=1e3), name="contact"),
    ]  # fmt: skip
    raw = sd.Problem(model, [
        *told, sd.JointPosition("all", noise=SQUAT_NOISE["encoders"], name="encoders"),
        sd.Gyroscope(root, noise=SQUAT_NOISE["gyro"], bias=sd.Constant(SQUAT_BIASES["gyro"]), name="gyro"),
        sd.Accelerometer(root, noise=SQUAT_NOISE["acc"], bias=sd.Constant(SQUAT_BIASES["acc"]), name="acc"),
        *(sd.sensor(model, x, noise=SQUAT_NOISE["ft"], bias=sd.Constant(SQUAT_BIASES["ft"])) for x in FORCE_SENSORS),
        *(sd.Stance(x, "fixed", noise=1e-3, name=f"stands on {x}") for x in squat.FEET),
    ])  # fmt: skip
    exact = sd.Problem(model, [
        *told, sd.Accelerometer(root, noise=SQUAT_NOISE["acc"], name="acc"),
        sd.Prior(sd.JointAcceleration(model.joint_names[0], noise=1e2), name="base"),
        sd.JointAcceleration(joints, noise=0.2, name="accelerations"),
        *(sd.sensor(model, x, noise=SQUAT_NOISE["ft"]) for x in FORCE_SENSORS),
    ])  # fmt: skip
    still = np.zeros((rows, 6))
    log = {"t": moved.t, **{x: y + biases.get(x, 0.0) for x, y in noisy.items()}, "no motor": still}
    values = {**{x: noisy[x] for x in ("acc", *FORCE_SENSORS)}, "no motor": still,
              "accelerations": qdd[:, 6:] + 0.2 * rng.standard_normal((rows, len(joints)))}  # fmt: skip
    return RawLog(model, log, Truth(moved.t, q, qd, qdd, tau, biases=biases)), raw, exact, values


def _forces(mj: mujoco.MjModel, data: mujoco.MjData, feet: list[int]) -> np.ndarray:
    """(feet, 3) [N] forces of the floor on each foot, in world axes."""
    force, found = np.zeros(6), np.zeros((len(feet), 3))
    for c in range(data.ncon):
        contact = data.contact[c]
        mujoco.mj_contactForce(mj, data, c, force)
        for geom, sign in ((contact.geom1, -1.0), (contact.geom2, 1.0)):
            if geom in feet:
                found[feet.index(geom)] += sign * contact.frame.reshape(3, 3).T @ force[:3]
    return found


# ---- both ------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for the logs")
    arguments = parser.parse_args()
    logs = {"arm": arm(seed=arguments.seed), "quadruped": quadruped(seed=arguments.seed)}
    print(f"arm: rms torque {np.sqrt(np.mean(logs['arm'].truth.tau ** 2)):.0f} N m")
    truth = logs["quadruped"].truth
    forward, height = np.ptp(truth.q[:, 0]), truth.q[:, 2]
    print(
        f"quadruped: {forward:.2f} m in {truth.t[-1]:.1f} s, base {height.min():.3f} to {height.max():.3f} m high, "
        f"{len(truth.switches)} changes of contact, a foot stands {truth.contacts.mean():.0%} of the time, "
        f"mean vertical force {truth.forces[..., 2].sum(axis=1).mean():.1f} N"
    )
    for name, log in logs.items() if arguments.out else ():
        arguments.out.mkdir(parents=True, exist_ok=True)
        np.savez(arguments.out / f"{name}.npz", **(with_contacts(log) if name == "quadruped" else log.log))


if __name__ == "__main__":
    main()
