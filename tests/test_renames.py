"""Old names: each warns with the new one, and is the same thing."""

from importlib import import_module

import pytest

import sysdyn as sd
from sysdyn.renames import NAMES, renamed


@pytest.mark.parametrize("old", NAMES)
def test_an_old_name_of_the_top_level_warns_and_works(old):
    place, name = NAMES[old]
    assert old not in sd.__all__
    with pytest.warns(DeprecationWarning, match=f"sysdyn.{old} is now {place}.{name}") as caught:
        found = getattr(sd, old)
    assert found is getattr(import_module(place), name)
    assert [x.filename for x in caught] == [__file__]


def test_the_old_keyword_of_compile_warns_and_works():
    problem = sd.inverse_dynamics(sd.chain(2))
    new = sd.compile(problem, outputs="tau", external_wrenches=False, backend="python")
    with pytest.warns(DeprecationWarning, match="wrenches= of compile is now external_wrenches=") as caught:
        old = sd.compile(problem, outputs="tau", wrenches=False, backend="python")
    assert old.program.digest == new.program.digest
    assert [x.filename for x in caught] == [__file__]
    with pytest.raises(TypeError, match="drop wrenches="):
        sd.compile(problem, wrenches=False, external_wrenches=False)


def test_other_arguments_pass_through():
    @renamed(b="c")
    def add(a: int, c: int = 1) -> int:
        """Sum."""
        return a + c

    assert add(1) == 2 and add(1, 2) == 3 and add(1, c=4) == 5 and add.__doc__ == "Sum."
    with pytest.warns(DeprecationWarning):
        assert add(1, b=3) == 4
