"""The chart of README.md: times and operations beside others, drawn from what the files in experiments/results hold.

    python experiments/benchmarks/chart.py

Writes docs/beside_others.png, which names the data that it shows, so that a test sees whether it is of today's files.
"""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# The source tree.
ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments" / "results"
PICTURE = ROOT / "docs" / "beside_others.png"
# Robots of the times: name in the files, and words.
ROBOTS = {"panda": "Panda", "talos": "Talos", "icub": "iCub"}
# Robots of the counts: name in the file, and words.
COUNTED = {"rx90": "RX90", "iiwa7": "iiwa 7", "iCub, fixed base": "iCub"}
PROBLEMS = ("inverse", "forward")
# Each has a colour; its words say how it was called.
COLOURS = {
    "sysdyn": "#0072B2", "code generated from Pinocchio": "#E69F00", "Pinocchio, C++": "#009E73",
    "BERDY, from Python": "#CC79A7", "fewest known before": "#8A8A8A",
}  # fmt: skip
# Key of the picture under which its data are named.
KEY = "Description"


def rows(name: str) -> list[dict[str, str]]:
    lines = (RESULTS / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def times() -> dict[str, dict[str, float]]:
    """{problem of a robot: {who: nanoseconds of one state}}, of the faster compiler of each peer."""
    found: dict[str, dict[str, float]] = {}
    for robot, words in ROBOTS.items():
        for problem in PROBLEMS:
            group: dict[str, float] = {}
            for file, where, peer in (
                ("kernels", "one state, in cache", "Pinocchio, C++"),
                ("generated", "one state", "code generated from Pinocchio"),
            ):
                own = [
                    r for r in rows(file) if r["what"] == f"{robot}, {problem}, {where}" and "Pinocchio" in r["peer"]
                ]
                if own:
                    group |= {"sysdyn": float(own[0]["ns"]), peer: min(float(r["peer_ns"]) for r in own)}
            found[f"{words}\n{problem}"] = group
    berdy = {r["what"]: 1e9 * float(r["seconds"]) for r in rows("berdy") if r["robot"] == "icub"}
    found["iCub\nestimate"] = {"sysdyn": berdy["bind, one state"], "BERDY, from Python": berdy["BERDY, one state"]}
    return found


def counts() -> dict[str, dict[str, float]]:
    """{problem of a robot: {who: operations}}."""
    table = {(r["robot"], r["problem"]): r for r in rows("counts")}
    return {
        f"{words}\n{problem}": {
            "sysdyn": float(table[robot, problem]["total"]),
            "fewest known before": float(table[robot, problem]["best_known"]),
        }
        for robot, words in COUNTED.items()
        for problem in PROBLEMS
    }


def digest() -> str:
    """The data that the picture shows, in a word."""
    return hashlib.sha256(json.dumps([times(), counts()], sort_keys=True).encode()).hexdigest()


def draw() -> None:
    figure = Figure(figsize=(10.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2, width_ratios=(9, 6))
    for axis, shown, what in zip(axes, (times(), counts()), ("nanoseconds", "operations"), strict=True):
        for place, group in enumerate(shown.values()):
            width = 0.9 / len(group)
            for k, (who, x) in enumerate(group.items()):
                at = place + (k - (len(group) - 1) / 2) * width
                axis.bar(at, x, 0.92 * width, color=COLOURS[who], label=who)
                axis.text(at, 1.06 * x, f"{x:,.0f}", ha="center", fontsize=6.5)
        axis.set(yscale="log", ylabel=f"{what} for one state", xticks=range(len(shown)), xticklabels=list(shown))
        axis.tick_params(axis="x", labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
        handles = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        axis.legend(handles.values(), handles.keys(), frameon=False, fontsize=8, loc="upper left")
        axis.set_ylim(top=4.0 * axis.get_ylim()[1])
    figure.savefig(PICTURE, dpi=150, metadata={KEY: digest()})


if __name__ == "__main__":
    draw()
    print(f"written to {PICTURE.relative_to(ROOT)}")
