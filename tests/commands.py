"""Command lines of sysdyn, run in this process."""

from __future__ import annotations

from click.testing import Result
from typer.testing import CliRunner

from sysdyn.app.cli import app
from sysdyn.app.terminal import WRONG


def run(*arguments: object, code: int = 0) -> Result:
    """The result of a command line; its exit code is `code`."""
    result = CliRunner().invoke(app, [str(x) for x in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert result.exit_code == code, f"{arguments}: {result.output}"
    return result


def error(*arguments: object, code: int = WRONG) -> str:
    """The one line that a wrong command line gives on standard error."""
    result = run(*arguments, code=code)
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and "Traceback" not in result.output
    return lines[0]
