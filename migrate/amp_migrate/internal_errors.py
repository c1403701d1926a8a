"""Where an error of this program came up: in which of its functions, and at which place of the user's code."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Iterator
from types import FrameType

_PACKAGES = ("amp_rules.", "amp_migrate.")
_FRAMES = 40
"""Calls that are looked at from the inside; an endless recursion has a thousand of them, all alike."""


def where(error: BaseException) -> str:
    """Return what a report of the error should name, as far as the stack tells it; empty where it tells nothing."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1][:_FRAMES]
    parts = [part for part in (_function(frames), _place(frames)) if part]
    return f" ({', '.join(parts)})" if parts else ""


def _function(frames: list[FrameType]) -> str:
    """The innermost function of this program."""
    for frame in frames:
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith(_PACKAGES):
            return f"in {module}.{frame.f_code.co_name}"
    return ""


def _place(frames: list[FrameType]) -> str:
    """The node of the user's code that was looked at last."""
    from amp_rules.source.modules import Module

    modules: dict[Module, None] = {}
    for frame in frames:
        for value in _values(frame):
            if isinstance(value, Module):
                modules[value] = None
    for frame in frames:
        for value in _values(frame):
            line = getattr(value, "lineno", None) if isinstance(value, ast.AST) else None
            if line is not None:
                holding = next((module for module in modules if value in module.parents), None)
                return f"at line {line} of {holding.path.name}" if holding is not None else f"at line {line}"
    return ""


def _values(frame: FrameType) -> Iterator[object]:
    """What the variables of a call hold, and what these hold in turn."""
    for value in list(frame.f_locals.values()):
        yield value
        yield from getattr(value, "__dict__", {}).values()
