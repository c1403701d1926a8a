"""The version of both distributions, amp-runtime and amp-migrate; their builds read it here."""

__version__ = "0.1.0"
