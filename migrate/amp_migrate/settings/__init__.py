"""What was asked for, on the command line and in ``pyproject.toml``, checked."""
