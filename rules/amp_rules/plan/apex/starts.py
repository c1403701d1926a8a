"""Where Apex was initialised: what the runtime is started with, and whether another call has said so already."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from amp_rules.plan.apex.file import ApexFile
from amp_rules.plan.apex.keywords import code_of
from amp_rules.source import blocks
from amp_rules.source.syntax import is_none, walk

MODELS = ("models", "optimizers")
"""The arguments of ``initialize`` that are no settings."""


@dataclass(frozen=True)
class Start:
    """What becomes of one call.

    Attributes:
        call: the call.
        statement: the statement that holds it.
        arguments: what it is given.
        asked: the level as the call gives it.
        level: the level, under the conditions that go.
        condition: the ``if`` that goes with the statement.
        beside: the ``if`` that stays, and before which the models are prepared.
        prepared: the statements that prepare the models, and hand the optimizers on.
        handed: those that hand optimizers on where the models are prepared before the ``if``, and they in it.
        above: the statement that wraps the model, above which it has to be prepared.
    """

    call: ast.Call
    statement: ast.stmt
    arguments: dict[str, ast.expr]
    asked: str
    level: str
    condition: ast.If | None
    beside: ast.If | None
    prepared: list[str]
    handed: list[str]
    above: ast.stmt | None = None

    @property
    def place(self) -> ast.stmt:
        """The statement that goes."""
        return self.condition or self.statement

    def says(self, file: ApexFile) -> tuple[str, ...]:
        """With what the runtime starts."""
        rest = sorted((name, code_of(file, value)) for name, value in self._values if name != "opt_level")
        return (self.level, *(f"{name}={code}" for name, code in rest))

    def reads(self) -> set[str]:
        """The paths that this depends on."""
        values = [value for _, value in self._values]
        if self.condition is not None:
            values.append(self.condition.test)
        return {path for value in values for path in blocks.reads(value)}

    @property
    def _values(self) -> list[tuple[str, ast.expr]]:
        return [(name, value) for name, value in self.arguments.items() if name not in MODELS and not is_none(value)]


def is_started(file: ApexFile, start: Start, earlier: list[Start]) -> bool:
    """Whether the runtime runs already with all that a call says, wherever the call is reached."""
    around = {start.place, *blocks.enclosing(file.module, start.place)}
    for other in earlier:
        first = other.beside or other.place
        where = blocks.place(file.module, first)
        later = next((item for item in where.suite[where.index :] if item in around), None)
        if later is None or isinstance(where.parent, blocks.LOOPS):
            continue
        said = {other.says(file)}
        around_it = other.beside or other.condition
        if around_it is not None and file.source(around_it.test) in _holding(file, start.place):
            said.add((other.asked, *other.says(file)[1:]))
        between = where.suite[where.index : where.suite.index(later)]
        changed = {path for item in between if item is not first for path in blocks.writes(item)}
        if start.says(file) in said and not blocks.touches(start.reads(), changed):
            return True
    return False


def repeats(file: ApexFile, statement: ast.stmt) -> list[ast.stmt]:
    """The statements below one in its suite that say the same again, with nothing but imports between."""
    where = blocks.place(file.module, statement)
    found: list[ast.stmt] = []
    for item in where.suite[where.index + 1 :]:
        if ast.dump(item) == ast.dump(statement):
            found.append(item)
        elif not isinstance(item, (ast.Import, ast.ImportFrom)):
            break
    return found


def _holding(file: ApexFile, statement: ast.stmt) -> set[str]:
    """The tests of the conditions in whose bodies a statement stands."""
    return {
        file.source(parent.test)
        for parent in blocks.enclosing(file.module, statement)
        if isinstance(parent, ast.If) and any(statement in set(walk(item)) for item in parent.body)
    }


def other_branch(file: ApexFile, start: Start, starts: list[Start]) -> tuple[ast.If, Start] | None:
    """The ``if`` in whose other branch the runtime starts in the same way, and what starts it there."""
    for branch in blocks.enclosing(file.module, start.place):
        if not isinstance(branch, ast.If) or any(isinstance(item, ast.NamedExpr) for item in walk(branch.test)):
            continue
        if blocks.is_elif(file.module, branch):
            continue
        for other in starts:
            places = (start.place, other.place)
            if other is start or other.beside is not None or other.says(file) != start.says(file):
                continue
            if blocks.choice_between(file.module, *places) is not branch:
                continue
            if any(_calls_before(file, place, branch) for place in places):
                continue
            if not blocks.touches(start.reads(), blocks.writes(branch) - _given(start) - _given(other)):
                return branch, other
    return None


def _calls_before(file: ApexFile, place: ast.stmt, branch: ast.If) -> bool:
    """Whether something is called in a branch first: it may choose the device, or join the processes."""
    for statement in (place, *blocks.enclosing(file.module, place)):
        if statement is branch:
            break
        where = blocks.place(file.module, statement)
        if any(isinstance(part, ast.Call) for item in where.suite[: where.index] for part in walk(item)):
            return True
    return False


def _given(start: Start) -> set[str]:
    return blocks.writes(start.statement)


def is_first(file: ApexFile, start: Start, branch: ast.If) -> bool:
    """Whether a branch begins with the statement, and its condition asks nothing of what is prepared."""
    return start.place in (branch.body[0], *branch.orelse[:1]) and not blocks.touches(
        blocks.reads(branch.test), blocks.reads(start.arguments["models"])
    )
