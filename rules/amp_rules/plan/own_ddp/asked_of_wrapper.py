"""Attributes and methods of a model that are looked for in its ``DistributedDataParallel``, which has none of them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from amp_rules.checks.common.rank_branches import in_several
from amp_rules.flow.values import Value
from amp_rules.plan.file_names import more_places
from amp_rules.plan.own_ddp.program import OwnDdp
from amp_rules.plan.own_ddp.wrappers import asks_kind, wrapped_by
from amp_rules.roles.path_objects import assigned
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.index import literal
from amp_rules.source.modules import Module
from amp_rules.source.syntax import last_name, walk
from amp_rules.torch.models import OF_PRETRAINED
from amp_rules.torch.wrappers import OF_DISTRIBUTED_DATA_PARALLEL

_MAX_CALLERS = 4
"""Functions between the wrapping and the one that does all in its order: ``wrap``, ``setup``, ``main``."""
_CAUGHT = frozenset({"AttributeError", "Exception", "BaseException"})
_REGISTERS = frozenset({"register_buffer", "register_parameter"})


@dataclass
class _Asked:
    """Where one variable is asked for what its wrapper lacks."""

    module: Module
    node: ast.Attribute
    is_caught: bool
    places: list[ast.Attribute] = field(default_factory=list)


def asked_of_wrapper(own: OwnDdp) -> Iterator[tuple[Module, ast.AST, str]]:
    """Yield the first place of each variable that raises an ``AttributeError`` in several processes."""
    if not own.wraps:
        return
    read = [
        (node, body, scope)
        for node, body, scope in own.program.nodes()
        if isinstance(node, ast.Attribute) and node.attr not in OF_DISTRIBUTED_DATA_PARALLEL
    ]
    kept = {(ast.unparse(node.value), node.attr) for node, _, _ in read if not isinstance(node.ctx, ast.Load)}
    has = _Attributes()
    found: dict[tuple[ast.AST, str], _Asked] = {}
    for node, body, scope in read:
        path = blocks.path_of(node.value) if isinstance(node.value, (ast.Name, ast.Attribute)) else None
        if path is None or scope.module not in own.modules or not isinstance(node.ctx, ast.Load):
            continue
        if (path, node.attr) in kept or body in own.uncalled or own.program.is_model_code(body):
            continue
        values = own.program.flow.values(node.value, scope)
        if node.attr not in OF_PRETRAINED and not any(has(value, node.attr) for value in values):
            continue
        site = Site(scope.module, scope, body, node)
        if is_in_wrapper(own, site, node.value) and not is_looked_after(own, site, node.value):
            found.setdefault((body, path), _Asked(scope.module, node, _is_caught(site))).places.append(node)
    for (_, path), asked in found.items():
        name = asked.node.attr
        here = _where(own, path, asked)
        error = "this raises an AttributeError"
        if asked.is_caught:
            error += ", which is caught, and what follows in the `try` never runs"
        text = (
            f"`{path}` is in DistributedDataParallel {here}, which has no `{name}`: {error}; "
            f"`{path}.module.{name}` is the model's"
        )
        yield asked.module, asked.node, text + more_places(own.program, [(asked.module, node) for node in asked.places])


def _where(own: OwnDdp, path: str, asked: _Asked) -> str:
    """Where a variable holds a wrapper, in words: some scripts wrap it, or a part of it, by an option."""
    wraps = [wrap for wrap in own.wraps if path in blocks.writes(wrap.statement)]
    others = [wrap for wrap in own.wraps if wrap not in wraps]
    around = {ast.unparse(test) for test, _ in own.branches(asked.module, asked.node)}
    for wrap in wraps:
        tests = [test for test, _ in own.branches(wrap.module, wrap.node) if ast.unparse(test) not in around]
        by_option = bool(tests) and all(in_several(test) is None for test in tests)
        if by_option or any(blocks.exclude_each_other(wrap.module, wrap.statement, item.statement) for item in others):
            return f"where line {wrap.told_line} wraps it"
    return "here"


class _Attributes:
    """What the classes of the project give their objects."""

    def __init__(self) -> None:
        self._known: dict[ast.AST, frozenset[str]] = {}

    def __call__(self, value: Value, name: str) -> bool:
        """Whether an object of a class has an attribute for certain."""
        return value.kind == "instance" and any(name in self._of(info.facts.node) for info in value.ref.mro())

    def _of(self, node: ast.ClassDef) -> frozenset[str]:
        if node not in self._known:
            names = {item.name for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))}
            names |= {path for item in node.body if isinstance(item, ast.Assign) for path in blocks.writes(item)}
            for part in walk(node):
                if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                    if isinstance(part.value, ast.Name) and part.value.id == "self":
                        names.add(part.attr)
                elif isinstance(part, ast.Call) and last_name(part.func) in _REGISTERS and part.args:
                    names.add(str(literal(part.args[0])))
            self._known[node] = frozenset(names)
        return self._known[node]


# ---- whether it is the wrapper --------------------------------------------------------------------------------------


def is_in_wrapper(own: OwnDdp, site: Site, held: ast.expr) -> bool:
    """Whether a variable holds a wrapper at a place where there are several processes, for all that is known."""
    wraps = [wrap for wrap in own.wraps if not own.contradict(wrap, site) and not _overrides(own, wrap, site)]
    if not wraps or not wrapped_by(own, held, site, wraps):
        return False
    given = [value for value in assigned(own.program, held, site.scope) if _is_above(site, value)]
    if given:
        # What comes last counts: ``model = model.module`` below the training.
        last = max((value for value in given if _gives_wrapper(own, site, value, wraps)), key=_line, default=None)
        if last is None:
            return False
        return all(blocks.exclude_each_other(site.module, last, value) for value in given if _line(value) > _line(last))
    if isinstance(held, ast.Attribute):
        runs = own.program.closure(lambda node: node is site.node)
        return not any(_runs_above(own, wrap, runs, 0) for wrap in wraps)
    return True


def _gives_wrapper(own: OwnDdp, site: Site, value: ast.expr, wraps: list[Site]) -> bool:
    # ``if hasattr(model, "module"): inner = model.module`` and ``else: inner = model``.
    if any(asks_kind(test) for test, _ in own.branches(site.module, value)):
        return False
    return wrapped_by(own, value, Site(site.module, site.scope, site.body, value), wraps)


def _is_above(site: Site, value: ast.expr) -> bool:
    return blocks.body_of(site.module, value) is site.body and _line(value) < site.line


def _line(node: ast.AST) -> int:
    line: int = getattr(node, "lineno", 0)
    return line


def _runs_above(own: OwnDdp, wrap: Site, runs: Callable[[ast.AST], bool], depth: int) -> bool:
    """Whether a place is run above a wrapping, in its function or in one that leads there."""
    if any(runs(item) for item in blocks.statements_above(wrap.module, wrap.statement, wrap.body)):
        return True
    info = own.program.function_of(wrap.body)
    callers = own.program.flow.callers(info) if info is not None and depth < _MAX_CALLERS else []
    return any(_runs_above(own, calling(caller), runs, depth + 1) for caller in callers)


# ---- whether the script knows ---------------------------------------------------------------------------------------


def _overrides(own: OwnDdp, wrap: Site, site: Site) -> bool:
    """Whether objects whose class wraps a part of them run another method in the place of the one around a site."""
    method, wrapping = own.program.function_of(site.body), own.program.function_of(wrap.body)
    if method is None or wrapping is None:
        return False
    base, derived = own.program.flow.class_of(method), own.program.flow.class_of(wrapping)
    if base is None or derived is None or base is derived or base not in derived.mro():
        return False
    instead = derived.find_method(method.name)
    if instead is None or instead.node is method.node:
        return False
    # ``super().save(path)`` runs the one of the base class all the same.
    return not any(calling(caller).body is instead.node for caller in own.program.flow.callers(method))


def is_looked_after(own: OwnDdp, site: Site, held: ast.expr) -> bool:
    """Whether a test for a wrapper stands around a place, an error is caught there, or there is one process only."""
    if own.several_alone(site.module, site.node) is False:
        return True
    path = blocks.path_of(held)
    if any(asks_kind(test) for test, _ in own.branches(site.module, site.node)):
        return True  # ``if isinstance(model, DDP): return model.module.loss(x)`` above it, too
    for item in site.module.ancestors(site.node):
        if isinstance(item, blocks.BODIES):
            return False
        if isinstance(item, ast.Try) and not _only_tells(item):
            return True
        if isinstance(item, (ast.If, ast.IfExp)):
            if asks_kind(item.test):
                return True
            inner = [n.value for n in walk(item) if isinstance(n, ast.Attribute) and n.attr == "module"]
            if path in map(blocks.path_of, inner):
                return not _is_for_others(own, site, item)
    return False


def _is_caught(site: Site) -> bool:
    """Whether the error at a place ends what a ``try`` around it begins, and the function goes on."""
    return any(
        handler.type is None or not _CAUGHT.isdisjoint(last_name(part) for part in walk(handler.type))
        for item in blocks.enclosing(site.module, site.node)
        if isinstance(item, ast.Try)
        for handler in item.handlers
    )


def _only_tells(item: ast.Try) -> bool:
    """Whether all that is done about an error is to show it: nothing takes the place of what raises it."""
    rest = [part for handler in item.handlers for part in handler.body]
    return bool(item.handlers) and all(
        isinstance(part, (ast.Pass, ast.Continue)) or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Call))
        for part in rest
    )


def _is_for_others(own: OwnDdp, site: Site, branch: ast.If | ast.IfExp) -> bool:
    """Whether a place is where all but one process go: ``if distributed and rank == 0: ... else: ...``."""
    test = branch.test
    if not isinstance(branch, ast.If) or not (isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)):
        return False
    if not any(own.tells_apart(site.module, part) for part in test.values):
        return False
    return any(site.node is node for item in branch.orelse for node in walk(item))
