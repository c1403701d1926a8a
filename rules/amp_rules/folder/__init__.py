"""Many files at once: what imports what, which scripts train, and several scripts that share modules."""
