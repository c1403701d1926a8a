"""Files of ``torch.save`` that hold numbers, texts and objects of the script alone: ``{"epoch": epoch + 1}``."""

from __future__ import annotations

import ast
from functools import cached_property

from amp_rules.plan.definitions import Definitions
from amp_rules.roles.file_paths import Paths, may_be_same
from amp_rules.roles.kinds import is_scheduler
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import keyword
from amp_rules.source.scopes import Scope

_SAVES = frozenset({"torch.save"})
_MAKES_TENSORS = frozenset({"torch.tensor", "torch.LongTensor", "torch.FloatTensor"})
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
        if self._is_for_schedule(load) or self._is_made_into_tensors(load):
            return True
        ones = self._paths.of(load.node.args[0], load.scope)
        written = False
        for site, saved, path in self._saves:
            others = self._paths.of(path, site.scope) if path is not None else frozenset()
            if not others or any(may_be_same(one, other) for one in ones for other in others):
                if not self._is_plain(saved, site.scope):
                    return False
                written = True
        return written

    def _is_for_schedule(self, load: Site) -> bool:
        """Whether a schedule takes what is loaded, which counts: ``scheduler.load_state_dict(torch.load(path))``."""
        taken = load.module.parents[load.node]
        if not (isinstance(taken, ast.Call) and isinstance(taken.func, ast.Attribute)):
            return False
        values = self._program.flow.values(taken.func.value, load.scope)
        return taken.func.attr == "load_state_dict" and bool(values) and all(map(is_scheduler, values))

    def _is_made_into_tensors(self, load: Site) -> bool:
        """Whether tensors are made of what objects in a list hold: ``torch.tensor([row.ids for row in rows])``."""
        statement = load.statement
        if not isinstance(statement, ast.Assign) or statement.value is not load.node:
            return False
        names = blocks.writes(statement)
        for call, body, scope in self._program.calls():
            given = call.args[0] if body is load.body and call.args else None
            if isinstance(given, ast.ListComp) and self._program.callee_names(call, scope) & _MAKES_TENSORS:
                if isinstance(given.elt, ast.Attribute) and blocks.path_of(given.generators[0].iter) in names:
                    return True
        return False

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
