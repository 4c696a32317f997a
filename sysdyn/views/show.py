"""Three-dimensional views of robots: one self-contained page with the viewer meshcat, for browsers and notebooks."""

from __future__ import annotations

import base64
import html
import math
import tempfile
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import SysdynError
from sysdyn.files.atomic import write_file
from sysdyn.model import Model
from sysdyn.model.kinematics import forward_kinematics, joint_placement
from sysdyn.model.quantities import QUANTITY, UNIT_OF
from sysdyn.model.se3 import pose, rotation, rotx, translation
from sysdyn.views.motion import StateSequence, Viewable, motion_of, view_arguments
from sysdyn.views.shapes import (
    LINK_LINE,
    Box,
    Colour,
    Cylinder,
    Ellipsoid,
    Mesh,
    Shape,
    Visual,
    along,
    package,
    shapes_of,
)

# Length of the longest arrow, as a share of the robot's size (chosen).
LONGEST_ARROW = 0.5
# Colours of arrows, and of joints with zero and with the greatest torque (Okabe and Ito's palette).
FORCE, MOMENT, NO_TORQUE, FULL_TORQUE = "#009E73", "#CC79A7", "#D9D9D9", "#D55E00"
# The parts of a wrench: name, its first component, unit, colour, number of arrow heads.
PARTS = (("force", 3, UNIT_OF["fx"], FORCE, 1), ("moment", 0, UNIT_OF["nx"], MOMENT, 2))
# Radii of the shaft and the heads of an arrow of unit length, and the length of a head (chosen).
SHAFT, HEAD, HEAD_LENGTH = 0.02, 0.06, 0.18
# Properties of objects that are visible through others.
OVERLAY = {"depthTest": False, "transparent": True, "side": 0}
# Interpolation of three.js between keyframes: stepwise constant, or linear.
STEPWISE, LINEAR = 2300, 2301
# Path of the robot in the scene.
ROOT = "meshcat/robot"
# Position of the camera relative to the robot, in sizes of the robot, and the least size of a robot [m] (chosen).
VIEW, MIN_SIZE = np.array([0.52, -0.44, 0.26]), 0.2
# Commands that stop the animation at its first state and open the panel with the slider.
INITIALISE = "viewer.animator.pause(); viewer.animator.seek(0); viewer.gui.open();"
# Height of a view in a notebook [pixels] (chosen).
HEIGHT = 480


def show(
    model: Model | Viewable, q: ArrayLike | None = None, *, fx: ArrayLike | Mapping[str, ArrayLike] | None = None,
    tau: ArrayLike | None = None, t: ArrayLike | None = None, visuals: Any = None, title: str = "",
) -> View:  # fmt: skip
    """Show a robot in the viewer meshcat.

    Parameters
    ----------
    model : Model, or a result such as Run or Simulation
        A result provides q, t, tau and wrenches unless they are given. Shapes are those of the URDF or MJCF file of the
        model; a body without any is shown as the ellipsoid of constant density that has its inertia.
    q : (…, nq) array_like, optional
        One state or many [rad, m], which a slider selects; by default neutral. Of more than 1,000 every k-th is shown.
    fx : (…, nb, 6) array_like or dict, optional
        External wrenches [N m, N] on bodies in their coordinates, as arguments and outputs of a Solver; or
        {frame: (…, 6)} at the origin of frames in their coordinates, like `solution.wrench`. Arrows with one head are
        forces, those with two are moments; a legend shows their scale.
    tau : (…, nv) array_like, optional
        Joint torques or forces [N m, N]: colour each link by that of its joint, if it has one degree of freedom.
    t : (N,) array_like, optional
        Times of the states [s], interpolated linearly in between. None: each state is shown for a second.
    visuals : str, Path, mujoco.MjModel or False, optional
        Robot file with the shapes, if the model was not read from it. False: inertia ellipsoids only.
    title : str

    Returns
    -------
    View
        For a notebook, a browser (`.open()`) or a file (`.save(path)`).

    Raises
    ------
    BackendUnavailable
        If meshcat is not installed.
    InvalidInput
        With the name of the argument.
    """
    package("meshcat")
    if not isinstance(model, Model):
        given = {name: x for name, x in (("q", q), ("fx", fx), ("tau", tau), ("t", t)) if x is not None}
        return show(**{**view_arguments(model), **given}, visuals=visuals, title=title)
    motion = motion_of(model, q, fx, tau, t)
    page = _page(model, motion, shapes_of(model, visuals), title or model.name)
    return View(page, model.name, motion.total)


class View:
    """A robot in the viewer meshcat. `page` is one HTML file that needs no network."""

    def __init__(self, page: str, name: str, states: int):
        self.page, self._name, self._states = page, name, states

    def save(self, path: str | Path) -> Path:
        """Write the page. Raises FileError."""
        return write_file(path, self.page.encode())

    def open(self) -> Path:
        """Show the page in the browser, from a temporary file. Raises SysdynError if there is no browser."""
        with tempfile.NamedTemporaryFile(prefix="sysdyn-", suffix=".html", delete=False) as file:
            file.write(self.page.encode())
        if not webbrowser.open(Path(file.name).as_uri()):
            raise SysdynError(f"no browser can be opened here: open {file.name} in one, or write the page with save()")
        return Path(file.name)

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.page)}" '
            f'style="width: 100%; height: {HEIGHT}px; border: none; resize: vertical"></iframe>'
        )

    def __repr__(self) -> str:
        states = f"{self._states:,} states" if self._states > 1 else "one state"
        return f"View of {self._name!r} in {states}: .open() shows it in the browser, .save(path) writes the page"


# ---- the scene -------------------------------------------------------------------------------------------------------


class Track(NamedTuple):
    """Keyframes of a property for three.js: times (N,) and values (N, m)."""

    name: str
    kind: str
    times: np.ndarray
    values: np.ndarray
    interpolation: int

    def lower(self) -> dict[str, Any]:
        """The track as meshcat sends it."""
        pack = package("meshcat.geometry").pack_numpy_array
        times, values = (pack(x.astype(np.float32).reshape(-1))["array"] for x in (self.times, self.values))
        return {"name": f".{self.name}", "type": self.kind, "times": times, "values": values,
                "interpolation": self.interpolation}  # fmt: skip


class Scene:
    """A tree of objects by path, and keyframes of their properties at times (N,), as commands to the viewer."""

    def __init__(self, times: np.ndarray, interpolation: int) -> None:
        self.meshcat = package("meshcat")
        self.times, self.interpolation = times, interpolation
        self._commands: list[Any] = []
        self._tracks: dict[str, dict[str, Track]] = {}

    def place(self, path: str, T: np.ndarray) -> None:
        """Place an object at T (4, 4) in its parent."""
        self._commands.append(self.meshcat.commands.SetTransform(T, self._path(path)))

    def put(self, path: str, name: str, value: Any) -> None:
        """Set a property."""
        self._commands.append(self.meshcat.commands.SetProperty(name, value, self._path(path)))

    def add(self, path: str, T: np.ndarray, shape: Shape, colour: Colour, **look: Any) -> None:
        """Add an object. look: further properties of its material."""
        g = self.meshcat.geometry
        red, green, blue = (round(255 * x) for x in colour[:3])
        look = {"opacity": colour[3], "flatShading": isinstance(shape, Mesh), **look}
        material = g.MeshPhongMaterial(red << 16 | green << 8 | blue, **look)
        if isinstance(shape, Box):
            geometry = g.Box([float(x) for x in shape.size])
        elif isinstance(shape, Ellipsoid):
            geometry = g.Ellipsoid([float(x) for x in shape.radii])
        elif isinstance(shape, Cylinder):
            geometry, T = g.Cylinder(shape.length, shape.radius), T @ _Y_TO_Z
        else:
            geometry = g.TriangularMeshGeometry(shape.vertices, shape.faces)
        self._commands.append(self.meshcat.commands.SetObject(geometry, material, self._path(path)))
        self.place(path, T)

    def vary(self, path: str, name: str, kind: str, values: np.ndarray) -> None:
        """Animate a property by values (N, m) of a type of three.js, unless these are constant."""
        if np.any(values != values[0]):
            track = Track(name, kind, self.times, values, self.interpolation)
            self._tracks.setdefault(path, {})[name] = track

    def move(self, path: str, T: np.ndarray) -> None:
        """Animate the pose of an object by T (N, 4, 4)."""
        from scipy.spatial.transform import Rotation  # slow to import

        self.place(path, T[0])
        self.vary(path, "position", "vector3", T[:, :3, 3])
        self.vary(path, "quaternion", "quaternion", Rotation.from_matrix(T[:, :3, :3]).as_quat())

    @property
    def moving(self) -> bool:
        """True if anything is animated."""
        return bool(self._tracks)

    def packed(self) -> Iterator[bytes]:
        """The commands in the format of the viewer."""
        commands = list(self._commands)
        if self._tracks:
            animation = self.meshcat.animation
            clips = {self._path(path): animation.AnimationClip(x, fps=1) for path, x in self._tracks.items()}
            commands.append(self.meshcat.commands.SetAnimation(animation.Animation(clips)))
        pack = package("umsgpack").packb
        return (pack(command.lower()) for command in commands)

    def _path(self, path: str) -> Any:
        return self.meshcat.path.Path(tuple(path.split("/")))


# Rotation from y, the axis of cylinders in three.js, to z.
_Y_TO_Z = pose(rotx(math.pi / 2).T, np.zeros(3))


def body_paths(model: Model) -> list[str]:
    """The path of each body in the scene, inside that of its parent; last the path of the base."""
    paths = [ROOT] * (model.nb + 1)
    for i, name in enumerate(model.body_names):
        paths[i] = f"{paths[model.parent[i]]}/{name.replace('/', '∕')}"
    return paths


def _page(model: Model, motion: StateSequence, shapes: Sequence[Visual], title: str) -> str:
    """The page: viewer, commands and legend."""
    scene = Scene(motion.t, LINEAR if motion.timed else STEPWISE)
    middle, size = _extent(model, motion.q[0], shapes)
    paths = body_paths(model)
    for i, path in enumerate(paths[:-1]):
        placed = [pose(*joint_placement(model, i, q)) for q in (motion.q if model.joints[i].nq else motion.q[:1])]
        scene.move(path, np.array(placed))
    colours, legend = _torques(model, motion)
    for k, x in enumerate(shapes):
        path, colour = f"{paths[x.body]}/shape {k}", x.colour
        if motion.tau is not None and colour != LINK_LINE:
            rgb = colours[x.body]
            colour = (*rgb[0], colour[3])
            scene.vary(f"{path}/<object>", "material.color", "color", rgb)
        scene.add(path, x.T, x.shape, colour)
    legend += _arrows(scene, model, motion, paths, size)
    scene.put("Background", "top_color", [1.0, 1.0, 1.0])
    scene.put("Background", "bottom_color", [0.86, 0.88, 0.91])
    return _html(scene, title, [*legend, *_about_states(motion)], middle, middle + size * VIEW)


def _extent(model: Model, q: np.ndarray, shapes: Sequence[Visual]) -> tuple[np.ndarray, float]:
    """Centre (3,) and diagonal [m] of the bounding box of the robot at q (nq,)."""
    T = [*(pose(rotation(X), translation(X)) for X in forward_kinematics(model, q)), np.eye(4)]
    signs = np.array(list(np.ndindex(2, 2, 2))) * 2 - 1
    corners = [(T[x.body] @ x.T)[:3] @ np.append(s * x.shape.half, 1.0) for x in shapes for s in signs]
    points = np.array([*corners, *(x[:3, 3] for x in T)])
    low, high = points.min(axis=0), points.max(axis=0)
    return (low + high) / 2, max(float(np.linalg.norm(high - low)), MIN_SIZE)


def _torques(model: Model, motion: StateSequence) -> tuple[list[np.ndarray], list[LegendEntry]]:
    """Colours (N, 3) of each body and the base by the torque of its joint, and the legend."""
    none, full, legend = _rgb(NO_TORQUE), _rgb(FULL_TORQUE), list[LegendEntry]()
    colours = [np.tile(none, (len(motion.q), 1)) for _ in range(model.nb + 1)]
    if motion.tau is None:
        return colours, legend
    units = QUANTITY["tau"].units(model)
    for unit, what in (("N m", "torque"), ("N", "force")):
        bodies = [i for i in range(model.nb) if model.joints[i].nv == 1 and units[model.v_slice(i).start] == unit]
        if not bodies:
            continue
        size = np.abs(motion.tau[:, [model.v_slice(i).start for i in bodies]])
        most = float(size.max())
        for i, x in zip(bodies, size.T / (most or 1.0), strict=True):
            colours[i] = none + x[:, None] * (full - none)
        swatch = f"linear-gradient(to right, {NO_TORQUE}, {FULL_TORQUE})"
        legend.append(LegendEntry(swatch, f"{what} of a link's joint: 0 to {most:.3g} {unit}"))
    return colours, legend


def _arrows(scene: Scene, model: Model, motion: StateSequence, paths: Sequence[str], size: float) -> list[LegendEntry]:
    """Add an arrow for each force and moment that is not always zero; returns the legend."""
    legend = []
    for what, first, unit, colour, heads in PARTS:
        vectors = {name: x[:, first : first + 3] for name, x in motion.wrenches.items()}
        vectors = {name: x for name, x in vectors.items() if x.any()}
        if not vectors:
            continue
        longest = max(float(np.linalg.norm(x, axis=1).max()) for x in vectors.values())
        decimetre = _round(0.1 * longest / (LONGEST_ARROW * size))
        legend.append(LegendEntry(colour, f"{what}: 10 cm is {decimetre:g} {unit}, the greatest {longest:.3g} {unit}"))
        for name, x in vectors.items():
            frame = model.frame(name)
            path = f"{paths[frame.body]}/{what} at {name.replace('/', '∕')}"
            at = pose(rotation(frame.X), translation(frame.X))
            lengths = np.linalg.norm(x, axis=1)
            turned = np.array([along(v, np.zeros(3)) if v.any() else np.eye(4) for v in x])
            scene.add(f"{path}/arrow", np.eye(4), _arrow(heads), (*_rgb(colour), 1.0), **OVERLAY)
            scene.move(path, at @ turned)
            scale = np.maximum(0.1 * lengths / decimetre, 1e-9)[:, None] * np.ones(3)
            scene.put(path, "scale", scale[0].tolist())
            scene.vary(path, "scale", "vector3", scale)
    return legend


def _arrow(heads: int) -> Mesh:
    """An arrow of unit length along z: a surface of revolution of its outline (radius, z)."""
    outline = [(0.0, 0.0), (SHAFT, 0.0)]
    for k in range(heads):
        z = 1.0 - (heads - k) * HEAD_LENGTH
        outline += [(SHAFT, z), (HEAD, z), (SHAFT * (k < heads - 1), z + HEAD_LENGTH)]
    n = 16
    angles = np.linspace(0.0, 2.0 * math.pi, n, endpoint=False)
    rings = [np.column_stack([r * np.cos(angles), r * np.sin(angles), np.full(n, z)]) for r, z in outline]
    faces = []
    for ring in range(len(outline) - 1):
        a = n * ring + np.arange(n)
        b = n * ring + (np.arange(n) + 1) % n
        faces += [np.column_stack([a, b, b + n]), np.column_stack([a, b + n, a + n])]
    return Mesh(np.vstack(rings), np.vstack(faces))


def _round(x: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is not less than x."""
    power = 10.0 ** math.floor(math.log10(x))
    return next(float(f"{k * power:g}") for k in (1, 2, 5, 10) if k * power >= x * (1 - 1e-9))


def _rgb(colour: str) -> np.ndarray:
    """(3,) of "#RRGGBB"."""
    return np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255.0


# ---- the page --------------------------------------------------------------------------------------------------------


class LegendEntry(NamedTuple):
    """A line of the legend: CSS background of its swatch, "" for none, and its text."""

    swatch: str
    text: str


def _about_states(motion: StateSequence) -> list[LegendEntry]:
    """The legend of the slider."""
    if motion.total == 1:
        return []
    what = "time is in seconds" if motion.timed else "time is the number of the state"
    some = f", 1 in {motion.every} is shown" if motion.every > 1 else ""
    return [LegendEntry("", f"{motion.total:,} states{some}: {what}")]


def _html(scene: Scene, title: str, legend: Sequence[LegendEntry], middle: np.ndarray, eye: np.ndarray) -> str:
    """The page. The camera is at `eye` and looks at `middle`, both (3,) [m]."""
    viewer = Path(package("meshcat").viewer_assets_path(), "dist", "main.min.js").read_text(encoding="utf-8")
    commands = "\n".join(base64.b64encode(x).decode() for x in scene.packed())
    target, position = (f"{x:.6g}, {z:.6g}, {-y:.6g}" for x, y, z in (middle, eye))  # three.js has y up
    lines = "".join(
        f'<div>{f"""<i style="background: {x.swatch}"></i>""" if x.swatch else ""}{html.escape(x.text)}</div>\n'
        for x in legend
    )
    return f"""<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<title>{html.escape(title)}</title>
<style>
body {{ margin: 0; overflow: hidden; }}
#scene {{ width: 100vw; height: 100vh; }}
#legend {{
    position: absolute; left: 0; top: 0; padding: 0.5em 0.8em; max-width: 60vw; pointer-events: none;
    font: 13px/1.5 sans-serif; color: #222; background: rgba(255, 255, 255, 0.75);
}}
#legend i {{ display: inline-block; width: 2.5em; height: 0.8em; margin-right: 0.6em; }}
</style>
</head>
<body>
<div id="scene"></div>
<div id="legend"><b>{html.escape(title)}</b>
{lines}</div>
<script>{viewer}</script>
<script id="commands" type="text/plain">
{commands}
</script>
<script>
const viewer = new MeshCat.Viewer(document.getElementById("scene"));
for (const line of document.getElementById("commands").textContent.trim().split("\\n"))
    viewer.handle_command_bytearray(Uint8Array.from(atob(line), c => c.charCodeAt(0)));
viewer.controls.target.set({target});
viewer.camera.position.set({position});
viewer.gui.__folders.Scene.close();
{INITIALISE if scene.moving else ""}
</script>
</body>
</html>
"""
