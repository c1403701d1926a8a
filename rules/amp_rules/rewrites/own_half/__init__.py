"""The rewrites that take half precision by hand out, one a file.

Each is given the whole program with all that is done to it: see
:class:`amp_rules.plan.own_half.edits.HalfProgram`.
"""

CODES = ("AMP4",)
UNITS = ("precision",)
