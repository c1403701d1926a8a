"""Where gradients are unscaled: before the first look at them between the backward pass and the step."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from amp_rules.planning import refusal
from amp_rules.program import blocks
from amp_rules.program.modules import Module
from amp_rules.program.steps import GradientAccess, Program, Site, Step, calling
from amp_rules.program.syntax import walk
from amp_rules.program.values import CallSite, FunctionInfo

_MAX_DEPTH = 3


@dataclass(frozen=True)
class Unscale:
    """``unscale_`` of some optimizers before a statement."""

    module: Module
    statement: ast.stmt
    lines: tuple[str, ...]
    what: str


def unscales(program: Program) -> list[Unscale]:
    """What must be unscaled before something of the program looks at gradients.

    Raises:
        Declined: with the first look whose step was not found.
    """
    found: list[Unscale] = []
    done: set[ast.stmt] = set()
    for access in program.gradient_accesses:
        for unscale in _unscale(program, access, access, 0):
            if unscale.statement not in done:
                done.add(unscale.statement)
                found.append(unscale)
    # Of several accesses before one step only the first needs it.
    found = [_hoisted(item, found) for item in found]
    found = list({item.statement: item for item in (_before_branches(program, item, found) for item in found)}.values())
    return [item for item in found if not any(_precedes(other, item) for other in found)]


def _hoisted(item: Unscale, others: list[Unscale]) -> Unscale:
    """Before the condition around an access that may not run, where another access follows that does."""
    for other in others:
        if other is item or other.module is not item.module or other.lines != item.lines:
            continue
        where = blocks.place(other.module, other.statement)
        for earlier in where.suite[: where.index]:
            if earlier is not item.statement and item.statement in set(walk(earlier)):
                return Unscale(item.module, earlier, item.lines, item.what)
    return item


def _before_branches(program: Program, item: Unscale, others: list[Unscale]) -> Unscale:
    """Before the condition around an access whose other branch has one too."""
    for branch in blocks.enclosing(item.module, item.statement):
        if not isinstance(branch, ast.If):
            continue
        whole = _first_of_chain(item.module, branch)
        if program.runs_backward(whole):
            continue
        sides = [{node for part in suite for node in walk(part)} for suite in (branch.body, branch.orelse)]
        for other in others:
            statements = {item.statement, other.statement}
            if other.lines == item.lines and all(statements & side for side in sides):
                return Unscale(item.module, whole, item.lines, item.what)
    return item


def _first_of_chain(module: Module, branch: ast.If) -> ast.If:
    """The ``if`` that an ``elif`` belongs to."""
    holder = module.parents[branch]
    while isinstance(holder, ast.If) and branch in holder.orelse and branch.col_offset == holder.col_offset:
        branch, holder = holder, module.parents[holder]
    return branch


def _precedes(one: Unscale, two: Unscale) -> bool:
    if one is two or one.module is not two.module or one.lines != two.lines:
        return False
    where, other = blocks.place(one.module, one.statement), blocks.place(two.module, two.statement)
    return where.suite[0] is other.suite[0] and where.index < other.index


def _unscale(
    program: Program, access: GradientAccess, site: Site, depth: int, hook: _Hook | None = None
) -> list[Unscale]:
    module = site.module
    statement: ast.stmt = site.statement
    target = statement
    while True:
        where = blocks.place(module, statement)
        following: list[ast.stmt] = []
        for later in where.suite[where.index + 1 :]:
            if program.runs_backward(later):
                break
            if program.runs_step(later):
                following.append(later)
        if following:
            lines = _unscale_lines(program, site, following)
            if lines is None:
                raise _gradient(access, "the optimizer that steps next cannot be named here")
            return [Unscale(module, target, lines, access.what)] if lines else []
        if program.runs_step(statement) and statement is not site.statement and isinstance(statement, blocks.LOOPS):
            break
        parent = where.parent
        if isinstance(parent, ast.ExceptHandler):
            parent = module.parents[parent]
        if not isinstance(parent, ast.stmt) or isinstance(parent, (*blocks.BODIES, ast.ClassDef)):
            break
        statement = parent
        if isinstance(parent, blocks.LOOPS):
            if program.runs_backward(parent):
                # What follows in the next round comes after this round's step.
                earlier = where.suite[: where.index]
                if _is_used_up(program, earlier):
                    return []
                break
            target = parent
    where = blocks.place(module, statement)
    if _is_used_up(program, where.suite[: where.index]):
        return []
    info = program.function_of(site.body)
    if info is None or not info.callers or depth > _MAX_DEPTH:
        if info is not None and not program.runs_backward(site.body):
            if depth == 0 and _may_be_called(program, info):
                raise _gradient(access, f"it is not known when `{info.name}` runs")
            return []
        raise _gradient(access, "no optimizer steps after it in the same place")
    found: list[Unscale] = []
    for caller in _callers(program, info, hook):
        found.extend(_unscale(program, access, calling(caller), depth + 1, _hook(caller, info)))
    return found


@dataclass(frozen=True)
class _Hook:
    """``getattr(callback, name)(...)``: which of the calls of the function around it run this method.

    Attributes:
        parameter: the parameter that the name is made of.
        looked: the expression of the name.
        name: the method's name.
    """

    parameter: str
    looked: ast.expr
    name: str


def _hook(caller: CallSite, info: FunctionInfo) -> _Hook | None:
    """What is known where a caller looks the function up by a name that it was given."""
    looked = caller.call.func
    if not (isinstance(looked, ast.Call) and blocks.path_of(looked.func) == "getattr" and len(looked.args) > 1):
        return None
    names = [node.id for node in walk(looked.args[1]) if isinstance(node, ast.Name)]
    return _Hook(names[0], looked.args[1], info.name) if len(names) == 1 else None


def _spelled(node: ast.expr, value: object) -> str | None:
    """The string that ``"on_" + event`` or ``f"on_{event}"`` is for a value of its only name."""
    if isinstance(node, ast.Name):
        return str(value)
    if isinstance(node, ast.Constant):
        return str(node.value)
    parts: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [node.left, node.right]
    elif isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
    texts = [_spelled(part, value) for part in parts]
    return "".join(text for text in texts if text is not None) if texts and None not in texts else None


def _callers(program: Program, info: FunctionInfo, hook: _Hook | None) -> list[CallSite]:
    """The callers of a function, without those that ask it for another hook."""
    if hook is None:
        return info.callers
    if hook.parameter not in info.positional:
        return info.callers
    found = []
    for caller in info.callers:
        given = info.argument(caller.call, hook.parameter)
        spelled = _spelled(hook.looked, given.value) if isinstance(given, ast.Constant) else None
        if spelled in (None, hook.name):
            found.append(caller)
    return found


def _may_be_called(program: Program, info: FunctionInfo) -> bool:
    """Whether a function without a known caller is named somewhere, so that something else may call it."""
    own = set(walk(info.node))
    for node, _, _ in program.nodes():
        if node in own:
            continue
        if isinstance(node, ast.Attribute) and node.attr == info.name and isinstance(node.ctx, ast.Load):
            return True
        if isinstance(node, ast.Constant) and node.value == info.name:
            return True
        if info.owner is not None and _looks_up_any(node):
            return True
    return False


def _looks_up_any(node: ast.AST) -> bool:
    """``getattr(callback, name)(...)`` with a name that is put together."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Call)
        and blocks.path_of(node.func.func) == "getattr"
        and len(node.func.args) > 1
        and not isinstance(node.func.args[1], ast.Constant)
    )


def _is_used_up(program: Program, earlier: Sequence[ast.stmt]) -> bool:
    """Whether no scaled gradient is left: an optimizer stepped after the last backward pass, or they were cleared."""
    for statement in reversed(earlier):
        if program.runs_step(statement) or _clears(program, statement):
            return True
        if program.runs_backward(statement):
            return False
    return False


def _clears(program: Program, statement: ast.stmt) -> bool:
    """``optimizer.zero_grad()`` of the only optimizer that steps."""
    if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)):
        return False
    function = statement.value.func
    if not (isinstance(function, ast.Attribute) and function.attr == "zero_grad"):
        return False
    return {ast.unparse(step.optimizer) for step in program.steps} == {ast.unparse(function.value)}


def _gradient(access: GradientAccess, why: str) -> refusal.Declined:
    return refusal.decline(
        refusal.GRADIENT_ACCESS,
        access.module,
        access.node,
        f"`{access.what}` looks at gradients while they may be scaled: {why}",
        "call `amp.scaler.unscale_(optimizer)` once between the backward pass and the first look at the gradients",
    )


def _unscale_lines(program: Program, site: Site, following: list[ast.stmt]) -> tuple[str, ...] | None:
    """The calls that unscale whatever steps in the following statements; None when one cannot be named at ``site``."""
    lines: list[str] = []
    sites = {step.node: step for step in program.steps}
    for later in following:
        for node in blocks.walk_own(later):
            if not isinstance(node, ast.Call):
                continue
            if node in sites:
                receiver = ast.unparse(sites[node].optimizer)
                loop = _loop_over(receiver, later)
                unscale = _unscale_call(receiver)
                lines.append(unscale if loop is None else f"{_head(loop)}\n    {unscale}")
                continue
            for step in _steps_within(program, node):
                receiver = ast.unparse(step.optimizer)
                name = receiver.split(".")[0]
                if step.scope.is_function and receiver.startswith("self.") and isinstance(node.func, ast.Attribute):
                    lines.append(_unscale_call(ast.unparse(node.func.value) + receiver[4:]))
                elif step.scope.owner(name) is site.scope.owner(name):
                    lines.append(_unscale_call(receiver))
                else:
                    return None
    return tuple(dict.fromkeys(lines)) or None


def _unscale_call(receiver: str) -> str:
    return "{amp}.scaler.unscale_(" + receiver + ")"


def _head(loop: ast.For) -> str:
    return f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}:"


def _steps_within(program: Program, call: ast.Call) -> list[Step]:
    """Steps in the functions that a call runs directly."""
    bodies = {info.node for info in program.flow.callees(call)}
    return [step for step in program.steps if step.body in bodies]


def _loop_over(receiver: str, statement: ast.stmt) -> ast.For | None:
    name = receiver.split(".")[0].split("[")[0]
    for node in blocks.walk_own(statement):
        if isinstance(node, ast.For) and name in blocks.writes_target(node):
            return node
    return None
