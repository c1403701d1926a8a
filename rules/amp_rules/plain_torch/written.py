"""Processes that a migration to plain PyTorch wrote: they have what they need, and a second one leaves them alone."""

from __future__ import annotations

import ast

from amp_rules.plain_torch.file_head import WORLD_SIZE
from amp_rules.roles.steps import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.torch.distributed import JOINS


def joins_as_written(program: Program) -> bool:
    """Whether processes are joined under the test, and by the constant, that this package writes.

    Who has written exactly that by hand keeps processes that may lack something: less is done, and nothing is wrong.
    """
    joins = program.calls_to(JOINS)
    return bool(joins) and all(_is_tested(site.module, site.node) for site in joins)


def _is_tested(module: Module, join: ast.AST) -> bool:
    """Whether a call stands under ``if WORLD_SIZE > 1``, with the constant of that file."""
    constants = {
        target.id
        for node in module.tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == _CODE
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    tests = [item.test for item in blocks.enclosing(module, join) if isinstance(item, ast.If)]
    return any(ast.unparse(test) == f"{name} > 1" for test in tests for name in constants)


_CODE = ast.unparse(ast.parse(WORLD_SIZE.code.format(os="os"), mode="eval"))
