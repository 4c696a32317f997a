"""The MJCF files of models/, as MuJoCo compiles them and as sysdyn imports them, and random ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import mujoco
import numpy as np

from sysdyn.model import Model, MujocoState, from_mujoco

FOLDER = Path(__file__).parent / "models"
MODELS = ("balls", "gantry", "humanoid", "scene", "stacked")
NO_CONTACT = '<default><geom contype="0" conaffinity="0"/></default>'


def path(name: str) -> str:
    return str(FOLDER / f"{name}.xml")


def passive(mj: mujoco.MjModel) -> mujoco.MjModel:
    """The same mjModel, its limits, contacts and actuators disabled."""
    mj.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT | mujoco.mjtDisableBit.mjDSBL_ACTUATION
    return mj


@cache
def imported(name: str) -> tuple[mujoco.MjModel, Model, MujocoState]:
    """(mjModel, Model, MujocoState) of the file in models/."""
    mj = passive(mujoco.MjModel.from_xml_path(path(name)))
    return mj, from_mujoco(mj), MujocoState(mj)


class Oracle:
    """Inverse and forward dynamics of MuJoCo for one state, told and answered through MujocoState."""

    def __init__(self, mj: mujoco.MjModel, state: MujocoState):
        self.mj, self.state, self.data = mj, state, mujoco.MjData(mj)

    def inverse(self, q, qd, qdd) -> np.ndarray:
        """tau (nv,) by mj_inverse."""
        self._set(q, qd)
        self.data.qacc[:] = self.state.acceleration_to_mujoco(q, qd, qdd)
        mujoco.mj_inverse(self.mj, self.data)
        return self.state.force_to_sysdyn(self.data.qpos, self.data.qfrc_inverse)

    def bias(self, q, qd) -> np.ndarray:
        """C (nv,), the force at q̈_mj = 0, by mj_rne."""
        self._set(q, qd)
        mujoco.mj_fwdPosition(self.mj, self.data)
        mujoco.mj_fwdVelocity(self.mj, self.data)
        result = np.zeros(self.mj.nv)
        mujoco.mj_rne(self.mj, self.data, 0, result)
        return self.state.force_to_sysdyn(self.data.qpos, result)

    def forward(self, q, qd, tau) -> np.ndarray:
        """q̈ (nv,) by mj_forward."""
        self._set(q, qd)
        self.data.qfrc_applied[:] = self.state.force_to_mujoco(q, tau)
        mujoco.mj_forward(self.mj, self.data)
        return self.state.acceleration_to_sysdyn(self.data.qpos, self.data.qvel, self.data.qacc)

    def inertia(self, q) -> np.ndarray:
        """M (nv, nv), in MuJoCo's coordinates; `data` then holds its sparse form and factor."""
        self._set(q, np.zeros(self.mj.nv))
        mujoco.mj_forward(self.mj, self.data)
        M = np.zeros((self.mj.nv, self.mj.nv))
        mujoco.mj_fullM(self.mj, self.data, M)
        return M

    def _set(self, q, qd) -> None:
        self.data.qpos[:], self.data.qvel[:] = self.state.to_mujoco(q, qd)


def relative_error(x, reference) -> float:
    """∞-norm of the difference over the ∞-norm of the reference."""
    return float(np.max(np.abs(x - reference), initial=0.0) / np.max(np.abs(reference), initial=1e-300))


def random_mjcf(bodies: int, seed: int) -> str:
    """A random MJCF text: trees of bodies on up to four joints each, or on none, or free; inertia from geoms.

    Joints that share a body have an armature, without which redundant ones would move no inertia.
    """
    rng = np.random.default_rng(seed)

    def numbers(n: int, exact: bool) -> str:
        x = rng.integers(-1, 2, n) if exact else rng.uniform(-1.0, 1.0, n).round(4)
        return " ".join(str(value) for value in x)

    def axis() -> str:
        return "1 0 0,0 1 0,0 0 -1".split(",")[rng.integers(3)] if rng.random() < 0.5 else numbers(3, False)

    def joints(top: bool) -> str:
        if top and rng.random() < 0.3:
            return "<freejoint/>"
        kinds = list(rng.choice(["hinge", "slide"], rng.integers(0, 4)))
        if rng.random() < 0.3:  # MuJoCo wants at most six degrees of freedom, and no rotation behind a ball
            kinds = [*kinds[:2], "ball"] + ["slide"] * int(rng.integers(0, 2))
        few = len(kinds) == 1
        text = ""
        for kind in kinds:
            place = f'pos="{numbers(3, rng.random() < 0.5)}"' if rng.random() < 0.6 else ""
            more = "" if kind == "ball" else f' axis="{axis()}" ref="{rng.choice([0.0, 0.3]):g}"'
            gear = 0 if few and rng.random() < 0.7 else round(rng.uniform(0.1, 0.5), 3)
            text += f'<joint type="{kind}" armature="{gear}" {place}{more}/>'
        return text

    content: list[list[str]] = [[] for _ in range(bodies)]
    parent = [int(rng.integers(-1, i)) if i else -1 for i in range(bodies)]
    text = [""] * bodies
    for i in reversed(range(bodies)):
        geom = f'<geom type="box" size=".2 .3 .4" pos="{numbers(3, False)}" euler="{numbers(3, False)}"/>'
        site = f'<site name="site{i}" pos="{numbers(3, False)}" euler="{numbers(3, rng.random() < 0.5)}"/>'
        place = f'pos="{numbers(3, rng.random() < 0.5)}" euler="{numbers(3, rng.random() < 0.5)}"'
        text[i] = f'<body name="b{i}" {place}>{joints(parent[i] < 0)}{geom}{site}{"".join(content[i])}</body>'
        if parent[i] >= 0:
            content[parent[i]].insert(0, text[i])
    top = "".join(t for t, p in zip(text, parent, strict=True) if p < 0)
    head = '<compiler angle="radian" inertiafromgeom="true"/>'
    return f'<mujoco model="random">{head}{NO_CONTACT}<worldbody>{top}</worldbody></mujoco>'
