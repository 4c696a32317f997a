"""Every name of every table, and every option of `compile`, is used: a new member fails here until it has a case."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from systems import kinds

import sysdyn as sd
from sysdyn.codegen.registry import BACKENDS
from sysdyn.equations.formulation import KNOWN
from sysdyn.equations.recursive_orders import RECURSIVE
from sysdyn.errors import DISTRIBUTION
from sysdyn.measurements.variables import LAYOUTS
from sysdyn.model import JOINTS
from sysdyn.model.quantities import QUANTITIES
from sysdyn.offline.options import FORMULATIONS, LEVELS
from sysdyn.online.solver import ON_SINGULAR
from sysdyn.passes import PASSES
from sysdyn.runtime.real import REALS
from sysdyn.sparse import umfpack
from sysdyn.sparse.orderings import ORDERINGS

MODEL = sd.chain(3, seed=1)
STATE = MODEL.random_state(seed=1)
TAU = sd.rnea(MODEL, *STATE)
BODY = f"inertia:{MODEL.body_names[1]}"

# The values of each option of `compile` that are compiled here. The first one of each is the default.
VALUES = {
    "ordering": (
        "auto", "markowitz", "umfpack", "tearing", "symmetric", "colamd", "rnea", "crba", "aba",
    ),
    "outputs": ("all", "tau", "qdd", "fx", "a", "f", ["qdd", "f"]),
    "level": ("best", "fast"),
    "layout": ("paper", "net_force"),
    "known": ("rows", "substituted"),
    "backend": ("llvm", "python"),
    "real": ("float64", "float32"),
    "on_singular": ("raise", "nan"),
    "allow_unsafe": (False, True),
    "formulation": ("auto", "paper", "elimination", "recursive"),
    "external_wrenches": (True, False),
    "effort": (1.0, 0.0, 1.5),
    "passes": (
        "all", [], "canonical_frames", "base_parameters", "classical_accelerations", "symmetric_elimination",
        "double_angle", "parallel_axes", "rewriting",
    ),
    "inputs": ((), ("gravity", BODY, f"armature:{MODEL.joint_names[0]}")),
    "progress": (True, False, lambda what, done: None),
    "check_limits": (False, True),
}  # fmt: skip
# What an option's values are the names of.
TABLES = {
    "ordering": {"auto", *ORDERINGS, *RECURSIVE},
    "outputs": {"all", *QUANTITIES},
    "level": set(LEVELS),
    "layout": set(LAYOUTS),
    "known": set(KNOWN),
    "backend": set(BACKENDS),
    "real": set(REALS),
    "on_singular": set(ON_SINGULAR),
    "formulation": set(FORMULATIONS),
    "passes": {"all", *PASSES},
}


def test_every_option_of_compile_has_cases():
    parameters = dict(inspect.signature(sd.compile).parameters)
    del parameters["problem"]
    assert set(parameters) == set(VALUES), "give the new option of compile its values in VALUES of this file"
    for name, parameter in parameters.items():
        assert VALUES[name][0] == parameter.default, name
    for name, table in TABLES.items():
        assert table == {x for x in VALUES[name] if isinstance(x, str)}, f"give the new {name} a place in VALUES"


def problem_for(name: str, value) -> sd.Problem:
    """One to which the value applies."""
    if value == "rnea":
        return sd.inverse_dynamics(MODEL)
    problem = sd.forward_dynamics(MODEL)
    return problem + sd.JointAcceleration("all", noise=1e3, name="encoders") if value == "symmetric" else problem


@pytest.mark.parametrize(("name", "value"), [(name, x) for name, values in VALUES.items() for x in values])
def test_every_value_of_an_option_gives_the_reference_answer(name, value):
    if value == "umfpack" and not umfpack.available():
        pytest.skip("scikit-umfpack is not installed")
    problem = problem_for(name, value)
    options = {"backend": "python", "level": "fast", name: value}
    if name == "passes" or value == "recursive":
        options["outputs"] = "qdd"
    solver = sd.compile(problem, **options)
    q, qd, qdd = STATE
    known = {x: {"tau": TAU, "qdd": qdd}[x] for x in problem.known_quantities if x != "fx"}
    y = {"encoders": qdd} if value == "symmetric" else None
    solution = solver(q, qd, y=y, **known)
    expected = sd.reference.newton_euler(MODEL, q, qd, qdd)
    full = {"tau": TAU, "qdd": qdd, "fx": np.zeros((3, 6)), "a": expected.a, "f": expected.f}
    assert solver.outputs
    precision = 1e-5 if value == "float32" else 1e-9
    for x in solver.outputs:
        np.testing.assert_allclose(solution[x], full[x], rtol=0, atol=precision * np.abs(full[x]).max(initial=1.0))


def test_every_measurement_and_joint_is_public():
    """And so stands in the reference; that each is solved back, stored and stated is seen in tests/measurements."""
    for name, kind in kinds().items():
        assert getattr(sd, name) is kind and name in sd.__all__, kind
    assert {type(JOINTS[name]()).kind for name in JOINTS} == set(JOINTS)


def test_the_version_is_the_same_everywhere():
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "sysdyn/errors.py"
    cited = re.search(r"^version: (\S+)$", (root / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    latest = re.search(r"^## \D*(\d+\.\d+\.\d+)", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited and latest and {cited[1], latest[1]} == {sd.__version__}


def test_pages_and_messages_install_this_package():
    """The name sysdyn is that of another project on PyPI, with a package of this name."""
    root = Path(__file__).parents[1]
    assert tomllib.loads((root / "pyproject.toml").read_text())["project"]["name"] == DISTRIBUTION
    pages = [
        root / "README.md",
        *root.glob("docs/**/*.md"),
        *root.glob("problems/**/*.md"),
        *root.glob("docs/**/*.py"),
        *root.glob("docs/**/*.rst"),
    ]
    for page in (*pages, *root.glob("sysdyn/**/*.py")):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"pip install '?sysdyn(?![\w-])|(?<![\w-])sysdyn\[[a-z]", text), page
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    told = re.findall(rf"{DISTRIBUTION}\[([a-z,]+)\]", "\n".join(page.read_text(encoding="utf-8") for page in pages))
    assert told and {name for names in told for name in names.split(",")} <= extras.keys()
