"""The loss scale and what depends on it: skipping, clipping."""
