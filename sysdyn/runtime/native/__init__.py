"""C extension that calls compiled kernels on NumPy arrays. Its import raises BackendUnavailable if it is not built."""

import zlib
from pathlib import Path

from sysdyn.errors import BackendUnavailable

_REMEDY = "pip install . in the folder of the package builds it, with gcc, libc6-dev and python3-dev"

try:
    from sysdyn.runtime.native import extension
except ImportError as error:
    raise BackendUnavailable(f"the C extension of sysdyn cannot be loaded ({error}): {_REMEDY}") from error
_sources = sorted(x for x in Path(__file__).parent.iterdir() if x.suffix in (".c", ".h"))
if extension.SOURCE != zlib.crc32(b"".join(x.read_bytes() for x in _sources)):
    raise BackendUnavailable(f"the C extension of sysdyn was built from another version of its sources: {_REMEDY}")
