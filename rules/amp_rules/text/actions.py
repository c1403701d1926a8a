"""What can be done to a file, as data: rules decide on :mod:`ast` nodes and name them here."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import libcst as cst

ExpressionEdit = Callable[[cst.BaseExpression], cst.BaseExpression]


@dataclass(frozen=True)
class Replace:
    """Replace an expression by what the function makes of it.

    Comments that this leaves out go above the statement, unless another action has moved them (``moves_comments``).
    """

    node: ast.expr
    edit: ExpressionEdit
    moves_comments: bool = False


@dataclass(frozen=True)
class Insert:
    """Put lines before or after a statement.

    ``order`` sorts several insertions at one place; ``gap`` asks for a blank line between them and the statement below,
    and, where they stand for a statement that is taken out, between them and the one above too.
    ``late`` gives the lines in place of ``code``, when all expressions of the statement are replaced.
    ``commented`` puts lines before a statement below the comment above it, which speaks of them too.
    """

    statement: ast.stmt
    code: str
    after: bool = False
    order: int = 0
    gap: bool = False
    late: Callable[[], str] | None = None
    commented: bool = False

    @property
    def lines(self) -> str:
        """What is put there; where ``late`` gives it, once the edits are made."""
        return self.code if self.late is None else self.late()


@dataclass(frozen=True)
class Wrap:
    """Put a run of statements of one suite into a block such as ``with amp.autocast():``."""

    first: ast.stmt
    last: ast.stmt
    header: str


@dataclass(frozen=True)
class Join:
    """Have a branch ask for one more condition; ``first`` has it asked before its own."""

    statement: ast.If
    test: str
    first: bool = False


@dataclass(frozen=True)
class Remove:
    """Take a statement out. A suite that it leaves empty gets a ``pass``; an ``else`` goes.

    ``keep_comments`` leaves the comments above it to the statement below.
    """

    statement: ast.stmt
    keep_comments: bool = False


@dataclass(frozen=True)
class Unwrap:
    """Put the statements of one or more suites of a compound statement in its place.

    A suite is named as in :mod:`ast`: ``body``, ``orelse``, ``finalbody``, or ``handler`` for the first one.
    """

    statement: ast.stmt
    suites: tuple[str, ...] = ("body",)


@dataclass(frozen=True)
class Decorate:
    """Put a decorator directly above a function or a class, below those that it has; ``code`` is without ``@``."""

    definition: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    code: str


@dataclass(frozen=True)
class AddParameter:
    """Give a function one more parameter: the last that calls give by place, or for keywords alone.

    It is for keywords alone where it cannot be told apart by its place: after defaults, and after ``*args``.
    ``before_defaults`` puts it above the first default, for a function whose calls give no default by place.
    """

    definition: ast.FunctionDef | ast.AsyncFunctionDef
    name: str
    before_defaults: bool = False


@dataclass(frozen=True)
class RemoveParameter:
    """Take a parameter without a default out of a function that calls can give by place or by name."""

    definition: ast.FunctionDef | ast.AsyncFunctionDef
    name: str


@dataclass(frozen=True)
class EditNames:
    """Take some names out of an import that binds others too, or ask for them by another name.

    Each is named as it is in the package; a new name of None takes it out.
    """

    statement: ast.Import | ast.ImportFrom
    names: Mapping[str, str | None]


Action = Replace | Insert | Wrap | Join | Remove | Unwrap | Decorate | AddParameter | RemoveParameter | EditNames


def node_of(action: Action) -> ast.stmt | ast.expr:
    """The node that an action names first."""
    if isinstance(action, Replace):
        return action.node
    if isinstance(action, Wrap):
        return action.first
    return action.definition if isinstance(action, (Decorate, AddParameter, RemoveParameter)) else action.statement
