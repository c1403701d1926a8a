"""What stands in for modules of checks of a run."""
