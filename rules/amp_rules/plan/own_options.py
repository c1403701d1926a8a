"""The options of a command line that argparse reads: where they are added, what they are called, and who reads them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from amp_rules.flow.values import MemberOf, Value
from amp_rules.plan.arguments_in_reach import Parsed
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import whole_of
from amp_rules.torch.command_lines import GROUPS, HOLDING_ALL, PARSERS

_ADDING = "add_argument"


@dataclass(frozen=True)
class Option:
    """A call that adds an option.

    Attributes:
        call: the call.
        scope: where it stands.
        parsers: the parsers to which it may be added, those of groups included; empty where that is not known.
        is_grouped: whether it is added by way of a group.
    """

    call: ast.Call
    scope: Scope
    parsers: frozenset[Value]
    is_grouped: bool

    @property
    def module(self) -> Module:
        """The file."""
        return self.scope.module

    @cached_property
    def flags(self) -> tuple[str, ...] | None:
        """How it is written on the command line; None where that is made at run time."""
        if any(not (isinstance(item, ast.Constant) and isinstance(item.value, str)) for item in self.call.args):
            return None
        if any(item.arg is None for item in self.call.keywords):
            return None
        return tuple(str(item.value) for item in self.call.args if isinstance(item, ast.Constant))

    @cached_property
    def name(self) -> str:
        """The name of the argument that it gives."""
        named = self.keyword("dest")
        if isinstance(named, ast.Constant):
            return str(named.value)
        flags = self.flags or ("",)
        return next((item for item in flags if item.startswith("--")), flags[0]).lstrip("-").replace("-", "_")

    def keyword(self, name: str) -> ast.expr | None:
        """What the call gives for a keyword."""
        return next((item.value for item in self.call.keywords if item.arg == name), None)

    @property
    def shown(self) -> str:
        """The option as a message names it."""
        return f"`{(self.flags or ('',))[-1]}`"


class OwnOptions:
    """The options of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program

    @cached_property
    def all(self) -> list[Option]:
        """Every call that adds an option, to whatever parser."""
        found = []
        for call, _, scope in self._program.calls():
            owners = self._owners(call, scope)
            if owners is None:
                continue
            direct = {value for value in owners if value.name in PARSERS and not value.is_result}
            groups = {value for value in owners if value.name in GROUPS}
            of_groups = {parser for group in groups for parser in self._parsers_of_group(group)}
            found.append(Option(call, scope, frozenset(direct | of_groups), bool(groups)))
        return found

    def _owners(self, call: ast.Call, scope: Scope) -> set[Value] | None:
        """What the call adds an option to; None where it adds none."""
        flow = self._program.flow
        if isinstance(call.func, ast.Attribute):
            return flow.values(call.func.value, scope) if call.func.attr == _ADDING else None
        if isinstance(call.func, ast.Name):
            # ``add = parser.add_argument``
            members = [value for value in flow.values(call.func, scope) if value.kind == "attribute"]
            found = {value.receiver for value in members if value.ref == (MemberOf.RECEIVER, _ADDING)}
            return {value for value in found if value is not None} or None
        return None

    def _parsers_of_group(self, group: Value) -> Iterator[Value]:
        located = self._program.locate(group.site) if group.site is not None else None
        if located is not None and isinstance(group.site, ast.Call) and isinstance(group.site.func, ast.Attribute):
            yield from self.parsers(group.site.func.value, located[1])

    def parsers(self, node: ast.expr, scope: Scope) -> set[Value]:
        """The parsers that an expression can be."""
        return {value for value in self._program.flow.values(node, scope) if value.name in PARSERS}

    # ---- who else has to do with them ------------------------------------------------------------------------------

    def readers(self, name: str, besides: ast.Call | None = None) -> Iterator[tuple[Module, ast.AST]]:
        """Yield what may read or set the argument of a name: ``args.amp``, and ``"amp"`` as a string."""
        inside = {id(node) for node in ast.walk(besides)} if besides is not None else set()
        for node, _, scope in self._program.nodes():
            if isinstance(node, ast.Attribute) and node.attr == name:
                values = self._program.flow.values(node.value, scope)
                if not values or any(self._may_be_arguments(value) for value in values):
                    yield scope.module, node
            elif isinstance(node, ast.Constant) and node.value == name and id(node) not in inside:
                yield scope.module, node
            elif isinstance(node, ast.keyword) and node.arg == name and self._sets_defaults(node, scope):
                yield scope.module, node.value

    def _sets_defaults(self, node: ast.keyword, scope: Scope) -> bool:
        call = scope.module.parents.get(node)
        return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "set_defaults"

    def _may_be_arguments(self, value: Value) -> bool:
        return value.kind == "attribute" or (
            value.kind == "object" and value.ref.startswith(("argparse.", "builtins."))
        )

    def given_elsewhere(self, parser: Value) -> Iterator[tuple[Module, ast.Call]]:
        """Yield calls of libraries that are given the parser, and may add options to it."""
        for call, _, scope in self._program.calls():
            if self._program.flow.callees(call) or self._program.callee_names(call, scope) & PARSERS:
                continue
            given = [*call.args, *(item.value for item in call.keywords)]
            if any(parser in self._program.flow.values(item, scope) for item in given):
                yield scope.module, call

    def unpacked(self, parsed: Parsed) -> Iterator[tuple[Module, ast.Call]]:
        """Yield calls that are given all arguments by name, ``**vars(args)``, of which one more is one too many."""
        holding = {
            (scope.module, target.id)
            for node, _, scope in self._program.nodes()
            if isinstance(node, ast.Assign) and self._holds_all(node.value, scope, parsed)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for call, _, scope in self._program.calls():
            given = [item.value for item in call.keywords if item.arg is None]
            if not given or self._program.callee_names(call, scope) & HOLDING_ALL:
                continue
            for value in given:
                is_held = isinstance(value, ast.Name) and (scope.module, value.id) in holding
                if is_held or self._holds_all(value, scope, parsed):
                    yield scope.module, call

    def _holds_all(self, node: ast.expr, scope: Scope, parsed: Parsed) -> bool:
        """Whether all arguments go into an expression: ``{**vars(args)}``, ``dict(args.__dict__)``."""
        for part in ast.walk(node):
            whole = whole_of(part)
            values = self._program.flow.values(whole, scope) if whole is not None else set()
            if whole is not None and (not values or any(value.site is parsed.call for value in values)):
                return True
        return False
