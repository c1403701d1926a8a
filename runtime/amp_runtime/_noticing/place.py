"""The line of the script that runs."""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType

import torch

_PYTHON, _TORCH, _OWN = (Path(file).resolve().parent for file in (os.__file__, torch.__file__, Path(__file__).parent))


def line_of_script(frame: FrameType | None) -> str:
    """The innermost line of the script on a stack, as ``train.py:31, in train``; that of a library if there is none."""
    for libraries in ((_PYTHON, _OWN, _TORCH.parent), (_PYTHON, _OWN, _TORCH), ()):
        found = frame
        while found is not None:
            if not found.f_code.co_filename.startswith("<"):
                parents = Path(found.f_code.co_filename).resolve().parents
                if not any(library in parents for library in libraries):
                    return _line(found)
            found = found.f_back
    return "no line"


def _line(frame: FrameType) -> str:
    code = frame.f_code
    where = "" if code.co_name == "<module>" else f", in {code.co_name}"
    return f"{Path(code.co_filename).name}:{frame.f_lineno}{where}"
