"""Variables that never hold anything: every place that gives them a value gives ``None``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.flow.flow import Flow
from amp_rules.flow.values import Value
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import is_none, last_name, walk
from amp_rules.torch.models import TORCH_MODULE_BASES

_MAX_PLACES = 16
"""Variables and parameters that are looked through: an option that is handed on goes through two or three."""

_BARE = frozenset({"object", "builtins.object", "abc.ABC"}) | TORCH_MODULE_BASES
"""Bases that give an object no attributes of a script's own."""
_SETS_BY_NAME = frozenset({"setattr", "object.__setattr__", "vars", "self.__dict__.update"})
"""Calls after which an attribute may hold what its name does not show."""


def never_runs(flow: Flow, module: Module, node: ast.AST, *, callers: int = 2) -> bool:
    """Whether a node stands under a condition on a variable that is always false, as in ``if log_file:``.

    So does a part of ``nn.BatchNorm2d(n) if norm else None``. Or behind ``if scaler is not None:``, where all that the
    variable is given are objects of the project's classes, or ``if norm == "batch":``, where it is given other
    constants alone. Or in the other branch of ``if is_train:``, where all calls give ``True``. Or in a function of
    which no call ever runs, with so many ``callers`` above it.
    """
    inner = node
    for parent in module.ancestors(node):
        if isinstance(parent, (*blocks.BODIES, ast.ClassDef)):
            return callers > 0 and _is_never_called(flow, parent, callers - 1)
        if isinstance(parent, (ast.If, ast.IfExp)):
            scope = flow.scopes.get(blocks.body_of(module, parent))
            in_body = inner is parent.body or (isinstance(parent, ast.If) and inner in parent.body)
            if in_body and scope is not None and _is_always(flow, parent.test, scope, none=False):
                return True
            if in_body and scope is not None and _is_another(flow, parent.test, scope):
                return True
            in_else = not in_body and inner is not parent.test
            if in_else and scope is not None and _is_given_true(flow, parent.test, scope):
                return True
            if scope is not None and (in_body or in_else) and _is_of_nothing(flow, parent.test, scope, holds=in_body):
                return True
        inner = parent
    return False


def _is_never_called(flow: Flow, body: ast.AST, callers: int) -> bool:
    """Whether a function is used in no other way than by calls, none of which ever runs."""
    info = flow.functions.get(body)
    calls = flow.callers(info) if info is not None else []
    if info is None or not calls or info.name.startswith("__"):
        return False
    if not all(never_runs(flow, item.scope.module, item.call, callers=callers) for item in calls):
        return False
    called = {item.call.func for item in calls}
    # A method is asked of its object: a variable of its name is another thing.
    kinds = (ast.Attribute,) if info.receiver is not None else (ast.Name, ast.Attribute)
    uses = (node for module in flow.modules for node in module.nodes if isinstance(node, kinds))
    return not any(last_name(node) == info.name and node not in called for node in uses)


def _is_given_true(flow: Flow, test: ast.expr, scope: Scope) -> bool:
    """Whether all calls of a function give a parameter ``True``, as far as they are known."""
    if not isinstance(test, ast.Name):
        return False
    info = flow.functions.get(scope.owner(test.id).node)
    if info is None or test.id not in info.parameters:
        return False
    given = _known(_given(flow, test, scope))
    return bool(given) and all(isinstance(value, ast.Constant) and value.value is True for value, _ in given)


def _is_of_nothing(flow: Flow, test: ast.expr, scope: Scope, *, holds: bool) -> bool:
    """Whether a test comes out like this only where a variable holds ``None``, which it never does."""
    if not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and len(test.ops) == 1):
        return False
    other = test.comparators[0]
    wanted = ast.Is if holds else ast.IsNot
    asks = is_none(other) and isinstance(test.ops[0], wanted)
    return asks and _is_always_made(flow, test.left, scope)


def _is_another(flow: Flow, test: ast.expr, scope: Scope) -> bool:
    """Whether a test asks for a constant that a variable of a function, or an attribute, is never given."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    wanted = test.comparators[0]
    if not (isinstance(wanted, ast.Constant) and isinstance(test.left, (ast.Name, ast.Attribute))):
        return False
    pending: list[tuple[ast.expr, Scope]] = [(test.left, scope)]
    seen: set[ast.AST] = set()
    while pending:
        current, inner = pending.pop()
        if isinstance(current, ast.Constant) and current.value != wanted.value:
            continue
        if current in seen:
            continue  # another way to it
        if not isinstance(current, (ast.Name, ast.Attribute)) or len(seen) == _MAX_PLACES:
            return False
        seen.add(current)
        if isinstance(current, ast.Attribute):
            given = _known(_put(flow, current, inner))
        else:
            given = _known(_given(flow, current, inner)) if inner.owner(current.id).is_function else []
        if not given:
            return False
        pending += given
    return True


def _is_always_made(flow: Flow, node: ast.Name, scope: Scope) -> bool:
    """Whether all that a variable is given are objects of the project's classes, made there."""
    pending: list[tuple[ast.expr, Scope]] = [(node, scope)]
    seen: set[ast.AST] = set()
    while pending:
        current, inner = pending.pop()
        if current in seen or len(seen) == _MAX_PLACES:
            return False
        seen.add(current)
        if isinstance(current, ast.Call):
            made = flow.values(current.func, inner)
            if not made or any(value.kind != "class" for value in made):
                return False
            continue
        given = _known(_given(flow, current, inner)) if isinstance(current, ast.Name) else []
        if not given:
            return False
        pending += given
    return True


def is_always_none(flow: Flow, node: ast.expr, scope: Scope) -> bool:
    """Whether a variable is ``None`` whenever it is read, as in ``train(model, optimizer, scheduler=None)``.

    An attribute is where all that its object was made with is: ``self.scheduler = scheduler``.
    """
    return _is_always(flow, node, scope, none=True)


def _is_always(flow: Flow, node: ast.expr, scope: Scope, *, none: bool) -> bool:
    """Whether a variable is ``None``, or a constant that counts as false, whenever it is read."""
    pending = [(node, scope)]
    seen: set[ast.AST] = set()
    while pending:
        current, inner = pending.pop()
        if isinstance(current, ast.Constant) and (current.value is None or not (none or current.value)):
            continue
        if current in seen or len(seen) == _MAX_PLACES:
            return False
        seen.add(current)
        if isinstance(current, ast.Call):
            made = _returned(flow, current, inner)
            if made is None:
                return False
            pending += made
            continue
        if not isinstance(current, (ast.Name, ast.Attribute)):
            return False
        given = _known(_given(flow, current, inner) if isinstance(current, ast.Name) else _put(flow, current, inner))
        if not given:
            return False
        pending += given
    return True


def _known(given: Iterable[tuple[ast.expr | None, Scope]]) -> list[tuple[ast.expr, Scope]]:
    """What a variable is given, where each is known; else nothing."""
    found: list[tuple[ast.expr, Scope]] = []
    for value, scope in given:
        if value is None:
            return []
        found.append((value, scope))
    return found


def _given(flow: Flow, name: ast.Name, scope: Scope) -> Iterator[tuple[ast.expr | None, Scope]]:
    """What a variable is given, and where; None for what is not a plain assignment or argument."""
    owner = scope.owner(name.id)
    info = flow.functions.get(owner.node)
    if info is not None and name.id in info.parameters:
        for caller in flow.callers(info):
            # What a partial function was given in another body does not stand at the call of it.
            is_written = caller.scope.module.parents.get(caller.call.func) is caller.call
            given = info.argument_or_default(caller.call, name.id) if is_written else None
            yield given, flow.scope_given(info, caller, given)
    # Variables of this name in functions further in count too: one more value says no more than that it is not known.
    for node in walk(owner.node):
        if isinstance(node, ast.Name) and node.id == name.id and not isinstance(node.ctx, ast.Load):
            yield from _assigned(flow, owner.module, node)


def _put(flow: Flow, attribute: ast.Attribute, scope: Scope) -> Iterator[tuple[ast.expr | None, Scope]]:
    """What an attribute of an object of the project is given, and where; those of its name of all objects count."""
    owners = [value for value in flow.values(attribute.value, scope) if value.kind == "instance"]
    if not owners or not all(map(_is_bare, owners)):
        return
    # What only its name tells of an object is no value, and a constant is looked at where it is given.
    if any(value.kind not in ("attribute", "constant") for value in flow.values(attribute, scope)):
        return
    for value in owners:
        yield from _of_class(flow, value, attribute.attr)
    for module in flow.modules:
        for node in module.nodes:
            if isinstance(node, ast.Call) and blocks.path_of(node.func) in _SETS_BY_NAME:
                yield None, scope
            elif isinstance(node, ast.Attribute) and node.attr == attribute.attr and isinstance(node.ctx, ast.Store):
                yield from _assigned(flow, module, node)


def _of_class(flow: Flow, owner: Value, name: str) -> Iterator[tuple[ast.expr | None, Scope]]:
    """What the classes of an object give an attribute of all their objects: ``scheduler = None``."""
    for info in owner.ref.mro():
        definition = info.facts.node
        module = info.facts.module.module
        inner = flow.scopes.get(blocks.body_of(module, definition))
        for node in (part for item in definition.body for part in blocks.walk_own(item)):
            if not (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)):
                continue
            if definition.decorator_list and inner is not None:
                yield None, inner  # a field of a data class, which its constructor may be given
            else:
                yield from _assigned(flow, module, node)


def _assigned(flow: Flow, module: Module, node: ast.expr) -> Iterator[tuple[ast.expr | None, Scope]]:
    """What the statement around a written variable gives it, and where; None for what is no plain assignment."""
    statement = blocks.statement_of(module, node)
    body = blocks.body_of(module, node)
    inner = flow.scopes.get(body)
    if inner is None:
        return  # nothing runs it
    if isinstance(statement, ast.AnnAssign) and statement.target is node:
        if statement.value is not None:
            yield statement.value, inner
    elif isinstance(statement, ast.Assign) and node in statement.targets:
        yield statement.value, inner
    elif isinstance(statement, ast.Assign) and (found := _unpacked(flow, statement, node, inner)) is not None:
        yield from found
    else:
        yield None, inner


def _unpacked(
    flow: Flow, statement: ast.Assign, node: ast.expr, scope: Scope
) -> list[tuple[ast.expr | None, Scope]] | None:
    """The elements that a name in a tuple gets: of ``optimizer, scheduler = make(model)``."""
    target = statement.targets[0]
    if len(statement.targets) != 1 or not isinstance(target, ast.Tuple) or node not in target.elts:
        return None
    if any(isinstance(item, ast.Starred) for item in target.elts):
        return None
    values: list[tuple[ast.expr, Scope]] | None = [(statement.value, scope)]
    if isinstance(statement.value, ast.Call):
        values = _returned(flow, statement.value, scope)
    found: list[tuple[ast.expr | None, Scope]] = []
    for value, inner in values or ():
        if not isinstance(value, ast.Tuple) or len(value.elts) != len(target.elts):
            return None
        found.append((value.elts[target.elts.index(node)], inner))
    return found or None


def _returned(flow: Flow, call: ast.Call, scope: Scope) -> list[tuple[ast.expr, Scope]] | None:
    """What the functions return that a call runs; None where it may run another, or makes an object."""
    called = flow.values(call.func, scope)
    callees = flow.callees(call)
    if not callees or len(callees) != len(called) or any(value.kind not in ("function", "method") for value in called):
        return None
    found: list[tuple[ast.expr, Scope]] = []
    for info in callees:
        inner = flow.scopes.get(info.node)
        if (
            inner is None
            or info.yields
            or info.decorator_list
            or isinstance(info.node, (ast.AsyncFunctionDef, ast.Lambda))
        ):
            return None
        found += [(value, inner) for value in info.returns]
    return found


def _is_bare(owner: Value) -> bool:
    """Whether nothing but its own classes can give an object of the project attributes."""
    family = owner.ref.mro()
    return not set(owner.ref.external_bases()) - _BARE and all(
        len(info.bases) >= len(info.facts.node.bases) for info in family
    )
