"""The robot files that models were read from, for the shapes that a model does without."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from weakref import WeakKeyDictionary

from sysdyn.model.tree import Model
from sysdyn.model.urdf import is_text


class Origin(NamedTuple):
    """A robot file: its path or text, and the folder that relative paths in it start from."""

    source: str
    folder: Path


_ORIGINS: WeakKeyDictionary[Model, Origin] = WeakKeyDictionary()  # Of models of this process, for their lifetime.


def origin_of(source: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> Origin:
    """The origin for a path or a text; folder: that of a text, by default the current one."""
    if is_text(source):
        return Origin(str(source), Path(folder or "").absolute())
    path = Path(source).absolute()
    return Origin(str(path), path.parent)


def remember(model: Model, origin: Origin) -> Model:
    """The same model, whose `origin` is known from now on."""
    _ORIGINS[model] = origin
    return model


def origin(model: Model) -> Origin | None:
    """The file that a model was read from; None for models made, changed, unpickled or loaded with a solver."""
    return _ORIGINS.get(model)
