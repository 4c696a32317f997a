"""Robot arms from the literature (Puma 560, RX90, iiwa 7, a general 6R) with independently computed torques."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from sysdyn.model import Model, from_dh


@cache
def _stored() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("arms.json").read_text(encoding="utf-8"))


ARMS: tuple[str, ...] = tuple(_stored())


def load_arm(name: str) -> tuple[Model, dict[str, Any]]:
    """(model, test): the arm `name` and its stored test vector (q, qd, qdd, tau …).

    The file uses modified DH parameters T_j = Rx(alpha_j) Tx(d_j) Rz(theta_j) Tz(r_j): d and r are `a` and `d` of
    `from_dh`. Some inertias of each arm violate the triangle inequality; the check is disabled (strict=None).
    """
    arm = _stored()[name]
    rows = arm["joints"]

    def column(key: str) -> list[Any]:
        return [row[key] for row in rows]

    model = from_dh(
        column("alpha"), column("d"), column("r"), column("m"), column("com"), column("I_com"),
        theta=[0.0 if row["theta"] == "q" else row["theta"] for row in rows],
        joint_types=column("type"), gravity=arm["gravity"], name=name, strict=None,
    )  # fmt: skip
    return model, arm["test"]
