"""In place of the runtime, for scripts that have to do without it."""

raise ImportError("plain PyTorch was asked for, and this imports the runtime")
