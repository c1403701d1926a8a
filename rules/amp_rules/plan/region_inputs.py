"""What functions of a model are given from outside of all regions, such as masks: autocast has not made that half."""

from __future__ import annotations

import ast

from amp_rules.lattice.abstract_values import PASSING
from amp_rules.plan.precision import Precision
from amp_rules.roles.in_regions import bodies_in
from amp_rules.roles.kinds import is_chain
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope
from amp_rules.source.spans import Span
from amp_rules.source.syntax import own_name, values_given, walk

_JOINING = frozenset({"torch.stack", "torch.cat", "torch.nn.functional.pad", "torch.where"})
_KEEPING = PASSING - {"half", "bfloat16", "type", "type_as"}
_HALF = frozenset({"half", "float16", "bfloat16"})
_ADDING = frozenset({"append", "extend", "insert"})

_Asked = frozenset[tuple[ast.AST, str]]
"""The variables, by the body that they belong to, that are being asked about."""


class RegionInputs:
    """Asks the callers of functions that run within regions, up to the script's own calls of its models.

    Args:
        program: the program.
        precision: what is planned for it.
    """

    def __init__(self, program: Program, precision: Precision) -> None:
        self._program = program
        self._runs = precision.runs
        self._inside = bodies_in(program, precision.runs)

    def are_given(self, site: Site, parameters: frozenset[Span]) -> bool:
        """Whether parameters of the function around a place hold nothing but what comes from outside."""
        info = self._program.function_of(site.body)
        if info is None or not parameters:
            return False
        places = {site.module.span(item): item.arg for item in walk(info.node.args) if isinstance(item, ast.arg)}
        names = [places.get(item) for item in parameters]
        return all(name is not None and self._is_given(info, name, frozenset()) for name in names)

    def _is_given(self, info: FunctionFacts, name: str, asked: _Asked) -> bool:
        """Whether no call gives a parameter anything that a region computed."""
        callers = self._program.flow.callers(info)
        for caller in callers:
            call, scope = caller.call, caller.scope
            if any(map(is_chain, self._program.flow.values(call.func, scope))):
                return False  # it is given what the part before it gave
            given = info.argument(call, name)
            if scope.node not in self._inside:
                if not all(
                    self._is_from_outside(item, scope.node) for item in ([given] if given else values_given(call))
                ):
                    return False
            elif given is None or not self._is_input(given, scope, asked):
                return False
        return bool(callers)

    def _is_input(self, node: ast.expr, scope: Scope, asked: _Asked) -> bool:
        """Whether an expression of a function in a region keeps the type of inputs, and is made of them alone."""

        def all_inputs(parts: list[ast.expr]) -> bool:
            return all(self._is_input(part, scope, asked) for part in parts)

        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            return self._holds_input(node.id, scope, asked)
        if isinstance(node, (ast.List, ast.Tuple)):
            return all_inputs(node.elts)
        if isinstance(node, (ast.Subscript, ast.Starred)):
            return self._is_input(node.value, scope, asked)
        if isinstance(node, ast.BinOp):
            return not isinstance(node.op, ast.MatMult) and all_inputs([node.left, node.right])
        if isinstance(node, ast.Call):
            names = self._program.callee_names(node, scope)
            if names and names <= _JOINING:
                return all_inputs(node.args[:1])
            if isinstance(node.func, ast.Attribute) and not names and _keeps_type(node):
                return self._is_input(node.func.value, scope, asked)
        return False

    def _holds_input(self, name: str, scope: Scope, asked: _Asked) -> bool:
        """The same of a local variable: of all that is written to it, and of what a call gives where it is given."""
        body = scope.node
        info = self._program.function_of(body)
        if (body, name) in asked:
            return True
        if info is None:
            return False
        asked = asked | {(body, name)}
        known = name in info.parameters
        for node in self._program.nodes_of(body):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
                value = _written(scope.module.parents.get(node), node, scope)
                if value is None or not self._is_input(value, scope, asked):
                    return False
                known = True
            elif isinstance(node, ast.Call) and own_name(node.func) in _ADDING:
                owner = node.func.value if isinstance(node.func, ast.Attribute) else None
                if isinstance(owner, ast.Name) and owner.id == name:
                    if not all(self._is_input(item, scope, asked) for item in node.args):
                        return False
        return known and (name not in info.parameters or self._is_given(info, name, asked))

    def _is_from_outside(self, argument: ast.expr, body: ast.AST) -> bool:
        """Whether the script computed an argument outside of its regions."""
        for item in walk(argument):
            if isinstance(item, ast.Call) and (self._program.flow.callees(item) or own_name(item.func) not in PASSING):
                return False
        read = blocks.reads(argument)
        if any("." in path for path in read):
            return False
        own = set(blocks.walk_body(body))
        return not any(
            blocks.touches(read, blocks.writes(statement))
            for run in self._runs
            for statement in run.statements()
            if statement in own
        )


def _keeps_type(call: ast.Call) -> bool:
    """Whether a method gives the same numbers, and not in half: ``x.to(device)``."""
    return own_name(call.func) in _KEEPING and not any(own_name(item) in _HALF for item in walk(call))


def _written(parent: ast.AST | None, target: ast.Name, scope: Scope) -> ast.expr | None:
    """What an assignment writes to a variable; None where something else does."""
    if isinstance(parent, ast.Tuple):
        parent = scope.module.parents.get(parent)
    if not (isinstance(parent, ast.Assign) and len(parent.targets) == 1):
        return None
    for item, value in blocks.unpacked(parent.targets[0], parent.value):
        if item is target:
            return value
    return None
