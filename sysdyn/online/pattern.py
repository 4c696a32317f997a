"""The pattern of a problem's matrix: places of its entries before and after permutation, and of its fill-in."""

from __future__ import annotations

import base64
import io
import itertools
from dataclasses import dataclass

import numpy as np

from sysdyn.equations.system import System
from sysdyn.errors import ProblemError
from sysdyn.model.quantities import QUANTITIES, user_defined
from sysdyn.offline.choice import Choice
from sysdyn.offline.formulations import eliminated_system
from sysdyn.offline.options import Options
from sysdyn.problem import Problem
from sysdyn.sparse.lu import eliminate

# Kinds of entries beside the quantities of the unknowns.
KNOWN, MULTIPLIER, FILL, FURTHER = "known", "multiplier", "fill-in", "further"
# Colours of the quantities, of Okabe and Ito's palette, which stay apart for colour-blind readers.
_PALETTE = ("#E69F00", "#CC79A7", "#56B4E9", "#0072B2", "#009E73", "#F0E442")
COLOURS = dict(zip((*QUANTITIES, "fB"), itertools.cycle(_PALETTE), strict=False))
COLOURS |= {"w": "#000000", KNOWN: "#6E6E6E", MULTIPLIER: "#B7A0D8", FURTHER: "#8C564B", FILL: "#D55E00"}
# Width of a picture on a page [px], most unknowns of a system on a page, most pixels of a raster: tuned to screens.
SIDE, MOST_DRAWN, _MOST_PIXELS = 260, 2000, 400


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """The matrix of a solver in numbers: D as it is assembled, and P D Q with the fill-in of L and U.

    row, col, kind (nnz): place in D of each entry, and its block kind: the quantity of its column, or "known" in the
    row of a known quantity. at_row, at_col: its place in P D Q. fill (fill-in, 2): places of the fill-in in P D Q.
    rows, cols, pivots: (kind, body) of each row and column of D and of each pivot, in order.
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

    @property
    def lower_triangular(self) -> bool:
        """True if P D Q, fill-in included, has nothing above its diagonal."""
        return bool((self.at_col <= self.at_row).all() and (self.fill[:, 1] <= self.fill[:, 0]).all())


def matrix_pattern(problem: Problem, options: Options, choice: Choice) -> Pattern:
    """The pattern of the matrix that the choice eliminates. Raises ProblemError if it eliminates none."""
    system = eliminated_system(problem, options, choice.passes)
    row_perm, col_perm = choice.row_perm, choice.col_perm
    n = len(system.columns)
    if len(row_perm) != n:
        raise ProblemError("the solver eliminates no matrix that could be shown: compile with formulation='paper'")
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


Blocks = tuple[tuple[str, int], ...]  # (kind, body) of each row or column; body −1: none


def _blocks(system: System) -> tuple[Blocks, Blocks]:
    """(kind, body) of rows and of columns, as they are drawn."""
    rows, cols = (tuple(_shown(*block) for block in blocks) for blocks in (system.row_blocks, system.col_blocks))
    return rows, cols


def _entries(system: System) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(row, column, kind) of each entry (nnz)."""
    (rows, cols), (row, col) = _blocks(system), system.coordinates
    return row, col, np.array([KNOWN if rows[r][0] == KNOWN else cols[c][0] for r, c in zip(row, col, strict=True)])


def _shown(kind: str, body: int) -> tuple[str, int]:
    """(kind, body) as it is drawn: measurements and constraints belong to no body, turned vectors to their quantity.

    Equations of the multipliers, by which the unknowns are stationary, are drawn as these.
    """
    special = {"y": (KNOWN, -1), "w": ("w", -1), "Xa": ("a", body), "Xf": ("f", body)}
    special |= dict.fromkeys(user_defined(), (FURTHER, body))
    return special.get(kind, (MULTIPLIER if kind == "stationarity" else kind, body))


# ---- pictures --------------------------------------------------------------------------------------------------------


def raster(shape: tuple[int, int], row: np.ndarray, col: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """(height, width, 3) uint8: entries in the colours of their kinds on white, at least a pixel for each."""
    step = max(1, -(-max(shape) // _MOST_PIXELS))
    image = np.full((-(-shape[0] // step), -(-shape[1] // step), 3), 255, dtype=np.uint8)
    for k in dict.fromkeys(kind.tolist()):
        image[row[kind == k] // step, col[kind == k] // step] = [*bytes.fromhex(COLOURS[k][1:])]
    return image


def pictures(problem: Problem, options: Options, choice: Choice) -> str:
    """D as it is assembled, and in the order of its pivots with its fill-in if it is eliminated, as HTML.

    Empty for systems of more than `MOST_DRAWN` unknowns.
    """
    if problem.layout().n > MOST_DRAWN:
        return ""
    if choice.is_recursion:
        system = problem.system()
        entries = _entries(system)
        caption = f"D as stated, {len(entries[0]):,} entries; the program is a recursion without it"
        return _picture(system.shape, entries, caption) + _key(entries[2])
    p = matrix_pattern(problem, options, choice)
    natural = _picture((p.n, p.n), (p.row, p.col, p.kind), f"D as assembled, {p.nnz:,} entries")
    caption = f"P D Q in the order of its pivots, fill-in {len(p.fill):,}"
    return natural + _picture((p.n, p.n), p.permuted, caption) + _key(p.permuted[2])


def _picture(shape: tuple[int, int], entries: tuple[np.ndarray, np.ndarray, np.ndarray], caption: str) -> str:
    """The raster of a matrix as a figure of HTML that loads nothing."""
    from PIL import Image

    (n, m), png = shape, io.BytesIO()
    Image.fromarray(raster(shape, *entries)).save(png, format="PNG", optimize=True)
    return (
        f'<figure style="display: inline-block; margin: 0.3em 1.5em 0.3em 0; width: {SIDE}px; vertical-align: top">'
        f'<svg width="{SIDE}" height="{SIDE * n / m:.0f}" viewBox="0 0 {m} {n}">'
        f'<image width="{m}" height="{n}" preserveAspectRatio="none" style="image-rendering: pixelated" '
        f'href="data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}"/></svg>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _key(kind: np.ndarray) -> str:
    """The colours of the kinds."""
    kinds = set(kind.tolist())
    marks = (f'<span style="color: {c}; background: #ffffff">■</span> {k}' for k, c in COLOURS.items() if k in kinds)
    return f"<div>{' &nbsp; '.join(marks)}</div>"
