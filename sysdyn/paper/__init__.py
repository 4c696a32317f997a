"""The paper reproduced: its counters, its orders, its matrix form of the ABA, its experiments."""
