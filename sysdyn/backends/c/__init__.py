"""Programs as C99 source."""
