"""Models in int8: made by torchao, calibrated, saved and loaded."""
