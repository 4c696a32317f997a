"""The benchmarks as a page of the documentation: tables of what the files in experiments/results hold.

    python experiments/benchmarks/page.py

Writes docs/benchmarks.md. Nothing is measured here: each table is a CSV, with the machine and the commit that its
header names, and the command that measures it again.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

# The source tree.
ROOT = Path(__file__).resolve().parents[2]
# The page is this one.
PAGE = ROOT / "docs" / "benchmarks.md"

Row = dict[str, str]


def number(x: str) -> str:
    """A count with separators, another number as it is written."""
    return f"{int(x):,}" if x.isdigit() else x


def ratio(x: str) -> str:
    return f"{float(x):.3g} ×" if x else ""


def time(x: str) -> str:
    """Seconds in the unit that leaves one to three digits before the point."""
    if not x:
        return ""
    seconds = float(x)
    size, unit = next((s, u) for s, u in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (0.0, "ns")) if seconds >= s)
    return f"{seconds / (size or 1e-9):.3g} {unit}"


def nanoseconds(x: str) -> str:
    return time(f"{1e-9 * float(x)}") if x else ""


def spread(row: Row) -> str:
    return f"{float(row['least']):.3g} … {float(row['greatest']):.3g}"


@dataclass(frozen=True)
class Table:
    """A CSV as a table. columns {header: (column, how it is written)}, or a function of the row.

    script: in experiments/; by default the benchmark of the same name.
    """

    csv: str
    title: str
    text: str
    columns: dict[str, tuple[str, Callable[[str], str]] | Callable[[Row], str]]
    only: Callable[[Row], bool] = field(default=lambda row: True)
    script: str = ""

    def written(self) -> str:
        lines = (ROOT / "experiments" / "results" / f"{self.csv}.csv").read_text(encoding="utf-8").splitlines()
        said = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
        rows = [row for row in csv.DictReader(line for line in lines if not line.startswith("#")) if self.only(row)]
        script = self.script or f"benchmarks/{self.csv}.py"
        parts = [
            f"## {self.title}\n\n{self.text} `python experiments/{script}`; {said['cpu']}, commit "
            f"{said['sysdyn'].split('(')[-1].rstrip(')')}.\n",
            "| " + " | ".join(self.columns) + " |",
            "|" + "|".join("---" if k == 0 else "---:" for k in range(len(self.columns))) + "|",
        ]
        for row in rows:
            cells = (take(row) if callable(take) else take[1](row[take[0]]) for take in self.columns.values())
            parts.append("| " + " | ".join(cells) + " |")
        return "\n".join(parts) + "\n"


# Of times in turns with a peer: how many times faster ours is.
COMPARED = {
    "": ("what", str), "peer": ("peer", str), "operations": ("operations", number), "ours": ("ns", nanoseconds),
    "peer's": ("peer_ns", nanoseconds), "ratio": ("ratio", ratio), "least … greatest": spread,
}  # fmt: skip
LONG = {header: column for header, column in COMPARED.items() if header != "operations"}

TABLES = (
    Table(
        "counts", "Exact operation counts",
        "End to end from q and q̇, without external wrenches, by four times the default search (`effort=4`); beside the "
        "fewest known: published or made by hand for the robot, RBDA's formula for its number of joints, or our "
        "textbook algorithms counted on it.",
        {
            "robot": ("robot", str), "problem": ("problem", str), "found by": ("method", str), "mul": ("mul", number),
            "add": ("add", number), "div": ("div", number), "total": ("total", number),
            "best known": ("best_known", number), "published": ("published", number), "RBDA": ("rbda", number),
            "textbook code": ("textbook", number),
        },
    ),
    Table(
        "kernels", "Kernels beside Pinocchio's C++ and MuJoCo's C",
        "One state at a time and batches, both called in C, one thread, medians of turns that alternate. Panda is its "
        "arm, with the fingers fixed. Angles of URDF files within 1e-11 rad of multiples "
        "of π/2 are exactly those (`snap=True`); as they stand (`snap=False`) they cost more operations.", COMPARED,
    ),
    Table(
        "peers", "One table of peers",
        "One state, all called in C; ×: how many times longer a peer takes; errors from answers with 50 digits.",
        {
            "robot": ("robot", str), "function": ("function", str), "ours": ("ns", nanoseconds),
            "operations": ("operations", number), "sines": ("sines", number), "error": ("error", str),
            "Pinocchio": ("Pinocchio ×", ratio), "its error": ("Pinocchio error", str),
            "CasADi-generated": ("CasADi-generated ×", ratio), "error of it": ("CasADi-generated error", str),
            "MuJoCo": ("MuJoCo ×", ratio), "error of MuJoCo": ("MuJoCo error", str),
        },
    ),
    Table(
        "generated", "Kernels beside code generated from Pinocchio",
        "Pinocchio's algorithms on CasADi's symbols, as C.", COMPARED,
    ),
    Table(
        "python_calls", "Calls from Python",
        "Plain calls with their checks, bound calls, and batches, beside Pinocchio's Python bindings.", COMPARED,
    ),
    Table(
        "batches", "Batches of many states, and of arrays of other kinds",
        "Plain calls on one thread; ratio: the time of a state over that in a bound batch of 128.",
        {
            "": ("what", str), "states": ("states", number), "a state": ("ns", nanoseconds), "ratio": ("ratio", ratio),
            "least … greatest": spread,
        },
    ),
    Table(
        "single", "Single precision",
        "States a second of `real=\"float32\"` over double precision, on one thread.",
        {
            "": ("what", str), "states": ("states", number), "a state": ("ns", nanoseconds),
            "in double": ("peer_ns", nanoseconds), "ratio": ("ratio", ratio), "least … greatest": spread,
        },
        lambda row: bool(row["ratio"]),
    ),
    Table(
        "single", "Errors in single precision",
        "The greatest difference to double precision at random states with random torques, over the state's greatest "
        "entry.",
        {
            "": ("what", str), "states": ("states", number), "error": ("error", str), "reach": ("target", str),
            "solved again in double": ("again", number),
        },
        lambda row: bool(row["error"]),
    ),
    Table("long_chain", "A chain of 1,000 bodies", "Forward dynamics of one state.", LONG),
    Table(
        "contacts", "Forward dynamics in contact",
        "q̈ and wrenches, without other external wrenches. Ratios are to a bound call (or a batch of 128) of the "
        "recursion: of the same robot without contacts, of the elimination as general rows, and of Pinocchio's C++, "
        "one state at a time: the fastest of its constraintDynamics and its solver of Popov and Vereshchagin by the "
        "faster compiler, once results agree within 1e-10; in brackets beside its constrained ABA and its ABA of "
        "loops, too, in the one step that takes them to 1e-5.",
        {
            "robot": ("robot", str), "contacts": ("contacts", str), "free": ("operations_free", number),
            "operations": ("operations", number), "eliminated": ("operations_eliminated", number),
            "one state": ("ns", nanoseconds), "over the free one": ("over_free", ratio),
            "elimination over it": ("eliminated_over_it", ratio), "Pinocchio's": ("peer", str),
            "Pinocchio over it": ("pinocchio_over_it", ratio), "(regularised)": ("regularised_over_it", ratio),
            "a state of a batch": ("ns_batch", nanoseconds),
            "elimination over it, batch": ("eliminated_over_it_batch", ratio),
            "Pinocchio over it, batch": ("pinocchio_over_it_batch", ratio),
            "(regularised, batch)": ("regularised_over_it_batch", ratio),
        },
    ),
    Table(
        "switching", "Feet that switch by state",
        "A batch in which each state stands on all feet, on one (quadrupeds: on one diagonal pair), or on the other, "
        "in no order, by calls of a `SwitchingSolver` on one core. Ratios are to as many states of each mode by "
        "themselves, and to the same batch on all feet.",
        {
            "robot": ("robot", str), "contacts": ("contacts", str), "states": ("states", number),
            "a state, mixed": ("ns_mixed", nanoseconds), "by themselves": ("ns_modes", nanoseconds),
            "mixed over these": ("over_modes", ratio), "mixed over all feet": ("over_all_feet", ratio),
        },
        script="benchmarks/contacts.py --switching",
    ),
    Table(
        "friction", "Contact points with friction",
        "Quadrupeds that land on four feet, and an iCub on the corners of both soles, of which Ω has rank 12 of 24: "
        "the same Delassus matrices and free velocities for all, at steps of 1 ms. Residuals of Signorini's conditions "
        "and Coulomb's law in m/s, by one measure; unsolved are states above 1e-6 m/s. Times are of calls from Python "
        "for one state (Pinocchio's begin with a factored Ω), and of a state in a batch on one core.",
        {
            "robot": ("robot", str), "points": ("points", number), "solver": ("solver", str),
            "steps": ("steps", number), "median residual": ("median", str), "90 %": ("p90", str),
            "worst": ("worst", str), "unsolved": ("unsolved", str), "one state [µs]": ("us_one", str),
            "a state of a batch [µs]": ("us_batch", str),
        },
    ),
    Table(
        "simulate", "Simulated steps",
        "One core. Ratio: a step over the bare kernel of the same problem in the same loop (over four of them for "
        "Runge-Kutta), or over a step of the peer that stands in place of torques.",
        {
            "robot": ("robot", str), "robots": ("robots", number), "integrator": ("integrator", str),
            "torques": ("torques", str), "operations": ("operations", number), "a step": ("seconds", time),
            "ratio": ("ratio", ratio), "least … greatest": spread,
        },
    ),
    Table(
        "products", "Products of derivatives with vectors",
        "By q, q̇ and τ, or measured values: operations and time of bound calls as multiples of the solution's.",
        {
            "problem": ("problem", str), "what": ("what", str), "way": ("way", str),
            "operations": ("operations", number), "over the solution's": ("of_solution", ratio),
            "one state": ("ns", nanoseconds), "ratio": ("ratio", ratio),
            "a state of a batch": ("ns_batch", nanoseconds), "its ratio": ("ratio_batch", ratio),
        },
    ),
    Table(
        "inside_jax", "Inside JAX",
        "Forward dynamics by `solver.to_jax()`: a step of a compiled loop, a state of 4,096 under `vmap`, and "
        "gradients of Σ q̈² by q, q̇ and τ; beside our calls without JAX, JAX's loop without dynamics, frax, and MuJoCo's"
        " MJX.",
        {
            "robot": ("robot", str), "what": ("what", str), "by": ("by", str),
            "a state": ("microseconds", lambda x: time(f"{1e-6 * float(x)}")), "over ours in JAX": ("of_sysdyn", ratio),
        },
    ),
    Table(
        "derivatives", "Derivatives of forward dynamics of the iCub",
        "By q, q̇ and τ, all of them; ratio: the time of the first line of a group over this.",
        {
            "base": ("base", str), "of": ("of", str), "what": ("what", str), "operations": ("operations", number),
            "a state": ("median", time), "ratio": ("ratio", ratio),
        },
    ),
    Table(
        "icub", "The iCub from file to solution", "With external wrenches; ratio: pin in a loop over this.",
        {
            "base": ("base", str), "problem": ("problem", str), "what": ("what", str), "time": ("seconds", time),
            "ratio": ("ratio", ratio),
        },
    ),
    Table(
        "estimators", "Estimates",
        "Errors of means and standard deviations beside dense least squares, relative; times a state.",
        {
            "what": ("what", str), "problems": ("problems", number), "mean": ("mean", str), "std": ("std", str),
            "time": ("seconds", time), "operations": ("operations", number),
        },
    ),
    Table(
        "berdy", "Estimates beside BERDY", "The same variables, covariances and readings; means only.",
        {
            "robot": ("robot", str), "what": ("what", str), "time": ("seconds", time), "ratio": ("ratio", ratio),
            "difference of means": ("difference", str),
        },
    ),
    Table(
        "load_cells", "The load cells of the paper's Figure 2",
        "All unknowns; compile: CPU time.",
        {
            "bodies": ("bodies", number), "order": ("ordering", str), "operations": ("operations", number),
            "a body": ("a_body", number),
            "compile": ("seconds", lambda x: f"{x} s"), "states": ("states", number),
            "silent wrong": ("silent", str), "row-wise residual": ("residual", str),
        },
    ),
    Table(
        "accuracy", "Distance from the exact answer",
        "Forward dynamics of the iCub by the default recursion and by each order, of the torques that the RNEA gives "
        "for known accelerations, at 20,000 random states; relative errors.",
        {
            "order": ("ordering", str), "median": ("median", str), "worst": ("worst", str),
            "beyond 1e-9": ("above 1e-09", str),
        },
    ),
    Table(
        "robot_files", "Robot files of others",
        "Files that Pinocchio or MuJoCo load, and how many of these agree with their rnea, crba and frames. Inverse, "
        "forward and hybrid dynamics of each, as compiled, give back a motion of rnea, with closed loops too; but for "
        "those that have a singular mass matrix.",
        {
            "package": ("package", str), "base": ("base", str), "files": ("files", number),
            "they load": ("peer loads", number), "loaded here": ("loaded of these", number), "agree": ("agree", number),
            "worst difference": ("worst rnea", str), "compiled inverse": ("worst inverse", str),
            "forward": ("worst forward", str), "hybrid": ("worst hybrid", str), "singular": ("no forward", number),
        },
    ),
    Table(
        "scale", "Large robots", "Forward dynamics; time a body of one state.",
        {
            "robot": ("model", str), "operations a body": ("operations_a_body", number),
            "compile": ("compile_s", lambda x: f"{x} s"), "a body": ("ns_a_body", nanoseconds),
            "to the ABA": ("error_to_aba", str),
        },
    ),
    Table(
        "streaming", "Logs", "Estimates of long logs: memory does not grow with them.",
        {
            "kind": ("kind", str), "states": ("states", number),
            "peak memory": ("peak_memory_MiB", lambda x: f"{x} MiB"), "a state": ("us_a_state", lambda x: f"{x} µs"),
        },
    ),
    Table(
        "trajectories", "Trajectories from raw logs",
        "Errors from the truth of logs of one second: an arm from its encoders, a trotting quadruped in MuJoCo, and 20 "
        "draws of the declared process. Mean squares are of errors in standard deviations: 1 is right, 3 for a vector.",
        {
            "": ("what", str), "level": ("level", str), "rms": lambda row: f"{row['rms']} {row['unit']}",
            "aim": ("wanted", str), "mean square": ("nees", str), "% within 2 σ": ("within 2 sigma", str),
        },
        script="trajectories/figures.py",
    ),
    Table(
        "trajectory_rows", "A row of a trajectory",
        "Processor time of a row by one thread: of a filter by a call from Python and exported as C, of another row of "
        "the kinematic smoother, and of an iteration of the coupled level, linearised and solved. Ratio: over a row of "
        "as many unknowns of a block-tridiagonal Cholesky factorisation by SciPy's potrf, trsm and syrk. GTSAM: its "
        "time for the same linear chain over ours. Memory: of a process that smooths so many rows.",
        {
            "": ("what", str), "unknowns": ("unknowns", number), "a row": ("seconds", time), "ratio": ("ratio", ratio),
            "GTSAM": ("gtsam", ratio), "peak memory": ("peak_memory_MiB", lambda x: f"{x} MiB" if x else ""),
        },
        script="benchmarks/trajectories.py",
    ),
)  # fmt: skip

HEAD = """# Benchmarks

Made by `python experiments/benchmarks/page.py` out of `experiments/results`. Ratios are medians of turns that alternate
in one process; times mean little on another machine. What was aimed at, and what was not reached, is in
[experiments/README.md](../experiments/README.md).

![Times and operations of sysdyn beside Pinocchio, code generated from Pinocchio, and BERDY](beside_others.png)

*One state; each peer by its faster compiler, BERDY and what is beside it called from Python. Made by*
`python experiments/benchmarks/chart.py`.
"""


def page() -> str:
    return "\n".join([HEAD, *(table.written() for table in TABLES)])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written to {PAGE.relative_to(ROOT)}")
