"""The offline phase: from a problem to a program with a safe, cheap elimination order."""
