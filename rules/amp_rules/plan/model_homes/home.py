"""Where a model is prepared: the variable, and the statement that makes the model complete."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.flow.cells import CellKey
from amp_rules.flow.values import Value
from amp_rules.source.modules import Module
from amp_rules.source.scopes import Scope


@dataclass(frozen=True)
class Home:
    """Where ``variable = prepare_model(variable)`` goes.

    Attributes:
        statement: the statement that it follows.
        variable: the source text of the variable, as in ``self.model``.
        inline: the constructor's expression when wrapping it reads better than a line of its own.
        in_place: whether the expression must be wrapped where it stands: in a list, or in the script's own DDP.
        made: where the model was made, to put models in order that are prepared at one place.
        rebinds: whether every later use of the model goes through the variable, so that it may hold a wrapper.
        is_optional: whether the variable may hold None there.
        may_be_function: whether the variable may hold a function there, in the place of a model.
        also: another name that the statement gives the model, ``moved = model.to(device)``, and that is read below.
        before: whether it goes before the statement: the variable is a parameter, which holds its model from the start.
    """

    module: Module
    scope: Scope
    body: ast.AST
    statement: ast.stmt
    variable: str
    key: CellKey
    inline: ast.expr | None
    rebinds: bool
    in_place: bool = False
    made: tuple[int, int, str] = (0, 0, "")
    is_optional: bool = False
    before: bool = False
    may_be_function: bool = False
    also: str | None = None


def made_at(value: Value) -> tuple[int, int, str]:
    """By where it was made, so that reports and edits come out the same every time."""
    return getattr(value.site, "lineno", 0), getattr(value.site, "col_offset", 0), str(value.ref)
