"""Objects that keep a model from before its wrapper, and give the loss: ``flow = Flow(model)``, then ``DDP(model)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.values import ClassInfo
from amp_rules.plan.own_ddp.averaging import may_average
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name


def kept_before(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield where such an object is made, if its loss goes past the wrapper for certain."""
    told: set[ast.AST] = set()
    for wrap in own.wraps if own.wraps and not may_average(own.program) else ():
        path = _wrapped_again(wrap)
        if path is None:
            continue
        bodies = _bodies(own, wrap, path)
        for made, keeper in _made_before(own, wrap, path, bodies):
            passes = _passes(own, made, path)
            if made in told or not passes or _is_set_later(own, made, keeper, passes[0], bodies):
                continue
            if _trains_by(own, keeper, path, passes[1], bodies):
                told.add(made)
                text = (
                    f"`{keeper}` keeps `{path}` from before DistributedDataParallel, and its loss goes past the wrapper"
                )
                yield wrap.module, made, f"{text}: nothing averages the gradients over the processes"


def _wrapped_again(wrap: Site) -> str | None:
    """The variable that holds a model, and then its wrapper: ``model = DDP(model)``."""
    call = wrap.node
    statement = blocks.statement_of(wrap.module, call)
    if not isinstance(call, ast.Call) or not isinstance(statement, ast.Assign) or statement.value is not call:
        return None
    given = argument_at(call, "module", 0)
    path = blocks.path_of(given) if given is not None else None
    return path if path is not None and [blocks.path_of(item) for item in statement.targets] == [path] else None


def _bodies(own: OwnDdp, wrap: Site, path: str) -> list[ast.AST]:
    """Where a variable has this name: the methods of a class for ``self.model``, else the one body."""
    info = own.program.function_of(wrap.body)
    if info is None or info.cls is None or info.receiver is None or not path.startswith(f"{info.receiver}."):
        return [wrap.body]
    return [item.node for item in info.cls.methods.values() if item.receiver == info.receiver]


def _made_before(own: OwnDdp, wrap: Site, path: str, bodies: list[ast.AST]) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls that are given the model before it is wrapped, with the variable of what they make."""
    wraps = own.program.closure(lambda node: node is wrap.node)
    for body in bodies:
        info = own.program.function_of(body)
        is_first = info is not None and info.name == "__init__" and body is not wrap.body
        if body is not wrap.body and not is_first:
            continue
        nodes = sorted(blocks.walk_body(body), key=lambda node: getattr(node, "lineno", 0))
        reached = next((node.lineno for node in nodes if isinstance(node, ast.stmt) and wraps(node)), None)
        written = [node.lineno for node in nodes if isinstance(node, ast.stmt) and path in blocks.writes(node)]
        for node in nodes:
            if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.value, ast.Call):
                continue
            keeper = blocks.path_of(node.targets[0])
            given = [blocks.path_of(item) for item in node.value.args]
            given += [blocks.path_of(item.value) for item in node.value.keywords]
            if keeper is None or path not in given or (reached is not None and reached <= node.lineno):
                continue
            # Between the two, the variable stays the same model.
            if not any(node.lineno < line < (reached or line) for line in written):
                yield node.value, keeper


def _passes(own: OwnDdp, made: ast.Call, path: str) -> tuple[str, set[ast.AST]] | None:
    """The attribute that an object of the project keeps the model in, and the calls of the model by it."""
    located = own.program.locate(made)
    values = own.program.flow.values(made, located[1]) if located is not None else set()
    classes = {value.ref for value in values if value.kind == "instance" and value.site is made}
    if len(classes) != 1 or len(values) != 1:
        return None
    info: ClassInfo = classes.pop()
    start = info.find_method("__init__")
    if start is None or start.receiver is None:
        return None
    taken = {
        name
        for name in start.parameters
        if (given := start.argument(made, name)) is not None and blocks.path_of(given) == path
    }
    kept = {
        item
        for node in blocks.walk_body(start.node)
        if isinstance(node, ast.Assign) and blocks.path_of(node.value) in taken
        for target in node.targets
        if (item := blocks.path_of(target)) is not None and item.startswith(f"{start.receiver}.")
    }
    methods = [item for one in info.mro() for item in one.facts.methods.values() if item.receiver is not None]
    if len(kept) != 1:
        return None
    attribute = kept.pop().partition(".")[2]
    writes = [
        node
        for item in methods
        for node in blocks.walk_body(item.node)
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and node.attr == attribute
    ]
    calls: set[ast.AST] = {
        node
        for item in methods
        for node in blocks.walk_body(item.node)
        if isinstance(node, ast.Call) and blocks.path_of(node.func) == f"{item.receiver}.{attribute}"
    }
    return (attribute, calls) if len(writes) == 1 and calls else None


def _is_set_later(own: OwnDdp, made: ast.Call, keeper: str, attribute: str, bodies: list[ast.AST]) -> bool:
    """Whether another statement gives the object, or what it keeps, anew: ``flow.model = model``."""
    name = keeper.rpartition(".")[2]
    for node, _, _ in own.program.nodes():
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and node.attr == attribute:
            if isinstance(node.value, (ast.Name, ast.Attribute)) and last_name(node.value) == name:
                return True
    return any(
        keeper in blocks.writes(node) and not (isinstance(node, ast.Assign) and node.value is made)
        for body in bodies
        for node in blocks.walk_body(body)
        if isinstance(node, ast.stmt)
    )


def _trains_by(own: OwnDdp, keeper: str, path: str, passes: set[ast.AST], bodies: list[ast.AST]) -> bool:
    """Whether a loss is computed by the object where nothing computes by the wrapper."""
    computes = own.program.closure(lambda node: node in passes, with_gradients=True)
    for backward in own.program.backwards:
        if backward.body not in bodies:
            continue
        loss, nodes = blocks.reads(backward.loss), list(blocks.walk_body(backward.body))
        if any(isinstance(node, ast.Call) and _is_given(node, path) for node in nodes):
            continue
        for node in nodes:
            if isinstance(node, ast.Call) and computes(node) and node.lineno <= backward.line:
                called = blocks.path_of(node.func) or ""
                statement = blocks.statement_of(backward.module, node)
                if (called == keeper or called.startswith(f"{keeper}.")) and isinstance(statement, ast.Assign):
                    if blocks.touches(blocks.writes(statement), loss):
                        return True
    return False


def _is_given(call: ast.Call, path: str) -> bool:
    """Whether a call runs the wrapper, or may."""
    given = [call.func, *call.args, *(item.value for item in call.keywords)]
    return any(blocks.path_of(item) == path for item in given)
