"""The rewrites that bring old PyTorch up to a current one, one a file.

A rewrite has a ``RULE`` and a function ``changes(old)`` that yields its edits of all files of a program, see
:class:`amp_rules.modern.old.Old`. What it cannot decide it leaves with a reason.
"""
