"""What stands in for modules of precision."""
