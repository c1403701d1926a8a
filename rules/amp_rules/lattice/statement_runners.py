"""Runs statements: branches are run one by one and joined, loops once, or twice where order matters."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

from amp_rules.lattice.abstract_values import LOOP, Value, join
from amp_rules.lattice.binding import bind, iterated, rebind
from amp_rules.lattice.conditions import narrowed
from amp_rules.lattice.expression_evaluators import binary
from amp_rules.lattice.frame import Frame, evaluate
from amp_rules.lattice.paths import assume, unite
from amp_rules.source.facts import ClassFacts, FunctionFacts
from amp_rules.source.resolver import imported_names
from amp_rules.source.syntax import last_name

_AUGMENTED: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.MatMult: "matmul", ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor",
    ast.LShift: "lshift", ast.RShift: "rshift",
}  # fmt: skip


def run(frame: Frame, body: list[ast.stmt]) -> None:
    """Run the statements of a suite until one cannot be passed."""
    for statement in body:
        if not frame.alive:
            return
        function = _RUNNERS.get(statement.__class__)
        if function is not None:
            function(frame, statement)


def merge(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """The variables after two ways of getting to a place; states (``$...``) are united."""
    if first is second:
        return first
    result = dict(first)
    for name, value in second.items():
        other = result.get(name)
        if other is value:
            continue
        if other is None:
            result[name] = value
        elif name[0] == "$":
            result[name] = unite(other, value)
        else:
            result[name] = join(other, value)
    return result


def _expression(frame: Frame, node: ast.Expr) -> None:
    value = node.value
    if value.__class__ is ast.Constant:
        return
    evaluate(frame, value)
    if isinstance(value, ast.Call) and value.args and isinstance(value.args[0], ast.Compare):
        called = (last_name(value.func) or "").lower()
        if any(part in called for part in _CHECKING):
            # ``check(x.dtype in (...), "...")`` raises where that does not hold.
            frame.variables = {**frame.variables, **narrowed(frame, value.args[0])[0]}


_CHECKING = ("check", "assert", "require", "ensure")


def _assign(frame: Frame, node: ast.Assign) -> None:
    value = evaluate(frame, node.value)
    for target in node.targets:
        bind(frame, target, value)


def _annotated(frame: Frame, node: ast.AnnAssign) -> None:
    if node.value is not None:
        bind(frame, node.target, evaluate(frame, node.value))


def _augmented(frame: Frame, node: ast.AugAssign) -> None:
    held = evaluate(frame, node.target)
    right = evaluate(frame, node.value)
    made = binary(frame, _AUGMENTED[node.op.__class__], held, right, node)
    if held.tensor == 2 and made is not right:
        # In place: the type stays.
        made.dtypes, made.inplace, made.anchor = held.dtypes, True, held.root
    if frame.loops:
        made.bits |= LOOP
    shown = Value("augment", node, (held, right, made), made.dtypes, made.tensor)
    frame.machine.show(shown, frame)
    if made.inplace:
        rebind(frame, held, made)
    if isinstance(node.target, ast.Name):
        frame.variables[node.target.id] = made
    elif isinstance(node.target, ast.Attribute):
        base = evaluate(frame, node.target.value)
        if base.op == "self":
            frame.variables[f"self.{node.target.attr}"] = made


def _if(frame: Frame, node: ast.If) -> None:
    test = evaluate(frame, node.test)
    kept = frame.variables
    yes, no = narrowed(frame, node.test)
    # A default decides nothing: callers may give something else, and settings are entered in dictionaries.
    is_default = test.op == "param" or isinstance(node.test, ast.Subscript)
    decided = bool(test.const) if test.is_const and not is_default else None
    states = {name: paths for name, paths in kept.items() if name[0] == "$"} if frame.machine.turns_twice else None
    frame.variables = {**kept, **yes}
    if states:
        frame.variables.update(assume(frame, node.test, True, states))
    if decided is False:
        frame.alive = False
    run(frame, node.body)
    after_body = frame.variables if frame.alive else None
    frame.alive = decided is not True
    frame.variables = {**kept, **no}
    if states:
        frame.variables.update(assume(frame, node.test, False, states))
    if frame.alive:
        run(frame, node.orelse)
    after_else = frame.variables if frame.alive else None
    _rejoin(frame, kept, after_body, after_else)


def _rejoin(frame: Frame, kept: dict[str, Value], *ends: dict[str, Value] | None) -> None:
    reached = [end for end in ends if end is not None]
    frame.alive = bool(reached)
    frame.variables = reached[0] if reached else kept
    for end in reached[1:]:
        frame.variables = merge(frame.variables, end)


def _for(frame: Frame, node: ast.For | ast.AsyncFor) -> None:
    iterable = evaluate(frame, node.iter)
    _loop(frame, node.body, node.orelse, lambda: bind(frame, node.target, iterated(frame, iterable, node.iter)))


def _while(frame: Frame, node: ast.While) -> None:
    endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
    _loop(frame, node.body, node.orelse, lambda: evaluate(frame, node.test), endless=endless)


def _loop(
    frame: Frame, body: list[ast.stmt], orelse: list[ast.stmt], head: Callable[[], object], endless: bool = False
) -> None:
    kept_jumps = frame.machine.jumps
    before = frame.variables
    frame.loops += 1
    ends: list[dict[str, Value]] = [] if endless else [before]
    for _ in range(2 if frame.machine.turns_twice else 1):
        first = _turn(frame, body, head)
        if first is None:
            break
        ends.append(first)
    if len(ends) > 1 and not frame.machine.turns_twice and _grown(*ends[-2:]):
        ends += _settled(frame, body, head, ends[-2], ends[-1])
    frame.loops -= 1
    frame.machine.jumps = kept_jumps
    _rejoin(frame, before, *ends)
    for name in _grown(*ends[-2:]) if len(ends) > 1 else ():
        frame.variables[name] = _unbounded(frame.variables[name], ends[-2][name])
    if orelse:
        run(frame, orelse)


def _turn(frame: Frame, body: list[ast.stmt], head: Callable[[], object]) -> dict[str, Value] | None:
    """The variables after one turn of a loop; None where it is never finished."""
    jumps: list[dict[str, Value]] = []
    frame.machine.jumps = jumps
    frame.variables = dict(frame.variables)
    head()
    run(frame, body)
    reached = [*([frame.variables] if frame.alive else []), *jumps]
    frame.alive = bool(reached)
    if not reached:
        return None
    for end in reached[1:]:
        reached[0] = merge(reached[0], end)
    frame.variables = reached[0]
    return reached[0]


_MORE_TURNS = 2
"""Turns after which what still grows is taken to grow without end: one for a value that is carried over, a second for
one that is made of it."""


def _settled(
    frame: Frame, body: list[ast.stmt], head: Callable[[], object], before: dict[str, Value], after: dict[str, Value]
) -> list[dict[str, Value]]:
    """The variables after later turns, which the rules are not shown: they start from what earlier ones left."""
    machine = frame.machine
    if machine.settling:
        return []
    silent, machine.settling, frame.silent = frame.silent, True, True
    ends: list[dict[str, Value]] = []
    for _ in range(_MORE_TURNS):
        state = merge(before, after)
        for name in _grown(before, after):
            state[name] = _unbounded(state[name], before[name])
        frame.variables = state
        end = _turn(frame, body, head)
        if end is None:
            break
        ends.append(end)
        if not _grown(state, end):
            break
        before, after = state, end
    machine.settling, frame.silent, frame.alive = False, silent, True
    return ends


def _grown(before: dict[str, Value], after: dict[str, Value]) -> list[str]:
    """The variables that may be something after a turn of a loop that they could not be before it."""
    found = []
    for name, value in after.items():
        old = before.get(name)
        if old is None or old is value or name[0] == "$":
            continue
        if (
            value.dtypes & ~old.dtypes
            or value.lo < old.lo
            or value.hi > old.hi
            or (old.is_const and not (value.is_const and value.const == old.const))
        ):
            found.append(name)
    return found


def _unbounded(value: Value, before: Value) -> Value:
    """``value`` after any number of turns, if one turn took it there from ``before``."""
    made = Value("alias", value.node, (value,), value.dtypes, value.tensor, value.bits)
    made.sym, made.data, made.anchor = value.sym, value.data, value.anchor
    made.lo = value.lo if value.lo >= before.lo else -math.inf
    made.hi = value.hi if value.hi <= before.hi else math.inf
    return made


def _jump(frame: Frame, node: ast.Continue | ast.Break) -> None:
    if frame.machine.jumps is not None:
        frame.machine.jumps.append(frame.variables)
    frame.alive = False


def _with(frame: Frame, node: ast.With | ast.AsyncWith) -> None:
    was, count = frame.autocast, len(frame.contexts)
    for item in node.items:
        value = evaluate(frame, item.context_expr)
        frame.contexts.append(value)
        enabled = frame.machine.autocast_enabled(value)
        if enabled is not None:
            frame.autocast = enabled
        if item.optional_vars is not None:
            bind(frame, item.optional_vars, value)
    run(frame, node.body)
    frame.autocast = was
    del frame.contexts[count:]


def _try(frame: Frame, node: ast.Try) -> None:
    before = frame.variables
    frame.variables = dict(before)
    run(frame, node.body)
    reached = frame.variables
    if frame.alive:
        run(frame, node.orelse)
    ends = [frame.variables if frame.alive else None]
    for handler in node.handlers:
        frame.alive = True
        frame.variables = merge(before, reached)
        run(frame, handler.body)
        ends.append(frame.variables if frame.alive else None)
    _rejoin(frame, before, *ends)
    if node.finalbody:
        alive, frame.alive = frame.alive, True
        run(frame, node.finalbody)
        frame.alive = frame.alive and alive


def _match(frame: Frame, node: ast.Match) -> None:
    evaluate(frame, node.subject)
    before = frame.variables
    ends: list[dict[str, Value] | None] = [before]
    for case in node.cases:
        frame.variables, frame.alive = dict(before), True
        for item in ast.walk(case.pattern):
            name = getattr(item, "rest", None) if isinstance(item, ast.MatchMapping) else getattr(item, "name", None)
            if isinstance(name, str):
                frame.variables[name] = frame.machine.unknown("element", item, name)
        run(frame, case.body)
        ends.append(frame.variables if frame.alive else None)
    _rejoin(frame, before, *ends)


def _return(frame: Frame, node: ast.Return) -> None:
    if node.value is not None:
        value = evaluate(frame, node.value)
        frame.returned.append(value)
        shown = Value("return", node, (value,))
        frame.machine.show(shown, frame)
    frame.machine.leave(frame)
    frame.alive = False


def _raise(frame: Frame, node: ast.Raise) -> None:
    frame.alive = False


def _function(frame: Frame, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    facts = FunctionFacts(node, frame.module, None, frame.function)
    made = Value("function", node)
    made.data = facts
    made.sym = node.name
    frame.variables[node.name] = made
    frame.machine.run_nested(facts, frame)


def _class(frame: Frame, node: ast.ClassDef) -> None:
    facts = ClassFacts(node, frame.module, frame.function)
    made = Value("class", node)
    made.data = facts
    made.sym = node.name
    frame.variables[node.name] = made
    for method in facts.methods.values():
        frame.machine.run_nested(method, frame)


def _import(frame: Frame, node: ast.Import | ast.ImportFrom) -> None:
    for name, dotted in imported_names(node):
        if name != "*":
            made = Value("name", node)
            made.sym = dotted
            frame.variables[name] = made


def _delete(frame: Frame, node: ast.Delete) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            frame.variables.pop(target.id, None)


def _assert(frame: Frame, node: ast.Assert) -> None:
    evaluate(frame, node.test)
    yes, _ = narrowed(frame, node.test)
    if yes:
        frame.variables = {**frame.variables, **yes}


_RUNNERS: dict[type, Callable[[Frame, Any], None]] = {
    ast.Expr: _expression,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated,
    ast.AugAssign: _augmented,
    ast.If: _if,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.While: _while,
    ast.Continue: _jump,
    ast.Break: _jump,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.Try: _try,
    ast.Match: _match,
    ast.Return: _return,
    ast.Raise: _raise,
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.ClassDef: _class,
    ast.Import: _import,
    ast.ImportFrom: _import,
    ast.Delete: _delete,
    ast.Assert: _assert,
}
if hasattr(ast, "TryStar"):
    _RUNNERS[ast.TryStar] = _try
