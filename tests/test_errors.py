"""Every exception and warning of the package survives pickling and copying, and comes back from a worker process."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

import sysdyn as sd
from sysdyn.errors import BackendUnavailable

# Modules that need a library that is not installed here are not imported.
for _module in pkgutil.walk_packages(sd.__path__, "sysdyn."):
    if not _module.name.endswith("__main__"):
        try:
            importlib.import_module(_module.name)
        except (ImportError, BackendUnavailable):
            continue


def subclasses(of: type) -> set[type]:
    return {of}.union(*(subclasses(x) for x in of.__subclasses__()))


CLASSES = sorted((x for x in subclasses(BaseException) if x.__module__.startswith("sysdyn.")), key=lambda x: x.__name__)
# Arguments of the classes that take more than a message.
ARGUMENTS = {
    "Inconsistent": ("contradiction", ("imu", "ft"), (3, 5)),
    "NoSafeOrdering": ("none is safe:\n  aba: not safe", ("aba: not safe", "crba: given up")),
    "SingularState": ("singular", "c:tau(joint1)", "qdd(joint1)", (0, 4)),
    "StructurallySingular": ("too few", ("qdd(joint1)",), ("c:tau(joint1)",)),
    "UnknownName": ("joint", "join1", ["joint0", "joint1"], "A note."),
}


def example(name: str) -> BaseException:
    made = {x.__name__: x for x in CLASSES}[name](*ARGUMENTS.get(name, ("a message",)))
    made.add_note("a note")
    made.further = (1, "x")
    return made


def throw(name: str) -> None:
    raise example(name)


def require_equal(found: BaseException, expected: BaseException) -> None:
    assert type(found) is type(expected) and str(found) == str(expected) and found.args == expected.args
    attributes = vars(expected).keys() - {"__notes__"}
    assert {x: getattr(found, x) for x in attributes} == {x: getattr(expected, x) for x in attributes}
    assert found.__notes__[0] == "a note"


def test_every_class_is_exported():
    names = {x.__name__ for x in CLASSES}
    assert len(names) == len(CLASSES) and names >= {*ARGUMENTS, "NoEstimate", "FileError", "LogWarning"}


@pytest.mark.parametrize("name", [x.__name__ for x in CLASSES])
@pytest.mark.parametrize("through", ["pickle", "copy", "deepcopy"])
def test_exceptions_pickle_and_copy_with_all_attributes(name, through):
    expected = example(name)
    if through == "pickle":
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            require_equal(pickle.loads(pickle.dumps(expected, protocol)), expected)
    else:
        require_equal(getattr(copy, through)(expected), expected)


def test_exceptions_come_back_from_a_worker():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        raised = {x.__name__: pool.submit(throw, x.__name__) for x in CLASSES}
        for name, future in raised.items():
            require_equal(future.exception(timeout=60), example(name))


def test_a_misspelt_name_in_a_worker():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        error = pool.submit(sd.chain(2).joint_index, "join1").exception(timeout=60)
    assert isinstance(error, sd.UnknownName) and error.name == "join1" and error.valid == ("joint0", "joint1")
