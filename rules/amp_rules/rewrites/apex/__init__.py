"""The rewrites that take older interfaces out of a file, one a file: NVIDIA Apex, ``torch.cuda.amp``, old launchers.

Each is given one file, as the one before it left that: see :class:`amp_rules.plan.apex.file.ApexFile`.
"""

CODES = ("AMP4",)
UNITS = ("precision", "distribution")

WAYS = ("idiom", "beside torch", "compat", "present names", "own processes")
"""How a program can be handled: without Apex, without it beside torch's mixed precision, with Apex's interface from the
runtime, as one that needs no Apex, or as one that joins its processes itself."""
