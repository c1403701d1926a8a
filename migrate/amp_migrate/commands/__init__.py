"""The command lines: options, and the order in which the other packages are called."""
