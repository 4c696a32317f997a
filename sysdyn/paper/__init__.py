"""What only the reproduction of the paper needs: its counters, its orders, its experiments."""
