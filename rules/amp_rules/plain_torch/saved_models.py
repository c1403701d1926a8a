"""Models that leave the process as wholes, within something else: ``torch.save({"net": net}, path)``.

Whoever loads the file has no other processes, and DistributedDataParallel cannot be loaded without them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.cells import Mark, attribute_key
from amp_rules.flow.values import Value
from amp_rules.plain_torch.translation import Translation
from amp_rules.plain_torch.wrapped import Wrapped
from amp_rules.plain_torch.wrapped_references import WrappedReferences
from amp_rules.roles.kinds import is_module
from amp_rules.roles.sites import Site
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import walk
from amp_rules.text.runtime_vocabulary import RUNTIME
from amp_rules.torch.containers import NAMESPACES
from amp_rules.torch.writers import HANDED_TO_PROCESSES, WHOLE_OBJECT_WRITERS

_LEAVING = WHOLE_OBJECT_WRITERS | HANDED_TO_PROCESSES
_CONTENT = ("obj", "args", "kwargs")
_SAVED = "what is saved as a whole"
_HOLDERS = ("sequence", "object", "instance")
_DISPLAYS = (ast.Dict, ast.List, ast.Tuple, ast.Set)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp)
_GROWS = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "appendleft"})


class SavedModels:
    """What is saved with a wrapped model in it."""

    def __init__(self, translation: Translation, models: list[Wrapped], references: WrappedReferences) -> None:
        self._translation = translation
        self._program = translation.program
        self._models = frozenset(value for item in models for value in item.values)
        self._references = references
        self._holders: set[Value] = set()
        self._handed: set[Value] = set()

    def sites(self) -> Iterator[Site]:
        """Yield the expressions in whose place the model itself has to stand; the rest declines."""
        for call, body, scope in self._program.calls():
            names = self._names(call, scope)
            if names & _LEAVING:
                is_handed = bool(names & HANDED_TO_PROCESSES)
                named = [item.value for item in call.keywords if item.arg in _CONTENT]
                for item in [*(call.args if is_handed else call.args[:1]), *named]:
                    if self._is_wrapper(item, scope):
                        yield Site(scope.module, scope, body, item)
                    holding = self._holding(item, scope)
                    self._holders |= holding
                    self._handed |= holding if is_handed else set()
                    self._check_objects(Site(scope.module, scope, body, item))
        if not self._holders:
            return
        for node, body, scope in self._program.nodes():
            site = Site(scope.module, scope, body, node)
            if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
                if self._is_gone_over(node.iter, scope):
                    self._decline(site, f"`{site.module.text(node.iter)}` goes over {_SAVED}")
            elif isinstance(node, ast.expr) and self._is_wrapper(node, scope):
                holders = self._put_into(site)
                if holders & self._handed:
                    self._decline(site, f"`{site.module.text(node)}` is handed to another process")
                elif holders:
                    yield site
                elif self._is_taken(site):
                    self._decline(site, f"`{site.module.text(node)}` is a model out of {_SAVED}")

    def _names(self, call: ast.Call, scope: Scope) -> set[str]:
        """The names of what a call runs, on the first process alone, too: ``amp.on_main(torch.save)(state, path)``."""
        function = call.func
        if isinstance(function, ast.Call) and self._program.callee_names(function, scope) & {f"{RUNTIME}.on_main"}:
            return self._program.names(function.args[0], scope) if function.args else set()
        return self._program.callee_names(call, scope)

    def _holding(self, node: ast.expr, scope: Scope) -> set[Value]:
        """The containers that an expression may be, or has in it, with a model in them."""
        found: set[Value] = set()
        pending = [*self._program.flow.values(node, scope)]
        while pending:
            value = pending.pop()
            if value.kind in _HOLDERS and not is_module(value) and value not in found:
                found.add(value)
                pending += self._program.flow.elements([value])
        return {value for value in found if self._has_model(value, set())}

    def _has_model(self, value: Value, seen: set[Value]) -> bool:
        inner = self._program.flow.elements([value]) - seen
        return bool(inner & self._models) or any(
            self._has_model(item, seen | inner) for item in inner if item.kind in _HOLDERS and not is_module(item)
        )

    def _check_objects(self, site: Site) -> None:
        """Decline where an object of the project, or another model, has the wrapper in one of its attributes."""
        assert isinstance(site.node, ast.expr)
        held = self._program.flow.values(site.node, site.scope)
        for value in held | self._program.flow.elements(held):
            is_object = value.kind == "instance" or (value.kind == "object" and value.ref in NAMESPACES)
            if is_object and value not in self._models and self._keeps(value):
                text = site.module.text(site.node)
                self._decline(site, f"`{text}` is saved as a whole, with a model in it that several processes wrap")
                return

    def _keeps(self, value: Value) -> bool:
        """Whether an attribute of an object holds a model that may be wrapped."""
        classes = [Value("class", info) for info in value.ref.mro()] if value.kind == "instance" else [value]
        owners = {attribute_key(item, Mark.ANY)[0] for item in classes}
        return any(
            owner in owners and cell.values & self._models for (owner, _), cell in self._program.flow.cells.items()
        )

    def _is_wrapper(self, node: ast.expr, scope: Scope) -> bool:
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
            return False
        if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return False
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            return False  # getattr(model, "module", model)
        return bool(self._program.flow.values(node, scope) & self._models) and self._references.may_be_wrapped(
            node, scope
        )

    def _put_into(self, site: Site) -> set[Value]:
        """What is saved that an expression is put into: ``{"net": net}``, ``state["net"] = net``."""
        node, parents = site.node, site.module.parents
        while isinstance(parents[node], ast.IfExp) and parents[node].test is not node:  # type: ignore[attr-defined]
            node = parents[node]
        parent = parents[node]
        is_each = isinstance(parent, ast.DictComp) and parent.value is node
        is_each = is_each or (isinstance(parent, _COMPREHENSIONS) and parent.elt is node)
        if isinstance(parent, ast.expr) and (is_each or isinstance(parent, _DISPLAYS)):
            return self._saved(parent, site.scope)
        if isinstance(parent, ast.keyword):
            parent = parents[parent]
        if isinstance(parent, ast.Call) and node is not parent.func:
            if isinstance(parent.func, ast.Attribute) and parent.func.attr in _GROWS:
                return self._saved(parent.func.value, site.scope)
            return {value for value in self._saved(parent, site.scope) if value.site is parent}
        if isinstance(parent, ast.Assign) and parent.value is node:
            owners = [target.value for target in parent.targets if isinstance(target, ast.Subscript)]
            return {value for owner in owners for value in self._saved(owner, site.scope)}
        return set()

    def _is_gone_over(self, iterated: ast.expr, scope: Scope) -> bool:
        """Whether a loop takes the models out of what is saved, one after the other."""
        return any(isinstance(node, ast.expr) and self._saved(node, scope) for node in walk(iterated))

    def _is_taken(self, site: Site) -> bool:
        """Whether an expression takes the model out of what is saved."""
        node, scope = site.node, site.scope
        if isinstance(node, ast.Subscript):
            return bool(self._saved(node.value, scope))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return bool(self._saved(node.func.value, scope))
        return False

    def _saved(self, node: ast.expr, scope: Scope) -> set[Value]:
        return self._program.flow.values(node, scope) & self._holders

    def _decline(self, site: Site, message: str) -> None:
        recipe = "save `model.state_dict()`, or keep what is saved apart from what trains"
        self._translation.decline(site.module, site.node, message, recipe, "distribution")
