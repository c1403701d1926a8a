"""What is done to the files: half precision goes, and of two branches that are now equal the plain one stays."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from amp_rules.plan.apex.file import NotUnderstood
from amp_rules.plan.own_half.own import OwnHalf
from amp_rules.plan.own_half.understood import leftovers
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode
from amp_rules.source.syntax import children, walk
from amp_rules.text.actions import Action, EditNames, Insert, Remove, Replace, Unwrap
from amp_rules.text.expression_edits import substitute

_LOGGING = ("logging", "loguru")
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True)
class HalfEdit:
    """One edit: the file, the place, the actions, and what is said of it."""

    module: Module
    node: ast.stmt
    actions: list[Action]
    message: str


@dataclass
class HalfProgram:
    """What the rewrites of half precision by hand are given: a program, and all that is done to it."""

    program: Program
    edits: list[HalfEdit]


def edits(own: OwnHalf) -> list[HalfEdit]:
    """Every edit, in the order of the files.

    Raises:
        NotUnderstood: something would be left that half precision alone gave a meaning.
    """
    found: list[HalfEdit] = []
    for module in own.program.flow.modules:
        if any(own.plain.has(item) for item in module.tree.body):
            writer = _Writer(own, module)
            found.extend(writer.suite(module.tree.body))
    gone: set[ast.AST] = set()
    for edit in found:
        gone |= {action.node for action in edit.actions if isinstance(action, Replace)}
        gone |= {action.statement for action in edit.actions if isinstance(action, Remove)}
        for action in edit.actions:
            if isinstance(action, Unwrap) and isinstance(action.statement, ast.If):
                gone |= {*([] if "body" in action.suites else action.statement.body), action.statement.test}
    for scope, node in leftovers(own, gone):
        kept = scope.module.parents.get(node)
        if not _is_of_plain_branch(own, scope.module, node):
            raise NotUnderstood(
                scope.module, kept or node, f"`{node.id}` are copies of the parameters, and are read here"
            )
    found.extend(_idle_imports(own, gone))
    return found


def _is_of_plain_branch(own: OwnHalf, module: Module, node: ast.Name) -> bool:
    """Whether a list of parameters has a plain value too, which serves every level: that of an ``else``."""
    for item in module.nodes:
        if isinstance(item, ast.Assign) and (item not in own.plain.removed or item in own.plain.instead):
            if node.id in blocks.writes(item):
                return True
    return False


class _Writer:
    """Goes through the suites of one file."""

    def __init__(self, own: OwnHalf, module: Module) -> None:
        self.own = own
        self.plain = own.plain
        self.module = module

    def suite(self, statements: Sequence[ast.stmt]) -> Iterator[HalfEdit]:
        goes = any(self.plain.has(statement) and self._is_mechanical(statement) for statement in statements)
        for statement in statements:
            if self.plain.has(statement) or (goes and self._announces(statement)):
                yield from self._statement(statement)

    def _statement(self, node: ast.stmt) -> Iterator[HalfEdit]:
        if self._is_mechanical(node):
            message = f"`{_shown(self.module, node)}` is only for half precision by hand"
            code = self.plain.instead.get(node)
            added: list[Action] = [] if code is None else [Insert(node, code)]
            yield HalfEdit(self.module, node, [*added, Remove(node)], message)
            return
        if isinstance(node, ast.If) and node.orelse:
            kept = self._kept_branch(node)
            if kept is not None:
                message = f"`{self.module.text(node.test)}` chose between the same steps, by hand and plain"
                yield HalfEdit(self.module, node, [Unwrap(node, (kept,))], message)
                return
        for suite in blocks.suites(node):
            yield from self.suite(suite)
        if not isinstance(node, _DEFINITIONS):
            yield from self._expressions(node)

    def _expressions(self, node: ast.stmt) -> Iterator[HalfEdit]:
        pending = [item for item in children(node) if not isinstance(item, (ast.stmt, ast.ExceptHandler))]
        while pending:
            current = pending.pop()
            if isinstance(current, ast.expr) and (current in self.plain.replaced or current in self.plain.casts):
                text = self.plain.text(self.module, current)
                message = f"`{self.module.text(current)}` was for half precision by hand"
                yield HalfEdit(self.module, node, [Replace(current, substitute(text))], message)
            elif not isinstance(current, FunctionNode):
                pending.extend(children(current))

    def _kept_branch(self, node: ast.If) -> str | None:
        """Which branch serves every level, if one does."""
        with_half = [any(map(self.plain.has, suite)) for suite in (node.body, node.orelse)]
        if with_half not in ([True, False], [False, True]):
            return None
        half, plain, name = (node.body, node.orelse, "orelse") if with_half[0] else (node.orelse, node.body, "body")
        rows = self.plain.rows([item for item in half if not self._is_mechanical(item)])
        if rows == self.plain.rows(plain):
            return name
        is_gone = not rows and all(self._is_mechanical(item) for item in half)
        return name if is_gone and self.own.flag.is_tested_by(node.test) and name == "orelse" else None

    def _is_mechanical(self, node: ast.stmt) -> bool:
        """Whether nothing of a statement is left without half precision."""
        if node in self.plain.removed or self._announces(node):
            return True
        if not self.plain.has(node):
            return False
        if isinstance(node, ast.Expr):
            return isinstance(self.plain.of(node.value), (ast.Name, ast.Attribute))
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            left = self.plain.of(node.targets[0], compared=True)
            return ast.unparse(left) == ast.unparse(self.plain.of(node.value, compared=True))
        if isinstance(node, ast.If):
            suites = [suite for suite in (node.body, node.orelse) if suite]
            calls = any(isinstance(item, ast.Call) for item in walk(node.test))
            return not calls and all(self._is_mechanical(item) for suite in suites for item in suite)
        return False

    def _announces(self, node: ast.stmt) -> bool:
        """``logger.info("model.half() activated")``, which is not true any more beside what goes."""
        call = node.value if isinstance(node, ast.Expr) else None
        located = self.own.program.locate(call) if isinstance(call, ast.Call) else None
        if not isinstance(call, ast.Call) or located is None or not any(map(_names_half, call.args)):
            return False
        if isinstance(call.func, ast.Attribute):
            owners = self.own.program.flow.values(call.func.value, located[1])
            return bool(owners) and all(str(value.ref).startswith(_LOGGING) for value in owners)
        return "builtins.print" in self.own.program.callee_names(call, located[1])


def _names_half(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and "half()" in node.value


def _shown(module: Module, node: ast.stmt) -> str:
    return module.text(node.test) if isinstance(node, ast.If) else ast.unparse(node).partition("\n")[0]


def _idle_imports(own: OwnHalf, gone: set[ast.AST]) -> Iterator[HalfEdit]:
    """Imports of the project's own helpers that nothing reads any more."""
    removed = {part for node in gone for part in walk(node)}
    for module in dict.fromkeys(scope.module for _, scope in own.program.bodies):
        if not any(node in module.parents for node in gone):
            continue
        read = {node.id for node in module.nodes if isinstance(node, ast.Name) and node not in removed}
        was = {node.id for node in module.nodes if isinstance(node, ast.Name) and node in removed}
        for statement in module.nodes:
            if not isinstance(statement, ast.ImportFrom) or statement in removed:
                continue
            if own.program.project.find(module, statement.module or "", statement.level) is None:
                continue
            names = [item.asname or item.name for item in statement.names]
            idle = [name for name in names if name in was and name not in read]
            if not idle:
                continue
            message = f"`{', '.join(idle)}` is not used any more"
            if len(idle) == len(names):
                yield HalfEdit(module, statement, [Remove(statement, keep_comments=True)], message)
            else:
                taken: dict[str, str | None] = {
                    item.name: None for item in statement.names if (item.asname or item.name) in idle
                }
                yield HalfEdit(module, statement, [EditNames(statement, taken)], message)
