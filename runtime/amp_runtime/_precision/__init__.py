"""Which operations and weights are half, and the float32 master weights."""
