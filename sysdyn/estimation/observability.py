"""Observability along a log: its unobservable positions and biases, by linearisation about an initial trajectory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.diagnosis.diagnose import diagnose
from sysdyn.diagnosis.directions import NullDirection
from sysdyn.diagnosis.observability import Observability, unobservable_biases
from sysdyn.errors import InvalidInput, ProblemError, few
from sysdyn.estimation.covariances import Covariances
from sysdyn.estimation.estimation_problem import EstimationProblem
from sysdyn.estimation.gauge_freedom import Unseen
from sysdyn.estimation.linearization import Linearised
from sysdyn.estimation.measurement_data import LogStatistics, read_log
from sysdyn.estimation.outputs import with_biases
from sysdyn.estimation.residuals import MeasurementData, StateResiduals
from sysdyn.estimation.sliding_window import window_rows
from sysdyn.estimation.smooth import first_position, single_blas_thread, with_motion
from sysdyn.estimation.summary import BIAS_OBSERVED_RATIO, POORLY_OBSERVED_STD
from sysdyn.measurements.known_quantities import JointAcceleration
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.predict import predict
from sysdyn.measurements.problem import Problem
from sysdyn.model.quantities import QUANTITY


def observability(
    problem: Problem, log: Any, available: Sequence[Measurement] = (), *, coupled: bool = False,
    order: int | None = None, density: Any = None, start: ArrayLike | None = None, **options: Any,
) -> Observability:  # fmt: skip
    """Unobservable coordinates, positions and biases of a log, and sensors that would observe them.

    problem, log, coupled, order, density, start, options: as of `sysdyn.smooth`. available: sensors of the state that
    could be added, of which those that help are named as if they measured at every row.

    The equations are linearised about an initial trajectory, and posterior variances of states and biases are compared
    with the prior. Densities of joints without encoders are not learnt. Of a long log, the first window is used.
    Raises what `sysdyn.smooth` does.
    """
    sensors = _checked(problem, available)
    readings, first = read_log(problem, log, **options), first_position(problem, start)
    rows = len(readings.t)
    try:
        statistics = LogStatistics.of(lambda: [readings])
        estimation, kappa, _ = with_motion(problem, (), coupled, order, density, statistics)
    except ProblemError:
        known = JointAcceleration("all", noise=1.0, name="q̈")
        instant = None if problem.knows("qdd") or not problem.state_sensors else diagnose(problem.instant + known)
        if instant is None or not instant.missing:
            raise
        return Observability(rows=rows, of=rows, coupled=coupled, instant=instant)
    with single_blas_thread():
        readings = readings.part(slice(0, window_rows(estimation)))
        found = _LinearisedLog(estimation, kappa, readings, first)
        left = found.unobservable()
        result = Observability(rows=len(readings.t), of=rows, coupled=coupled, **left)
        if sensors and not result.observable:
            result = replace(result, additions=_additions(found, sensors))
    return replace(result, suggestions=_suggestions(estimation, result))


class _LinearisedLog:
    """A log, linearised about its initial trajectory."""

    def __init__(
        self, estimation: EstimationProblem, kappa: np.ndarray, readings: MeasurementData, first: np.ndarray | None
    ):
        self.estimation, self.kappa, self.readings, self.given = estimation, kappa, readings, first is not None
        self.belief, _ = estimation.initial_state(readings, first, kappa)
        path = estimation.initial_trajectory(self.belief, readings, kappa)
        equations = Linearised(estimation.layout, estimation.kinematic, kappa, self.belief)
        if not estimation.motion.groups:  # a path of encoders has no velocities yet
            path = path.retract(equations.sweep(equations.about(path, readings)).step)
        self.path = path

    def unobservable(self, further: Sequence[Measurement] = ()) -> dict[str, Any]:
        """{"chosen", "positions", "biases"}: those unobservable even with further sensors of the state."""
        estimation = self.estimation
        sources = [StateResiduals(Problem(estimation.model, further), estimation.layout)] if further else []
        gone = estimation.find_gauge_directions(sources)
        P = self._covariances(sources, further, gone)
        return {"chosen": tuple(x.name for x in gone), "positions": self._positions(P, gone),
                "biases": self._biases(P)}  # fmt: skip

    def _covariances(
        self, sources: Sequence[StateResiduals], further: Sequence[Measurement], gone: Sequence[Unseen]
    ) -> Covariances:
        estimation, path, readings = self.estimation, self.path, self.readings
        if further:
            state = path.state()
            y = predict(Problem(estimation.model, further), state["q"], state["qd"], state["qdd"], state_sensors=True)
            y = {m.name: y.get(m.name, np.zeros((len(path), len(m.components(estimation.model))))) for m in further}
            on = {name: np.ones(x.shape, dtype=bool) for name, x in y.items()}
            readings = replace(readings, y={**readings.y, **y}, active={**readings.active, **on})
        belief = estimation.prior_at(self.belief.path, gone, self.given)
        equations = Linearised(estimation.layout, [*estimation.sources, *sources], self.kappa, belief)
        equations.weigh_exact(path, readings)
        P = equations.covariances(equations.about(path, readings))
        if len(estimation.slow_biases):
            _, P, _ = with_biases(estimation, path, P, readings, robust=False)
        return P

    def _positions(self, P: Covariances, gone: Sequence[Unseen]) -> tuple[str, ...]:
        """Degrees of freedom whose position is poorly observed at all time steps, without gauge-fixed ones."""
        model = self.estimation.model
        variance = P.diagonal()[:, : model.nv]
        held = np.zeros(model.nv, dtype=bool)
        for x in gone:
            held |= (np.abs(x.tangent(self.path.q)) > 0.0).any(axis=0)
        wide = (variance.min(axis=0) > POORLY_OBSERVED_STD**2) & ~held
        return tuple(name for name, x in zip(model.dof_names, wide.tolist(), strict=True) if x)

    def _biases(self, P: Covariances) -> tuple[NullDirection, ...]:
        """Unobservable combinations of biases at the time step of least variance, without Gauss-Markov biases."""
        own, model = self.estimation.layout, self.estimation.model
        names, std = [f"q({x})" for x in model.dof_names], np.zeros(model.nv)
        units, columns = [x.removesuffix("/s") for x in QUANTITY["qd"].units(model)], list(range(model.nv))
        for b in own.biases.values():
            components, lasting = b.measurement.components(model), np.isinf(b.time)
            for k in np.flatnonzero(lasting).tolist():
                names.append(f"bias of {b.measurement.name}: {components[k]}")
                units.append(b.measurement.component_units(model)[k])
                columns.append(own.n_states + b.place.start + k)
            std = np.concatenate([std, b.std[lasting]])
        if not std.any():
            return ()
        left = P.diagonal()[:, columns[model.nv :]] / std[model.nv :] ** 2
        best = int(np.argmin(left.sum(axis=1)))
        at = P.part(slice(best, best + 1)).dense()[0]
        return unobservable_biases(at[np.ix_(columns, columns)], std, names, units, BIAS_OBSERVED_RATIO)


# ---- remedies --------------------------------------------------------------------------------------------------------


def _checked(problem: Problem, available: Sequence[Measurement]) -> list[Measurement]:
    """The available sensors. Raises InvalidInput, and what a Problem with them does."""
    if isinstance(available, Measurement) or not all(isinstance(m, Measurement) and m.of_state for m in available):
        raise InvalidInput(
            f"available is {available!r}: to a log sensors of the state can be added, a list such as "
            "[sysdyn.FramePosition(…, noise=…)]"
        )
    Problem(problem.model, [*problem.measurements, *available])
    return list(available)


def _additions(log: _LinearisedLog, sensors: Sequence[Measurement]) -> tuple[Measurement, ...] | None:
    """A minimal list of sensors with which all is observable; None if all of them are not enough."""
    kept = list(sensors)
    if any(log.unobservable(kept).values()):
        return None
    for one in reversed(sensors):
        fewer = [m for m in kept if m is not one]
        if not any(log.unobservable(fewer).values()):
            kept = fewer
    return tuple(kept)


def _suggestions(estimation: EstimationProblem, found: Observability) -> tuple[str, ...]:
    """Advice, in sentences."""
    model, words = estimation.model, list[str]()
    for joint, body in zip(model.joint_names, model.body_names, strict=True):
        own = [x.removeprefix(f"{joint} ") for x in found.chosen if x.startswith(f"{joint} ")]
        ways = ["FramePosition or FramePose (motion capture, satellites)"] * any("position" in x for x in own)
        ways += ["Direction (a magnetometer), FrameAttitude or FramePose"] * ("yaw" in own)
        if own:
            words.append(
                f"{' and '.join(ways)} of {body!r}, if {', '.join(own)} are wanted: forces and torques do not depend "
                "on them"
            )
    if found.positions:
        words.append(f"JointPosition, or FramePose of the bodies, for {few(found.positions)}")
    mixed = [x for x in found.biases if any(term.name.startswith("q(") for term in x.terms)]
    others = estimation.dynamics.problem.valued
    if mixed:
        ways = ["turn the body in other ways", "add its FrameAttitude, FramePose or Direction", "state smaller priors"]
        if not found.coupled and any(m.noise is not None and not m.has_default for m in others):
            ways.append("smooth with coupled=True, where torques and wrenches tell of the states, too")
        words.append(f"biases cannot be distinguished from positions: {'; '.join(ways)}")
    if len(mixed) < len(found.biases):
        words.append(
            "biases that nothing else checks: state smaller priors (std), from a calibration, or add a sensor of the "
            "same quantity"
        )
    if found.additions is None:
        words.append("the available sensors are not enough, all of them together")
    elif found.additions:
        words.append(f"add {'; '.join(m.name for m in found.additions)}")
    return tuple(words)
