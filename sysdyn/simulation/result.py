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
from sysdyn.model import Model
from sysdyn.model.quantities import WRENCHES
from sysdyn.online.robot_functions import kinematics
from sysdyn.problem import Problem
from sysdyn.simulation.drift import constraint_errors
from sysdyn.simulation.events import SimulationEvent


@dataclass(frozen=True, eq=False)
class Simulation:
    """A motion that was simulated, of one robot or of many; `sysdyn.show(simulation)` plays that of one.

    problem        the problem that was simulated, its constraints as they were stabilised
    t (K,)         time [s] of the recorded states, from 0 on
    q (K, …, nq)   positions [rad, m], qd (K, …, nv) velocities; axes of robots after that of time
    outputs        {name: (K, …, shape)} outputs that were asked for; `simulation["qdd"]` is one of them
    events         limits that joints reach and leave, and contacts whose normal force changes its sign, by time
    ok (…)         True for robots that came to the end; the states of others are NaN from there on

    `simulation[3]` is the simulation of robot 3 alone.
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
        at = which if isinstance(which, tuple) else (which,)
        if len(at) != len(shape) or any(not -n <= k < n for k, n in zip(at, shape, strict=True)):
            raise InvalidInput(f"there is no robot {which} in a simulation of robots {shape or '(one alone)'}")
        number = int(np.arange(self.ok.size).reshape(shape)[at])
        own: Any = (slice(None), *at)
        return replace(
            self, q=self.q[own], qd=self.qd[own], outputs={name: x[own] for name, x in self.outputs.items()},
            events=tuple(x._replace(robot=0) for x in self.events if x.robot == number), ok=self.ok[at],
        )  # fmt: skip

    @cached_property
    def _by_robot(self) -> tuple[np.ndarray, np.ndarray]:
        """(q (K, N, nq), q̇ (K, N, nv))."""
        return tuple(x.reshape(len(self.t), -1, x.shape[-1]) for x in (self.q, self.qd))  # type: ignore[return-value]

    def energy(self) -> np.ndarray:
        """Kinetic and potential energy (K, …) [J], zero at the world's origin; of the model, without varied parameters.

        Constant where nothing drives or brakes the robot, but for the errors of the integrator.
        """
        q, qd = self._by_robot
        found, fine = np.full(q.shape[:2], np.nan), np.isfinite(q).all(axis=-1) & np.isfinite(qd).all(axis=-1)
        found[fine] = kinematics(self.model, "energy")(q[fine], qd[fine])
        return found.reshape(self.q.shape[:-1])

    def drift(self, rates: bool = False) -> dict[str, np.ndarray]:
        """{constraint: (K, …, m)} errors of its components [rad, m], or their rates [rad/s, m/s].

        Of loops and couplings from where they are closed; of contacts from the pose `at=` that they shall keep, or else
        from their first one. Attitudes count as sines of angles.
        """
        errors = constraint_errors(self.problem, *self._by_robot)
        return {name: x[:, :, int(rates)].reshape(*self.q.shape[:-1], -1) for name, x in errors.items()}

    def log(self) -> Log:
        """The motion of one robot as a log of the problem, for estimates and files. Raises InvalidInput.

        Outputs are columns, too; the problem needs those that it knows, such as tau.
        """
        self._one("a log")
        return Log({"t": self.t, "q": self.q, "qd": self.qd, **self.outputs}, self.problem)

    def shown(self) -> dict[str, Any]:
        """Arguments of `sysdyn.show`: the model, q and t, and the torques and wrenches of contacts that are outputs."""
        self._one("a motion to be shown")
        wanted: dict[str, Any] = {"tau": self.outputs["tau"]} if "tau" in self.outputs else {}
        if wrenches := self._wrenches():
            wanted["fx"] = wrenches
        return {"model": self.model, "q": self.q, "t": self.t, **wanted}

    def _wrenches(self) -> dict[str, np.ndarray]:
        """{frame: (K, 6)} of contacts with components in the axes of a frame that has a name."""
        found: dict[str, np.ndarray] = {}
        begin, w = 0, self.outputs.get(WRENCHES.name)
        for m in self.problem.constraints if w is not None else ():
            size = len(m.wrench(self.model))
            if isinstance(m, Contact) and isinstance(m.frame, str) and m.reference == "local" and w is not None:
                found[m.frame] = found.get(m.frame, 0.0) + m.spread(w[:, begin : begin + size])
            begin += size
        return found

    def _one(self, what: str) -> None:
        if self.ok.ndim:
            raise InvalidInput(f"{what} is of one robot: take one of the {self.ok.size}, as in simulation[0]")
        if not self.ok:
            raise InvalidInput(f"{what} needs all states, but the robot was lost: take a smaller step")

    def __repr__(self) -> str:
        robots = f"{self.ok.size} robots, " if self.ok.ndim else ""
        lost = f", {int((~self.ok).sum())} lost on the way" if not self.ok.all() else ""
        first = "".join(f"\n  {x}" for x in self.events[:4])
        more = f"\n  … and {len(self.events) - 4} more events" if len(self.events) > 4 else ""
        return (
            f"Simulation of {self.model.name!r}: {robots}{len(self.t):,} states to t = {self.t[-1]:.6g} s by "
            f"{self.integrator!r}{lost}{first}{more}"
        )
