"""F. Nori and others, elimination of Newton-Euler systems: counters, orders, the matrix form of the ABA, experiments."""
