"""Which expressions of a program are its rank, by where they come from."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from amp_rules.roles.path_objects import assigned
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.index import keyword, literal
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.torch.distributed import (
    GETS_RANK,
    JOINS,
    LOCAL_RANK_VARIABLES,
    OPTION_OF_LAUNCHERS,
    PROCESSES,
    RANK_VARIABLES,
    SPAWNS,
)

_MAX_DEPTH = 5
"""Names, helpers and callers between a rank and where it is asked for; scripts have two or three."""

_FLAGS = 2
"""The names of an option that are looked at."""

_READS = frozenset({"os.environ.get", "os.getenv"})
_LOCAL_RANK = frozenset({"torch.distributed.get_node_local_rank"})


@dataclass(frozen=True)
class Rank:
    """What an expression may be, where it is the rank or a number that stands for it alone.

    Attributes:
        is_local: whether it is the rank on the machine, for all that is known.
        is_global: whether it is the rank among all processes, for all that is known.
        alone: the numbers that it may be in a run of one process.
    """

    is_local: bool
    is_global: bool
    alone: frozenset[object] = frozenset()


@dataclass
class _Found:
    ranks: list[bool] = field(default_factory=list)
    numbers: set[object] = field(default_factory=set)
    options: set[str] = field(default_factory=set)
    is_other: bool = False


class RankValues:
    """Questions about expressions.

    Args:
        program: the program.
        joins_tell: whether what ``init_process_group`` is told for the rank is it, wherever it comes from.
    """

    def __init__(self, program: Program, *, joins_tell: bool = True) -> None:
        self._program = program
        self._joins_tell = joins_tell

    def of(self, node: ast.expr, scope: Scope) -> Rank | None:
        """The rank that an expression is; None where it is something else, or may be."""
        found = _Found()
        self._add(node, scope, found, frozenset(), 0)
        if found.is_other or not found.ranks:
            return None
        return Rank(all(found.ranks), not any(found.ranks), frozenset(found.numbers))

    def options(self, node: ast.expr, scope: Scope) -> frozenset[str]:
        """The options of the command line that an expression is; none where it may be something else."""
        found = _Found()
        self._add(node, scope, found, frozenset(), 0)
        return frozenset() if found.is_other or found.ranks else frozenset(found.options)

    def _add(self, node: ast.expr, scope: Scope, found: _Found, seen: frozenset[object], depth: int) -> None:
        if depth > _MAX_DEPTH:
            found.is_other = True
        elif isinstance(node, ast.Constant) or _is_minus_one(node):
            found.numbers.add(-1 if not isinstance(node, ast.Constant) else node.value)
        elif isinstance(node, ast.JoinedStr):
            found.numbers.add(ast.unparse(node))  # the name of a device, in a run of one process
        elif isinstance(node, ast.IfExp):
            self._add(node.body, scope, found, seen, depth + 1)
            self._add(node.orelse, scope, found, seen, depth + 1)
        elif isinstance(node, ast.Subscript):
            self._variable(variable_read(self._program, node, scope), found)
        elif isinstance(node, ast.Call):
            self._call(node, scope, found, seen, depth)
        elif isinstance(node, (ast.Name, ast.Attribute)):
            self._named(node, scope, found, seen, depth)
        elif isinstance(node, ast.BinOp) and self._is_of_machines(node, scope, seen, depth):
            found.ranks.append(False)
            found.numbers.add(0)
        else:
            found.is_other = True

    def _is_of_machines(self, node: ast.BinOp, scope: Scope, seen: frozenset[object], depth: int) -> bool:
        """``args.rank * gpus + gpu``: the rank on the machine behind those of the machines before."""
        sides = [node.left, node.right] if isinstance(node.op, ast.Add) else []
        products = [side for side in sides if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult)]
        if len(products) != 1:
            return False
        on_machine = _Found()
        self._add(next(side for side in sides if side is not products[0]), scope, on_machine, seen, depth + 1)
        return bool(on_machine.ranks) and not on_machine.is_other

    def _call(self, node: ast.Call, scope: Scope, found: _Found, seen: frozenset[object], depth: int) -> None:
        names = self._program.callee_names(node, scope)
        if names & GETS_RANK and not node.args:
            found.ranks.append(False)
        elif names & _LOCAL_RANK:
            found.ranks.append(True)
        elif reads_environment(self._program, node, scope):
            self._variable(variable_read(self._program, node, scope), found)
            if len(node.args) > 1:
                value = literal(node.args[1])
                number = int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value
                found.numbers.add(-1 if _is_minus_one(node.args[1]) else number)
        elif "builtins.int" in names and len(node.args) == 1:
            self._add(node.args[0], scope, found, seen, depth + 1)
        else:
            callees = self._program.flow.callees(node)
            if not callees or node.args or node.keywords:
                found.is_other = True
            for info in callees:
                if info.node in seen or not info.returns:
                    found.is_other = True
                for item in info.returns:
                    inner = self._program.flow.scopes[info.node]
                    self._add(item, inner, found, seen | {info.node}, depth + 1)

    @staticmethod
    def _variable(name: str | None, found: _Found) -> None:
        if name in RANK_VARIABLES or name in LOCAL_RANK_VARIABLES:
            found.ranks.append(name in LOCAL_RANK_VARIABLES)
        else:
            found.is_other = True

    def _named(
        self, node: ast.Name | ast.Attribute, scope: Scope, found: _Found, seen: frozenset[object], depth: int
    ) -> None:
        path = blocks.path_of(node)
        key = (path, id(scope.owner(path).node)) if isinstance(node, ast.Name) and path else path
        if path is None or key in seen:
            found.is_other = found.is_other or path is None
            return
        seen |= {key}
        before = len(found.ranks), len(found.numbers)
        if isinstance(node, ast.Attribute):
            self._attribute(node.attr, found, seen, depth)
        else:
            owner = scope.owner(node.id)
            self._parameter(node.id, owner, found, seen, depth)
            for value in assigned(self._program, node, scope):
                self._add(value, owner, found, seen, depth + 1)
        if path in self._given_as_rank:
            found.ranks.append(False)
        if before == (len(found.ranks), len(found.numbers)):
            found.is_other = True

    def _attribute(self, name: str, found: _Found, seen: frozenset[object], depth: int) -> None:
        """What any object is given for an attribute of this name: the namespace of the arguments, above all."""
        if name in self._options:
            found.options.add(name)
            found.numbers |= self._options[name]
            if f"--{name}" in OPTION_OF_LAUNCHERS or name in self._options_of_machine:
                found.ranks.append(True)
        for value, scope in self._attributes.get(name, ()):
            self._add(value, scope, found, seen, depth + 1)

    def _parameter(self, name: str, owner: Scope, found: _Found, seen: frozenset[object], depth: int) -> None:
        info = self._program.flow.functions.get(owner.node)
        if info is None or name not in {item.arg for item in arguments_of(info.node)}:
            return
        if info.node in self._spawned and info.by_place[:1] == (name,):
            found.ranks.append(True)
            return
        for caller in self._program.flow.callers(info):
            value = info.argument_or_default(caller.call, name)
            if value is None:
                found.is_other = True
            else:
                self._add(value, caller.scope, found, seen, depth + 1)

    # ---- what is known of the whole program ------------------------------------------------------------------------

    @cached_property
    def _given_as_rank(self) -> frozenset[str]:
        """What ``init_process_group`` is told for the rank, and the attributes that callers give for it."""
        if not self._joins_tell:
            return frozenset()
        found: set[str] = set()
        for site in self._program.calls_to(JOINS):
            node = keyword(site.node, "rank") if isinstance(site.node, ast.Call) else None
            if node is None:
                continue
            path = blocks.path_of(node)
            found |= {path} if path is not None else set()
            found |= set(self._given_for(node, site.scope, 0))
        return frozenset(found)

    def _given_for(self, node: ast.expr, scope: Scope, depth: int) -> Iterator[str]:
        """What callers give for a parameter that nothing else is put into: ``train(args.rank)``, or its own callers."""
        info = self._program.flow.functions.get(scope.owner(node.id).node) if isinstance(node, ast.Name) else None
        if info is None or not isinstance(node, ast.Name) or depth > _MAX_DEPTH:
            return
        if node.id not in {item.arg for item in arguments_of(info.node)} or assigned(self._program, node, scope):
            return
        for caller in self._program.flow.callers(info):
            value = info.argument_or_default(caller.call, node.id)
            path = blocks.path_of(value) if isinstance(value, ast.Attribute) else None
            if path is not None:
                yield path
            elif value is not None:
                yield from self._given_for(value, caller.scope, depth + 1)

    @cached_property
    def _spawned(self) -> frozenset[ast.AST]:
        """Functions that ``spawn`` runs, whose first parameter is the number of the process."""
        found: set[ast.AST] = set()
        for site in self._program.calls_to(PROCESSES):
            assert isinstance(site.node, ast.Call)
            given = keyword(site.node, "fn") or (site.node.args[0] if site.node.args else None)
            if given is not None and self._program.callee_names(site.node, site.scope) & SPAWNS:
                values = self._program.flow.values(given, site.scope)
                found |= {value.ref.node for value in values if value.kind == "function"}
        return frozenset(found)

    @cached_property
    def _attributes(self) -> dict[str, list[tuple[ast.expr, Scope]]]:
        found: defaultdict[str, list[tuple[ast.expr, Scope]]] = defaultdict(list)
        for node, _, scope in self._program.nodes():
            for target, value in _assignments(node):
                if isinstance(target, ast.Attribute):
                    found[target.attr].append((value, scope))
        return found

    @cached_property
    def _options_of_machine(self) -> frozenset[str]:
        """The options whose default is the rank on the machine: ``default=int(os.environ.get("LOCAL_RANK", 0))``."""
        return frozenset(
            name.lstrip("-").replace("-", "_")
            for module in self._program.flow.modules
            for node in module.nodes
            if isinstance(node, ast.Call) and node.args and isinstance(name := literal(node.args[0]), str)
            if name.startswith("--") and (default := keyword(node, "default")) is not None
            if any(literal(part) in LOCAL_RANK_VARIABLES for part in ast.walk(default))
        )

    @cached_property
    def _options(self) -> dict[str, set[object]]:
        """The options of the command line, each with its default."""
        found: dict[str, set[object]] = {}
        for module in self._program.flow.modules:
            for node in module.nodes:
                if isinstance(node, ast.Call) and node.args:
                    # The short name may stand first: ``"-r", "--rank"``.
                    flags = (literal(item) for item in node.args[:_FLAGS])
                    name = next((item for item in flags if isinstance(item, str) and item.startswith("--")), None)
                    if name is not None:
                        default = keyword(node, "default")
                        known = found.setdefault(name.lstrip("-").replace("-", "_"), set())
                        known |= numbers_of_default(default)
        return found


def is_environment(program: Program, node: ast.expr, scope: Scope) -> bool:
    """Whether an expression is ``os.environ``."""
    return isinstance(node, (ast.Name, ast.Attribute)) and "os.environ" in program.names(node, scope)


def reads_environment(program: Program, node: ast.Call, scope: Scope) -> bool:
    """Whether a call reads a variable: ``os.environ.get(name)``, ``os.getenv(name)``."""
    if program.callee_names(node, scope) & _READS:
        return True
    function = node.func
    return (
        isinstance(function, ast.Attribute)
        and function.attr == "get"
        and is_environment(program, function.value, scope)
    )


def variable_read(program: Program, node: ast.AST, scope: Scope) -> str | None:
    """The name of the variable of the environment that an expression reads; None where it is no plain text."""
    name: object = None
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and is_environment(program, node.value, scope)
    ):
        name = literal(node.slice)
    elif isinstance(node, ast.Call) and node.args and reads_environment(program, node, scope):
        name = literal(node.args[0])
    return name if isinstance(name, str) else None


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """``a, b = c, d`` part by part."""
    if not isinstance(node, ast.Assign):
        return
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def numbers_of_default(default: ast.expr | None) -> set[object]:
    """The default of an option; of ``int(os.environ.get("LOCAL_RANK", -1))`` that of the variable."""
    if default is None:
        return {None}
    if _is_minus_one(default):
        return {-1}
    if isinstance(default, ast.Constant):
        return {default.value}
    found: set[object] = set()
    for node in ast.walk(default):
        if _is_minus_one(node):
            return {-1}
        if isinstance(node, ast.Constant) and (isinstance(node.value, int) or str(node.value).isdigit()):
            found.add(int(node.value))  # type: ignore[arg-type]
    return found or {None}


def _is_minus_one(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and literal(node.operand) == 1


def is_function(node: ast.AST) -> bool:
    """Whether a node is the definition of a function."""
    return isinstance(node, FunctionNode)
