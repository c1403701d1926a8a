"""Steps that train on all of the data at once, as on one graph: there are no batches that processes could share."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from amp_rules.roles.kinds import is_without_parameters
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Backward, Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import values_given, walk
from amp_rules.torch.models import RETURNS_RECEIVER

_MAX_DEPTH = 12
"""Variables and parameters that what a model is given is followed through; beyond, it is not known what it is."""

_OF_TENSORS = RETURNS_RECEIVER | {"long", "t", "view", "reshape", "unsqueeze"}
_TAKING = re.compile("next|batch|sample|get|pop|draw", re.IGNORECASE)
"""In the names of methods that may give something else each time."""
_LIBRARIES = ("torch.", "numpy.", "math.")
_DRAWING = ("torch.rand", "torch.multinomial", "torch.bernoulli", "numpy.random.")


def all_of_the_data(program: Program, site: Backward) -> list[str]:
    """What the models of a pass are given, where each round of the loops around it gives them the very same."""
    found = _Fixed(program)
    if not found.is_in_loop(site):
        return []
    given = [
        (item.value if isinstance(item, ast.Starred) else item)
        for call in found.running(site)
        for item in values_given(call)
        if not program.roles.modules(item, site.scope)
    ]
    where = [Site(site.module, site.scope, site.body, item) for item in given]
    if not where or not all(map(found.is_fixed, where)):
        return []
    # ``loss_of(model(x, edges)[rows])`` of some rows in each round trains on batches of rows.
    if not _FixedLosses(program).is_fixed(Site(site.module, site.scope, site.body, site.loss)):
        return []
    return [*dict.fromkeys(site.module.text(_itself(item)) for item in given if not isinstance(item, ast.Constant))]


def _itself(node: ast.expr) -> ast.expr:
    """``x`` of ``x.cuda()``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in RETURNS_RECEIVER:
        node = node.func.value
    return node


class _Fixed:
    """Says which expressions are the same in each round of the loops around them."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def is_in_loop(self, site: Site) -> bool:
        """Whether a loop runs a place, here or where its function is called."""
        return _is_looped(site.module, site.node) or self._is_called_in_loop(site.body)

    def _is_called_in_loop(self, body: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> bool:
        info = self._program.function_of(body)
        if info is None or body in seen:
            return False
        calls = map(calling, self._program.flow.callers(info))
        return any(
            _is_looped(call.module, call.node) or self._is_called_in_loop(call.body, seen | {body}) for call in calls
        )

    def running(self, site: Backward) -> Iterator[ast.Call]:
        """Yield the calls of models that a loss is computed of, in its own function."""
        pending, seen = [site.loss], {""}
        while pending:
            for node in walk(pending.pop()):
                if isinstance(node, ast.Call) and self._runs_model(node, site.scope):
                    yield node
                elif isinstance(node, ast.Name) and node.id not in seen:
                    seen.add(node.id)
                    pending.extend(self._given(site, node.id))

    def _runs_model(self, call: ast.Call, scope: Scope) -> bool:
        called = self._program.called_models(call, scope)
        return bool(called) and not all(map(is_without_parameters, called))

    def is_fixed(self, site: Site, depth: int = 0, itself: frozenset[str] = frozenset()) -> bool:
        """Whether an expression is made of nothing that a round changes, takes or draws."""
        assert isinstance(site.node, ast.expr)
        if depth > _MAX_DEPTH:
            return False
        for node in walk(site.node):
            if isinstance(node, ast.Call) and not self._is_plain(node, site):
                return False
            if isinstance(node, (ast.comprehension, ast.Lambda, ast.Yield, ast.Await)):
                return False
            if isinstance(node, ast.Name) and node.id not in itself:
                if not self._is_fixed_name(node, site, depth, itself):
                    return False
        return True

    def _is_plain(self, call: ast.Call, site: Site) -> bool:
        """Whether a call makes the same of the same: a function of a library, or a method that gives the tensor."""
        names = self._program.callee_names(call, site.scope)
        if names:
            return all(name.startswith(_LIBRARIES) and not name.startswith(_DRAWING) for name in names)
        return (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in _OF_TENSORS
            and not self._program.flow.callees(call)
        )

    def _is_fixed_name(self, node: ast.Name, site: Site, depth: int, itself: frozenset[str]) -> bool:
        if any(
            isinstance(item, (ast.For, ast.AsyncFor)) and node.id in blocks.writes_target(item)
            for item in self._program.nodes_of(site.body)
        ):
            return False
        given = self._given(site, node.id)
        below = itself | {node.id}
        if not all(self.is_fixed(Site(site.module, site.scope, site.body, item), depth + 1, below) for item in given):
            return False
        info = self._program.function_of(site.body)
        if info is None or node.id not in info.parameters or not self._is_called_in_loop(site.body):
            return True
        callers = self._program.flow.callers(info)
        return bool(callers) and all(
            argument is not None
            and self.is_fixed(Site(caller.scope.module, caller.scope, calling(caller).body, argument), depth + 1)
            for caller in callers
            for argument in [info.argument_or_default(caller.call, node.id)]
        )

    def _given(self, site: Site, name: str) -> list[ast.expr]:
        """What a variable is given where a loop runs it; what it is given above all loops stays."""
        return [
            item.value
            for item in self._program.nodes_of(site.body)
            if isinstance(item, (ast.Assign, ast.AugAssign))
            and name in blocks.writes(item)
            and (_is_looped(site.module, item) or self._is_called_in_loop(site.body))
        ]


class _FixedLosses(_Fixed):
    """The same for losses: models and functions may make them of what is the same."""

    def _is_plain(self, call: ast.Call, site: Site) -> bool:
        if super()._is_plain(call, site) or self._program.called_models(call, site.scope):
            return True
        if self._program.flow.callees(call):
            return bool(values_given(call))
        is_method = isinstance(call.func, ast.Attribute) and not self._program.callee_names(call, site.scope)
        return is_method and not _TAKING.search(call.func.attr)  # type: ignore[attr-defined]


def _is_looped(module: Module, node: ast.AST) -> bool:
    return blocks.loop_around(module, node) is not None
