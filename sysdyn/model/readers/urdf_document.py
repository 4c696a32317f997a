"""XML of URDF files: typed access to attributes and children. Errors have file, line and element."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sysdyn.errors import ModelError, UnknownName, few
from sysdyn.model.constants import clean, exact_right_angles, read_only
from sysdyn.model.readers.source import read_text
from sysdyn.model.readers.urdf_schema import Fault, unknown_names
from sysdyn.model.se3 import quaternion_to_E
from sysdyn.program.reproducible import matmul, norm, sincos

# Largest mass, moment and length, chosen: products remain finite.
MAX_VALUE = 1e30
# Elements with values above MAX_VALUE: limits and resistance.
_UNBOUNDED = ("limit", "dynamics")
# Largest error of the norm of a quaternion: chosen.
_QUATERNION_TOLERANCE = 1e-3
_XACRO = "this is a xacro file, which sysdyn.load expands if its name ends in .xacro"
# XML declaration with its version, also after blanks.
_DECLARATION = re.compile(rb"(\s*)<\?xml\s([^>]*)\?>")
_VERSION = re.compile(rb"version\s*=\s*[\"']([^\"']*)[\"']")


class UrdfDocument:
    """A URDF file during parsing; collects deviations from the format. source: name of the file in messages.

    strict: raise ModelError for a deviation instead of collecting it. snap: see `load_urdf`.
    """

    def __init__(self, source: str, strict: bool = False, snap: bool = True):
        self.source, self.strict, self.snap = source, strict, snap
        self.deviations: list[str] = []
        self._rotations: dict[tuple[float, ...], np.ndarray] = {}  # by roll, pitch and yaw

    def deviation(self, fault: str, treatment: str) -> None:
        """Record a deviation: fault with location, and its treatment. Raises ModelError if strict."""
        if self.strict:
            raise ModelError(fault)
        self.deviations.append(f"{fault}; {treatment}")

    def error(self, line: int | None, element: str, message: str) -> ModelError:
        return ModelError(f"{self.source}:{line}: {element}: {message}")

    def root(self, text: bytes) -> Element:
        """Parse the XML text and return the element `<robot>`. Raises ModelError."""
        from lxml import etree  # imported lazily: most programs read no robot file

        # No network, no external DTD, no entity expansion: a robot file is untrusted input.
        options: dict[str, Any] = {"resolve_entities": False, "no_network": True, "load_dtd": False}
        options["encoding"] = "utf-8" if self.source == "<string>" else None
        parser = etree.XMLParser(**options)
        text = self._repair_declaration(text)
        try:
            root = etree.fromstring(text, parser)
        except etree.XMLSyntaxError as error:
            if "xacro" in str(error):
                raise self.error(error.lineno, "<xacro:…>", _XACRO) from None
            undeclared: dict[str, int] = {}
            for entry in parser.error_log.filter_from_errors():
                if entry.type != etree.ErrorTypes.NS_ERR_UNDEFINED_NAMESPACE:
                    raise self.error(entry.line, "file", f"not well-formed XML: {entry.message}") from None
                undeclared.setdefault(entry.message, entry.line)
            for message, line in undeclared.items():
                self.deviation(f"{self.source}:{line}: {message}", "read verbatim")
            root = etree.fromstring(text, etree.XMLParser(**options, recover=True))
        dtd = root.getroottree().docinfo.internalDTD
        if dtd is not None and any(True for _ in dtd.iterentities()):
            raise self.error(1, "<!DOCTYPE>", "entity declarations are not allowed in a robot file")
        for node in root.iter(etree.Element):
            if "xacro" in node.tag and ("xacro" in node.tag.rpartition("}")[0] or node.tag.startswith("xacro:")):
                raise self.error(node.sourceline, f"<{node.tag}>", _XACRO)
        if root.tag != "robot":
            kind = {"sdf": " (an SDF file)", "mujoco": " (an MJCF file)"}.get(str(root.tag), "")
            message = f"the root element of a URDF is <robot>, not <{root.tag}>{kind}"
            raise self.error(root.sourceline, f"<{root.tag}>", message)
        self._compute_rotations(root)
        return Element(root, self)

    def _compute_rotations(self, root: Any) -> None:
        """Compute the rotations of all well-formed `<origin>` at once: a humanoid has hundreds."""
        angles = set()
        for node in root.iter("origin"):
            with suppress(ValueError):
                angles.add(tuple(map(float, node.get("rpy", "").split())))
        angles = {x for x in angles if len(x) == 3 and all(abs(y) < MAX_VALUE for y in x)}
        if angles:
            self._rotations = dict(zip(angles, read_only(rpy(list(angles), self.snap)), strict=True))

    def rotation(self, angles: tuple[float, ...]) -> np.ndarray:
        """`rpy` of angles (roll, pitch, yaw)."""
        return self._rotations[angles] if angles in self._rotations else rpy(angles, self.snap)

    def check_names(self, root: Element) -> None:
        """Record unknown attributes and elements as deviations. Equal deviations are merged, with all their lines."""
        names = [e.get("name") for e in root.children("link", "joint")]
        faults = [*unknown_names(root.node)]
        for e in root.children("gazebo"):
            if (reference := e.get("reference")) and reference not in names:
                faults.append(Fault(e.node, str(UnknownName("reference", reference, names)), ("reference", reference)))
        groups: dict[tuple[str, ...], list[Fault]] = {}
        for fault in faults:
            groups.setdefault(fault.kind, []).append(fault)
        for first, *others in groups.values():
            repeats = f", also in {format_lines([fault.element.sourceline for fault in others])}" if others else ""
            Element(first.element, self).deviation(first.message, f"not read{repeats}")

    def _repair_declaration(self, text: bytes) -> bytes:
        """Move the XML declaration to the start of the text and set its version to 1.x. Line numbers are preserved."""
        match = _DECLARATION.match(text)
        if not match:
            return text
        blanks, content = match.groups()
        line, version = blanks.count(b"\n") + 1, _VERSION.search(content)
        unknown = version is not None and not version[1].startswith(b"1.")
        if blanks:
            self.deviation(f"{self.source}:{line}: <?xml>: blanks before the XML declaration", "omitted")
        if version is not None and unknown:
            name = version[1].decode(errors="replace")
            self.deviation(f'{self.source}:{line}: <?xml version="{name}">: not a version of XML', "read as 1.0")
            content = _VERSION.sub(b'version="1.0"', content)
        if not blanks and not unknown:
            return text
        newlines = b"\n" * match[0].count(b"\n")
        return b"<?xml " + content.replace(b"\n", b" ") + b"?>" + newlines + text[match.end() :]


def open_urdf(source: Any, strict: bool = False, snap: bool = True) -> Element:
    """Parse a URDF file or text. Returns the element `<robot>`. Raises ModelError, InvalidInput."""
    text, name = read_text(source)
    return UrdfDocument(name, strict, snap).root(text)


class Element:
    """An element of a `UrdfDocument` with typed access to attributes and children. node: the lxml element.

    Missing and malformed attributes and children raise ModelError.
    """

    __slots__ = ("node", "document")

    def __init__(self, node: Any, document: UrdfDocument):
        self.node, self.document = node, document

    @property
    def tag(self) -> str:
        return self.node.tag

    @property
    def line(self) -> int:
        return self.node.sourceline

    @property
    def location(self) -> str:
        """File, line and element. An unnamed element is shown with its ancestors up to the first named one."""
        name, owner = self.node.get("name"), self.node.getparent()
        text = _start_tag(self.tag, name)
        while not name and owner is not None and owner.tag != "robot":
            name = owner.get("name")
            text += f" in {_start_tag(owner.tag, name)}"
            owner = owner.getparent()
        return f"{self.document.source}:{self.line}: {text}"

    def error(self, message: str) -> ModelError:
        return ModelError(f"{self.location}: {message}")

    def deviation(self, message: str, treatment: str) -> None:
        """Record a deviation from the format. Raises ModelError if strict."""
        self.document.deviation(f"{self.location}: {message}", treatment)

    # ---- children ------------------------------------------------------------------------------------------------

    def children(self, *tags: str) -> list[Element]:
        return [Element(node, self.document) for node in self.node.iterchildren(*tags)]

    def child(self, tag: str) -> Element | None:
        """The child element `tag`, or None. Raises ModelError for several."""
        children = self.children(tag)
        if len(children) > 1:
            raise children[1].error(f"a second <{tag}>; only one is allowed")
        return children[0] if children else None

    def required_child(self, tag: str) -> Element:
        child = self.child(tag)
        if child is None:
            raise self.error(f"missing element <{tag}>")
        return child

    def first_child(self, tag: str) -> Element | None:
        """The first child element `tag`, or None. Further ones are a deviation."""
        children = self.children(tag)
        if len(children) > 1:
            children[1].deviation(f"a second <{tag}>; only one is allowed", "the first is taken")
        return children[0] if children else None

    # ---- attributes ----------------------------------------------------------------------------------------------

    def get(self, key: str) -> str:
        """The attribute without surrounding blanks; "" if it is missing."""
        return self.node.get(key, "").strip()

    def text(self, key: str) -> str:
        value = self.node.get(key)
        if value is None or not value.strip():
            raise self.error(f"missing attribute {key!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        return self.numbers(key, 1, None if default is None else (default,))[0]

    def numbers(self, key: str, count: int, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
        if default is not None and self.node.get(key) is None:
            return default
        text = self.text(key)
        if "${" in text or "$(" in text:
            raise self.error(f"{key}={text!r}: {_XACRO}")
        parts = text.split()
        if len(parts) != count:
            raise self.error(f"{key}={text!r} has {len(parts)} numbers; {count} needed")
        return tuple(self._number(key, text, part) for part in parts)

    def _number(self, key: str, text: str, part: str) -> float:
        fault = ""
        try:
            value = float(part)
        except ValueError:
            value = math.nan
            fault = "not a number"
        if "_" in part:  # a digit separator in Python, invalid in XML
            fault = "not a number"
        elif not fault and not math.isfinite(value):
            fault = "not finite"
        elif abs(value) > MAX_VALUE and self.tag not in _UNBOUNDED:
            fault = f"beyond {MAX_VALUE:g}"
        if fault:
            raise self.error(f"{key}={text!r}: {part!r} is {fault}")
        return value

    # ---- placements ----------------------------------------------------------------------------------------------

    def origin(self) -> tuple[np.ndarray, np.ndarray]:
        """(E (3, 3), r (3,) [m]) of the child `<origin>`, with E = (Rz(y) Ry(p) Rx(r))^T; identity if it is missing."""
        origin = self.first_child("origin")
        if origin is None:
            return np.eye(3), np.zeros(3)
        zero = (0.0, 0.0, 0.0)
        r = clean(np.array(origin.numbers("xyz", 3, zero)))
        if origin.node.get("quat_xyzw") is None:
            return self.document.rotation(origin.numbers("rpy", 3, zero)), r
        if origin.node.get("rpy") is not None:
            raise origin.error("both rpy and quat_xyzw are given; remove one")
        return origin.attitude(np.array(origin.numbers("quat_xyzw", 4))), r

    def attitude(self, quaternion: np.ndarray) -> np.ndarray:
        """Rotation E (3, 3) of a quaternion x y z w, normalised. Raises ModelError unless its norm is near 1."""
        size = float(norm(quaternion))
        if abs(size - 1.0) > _QUATERNION_TOLERANCE:
            raise self.error(f"quat_xyzw has norm {size:.6g}, not 1")
        return clean(quaternion_to_E(quaternion / size))


def rpy(angles: ArrayLike, right: bool = True) -> np.ndarray:
    """E (…, 3, 3) = (Rz(yaw) Ry(pitch) Rx(roll))^T for angles (…, 3) [rad], in the order roll, pitch, yaw.

    right: round angles within 1e-11 rad of multiples of π/2 to these multiples.
    """
    units = np.stack(sincos(np.asarray(angles, dtype=float)), axis=-1)
    sine, cosine = np.moveaxis(exact_right_angles(units, -1) if right else clean(units), -1, 0)
    rotations = np.zeros((3, *sine.shape[:-1], 3, 3))
    for k, E in enumerate(rotations):
        i, j = (k + 1) % 3, (k + 2) % 3
        E[..., k, k] = 1.0
        E[..., i, i] = E[..., j, j] = cosine[..., k]
        E[..., i, j], E[..., j, i] = sine[..., k], -sine[..., k]
    return clean(matmul(*rotations))


def _start_tag(tag: str, name: str | None) -> str:
    return f'<{tag} name="{name}">' if name else f"<{tag}>"


def format_lines(lines: Sequence[int]) -> str:
    return f"line{'s' * (len(lines) > 1)} {few(lines)}"
