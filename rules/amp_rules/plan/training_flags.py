"""Conditions around training steps: flags by which a loop trains or evaluates."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from amp_rules.roles.program import Program
from amp_rules.roles.sites import Site
from amp_rules.source import blocks
from amp_rules.source.modules import Module
from amp_rules.source.syntax import walk
from amp_rules.torch.gradients import MODES

NOTHING = object()
"""In the place of a value: a flag's truth is asked for."""


@dataclass(frozen=True)
class Flag:
    """A condition on one variable: ``train``, ``not val``, ``phase == "train"``, ``optimizer is not None``.

    Attributes:
        name: the variable.
        value: what it is compared with; nothing where its truth is asked for.
        holds: whether it trains where the condition holds.
    """

    name: str
    value: object
    holds: bool

    def decide(self, given: object) -> bool:
        """Whether it trains with this value."""
        return (bool(given) if self.value is NOTHING else given == self.value) is self.holds

    def excludes(self, other: Flag) -> bool:
        """Whether it does not train where another condition on the variable holds: ``phase == "valid"``."""
        if self.name != other.name:
            return False
        if self.value == other.value:
            return self.holds is not other.holds
        return self.holds and other.holds and NOTHING not in (self.value, other.value)

    @property
    def text(self) -> str:
        """The condition under which it trains, as code."""
        if self.value is NOTHING:
            return self.name if self.holds else f"not {self.name}"
        if self.value is None:
            return f"{self.name} is {'' if self.holds else 'not '}None"
        value = json.dumps(self.value) if isinstance(self.value, str) else repr(self.value)
        return f"{self.name} {'==' if self.holds else '!='} {value}"


def flag_of(program: Program, site: Site) -> tuple[ast.If, Flag | None] | None:
    """The condition between a backward pass and the loop around it, and what it asks; None where there is none."""
    around = [*blocks.enclosing(site.module, site.node)]
    loop = next((item for item in around if isinstance(item, blocks.LOOPS)), None)
    changing = _changing(loop) if loop is not None else set()
    for parent in around:
        if parent is loop:
            return None
        for skipping in _skipping(site.module, parent):
            if asked := _asked(skipping.test, changing, holds=False):
                return skipping, followed(program, site.body, _any_flag(asked, holds=False))
        if isinstance(parent, ast.If):
            if all(any(map(program.runs_backward, suite)) for suite in (parent.body, parent.orelse)):
                continue  # it trains either way
            in_body = any(site.node in set(walk(item)) for item in parent.body)
            if asked := _asked(parent.test, changing, in_body):
                return parent, followed(program, site.body, _any_flag(asked, in_body))
    return None


def flag_of_calls(program: Program, site: Site) -> tuple[ast.If, Flag | None] | None:
    """The same of a loop whose calls run the backward pass: ``if phase == "train": trainer.step(x, y)``.

    Args:
        program: the program.
        site: the loop; each call in it that trains has to stand under one condition.
    """
    if not isinstance(site.node, blocks.LOOPS):
        return None
    inside = [node for item in site.node.body for node in blocks.walk_own(item)]
    calls = [node for node in inside if isinstance(node, ast.Call) and program.runs_backward(node)]
    found = [flag_of(program, Site(site.module, site.scope, site.body, call)) for call in calls]
    return found[0] if found and all(item == found[0] for item in found) else None


def is_told_to_train(program: Program, loop: ast.For | ast.AsyncFor | ast.While, site: Site, flag: Flag) -> bool:
    """Whether a loop's own calls tell a function that it trains: ``step(batch)``, beside ``step(batch, False)``."""
    info = program.function_of(site.body)
    if info is None or site.node in set(walk(loop)):
        return False
    inside = {node for item in loop.body for node in walk(item)}
    calls = [caller.call for caller in program.flow.callers(info) if caller.call in inside]
    given = [info.argument_or_default(call, flag.name) for call in calls]
    return bool(given) and all(isinstance(value, ast.Constant) and flag.decide(value.value) for value in given)


def handed_on(program: Program, loop: ast.For | ast.AsyncFor | ast.While, site: Site, flag: Flag) -> Flag | None:
    """The flag of a loop's function that its calls hand to another, which trains by it: ``step(batch, train)``."""
    info = program.function_of(site.body)
    if info is None or flag.name not in info.parameters:
        return None
    inside = {node for item in loop.body for node in walk(item)}
    calls = [caller.call for caller in program.flow.callers(info) if caller.call in inside]
    given = [info.argument_or_default(call, flag.name) for call in calls]
    names = {value.id if isinstance(value, ast.Name) else None for value in given}
    name = names.pop() if len(names) == 1 else None
    return replace(flag, name=name) if name is not None else None


def _skipping(module: Module, statement: ast.stmt) -> Iterator[ast.If]:
    """Yield the statements before another in its suite that may end the round: ``if not train: continue``."""
    where = blocks.place(module, statement)
    for item in where.suite[: where.index]:
        if isinstance(item, ast.If) and isinstance(item.body[-1], ast.Continue) and not item.orelse:
            yield item


def _asked(test: ast.expr, changing: set[str], holds: bool) -> list[ast.expr]:
    """The parts of a condition that do not depend on the round: ``train`` of ``train and i % 4 == 0``."""
    joins = ast.And if holds else ast.Or
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, joins) else [test]
    return [part for part in parts if asks_for_mode(part) or not blocks.touches(blocks.reads(part), changing)]


def _any_flag(parts: list[ast.expr], holds: bool) -> Flag | None:
    return next((flag for part in parts if (flag := flag_in(part, holds)) is not None), None)


def asks_for_mode(test: ast.expr) -> bool:
    """Whether a condition asks torch: ``loss.requires_grad``, ``model.training``, ``torch.is_grad_enabled()``."""
    return any(isinstance(node, ast.Attribute) and node.attr in MODES for node in walk(test))


def _changing(loop: ast.stmt) -> set[str]:
    """Variables that each round of a loop gives another value, which says nothing about what the loop is run for."""
    found = blocks.writes_target(loop) if isinstance(loop, (ast.For, ast.AsyncFor)) else set()
    inside = [node for item in loop.body for node in blocks.walk_own(item)]  # type: ignore[attr-defined]
    found |= {path for node in inside if isinstance(node, ast.AugAssign) for path in blocks.writes(node)}
    assigned = [node for node in inside if isinstance(node, ast.Assign)]
    while True:
        before = len(found)
        for node in assigned:
            # ``size = x.shape[0]`` is of the batch, too.
            if any(isinstance(part, ast.Call) for part in walk(node.value)) or any(
                path in found or path.partition(".")[0] in found for path in blocks.reads(node.value)
            ):
                found |= blocks.writes(node)
        if len(found) == before:
            return found


def followed(program: Program, body: ast.AST, flag: Flag | None) -> Flag | None:
    """What a flag is, where the function works it out: ``training`` of ``training = optimizer is not None``."""
    if flag is None or flag.value is not NOTHING:
        return flag
    assigned = [
        node
        for node in program.nodes_of(body)
        if isinstance(node, ast.Assign) and [blocks.path_of(target) for target in node.targets] == [flag.name]
    ]
    if len(assigned) == 1:
        return flag_in(assigned[0].value, flag.holds) or flag
    return _of_branches(program, body, assigned, flag) or flag if len(assigned) == 2 else flag


def _of_branches(program: Program, body: ast.AST, assigned: list[ast.Assign], flag: Flag) -> Flag | None:
    """What a flag is that the branches of a test set: ``if optimizer is None: training = False``, else ``True``.

    One of the two may stand above the test, as what holds where the branch is not run.
    """
    for test in program.nodes_of(body):
        if not isinstance(test, ast.If):
            continue
        inside = [item for item in assigned if item in test.body]
        others = [item for item in assigned if item not in inside]
        if len(inside) != 1 or not (others[0] in test.orelse or _is_above(body, others[0], test)):
            continue
        value, other = inside[0].value, others[0].value
        if not (isinstance(value, ast.Constant) and isinstance(other, ast.Constant)):
            return None
        if bool(value.value) is bool(other.value):
            return None
        return flag_in(test.test, bool(value.value) is flag.holds)
    return None


def _is_above(body: ast.AST, statement: ast.stmt, test: ast.If) -> bool:
    """Whether a function runs a statement of its own, in no branch, and a test of its own below it."""
    suite = getattr(body, "body", [])
    return statement in suite and test in suite and suite.index(statement) < suite.index(test)


def flag_in(test: ast.expr, holds: bool) -> Flag | None:
    """What a test asks, if it asks of one variable; ``holds`` says whether it trains where the test is true."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return flag_in(test.operand, not holds)
    if isinstance(test, ast.Name):
        return Flag(test.id, NOTHING, holds)
    if not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and len(test.ops) == 1):
        return None
    value, operator = test.comparators[0], test.ops[0]
    if isinstance(operator, (ast.In, ast.NotIn)) and isinstance(value, (ast.List, ast.Set, ast.Tuple)):
        # `phase in ["train"]` is `phase == "train"`; of a longer list no one value is the flag's.
        value = value.elts[0] if len(value.elts) == 1 else value
        operator = ast.Eq() if isinstance(operator, ast.In) else ast.NotEq()
    if not isinstance(value, ast.Constant):
        return None
    if isinstance(operator, (ast.Eq, ast.Is)):
        return Flag(test.left.id, value.value, holds)
    return Flag(test.left.id, value.value, not holds) if isinstance(operator, (ast.NotEq, ast.IsNot)) else None
