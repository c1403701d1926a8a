"""Apex's ``amp`` where functions are given it, and where it is None unless a condition of the script holds.

``if args.fp16: from apex import amp`` with ``else: amp = None`` says by the variable what the condition says. What asks
the variable asks the condition instead, in functions of the file that are given it too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from amp_rules.plan.apex.file import ApexFile
from amp_rules.source import blocks
from amp_rules.source.resolver import Binding
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none, walk
from amp_rules.torch import apex as api

AMP = "apex.amp"

_ATOMS = (ast.Name, ast.Attribute, ast.Subscript, ast.Compare)


@dataclass
class Receiver:
    """A function of the file that is given ``amp``.

    Attributes:
        definition: the function.
        calls: its calls, each with the place of the argument.
        tests: what asks the parameter, and what to ask instead.
    """

    definition: ast.FunctionDef
    calls: list[tuple[ast.Call, int]]
    tests: list[tuple[ast.expr, str]]


@dataclass
class AmpOrNone:
    """A variable that holds ``amp`` where a condition holds, and None elsewhere.

    Attributes:
        condition: the statement that asks for it.
        nothing: the one that makes it None, where the condition does not hold.
        tests: what asks the variable, and what to ask instead.
        receivers: the functions that are given it.
    """

    condition: ast.If
    nothing: ast.Assign
    tests: list[tuple[ast.expr, str]] = field(default_factory=list)
    receivers: list[Receiver] = field(default_factory=list)


def amp_or_none(file: ApexFile) -> Iterator[AmpOrNone]:
    """Yield the variables of a file of which every use is understood."""
    for binding in file.references.bindings:
        if binding.target == AMP and binding.name == "amp":
            found = _understood(file, binding)
            if found is not None:
                yield found


def amp_given(file: ApexFile) -> Iterator[Receiver]:
    """Yield the functions of a file that are given the module itself, which they can name as well."""
    scopes = {item.scope: None for item in file.references.bindings if item.target == AMP and item.name == "amp"}
    for scope in scopes:
        names = list(_names(file, "amp", scope))
        others = [item for item in file.names.bindings if item.name == "amp" and item.scope is scope]
        if any(not isinstance(node.ctx, ast.Load) for node in names) or any(item.target != AMP for item in others):
            continue
        given: dict[str, list[tuple[ast.Call, int]]] = {}
        for node in names:
            place = _given(file, node)
            if place is not None:
                given.setdefault(place[0], []).append(place[1:])
        for function, calls in given.items():
            receiver = _receiver(file, function, calls, "amp", None)
            if receiver is not None:
                yield receiver


def _understood(file: ApexFile, binding: Binding) -> AmpOrNone | None:
    name, scope = binding.name, binding.scope
    stores = [node for node in _names(file, name, scope) if not isinstance(node.ctx, ast.Load)]
    if len(stores) != 1 or not scope.is_function:
        return None
    nothing = blocks.statement_of(file.module, stores[0])
    condition = file.module.parents[nothing]
    if not (
        isinstance(nothing, ast.Assign)
        and nothing.targets == [stores[0]]
        and isinstance(nothing.value, ast.Constant)
        and nothing.value.value is None
        and isinstance(condition, ast.If)
        and condition.orelse == [nothing]
        and binding.statement in {part for item in condition.body for part in walk(item)}
        and _is_settled(file, condition.test, scope)
    ):
        return None
    found = AmpOrNone(condition, nothing)
    given: dict[str, list[tuple[ast.Call, int]]] = {}
    for node in _names(file, name, scope):
        if not isinstance(node.ctx, ast.Load):
            continue
        asked = _asked(file, node, file.source(condition.test), condition.test)
        place = _given(file, node)
        if asked is not None:
            found.tests.append(asked)
        elif _is_none(file, node):
            found.tests.append((node, "None"))
        elif place is not None:
            given.setdefault(place[0], []).append(place[1:])
        elif not _is_called(file, node):
            return None
    for function, calls in given.items():
        receiver = _receiver(file, function, calls, name, condition.test)
        if receiver is None:
            return None
        found.receivers.append(receiver)
    return found


def _names(file: ApexFile, name: str, scope: Scope) -> Iterator[ast.Name]:
    for node in file.module.parents:
        if isinstance(node, ast.Name) and node.id == name and file.references.scope_of(node).owner(name) is scope:
            yield node


def _is_called(file: ApexFile, node: ast.Name) -> bool:
    """Whether one of Apex's functions is asked for: ``amp.scale_loss``."""
    parent = file.module.parents[node]
    return isinstance(parent, ast.Attribute) and f"{AMP}.{parent.attr}" in _FUNCTIONS


_FUNCTIONS = frozenset({f"{AMP}.initialize", f"{AMP}.scale_loss", *api.RENAMED})


def _asked(file: ApexFile, node: ast.Name, text: str, test: ast.expr) -> tuple[ast.expr, str] | None:
    """The expression that only asks whether the variable holds something, and what says so without it."""
    asked: ast.expr = node
    parent = file.module.parents[node]
    is_there = True
    if isinstance(parent, ast.Compare) and parent.left is node and len(parent.ops) == 1:
        right = parent.comparators[0]
        if not is_none(right):
            return None
        if not isinstance(parent.ops[0], (ast.Is, ast.IsNot)):
            return None
        is_there = isinstance(parent.ops[0], ast.IsNot)
        asked, parent = parent, file.module.parents[parent]
    if is_there and isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And) and len(parent.values) == 2:
        other = parent.values[parent.values[0] is asked]
        if ast.dump(other) == ast.dump(test):
            asked, parent = parent, file.module.parents[parent]  # ``args.fp16 and amp is not None``
    inner: ast.AST = asked
    while isinstance(parent, (ast.BoolOp, ast.UnaryOp)) and not (
        isinstance(parent, ast.UnaryOp) and not isinstance(parent.op, ast.Not)
    ):
        inner, parent = parent, file.module.parents[parent]
    if not (isinstance(parent, (ast.If, ast.IfExp, ast.While, ast.Assert)) and parent.test is inner):
        return None
    if not is_there:
        return asked, f"not {text}" if isinstance(test, _ATOMS) else f"not ({text})"
    alone = inner is asked or isinstance(test, _ATOMS)
    return asked, text if alone else f"({text})"


def _is_none(file: ApexFile, node: ast.Name) -> bool:
    """Whether the variable stands where it is None: ``amp.state_dict() if amp is not None else amp``."""
    parent = file.module.parents[node]
    if not (isinstance(parent, ast.IfExp) and parent.orelse is node):
        return False
    test = parent.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.IsNot):
        right = test.comparators[0]
        test = test.left if is_none(right) else test
    return isinstance(test, ast.Name) and test.id == node.id


def _given(file: ApexFile, node: ast.Name) -> tuple[str, ast.Call, int] | None:
    """The function that is given a variable, the call, and the place of the argument in it."""
    call = file.module.parents[node]
    owner = file.module.parents[call] if isinstance(call, ast.keyword) else call
    if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func is not node:
        return owner.func.id, owner, _index(owner, call, node)
    return None


def _index(call: ast.Call, argument: ast.AST, node: ast.Name) -> int:
    """The place of an argument among all of a call, in the order of the text."""
    given: list[ast.AST] = [*call.args, *call.keywords]
    given.sort(key=lambda item: (item.lineno, item.col_offset))  # type: ignore[attr-defined]
    return given.index(argument if isinstance(argument, ast.keyword) else node)


# ---- functions that are given it -----------------------------------------------------------------------------------


def _receiver(
    file: ApexFile, function: str, calls: list[tuple[ast.Call, int]], name: str, test: ast.expr | None
) -> Receiver | None:
    """What is known of a function that is given ``amp``; without a test it never asks whether it is there."""
    definitions = [
        node for node in file.module.tree.body if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    top = file.references.scopes[file.module.tree]
    uses = [node for node in file.module.nodes if isinstance(node, ast.Name) and node.id == function]
    if len(definitions) != 1 or function in file.wanted_elsewhere or definitions[0].decorator_list:
        return None
    definition = definitions[0]
    if {file.module.parents[node] for node in uses} != {call for call, _ in calls} or len(uses) != len(calls):
        return None
    given = definition.args
    if given.vararg or given.kwarg or given.posonlyargs:
        return None
    names = [item.arg for item in given.args]
    required = names[: len(names) - len(given.defaults)]
    inside = file.references.scopes[definition]
    told: set[str] = set()
    for call, _ in calls:
        arguments = _arguments(call, names)
        if arguments is None or name not in required:
            return None
        value = arguments.get(name)
        if not (isinstance(value, ast.Name) and value.id == name):
            return None
        text = _there(file, test, arguments, inside, top) if test is not None else ""
        if text is None:
            return None
        told.add(text)
    elsewhere = [item for item in file.references.bindings if item.name == name and item.scope is top]
    if len(told) != 1 or (name in top.bound and not elsewhere):
        return None
    tests: list[tuple[ast.expr, str]] = []
    for node in _names(file, name, inside):
        asked = _asked(file, node, next(iter(told)), test) if test is not None else None
        if asked is not None:
            tests.append(asked)
        elif not (isinstance(node.ctx, ast.Load) and _is_called(file, node)):
            return None
    return Receiver(definition, calls, tests)


def _arguments(call: ast.Call, names: list[str]) -> dict[str, ast.expr] | None:
    if any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords):
        return None
    found = dict(zip(names, call.args, strict=False))
    found.update({str(item.arg): item.value for item in call.keywords})
    return found


def _there(file: ApexFile, test: ast.expr, arguments: dict[str, ast.expr], inside: Scope, top: Scope) -> str | None:
    """A condition in the words of a function that is given what it asks for under the same names."""
    for node in walk(test):
        if not isinstance(node, ast.Name):
            continue
        owner = file.references.scope_of(node).owner(node.id)
        if owner is top:
            if inside.owner(node.id) is not top:
                return None
            continue
        value = arguments.get(node.id)
        if not (isinstance(value, ast.Name) and value.id == node.id):
            return None
        if any(not isinstance(item.ctx, ast.Load) for item in _names(file, node.id, inside)):
            return None
    return file.source(test) if _is_settled(file, test, inside) else None


# ---- conditions that hold on ---------------------------------------------------------------------------------------


def _is_settled(file: ApexFile, test: ast.expr, scope: Scope) -> bool:
    """Whether a condition asks for options that nothing in the file sets in this function, or in one that it calls."""
    plain = (ast.Name, ast.Attribute, ast.Subscript, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant)
    inner = (*plain, ast.expr_context, ast.cmpop, ast.boolop, ast.unaryop)
    if not all(isinstance(part, inner) for part in walk(test)):
        return False
    asked = {ast.unparse(part) for part in walk(test) if isinstance(part, (ast.Name, ast.Attribute, ast.Subscript))}
    called = {
        node.func.id for node in walk(scope.node) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    for node in file.module.nodes:
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) or isinstance(node.ctx, ast.Load):
            continue
        if ast.unparse(node) not in asked:
            continue
        holder = blocks.body_of(file.module, node)
        if isinstance(node, ast.Name) and file.references.scope_of(node).owner(node.id) not in (
            scope,
            file.references.scopes[file.module.tree],
        ):
            continue
        if holder is scope.node or getattr(holder, "name", None) in called:
            return False
    return True
