"""Which process reads which part of the data."""
