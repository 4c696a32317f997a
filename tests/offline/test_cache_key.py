"""Compiled problems are kept under a key that follows from the sources that decide them."""

from __future__ import annotations

from functools import partial

import pytest
from sources import changed_copy

import sysdyn as sd
from sysdyn.files.sources import sources_digest
from sysdyn.offline import cache_key as key
from sysdyn.offline.cache_key import cache_key
from sysdyn.offline.options import Options


@pytest.mark.parametrize("changed", ["sparse/lu.py", "passes.py", None])
def test_a_changed_source_is_another_key(changed, monkeypatch, tmp_path):
    problem, keys = sd.forward_dynamics(sd.chain(2)), set()
    for number, name in enumerate((None, changed)):
        package = changed_copy(tmp_path / str(number), ["sparse", "passes.py"], name)
        monkeypatch.setattr(key, "sources_digest", partial(sources_digest, package=package))
        keys.add(cache_key(problem, Options()))
    assert len(keys) == (2 if changed else 1)


def test_problems_and_options_are_part_of_the_key():
    problem = sd.forward_dynamics(sd.chain(2))
    options = [
        Options(), Options(ordering="aba"), Options(outputs=("qdd",)), Options(level="fast"),
        Options(external_wrenches=False), Options(effort=2.0),
    ]  # fmt: skip
    keys = {cache_key(problem, x) for x in options}
    assert len(keys) == len(options) and None not in keys
    assert cache_key(problem, Options()) == cache_key(sd.forward_dynamics(sd.chain(2)), Options())
    assert cache_key(problem, Options()) not in {cache_key(sd.inverse_dynamics(sd.chain(2)), Options())}
