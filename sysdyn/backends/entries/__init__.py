"""C extension that calls compiled kernels on NumPy arrays. Its import raises BackendUnavailable if it is not built."""

import zlib
from pathlib import Path

from sysdyn.errors import BackendUnavailable

_REMEDY = "pip install . in the folder of the package builds it, with gcc, libc6-dev and python3-dev"

try:
    from sysdyn.backends.entries import native
except ImportError as error:
    raise BackendUnavailable(f"the C extension of sysdyn cannot be loaded ({error}): {_REMEDY}") from error
if native.SOURCE != zlib.crc32(Path(__file__).with_name("native.c").read_bytes()):
    raise BackendUnavailable(f"the C extension of sysdyn was built from another version of native.c: {_REMEDY}")
