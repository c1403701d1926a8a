"""Norms of gradients that a script keeps: one overflow makes a sum infinite, or a limit, until it begins anew."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from amp_rules.plan.notes import OVERFLOWN_RECORD, note
from amp_rules.plan.parts_of_values import parts_made_of
from amp_rules.plan.report import Note
from amp_rules.plan.training_loops import variable
from amp_rules.roles.gradient_accesses import GradientAccess, gradient_accesses
from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.facts import FunctionFacts
from amp_rules.source.index import argument_at
from amp_rules.source.syntax import own_name, walk
from amp_rules.torch.gradients import CLIP_FUNCTIONS

_LOOKS_FIRST = frozenset({"isfinite", "isinf", "isnan", "nan_to_num", "min", "minimum", "clamp", "clip"})
"""Functions by which a script keeps what is infinite out of a sum."""


def notes(program: Program) -> Iterator[Note]:
    """Yield one for each sum or average that a norm of gradients goes into."""
    told: set[ast.AST] = set()
    accesses = list(gradient_accesses(program))
    for access in accesses:
        if not (isinstance(access.node, ast.Call) and program.callee_names(access.node, access.scope) & CLIP_FUNCTIONS):
            continue
        for read in _reads(access):
            found = _keeps(program, access, read)
            if found is None or found[0] in told:
                continue
            told.add(found[0])
            norm = access.module.text(read).partition("(")[0]
            text = f"`{norm}` is infinite or NaN in a step that overflowed and is skipped, and `{found[1]}` stays so "
            text += "until it begins anew: let it take finite numbers alone"
            yield note(OVERFLOWN_RECORD, access.module, found[0], text)
    yield from _limits(program, accesses)


def _limits(program: Program, accesses: list[GradientAccess]) -> Iterator[Note]:
    """Yield lists of norms by which gradients are clipped: ``clip_grad_norm_(weights, np.percentile(norms, 10))``."""
    reading = {access.body for access in accesses}
    found = {access.node for access in accesses}
    for site in program.calls_to(CLIP_FUNCTIONS):
        assert isinstance(site.node, ast.Call)
        limit = argument_at(site.node, "max_norm", 1)
        parts = parts_made_of(site.body, limit) if limit is not None else []
        lists = {path for part in parts if (path := blocks.path_of(part)) is not None}
        for node in blocks.walk_body(site.body):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            kept, given = blocks.path_of(node.func.value), node.args[0]
            statement = blocks.statement_of(site.module, node)
            if node.func.attr not in ("append", "appendleft") or kept not in lists:
                continue
            made_of = parts_made_of(site.body, given)
            if any(isinstance(part, ast.Call) and own_name(part.func) in _LOOKS_FIRST for part in made_of):
                continue
            calls = [part for part in made_of if isinstance(part, ast.Call)]
            is_norm = any(part in found for part in made_of) or any(
                info.node in reading for call in calls for info in program.flow.callees(call)
            )
            if is_norm and not _is_looked_at(site, statement):
                text = f"`{site.module.text(given)}` is infinite or NaN in a step that overflowed and is skipped, and "
                text += f"`{kept}`, by which gradients are clipped, keeps it: let it take finite numbers alone"
                yield note(OVERFLOWN_RECORD, site.module, statement, text)
                break


def _reads(access: GradientAccess) -> Iterator[ast.expr]:
    """Yield what holds the norm: the call, and the variable that it is assigned to where that is read later."""
    assert isinstance(access.node, ast.expr)
    statement = access.statement
    if not isinstance(statement, ast.Assign):
        yield access.node
        return
    name = variable(statement.targets[0]) if len(statement.targets) == 1 else None
    if name is None:
        return
    if any(variable(item) == name for item in walk(statement.value)):
        yield access.node  # the sum itself: ``total = total + clip_grad_norm_(...)``
        return
    for node in walk(access.body):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load) and variable(node) == name:
            if node.lineno > statement.lineno:
                yield node


def _keeps(program: Program, access: GradientAccess, read: ast.expr) -> tuple[ast.stmt, str] | None:
    """The statement that puts a norm into a sum, and what that is; None where none does, or it looks first."""
    statement = blocks.statement_of(access.module, read)
    inside: ast.AST = read
    for parent in access.module.ancestors(read):
        if isinstance(parent, ast.Call) and own_name(parent.func) in _LOOKS_FIRST:
            return None
        if isinstance(parent, ast.Call) and parent.func is not inside and _adds_up(program, parent):
            assert isinstance(parent.func, ast.Attribute)
            kept = access.module.text(parent.func.value)
            return (statement, kept) if not _is_looked_at(access, statement) else None
        if parent is statement:
            break
        inside = parent
    target = _sum_of(statement)
    if target is None or variable(read) == target or _is_looked_at(access, statement):
        return None
    return statement, target


def _sum_of(statement: ast.stmt) -> str | None:
    """What a statement adds to: ``total += norm``, ``mean = 0.9 * mean + 0.1 * norm``."""
    if isinstance(statement, ast.AugAssign):
        return variable(statement.target) if isinstance(statement.op, ast.Add) else None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = variable(statement.targets[0])
    sums = isinstance(statement.value, ast.BinOp) and isinstance(statement.value.op, ast.Add)
    return target if sums and target is not None and _is_read(statement.value, target) else None


def _is_read(node: ast.AST, path: str) -> bool:
    return any(variable(item) == path for item in walk(node))


def _adds_up(program: Program, call: ast.Call) -> bool:
    """Whether a call is of a method of the script that adds what it is given to an attribute of its object."""
    return isinstance(call.func, ast.Attribute) and any(map(_adds_to_its_object, program.flow.callees(call)))


def _adds_to_its_object(info: FunctionFacts) -> bool:
    receiver = info.receiver
    given = set(info.parameters) - {receiver}
    return receiver is not None and any(
        isinstance(node, ast.AugAssign)
        and isinstance(node.op, ast.Add)
        and (blocks.path_of(node.target) or "").startswith(f"{receiver}.")
        and any(isinstance(item, ast.Name) and item.id in given for item in walk(node.value))
        for node in blocks.walk_body(info.node)
    )


def _is_looked_at(access: Site, statement: ast.stmt) -> bool:
    """Whether a condition around a statement asks whether something is finite."""
    return any(
        isinstance(parent, ast.If)
        and any(isinstance(item, ast.Call) and own_name(item.func) in _LOOKS_FIRST for item in walk(parent.test))
        for parent in access.module.ancestors(statement)
    )
