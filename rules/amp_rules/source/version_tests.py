"""What a file does for one version of torch and not for another."""

from __future__ import annotations

import ast

from amp_rules.source.resolver import imported_names
from amp_rules.torch.idioms import ASKS_VERSION
from amp_rules.torch.mixed_precision import APEX, TORCH_AMP


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


def falls_back(node: ast.stmt) -> bool:
    """Whether a ``try`` imports torch's mixed precision alone, which each torch that can run the script has.

    What its handlers define instead is never used: a scaler that does nothing, for PyTorch before 1.6. A handler that
    imports Apex is left to what takes Apex out.
    """
    if not isinstance(node, ast.Try) or not all(isinstance(item, (ast.Import, ast.ImportFrom)) for item in node.body):
        return False
    names = [name for item in node.body for _, name in imported_names(item)]  # type: ignore[arg-type]
    others = [name for item in node.handlers for part in ast.walk(item) for name in _imported(part)]
    return _all_below(names, TORCH_AMP) and not any(_all_below([name], APEX) for name in others)


def _imported(node: ast.AST) -> list[str]:
    return [name for _, name in imported_names(node)] if isinstance(node, (ast.Import, ast.ImportFrom)) else []


def _all_below(names: list[str], packages: tuple[str, ...]) -> bool:
    return all(any(name == package or name.startswith(f"{package}.") for package in packages) for name in names)
