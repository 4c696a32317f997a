"""Pages in headless Chromium: what a script finds in them, and pictures of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

# No network, and a processor in place of a graphics card.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
    "--hide-scrollbars", "--window-size=900,600",
)  # fmt: skip
# The page ends so many milliseconds of its own clock after it began.
LIFE = 1000


def chromium(page: str, folder: Path, *flags: str) -> str:
    """What Chromium prints that opens the page; skips where it is not installed."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("Chromium is not installed: apt install chromium")
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    command = [program, *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--virtual-time-budget={LIFE}", *flags]
    done = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def found(page: str, expression: str, folder: Path) -> Any:
    """The value of a JavaScript expression behind all else on the page, by way of JSON."""
    script = f"""<pre id="found"></pre><script>
    try {{ document.getElementById("found").textContent = JSON.stringify({expression}); }}
    catch (error) {{ document.getElementById("found").textContent = JSON.stringify(String(error)); }}
    </script></body>"""
    text = chromium(page.replace("</body>", script), folder, "--dump-dom")
    (told,) = re.findall(r'<pre id="found">(.*?)</pre>', text, flags=re.DOTALL)
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
        told = told.replace(entity, character)
    return json.loads(told)


def picture(page: str, folder: Path) -> Path:
    """A PNG of the page; also in the folder of SYSDYN_TEST_PICTURES, for people to look at."""
    path = folder / "page.png"
    chromium(page, folder, f"--screenshot={path}")
    if kept := os.environ.get("SYSDYN_TEST_PICTURES"):
        shutil.copy(path, Path(kept) / f"{folder.name}.png")
    return path
