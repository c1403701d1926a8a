"""Whether something runs before a place of the program alone, and never after it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts

_MAX_CALLERS = 6
"""Functions around a place; a longer chain counts as one that may run at any time."""


class Earlier:
    """Answers for one place, which a function runs that one other calls, and so on to the file's own level."""

    def __init__(self, program: Program, place: Site) -> None:
        self._program = program
        # Other scripts may import the file, and call what this one does not.
        self._is_shared = place.module is not program.entry
        self._around: dict[ast.AST, ast.AST] = {}
        self._named: defaultdict[str, list[Site]] | None = None
        while len(self._around) < _MAX_CALLERS:
            self._around[place.body] = place.node
            info = program.function_of(place.body)
            callers = program.flow.callers(info) if info is not None else []
            if len(callers) != 1:
                break
            place = calling(callers[0])

    def runs(self, site: Site, seen: frozenset[ast.AST] = frozenset()) -> bool:
        """Whether a node runs before the place, on every way there is to it."""
        place = self._around.get(site.body)
        if place is not None:
            return self._precedes(site, place)
        info = self._program.function_of(site.body)
        if info is None or len(seen) > _MAX_CALLERS or _is_called_by_others(info):
            return False
        uses = [use for use in self._uses(info) if use.body not in seen | {site.body}]
        return (bool(uses) or not self._is_shared) and all(self.runs(use, seen | {site.body}) for use in uses)

    def _precedes(self, site: Site, place: ast.AST) -> bool:
        loops = [item for item in blocks.enclosing(site.module, place) if isinstance(item, blocks.LOOPS)]
        return (
            site.line < place.lineno  # type: ignore[attr-defined]
            and not any(item in loops for item in blocks.enclosing(site.module, site.node))
        )

    def _uses(self, info: FunctionFacts) -> Iterator[Site]:
        """Where the function is named, called or given to something that calls it."""
        if self._named is None:
            self._named = defaultdict(list)
            for node, body, scope in self._program.nodes():
                if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                    name = node.id if isinstance(node, ast.Name) else node.attr
                    self._named[name].append(Site(scope.module, scope, body, node))
        for site in self._named[info.name]:
            values = self._program.flow.values(site.node, site.scope)  # type: ignore[arg-type]
            # A method whose owner is not known may be this one.
            if not values or any(value.kind != "function" or value.ref is info for value in values):
                yield site
        if info.name == "__init__":  # ``Trainer(settings)`` does not name it
            yield from map(calling, self._program.flow.callers(info))


def _is_called_by_others(info: FunctionFacts) -> bool:
    """Whether a library calls it at times of its own: ``forward``, ``__getitem__``, a lambda, what a decorator gets."""
    is_special = info.name.startswith("__") and info.name.endswith("__") and info.name != "__init__"
    return info.is_forward or is_special or isinstance(info.node, ast.Lambda) or bool(info.node.decorator_list)
