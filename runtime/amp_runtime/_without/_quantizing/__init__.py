"""What stands in for modules of quantization."""
