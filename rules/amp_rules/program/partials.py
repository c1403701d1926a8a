"""``functools.partial``: the call that it stands for, once it is made."""

from __future__ import annotations

import ast

from amp_rules.program.cells import Cells, Overlay
from amp_rules.program.scopes import Scope
from amp_rules.program.values import Value

_BINDABLE = frozenset({"function", "class", "instance", "partial"})

Arguments = list[set[Value]]
Keywords = dict[str | None, set[Value]]


class Partials(Cells):
    """Functions, classes and callable objects with some of their arguments given in advance."""

    def _partial(self, node: ast.Call, arguments: Arguments, keywords: Keywords, scope: Scope) -> set[Value]:
        """What ``partial(function, ...)`` gives; of what is not the project's own, the function itself."""
        self._bound[node] = (arguments[1:], keywords, scope)
        return {
            Value("partial", value, node) if value.kind in _BINDABLE else value
            for values in arguments[:1]
            for value in values
        }

    def _apply_partial(
        self,
        target: Value,
        node: ast.Call,
        arguments: Arguments,
        keywords: Keywords,
        scope: Scope,
        overlay: Overlay | None,
    ) -> set[Value]:
        made = target.site
        assert isinstance(made, ast.Call)
        first, named, origin = self._bound[made]
        whole = self._whole_call(made, node, scope, origin)
        if node in self._call_callees or not self._frozen:
            self._call_callees.setdefault(node, set())
        given = self._apply(target.ref, whole, [*first, *arguments], {**named, **keywords}, scope, overlay)
        if not self._frozen:
            self._call_callees[node] |= self._call_callees.get(whole, set())
        # What is made by the call is told apart by where the call stands.
        return {Value(item.kind, item.ref, node, item.receiver) if item.site is whole else item for item in given}

    def _whole_call(self, made: ast.Call, node: ast.Call, scope: Scope, origin: Scope) -> ast.Call:
        """The plain call with all arguments; those that were given in another body stand there as strangers."""
        whole = self._whole_calls.get((made, node))
        if whole is None:
            bound = made.args[1:]
            names = made.keywords
            if origin is not scope:
                bound = [ast.copy_location(ast.Name("<bound>", ast.Load()), node) for _ in bound]
                names = []
            whole = ast.Call(made.args[0], [*bound, *node.args], [*names, *node.keywords])
            ast.copy_location(whole, node)
            parent = scope.module.parents.get(node)
            if parent is not None:
                scope.module.parents[whole] = parent
            self._whole_calls[made, node] = whole
        return whole
