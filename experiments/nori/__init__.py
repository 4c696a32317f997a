"""F. Nori and others, elimination of Newton-Euler systems: counters, orders, matrices of the ABA, and experiments."""
