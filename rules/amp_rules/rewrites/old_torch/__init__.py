"""The rewrites that bring old PyTorch up to a current one, one a file.

Each is given the whole program as the round before left it, see :class:`amp_rules.plan.old_torch.old.OldProgram`.
What it cannot decide it leaves with a reason.
"""

CODES = ("AMP5",)
UNITS = ("modern",)
