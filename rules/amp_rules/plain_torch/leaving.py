"""Half values that leave a region of autocast: the runtime makes the outputs of models float32, and torch does not.

What computes with them, saves them or hands them to other libraries gets ``x.float()``, which is the very same tensor
at O0. What cannot tell, an index of the largest or a number that is printed, gets the half value.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import NoneType

from amp_rules.flow.values import Value
from amp_rules.lattice.operation_names import (
    BOOLEANS,
    CASTS,
    INTEGERS,
    LIKES,
    NEWS,
    NUMBERS,
    PAIRS,
    VIEWS,
    function_named,
)
from amp_rules.plain_torch.half_values import HalfValues
from amp_rules.plain_torch.translation import Translation
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.text.expression_edits import widened

_CANNOT_TELL = (
    INTEGERS | BOOLEANS | NUMBERS | PAIRS | LIKES | NEWS | frozenset(CASTS)
    | {"max", "min", "to", "type", "type_as", "backward", "retain_grad", "register_hook", "sign", "copy", "view_as"}
)  # fmt: skip
"""Functions and methods that do with a half tensor what they do with the same numbers in float32."""
_READS_NUMBERS = frozenset(
    {"print", "len", "str", "repr", "float", "int", "bool", "isinstance", "type", "format", "id"}
)
_KEEPS = frozenset({"append", "extend", "insert", "add", "update", "appendleft", "put", "save"})
"""Methods of containers, which keep what they are given."""
_JOINED = frozenset({"stack", "cat", "concat", "hstack", "vstack"})
"""Functions that make one tensor of a list."""
_DEPTH = 3
"""Functions of the project that a value is followed into."""
_LIMIT = "the float32 of what models give, in a program that computes in float64 as well"


def widen(translation: Translation) -> None:
    """Give ``.float()`` to what leaves half values, where it can tell."""
    uses = _Uses(translation)
    found: dict[ast.expr, Module] = {}
    for site in uses.candidates():
        assert isinstance(site.node, ast.expr)
        place = uses.place_of_need(site.module, site.node, site)
        if place is not None:
            found[place] = site.module
    widened_in = {_container(module, place) for place, module in found.items()} - {None}
    for site in uses.items_for_numpy():
        assert isinstance(site.node, ast.expr)
        root = _root(site.node)
        if root is None or (site.module, root.id) not in widened_in:
            found[site.node] = site.module
    for place, module in found.items():
        if uses.values.has_doubles:
            translation.cannot_keep(module, _LIMIT)
        else:
            translation.replace(module, place, widened)


class _Uses:
    """Decides over the uses of half values."""

    def __init__(self, translation: Translation) -> None:
        self.values = HalfValues(translation)
        self._program = translation.program
        self._of_runtime = {use.node for use in translation.uses}
        self._has_regions = bool(self.values.inside)

    def candidates(self) -> list[Site]:
        """Names and calls that are half tensors, where the text has them."""
        return [
            site
            for site in self._outside((ast.Name, ast.Call))
            if isinstance(site.node, ast.expr)
            and self._is_end(site.module, site.node)
            and self.values.kind(site.node, site.scope) is True
        ]

    def items_for_numpy(self) -> Iterator[Site]:
        """What NumPy is given of containers of which some items are half, or is made of them: it has no bfloat16."""
        for site in self._outside((ast.Subscript, ast.Name)):
            assert isinstance(site.node, ast.expr)
            if self.values.kind(site.node, site.scope) is not None or not self._is_end(site.module, site.node):
                continue
            place = self.place_of_need(site.module, site.node, site)
            if place is None:
                continue
            parent = site.module.parents[place]
            if isinstance(parent, ast.Attribute) and parent.attr == "numpy" and self._may_be_half(site):
                yield replace(site, node=place)

    def _outside(self, types: tuple[type[ast.expr], ...]) -> Iterator[Site]:
        """Expressions that are read where it can matter that a value is half."""
        for node, body, scope in self._program.nodes() if self._has_regions else ():
            if (
                isinstance(node, types)
                and isinstance(getattr(node, "ctx", None), (ast.Load, NoneType))
                and not self._program.is_model_code(body)
                and (node in self.values.inside or not self.values.is_under_autocast(scope.module, node))
            ):
                yield Site(scope.module, scope, body, node)

    def _may_be_half(self, site: Site) -> bool:
        """Whether some value that reaches an expression is made in half, and none is of integers."""
        assert isinstance(site.node, ast.expr)
        calls = list(self._calls_behind(self._program.flow.values(site.node, site.scope)))
        if any(self._gives_integers(call, scope) for call, scope in calls):
            return False
        return any(self.values.kind(call, scope) is True for call, scope in calls)

    def _calls_behind(self, values: Iterable[Value], *, joined: bool = False) -> Iterator[tuple[ast.Call, Scope]]:
        """The calls that make some values, and the parts of what is stacked."""
        flow = self._program.flow
        for value in values:
            call = value.site
            located = self._program.locate(call) if isinstance(call, ast.Call) else None
            if located is None or not isinstance(call, ast.Call):
                continue
            scope = located[1]
            yield call, scope
            if not joined and call.args and self._operations(call, scope) & _JOINED:
                yield from self._calls_behind(flow.elements(flow.values(call.args[0], scope)), joined=True)

    def _gives_integers(self, call: ast.Call, scope: Scope) -> bool:
        operations = self._operations(call, scope)
        if not operations and isinstance(call.func, ast.Attribute):
            operations = {call.func.attr}
        return bool(operations & (INTEGERS | BOOLEANS))

    def _operations(self, call: ast.Call, scope: Scope) -> set[str]:
        return {function_named(name) for name in self._program.callee_names(call, scope)} - {""}

    @staticmethod
    def _is_end(module: Module, node: ast.expr) -> bool:
        """Whether a node is not only a name that is called or a part of a dotted one."""
        parent = module.parents[node]
        return not (isinstance(parent, ast.Call) and parent.func is node)

    def place_of_need(self, module: Module, node: ast.expr, site: Site, depth: int = 0) -> ast.expr | None:
        """The expression that needs float32, which is ``node`` or a view of it; None where nothing can tell."""
        top, parent = node, module.parents[node]
        inside = node in self.values.inside
        while True:
            if isinstance(parent, ast.Attribute) and parent.value is top:
                call = module.parents[parent]
                called = call if isinstance(call, ast.Call) and call.func is parent else None
                name = parent.attr.removesuffix("_")
                if called is None:
                    if name not in ("data", "T", "mT"):
                        return None
                    top, parent = parent, call
                elif name in VIEWS - {"sort_values"} or (name == "to" and self.values.kind(called, site.scope)):
                    top, parent = called, module.parents[called]
                elif name == "numpy":
                    return top
                elif name == "mean" and _is_read(module, called):
                    return None
                else:
                    return None if inside or name in _CANNOT_TELL else top
            elif isinstance(parent, ast.Subscript) and parent.value is top:
                top, parent = parent, module.parents[parent]
            else:
                return top if self._needs(module, top, parent, site, depth) else None

    def _needs(self, module: Module, top: ast.expr, parent: ast.AST, site: Site, depth: int) -> bool:
        inside = top in self.values.inside
        if isinstance(parent, ast.keyword):
            parent = module.parents[parent]
        if isinstance(parent, ast.Call):
            return parent.func is not top and self._call_needs(parent, top, site, inside, depth)
        if isinstance(parent, ast.AugAssign):
            return parent.value is top
        if isinstance(parent, (ast.List, ast.Dict)):
            return not inside
        if isinstance(parent, ast.BinOp):
            return not inside and not isinstance(parent.left, (ast.Constant, ast.JoinedStr))
        return False

    def _call_needs(self, call: ast.Call, top: ast.expr, site: Site, inside: bool, depth: int) -> bool:
        if call.func in self._of_runtime:
            return False
        names = self._program.callee_names(call, site.scope)
        if isinstance(call.func, ast.Name) and call.func.id in _READS_NUMBERS:
            return False
        last = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        operations = {function_named(name) for name in names}
        if names and "" not in operations:
            return not inside and not operations <= _CANNOT_TELL
        if names:
            return not inside or any(name.startswith(("torch.save", "torchvision.", "numpy.")) for name in names)
        if inside:
            return last in _KEEPS and not self._program.flow.callees(call) and not self._program.runs_model(call)
        callees = self._program.flow.callees(call)
        if callees:
            return any(self._function_needs(info.node, call, top, depth) for info in callees)
        if self._program.called_models(call, site.scope):
            return True
        operation = last.removesuffix("_")
        return operation not in _CANNOT_TELL and operation not in VIEWS

    def _function_needs(self, body: ast.AST, call: ast.Call, top: ast.expr, depth: int) -> bool:
        """Whether a function of the project can tell whether a parameter of it is half."""
        scope = self._program.flow.scopes.get(body)
        name = _parameter(body, call, top)
        if scope is None or name is None or depth >= _DEPTH:
            return True
        aliases = {name}
        for node in blocks.walk_body(body):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                root = _root(node.value)
                if root is not None and root.id in aliases:
                    aliases.add(node.targets[0].id)
        for node in blocks.walk_body(body):
            if not (isinstance(node, ast.Name) and node.id in aliases and isinstance(node.ctx, ast.Load)):
                continue
            if node in self.values.inside:
                continue
            parent = scope.module.parents.get(node)
            # What was put together for the analysis stands in no file.
            if parent is None or isinstance(parent, (ast.Return, ast.Tuple, ast.Starred, ast.Yield)):
                return True
            if self.place_of_need(scope.module, node, Site(scope.module, scope, body, node), depth + 1) is not None:
                return True
        return False


def _parameter(body: ast.AST, call: ast.Call, top: ast.expr) -> str | None:
    """The parameter of a function that gets an argument of a call."""
    if not isinstance(body, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    word = next((item.arg for item in call.keywords if item.value is top), None)
    if word is not None:
        return word
    names = [item.arg for item in [*body.args.posonlyargs, *body.args.args]]
    if names[:1] in (["self"], ["cls"]):
        names = names[1:]
    place = next((index for index, item in enumerate(call.args) if item is top), None)
    if place is None or any(isinstance(item, ast.Starred) for item in call.args):
        return None
    return names[place] if place < len(names) else None


def _root(node: ast.expr) -> ast.Name | None:
    """The name that an expression is a view of."""
    while True:
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS:
            node = node.func.value
        else:
            return node if isinstance(node, ast.Name) else None


def _container(module: Module, place: ast.expr) -> tuple[Module, str] | None:
    """The variable of the container that keeps an expression: ``outputs`` of ``outputs.append(output)``."""
    call = module.parents[place]
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _KEEPS:
        root = _root(call.func.value)
        return (module, root.id) if root is not None else None
    return None


def _is_read(module: Module, call: ast.Call) -> bool:
    """Whether nothing but a number is read of a result: ``x.mean().item()`` is rounded once."""
    parent = module.parents[call]
    return isinstance(parent, ast.Attribute) and parent.attr in ("item", "tolist")
