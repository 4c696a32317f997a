"""Forward dynamics in contact: operations and time as recursions, eliminated as general rows, and by Pinocchio's C++.

    python experiments/benchmarks/contacts.py [--only iCub G1 …] [--switching]

q̈ and the wrenches of the contacts of floating robots, without other external wrenches. "eliminated": the same problem
with formulation="elimination". Pinocchio is built here by clang and gcc; of its constraintDynamics and its solver of
Popov and Vereshchagin the fastest counts, of the faster build, at 128 states at which the feet are at rest and the loop
is closed, once results agree within 1e-10. "regularised": of its constrained ABA and its ABA of loops, too, in the one
step that takes them to 1e-5. All are called in C, by turns on one thread, as by kernels.py; of ours the median of
places in memory counts. Writes experiments/results/contacts.csv.

--switching: feet that switch by state, in no order, instead: a batch over as many states of its modes, each a batch of
its own, called on one core. Writes experiments/results/switching.csv.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import pinocchio as pin
from common import timed, write_csv
from kernels import FEW, check
from rivals import (
    FLOATING,
    G1,
    Call,
    CannotBuild,
    Constrained,
    Hold,
    Robot,
    compilers,
    in_turns,
    solver_calls,
)

import sysdyn as sd

WALKING_G1 = replace(G1, base="floating")
# Robots with their feet, and the kinds of contact of these.
FEET = {
    "iCub": (FLOATING["icub_floating"], ("l_sole", "r_sole"), ("fixed",), ("fixed", "point"), ("fixed", "fixed")),
    "Talos": (FLOATING["talos"], ("left_sole_link", "right_sole_link"), ("fixed",), ("fixed", "fixed")),
    "G1": (WALKING_G1, ("left_ankle_roll_link", "right_ankle_roll_link"), ("fixed",), ("fixed", "fixed")),
    "HyQ": (FLOATING["hyq"], ("lf_foot", "rf_foot", "lh_foot", "rh_foot"), ("point",) * 2, ("point",) * 4),
    "ANYmal": (FLOATING["anymal"], ("LF_FOOT", "RF_FOOT", "LH_FOOT", "RH_FOOT"), ("point",) * 2, ("point",) * 4),
}
# Robots with two frames that hold one another in all components, and that in words.
HANDS = {"iCub": (FLOATING["icub_floating"], ("l_hand", "r_hand"))}
LOOP = "hand to hand"
# Times of Pinocchio over ours that are wanted: one state, and a state of a batch.
WANTED = dict.fromkeys(("fixed + fixed", "point + point + point + point", LOOP), (6, 25))
# Feet that are on, by their number: standing on all, and one foot or one diagonal pair after the other.
MODES = {2: ((1, 1), (1, 0), (0, 1)), 4: ((1, 1, 1, 1), (1, 0, 0, 1), (0, 1, 1, 0))}
# States of batches whose feet switch, and rounds, as many as make differences of calls visible.
SWITCHED, SWITCHING_ROUNDS = (1000, 16000), 51
# Kernels are loaded so many times, of which the one of median time counts.
PLACES = {"recursion": 5, "eliminated": 1, "free": 1}
# Seed of the posture in which a loop is closed.
CLOSED_SEED = 1
# Greatest difference of results, relative to the greatest entry of a state; and of the peer's with regularisation.
SAME, NEAR = 1e-10, 1e-5


@dataclass(frozen=True)
class Case:
    """Constraints of a robot, in words, too, and for Pinocchio. closed (nq): the q at which a loop is closed."""

    name: str
    words: str
    robot: Robot
    constraints: Sequence[sd.Measurement]
    holds: Sequence[Hold]
    closed: np.ndarray | None = None

    @property
    def problem(self) -> sd.Problem:
        return sd.forward_dynamics(self.robot.model) + list(self.constraints)

    def states(self, n: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """q, q̇ that the constraints allow, and τ of n states, for sysdyn and for Pinocchio.

        Of a foot that moves Pinocchio holds the spatial acceleration, not that of the point.
        """
        model = self.robot.model
        q, qd, tau = (np.ascontiguousarray(x) for x in model.random_state(seed=0, batch=n))
        if self.closed is not None:
            q = np.tile(self.closed, (n, 1))
        J = sd.operational_space(model, list(self.constraints), "jacobian")(q)
        qd = np.ascontiguousarray(qd - np.einsum("nij,nj->ni", np.linalg.pinv(J) @ J, qd))
        return [q, qd, tau], self.robot.theirs(q, qd, tau)


def standing(name: str, robot: Robot, frames: Sequence[str], kinds: Sequence[str]) -> Case:
    feet = list(zip(frames, kinds, strict=False))
    contacts = [sd.Contact(frame, kind, name=frame) for frame, kind in feet]
    return Case(name, " + ".join(kinds), robot, contacts, [Hold(frame, kind == "fixed") for frame, kind in feet])


def closed(name: str, robot: Robot, frames: Sequence[str]) -> Case:
    """Two frames that hold one another as they are in one posture."""
    (a, b), q = frames, robot.model.random_state(seed=CLOSED_SEED)[0]
    A, B = (sd.frame_pose(robot.model, q, frame) for frame in frames)
    T = np.linalg.inv(B) @ A
    loop = sd.LoopJoint(a, (b, T), "fixed", name=LOOP)
    return Case(name, LOOP, robot, [loop], [Hold(a, True, b, pin.SE3(T))], q)


def run(case: Case) -> dict:
    options = {"outputs": ["qdd", "w"], "external_wrenches": False}
    free = sd.compile(sd.forward_dynamics(case.robot.model), outputs=["qdd"], external_wrenches=False)
    made = {"recursion": sd.compile(case.problem, **options),
            "eliminated": sd.compile(case.problem, **options, formulation="elimination"), "free": free}  # fmt: skip
    (q, qd, tau), theirs = case.states(FEW)
    arrays = {"q": q, "qd": qd, "tau": tau}
    own = {
        (what, single): named(what, solver_calls(solver, arrays, single, PLACES[what]))
        for what, solver in made.items() for single in (True, False)
    }  # fmt: skip
    builds = [Constrained(case.robot.peer, case.holds, compiler) for compiler in compilers()]
    exact, near = (
        [build.call(x, *theirs, np.empty_like(tau)) for build in builds for x in variants(build)]
        for variants in (Constrained.variants, Constrained.regularised)
    )
    peers = [*exact, *near]
    check(case.robot, [own["recursion", True], own["recursion", False]], [exact], SAME)
    check(case.robot, [own["recursion", True], own["eliminated", True]], [near], NEAR)
    turns = in_turns([c for group in (*own.values(), peers) for c in group])
    best, any_way = (min((c.name for c in group), key=turns.median) for group in (exact, peers))
    middle = {key: turns.middle(group) for key, group in own.items()}
    flops = {what: solver.flops.end_to_end.total for what, solver in made.items()}
    row = {
        "robot": case.name, "contacts": case.words, "ordering": made["recursion"].ordering,
        "operations_free": flops["free"], "operations": flops["recursion"],
        "operations_eliminated": flops["eliminated"], "peer": best, "peer_ns": f"{1e9 * turns.median(best):.4g}",
        "regularised": any_way if any_way != best else "", "regularised_ns": f"{1e9 * turns.median(any_way):.4g}",
    }  # fmt: skip
    for single, batch, target in zip((True, False), ("", "_batch"), WANTED.get(case.words, ("", "")), strict=True):
        call = middle["recursion", single]
        over = turns.ratio(call, best)
        row |= {
            f"ns{batch}": f"{1e9 * turns.median(call):.4g}",
            f"over_free{batch}": f"{turns.ratio(middle['free', single], call).median:.3g}",
            f"eliminated_over_it{batch}": f"{turns.ratio(call, middle['eliminated', single]).median:.3g}",
            f"pinocchio_over_it{batch}": f"{over.median:.3g}", f"least{batch}": f"{over.least:.3g}",
            f"greatest{batch}": f"{over.greatest:.3g}", f"target{batch}": target,
            f"regularised_over_it{batch}": f"{turns.ratio(call, any_way).median:.3g}",
        }  # fmt: skip
    print("  ".join(str(x) for x in row.values()), flush=True)
    return row


def named(what: str, calls: Sequence[Call]) -> list[Call]:
    """The calls, with names of their own among those of other solvers."""
    return [replace(call, name=f"{what}, {call.name}") for call in calls]


def switched(name: str, robot: Robot, frames: Sequence[str], kinds: Sequence[str], states: int) -> dict:
    """A batch of mixed modes beside its modes, by calls on one core."""
    model, rng = robot.model, np.random.default_rng(0)
    feet = [sd.Switchable(sd.Contact(frame, kind, name=frame)) for frame, kind in zip(frames, kinds, strict=True)]
    solver = sd.compile(sd.forward_dynamics(model) + feet, outputs=["qdd", "w"], external_wrenches=False)
    modes = MODES[len(feet)]
    q, qd, _ = model.random_state(seed=0, batch=states)
    tau, pick = rng.standard_normal((states, model.nv)), rng.integers(0, len(modes), states)
    active = {frame: np.array(modes, dtype=bool)[pick, k] for k, frame in enumerate(frames)}
    alone = [solver.mode(dict(zip(frames, mode, strict=True))) for mode in modes]
    calls = [lambda own=own: own(q, qd, tau=tau, threads=1).w for own in alone]
    calls.append(lambda: solver(q, qd, tau=tau, active=active, threads=1).w)
    times = np.array([[timed(call, 1).median / states for call in calls] for _ in range(SWITCHING_ROUNDS)])
    by_themselves = times[:, :-1] @ np.bincount(pick, minlength=len(modes)) / states
    row = {
        "robot": name, "contacts": " + ".join(kinds), "states": states, "modes": len(modes),
        "ns_mixed": round(1e9 * median(times[:, -1])), "ns_modes": round(1e9 * median(by_themselves)),
        "over_modes": round(median(times[:, -1] / by_themselves), 2),
        "over_all_feet": round(median(times[:, -1] / times[:, 0]), 2),
    }  # fmt: skip
    print("  ".join(str(x) for x in row.values()), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=FEET, default=list(FEET))
    parser.add_argument("--switching", action="store_true")
    options = parser.parse_args()
    rows = []
    for name in options.only:
        robot, frames, *several = FEET[name]
        try:
            if options.switching:
                rows += [switched(name, robot, frames, several[-1], states) for states in SWITCHED]
                continue
            rows += [run(standing(name, robot, frames, kinds)) for kinds in several]
            if name in HANDS:
                rows.append(run(closed(name, *HANDS[name])))
        except CannotBuild as why:
            print(f"{name} is left out: {why}")
    if options.only == list(FEET):
        write_csv("switching" if options.switching else "contacts", rows)


if __name__ == "__main__":
    main()
