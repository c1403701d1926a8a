"""Products with a transform that a function of the project gives back: a rotation that is made in a file of helpers.

The linter's analysis of types knows what stands in one function; the points-to analysis says which function is called.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from amp_rules.lattice.operation_names import function_named
from amp_rules.plan.definitions import Definitions
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.scopes import Scope

Gives = Callable[[FunctionFacts], bool]
"""Whether a function gives a transform back."""

_PRODUCTS = frozenset({"matmul", "mm", "bmm", "mv", "einsum"})
_TURNING = frozenset(
    "t transpose permute float contiguous detach clone to cuda cpu type_as unsqueeze squeeze expand repeat".split()
)
"""Methods after which a transform is one."""
_TURNED = frozenset({"T", "mT"})
_MAX_DEPTH = 8
"""Variables and methods that are looked through; people copy a matrix twice at most."""


class GivenTransforms:
    """Questions about one program.

    Args:
        program: the program.
        gives: whether a function gives a transform back.
    """

    def __init__(self, program: Program, gives: Gives) -> None:
        self._program, self._gives = program, gives
        self._definitions = Definitions(program)

    def are_multiplied(self, site: Site) -> bool:
        """Whether a product is with such a transform, on either side."""
        return any(self._is_given(item, site.scope) for item in self._operands(site))

    def _operands(self, site: Site) -> Iterator[ast.expr]:
        node = site.node
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield from (node.left, node.right)
        elif isinstance(node, ast.Call):
            names = self._program.callee_names(node, site.scope)
            if any(function_named(name) in _PRODUCTS for name in names):
                yield from node.args
            elif not names and isinstance(node.func, ast.Attribute) and node.func.attr in _PRODUCTS:
                yield from (node.func.value, *node.args)

    def _is_given(self, node: ast.expr, scope: Scope, depth: int = 0) -> bool:
        if depth > _MAX_DEPTH:
            return False
        if isinstance(node, ast.Name):
            given = self._definitions.of(node, scope)
            if self._definitions.parameter(node, scope) is not None or not all(item.whole for item in given):
                return False
            return bool(given) and all(self._is_given(item.value, item.scope, depth + 1) for item in given)
        if isinstance(node, ast.Attribute):
            return node.attr in _TURNED and self._is_given(node.value, scope, depth + 1)
        if isinstance(node, ast.Subscript):
            return self._is_given(node.value, scope, depth + 1)
        if not isinstance(node, ast.Call):
            return False
        callees = self._program.flow.callees(node)
        if callees:
            return all(map(self._gives, callees))
        if isinstance(node.func, ast.Attribute) and node.func.attr in _TURNING:
            return self._is_given(node.func.value, scope, depth + 1)
        return False
