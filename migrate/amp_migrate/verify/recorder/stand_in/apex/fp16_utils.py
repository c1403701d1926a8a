"""Stands in for ``apex.fp16_utils``: many scripts import all of it for the sake of one small function."""

from typing import Any

__all__ = ["to_python_float"]


def to_python_float(t: Any) -> Any:
    """Return the number in a tensor of one element, or the first of a sequence."""
    return t.item() if hasattr(t, "item") else t[0]


def __getattr__(name: str) -> object:
    if not name.startswith("__"):
        from . import lacking

        lacking.append(f"apex.fp16_utils.{name}")
    raise AttributeError(f"the stand-in for apex.fp16_utils has no {name}")
