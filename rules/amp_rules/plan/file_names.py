"""What a file of a program is called within a sentence, and a place in it."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from amp_rules.plan.listing import listed
from amp_rules.roles.program import Program
from amp_rules.source.modules import Module

_MAX_PLACES = 3
"""Further places that a note lists; the others are counted."""


def name_of(program: Program, module: Module) -> str:
    """The path of a file from the script's folder on, or from the project's: several files have one base name."""
    for folder in (program.entry.path.parent, program.project.root):
        if module.path.is_relative_to(folder):
            return module.path.relative_to(folder).as_posix()
    return module.path.name


def place_of(program: Program, module: Module, node: ast.AST) -> str:
    """A place within a sentence: its file and line, as the user has them."""
    return f"{name_of(program, module)}:{module.line_on_disk(getattr(node, 'lineno', 1))}"


def line_of(program: Program, module: Module, line: int, below: Module) -> str:
    """A line within a sentence, with its file where that is not the one that the message stands under."""
    told = module.line_on_disk(line)
    return f"line {told}" if module is below else f"line {told} of {name_of(program, module)}"


def more_places(program: Program, places: Iterable[tuple[Module, ast.AST]], said: str = "so it is") -> str:
    """What a note on the first of some places says of the others: where they are, as far as they are few."""
    named = list(dict.fromkeys(place_of(program, *item) for item in places))[1:]
    more = "more places" if len(named) > _MAX_PLACES + 1 else "more place"
    return f"; {said} at {listed(named, _MAX_PLACES, more)}" if named else ""
