"""Build hook of the package: compiles the C files of this folder into the module `extension`."""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path(__file__).parent
# Without floating-point contraction: products are rounded before a sum, so that C and NumPy agree bitwise.
# Without a procedure linkage table: a call from Python makes dozens of calls of Python and NumPy (-fno-plt).
# Only inlined functions have vector arguments, so the vector ABI does not matter (-Wno-psabi).
FLAGS = ("-O2", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fno-tree-vectorize", "-fno-plt", "-Wno-psabi")


class Native(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        library = compiled()
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["artifacts"].append(f"/{library.relative_to(self.root)}")


def compiled() -> Path:
    """Path of the library, compiled next to its source. Raises RuntimeError without a compiler or headers."""
    import numpy

    sources = sorted(FOLDER.glob("*.c"))
    text = b"".join(x.read_bytes() for x in sorted([*sources, *FOLDER.glob("*.h")]))
    library = FOLDER / "extension.abi3.so"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    linked = shlex.split(sysconfig.get_config_var("LDSHARED") or "")[1:] or ["-shared"]
    folders = [f"-I{x}" for x in (sysconfig.get_path("include"), numpy.get_include())]
    new = library.with_suffix(".new")
    command = [*compiler, *FLAGS, f"-DSOURCE={zlib.crc32(text)}", *folders, *sources, *linked, "-o", new]
    try:
        made = subprocess.run([str(x) for x in command], capture_output=True, text=True, check=False)
        failure = made.stderr[-2000:] if made.returncode else None
    except OSError as error:
        failure = str(error)
    if failure is not None:
        raise RuntimeError(
            "sysdyn needs a C compiler and the headers of Python: on Debian and Ubuntu, apt install gcc libc6-dev "
            f"python3-dev. {compiler[0]} failed: {failure}"
        )
    new.replace(library)  # atomic, and never overwrites a loaded file
    for other in FOLDER.glob("extension.cpython-*.so"):  # builds for one Python version would take precedence
        other.unlink()
    return library


if __name__ == "__main__":
    print(compiled())
