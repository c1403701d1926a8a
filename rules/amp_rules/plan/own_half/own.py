"""The half precision of one program, as it is found piece by piece."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from amp_rules.plan.own_half.conditions import Flag
from amp_rules.plan.own_half.expressions import Plain
from amp_rules.roles.program import Program
from amp_rules.source.scopes import Scope


@dataclass(frozen=True)
class Place:
    """A call of a helper, the scope of its names, and the parameters of a helper of the project's own."""

    call: ast.Call
    scope: Scope
    parameters: tuple[str, ...] = ()


@dataclass
class OwnHalf:
    """The half precision of one program.

    Attributes:
        flag: under what condition the script trains in half precision.
        converted: where models are made half.
        wrappers: where an optimizer gets its float32 copies.
        scale: the scale of the script's own arithmetic, at a place where it is used.
        plain: what is written in the place of each node.
        keeps_state: whether the state of a wrapper, which holds its loss scale, is saved or loaded.
    """

    program: Program
    flag: Flag
    converted: list[Place] = field(default_factory=list)
    wrappers: list[Place] = field(default_factory=list)
    scale: tuple[ast.expr, Scope] | None = None
    plain: Plain = field(default_factory=Plain)
    keeps_state: bool = False
