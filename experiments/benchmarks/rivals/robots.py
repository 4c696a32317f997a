"""Robots that both libraries read from one file, and states of them in either order of joints."""

from __future__ import annotations

import re
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pinocchio as pin

import sysdyn as sd
from rivals.build import CannotBuild, search_path


@dataclass(frozen=True)
class Robot:
    """One robot; `locate` gives its URDF or raises CannotBuild."""

    name: str
    locate: Callable[[], Path]
    base: str = "fixed"

    @cached_property
    def urdf(self) -> str:
        return str(self.locate())

    @cached_property
    def model(self) -> sd.Model:
        return sd.load(self.urdf, base=self.base)

    @cached_property
    def peer(self) -> pin.Model:
        root = [pin.JointModelFreeFlyer()] if self.base == "floating" else []
        return pin.buildModelFromUrdf(self.urdf, *root)

    @cached_property
    def order(self) -> list[int]:
        """sysdyn's number of each entry of Pinocchio's velocities, in which the linear part of a base comes first."""
        places = [self.model.v_slice(0)] if self.base == "floating" else []
        base = [
            k for place in places for k in (*range(place.start + 3, place.stop), *range(place.start, place.start + 3))
        ]
        names = self.peer.names[2 if base else 1 :]
        return base + [self.model.v_slice(self.model.joint_index(name)).start for name in names]

    def solver(self, problem: str) -> sd.Solver:
        make, output = {"inverse": (sd.inverse_dynamics, "tau"), "forward": (sd.forward_dynamics, "qdd")}[problem]
        return sd.compile(make(self.model), outputs=[output], external_wrenches=False)

    def states(self, n: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """q, q̇ and τ (or q̈) of n states, for sysdyn and for Pinocchio."""
        ours = [np.ascontiguousarray(x) for x in self.model.random_state(seed=0, batch=n)]
        return ours, self.theirs(*ours)

    def theirs(self, q: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
        """q (n, nq), and others (n, nv), in Pinocchio's order."""
        base = [*range(7)] if self.base == "floating" else []
        angles = [
            self.model.q_slice(self.model.joint_index(name)).start for name in self.peer.names[2 if base else 1 :]
        ]
        return [np.ascontiguousarray(x) for x in (q[:, base + angles], *(x[:, self.order] for x in others))]


def _icub() -> Path:
    try:
        import icub_models
    except ImportError as error:
        raise CannotBuild("icub-models is not installed") from error
    return Path(icub_models.get_model_file("iCubGazeboV2_5"))


def _panda() -> Path:
    """The arm of example-robot-data, its fingers fixed."""
    inside = "cmeel.prefix/share/example-robot-data/robots/panda_description/urdf/panda.urdf"
    for root in (sysconfig.get_paths()["purelib"], *search_path()):
        if (found := Path(root) / inside).is_file():
            text = re.sub(r"<mimic[^>]*/>", "", found.read_text().replace('type="prismatic"', 'type="fixed"'))
            path = Path(tempfile.mkdtemp()) / "panda.urdf"
            path.write_text(text)
            return path
    raise CannotBuild("example-robot-data is not installed: pip install --no-deps example-robot-data")


def _named(name: str) -> Callable[[], Path]:
    def locate() -> Path:
        try:
            return sd.robots()[name]
        except KeyError:
            raise CannotBuild(f"{name} is not among the robots of installed packages (example-robot-data)") from None

    return locate


# Robots by name: on a fixed base, and on a floating one.
ROBOTS = {"panda": Robot("panda", _panda), "icub": Robot("icub", _icub)}
G1 = Robot("g1", _named("g1_29dof_rev_1_0"))
FLOATING = {
    "anymal": Robot("anymal", _named("example-robot-data:anymal_b_simple_description/robots/anymal"), "floating"),
    "hyq": Robot("hyq", _named("hyq"), "floating"),
    "talos": Robot("talos", _named("talos"), "floating"),
    "icub_floating": Robot("icub_floating", _icub, "floating"),
}
