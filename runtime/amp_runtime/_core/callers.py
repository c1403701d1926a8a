"""Where the script called the package: warnings name that line."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

_LIBRARIES = tuple(str(folder) + os.sep for folder in (Path(__file__).parents[1], Path(torch.__file__).parent))


def stacklevel() -> int:
    """Return the ``stacklevel`` with which a warning of the caller names the script's line, and not one of a library.

    Frames of this package and of torch are passed over: a region of autocast is entered by torch, and forward passes
    are called by it.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(_LIBRARIES):
        level, frame = level + 1, frame.f_back
    return level
