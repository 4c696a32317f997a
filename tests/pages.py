"""Pages of Markdown with blocks of Python, and below some of these a block of text: what they print."""

from __future__ import annotations

import contextlib
import io
import math
import re
from dataclasses import dataclass, field

# A block of Python, and the block of text right below it, where there is one.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:(\n?```text\n)(.*?)^```\n)?", flags=re.DOTALL | re.MULTILINE)
# A number, as programs print it and as people write it; what stands for anything; or a sign.
TOKEN = re.compile(r"(?P<number>[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?(?:e[-+]?\d+)?)|\S")
# Numbers that are shown and those that are printed are alike to this relative difference: machines round differently.
ALIKE = 1e-5


@dataclass
class Block:
    """A block of Python: its code, the line it begins at, what the page shows below it, and what it printed."""

    code: str
    line: int
    shown: str | None
    printed: str = field(default="", init=False)

    def run(self, names: dict, where: str) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * (self.line - 1) + self.code, where, "exec"), names)
        self.printed = "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


class Page:
    """The blocks of a text, and the text with what they printed in place of what it shows."""

    def __init__(self, text: str):
        self.text = text
        self.blocks = [
            Block(found[1], text.count("\n", 0, found.start()) + 2, found[3] if found[2] else None)
            for found in BLOCK.finditer(text)
        ]

    def written(self) -> str:
        """The text as it shall be. What is the same to rounding stays."""
        blocks = iter(self.blocks)

        def block(found: re.Match) -> str:
            of = next(blocks)
            if of.shown is None or same(of.shown, of.printed):
                return found[0]
            return f"```python\n{of.code}```\n{found[2]}{of.printed}```\n"

        return BLOCK.sub(block, self.text)


def tokens(text: str) -> list[str | float]:
    return [float(found[0].replace(",", "")) if found["number"] else found[0] for found in TOKEN.finditer(text)]


def alike(a: list[str | float], b: list[str | float]) -> bool:
    return len(a) == len(b) and all(
        x == y or isinstance(x, float) and isinstance(y, float) and math.isclose(x, y, rel_tol=ALIKE)
        for x, y in zip(a, b, strict=True)
    )


def same(shown: str, printed: str) -> bool:
    """Whether signs are those shown, and numbers are to `ALIKE`, blanks aside; … stands for anything."""
    first, *middle = [tokens(part) for part in shown.split("…")]
    rest = tokens(printed)
    if not middle:
        return alike(first, rest)
    *middle, last = middle
    if len(rest) < len(first) + len(last) or not alike(first, rest[: len(first)]):
        return False
    rest, end = rest[len(first) :], rest[len(rest) - len(last) :]
    rest = rest[: len(rest) - len(last)]
    for part in middle:
        at = next((k for k in range(len(rest) - len(part) + 1) if alike(part, rest[k : k + len(part)])), None)
        if at is None:
            return False
        rest = rest[at + len(part) :]
    return alike(last, end)
