"""Pictures of the matrix: they are written, and what they show is the elimination that the solver runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sysdyn as sd
from sysdyn.app.matrix_plot import COLOURS, FILL, KNOWN, MULTIPLIER, pattern, plot_matrix, save_figure
from sysdyn.errors import FileError, InvalidInput

CASES = [("inverse", "rnea"), ("inverse", "umfpack"), ("forward", "aba"), ("forward", "crba"), ("forward", "markowitz")]


def solver_of(kind: str, ordering: str, **options) -> sd.Solver:
    make = {"inverse": sd.inverse_dynamics, "forward": sd.forward_dynamics}[kind]
    return sd.compile(make(sd.auto_tree(5, 1.5, 1.5, 0.9)), ordering, backend="python", **options)


def drawn(figure, kind: str) -> list[int]:
    """Entries of a kind in the two matrices, which are small enough for a pixel each."""
    colour = [*bytes.fromhex(COLOURS[kind][1:])]
    return [int(np.sum(np.all(np.asarray(ax.images[0].get_array()) == colour, axis=-1))) for ax in figure.axes]


@pytest.mark.parametrize("kind, ordering", CASES)
def test_the_picture_shows_every_entry_and_the_solver_s_fill_in(kind, ordering):
    solver = solver_of(kind, ordering)
    figure, system, p = plot_matrix(solver), sd.assemble(solver.problem), pattern(solver)
    assert drawn(figure, FILL) == [0, solver.fill_in] and drawn(figure, KNOWN) == [solver.problem.ny] * 2
    colours = {colour: kind for kind, colour in COLOURS.items() if kind != FILL}  # some kinds share one
    assert np.sum([drawn(figure, kind) for kind in colours.values()], axis=0).tolist() == [system.nnz, system.nnz]
    places = set(zip(p.at_row.tolist(), p.at_col.tolist(), strict=True))
    fill = set(map(tuple, p.fill.tolist()))
    assert len(places) == p.nnz and not places & fill and len(fill) == len(p.fill)
    assert all((k, k) in places | fill for k in range(p.n))  # the pivots
    lower = (p.at_col <= p.at_row).all() and (p.fill[:, 1] <= p.fill[:, 0]).all()
    assert lower == ((kind, ordering) == ("inverse", "rnea"))


def test_an_estimate_is_drawn_with_its_multipliers():
    known = [sd.ExternalWrench(), sd.JointTorque(noise=[0.1, 0.2, 0.3]), sd.Contact("body2", "normal", name="tip")]
    solver = sd.compile(sd.Problem(sd.chain(3), known), backend="python", level="fast")
    figure, system = plot_matrix(solver), sd.assemble(solver.problem)
    assert drawn(figure, FILL) == [0, solver.fill_in]
    assert len(system.columns) == system.n_unknowns + len(system.plain.assembly.rows)
    above = sum(len(row) for row in system.plain.assembly.rows)  # E^T and Y^T; Σ is in the rows of what is known
    assert drawn(figure, MULTIPLIER) == [above, above]


@pytest.mark.parametrize("options", [{"layout": "net_force"}, {"known": "substituted"}])
def test_other_layouts(options):
    solver = solver_of("forward", "aba", **options)
    p = pattern(solver)
    assert len(p.fill) == solver.fill_in and p.n == len(p.rows) == len(p.cols) == len(p.pivots)
    plot_matrix(solver)


@pytest.mark.parametrize("suffix, start", [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")])
def test_the_picture_is_written_with_its_title(tmp_path, suffix, start):
    solver = solver_of("forward", "aba")
    path = save_figure(plot_matrix(solver), tmp_path / f"matrix{suffix}")
    content, title = path.read_bytes(), f"{solver.flops.end_to_end.total:,} operations"
    assert content.startswith(start) and len(content) < 400_000 and [*tmp_path.iterdir()] == [path]
    if suffix == ".png":
        with Image.open(path) as image:
            assert title in image.text["Title"]
    else:
        assert title.encode() in content


@pytest.mark.slow
def test_the_picture_of_a_humanoid_is_labelled_by_chains_and_that_of_the_pages():
    """docs/icub_forward.png, by `sysdyn demo`."""
    pytest.importorskip("icub_models")
    solver = sd.compile(sd.forward_dynamics(sd.load("icub")), "aba", ["qdd"], backend="python", formulation="paper")
    figure = plot_matrix(solver)
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert {"l_hip_1 … l_ankle_2", "l_ankle_2 … l_hip_1", "known"} <= set(texts) and len(texts) < 60
    with Image.open(Path(__file__).parents[2] / "docs" / "icub_forward.png") as image:
        assert image.text["Title"] == figure.texts[0].get_text()


def test_wrong_pictures(tmp_path):
    figure = plot_matrix(solver_of("inverse", "rnea"))
    with pytest.raises(InvalidInput, match=".png, .pdf, .svg"):
        save_figure(figure, tmp_path / "matrix.bmp")
    with pytest.raises(FileError, match="cannot be written"):
        save_figure(figure, tmp_path / "gone" / "matrix.png")


@pytest.mark.slow
def test_no_global_state_of_matplotlib_is_touched():
    code = (
        "import sys, sysdyn as sd; from sysdyn.app.matrix_plot import plot_matrix\n"
        "plot_matrix(sd.compile(sd.inverse_dynamics(sd.chain(2)), 'rnea', backend='python'))\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
