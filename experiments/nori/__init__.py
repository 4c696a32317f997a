"""Experiments of F. Nori et al. on elimination of Newton-Euler systems: counters, orders, matrices of the ABA."""
