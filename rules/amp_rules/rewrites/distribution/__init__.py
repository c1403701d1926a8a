"""Rewrites for several processes, one a file."""

CODES = ("AMP2",)
UNITS = ("distribution",)

ASKS_REASONS = True
"""Whether ``reasons`` of its rewrites are asked: several processes are declined for all of them together."""

ASKS_NOTES = True
"""Whether ``notes`` of its rewrites are asked."""
