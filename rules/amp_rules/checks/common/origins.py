"""Where a value comes from: backwards through names, attributes, containers, calls and files of the project.

The abstract machine runs one function at a time, forwards. A loader that is made in another file, kept in ``self`` and
handed on in a tuple is found here, from the place where it is used.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from amp_rules.source import blocks
from amp_rules.source.facts import ClassFacts, FunctionFacts, ModuleFacts
from amp_rules.source.index import FileIndex, before, keyword, leaves_before
from amp_rules.source.syntax import last_name
from amp_rules.torch.data import LOADER_CLASSES

Part = int | str | None
"""What is taken out of a container or object: by position, by key, or None for whichever."""

_MOST = 300
"""Expressions that are looked at for one question; a value that is handed on more often than this is lost."""

_TRANSPARENT = frozenset(
    "iter enumerate tqdm trange zip list tuple reversed islice cycle chain sorted deepcopy copy track next".split()
)
"""Calls that give what they are given, or its items."""
_KEPT = frozenset({"sampler", "batch_sampler", "dataset"})
"""What a loader keeps of its arguments, under the same name."""


class Origin(NamedTuple):
    """An expression that makes a value, and the file that it stands in."""

    module: ModuleFacts
    node: ast.expr


class _Call(NamedTuple):
    """A call that was followed into a function: what its parameters are."""

    function: FunctionFacts
    call: ast.Call
    module: ModuleFacts
    outer: _Call | None


def origins(module: ModuleFacts, node: ast.expr, *parts: Part) -> list[Origin]:
    """The expressions that may make the value of ``node``, or of a part of it; parameters that nobody gives are last.

    An expression that cannot be followed is its own origin.
    """
    search = _Search()
    search.follow(module, node, parts, None)
    return search.found


def argument(module: ModuleFacts, call: ast.Call, name: str, position: int | None = None) -> Origin | None:
    """What a call gives for a parameter, also in ``**settings`` that are written out somewhere."""
    given = keyword(call, name)
    if given is None and position is not None and len(call.args) > position:
        if not any(isinstance(item, ast.Starred) for item in call.args[: position + 1]):
            given = call.args[position]
    if given is not None:
        return Origin(module, given)
    for item in call.keywords:
        if item.arg is None:
            found = next((place for place in origins(module, item.value, name) if place.node is not item.value), None)
            if found is not None:
                return found
    return None


class _Search:
    def __init__(self) -> None:
        self.found: list[Origin] = []
        self._seen: set[tuple[int, tuple[Part, ...], int]] = set()
        self._left = _MOST

    def follow(self, module: ModuleFacts, node: ast.expr, parts: tuple[Part, ...], call: _Call | None) -> None:
        """Look at one expression: ``parts`` of it are wanted, first the outermost."""
        key = (id(node), parts, id(call) if call is not None else 0)
        if key in self._seen or self._left <= 0:
            return
        self._seen.add(key)
        self._left -= 1
        if isinstance(node, ast.Name):
            self._name(module, node, parts, call)
        elif isinstance(node, ast.Attribute):
            self._attribute(module, node, parts, call)
        elif isinstance(node, ast.Call):
            self._called(module, node, parts, call)
        elif isinstance(node, ast.Subscript):
            self.follow(module, node.value, (_key_of(node), *parts), call)
        elif isinstance(node, (ast.Tuple, ast.List, ast.Dict)) and parts:
            for item in _items(node, parts[0]):
                self.follow(module, item, parts[1:], call)
        elif isinstance(node, (ast.DictComp, ast.ListComp, ast.GeneratorExp)) and parts:
            self.follow(module, node.value if isinstance(node, ast.DictComp) else node.elt, parts[1:], call)
        elif isinstance(node, ast.IfExp):
            self.follow(module, node.body, parts, call)
            self.follow(module, node.orelse, parts, call)
        elif isinstance(node, ast.BoolOp):
            for item in node.values:
                self.follow(module, item, parts, call)
        elif isinstance(node, (ast.NamedExpr, ast.Starred, ast.Await)):
            self.follow(module, node.value, parts, call)
        else:
            self.found.append(Origin(module, node))

    # ---- names ---------------------------------------------------------------------------------------------------

    def _name(self, module: ModuleFacts, node: ast.Name, parts: tuple[Part, ...], call: _Call | None) -> None:
        index = module.index
        scope = index.scope(node)
        while scope is not None:
            values = reaching(index, node, scope)
            parameter = _parameter(scope, node.id)
            for target, value in values:
                self._bound(module, target, node.id, value, parts, call)
            if parameter is not None and not any(_is_sure(index, node, item) for item, _ in values):
                self._parameter(module, scope, parameter, node, parts, call)
                return
            if values or parameter is not None:
                return
            scope = index.scope(scope)
        values = reaching(index, node, None)
        for target, value in values:
            self._bound(module, target, node.id, value, parts, call)
        if values:
            return
        found = module.project.module_of_constant(module, module.imports.get(node.id, ""))
        if found is not None:
            self.follow(found[0], found[0].constants[found[1]], parts, None)
        else:
            self.found.append(Origin(module, node))

    def _bound(
        self,
        module: ModuleFacts,
        target: ast.expr,
        name: str,
        value: ast.expr,
        parts: tuple[Part, ...],
        call: _Call | None,
    ) -> None:
        """What an assignment puts into a name: all of the value, or the part at the name's place in a tuple."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for position, item in enumerate(target.elts):
                if isinstance(item, ast.Name) and item.id == name:
                    self.follow(module, value, (position, *parts), call)
        elif isinstance(target, ast.Subscript):
            if parts and parts[0] in (None, _key_of(target)):
                self.follow(module, value, parts[1:], call)
        else:
            self.follow(module, value, parts, call)

    def _parameter(
        self,
        module: ModuleFacts,
        scope: ast.AST,
        parameter: str,
        node: ast.Name,
        parts: tuple[Part, ...],
        call: _Call | None,
    ) -> None:
        if isinstance(scope, ast.Lambda):
            self.found.append(Origin(module, node))
            return
        while call is not None and call.function.node is not scope:
            call = call.outer
        function = facts_of(module, scope)
        given = [call] if call is not None else []
        if not given:
            for made in module.index.callers(scope):  # type: ignore[arg-type]
                # ``torch.save()`` is no call of a method of that name.
                if not isinstance(made.func, ast.Attribute) or _head(made.func) not in module.imports:
                    given.append(_Call(function, made, module, None))
        known = False
        for item in given:
            value = item.function.argument(item.call, parameter)
            if value is not None:
                known = True
                self.follow(item.module, value, parts, item.outer)
            elif parameter in function.defaults:
                known = True
                self.follow(module, function.defaults[parameter], parts, None)
        if not known:
            self.found.append(Origin(module, node))

    # ---- attributes ----------------------------------------------------------------------------------------------

    def _attribute(self, module: ModuleFacts, node: ast.Attribute, parts: tuple[Part, ...], call: _Call | None) -> None:
        owner = class_around(module, node)
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") and owner is not None:
            if self._member(owner, node.attr, parts):
                return
        elif isinstance(node.value, (ast.Name, ast.Call, ast.Subscript, ast.Attribute)):
            before_it = len(self.found)
            self.follow(module, node.value, (), call)
            held = self.found[before_it:]
            del self.found[before_it:]
            if self._members(held, node.attr, parts):
                return
        self.found.append(Origin(module, node))

    def _members(self, held: list[Origin], name: str, parts: tuple[Part, ...]) -> bool:
        """What objects keep under a name; whether anything is known of that."""
        known = False
        for place in held:
            if not isinstance(place.node, ast.Call):
                continue
            cls = place.module.class_named(place.node.func)
            if cls is not None:
                known |= self._member(cls, name, parts)
            elif name in _KEPT and last_name(place.node.func) in LOADER_CLASSES:
                given = argument(place.module, place.node, name, {"dataset": 0, "sampler": 3}.get(name))
                if given is not None:
                    known = True
                    self.follow(given.module, given.node, parts, None)
        return known

    def _member(self, cls: ClassFacts, name: str, parts: tuple[Part, ...]) -> bool:
        """What the methods of a class assign to ``self.name``, or its property of that name returns."""
        known = False
        for item in cls.lineage:
            method = item.methods.get(name)
            if method is not None and method.is_property:
                known = True
                for value in method.returns:
                    self.follow(item.module, value, parts, None)
            for target, value, _ in item.module.index.assignments:
                for position, inner in _targets(target):
                    if isinstance(inner, ast.Attribute) and inner.attr == name and _is_of(item, inner):
                        known = True
                        wanted = parts if position is None else (position, *parts)
                        self.follow(item.module, value, wanted, None)
        return known

    # ---- calls ---------------------------------------------------------------------------------------------------

    def _called(self, module: ModuleFacts, node: ast.Call, parts: tuple[Part, ...], call: _Call | None) -> None:
        functions = functions_called(module, node, by_name=True)
        followed = False
        for function in functions:
            if function.name == "__init__" or _depth(call) > _DEEPEST:
                continue
            results = function.returns
            followed |= bool(results)
            for value in results:
                self.follow(function.module, value, parts, _Call(function, node, module, call))
        if followed:
            return
        name = last_name(node.func)
        if name in _TRANSPARENT and node.args:
            for item in node.args if name in ("zip", "chain") else node.args[:1]:
                self.follow(module, item, parts, call)
            return
        if name in ("get", "pop") and isinstance(node.func, ast.Attribute) and node.args:
            first = node.args[0]
            wanted = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
            self.follow(module, node.func.value, (wanted, *parts), call)
            return
        if name == "dict" and parts and isinstance(parts[0], str) and keyword(node, parts[0]) is not None:
            self.follow(module, keyword(node, parts[0]), parts[1:], call)  # type: ignore[arg-type]
            return
        self.found.append(Origin(module, node))


_DEEPEST = 6
"""Functions that are followed into each other; recursive ones end here."""


def _depth(call: _Call | None) -> int:
    count = 0
    while call is not None:
        call, count = call.outer, count + 1
    return count


def functions_called(module: ModuleFacts, call: ast.Call, by_name: bool = False) -> list[FunctionFacts]:
    """The functions of the project that a call may run, as far as imports and ``self`` tell.

    Args:
        module: the file of the call.
        call: the call.
        by_name: whether a method of an unknown object is taken for those of that name in this file.
    """
    func = call.func
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in ("self", "cls"):
        owner = class_around(module, call)
        method = owner.method(func.attr) if owner is not None else None
        return [method] if method is not None else []
    dotted = module.dotted(func)
    found = module.project.resolve(module, dotted) if dotted else None
    if isinstance(func, ast.Name) and func.id in module.functions:
        found = module.functions[func.id]
    elif isinstance(func, ast.Name) and func.id in module.classes:
        found = module.classes[func.id]
    if isinstance(found, FunctionFacts):
        return [found]
    if isinstance(found, ClassFacts):
        init = found.method("__init__")
        return [init] if init is not None else []
    if isinstance(func, ast.Attribute) and (not by_name or _head(func) in module.imports):
        return []
    return [facts_of(module, item) for item in module.index.callees(call)]


def _head(node: ast.expr) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def facts_of(module: ModuleFacts, function: ast.AST) -> FunctionFacts:
    """The facts of a function of a file, nested ones too."""
    owner = module.index.owner(function)
    cls = module.classes.get(owner.name) if owner is not None else None
    return module.function_facts(function, cls)  # type: ignore[arg-type]


def reaching(index: FileIndex, use: ast.expr, scope: ast.AST | None) -> list[tuple[ast.expr, ast.expr]]:
    """The assignments, target and value, of a name in a scope that a use may see.

    One that stands in another branch than the use, or is sure to be overwritten before it, does not count.
    """
    assert isinstance(use, ast.Name)
    found = [item for item in index.assignments_of.get(use.id, ()) if index.scope(item[2]) is scope]
    if index.scope(use) is not scope:
        return [(target, value) for target, value, _ in found]
    chain = set(map(id, index.ancestors(use)))
    seen = []
    for target, value, statement in found:
        if id(statement) in chain and not isinstance(statement, (ast.With, ast.AsyncWith)):
            # ``x = f(x)``: what is used is the value before, or that of another turn of a loop.
            if not index.loops_around(use):
                continue
        if before(statement, use) or index.loops_around(use):
            if not _in_other_branch(index, statement, use):
                seen.append((target, value, statement))
    sure = [
        statement
        for target, _, statement in seen
        if before(statement, use)
        and id(index.parents[statement]) in chain
        and id(statement) not in chain
        and not isinstance(target, ast.Subscript)
    ]
    if sure:
        last = sure[-1]
        seen = [item for item in seen if not before(item[2], last)]
    return [(target, value) for target, value, _ in seen]


def _is_sure(index: FileIndex, use: ast.expr, target: ast.expr) -> bool:
    """Whether an assignment is sure to have happened when a name is used."""
    statement = index.statement(target)
    chain = set(map(id, index.ancestors(use)))
    return id(index.parents[statement]) in chain and before(statement, use) and not isinstance(target, ast.Subscript)


def _in_other_branch(index: FileIndex, one: ast.AST, other: ast.AST) -> bool:
    """Whether two places are in different branches of one ``if``, or the first leaves before the second."""
    if blocks.choice_between(index.module, one, other) is not None:
        return True
    return leaves_before(index.module, one, other) and not index.loops_around(other)


def _targets(target: ast.expr) -> Iterator[tuple[int | None, ast.expr]]:
    """What an assignment binds, with its place in a tuple."""
    if isinstance(target, (ast.Tuple, ast.List)):
        yield from enumerate(target.elts)
    else:
        yield None, target


def _parameter(scope: ast.AST, name: str) -> str | None:
    arguments = getattr(scope, "args", None)
    if arguments is None:
        return None
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [item for item in (arguments.vararg, arguments.kwarg) if item is not None]
    return name if any(item.arg == name for item in every) else None


def class_around(module: ModuleFacts, node: ast.AST) -> ClassFacts | None:
    """The class that a node stands in, the innermost."""
    for item in module.index.ancestors(node):
        if isinstance(item, ast.ClassDef):
            return module.class_facts(item)
    return None


def _is_of(cls: ClassFacts, target: ast.Attribute) -> bool:
    """Whether an assignment to ``self.x`` stands in a method of a class."""
    if not (isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")):
        return False
    return cls.node in cls.module.index.ancestors(target)


def _key_of(node: ast.Subscript) -> Part:
    value = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None


def _items(node: ast.Tuple | ast.List | ast.Dict, part: Part) -> list[ast.expr]:
    if isinstance(node, ast.Dict):
        return [
            value
            for key, value in zip(node.keys, node.values, strict=True)
            if part is None or (isinstance(key, ast.Constant) and key.value == part)
        ]
    if isinstance(part, int) and -len(node.elts) <= part < len(node.elts):
        return [node.elts[part]]
    return list(node.elts) if part is None else []
