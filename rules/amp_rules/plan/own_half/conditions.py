"""The flag under which a script trains in half precision."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from amp_rules.flow.statements import is_main_guard
from amp_rules.plan.apex.file import NotUnderstood
from amp_rules.roles.program import Program
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.scopes import FunctionNode, Scope
from amp_rules.source.syntax import conjuncts, walk

_LAST = "fp16 half float16 mixed_precision half_precision".split()


@dataclass(frozen=True)
class Flag:
    """The condition around the place where the model is made half.

    Attributes:
        tests: conditions that all hold there; none where the model is always half.
        scope: the scope of their names.
    """

    tests: tuple[ast.expr, ...]
    scope: Scope

    @property
    def is_always(self) -> bool:
        """Whether the script always trains in half precision."""
        return not self.tests

    @property
    def last_names(self) -> frozenset[str]:
        """``fp16`` of ``args.fp16``: the names that the conditions end in, the same whatever holds them."""
        return frozenset(path.rpartition(".")[2] for test in self.tests for path in blocks.reads(test))

    def is_tested_by(self, test: ast.expr) -> bool:
        """Whether a condition holds only where the flag does."""
        return any(
            isinstance(part, (ast.Name, ast.Attribute, ast.Compare))
            and any(ast.dump(_last(part)) == ast.dump(_last(own)) for own in self.tests)
            for part in conjuncts(test)
        )


def _last(node: ast.expr) -> ast.expr:
    """A condition with each path as its last name: ``self.args.fp16`` and ``args.fp16`` are one flag."""

    class Shortened(ast.NodeTransformer):
        def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
            return ast.Name(node.attr, ast.Load())

    copy = ast.parse(ast.unparse(node), mode="eval").body
    shortened = Shortened().visit(copy)
    assert isinstance(shortened, ast.expr)
    return shortened


def flag_of(program: Program, places: Sequence[tuple[ast.Call, Scope]]) -> Flag:
    """The flag that all places stand under.

    Raises:
        NotUnderstood: they stand under different conditions, or under one that is no plain flag.
    """
    flags = [Flag(_tests(call, scope), scope) for call, scope in places]
    for flag, (call, scope) in zip(flags, places, strict=True):
        if [ast.dump(_last(item)) for item in flag.tests] != [ast.dump(_last(item)) for item in flags[0].tests]:
            raise NotUnderstood(scope.module, call, "models are made half under different conditions")
    return flags[0]


def _tests(call: ast.Call, scope: Scope) -> tuple[ast.expr, ...]:
    module = scope.module
    found: list[ast.expr] = []
    node: ast.AST = call
    statement: ast.AST = blocks.statement_of(module, call)
    for parent in blocks.enclosing(module, call):
        if isinstance(parent, FunctionNode) or _is_made_before(module, call, statement):
            break
        if isinstance(parent, ast.If) and not is_main_guard(parent):
            if not _contains(parent.body, call) or any(isinstance(item, ast.Call) for item in walk(parent.test)):
                raise NotUnderstood(module, node, "the model is made half under a condition that is no plain flag")
            found.insert(0, parent.test)
        elif isinstance(parent, (ast.For, ast.While, ast.Try)):
            raise NotUnderstood(module, call, "the model is made half in a loop or a `try`")
        statement = parent
    return tuple(found)


def _is_made_before(module: Module, call: ast.Call, statement: ast.AST) -> bool:
    """Whether the model is made in the same suite: what stands around that asks whether there is a model at all."""
    path = blocks.path_of(call.func.value) if isinstance(call.func, ast.Attribute) else None
    if path is None or not isinstance(statement, ast.stmt):
        return False
    where = blocks.place(module, statement)
    return any(_makes(item, path) for item in where.suite[: where.index])


def _makes(item: ast.stmt, path: str) -> bool:
    if isinstance(item, ast.If):
        return all(any(_makes(part, path) for part in suite) for suite in (item.body, item.orelse))
    if not (isinstance(item, ast.Assign) and isinstance(item.value, ast.Call)):
        return False
    return path in {blocks.path_of(target) for target in item.targets} and path not in blocks.reads(item.value)


def _contains(suite: list[ast.stmt], node: ast.AST) -> bool:
    return any(part is node for item in suite for part in walk(item))


def is_under(flag: Flag, module: Module, node: ast.AST) -> bool:
    """Whether a node stands where the flag holds."""
    child: ast.AST = node
    while child in module.parents:
        parent = module.parents[child]
        if isinstance(parent, ast.IfExp) and parent.body is child and flag.is_tested_by(parent.test):
            return True
        if isinstance(parent, ast.If) and child in parent.body and flag.is_tested_by(parent.test):
            return True
        if isinstance(parent, FunctionNode):
            return False
        child = parent
    return False
