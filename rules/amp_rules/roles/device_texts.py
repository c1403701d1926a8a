"""Texts and numbers that name one device among several: ``"cuda:0"``, ``f"cuda:{gpu}"``, ``0``."""

from __future__ import annotations

import ast
import re

_INDEXED = re.compile(r"^\s*[a-z]+:(?:\s*\d+)?$")
"""A device with a number, or the beginning of one: ``cuda:0``, and the ``cuda:`` of ``f"cuda:{gpu}"``."""


def is_index(constant: object) -> bool:
    """Whether a constant names a device by its number."""
    if isinstance(constant, str):
        return bool(_INDEXED.match(constant))
    return isinstance(constant, int) and not isinstance(constant, bool)


def index_of(constant: object) -> set[int] | None:
    """The number of the device that a constant names, if it names one; None for what is no device."""
    if isinstance(constant, str):
        number = constant.partition(":")[2].strip()
        return {int(number)} if number.isdigit() else set()
    return {constant} if isinstance(constant, int) and not isinstance(constant, bool) else None


def writes_index(node: ast.expr) -> bool:
    """Whether an expression writes a device with a number: ``"cuda:0"``, ``f"cuda:{gpu}"``, one of two branches."""
    if isinstance(node, ast.IfExp):
        return writes_index(node.body) or writes_index(node.orelse)
    if isinstance(node, (ast.BoolOp, ast.JoinedStr)):
        return any(map(writes_index, node.values))
    if isinstance(node, ast.BinOp):
        return writes_index(node.left)
    if isinstance(node, ast.Call):
        parts = [*node.args, node.func.value] if isinstance(node.func, ast.Attribute) else node.args
        return any(isinstance(part, ast.Constant) and _formats_index(part.value) for part in parts)
    return isinstance(node, ast.Constant) and _formats_index(node.value)


def _formats_index(constant: object) -> bool:
    """``"cuda:0"``, and a text that a number is put into: ``"cuda:%d"``, ``"cuda:{}"``."""
    return isinstance(constant, str) and bool(re.match(r"^\s*[a-z]*:(?:\s*\d+|%.*|\{.*)?$", constant))


def is_read_off(node: ast.expr) -> bool:
    """``next(model.parameters()).device``, and its ``index``: where something is already."""
    if isinstance(node, ast.Attribute) and node.attr == "index":
        return isinstance(node.value, ast.Attribute) and node.value.attr == "device"
    return isinstance(node, ast.Attribute) and node.attr == "device" and isinstance(node.value, ast.Call)
