"""Carrying out fixes: each on the syntax tree, those that are in each other's way in different rounds."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst

from amp_rules.lint.finding import Fix
from amp_rules.lint.leftover_imports import LeftoverImport, leftover_imports
from amp_rules.lint.resolved_edits import Definition, EditResolver, ResolvedEdit
from amp_rules.source.modules import Module, parse
from amp_rules.source.text import SourceFile
from amp_rules.text.actions import Action, Decorate, EditNames, Insert, Remove, Replace
from amp_rules.text.applying import apply


@dataclass(frozen=True)
class Mended:
    """The text after some fixes.

    Attributes:
        applied: the fixes that were carried out; the others were in their way, or their place was not found.
    """

    text: str
    applied: tuple[Fix, ...]


def apply_fixes(source: SourceFile, fixes: Sequence[Fix]) -> Mended:
    """Carry out as many of the fixes as do not overlap.

    Raises:
        SourceError: the text is not Python 3, or LibCST cannot read it.
    """
    module = parse(source)
    plan = _Plan(module)
    applied = tuple(fix for fix in fixes if plan.take(fix))
    return Mended(apply(module, plan.actions) if plan.actions else source.text, applied)


class _Plan:
    """The edits that go together."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.resolver = EditResolver(module)
        self.edits: list[ResolvedEdit] = []

    @property
    def actions(self) -> list[Action]:
        """What the edits are to :mod:`amp_rules.text.actions`, and the imports that nothing uses after them."""
        made = [_action(edit, order) for order, edit in enumerate(self.edits)]
        touched = {edit.node for edit in self.edits if edit.kind == "remove"}
        leftover = [item for item in leftover_imports(self.resolver, self.edits) if item.statement not in touched]
        return [*made, *map(_removal, leftover)]

    def take(self, fix: Fix) -> bool:
        """Add all edits of a fix, or none if one of them is in the way of another fix."""
        edits = self.resolver.resolve(fix)
        if edits is None:
            return False
        new = [edit for edit in edits if not any(_same(edit, other) for other in self.edits)]
        if any(self._clash(edit, other) for edit in new for other in self.edits):
            return False
        self.edits += new
        return True

    def _clash(self, one: ResolvedEdit, other: ResolvedEdit) -> bool:
        if one.kind == other.kind == "replace":
            return self._within(one, other) or self._within(other, one)
        return (other.kind == "remove" and self._within(one, other)) or (
            one.kind == "remove" and self._within(other, one)
        )

    def _within(self, one: ResolvedEdit, other: ResolvedEdit) -> bool:
        module = self.module
        starts_within = module.start(other.node) <= module.start(one.node)
        return starts_within and module.end(one.node) <= module.end(other.node)


def _same(one: ResolvedEdit, other: ResolvedEdit) -> bool:
    """Whether two fixes ask for one and the same edit."""
    return one.kind == other.kind and one.node is other.node and one.text == other.text


def _action(edit: ResolvedEdit, order: int) -> Action:
    node = edit.node
    if edit.kind == "replace":
        assert isinstance(node, ast.expr)
        return Replace(node, _substituted(edit.text))
    if edit.kind == "decorate":
        assert isinstance(node, Definition)
        return Decorate(node, edit.text)
    assert isinstance(node, ast.stmt)
    if edit.kind == "remove":
        return Remove(node, keep_comments=True)
    return Insert(node, edit.text, after=edit.kind == "insert after", order=order, gap=edit.gap)


def _removal(leftover: LeftoverImport) -> Action:
    if leftover.whole:
        return Remove(leftover.statement, keep_comments=True)
    return EditNames(leftover.statement, dict.fromkeys(leftover.names))


def _substituted(code: str) -> Callable[[cst.BaseExpression], cst.BaseExpression]:
    """The expression becomes ``code``, within the parentheses that stand around it."""

    def edit(node: cst.BaseExpression) -> cst.BaseExpression:
        new = cst.parse_expression(code)
        opening, closing = list(node.lpar), list(node.rpar)
        if isinstance(node, (cst.Tuple, cst.GeneratorExp)):
            # The innermost ones are its own.
            opening, closing = opening[:-1], closing[1:]
        return new.with_changes(lpar=[*opening, *new.lpar], rpar=[*new.rpar, *closing])

    return edit
