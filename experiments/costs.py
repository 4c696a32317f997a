"""Our RNEA, CRBA, LTDL and ABA, counted by running them, beside the costs that the book gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from nori.counters import RBDA, Cost, total
from nori.curves import sizes as in_words
from nori.harness import main, read_csv, write_csv

import sysdyn as sd
from sysdyn.app import matrix_plot as drawing
from sysdyn.model.kinematics import joint_transforms
from sysdyn.model.se3 import X_motion, cross, cross_force, cross_motion, rotation, rotx, rotz, translation
from sysdyn.program.graph import Graph
from sysdyn.program.opcodes import Flops
from sysdyn.reference.generic import symmetric

TITLE = "The cost of the classical algorithms: counted here, and by the book"
CLAIM = (
    "the recursive Newton-Euler and articulated-body algorithms are the gold standard of computational cost. That of "
    "the latter it takes from RBDA p. 202 (section V-D); RBDA ch. 10 gives the others."
)

# Chains of these lengths are counted; the table shows some.
BODIES, QUICK_BODIES = range(2, 31), (2, 3, 6, 7, 10, 11)
SHOWN = (2, 3, 6, 7, 10, 20, 30)
# Forward dynamics by the mass matrix has this name in the files.
BY_H = "rnea + crba + ltdl"
# Pictures and tables call the algorithms so.
NAMES = {"rnea": "RNEA", "crba": "CRBA", "ltdl": "LTDL, factor and solve", BY_H: "RNEA + CRBA + LTDL", "aba": "ABA"}
# The parts of one more body are counted at body MIDDLE of a chain of OF bodies.
MIDDLE, OF = 5, 8


def compute(folder: Path, quick: bool = False) -> None:
    """costs.csv: operations by n; costs_parts.csv: what one more body of a chain takes, part by part."""
    write_csv(folder / "costs.csv", [row for n in (QUICK_BODIES if quick else BODIES) for row in costs_of(n)])
    write_csv(folder / "costs_parts.csv", list(parts_of()))


# ---- by n ------------------------------------------------------------------------------------------------------------


def costs_of(n: int) -> Iterator[dict]:
    """Chains of revolute joints with generic placements, from q, q̇ on; LTDL from H and C on."""
    model = sd.chain(n, seed=0)
    ours = {
        "rnea": sd.count_flops(sd.rnea, model),
        "crba": sd.count_flops(sd.crba, model),
        "ltdl": _ltdl(n),
        BY_H: sd.count_flops(sd.forward_dynamics_crba, model),
        "aba": sd.count_flops(sd.aba, model),
    }
    for name, flops in ours.items():
        book = total(*(RBDA[part](n) for part in name.split(" + ")))
        yield {
            "bodies": n, "algorithm": name, "mul": flops.mul, "add": flops.add, "div": flops.div,
            "book_mul": book.mul, "book_add": book.add,
        }  # fmt: skip


def _ltdl(n: int) -> Flops:
    """H = L^T D L and the solution of H q̈ = τ − C for a chain, from a symmetric H and a right-hand side on."""
    graph = Graph("structural")
    H = symmetric(n, np.dtype(object), lambda r, s: graph.input(f"H[{r},{s}]"))
    return graph.count(sd.ltdl(H, range(-1, n - 1)).solve(graph.inputs("b", n)))


# ---- one more body, in parts -----------------------------------------------------------------------------------------


def parts_of() -> Iterator[dict]:
    """Operations of each part, how often an algorithm does it for a body, and what it costs in two axial screws.

    The screws of a joint about z behind a placement by Denavit and Hartenberg: about and along z, then x.
    """
    graph = Graph("structural")
    model = sd.chain(OF, seed=0)
    q = graph.inputs("q", OF)
    X = joint_transforms(model, q)[MIDDLE]
    I, S = model.inertias[MIDDLE].astype(object), model.joints[MIDDLE].S.astype(object)[:, 0]
    v, w, f, qd, u = (graph.inputs(name, 6) for name in ("v", "w", "f", "qd", "u"))
    c = cross_motion(v, S * qd[0])
    W = graph.inputs("W", 6)
    W[2] = 1.0  # D⁻¹ U^T of a joint about z
    J = symmetric(6, np.dtype(object), lambda r, s: graph.input(f"J[{r},{s}]"))
    J[2, :] = J[:, 2] = 0.0  # I^a has nothing along the joint
    screws = screws_of(model, q[MIDDLE])

    def flops(result, given=()) -> Flops:
        after, before = graph.count([*np.ravel(result), *np.ravel(given)]), graph.count(np.ravel(given))
        return less_flops(after, before)

    angle = [np.sin(q[MIDDLE]), np.cos(q[MIDDLE])]
    nothing, same = Flops(), None
    reduced = symmetric(6, np.dtype(object), lambda r, s: J[r, s] - W[r] * u[s] if 2 not in (r, s) else 0.0)
    parts = (  # part, times in RNEA, times in ABA, operations, the same in axial screws
        ("X_i = X_J X_tree as a matrix", 1, 1, flops(X, angle), nothing),
        ("X_i or its transpose times a vector", 3, 3, flops(X.T @ f, X), flops(carried_wrench(screws, f), angle)),
        ("inertia times a vector", 2, 1, flops(I @ v), same),
        ("v ×* (I v)", 1, 1, flops(cross_force(v, w)), same),
        ("c = v × S q̇", 1, 1, flops(c), same),
        ("D⁻¹ U^T and D⁻¹ u", 0, 1, flops([x / u[2] for x in (*u[[0, 1, 3, 4, 5]], w[0])]), same),
        ("I^a = I^A − U D⁻¹ U^T", 0, 1, flops(reduced), same),
        ("I^a c", 0, 1, flops(J @ np.where(c == 0.0, 0.0, w)), same),
        ("U D⁻¹ u, and U^T a' / D", 0, 2, flops(W * u[0]), same),
        ("X_i^T I^a X_i", 0, 1, flops(_moved(X, J), X), flops(moved_by(screws, J), angle)),
    )  # fmt: skip
    for name, algorithm in (("rnea", sd.rnea), ("aba", sd.aba)):
        last, before = (sd.count_flops(algorithm, sd.chain(n, seed=0)) for n in (OF, OF - 1))
        rest = less_flops(last, before)
        for part, rnea, aba, each, axial in parts:
            times = rnea if name == "rnea" else aba
            if times:
                rest = less_flops(rest, each, times)
                yield _part(name, part, times, each, axial or each)
        yield _part(name, "sums", 1, rest, rest)


def less_flops(all_: Flops, part: Flops, times: int = 1) -> Flops:
    return Flops(all_.mul - times * part.mul, all_.add - times * part.add, all_.div - times * part.div)


def _part(algorithm: str, part: str, times: int, each: Flops, axial: Flops) -> dict:
    return {
        "algorithm": algorithm, "part": part, "times": times, "mul": each.mul, "add": each.add, "div": each.div,
        "axial_mul": axial.mul, "axial_add": axial.add,
    }  # fmt: skip


Screws = list[tuple[np.ndarray, np.ndarray]]


def screws_of(model: sd.Model, angle) -> Screws:
    """(E, r) of the joint with what X_tree displaces along its axis, and of the rest of X_tree, a screw along x."""
    E, r = rotation(model.X_tree[MIDDLE]), translation(model.X_tree[MIDDLE])
    about_x = rotx(float(np.arctan2(E[1, 2], E[1, 1]))).astype(object)
    return [
        (rotz(angle), np.array([0.0, 0.0, float(E[2] @ r)], dtype=object)),
        (about_x, np.array([float(r[0]), 0.0, 0.0], dtype=object)),
    ]


def carried_wrench(screws: Screws, f: np.ndarray) -> np.ndarray:
    """X^T f (6,), one screw after the other: [E^T n + r × E^T f; E^T f]."""
    for E, r in screws:
        force = E.T @ f[3:]
        f = np.concatenate([E.T @ f[:3] + cross(r, force), force])
    return f


def _moved(X: np.ndarray, J: np.ndarray) -> np.ndarray:
    """X^T J X (6, 6) for symmetric J."""
    Y = J @ X
    return symmetric(6, np.dtype(object), lambda r, s: X[:, r] @ Y[:, s])


def moved_by(screws: Screws, J: np.ndarray) -> np.ndarray:
    for E, r in screws:
        J = _moved(X_motion(E, r), J)
    return J


# ---- showing ---------------------------------------------------------------------------------------------------------


def plot(folder: Path) -> None:
    """costs: multiplications (with divisions) and additions by n, ours and the book's."""
    rows = read_csv(folder / "costs.csv")
    figure = Figure(figsize=(12.0, 7.2))
    FigureCanvasAgg(figure)
    space = {"left": 0.07, "right": 0.98, "top": 0.95, "bottom": 0.08, "wspace": 0.25, "hspace": 0.3}
    axes = figure.subplots(2, 3, gridspec_kw=space)
    for ax, (name, title) in zip(axes.flat, NAMES.items(), strict=False):
        chosen = [row for row in rows if row["algorithm"] == name]
        n = [row["bodies"] for row in chosen]
        every = max(1, len(n) // 7)
        for kind, colour, marker in (("mul", "#0072B2", "o"), ("add", "#D55E00", "^")):
            ours = [row[kind] + (row["div"] if kind == "mul" else 0) for row in chosen]
            what = "multiplications and divisions" if kind == "mul" else "additions"
            ax.plot(n, ours, "-", color=colour, marker=marker, markevery=every, markersize=5, label=f"{what}, counted")
            ax.plot(n, [row[f"book_{kind}"] for row in chosen], ":", color=colour, marker=marker, markevery=every,
                    markersize=5, markerfacecolor="white", label=f"{what}, the book")  # fmt: skip
        ax.set(title=title, xlabel="bodies of the chain", xlim=(min(n), max(n)))
        ax.set_ylim(bottom=0.0)
        ax.grid(True, linewidth=0.3, color="#C8C8C8")
    for ax in axes[:, 0]:
        ax.set_ylabel("operations for one state")
    axes[1, 2].axis("off")
    axes[1, 2].legend(*axes[0, 0].get_legend_handles_labels(), loc="center", frameon=False, fontsize=11, handlelength=4)
    drawing.save_pictures(figure, folder / "costs", dpi=110)


def findings(folder: Path) -> str:
    """The table by n, and the reasons for what differs."""
    rows, parts = read_csv(folder / "costs.csv"), read_csv(folder / "costs_parts.csv")
    by = {(row["algorithm"], row["bodies"]): row for row in rows}
    sizes = sorted({row["bodies"] for row in rows})
    shown = [n for n in SHOWN if n in sizes]
    head = ["multiplications and divisions + additions", *(f"n = {n}" for n in shown)]
    lines = [" | ".join(head), " | ".join(["---", *("---:" for _ in shown)])]
    for name, title in NAMES.items():
        here = [by[name, n] for n in shown]
        lines.append(" | ".join([f"{title}, counted", *(f"{x['mul'] + x['div']:,} + {x['add']:,}" for x in here)]))
        lines.append(" | ".join([f"{title}, the book", *(f"{x['book_mul']:,} + {x['book_add']:,}" for x in here)]))
    table = "\n".join(f"| {line} |" for line in lines)

    equal = all(_sum(row) == _sum(row, "book_") and row["add"] == row["book_add"] for row in rows
                if row["algorithm"] == "ltdl")  # fmt: skip
    by_h = [n for n in sizes if _sum(by[BY_H, n]) < _sum(by["aba", n])]
    by_h_book = [n for n in sizes if _sum(by[BY_H, n], "book_") < _sum(by["aba", n], "book_")]
    few, slope = by["aba", sizes[0]], _slope(rows, "aba", _sum)
    ends = "less" if _sum(few) < sizes[0] * slope else "not less"
    power = "the same" if _leading(rows, "crba", 2) == _leading(rows, "crba", 2, "book_") else "another"

    def formulas(name: str, degree: int) -> str:
        return f"{_formula(rows, name, degree)}; the book {_formula(rows, name, degree, 'book_')}"

    reasons = [
        f"**LTDL** {'equals the formula at every n' if equal else 'differs from the formula'}; a division counts as a "
        "multiplication there.",
        f"**CRBA**, multiplications and divisions, then additions: {formulas('crba', 2)}. The quadratic part, a force "
        f"carried down the chain, is {power}: the book counts two axial screws a joint, ours multiplies by X^T. In the "
        "linear part ours forms X^T I^c X of 6 × 6 matrices, as the book's table writes it.",
        f"**RNEA**: {formulas('rnea', 1)}. {_reason(parts, 'rnea')}",
        f"**ABA**: {formulas('aba', 1)}. {_reason(parts, 'aba')}",
        "**The ends**: what is constant is computed beforehand here. The last body, whose articulated inertia is, and "
        f"the first, which turns about a fixed axis along gravity, cost {ends} than two in the middle: at "
        f"n = {few['bodies']} our ABA takes {_sum(few)} operations, the book's {_sum(few, 'book_')}.",
        f"**RNEA + CRBA + LTDL** takes fewer operations than the ABA {in_words(by_h, sizes)} as counted here, "
        f"{in_words(by_h_book, sizes)} by the book.",
    ]
    return (
        "counted by running each algorithm on expressions, for chains of revolute joints with generic placements "
        "(parameters of Denavit and Hartenberg, body frames at the joints with z along the axis), from q and q̇ on, "
        "gravity included, one sine and cosine a joint apart.\n\n"
        + table + "\n\n" + "\n".join(f"* {reason}" for reason in reasons) + "\n\n" + _parts_table(parts)
    )  # fmt: skip


def _sum(row: dict, of: str = "") -> int:
    return row[f"{of}mul"] + row[f"{of}add"] + (0 if of else row["div"])


def _slope(rows: list[dict], name: str, amount: Callable[[dict], int]) -> float:
    """Operations that one more body takes, at the end of the curve."""
    *_, before, last = (amount(row) for row in rows if row["algorithm"] == name and row["bodies"] >= 3)
    return last - before


def _leading(rows: list[dict], name: str, degree: int, of: str = "") -> list[int]:
    """Coefficients of the highest power in n: multiplications with divisions, additions."""
    chosen = [row for row in rows if row["algorithm"] == name and row["bodies"] >= 3]
    n = [row["bodies"] for row in chosen]
    counts = [[_sum(row, of) - row[f"{of}add"] for row in chosen], [row[f"{of}add"] for row in chosen]]
    return [round(float(np.polyfit(n, count, degree)[0])) for count in counts]


def _formula(rows: list[dict], name: str, degree: int, of: str = "") -> str:
    """The polynomials through the counts from n = 3 on: multiplications with divisions, then additions."""
    chosen = [row for row in rows if row["algorithm"] == name and row["bodies"] >= 3]
    n = np.array([row["bodies"] for row in chosen])
    terms = []
    for counts in ([_sum(row, of) - row[f"{of}add"] for row in chosen], [row[f"{of}add"] for row in chosen]):
        coefficients = np.round(np.polyfit(n, counts, degree)).astype(int)
        if not np.array_equal(np.polyval(coefficients, n), counts):
            return f"{counts[0]} … {counts[-1]}, no polynomial"
        powers = ("", "n", "n²")[degree::-1]
        shown = [f"{'−' if c < 0 else '+'} {abs(c)}{power}" for c, power in zip(coefficients, powers, strict=True) if c]
        terms.append(" ".join(shown).removeprefix("+ "))
    return f"{terms[0]} and {terms[1]}"


def _reason(parts: list[dict], name: str) -> str:
    """What axial screws would save a body, and what is left to the book's formula."""
    chosen = [row for row in parts if row["algorithm"] == name]
    mul, add = (sum(row["times"] * row[kind] for row in chosen) for kind in ("mul", "add"))
    div = sum(row["times"] * row["div"] for row in chosen)
    axial_mul, axial_add = (sum(row["times"] * row[f"axial_{kind}"] for row in chosen) for kind in ("mul", "add"))
    book = Cost(*(b - a for a, b in zip(RBDA[name](2), RBDA[name](3), strict=True)))
    divisions = f", {div} divisions" if div else ""
    return (
        f"One more body takes {mul} multiplications{divisions} and {add} additions here, {book.mul} and {book.add} "
        "there. With frames by Denavit and Hartenberg X_i is two axial screws; ours makes a matrix of it and "
        f"multiplies by that. The screws would save {mul - axial_mul} multiplications and {add - axial_add} additions. "
        f"The remaining {axial_mul + div - book.mul} and {axial_add - book.add} lie in the formulation: ours stays "
        "with spatial vectors in body coordinates, as the book's tables write the algorithm; how its figures are "
        "composed is not itemised in the sources at hand."
    )


def _parts_table(parts: list[dict]) -> str:
    """What one more body takes, part by part."""
    lines = [
        "one more body | times in RNEA | times in ABA | counted | in axial screws",
        "--- | ---: | ---: | ---: | ---:",
    ]
    for part in dict.fromkeys(row["part"] for row in parts):
        here = {row["algorithm"]: row for row in parts if row["part"] == part}
        row = here.get("aba") or here["rnea"]
        times = [str(here[name]["times"]) if name in here else "" for name in ("rnea", "aba")]
        if part == "sums":
            shown = " and ".join(f"{x['add']} a" for x in here.values())
            lines.append(f"sums of vectors, in each | {times[0]} | {times[1]} | {shown} | {shown}")
            continue
        counted = f"{row['mul']} m {row['add']} a" + (f" {row['div']} d" if row["div"] else "")
        changed = (row["mul"], row["add"]) != (row["axial_mul"], row["axial_add"])
        axial = f"{row['axial_mul']} m {row['axial_add']} a" if changed else counted
        lines.append(f"{part} | {times[0]} | {times[1]} | {counted} | {axial}")
    return "\n".join(f"| {line} |" for line in lines)


if __name__ == "__main__":
    main(__file__)
