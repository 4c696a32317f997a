"""The progress bar of the terminal."""

from __future__ import annotations

import io

from rich.console import Console

from sysdyn.app import terminal


def test_bar_is_shown_again_after_its_block(monkeypatch):
    """Programs that are first asked for later show it, too; a share of 1 ends it."""
    written = io.StringIO()
    monkeypatch.setattr(terminal, "PATIENCE", 0.0)
    monkeypatch.setattr(terminal, "errors", lambda: Console(file=written, force_terminal=True, width=80))
    with terminal.Bar("compiling") as bar:
        bar("done", 1.0)
    assert bar.cached
    for _ in range(2):
        written.truncate(0)
        bar("variance tau", 0.0)
        bar._timer.join()
        bar("machine code", 0.6)
        bar._progress.refresh()
        assert "compiling: machine code" in written.getvalue() and bar._progress.live.is_started
        bar("done", 1.0)
        assert bar._timer is None and not bar._progress.live.is_started
    assert not bar.cached
