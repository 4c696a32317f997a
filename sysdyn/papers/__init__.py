"""Papers reproduced, a folder for each source; solvers need none of them."""

from __future__ import annotations

from sysdyn.papers import jain

__all__ = ["jain"]
