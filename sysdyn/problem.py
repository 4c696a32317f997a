"""Problems: a model and the known quantities and measurements."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.diagnosis.diagnose import Diagnosis, diagnose
from sysdyn.diagnosis.observability import Observability
from sysdyn.equations.augmented import system
from sysdyn.equations.system import System
from sysdyn.equations.turned_joints import layout
from sysdyn.errors import IgnoredWarning, InvalidInput, check_among, few, warn
from sysdyn.files import html
from sysdyn.measurements.constraints import Contact, ContactWrench, JointCoupling, closures, pushing
from sysdyn.measurements.linear import MotorTorque
from sysdyn.measurements.measurement import Constraint, Measurement, Output
from sysdyn.measurements.overview import equations, unknowns
from sysdyn.measurements.raw import ExternalWrench, JointAcceleration, JointTorque
from sysdyn.measurements.statement import Statement, switches
from sysdyn.measurements.variables import Layout
from sysdyn.model import Model
from sysdyn.model.closures import Loop
from sysdyn.model.quantities import QUANTITIES
from sysdyn.passes import PAPER


class Problem(Statement):
    """A model and its measurements: the unknowns d, and the equations D d + b = 0 and Y d + b_Y = y.

    parameters: names of those of the model that are inputs, as of `sysdyn.compile(inputs=…)`.

    problem + measurement adds one; problem − measurement makes its scalar components unknown again.

    Raises ProblemError if a measurement states a scalar twice or two have one name, UnknownName if a
    measurement names a joint, body or component that the model does not have.
    """

    def layout(self, name: str = "paper", turn: bool = False) -> Layout:
        """Names and places of the unknowns; see `BlockSystem`."""
        return layout(self, name, turn)

    def system(
        self, layout: str = "paper", known: str = "rows", turn: bool = False, passes: Sequence[str] = PAPER,
        outputs: Sequence[Output] = QUANTITIES,
    ) -> System:  # fmt: skip
        """The assembled BlockSystem; `known` quantities as "rows" x = y, or "substituted" into b.

        Where equations are noisy it is an AugmentedSystem, whose solution is the estimate; its `plain` is the system of
        the equations alone, as it is of a BlockSystem. turn: with the further unknowns of an exact problem. passes and
        outputs: see `BlockSystem`. Systems are cached: calls with the same arguments give the same object.
        """
        return system(self, layout, known, turn, passes, outputs)

    @overload
    def diagnose(
        self, log: Sequence[Measurement] | None = None, available: Sequence[Measurement] = (),
        active: Mapping[str, ArrayLike] | None = None,
    ) -> Diagnosis: ...  # fmt: skip

    @overload
    def diagnose(self, log: Any, available: Sequence[Measurement] = (), active: None = None, **options: Any
    ) -> Observability: ...  # fmt: skip

    def diagnose(
        self, log: Any = None, available: Sequence[Measurement] = (), active: Mapping[str, ArrayLike] | None = None,
        **options: Any,
    ) -> Diagnosis | Observability:  # fmt: skip
        """Well-posedness in names: a Diagnosis that prints. available: sensors that could be added where some lack.

        active: {name: bool or (m,) bool} of what is Switchable, as for a call of a Solver: equations that are switched
        off are left out and, of measurements with noise, named.

        log: of a problem whose q and q̇ are unknown: what it does not tell of its trajectory, as an Observability; see
        `sysdyn.observability`, which takes the options. Without a log the first argument may be `available`.
        """
        if isinstance(log, (list, tuple)) and all(isinstance(m, Measurement) for m in log):
            log, available = None, log
        if log is not None and active is not None:
            raise InvalidInput("active is for one state: a log has columns and conditions that switch")
        if log is not None:
            # packages above this one are reached by public names alone
            return sys.modules[__package__].observability(self, log, available, **options)
        if options:
            raise InvalidInput(f"diagnose takes {', '.join(options)} with a log alone")
        given, noisy = dict(switches(active)), {m.name for m in self.switchable}
        of_mode = {name: on for name, on in given.items() if self.switchable_constraints and name not in noisy}
        rest = {name: on for name, on in given.items() if name not in of_mode}
        found = diagnose(self.mode(of_mode), available, rest)
        if self.state_sensors and found.missing:
            more = "sensors of the state tell q, q̇ and q̈ along a trajectory: diagnose(log) says what a log tells"
            found = replace(found, suggestions=(*found.suggestions, more))
        return found

    def _repr_html_(self) -> str:
        head = repr(self).splitlines()[0]
        return html.fragment(html.text(head), html.table(equations(self)), html.table(unknowns(self)))


def inverse_dynamics(model: Model, contacts: Sequence[ContactWrench | Contact] = ()) -> Problem:
    """Known q̈ and fx, wanted τ. Nori eq. (7).

    contacts: wrenches of the world on a floating robot, beside fx. No motor drives the base then, and of all
    wrenches w that make it move as q̈ says the solution has the smallest, in the units of their noise; τ of the other
    joints is the one for these. Components of a Contact count the same in N and N m. How feet move is not looked at: q̈
    has to keep those at rest that stand.

    Coupled joints follow: q̈ is known of the others alone, and τ of theirs includes what the followers need, which have
    none (or that handed in as y={"followers": …}). Loops (`sd.closures`) stay open, with an IgnoredWarning, as they
    do not determine τ: for motor torques use `hybrid_dynamics` with τ = 0 at the joints without a motor.
    """
    if loops := [c.name for c in model.closures if isinstance(c, Loop)]:
        warn(
            f"the loops of {model.name!r} are left open: {few(map(repr, loops))}. The torques are those of the tree. "
            "For motor torques use sd.hybrid_dynamics(model, torque=[…]) with the joints without a motor, and tau = 0 "
            "there",
            IgnoredWarning,
        )
    led = _led(model)
    known = JointAcceleration(
        tuple(x for x in model.joint_names if x not in model.followers) if led else "all", name="qdd"
    )
    contacts = [pushing(m, model) for m in contacts]
    free = [name for name, joint in zip(model.joint_names, model.joints, strict=True) if joint.nv == 6]
    if contacts and not free:
        raise InvalidInput(
            "contacts of inverse dynamics need a floating base, as of load(…, base='floating'): "
            "a base that is fixed takes what there is by itself"
        )
    base = [MotorTorque(free, np.eye(6 * len(free)), name="base", optional=True)] if contacts else []
    fx = ExternalWrench("all", name="fx")
    return Problem(model, [known, fx, *_undriven(model.followers), *led, *base, *contacts])


def forward_dynamics(model: Model) -> Problem:
    """Known τ and fx, wanted q̈. Nori eq. (13). Couplings and loops of the model (`sd.closures`) hold."""
    return Problem(model, [JointTorque("all", name="tau"), ExternalWrench("all", name="fx"), *closures(model)])


def hybrid_dynamics(model: Model, torque: Sequence[str]) -> Problem:
    """Known τ of the joints named in `torque`, q̈ of all others, and fx. RBDA section 9.2.

    Coupled joints follow, as of `inverse_dynamics`, and loops of the model hold.
    """
    torque = (torque,) if isinstance(torque, str) else tuple(torque)
    for name in torque:
        check_among("joint", name, model.joint_names)
    rest = tuple(name for name in model.joint_names if name not in (*torque, *model.followers))
    known: list[Measurement] = [ExternalWrench("all", name="fx")]
    if torque:
        known.insert(0, JointTorque(torque, name="tau"))
    if rest:
        known.insert(0, JointAcceleration(rest, name="qdd"))
    others = [name for name in model.followers if name not in torque]
    return Problem(model, [*known, *_undriven(others), *closures(model)])


def _led(model: Model) -> list[Constraint]:
    """The couplings of the model."""
    return [m for m in closures(model) if isinstance(m, JointCoupling)]


def _undriven(joints: Sequence[str]) -> list[Measurement]:
    """The measurement that no motor drives these joints; none without joints."""
    return [MotorTorque(joints, name="followers", optional=True)] if joints else []
