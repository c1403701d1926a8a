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
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import last_name

_SAVES = frozenset({"torch.save"})
_MAKES_TENSORS = frozenset({"torch.tensor", "torch.LongTensor", "torch.FloatTensor"})
_OF_FILES = frozenset({"torch.save", "torch.load"})
_ON_GPU = frozenset({"cuda", "to", "state_dict", "parameters", "named_parameters"})
"""Methods that put tensors on a GPU, or give those of a model, which may be there."""

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
        # What one function writes to the path that it reads is what it reads: other files of unknown names are not.
        text = ast.dump(load.node.args[0])
        own = [row for row in self._saves if row[0].body is load.body and row[2] and ast.dump(row[2]) == text]
        for site, saved, path in own or self._saves:
            others = self._paths.of(path, site.scope) if path is not None else frozenset()
            if not others or any(may_be_same(one, other) for one in ones for other in others):
                if not self._is_plain(saved, site.scope) and not self._is_made_without_torch(saved, site):
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
        if isinstance(node, ast.Attribute) and node.attr == "shape":
            return True
        if isinstance(node, ast.BinOp):
            return self._is_plain(node.left, scope) and self._is_plain(node.right, scope)
        return self._definitions.is_number(node, scope) or self._is_counter(node, scope)

    def _is_made_without_torch(self, saved: ast.expr, site: Site) -> bool:
        """Whether a function makes what it saves, and has nothing of torch to do it with: ids read out of a file."""
        if not isinstance(saved, ast.Name) or saved.id not in self._made_in(site):
            return False
        called = self._program.called_from(set(blocks.walk_body(site.body)))
        for call, body, scope in self._program.calls():
            own = body is site.body or site.body in scope.module.ancestors(body)
            if not own and body not in called:
                continue
            if last_name(call.func) in _ON_GPU or self._program.roles.modules(call.func, scope):
                return False
            names = self._program.callee_names(call, scope) if own else frozenset()
            if any(name.startswith("torch.") for name in names - _OF_FILES):
                return False
        return True

    def _made_in(self, site: Site) -> set[str]:
        """The variables of a function that it gives a value itself, and that no caller hands it."""
        given = {item.arg for item in arguments_of(site.body)} if isinstance(site.body, FunctionNode) else set()
        made = (node for node in blocks.walk_body(site.body) if isinstance(node, (ast.Assign, ast.AnnAssign)))
        return {name for node in made for name in blocks.writes(node)} - given

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
