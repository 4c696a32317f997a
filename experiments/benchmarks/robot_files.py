"""Robot files of others: what Pinocchio and MuJoCo load is loaded here, and moves alike.

    python experiments/benchmarks/robot_files.py [--all]

Every URDF of example-robot-data, icub-models and pybullet_data (package pybullet), on a fixed and a floating base,
beside Pinocchio; every MJCF of gymnasium, dm_control and robosuite beside MuJoCo. Packages that are not installed are
left out. Compared at one random state: rnea and crba, relative to their greatest entry, and the poses of all frames
that both name, in m and entries of rotations. Files are read with snap=False for that; beside it stand the torques of
the default, and those of robots with <mimic> where Pinocchio imposes it, too. Inverse, forward and hybrid dynamics of
every file are compiled as users do: with the torques of rnea they give its motion back, judged by the torques that it
needs; "no" is counted where the mass matrix is singular, and closed loops are those that hold at the state of the file.
Prints a table, the files with an error beyond 1e-9 or that only one side loads, with --all every file, and writes
experiments/results/robot_files.csv.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import mujoco
import numpy as np
import pinocchio as pin
from common import write_csv

import sysdyn as sd
from sysdyn.model.closures import Loop
from sysdyn.model.joints import Planar

# The packages and the files of theirs that may be robots.
URDF = {"example-robot-data": ".urdf", "icub-models": ".urdf", "pybullet": ".urdf"}
MJCF = {"gymnasium": ".xml", "dm_control": ".xml", "robosuite": ".xml"}
# Both agree where they differ by no more.
TOLERANCE = 1e-9
ERRORS = ("rnea", "crba", "frames")
SOLVED = ("inverse", "forward", "hybrid", "closed")
# Forward dynamics of robots whose mass matrix has a greater condition number, in natural units, may be refused.
SINGULAR = 1e12


def files(package: str, suffix: str) -> list[Path]:
    """The files of a package with that suffix; none where it is not installed."""
    try:
        listed = metadata.files(package) or ()
    except metadata.PackageNotFoundError:
        return []
    return sorted(Path(str(file.locate())).resolve() for file in listed if file.suffix == suffix)


# ---- Pinocchio ------------------------------------------------------------------------------------------------------


def of_pinocchio(path: Path, base: str, mimic: bool = False) -> pin.Model | None:
    """The robot as Pinocchio reads it; None where it does not."""
    root = (pin.JointModelFreeFlyer(),) if base == "floating" else ()
    try:
        return pin.buildModelFromUrdf(str(path), *root, mimic=mimic)
    except ValueError:
        return None


def beside_pinocchio(model: sd.Model, theirs: pin.Model, seed: int = 0) -> dict[str, float]:
    """How far rnea, crba and the poses of links differ; raises AssertionError for another tree.

    Of coupled joints τ and H are those of the leaders, G^T τ and G^T H G.
    """
    q, qd, qdd = model.random_state(seed)
    G = model.coupling_matrix(q)
    independent = np.flatnonzero(~np.isin(np.arange(model.nv), [link.v for link in model.couplings]))
    assert theirs.nv == len(independent), f"{len(independent)} degrees of freedom, Pinocchio has {theirs.nv}"
    data, position = theirs.createData(), pin.neutral(theirs)
    at = np.zeros(theirs.nv, dtype=int)
    for i, joint in enumerate(model.joints):
        if model.joint_names[i] in model.followers:
            continue
        j, part = theirs.joints[theirs.getJointId(model.joint_names[i])], range(model.nv)[model.v_slice(i)]
        x = q[model.q_slice(i)]
        if isinstance(joint, Planar):
            x = [x[0], x[1], np.cos(x[2]), np.sin(x[2])]
        elif j.nq == 2:  # a continuous joint
            x = [np.cos(x[0]), np.sin(x[0])]
        position[j.idx_q : j.idx_q + j.nq] = x
        at[j.idx_v : j.idx_v + j.nv] = np.roll(part, 3) if j.nv == 6 else part
    tau = pin.rnea(theirs, data, position, qd[at], qdd[at])
    M = np.triu(pin.crba(theirs, data, position))
    pin.framesForwardKinematics(theirs, data, position)
    poses = [
        (sd.frame_pose(model, q, name), data.oMf[theirs.getBodyId(name)].homogeneous)
        for name in model.frames if theirs.existBodyName(name)
    ]  # fmt: skip
    order = np.searchsorted(independent, at)
    H = (G.T @ sd.crba(model, q) @ G)[np.ix_(order, order)]
    return errors((G.T @ sd.rnea(model, q, qd, qdd))[order], tau, H, M + np.triu(M, 1).T, poses)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.max(np.abs(found - expected), initial=0.0) / max(np.max(np.abs(expected), initial=0.0), 1e-3))


def errors(tau, tau_expected, H, H_expected, poses) -> dict[str, float]:
    placed = max((float(np.abs(ours - theirs).max()) for ours, theirs in poses), default=0.0)
    return {"rnea": relative(tau, tau_expected), "crba": relative(H, H_expected), "frames": placed}


# ---- MuJoCo ---------------------------------------------------------------------------------------------------------


def of_mujoco(path: Path) -> mujoco.MjModel | None:
    """The robot as MuJoCo reads it; None where it does not, or the file is no robot."""
    try:
        return mujoco.MjModel.from_xml_path(str(path))
    except ValueError:
        return None


def beside_mujoco(model: sd.Model, theirs: mujoco.MjModel, seed: int = 0) -> dict[str, float]:
    """How far rnea, crba and the poses of bodies and sites differ; raises AssertionError for another tree."""
    assert theirs.nv == model.nv, f"{model.nv} degrees of freedom, MuJoCo has {theirs.nv}"
    free, state, data = model.replace(closures=()), sd.MujocoState(theirs), mujoco.MjData(theirs)
    q, qd, qdd = free.random_state(seed)
    data.qpos, data.qvel = state.to_mujoco(q, qd)
    mujoco.mj_forward(theirs, data)
    M = np.zeros((theirs.nv, theirs.nv))
    for k, column in enumerate(np.eye(theirs.nv)):
        mujoco.mj_mulM(theirs, data, M[k], column)
    tau = M @ state.acceleration_to_mujoco(q, qd, qdd) + data.qfrc_bias
    poses = []
    for things, at, turned in (("body", data.xpos, data.xmat), ("site", data.site_xpos, data.site_xmat)):
        for k in range(getattr(theirs, f"n{things}")):
            name = getattr(theirs, things)(k).name
            if name in model.frames and not (things == "site" and name in bodies(theirs)):
                pose = sd.frame_pose(model, q, name)[:3]
                poses.append((pose, np.column_stack([turned[k].reshape(3, 3), at[k]])))
    return errors(
        state.force_to_mujoco(q, sd.rnea(free, q, qd, qdd)), tau, state.inertia_to_mujoco(q, sd.crba(free, q)), M, poses
    )


def bodies(theirs: mujoco.MjModel) -> set[str]:
    return {theirs.body(b).name for b in range(theirs.nbody)}


# ---- solvers --------------------------------------------------------------------------------------------------------


def beside_references(model: sd.Model, seed: int = 0) -> dict[str, object]:
    """How far compiled solvers are from rnea: relative errors of torques, "no" if the problem has no answer.

    inverse, forward, hybrid: of the robot with its couplings, its loops open. closed: the backward error of forward
    dynamics with its loops closed.
    """
    tree = model.replace(closures=tuple(x for x in model.closures if not isinstance(x, Loop)))
    q, qd, qdd = tree.random_state(seed)
    G = tree.coupling_matrix(q)
    row: dict[str, object] = {}
    solver = sd.compile(sd.inverse_dynamics(model), outputs=["tau"], level="fast")
    leaders = [k for k in range(model.nv) if k not in {link.v for link in model.couplings}]
    expected = G.T @ sd.rnea(tree, q, qd, qdd)
    row["inverse"] = relative(solver(q, qd, qdd).tau[leaders], expected)
    half = [name for name in model.joint_names[::2] if name not in model.followers]
    tau = np.zeros(model.nv)
    tau[leaders] = expected
    for name, problem in (("forward", sd.forward_dynamics(tree)), ("hybrid", sd.hybrid_dynamics(tree, half))):
        row[name] = "no"
        try:
            solution = sd.compile(problem, outputs=["tau", "qdd"], level="fast")(
                q, qd, **({"tau": tau} if "tau" in problem.known_quantities else {}),
                **({"qdd": qdd} if "qdd" in problem.known_quantities else {}),
            )  # fmt: skip
        except (sd.StructurallySingular, sd.SingularState, sd.NoSafeOrdering):
            assert np.linalg.cond(scaled(G.T @ sd.crba(tree, q) @ G)) > SINGULAR, f"{name} dynamics is refused"
            continue
        needed = G.T @ sd.rnea(tree, q, qd, solution.qdd)
        row[name] = max(relative(needed, solution.tau[leaders]), relative(solution.tau[leaders], expected))
    if any(isinstance(x, Loop) for x in model.closures):
        row["closed"] = "no"
        problem = sd.forward_dynamics(model)
        if sd.diagnose(problem).well_posed:
            solution = sd.compile(problem, level="fast")(q, qd, tau, on_singular="nan")
            row["closed"] = float(solution.backward_error()) if solution.ok else "no"
    return row


def scaled(M: np.ndarray) -> np.ndarray:
    """M with ones on its diagonal."""
    size = np.sqrt(np.maximum(np.diag(M), 1e-300))
    return M / size / size[:, None]


# ---- the table ------------------------------------------------------------------------------------------------------


def compared(path: Path, base: str, solve: bool = True) -> dict[str, object]:
    """One row: whether the peer and sysdyn load the file, how far they differ, what was said of it.

    solve: whether solvers are compiled, too.
    """
    urdf = path.suffix == ".urdf"
    theirs = of_pinocchio(path, base) if urdf else of_mujoco(path)
    row: dict[str, object] = {"file": path.name, "base": base, "peer": theirs is not None, "said": ""}
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = sd.load_urdf(path, base, snap=False) if urdf else sd.load_mjcf(path, snap=False)
        row["said"] = " | ".join(f"{w.category.__name__}: {w.message}" for w in caught)
    except sd.SysdynError as error:
        return row | {"ours": False, "said": str(error)}
    row |= {"ours": True, "freedoms": model.nv}
    if theirs is None:
        return row
    if not urdf:
        row |= beside_mujoco(model, theirs)
        return row | (_solved(path, "fixed") if solve else {})
    tree = model.replace(closures=())  # Pinocchio ignores <mimic> by default
    row |= beside_pinocchio(tree, theirs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row["rnea, rounded"] = beside_pinocchio(sd.load_urdf(path, base).replace(closures=()), theirs)["rnea"]
    if model.couplings and (coupled := of_pinocchio(path, base, mimic=True)) is not None:
        row["rnea, mimic"] = beside_pinocchio(model, coupled)["rnea"]
    return row | (_solved(path, base) if solve else {})


def _solved(path: Path, base: str) -> dict[str, object]:
    """`beside_references` of the robot as users load it; nothing of a file without a body that moves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sd.load(path, base)
        return beside_references(model) if model.nv else {}


def rows(packages: dict[str, str]) -> Iterator[dict[str, object]]:
    for package, suffix in packages.items():
        for path in files(package, suffix):
            for base in ("fixed", "floating") if suffix == ".urdf" else ("as in the file",):
                yield {"package": package} | compared(path, base)


def worst(found: list[dict[str, object]], keys) -> float:
    """The greatest of the errors that were found."""
    return max((row[x] for row in found for x in keys if isinstance(row.get(x), float)), default=0.0)


def summary(found: list[dict[str, object]]) -> list[dict[str, object]]:
    """One row for each package and base."""
    table = []
    for key in dict.fromkeys((row["package"], row["base"]) for row in found):
        own = [row for row in found if (row["package"], row["base"]) == key]
        peer = [row for row in own if row["peer"]]
        both = [row for row in peer if row["ours"]]
        agree = [row for row in both if max(row[x] for x in ERRORS) <= TOLERANCE]
        table.append(
            {
                "package": key[0],
                "base": key[1],
                "files": len(own),
                "peer loads": len(peer),
                "loaded of these": len(both),
                "agree": len(agree),
                "loaded beside": sum(bool(row["ours"] and not row["peer"]) for row in own),
                **{f"worst {x}": f"{max((row[x] for row in both), default=0.0):.1e}" for x in ERRORS},
                "worst rnea, rounded": f"{max((row.get('rnea, rounded', 0.0) for row in both), default=0.0):.1e}",
                "with mimic": sum("rnea, mimic" in row for row in both),
                "worst rnea, mimic": f"{max((row.get('rnea, mimic', 0.0) for row in both), default=0.0):.1e}",
                **{f"worst {x}": f"{worst(both, [x]):.1e}" for x in SOLVED},
                **{f"no {x}": sum(row.get(x) == "no" for row in both) for x in SOLVED[1:]},
            }  # fmt: skip
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="print every file")
    everything = parser.parse_args().all
    found = []
    with tempfile.TemporaryDirectory() as folder:  # MuJoCo writes its log into the working folder
        before = Path.cwd()
        os.chdir(folder)
        for row in rows(URDF | MJCF):
            found.append(row)
            apart = row["peer"] != row["ours"] or worst([row], (*ERRORS, *SOLVED)) > TOLERANCE
            if everything or apart:
                print({key: x for key, x in row.items() if x != ""})
        os.chdir(before)
    table = summary(found)
    for line in table:
        print("  ".join(f"{key} {x}" for key, x in line.items()))
    write_csv("robot_files", table)


if __name__ == "__main__":
    main()
