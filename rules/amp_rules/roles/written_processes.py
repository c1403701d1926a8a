"""Places that run in several processes alone, under the test that a migration to plain PyTorch writes."""

from __future__ import annotations

import ast

from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.torch.distributed import WORLD_SIZE_READ

_CODE = ast.unparse(ast.parse(WORLD_SIZE_READ.format(os="os"), mode="eval"))


def is_for_several(module: Module, node: ast.AST) -> bool:
    """Whether a node stands under ``if WORLD_SIZE > 1``, with the constant of that file, as a migration writes it."""
    constants = {
        target.id
        for item in module.tree.body
        if isinstance(item, ast.Assign) and ast.unparse(item.value) == _CODE
        for target in item.targets
        if isinstance(target, ast.Name)
    }
    tests = [item.test for item in blocks.enclosing(module, node) if isinstance(item, ast.If)]
    return any(ast.unparse(test) == f"{name} > 1" for test in tests for name in constants)
