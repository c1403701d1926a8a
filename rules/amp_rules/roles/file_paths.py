"""Which files an expression may name, as texts with ``*`` for what is not known."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from itertools import product

from amp_rules.roles.gapped_texts import NUMBER, UNKNOWN, meets
from amp_rules.roles.path_parts import PARTS, SPLITS, above
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope, arguments_of
from amp_rules.source.syntax import is_none, last_name, walk
from amp_rules.torch.file_access import OF_THIS_MOMENT, OPENERS, TEMPORARY

OWN = "\0own"
"""Stands for a file or folder that each process gets for itself."""
NOW = "\0now"
"""Stands for what each process gets for itself when it asks: the clock, its number."""

_DEPTH = 8
"""Names behind names; a path that takes more is not followed to its end."""
_MANY = 8
"""Texts of one expression; beyond, it could be any."""
_SAME = frozenset(
    {
        "pathlib.Path", "pathlib.PurePath", "pathlib.PosixPath", "builtins.str", "os.fspath", "os.path.abspath",
        "os.path.realpath", "os.path.expanduser", "os.path.normpath", "builtins.sorted", "builtins.list",
        "builtins.max", "builtins.min", "glob.glob", "glob.iglob", "glob.escape", "os.path.expandvars",
    }
)  # fmt: skip
_OPEN_AND_NAME = "mkstemp"
"""It gives a file that is open, and its name."""
_IN_PARTS = frozenset({"split", "splitext", _OPEN_AND_NAME})
_HOLE = re.compile(r"%(?:[-+ #0-9.]*[a-rt-zA-Z]|[-+ #0-9.]+s|()s)")
"""A hole of ``"%s_%04d" % (name, number)``; only one of a whole text has a group."""
_FIELD = re.compile(r"\{(?:(\w*)|[^}]*)\}")
"""A hole of ``"{}_{:.2f}".format(name, number)``; only one of a whole text has a group."""
_EXTENSION = re.compile(r"\.\w+$")
_SAME_METHODS = frozenset({"resolve", "absolute", "expanduser", "as_posix", "strip", "with_suffix", "relative_to"})


class Paths:
    """Questions about the files that expressions name."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._known: dict[tuple[ast.expr, Scope], frozenset[str]] = {}
        # Many names lead to one, each on several ways.
        self._followed: dict[tuple[ast.expr, Scope, int], set[str]] = {}

    def of(self, node: ast.expr, scope: Scope) -> frozenset[str]:
        """The texts that an expression may be; ``*`` stands for any."""
        key = node, scope
        if key not in self._known:
            self._known[key] = frozenset(_tidy(text) for text in self._texts(node, scope, _DEPTH))
        return self._known[key]

    def is_own(self, nodes: Iterable[ast.expr], scope: Scope) -> bool:
        """Whether the files lie in a folder that this process has for itself."""
        return any(OWN in text for node in nodes for text in self.of(node, scope))

    def is_of_this_moment(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the text differs between processes because of the time at which they ask."""
        return any(NOW in text for text in self.of(node, scope))

    def _texts(self, node: ast.expr, scope: Scope, depth: int) -> set[str]:
        """The texts of an expression by so many names behind names; the set is not the caller's to change."""
        if depth <= 0:
            return {UNKNOWN}
        key = node, scope, depth
        known = self._followed.get(key)
        if known is None:
            known = self._followed[key] = self._texts_of(node, scope, depth)
        return known

    def _texts_of(self, node: ast.expr, scope: Scope, depth: int) -> set[str]:
        if isinstance(node, ast.Constant):
            return {node.value} if isinstance(node.value, str) else {UNKNOWN}
        if isinstance(node, ast.JoinedStr):
            return self._joined([self._texts(part, scope, depth) for part in node.values])
        if isinstance(node, ast.FormattedValue):
            return self._texts(node.value, scope, depth - 1)
        if isinstance(node, ast.BinOp):
            return self._operation(node, scope, depth)
        if isinstance(node, ast.Call):
            return self._call(node, scope, depth)
        if isinstance(node, ast.IfExp):
            return self._texts(node.body, scope, depth) | self._texts(node.orelse, scope, depth)
        if isinstance(node, ast.BoolOp):
            return set().union(*(self._texts(item, scope, depth) for item in node.values))
        if isinstance(node, ast.Subscript):
            found = self._split(node, scope, depth) or self._item(node, scope)
            return found or self._texts(node.value, scope, depth - 1)
        if isinstance(node, (ast.List, ast.Tuple)):
            return set().union(*(self._texts(item, scope, depth - 1) for item in node.elts)) or {UNKNOWN}
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._variable(node, scope, depth)
        return {UNKNOWN}

    @staticmethod
    def _joined(parts: list[set[str]], between: str = "") -> set[str]:
        found: set[str] = set()
        for texts in product(*(sorted(part)[:_MANY] for part in parts)):
            found.add(between.join(texts))
            if len(found) >= _MANY:
                return _any_of(set().union(*parts))
        return found or {""}

    def _operation(self, node: ast.BinOp, scope: Scope, depth: int) -> set[str]:
        left = self._texts(node.left, scope, depth - 1)
        if isinstance(node.op, ast.Mod):
            given = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
            filled = self._filled_with(given, scope, depth)
            return self._filled_in(left, _HOLE, dict(enumerate(given)), filled, scope, depth)
        if isinstance(node.op, ast.Div):
            return self._joined([left, self._texts(node.right, scope, depth - 1)], "/")
        if isinstance(node.op, ast.Add):
            return self._joined([left, self._texts(node.right, scope, depth - 1)])
        return {UNKNOWN}

    def _call(self, call: ast.Call, scope: Scope, depth: int) -> set[str]:
        names = self._program.callee_names(call, scope)
        if names & TEMPORARY:
            return {OWN}
        if names & OF_THIS_MOMENT:
            return {NOW}
        if "os.path.join" in names or (names & {"pathlib.Path"} and len(call.args) > 1):
            return self._joined([self._texts(item, scope, depth - 1) for item in call.args], "/")
        if names & _SAME and call.args:
            return self._texts(call.args[0], scope, depth - 1)
        if names & OPENERS.keys() and call.args:
            # What is open is asked for a file of its own alone: what is written to it is told by who opens it.
            found = self._texts(call.args[0], scope, depth - 1)
            return {OWN} if found and all(OWN in text for text in found) else {UNKNOWN}
        if names & PARTS.keys() and call.args:
            part = PARTS[min(names & PARTS.keys())]
            return set(map(part, self._texts(call.args[0], scope, depth - 1)))
        if isinstance(call.func, ast.Attribute):
            receiver, attr = call.func.value, call.func.attr
            if attr in _SAME_METHODS:
                found = self._texts(receiver, scope, depth - 1)
                return {re.sub(r"\.\w+$", UNKNOWN, text) for text in found} if attr == "with_suffix" else found
            if attr == "joinpath":
                return self._joined([self._texts(item, scope, depth - 1) for item in (receiver, *call.args)], "/")
            if attr in ("glob", "rglob") and call.args:
                return self._joined([self._texts(item, scope, depth - 1) for item in (receiver, call.args[0])], "/")
            if attr == "format":
                given = [*call.args, *(item.value for item in call.keywords)]
                filled = self._filled_with(given, scope, depth)
                numbered: dict[int | str, ast.expr] = dict(enumerate(call.args))
                numbered |= {item.arg: item.value for item in call.keywords if item.arg is not None}
                return self._filled_in(self._texts(receiver, scope, depth - 1), _FIELD, numbered, filled, scope, depth)
        returned = self._returned(call, depth)
        if returned:
            return returned
        return {NOW} if self._asks_the_moment(call, scope) else {UNKNOWN}

    def _item(self, node: ast.Subscript, scope: Scope) -> set[str]:
        """The texts that stand under a key of a dictionary, where all that stands there is known."""
        held = self._program.flow.values(node, scope)
        texts = {value.ref for value in held if value.kind == "constant" and isinstance(value.ref, str)}
        return texts if len(texts) == len(held) <= _MANY else set()

    def _split(self, node: ast.Subscript, scope: Scope, depth: int) -> set[str]:
        """The texts of a part of a path that is split: ``os.path.splitext(path)[0]``."""
        call, place = node.value, node.slice
        if not (isinstance(call, ast.Call) and call.args and isinstance(place, ast.Constant)):
            return set()
        part = SPLITS.get((min(self._program.callee_names(call, scope), default=""), place.value))
        return set() if part is None else set(map(part, self._texts(call.args[0], scope, depth - 1)))

    def _returned(self, call: ast.Call, depth: int) -> set[str]:
        """What a function of the project gives back."""
        found: set[str] = set()
        for info in self._program.flow.callees(call):
            scope = self._program.flow.scopes.get(info.node)
            for node in walk(info.node) if scope is not None else ():
                if isinstance(node, ast.Return) and node.value is not None and scope is not None:
                    found |= self._texts(node.value, scope, depth - 2)
        return found

    def _filled_with(self, given: Iterable[ast.expr], scope: Scope, depth: int) -> str:
        """What stands in the holes of a text: a file of this process, the clock, or anything."""
        given = list(given)
        texts = {text for item in given for text in self._texts(item, scope, depth - 1)}
        if any(OWN in text for text in texts):
            return OWN
        asks = any(NOW in text for text in texts) or any(self._asks_the_moment(item, scope) for item in given)
        return NOW if asks else UNKNOWN

    def _filled_in(
        self,
        texts: set[str],
        holes: re.Pattern[str],
        given: Mapping[int | str, ast.expr],
        filled: str,
        scope: Scope,
        depth: int,
    ) -> set[str]:
        """Texts with what stands in their holes, where that is known; elsewhere what may stand in all of them."""
        if any(isinstance(item, ast.Starred) for item in given.values()):
            given = {}
        found: set[str] = set()
        for text in texts:
            parts: list[set[str]] = []
            end = 0
            for number, hole in enumerate(holes.finditer(text)):
                parts.append({text[end : hole.start()]})
                end = hole.end()
                name = hole[1]
                item = given.get(int(name) if name.isdigit() else name or number) if name is not None else None
                # What is not known of a text may have holes of its own.
                known = item is not None and filled == UNKNOWN and UNKNOWN not in text
                stands = self._texts(item, scope, depth - 1) if known and item is not None else {UNKNOWN}
                # Of many texts one says nothing, and what stands around them would be lost.
                parts.append(stands if len(stands) == 1 and stands != {UNKNOWN} else {_filled(hole, filled)})
            found |= self._joined([*parts, {text[end:]}])
        return found

    def _asks_the_moment(self, node: ast.AST, scope: Scope) -> bool:
        return any(
            isinstance(part, ast.Call) and self._program.callee_names(part, scope) & OF_THIS_MOMENT
            for part in walk(node)
        )

    def _variable(self, node: ast.Name | ast.Attribute, scope: Scope, depth: int) -> set[str]:
        found = {
            value.ref
            for value in self._program.flow.values(node, scope)
            if value.kind == "constant" and isinstance(value.ref, str)
        }
        assigned = self.assigned(node, scope)
        named = [item for item in assigned if not is_none(item[0])]  # None names no file: it waits for a path
        for value, where in named or assigned:
            if value is not node:
                found |= self._texts(value, where, depth - 1)
        if not found and isinstance(node, ast.Attribute) and node.attr in ("name", "parent", "stem"):
            found = self._texts(node.value, scope, depth - 1)
            if any(OWN in text for text in found):
                return found
            return set(map(above, found)) if node.attr == "parent" else {UNKNOWN}
        if not found and isinstance(node, ast.Attribute) and NOW in self._texts(node.value, scope, depth - 1):
            return {NOW}  # ``now.tm_year``
        return _any_of(found) if len(found) > _MANY else found or {UNKNOWN}

    def assigned(self, node: ast.Name | ast.Attribute, scope: Scope) -> list[tuple[ast.expr, Scope]]:
        """What a variable is assigned in the file, or a parameter is given by those who call."""
        if isinstance(node, ast.Name):
            owner = scope.owner(node.id)
            table = _assignments(owner.module)
            found = [
                (value, where)
                for value, body in table.get(node.id, ())
                if (where := self._program.flow.scopes.get(body)) is not None and where.owner(node.id) is owner
            ]
            if isinstance(owner.node, FunctionNode) and node.id in {item.arg for item in arguments_of(owner.node)}:
                found.extend(self._given(owner.node, node.id))
            # ``path = Path(path)`` says nothing of what the path is.
            of_others = [
                (value, where)
                for value, where in found
                if where.owner(node.id) is not owner
                or blocks.path_of(taken_as_it_is(self._program, value, where)) != node.id
            ]
            return of_others or found
        path = ast.unparse(node)
        scopes = self._program.flow.scopes
        table = _assignments(scope.module)
        found = [(value, scopes[body]) for value, body in table.get(path, ()) if body in scopes]
        return found or self._held(node, scope)

    def _held(self, node: ast.Attribute, scope: Scope) -> list[tuple[ast.expr, Scope]]:
        """What the methods of an object's class assign the attribute, where the object is named from elsewhere."""
        found: list[tuple[ast.expr, Scope]] = []
        for value in self._program.flow.values(node.value, scope):
            if value.kind != "instance":
                continue
            asked = value.ref.find_method(node.attr)
            if asked is not None and asked.is_property:
                where = self._program.flow.scopes.get(asked.node)
                return [(item, where) for item in asked.returns if where is not None]
            for info in value.ref.mro():
                for method in info.facts.methods.values():
                    inner = self._program.flow.scopes.get(method.node)
                    assigned = _assignments(inner.module) if inner is not None and method.receiver else {}
                    for given, body in assigned.get(f"{method.receiver}.{node.attr}", ()):
                        if body is method.node and inner is not None:
                            found.append((given, inner))
        return found

    def _given(self, function: FunctionNode, name: str) -> list[tuple[ast.expr, Scope]]:
        info = self._program.flow.functions.get(function)
        found: list[tuple[ast.expr, Scope]] = []
        for caller in self._program.flow.callers(info) if info is not None else ():
            given = info.argument(caller.call, name) if info is not None else None
            if given is not None:
                found.append((given, caller.scope))
        return found


def _any_of(texts: set[str]) -> set[str]:
    """Any text, for more than are told apart; what asks for the clock among them goes on doing so."""
    return {UNKNOWN, NOW} if any(NOW in text for text in texts) else {UNKNOWN}


def _add_parts(
    found: dict[str, list[tuple[ast.expr, ast.AST]]], target: ast.Tuple, value: ast.expr, body: ast.AST
) -> None:
    """Give each variable of a tuple its part: ``handle, path = mkstemp()``."""
    for index, item in enumerate(target.elts):
        part = ast.copy_location(ast.Subscript(value, ast.Constant(index), ast.Load()), value)
        found.setdefault(ast.unparse(item), []).append((part, body))


def _assignments(module: Module) -> dict[str, list[tuple[ast.expr, ast.AST]]]:
    """What each variable and attribute of a file is assigned, and the body that does."""
    known: dict[str, list[tuple[ast.expr, ast.AST]]] | None = module.kept.get("assignments")
    if known is not None:
        return known
    found = module.kept["assignments"] = {}
    grown: list[ast.AugAssign] = []
    kept: list[tuple[ast.Tuple, ast.Name]] = []
    for node in module.nodes:
        pairs: list[tuple[ast.expr, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            pairs = [*blocks.pairs_of(node)]
        elif isinstance(node, ast.AnnAssign):
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.AugAssign):
            grown.append(node)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            pairs = [(node.target, node.iter)]
            if isinstance(node.target, ast.Tuple) and isinstance(node.iter, (ast.Name, ast.Attribute)):
                # ``for score, path in best``: what stands in a row of a list has the texts of the list.
                pairs = [(item, node.iter) for item in node.target.elts]
        elif isinstance(node, ast.Call) and last_name(node.func) == "append" and len(node.args) == 1:
            # A list has the texts of what is put into it, as one that is written out has those of its elements.
            pairs = [(node.func.value, node.args[0])] if isinstance(node.func, ast.Attribute) else []
        elif isinstance(node, ast.Call) and last_name(node.func) == "heappush" and len(node.args) == 2:
            pairs = [(node.args[0], node.args[1])]
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            pairs = [(item.optional_vars, item.context_expr) for item in node.items if item.optional_vars is not None]
        for target, value in pairs:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Name):
                kept.append((target, value))
            elif isinstance(target, ast.Tuple) and isinstance(value, ast.Call) and last_name(value.func) in _IN_PARTS:
                _add_parts(found, target, value, blocks.body_of(module, node))
            if value is not None and isinstance(target, (ast.Name, ast.Attribute)):
                found.setdefault(ast.unparse(target), []).append((value, blocks.body_of(module, node)))
    for target, name in kept:
        body = blocks.body_of(module, target)
        for value, where in found.get(name.id, ()):
            if where is body and isinstance(value, ast.Call) and last_name(value.func) == _OPEN_AND_NAME:
                _add_parts(found, target, value, body)
    for node in grown:
        # ``path += suffix``: any of its other texts, and more.
        body = blocks.body_of(module, node)
        texts = found.setdefault(ast.unparse(node.target), [])
        before = [value for value, where in texts if where is body and not isinstance(value, _Grown)]
        for value in before or [ast.Constant("")]:
            start = ast.BinOp(value, ast.Add(), ast.Constant(UNKNOWN))
            texts.append((ast.copy_location(_Grown(start, node.op, node.value), node), body))
    return found


class _Grown(ast.BinOp):
    """What a variable holds after ``path += suffix``, once or several times."""


def _filled(hole: re.Match[str], filled: str) -> str:
    """What stands in a hole: a number where the text asks for one, and nothing else is known."""
    return NUMBER if filled == UNKNOWN and hole[0][-1] in "diu" else filled


def _tidy(text: str) -> str:
    """A path without what says nothing: ``./a//b`` is ``a/b``."""
    text = re.sub(r"\*+", "*", text)
    text = re.sub(r"/+", "/", text)
    while text.startswith("./"):
        text = text[2:]
    return text


def taken_as_it_is(program: Program, node: ast.expr, scope: Scope) -> ast.expr:
    """The path that a call gives back in another form, as ``Path(path)`` and ``str(path)`` do; else the expression."""
    while isinstance(node, ast.Call) and len(node.args) == 1 and program.callee_names(node, scope) & _SAME:
        node = node.args[0]
    return node


def may_be_same(one: str, other: str) -> bool:
    """Whether two texts can name one file, or the second a folder of the first.

    Two of which nothing is known do not count.
    """
    one, other = one.replace(NOW, UNKNOWN).replace(OWN, UNKNOWN), other.replace(NOW, UNKNOWN).replace(OWN, UNKNOWN)
    if not re.search(r"\w", one) or not re.search(r"\w", other):
        return False
    return meets(one, other) and _may_share_name(one, other)


def _may_share_name(one: str, other: str) -> bool:
    """Whether the last parts of two texts can be one name, where the second is no folder.

    ``*`` at the beginning of a part may be several parts. Behind a text, as in ``epoch_*.pt``, it is a piece of a name.
    """
    name, file = one.rpartition("/")[2], other.rpartition("/")[2]
    return not (_EXTENSION.search(file) and not name.startswith(UNKNOWN)) or meets(name, file)
