"""Files of ``torch.save`` in which the script puts numbers and texts alone: ``{"epoch": epoch + 1}``."""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.plan.definitions import Definitions
from amp_rules.roles.file_paths import Paths, may_be_same
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.index import keyword
from amp_rules.source.scopes import Scope

_SAVES = frozenset({"torch.save"})
_COUNTS = frozenset({"builtins.range", "tqdm.trange", "tqdm.auto.trange"})


class PlainFiles:
    """Answers about one program."""

    def __init__(self, program: Program) -> None:
        self._program = program

    @cached_property
    def _paths(self) -> Paths:
        return Paths(self._program)

    @cached_property
    def _definitions(self) -> Definitions:
        return Definitions(self._program)

    @cached_property
    def _saves(self) -> list[tuple[Site, ast.expr, ast.expr | None]]:
        """What is saved, and where to; None where no path is told."""
        return [
            (site, site.node.args[0], site.node.args[1] if len(site.node.args) > 1 else keyword(site.node, "f"))
            for site in self._program.calls_to(_SAVES)
            if isinstance(site.node, ast.Call) and site.node.args
        ]

    def holds_no_tensor(self, load: Site) -> bool:
        """Whether the script itself writes what a call loads, and puts no tensor in it."""
        assert isinstance(load.node, ast.Call)
        ones = self._paths.of(load.node.args[0], load.scope)
        written = False
        for site, saved, path in self._saves:
            others = self._paths.of(path, site.scope) if path is not None else frozenset()
            if not others or any(may_be_same(one, other) for one in ones for other in others):
                if not self._is_plain(saved, site.scope):
                    return False
                written = True
        return written

    def _is_plain(self, node: ast.expr, scope: Scope) -> bool:
        if isinstance(node, ast.Dict):
            return None not in node.keys and all(self._is_plain(item, scope) for item in node.values)
        if isinstance(node, (ast.List, ast.Tuple)):
            return all(self._is_plain(item, scope) for item in node.elts)
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            return True
        if isinstance(node, ast.BinOp):
            return self._is_plain(node.left, scope) and self._is_plain(node.right, scope)
        return self._definitions.is_number(node, scope) or self._is_counter(node, scope)

    def _is_counter(self, node: ast.expr, scope: Scope) -> bool:
        """Whether a variable is that of ``for epoch in range(epochs)`` alone."""
        given = self._definitions.of(node, scope)
        if not given or self._definitions.parameter(node, scope) is not None:
            return False
        return all(
            isinstance(item.statement, ast.For)
            and isinstance(item.value, ast.Call)
            and bool(self._program.callee_names(item.value, item.scope) & _COUNTS)
            and isinstance(item.statement.target, ast.Name)
            for item in given
        )
