"""A squat of the iCub, made by MuJoCo and estimated back from noisy sensors: do the error bars tell the truth?

    python experiments/benchmarks/squat.py [--states 2000] [--seed 0] [--log squat.npz]

MuJoCo reads the URDF itself and gives the torques, the accelerations, and what accelerometers and force/torque sensors
show. White noise as declared in problems/icub_sensors.toml is added; q and q̇ are exact. Writes experiments/results/
squat.csv (one row a joint) and squat.png, and with --log the log itself, for `sysdyn solve --log`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import icub_models
import mujoco
import numpy as np
from lxml import etree
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.spatial.transform import Rotation

# The iCub's description.
URDF = str(icub_models.get_model_file("iCubGazeboV2_5"))
# The source tree.
ROOT = Path(__file__).resolve().parents[2]
# The feet stand on the floor.
FEET = ("l_foot", "r_foot")
# A squat takes this many seconds.
PERIOD = 4.0
# 95 % of a normal distribution lie within this many standard deviations.
BAND_95 = 1.959963984540054


class Squat(NamedTuple):
    """A motion at N times: q, q̇ of the robot on a floating base, and what sensors show of it without noise.

    q (N, 7 + n): place and quaternion (x, y, z, w) of the base, angles; qd, qdd, tau (N, 6 + n): angular and linear in
    the axes of the base, joints. joints (n): their names, in this order. sensors: {name: (N, m)}.
    """

    t: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    qdd: np.ndarray
    tau: np.ndarray
    joints: tuple[str, ...]
    sensors: dict[str, np.ndarray]


def robot(urdf: str, cut: tuple[str, ...] = ()) -> tuple[mujoco.MjModel, list[etree._Element], str]:
    """(the robot with its sensors as MuJoCo reads it, its <sensor> elements, the URDF text) without the joints `cut`.

    What a joint that is cut carries is left out.
    """
    root = etree.parse(urdf).getroot()
    for tag in ("visual", "collision", "gazebo", "transmission"):
        for element in list(root.iter(tag)):
            element.getparent().remove(element)
    _cut(root, cut)
    text = etree.tostring(root, encoding="unicode")
    sensors = root.findall("sensor")
    for element in sensors:
        root.remove(element)
    settings = {"fusestatic": "false", "discardvisual": "true", "balanceinertia": "false"}
    etree.SubElement(etree.SubElement(root, "mujoco"), "compiler", settings)
    spec = mujoco.MjSpec.from_string(etree.tostring(root).decode())
    children = {joint.find("child").get("link"): joint.get("name") for joint in root.findall("joint")}
    links = {name: link for link, name in children.items()}
    (base,) = {link.get("name") for link in root.findall("link")} - set(children)
    spec.body(base).add_freejoint(name="root_joint")
    kinds = mujoco.mjtSensor
    for element in sensors:
        name, kind = element.get("name"), element.get("type")
        parent, place = element.find("parent"), element.find("origin")
        numbers = [[float(x) for x in place.get(key, "0 0 0").split()] for key in ("xyz", "rpy")]
        if kind == "force_torque":
            if element.findtext("force_torque/frame") != "sensor":
                numbers = [[0.0] * 3] * 2  # in the frame of the child link
            body = links[parent.get("joint")]
            shown = (kinds.mjSENS_TORQUE, kinds.mjSENS_FORCE)
        elif kind == "accelerometer":
            body, shown = parent.get("link"), (kinds.mjSENS_ACCELEROMETER,)
        else:
            continue
        quaternion = np.roll(Rotation.from_euler("xyz", numbers[1]).as_quat(), 1)
        spec.body(body).add_site(name=name, pos=numbers[0], quat=quaternion)
        for k, type_ in enumerate(shown):
            spec.add_sensor(name=f"{name}.{k}", type=type_, objtype=mujoco.mjtObj.mjOBJ_SITE, objname=name)
    mj = spec.compile()
    mj.dof_damping[:] = mj.dof_frictionloss[:] = mj.dof_armature[:] = mj.jnt_stiffness[:] = 0.0
    off = mujoco.mjtDisableBit
    mj.opt.disableflags |= off.mjDSBL_CONSTRAINT | off.mjDSBL_CONTACT | off.mjDSBL_LIMIT
    return mj, sensors, text


def _cut(root: etree._Element, joints: tuple[str, ...]) -> None:
    """Remove joints with all that they carry."""
    gone = {joint.find("child").get("link") for joint in root.findall("joint") if joint.get("name") in joints}
    while True:
        more = {j.find("child").get("link") for j in root.findall("joint") if j.find("parent").get("link") in gone}
        if more <= gone:
            break
        gone |= more
    lost = {j.get("name") for j in root.findall("joint") if j.find("child").get("link") in gone}
    for element in list(root):
        parent = element.find("parent") if element.tag == "sensor" else None
        if (
            (element.tag == "link" and element.get("name") in gone)
            or (element.tag == "joint" and element.get("name") in lost)
            or (parent is not None and (parent.get("link") in gone or parent.get("joint") in lost))
        ):
            root.remove(element)


def simulate(mj: mujoco.MjModel, states: int, names: tuple[str, ...]) -> Squat:
    """The squat at `states` times, by MuJoCo alone, with the sensors of these names.

    Both feet stay where they are: the joints move as prescribed, and the base as the left foot tells it. The feet share
    the contact wrench that the motion needs, and press against each other with a changing one.
    """
    t = np.linspace(0.0, PERIOD, states)
    joints = [mj.joint(k).name for k in range(1, mj.njnt)]
    angles, rates, accelerations = _angles(joints, t)
    data, feet = mujoco.MjData(mj), [mj.body(name).id for name in FEET]
    goal = None
    result: dict[str, list] = {"q": [], "qd": [], "qdd": [], "tau": [], "sensors": []}
    for k in range(states):
        data.qpos[:3], data.qpos[3:7], data.qpos[7:] = 0.0, (1.0, 0.0, 0.0, 0.0), angles[k]
        mujoco.mj_kinematics(mj, data)
        R, p = data.xmat[feet[0]].reshape(3, 3).copy(), data.xpos[feet[0]].copy()
        goal = (R, p) if goal is None else goal
        turn = goal[0] @ R.T
        data.qpos[:3] = goal[1] - turn @ p
        data.qpos[3:7] = np.roll(Rotation.from_matrix(turn).as_quat(), 1)
        # J v = 0 and J q̈ + J̇ v = 0 of the left foot give the base
        mujoco.mj_kinematics(mj, data)
        mujoco.mj_comPos(mj, data)
        J = _jacobian(mj, data, feet[0], mujoco.mj_jacBody)
        data.qvel[6:] = rates[k]
        data.qvel[:6] = -np.linalg.solve(J[:, :6], J[:, 6:] @ rates[k])
        mujoco.mj_fwdPosition(mj, data)
        mujoco.mj_fwdVelocity(mj, data)
        drift = np.zeros((6, mj.nv))
        mujoco.mj_jacDot(mj, data, drift[:3], drift[3:], data.xpos[feet[0]], feet[0])
        data.qacc[6:] = accelerations[k]
        data.qacc[:6] = -np.linalg.solve(J[:, :6], J[:, 6:] @ accelerations[k] + drift @ data.qvel)
        # wrenches (force, torque) of the ground at the centres of mass of the feet carry the base
        qacc = data.qacc.copy()
        data.xfrc_applied[:] = 0.0
        mujoco.mj_inverse(mj, data)
        A = np.hstack([_jacobian(mj, data, foot, mujoco.mj_jacBodyCom).T for foot in feet])
        W = np.linalg.lstsq(A[:6], data.qfrc_inverse[:6], rcond=None)[0]
        press = np.array([3.0, 8.0, 5.0, 0.3, 0.5, 0.2]) * np.sin(2.0 * np.pi * t[k] / PERIOD + np.arange(6))
        W = W + np.linalg.lstsq(A[:6], -A[:6, :6] @ press, rcond=None)[0] + np.concatenate([press, np.zeros(6)])
        tau = data.qfrc_inverse - A @ W
        data.xfrc_applied[feet] = W.reshape(2, 6)
        data.qacc[:] = qacc
        mujoco.mj_inverse(mj, data)
        R = data.xmat[1].reshape(3, 3)
        v, w = R.T @ data.qvel[:3], data.qvel[3:6]
        result["q"].append([*data.qpos[:3], *np.roll(data.qpos[3:7], -1), *angles[k]])
        result["qd"].append([*w, *v, *rates[k]])
        result["qdd"].append([*qacc[3:6], *(R.T @ qacc[:3] - np.cross(w, v)), *accelerations[k]])
        result["tau"].append([*tau[3:6], *(R.T @ tau[:3]), *tau[6:]])
        result["sensors"].append(data.sensordata.copy())
    arrays = {name: np.array(x) for name, x in result.items()}
    shown = {name: shown_values(mj, name, arrays["sensors"]) for name in names}
    return Squat(t, *(arrays[x] for x in ("q", "qd", "qdd", "tau")), tuple(joints), shown)


def _angles(joints: list[str], t: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Angles of the joints, their rates and accelerations (N, n): both legs bend alike, all else sways."""
    w = 2.0 * np.pi / PERIOD
    bend = {"hip_pitch": 0.45, "knee": -0.9, "ankle_pitch": -0.45}
    mean, size, rate, phase = np.zeros((4, len(joints)))
    for k, name in enumerate(joints):
        leg = next((x for x in bend if name.endswith(x)), None)
        if leg is not None:
            mean[k], size[k], rate[k] = bend[leg] * 1.1, -bend[leg], w
        elif not any(x in name for x in ("hip", "ankle")):
            mean[k], size[k], rate[k], phase[k] = 0.3 * np.cos(k), 0.15, w * (1.0 + 0.1 * (k % 7)), 0.9 * k
    x = rate * t[:, None] + phase
    return mean + size * np.cos(x), -size * rate * np.sin(x), -size * rate**2 * np.cos(x)


def _jacobian(mj: mujoco.MjModel, data: mujoco.MjData, body: int, call) -> np.ndarray:
    """(6, nv) from q̇ to the velocity of a point of a body and its angular velocity, in the axes of the world."""
    J = np.zeros((6, mj.nv))
    call(mj, data, J[:3], J[3:], body)
    return J


def shown_values(mj: mujoco.MjModel, name: str, sensordata: np.ndarray) -> np.ndarray:
    """(N, 3) of an accelerometer, (N, 6) of a force/torque sensor, moment first: the wrench on the parent."""
    parts = [mj.sensor(k) for k in range(mj.nsensor) if mj.sensor(k).name.rpartition(".")[0] == name]
    values = np.hstack([sensordata[:, part.adr[0] : part.adr[0] + 3] for part in parts])
    return -values if len(parts) == 2 else values  # MuJoCo gives the wrench on the child


class Coverage(NamedTuple):
    """Errors of the torques over the posterior standard deviations (N, n), and the shares within 95 % and 3 σ."""

    z: np.ndarray
    within_95: float
    within_3: float


def coverage(found: np.ndarray, std: np.ndarray, truth: np.ndarray) -> Coverage:
    z = (found - truth) / std
    return Coverage(z, float(np.mean(np.abs(z) <= BAND_95)), float(np.mean(np.abs(z) <= 3.0)))


def noisy_log(problem, squat: Squat, seed: int) -> dict[str, np.ndarray]:
    """{name: (N, m)}: sensors and encoders with white noise as the problem declares it."""
    from sysdyn.measurements.noise import noise_of

    rng = np.random.default_rng(seed)
    order = [squat.joints.index(name) for name in problem.model.joint_names if name in squat.joints]
    exact = {**squat.sensors, "encoders": squat.qdd[:, 6:][:, order]}
    y = {}
    for m in problem.noisy:
        if m.name in exact:
            noise = noise_of(m, problem.model)
            L = np.linalg.cholesky(noise.matrix(noise.declared))
            y[m.name] = exact[m.name] + rng.standard_normal(exact[m.name].shape) @ L.T
    return y


def write_log(path: str | Path, task, arrays: dict[str, np.ndarray]) -> Path:
    """A log of a problem from arrays (N,) or (N, m): t, q, qd, values by measurement, "active:NAME"."""
    from sysdyn.data.columns import LogColumns
    from sysdyn.files.table_writers import write_table

    columns = LogColumns(task.problem, task.values)
    names = {name: (columns.of_array(name) or [[name]])[0] for name in arrays}
    writer = write_table(path, names)
    writer.write({name: np.reshape(x, (len(x), -1)).astype(float) for name, x in arrays.items()})
    writer.close()
    return Path(path)


def in_order_of(model, squat: Squat) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, q̇, τ with the joints in the order of the model."""
    order = np.array([squat.joints.index(name) for name in model.joint_names if name in squat.joints])
    q, qd, tau = (x[:, np.concatenate([range(n), n + order])] for x, n in ((squat.q, 7), (squat.qd, 6), (squat.tau, 6)))
    return q, qd, tau


def draw(squat: Squat, names: list[str], found: np.ndarray, std: np.ndarray, truth: np.ndarray, path: Path) -> None:
    """Torque and its error in the band of ±2 σ, of the joints of the left leg and an arm."""
    chosen = [names.index(x) for x in ("l_hip_pitch", "l_knee", "l_ankle_pitch", "l_shoulder_pitch")]
    figure = Figure(figsize=(11.0, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(chosen), sharex=True)
    for (above, below), k in zip(axes.T, chosen, strict=True):
        above.plot(squat.t, found[:, k], color="#56B4E9", linewidth=0.8, label="estimate")
        above.plot(squat.t, truth[:, k], color="#000000", linewidth=0.9, label="MuJoCo")
        above.set_title(names[k], fontsize=10)
        below.fill_between(squat.t, -2.0 * std[:, k], 2.0 * std[:, k], color="#E69F00", alpha=0.5, linewidth=0.0,
                           label="±2 σ")  # fmt: skip
        below.plot(squat.t, found[:, k] - truth[:, k], ".", color="#0072B2", markersize=1.2, label="error")
        below.set_xlabel("t [s]")
        for axis in (above, below):
            axis.grid(alpha=0.25, linewidth=0.5)
    axes[0, 0].set_ylabel("torque [N m]")
    axes[1, 0].set_ylabel("error [N m]")
    axes[0, 0].legend(fontsize=8)
    axes[1, 0].legend(fontsize=8, loc="upper right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def _row(joint: str, z: np.ndarray, std: np.ndarray, error: np.ndarray, truth: np.ndarray) -> dict[str, object]:
    return {
        "joint": joint, "states": len(z), "within_95": np.mean(np.abs(z) <= BAND_95),
        "within_3_sigma": np.mean(np.abs(z) <= 3.0), "mean_std_Nm": std.mean(),
        "rms_error_Nm": np.sqrt(np.mean(error**2)), "largest_torque_Nm": np.abs(truth).max(),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", help="write the noisy log to this .csv, .npz or .parquet file")
    options = parser.parse_args()
    from common import RESULTS, write_csv

    import sysdyn as sd
    from sysdyn.app.problem_files import load_job

    task = load_job(ROOT / "problems" / "icub_sensors.toml")
    model = task.problem.model
    declared = tuple(m.name for m in task.problem.noisy if m.name in sd.declared_sensors(model))
    squat = simulate(robot(URDF)[0], options.states, declared)
    q, qd, truth = in_order_of(model, squat)
    print("largest force on the base in MuJoCo", np.abs(squat.tau[:, :6]).max(), "N; must be zero")
    solver = sd.compile(task.problem, task.ordering, task.requested)
    y = noisy_log(task.problem, squat, options.seed)
    if options.log:
        print("log in", write_log(options.log, task, {"t": squat.t, "q": q, "qd": qd, **y}))
    solution = solver(q, qd, y={**task.values, **y})
    found, std = solution.tau[:, 6:], solution.std("tau")[:, 6:]
    c = coverage(found, std, truth[:, 6:])
    names = list(model.dof_names[6:])
    error, truth = found - truth[:, 6:], truth[:, 6:]
    parts = zip(names, c.z.T, std.T, error.T, truth.T, strict=True)
    rows = [_row("all", c.z, std, error, truth), *(_row(*part) for part in parts)]
    write_csv("squat", rows)
    draw(squat, names, found, std, truth, RESULTS / "squat.png")
    each = [row["within_95"] for row in rows[1:]]
    print(f"{len(q)} states, {len(names)} torques: {c.within_95:.2%} within the 95 % band "
          f"(joints: {min(each):.2%} to {max(each):.2%}), {c.within_3:.3%} within 3 standard deviations")  # fmt: skip


if __name__ == "__main__":
    main()
