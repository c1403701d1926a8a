"""Passes over shared loaders: where they begin, and how callers know the loader."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from amp_rules.flow.values import CallSite, Value
from amp_rules.plain_torch.loader_arguments import is_plain
from amp_rules.plain_torch.shared_loaders import SharedLoaders
from amp_rules.roles.loaders import Loaders, LoaderUse, is_loader
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk


@dataclass(frozen=True)
class Pass(Site):
    """An expression that begins a pass over a loader, or a call that leads to one.

    Attributes:
        loader: the expression that holds the loader there; None where it is not in reach.
        values: the shared loaders that it may be.
        is_iterator: whether it is an iterator of its own, as in ``batches = iter(loader)``.
    """

    node: ast.expr
    loader: ast.expr | None
    values: frozenset[Value]
    is_iterator: bool = False


class Passes:
    """Finds the passes over the loaders that are shared out."""

    def __init__(self, program: Program, shared: SharedLoaders) -> None:
        self._program = program
        self._shared = shared

    def all(self) -> list[Pass]:
        """Where passes over shared loaders begin."""
        loaders = Loaders(self._program)
        beside = {use.argument for use in self._shared.decided if self._shared.is_beside(use)}
        found: dict[ast.AST, Pass] = {}
        behind: list[tuple[LoaderUse, Pass]] = []
        for node, body, scope in self._program.nodes():
            if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
                begun: ast.expr = node.iter
            elif isinstance(node, ast.Call) and "builtins.iter" in self._program.callee_names(node, scope):
                begun = node
            else:
                continue
            site = Site(scope.module, scope, body, node)
            direct = list(loaders.direct(begun, site))
            for known in direct or loaders.iterated(begun, site):
                use = self._of_a_bar(known, loaders, beside) or known
                values = use.values if use.loader in beside else use.values & self._shared.values
                is_inside = bool(direct) and _is_handed_on(self._program, begun, known.loader, scope.module)
                if not direct and use.body is not body:
                    behind.append((use, Pass(scope.module, scope, body, begun, None, values, begun is node)))
                    continue
                if values and not is_inside and not self._is_another(use, use.loader, values):
                    loader = self._renamed(use.loader)
                    key = known.loader if direct else begun
                    found[key] = Pass(scope.module, scope, body, begun, loader, values, begun is node)
        for use, item in behind:
            # Mostly it is behind a loop of another function, which has been found by itself.
            if use.loader not in found and item.values:
                found[item.node] = item
        return list(found.values())

    def _of_a_bar(self, use: LoaderUse, loaders: Loaders, beside: set[ast.expr]) -> LoaderUse | None:
        """The loader that stands beside the whole one, and that a variable's bar goes over: ``bar = tqdm(loader)``."""
        if not isinstance(use.loader, ast.Name) or use.loader in beside:
            return None
        name = use.loader.id
        given = [
            node.value
            for node in self._program.nodes_of(use.body)
            if isinstance(node, ast.Assign) and name in blocks.writes(node)
        ]
        if len(given) != 1:
            return None
        return next((inner for inner in loaders.direct(given[0], use) if inner.loader in beside), None)

    def _is_another(self, site: Site, loader: ast.expr, values: frozenset[Value]) -> bool:
        """Whether it is plainly another one of the loaders that one constructor makes: ``loaders["val"]``."""
        if not all(map(self._shared.is_one_of_several, values)):
            return False
        prepared = [use.argument for use in self._shared.decided]
        if isinstance(loader, ast.Subscript) and isinstance(loader.slice, ast.Constant):
            return ast.dump(loader) not in map(ast.dump, prepared)
        if not isinstance(loader, ast.Name) or ast.dump(loader) in map(ast.dump, prepared):
            return False
        own = [
            node.value
            for node in self._program.nodes_of(site.body)
            if isinstance(node, ast.Assign) and loader.id in blocks.writes(node)
        ]
        # A variable that takes what a function gives, and is not prepared.
        return bool(own) and all(
            isinstance(value, ast.Call) and not names_in(value) & _all_names(prepared) for value in own
        )

    def _renamed(self, node: ast.expr) -> ast.expr:
        """The loader of the process's own, where a whole one stands."""
        _, name = self._shared.beside.renamed.get(node, (None, None))
        return node if name is None else ast.parse(name, mode="eval").body

    def at_caller(self, item: Pass, info: FunctionFacts, caller: CallSite) -> Pass:
        """The call that leads to a pass, with the loader as the caller knows it."""
        site = calling(caller)
        loader = _given(item, info, site)
        if loader is not None and loader not in site.module.parents and (self.is_mixed(item) or self.is_wrapped(item)):
            loader = None
        values = item.values
        if loader in self._shared.beside.renamed:
            loader = self._renamed(loader)
        elif loader is not None and loader in site.module.parents:
            values &= self._program.flow.values(loader, site.scope)
            if self._is_another(site, loader, values):
                values = frozenset()
        return Pass(site.module, site.scope, site.body, caller.call, loader, values)

    def is_wrapped(self, item: Pass) -> bool:
        """Whether it is a bar or an iterator around the loader, which has no sampler: ``bar = tqdm(loader)``."""
        loader, flow = item.loader, self._program.flow
        if loader is None or loader not in item.module.parents:
            return False
        key = flow.key(loader, item.scope)
        if key is None:
            return False
        given = [
            (node.value, scope)
            for node, _, scope in self._program.nodes()
            if isinstance(node, ast.Assign)
            and any(flow.key(blocks.reading(target), scope) == key for target in node.targets)
        ]
        info = self._program.function_of(item.body)
        if info is not None and isinstance(loader, ast.Name) and loader.id in info.parameters:
            for caller in flow.callers(info):
                value = info.argument_or_default(caller.call, loader.id)
                given += [(value, caller.scope)] if value is not None else []
        return any(isinstance(value, ast.Call) and self._wraps(value, scope) for value, scope in given)

    def _wraps(self, call: ast.Call, scope: Scope) -> bool:
        is_prepared = "amp_runtime.prepare_loader" in self._program.callee_names(call, scope)
        makes = any(value.site is call for value in self._program.flow.values(call, scope))
        return not (is_prepared or makes or self._program.flow.callees(call))

    def is_mixed(self, item: Pass) -> bool:
        """Whether the loader may be one that is not shared out."""
        if item.loader is None or item.loader not in item.module.parents:
            return False
        held = {value for value in self._program.flow.values(item.loader, item.scope) if is_loader(value)}
        return not held <= item.values or any(map(self._shared.is_one_of_several, item.values))


def _is_handed_on(program: Program, begun: ast.expr, loader: ast.expr, module: Module) -> bool:
    """Whether a generator of the project, or an object of it, is given the loader: the passes begin there."""
    node: ast.AST = loader
    while node is not begun:
        node = module.parents[node]
        if isinstance(node, ast.Call):
            if any(info.yields or info.name == "__init__" for info in program.flow.callees(node)):
                return True
    return False


def _given(item: Pass, info: FunctionFacts, site: Site) -> ast.expr | None:
    """The loader of a pass, as the caller of its function knows it."""
    call, loader = site.node, item.loader
    assert isinstance(call, ast.Call)
    if isinstance(loader, ast.Name):
        if loader.id in info.parameters:
            return info.argument_or_default(call, loader.id)
        owner = item.scope.owner(loader.id).node
        is_known = isinstance(owner, ast.Module) or owner is site.body  # which the function is defined in
        return loader if is_known and site.module is item.module else None
    if isinstance(loader, ast.Attribute) and isinstance(call.func, ast.Attribute) and is_plain(call.func.value):
        first, _, rest = ast.unparse(loader).partition(".")
        if first != info.receiver:
            return None
        if ast.unparse(call.func.value) == first:
            return loader
        return ast.parse(f"{ast.unparse(call.func.value)}.{rest}", mode="eval").body
    return None


def _all_names(nodes: Iterable[ast.expr]) -> set[str]:
    return {name for node in nodes for name in names_in(node)}


def names_in(node: ast.expr) -> set[str]:
    """The names that an expression spells."""
    return {item.id for item in walk(node) if isinstance(item, ast.Name)}
