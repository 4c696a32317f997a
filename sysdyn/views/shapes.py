"""Shapes of robots: visual geometry of URDF and MJCF files, and inertia ellipsoids for bodies without any."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sysdyn.errors import BackendUnavailable, FormatWarning, InvalidInput, ModelError, few, install, optional, warn
from sysdyn.model import Model
from sysdyn.model.frames import Origin
from sysdyn.model.inertia import first_moment, pseudo_inertia
from sysdyn.model.readers.mjcf import TO_XYZW, body_and_joint_names
from sysdyn.model.readers.mujoco import compiled, imported, root_element
from sysdyn.model.readers.source import origin_of, read_text
from sysdyn.model.readers.urdf_document import Element, UrdfDocument
from sysdyn.model.se3 import pose, quaternion_to_E, rotation, translation

Colour = tuple[float, float, float, float]  # Red, green, blue and opacity, each in 0 … 1.

# Colours of shapes without a colour in the file, of inertia ellipsoids, and of lines between joints.
DEFAULT_COLOUR: Colour = (0.78, 0.79, 0.81, 1.0)
INERTIA_COLOUR: Colour = (0.35, 0.55, 0.75, 0.75)
LINK_LINE: Colour = (0.35, 0.37, 0.40, 1.0)
# Least half axis of an inertia ellipsoid [m], and the radius of a line as a share of its length (chosen).
MIN_AXIS, LINE_RADIUS = 0.004, 0.015
# URI schemes of meshes in packages of ROS and Gazebo.
PACKAGE_SCHEMES = ("package://", "model://")
# Environment variables of ROS with folders of packages, or folders that contain them in "share".
PATHS = ("ROS_PACKAGE_PATH", "AMENT_PREFIX_PATH", "CMAKE_PREFIX_PATH")
# First group of geoms that MuJoCo hides by default.
HIDDEN_GROUP = 3


# ---- shapes --------------------------------------------------------------------------------------------------------


class Box(NamedTuple):
    """size (3,) [m]: lengths of the edges along x, y, z."""

    size: Sequence[float]

    @property
    def half(self) -> np.ndarray:
        return np.asarray(self.size, dtype=float) / 2


class Ellipsoid(NamedTuple):
    """radii (3,) [m]: half axes along x, y, z."""

    radii: Sequence[float]

    @property
    def half(self) -> np.ndarray:
        return np.asarray(self.radii, dtype=float)


class Cylinder(NamedTuple):
    """A cylinder along z, centred at the origin; radius and length [m]."""

    radius: float
    length: float

    @property
    def half(self) -> np.ndarray:
        return np.array([self.radius, self.radius, self.length / 2])


class Mesh(NamedTuple):
    """vertices (n, 3) [m]; faces (m, 3): indices of vertices."""

    vertices: np.ndarray
    faces: np.ndarray

    @property
    def half(self) -> np.ndarray:
        """Half edges of the bounding box that is centred at the origin."""
        return np.abs(self.vertices).max(axis=0, initial=0.0)


Shape = Box | Ellipsoid | Cylinder | Mesh


@dataclass(frozen=True, eq=False)
class Visual:
    """A shape fixed to a body (−1: the base), at the pose T (4, 4) in it."""

    body: int
    T: np.ndarray
    shape: Shape
    colour: Colour


# A shape in a frame of a robot file: name of the frame, T (4, 4) there, shape, colour.
Framed = tuple[str, np.ndarray, Shape, Colour]


# ---- of a model ----------------------------------------------------------------------------------------------------


def shapes_of(model: Model, source: Any = None) -> list[Visual]:
    """The shapes in the file of a robot, and inertia ellipsoids of bodies without any.

    source: the robot file (path or text) or mujoco.MjModel; None: the file of the model; False: ellipsoids only. A
    FormatWarning lists shapes that cannot be shown.

    Raises InvalidInput for a file of another robot, ModelError for one that cannot be read.
    """
    if source is None:
        source = model.source
    found: list[Visual] = []
    if source is not None and source is not False:
        faults: list[str] = []
        framed = list(_of_file(source, faults))
        for name, T, shape, colour in framed:
            if name in model.frames:
                X = model.frames[name].X
                found.append(Visual(model.frames[name].body, pose(rotation(X), translation(X)) @ T, shape, colour))
        if framed and not found:
            raise InvalidInput(
                f"the shapes are in frames that {model.name!r} does not have, such as {framed[0][0]!r}: "
                "visuals= is the file of another robot"
            )
        if faults:
            warn(few(faults, between="\n"), FormatWarning)
    shown = {x.body for x in found}
    return found + [x for i in range(-1, model.nb) if i not in shown for x in _inertia(model, i)]


def _inertia(model: Model, i: int) -> Iterator[Visual]:
    """The ellipsoid of constant density with the mass and inertia of body i, and lines to its joints.

    Its half axes are √(5 λ) of the eigenvalues λ of the covariance of mass about its centre.
    """
    mass, here = float(model.inertias[i, 5, 5]) if i >= 0 else 0.0, np.zeros(3)
    if mass > 0.0:
        here = first_moment(model.inertias[i]) / mass
        covariance = pseudo_inertia(model.inertias[i])[:3, :3] / mass - np.outer(here, here)
        squares, axes = np.linalg.eigh(5.0 * covariance)
        axes[:, 0] *= np.sign(np.linalg.det(axes))
        yield Visual(i, pose(axes.T, here), Ellipsoid(np.sqrt(np.maximum(squares, MIN_AXIS**2))), INERTIA_COLOUR)
    children = model.children[i] if i >= 0 else [k for k, p in enumerate(model.parent) if p < 0]
    for end in [np.zeros(3), *(translation(model.X_tree[k]) for k in children)]:
        length = float(np.linalg.norm(end - here))
        if length > MIN_AXIS:
            T = along(end - here, (end + here) / 2)
            yield Visual(i, T, Cylinder(LINE_RADIUS * length, length), LINK_LINE)


def along(direction: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Pose (4, 4) of a frame at the point `at` (3,) whose z axis is along `direction` (3,)."""
    z = direction / np.linalg.norm(direction)
    x = np.cross(np.eye(3)[np.argmin(np.abs(z))], z)
    x /= np.linalg.norm(x)
    return pose(np.array([x, np.cross(z, x), z]), at)


# ---- of files ------------------------------------------------------------------------------------------------------


def _of_file(source: Any, faults: list[str]) -> Iterator[Framed]:
    """The shapes of a robot file, its text, an Origin or an mjModel; errors of single shapes are added to `faults`."""
    if not isinstance(source, (str, os.PathLike, Origin)):
        return _of_mujoco(source)
    found = source if isinstance(source, Origin) else origin_of(source)
    text, name = read_text(found.file)
    if root_element(text.decode(errors="replace")) == "mujoco":
        return _of_mujoco(compiled(found.file))
    return _of_urdf(text, name, found.folder, faults)


def _of_urdf(text: bytes, name: str, folder: Path, faults: list[str]) -> Iterator[Framed]:
    """The shapes of `<visual>` elements."""
    robot = UrdfDocument(name).root(text)
    colours = {m.get("name"): m for m in robot.children("material")}
    meshes: dict[str, list[tuple[Mesh, Colour | None]]] = {}
    for link in robot.children("link"):
        for visual in link.children("visual"):
            try:
                T = pose(*visual.origin())
                colour = _urdf_colour(visual, colours)
                for element in visual.required_child("geometry").children("*"):  # no comments
                    for shape, own in _urdf_shapes(element, folder, meshes):
                        yield link.get("name"), T, shape, colour or own or DEFAULT_COLOUR
            except (ModelError, BackendUnavailable) as error:
                faults.append(str(error))


def _urdf_colour(visual: Element, colours: dict[str, Element]) -> Colour | None:
    """The colour of a visual's material, which may be defined at the robot; None if it has none."""
    material = visual.child("material")
    if material is None:
        return None
    definition = colours.get(material.get("name"), material)
    colour = material.child("color") or definition.child("color")
    return None if colour is None else colour.numbers("rgba", 4)  # type: ignore[return-value]


def _urdf_shapes(
    element: Element, folder: Path, meshes: dict[str, list[tuple[Mesh, Colour | None]]]
) -> list[tuple[Shape, Colour | None]]:
    """The shapes of a child of `<geometry>`, and the colours of mesh files."""
    if element.tag == "box":
        return [(Box(element.numbers("size", 3)), None)]
    if element.tag == "sphere":
        return [(Ellipsoid(3 * [element.number("radius")]), None)]
    if element.tag == "cylinder":
        return [(Cylinder(element.number("radius"), element.number("length")), None)]
    if element.tag != "mesh":
        raise element.error("shapes of this kind are not shown, but boxes, spheres, cylinders and meshes")
    file, scale = element.text("filename"), element.numbers("scale", 3, (1.0, 1.0, 1.0))
    if file not in meshes:
        path = find_mesh(file, folder)
        if path is None:
            hint = f": {' and '.join(PATHS[:2])} say where packages are" if file.startswith(PACKAGE_SCHEMES) else ""
            raise element.error(f"the mesh {file!r} is not found{hint}")
        try:
            meshes[file] = read_mesh(path)
        except BackendUnavailable:
            raise
        except Exception as error:  # of whatever reads the format
            raise element.error(f"the mesh {path} cannot be read: {error or type(error).__name__}") from error
    return [(Mesh(mesh.vertices * scale, mesh.faces), colour) for mesh, colour in meshes[file]]


def find_mesh(name: str, folder: Path) -> Path | None:
    """The file of package://PACKAGE/PATH, model://…, file://… or a path in a robot file of that folder, or None.

    Packages are looked for in the parent folders and in those of `PATHS`.
    """
    rest = name.rpartition("://")[2]
    if not name.startswith(PACKAGE_SCHEMES):
        path = folder / rest
        return path if path.is_file() else None
    package, _, inside = rest.partition("/")
    listed = [Path(x) for variable in PATHS for x in os.environ.get(variable, "").split(os.pathsep) if x]
    for place in (folder, *folder.parents, *listed):
        for whole in (place / package, place / "share" / package, place if place.name == package else None):
            if whole is not None and (whole / inside).is_file():
                return whole / inside
    return None


def read_mesh(path: Path) -> list[tuple[Mesh, Colour | None]]:
    """The meshes in a file that trimesh reads, such as STL, OBJ and Collada, in metres, with their colours.

    Raises BackendUnavailable if trimesh is missing, and errors of trimesh.
    """
    trimesh = package("trimesh")
    if path.suffix.lower() == ".dae":
        package("collada")  # which trimesh needs
    scene = trimesh.load_scene(path)
    # of Collada files: other formats say nothing of units, and those of robots are in metres
    metres = trimesh.units.unit_conversion(scene.units, "meters") if path.suffix.lower() == ".dae" else 1.0
    found: list[tuple[Mesh, Colour | None]] = []
    for part in scene.dump():
        if not len(getattr(part, "faces", ())):
            continue  # lines and points
        colour = getattr(getattr(part.visual, "material", None), "main_color", None)
        part.merge_vertices(merge_tex=True, merge_norm=True)
        mesh = Mesh(np.array(part.vertices) * metres, np.array(part.faces))
        found.append((mesh, None if colour is None else tuple((np.asarray(colour) / 255.0).tolist())))
    return found


def package(name: str) -> Any:
    """Import a package for views. Raises BackendUnavailable with what to install."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what meshcat imports
        missing = f"robots are shown by means of {name}, which is not available ({{error}}): {install('show')}"
        return optional(name, missing)


def _of_mujoco(m: Any) -> Iterator[Framed]:
    """The geoms that MuJoCo shows by default, except planes and height fields."""
    kinds = imported().mjtGeom
    links, _ = body_and_joint_names(m)
    for g in np.flatnonzero(m.geom_group < HIDDEN_GROUP).tolist():
        kind, size = kinds(m.geom_type[g]), m.geom_size[g]
        T = pose(quaternion_to_E(m.geom_quat[g][TO_XYZW]), m.geom_pos[g])
        material = m.geom_matid[g]
        colour = tuple((m.mat_rgba[material] if material >= 0 else m.geom_rgba[g]).tolist())
        shapes: list[tuple[np.ndarray, Shape]] = []
        if kind == kinds.mjGEOM_BOX:
            shapes = [(T, Box(2 * size))]
        elif kind in (kinds.mjGEOM_SPHERE, kinds.mjGEOM_ELLIPSOID):
            shapes = [(T, Ellipsoid(size if kind == kinds.mjGEOM_ELLIPSOID else 3 * [float(size[0])]))]
        elif kind in (kinds.mjGEOM_CYLINDER, kinds.mjGEOM_CAPSULE):
            shapes = [(T, Cylinder(float(size[0]), 2 * float(size[1])))]
            for end in (-1, 1) if kind == kinds.mjGEOM_CAPSULE else ():
                shapes.append((T @ pose(np.eye(3), np.array([0, 0, end * size[1]])), Ellipsoid(3 * [float(size[0])])))
        elif kind == kinds.mjGEOM_MESH:
            mesh = m.geom_dataid[g]
            vertices, faces = (
                getattr(m, f"mesh_{x}")[(a := getattr(m, f"mesh_{x}adr")[mesh]) : a + getattr(m, f"mesh_{x}num")[mesh]]
                for x in ("vert", "face")
            )
            shapes = [(T, Mesh(np.array(vertices), np.array(faces)))]
        for place, shape in shapes:
            yield links[m.geom_bodyid[g]], place, shape, colour
