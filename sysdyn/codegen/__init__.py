"""Ways to run a program, or to write it in another language."""
