"""A problem over time: its equations, its motion and its first instant, ready to be filtered and smoothed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy  # which loads scipy.linalg where it is first used

from sysdyn.errors import ProblemError
from sysdyn.measurements.measurement import Measurement, Output
from sysdyn.measurements.noise import noise_of
from sysdyn.measurements.state_sensors import JointPosition
from sysdyn.model.joints import Free
from sysdyn.model.manifolds import rotate
from sysdyn.problem import Problem
from sysdyn.trajectories import chain, densities
from sysdyn.trajectories.equations import OfDynamics, OfStates, Readings, split
from sysdyn.trajectories.filtering import Belief, Filter, away
from sysdyn.trajectories.motion import Motion
from sysdyn.trajectories.path import Path, Unknowns
from sysdyn.trajectories.smoothing import Smoother, Start

# Prior standard deviations of the first instant, beyond those of robots: positions [rad, m], velocities [rad/s, m/s],
# accelerations [rad/s², m/s²], and their rates (chosen).
FIRST = (10.0, 10.0, 1e3, 1e5)
# Of the attitude of a free base, which linearised equations have to reach [rad] (chosen).
FIRST_ATTITUDE = 0.3
# Standard deviation of the coordinates of the first instant that nothing can tell, and that are chosen [m, rad].
CHOSEN = 1e-6
# Standard deviations of velocities and accelerations while the first attitude is found, at rest (chosen).
AT_REST = 1e-2
# Rates of change of equations along a direction, as a share of those along all others, that count as none (chosen).
UNSEEN = 1e-9
# Random states at which this is looked at (chosen).
SEEN_AT = 4
# Densities of degrees of freedom without an encoder from which learning begins: turns [rad/s³/√Hz], shifts [m/s³/√Hz]
# (chosen: a walking robot's base has 100 and 30).
TURNS, SHIFTS = 100.0, 30.0
# Angular frequency of motions that densities of snap begin with, beside those of jerk [rad/s] (chosen).
FREQUENCY = 20.0
# Instants over which densities are learnt, and iterations (chosen: further ones change standard deviations by 3 %).
LEARNT_OVER, ITERATIONS = 600, 8


class Trajectory:
    """A problem over time. coupled: dynamic variables and states together, else first the states.

    span: length of the log [s]. outputs: quantities and measurements that are wanted.
    """

    def __init__(self, problem: Problem, outputs: Sequence[Output], span: float, order: int, coupled: bool):
        self.problem, self.model, self.coupled = problem, problem.model, coupled
        self.motion = Motion(self.model, order)
        self.unknowns = Unknowns(problem, self.motion, span)
        moving, rest = split(problem)
        self.states = OfStates(problem, self.unknowns)
        self.kinematic = [self.states, *([OfDynamics(moving, self.unknowns)] if moving else [])]
        whole = Problem(self.model, [m for m in problem.measurements if not m.of_state],
                        [p.name for p in problem.parameters])  # fmt: skip
        self.dynamics = OfDynamics(whole if coupled else rest, self.unknowns, outputs)
        self.sources = [self.states, self.dynamics] if coupled else self.kinematic
        if not self.states.sensors:
            raise ProblemError(
                "no sensor of the problem tells the states: add encoders (sysdyn.JointPosition) or others of "
                "sysdyn.measurements.state_sensors; if q and q̇ are known, compile the problem and solve it state by state"
            )

    # ---- what nothing tells --------------------------------------------------------------------------------------

    def unseen(self) -> list[tuple[str, np.ndarray]]:
        """(name, direction at a state → (unknowns,)) of the coordinates of a free base that no equation depends on."""
        found = []
        for name, direction in self._invariances():
            if self._blind(direction):
                found.append((name, direction))
        return found

    def _invariances(self):
        """(name, tangent (N, nv) at q) of shifts and turns of the world for each free joint at its base."""
        model = self.model
        up = -model.gravity
        size = np.linalg.norm(up)
        up = up / size if size > 0.0 else np.array([0.0, 0.0, 1.0])
        for i, joint in enumerate(model.joints):
            if not isinstance(joint, Free) or model.parent[i] >= 0:
                continue
            part, at = model.v_slice(i), model.q_slice(i)

            def along(q, vector, turn, part=part, at=at):
                rotation = _rotations(q[:, at][:, 3:])
                tangent = np.zeros((len(q), model.nv))
                inside = np.einsum("nji,j->ni", rotation, vector)
                tangent[:, part.start + (0 if turn else 3) : part.start + (3 if turn else 6)] = inside
                if turn:  # about the origin of the world
                    shift = np.cross(vector, q[:, at][:, :3])
                    tangent[:, part.start + 3 : part.start + 6] = np.einsum("nji,nj->ni", rotation, shift)
                return tangent

            name = model.joint_names[i]
            for axis, letter in enumerate("xyz"):
                yield f"{name} position {letter}", lambda q, v=np.eye(3)[axis], f=along: f(q, v, False)
            yield f"{name} yaw", lambda q, v=up, f=along: f(q, v, True)

    def _blind(self, direction) -> bool:
        model = self.model
        q, qd, qdd = model.random_state(seed=11, batch=SEEN_AT)
        rates = np.zeros((SEEN_AT, self.motion.order - 1, model.nv))
        rates[:, 0], rates[:, 1] = qd, qdd
        path = Path(self.unknowns, np.arange(SEEN_AT, dtype=float), q, rates, np.zeros((SEEN_AT, self.unknowns.n_biases)))
        readings = self.sampled(SEEN_AT)
        tangent = np.zeros((SEEN_AT, self.unknowns.size))
        tangent[:, : model.nv] = direction(q)
        for source in {*self.sources, self.dynamics}:
            J = source.at(path, readings).J
            along = np.einsum("nij,nj->ni", J, tangent)
            if (np.abs(along) > UNSEEN * np.abs(J).max(axis=2, initial=0.0)).any():
                return False
        return True

    def sampled(self, n: int) -> Readings:
        """Random readings, everything on."""
        rng = np.random.default_rng(5)
        y, active, known = {}, {}, {}
        for m in (*self.problem.state_sensors, *self.problem.custom):
            size = len(m.components(self.model))
            y[m.name], active[m.name] = 0.3 * rng.standard_normal((n, size)), np.ones((n, size), dtype=bool)
        for name, group in self.problem.inputs.items():
            if name in self.problem.known_quantities:
                known[name] = np.zeros((n, group.size))
        return Readings(y, active, known)

    # ---- first instant -------------------------------------------------------------------------------------------

    def belief(self, t: float, readings: Readings, q: np.ndarray | None, density: np.ndarray) -> tuple[Belief, tuple[str, ...]]:
        """(the state of the first instant before its readings, names of coordinates that are chosen).

        q (nq,): where to begin; None: the neutral position. readings: of one instant.
        """
        own, model = self.unknowns, self.model
        nv, p = model.nv, self.motion.order
        at = model.neutral() if q is None else model.normalise(np.asarray(q, dtype=float))
        path = Path(own, np.array([t]), at[None], np.zeros((1, p - 1, nv)), np.zeros((1, own.n_biases)))
        std = np.concatenate([*(np.full(nv, x) for x in FIRST[:p]), own.bias_std])
        for i, joint in enumerate(model.joints):
            if joint.quaternion is not None:
                std[model.v_slice(i)][:3] = 1.0
        unseen = self.unseen()
        still = std.copy()
        still[nv : own.n_states] = AT_REST
        first = Filter(own, self.kinematic, density, gate=False)
        path = first.started(Belief(path, self._prior(still, path, unseen)), readings).path
        path = replace(path, rates=np.zeros_like(path.rates), biases=np.zeros_like(path.biases))
        if q is None:
            for i, joint in enumerate(model.joints):
                if joint.quaternion is not None:
                    std[model.v_slice(i)][:3] = FIRST_ATTITUDE
        return Belief(path, self._prior(std, path, unseen)), tuple(name for name, _ in unseen)

    def _prior(self, std: np.ndarray, path: Path, unseen) -> np.ndarray:
        """Covariance of the first instant, with directions that nothing tells held."""
        P = np.diag(std * std)
        nv = self.model.nv
        if not unseen:
            return P
        N = np.linalg.qr(np.array([direction(path.q)[0, :nv] for _, direction in unseen]).T)[0]
        keep = np.eye(nv) - N @ N.T
        P[:nv, :nv] = keep @ P[:nv, :nv] @ keep + CHOSEN**2 * N @ N.T
        return P

    # ---- motion --------------------------------------------------------------------------------------------------

    def first_guess(self, belief: Belief, readings: Readings, t: np.ndarray, density: np.ndarray) -> Path:
        """A path to begin with: of the filter, or of the encoders if all else is linear."""
        if self.motion.groups or self.model.couplings:
            return self.filtered(belief, readings, t, density)
        n, own = len(t), self.unknowns
        q = np.repeat(belief.path.q, n, axis=0)
        for m, places in encoders_of(self.problem):
            for k, (q_place, _) in enumerate(places):
                on = readings.active[m.name][:, k]
                if on.any():
                    q[:, q_place] = np.interp(t, t[on], readings.y[m.name][on, k])
        rates = np.zeros((n, self.motion.order - 1, self.model.nv))
        return Path(own, t, q, rates, np.zeros((n, own.n_biases)))

    def filtered(self, belief: Belief, readings: Readings, t: np.ndarray, density: np.ndarray) -> Path:
        """The path of the filter over all instants, smoothed once backwards."""
        filter_ = Filter(self.unknowns, self.kinematic, density)
        found, ahead = [], []
        for k in range(len(t)):
            if k:
                belief = filter_.predicted(belief, float(t[k]))
                ahead.append(belief)
            belief = filter_.updated(belief, readings.part(slice(k, k + 1)))
            found.append(belief)
        step, steps = np.zeros(self.unknowns.size), [np.zeros(self.unknowns.size)]
        for k in range(len(t) - 2, -1, -1):
            after, before = found[k + 1].path.moved(step[None]), ahead[k].path
            F, _ = filter_.step(found[k].path, np.diff(t[k : k + 2]))
            factor = scipy.linalg.cho_factor(ahead[k].P, check_finite=False)  # whatever the units
            step = found[k].P @ (F.T @ scipy.linalg.cho_solve(factor, away(before, after), check_finite=False))
            steps.append(step)
        q, rates, biases = (np.concatenate([getattr(x.path, name) for x in found]) for name in ("q", "rates", "biases"))
        return Path(self.unknowns, t, q, rates, biases).moved(np.array(steps[::-1]))

    def learnt(self, t: np.ndarray, readings: Readings, q: np.ndarray | None, density: np.ndarray, free: np.ndarray) -> np.ndarray:
        """κ (nv,) with those of `free` degrees of freedom learnt from the first instants of a log."""
        if not free.any() or len(t) < 3:
            return density
        n = min(len(t), LEARNT_OVER)
        some, part = t[:n], readings.part(slice(0, n))
        belief, _ = self.belief(float(t[0]), part.part(slice(0, 1)), q, density)
        path = self.first_guess(belief, part, some, density)
        start = Start(belief.path, belief.P)
        first = Smoother(self.unknowns, self.kinematic, density, start)
        found, part = first.run(path, part)
        path = found.path
        for _ in range(ITERATIONS):
            smoother = Smoother(self.unknowns, self.kinematic, density, start)
            solved = chain.solve(smoother.linear(path, part)[0], covariances=True)
            assert solved.P is not None and solved.C is not None
            path = path.moved(solved.step)
            new = densities.expected(path, solved.P, solved.C, density, free)
            change = np.abs(np.log(new[free] / density[free])).max()
            density = np.where(free, density * (new / density) ** 1.5, density)  # over-relaxed
            if change < 0.02:
                break
        return density

    @staticmethod
    def encoders(problem: Problem, t: np.ndarray, readings: Readings, order: int) -> tuple[np.ndarray, np.ndarray, float]:
        """(κ (nv,) by the encoders, (nv,) bool: of joints that have one, log-likelihood)."""
        model = problem.model
        density, total = np.full(model.nv, np.nan), 0.0
        for m, places in encoders_of(problem):
            noise = noise_of(m, model)
            std = np.sqrt(np.diagonal(noise.matrix(noise.declared)))
            kappa, likelihood = densities.of_encoders(t, readings.y[m.name], readings.active[m.name], std, order)
            density[[v for _, v in places]] = kappa
            total += float(likelihood.sum())
        known = np.isfinite(density)
        faster = FREQUENCY ** (order - 3)
        for i, joint in enumerate(model.joints):
            part = density[model.v_slice(i)]
            if joint.nv == 6:
                part[:3], part[3:] = TURNS * faster, SHIFTS * faster
            else:
                part[~np.isfinite(part)] = (TURNS if joint.angles else SHIFTS) * faster
        return density, known, total


def encoders_of(problem: Problem) -> list[tuple[Measurement, list[tuple[int, int]]]]:
    """(measurement, places of its joints in q and in q̇) of sensors of joint positions."""
    model = problem.model
    place = {model.q_slice(i).start: model.v_slice(i).start for i, x in enumerate(model.joints) if x.nv == 1}
    return [(m, [(k, place[k]) for k in m.of.places(model)])
            for m in problem.state_sensors if isinstance(m.of, JointPosition)]  # fmt: skip


def _rotations(p: np.ndarray) -> np.ndarray:
    """R (N, 3, 3), world from body, of quaternions [x, y, z, w] (N, 4)."""
    return np.stack([rotate(p, np.broadcast_to(e, (len(p), 3))) for e in np.eye(3)], axis=-1)


