"""Phase unwrapping of encoders: many drives report angles in (−π, π] or [0, 2π), whose jumps are no motion.

A jump of about a turn between neighbouring readings of a rotating joint is a wrap: the readings after it are shifted by
whole turns. Turns are counted from where the speed on both sides leads, so that wheels that turn fast are unwrapped and
readings of encoders that count turns stay. Where the count is ambiguous, or leads beyond the limits of a joint, a
LogWarning names joint, rows and jump.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sysdyn.data.sensor_log import Chunk
from sysdyn.errors import LogWarning, warn
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.state_sensors import JointPosition
from sysdyn.model import Model
from sysdyn.problem import Problem
from sysdyn.trajectories.densities import LONGEST_STEP

TURN = 2.0 * np.pi
# Distance from whole turns up to which a jump counts as whole turns, and up to which it does without doubt, the motion
# in the step included: a quarter and an eighth of a turn.
NEAR, CERTAIN = 0.25 * TURN, 0.125 * TURN
# Steps on either side whose median is the speed there, and number of them that are alike if an encoder counts turns, be
# they longer than half a turn; at rest at the seam readings jump back and forth.
SPEED_STEPS, STEADY = 9, 7
# Readings of the chunk before that are kept, enough for medians.
KEPT = 100
# Distance of a step from where the speed leads, in units of its median, beyond which readings may be outliers, and the
# least of that median [rad].
OUTLYING, LEAST_NOISE = 20.0, 1e-3
# Steps in time up to this multiple of the median have no readings missing.
NEIGHBOURS = 2.0
# Reports: turns cannot be counted, or lead beyond the limits of a joint.
AMBIGUOUS, BEYOND = "ambiguous", "beyond"


class Angle(NamedTuple):
    """A component of a sensor of joint positions that measures an angle; q, v: places of its joint in q and q̇."""

    name: str
    component: int
    joint: str
    q: int
    v: int
    limits: tuple[float, float]

    def allows(self, lowest: float, highest: float) -> bool:
        """True if the joint can go from one of these angles to the other, whatever its turn at one of them."""
        lower, upper = self.limits
        return bool(np.ceil((lower - lowest) / TURN) <= np.floor((upper - highest) / TURN))


def angles_of(model: Model, sensors: Sequence[Measurement]) -> list[Angle]:
    """The measured angles: rotating joints of one degree of freedom."""
    joints = {
        model.q_slice(i).start: (model.joint_names[i], model.v_slice(i).start)
        for i, joint in enumerate(model.joints) if joint.nv == 1 and joint.S[:3].any()
    }  # fmt: skip
    return [
        Angle(m.name, k, joints[q][0], q, joints[q][1], (model.lower[joints[q][1]], model.upper[joints[q][1]]))
        for m in sensors if isinstance(m.of, JointPosition)
        for k, q in enumerate(m.of.places(model)) if q in joints
    ]  # fmt: skip


class Jump(NamedTuple):
    """A jump of readings to report: rows before and after it, size [rad], and what is wrong with it."""

    angle: Angle
    before: int
    after: int
    size: float
    why: str


@dataclass
class _Encoder:
    """Unwrapping of an angle.

    t, q, rows (n,): its last readings; turns: shift of these; wraps: True if it has jumped by turns; lowest, highest:
    of the angles at which it has.
    """

    angle: Angle
    t: np.ndarray = field(default_factory=lambda: np.zeros(0))
    q: np.ndarray = field(default_factory=lambda: np.zeros(0))
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int))
    turns: float = 0.0
    wraps: bool = False
    lowest: float = np.inf
    highest: float = -np.inf

    def unwrapped(
        self, t: np.ndarray, y: np.ndarray, rows: np.ndarray, reference: tuple[np.ndarray, np.ndarray] | None
    ) -> tuple[np.ndarray, list[Jump]]:
        """(readings (n,) that follow the last ones, jumps to report).

        reference: times and values of the same angle by another encoder, to whose turn the first readings are shifted.
        """
        last, q = len(self.t), y + TURN * self.turns
        t, q, rows = (np.concatenate(x) for x in ((self.t, t), (self.q, q), (self.rows, rows)))
        turns, reported = self._whole_turns(t, q, last)
        jumps = [Jump(self.angle, int(rows[i]), int(rows[j]), float(q[j] - q[i]), why) for i, j, why in reported]
        q += TURN * turns
        if not last and reference is not None:
            first = float(np.rint(np.median(np.interp(t, *reference) - q) / TURN))
            self.turns, q = self.turns + first, q + TURN * first
        self.t, self.q, self.rows = (x[-KEPT:] for x in (t, q, rows))
        return q[last:], jumps

    def _whole_turns(self, t: np.ndarray, q: np.ndarray, last: int) -> tuple[np.ndarray, list[tuple[int, int, str]]]:
        """(turns (n,) to add, steps to report: readings before and after, reason); the first `last` have theirs.

        Sets `turns` and `wraps`.
        """
        n = len(q)
        step, dt = np.abs(np.diff(q)).max(initial=0.0), np.diff(t)
        usual = float(np.median(dt)) if n > 1 else 0.0
        longest = NEIGHBOURS if self.wraps else LONGEST_STEP
        if step <= (NEAR if self.wraps else 0.5 * TURN) and dt.max(initial=0.0) <= longest * usual:
            return np.zeros(n), []
        at = np.arange(n)
        while True:
            d, dt = np.diff(q[at]), np.diff(t[at])
            before, after = _speeds(d, dt, usual)
            ahead = dt * np.where(before * after > 0.0, np.copysign(np.minimum(abs(before), abs(after)), after), 0.0)
            turns = np.rint((ahead - d) / TURN)
            off = np.abs(d + TURN * turns - ahead)
            moved = dt * np.maximum(abs(before), abs(after))
            alone = dt > NEIGHBOURS * usual
            noise = max(float(np.median(off)), LEAST_NOISE)
            near = off <= np.minimum(NEAR, OUTLYING * noise + np.where(alone, moved, 0.0))
            # an outlier, which no step leads to or from, says nothing of the readings behind it
            joined = np.append(near, False) | np.append(False, near)
            if joined.all() or joined.sum() < 2:
                break
            at = at[joined]
        turns[: max(int(np.searchsorted(at, last)) - 1, 0)] = 0.0
        lower, upper = self.angle.limits
        if upper - lower < TURN:  # the joint does not go round while nothing is measured
            inside = (q[at] >= lower) & (q[at] <= upper)
            turns[alone & inside[1:] & inside[:-1]] = 0.0
        certain = off + np.where(alone, moved, 0.0) <= CERTAIN
        self.wraps |= bool((certain & (turns != 0.0)).any())
        doubtful = (turns != 0.0) & (~certain | (moved > NEAR)) & (self.wraps | (abs(d) > 0.5 * TURN))
        report = dict.fromkeys(np.flatnonzero(doubtful).tolist(), AMBIGUOUS)
        turns[~(certain | ((off <= NEAR) & self.wraps))] = 0.0
        whole = np.zeros(n)
        whole[at[1:]] = turns
        whole = np.cumsum(whole)
        self.turns += float(whole[-1])
        if self.wraps:
            beside = at[np.maximum(np.searchsorted(at, np.arange(n), side="right") - 1, 0)]
            whole[last:] += np.rint((q[beside] - q) / TURN)[last:]
        for k in np.flatnonzero(turns).tolist():
            ends = (q + TURN * whole)[at[k : k + 2]]
            self.lowest, self.highest = min(self.lowest, ends.min()), max(self.highest, ends.max())
            if not self.angle.allows(float(self.lowest), float(self.highest)):
                report[k] = BEYOND
        return whole, [(int(at[k]), int(at[k + 1]), why) for k, why in sorted(report.items())]


def _speeds(d: np.ndarray, dt: np.ndarray, usual: float) -> tuple[np.ndarray, np.ndarray]:
    """Medians (n,) of the speeds of the steps d in dt before and after each of n; usual: median of dt."""
    count, k = min(SPEED_STEPS, len(d)), np.arange(len(d))
    plain, unwrapped = (sliding_window_view(x / dt, count) for x in (d, d - TURN * np.rint(d / TURN)))
    medians = np.median(plain, axis=1)
    alike = np.sum(np.abs(plain - medians[:, None]) * usual <= NEAR, axis=1) >= STEADY
    medians = np.where(alike, medians, np.median(unwrapped, axis=1))
    return medians[np.maximum(k - count, 0)], medians[np.minimum(k + 1, len(medians) - 1)]


class Unwrapping:
    """Unwrapping of the encoders of a log, chunk by chunk. told: reports that were given; see `Log`."""

    def __init__(self, problem: Problem, told: set[str] | None = None):
        self._couplings = {link.q: link for link in problem.model.couplings if link.leader_q >= 0}
        angles = angles_of(problem.model, problem.state_sensors)
        # the turn of a follower is that of its leader
        self._encoders = [_Encoder(x) for x in sorted(angles, key=lambda x: x.q in self._couplings)]
        self._told = set[str]() if told is None else told

    def __call__(
        self, chunk: Chunk, y: Mapping[str, np.ndarray], active: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """{measurement: (n, m)} readings of the chunk that change. Warns of jumps that cannot be unwrapped."""
        known, found, jumps = dict[int, tuple[np.ndarray, np.ndarray]](), dict[str, np.ndarray](), list[Jump]()
        for encoder in self._encoders:
            name, k, place = encoder.angle.name, encoder.angle.component, encoder.angle.q
            on = active[name][:, k]
            if not on.any():
                continue
            link = self._couplings.get(place)
            if place not in known and link is not None and link.leader_q in known:
                t, leader = known[link.leader_q]
                known[place] = t, link.coupling.derivatives(leader)[0]
            q, more = encoder.unwrapped(chunk.t[on], y[name][on, k], chunk.rows[on], known.get(place))
            jumps += more
            known[place] = chunk.t[on], q
            if encoder.turns or (q != y[name][on, k]).any():
                found.setdefault(name, np.array(y[name]))[on, k] = q
        self._report(chunk.where, jumps)
        return found

    def _report(self, where: str, jumps: Sequence[Jump]) -> None:
        for joint, why in dict.fromkeys((x.angle.joint, x.why) for x in jumps):
            first, *others = [x for x in jumps if (x.angle.joint, x.why) == (joint, why)]
            if f"{why}:{joint}" not in self._told:
                self._told.add(f"{why}:{joint}")
                more = f" (and at {len(others)} more steps)" if others else ""
                report(first.angle, f"{where} rows {first.before} and {first.after}{more}", first.size, why)


def report(angle: Angle, where: str, size: float, why: str) -> None:
    """Warn of a jump [rad] that cannot be unwrapped."""
    reasons = {
        AMBIGUOUS: "the number of turns between them is ambiguous: hand in more samples, or readings that count turns",
        BEYOND: "a wrap there leads beyond the limits of the joint, {:.4g} to {:.4g} rad: correct one of them",
    }  # fmt: skip
    warn(
        f"{where}: readings of joint {angle.joint!r} by {angle.name!r} jump by {size:.4g} rad, and "
        + reasons[why].format(*angle.limits),
        LogWarning,
    )
