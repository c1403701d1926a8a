"""Takes the place of NVIDIA Apex where it is not installed, so that a script written for it can be run to compare with.

Everything computes in float32, as under Apex's O0: nothing is cast, nothing is scaled, and there is one process. What
would need Apex's own arithmetic raises ``NotImplementedError``.
"""

from . import amp, normalization, optimizers, parallel

__all__ = ["amp", "normalization", "optimizers", "parallel"]
