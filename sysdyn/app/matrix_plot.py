"""Plots of the matrix of a problem before and after permutation, with fill-in."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from sysdyn.errors import InvalidInput
from sysdyn.files.atomic import write_file
from sysdyn.model import Model
from sysdyn.model.quantities import QUANTITY
from sysdyn.online.display import (
    COLOURS,
    FILL,
    FURTHER,
    KNOWN,
    MULTIPLIER,
    BlockLabels,
    Pattern,
    matrix_pattern,
    raster,
)
from sysdyn.online.solver import Solver

SUFFIXES = (".png", ".pdf", ".svg")
# {kind of entry: symbol at brackets}, and {kind: name} in the order of the legend.
SYMBOLS = {x.name: x.symbol for x in QUANTITY.values()}
SYMBOLS |= {"w": "$w$", KNOWN: KNOWN, MULTIPLIER: r"$\lambda$", FURTHER: FURTHER}
LEGEND = {
    **{x: f"{QUANTITY[x].noun} {QUANTITY[x].symbol}" for x in ("a", "fB", "f", "tau", "fx", "qdd")},
    "w": "constraint wrench $w$", KNOWN: "known quantity: $x = y$", MULTIPLIER: r"multiplier $\lambda$ of an equation",
    FURTHER: "further quantity", FILL: "fill-in of L + U",
}  # fmt: skip
# Side of a matrix [inch], and minimum length of a labelled bracket [pt]: tuned for print.
_INCHES, _LEAST_LABEL = 5.3, 7.5
# Above these numbers, labels are per chain of bodies, and brackets are omitted: tuned for legibility.
_MANY_BODIES, _MANY_GROUPS = 12, 8


def pattern(solver: Solver) -> Pattern:
    """Sparsity pattern for `plot_matrix`. Raises ProblemError if the solver is a recursion without a matrix."""
    return matrix_pattern(solver.problem, solver.options, solver.choice)


def plot_matrix(solver: Solver) -> Figure:
    """Plot D in its natural layout and P D Q in pivot order, with the fill-in.

    The colour of an entry shows the kind of its unknown. The strips along the matrix show the kinds of the columns
    (top) and equations (left); the brackets name bodies or chains of bodies. The global state of matplotlib is not
    changed.
    """
    p, model = pattern(solver), solver.model
    figure = Figure(figsize=(2 * _INCHES + 3.6, _INCHES + 2.6))
    FigureCanvasAgg(figure)
    width, height = figure.get_size_inches()
    shape = "no fill-in, triangular" if solver.triangular else f"fill-in {len(p.fill):,}"
    above = 0.0
    for left, entries, (rows, cols), (left_blocks, top_blocks), label in (
        (1.55, (p.row, p.col, p.kind), (p.rows, p.cols), (p.rows, p.cols),
         f"$D$ as assembled: {p.n:,} × {p.n:,}, {p.nnz:,} entries"),
        (3.2 + _INCHES, p.permuted, (p.permuted_rows, p.permuted_cols), (p.pivots, p.pivots),
         f"$P\\,D\\,Q$ in the order of its pivots: {shape}"),
    ):  # fmt: skip
        ax = figure.add_axes((left / width, 0.72 / height, _INCHES / width, _INCHES / height))
        ax.imshow(raster((p.n, p.n), *entries), extent=(-0.5, p.n - 0.5, p.n - 0.5, -0.5), interpolation="nearest")
        ax.set(xlim=(-0.5, p.n - 0.5), ylim=(p.n - 0.5, -0.5), xticks=[], yticks=[])
        for spine in ax.spines.values():
            spine.set(linewidth=0.6, color="#444444")
        _strips(ax, p.n, rows, cols)
        _brackets(ax, p.n, left_blocks, model, "left")
        above = max(above, _brackets(ax, p.n, top_blocks, model, "top"))
        ax.set_xlabel(label, labelpad=6)
    flops, outputs = solver.program.flops, ", ".join(SYMBOLS.get(x, x.replace("$", r"\$")) for x in solver.outputs)
    counts = f"{flops.mul:,} mul + {flops.add:,} add + {flops.div:,} div = {flops.total:,} operations"
    title = f"{model.name}: {outputs} by ordering '{solver.ordering}'. {counts} from $q$, $\\dot{{q}}$ on"
    figure.text(0.5, (0.72 + _INCHES + (above + 14) / 72) / height, title, ha="center", va="bottom", fontsize=12)
    kinds = set(p.permuted[2].tolist())
    handles = [Patch(color=COLOURS[k], label=name) for k, name in LEGEND.items() if k in kinds]
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False, fontsize=10,
                  bbox_to_anchor=(0.5, 0.0), handlelength=1.0, handleheight=1.0, columnspacing=1.6)  # fmt: skip
    return figure


def save_figure(figure: Figure, path: str | Path, dpi: int = 150) -> Path:
    """Write a picture atomically, with its title as metadata. The suffix (.png, .pdf, .svg) selects the format.

    Raises InvalidInput, FileError.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidInput(f"picture {str(path)!r} must end in {', '.join(SUFFIXES)}")
    buffer = io.BytesIO()
    undated = {".pdf": "CreationDate", ".svg": "Date"}.get(suffix)  # without a date, equal figures give equal files
    metadata: dict[str, str | None] = {undated: None} if undated else {}
    if figure.texts:
        metadata["Title"] = figure.texts[0].get_text()
    figure.savefig(buffer, format=suffix[1:], dpi=dpi, bbox_inches="tight", pad_inches=0.12, metadata=metadata)
    return write_file(path, _palette(buffer) if suffix == ".png" else buffer.getvalue())


def save_pictures(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write a picture as path + ".png" (screen) and path + ".pdf" (print). Raises FileError."""
    for suffix in (".png", ".pdf"):
        save_figure(figure, path.with_name(path.name + suffix), dpi)


def _palette(png: io.BytesIO) -> bytes:
    """Reduce a PNG to a palette of 256 colours: a third of the size without visible difference."""
    out, words = io.BytesIO(), PngInfo()
    with Image.open(png) as image:
        if "Title" in image.info:
            words.add_text("Title", image.info["Title"])
        few = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        few.save(out, format="PNG", optimize=True, dpi=image.info.get("dpi", (150, 150)), pnginfo=words)
    return out.getvalue()


def _runs(values: Sequence[Any], key: Callable[[Any], Any]) -> list[tuple[int, int]]:
    """(start, stop) of each run of consecutive values with equal keys."""
    edges = [k for k in range(len(values)) if k == 0 or key(values[k]) != key(values[k - 1])]
    return list(zip(edges, [*edges[1:], len(values)], strict=True))


def _strips(ax: Axes, n: int, rows: BlockLabels, cols: BlockLabels) -> None:
    """Draw strips with the kinds of rows (left) and columns (top)."""
    point = n / (72 * _INCHES)
    begin, thick = -0.5 - 6.5 * point, 4.5 * point
    for blocks, left in ((rows, True), (cols, False)):
        for start, stop in _runs(blocks, lambda block: block[0]):
            across, along = (begin, thick), (start - 0.5, float(stop - start))  # (first, length)
            (x, width), (y, height) = (across, along) if left else (along, across)
            colour = COLOURS[blocks[start][0]]
            ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="none", clip_on=False))


# ---- brackets -----------------------------------------------------------------------------------------------------


class _Span(NamedTuple):
    """Consecutive rows or columns of a body, or of a chain of bodies first … last, with their kinds."""

    start: int
    stop: int
    kinds: tuple[str, ...]
    first: int
    last: int


def _spans(blocks: BlockLabels, model: Model) -> list[_Span]:
    """Split blocks into spans, one per body. In large models, spans of a chain of bodies are merged."""
    spans: list[_Span] = []
    for start, stop in _runs(blocks, lambda block: block[1]):
        kinds, body = tuple(dict.fromkeys(kind for kind, _ in blocks[start:stop])), blocks[start][1]
        last = spans[-1].last if spans else -1
        if model.nb > _MANY_BODIES and min(body, last) >= 0 and kinds == spans[-1].kinds:
            outer, inner = max(body, last), min(body, last)
            if model.parent[outer] == inner and len(model.children[inner]) == 1:
                spans[-1] = spans[-1]._replace(stop=stop, last=body)
                continue
        spans.append(_Span(start, stop, kinds, body, body))
    return spans


def _brackets(ax: Axes, n: int, blocks: BlockLabels, model: Model, side: str) -> float:
    """Draw inner brackets for bodies or chains and outer brackets for quantities. Returns their total width [pt]."""
    point = n / (72 * _INCHES)
    spans, names = _spans(blocks, model), model.body_names
    groups = [list(group) for _, group in groupby(spans, key=lambda span: span.kinds)]
    if len(groups) > _MANY_GROUPS:
        return 10.0
    offset, longest = 10.0, 0
    for span in spans:
        if span.first >= 0 and span.stop - span.start >= _LEAST_LABEL * point:
            name = names[span.first] + (f" … {names[span.last]}" if span.last != span.first else "")
            longest = max(longest, len(name))
            _bracket(ax, span.start, span.stop, offset * point, point, name, side, 7.0, turned=side == "top")
    offset += 8 + 4.0 * longest if longest else 0.0
    for group in groups:
        start, stop = group[0].start, group[-1].stop
        if start:
            (ax.axhline if side == "left" else ax.axvline)(start - 0.5, color="#C8C8C8", linewidth=0.5)
        if stop - start >= 2 * _LEAST_LABEL * point:
            text = ", ".join(SYMBOLS[k] for k in group[0].kinds)
            _bracket(ax, start, stop, offset * point, point, text, side, 9.0, turned=side == "left")
    return offset + 14.0


def _bracket(
    ax: Axes, start: int, stop: int, offset: float, point: float, text: str, side: str, size: float, turned: bool
) -> None:
    """Draw a bracket with text along one side of the matrix, at distance `offset`. Lengths in matrix entries."""
    depth, gap = 2.5 * point, min(0.08 * (stop - start), 2.0 * point)
    a, b, out = start - 0.5 + gap, stop - 0.5 - gap, -0.5 - offset
    x, y, at = [a, a, b, b], [out + depth, out, out, out + depth], ((a + b) / 2, out - 0.8 * depth)
    ha, va = "center", "bottom"
    if side == "left":
        x, y, at, ha, va = y, x, at[::-1], "right", "center"
    ax.plot(x, y, color="#444444", linewidth=0.7, clip_on=False, solid_capstyle="butt")
    ax.text(*at, text, fontsize=size, rotation=90 if turned else 0, clip_on=False, ha=ha, va=va)
