"""Jain's segment patterns: which blocks of ℰ_φ, φ and ℳ the tree leaves, drawn, and seen at a random state.

A tree falls into serial-chain segments. On a segment's own nodes ℰ_φ is one diagonal, φ a triangle and ℳ full; blocks
that connect two segments are there where one hangs on the other (ℰ_φ: a single one) or carries it (φ and ℳ: full).
"""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from nori.harness import main, read_csv, write_csv

import sysdyn as sd
from sysdyn.app.matrix_plot import save_pictures
from sysdyn.app.robots import load_robot
from sysdyn.errors import BackendUnavailable
from sysdyn.reference.operators import SKOModel, segment_pattern, segment_tree, slices

TITLE = "Segments: the sparsity of the spatial operators of a tree"
CLAIM = (
    "(A. Jain, part II, section 7) the serial-chain segments of a tree say which blocks of ℰ_φ, φ and ℳ are not zero: "
    "dense or triangular ones of the segments themselves, connecting ones of segments that are related, none of others."
)
# The patterns are those of these robots.
ROBOTS = {
    "the paper's tree": lambda: sd.auto_tree(12, 1.5, 1.5, 0.9),
    "iCub": lambda: load_robot("icub"),
}
# The operators have these symbols.
SYMBOLS = {"kernel": r"$\mathcal{E}_\phi$", "phi": r"$\phi$", "mass": r"$\mathcal{M} = H \phi M \phi^* H^*$"}
# Blocks within a segment, and between segments, have these colours.
COLOURS = {"own": "#0072B2", "connecting": "#E69F00"}
LEGEND = {"own": "block of a segment's own nodes", "connecting": "block that connects two segments"}


def compute(folder, quick):
    write_csv(folder / "segments.csv", [row for name in ROBOTS for row in patterns(name)])


def patterns(name):
    """Each block that the tree of branches leaves, its segments, and whether it is not zero at a random state."""
    try:
        model = ROBOTS[name]()
    except BackendUnavailable:  # icub-models is an extra
        return
    tree = segment_tree(model.parent)
    segment = {k: number for number, nodes in enumerate(sorted(tree)) for k in nodes}
    order = [k for nodes in sorted(tree) for k in nodes]
    q, qd, _ = model.random_state(seed=0)
    sko = SKOModel.from_model(model, q, qd)
    dense = {
        "kernel": (sko.phi.kernel.to_dense(), sko.phi.sizes), "phi": (sko.phi.to_dense(), sko.phi.sizes),
        "mass": (sko.mass_matrix(), sko.H.rows),
    }  # fmt: skip
    for operator, blocks in segment_pattern(tree)._asdict().items():
        matrix, sizes = dense[operator]
        seen = np.array([[np.any(matrix[rows, cols]) for cols in slices(sizes)] for rows in slices(sizes)])
        for row, i in enumerate(order):
            for column, j in enumerate(order):
                if blocks[i, j] or seen[i, j]:
                    yield {
                        "robot": name, "operator": operator, "row": row, "column": column, "segment": segment[i],
                        "of_column": segment[j], "predicted": int(blocks[i, j]), "seen": int(seen[i, j]),
                    }  # fmt: skip


def plot(folder):
    rows = read_csv(folder / "segments.csv")
    robots = list(dict.fromkeys(r["robot"] for r in rows))
    figure = Figure(figsize=(12.0, 4.2 * len(robots) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    for line, robot in zip(figure.subplots(len(robots), 3, squeeze=False), robots, strict=True):
        for ax, (operator, symbol) in zip(line, SYMBOLS.items(), strict=True):
            part = [r for r in rows if (r["robot"], r["operator"]) == (robot, operator)]
            ends = spans([r for r in rows if (r["robot"], r["operator"]) == (robot, "phi")])
            n = ends[-1][1]
            for kind, colour in COLOURS.items():
                chosen = [r for r in part if r["predicted"] and (r["segment"] == r["of_column"]) == (kind == "own")]
                for r in chosen:
                    ax.add_patch(Rectangle((r["column"] + 0.05, r["row"] + 0.05), 0.9, 0.9, color=colour, linewidth=0))
            for _, end in ends[:-1]:
                ax.axhline(end, color="#888888", linewidth=0.5)
                ax.axvline(end, color="#888888", linewidth=0.5)
            middle, names = [(a + b) / 2 for a, b in ends], [str(k + 1) for k in range(len(ends))]
            ax.set_xticks(middle, names)
            ax.set_yticks(middle, names)
            ax.tick_params(length=0, labelsize=8)
            ax.set(xlim=(-0.2, n + 0.2), ylim=(n + 0.2, -0.2), aspect="equal", title=f"{robot}: {symbol}",
                   xlabel="segment of the column", ylabel="segment of the row")  # fmt: skip
    handles = [Patch(color=COLOURS[kind], label=LEGEND[kind]) for kind in COLOURS]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    save_pictures(figure, folder / "segments")


def spans(rows):
    """(first, behind the last) node of each segment, in the order that is drawn."""
    found = {}
    for r in rows:
        found.setdefault(r["segment"], set()).add(r["row"])
    return [(min(nodes), max(nodes) + 1) for _, nodes in sorted(found.items())]


def findings(folder):
    rows = read_csv(folder / "segments.csv")
    lines = ["| robot | nodes | segments | blocks of | left by the tree | of all | not zero at a random state |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    wrong = []
    for robot, operator in dict.fromkeys((r["robot"], r["operator"]) for r in rows):
        part = [r for r in rows if (r["robot"], r["operator"]) == (robot, operator)]
        ends = spans([r for r in rows if (r["robot"], r["operator"]) == (robot, "phi")])
        n, left, seen = ends[-1][1], sum(r["predicted"] for r in part), sum(r["seen"] for r in part)
        wrong += [r for r in part if r["seen"] > r["predicted"]]
        lines.append(f"| {robot} | {n} | {len(ends)} | {operator} | {left} | {left / n**2:.0%} | {seen} |")
    verdict = "no block is seen that the tree does not leave" if not wrong else f"{len(wrong)} blocks more are seen"
    return f"{verdict}.\n\n" + "\n".join(lines)


if __name__ == "__main__":
    main(__file__)
