"""The training step, loss scaling and autograd."""
