"""Robots in meshcat's viewer: what a browser has in its scene is where the model says, and as large and as coloured."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import webbrowser
from pathlib import Path

import browser
import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from robots import floating_tree

import sysdyn as sd
from sysdyn.model import forward_kinematics
from sysdyn.model.se3 import pose, rotation, translation
from sysdyn.views import show as module
from sysdyn.views.motion import MOST_STATES
from sysdyn.views.show import body_paths

umsgpack = pytest.importorskip("umsgpack")
pytest.importorskip("meshcat")

# A floating base with joints of every kind behind it.
MODEL = sd.random_tree(9, seed=4).replace(name="<b>mixed</b>")
FLOATING = floating_tree(4, seed=2)
N = 3


def states(model: sd.Model, n: int = N) -> dict:
    q, qd, qdd = model.random_state(seed=3, batch=n)
    rng = np.random.default_rng(5)
    return {"q": q, "fx": rng.standard_normal((n, model.nb, 6)) * [2, 2, 2, 30, 30, 30],
            "tau": rng.standard_normal((n, model.nv))}  # fmt: skip


def commands(page: str) -> list[dict]:
    """What the page tells the viewer."""
    (text,) = re.findall(r'<script id="commands" type="text/plain">(.*?)</script>', page, flags=re.DOTALL)
    return [umsgpack.unpackb(base64.b64decode(line)) for line in text.split()]


def world_poses(model: sd.Model, q: np.ndarray) -> np.ndarray:
    """(nb, 4, 4)."""
    return np.array([pose(rotation(X), translation(X)) for X in forward_kinematics(model, q)])


# ---- in a browser ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "timed"), [(MODEL, False), (FLOATING, True)], ids=["mixed", "floating"])
def test_a_browser_shows_every_state_as_the_model_has_it(model, timed, tmp_path):
    """Poses of bodies, the tip of each arrow and the colour of each link, read back from the scene at every state."""
    given = states(model)
    t = np.array([3.0, 3.5, 7.0]) if timed else None
    page = sd.show(model, **given, t=t).page
    seconds = [0.0, 0.5, 4.0] if timed else [0, 1, 2]
    paths = body_paths(model)[:-1]
    told = browser.found(page, f"""{seconds}.map(t => {{
        viewer.animator.seek(t);
        viewer.scene.updateMatrixWorld(true);
        const object = path => viewer.scene_tree.find(path.split("/")).object;
        const place = path => Array.from(object(path).matrixWorld.elements);
        return {{
            scene: viewer.scene.matrixWorld.elements,
            bodies: {paths}.map(place),
            forces: {paths}.map(path => place(path + "/force at " + path.split("/").pop() + "/arrow")),
            moments: {paths}.map(path => place(path + "/moment at " + path.split("/").pop() + "/arrow")),
            colours: {paths}.map(path => Object.entries(object(path).children).map(x => x[1])
                .filter(x => x.name.startsWith("shape")).map(x => x.children[0].material.color.toArray())),
        }};
    }})""", tmp_path)  # fmt: skip
    assert isinstance(told, list), told
    moments, forces = given["fx"][..., :3], given["fx"][..., 3:]
    torque = [(k, model.v_slice(k).start) for k in range(model.nb) if model.joints[k].nv == 1]
    angular = [(k, v) for k, v in torque if np.any(model.joints[k].S[:3])]
    most = np.abs(given["tau"][:, [v for _, v in angular]]).max()
    for n, seen in enumerate(told):
        turn = np.linalg.inv(matrix(seen["scene"]))  # three.js has y up
        T = np.array([turn @ matrix(x) for x in seen["bodies"]])
        np.testing.assert_allclose(T, world_poses(model, given["q"][n]), atol=2e-6)
        for name, size in (("forces", forces), ("moments", moments)):
            arrows = np.array([turn @ matrix(x) for x in seen[name]])
            vectors = np.einsum("nij,nj->ni", world_poses(model, given["q"][n])[:, :3, :3], size[n])
            scale = np.linalg.norm(arrows[:, :3, 2]) / np.linalg.norm(vectors)
            np.testing.assert_allclose(arrows[:, :3, 2], scale * vectors, atol=2e-6)
            np.testing.assert_allclose(arrows[:, :3, 3], T[:, :3, 3], atol=2e-6)
            legend = float(re.findall(rf"{name[:-1]}: 10 cm is (\S+) N", page)[0])
            assert scale == pytest.approx(0.1 / legend, rel=1e-5)
        for k, v in angular:
            none, full = (np.array(to_rgb(x)) for x in (module.NO_TORQUE, module.FULL_TORQUE))
            expected = none * (1 - (x := abs(given["tau"][n, v]) / most)) + x * full
            assert any(np.allclose(c, expected, atol=1e-5) for c in seen["colours"][k]), (model.body_names[k], n)


def matrix(elements: list[float]) -> np.ndarray:
    """(4, 4) of the numbers by columns, as three.js has them."""
    return np.array(elements).reshape(4, 4).T


def test_a_picture_has_the_robot_in_its_middle_and_the_legend_in_words(tmp_path):
    view = sd.show(FLOATING, **states(FLOATING, 1), title="a & b <i>")
    image = matplotlib.image.imread(browser.picture(view.page, tmp_path))[..., :3]
    middle, corner = image[200:400, 300:600], image[560:, :60]
    assert middle.std() > 4 * corner.std() > 0.0  # the background is a gradient
    assert "a &amp; b &lt;i&gt;" in view.page and "N m" in view.page


# ---- the page itself -------------------------------------------------------------------------------------------------


def test_a_page_needs_nothing_but_itself_and_escapes_names():
    page = sd.show(MODEL).page
    outside = page.replace(re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)[0], "")
    assert "://" not in outside and " src=" not in outside and "<link" not in outside and "@import" not in outside
    assert "<title>&lt;b&gt;mixed&lt;/b&gt;</title>" in page and "<b>mixed" not in page
    assert not [x for x in commands(page) if x["type"] == "set_animation"]


def test_names_with_slashes_are_no_paths():
    model = sd.chain(2).replace(body_names=("a/b", "a"), frames=None)
    assert body_paths(model) == ["meshcat/robot/a∕b", "meshcat/robot/a∕b/a", "meshcat/robot"]


def test_long_batches_are_thinned_out():
    q = np.linspace(0, 1, 2 * MOST_STATES + 1)[:, None] * np.ones(2)
    page = sd.show(sd.chain(2), q).page
    (animation,) = (x for x in commands(page) if x["type"] == "set_animation")
    times = np.frombuffer(animation["animations"][0]["clip"]["tracks"][0]["times"].data, np.float32)
    assert len(times) == 667 and times[-1] == 1998 and "2,001 states, 1 in 3 is shown" in page


def test_wrenches_at_frames_are_those_on_the_body(tmp_path):
    """As `solution.wrench` gives them; zeros are no arrows."""
    model = sd.chain(2)
    page = sd.show(model, fx={"base": [0, 0, 0, 0, 0, 5.0], model.body_names[1]: np.zeros(6)}).page
    added = [x["path"] for x in commands(page) if x["type"] == "set_object" and x["path"].endswith("arrow")]
    assert added == ["/meshcat/robot/force at base/arrow"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"q": np.zeros(4)}, r"q has shape \(4,\), but \(…, 3\) is needed"),
        ({"tau": np.zeros((2, 2))}, r"tau has shape \(2, 2\)"),
        ({"q": np.zeros((2, 3)), "tau": np.zeros((5, 3))}, "axes do not fit together: q .2,., tau .5,."),
        ({"fx": np.zeros((3, 5))}, r"fx has shape \(3, 5\), but \(…, 3, 6\) is needed"),
        ({"fx": {"hand": np.zeros(6)}}, "unknown frame 'hand'"),
        ({"q": np.full(3, np.nan)}, "q is nan at entry 0"),
        ({"q": "neutral"}, "q has type <U7, but real numbers are needed"),
        ({"q": np.zeros((0, 3))}, "no state to show"),
        ({"q": np.zeros((2, 3)), "t": [1.0, 1.0]}, "the time of each of the 2 states, and increases"),
        ({"visuals": "gone.urdf"}, "cannot read"),
    ],
)
def test_what_does_not_fit_is_named(arguments, said):
    with pytest.raises(sd.SysdynError, match=said):
        sd.show(sd.chain(3), **arguments)


def test_a_missing_meshcat_is_told_how_to_get(monkeypatch):
    monkeypatch.setitem(sys.modules, "meshcat", None)
    with pytest.raises(sd.BackendUnavailable, match=r"pip install 'sysdyn-robotics\[show\]'"):
        sd.show(sd.chain(2))


# ---- views -----------------------------------------------------------------------------------------------------------


def test_a_view_is_for_notebooks_browsers_and_files(tmp_path, monkeypatch):
    view = sd.show(sd.chain(2), np.zeros((3, 2)))
    assert view.save(tmp_path / "robot.html").read_text(encoding="utf-8") == view.page
    assert view._repr_html_().startswith("<iframe") and "<!DOCTYPE" not in view._repr_html_()
    assert repr(view).startswith("View of 'chain(2, seed=0)' in 3 states")
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)) or True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert view.open().as_uri() == opened[0] and Path(opened[0].removeprefix("file://")).parent == tmp_path
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    with pytest.raises(sd.SysdynError, match="no browser can be opened here"):
        view.open()


def test_meshcat_is_loaded_with_the_first_view_alone():
    code = "import sys, sysdyn; print([x for x in ('meshcat', 'trimesh', 'scipy.spatial') if x in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
