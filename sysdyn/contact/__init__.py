"""Contacts of robots with their surroundings: operational space, impacts, friction and time stepping."""
