"""The result of a simulation: states over time, energy, errors of constraints, events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sysdyn.data.sensor_log import Log
from sysdyn.errors import InvalidInput, UnknownName
from sysdyn.measurements.constraints import Contact
from sysdyn.measurements.problem import Problem
from sysdyn.model import Model
from sysdyn.model.quantities import WRENCHES
from sysdyn.online.robot_functions import kinematics
from sysdyn.simulation.drift import component_errors
from sysdyn.simulation.events import SimulationEvent


@dataclass(frozen=True, eq=False)
class Simulation:
    """The simulated motion of one robot or of a batch; `sysdyn.show(simulation)` plays that of one.

    `simulation["qdd"]` is a recorded output, `simulation[3]` the simulation of robot 3.

    Attributes
    ----------
    problem : Problem
        The simulated problem, with stabilised constraints.
    t : (K,) array
        Times of the recorded states [s], from 0 on.
    q : (K, …, nq) array
        Positions [rad, m]; axes of robots follow that of time.
    qd : (K, …, nv) array
        Velocities [rad/s, m/s].
    outputs : dict
        {name: (K, …, shape)} recorded outputs.
    events : sequence of SimulationEvent
        Joint limits that are reached and left, and contacts whose normal force changes its sign, by time.
    ok : (…) array of bool
        True for robots that were simulated to the end; states of others are NaN from where they stopped.
    integrator : str
    """

    problem: Problem
    t: np.ndarray
    q: np.ndarray
    qd: np.ndarray
    outputs: Mapping[str, np.ndarray]
    events: Sequence[SimulationEvent]
    ok: np.ndarray
    integrator: str = ""

    @property
    def model(self) -> Model:
        return self.problem.model

    def __getitem__(self, which: str | int | tuple[int, ...]) -> Any:
        """An output by name, or the simulation of one robot. Raises UnknownName, InvalidInput."""
        if isinstance(which, str):
            if which not in self.outputs:
                raise UnknownName("recorded output", which, self.outputs, f"Ask for outputs=[{which!r}, …].")
            return self.outputs[which]
        shape = self.ok.shape
        index = which if isinstance(which, tuple) else (which,)
        if len(index) != len(shape) or any(not -n <= k < n for k, n in zip(index, shape, strict=True)):
            raise InvalidInput(f"there is no robot {which} in a simulation of robots {shape or '(one alone)'}")
        number = int(np.arange(self.ok.size).reshape(shape)[index])
        part: Any = (slice(None), *index)
        return replace(
            self, q=self.q[part], qd=self.qd[part], outputs={name: x[part] for name, x in self.outputs.items()},
            events=tuple(x._replace(robot=0) for x in self.events if x.robot == number), ok=self.ok[index],
        )  # fmt: skip

    @cached_property
    def _by_robot(self) -> tuple[np.ndarray, np.ndarray]:
        """q (K, N, nq) and q̇ (K, N, nv)."""
        return tuple(x.reshape(len(self.t), -1, x.shape[-1]) for x in (self.q, self.qd))  # type: ignore[return-value]

    def energy(self) -> np.ndarray:
        """Kinetic and potential energy (K, …) [J], zero at the world's origin; of the model, without varied parameters.

        Constant where nothing drives or brakes the robot, but for the errors of the integrator.
        """
        q, qd = self._by_robot
        energy, finite = np.full(q.shape[:2], np.nan), np.isfinite(q).all(axis=-1) & np.isfinite(qd).all(axis=-1)
        energy[finite] = kinematics(self.model, "energy")(q[finite], qd[finite])
        return energy.reshape(self.q.shape[:-1])

    def drift(self, rates: bool = False) -> dict[str, np.ndarray]:
        """{constraint: (K, …, m)} errors of its components [rad, m], or their rates [rad/s, m/s].

        Of loops and couplings from where they are closed; of contacts from their pose `at=`, or else from their first
        one. Attitude errors are sines of angles.
        """
        errors = component_errors(self.problem, *self._by_robot)
        return {name: x[:, :, int(rates)].reshape(*self.q.shape[:-1], -1) for name, x in errors.items()}

    def log(self) -> Log:
        """The motion of one robot as a log of the problem, for estimates and files. Raises InvalidInput.

        Outputs are columns, too; the problem needs those that it knows, such as tau.
        """
        self._check_single("a log")
        return Log({"t": self.t, "q": self.q, "qd": self.qd, **self.outputs}, self.problem)

    def view_arguments(self) -> dict[str, Any]:
        """Arguments of `sysdyn.show`: model, q, t, and tau and wrenches of contacts if they are outputs."""
        self._check_single("a motion to be shown")
        arguments: dict[str, Any] = {"model": self.model, "q": self.q, "t": self.t}
        if "tau" in self.outputs:
            arguments["tau"] = self.outputs["tau"]
        wrenches = self._wrenches()
        return arguments | {"fx": wrenches} if wrenches else arguments

    def _wrenches(self) -> dict[str, np.ndarray]:
        """{frame: (K, 6)} of contacts in the axes of a named frame."""
        wrenches: dict[str, np.ndarray] = {}
        begin, w = 0, self.outputs.get(WRENCHES.name)
        for m in self.problem.constraints if w is not None else ():
            size = len(m.wrench(self.model))
            if isinstance(m, Contact) and isinstance(m.frame, str) and m.reference == "local" and w is not None:
                wrenches[m.frame] = wrenches.get(m.frame, 0.0) + m.spread(w[:, begin : begin + size])
            begin += size
        return wrenches

    def _check_single(self, what: str) -> None:
        if self.ok.ndim:
            raise InvalidInput(f"{what} is of one robot: take one of the {self.ok.size}, as in simulation[0]")
        if not self.ok:
            raise InvalidInput(f"{what} needs all states, but the robot has diverged: take a smaller step")

    def __repr__(self) -> str:
        robots = f"{self.ok.size} robots, " if self.ok.ndim else ""
        diverged = f", {int((~self.ok).sum())} diverged" if not self.ok.all() else ""
        first = "".join(f"\n  {x}" for x in self.events[:4])
        more = f"\n  … and {len(self.events) - 4} more events" if len(self.events) > 4 else ""
        return (
            f"Simulation of {self.model.name!r}: {robots}{len(self.t):,} states to t = {self.t[-1]:.6g} s by "
            f"{self.integrator!r}{diverged}{first}{more}"
        )
