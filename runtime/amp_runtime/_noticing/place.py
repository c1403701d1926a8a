"""The line of the script that runs."""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType

import torch

# The libraries of others too, which stand among those of Python.
_NOT_THE_SCRIPT = tuple(
    str(Path(file).resolve().parent) + os.sep for file in (os.__file__, torch.__file__, Path(__file__).parent)
)


def line_of_script(frame: FrameType | None) -> str:
    """The innermost line of the script on a stack, as ``train.py:31, in train``; that of a library if there is none."""
    innermost = frame
    while frame is not None:
        name = str(Path(frame.f_code.co_filename).resolve())
        if not name.startswith(_NOT_THE_SCRIPT) and not name.startswith("<"):
            return _line(frame)
        frame = frame.f_back
    return "no line" if innermost is None else _line(innermost)


def _line(frame: FrameType) -> str:
    code = frame.f_code
    where = "" if code.co_name == "<module>" else f", in {code.co_name}"
    return f"{Path(code.co_filename).name}:{frame.f_lineno}{where}"
