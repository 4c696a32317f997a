"""Pictures of the matrix: they are written, and what they show is the elimination that the solver runs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from PIL import Image

import sysdyn as sd
from sysdyn.app.matrix_plot import COLOURS, FILL, KNOWN, MULTIPLIER, pattern, plot_matrix, save_figure
from sysdyn.errors import FileError, InvalidInput

CASES = [("inverse", "rnea"), ("inverse", "umfpack"), ("forward", "aba"), ("forward", "crba"), ("forward", "markowitz")]


def solver_of(kind: str, ordering: str, **options) -> sd.Solver:
    make = {"inverse": sd.inverse_dynamics, "forward": sd.forward_dynamics}[kind]
    return sd.compile(make(sd.auto_tree(5, 1.5, 1.5, 0.9)), ordering, backend="python", **options)


def drawn(figure, kind: str) -> list[int]:
    """Squares of a kind in the two matrices."""
    found = []
    for ax in figure.axes:
        marks = [c for c in ax.collections if isinstance(c, PolyCollection) and c.get_gid() == kind]
        found.append(sum(len(c.get_paths()) for c in marks))
    return found


@pytest.mark.parametrize("kind, ordering", CASES)
def test_the_picture_shows_every_entry_and_the_solver_s_fill_in(kind, ordering):
    solver = solver_of(kind, ordering)
    figure, system = plot_matrix(solver), solver.problem.system()
    assert drawn(figure, FILL) == [0, solver.fill_in]
    entries = [drawn(figure, name) for name in COLOURS if name != FILL]
    assert np.sum(entries, axis=0).tolist() == [system.nnz, system.nnz]
    assert drawn(figure, KNOWN) == [solver.problem.ny] * 2


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_the_title_is_in_the_file(suffix, tmp_path):
    solver = solver_of("forward", "aba")
    path = save_figure(plot_matrix(solver), tmp_path / f"matrix{suffix}")
    said = f"{solver.flops.end_to_end.total:,} operations"
    if suffix == ".png":
        with Image.open(path) as image:
            assert said in image.text["Title"] and set(image.text) == {"Title"}
    else:
        assert said.encode() in path.read_bytes()


@pytest.mark.slow
def test_the_picture_of_the_pages_is_that_of_the_code():
    """docs/icub_forward.png, by `sysdyn demo`."""
    pytest.importorskip("icub_models")
    solver = sd.compile(sd.forward_dynamics(sd.load("icub")), "aba", ["qdd"], backend="python", formulation="paper")
    with Image.open(Path(__file__).parents[2] / "docs" / "icub_forward.png") as image:
        assert image.text["Title"] == plot_matrix(solver).texts[0].get_text()


def test_inverse_dynamics_is_lower_triangular_in_the_order_of_rnea():
    p = pattern(solver_of("inverse", "rnea"))
    assert p.lower_triangular and len(p.fill) == 0
    assert not pattern(solver_of("forward", "aba")).lower_triangular


def test_an_estimate_is_drawn_with_its_multipliers():
    model = sd.chain(3)
    known = [sd.ExternalWrench(), sd.JointTorque(noise=[0.1, 0.2, 0.3]), sd.Contact("body2", "normal", name="tip")]
    solver = sd.compile(sd.Problem(model, known), backend="python", level="fast")
    figure, system = plot_matrix(solver), solver.problem.system()
    assert drawn(figure, FILL) == [0, solver.fill_in]
    entries = [drawn(figure, name) for name in COLOURS if name != FILL]
    assert np.sum(entries, axis=0).tolist() == [system.nnz, system.nnz]
    plain = len(system.plain.assembly.rows)
    assert len(system.columns) == system.n_unknowns + plain
    above = sum(len(row) for row in system.plain.assembly.rows)  # E^T and Y^T; Σ is in the rows of what is known
    assert drawn(figure, MULTIPLIER) == [above, above]


@pytest.mark.parametrize("options", [{"layout": "net_force"}, {"known": "substituted"}])
def test_other_layouts(options):
    solver = solver_of("forward", "aba", **options)
    p = pattern(solver)
    assert len(p.fill) == solver.fill_in and p.n == len(p.rows) == len(p.cols) == len(p.pivots)
    plot_matrix(solver)


@pytest.mark.parametrize("kind, ordering", CASES)
def test_places_are_a_permutation_with_the_pivots_on_the_diagonal(kind, ordering):
    solver = solver_of(kind, ordering)
    p = pattern(solver)
    places = set(zip(p.at_row.tolist(), p.at_col.tolist(), strict=True))
    fill = set(map(tuple, p.fill.tolist()))
    assert len(places) == p.nnz and not places & fill and len(fill) == len(p.fill)
    assert all((k, k) in places | fill for k in range(p.n))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("suffix, start", [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")])
def test_the_picture_is_written(tmp_path, suffix, start):
    path = save_figure(plot_matrix(solver_of("inverse", "rnea")), tmp_path / f"matrix{suffix}")
    content = path.read_bytes()
    assert content.startswith(start) and len(content) < 400_000
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.slow
def test_a_humanoid_s_picture_is_small_and_labelled_by_chains():
    from sysdyn.app.robots import load_robot

    solver = sd.compile(sd.forward_dynamics(load_robot("icub")), "aba", ["qdd"], backend="python")
    figure = plot_matrix(solver)
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert "l_hip_1 … l_ankle_2" in texts and "l_ankle_2 … l_hip_1" in texts and "known" in texts
    assert len(texts) < 60


def test_wrong_pictures(tmp_path):
    figure = plot_matrix(solver_of("inverse", "rnea"))
    with pytest.raises(InvalidInput, match=".png, .pdf, .svg"):
        save_figure(figure, tmp_path / "matrix.bmp")
    with pytest.raises(FileError, match="cannot be written"):
        save_figure(figure, tmp_path / "gone" / "matrix.png")


@pytest.mark.slow
def test_no_global_state_of_matplotlib_is_touched():
    import subprocess

    code = (
        "import sys, sysdyn as sd; from sysdyn.app.matrix_plot import plot_matrix\n"
        "plot_matrix(sd.compile(sd.inverse_dynamics(sd.chain(2)), 'rnea', backend='python'))\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
