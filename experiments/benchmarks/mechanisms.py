"""Mechanisms whose loops and contacts repeat each other, at some states or at all: a walker, linkages, parallel robots.

Each has its problem, forward dynamics, and states at which loops are closed; of these some are singular.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import sysdyn as sd
from sysdyn.model.se3 import rotx, roty, rotz

# Kinds of states take turns: the first six any, then straight or folded exactly in three ways, and nearly so.
KINDS, ANY, NEAR = 10, 6, 9


@dataclass(frozen=True)
class Mechanism:
    """name, problem, and q (n, nq) of n states from a generator; the kinds of states alternate by `right_angles`."""

    name: str
    problem: sd.Problem
    positions: Callable[[int, np.random.Generator], np.ndarray]


def right_angles(n: int, joints: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(angles (n, joints) that are 0 or ±π, or within 1e-15 to 1e-3 of these; True (n,) if others are to be taken)."""
    kind = np.arange(n) % KINDS
    angles = rng.integers(-1, 2, (n, joints)) * np.pi
    angles = np.where((kind == ANY)[:, None], 0.0, angles)
    near = angles + 10.0 ** rng.uniform(-15.0, -3.0, (n, 1)) * rng.choice([-1.0, 1.0], (n, joints))
    return np.where((kind == NEAR)[:, None], near, angles), kind < ANY


def robot(name: str, joints: Sequence[tuple], rng: np.random.Generator, base: str = "fixed") -> sd.Model:
    """A robot of (child, parent, type, axis, place in the parent, centre of mass); its root is "root"."""

    def link(child: str, com: Sequence[float]) -> str:
        mass, (x, y, z) = rng.uniform(0.5, 2.0), rng.uniform(0.01, 0.05, 3)
        inertia = f'ixx="{x + y}" iyy="{y + z}" izz="{z + x}" ixy="0" ixz="0" iyz="0"'
        origin = " ".join(map(str, com))
        return (
            f'<link name="{child}"><inertial><origin xyz="{origin}"/><mass value="{mass}"/><inertia {inertia}/>'
            "</inertial></link>"
        )

    text = [link("root", (0.0, 0.0, 0.1)) if base == "floating" else '<link name="root"/>']
    for child, parent, kind, axis, place, com in joints:
        text.append(link(child, com))
        origin, turns = " ".join(map(str, place)), " ".join(map(str, axis))
        text.append(
            f'<joint name="{child}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
            f'<origin xyz="{origin}"/><axis xyz="{turns}"/></joint>'
        )
    return sd.load(f'<robot name="{name}">{"".join(text)}</robot>', base=base)


def at(x: Sequence[float]) -> np.ndarray:
    T = np.eye(4)
    T[:3, 3] = x
    return T


# ---- a walker ----------------------------------------------------------------------------------------------------


def walker(rng: np.random.Generator, twice: bool) -> Mechanism:
    """Two legs of six joints on two soles; twice: one sole is held by its heel, too."""
    joints, down = [], (0.0, 0.0, -0.4)
    for side, y in (("l", 0.1), ("r", -0.1)):
        before = "root"
        for name, axis, place, com in (
            ("yaw", (0, 0, 1), (0.0, y, 0.0), (0.0, 0.0, 0.01)), ("roll", (1, 0, 0), (0.0,) * 3, (0.01, 0.0, 0.0)),
            ("pitch", (0, 1, 0), (0.0,) * 3, (0.0, 0.01, -0.2)), ("knee", (0, 1, 0), down, (0.0, 0.0, -0.15)),
            ("ankle", (0, 1, 0), down, (0.0, 0.0, -0.01)), ("foot", (1, 0, 0), (0.0,) * 3, (0.03, 0.0, -0.04)),
        ):  # fmt: skip
            joints.append((f"{side}_{name}", before, "continuous", axis, place, com))
            before = f"{side}_{name}"
    model = robot("walker", joints, rng, "floating")
    soles = [sd.Contact((f"{side}_foot", at((0.0, 0.0, -0.08))), "fixed", name=f"{side}_sole") for side in "lr"]
    heel = [sd.Contact(("l_foot", at((-0.1, 0.0, -0.08))), "point", name="heel")] if twice else []
    knees = [model.q_slice(model.joint_index(f"{side}_knee")).start for side in "lr"]

    def positions(n: int, rng: np.random.Generator) -> np.ndarray:
        q = model.random_state(seed=int(rng.integers(1000)), batch=n)[0]
        angles, others = right_angles(n, 2, rng)
        q[:, knees] = np.where(others[:, None], q[:, knees], angles)
        return q

    what = "walker on two soles" + (", one of them held twice" if twice else "")
    return Mechanism(what, sd.forward_dynamics(model) + [*soles, *heel], positions)


# ---- linkages ----------------------------------------------------------------------------------------------------


def linkage(rng: np.random.Generator, rails: int) -> Mechanism:
    """A parallelogram of revolute joints, with so many more cranks than two, which repeat it; dead when stretched."""
    long, short, y = 1.0, 0.4, (0, 1, 0)
    joints = [("crank", "root", "continuous", y, (0.0,) * 3, (0.2, 0.0, 0.0)),
              ("coupler", "crank", "continuous", y, (short, 0.0, 0.0), (0.5, 0.0, 0.0))]  # fmt: skip
    places = np.linspace(long, 0.4, 1 + rails)
    joints += [(f"rail{k}", "root", "continuous", y, (x, 0.0, 0.0), (0.2, 0.0, 0.0)) for k, x in enumerate(places)]
    model = robot("linkage", joints, rng)
    loops = [
        sd.LoopJoint((f"rail{k}", at((short, 0.0, 0.0))), ("coupler", at((x, 0.0, 0.0))), "revolute", axis="y",
                     name=f"pin{k}") for k, x in enumerate(places)
    ]  # fmt: skip

    def positions(n: int, rng: np.random.Generator) -> np.ndarray:
        angles, others = right_angles(n, 1, rng)
        turn = np.where(others[:, None], rng.uniform(-np.pi, np.pi, (n, 1)), angles)
        signs = {"coupler": -1.0}
        return np.hstack([signs.get(name, 1.0) * turn for name in model.joint_names])

    return Mechanism(f"linkage of {2 + rails} cranks", sd.forward_dynamics(model) + loops, positions)


# ---- parallel robots ---------------------------------------------------------------------------------------------


def stewart(rng: np.random.Generator) -> Mechanism:
    """A platform on six legs that turn about y and x and grow along z."""
    corner = np.deg2rad([-10.0, 10.0, 110.0, 130.0, 230.0, 250.0])
    feet = np.column_stack([np.cos(corner), np.sin(corner), 0.0 * corner])
    top = 0.6 * np.column_stack([np.cos(corner + 0.7), np.sin(corner + 0.7), 0.0 * corner])
    joints = [("platform", "root", "floating", (0, 0, 1), (0.0,) * 3, (0.0, 0.0, 0.05))]
    for k, foot in enumerate(feet.tolist()):
        joints += [(f"swing{k}", "root", "continuous", (0, 1, 0), foot, (0.0, 0.0, 0.1)),
                   (f"tilt{k}", f"swing{k}", "continuous", (1, 0, 0), (0.0,) * 3, (0.0, 0.0, 0.2)),
                   (f"leg{k}", f"tilt{k}", "prismatic", (0, 0, 1), (0.0,) * 3, (0.0, 0.0, -0.2))]  # fmt: skip
    model = robot("stewart", joints, rng)
    loops = [sd.LoopJoint(f"leg{k}", ("platform", at(x)), "spherical", name=f"ball{k}") for k, x in enumerate(top)]

    def positions(n: int, rng: np.random.Generator) -> np.ndarray:
        q = model.random_state(seed=int(rng.integers(1000)), batch=n)[0]
        angles, others = right_angles(n, 1, rng)
        for row, turn, other in zip(q, angles[:, 0], others, strict=True):
            # turned by a quarter of a circle the six legs do not hold the platform
            tilt = rng.uniform(-0.4, 0.4, 3) if other else np.array([0.0, 0.0, np.pi / 2 + turn])
            R, p = rotz(tilt[2]).T @ roty(tilt[1]).T @ rotx(tilt[0]).T, np.array([0.0, 0.0, 1.0])
            p = p + (rng.uniform(-0.3, 0.3, 3) if other else 0.0)
            place = model.q_slice(model.joint_index("platform"))
            row[place] = [*p, *_quaternion(R)]
            for k in range(6):
                x, y, z = p + R @ top[k] - feet[k]
                own = {
                    "swing": np.arctan2(x, z),
                    "tilt": np.arctan2(-y, np.hypot(x, z)),
                    "leg": np.sqrt(x * x + y * y + z * z),
                }
                for name, value in own.items():
                    row[model.q_slice(model.joint_index(f"{name}{k}"))] = value
        return q

    return Mechanism("Stewart platform", sd.forward_dynamics(model) + loops, positions)


def delta(rng: np.random.Generator) -> Mechanism:
    """Three arms, each with a parallelogram of two rods, and a platform that these keep level."""
    upper, lower, base, top, half = 0.3, 0.8, 0.2, 0.05, 0.05
    joints = [("platform", "root", "floating", (0, 0, 1), (0.0,) * 3, (0.0, 0.0, 0.02))]
    turns = [rotz(angle).T for angle in 2.0 * np.pi / 3.0 * np.arange(3)]
    ends = {}
    for k, R in enumerate(turns):
        axis, out = R @ [0.0, 1.0, 0.0], R @ [1.0, 0.0, 0.0]
        joints.append((f"arm{k}", "root", "continuous", axis, base * out, upper / 2 * out))
        for s, side in ((-half, "a"), (half, "b")):
            at_elbow = upper * out + s * axis
            joints += [(f"rod{k}{side}", f"arm{k}", "continuous", axis, at_elbow, 0.01 * out),
                       (f"end{k}{side}", f"rod{k}{side}", "continuous", out, (0.0,) * 3, (0.0, 0.0, -lower / 2)),
                       ]  # fmt: skip
            ends[f"{k}{side}"] = top * out + s * axis
    model = robot("delta", joints, rng)
    loops = [
        sd.LoopJoint((f"end{x}", at((0.0, 0.0, -lower))), ("platform", at(place)), "spherical", name=f"ball{x}")
        for x, place in ends.items()
    ]

    def positions(n: int, rng: np.random.Generator) -> np.ndarray:
        q = model.random_state(seed=int(rng.integers(1000)), batch=n)[0]
        angles, others = right_angles(n, 1, rng)
        for row, turn, other in zip(q, angles[:, 0], others, strict=True):
            p = np.array([0.0, 0.0, -0.7]) + (rng.uniform(-0.1, 0.1, 3) if other else [0.0, 0.0, 0.001 * turn])
            row[model.q_slice(model.joint_index("platform"))] = [*p, 0.0, 0.0, 0.0, 1.0]
            for k, R in enumerate(turns):
                x, y, z = R.T @ p + [top - base, 0.0, 0.0]  # of the end of the rods, from the shoulder
                # the elbow: upper (cos, ·, −sin) of the angle, at a distance `lower` from there
                c = (x * x + y * y + z * z + upper**2 - lower**2) / (2.0 * upper)
                angle = np.arctan2(-z, x) + np.arccos(c / np.hypot(x, z))
                rest = np.array([x - upper * np.cos(angle), y, z + upper * np.sin(angle)])
                swing = np.arctan2(-rest[0], -rest[2]) - angle
                tilt = np.arctan2(rest[1], np.hypot(rest[0], rest[2]))
                for name, value in (("arm", angle), ("rod", swing), ("end", tilt)):
                    for side in ("",) if name == "arm" else ("a", "b"):
                        row[model.q_slice(model.joint_index(f"{name}{k}{side}"))] = value
        return q

    return Mechanism("Delta robot", sd.forward_dynamics(model) + loops, positions)


def _quaternion(R: np.ndarray) -> np.ndarray:
    """(x, y, z, w) of a rotation by less than half a turn."""
    w = 0.5 * np.sqrt(max(0.0, 1.0 + np.trace(R)))
    return np.array([R[2, 1] - R[1, 2], R[0, 2] - R[2, 0], R[1, 0] - R[0, 1], 4.0 * w * w]) / (4.0 * w)


# Mechanisms by number.
MECHANISMS: tuple[Callable[[np.random.Generator], Mechanism], ...] = (
    lambda rng: walker(rng, twice=False), lambda rng: walker(rng, twice=True),
    lambda rng: linkage(rng, 0), lambda rng: linkage(rng, 1), stewart, delta,
)  # fmt: skip
