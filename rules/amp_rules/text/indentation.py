"""By how much a block stands further right than its head, in a file that need not be of one mind about it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from amp_rules.source import blocks
from amp_rules.source.modules import Module


@dataclass(frozen=True)
class Step:
    """The indentation of a suite, from the line of its first statement to that of its last."""

    first: int
    last: int
    text: str


def steps(module: Module) -> Iterator[Step]:
    """The indentation of each block beyond that of the statement that it belongs to."""
    for node in module.nodes:
        if isinstance(node, (ast.stmt, ast.ExceptHandler)):
            for suite in blocks.suites(node):
                first = suite[0]
                if first.lineno > node.lineno and not (isinstance(first, ast.If) and blocks.is_elif(module, first)):
                    start, outer = module.start(first)[1], module.start(node)[1]
                    text = module.lines[first.lineno - 1][outer:start]
                    if text.isspace():  # not in the row of its ``else:``
                        yield Step(first.lineno, suite[-1].end_lineno or suite[-1].lineno, text)


class Indentation:
    """The steps of a file: a block gets that of the blocks around it.

    Args:
        module: the file.
        above: so many lines of the file stand above the text that is edited.

    Attributes:
        default: the step where the file has no block.
    """

    def __init__(self, module: Module, above: int = 0) -> None:
        self.default = "    "
        self._module = module
        self._above = above

    @cached_property
    def _steps(self) -> list[Step]:
        return list(steps(self._module))

    def at(self, line: int) -> str:
        """The step of a block that begins at a line.

        The most frequent one within the definition or loop of the file that the line belongs to, of the same white
        space as the block around the line: a single block that stands out by a column or two is not followed.
        """
        line += self._above
        around = [step for step in self._steps if step.first <= line <= step.last]
        if not around:
            return _most_frequent(self._steps) or self.default
        outer = min(around, key=lambda step: step.first)
        inner = max(around, key=lambda step: step.first)
        near = [step for step in self._steps if outer.first <= step.first <= outer.last]
        return _most_frequent([inner, *(step for step in near if set(step.text) == set(inner.text) and step != inner)])


def _most_frequent(found: Sequence[Step]) -> str:
    """The text of most of the steps; of several, the first one's."""
    count = Counter(step.text for step in found)
    return count.most_common(1)[0][0] if count else ""


def shifted(space: str, step: str) -> str:
    """The white space before a row that moves to the right with its block, as far as the block does.

    Spaces go behind tabs, which would swallow them, and tabs before all else.
    """
    return step + space if "\t" in step else space + step
