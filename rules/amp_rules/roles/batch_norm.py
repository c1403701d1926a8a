"""Where a program speaks of batch norm."""

from __future__ import annotations

import ast
from collections.abc import Iterable


def names_batch_norm(nodes: Iterable[ast.AST]) -> bool:
    """``nn.BatchNorm2d``, ``"batchnorm"``, ``getattr(nn, name)``."""
    for node in nodes:
        if isinstance(node, ast.Attribute):
            words = node.attr
        elif isinstance(node, ast.Name):
            words = node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            if len(node.args) > 1 and not isinstance(node.args[1], ast.Constant) and "nn" in ast.unparse(node.args[0]):
                return True
            continue
        else:
            continue
        if is_batch_norm(words):
            return True
    return False


def is_batch_norm(name: str) -> bool:
    """Whether a name is one of batch norm: ``torch.nn.BatchNorm2d``, ``"batch_norm"``."""
    return "batchnorm" in name.lower().replace("_", "")
