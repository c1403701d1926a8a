"""Rewrites that complete the processes which a script joins itself, one a file: see :mod:`amp_rules.plan.own_ddp`.

All write torch's own words, with the script's own names where they are known, and each is right without the others.
"""

CODES = ("AMP2",)
UNITS = ("distribution",)
