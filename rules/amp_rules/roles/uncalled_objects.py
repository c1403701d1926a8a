"""Objects that a program makes and never calls: what the ``__call__`` of their classes does is not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from amp_rules.flow.statements import is_main_guard
from amp_rules.flow.values import ClassInfo
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode
from amp_rules.source.syntax import names_written, walk

_BASES_THAT_CALL_NOTHING = frozenset({"abc.ABC", "builtins.object"})
_REACHES_ALL = frozenset({"__call__", "__dict__"})


def uncalled_objects(program: Program, idle: Set[ast.AST]) -> set[ast.AST]:
    """The ``__call__`` methods that nothing runs, as every object of their classes can be followed.

    An object is followed where it is only kept under a name, and where that name is only asked for attributes: so
    nothing else is given the object, and could call it.

    Args:
        program: the program, in which nothing is found by a text.
        idle: functions that nothing calls.
    """
    left = {
        info.node: owner
        for info in program.flow.functions.values()
        if info.name == "__call__" and (owner := program.flow.class_of(info)) is not None and _is_plain(program, owner)
    }
    found: set[ast.AST] = set()
    # An object may be called in the `__call__` of another class, which nothing runs either.
    while added := {node for node, owner in left.items() if _is_never_called(program, owner, {*idle, *found, node})}:
        found |= added
        left = {node: owner for node, owner in left.items() if node not in added}
    return found


def _is_plain(program: Program, owner: ClassInfo) -> bool:
    """Whether a class of a file stands alone: no subclass, no base, no decorator."""
    node = owner.facts.node
    if node.decorator_list or node.keywords or owner.external_bases() - _BASES_THAT_CALL_NOTHING:
        return False
    if owner.mro() != [owner] or len(owner.bases) < len(node.bases) or program.module_of(node) is None:
        return False
    return not any(other is not owner and owner in other.mro() for other in program.flow.classes.values())


def _is_never_called(program: Program, owner: ClassInfo, idle: Set[ast.AST]) -> bool:
    """Whether no object of a class is called outside of idle functions, nor given to anything that may call it."""
    name = owner.facts.node.name
    kept: set[str] = set()
    for module, node in _written(program, {name}, idle):
        parent = module.parents[node]
        if isinstance(node, ast.alias):
            if node.asname is not None:
                return False
        elif not (isinstance(parent, ast.Call) and parent.func is node):
            return False
        else:
            target = _kept_as(module, parent)
            if target is None:
                return False
            kept.add(target)
    return _shows_itself_to_none(program, owner, idle) and all(
        isinstance(node, (ast.Name, ast.Attribute))
        and (not isinstance(node.ctx, ast.Load) or _asks_for_attribute(module, node))
        for module, node in _written(program, kept, idle)
    )


def _written(program: Program, names: Set[str], idle: Set[ast.AST]) -> Iterator[tuple[Module, ast.AST]]:
    """Where names are written in what runs."""
    for module in program.flow.modules:
        for statement in module.tree.body:
            if module is not program.entry and isinstance(statement, ast.If) and is_main_guard(statement):
                continue  # it runs where the file is the script
            for node in walk(statement):
                if not names.isdisjoint(names_written(node)) and idle.isdisjoint(module.ancestors(node)):
                    yield module, node


def _kept_as(module: Module, made: ast.Call) -> str | None:
    """The variable or attribute that alone holds a new object."""
    parent = module.parents[made]
    if not (isinstance(parent, ast.Assign) and len(parent.targets) == 1):
        return None
    target = parent.targets[0]
    if isinstance(target, ast.Attribute):
        return target.attr
    return target.id if isinstance(target, ast.Name) else None


def _asks_for_attribute(module: Module, node: ast.AST) -> bool:
    parent = module.parents[node]
    return isinstance(parent, ast.Attribute) and parent.value is node and parent.attr not in _REACHES_ALL


def _shows_itself_to_none(program: Program, owner: ClassInfo, idle: Set[ast.AST]) -> bool:
    """Whether the methods of a class only ask their own object for attributes."""
    for method in owner.facts.node.body:
        info = program.flow.functions.get(method)
        if info is None or method in idle or not isinstance(method, FunctionNode):
            continue
        module = info.module.module
        for node in walk(method):
            if isinstance(node, ast.Name) and node.id == info.receiver and idle.isdisjoint(module.ancestors(node)):
                if not _asks_for_attribute(module, node):
                    return False
    return True
