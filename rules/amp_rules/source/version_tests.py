"""What a file does for one version of torch and not for another."""

from __future__ import annotations

import ast

from amp_rules.torch.idioms import ASKS_VERSION


def chosen_by_version(tree: ast.AST) -> set[ast.AST]:
    """What stands in a ``try`` that catches failing imports and names, or after a test of what torch is installed."""
    known = {
        target.id
        for item in ast.walk(tree)
        if isinstance(item, ast.Assign) and ASKS_VERSION.search(ast.unparse(item.value))
        for target in item.targets
        if isinstance(target, ast.Name)
    }
    found: set[ast.AST] = set()
    for item in ast.walk(tree):
        if isinstance(item, ast.Try):
            caught = " ".join(ast.unparse(handler.type) for handler in item.handlers if handler.type is not None)
            if "ImportError" in caught or "AttributeError" in caught or "ModuleNotFound" in caught:
                found.update(ast.walk(item))
        elif isinstance(item, (ast.If, ast.IfExp)) and item not in found:
            names = {part.id for part in ast.walk(item.test) if isinstance(part, ast.Name)}
            if names & known or ASKS_VERSION.search(ast.unparse(item.test)):
                found.update(ast.walk(item))
    return found
