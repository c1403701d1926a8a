"""The rewrites that take older interfaces out of a file, one a file: NVIDIA Apex, ``torch.cuda.amp``, old launchers.

A rewrite has a ``RULE`` and a function ``changes(file)`` that yields its edits of one file. Each sees the text that the
one before it left; their order stands in :mod:`amp_rules.legacy.stages`.
"""
