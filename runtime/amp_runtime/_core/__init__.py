"""What every part shares: the settings of the process, and small tools for tensors and models."""
