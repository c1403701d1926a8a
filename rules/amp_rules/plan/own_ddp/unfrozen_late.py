"""Parameters that are trained only once their model is wrapped: ``DistributedDataParallel`` averages none of them.

It looks at what needs a gradient when it is made.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from amp_rules.flow.given_models import ASKED
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.wrappers import wrapped_by
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import argument_at, keyword, literal
from amp_rules.source.modules import Module

_FLAG = "requires_grad"


@dataclass(frozen=True)
class _Setting:
    """Where a model's parameters are frozen, or trained again; ``value`` is None where that is not known."""

    site: Site
    model: ast.expr
    value: bool | None
    node: ast.AST


def unfrozen_late(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first place where parameters are trained from then on that were frozen when a model was wrapped."""
    if not own.wraps:
        return
    settings = list(_settings(own))
    frozen = [item for item in settings if item.value is not True]
    if not frozen:
        return
    for item in settings:
        if item.value is not True or item.site.module not in own.modules or item.site.body in own.uncalled:
            continue
        model, part = _wrapped_part(own, item)
        if model is None:
            continue
        for wrap in own.wraps:
            runs = own.program.closure(partial(operator.is_, wrap.node))
            if not own.is_behind(runs, item.site.module, item.site.node) or not wrapped_by(
                own, model, item.site, [wrap]
            ):
                continue
            after = blocks.suites_around(item.site.module, item.site.statement)
            if any(runs(below) for suite, index in after for below in suite[index + 1 :]):
                continue  # which wraps it again
            if _is_frozen_before(own, frozen, wrap, part):
                text = (
                    "DistributedDataParallel averages no gradients of what is frozen when it is made: what is trained "
                    "from here on only differs from process to process; wrap the model once more"
                )
                yield item.site.module, item.site.node, text
                return


def _settings(own: OwnDdp) -> Iterator[_Setting]:
    """Yield where the flag of all parameters of a model is set, in a helper where its callers give it the model."""
    for node, body, scope in own.program.nodes():
        found = _set_here(scope.module, node)
        if found is None:
            continue
        model, value = found
        site = Site(scope.module, scope, body, node)
        info = own.program.function_of(body)
        if info is None or not isinstance(model, ast.Name) or model.id not in info.parameters:
            known = literal(value)
            yield _Setting(site, model, known if isinstance(known, bool) else None, node)
            continue
        for caller in own.program.flow.callers(info):
            given = info.argument(caller.call, model.id)
            if given is None:
                continue

            told = partial(_told, info, caller.call)
            tests = [(told(test), holds) for test, holds in own.branches(scope.module, node)]
            if any(isinstance(said, bool) and said is not holds for said, holds in tests):
                continue
            becomes = told(value)
            is_sure = isinstance(becomes, bool) and all(isinstance(said, bool) for said, _ in tests)
            yield _Setting(calling(caller), given, becomes is True if is_sure else None, node)


def _told(info: FunctionFacts, call: ast.Call, node: ast.expr) -> object:
    """What an expression of a function is where a call runs it: a constant, or a parameter that is given one."""
    given: ast.expr | None = node
    if isinstance(node, ast.Name) and node.id in info.parameters:
        given = info.argument_or_default(call, node.id)
    return literal(given) if given is not None else None


def _set_here(module: Module, node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """The model, and what the flag of its parameters becomes: in a loop over them, or by ``requires_grad_()``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == f"{_FLAG}_":
        value = node.args[0] if node.args else keyword(node, _FLAG) or ast.Constant(True)
        held = node.func.value
    elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute) and node.targets[0].attr == _FLAG:
        value, held = node.value, node.targets[0].value
    else:
        return None
    for around in blocks.enclosing(module, node):
        if isinstance(around, ast.For) and blocks.path_of(held) in blocks.writes_target(around):
            given = around.iter
            if isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and given.func.attr in ASKED:
                return given.func.value, value
            return None
    return (held, value) if isinstance(node, ast.Call) else None


def _wrapped_part(own: OwnDdp, item: _Setting) -> tuple[ast.expr | None, str]:
    """The wrapper in ``wrapper.module.backbone``, and ``backbone``; no wrapper where none is written."""
    node = item.model
    if isinstance(node, ast.Name):
        values = list(assigned(own.program, node, item.site.scope))
        if len(values) == 1 and isinstance(values[0], ast.Attribute):
            node = values[0]
    part: list[str] = []
    inner = node
    while isinstance(inner, ast.Attribute):
        if inner.attr == "module":
            return inner.value, ".".join(reversed(part))
        part.append(inner.attr)
        inner = inner.value
    return node, ""


def _is_frozen_before(own: OwnDdp, frozen: list[_Setting], wrap: Site, part: str) -> bool:
    """Whether something freezes a part of a model above its wrapper, or what makes the model does."""
    assert isinstance(wrap.node, ast.Call)
    given = argument_at(wrap.node, "module", 0)
    path = blocks.path_of(given) if given is not None else None
    if given is None:
        return False
    above = set(blocks.statements_above(wrap.module, wrap.statement, wrap.body))
    for item in frozen:
        held = blocks.path_of(item.model)
        if path is None or held is None or item.site.body is not wrap.body:
            continue
        if held == path or held.startswith(f"{path}."):
            is_same = not part or held == path or blocks.touches({f"{path}.{part}"}, {held})
            if is_same and any(item.site.statement in set(ast.walk(statement)) for statement in above):
                return True
    if part:
        return False
    nodes = {node for item in frozen for node in (item.node, item.site.node)}
    made = own.program.closure(lambda node: node in nodes)
    return any(
        value.kind == "instance" and isinstance(value.site, ast.Call) and made(value.site)
        for value in own.program.flow.values(given, wrap.scope)
    )
