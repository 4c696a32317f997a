"""What can be stated of a robot: known quantities, sensors, contacts, loops, noise."""
