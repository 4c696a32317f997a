"""Savings of each pass: exact operations with all passes, with none, with one alone, and with all but one.

    python experiments/benchmarks/passes.py [--effort 1] [--only NAME]

Writes experiments/results/passes.csv. Recursions: inverse and forward dynamics without external wrenches, τ or q̈ alone.
Eliminations: problems on the iCub whose f and a are not asked for, with the order that counts least. A pass that
does not apply, or that saves nothing beside the others, leaves the count as it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

from common import write_csv
from counts import general, icub, robot

import sysdyn as sd
from sysdyn.passes import ALL, ELIMINATION


class Case(NamedTuple):
    """What is compiled: a problem of a model, its outputs, and the passes that there are for it."""

    name: str
    model: Callable[[], sd.Model]
    problem: Callable[[sd.Model], sd.Problem]
    outputs: tuple[str, ...]
    passes: tuple[str, ...]


def hybrid(model: sd.Model) -> sd.Problem:
    return sd.hybrid_dynamics(model, torque=list(model.joint_names[::2]))


def held(model: sd.Model) -> sd.Problem:
    return sd.forward_dynamics(model) + sd.Contact("r_hand", "point", name="grip")


def sensed(model: sd.Model) -> sd.Problem:
    return sd.inverse_dynamics(model) - sd.ExternalWrench("l_hand") + sd.ForceTorqueSensor("l_wrist_yaw", name="ft")


# Each case is a robot, a problem and the passes that are left out by turns.
CASES = (
    *(
        Case(f"{name}, {problem.__name__}", make, problem, (output,), ALL)
        for name, make in (
            ("gen6R", robot("gen6R")), ("puma560, general values", general("puma560")), ("iiwa7", robot("iiwa7")),
            ("iCub", icub),
        )
        for problem, output in ((sd.inverse_dynamics, "tau"), (sd.forward_dynamics, "qdd"))
    ),
    Case("iCub, hybrid_dynamics", icub, hybrid, ("tau", "qdd"), ELIMINATION),
    Case("iCub, forward dynamics, a hand held", icub, held, ("qdd",), ELIMINATION),
    Case("iCub, a wrench by a force/torque sensor", icub, sensed, ("tau", "fx"), ELIMINATION),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--effort", type=float, default=1.0, help="of the search, as in sd.compile")
    parser.add_argument("--only", default="", help="cases whose name contains this; nothing is written")
    options = parser.parse_args()
    rows = []
    for case in CASES:
        if options.only not in case.name:
            continue
        problem = case.problem(case.model())

        def count(passes, case=case, problem=problem) -> int:
            recursive = case.passes == ALL
            solver = sd.compile(
                problem, outputs=case.outputs, formulation="recursive" if recursive else "elimination", passes=passes,
                external_wrenches=not recursive, effort=options.effort,
            )  # fmt: skip
            return solver.flops.end_to_end.total

        every, none = count(case.passes), count(())
        print(f"{case.name}: {every} with all passes, {none} with none")
        row = {"case": case.name, "all": every, "none": none}
        for name in ALL:
            alone = without = ""
            if name in case.passes:
                alone, without = count([name]), count([x for x in case.passes if x != name])
                print(f"  {name:26} alone {alone:7}   all others {without:7}", flush=True)
            row |= {f"{name} alone": alone, f"all but {name}": without}
        rows.append(row)
    if not options.only:
        write_csv("passes", rows)


if __name__ == "__main__":
    main()
