"""What stands in for modules of the core."""
