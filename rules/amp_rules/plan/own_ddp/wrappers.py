"""Whether an expression holds a model in its wrapper, and not the model inside."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from amp_rules.flow.records import constructor_fields
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.index import argument_at
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.models import RETURNS_RECEIVER
from amp_rules.torch.wrappers import COMPILES

_MAX_DEPTH = 8
"""Names and parameters between a wrapper and where it is called: a trainer, its method, a function that evaluates."""


def wrapped_by(own: OwnDdp, node: ast.expr, site: Site, wraps: Collection[Site]) -> bool:
    """Whether an expression may hold what one of some calls of ``DistributedDataParallel`` gives.

    Args:
        own: the program.
        node: the expression.
        site: where it is read.
        wraps: the calls.
    """
    made = {item.node for item in wraps}
    seen: set[ast.AST] = set()
    pending = [(node, site, _MAX_DEPTH)]
    for current, where, depth in pending:
        if current in made:
            return True
        # Many ways lead through the same names.
        if depth <= 0 or current in seen:
            continue
        seen.add(current)
        if isinstance(current, ast.Attribute) and any(_is_kept_as(own, current, where, wrap) for wrap in wraps):
            return True
        if isinstance(current, ast.Subscript):
            pending += [(value, place, depth - 1) for value, place in _put_into(own, current, where)]
        if isinstance(current, (ast.Name, ast.Attribute, ast.Call)):
            pending += [(value, place, depth - 1) for value, place in _origins(own, current, where)]
    return False


def _put_into(own: OwnDdp, node: ast.Subscript, site: Site) -> Iterator[tuple[ast.expr, Site]]:
    """Yield what is put into the container of an element: ``models[name] = DistributedDataParallel(model)``."""
    path = blocks.path_of(node.value)
    for stored, where in own.put_into.get(path or "", ()):
        if "." in (path or "") or where.body is site.body:
            yield stored, where


def _origins(own: OwnDdp, node: ast.Name | ast.Attribute | ast.Call, site: Site) -> Iterator[tuple[ast.expr, Site]]:
    """Yield what gives an expression its value, and where: assignments, callers, functions of the project."""
    if isinstance(node, ast.Call):
        for called in own.program.flow.callees(node):
            scope = own.program.flow.scopes[called.node]
            yield from ((given, Site(called.module.module, scope, called.node, given)) for given in called.returns)
        if isinstance(node.func, ast.Attribute) and node.func.attr in RETURNS_RECEIVER:
            yield node.func.value, site
        if node.args and own.program.callee_names(node, site.scope) & COMPILES:
            yield node.args[0], site  # whose ``module`` is that of the wrapper inside
        return
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        yield from _given_to_records(own, node, site)
    owner = site.scope.owner(node.id) if isinstance(node, ast.Name) else site.scope
    for value in assigned(own.program, node, site.scope):
        body = blocks.body_of(site.module, value)
        if body is site.body and _line(value) > _line(site.node):
            continue  # ``inner = model`` above ``model = DDP(model)``
        if body is site.body and blocks.exclude_each_other(site.module, value, site.node):
            continue  # ``inner = model`` where no wrapper is made, beside ``inner = model.module``
        if any(asks_kind(test) for test, _ in own.branches(site.module, value)):
            continue  # ``if hasattr(model, "module"): model = model.module`` and ``else: model = model.to(device)``
        yield value, Site(site.module, own.program.flow.scopes[body], body, value)
    info = own.program.flow.functions.get(owner.node)
    if info is None or not isinstance(node, ast.Name) or node.id not in info.parameters:
        return
    if owner.node is site.body and _is_given_anew(site, node.id):
        return
    for caller in own.program.flow.callers(info):
        given = info.argument_or_default(caller.call, node.id)
        # ``if local_rank == -1: evaluate(model)``: without several processes there is no wrapper, either.
        if given is not None and own.several_alone(caller.scope.module, caller.call) is not False:
            yield given, calling(caller)


def _given_to_records(own: OwnDdp, node: ast.Attribute, site: Site) -> Iterator[tuple[ast.expr, Site]]:
    """Yield what a field of a data class is given where its objects are made: ``Trainer(model=wrapped)``."""
    around = next((item for item in site.module.ancestors(site.body) if isinstance(item, ast.ClassDef)), None)
    if around is None or not around.decorator_list:
        return
    for call, body, scope in own.program.calls():
        if last_name(call.func) != around.name:
            continue
        for value in own.program.flow.values(call.func, scope):
            if value.kind != "class" or value.ref.facts.node is not around:
                continue
            fields = constructor_fields(value)
            given = argument_at(call, node.attr, fields.index(node.attr)) if node.attr in fields else None
            if given is not None:
                yield given, Site(scope.module, scope, body, call)


def _is_given_anew(site: Site, name: str) -> bool:
    """Whether a variable has another value for certain when a place is reached than its callers gave."""
    above = blocks.statements_above(site.module, site.statement, site.body)
    return any(name in blocks.certainly_bound(item) for item in above)


def asks_kind(test: ast.AST) -> bool:
    """Whether a test asks what an object is: a wrapper, or the model inside."""
    return any(isinstance(part, ast.Name) and part.id in ("isinstance", "hasattr", "type") for part in walk(test))


def _is_kept_as(own: OwnDdp, node: ast.Attribute, site: Site, wrap: Site) -> bool:
    """Whether an attribute of an object is the one that a wrapper is put into from outside: ``trainer.model = ...``."""
    statement = wrap.statement
    if wrap.body is site.body and _line(statement) > _line(site.node):
        return False  # ``self.model = self.model.to(device)`` above ``self.model = DDP(self.model)``
    values = own.program.flow.values(node.value, site.scope)
    return (
        isinstance(statement, ast.Assign)
        and statement.value is wrap.node
        and any(
            isinstance(target, ast.Attribute)
            and target.attr == node.attr
            and own.program.flow.values(target.value, wrap.scope) & values
            for target in statement.targets
        )
    )


def _line(node: ast.AST) -> int:
    line: int = getattr(node, "lineno", 0)
    return line
