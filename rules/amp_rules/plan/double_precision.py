"""Models in float64, of which autocast lowers nothing: the migration is right, and gains nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.notes import IN_FULL_PRECISION, note
from amp_rules.plan.report import Note
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source.scopes import Scope
from amp_rules.torch.dtypes import FLOAT64_TYPES, SETS_DEFAULT_TYPE


def notes(program: Program) -> Iterator[Note]:
    """Yield one for the default type, or for each trained model that is made float64."""
    for site, what in places(program):
        text = (
            f"`{site.module.text(site.node)}` {what}, which autocast leaves as they are: what is computed in float64 "
        )
        text += (
            "does not run in half precision, and is no faster; if float32 is enough, remove it first, and what makes "
        )
        text += "the inputs float64"
        yield note(IN_FULL_PRECISION, site.module, site.node, text)


def places(program: Program) -> Iterator[tuple[Site, str]]:
    """Yield the call that sets the default type, or those that make trained models float64, and what each makes."""
    defaults = program.calls_to(SETS_DEFAULT_TYPE)
    if defaults and all(map(lambda site: _is_float64(program, site), defaults)):
        yield defaults[0], "makes new weights and tensors float64"
        return
    for call, body, scope in program.calls():
        func = call.func
        if isinstance(func, ast.Attribute) and _makes_float64(program, call, func, scope):
            if any(map(program.is_trained, program.roles.modules(func.value, scope))):
                yield Site(scope.module, scope, body, call), "makes its weights float64"


def _is_float64(program: Program, site: Site) -> bool:
    call = site.node
    assert isinstance(call, ast.Call)
    return len(call.args) == 1 and _is_type(program, call.args[0], site.scope)


def _is_type(program: Program, node: ast.expr, scope: Scope) -> bool:
    if isinstance(node, ast.Constant):
        return node.value in FLOAT64_TYPES
    names = program.names(node, scope)
    return bool(names) and names <= FLOAT64_TYPES


def _makes_float64(program: Program, call: ast.Call, func: ast.Attribute, scope: Scope) -> bool:
    """``model.double()`` or ``model.to(torch.float64)``."""
    if func.attr == "double":
        return not call.args
    given = [*call.args, *(item.value for item in call.keywords)]
    return func.attr in ("to", "type") and any(_is_type(program, item, scope) for item in given)
