"""Statements about a robot: known quantities, sensors, contacts, loops, noise."""
