"""The terminal: its two consoles, tables, and operation counts in them."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sysdyn.program.opcodes import Flops

# Width in characters of output that goes to no terminal (chosen).
PIPED_WIDTH = 120
# Exit code if nobody reads the output any more, the same as of programs that SIGPIPE ends.
UNREAD = 141


def output() -> Console:
    """Standard output as it is now (tests replace it)."""
    return _console(stderr=False)


def errors() -> Console:
    """Standard error as it is now."""
    return _console(stderr=True)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(UNREAD) from None


def _console(stderr: bool) -> Console:
    # names of robots and files may look like rich's markup: text is printed as it is, and styled by `style=` alone
    console = _Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


def print_labelled(console: Console, label: str, style: str, text: object) -> None:
    """A line that begins with a label in a style, such as "error:"."""
    console.print(Text.assemble((label, style), f" {text}"), soft_wrap=True)


def new_table(*columns: str, left: int = 1) -> Table:
    """A table without lines whose first `left` columns are text and the others numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for k, name in enumerate(columns):
        table.add_column(name, justify="left" if k < left else "right", overflow="fold")
    return table


def count_cells(flops: Flops | None) -> list[str]:
    """mul, add, div, total and sin/cos pairs as cells of a table; dashes if nothing was counted."""
    if flops is None:
        return ["–"] * 5
    div = f"{flops.div:,}" + (f" + {flops.sqrt:,} sqrt" if flops.sqrt else "")
    return [f"{flops.mul:,}", f"{flops.add:,}", div, f"{flops.total:,}", f"{flops.trig:,}"]
