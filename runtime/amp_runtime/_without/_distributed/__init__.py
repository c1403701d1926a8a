"""What stands in for modules of processes."""
