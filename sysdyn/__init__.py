"""sysdyn: compiles dynamics problems of articulated robots into short straight-line programs of exact cost."""
