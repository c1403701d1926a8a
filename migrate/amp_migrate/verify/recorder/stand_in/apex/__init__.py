"""Takes the place of NVIDIA Apex where it is not installed, so that a script written for it can be run to compare with.

Everything computes in float32, as under Apex's O0: nothing is cast, nothing is scaled, and there is one process. What
would need Apex's own arithmetic raises ``NotImplementedError``. ``lacking`` names the parts of Apex that were asked
for and are not here: many scripts go on without them.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from . import amp, multi_tensor_apply, normalization, optimizers, parallel

__all__ = ["amp", "multi_tensor_apply", "normalization", "optimizers", "parallel"]

lacking: list[str] = []


class _Last(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Note what nobody else has found."""
        if name.startswith("apex."):
            lacking.append(name)
        return None


sys.meta_path.append(_Last())
