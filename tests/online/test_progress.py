"""Progress of compilations: a bar on a terminal or in a notebook after a second, nothing elsewhere."""

from __future__ import annotations

import os
import pty
import sys
import time
import types
from contextlib import contextmanager, suppress

import pytest

import sysdyn as sd
from sysdyn.online import progress

# What is written as a bar begins and as it ends, of the cursor.
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"


@contextmanager
def terminal():
    """Standard error is a terminal within, and bars come at once; gives a function for what was written there."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "DELAY", 0.0)
        patch.setenv("TERM", "xterm")
        patch.setattr(sys, "stderr", stream)  # in the test itself: before it pytest sets its own again

        def written() -> str:
            stream.flush()
            os.set_blocking(ours, False)
            found = b""
            with suppress(BlockingIOError):
                while True:
                    found += os.read(ours, 1 << 16)  # of several writes one after the other
            return found.decode(errors="replace")

        yield written
    os.close(ours)


def test_bar_is_shown_again_after_its_block():
    """Programs that are first asked for later show it, too; a share of 1 ends it."""
    with terminal() as written:
        with progress.Bar("compiling") as bar:
            bar("done", 1.0)
        assert bar.cached
        for _ in range(2):
            written()
            bar("variance tau", 0.0)
            bar("machine code", 0.6)
            seen, late = "", time.monotonic() + 20.0
            while "compiling: machine code" not in seen and time.monotonic() < late:  # drawn ten times a second
                seen += written()
            assert HIDDEN in seen and SHOWN not in seen
            bar("done", 1.0)
            assert SHOWN in written()
        assert not bar.cached


def test_compile_shows_it_by_default_on_a_terminal(monkeypatch):
    monkeypatch.setenv("SYSDYN_CACHE", "")
    problem = sd.forward_dynamics(sd.chain(2))
    with terminal() as written:
        sd.compile(problem, level="fast", progress=False)
        assert not written()
        sd.compile(problem, level="fast")
        assert "compiling" in written()


def test_it_ends_where_compiling_fails():
    free = sd.forward_dynamics(sd.chain(2)) - sd.ExternalWrench("body1")
    reported: list[float] = []
    with pytest.raises(sd.StructurallySingular):
        sd.compile(free, progress=lambda what, share: reported.append(share))
    assert reported[-1] == 1.0


def test_nothing_is_shown_where_nobody_looks(capsys):
    assert progress.progress_callback(True) is None and progress.progress_callback(False) is None
    with progress.Bar("compiling", delay=0.0) as bar:
        sd.compile(sd.forward_dynamics(sd.chain(2, seed=77)), level="fast", progress=bar)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_gets_a_bar(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", types.SimpleNamespace())
    assert isinstance(progress.progress_callback(True), progress.Bar)
