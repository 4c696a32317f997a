"""Files written whole, the cache, tables, and TOML with line numbers."""
