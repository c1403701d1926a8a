"""Several processes, performance and hardware."""
