"""Phase unwrapping of encoders: many drives report angles in (−π, π] or [0, 2π), whose jumps are no motion.

A jump of about a turn between neighbouring readings of a rotating joint is a wrap: the readings after it are shifted by
whole turns. Their number makes the step agree with the speed before and after it, so that fast wheels are unwrapped and
readings of encoders that count turns stay unchanged. If the number is ambiguous, or leads beyond the limits of a joint,
a LogWarning names joint, rows and jump.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sysdyn.data.sensor_log import Chunk
from sysdyn.errors import LogWarning, warn
from sysdyn.estimation.process_noise import LONGEST_STEP
from sysdyn.measurements.measurement import Measurement
from sysdyn.measurements.problem import Problem
from sysdyn.measurements.state_sensors import JointPosition
from sysdyn.model import Model

TURN = 2.0 * np.pi
# Greatest distance of a step, after unwrapping, from the step that the speed predicts: of a possible wrap, and of a
# certain one, the motion during a gap included.
NEAR, CERTAIN = 0.25 * TURN, 0.125 * TURN
# Steps on either side whose median is the speed there. If STEADY of them agree, they are motion, even if longer than
# half a turn: the encoder counts turns. (At rest at the seam, readings jump back and forth instead.)
SPEED_STEPS, STEADY = 9, 7
# Readings of the previous chunk that are kept, enough for medians.
KEPT = 100
# Distance of a step from the predicted one, in units of its median, above which a reading may be an outlier, and the
# least median [rad].
OUTLYING, LEAST_NOISE = 20.0, 1e-3
# Steps in time up to this multiple of the median are no gaps.
NEIGHBOURS = 2.0
# Reasons of reports: the number of turns is ambiguous, or leads beyond the limits of the joint.
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
        """True if both angles are within the limits of the joint after a shift by some whole number of turns."""
        lower, upper = self.limits
        return bool(np.ceil((lower - lowest) / TURN) <= np.floor((upper - highest) / TURN))


def angles_of(model: Model, sensors: Sequence[Measurement]) -> list[Angle]:
    """Components of `JointPosition` sensors that measure the angle of a joint with one degree of freedom."""
    joints = {
        model.q_slice(i).start: (model.joint_names[i], model.v_slice(i).start)
        for i, joint in enumerate(model.joints) if joint.nv == 1 and joint.S[:3].any()
    }  # fmt: skip
    return [
        Angle(m.name, k, joints[q][0], q, joints[q][1], (model.lower[joints[q][1]], model.upper[joints[q][1]]))
        for m in sensors if isinstance(m, JointPosition)
        for k, q in enumerate(m.places(model)) if q in joints
    ]  # fmt: skip


class AngleJump(NamedTuple):
    """A jump of readings to report: rows before and after it, size [rad], and the reason."""

    angle: Angle
    before: int
    after: int
    size: float
    why: str


@dataclass
class _Encoder:
    """State of the unwrapping of one angle.

    t, q, rows (n,): its last readings; turns: their shift; wraps: True once a certain wrap was detected; lowest,
    highest: range of the unwrapped angles at its wraps.
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
    ) -> tuple[np.ndarray, list[AngleJump]]:
        """(unwrapped readings (n,) of the next chunk, jumps to report).

        reference: times and values of the same angle by another encoder; the first readings are shifted to its turn.
        """
        last, q = len(self.t), y + TURN * self.turns
        t, q, rows = (np.concatenate(x) for x in ((self.t, t), (self.q, q), (self.rows, rows)))
        turns, reported = self._whole_turns(t, q, last)
        jumps = [AngleJump(self.angle, int(rows[i]), int(rows[j]), float(q[j] - q[i]), why) for i, j, why in reported]
        q += TURN * turns
        if not last and reference is not None:
            first = float(np.rint(np.median(np.interp(t, *reference) - q) / TURN))
            self.turns, q = self.turns + first, q + TURN * first
        self.t, self.q, self.rows = (x[-KEPT:] for x in (t, q, rows))
        return q[last:], jumps

    def _whole_turns(self, t: np.ndarray, q: np.ndarray, last: int) -> tuple[np.ndarray, list[tuple[int, int, str]]]:
        """(turns (n,) to add, steps to report: (reading before, reading after, reason)).

        The first `last` readings are unwrapped already. Updates `turns`, `wraps`, `lowest` and `highest`.
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
            predicted = dt * np.where(
                before * after > 0.0, np.copysign(np.minimum(abs(before), abs(after)), after), 0.0
            )
            turns = np.rint((predicted - d) / TURN)
            off = np.abs(d + TURN * turns - predicted)
            moved = dt * np.maximum(abs(before), abs(after))
            gap = dt > NEIGHBOURS * usual
            noise = max(float(np.median(off)), LEAST_NOISE)
            near = off <= np.minimum(NEAR, OUTLYING * noise + np.where(gap, moved, 0.0))
            # remove outliers: readings that the speed predicts neither from the reading before nor to the one after
            inlier = np.append(near, False) | np.append(False, near)
            if inlier.all() or inlier.sum() < 2:
                break
            at = at[inlier]
        turns[: max(int(np.searchsorted(at, last)) - 1, 0)] = 0.0
        lower, upper = self.angle.limits
        if upper - lower < TURN:  # a joint with less than a turn of travel does not wrap during a gap
            inside = (q[at] >= lower) & (q[at] <= upper)
            turns[gap & inside[1:] & inside[:-1]] = 0.0
        certain = off + np.where(gap, moved, 0.0) <= CERTAIN
        self.wraps |= bool((certain & (turns != 0.0)).any())
        ambiguous = (turns != 0.0) & (~certain | (moved > NEAR)) & (self.wraps | (abs(d) > 0.5 * TURN))
        report = dict.fromkeys(np.flatnonzero(ambiguous).tolist(), AMBIGUOUS)
        turns[~(certain | ((off <= NEAR) & self.wraps))] = 0.0
        whole = np.zeros(n)
        whole[at[1:]] = turns
        whole = np.cumsum(whole)
        self.turns += float(whole[-1])
        if self.wraps:
            inlier_before = at[np.maximum(np.searchsorted(at, np.arange(n), side="right") - 1, 0)]
            whole[last:] += np.rint((q[inlier_before] - q) / TURN)[last:]
        for k in np.flatnonzero(turns).tolist():
            ends = (q + TURN * whole)[at[k : k + 2]]
            self.lowest, self.highest = min(self.lowest, ends.min()), max(self.highest, ends.max())
            if not self.angle.allows(float(self.lowest), float(self.highest)):
                report[k] = BEYOND
        return whole, [(int(at[k]), int(at[k + 1]), why) for k, why in sorted(report.items())]


def _speeds(d: np.ndarray, dt: np.ndarray, usual: float) -> tuple[np.ndarray, np.ndarray]:
    """Median speeds (n,) before and after each of n steps d (n,) of durations dt (n,); usual: median of dt."""
    count, k = min(SPEED_STEPS, len(d)), np.arange(len(d))
    plain, unwrapped = (sliding_window_view(x / dt, count) for x in (d, d - TURN * np.rint(d / TURN)))
    medians = np.median(plain, axis=1)
    alike = np.sum(np.abs(plain - medians[:, None]) * usual <= NEAR, axis=1) >= STEADY
    medians = np.where(alike, medians, np.median(unwrapped, axis=1))
    return medians[np.maximum(k - count, 0)], medians[np.minimum(k + 1, len(medians) - 1)]


class Unwrapping:
    """Unwrapping of the encoders of a log, chunk by chunk. warned: reports that were already given; see `Log`."""

    def __init__(self, problem: Problem, warned: set[str] | None = None):
        self._couplings = {link.q: link for link in problem.model.couplings if link.leader_q >= 0}
        angles = angles_of(problem.model, problem.state_sensors)
        # the turn of a follower is that of its leader
        self._encoders = [_Encoder(x) for x in sorted(angles, key=lambda x: x.q in self._couplings)]
        self._warned = set[str]() if warned is None else warned

    def __call__(
        self, chunk: Chunk, y: Mapping[str, np.ndarray], active: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """{measurement: (n, m)} readings of the chunk that change. Warns of jumps that cannot be unwrapped."""
        known, found, jumps = dict[int, tuple[np.ndarray, np.ndarray]](), dict[str, np.ndarray](), list[AngleJump]()
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

    def _report(self, where: str, jumps: Sequence[AngleJump]) -> None:
        for joint, why in dict.fromkeys((x.angle.joint, x.why) for x in jumps):
            first, *others = [x for x in jumps if (x.angle.joint, x.why) == (joint, why)]
            if f"{why}:{joint}" not in self._warned:
                self._warned.add(f"{why}:{joint}")
                more = f" (and at {len(others)} more steps)" if others else ""
                report(first.angle, f"{where} rows {first.before} and {first.after}{more}", first.size, why)


def report(angle: Angle, where: str, size: float, why: str) -> None:
    """Warn of a jump [rad] that cannot be unwrapped."""
    reasons = {
        AMBIGUOUS: "the number of turns between them is ambiguous: provide more samples, or readings that count turns",
        BEYOND: "a wrap there leads beyond the limits of the joint, {:.4g} to {:.4g} rad: correct limits or readings",
    }  # fmt: skip
    warn(
        f"{where}: readings of joint {angle.joint!r} by {angle.name!r} jump by {size:.4g} rad, and "
        + reasons[why].format(*angle.limits),
        LogWarning,
    )
