"""A problem: a model with its known quantities and measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import IgnoredWarning, InvalidInput, check_among, few, warn
from sysdyn.files import html
from sysdyn.measurements.constraints import Contact, ContactWrench, JointCoupling, closures, pushing
from sysdyn.measurements.known_quantities import ExternalWrench, JointAcceleration, JointTorque
from sysdyn.measurements.linear import MotorTorque
from sysdyn.measurements.measurement import Measurement, Output
from sysdyn.measurements.statement import Statement, switches
from sysdyn.model import Model
from sysdyn.model.closures import Loop
from sysdyn.model.quantities import QUANTITIES
from sysdyn.passes import PAPER, named_passes

if TYPE_CHECKING:
    from sysdyn.diagnosis.report import Diagnosis
    from sysdyn.equations.augmented import AugmentedSystem
    from sysdyn.equations.system import BlockSystem


class Problem(Statement):
    """A model and its measurements: the unknowns d, and the equations D d + b = 0 and Y d + b_Y = y.

    ``problem + measurement`` adds a measurement; ``problem - measurement`` makes its scalar components unknown again.

    Parameters
    ----------
    model : Model
        The robot.
    measurements : sequence of Measurement
        Known quantities, sensors and constraints.
    parameters : sequence of str, optional
        Names of parameters of the model that are inputs, as in `sysdyn.compile(inputs=…)`.

    Raises
    ------
    ProblemError
        If a measurement states a scalar twice, or two have the same name.
    UnknownName
        If a measurement names a joint, body or component that the model does not have.
    """

    def system(
        self, layout: str = "paper", known: str = "rows", propagate: bool = False, passes: Sequence[str] = PAPER,
        outputs: Sequence[Output] = QUANTITIES,
    ) -> BlockSystem | AugmentedSystem:  # fmt: skip
        """The equations D(q) d + b(q, q̇) = 0 of the problem, with named rows and columns.

        Parameters
        ----------
        layout : str
            "paper": a, f, τ, fx and q̈ are unknowns, 20 scalars for a body with one degree of freedom. "net_force":
            also fB = I a + ν, 26 scalars.
        known : str
            "rows": a known quantity is an equation x = y. "substituted": it is moved into b and has no column.
        propagate : bool
            Add unknowns X a and X^T f along the paths by which accelerations and wrenches propagate from sensors. No
            effect on problems with noise.
        passes : sequence of str, or "all"
            Names from `sysdyn.PASSES`; passes that do not apply are skipped. With "canonical_frames" the unknowns a, f
            and fx are not in body frames, but inputs, noise and `output_terms` are.
        outputs : sequence of str and Measurement
            Quantities that keep their meaning under the passes, and measurements whose values are written in terms
            of the unknowns.

        Returns
        -------
        BlockSystem or AugmentedSystem
            An AugmentedSystem if the problem has noise: its solution is the estimate, and its attribute `plain` is the
            BlockSystem of the equations. The problem caches the system, so equal arguments give the same object.
        """
        propagate, names = propagate and not self.noisy, named_passes(passes)

        def build() -> BlockSystem | AugmentedSystem:
            # lazy imports in this class: a compiled problem from the cache needs no equations
            from sysdyn.equations.augmented import AugmentedSystem
            from sysdyn.equations.formulation import formulate
            from sysdyn.equations.system import BlockSystem

            plain = BlockSystem(formulate(self, layout, known, propagate, names, outputs))
            return AugmentedSystem(plain) if self.noisy else plain

        # measurements by identity: the cached system keeps them alive
        keys = tuple(x if isinstance(x, str) else id(x) for x in outputs)
        return self.cached(("system", layout, known, propagate, names, keys), build)

    def diagnose(
        self, available: Sequence[Measurement] = (), active: Mapping[str, ArrayLike] | None = None
    ) -> Diagnosis:
        """Check whether the problem is well posed at a known state; `sysdyn.observability` checks a log.

        Parameters
        ----------
        available : sequence of Measurement
            Sensors that could be added if measurements are missing.
        active : mapping of str to bool or (m,) bool, optional
            On (True) or off for Switchable measurements, as in a call of a Solver. The equations of a measurement that
            is off do not count.

        Returns
        -------
        Diagnosis
            Undetermined unknowns, redundant measurements and remedies, by name.

        Raises
        ------
        InvalidInput
            If `available` has members that cannot be added.
        UnknownName
            If `active` names something that is not Switchable.
        """
        from sysdyn.diagnosis.diagnose import diagnose

        sensors = {m.name for m in self.switchable}
        modes = {name: on for name, on in switches(active) if self.switchable_constraints and name not in sensors}
        others = {name: on for name, on in switches(active) if name not in modes}
        diagnosis = diagnose(self.mode(modes), available, others)
        if self.state_sensors and diagnosis.missing:
            more = "sensors of the state measure q, q̇ and q̈ along a trajectory: sysdyn.observability diagnoses a log"
            diagnosis = replace(diagnosis, suggestions=(*diagnosis.suggestions, more))
        return diagnosis

    def _repr_html_(self) -> str:
        from sysdyn.measurements.overview import equations, unknowns

        head = repr(self).splitlines()[0]
        return html.fragment(html.text(head), html.table(equations(self)), html.table(unknowns(self)))


def inverse_dynamics(model: Model, contacts: Sequence[ContactWrench | Contact] = ()) -> Problem:
    """Inverse dynamics: τ from q̈ and fx. Nori eq. (7).

    Parameters
    ----------
    model : Model
        The robot. Only independent joints have known q̈, and their τ includes the load of the dependent (coupled)
        joints, whose own τ is zero or given as ``y={"followers": …}``. Loops (`sysdyn.closures`) stay open, with an
        IgnoredWarning, because τ is not unique with them: for motor torques use `hybrid_dynamics` with τ = 0 at the
        joints without a motor.
    contacts : sequence of Contact and ContactWrench, optional
        Contacts of a floating robot with the world, in addition to fx. The base is unactuated. The result has the
        contact wrenches of least norm among those that agree with q̈, and the corresponding joint torques. The norm is
        weighted by the noise of the contacts (components of a Contact have equal weights in N and N m). q̈ has to keep
        standing feet at rest; this is not checked.

    Raises
    ------
    InvalidInput
        If there are contacts and the base is fixed.
    """
    if loops := [c.name for c in model.closures if isinstance(c, Loop)]:
        warn(
            f"the loops of {model.name!r} are left open: {few(map(repr, loops))}. The torques are those of the tree. "
            "For motor torques use sd.hybrid_dynamics(model, torque=[…]) with the joints without a motor, and tau = 0 "
            "there",
            IgnoredWarning,
        )
    couplings = [m for m in closures(model) if isinstance(m, JointCoupling)]
    independent = tuple(x for x in model.joint_names if x not in model.followers) if couplings else "all"
    wrenches = [pushing(m, model) for m in contacts]
    floating = [name for name, joint in zip(model.joint_names, model.joints, strict=True) if joint.nv == 6]
    if wrenches and not floating:
        raise InvalidInput(
            "contacts of inverse dynamics need a floating base, as of load(…, base='floating'): "
            "a fixed base bears every load, so that nothing determines their wrenches"
        )
    base = [MotorTorque(floating, np.eye(6 * len(floating)), name="base", optional=True)] if wrenches else []
    known = [JointAcceleration(independent, name="qdd"), ExternalWrench("all", name="fx")]
    return Problem(model, [*known, *_zero_motor_torque(model.followers), *couplings, *base, *wrenches])


def forward_dynamics(model: Model) -> Problem:
    """Forward dynamics: q̈ from τ and fx. Nori eq. (13).

    Couplings and loops of the model (`sysdyn.closures`) are constraints.
    """
    return Problem(model, [JointTorque("all", name="tau"), ExternalWrench("all", name="fx"), *closures(model)])


def hybrid_dynamics(model: Model, torque: Sequence[str]) -> Problem:
    """Hybrid dynamics: known τ of the joints in `torque`, known q̈ of all others, and known fx. RBDA section 9.2.

    Coupled joints are treated as in `inverse_dynamics`. Loops of the model are constraints.

    Raises
    ------
    UnknownName
        If the model does not have a joint of that name.
    """
    torque = (torque,) if isinstance(torque, str) else tuple(torque)
    for name in torque:
        check_among("joint", name, model.joint_names)
    accelerated = tuple(name for name in model.joint_names if name not in (*torque, *model.followers))
    known: list[Measurement] = [JointAcceleration(accelerated, name="qdd")] if accelerated else []
    known += [JointTorque(torque, name="tau")] if torque else []
    dependent = [name for name in model.followers if name not in torque]
    fx = ExternalWrench("all", name="fx")
    return Problem(model, [*known, fx, *_zero_motor_torque(dependent), *closures(model)])


def _zero_motor_torque(joints: Sequence[str]) -> list[Measurement]:
    """A measurement of zero motor torque at these joints; empty without joints."""
    return [MotorTorque(joints, name="followers", optional=True)] if joints else []
