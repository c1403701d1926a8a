"""What stands in for modules of data."""
