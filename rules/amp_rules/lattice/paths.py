"""States that rules keep along the ways through a function, each with what the tests on its way have said.

A variable of a frame whose name starts with ``$`` holds the paths of one rule. At a branch each path is told what the
test says, and one that knows better ends there: where a script asks the same question twice, the answers agree.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from amp_rules.lattice.frame import Frame

Answer = tuple[int, bool]
"""The number of a test, and how it came out."""
_MAX_PATHS = 32
"""Ways that are told apart: five tests that have nothing to do with each other. Beyond, a rule has lost its way and
says nothing."""


class _Lost:
    """The state of a rule that has lost its way: there were too many."""

    def __repr__(self) -> str:
        return "LOST"


LOST = _Lost()


class Path(NamedTuple):
    """One way to a place.

    Attributes:
        assumed: the tests on the way with their outcomes, as far as they still tell ways apart.
        state: what the rule knows.
    """

    assumed: frozenset[Answer]
    state: Any


START = frozenset({Path(frozenset(), None)})
"""The paths at the start of a function: one, of which nothing is known."""


@lru_cache(maxsize=512)
def unite(first: frozenset[Any], second: frozenset[Any] = frozenset()) -> frozenset[Any]:
    """The paths where two ways meet: those that differ in one answer only become one."""
    found = first | second
    by_state: dict[Any, list[frozenset[Answer]]] = {}
    for item in found:
        if not isinstance(item, Path):
            return found
        by_state.setdefault(item.state, []).append(item.assumed)
    paths = [Path(assumed, state) for state, group in by_state.items() for assumed in _resolved(group)]
    if len(paths) > _MAX_PATHS:
        return frozenset({Path(frozenset(), LOST)})
    return frozenset(paths)


def _resolved(group: list[frozenset[Answer]]) -> list[frozenset[Answer]]:
    """Leave out a test whose outcome makes no difference."""
    if len(group) < 2:
        return group
    left = set(group)
    while True:
        change = _step(left)
        if change is None:
            return list(left)
        left -= set(change[:2])
        left.add(change[2])


def _step(group: set[frozenset[Answer]]) -> tuple[frozenset[Answer], frozenset[Answer], frozenset[Answer]] | None:
    for one in group:
        for answer in one:
            rest = one - {answer}
            if rest in group:
                return one, one, rest
            other = rest | {(answer[0], not answer[1])}
            if other in group:
                return one, other, rest
    return None


# ---- tests -------------------------------------------------------------------------------------------------------

ReadTest = tuple[Any, ...]


def assume(frame: Frame, test: ast.expr, outcome: bool, states: dict[str, Any]) -> dict[str, Any]:
    """The states where ``test`` had that outcome."""
    read = _read(frame, test)
    answers = frozenset(_answers(read, outcome))
    result = {}
    done: dict[int, frozenset[Any]] = {}
    for name, paths in states.items():
        found = done.get(id(paths))
        if found is None:
            kept = []
            for item in paths:
                if not isinstance(item, Path):
                    kept.append(item)
                elif _holds(frame, read, item.assumed) is not (not outcome):
                    kept.append(Path(item.assumed | answers, item.state))
            found = done[id(paths)] = frozenset(kept)
        result[name] = found
    return result


def _read(frame: Frame, test: ast.expr) -> ReadTest:
    """A test as ``and``, ``or`` and ``not`` of things that are equal for the same question about the same values."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return ("not", _read(frame, test.operand))
    if isinstance(test, ast.BoolOp):
        whole = ("atom", _number(frame, _key(frame, test)), True)
        parts = [_read(frame, item) for item in test.values]
        return ("and" if isinstance(test.op, ast.And) else "or", whole, *parts)
    key, positive = _atom(frame, test)
    return ("atom", _number(frame, key), positive)


def _answers(read: ReadTest, outcome: bool) -> list[Answer]:
    """What follows from the outcome of a test."""
    kind = read[0]
    if kind == "not":
        return _answers(read[1], not outcome)
    if kind == "atom":
        return [(read[1], read[2] is outcome)]
    if (kind == "and") is outcome:
        return [answer for part in read[2:] for answer in _answers(part, outcome)]
    return _answers(read[1], outcome)


def _holds(frame: Frame, read: ReadTest, assumed: frozenset[Answer]) -> bool | None:
    """Whether a test holds, given the outcomes of earlier ones; None where they do not say."""
    if not assumed:
        return None
    kind = read[0]
    if kind == "not":
        inner = _holds(frame, read[1], assumed)
        return None if inner is None else not inner
    if kind != "atom":
        parts = [_holds(frame, item, assumed) for item in read[2:]]
        decisive = kind == "or"
        if decisive in parts:
            return bool(decisive)
        if None not in parts:
            return not decisive
        return _holds(frame, read[1], assumed)
    _, number, positive = read
    if (number, True) in assumed:
        return bool(positive)
    if (number, False) in assumed:
        return not positive
    key = frame.machine.tests[number]
    if isinstance(key, tuple) and key[0] == "is":
        for other, value in assumed:
            held = frame.machine.tests[other] if value else None
            if isinstance(held, tuple) and held[:2] == key[:2] and held[2] != key[2]:
                # It equals another constant.
                return not positive
    return None


def _number(frame: Frame, key: Hashable) -> int:
    """A number for a test: sets of numbers are quick to compare."""
    numbers = frame.machine.numbers
    number = numbers.get(key)
    if number is None:
        number = numbers[key] = len(frame.machine.tests)
        frame.machine.tests.append(key)
    return number


def _atom(frame: Frame, test: ast.expr) -> tuple[Hashable, bool]:
    """A test without its negation."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, operator, right = test.left, test.ops[0], test.comparators[0]
        if isinstance(right, ast.Constant):
            if right.value is None and isinstance(operator, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
                return _key(frame, left), isinstance(operator, (ast.IsNot, ast.NotEq))
            if isinstance(right.value, bool) and isinstance(operator, (ast.Is, ast.Eq)):
                return _key(frame, left), right.value
            if isinstance(operator, (ast.Eq, ast.NotEq)):
                return ("is", _key(frame, left), (type(right.value), right.value)), isinstance(operator, ast.Eq)
    return _key(frame, test), True


def _key(frame: Frame, node: ast.AST) -> Hashable:
    if isinstance(node, ast.Name):
        value = frame.variables.get(node.id)
        return value if value is not None else node.id
    if isinstance(node, ast.Attribute):
        return ("attr", _key(frame, node.value), node.attr)
    if isinstance(node, ast.Constant):
        return (type(node.value), node.value)
    parts: list[Hashable] = [type(node).__name__]
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.expr_context, ast.operator)):
            parts.append(_key(frame, child))
        elif isinstance(child, ast.operator):
            parts.append(type(child).__name__)
    return tuple(parts)


_AMP_WORDS = (
    "amp", "scaler", "fp16", "half", "precision", "mixed", "apex", "cuda", "bf16", "float16", "dtype", "grad",
    "autocast", "enabled", "accelerat",
)  # fmt: skip


def is_about_precision(key: Hashable) -> bool:
    """Whether a test asks for the precision, as scripts do in several ways that mean the same."""
    return any(word in text for text in _texts(key) for word in _AMP_WORDS)


def _texts(key: Hashable) -> Iterable[str]:
    if isinstance(key, str):
        yield key.lower()
    elif isinstance(key, tuple):
        for item in key:
            yield from _texts(item)
    else:
        data = getattr(key, "data", None)
        if isinstance(data, str):
            yield data.lower()
