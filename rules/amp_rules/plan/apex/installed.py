"""Questions whether Apex is there that name it in a string: ``"apex" in sys.modules``, ``find_spec("apex")``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.apex.references import is_apex
from amp_rules.source.modules import Module
from amp_rules.source.resolver import Names, names_of
from amp_rules.torch.apex import FINDERS, LOADED_MODULES


def questions(module: Module) -> Iterator[ast.expr]:
    """Every expression that is told whether Apex is loaded, or can be imported."""
    names = names_of(module)
    for node in module.nodes:
        if isinstance(node, ast.Compare | ast.Call) and answer(names, node) is not None:
            yield node


def answer(names: Names, node: ast.expr) -> bool | None:
    """What such a question is answered where Apex is installed, as a truth value; None of anything else."""
    if isinstance(node, ast.Call) and names.target(node.func) in FINDERS:
        return True if node.args and _names_apex(node.args[0]) else None
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and _names_apex(node.left):
        if isinstance(node.ops[0], (ast.In, ast.NotIn)) and names.target(node.comparators[0]) == LOADED_MODULES:
            return isinstance(node.ops[0], ast.In)
    return None


def _names_apex(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and is_apex(node.value)
