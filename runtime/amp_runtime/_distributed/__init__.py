"""The processes: group, gradient averaging, synchronised batch norm, what only one of them does."""
