"""What notebooks show of models, problems, solvers, solutions and diagnoses: their names, counts and values as HTML."""

from __future__ import annotations

import base64
import io
import re

import browser
import lxml.html
import numpy as np
import pytest
from PIL import Image

import sysdyn as sd

NAME = "<b>l & r</b>"
MODEL = sd.auto_tree(3, 1, 1.5, 0.9)
NOISY = sd.Problem(
    MODEL,
    [
        sd.JointTorque("all", noise=0.5, name=NAME), sd.ExternalWrench("all"),
        sd.Switchable(sd.Accelerometer("body2", noise=[0.1, 0.2, 0.3], name="imu")),
        sd.Prior(sd.JointAcceleration("all", noise=np.eye(3) * 4.0 + 1.0), name="expected"),
    ],
)  # fmt: skip
EXACT = sd.forward_dynamics(MODEL)
TOUCHING = EXACT + sd.Contact("body2", name="touch")
OPTIONS = {"level": "fast", "backend": "python"}


def parsed(x: object):
    return lxml.html.fromstring(x._repr_html_())


def cells(table) -> list[list[str]]:
    return [[cell.text_content() for cell in row.xpath("./td")] for row in table.xpath(".//tbody/tr")]


@pytest.fixture(scope="module")
def solver() -> sd.Solver:
    return sd.compile(EXACT, outputs="all", formulation="paper", **OPTIONS)


def test_a_model_lists_its_bodies():
    model = MODEL.replace(name=NAME, body_names=(NAME, "b", "c"), frames=None)
    found = parsed(model)
    assert cells(found)[1][1:6] == ["b", "joint1", "revolute", NAME, f"{model.inertias[1, 5, 5]:.4g}"]
    assert found.xpath("string()").count(NAME) >= 3 and not found.xpath(".//b[.='l & r']")
    assert f"{model.mass:.6g} kg" in found.xpath("string()")


@pytest.mark.parametrize("problem", [EXACT, NOISY, TOUCHING], ids=["exact", "noisy", "contact"])
def test_a_problem_counts_what_is_assembled(problem):
    found = parsed(problem)
    equations, unknowns = (re.match(r"[\d,]+", x.text)[0] for x in found.xpath(".//summary"))
    assert (int(equations), int(unknowns)) == sd.assemble(problem).plain.shape
    for table, count in zip(found.xpath(".//table"), (equations, unknowns), strict=True):
        assert sum(int(row[2]) for row in cells(table)) == int(count)


def test_a_problem_says_what_is_known_and_how_well():
    rows = {row[0]: row[1:] for row in cells(parsed(NOISY).xpath(".//table")[0])}
    assert rows[NAME] == ["JointTorque: tau(joint0), tau(joint1), tau(joint2)", "3", "N m", "σ 0.5"]
    assert rows["imu"][2:] == ["m/s²", "σ 0.1 to 0.3, switchable"]
    assert rows["expected"][3] == f"σ {np.sqrt(5):.3g}, correlated"
    assert rows["ExternalWrench"][1:] == ["18", "N m, N", "exact"]


def test_a_solver_counts_and_draws_every_entry(solver):
    found, system = parsed(solver), sd.assemble(EXACT)
    flops = solver.flops.end_to_end
    row = cells(found.xpath(".//table")[0])[0]
    assert [int(x.replace(",", "")) for x in row[1:]] == [
        flops.mul, flops.add, flops.div, flops.sqrt, flops.total, flops.trig,
    ]  # fmt: skip
    natural, permuted = drawn(found)
    assert sorted(zip(*np.nonzero(natural), strict=True)) == sorted(zip(*map(list, system.coordinates), strict=True))
    assert np.count_nonzero(permuted) == system.nnz + solver.fill_in


def drawn(found) -> list[np.ndarray]:
    """(n, n) bool of the matrices of a page: an entry is there."""
    pictures = [x.get("href").partition("base64,")[2] for x in found.xpath(".//svg/image")]
    images = [np.asarray(Image.open(io.BytesIO(base64.b64decode(x)))) for x in pictures]
    return [np.any(x != 255, axis=-1) for x in images]


def test_recursions_show_the_matrix_that_they_do_without():
    found = parsed(sd.compile(EXACT, outputs="qdd", **OPTIONS))
    (matrix,) = drawn(found)
    assert np.count_nonzero(matrix) == sd.assemble(EXACT).nnz and "a recursion without it" in found.xpath("string()")


@pytest.mark.slow
def test_large_matrices_are_not_drawn(solver):
    large = sd.inverse_dynamics(sd.auto_tree(101))
    assert large.layout().n > 2000 and "<svg" in solver._repr_html_()
    assert "<svg" not in sd.compile(large, outputs="tau", **OPTIONS)._repr_html_()


def test_a_solution_gives_values_by_name_with_units(solver):
    q, qd, _ = MODEL.random_state(seed=1)
    solution = solver(q, qd, np.ones(3))
    tables = parsed(solution).xpath(".//table")
    titles = [x.xpath(".//th")[0].text for x in tables]
    assert titles == ["joint", "joint", "fx (N m, N)", "a (rad/s², m/s²)", "f (N m, N)"]
    assert cells(tables[1]) == [[f"joint{k}", f"{solution.qdd[k]:.9g}"] for k in range(3)]
    assert cells(tables[4])[2] == ["body2", *(f"{x:.5g}" for x in solution.f[2])]
    batch = parsed(solver(np.stack([q, q]), np.stack([qd, -qd]), np.ones(3)))
    assert cells(batch)[0] == ["tau", "(2, 3)", "1", "1", "N m"]


def test_a_diagnosis_says_at_once_whether_it_is_well():
    for problem, mark in ((EXACT, "✓"), (EXACT - sd.ExternalWrench("body2", components=["nx"]), "✗")):
        found = sd.diagnose(problem)
        shown = parsed(found).xpath("//div")[0].text_content()
        assert shown.startswith(mark) and all(line in shown for line in str(found).splitlines())


def test_dark_notebooks_show_it_in_their_own_colours(solver, tmp_path):
    """In a browser: text has the colour of what is around it, and nothing is asked of the network."""
    q, qd, _ = MODEL.random_state(seed=1)
    shown = [MODEL, NOISY, solver, solver(q, qd, np.ones(3)), sd.diagnose(EXACT)]
    parts = "<hr>".join(x._repr_html_() for x in shown)
    assert "://" not in parts and "src=" not in parts and "@import" not in parts
    words = '[...document.querySelectorAll(".sysdyn td, .sysdyn th, .sysdyn b, .sysdyn pre, .sysdyn summary")]'
    page = f'<!DOCTYPE html><meta charset="utf-8"><body style="background: #111; color: #ddd">{parts}</body>'
    colours = browser.found(page, f"[...new Set({words}.map(x => getComputedStyle(x).color))]", tmp_path)
    assert colours == ["rgb(221, 221, 221)"]
