"""The equations of a problem as one sparse system D(q) d + b(q, q̇) = 0."""
