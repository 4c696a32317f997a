"""sysdyn compiles dynamics problems of articulated robots into short straight-line programs of known, exact cost.

model = sysdyn.load("robot.urdf")
solver = sysdyn.compile(sysdyn.forward_dynamics(model))
solution = solver(q, qd, tau)

The public names are in __init__.pyi. Each is imported when it is first used (PEP 562), from the module that is named
there, so that programs load what they need.
"""

import ast
from importlib import import_module
from pkgutil import get_data

from sysdyn.errors import VERSION as __version__  # noqa: F401, N811

_places = {
    imported.name: line.module
    for line in ast.parse(get_data(__name__, "__init__.pyi") or b"").body
    if isinstance(line, ast.ImportFrom)
    for imported in line.names
}
__all__ = sorted(name for name, place in _places.items() if place != __name__)  # without modules


def __getattr__(name: str) -> object:
    if name not in _places:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = _places[name]
    if place == __name__:
        return import_module(f"{__name__}.{name}")
    globals()[name] = found = getattr(import_module(place), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_places})
