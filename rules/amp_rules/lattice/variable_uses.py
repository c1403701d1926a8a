"""How a function uses its variables: what only a tensor allows, and what tensors of booleans refuse."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from amp_rules.lattice.operation_names import TENSOR_ONLY, VIEWS
from amp_rules.source.facts import FunctionFacts, ModuleFacts
from amp_rules.source.index import Function
from amp_rules.source.syntax import walk

_TENSOR_ATTRIBUTES = frozenset("shape dtype device requires_grad is_cuda grad ndim T mT".split())
_ARRAY_ATTRIBUTES = frozenset("shape dtype ndim T".split())
_CALLED = frozenset({"size", "dim"})
"""Methods of tensors that are attributes of arrays, or nothing, where they are not called."""
_OF_ARRAYS = frozenset("sum mean std prod max min argmax argmin reshape squeeze flatten cumsum cumprod".split())
"""Methods that arrays and tables have as well, and nothing else: in a file without those, they are tensors'."""
_ARRAYS = ("numpy", "pandas", "jax", "tensorflow", "cupy", "scipy")
"""Libraries of arrays and tables."""


@dataclass
class Uses:
    """The uses of a function's variables, by name.

    Attributes:
        as_tensor: how many are such that only a tensor allows, less those of an array.
        in_arithmetic: what is subtracted from a number, which torch refuses to do with booleans.
    """

    as_tensor: dict[str, int] = field(default_factory=dict)
    in_arithmetic: set[str] = field(default_factory=set)

    def _count(self, name: str, weight: int) -> None:
        self.as_tensor[name] = self.as_tensor.get(name, 0) + weight

    def read(self, nodes: Iterable[ast.AST], module: ModuleFacts) -> None:
        """Read the text of a function, or of the statements that are in none."""
        alone = not any(where.startswith(_ARRAYS) for where in module.imports.values())
        for item in nodes:
            kind = item.__class__
            if kind is ast.Attribute:
                self._attribute(item)  # type: ignore[arg-type]
            elif kind is ast.Call:
                self._call(module, item, alone)  # type: ignore[arg-type]
            elif kind is ast.BinOp:
                self._operator(item)  # type: ignore[arg-type]

    def _attribute(self, item: ast.Attribute) -> None:
        if isinstance(item.value, ast.Name) and (item.attr in TENSOR_ONLY or item.attr in _TENSOR_ATTRIBUTES):
            self._count(item.value.id, 0 if item.attr in _ARRAY_ATTRIBUTES else 2)

    def _call(self, module: ModuleFacts, item: ast.Call, alone: bool) -> None:
        method = item.func
        if isinstance(method, ast.Attribute) and isinstance(method.value, ast.Name):
            if method.attr in _CALLED or (alone and method.attr in _OF_ARRAYS):
                self._count(method.value.id, 2)
        if item.args and isinstance(item.args[0], ast.Name):
            name = module.dotted(method) or ""
            if name.startswith(("torch.", "torch.nn.functional.")):
                self._count(item.args[0].id, 2)
            elif name.startswith(("numpy.", "np.")):
                self._count(item.args[0].id, -8)

    def _operator(self, item: ast.BinOp) -> None:
        if isinstance(item.op, ast.Sub) and isinstance(item.left, ast.Constant):
            name = _variable(item.right)
            if name is not None:
                self.in_arithmetic.add(name)


def _variable(node: ast.expr) -> str | None:
    """The variable that an expression is a part of, or the same in another shape."""
    while True:
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VIEWS:
            node = node.func.value
        else:
            return None


def uses_in(function: FunctionFacts, known: dict[ast.AST, Uses]) -> Uses:
    """How a function uses its variables; looked up in what is ``known`` of its file, or noted there."""
    found = known.get(function.node)
    if found is None:
        found = known[function.node] = Uses()
        found.read(function.nodes, function.module)
    return found


def uses_in_statements(module: ModuleFacts, known: dict[ast.AST, Uses]) -> Uses:
    """The same of the statements of a file that are in no function or class."""
    tree = module.module.tree
    found = known.get(tree)
    if found is None:
        found = known[tree] = Uses()
        own = [item for item in tree.body if not isinstance(item, (Function, ast.ClassDef))]
        found.read([node for item in own for node in walk(item)], module)
    return found
