"""What is known about libraries: data, not code."""
