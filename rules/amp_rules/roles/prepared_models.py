"""Variables that hold a prepared model, whatever the model is made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from amp_rules.flow.cells import CellKey
from amp_rules.roles.kinds import is_module
from amp_rules.roles.program import Program
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.torch.wrappers import DATA_PARALLEL, DISTRIBUTED_DATA_PARALLEL, PREPARES, RETURNS_FIRST_ARGUMENT

_WRAPS = DATA_PARALLEL | DISTRIBUTED_DATA_PARALLEL | RETURNS_FIRST_ARGUMENT

_MAX_CALLS = 4
"""How many calls a prepared model is followed through, as deep as trainers go; what is called deeper evaluates as it
did, in full precision."""


class PreparedModels:
    """Which expressions hold a model that the script prepares itself, as one for Apex does.

    Args:
        program: the program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._variables: set[CellKey] = set()
        self._asked: set[CellKey] = set()
        for site in program.calls_to(PREPARES):
            if isinstance(site.statement, ast.Assign) and site.statement.value is site.node:
                keys = (program.flow.key(target, site.scope) for target in site.statement.targets)
                self._variables |= {key for key in keys if key is not None}

    def is_called(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call runs a prepared model: one of which nothing else is known, or one that nothing trains."""
        if not self._variables:
            return False
        known = self._program.called_models(call, scope)
        if any(not isinstance(value.ref, tuple) for value in known):
            return all(map(is_module, known)) and self._holds(call.func, scope, 0)
        if self._program.flow.callees(call):
            return False
        return self._holds(call.func, scope, 0)

    def _holds(self, node: ast.expr, scope: Scope, depth: int) -> bool:
        if isinstance(node, ast.Call):
            return self._gives(node, scope, depth)
        if isinstance(node, ast.Attribute) and node.attr == "module":
            node = node.value  # what a wrapper holds
        key = self._program.flow.key(node, scope)
        if key is None:
            return False
        if key in self._variables:
            return True
        if key in self._asked:
            return False  # it is made of itself: the other values decide
        self._asked.add(key)
        try:
            if any(self._holds(value, where, depth) for value, where in self._values.get(key, ())):
                return True
            return self._is_given(key, depth)
        finally:
            self._asked.discard(key)

    def _is_given(self, key: CellKey, depth: int) -> bool:
        """Whether a parameter is given a prepared model by some caller."""
        owner = key[0]
        info = self._program.function_of(owner) if isinstance(owner, FunctionNode) else None
        if info is None or depth >= _MAX_CALLS or key[1] not in info.parameters:
            return False
        for caller in self._program.flow.callers(info):
            given = info.argument_or_default(caller.call, str(key[1]))
            if given is not None and self._holds(given, caller.scope, depth + 1):
                return True
        return False

    def _gives(self, call: ast.Call, scope: Scope, depth: int) -> bool:
        """Whether a wrapper around a prepared model is made, or a function of the project gives one back."""
        names = self._program.callee_names(call, scope)
        if names & _WRAPS:
            return bool(call.args) and self._holds(call.args[0], scope, depth)
        if depth >= _MAX_CALLS:
            return False
        return any(
            self._holds(result, self._program.flow.scopes[info.node], depth + 1)
            for info in self._program.flow.callees(call)
            for result in info.returns
            if not isinstance(result, ast.Tuple)
        )

    @cached_property
    def _values(self) -> dict[CellKey, list[tuple[ast.expr, Scope]]]:
        """What plain assignments put into each variable."""
        found: dict[CellKey, list[tuple[ast.expr, Scope]]] = {}
        for node, _, scope in self._program.nodes():
            if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Name, ast.Attribute, ast.Call)):
                for target in node.targets:
                    for part, value, where in self._parts(target, node.value, scope):
                        key = self._program.flow.key(part, scope)
                        if key is not None:
                            found.setdefault(key, []).append((value, where))
        return found

    def _parts(self, target: ast.expr, value: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, ast.expr, Scope]]:
        """The variables of a target and what each is given: of ``net, teacher = wrapped(...)`` what is returned."""
        if isinstance(target, (ast.Name, ast.Attribute)):
            yield target, value, scope
        elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, ast.Call):
            for info in self._program.flow.callees(value):
                for result in info.returns:
                    if isinstance(result, ast.Tuple) and len(result.elts) == len(target.elts):
                        where = self._program.flow.scopes[info.node]
                        pairs = zip(target.elts, result.elts, strict=True)
                        yield from ((part, given, where) for part, given in pairs if not isinstance(part, ast.Starred))
