"""Plots of a problem's matrix before and after permutation, with the fill-in of the elimination."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from sysdyn.errors import InvalidInput
from sysdyn.files.atomic import write_file
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY
from sysdyn.online.pattern import COLOURS, FILL, FURTHER, KNOWN, MULTIPLIER, Pattern, matrix_pattern
from sysdyn.online.solver import Solver

# Suffixes of pictures.
SUFFIXES = (".png", ".pdf", ".svg")
# Symbols of the kinds at brackets.
SYMBOLS = {x.name: x.symbol for x in QUANTITY.values()} | {"w": "$w$", KNOWN: KNOWN, MULTIPLIER: r"$\lambda$"}
SYMBOLS |= {FURTHER: FURTHER}
# Names of the kinds in the legend, in its order.
LEGEND = {
    **{x: f"{QUANTITY[x].noun} {QUANTITY[x].symbol}" for x in ("a", "fB", "f", "tau", "fx", "qdd")},
    "w": "constraint wrench $w$", KNOWN: "known quantity: $x = y$", MULTIPLIER: r"multiplier $\lambda$ of an equation",
    FURTHER: "further quantity", FILL: "fill-in of L + U",
}  # fmt: skip
# Side of a matrix in inches (chosen).
INCHES = 5.3
# Least size of an entry in points (chosen).
LEAST_MARK = 1.15
# Least length in points of a bracket with a label (chosen).
LEAST_LABEL = 7.5
# Bodies beyond which chains of bodies are labelled instead of each body (chosen).
MANY_BODIES = 12
# Groups of equal kinds in an order beyond which no bracket is drawn (chosen).
MANY_GROUPS = 8


def pattern(solver: Solver) -> Pattern:
    """The pattern that `plot_matrix` draws. Raises ProblemError if the solver eliminates no matrix."""
    return matrix_pattern(solver.problem, solver.options, solver.choice)


def plot_matrix(solver: Solver) -> Figure:
    """D in its natural layout, and P D Q in the order of the solver's pivots with the fill-in marked.

    Each entry has the colour of its unknown; the strips beside the matrix repeat it for columns (top) and name the
    equations (left), the brackets bodies or chains of bodies. No global state of matplotlib is touched.
    """
    p, model = pattern(solver), solver.model
    figure = Figure(figsize=(2 * INCHES + 3.6, INCHES + 2.6))
    FigureCanvasAgg(figure)
    width, height = figure.get_size_inches()
    lefts = (1.55, 1.55 + INCHES + 1.65)
    axes = [figure.add_axes((x / width, 0.72 / height, INCHES / width, INCHES / height)) for x in lefts]
    natural, permuted = axes
    _draw(natural, p.n, p.row, p.col, p.kind)
    _frame(natural, p.n, p.rows, p.cols)
    _draw(permuted, p.n, p.at_row, p.at_col, p.kind)
    if len(p.fill):
        _marks(permuted, p.n, p.fill[:, 0], p.fill[:, 1], FILL)
    _frame(permuted, p.n, p.permuted_rows, p.permuted_cols)
    _brackets(natural, p.n, p.rows, model, "left")
    _brackets(permuted, p.n, p.pivots, model, "left")
    above = max(_brackets(natural, p.n, p.cols, model, "top"), _brackets(permuted, p.n, p.pivots, model, "top"))
    natural.set_xlabel(f"$D$ as assembled: {p.n:,} × {p.n:,}, {p.nnz:,} entries", labelpad=6)
    shape = "no fill-in, triangular" if solver.triangular else f"fill-in {len(p.fill):,}"
    permuted.set_xlabel(f"$P\\,D\\,Q$ in the order of its pivots: {shape}", labelpad=6)
    flops, outputs = solver.program.flops, ", ".join(SYMBOLS.get(x, x.replace("$", r"\$")) for x in solver.outputs)
    counts = f"{flops.mul:,} mul + {flops.add:,} add + {flops.div:,} div = {flops.total:,} operations"
    title = f"{model.name}: {outputs} by ordering '{solver.ordering}'. {counts} from $q$, $\\dot{{q}}$ on"
    top = (0.72 + INCHES + (above + 14) / 72) / height
    figure.text(0.5, top, title, ha="center", va="bottom", fontsize=12)
    kinds = [k for k in LEGEND if k in set(p.kind) or (k == FILL and len(p.fill))]
    handles = [Patch(color=COLOURS[k], label=LEGEND[k]) for k in kinds]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False, fontsize=10,
                  bbox_to_anchor=(0.5, 0.0), handlelength=1.0, handleheight=1.0, columnspacing=1.6)  # fmt: skip
    return figure


def save_figure(figure: Figure, path: str | Path, dpi: int = 150) -> Path:
    """Write the picture in one step, in the format of its suffix (.png, .pdf, .svg); its title is in its metadata, too.

    Raises InvalidInput, FileError.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidInput(f"picture {str(path)!r} must end in {', '.join(SUFFIXES)}")
    buffer = io.BytesIO()
    undated = {".pdf": "CreationDate", ".svg": "Date"}.get(suffix)  # one figure, one file
    metadata: dict[str, str | None] = {undated: None} if undated else {}
    if figure.texts:
        metadata["Title"] = figure.texts[0].get_text()
    figure.savefig(buffer, format=suffix[1:], dpi=dpi, bbox_inches="tight", pad_inches=0.12, metadata=metadata)
    return write_file(path, _palette(buffer) if suffix == ".png" else buffer.getvalue())


def save_pictures(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write the picture for screens, path + ".png", and for print, path + ".pdf". Raises FileError."""
    for suffix in (".png", ".pdf"):
        save_figure(figure, path.with_name(path.name + suffix), dpi)


def _palette(png: io.BytesIO) -> bytes:
    """The picture with a table of 256 colours: a third of the size, and no difference to the eye."""
    out, words = io.BytesIO(), PngInfo()
    with Image.open(png) as image:
        dots = image.info.get("dpi", (150, 150))
        if "Title" in image.info:
            words.add_text("Title", image.info["Title"])
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        few.save(out, format="PNG", optimize=True, dpi=dots, pnginfo=words)
    return out.getvalue()


# ---- entries ------------------------------------------------------------------------------------------------------


def _draw(ax: Axes, n: int, rows: np.ndarray, cols: np.ndarray, kinds: np.ndarray) -> None:
    for kind in LEGEND:
        chosen = kinds == kind
        if chosen.any():
            _marks(ax, n, rows[chosen], cols[chosen], kind)


def _marks(ax: Axes, n: int, rows: np.ndarray, cols: np.ndarray, kind: str) -> None:
    """One square for each entry, as large as its cell or, in large matrices, just large enough to be seen."""
    half = max(0.45, 0.5 * LEAST_MARK / (72 * INCHES / n))
    corner = np.array([[-half, -half], [half, -half], [half, half], [-half, half]])
    squares = np.stack([cols, rows], axis=1)[:, None, :] + corner
    ax.add_collection(PolyCollection(squares, facecolors=COLOURS[kind], edgecolors="none", gid=kind))


def _frame(ax: Axes, n: int, rows: Sequence[tuple[str, int]], cols: Sequence[tuple[str, int]]) -> None:
    """Axes without ticks, and the strips of block kinds."""
    ax.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), xticks=[], yticks=[])
    for spine in ax.spines.values():
        spine.set(linewidth=0.6, color="#444444")
    point = n / (72 * INCHES)
    thick = 4.5 * point
    for start, stop, kind in _runs([kind for kind, _ in rows]):
        ax.add_patch(_strip(-0.5 - 2 * point - thick, start - 0.5, thick, stop - start, kind))
    for start, stop, kind in _runs([kind for kind, _ in cols]):
        ax.add_patch(_strip(start - 0.5, -0.5 - 2 * point - thick, stop - start, thick, kind))


def _strip(x: float, y: float, width: float, height: float, kind: str) -> Rectangle:
    return Rectangle((x, y), width, height, facecolor=COLOURS[kind], edgecolor="none", clip_on=False)


def _runs(values: Sequence) -> list[tuple]:
    """(start, stop, value) of each maximal run of equal values."""
    edges = [0] + [k for k in range(1, len(values)) if values[k] != values[k - 1]] + [len(values)]
    return [(a, b, values[a]) for a, b in zip(edges, edges[1:], strict=False) if b > a]


# ---- brackets -----------------------------------------------------------------------------------------------------


def _brackets(ax: Axes, n: int, blocks: Sequence[tuple[str, int]], model: Model, side: str) -> float:
    """Inner brackets of bodies or chains of bodies, outer ones of the quantities there; returns their width [pt]."""
    point = n / (72 * INCHES)
    runs = _bodies(blocks)
    if model.nb > MANY_BODIES:
        runs = _chains(runs, model)
    groups = _merged(runs)
    if len(groups) > MANY_GROUPS:
        return 10.0
    for start, _, _ in groups[1:]:
        (ax.axhline if side == "left" else ax.axvline)(start - 0.5, color="#C8C8C8", linewidth=0.5, zorder=0)
    least, offset, longest = LEAST_LABEL * point, 10.0, 0
    for start, stop, _, first, last in runs:
        if first >= 0 and stop - start >= least:
            name = _name(first, last, model)
            longest = max(longest, len(name))
            _bracket(ax, start, stop, offset * point, point, name, side, 7.0, turned=side == "top")
    offset += 8 + 4.0 * longest if longest else 0.0
    for start, stop, kinds in groups:
        if stop - start >= 2 * least:
            text = ", ".join(SYMBOLS[k] for k in kinds)
            _bracket(ax, start, stop, offset * point, point, text, side, 9.0, turned=side == "left")
    return offset + 14.0


def _bodies(blocks: Sequence[tuple[str, int]]) -> list[tuple[int, int, tuple[str, ...], int, int]]:
    """(start, stop, kinds in order, first body, last body) of each run of one body; known rows are of body −1."""
    runs = []
    for start, stop, body in _runs([body for _, body in blocks]):
        runs.append((start, stop, tuple(dict.fromkeys(kind for kind, _ in blocks[start:stop])), body, body))
    return runs


def _chains(runs: list[tuple], model: Model) -> list[tuple]:
    """Runs of neighbours on a branch of the tree, with the same kinds, taken together; upwards or downwards."""
    out: list[list] = []
    for start, stop, kinds, first, last in runs:
        if out and kinds == out[-1][2] and first >= 0 and out[-1][4] >= 0:
            before = out[-1][4]
            down = model.parent[first] == before and len(model.children[before]) == 1
            up = model.parent[before] == first and len(model.children[first]) == 1
            if down or up:
                out[-1][1], out[-1][4] = stop, last
                continue
        out.append([start, stop, kinds, first, last])
    return [tuple(run) for run in out]


def _merged(runs: list[tuple]) -> list[tuple[int, int, tuple[str, ...]]]:
    """Consecutive runs with the same kinds."""
    out: list[list] = []
    for start, stop, kinds, *_ in runs:
        if out and out[-1][2] == kinds:
            out[-1][1] = stop
        else:
            out.append([start, stop, kinds])
    return [tuple(run) for run in out]


def _name(first: int, last: int, model: Model) -> str:
    names = model.body_names
    return names[first] if first == last else f"{names[first]} … {names[last]}"


def _bracket(
    ax: Axes, start: int, stop: int, offset: float, point: float, text: str, side: str, size: float, turned: bool
) -> None:
    """A bracket along one side of the matrix, `offset` away from it, with its text outside; lengths in entries."""
    depth, gap = 2.5 * point, min(0.08 * (stop - start), 2.0 * point)
    a, b, out = start - 0.5 + gap, stop - 0.5 - gap, -0.5 - offset
    along, across = [a, a, b, b], [out + depth, out, out, out + depth]
    x, y = (along, across) if side == "top" else (across, along)
    ax.plot(x, y, color="#444444", linewidth=0.7, clip_on=False, solid_capstyle="butt")
    middle, beyond = (a + b) / 2, out - 0.8 * depth
    at = (middle, beyond) if side == "top" else (beyond, middle)
    ha, va = ("center", "bottom") if side == "top" else ("right", "center")
    ax.text(*at, text, fontsize=size, rotation=90 if turned else 0, clip_on=False, ha=ha, va=va)
