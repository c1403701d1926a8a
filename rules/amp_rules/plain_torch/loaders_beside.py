"""Loaders that are trained on in each epoch and needed whole as well: a loader of the process's own stands beside."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.plain_torch.loader_arguments import is_plain, name_for
from amp_rules.plain_torch.loops import loops_around
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.uses import Use, source_of
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module

_MAX_CALLERS = 3
"""Functions through which a loader is handed to the loop that trains on it."""
_READ_ALIKE = frozenset({"dataset", "batch_size"})
"""Attributes that the whole loader and the one of a process have in common."""


@dataclass(frozen=True)
class Home:
    """The statement below which a loader of the process's own is made.

    Attributes:
        source: the source of the whole loader.
        name: the variable, or attribute, of the other one.
    """

    module: Module
    statement: ast.stmt
    source: str
    name: str


class LoadersBeside:
    """Finds where such loaders are made, and who reads them.

    Attributes:
        homes: the places.
        renamed: the expressions that become the new variable, with it.
    """

    def __init__(self, translation: Translation) -> None:
        self._translation = translation
        self._program = translation.program
        self.homes: dict[Home, Use] = {}
        self.renamed: dict[ast.AST, tuple[Module, str]] = {}

    def add(self, use: Use) -> bool:
        """Note what becomes of a use; whether anything can."""
        found: dict[ast.expr, Home] = {}
        if not self._find(Site(use.module, use.scope, use.body, use.argument), found, 0):
            return False
        self.homes |= dict.fromkeys(found.values(), use)
        self.renamed |= {node: (home.module, home.name) for node, home in found.items()}
        return True

    def _find(self, site: Site, found: dict[ast.expr, Home], depth: int) -> bool:
        node = site.node
        assert isinstance(node, ast.expr)
        info = self._program.function_of(site.body)
        if info is not None and isinstance(node, ast.Name) and node.id in info.parameters:
            callers = self._program.flow.callers(info)
            if not callers or depth >= _MAX_CALLERS or not self._is_read_alike(site, node.id):
                return False
            for caller in callers:
                given = info.argument_or_default(caller.call, node.id)
                outer = calling(caller)
                if given is None or not is_plain(given):
                    return False
                if not self._find(Site(outer.module, outer.scope, outer.body, given), found, depth + 1):
                    return False
            return True
        statement = self._assignment(site, node)
        if statement is None:
            return False
        module = site.module
        found[node] = Home(module, statement, source_of(module, node), self._name(module, node))
        return True

    def _is_read_alike(self, site: Site, name: str) -> bool:
        """Whether a parameter is only prepared, and asked for what both loaders have."""
        for node in self._program.nodes_of(site.body):
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
                parent = site.module.parents[node]
                is_prepared = isinstance(parent, ast.Call) and self._is_use(parent)
                if not is_prepared and not (isinstance(parent, ast.Attribute) and parent.attr in _READ_ALIKE):
                    return False
        return not any(name in blocks.writes(part) for part in getattr(site.body, "body", []))

    def _is_use(self, call: ast.Call) -> bool:
        return any(use.call is call for use in self._translation.uses_of("prepare_loader"))

    def _assignment(self, site: Site, node: ast.expr) -> ast.stmt | None:
        """The one statement that assigns a variable, an attribute of ``self`` or a container, and is run once."""
        base = node
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            base = node.value
        path = blocks.path_of(base)
        key = self._program.flow.key(base, site.scope)
        if path is None or key is None or not isinstance(base, (ast.Name, ast.Attribute)):
            return None
        places: list[Site] = []
        for item, body, scope in self._program.nodes():
            if scope.module is not site.module or not isinstance(item, ast.stmt):
                continue
            if not isinstance(item, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                continue
            targets: list[ast.expr] = list(item.targets) if isinstance(item, ast.Assign) else [item.target]
            while targets:
                target = targets.pop()
                if isinstance(target, (ast.Tuple, ast.List)):
                    targets += target.elts
                    continue
                owner = target.value if isinstance(target, ast.Subscript) else target
                if self._program.flow.key(blocks.reading(owner), scope) == key:
                    places.append(Site(scope.module, scope, body, item))
        if len(places) != 1 or loops_around(places[0].module, places[0].node):
            return None
        place = places[0]
        start = self._translation.start
        if start is None or (isinstance(place.body, ast.Module) and place.body is not start.use.body):
            return None  # the processes have not joined by then
        if place.body is start.use.body and place.module.start(place.node) < place.module.start(start.use.node):
            return None
        is_local = not isinstance(base, ast.Attribute)
        if is_local and place.body is not site.body and not isinstance(place.body, ast.Module):
            return None
        assert isinstance(place.node, ast.stmt)
        return place.node

    def _name(self, module: Module, node: ast.expr) -> str:
        key = node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
        path = blocks.path_of(node) or ""
        owner, _, last = path.rpartition(".")
        if key is not None and isinstance(key, str) and key.isidentifier():
            last = name_for(f"{key}_loader", "loader")
        taken = {getattr(item, "id", getattr(item, "attr", getattr(item, "arg", None))) for item in module.nodes}
        name = f"sharded_{last}"
        while name in taken:
            name += "_2"
        return f"{owner}.{name}" if owner and key is None else name
