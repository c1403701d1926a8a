"""Whether a number comes to be shown: through variables and lists, by functions that get it, or by callers."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, TypeGuard

from amp_rules.plan.distribution import Distribution
from amp_rules.plan.training_loops import SHOWING, Counted, added_to, variable
from amp_rules.roles.sites import Site, calling
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, arguments_of
from amp_rules.source.syntax import called_name, walk
from amp_rules.torch.functions import FINITE_TESTS

SHOWING_OR_WRITING = SHOWING | {
    "writerow",
    "writerows",
    "plot",
    "dump",
    "dumps",
    "savetxt",
    "warning",
    "add_scalars",
    "log_metric",
    "log_metrics",
    "log_scalar",
    "report_scalar",
    "track",
    "set_postfix_str",
    "set_description_str",
    *("add_hparams", "add_summary", "add_text", "log_value", "logkv", "logkv_mean", "record_tabular", "scalar"),
    *("report", "report_intermediate_result", "report_final_result", "write_text", "post"),
}
"""Functions and methods that show a number, write it to a file, draw it, or send it: ``requests.post``."""

_CURVES = frozenset({"line", "bar"})
_OF_CURVES = frozenset({"win", "env", "opts", "update"})
"""What Visdom is given beside the numbers of a curve: ``vis.line([loss], [step], win="loss", update="append")``."""

_MEANS = frozenset({"mean", "nanmean", "average", "fmean", "median"})
CARRYING = _MEANS | {
    *("float", "int", "round", "str", "sum", "list", "tuple", "abs", "max", "min", "dict", "sqrt", "exp"),
    *("item", "cpu", "detach", "numpy", "tolist", "array", "asarray", "tensor", "stack", "copy", "join"),
    *("append", "concatenate", "concat", "cat", "vstack", "hstack"),
    *("enumerate", "zip", "sorted", "reversed", "values", "items", "get", "median", "double"),
}
"""Functions and methods that give the number that they get, or what is made of it."""

_OF_SHAPE = frozenset({"shape", "size", "device", "dtype", "ndim", "numel", "dim"})
"""Attributes that say nothing of the numbers themselves."""

_KEEPING = frozenset({"append", "extend", "appendleft", "insert"})

_ITEMS = frozenset({"setdefault", "get"})
"""Methods of a dictionary that give what it holds under a key, which may be a list."""

_MAX_CALLS = 3
"""Functions through which a number is followed."""

Shown = Literal["alone", "divided"]
"""How a number is shown: as it is, or as a mean."""

_Variables = dict[str, bool]
"""Variables that hold a number, and whether they hold a mean of it."""


def tells(call: ast.Call) -> bool:
    """Whether a call shows a number, writes it to a file, or draws it, by its name."""
    name = called_name(call)
    return name in SHOWING_OR_WRITING or (
        name in _CURVES and not _OF_CURVES.isdisjoint(item.arg for item in call.keywords)
    )


class WaysToShow:
    """Follows numbers of one process to where they are shown; what becomes a number of all is not followed.

    With ``scores``, whatever functions make of them is followed as well: a score of guesses and labels.
    """

    def __init__(self, processes: Distribution, *, scores: bool = False) -> None:
        self.program = processes.program
        self._scores = scores
        self._beside: set[tuple[ast.AST, str]] = set()
        self._followed: dict[tuple[ast.AST, str, bool], Shown | Literal["back"] | None] = {}
        reductions = [item for item in processes.agreed.reductions if not item.is_taken]
        self._averaged = {item.node for item in reductions if item.variable is None}
        self._of_all: set[tuple[ast.AST, str]] = {
            (blocks.body_of(item.module, item.node), item.variable) for item in reductions if item.variable is not None
        }
        self._of_all |= {(item.place.body, item.path) for item in processes.sums.after}
        self._of_all |= {
            (item.place.body, path)
            for item in processes.sums.here
            for part in walk(item.node)
            if (path := variable(part)) is not None
        }
        exchanges = processes.exchanges
        self._meets = self.program.closure(lambda item: item in exchanges) if exchanges else None

    def of_loop(
        self, loop: Site, inner: list[ast.AST], path: str, *, beside: Collection[str] = frozenset()
    ) -> Shown | None:
        """How a number is shown that a loop keeps in a variable; what becomes of it in those ``beside`` is left out."""
        if (loop.body, path) in self._of_all:
            return None
        self._beside = {(loop.body, other) for other in beside} - {(loop.body, path)}
        nodes = [*inner, *_following(loop, path)]
        found = self._in(loop, nodes, {path: False}, None, 0)
        if found is None and isinstance(loop.body, FunctionNode) and self._is_of_file(loop, path):
            found = self._in_file(loop, {path: False})
        return found

    def of_value(self, site: Site) -> Shown | None:
        """How the value of the site's expression is shown."""
        assert isinstance(site.node, ast.expr)
        self._beside = set()
        nodes = [*blocks.walk_own(site.statement), *_following(site, None)]
        return self._in(site, nodes, {}, site.node, 0)

    def by_methods(self, site: Site, path: str, *, returned: bool = False) -> Shown | None:
        """How other methods show what a method keeps in an attribute, or their callers what is ``returned`` of it."""
        depth = _MAX_CALLS - returned
        found = set() if (site.body, path) in self._of_all else self._in_methods(site, {path: False}, depth)
        return "divided" if "divided" in found else "alone" if found else None

    # ---- within a function -----------------------------------------------------------------------------------------

    def _in(
        self,
        site: Site,
        nodes: Iterable[ast.AST],
        held: _Variables,
        given: ast.expr | None,
        depth: int,
        *,
        callers: bool = True,
    ) -> Shown | None:
        """How some nodes show what variables hold, or what is given back by the call ``given``."""
        nodes = list(nodes)
        found: set[Shown] = set()
        while True:
            before = dict(held)
            for node in nodes:
                if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Div, ast.FloorDiv)):
                    held.update({path: True for path in [variable(node.target)] if path in held and path is not None})
                path = _held_by(site, node, held) if isinstance(node, ast.expr) else None
                if isinstance(node, ast.expr) and (node is given or path is not None):
                    is_mean = node is not given and held[path or ""]
                    shown = self._read(site, node, held, is_mean=is_mean, depth=depth)
                    found |= {shown} if shown is not None else set()
            if before == held:
                break
        if not found and depth < _MAX_CALLS:
            found |= self._in_methods(site, held)
            found |= self._by_callers(site, nodes, held, depth) if callers else set()
        return "divided" if "divided" in found else "alone" if found else None

    def _read(self, site: Site, node: ast.expr, held: _Variables, *, is_mean: bool, depth: int) -> Shown | None:
        """How a read of a number is shown; what takes the number is added to ``held``."""
        child: ast.AST = node
        in_text = False
        for parent in site.module.ancestors(node):
            if child in self._averaged or isinstance(parent, (FunctionNode, ast.Await)):
                return None
            if isinstance(parent, ast.Compare) and not self._scores:
                return None
            if isinstance(parent, ast.stmt):
                self._take(site, parent, child, held, is_mean=is_mean)
                return None
            if isinstance(parent, ast.BinOp):
                if isinstance(parent.op, (ast.Div, ast.FloorDiv)):
                    if child is parent.right:
                        return None
                    is_mean = True
                in_text = isinstance(parent.op, ast.Mod) and _is_text(parent.left)
            elif _asks(parent, child):
                return None
            elif isinstance(parent, ast.Call):
                name = called_name(parent)
                if self._meets is not None and self._meets(parent):
                    return None
                is_own = name == "update" and self.program.flow.callees(parent)
                if (
                    child is not parent.func
                    and isinstance(parent.func, ast.Attribute)
                    and _keeps(parent)
                    and not is_own
                ):
                    self._hold(site, _kept_in(parent.func.value), held, is_mean=is_mean)
                    return None
                if child is not parent.func:
                    if tells(parent) and not self._gives(site, parent):
                        return None if tells_failure(site.module, parent) else "divided" if is_mean else "alone"
                    if self.program.flow.callees(parent):
                        value = child.value if isinstance(child, ast.keyword) else child
                        shown = self._by_callees(parent, value, is_mean=is_mean, depth=depth)
                        if shown != "back" and (shown is not None or not self._scores):
                            return shown
                    elif name == "len" or not (self._scores or name in CARRYING):
                        return None
                is_mean |= name in _MEANS
            if isinstance(parent, ast.JoinedStr) or in_text:
                return "divided" if is_mean else "alone"
            child = parent
        return None

    def _gives(self, site: Site, call: ast.Call) -> bool:
        """Whether a function of the project is called for its result: ``scale = scalar(scale)`` shows nothing."""
        return bool(self.program.flow.callees(call)) and not isinstance(
            site.module.parents[call], (ast.Expr, ast.Await, ast.Lambda)
        )

    def _take(self, site: Site, statement: ast.stmt, child: ast.AST, held: _Variables, *, is_mean: bool) -> None:
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign) and child is statement.value:
            if not isinstance(child, ast.Tuple):
                targets = statement.targets
        elif child in (getattr(statement, "value", None), getattr(statement, "iter", None)):
            targets = [target] if (target := getattr(statement, "target", None)) is not None else []
        for target in targets:
            for part in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                self._hold(site, _kept_in(part), held, is_mean=is_mean)

    def _hold(self, site: Site, path: str | None, held: _Variables, *, is_mean: bool) -> None:
        if path is not None and (site.body, path) not in self._of_all | self._beside:
            held[path] = is_mean or held.get(path, False)

    # ---- in other functions ----------------------------------------------------------------------------------------

    def _by_callees(
        self, call: ast.Call, value: ast.AST, *, is_mean: bool, depth: int
    ) -> Shown | Literal["back"] | None:
        """How functions of the project show what a call gives them, or whether they give it back: ``log(loss)``."""
        for info in self.program.flow.callees(call) if depth < _MAX_CALLS else ():
            name = next((name for name, item in info.bound(call) if item is value), None)
            if name is None:
                continue
            key = (info.node, name, is_mean)
            if key not in self._followed:
                self._followed[key] = None  # while it is followed, as where a function calls itself
                scope = self.program.flow.scopes[info.node]
                site = Site(scope.module, scope, info.node, info.node)
                nodes = self.program.nodes_of(info.node)
                held = {name: is_mean}
                shown = self._in(site, nodes, held, None, depth + 1, callers=False)
                given_back = any(_read(item) in held for value in info.returns for item in walk(value))
                self._followed[key] = shown or ("back" if given_back else None)
            if (found := self._followed[key]) is not None:
                return found
        return None

    def _by_callers(self, site: Site, nodes: Collection[ast.AST], held: _Variables, depth: int) -> set[Shown]:
        """How callers show what a function gives back of the numbers."""
        info = self.program.function_of(site.body)
        found: set[Shown] = set()
        reached = set(nodes)
        for value in info.returns if info is not None else ():
            for index, part in enumerate(value.elts if isinstance(value, ast.Tuple) else [value]):
                if part in self._averaged or part not in reached:
                    continue
                read = {_read(item) for item in walk(_divided(part))} & set(held)
                if not read or not (self._scores or _carries(part)):
                    continue
                is_mean = any(held[path or ""] for path in read) or any(map(_makes_mean, walk(part)))
                for caller in self.program.flow.callers(info) if info is not None else ():
                    found |= self._by_caller(calling(caller), caller.call, value, index, is_mean, depth)
        return found

    def _by_caller(
        self, site: Site, call: ast.Call, value: ast.expr, index: int, is_mean: bool, depth: int
    ) -> set[Shown]:
        if call in self._averaged:
            return set()
        held: _Variables = {}
        statement = site.statement
        if isinstance(value, ast.Tuple):
            targets = statement.targets if isinstance(statement, ast.Assign) and statement.value is call else []
            for target in targets:
                if isinstance(target, ast.Tuple) and index < len(target.elts):
                    self._hold(site, variable(target.elts[index]), held, is_mean=is_mean)
        given = None if isinstance(value, ast.Tuple) else call
        if not held and given is None:
            return set()
        nodes = [*blocks.walk_own(statement), *_following(site, next(iter(held), None))]
        shown = self._in(site, nodes, held, given, depth + 1)
        return set() if shown is None else {"divided" if is_mean else shown}

    def _in_methods(self, site: Site, held: _Variables, depth: int = _MAX_CALLS) -> set[Shown]:
        """How other methods show what a method keeps in attributes: ``self.losses[-1]``."""
        owner = site.module.parents.get(site.body)
        info = self.program.function_of(site.body)
        if not isinstance(owner, ast.ClassDef) or info is None:
            return set()
        found: set[Shown] = set()
        for item in owner.body:
            if item is site.body or not isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            nodes = self.program.nodes_of(item)
            grown = {path for node in nodes for path in _grown(node)}
            kept = {path: is_mean for path, is_mean in held.items() if path.startswith("self.") and path not in grown}
            if kept and nodes:
                scope = self.program.flow.scopes[item]
                shown = self._in(Site(site.module, scope, item, item), nodes, kept, None, depth)
                found |= {shown} if shown is not None else set()
        return found

    def _is_of_file(self, site: Site, path: str) -> bool:
        """Whether a variable of a function is one of its file."""
        return path.isidentifier() and isinstance(site.scope.owner(path).node, ast.Module)

    def _in_file(self, site: Site, held: _Variables) -> Shown | None:
        tree = site.module.tree
        scope = self.program.flow.scopes[tree]
        return self._in(Site(site.module, scope, tree, tree), self.program.nodes_of(tree), held, None, _MAX_CALLS)


def tells_failure(module: Module, node: ast.AST) -> bool:
    """Whether a place only runs where something failed, or a number is not finite: what is shown there says why.

    ``if not math.isfinite(loss): print(f"loss is {loss}, stopping")``; what other processes have is not asked. So it is
    where an error that was raised is told: ``except ValueError as error: print(error, outputs)``.
    """
    inner = node
    for parent in module.ancestors(node):
        if isinstance(parent, blocks.BODIES):
            return False
        if isinstance(parent, ast.ExceptHandler) and parent.name is not None:
            if any(isinstance(part, ast.Name) and part.id == parent.name for part in walk(node)):
                return True
        if isinstance(parent, ast.If) and inner is not parent.test:
            if _asks_for_failure(parent.test) is (inner in parent.body):
                return True
        inner = parent
    return False


def _asks_for_failure(test: ast.expr) -> bool | None:
    """Whether a test holds where a number is not finite; None where it does not ask for that."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        asked = _asks_for_failure(test.operand)
        return None if asked is None else not asked
    names = {called_name(part) for part in walk(test) if isinstance(part, ast.Call)} & FINITE_TESTS
    return "isfinite" not in names if names else None


def is_shown(loop: Site, node: ast.expr) -> bool:
    """Whether a number is printed, or made a part of a text."""
    child: ast.AST = node
    for parent in loop.module.ancestors(node):
        divides = isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Div, ast.FloorDiv))
        if isinstance(parent, ast.stmt) or (divides and child is getattr(parent, "right", None)):
            return False
        child = parent
        if isinstance(parent, ast.JoinedStr) or (isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mod)):
            return not tells_failure(loop.module, parent)
        if isinstance(parent, ast.Call):
            name = parent.func.attr if isinstance(parent.func, ast.Attribute) else blocks.path_of(parent.func)
            if name in SHOWING:
                return not tells_failure(loop.module, parent)
    return False


def is_read(place: Site, path: str) -> bool:
    """Whether anything reads a list: one that a function only fills shows nothing."""
    if not path.isidentifier():
        return True
    owner, parents = place.scope.owner(path).node, place.module.parents
    if isinstance(owner, FunctionNode) and any(item.arg == path for item in arguments_of(owner)):
        return True  # by callers
    return any(
        isinstance(node, ast.Name)
        and node.id == path
        and isinstance(node.ctx, ast.Load)
        and asked_of(parents, node) not in {*_KEEPING, "clear", "add", "update"}
        for node in walk(owner)
    )


def asked_of(parents: Mapping[ast.AST, ast.AST], node: ast.AST) -> str:
    """The attribute that a list is asked for, or one of several lists: ``append`` of ``costs[name].append(cost)``."""
    parent = parents[node]
    if isinstance(parent, ast.Subscript) and parent.value is node:
        parent = parents[parent]
    return getattr(parent, "attr", "")


def _read(node: ast.AST) -> str | None:
    """The variable that an expression reads."""
    return variable(node) if isinstance(getattr(node, "ctx", None), ast.Load) else None


def _held_by(site: Site, node: ast.expr, held: Collection[str]) -> str | None:
    """What an expression reads of the variables that hold a number: one of them, or all that a dictionary holds."""
    path = _read(node)
    if path is None or path in held:
        return path
    parent = site.module.parents[node]
    is_whole = not (isinstance(parent, (ast.Subscript, ast.Attribute)) and parent.value is node) or (
        isinstance(parent, ast.Attribute) and parent.attr in ("items", "values")
    )
    return next((item for item in held if is_whole and item.startswith(f"{path}[")), None)


def _kept_in(node: ast.expr) -> str | None:
    """The variable that holds what is put somewhere: ``log`` of ``log[epoch]`` and of ``log.setdefault(name, [])``."""
    path = variable(node)
    if path is None and isinstance(node, ast.Subscript):
        return _kept_in(node.value)
    if path is None and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _kept_in(node.func.value) if node.func.attr in _ITEMS else None
    return path


def _keeps(call: ast.Call) -> bool:
    """Whether a call is a method that puts something into a list; ``np.append(kept, x)`` gives another array."""
    name = called_name(call)
    if name == "update":  # of a dictionary, by another one: that of a meter or a bar is given a number
        return len(call.args) == 1 and not call.keywords
    return name in _KEEPING and (name == "insert" or len(call.args) == 1)


def _asks(parent: ast.AST, child: ast.AST) -> bool:
    """Whether a number only chooses an item or a branch, or its shape is asked."""
    if isinstance(parent, ast.Attribute):
        return parent.attr in _OF_SHAPE
    return child in (getattr(parent, "slice", None), getattr(parent, "test", None))


def _following(site: Site, path: str | None) -> list[ast.AST]:
    """The nodes that run after a statement and the loops around it, before a variable begins anew."""
    around = [item for item in blocks.enclosing(site.module, site.statement) if isinstance(item, blocks.LOOPS)]
    places = [Counted(site.module, site.scope, site.body, item, ()) for item in [site.statement, *around]]
    nodes = [node for place in places for node in place.nodes_following()]
    begun = min((node.lineno for node in nodes if path is not None and _begins(node, path)), default=None)
    return [node for node in nodes if begun is None or _read(node) != path or getattr(node, "lineno", 0) < begun]


def _begins(node: ast.AST, path: str) -> TypeGuard[ast.Assign]:
    """Whether a statement begins a number anew."""
    return (
        isinstance(node, ast.Assign)
        and path in {variable(target) for target in node.targets}
        and not blocks.touches({path}, blocks.reads(node.value))
    )


def _grown(node: ast.AST) -> Iterable[str]:
    """What a node adds to or appends to."""
    yield from added_to(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPING:
        path = variable(node.func.value)
        if path is not None:
            yield path


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _makes_mean(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.Div, ast.FloorDiv))
    return isinstance(node, ast.Call) and called_name(node) in _MEANS


def _divided(node: ast.expr) -> ast.expr:
    """What a quotient divides; else the expression itself."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv)):
        return node.left
    return node


def _carries(node: ast.expr) -> bool:
    """Whether what a function gives back is a number, or a dictionary of numbers; of a quotient, what is divided."""
    given = list(walk(_divided(node)))
    return all(called_name(part) in CARRYING for part in given if isinstance(part, ast.Call)) and not any(
        isinstance(part, ast.Compare) for part in given
    )
