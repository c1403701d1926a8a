"""Models that are called in the place of their wrappers: ``wrapped = DDP(model)``, then ``loss = f(model(x), y)``.

Or whose wrapper nothing keeps: ``model = DDP(model).module``, in one step or in two. Or that a name has from before:
``model = self.model``, then ``self.model = DDP(self.model)``. Or whose wrapper the function that makes it drops.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.own_ddp.averaging import may_average
from amp_rules.plan.own_ddp.dropped_wrappers import dropped_wrappers
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.index import argument_at
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk

_ASKED = frozenset(
    {
        *("parameters", "named_parameters", "state_dict", "load_state_dict", "train", "eval", "module", "modules"),
        *("to", "cuda", "zero_grad", "requires_grad_"),
    }
)
"""What a wrapper is asked for where it runs no forward pass."""


def called_bare(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first such call of each model, where the loop trains and nothing uses the wrapper otherwise."""
    yield from dropped_wrappers(own)
    for wrap in own.wraps if own.wraps and not may_average(own.program) else ():
        parent = wrap.module.parents.get(wrap.node)
        if not (isinstance(parent, ast.Attribute) and parent.attr == "module"):
            parent = _taken_off(own, wrap)
        if parent is not None:
            text = f"`{wrap.module.text(parent)}` is the model again, and the wrapper is gone: nothing averages the"
            yield wrap.module, parent, f"{text} gradients over the processes; keep the wrapper, and call that"
            continue
        before = _named_before(own, wrap)
        if before is not None:
            run, name, path = before
            text = f"`{name}` is what `{path}` was before it was wrapped: nothing averages the gradients over the"
            yield wrap.module, run.func, f"{text} processes; call `{path}`"
            continue
        names = _names(wrap)
        if names is None:
            continue
        bare, wrapper = names
        if _may_be_called(wrap, wrapper):
            continue
        call = next(_calls(own, wrap, bare), None)
        if call is not None:
            text = f"`{bare}` is called in the place of its wrapper `{wrapper}`: nothing averages the gradients"
            yield wrap.module, call, f"{text} over the processes; call `{wrapper}`"


def _named_before(own: OwnDdp, wrap: Site) -> tuple[ast.Call, str, str] | None:
    """The first call that trains of a model by a name that it got above its wrapper, with that and the wrapper's."""
    statement = wrap.statement
    path = blocks.path_of(statement.targets[0]) if isinstance(statement, ast.Assign) else None
    if path is None or "." not in path:
        return None
    inside = [node for node in walk(wrap.body)]
    given: dict[str, list[ast.AST]] = {}
    for node in inside:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            given.setdefault(node.id, []).append(wrap.module.parents[node])
    for name, statements in given.items():
        first = statements[0]
        if len(statements) > 1 or not isinstance(first, ast.Assign) or blocks.path_of(first.value) != path:
            continue
        if first.lineno > wrap.line or blocks.body_of(wrap.module, first) is not wrap.body:
            continue
        for node in inside:
            if isinstance(node, ast.Call) and node.lineno > wrap.line and _runs(node.func, name):
                body = blocks.body_of(wrap.module, node)
                if any(site.body is body for site in own.program.backwards):
                    return node, name, path
    return None


def _runs(called: ast.expr, name: str) -> bool:
    """``model(x)``, ``model.forward(x)``."""
    if isinstance(called, ast.Attribute) and called.attr == "forward":
        called = called.value
    return isinstance(called, ast.Name) and called.id == name


def taken_off(own: OwnDdp) -> set[tuple[Module, str]]:
    """The variables from which wrappers are gone in this way, or that never had them, and their files."""
    found = [(wrap.module, _taken_off(own, wrap)) for wrap in own.wraps]
    before = [(wrap.module, _named_before(own, wrap)) for wrap in own.wraps]
    gone = {(module, module.text(inside.value)) for module, inside in found if inside is not None}
    return gone | {(module, row[1]) for module, row in before if row is not None}


def _taken_off(own: OwnDdp, wrap: Site) -> ast.Attribute | None:
    """``model = model.module`` behind ``model = DDP(model)``, where nothing has the wrapper in between."""
    statement = wrap.statement
    if not (isinstance(statement, ast.Assign) and statement.value is wrap.node and len(statement.targets) == 1):
        return None
    path = blocks.path_of(statement.targets[0])
    others = [other for other in own.wraps if other is not wrap and path in blocks.writes(other.statement)]
    if path is None or others:
        return None
    place = blocks.place(wrap.module, statement)
    for below in place.suite[place.index + 1 :]:
        if isinstance(below, ast.Assign) and [blocks.path_of(target) for target in below.targets] == [path]:
            value = below.value
            if isinstance(value, ast.Attribute) and value.attr == "module" and blocks.path_of(value.value) == path:
                return value
            return None
        if not isinstance(below, (ast.Assign, ast.AnnAssign, ast.Expr)) or _may_keep(wrap, below, path):
            return None
    return None


def _may_keep(wrap: Site, statement: ast.stmt, path: str) -> bool:
    """Whether a statement does more with a variable than ask it for what runs nothing, or may reach its object."""
    for node in walk(statement):
        if isinstance(node, (ast.Name, ast.Attribute)) and blocks.path_of(node) == path:
            parent = wrap.module.parents[node]
            if not (isinstance(parent, ast.Attribute) and parent.attr in _ASKED):
                return True
        # ``self.train()`` may use ``self.model``.
        if isinstance(node, ast.Name) and node.id == path.partition(".")[0] and "." in path:
            parent = wrap.module.parents[node]
            if not isinstance(parent, ast.Attribute) or isinstance(wrap.module.parents[parent], ast.Call):
                return True
    return False


def _names(wrap: Site) -> tuple[str, str] | None:
    """The variables of a model and of its wrapper, where these are two of one function."""
    call, statement = wrap.node, wrap.statement
    if not (isinstance(call, ast.Call) and isinstance(statement, ast.Assign) and statement.value is call):
        return None
    given = argument_at(call, "module", 0)
    target = statement.targets[0] if len(statement.targets) == 1 else None
    if not (isinstance(given, ast.Name) and isinstance(target, ast.Name)) or given.id == target.id:
        return None
    return given.id, target.id


def _may_be_called(wrap: Site, wrapper: str) -> bool:
    """Whether a name is given anew, handed on or called: only what it is asked for tells that it runs nothing."""
    parents = wrap.module.parents
    return any(
        node is not wrap.statement.targets[0]  # type: ignore[attr-defined]
        and not (isinstance(parent := parents[node], ast.Attribute) and parent.attr in _ASKED)
        for node in wrap.module.nodes
        if isinstance(node, ast.Name) and node.id == wrapper
    )


def _calls(own: OwnDdp, wrap: Site, bare: str) -> Iterator[ast.Call]:
    """Yield the calls of a model in loops of the same function that train, behind its wrapper."""
    for loop in blocks.walk_body(wrap.body):
        if isinstance(loop, (ast.For, ast.While)) and loop.lineno > wrap.line and own.program.runs_backward(loop):
            for node in walk(loop):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == bare:
                    if not own.program.without_gradients(wrap.module, node, wrap.body):
                        yield node
