"""python -m sysdyn: the command line."""

from __future__ import annotations

from sysdyn.app.cli import main

main()
