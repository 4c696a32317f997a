"""python -m sysdyn: the command line."""

from sysdyn.cli import main

main()
