"""Display of solutions and solvers: tables of values with units, and spy plots of the eliminated matrix."""

from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sysdyn.equations.problem_system import assemble
from sysdyn.equations.system import System
from sysdyn.errors import ProblemError
from sysdyn.files.html import TextTable
from sysdyn.measurements.problem import Problem
from sysdyn.model.quantities import QUANTITIES, QUANTITY, WRENCHES, user_defined
from sysdyn.offline.compile import eliminated_system
from sysdyn.offline.options import Options
from sysdyn.offline.report import Choice
from sysdyn.program.groups import Group, Groups
from sysdyn.sparse.lu import eliminate

# Kinds of entries besides the quantities of the unknowns.
KNOWN, MULTIPLIER, FILL, FURTHER = "known", "multiplier", "fill-in", "further"
# Colours of the quantities from the palette of Okabe and Ito, which colour-blind readers can distinguish.
_PALETTE = ("#E69F00", "#CC79A7", "#56B4E9", "#0072B2", "#009E73", "#F0E442")
COLOURS = dict(zip((*QUANTITIES, "fB"), itertools.cycle(_PALETTE), strict=False))
COLOURS |= {"w": "#000000", KNOWN: "#6E6E6E", MULTIPLIER: "#B7A0D8", FURTHER: "#8C564B", FILL: "#D55E00"}
# Width of a plot on a page [px], largest system in a plot, most pixels of a raster: tuned to screens.
WIDTH, MAX_UNKNOWNS, _MAX_PIXELS = 260, 2000, 400


# ---- tables of solutions ---------------------------------------------------------------------------------------------


def value_tables(groups: Groups, values: Mapping[str, np.ndarray], std: Mapping[str, np.ndarray]) -> list[TextTable]:
    """Tables of the values at one state, one per output, with a row per joint, body or component. std: {output: σ}."""
    return [_value_table(groups[name], np.reshape(x, -1), std.get(name)) for name, x in values.items()]


def _value_table(group: Group, x: np.ndarray, std: np.ndarray | None) -> TextTable:
    title = f"{group.name} ({_units(group)})"
    names = [label.removeprefix(f"{group.name}:").strip() for label in group.labels]
    if len(group.shape) > 1:  # a row per body
        heads = [name.rpartition(".")[2].replace("alpha_", "α").replace("_", "") for name in names[:6]]
        bodies = [name.rpartition(".")[0] for name in names[::6]]
        cells = [f"{value:.5g}" for value in x]
        if std is not None:
            cells = [f"{cell} ± {sigma:.2g}" for cell, sigma in zip(cells, np.reshape(std, -1), strict=True)]
        return TextTable(title, (title, *heads), [(body, *cells[6 * k : 6 * k + 6]) for k, body in enumerate(bodies)])
    columns = [[f"{value:.9g}" for value in x]]
    columns += [] if std is None else [[f"{sigma:.3g}" for sigma in np.reshape(std, -1)]]
    sigma = () if std is None else ("σ",)
    quantity = {**QUANTITY, WRENCHES.name: WRENCHES}.get(group.name)
    if quantity is not None:
        return TextTable(title, (quantity.owner, title, *sigma), [*zip(names, *columns, strict=True)])
    rows = [*zip(names, *columns, group.units, strict=True)]
    return TextTable(group.name, (group.name, "value", *sigma, "unit"), rows)


def range_table(groups: Groups, values: Mapping[str, np.ndarray], std: Mapping[str, np.ndarray]) -> TextTable:
    """Table of the smallest and the largest entry of each output over several states. std: {output: σ}."""
    rows = []
    for name, x in values.items():
        finite = x[np.isfinite(x)]
        low, high = (f"{finite.min():.6g}", f"{finite.max():.6g}") if finite.size else ("–", "–")
        sigma: tuple[str, ...] = ("–", "–") if std else ()
        if name in std and (deviations := std[name][np.isfinite(std[name])]).size:
            sigma = (f"{np.median(deviations):.3g}", f"{deviations.max():.3g}")
        rows.append((name, str(x.shape), low, high, *sigma, _units(groups[name])))
    columns = ("median σ", "greatest σ") if std else ()
    return TextTable("values", ("quantity", "shape", "least", "greatest", *columns, "unit"), rows, 2)


def std_lines(groups: Groups, std: Mapping[str, np.ndarray]) -> list[str]:
    """Range of the standard deviations of each output by unit, one line per output."""
    lines = []
    for name, x in std.items():
        flat, parts = np.reshape(x, (-1, groups[name].size)), []
        for unit in dict.fromkeys(groups[name].units):
            part = flat[:, [u == unit for u in groups[name].units]]
            finite = part[np.isfinite(part)]
            parts += [f"{finite.min():.3g} … {finite.max():.3g} {unit}"] if finite.size else []
        lines.append(f"  σ of {name}: {', '.join(parts) or 'unknown'}")
    return lines


def _units(group: Group) -> str:
    return ", ".join(dict.fromkeys(group.units))


# ---- pattern of the matrix -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Sparsity pattern of a solver: D in its natural layout, and P D Q with the fill-in of L and U.

    row, col, kind (nnz,): row, column and kind of each entry of D; the kind is the quantity of its column, or "known"
    in the row of a known quantity. at_row, at_col (nnz,): its row and column in P D Q. fill (fill-in, 2): row and
    column of each fill-in entry in P D Q. rows, cols, pivots: (kind, body) of each row and column of D and of each
    pivot, in order.
    """

    n: int
    row: np.ndarray
    col: np.ndarray
    kind: np.ndarray
    at_row: np.ndarray
    at_col: np.ndarray
    fill: np.ndarray
    rows: tuple[tuple[str, int], ...]
    cols: tuple[tuple[str, int], ...]
    pivots: tuple[tuple[str, int], ...]
    permuted_rows: tuple[tuple[str, int], ...]
    permuted_cols: tuple[tuple[str, int], ...]

    @property
    def nnz(self) -> int:
        return len(self.row)

    @property
    def permuted(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, column, kind) of the entries of P D Q and of its fill-in."""
        row, col = (np.concatenate([x, self.fill[:, k]]) for k, x in enumerate((self.at_row, self.at_col)))
        return row, col, np.concatenate([self.kind, np.full(len(self.fill), FILL)])


def matrix_pattern(problem: Problem, options: Options, choice: Choice) -> Pattern:
    """Pattern of the eliminated matrix. Raises ProblemError for a recursion without a matrix."""
    system = eliminated_system(problem, options, choice.passes)
    row_perm, col_perm = choice.row_perm, choice.col_perm
    n = len(system.columns)
    if len(row_perm) != n:
        raise ProblemError("the solver eliminates no matrix: compile with formulation='paper'")
    to_row, to_col = np.empty(n, dtype=int), np.empty(n, dtype=int)
    to_row[list(row_perm)], to_col[list(col_perm)] = np.arange(n), np.arange(n)
    row, col, kind = _entries(system)
    factors = eliminate(system.assembly.rows, system.assembly.b, *choice.pivots)
    fill = np.array(factors.fill, dtype=int).reshape(-1, 2)
    rows, cols = _blocks(system)
    pivots = tuple(rows[r] if rows[r][0] == KNOWN else cols[c] for r, c in zip(row_perm, col_perm, strict=True))
    return Pattern(
        n=n, row=row, col=col, kind=kind, at_row=to_row[row], at_col=to_col[col], rows=rows, cols=cols, pivots=pivots,
        fill=np.column_stack([to_row[fill[:, 0]], to_col[fill[:, 1]]]), permuted_rows=tuple(rows[r] for r in row_perm),
        permuted_cols=tuple(cols[c] for c in col_perm),
    )  # fmt: skip


BlockLabels = tuple[tuple[str, int], ...]  # (kind, body) of each row or column; body −1: none


def _blocks(system: System) -> tuple[BlockLabels, BlockLabels]:
    """(kind, body) of rows and of columns in plots."""
    rows, cols = (tuple(_block_kind(*block) for block in blocks) for blocks in (system.row_blocks, system.col_blocks))
    return rows, cols


def _entries(system: System) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, column, kind) of each entry (nnz)."""
    (rows, cols), (row, col) = _blocks(system), system.coordinates
    return row, col, np.array([KNOWN if rows[r][0] == KNOWN else cols[c][0] for r, c in zip(row, col, strict=True)])


def _block_kind(kind: str, body: int) -> tuple[str, int]:
    """Kind, which selects the colour, and body of a block of rows or columns in plots.

    Measurements and constraint wrenches have body −1. The propagated unknowns X_i a_λ(i) and X_i^T f_i have the kinds
    of a and f. Stationarity equations have the kind of the multipliers.
    """
    special = {"y": (KNOWN, -1), "w": ("w", -1), "Xa": ("a", body), "Xf": ("f", body)}
    special |= dict.fromkeys(user_defined(), (FURTHER, body))
    return special.get(kind, (MULTIPLIER if kind == "stationarity" else kind, body))


def raster(shape: tuple[int, int], row: np.ndarray, col: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Image (height, width, 3) uint8 of a pattern: entries in the colours of their kinds, at least one pixel each."""
    step = max(1, -(-max(shape) // _MAX_PIXELS))
    image = np.full((-(-shape[0] // step), -(-shape[1] // step), 3), 255, dtype=np.uint8)
    for k in dict.fromkeys(kind.tolist()):
        image[row[kind == k] // step, col[kind == k] // step] = [*bytes.fromhex(COLOURS[k][1:])]
    return image


def spy_html(problem: Problem, options: Options, choice: Choice) -> str:
    """Spy plots as HTML: D in its natural layout, and P D Q with its fill-in if the solver eliminates D.

    Empty for systems of more than `MAX_UNKNOWNS` unknowns.
    """
    if problem.layout().n > MAX_UNKNOWNS:
        return ""
    if choice.is_recursion:
        system = assemble(problem)
        entries = _entries(system)
        caption = f"D as stated, {len(entries[0]):,} entries; the program is a recursion without it"
        return _picture(system.shape, entries, caption) + _legend(entries[2])
    p = matrix_pattern(problem, options, choice)
    natural = _picture((p.n, p.n), (p.row, p.col, p.kind), f"D as assembled, {p.nnz:,} entries")
    caption = f"P D Q in the order of its pivots, fill-in {len(p.fill):,}"
    return natural + _picture((p.n, p.n), p.permuted, caption) + _legend(p.permuted[2])


def _picture(shape: tuple[int, int], entries: tuple[np.ndarray, np.ndarray, np.ndarray], caption: str) -> str:
    """The raster of a matrix as an HTML figure without external files."""
    from PIL import Image

    (n, m), png = shape, io.BytesIO()
    Image.fromarray(raster(shape, *entries)).save(png, format="PNG", optimize=True)
    return (
        f'<figure style="display: inline-block; margin: 0.3em 1.5em 0.3em 0; width: {WIDTH}px; vertical-align: top">'
        f'<svg width="{WIDTH}" height="{WIDTH * n / m:.0f}" viewBox="0 0 {m} {n}">'
        f'<image width="{m}" height="{n}" preserveAspectRatio="none" style="image-rendering: pixelated" '
        f'href="data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"/></svg>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _legend(kind: np.ndarray) -> str:
    """HTML legend of the colours of the kinds."""
    kinds = set(kind.tolist())
    marks = (f'<span style="color: {c}; background: #ffffff">■</span> {k}' for k, c in COLOURS.items() if k in kinds)
    return f"<div>{' &nbsp; '.join(marks)}</div>"
