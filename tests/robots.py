"""The robots of fixtures/robots.json, whose torques were computed independently of this project."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from sysdyn.model import Free, Model, from_dh, random_tree

DATA = Path(__file__).parent / "fixtures" / "robots.json"


@cache
def _data() -> dict[str, Any]:
    return json.loads(DATA.read_text())


ROBOTS: tuple[str, ...] = tuple(_data())


def load_robot(name: str) -> tuple[Model, dict[str, Any]]:
    """(model, test): the robot called `name` and its test vector (q, qd, qdd, tau …) as stored.

    The file is modified DH with other letters, T_j = Rx(alpha_j) Tx(d_j) Rz(theta_j) Tz(r_j): its d is a, its r is d of
    `from_dh`. Each robot has inertias that violate the triangle inequality; nothing warns of them here.
    """
    robot = _data()[name]
    rows = robot["joints"]

    def column(key: str) -> list[Any]:
        return [row[key] for row in rows]

    model = from_dh(
        column("alpha"), column("d"), column("r"), column("m"), column("com"), column("I_com"),
        theta=[0.0 if row["theta"] == "q" else row["theta"] for row in rows],
        joint_types=column("type"), gravity=robot["gravity"], name=name, strict=None,
    )  # fmt: skip
    return model, robot["test"]


def floating_tree(n: int, seed: int, parent: tuple[int, ...] | None = None) -> Model:
    """A random tree of revolute joints whose first joint is free and carries all others."""
    model = random_tree(n, seed=seed, joints=("revolute",))
    parent = tuple(p if i == 0 else max(p, 0) for i, p in enumerate(parent or model.parent))
    limits = dict.fromkeys(("armature", "lower", "upper", "velocity_limit", "effort_limit"))
    return model.replace(joints=(Free(), *model.joints[1:]), parent=parent, base="floating", **limits)
