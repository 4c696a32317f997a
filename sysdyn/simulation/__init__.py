"""Simulations: the motion of robots over time, by programs of whole steps that compiled code runs one after another."""
