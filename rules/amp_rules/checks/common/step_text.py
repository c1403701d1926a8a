"""What rules about the training step read in the text of a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from amp_rules.checks.common.step_roles import is_scaler
from amp_rules.lattice.frame import Frame
from amp_rules.lattice.paths import LOST, Path
from amp_rules.source.facts import ModuleFacts
from amp_rules.source.resolver import root_of
from amp_rules.source.syntax import walk


def text_mentions(frame: Frame, *words: str) -> bool:
    """Whether one of ``words`` occurs in the file."""
    return any(word in frame.module.module.source.text for word in words)


def calls_of(root: ast.AST, *names: str) -> Iterator[tuple[ast.Call, ast.Attribute]]:
    """Yield the calls of methods of those names, with the methods."""
    for item in walk(root):
        if isinstance(item, ast.Call) and isinstance(item.func, ast.Attribute) and item.func.attr in names:
            yield item, item.func


def scaler_calls(frame: Frame, name: str) -> list[tuple[str, str]]:
    """The texts of scaler and argument of each ``scaler.step(optimizer)`` in the function."""
    root = frame.function.node if frame.function is not None else frame.module.module.tree
    return [
        (frame.text(method.value), frame.text(call.args[0]))
        for call, method in calls_of(root, name)
        if call.args and is_scaler(None, method.value)
    ]


@lru_cache(maxsize=8)
def scaler_methods(module: ModuleFacts, *names: str) -> list[ast.Call]:
    """The calls of methods of scalers anywhere in a file."""
    return [call for call, method in calls_of(module.module.tree, *names) if is_scaler(None, method.value)]


def step_state(frame: Frame, key: str) -> list[Path] | None:
    """The paths with which a function is left; None where a rule has lost its way."""
    paths = frame.left.get(key)
    if paths is None or any(not isinstance(item, Path) or item.state is LOST for item in paths):
        return None
    return list(paths)


def starts_with(node: ast.expr, names: frozenset[str]) -> bool:
    """Whether ``a.b.c`` begins with one of ``names``."""
    root = root_of(node)
    return isinstance(root, ast.Name) and root.id in names
