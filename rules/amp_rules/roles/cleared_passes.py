"""Backward passes that clear a model's gradients, and read those of its weights: the squares of a Fisher information.

All that such a pass reads is what it computed itself, so it is true without a loss scale.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from amp_rules.flow.flow import Flow
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.gradients import GRADIENT

_WEIGHTS = frozenset({"named_parameters", "parameters"})
_OF_DICTS = frozenset({"items", "values"})
_COLLECTING = frozenset({"dict", "list", "tuple"})


def reads_of_cleared(flow: Flow, module: Module, body: ast.AST, call: ast.Call) -> frozenset[ast.AST] | None:
    """What reads gradients in the function of a pass, where each is of a model that the pass clears first; else None.

    Args:
        flow: what names may hold.
        module: the file of the pass.
        body: the function of the pass.
        call: the pass.
    """
    statement = blocks.statement_of(module, call)
    cleared = dict(_cleared(flow, blocks.statements_above(module, statement, body)))
    found = set()
    for node in blocks.walk_body(body):
        if not isinstance(node, ast.Attribute) or node.attr != GRADIENT:
            continue
        line = cleared.get(_model_of(module, body, node))
        if line is None or node.lineno <= line or not isinstance(node.ctx, ast.Load):
            return None
        found.add(node)
    written = {path for part in blocks.own_parts(body) for path in blocks.writes(part)}
    return frozenset(found) if found and not blocks.touches(written, set(cleared)) else None


def _cleared(flow: Flow, statements: Iterable[ast.stmt]) -> Iterator[tuple[str, int]]:
    """The models whose gradients some statements clear, and in which line: ``model.zero_grad()``."""
    for statement in statements:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad":
            path = blocks.path_of(call.func.value)
            if path is not None and not flow.callees(call):
                yield path, statement.lineno


def _model_of(module: Module, body: ast.AST, access: ast.Attribute) -> str:
    """The model whose parameters a gradient's reader goes over, or takes out of what keeps them; else nothing."""
    read = access.value
    if isinstance(read, ast.Subscript):
        return _model_kept(module, body, read.value)
    if not isinstance(read, ast.Name):
        return ""
    for loop in blocks.enclosing(module, access):
        if not isinstance(loop, ast.For) or read.id not in blocks.writes_target(loop):
            continue
        kept = loop.iter
        if isinstance(kept, ast.Call) and isinstance(kept.func, ast.Attribute) and kept.func.attr in _OF_DICTS:
            kept = kept.func.value
        return _model_asked(loop.iter) or _model_kept(module, body, kept)
    return ""


def _model_asked(node: ast.expr) -> str:
    """The one model whose parameters an expression asks for."""
    calls = [part for part in walk(node) if isinstance(part, ast.Call)]
    asked = [call.func.value for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr in _WEIGHTS]
    return (blocks.path_of(asked[0]) or "") if len(asked) == 1 else ""


def _model_kept(module: Module, body: ast.AST, kept: ast.expr) -> str:
    """The model whose parameters a variable of the function, or an attribute of its class, is given and nothing else.

    ``self.weights = {name: p for name, p in self.model.named_parameters() if p.requires_grad}``
    """
    path = blocks.path_of(kept)
    around = body if isinstance(kept, ast.Name) else _class_of(module, body)
    if path is None or around is None:
        return ""
    writing = [node for node in walk(around) if isinstance(node, ast.stmt) and path in _written_by(node)]
    models = {
        _model_asked(node.value) if isinstance(node, ast.Assign) and _gives_parameters(node.value) else ""
        for node in writing
    }
    return models.pop() if len(models) == 1 else ""


def _written_by(node: ast.stmt) -> set[str]:
    """What a statement writes, but for the statements in it."""
    return blocks.writes_itself(node) if hasattr(node, "body") else blocks.writes(node)


def _class_of(module: Module, body: ast.AST) -> ast.ClassDef | None:
    return next((item for item in module.ancestors(body) if isinstance(item, ast.ClassDef)), None)


def _gives_parameters(node: ast.expr) -> bool:
    """Whether a collection holds the parameters themselves, and not what is made of them."""
    if isinstance(node, (ast.DictComp, ast.ListComp)):
        held = node.value if isinstance(node, ast.DictComp) else node.elt
        loops = node.generators
        names = {part.id for part in walk(loops[0].target) if isinstance(part, ast.Name)}
        return len(loops) == 1 and isinstance(held, ast.Name) and held.id in names
    return isinstance(node, ast.Call) and blocks.path_of(node.func) in _COLLECTING and len(node.args) == 1
