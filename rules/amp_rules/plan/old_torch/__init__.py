"""Old PyTorch: what a file still uses of it, and bringing it up to a current one before anything else is decided.

The rewrites see the whole program and work in rounds, since one uncovers another: what is left of ``Variable`` decides
whether its import is still needed. Only what provably keeps its meaning is rewritten; the rest is left with a reason.
"""
