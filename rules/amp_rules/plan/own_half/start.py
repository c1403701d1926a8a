"""The level that a script with half precision by hand trains at, where it starts."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from amp_rules.plan.apex.file import NotUnderstood
from amp_rules.plan.own_half.own import OwnHalf, Place
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import is_none, walk
from amp_rules.torch import own_half as names

# A flag is handed from the main function to the one that makes the model, and seldom further.
_MAX_CALLS = 4


@dataclass(frozen=True)
class OwnStart:
    """What the script's own flag and arguments say of the precision, in the words of one scope.

    Attributes:
        level: the source of the level.
        more: further arguments of ``init``, by the names of Apex, with the source of each.
        reads: the paths that these expressions read.
        path: the file of the scope.
        function: the function whose scope it is; None for the file's.
    """

    level: str
    more: tuple[tuple[str, str], ...]
    reads: frozenset[str]
    path: Path
    function: str | None

    def scope_of(self, module: Module) -> ast.Module | ast.FunctionDef | None:
        """The definition in a later text of the file."""
        if self.function is None:
            return module.tree
        found = [node for node in module.nodes if isinstance(node, ast.FunctionDef) and node.name == self.function]
        return found[0] if len(found) == 1 else None


def start_of(own: OwnHalf) -> OwnStart:
    """The level and the loss scale.

    Raises:
        NotUnderstood: they cannot be said where the script starts.
    """
    words = _Words(own.program)
    tests = [words.of(test, own.flag.scope) for test in own.flag.tests]
    condition = " and ".join(f"({item})" if " or " in item and len(tests) > 1 else item for item in tests)
    level = f'"O2" if {condition} else "O0"' if condition else '"O2"'
    more = _loss_scale(own, words)
    return OwnStart(level, tuple(more), frozenset(words.reads), *words.home(own))


class _Words:
    """Says expressions of any function in the words of the scope that the script starts in."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._scope: Scope | None = None
        self.reads: set[str] = set()

    def of(self, node: ast.expr, scope: Scope) -> str:
        """The source of an expression there."""
        text = scope.module.text(node) if node.lineno == node.end_lineno else ast.unparse(node)
        paths = sorted(blocks.reads(node), key=len, reverse=True)
        for path in paths:
            said, where = self._path(path, scope, node, 0)
            if self._scope is not None and where is not self._scope:
                raise NotUnderstood(scope.module, node, "what chooses half precision is held in several places")
            self._scope = where
            self.reads.add(said)
            if said != path:
                text = ast.unparse(_Renamed(path, said).visit(ast.parse(text, mode="eval").body))
        return text

    def _path(self, path: str, scope: Scope, node: ast.expr, depth: int) -> tuple[str, Scope]:
        root, dot, rest = path.partition(".")
        owner = scope.owner(root)
        info = self._program.function_of(owner.node)
        if info is None:
            if owner.is_class or owner.module is not self._program.entry:
                raise NotUnderstood(scope.module, node, f"`{path}` is not known where the script starts")
            return path, owner
        if root not in info.parameters or _is_written(info.node, root):
            return path, owner
        said = set()
        for site in self._program.flow.callers(info):
            given = info.argument(site.call, root)
            held = blocks.path_of(given) if isinstance(given, (ast.Name, ast.Attribute)) else None
            if held is None or depth == _MAX_CALLS:
                break
            said.add(self._path(held + dot + rest, site.scope, node, depth + 1))
        else:
            if len(said) == 1:
                return said.pop()
        if info.cls is not None:
            raise NotUnderstood(scope.module, node, f"`{path}` is not known where the script starts")
        return path, owner

    def home(self, own: OwnHalf) -> tuple[Path, str | None]:
        """The file and the function of the scope."""
        scope = self._scope
        if scope is None:
            return own.program.entry.path, None
        if scope.module is not own.program.entry or not isinstance(scope.node, (ast.Module, ast.FunctionDef)):
            raise NotUnderstood(
                own.flag.scope.module,
                own.converted[0].call,
                "what chooses half precision is not known in the main script",
            )
        return scope.module.path, scope.node.name if isinstance(scope.node, ast.FunctionDef) else None


class _Renamed(ast.NodeTransformer):
    def __init__(self, path: str, said: str) -> None:
        self.path = path
        self.said = ast.parse(said, mode="eval").body

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.said if node.id == self.path else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return self.said if blocks.path_of(node) == self.path else self.generic_visit(node)


def _is_written(function: FunctionNode, name: str) -> bool:
    return name in blocks.writes(function) or any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store) for node in walk(function)
    )


# ---- the loss scale ----------------------------------------------------------------------------------------


def _loss_scale(own: OwnHalf, words: _Words) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if own.wrappers:
        several = [_of_wrapper(item) for item in own.wrappers]
        if len(several) == 2 and (choice := _choice(own.wrappers)) is not None:
            return _chosen(own, words, choice)
        if any(_shown(item) != _shown(several[0]) for item in several):
            raise NotUnderstood(
                own.wrappers[0].scope.module, own.wrappers[1].call, "optimizers have different loss scales"
            )
        static, dynamic, others = several[0]
        scope = own.wrappers[0].scope
        if _is_true(dynamic):
            pass
        elif dynamic is None or _is_false(dynamic):
            found.append(("loss_scale", words.of(static, scope) if static is not None else "1.0"))
        else:
            fixed = words.of(static, scope) if static is not None else "1.0"
            found.append(("loss_scale", f'"dynamic" if {words.of(dynamic, scope)} else {fixed}'))
        found.extend((name, words.of(value, scope)) for name, value in others)
    elif own.scale is not None:
        found.append(("loss_scale", words.of(*own.scale)))
    return found


def _shown(scales: tuple[ast.expr | None, ast.expr | None, list[tuple[str, ast.expr]]]) -> str:
    static, dynamic, others = scales
    return repr([ast.dump(item) if item is not None else None for item in (static, dynamic, *(v for _, v in others))])


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _of_wrapper(place: Place) -> tuple[ast.expr | None, ast.expr | None, list[tuple[str, ast.expr]]]:
    by_place = place.parameters or names.WRAPPER_ARGUMENTS
    given = dict(zip((names.WRAPPER_ARGUMENTS[0], *by_place[1:]), place.call.args, strict=False))
    given.update({item.arg: item.value for item in place.call.keywords if item.arg is not None})
    unknown = set(given) - {*names.WRAPPER_ARGUMENTS, *by_place[:1]}
    if unknown:
        raise NotUnderstood(place.scope.module, place.call, f"`{min(unknown)}=` of the optimizer has no counterpart")
    others: list[tuple[str, ast.expr]] = []
    details = given.get("dynamic_loss_args")
    if details is not None and not is_none(details):
        keys = details.keys if isinstance(details, ast.Dict) else [None]
        for key, value in zip(keys, details.values if isinstance(details, ast.Dict) else [details], strict=True):
            name = names.SCALER_ARGUMENTS.get(str(key.value)) if isinstance(key, ast.Constant) else None
            if name is None:
                raise NotUnderstood(place.scope.module, details, "a detail of the loss scale has no counterpart")
            others.append((name, value))
    static, dynamic = _not_none(given.get("static_loss_scale")), _not_none(given.get("dynamic_loss_scale"))
    if dynamic is None and static is None and "static_loss_scale" not in by_place:
        dynamic = ast.Constant(True)  # a class of the project's own, with a scale that it moves by itself
    return static, dynamic, others


def _not_none(node: ast.expr | None) -> ast.expr | None:
    return None if is_none(node) else node


def _choice(wrappers: list[Place]) -> ast.If | None:
    """``if args.loss_scale == 0:`` with a dynamic scale in one branch and a static one in the other."""
    first, second = wrappers
    for parent in blocks.enclosing(first.scope.module, first.call):
        if isinstance(parent, ast.If) and second.scope is first.scope:
            inside = [
                any(part is second.call for item in suite for part in walk(item))
                for suite in (parent.body, parent.orelse)
            ]
            own = [
                any(part is first.call for item in suite for part in walk(item))
                for suite in (parent.body, parent.orelse)
            ]
            return parent if inside == [False, True] and own == [True, False] else None
    return None


def _chosen(own: OwnHalf, words: _Words, choice: ast.If) -> list[tuple[str, str]]:
    rows = []
    scope = own.wrappers[0].scope
    if any(isinstance(item, ast.Call) for item in walk(choice.test)):
        raise NotUnderstood(scope.module, choice, "the loss scale is chosen under a condition that is no plain flag")
    for place in own.wrappers:
        static, dynamic, others = _of_wrapper(place)
        if others or not (dynamic is None or _is_true(dynamic) or _is_false(dynamic)):
            raise NotUnderstood(scope.module, place.call, "optimizers have different loss scales")
        if _is_true(dynamic):
            rows.append('"dynamic"')
        else:
            rows.append(words.of(static, scope) if static is not None else "1.0")
    return [("loss_scale", f"{rows[0]} if {words.of(choice.test, scope)} else {rows[1]}")]
