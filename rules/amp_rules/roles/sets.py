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
from amp_rules.source.modules import Module
from amp_rules.source.syntax import children, last_name, walk
from amp_rules.torch.containers import NUMBERS, ORDERED_BY, SET_METHODS, SETS, UNORDERED_USES

_MAX_DEPTH = 6
"""Assignments and functions through which a set is followed; scripts have two or three."""
_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)
_COPIES = frozenset({"list", "tuple", "set", "frozenset", "sorted"})
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
            self._known[node] = False  # what it is put together with may be itself
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
        elif isinstance(node, ast.Subscript):
            yield from self._kept_under(node, site)
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

    def _kept_under(self, node: ast.Subscript, site: Site) -> Iterator[tuple[ast.expr, Site]]:
        """What a dictionary of sets has under a key: ``files[name] = set(paths)``, where nothing else is put in."""
        path, key = blocks.path_of(node.value), self.program.flow.key(node.value, site.scope)
        if path is None or key is None or isinstance(node.slice, ast.Slice):
            return
        put = [
            (value, where)
            for target, value, where in self._put.get(path.rpartition(".")[2], ())
            if self.program.flow.key(target.value, where.scope) == key
        ]
        made = [*self._assigned_to(node.value, site)]
        if not (put and made and all(_is_empty(value) for value, _ in made)):
            return
        if all(isinstance(value, (ast.Call, ast.Set, ast.SetComp)) and self.is_set(value, at) for value, at in put):
            yield from put

    @cached_property
    def _put(self) -> dict[str, list[tuple[ast.Subscript, ast.expr, Site]]]:
        """Assignments of items, by the last part of what has them: target and value."""
        found: defaultdict[str, list[tuple[ast.Subscript, ast.expr, Site]]] = defaultdict(list)
        for node, body, scope in self.program.nodes():
            for target in node.targets if isinstance(node, ast.Assign) else ():
                path = blocks.path_of(target.value) if isinstance(target, ast.Subscript) else None
                if path is not None and isinstance(target, ast.Subscript) and isinstance(node, ast.Assign):
                    place = Site(scope.module, scope, body, node)
                    found[path.rpartition(".")[2]].append((target, node.value, place))
        return found

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
        elif isinstance(node, ast.For) and self._keeps(node, site):
            yield node.iter

    def _unordered(self, node: ast.AST, site: Site) -> bool:
        """Whether what takes the result asks for no order: ``sorted(list(names))``, ``len(...)``."""
        parent = site.module.parents.get(node)
        if isinstance(parent, ast.Compare):
            return any(isinstance(op, (ast.In, ast.NotIn)) for op in parent.ops)
        if isinstance(parent, ast.Assign):
            return _is_sorted_next(site.module, parent)
        if isinstance(parent, ast.Call) and self._is_sorted_by_sum(parent, node, site):
            return False
        return (
            isinstance(parent, ast.Call)
            and node in parent.args
            and bool(self.program.callee_names(parent, site.scope) & UNORDERED_USES)
        )

    def _is_sorted_by_sum(self, call: ast.Call, given: ast.AST, site: Site) -> bool:
        """Whether fractions are summed up to sort something: the last digit of a sum follows the order of its terms."""
        if not isinstance(given, (ast.GeneratorExp, ast.ListComp)) or not _is_fraction(given.elt):
            return False
        if "builtins.sum" not in self.program.callee_names(call, site.scope):
            return False
        if any(_is_key(site.module.parents.get(parent)) for parent in site.module.ancestors(call)):
            return True
        statement = blocks.statement_of(site.module, call)
        names = {path for path in blocks.writes(statement) if path} if isinstance(statement, ast.Assign) else set()
        kept: set[str] = set()
        calls = [node for node in self.program.nodes_of(site.body) if isinstance(node, ast.Call)]
        for other in calls:
            owner = blocks.path_of(other.func.value) if isinstance(other.func, ast.Attribute) else None
            if owner is not None and last_name(other.func) == "append":
                if any(part is call or blocks.path_of(part) in names for item in other.args for part in walk(item)):
                    kept.add(owner)
        return any(
            blocks.path_of(other.func.value) in kept
            if isinstance(other.func, ast.Attribute) and other.func.attr == "sort"
            else last_name(other.func) == "sorted" and bool(other.args) and blocks.path_of(other.args[0]) in kept
            for other in calls
        )

    def _keeps(self, loop: ast.For, site: Site) -> bool:
        """Whether a loop keeps something of the order of its rounds: more than how many there were."""
        return any(
            isinstance(node, (ast.Assign, ast.Yield))
            or (isinstance(node, ast.AugAssign) and not self._only_counts(node, loop, site))
            or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GROWN)
            for item in loop.body
            for node in walk(item)
        )

    def _only_counts(self, node: ast.AugAssign, loop: ast.For, site: Site) -> bool:
        """``found += 1``, and ``counts[word] += 1`` of a dictionary of the function that is only looked up by key."""
        value, target = node.value, node.target
        if not isinstance(node.op, (ast.Add, ast.Sub)):
            return False
        if not isinstance(value, ast.Constant) or type(value.value) is not int:
            return False
        if isinstance(target, ast.Name):
            reads = [part for item in loop.body for part in walk(item) if isinstance(part, ast.Name)]
            return all(part is target or part.id != target.id for part in reads)
        counts = target.value if isinstance(target, ast.Subscript) else None
        if not isinstance(counts, ast.Name) or site.scope.owner(counts.id).node is not site.body:
            return False
        if not isinstance(site.body, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        return all(
            _is_looked_up(site.module.parents.get(part), part)
            for part in ast.walk(site.body)
            if isinstance(part, ast.Name) and part.id == counts.id and isinstance(part.ctx, ast.Load)
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
        while isinstance(made, ast.Call) and len(made.args) == 1 and last_name(made.func) in _COPIES:
            made = made.args[0]
        if isinstance(made, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            return self._is_number(made.elt, site)
        if isinstance(made, ast.Call):
            if "builtins.range" in self.program.callee_names(made, site.scope):
                return True
            return isinstance(made.func, ast.Attribute) and made.func.attr in ("tolist", "parameters", "modules")
        if isinstance(made, ast.BinOp) and isinstance(made.op, ast.Add):
            # ``list(range(0, size, step)) + [size - window]``: numbers beside numbers are worked out of more of them.
            sides = [made.left, made.right]
            numbers = [side for side in sides if self._of_numbers(side, site, depth)]
            return bool(numbers) and all(side in numbers or _are_differences(side) for side in sides)
        if isinstance(made, (ast.Name, ast.Attribute)):
            given = [*self._assigned_to(made, site)] if depth < _MAX_DEPTH else []
            return bool(given) and all(self._of_numbers(value, where, depth + 1) for value, where in given)
        return isinstance(made, (ast.Set, ast.List, ast.Tuple)) and all(
            isinstance(item, ast.Constant) and isinstance(item.value, (int, float)) for item in made.elts
        )

    def _is_number(self, node: ast.expr, site: Site) -> bool:
        """Whether an expression is a number by what makes it: ``int(name[:4])``."""
        if isinstance(node, ast.BinOp):
            return all(self._is_number(side, site) for side in (node.left, node.right))
        if isinstance(node, ast.Constant):
            return isinstance(node.value, (int, float))
        return isinstance(node, ast.Call) and bool(self.program.callee_names(node, site.scope) & NUMBERS)


def _is_empty(node: ast.expr) -> bool:
    """Whether a dictionary is made with nothing in it."""
    if isinstance(node, ast.Dict):
        return not node.keys
    return isinstance(node, ast.Call) and not node.args and last_name(node.func) in ("dict", "OrderedDict")


def _is_sorted_next(module: Module, assignment: ast.Assign) -> bool:
    """Whether the statement below sorts the list that one makes: ``names.sort()``, ``names = sorted(names)``.

    A key may be the same for some, which keep the order that they had.
    """
    where = blocks.place(module, assignment)
    following = where.suite[where.index + 1] if where.index + 1 < len(where.suite) else None
    call = following.value if isinstance(following, (ast.Expr, ast.Assign)) else None
    name = blocks.path_of(assignment.targets[0])
    if not isinstance(call, ast.Call) or any(item.arg == "key" for item in call.keywords) or name is None:
        return False
    if isinstance(following, ast.Assign):
        given = call.args[0] if call.args and last_name(call.func) == "sorted" else None
        return given is not None and blocks.path_of(given) == name == blocks.path_of(following.targets[0])
    return isinstance(call.func, ast.Attribute) and call.func.attr == "sort" and blocks.path_of(call.func.value) == name


def _is_number_or_module(value: Value) -> bool:
    if value.kind == "constant":
        return isinstance(value.ref, (int, float))
    return value.kind in ("parameters", "batch")


def _are_differences(node: ast.expr) -> bool:
    """Whether each element of a list is a number, or one less another."""
    return isinstance(node, (ast.List, ast.Tuple)) and all(
        (isinstance(item, ast.Constant) and isinstance(item.value, (int, float)))
        or (isinstance(item, ast.BinOp) and isinstance(item.op, (ast.Sub, ast.FloorDiv)))
        for item in node.elts
    )


def _is_fraction(node: ast.expr) -> bool:
    """Whether a term is certainly no whole number: it is divided."""
    return isinstance(node, ast.BinOp) and (
        isinstance(node.op, ast.Div)
        or (isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)) and (_is_fraction(node.left) or _is_fraction(node.right)))
    )


def _is_key(node: ast.AST | None) -> bool:
    return isinstance(node, ast.keyword) and node.arg == "key"


def _is_looked_up(parent: ast.AST | None, node: ast.AST) -> bool:
    """Whether a dictionary is asked for what it has under a key: ``counts[word]``, ``word in counts``."""
    if isinstance(parent, ast.Subscript):
        return parent.value is node
    if isinstance(parent, ast.Compare):
        return all(isinstance(op, (ast.In, ast.NotIn)) for op in parent.ops)
    if isinstance(parent, ast.Call):
        return last_name(parent.func) == "len"
    return isinstance(parent, ast.Attribute) and parent.attr == "get"
