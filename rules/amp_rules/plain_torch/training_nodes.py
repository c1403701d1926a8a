"""What runs in a training step with gradients."""

from __future__ import annotations

import ast

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.text.runtime_vocabulary import RUNTIME


class TrainingNodes:
    """The nodes of a program's training steps: the loops around backward passes, regions, and all that they call.

    Args:
        program: the program.
        callers: whether what calls the function of a backward pass belongs to the step, up to the loop around that.

    Attributes:
        bodies: those of the functions that they run, with gradients or without.
    """

    def __init__(self, program: Program, *, callers: bool = False) -> None:
        self._program = program
        covered: set[ast.AST] = set()
        pending: list[Site] = [*program.backwards]
        seen: set[ast.AST] = set()
        while pending:
            site = pending.pop()
            loops = [item for item in blocks.enclosing(site.module, site.node) if isinstance(item, blocks.LOOPS)]
            covered |= set(walk(loops[0] if loops else site.body))
            info = program.function_of(site.body)
            if callers and not loops and info is not None and site.body not in seen:
                seen.add(site.body)
                pending += map(calling, program.flow.callers(info))
        for region in program.calls_to(frozenset({f"{RUNTIME}.autocast"})):
            covered |= set(walk(region.statement))
        self._covered = covered
        self.bodies = program.called_from(covered)
        self._called = program.called_from(
            node for node in covered if isinstance(node, ast.Call) and not program.is_without_gradients(node)
        )

    def has(self, node: ast.AST, body: ast.AST, module: Module) -> bool:
        """Whether a node may run in a training step, with gradients."""
        if self._program.without_gradients(module, node, body):
            return False
        return node in self._covered or body in self._called
