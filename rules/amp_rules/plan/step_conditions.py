"""The conditions on an optimizer under which it steps: new lines that serve the step share them.

An optimizer that may be None steps under ``if optimizer is not None:``; its gradients are unscaled under the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Step
from amp_rules.source import blocks
from amp_rules.source.index import leaves
from amp_rules.source.modules import Module
from amp_rules.source.syntax import is_none, last_name, own_name, walk

# What a test may call and still be asked twice.
_PURE_FUNCTIONS = frozenset({"bool", "callable", "getattr", "hasattr", "isinstance", "len"})
_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def conditions(
    program: Program, step: Step, outermost: ast.stmt | None, between: Sequence[ast.stmt]
) -> tuple[str, ...] | None:
    """The conditions under which an optimizer steps, as far as they are about the optimizer.

    Args:
        program: the program.
        step: the step.
        outermost: the statement that holds it and stands beside the place that is asked for; None for its whole body.
        between: the statements between that place and ``outermost``.

    Returns:
        Their sources; None where the optimizer may be None and what the step depends on cannot be asked earlier.
    """
    tests = list(_tests(step.module, step.node, outermost))
    tests += [test for statement in between for test in _left_unless(statement)]
    receiver = ast.unparse(step.optimizer)
    about = [test for test in tests if _mentions(test, receiver)]
    if not about:
        about = _of_assignments(program, step, tests)
    written = {name for statement in between for name in blocks.writes(statement)}
    if any(not _is_pure(test) or blocks.touches(blocks.reads(test), written) for test in about):
        return None
    return tuple(sorted({ast.unparse(test) for test in about}))


def _of_assignments(program: Program, step: Step, tests: list[ast.expr]) -> list[ast.expr]:
    """Of some tests around a step those on which it rests that there is an optimizer at all.

    That is all of them where its variable may be None, and those under which it is made where it is made under one.
    """
    name = last_name(step.optimizer)
    around: set[str] = set()
    for node, body, scope in program.nodes():
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if not any(own_name(target) == name and type(target) is type(step.optimizer) for target in targets):
            continue
        if isinstance(step.optimizer, ast.Name) and scope.owner(name) is not step.scope.owner(name):
            continue
        if may_be_none(program, node):
            return tests
        if body is step.body:
            around |= conditions_at(scope.module, node)
        elif scope.module is step.module and isinstance(step.optimizer, ast.Name):
            # A function that steps a variable of the file, made under a condition on others of these.
            around |= {
                ast.unparse(test)
                for test in _tests(scope.module, node, None)
                if all(step.scope.owner(name) is scope.owner(name) for name in _roots(test))
            }
    return [test for test in tests if ast.unparse(test) in around]


def _roots(test: ast.expr) -> set[str]:
    return {path.partition(".")[0] for path in blocks.reads(test)}


def may_be_none(program: Program, assignment: ast.stmt) -> bool:
    """Whether an assignment may give None to its variable, as far as it says so itself or what it calls does."""
    pending = [getattr(assignment, "value", None)]
    while pending:
        value = pending.pop()
        if isinstance(value, ast.IfExp):
            pending += [value.body, value.orelse]
        elif is_none(value):
            return True
        elif isinstance(value, ast.Call):
            for info in program.flow.callees(value):
                returned = [node.value for node in blocks.walk_body(info.node) if isinstance(node, ast.Return)]
                if any(is_none(item) for item in returned):
                    return True
    return False


def conditions_at(module: Module, statement: ast.stmt) -> set[str]:
    """The conditions that hold where a statement stands, within its body."""
    return {ast.unparse(test) for test in _tests(module, statement, None)}


def never_both(module: Module, one: ast.stmt, other: ast.stmt) -> bool:
    """Whether a condition around one statement is false wherever the other runs, in one run of their body."""
    first, last = sorted((one, other), key=lambda item: item.lineno)
    if blocks.choice_between(module, first, last) is not None:
        return True
    holding = conditions_at(module, last)
    body = blocks.body_of(module, first)
    for test in _tests(module, first, None):
        if not {ast.unparse(item) for item in _negated(test)} <= holding or not _is_pure(test):
            continue
        read = blocks.reads(test)
        between = (
            item
            for item in blocks.walk_body(body)
            if isinstance(item, ast.stmt) and first.lineno < item.lineno < last.lineno
        )
        if not any(blocks.touches(read, blocks.writes(item)) for item in between):
            return True
    return False


def _tests(module: Module, node: ast.AST, outermost: ast.stmt | None) -> Iterator[ast.expr]:
    """What must hold for a node to run, from the inside; up to a statement, or to the body's end."""
    current = node
    for parent in module.ancestors(node):
        if isinstance(current, ast.stmt):
            if current is outermost:
                return
            yield from _above(module, current)
        if isinstance(parent, blocks.BODIES):
            return
        if isinstance(parent, ast.If):
            yield from _conjuncts(parent.test) if current in parent.body else _negated(parent.test)
        elif isinstance(parent, ast.IfExp) and current is not parent.test:
            yield from _conjuncts(parent.test) if current is parent.body else _negated(parent.test)
        elif isinstance(parent, ast.BoolOp):
            for value in parent.values[: parent.values.index(current)]:  # type: ignore[arg-type]
                yield from _conjuncts(value) if isinstance(parent.op, ast.And) else _negated(value)
        current = parent


def _above(module: Module, statement: ast.stmt) -> Iterator[ast.expr]:
    """What must hold because statements above in the same suite leave it otherwise."""
    where = blocks.place(module, statement)
    for earlier in where.suite[: where.index]:
        yield from _left_unless(earlier)


def _left_unless(statement: ast.stmt) -> Iterator[ast.expr]:
    """What holds after ``if optimizer is None: continue``."""
    if isinstance(statement, ast.If) and leaves(statement.body) and not statement.orelse:
        yield from _negated(statement.test)


def _conjuncts(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for value in test.values:
            yield from _conjuncts(value)
    else:
        yield test


def _negated(test: ast.expr) -> Iterator[ast.expr]:
    """The opposite of a test, in parts that all hold."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _conjuncts(test.operand)
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        for value in test.values:
            yield from _negated(value)
    elif isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _OPPOSITE:
        yield ast.Compare(test.left, [_OPPOSITE[type(test.ops[0])]()], test.comparators)
    else:
        yield ast.UnaryOp(ast.Not(), test)


def _mentions(test: ast.expr, receiver: str) -> bool:
    return any(isinstance(node, ast.expr) and ast.unparse(node) == receiver for node in walk(test))


def _is_pure(test: ast.expr) -> bool:
    """Whether a test can be asked twice."""
    for node in walk(test):
        if isinstance(node, ast.Call) and blocks.path_of(node.func) not in _PURE_FUNCTIONS:
            return False
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return False
    return True
