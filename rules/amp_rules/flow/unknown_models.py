"""Models that a call makes of which no more is known: ``eval(name)(options)``, ``zoo.build(name)`` of a library.

So does what a class of the project gives for a key by code of its own: ``zoo["encoder", depth]``.

The variable that such a call is put into says what it holds by what the program asks of it: it is called, or a method
or part of it is, and its parameters are asked for. That is a model, of any class.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.flow.call_graph import CallGraph
from amp_rules.flow.cells import CellKey
from amp_rules.flow.expressions import ExpressionEvaluator
from amp_rules.flow.given_models import ASKED
from amp_rules.flow.reached import Reached
from amp_rules.flow.statements import nodes_run
from amp_rules.flow.store import Store
from amp_rules.flow.values import GIVEN_MODEL, Value
from amp_rules.roles.kinds import is_loader_value, is_module, is_optimizer, is_scheduler
from amp_rules.source.scopes import Scope
from amp_rules.torch.models import NO_FORWARD, RETURNS_RECEIVER
from amp_rules.torch.wrappers import RETURNS_FIRST_ARGUMENT

_LOADED = "torch.load"
_ASKED = ASKED | {"state_dict", "load_state_dict"}
"""What is called and asked for one of these is a model: what else has a state is not called."""

_KNOWN = frozenset({"torch", "apex", "builtins", "numpy"})
"""Packages of which it is known what their objects are."""


class UnknownModels:
    """Finds the variables that hold such models, once all that the program itself says is known."""

    def __init__(self, store: Store, reached: Reached, graph: CallGraph, expressions: ExpressionEvaluator) -> None:
        self._store = store
        self._reached = reached
        self._graph = graph
        self._expressions = expressions
        self._called: set[CellKey] = set()
        self._computing: set[CellKey] = set()
        """Those of which a method or a part is called with something: ``model.encode_text(words)``."""
        self._run: set[CellKey] = set()
        """Those of which ``forward`` is called by its name, as of nothing but a module."""
        self._handed_to: dict[CellKey, set[CellKey]] = {}
        self._scopes: dict[ast.Dict, Scope] = {}

    def add(self) -> None:
        """Give each such variable a model; what follows from that is for the next rounds."""
        assigned: list[tuple[ast.Assign, Scope]] = []
        calls: list[tuple[ast.Call, Scope]] = []
        for body, scope in self._reached.bodies():
            for node in nodes_run(body, scope):
                if isinstance(node, ast.Call):
                    calls.append((node, scope))
                elif isinstance(node, ast.Dict):
                    self._scopes[node] = scope
                elif isinstance(node, ast.Assign):
                    self._see_copy(node, scope)
                    assigned.append((node, scope))
        for call, scope in calls:
            self._see_call(call, scope)
        # Each is judged before any is given: an attribute of a base class may get a model from each of its subclasses.
        made = [item for node, scope in assigned for item in self._made(node, scope)]
        for key, maker in [(key, maker) for key, maker, target, scope in made if self._is_unknown(key, target, scope)]:
            self._store.write(key, {Value("object", GIVEN_MODEL, maker)})

    def _is_unknown(self, key: CellKey, target: ast.expr, scope: Scope) -> bool:
        """Whether a variable is used as a model, and nothing is known that it would hold."""
        held = self._following(key)
        uses = set().union(*(self._expressions.uses.get(item, set()) for item in held))
        is_run = bool(held & self._run or (uses & _ASKED and held & self._called))
        return (is_run or bool(uses & ASKED and held & self._computing)) and self._is_open(key, target, scope)

    # ---- what the program does with variables ----------------------------------------------------------------

    def _see_call(self, call: ast.Call, scope: Scope) -> None:
        key = self._key(call.func, scope)
        if key is not None:
            self._called.add(key)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "forward" and call.args:
            run = self._key(call.func.value, scope)
            self._run |= {run} if run is not None else set()
        is_given = bool(call.args or call.keywords)
        if is_given and isinstance(call.func, ast.Attribute) and call.func.attr not in NO_FORWARD:
            self._computing |= self._owners(call.func, scope)
        for info in self._graph.callees(call):
            for name, argument in info.bound(call):
                items = [(name, argument, scope)] if name is not None else self._items(argument, scope)
                for parameter, item, place in items:
                    given = self._key(self._same(item, place), place)
                    if given is not None and parameter in info.parameters:
                        self._handed_to.setdefault(given, set()).add((info.node, parameter))

    def _owners(self, part: ast.expr, scope: Scope) -> set[CellKey]:
        """The variables that something may be a part of: ``model`` and ``model.visual`` of ``model.visual.trunk``."""
        found: set[CellKey] = set()
        while isinstance(part, (ast.Attribute, ast.Subscript)):
            part = part.value
            key = self._key(part, scope)
            found |= {key} if key is not None else set()
        return found

    def _items(self, mapping: ast.expr, scope: Scope) -> Iterator[tuple[str, ast.expr, Scope]]:
        """What ``**mapping`` gives by name, of dictionaries that are written out, with the place where they are."""
        for value in self._expressions.evaluate(mapping, scope):
            if isinstance(value.site, ast.Dict) and value.site in self._scopes:
                for key, item in zip(value.site.keys, value.site.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield key.value, item, self._scopes[value.site]

    def _see_copy(self, node: ast.Assign, scope: Scope) -> None:
        given = self._key(self._same(node.value, scope), scope)
        if given is not None:
            keys = [self._key(target, scope) for target in node.targets]
            self._handed_to.setdefault(given, set()).update(key for key in keys if key is not None)

    def _same(self, node: ast.expr, scope: Scope) -> ast.expr:
        """What is handed on: ``model`` of ``model.to(device)`` and of ``DataParallel(model)``."""
        while isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in RETURNS_RECEIVER:
                node = node.func.value
            elif node.args and self._names(node.func, scope) & RETURNS_FIRST_ARGUMENT:
                node = node.args[0]
            else:
                break
        return node

    def _following(self, key: CellKey) -> set[CellKey]:
        """The variable, and all that it is handed to as it is."""
        found: set[CellKey] = set()
        pending = [key]
        while pending:
            current = pending.pop()
            if current not in found:
                found.add(current)
                pending.extend(self._handed_to.get(current, ()))
        return found

    # ---- where they are made ---------------------------------------------------------------------------------

    def _made(self, node: ast.Assign, scope: Scope) -> Iterator[tuple[CellKey, ast.expr, ast.expr, Scope]]:
        """The variables that the statement puts something unknown into, with the call and how they are written."""
        maker = self._maker(node.value, scope)
        if maker is None or self._is_of_model(maker, scope) or self._wraps_model(maker, scope):
            return
        for target in node.targets:
            for item in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                key = self._key(item, scope)
                if key is not None:
                    yield key, maker, item, scope

    def _maker(self, node: ast.expr, scope: Scope) -> ast.expr | None:
        """The call in ``make(name).to(device)``, that of ``torch.load(path)["model"]``, and ``zoo[name]``."""
        node = self._same(node, scope)
        if isinstance(node, ast.Call):
            return node
        if isinstance(node, ast.Subscript):
            loaded = self._expressions.evaluate(node.value, scope)
            if any(value.kind == "instance" and value.ref.find_method("__getitem__") is not None for value in loaded):
                return node
            sites = [value.site for value in loaded if value.kind == "object" and value.ref == _LOADED]
            return sites[0] if len(sites) == len(loaded) == 1 and isinstance(sites[0], ast.Call) else None
        return None

    def _names(self, node: ast.expr, scope: Scope) -> set[str]:
        return {value.ref for value in self._expressions.evaluate(node, scope) if value.kind == "external"}

    def _is_of_model(self, maker: ast.expr, scope: Scope) -> bool:
        """Whether a method of what may be a model itself gives it: a part of that one, ``model.get_head()``."""
        node = maker
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
            if isinstance(node, ast.Call):
                node = node.func
                continue
            node = node.value
            if any(is_module(value) for value in self._expressions.evaluate(node, scope)):
                return True
            key = self._key(node, scope)
            if key is not None and (key in self._called or self._expressions.uses.get(key, set()) & ASKED):
                return True
        return False

    def _wraps_model(self, maker: ast.expr, scope: Scope) -> bool:
        """Whether a class of a library is given a known model, whose parameters its objects have."""
        if not isinstance(maker, ast.Call) or not self._names(maker.func, scope):
            return False
        given = [*maker.args, *(item.value for item in maker.keywords)]
        return any(is_module(value) for item in given for value in self._expressions.evaluate(item, scope))

    def _is_open(self, key: CellKey, target: ast.expr, scope: Scope) -> bool:
        """Whether nothing that the variable is known to hold can be asked for parameters.

        An attribute that a subclass sets is held by that class alone, and the key is that of its base.
        """
        cell = self._store.cells.get(key)
        held = set() if cell is None else set(cell.values)
        if isinstance(target, ast.Attribute):
            held |= self._expressions.evaluate(target, scope)
        return not any(map(_may_be_asked, held))

    def _key(self, node: ast.expr, scope: Scope) -> CellKey | None:
        return self._expressions.key(node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else None


def _may_be_asked(value: Value) -> bool:
    if value.kind == "object":
        if value.ref == _LOADED:
            return False  # what stands in a file is not known
        is_known = is_module(value) or is_optimizer(value) or is_scheduler(value) or is_loader_value(value)
        return not value.is_result and (is_known or str(value.ref).partition(".")[0] in _KNOWN)
    if value.kind == "instance":
        bases = value.ref.external_bases() - {"builtins.object"}
        return bool(bases) or any(value.ref.find_method(name) is not None for name in (*ASKED, "__getattr__"))
    return value.kind not in ("constant", "attribute")
