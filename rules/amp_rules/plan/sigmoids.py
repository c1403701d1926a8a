"""Which sigmoids the outputs of models, and what logarithms are taken of, come from."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cached_property

from amp_rules.flow.values import Value
from amp_rules.lattice.operation_names import function_named
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope
from amp_rules.source.syntax import last_name
from amp_rules.torch.models import PUTS_AT_END

SIGMOID = "torch.nn.Sigmoid"

_SHAPE_ONLY = frozenset({"view", "squeeze", "unsqueeze", "reshape", "flatten", "contiguous", "clone", "t", "transpose"})


_JOINING = frozenset({"cat", "stack"})
"""Operations that put several outputs into one tensor."""

_MAX_ENDINGS = 500
"""Models, variables and functions that a model's output is followed through. A ResNet takes a dozen; what lies beyond
is taken for no sigmoid, which costs a warning and changes no edit."""


_MAX_PATH = 3
"""Places and keys that lead from what a function gives to a value in it: people nest two."""

Path = tuple[int | str, ...]


class Endings:
    """What the outputs of models come from, as far as that is a sigmoid; each expression is looked at once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.sigmoids: dict[ast.AST, Site] = {}
        self._models: list[Value] = []
        self._expressions: list[tuple[ast.expr, Scope, ast.AST]] = []
        self._seen: set[object] = set()

    def follow(self, models: Iterable[Value]) -> None:
        """Mark the sigmoids that the outputs of the models come from."""
        self._models.extend(models)
        while (self._models or self._expressions) and len(self._seen) <= _MAX_ENDINGS:
            if self._expressions:
                self._expression(*self._expressions.pop())
            else:
                self._model(self._models.pop())

    def _is_new(self, key: object) -> bool:
        known = key in self._seen
        self._seen.add(key)
        return not known

    def _model(self, model: Value) -> None:
        if not self._is_new((model.ref, model.site)):
            return
        if model.kind == "instance":
            forward = model.ref.find_method("forward")
            if forward is not None:
                self._returned(forward)
        elif model.kind == "object" and model.ref == SIGMOID:
            self._mark(model.site)
        elif model.kind == "object" and model.ref == "torch.nn.Sequential" and isinstance(model.site, ast.Call):
            located = self.program.locate(model.site)
            put = self._put_last(model)
            if located is not None and model.site.args and not any(is_certain for _, _, is_certain in put):
                self._models.extend(self.program.flow.values(model.site.args[-1], located[1]))
            for part, scope, _ in put:
                self._models.extend(self.program.flow.values(part, scope))

    def _put_last(self, model: Value) -> list[tuple[ast.expr, Scope, bool]]:
        """What may be put at a model's end once it is made, and whether it is for certain: ``add_module``, ``append``.

        Of calls in one body that is the last, and those before it as far as it stands under a condition.
        """
        found = []
        for call, scope in self._puts:
            owner = call.func.value  # type: ignore[attr-defined]
            given = [*call.args, *(item.value for item in call.keywords if item.arg == "module")]
            if given and model in self.program.flow.values(owner, scope):
                found.append((call, given[-1], scope))
        last: list[tuple[ast.expr, Scope, bool]] = []
        for call, part, scope in sorted(found, key=lambda item: item[2].module.start(item[0]), reverse=True):
            around = blocks.enclosing(scope.module, call)
            is_certain = not any(isinstance(item, (ast.If, *blocks.LOOPS)) for item in around)
            last.append((part, scope, is_certain))
            if not any(isinstance(item, ast.If) for item in around):
                break
        return last

    @cached_property
    def _puts(self) -> list[tuple[ast.Call, Scope]]:
        """Calls that put a part into a model, in any file."""
        return [
            (call, scope)
            for call, _, scope in self.program.calls()
            if isinstance(call.func, ast.Attribute) and call.func.attr in PUTS_AT_END
        ]

    def _returned(self, info: FunctionFacts) -> None:
        scope = self.program.flow.scopes[info.node]
        self._expressions.extend((item, scope, info.node) for item in info.returns)

    def _expression(self, node: ast.expr, scope: Scope, body: ast.AST) -> None:
        if isinstance(node, (ast.Tuple, ast.List)):
            self._expressions.extend((element, scope, body) for element in node.elts)
        elif isinstance(node, ast.Subscript):
            self._expressions.append((node.value, scope, body))
        elif isinstance(node, ast.Name) and self._is_new((blocks.statement_of(scope.module, node), node.id)):
            self._expressions.extend((value, scope, body) for value in self._held(node, scope.module, body)[0])
        elif isinstance(node, ast.Call):
            self._call(node, scope, body)

    @staticmethod
    def _held(node: ast.Name, module: Module, body: ast.AST, *, whole: bool = False) -> tuple[list[ast.expr], bool]:
        """What a variable may hold where it is read, and whether it holds one of these for certain.

        It is what the variable is given last whatever happens, or below that under a condition; ``whole``: not what
        is put into it.
        """
        found: dict[ast.Assign, None] = {}
        current: ast.stmt = blocks.statement_of(module, node)
        while current is not body:
            where = blocks.place(module, current)
            for above in reversed(where.suite[: where.index]):
                found |= dict.fromkeys(_giving(above, node.id, whole=whole))
                if above in found:
                    return [item.value for item in found], True
            if where.parent is body or not isinstance(where.parent, (ast.stmt, ast.ExceptHandler)):
                break
            current = blocks.statement_of(module, where.parent)
            if isinstance(current, blocks.LOOPS):  # the round before may have given it
                found |= dict.fromkeys(_giving(current, node.id, whole=whole))
        return [item.value for item in found], False

    def _call(self, node: ast.Call, scope: Scope, body: ast.AST) -> None:
        names = {function_named(name) for name in self.program.callee_names(node, scope)}
        if "sigmoid" in names:
            self._mark(node)
        elif names & _JOINING and node.args:
            self._expressions.append((node.args[0], scope, body))
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _SHAPE_ONLY:
            self._expressions.append((node.func.value, scope, body))
        else:
            self._models.extend(self.program.called_models(node, scope))
            for info in self.program.flow.callees(node):
                if self._is_new(info.node):
                    self._returned(info)

    def _mark(self, node: ast.AST | None) -> None:
        located = self.program.locate(node) if node is not None else None
        if located is not None and node is not None:
            self.sigmoids[node] = Site(located[1].module, located[1], located[0], node)


def _giving(statement: ast.stmt, name: str, *, whole: bool) -> Iterator[ast.Assign]:
    """The assignments within a statement that give a variable a value, or put one into it."""
    for node in blocks.walk_own(statement):
        if isinstance(node, ast.Assign) and any(blocks.path_of(item) == name for item in node.targets):
            if not whole or any(isinstance(item, ast.Name) for item in node.targets):
                yield node


def _is_activation(node: ast.expr) -> bool:
    """``x * torch.sigmoid(x)``, which is no probability."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    for gate, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(gate, ast.Call) and last_name(gate.func) == "sigmoid":
            given = gate.args or ([gate.func.value] if isinstance(gate.func, ast.Attribute) else [])
            if len(given) == 1 and ast.dump(given[0]) == ast.dump(other):
                return True
    return False


_SAME_PROBABILITY = frozenset({"clamp", "clip", "clamp_min", "clamp_max", "where", "cat", "stack", "gather", "select"})
"""Operations, besides those on shapes, that give probabilities of what they are given."""


class Logged(Endings):
    """What logarithms are taken of, as far as that is a sigmoid: ``1 - p``, ``p + eps``, ``p * y``, ``p / q`` too."""

    def follow_into(self, logged: Iterable[Site]) -> None:
        """Mark the sigmoids that the expressions come from."""
        for site in logged:
            assert isinstance(site.node, ast.expr)
            self._expressions.append((site.node, site.scope, site.body))
        self.follow(())

    def _expression(self, node: ast.expr, scope: Scope, body: ast.AST) -> None:
        if _is_activation(node):
            return
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
            self._expressions += [(node.left, scope, body), (node.right, scope, body)]
        elif isinstance(node, ast.UnaryOp):
            self._expressions.append((node.operand, scope, body))
        elif isinstance(node, ast.IfExp):
            self._expressions += [(node.body, scope, body), (node.orelse, scope, body)]
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            self._expressions.append((node.elt, scope, body))
        else:
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                if isinstance(node.slice.value, str):
                    self._element(node.value, (node.slice.value,), scope, body)
            elif isinstance(node, ast.Name):
                is_own = self._held(node, scope.module, body)[1]
                if not is_own and self._is_new((body, node.id, "parameter")):
                    self._parameter(node, body)
                if self._is_new((body, node.id)):
                    self._unpacked(node, scope, body)
            super()._expression(node, scope, body)

    def _parameter(self, node: ast.Name, body: ast.AST) -> None:
        """What callers give for a parameter."""
        self._expressions.extend(self._given(node, body))

    def _given(self, node: ast.Name, body: ast.AST) -> Iterator[tuple[ast.expr, Scope, ast.AST]]:
        info = self.program.function_of(body)
        for caller in self.program.flow.callers(info) if info is not None and node.id in info.parameters else ():
            assert info is not None
            given = info.argument_or_default(caller.call, node.id)
            located = self.program.locate(given) if given is not None else None  # a default stands beside the function
            if given is not None and located is not None:
                yield given, located[1], located[0]

    def _unpacked(self, node: ast.Name, scope: Scope, body: ast.AST) -> None:
        """What a variable gets as one of several: ``boxes, scores = model(x)``, ``for score in scores``."""
        for other in self.program.nodes_of(body):
            if isinstance(other, (ast.For, ast.comprehension)):
                self._iterated(other.target, other.iter, node.id, scope, body)
            elif isinstance(other, ast.Call):
                self._appended(other, node.id, scope, body)
            for target in other.targets if isinstance(other, ast.Assign) else ():
                if isinstance(target, (ast.Tuple, ast.List)) and isinstance(other, ast.Assign):
                    for index, item in enumerate(target.elts):
                        if blocks.path_of(item) == node.id:
                            self._element(other.value, (index,), scope, body)

    def _appended(self, call: ast.Call, name: str, scope: Scope, body: ast.AST) -> None:
        """What a list gets: ``scores.append(model(x))``."""
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append" and len(call.args) == 1:
            if blocks.path_of(call.func.value) == name:
                self._expressions.append((call.args[0], scope, body))

    def _iterated(self, target: ast.expr, iterated: ast.expr, name: str, scope: Scope, body: ast.AST) -> None:
        """What a loop gives a variable, through ``zip`` and ``enumerate``."""
        if blocks.path_of(target) == name:
            self._expressions.append((iterated, scope, body))
        elif isinstance(target, ast.Tuple) and isinstance(iterated, ast.Call):
            function = blocks.path_of(iterated.func)
            given = [None, *iterated.args] if function == "enumerate" else iterated.args if function == "zip" else []
            for part, item in zip(target.elts, given, strict=False):
                if item is not None:
                    self._iterated(part, item, name, scope, body)

    def _element(self, value: ast.expr, path: Path, scope: Scope, body: ast.AST) -> None:
        """One of several values, by its place or its key, and what is taken out of that."""
        index = path[0]
        if isinstance(value, (ast.Tuple, ast.List)) and isinstance(index, int):
            for item in value.elts[index : index + 1]:
                self._taken_out(item, path, scope, body)
        elif isinstance(value, ast.Dict):
            for key, item in zip(value.keys, value.values, strict=True):
                if key is None:  # ``**others``
                    self._element(item, path, scope, body)
                elif isinstance(key, ast.Constant) and key.value == index:
                    self._taken_out(item, path, scope, body)
        elif isinstance(value, ast.Name) and self._is_new((value, path)):
            self._element_of_variable(value, path, scope, body)
        elif isinstance(value, ast.Call) and blocks.path_of(value.func) == "dict":
            for keyword in value.keywords:
                if keyword.arg == index:
                    self._taken_out(keyword.value, path, scope, body)
        elif isinstance(value, ast.Call) and self._is_new((value, path)):
            models = [model for model in self.program.called_models(value, scope) if model.kind == "instance"]
            for info in [*self.program.flow.callees(value), *(model.ref.find_method("forward") for model in models)]:
                for returned in info.returns if info is not None else ():
                    self._element(returned, path, self.program.flow.scopes[info.node], info.node)

    def _taken_out(self, item: ast.expr, path: Path, scope: Scope, body: ast.AST) -> None:
        """What a path leads to from the element that it begins with."""
        if path[1:]:
            self._element(item, path[1:], scope, body)
        else:
            self._expressions.append((item, scope, body))

    def _element_of_variable(self, value: ast.Name, path: Path, scope: Scope, body: ast.AST) -> None:
        """What is put into a variable's dictionary: ``scores["real"] = model(x)``, or what it held before."""
        for node in self.program.nodes_of(body):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                assert isinstance(node, ast.Assign)
                if isinstance(target, ast.Subscript) and blocks.path_of(target.value) == value.id:
                    if isinstance(target.slice, ast.Constant) and target.slice.value == path[0]:
                        self._taken_out(node.value, path, scope, body)
                elif isinstance(target, (ast.Tuple, ast.List)) and len(path) < _MAX_PATH:
                    for place, item in enumerate(target.elts):  # ``scores, other = model(x)``
                        if isinstance(item, ast.Name) and item.id == value.id:
                            self._element(node.value, (place, *path), scope, body)
        held, is_own = self._held(value, scope.module, body, whole=True)
        for item in held:
            self._element(item, path, scope, body)
        for given, where, around in () if is_own else self._given(value, body):
            self._element(given, path, where, around)

    def _call(self, node: ast.Call, scope: Scope, body: ast.AST) -> None:
        names = {function_named(name) for name in self.program.callee_names(node, scope)}
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        shapes = names & (_SHAPE_ONLY | {"permute", "expand"})
        if names & _SAME_PROBABILITY or shapes:
            self._expressions += [(item, scope, body) for item in node.args if not isinstance(item, ast.Starred)]
        elif not names - {""} and method in _SAME_PROBABILITY | {"permute", "expand", "expand_as", "detach", "float"}:
            assert isinstance(node.func, ast.Attribute)
            self._expressions.append((node.func.value, scope, body))
        elif method == "sigmoid" and not node.args and not self.program.flow.callees(node) and not names - {""}:
            self._mark(node)
        else:
            super()._call(node, scope, body)
