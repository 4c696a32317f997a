"""Set-up of an estimation problem: residuals, process model, initial state and initial trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from sysdyn.errors import ProblemError
from sysdyn.estimation import process_noise
from sysdyn.estimation.ekf import Filter, GaussianState
from sysdyn.estimation.gauge_freedom import SEEN_AT, Unseen, unseen
from sysdyn.estimation.outliers import MOTION
from sysdyn.estimation.process_model import ProcessModel
from sysdyn.estimation.residuals import DynamicsResiduals, MeasurementData, StateResiduals, split, without_state_sensors
from sysdyn.estimation.state_trajectory import StateLayout, StateTrajectory, declared_std
from sysdyn.estimation.timing import with_jitter, without_stale
from sysdyn.measurements.constraints import Contact
from sysdyn.measurements.measurement import Measurement, Output
from sysdyn.measurements.problem import Problem
from sysdyn.measurements.state_sensors import JointPosition, Stance
from sysdyn.program.groups import Group

# Prior standard deviations of the initial state, beyond all robots: positions [rad, m], velocities [rad/s, m/s],
# accelerations [rad/s², m/s²], and their rates.
FIRST = (10.0, 10.0, 1e3, 1e5)
# Prior standard deviations of the initial attitude of a free base [rad], and of one solved at rest: a linearised filter
# converges from there.
FIRST_ATTITUDE, SOLVED_ATTITUDE = 1.0, 0.3
# Standard deviation of initial unobservable coordinates, which are fixed [m, rad].
GAUGE_STD = 1e-6
# Standard deviations of rates while the initial attitude is solved: the robot is at rest.
AT_REST = 1e-2
# Initial densities of degrees of freedom without an encoder, rotations [rad/s³/√Hz] and translations [m/s³/√Hz]: those
# of a walking base.
ROTATION_PSD, TRANSLATION_PSD = 100.0, 30.0
# Ratio of the initial densities of snap to those of jerk [rad/s]: a fast motion.
FREQUENCY = 20.0
# Time steps of the filter for an initial trajectory [s]: a base rotates little meanwhile.
STRIDE = 0.01


class EstimationProblem:
    """A problem along a log. coupled: dynamic variables and states are estimated together, else first the states.

    outputs: requested quantities and measurements. span: length of the log [s]. measured {name: (m,) bool}: components
    that the log has at some time; None: all. jitter: standard deviation of the errors of its times [s]. impacts: search
    for jumps of velocities; None: if the problem has a stance or a contact. still: see
    `sysdyn.estimation.timing.stillness`. Raises ProblemError if no sensor observes the states.
    """

    def __init__(
        self, problem: Problem, outputs: Sequence[Output], span: float, order: int, coupled: bool,
        measured: Mapping[str, np.ndarray] | None = None, jitter: float = 0.0, impacts: bool | None = None,
        still: Mapping[str, np.ndarray] | None = None,
    ):  # fmt: skip
        self.still = still or {}
        self.jitter, self.has_contacts = jitter, any(isinstance(m, (Stance, Contact)) for m in problem.measurements)
        self.impacts = self.has_contacts if impacts is None else impacts
        self.problem, self.model, self.coupled, self._measured = problem, problem.model, coupled, measured or {}
        if not problem.state_sensors:
            raise ProblemError(
                "no sensor of the problem observes the states: add encoders (sysdyn.JointPosition) or other sensors "
                "of the state; if q and q̇ are known, compile the problem and solve it state by state"
            )
        self.motion = ProcessModel(self.model, order)
        if problem.switchable_constraints:
            name = problem.switchable_constraints[0].name
            raise ProblemError(
                f"{name!r} is exact, and what is exact holds along a whole trajectory: state a foot that stands for a "
                "while as a sysdyn.Stance, or take problem.mode(active)"
            )
        own = self.layout = StateLayout(problem, self.motion, span)
        moving, rest = split(problem)
        self.states = StateResiduals(problem, own)
        self.kinematic: list[StateResiduals | DynamicsResiduals] = [self.states]
        if moving is not None:
            self.kinematic.append(DynamicsResiduals(moving, own))
        self.dynamics = DynamicsResiduals(without_state_sensors(problem) if coupled else rest, own, outputs)
        kinematic = {m.name for m in (*problem.state_sensors, *(moving.measurements if moving else ()))}
        # biases that dynamic variables observe over time, after the states are estimated
        slow = [
            own.n_states + b.place.start + k
            for name, b in own.biases.items() if not coupled and len(self.dynamics.exact)
            for k in range(b.place.stop - b.place.start) if name not in kinematic or np.isinf(b.time[k])
        ]  # fmt: skip
        self.slow_biases = np.array(slow, dtype=int)
        self.sources: list[StateResiduals | DynamicsResiduals] = (
            [self.states, self.dynamics] if coupled else self.kinematic
        )

    def timed(self, readings: MeasurementData) -> MeasurementData:
        """The readings without stale samples, with the variances that jitter adds."""
        return with_jitter(self.problem, without_stale(readings, self.still), self.jitter)

    @cached_property
    def groups(self) -> dict[str, Group]:
        """Groups of the outputs by name."""
        return {x.name: x for x in self.problem.outputs(self.dynamics.outputs).values()}

    @cached_property
    def components(self) -> dict[str, tuple[str, ...]]:
        """Names of the components of all measurements."""
        found = {m.name: m.components(self.model) for m in self.problem.measurements}
        return {MOTION: self.model.dof_names, **found}

    @cached_property
    def gauge_directions(self) -> list[Unseen]:
        """The unobservable coordinates."""
        return self.find_gauge_directions()

    def find_gauge_directions(self, further: Sequence[StateResiduals] = ()) -> list[Unseen]:
        """The unobservable coordinates; further: residuals of state sensors in addition to those of the problem."""
        rng = np.random.default_rng(5)
        y, active = {}, {}
        added = [m for source in further for m in source.sensors]
        for m in (*self.problem.state_sensors, *self.problem.custom, *added):
            size = len(m.components(self.model))
            y[m.name] = 0.3 * rng.standard_normal((SEEN_AT, size))
            active[m.name] = np.broadcast_to(self._measured.get(m.name, True), (SEEN_AT, size))
        known = {x: np.zeros((SEEN_AT, self.problem.inputs[x].size)) for x in self.problem.known_quantities}
        readings = MeasurementData(np.arange(SEEN_AT, dtype=float), y, active, known)
        return unseen([*self.kinematic, self.dynamics, *further], self.layout, readings)

    # ---- initial state -----------------------------------------------------------------------------------------------

    def initial_state(
        self, readings: MeasurementData, q: np.ndarray | None, density: np.ndarray
    ) -> tuple[GaussianState, tuple[str, ...]]:
        """(initial state before its measurements, names of its unobservable coordinates, which are fixed).

        q (nq,): initial position; None: solved from the first sample, at rest.
        """
        own, model = self.layout, self.model
        nv, p = model.nv, self.motion.order
        first = model.neutral() if q is None else q
        at = StateTrajectory(own, readings.t[:1], first[None], np.zeros((1, p - 1, nv)), np.zeros((1, own.n_biases)))
        gone, found = self.gauge_directions, at
        if q is None or not self.motion.groups:
            still = self._std(FIRST_ATTITUDE)
            still[nv : own.n_states] = AT_REST
            belief = GaussianState(at, self._prior(still, at, gone))
            found = (
                Filter(own, self.kinematic, density, gate=False)
                .solve_initial_state(belief, readings.part(slice(0, 1)))
                .path
            )
            found = replace(found, rates=at.rates, biases=at.biases)
        return self.prior_at(found, gone, q is not None), tuple(x.name for x in gone)

    def prior_at(self, path: StateTrajectory, gone: Sequence[Unseen], given: bool) -> GaussianState:
        """The first state of a path with its prior; given: its position is the user's, else it was solved at rest."""
        return GaussianState(path, self._prior(self._std(FIRST_ATTITUDE if given else SOLVED_ATTITUDE), path, gone))

    def _std(self, attitude: float) -> np.ndarray:
        """Prior standard deviations (unknowns,) of the initial state."""
        std = np.concatenate([*(np.full(self.model.nv, x) for x in FIRST[: self.motion.order]), self.layout.bias_std])
        for i, joint in enumerate(self.model.joints):
            if joint.quaternion is not None:
                std[self.model.v_slice(i)][:3] = attitude
        return std

    def _prior(self, std: np.ndarray, path: StateTrajectory, gone: Sequence[Unseen]) -> np.ndarray:
        """Prior covariance of the initial state, with unobservable directions fixed."""
        P, nv = np.diag(std * std), self.model.nv
        if gone:
            N = np.linalg.qr(np.array([x.tangent(path.q)[0] for x in gone]).T)[0]
            keep = np.eye(nv) - N @ N.T
            P[:nv, :nv] = keep @ P[:nv, :nv] @ keep + GAUGE_STD**2 * N @ N.T
        return P

    # ---- initial trajectory ------------------------------------------------------------------------------------------

    def initial_trajectory(
        self, belief: GaussianState, readings: MeasurementData, density: np.ndarray
    ) -> StateTrajectory:
        """Initial trajectory of the smoother: of the filter, or of the encoders if no joint moves in a group."""
        if self.motion.groups:
            return self._filter(belief, readings, density)
        t, n, own = readings.t, len(readings.t), self.layout
        q, seen = np.repeat(belief.path.q, n, axis=0), set()
        for m, places in encoders_of(self.problem):
            for k, (place, _) in enumerate(places):
                on = readings.active[m.name][:, k]
                if on.any():
                    seen.add(place)
                    q[:, place] = np.interp(t, t[on], readings.y[m.name][on, k])
        followers = [link.q for link in self.model.couplings if link.q not in seen]
        q[:, followers] = self.model.imposed(q, None, None)[0][:, followers]
        path = StateTrajectory(
            own, t, q, np.zeros((n, own.motion.order - 1, self.model.nv)), np.zeros((n, own.n_biases))
        )
        return self._close_loops(path, readings, density) if self.states.loops else path

    def _close_loops(self, path: StateTrajectory, readings: MeasurementData, density: np.ndarray) -> StateTrajectory:
        """The path with closed loops, solved at samples a STRIDE apart, each from the one before."""
        own, nv, chosen = self.layout, self.model.nv, _strides(path.t)
        std = self._std(FIRST_ATTITUDE)
        std[nv : own.n_states] = AT_REST
        filter_, now, found = Filter(own, self.kinematic, density, gate=False), path.part(slice(0, 1)), []
        for k in chosen:
            belief = GaussianState(replace(now, t=path.t[k : k + 1]), np.diag(std * std))
            closed = filter_.solve_initial_state(belief, readings.part(slice(k, k + 1))).path
            now = replace(closed, rates=now.rates, biases=now.biases)
            found.append(now.q[0])
        q = np.stack([np.interp(path.t, path.t[chosen], x) for x in np.array(found).T], axis=1)
        return replace(path, q=q)

    def _filter(self, belief: GaussianState, readings: MeasurementData, density: np.ndarray) -> StateTrajectory:
        """The path of the filter and its smoother at samples a STRIDE apart, predicted to all others."""
        t, own, chosen = readings.t, self.layout, _strides(readings.t)
        filter_ = Filter(own, self.kinematic, density)
        found, ahead = [], []
        for k in chosen:
            if k:
                belief = filter_.predict(belief, float(t[k]))
                ahead.append(belief)
            belief = filter_.update(belief, readings.part(slice(k, k + 1)))
            found.append(belief)
        last = filter_.smooth(found, ahead, covariances=False)[0].part(
            np.searchsorted(chosen, np.arange(len(t)), side="right") - 1
        )
        q, rates = self.motion.predict(last.q, last.rates, t - last.t)
        return StateTrajectory(own, t, q, rates, last.biases)

    # ---- process noise -----------------------------------------------------------------------------------------------

    @staticmethod
    def encoders(
        problem: Problem, readings: MeasurementData, order: int, wanted: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """(densities κ (nv,) by the encoders, (nv,) bool: encoders determine it, log-likelihood).

        wanted (nv,) bool: degrees of freedom to estimate; others are NaN.
        """
        model = problem.model
        density, total = np.full(model.nv, np.nan), 0.0
        found = [(m, k, v) for m, places in encoders_of(problem) for k, (_, v) in enumerate(places) if wanted[v]]
        if found:
            freedoms, own = np.unique([v for _, _, v in found], return_inverse=True)
            further = {m.name: readings.further.get(m.name, np.zeros_like(readings.y[m.name])) for m, _, _ in found}
            z, on, more = (
                np.stack([x[m.name][:, k] for m, k, _ in found], axis=1) for x in (readings.y, readings.active, further)
            )
            std = np.array([declared_std(m, model)[k] for m, k, _ in found])
            density[freedoms], likelihood = process_noise.psd_from_encoders(readings.t, z, on, std, own, order, more)
            total = float(likelihood.sum())
        known = np.isfinite(density)
        faster = FREQUENCY ** (order - 3)
        for i, joint in enumerate(model.joints):
            part = density[model.v_slice(i)]
            if joint.nv == 6:
                part[:3], part[3:] = ROTATION_PSD * faster, TRANSLATION_PSD * faster
            else:
                part[~np.isfinite(part)] = (ROTATION_PSD if joint.angles else TRANSLATION_PSD) * faster
        return density, known, total


def _strides(t: np.ndarray) -> list[int]:
    """Indices of samples at most a STRIDE apart if possible, with the first and the last."""
    chosen = [0]
    while chosen[-1] < len(t) - 1:
        after = int(np.searchsorted(t, t[chosen[-1]] + STRIDE * (1.0 + 1e-6))) - 1
        chosen.append(min(max(after, chosen[-1] + 1), len(t) - 1))
    return chosen


def encoders_of(problem: Problem) -> list[tuple[Measurement, list[tuple[int, int]]]]:
    """(measurement, places of its joints in q and in q̇) of sensors of joint positions."""
    model = problem.model
    place = {model.q_slice(i).start: model.v_slice(i).start for i, x in enumerate(model.joints) if x.nv == 1}
    return [(m, [(k, place[k]) for k in m.places(model)])
            for m in problem.state_sensors if isinstance(m, JointPosition)]  # fmt: skip
