"""Rewrites for mixed precision, one a file."""

CODES = ("AMP1", "AMP3")
UNITS = ("precision",)

ASKS_NOTES = True
"""Whether ``notes`` of its rewrites are asked."""
