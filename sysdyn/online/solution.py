"""Solutions of a solver: quantities by attribute and by name, and checks that need the whole system."""

from __future__ import annotations

import math
from collections.abc import KeysView, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from sysdyn.errors import InvalidInput, ProblemError, UnknownName, check_among, optional
from sysdyn.files import html
from sysdyn.files.html import TextTable
from sysdyn.measurements.constraints import Contact, FrameConstraint
from sysdyn.measurements.measurement import Constraint, Measurement, find_frame
from sysdyn.measurements.problem import Problem
from sysdyn.model.kinematics import forward_kinematics, frame_transform, joint_transforms, velocities
from sysdyn.model.quantities import QUANTITIES, WRENCHES, JointQuantity, SolvedQuantities
from sysdyn.model.se3 import rotation
from sysdyn.online.calls import Result
from sysdyn.program.groups import Groups
from sysdyn.program.opcodes import BAD_OUTPUT
from sysdyn.runtime.native import extension

if TYPE_CHECKING:  # a call needs no equations
    from sysdyn.equations.system import BlockSystem, System

# Axes in which wrenches and accelerations can be given.
REFERENCES = ("local", "world")


@dataclass(frozen=True, eq=False)
class SolutionContext:
    """Data that all solutions of a solver share.

    inputs: {group: its slice of a row of all inputs}. posterior: `sysdyn.online.estimate.Posteriors` of estimates.
    """

    problem: Problem
    outputs: Groups
    inputs: Mapping[str, slice] = field(default_factory=dict)
    posterior: Any = None
    refuse: bool = True
    measured: tuple[Measurement, ...] = ()
    inactive_constraints: tuple[Constraint, ...] = ()  # redundant as a whole: they exert nothing
    parts: dict[tuple[str, str], Any] = field(default_factory=dict)  # places of named parts of outputs

    def __post_init__(self) -> None:
        for name in self.problem.quantities:  # some may be added by users
            if not hasattr(Solution, name):
                setattr(Solution, name, _quantity(name))


class NoEstimate(ProblemError, AttributeError):
    """A solution without noise was asked for an attribute that only an Estimate has."""


class EstimateAttributes:
    """Attributes of an Estimate that other solutions lack, because they need noise: these raise NoEstimate."""

    std: Any
    covariance: Any
    residuals: Any
    normalised_residuals: Any
    leverage: Any
    chi2: Any
    redundancy: Any
    log_likelihood: Any
    expected_noise: Any
    noise_moments: Any
    posterior: Any


class Solution(SolvedQuantities, EstimateAttributes, extension.RowResult):
    """Solved quantities at one state, or at many states with leading batch axes.

    tau, qdd (…, nv); a, f, fx (…, nb, 6) in body coordinates, angular first; `a` is proper acceleration (gravity folded
    in); w (…, nw) the components of the wrenches of constraints. solution["tau", "l_knee"] picks one joint, body or
    constraint by name. solution["imu"] (…, m) is the value of a measurement among the outputs, and
    solution["imu", "a_x"] one of its components. ok (…) bool: False for unsolved states, with
    on_singular="nan".

    Solutions of problems with noise are `sysdyn.Estimate` objects, with standard deviations and tests.
    """

    __slots__ = ("_stored",)

    _about: SolutionContext
    _stored: Result
    _row: Any  # outputs and inputs of a native call of one state, until a request needs a Result; else None

    differences: Mapping[str, np.ndarray] = MappingProxyType({})

    def __init__(self, about: SolutionContext, result: Result):
        """result: outputs, status and inputs of the call.

        Native calls of one state do not call this method: they set `_row` instead of `_stored`.
        """
        self._about, self._stored, self._row = about, result, None

    def __reduce__(self):
        return type(self), (self._about, self._result), self.__dict__

    @property
    def _result(self) -> Result:
        if self._row is not None:
            outputs, inputs = self._row_arrays()
            parts = {name: inputs[part] for name, part in self._about.inputs.items()}
            self._stored, self._row = Result(parts, (), outputs, np.zeros(1, dtype=np.int64)), None
        return self._stored

    @property
    def ok(self) -> Any:
        return np.True_ if self._row is not None else self._stored.ok

    @ok.setter
    def ok(self, ok: np.ndarray) -> None:
        self._result.status = np.where(np.ravel(ok), 0, BAD_OUTPUT)

    @property
    def _problem(self) -> Problem:
        return self._about.problem

    @property
    def _outputs(self) -> Groups:
        return self._about.outputs

    @property
    def inputs(self) -> Mapping[str, np.ndarray]:
        """Inputs of the call by group, (size,) for all states or (N, size), in SI units; defaults included."""
        return self._result.inputs

    def keys(self) -> KeysView[str]:
        """Names of the outputs: dict(solution) has all values."""
        return self._values.keys()

    @property
    def _lead(self) -> tuple[int, ...]:
        return () if self._row is not None else self._stored.lead

    def _value(self, name: str) -> np.ndarray:
        """Array (…, *shape) of an output, by name. Raises KeyError for other names."""
        if self._row is not None:
            return self._row_output(name)
        return self._stored.outputs[name].reshape(self._stored.lead + self._outputs[name].shape)

    @property
    def _values(self) -> dict[str, np.ndarray]:
        return {name: self._value(name) for name in self._result.outputs}

    def __getitem__(self, key: str | tuple[str, str]) -> np.ndarray:
        quantity, name = key if isinstance(key, tuple) else (key, None)
        for constraint in self._about.inactive_constraints:
            if (quantity, name) == (WRENCHES.name, constraint.name):
                return np.zeros((*self._lead, len(constraint.components(self._problem.model))))
        try:
            values = self._value(quantity)
        except (KeyError, TypeError):  # names that are no texts
            raise UnknownName("output", quantity, self._values) from None
        return values if name is None else self._part(values, quantity, name)

    def _part(self, values: np.ndarray, quantity: str, name: str) -> np.ndarray:
        """The entries of an output that belong to a joint, body, constraint or component. Raises UnknownName."""
        parts = self._about.parts
        try:
            place = parts[quantity, name]
        except (KeyError, TypeError):
            place = parts[quantity, name] = self._place(quantity, name)
        flat = values if values.ndim == len(self._lead) + 1 else values.reshape(*self._lead, -1)
        return flat[..., place][()]  # [()]: a number at one state

    def _place(self, quantity: str, name: str) -> Any:
        """Index or slice of a part in the flattened output; an index for a scalar."""
        model = self._problem.model
        if quantity not in self._problem.quantities:
            components = [label.removeprefix(f"{quantity}: ") for label in self._outputs[quantity].labels]
            check_among(f"component of {quantity!r}:", name, components)
            return components.index(name)
        known = self._problem.quantity(quantity)
        part = known.part(model, known.index(model, name))
        return part.start if isinstance(known, JointQuantity) and part.stop - part.start == 1 else part

    def wrench(self, name: str, reference: str = "local") -> np.ndarray:
        """Wrench of a Contact or LoopJoint, angular first.

        Parameters
        ----------
        name : str
            Name of the constraint.
        reference : {"local", "world"}
            Axes: of the frame of a contact, or of frame_a of a loop; or of the world.

        Returns
        -------
        (…, 6) array, N m and N
            Wrench of a contact on its body, at the origin of its frame; or wrench of a loop on the body of frame_b, at
            the origin of frame_b. The opposite wrench acts on the body of frame_a.

        Raises
        ------
        UnknownName
        """
        check_among("reference", reference, REFERENCES)
        constraints = {m.name: m for m in (*self._problem.constraints, *self._about.inactive_constraints)}
        check_among("constraint", name, constraints)
        constraint = constraints[name]
        if not isinstance(constraint, FrameConstraint):
            raise InvalidInput(f"{name!r} has no frame: its components are solution['w', {name!r}]")
        wrench = constraint.spread(self[WRENCHES.name, name])
        if reference == constraint.reference:
            return wrench
        model = self._problem.model
        frame = find_frame(model, constraint.frame)
        flat = wrench.reshape(-1, 6)
        for k, state in enumerate(self._state()[0]):
            E = rotation(frame.X)
            if frame.body >= 0:
                E = E @ rotation(forward_kinematics(model, state)[frame.body])
            turn = E.T if reference == "world" else E
            flat[k] = np.concatenate([turn @ flat[k, :3], turn @ flat[k, 3:]])
        return flat.reshape(wrench.shape)

    def speeds(self) -> dict[str, np.ndarray]:
        """Constraint velocities {constraint: (…, m)} [m/s, rad/s] of contacts, loops and couplings, from q and q̇.

        Zero if the motion satisfies the constraints. Constraints fix accelerations only, so they do not stop a moving
        foot; `sysdyn.impact` gives the velocities after the constraints have closed.
        """
        return {m.name: self._shaped(x.rate) for m, x in self._constraint_errors().items()}

    def gaps(self) -> dict[str, np.ndarray]:
        """Position errors {constraint: (…, m)} [m, rad] of loops, couplings and contacts with `at=`; zero if closed.

        The error of a loop is the position of frame_b in the axes of frame_a, and the rotation vector between both,
        with q of followers computed from their leaders. The error of a coupling is q of the follower minus the value
        that its leader demands. Constraints fix accelerations only, so an open loop stays open.
        """
        errors = self._constraint_errors().items()
        return {m.name: self._shaped(x.gap) for m, x in errors if not (isinstance(m, Contact) and m.at is None)}

    def _constraint_errors(self) -> dict[Any, Any]:
        """`ConstraintErrors` by constraint, at the N states."""
        from sysdyn.online.constraint_errors import constraint_errors

        q, qd = self._result.all("q"), self._result.all("qd")
        return constraint_errors(self._problem, q, qd, self._about.inactive_constraints)

    # ---- checks -------------------------------------------------------------------------------------------------

    def residual(self) -> np.ndarray:
        """Residual D d + b (…, equations) of the problem's system at this solution; rounding errors if it is exact.

        Needs outputs="all".
        """
        return self._residual()[0]

    def inconsistency(self) -> dict[str, np.ndarray]:
        """Errors {measurement: (…, k)} of the redundant components of exact measurements, in their units.

        An error is the value at this solution minus the measured value.
        """
        return dict(self.differences)

    @cached_property
    def undetermined(self) -> tuple[str, ...]:
        """Names of constraint wrenches that are undetermined at some states, because constraints are redundant there.

        Examples are a stretched or folded leg, or a loop at a dead centre. Accelerations are determined; wrenches have
        minimum norm, as with `sysdyn.least_norm` without weights. Coefficients that are rounding errors count as zero.
        """
        return self._result.undetermined

    def backward_error(self) -> np.ndarray:
        """Componentwise backward error (…): relative change of D and b that makes the solution exact.

        The greatest |D d + b|_i / (|D| s + |b|)_i over all rows i, with sizes s of the unknowns, as in
        `sysdyn.equations.backward_error.Residual`. Needs outputs="all". Oettli and Prager (1964).
        """
        return self._residual()[1]

    def reciprocal_condition(self) -> np.ndarray:
        """Reciprocal condition number 1/κ (…) of the scaled equations: relative distance from a singular state.

        About the least relative change of entries of D that could make it singular: 1e-1 to 1e-4 for most robots, 1e-6
        if six digits may be lost, below 1e-12 if a state counts as singular (`SingularState`; states that are singular
        by redundant constraints alone may be solved, see `undetermined`). It depends on the inputs only, not on the
        outputs or on success, and takes some milliseconds per state.

        For estimates it is that of the augmented matrix. If that is below 1e-6, it may be that of the equations without
        multipliers, if greater, from singular values of dense matrices (0.1 s for a humanoid). Skeel (1979).
        """
        from sysdyn.equations.problem_system import assemble

        system = assemble(self._problem)
        entries = np.broadcast_to(system.values(self.inputs)[0], (self._n, system.nnz))
        return np.array([system.solvability(x) for x in entries]).reshape(self._lead)

    def forward_error(self) -> dict[str, np.ndarray]:
        """Estimated forward error {output: (…)} relative to the greatest entry of the output.

        The difference from a pivoted and refined solve, plus the error bound of that solve: the effect of rounding
        errors, amplified by the condition of the state. It is rarely below the true error and mostly above it, for any
        requested outputs; some milliseconds per state. NaN if the state was not solved, inf if the equations are
        exactly singular. For states solved by least squares of a redundant problem, it refers to all equations. Higham
        (2002), sections 7.2 and 15.
        """
        from sysdyn.equations.problem_system import assemble
        from sysdyn.online.accuracy import forward_errors

        shown: tuple[str | Measurement, ...] = (*QUANTITIES, *self._about.measured)
        values = {name: x.reshape(self._n, -1) for name, x in self._values.items()}
        errors = forward_errors(assemble(self._problem, outputs=shown), self.inputs, values)
        if (full := self._result.full_system) and full.solved.any():
            states = np.flatnonzero(full.solved)
            solved = {name: x[states] for name, x in values.items()}
            for name, x in forward_errors(assemble(full.problem, outputs=shown), full.at(states), solved).items():
                errors[name][states] = x
        return {name: x.reshape(self._lead) for name, x in errors.items()}

    def _residual(self) -> tuple[np.ndarray, np.ndarray]:
        from sysdyn.equations.backward_error import residual_at

        system = self._equations()
        residual, error, _ = residual_at(system, self.inputs, self._unknowns(system))
        return residual.reshape(*self._lead, residual.shape[1]), error.reshape(self._lead)

    def _unknowns(self, system: System) -> np.ndarray:
        """Unknowns d (n, layout.n) with zero multipliers. Raises InvalidInput if a quantity is not an output."""
        missing = [x for x in self._problem.quantities if x not in self._values]
        if missing:
            raise InvalidInput(
                f"the residual needs every quantity, but {', '.join(missing)} is no output: compile with outputs='all'"
            )
        d = np.zeros((self._n, system.layout.n))
        for quantity in self._problem.quantities:
            columns = system.layout.quantity_columns(quantity)
            d[:, columns] = self._values[quantity].reshape(self._n, len(columns))
        return d

    def _equations(self) -> BlockSystem:
        """System without multipliers, in terms of the reported quantities; cached by the problem."""
        from sysdyn.equations.problem_system import assemble

        return assemble(self._problem).plain

    # ---- tables -------------------------------------------------------------------------------------------------

    def to_pandas(self) -> Any:
        """Outputs as a DataFrame with one row per state; columns as in result files: "tau:l_knee", "imu: a_x", ok.

        frame.attrs["units"] has the unit of each column. Columns "std:tau:l_knee" follow for the outputs of an Estimate
        whose `std` has been requested. Several batch axes make a MultiIndex. Raises BackendUnavailable.
        """
        pandas = optional("pandas", "to_pandas needs pandas, which is not installed: pip install pandas")
        columns: dict[str, np.ndarray] = {}
        units: dict[str, str] = {}
        for prefix, values in (("", self._values), ("std:", self._displayed_std())):
            for name, x in values.items():
                names = [f"{prefix}{label}" for label in self._outputs[name].labels]
                columns |= dict(zip(names, x.reshape(self._n, -1).T, strict=True))
                units |= dict(zip(names, self._outputs[name].units, strict=True))
        index = pandas.MultiIndex.from_product(map(range, self._lead)) if len(self._lead) > 1 else range(self._n)
        frame = pandas.DataFrame({**columns, "ok": np.reshape(self.ok, self._n)}, index=index)
        frame.attrs["units"] = units
        return frame

    def _displayed_std(self) -> Mapping[str, np.ndarray]:
        """Standard deviations {output: σ} that a display can show without compiling a program."""
        return {}

    def tables(self) -> list[TextTable]:
        """Tables for display, with units: values at one state, or ranges of the outputs over several states.

        Outputs of an Estimate have standard deviations if their `std` has been requested.
        """
        from sysdyn.online import display

        if self._n == 1:
            return display.value_tables(self._outputs, self._values, self._displayed_std())
        return [display.range_table(self._outputs, self._values, self._displayed_std())]

    # ---- shapes -------------------------------------------------------------------------------------------------

    def _state(self) -> tuple[np.ndarray, np.ndarray]:
        """(q (N, nq), q̇ (N, nv)) with followers computed from their leaders."""
        return self._problem.imposed(self._result.all("q"), self._result.all("qd"))

    @property
    def _n(self) -> int:
        return math.prod(self._lead)

    def _shaped(self, x: np.ndarray) -> np.ndarray:
        return x.reshape((*self._lead, *x.shape[1:]))

    # ---- accelerations in other terms ---------------------------------------------------------------------------

    def acceleration(
        self, frame: str, classical: bool = False, gravity: bool = False, reference: str = "local"
    ) -> np.ndarray:
        """Acceleration of a frame, angular first.

        Parameters
        ----------
        frame : str
            A frame or a body of the model.
        classical : bool
            True: the linear part is that of the frame's origin as a point, spatial acceleration + ω × v.
        gravity : bool
            True: proper acceleration, as an accelerometer measures it; False: relative to the world.
        reference : {"local", "world"}
            Axes of the frame, or of the world, at the origin of the frame.

        Returns
        -------
        (…, 6) array, rad/s² and m/s²

        References
        ----------
        RBDA section 2.11.
        """
        check_among("reference", reference, REFERENCES)
        model = self._problem.model
        placed = model.frame(frame)
        n = self._n
        q, qd = self._state()
        down = np.broadcast_to(self.inputs.get("gravity", model.gravity), (n, 3))
        if placed.body >= 0:
            a = self.a.reshape(n, model.nb, 6)[:, placed.body]
        result = np.empty((n, 6))
        for k in range(n):
            E = frame_transform(model, q[k], frame)[:3, :3]
            proper = placed.X @ a[k] if placed.body >= 0 else np.concatenate([np.zeros(3), -(E @ down[k])])
            if placed.body >= 0 and not gravity:
                proper = proper + np.concatenate([np.zeros(3), E @ down[k]])
            elif placed.body < 0 and not gravity:
                proper = np.zeros(6)
            if classical and placed.body >= 0:
                v = placed.X @ velocities(model, joint_transforms(model, q[k]), qd[k])[0][placed.body]
                proper = proper + np.concatenate([np.zeros(3), np.cross(v[:3], v[3:])])
            if reference == "world":
                proper = np.concatenate([E.T @ proper[:3], E.T @ proper[3:]])
            result[k] = proper
        return result.reshape(*self._lead, 6)

    def _repr_html_(self) -> str:
        first, *others = self.tables()
        return html.fragment(html.text(repr(self)), html.table(first, folded=False), *map(html.table, others))

    def __repr__(self) -> str:
        where = f"{self._lead} states" if self._lead else "one state"
        shapes = ", ".join(f"{name} {x.shape}" for name, x in self._values.items())
        failed = int((~self.ok).sum())
        return f"{type(self).__name__} at {where}: {shapes}" + (f"; {failed} not solved" if failed else "")


def _quantity(name: str) -> property:
    """Property that returns an output by name."""

    def value(solution: Solution) -> np.ndarray:
        try:
            return solution._value(name)
        except KeyError:
            asked = [*solution.keys()]
            raise AttributeError(
                f"{name} was not asked for: this solver computes {', '.join(asked)}; "
                f"compile with outputs={[*asked, name]!r} or 'all'"
            ) from None

    def replace(solution: Solution, x: Any) -> None:
        solution._result.outputs[name] = np.array(np.broadcast_to(x, solution._value(name).shape))

    return property(value, replace)


def _of_estimate(name: str) -> property:
    """Property that raises NoEstimate: only an Estimate has the attribute."""

    def missing(solution: Solution) -> NoReturn:
        raise NoEstimate(
            f"no measurement of this problem is noisy, so its solution has no {name}: "
            "give a measurement noise= and compile again"
        )

    return property(missing)


for _name in SolvedQuantities.__annotations__:
    setattr(Solution, _name, _quantity(_name))
for _name in EstimateAttributes.__annotations__:
    setattr(Solution, _name, _of_estimate(_name))
