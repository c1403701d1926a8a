"""What stands in for modules of loss scaling."""
