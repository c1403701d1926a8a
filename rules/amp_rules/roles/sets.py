"""Sets, and where the order matters in which a set gives its elements."""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from collections.abc import Iterator
from functools import cached_property

from amp_rules.flow.values import Value
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.syntax import children, walk
from amp_rules.torch.containers import ORDERED_BY, SET_METHODS, SETS, UNORDERED_USES

_MAX_DEPTH = 6
"""Assignments and functions through which a set is followed; scripts have two or three."""
_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)
_GROWN = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "write", "put"})


class Sets:
    """Finds the expressions whose elements come in an order that Python makes anew for each process."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._known: dict[ast.expr, bool] = {}

    def ordered(self) -> Iterator[Site]:
        """Yield each set whose elements are taken one by one, where what is made of them has their order."""
        for node, body, scope in self.program.nodes():
            site = Site(scope.module, scope, body, node)
            for taken in self._taken(node, site):
                if self.is_set(taken, site) and not self._of_numbers(taken, site):
                    yield Site(scope.module, scope, body, taken)

    def parameters_in(self, node: ast.expr, site: Site) -> Iterator[Site]:
        """Yield the sets of parameters that an expression takes in their order, variables included.

        What is only asked whether it holds something has no order. Each expression is looked at once, by the shortest
        way: long programs lead to one variable by thousands.
        """
        pending: deque[tuple[ast.expr, Site, int]] = deque([(node, site, 0)])
        met: set[ast.expr] = set()
        while pending:
            item, where, depth = pending.popleft()
            if item in met:
                continue
            met.add(item)
            if self.is_set(item, where) and self._holds_parameters(item, where):
                yield Site(where.module, where.scope, where.body, item)
                continue
            if isinstance(item, ast.Compare):
                continue
            if depth < _MAX_DEPTH:
                pending.extend((value, other, depth + 1) for value, other in self._assigned_to(item, where))
            parts = [part.iter if isinstance(part, ast.comprehension) else part for part in children(item)]
            parts = [part.value if isinstance(part, ast.keyword) else part for part in parts]
            pending.extendleft((part, where, depth) for part in reversed(parts) if isinstance(part, ast.expr))

    def _holds_parameters(self, node: ast.expr, site: Site) -> bool:
        values = self.program.flow.values(node, site.scope)
        return any(value.kind == "parameters" for value in [*values, *self.program.flow.elements(values)])

    def is_set(self, node: ast.expr, site: Site) -> bool:
        """Whether the expression is a set, for all that is known."""
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = self._leads_to_set(node, site)
        return known

    def _leads_to_set(self, node: ast.expr, site: Site) -> bool:
        pending: deque[tuple[ast.expr, Site, int]] = deque([(node, site, 0)])
        met: set[ast.expr] = set()
        while pending:
            item, where, depth = pending.popleft()
            if item in met or depth > _MAX_DEPTH:
                continue
            met.add(item)
            if isinstance(item, (ast.Set, ast.SetComp)):
                return True
            if isinstance(item, ast.Call) and self.program.callee_names(item, where.scope) & SETS:
                return True
            pending.extend((value, other, depth + 1) for value, other in self._made_of(item, where))
        return False

    def _made_of(self, node: ast.expr, site: Site) -> Iterator[tuple[ast.expr, Site]]:
        """The expressions that an expression is a set with."""
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, _OPERATORS):
                yield node.left, site
        elif not isinstance(node, ast.Call):
            yield from self._assigned_to(node, site)
        elif isinstance(node.func, ast.Attribute) and node.func.attr in SET_METHODS:
            yield node.func.value, site
        else:
            for info in self.program.flow.callees(node):
                where = Site(info.module.module, self.program.flow.scopes[info.node], info.node, info.node)
                yield from ((value, where) for value in info.returns)

    def _assigned_to(self, node: ast.expr, site: Site) -> Iterator[tuple[ast.expr, Site]]:
        """What the variable holds, where all that it is assigned is known."""
        key = self.program.flow.key(node, site.scope)
        path = blocks.path_of(node)
        if key is None or path is None or isinstance(node, ast.Subscript):
            return
        for target, value, where in self._assigned.get(path.rpartition(".")[2], ()):
            if self.program.flow.key(blocks.reading(target), where.scope) == key:
                yield value, where
        info = self.program.function_of(key[0]) if isinstance(key[0], ast.AST) else None
        for caller in self.program.flow.callers(info) if info is not None else ():
            given = info.argument(caller.call, key[1]) if isinstance(key[1], str) and info is not None else None
            if given is not None:
                yield given, calling(caller)

    @cached_property
    def _assigned(self) -> dict[str, list[tuple[ast.expr, ast.expr, Site]]]:
        """Assignments by the last part of the target: target and value."""
        found: defaultdict[str, list[tuple[ast.expr, ast.expr, Site]]] = defaultdict(list)
        for node, body, scope in self.program.nodes():
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                targets = [node.target]
            for target in targets:
                path = blocks.path_of(target)
                if path is not None and not isinstance(target, ast.Subscript):
                    assert isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None
                    found[path.rpartition(".")[2]].append((target, node.value, Site(scope.module, scope, body, node)))
        return found

    # ---- uses ----------------------------------------------------------------------------------------------

    def _taken(self, node: ast.AST, site: Site) -> Iterator[ast.expr]:
        """The expressions whose elements the node takes one by one, and keeps in their order."""
        if isinstance(node, ast.Call):
            if self.program.callee_names(node, site.scope) & ORDERED_BY and not self._unordered(node, site):
                yield from (item for item in node.args if not isinstance(item, ast.Starred))
        elif isinstance(node, (ast.ListComp, ast.DictComp, ast.GeneratorExp)):
            if not self._unordered(node, site):
                yield node.generators[0].iter
        elif isinstance(node, (ast.List, ast.Tuple)) and isinstance(getattr(node, "ctx", None), ast.Load):
            if not self._unordered(node, site):
                yield from (item.value for item in node.elts if isinstance(item, ast.Starred))
        elif isinstance(node, ast.For) and _keeps(node):
            yield node.iter

    def _unordered(self, node: ast.AST, site: Site) -> bool:
        """Whether what takes the result asks for no order: ``sorted(list(names))``, ``len(...)``."""
        parent = site.module.parents.get(node)
        if isinstance(parent, ast.Compare):
            return any(isinstance(op, (ast.In, ast.NotIn)) for op in parent.ops)
        return (
            isinstance(parent, ast.Call)
            and node in parent.args
            and bool(self.program.callee_names(parent, site.scope) & UNORDERED_USES)
        )

    def _of_numbers(self, node: ast.expr, site: Site, depth: int = 0) -> bool:
        """Whether the elements are numbers, whose hashes no process seeds, or modules, which have no other order."""
        values = self.program.flow.elements(self.program.flow.values(node, site.scope))
        if values and all(map(_is_number_or_module, values)):
            return True
        if isinstance(node, ast.BinOp):
            sides = [node.left] if isinstance(node.op, (ast.Sub, ast.BitAnd)) else [node.left, node.right]
            return all(self._of_numbers(side, site, depth) for side in sides)
        made = node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 else node
        if isinstance(made, ast.Call):
            if "builtins.range" in self.program.callee_names(made, site.scope):
                return True
            return isinstance(made.func, ast.Attribute) and made.func.attr in ("tolist", "parameters", "modules")
        if isinstance(made, (ast.Name, ast.Attribute)):
            given = [*self._assigned_to(made, site)] if depth < _MAX_DEPTH else []
            return bool(given) and all(self._of_numbers(value, where, depth + 1) for value, where in given)
        return isinstance(made, (ast.Set, ast.List, ast.Tuple)) and all(
            isinstance(item, ast.Constant) and isinstance(item.value, (int, float)) for item in made.elts
        )


def _is_number_or_module(value: Value) -> bool:
    if value.kind == "constant":
        return isinstance(value.ref, (int, float))
    return value.kind in ("parameters", "batch")


def _keeps(loop: ast.For) -> bool:
    """Whether a loop keeps something of the order of its rounds."""
    return any(
        isinstance(node, (ast.Assign, ast.AugAssign, ast.Yield))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GROWN)
        for item in loop.body
        for node in walk(item)
    )
