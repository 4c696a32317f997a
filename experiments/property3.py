"""Property 3 and Remark 5: contact wrenches of two feet by load cells alone, and on a slippery floor.

Coordinates are angular-first. Load cells measure n_x, n_y, f_z of each foot, whose z axis is normal to its sole, and
leave H = [n_z, f_x, f_y]; on a slippery floor f_x = f_y = 0 are known as well, and H = [n_z]. In the equilibrium of the
whole robot, six equations, the unknowns have the columns [H, X* H]. First their rank over relative poses of the feet;
then a biped: its diagnosis, and the answers of a compiled solver while one sole turns away from the other.
"""

import math

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from nori import problems
from nori.harness import main, read_csv, write_csv

import sysdyn as sd
from sysdyn.app.matrix_plot import save_pictures
from sysdyn.errors import SingularState
from sysdyn.model import Fixed, Free, Revolute
from sysdyn.model.inertia import inertia
from sysdyn.model.kinematics import forward_kinematics
from sysdyn.model.se3 import X_inverse, X_motion, rotation, rotz, translation

TITLE = "two feet on load cells, and on a slippery floor"
CLAIM = (
    "with load cells that measure n_x, n_y and f_z of two feet inverse dynamics is ill-posed, proved for feet that are "
    "aligned (Property 3, Remark 5); on a slippery floor, where only the two n_z are unknown, it was observed to be "
    "solvable."
)
# These components of a foot's wrench are unknown on load cells alone, and on a slippery floor: H of (19b) and (24b).
CELLS, SLIPPERY = (problems.components(H) for _, H in (problems.LOAD_CELLS, problems.SLIPPERY_FLOOR))
# A component has this place in a wrench.
NUMBER = {"nz": 2, "fx": 3, "fy": 4}
# The rows n_y, n_z of the base are equations enough for two unknowns where the right foot rolls about x.
TWO_OF_SIX = (1, 2)
# The slippery floor is solved with these two of the six rows of the base, with all six as (21) and (24) have them, and
# with all six in least squares.
TWO, SIX, LEAST_SQUARES = "two rows of the base", "all six rows, exact", "all six rows, least squares"
# The problem of (21) with (24) has this name in the files.
AS_WRITTEN = "slippery floor, (24) as written"
# The feet are these frames.
FEET = ("l_sole", "r_sole")
# A singular value below this relative size is zero.
ZERO = 1e-10
# The right ankle rolls by this many angles, with this many disturbances of the cells at each.
ANGLES, QUICK_ANGLES = (37, 200), (9, 20)
# The cells have this standard deviation [N m, N].
NOISE = 1e-3


# ---- relative poses of the feet ------------------------------------------------------------------------------------


def any_pose(rng):
    return Free().transform(Free().random(rng))


def parallel(rng):
    return rotz(rng.uniform(-math.pi, math.pi)), rng.uniform(-1.0, 1.0, 3)


def aligned(rng):
    return np.eye(3), rng.uniform(-1.0, 1.0, 3)


def coplanar(rng):
    return rotz(rng.uniform(-math.pi, math.pi)), np.array([*rng.uniform(-1.0, 1.0, 2), 0.0])


# Each kind of relative pose of the feet is drawn at random.
POSES = {
    "any": any_pose,
    "parallel soles": parallel,
    "aligned (the paper's proof)": aligned,
    "soles in one plane": coplanar,
}


def poses(count):
    """Rank of [H, X* H] at random poses (E, r) of the second foot in the first, and the direction it misses."""
    rows = []
    for kind, draw in POSES.items():
        rng = np.random.default_rng(3)
        for _ in range(count):
            E, r = draw(rng)
            U, size, Vt = np.linalg.svd(columns(E, r, CELLS))
            pair = np.linalg.svd(columns(E, r, SLIPPERY), compute_uv=False)
            rank = int(np.sum(size > ZERO * size[0]))
            missed = np.zeros(6)
            missed[[NUMBER[c] for c in CELLS]] = Vt[-1, :3]
            rows.append({
                "pose": kind, "angle": angle(E), "rank_cells": rank,
                "fifth": size[4] / size[0], "sixth": size[5] / size[0],
                "direction_error": distance(missed, line_of_force(E, r)) if rank == 5 else "",
                "rank_slippery": int(np.sum(pair > ZERO * pair[0])),
                "condition_slippery": pair[0] / pair[1] if pair[1] > ZERO * pair[0] else math.inf,
            })  # fmt: skip
    return rows


def columns(E, r, unknown):
    """[H, X* H] (6, 2 len(unknown)) in coordinates of the first foot."""
    H = np.eye(6)[:, [NUMBER[c] for c in unknown]]
    return np.concatenate([H, X_motion(E, r).T @ H], axis=1)


def angle(E):
    """Between the normals of the soles [rad]."""
    return math.atan2(math.hypot(E[2, 0], E[2, 1]), E[2, 2])


def line_of_force(E, r):
    """Wrench (6,) of a force along the line where the sole planes meet; of a couple about z where they are parallel."""
    z1, z2 = np.array([0.0, 0.0, 1.0]), E[2]
    u = np.cross(z1, z2)
    if np.abs(u).max() <= ZERO:
        return np.concatenate([z1, np.zeros(3)])
    point = np.linalg.solve(np.array([z1, z2, u]), [0.0, z2 @ r, 0.0])
    return np.concatenate([np.cross(point, u), u])


def distance(w, expected):
    """Relative distance of two wrenches of any length and sign."""
    w, expected = w / np.linalg.norm(w), expected / np.linalg.norm(expected)
    return float(min(np.linalg.norm(w - expected), np.linalg.norm(w + expected)))


# ---- a biped -------------------------------------------------------------------------------------------------------

# A joint has an axis, an origin in the body before it [m], and mass [kg] and com [m] of the body after it.
LINKS = (
    ("l_ankle_roll", (1, 0, 0), (-0.03, 0.0, 0.06), 0.3, (0.0, 0.0, 0.02)),
    ("l_ankle_pitch", (0, 1, 0), (0.0, 0.0, 0.05), 2.5, (0.01, 0.0, 0.2)),
    ("l_knee", (0, 1, 0), (0.0, 0.0, 0.4), 3.0, (0.01, 0.0, 0.2)),
    ("l_hip_pitch", (0, 1, 0), (0.0, 0.0, 0.4), 0.5, (0.0, 0.0, 0.02)),
    ("l_hip_roll", (1, 0, 0), (0.0, 0.0, 0.05), 0.5, (0.0, 0.0, 0.02)),
    ("l_hip_yaw", (0, 0, 1), (0.0, 0.0, 0.05), 12.0, (0.0, -0.1, 0.1)),
    ("r_hip_yaw", (0, 0, 1), (0.0, -0.2, 0.0), 0.5, (0.0, 0.0, -0.02)),
    ("r_hip_roll", (1, 0, 0), (0.0, 0.0, -0.05), 0.5, (0.0, 0.0, -0.02)),
    ("r_hip_pitch", (0, 1, 0), (0.0, 0.0, -0.05), 3.0, (0.01, 0.0, -0.2)),
    ("r_knee", (0, 1, 0), (0.0, 0.0, -0.4), 2.5, (0.01, 0.0, -0.2)),
    ("r_ankle_pitch", (0, 1, 0), (0.0, 0.0, -0.4), 0.3, (0.0, 0.0, -0.02)),
    ("r_ankle_roll", (1, 0, 0), (0.0, 0.0, -0.05), 1.0, (0.03, 0.0, -0.04)),
)
# The soles are level at these joint angles [rad].
BENT = {
    "l_ankle_pitch": 0.4,
    "l_knee": -0.8,
    "l_hip_pitch": 0.4,
    "r_hip_pitch": -0.4,
    "r_knee": 0.8,
    "r_ankle_pitch": -0.4,
}


def biped():
    """Two legs of six revolute joints from foot to foot, the left one on a free joint, as eq. (21) has it."""
    names, joints, X_tree = ["l_sole"], [Free()], [np.eye(6)]
    I = [inertia(1.0, np.array([0.0, 0.0, 0.02]), 0.005 * np.eye(3))]
    for name, axis, origin, mass, com in LINKS:
        names.append(name)
        joints.append(Revolute(axis))
        X_tree.append(X_motion(np.eye(3), np.array(origin)))
        I.append(inertia(mass, np.array(com), mass * (0.01 + com[2] ** 2) / 3 * np.eye(3)))
    names.append("r_sole")
    joints.append(Fixed())
    X_tree.append(X_motion(np.eye(3), np.array([0.03, 0.0, -0.06])))
    I.append(np.zeros((6, 6)))
    parent = range(-1, len(names) - 1)
    return sd.Model("biped", names, names, joints, parent, np.array(X_tree), np.array(I), base="floating")


def problem(model, unknown, base, noise=None):
    """Known q̈, the wrenches on both feet but for the components `unknown`, and components `base` of no force there.

    noise [N m, N]: standard deviation that the force at the base is zero with; none: exactly.
    """
    known = sd.inverse_dynamics(model) - sd.ExternalWrench(FEET, unknown)
    return known + sd.JointTorque(model.joint_names[0], base, name="free base", noise=noise)


def posture(model, **angles):
    """q of bent knees and level soles, but for the given joint angles [rad]."""
    q = model.neutral()
    for name, x in (BENT | angles).items():
        q[model.q_slice(model.joint_index(name))] = x
    return q


def relative_pose(model, q):
    """(E, r) of the right sole in the left one."""
    left, right = (forward_kinematics(model, q)[model.body_index(name)] for name in FEET)
    X = right @ X_inverse(left)
    return rotation(X), translation(X)


def diagnoses():
    """What is said of the biped, what is missing in some postures, and the chain of the paper's own observation."""
    model = biped()
    step = {"r_hip_pitch": -0.8, "r_knee": 1.6, "r_ankle_pitch": -0.8}
    postures = {
        "at random": model.random_state(seed=5)[0],
        "standing": posture(model),
        "one foot on a step": posture(model, **step),
        "one foot on a slope of 20°": posture(model, r_ankle_roll=math.radians(20.0)),
    }
    rows = []
    for name, unknown, base in (
        ("load cells", CELLS, "all"), ("slippery floor", SLIPPERY, TWO_OF_SIX), (AS_WRITTEN, SLIPPERY, "all"),
    ):  # fmt: skip
        p = problem(model, unknown, base)
        found, system = sd.diagnose(p), sd.assemble(p, known="substituted")
        place = [system.col_names.index(f"fx({FEET[0]}).{c}") for c in unknown]
        for where, q in postures.items():
            _, size, Vt = np.linalg.svd(system.D(q).toarray())
            missing = int(np.sum(size <= ZERO * size[0]))
            missed = np.zeros(6)
            missed[[NUMBER[c] for c in unknown]] = Vt[-1, place]
            rows.append({
                "problem": name, "posture": where, "missing": missing,
                "direction_error": distance(missed, line_of_force(*relative_pose(model, q))) if missing == 1 else "",
                **told(found),
            })  # fmt: skip
    for skew in (1.5, 0.0):
        found = sd.diagnose(problems.load_cells(6, skew))
        rows.append({
            "problem": f"chain of Fig. 2, skew {skew}", "posture": "at random", "missing": "", "direction_error": "",
            **told(found),
        })  # fmt: skip
    return rows


def told(found):
    contacts = [x for x in found.undetermined if x.startswith("fx(")]
    return {"equations": found.equations, "well_posed": found.well_posed, "undetermined_contacts": " ".join(contacts)}


def slippery(quick=False):
    """Answers on the slippery floor while the right ankle rolls, for a motion and contacts that need no base force."""
    model = biped()
    forms = {
        TWO: problem(model, SLIPPERY, TWO_OF_SIX), SIX: problem(model, SLIPPERY, "all"),
        LEAST_SQUARES: problem(model, SLIPPERY, "all", NOISE),
    }  # fmt: skip
    if quick:  # the search for its order takes longest
        del forms[SIX]
    return [
        row
        for name, floor in forms.items()
        for row in _rolling(model, name, floor, *(QUICK_ANGLES if quick else ANGLES))
    ]


def _rolling(model, name, floor, count, disturbances):
    solver = sd.compile(floor, outputs=["tau", "fx"], level="fast", on_singular="nan")
    rng = np.random.default_rng(0)
    base, feet = slice(0, 6), [model.body_index(foot) for foot in FEET]
    _, qd, qdd = model.random_state(seed=1)
    fx = np.zeros((model.nb, 6))
    fx[feet] = [(2.0, -1.0, 3.0, 0.0, 0.0, 90.0), (-1.0, 2.0, -2.0, 0.0, 0.0, 110.0)]
    for theta in (0.0, *np.geomspace(1e-9, math.pi / 2, count)):
        q = posture(model, r_ankle_roll=theta)
        # the acceleration of the base that needs no force there
        motion = qdd.copy()
        motion[base] -= np.linalg.solve(sd.crba(model, q)[base, base], sd.rnea(model, q, qd, qdd, fx)[base])
        tau = sd.rnea(model, q, qd, motion, fx)
        free = {"y": {"free base": np.zeros(6)}} if name == LEAST_SQUARES else {"tau": np.zeros(model.nv)}
        known = {"qdd": motion, "fx": fx, **free}
        found = solver(q, qd, **known)
        noisy = np.tile(fx, (disturbances, 1, 1))
        noisy[:, feet] += NOISE * rng.standard_normal((disturbances, 2, 6))
        disturbed = solver(q, qd, **(known | {"fx": noisy}))
        E, _ = relative_pose(model, q)
        yield {
            "form": name, "roll": theta, "angle": angle(E), "ok": bool(found.ok),
            "tau_error": float(np.abs(found.tau - tau)[6:].max() / np.abs(tau).max()),
            "nz_error": float(np.abs(found.fx - fx)[feet, 2].max()),
            "base_force": float(np.abs(found.tau[base]).max()),
            "noise_gain": float(np.sqrt(np.mean((disturbed.fx - fx)[:, feet, 2] ** 2)) / NOISE),
            "message": "" if found.ok else reason(solver, q, qd, known),
        }  # fmt: skip


def reason(solver, q, qd, known):
    try:
        solver(q, qd, on_singular="raise", **known)
    except SingularState as error:
        return f"{error.equation} does not give {error.unknown}"
    return ""


def compute(folder, quick):
    write_csv(folder / "property3_poses.csv", poses(100 if quick else 2000))
    write_csv(folder / "property3_biped.csv", diagnoses())
    write_csv(folder / "property3_slippery.csv", slippery(quick))


def plot(folder):
    rows, angles = read_csv(folder / "property3_poses.csv"), read_csv(folder / "property3_slippery.csv")
    figure = Figure(figsize=(12.5, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    cells, floor = figure.subplots(1, 2)
    chosen = [r for r in rows if r["pose"] == "any"]
    x = [math.degrees(r["angle"]) for r in chosen]
    cells.plot(x, [r["fifth"] for r in chosen], ".", color="#0072B2", markersize=3, label="fifth")
    cells.plot(x, [max(r["sixth"], 1e-19) for r in chosen], "x", color="#D55E00", markersize=3, label="sixth")
    cells.axhline(ZERO, color="#444444", linewidth=0.8, linestyle="--", label="counts as zero")
    cells.set(yscale="log", ylim=(1e-20, 10), xlim=(0, 180), xticks=range(0, 181, 30),
              xlabel="angle between the soles [°]", ylabel="singular value over the first [1]",
              title="load cells: $[H, X^*H]$, any relative pose")  # fmt: skip
    cells.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False, fontsize=8)
    small = [r for r in chosen if r["angle"] < math.pi / 2]
    floor.plot([math.degrees(r["angle"]) for r in small], [r["condition_slippery"] for r in small], ".",
               color="#0072B2", markersize=4, label="condition of $[H, X^*H]$, any pose")  # fmt: skip
    theta = np.geomspace(1e-9, math.pi / 2, 200)
    floor.plot(np.degrees(theta), 1.0 / np.tan(theta / 2), color="#444444", linewidth=0.8, label=r"$\cot(\theta/2)$")
    for form, gain, error in ((TWO, "x", "s"), (LEAST_SQUARES, "+", "^")):
        solved = [r for r in angles if r["ok"] == "True" and r["form"] == form]
        theta = [math.degrees(r["angle"]) for r in solved]
        colour = "#D55E00" if form == TWO else "#009E73"
        floor.plot(theta, [r["noise_gain"] for r in solved], gain, color=colour, markersize=5,
                   label=f"gain from cells to $n_z$: {form}")  # fmt: skip
        floor.plot(theta, [r["tau_error"] for r in solved], error, color=colour, markersize=4, markerfacecolor="none",
                   label=rf"error of $\tau$: {form}")  # fmt: skip
    floor.set(xscale="log", yscale="log", xlabel=r"angle between the soles $\theta$ [°]",
              ylabel="condition, or error as a ratio [1]", ylim=(1e-17, 1e10),
              title="slippery floor: only the two $n_z$ unknown")  # fmt: skip
    floor.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)
    for ax in (cells, floor):
        ax.grid(color="#DDDDDD", linewidth=0.5)
    save_pictures(figure, folder / "property3")


def findings(folder):
    rows, biped, angles = (read_csv(folder / f"property3_{part}.csv") for part in ("poses", "biped", "slippery"))
    lines = [
        "| relative pose | poses | load cells: rank of 6 | direction missed | slippery floor: rank of 2 |",
        "|---|---|---|---|---|",
    ]
    for pose in POSES:
        part = [r for r in rows if r["pose"] == pose]
        errors = [r["direction_error"] for r in part if r["direction_error"] != ""]
        where = {"any": "force along the line where the sole planes meet"}.get(pose, "couple about z")
        line = f"{where}, to {max(errors):.0e}" if errors else "every force and couple in the plane"
        ranks = [" or ".join(str(x) for x in sorted({r[key] for r in part})) for key in ("rank_cells", "rank_slippery")]
        lines.append(f"| {pose} | {len(part)} | {ranks[0]} | {line} | {ranks[1]} |")
    on_cells = [r for r in biped if r["problem"] == "load cells"]
    on_floor = [r for r in biped if r["problem"] == "slippery floor"]
    tilted, straight = (r["well_posed"] == "True" for r in biped if r["problem"].startswith("chain"))
    written = [r for r in biped if r["problem"] == AS_WRITTEN]
    single = [r for r in on_cells if r["missing"] == 1]
    two = [r for r in angles if r["form"] == TWO]
    solved, refused = ([r for r in two if (r["ok"] == "True") == good] for good in (True, False))
    steep, flat = (best(solved, key=lambda r: r["angle"]) for best in (max, min))
    always = all(r["rank_cells"] < 6 for r in rows) and all(r["missing"] for r in on_cells)
    seen = {kind: {r["rank_slippery"] for r in rows if (r["pose"] == "any") == (kind == "any")} for kind in ("any", "")}
    tilted_only = seen["any"] == {2} and seen[""] == {1}
    level = [r for r in on_floor if r["posture"] == "standing"][0]["missing"]
    apart = max(abs(r["condition_slippery"] * math.tan(min(r["angle"], math.pi - r["angle"]) / 2.0) - 1.0)
                for r in rows if r["pose"] == "any" and r["rank_slippery"] == 2)  # fmt: skip
    answers = []
    for form in (SIX, LEAST_SQUARES):
        part = [r for r in angles if r["form"] == form]
        good = [r for r in part if r["ok"] == "True"]
        worst = f", τ right to {max(r['tau_error'] for r in good):.0e}" if good else ""
        if part:
            answers.append(f"{form}: {len(good)} of {len(part)} angles answered{worst}")

    def missing(part):
        return ", ".join(f"{r['missing']} {r['posture']}" for r in part)

    def answer(row):
        gain = f"an error of the cells comes back {row['noise_gain']:.2g} times"
        return f"at {math.degrees(row['roll']):.2g}° τ is right to {row['tau_error']:.0e} and {gain}"

    kind = "some relative poses of the feet"
    if always:
        kind = "every relative pose of the feet, not only for the aligned feet of the paper's proof"
    chains = f"skew 1.5: {'' if tilted else 'not '}well posed; skew 0: {'' if straight else 'not '}well posed"
    last = max(refused, key=lambda r: r["angle"])
    at = f"up to {math.degrees(last['roll']):.2g}° ({last['message']})"
    unless = (
        f"does not depend on parallel soles (rank {min(seen[''])} of 2 where they are, {min(seen['any'])} elsewhere)"
    )
    remark = "holds while the soles are not parallel, and only then" if tilted_only else unless
    return "\n".join([
        f"On load cells the problem is ill-posed for {kind}: they can push each other unnoticed.",
        "", *lines, "",
        f"The diagnosis of a biped with {on_cells[0]['equations']} equations names "
        f"{on_cells[0]['undetermined_contacts']}. Directions missing in some postures: {missing(on_cells)}. "
        f"Where it is one, it is that of the table, to {max(r['direction_error'] for r in single):.0e}.",
        "",
        f"The remark on the slippery floor {remark}. Directions missing: {missing(on_floor)}"
        + (": on level ground only the sum of both n_z is seen. " if level else ". ")
        + f"The chain that the paper observed has tilted axes ({chains}). With the soles at an angle θ the condition "
        f"of [H, X* H] is cot(θ/2), to {apart:.0e}. A compiled solver: {answer(steep)}; {answer(flat)}. It refuses "
        f"{len(refused)} of {len(two)} angles, {at}. The equations of the base that it does not use hold to "
        f"{max(r['base_force'] for r in solved):.0e} N or N m.",
        "",
        f"(21) with (24) as written has all six rows of the base, {written[0]['equations'] - on_floor[0]['equations']} "
        f"equations more than unknowns. Directions missing: {missing(written)}. While the right ankle rolls: "
        f"{'; '.join(answers)}. Of exact equations a program keeps as many as there are unknowns, the same for every "
        "state, and holds its answer to the others; least squares keep all.",
    ])  # fmt: skip


if __name__ == "__main__":
    main(__file__)
