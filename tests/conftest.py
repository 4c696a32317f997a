"""One cache folder a test session, shared by its workers, and the Hypothesis profile of the project."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from hypothesis import settings

# Fixed seeds: a run that passes passes again. Two shared cores are no ground for deadlines.
settings.register_profile("sysdyn", deadline=None, derandomize=True)
settings.load_profile("sysdyn")

_VARIABLE = "SYSDYN_CACHE"
_made: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    """The user's cache is never touched; compiled kernels are shared by all tests of the session."""
    worker = getattr(config, "workerinput", None)
    if worker is None:
        _made.append(tempfile.mkdtemp(prefix="sysdyn-tests-"))
        os.environ[_VARIABLE] = _made[0]
    else:
        os.environ[_VARIABLE] = worker["sysdyn_cache"]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """pytest-xdist: tell a worker where the session's cache is."""
    node.workerinput["sysdyn_cache"] = _made[0]


def pytest_unconfigure() -> None:
    for folder in _made:
        shutil.rmtree(folder, ignore_errors=True)
